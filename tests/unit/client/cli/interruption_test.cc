// What is said of a put that a signal interrupted.
#include "client/cli/interruption.h"

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/command_line.h"
#include "gtest/gtest.h"
#include "process/failpoint.h"
#include "process/file.h"
#include "status/reason.h"

namespace shardmesh::client {
namespace {

TEST(InterruptionTest, OnlyAPutThatIsKnownToBeUndoneIsSaidToBe) {
  EXPECT_TRUE(IsNothingDone(absl::CancelledError("cancelled")));
  EXPECT_TRUE(IsNothingDone(absl::ResourceExhaustedError("no memory")));
  EXPECT_TRUE(IsNothingDone(
      WithReason(absl::FailedPreconditionError("a rank is away"), Reason::kMeshIncomplete)));
  // No answer came.
  EXPECT_FALSE(IsNothingDone(absl::UnavailableError("away")));
  EXPECT_FALSE(IsNothingDone(absl::DeadlineExceededError("late")));
  // The answer to a repeated commit, of which the first one did it.
  EXPECT_FALSE(IsNothingDone(
      WithReason(absl::FailedPreconditionError("no longer remembered"), Reason::kRequestIdReused)));
  EXPECT_FALSE(IsNothingDone(WithReason(absl::NotFoundError("gone since"), Reason::kNotFound)));
}

TEST(InterruptionTest, OnlyACancelledOperationIsSaidToHaveTheOutcome) {
  const auto outcome = [](const absl::Status& status) {
    return OutcomeOfOperation("it is as it was", status);
  };
  EXPECT_EQ(outcome(WithReason(absl::CancelledError("cancelled"), Reason::kCancelled)),
            "it is as it was (cancelled)");
  EXPECT_EQ(outcome(WithReason(absl::FailedPreconditionError("it stopped"), Reason::kMeshInUse)),
            "the operation failed: it stopped");
  // The end of the call, and not of the operation.
  for (const absl::Status& status :
       {absl::UnavailableError("away"), absl::DeadlineExceededError("late")}) {
    EXPECT_EQ(outcome(status).find("it is as it was"), std::string::npos);
    EXPECT_NE(outcome(status).find(std::string(status.message())), std::string::npos);
  }
  EXPECT_EQ(outcome(absl::CancelledError("the call ended")).find("it is as it was"),
            std::string::npos);
}

TEST(InterruptionDeathTest, ASignalRemovesTemporaryFilesAndIsReportedInTheForm) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::string path = ::testing::TempDir() + "interrupted.npy";
  const auto is_interrupted = [&path](OutputForm form, int signal) {
    Interruption interruption("no file", form, [&path] { RemoveTemporaryFilesOf(path); });
    const absl::StatusOr<AtomicFileWriter> writer = AtomicFileWriter::Create(path);
    if (!writer.ok()) return;
    kill(getpid(), signal);
    absl::SleepFor(absl::Seconds(60));
  };
  EXPECT_EXIT(is_interrupted(OutputForm::kTable, SIGINT), ::testing::KilledBySignal(SIGINT),
              "shardmesh: interrupted: no file");
  EXPECT_EXIT(is_interrupted(OutputForm::kJson, SIGTERM), ::testing::KilledBySignal(SIGTERM),
              "\"message\": ?\"interrupted: no file\"");
  // The child process has a folder of its own in this one's.
  for (const auto& entry : std::filesystem::recursive_directory_iterator(::testing::TempDir())) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("interrupted.npy")) << entry.path();
  }
}

TEST(InterruptionDeathTest, ASignalEndsTheProgramIfNoThreadCanCancel) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto interrupt = [] {
    Interruption interruption("nothing was loaded", OutputForm::kTable);
    if (!ArmFailpoints("thread.start=emfile").ok()) return;
    // No call uses the client: without a thread, nothing is cancelled.
    alignas(MeshClient) char client[sizeof(MeshClient)];
    interruption.Begun(reinterpret_cast<MeshClient*>(client), "transfer");
    kill(getpid(), SIGINT);
    absl::SleepFor(absl::Seconds(60));
  };
  EXPECT_EXIT(interrupt(), ::testing::KilledBySignal(SIGINT),
              "interrupted: nothing was cancelled .cannot start a thread: .*the outcome is not "
              "known");
}

TEST(InterruptionDeathTest, TheProgramEndsIfNoThreadCanWatchForSignals) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto start = [](OutputForm form) {
    if (!ArmFailpoints("thread.start=emfile").ok()) return;
    Interruption interruption("nothing was loaded", form);
  };
  EXPECT_EXIT(start(OutputForm::kTable), ::testing::ExitedWithCode(kExitFailed),
              "shardmesh: cannot start a thread: ");
  EXPECT_EXIT(start(OutputForm::kJson), ::testing::ExitedWithCode(kExitFailed),
              "\"message\": ?\"cannot start a thread: ");
}

TEST(InterruptionTest, FindsTemporaryFilesBesideTheMissingFileThatALinkLeadsTo) {
  const std::string folder = ::testing::TempDir() + "linked";
  const std::string link = ::testing::TempDir() + "link.npy";
  std::filesystem::create_directory(folder);
  std::filesystem::create_symlink("linked/new.npy", link);
  const absl::StatusOr<AtomicFileWriter> writer = AtomicFileWriter::Create(link);
  EXPECT_FALSE(std::filesystem::is_empty(folder));
  RemoveTemporaryFilesOf(link);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST(InterruptionDeathTest, AnOutputFileIsGuardedUnlessItIsStandardOutput) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EQ(GuardOutputFile("", OutputForm::kTable), nullptr);
  EXPECT_EQ(GuardOutputFile("-", OutputForm::kTable), nullptr);
  const std::string path = ::testing::TempDir() + "guarded.npy";
  const auto is_interrupted = [&path] {
    const auto interruption = GuardOutputFile(path, OutputForm::kTable);
    const absl::StatusOr<AtomicFileWriter> writer = AtomicFileWriter::Create(path);
    if (!writer.ok()) return;
    kill(getpid(), SIGTERM);
    absl::SleepFor(absl::Seconds(60));
  };
  EXPECT_EXIT(is_interrupted(), ::testing::KilledBySignal(SIGTERM),
              "shardmesh: interrupted: no unfinished file is left");
  // The child process has a folder of its own in this one's.
  for (const auto& entry : std::filesystem::recursive_directory_iterator(::testing::TempDir())) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("guarded.npy")) << entry.path();
  }
}

}  // namespace
}  // namespace shardmesh::client
