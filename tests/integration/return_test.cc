// Clients over restarts: calls wait for what comes back. And clients that end in the middle of a
// put: what they staged is given back at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/cli/local/child_process.h"
#include "status/str_cat.h"
#include "tests/testing/eventually.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Optional;

// Of the 5 s after which a silent worker is lost, what a load has to come under way.
constexpr absl::Duration kSilenceLeft = absl::Milliseconds(2500);
constexpr int kMostStarts = 10;

class ReturnTest : public ::testing::Test {
 protected:
  void StartCluster(bool durable, std::vector<std::string> coordinator_flags = {}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        cluster_, TestCluster::Start({.durable = durable,
                                      .coordinator_flags = std::move(coordinator_flags),
                                      .worker_flags = {}}));
    folder_ = MakeTestFolder("return");
  }
  client::MeshClient& client() { return cluster_->client(); }

  // A file of 16 x 16 ones and the tensor "w" on the workers.
  void Prepare() {
    const std::vector<float> ones(256, 1.0f);
    ASSERT_THAT(PutFloats(client(), "w", {16, 16}, ones,
                          PartitionSpec({SpecEntry::Axis("fsdp"), SpecEntry::Axis("tp")})),
                IsOk());
    x_ = folder_ + "/x.npy";
    ASSERT_THAT(cluster_->Run({"make-tensor", "--out", x_, "--shape", "4,16"}), Succeeded());
  }

  // Runs commands that need tiles and ranks, from before `disturb` until `after` of each have begun
  // after it. None may fail.
  void ExpectNoneFails(const std::function<void()>& disturb) {
    std::atomic<bool> is_over = false;
    std::atomic<int> rounds = 0;
    const auto repeat = [&](std::vector<std::string> arguments) {
      return [this, &is_over, &rounds, arguments] {
        const bool is_step = arguments[0] == "linear";
        bool is_last = false;
        do {
          is_last = is_over;
          if (is_step) BeginStep();
          const CommandResult result = cluster_->Run(arguments);
          if (is_step) EndStep();
          EXPECT_THAT(result, Succeeded()) << arguments[0];
          EXPECT_THAT(result.err, AllOf(Not(HasSubstr("load the array again")),
                                        Not(HasSubstr("start lost workers"))));
          ++rounds;
        } while (!is_last);
      };
    };
    std::thread gets(repeat({"get", "w", "--out", folder_ + "/w.npy", "--deadline=20s"}));
    std::thread steps(repeat(
        {"linear", "--input", x_, "--weight", "w", "--out", folder_ + "/y.npy", "--deadline=20s"}));
    EXPECT_TRUE(Eventually([&] { return rounds >= 2; }));
    disturb();
    is_over = true;
    gets.join();
    steps.join();
  }

  // Kills a worker while no step of ExpectNoneFails runs: a step that runs then fails, as
  // documented.
  void KillBetweenSteps(const std::string& identity) {
    const absl::MutexLock lock(&mutex_);
    is_held_ = true;
    mutex_.Await(absl::Condition(
        +[](bool* is_running) { return !*is_running; }, &step_is_running_));
    EXPECT_THAT(cluster_->Kill(identity), IsOk());
    EXPECT_TRUE(Eventually([&] {
      const absl::StatusOr<client::ClusterStatus> status = client().cluster().GetStatus();
      if (!status.ok()) return false;
      const auto worker =
          std::ranges::find(status->workers, identity, &client::WorkerStatus::identity);
      return worker == status->workers.end() || worker->state != client::WorkerState::kReady;
    })) << "the coordinator does not miss it";
    is_held_ = false;
  }

  void BeginStep() {
    const absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](bool* is_held) { return !*is_held; }, &is_held_));
    step_is_running_ = true;
  }

  void EndStep() {
    const absl::MutexLock lock(&mutex_);
    step_is_running_ = false;
  }

  // `shardmesh load` of 128 MiB, which the client sends while worker-1 takes nothing in. Returns
  // when it is under way, with some seconds left until worker-1 is taken for lost.
  client::ChildProcess StartLoad(const std::vector<std::string>& flags = {}) {
    const std::string checkpoint = folder_ + "/big.safetensors";
    EXPECT_THAT(cluster_->Run({"make-checkpoint", "--out", checkpoint, "--size=128MiB"}),
                Succeeded());
    client::ProcessOptions options;
    const std::string rules = folder_ + "/rules.yaml";
    EXPECT_EQ(
        std::system(StrCat("printf 'rules:\\n  - {pattern: \".*\", spec: [fsdp, tp]}\\n' > ", rules)
                        .c_str()),
        0);
    options.command = {
        SHARDMESH_BINARY_DIR "/shardmesh",         "load",    checkpoint,       "--rules", rules,
        StrCat("--address=", cluster_->address()), "--quiet", "--source=client"};
    options.command.insert(options.command.end(), flags.begin(), flags.end());
    options.log_path = folder_ + "/load.log";
    for (int attempt = 0;; ++attempt) {
      idle_bytes_ = IdleBytes();
      idle_arrays_ = CountArrays();
      EXPECT_THAT(cluster_->Signal("worker-1", SIGSTOP), IsOk());
      const absl::Time stopped = absl::Now();
      auto process = client::ChildProcess::Start(options);
      EXPECT_THAT(process, IsOk());
      // With its arrays, since probes of links use memory for a moment too: before the put has
      // begun the client may not take signals yet, or ends at once by one and leaves its session
      // open.
      const bool is_under_way =
          Eventually(
              [&] {
                return CountSessions() > 0 && CountArrays() > idle_arrays_ && StagedBytes() > 0;
              },
              kSilenceLeft) &&
          absl::Now() - stopped < kSilenceLeft;
      if (is_under_way || attempt == kMostStarts) {
        EXPECT_TRUE(is_under_way) << client::ReadLog(process->log_path());
        return *std::move(process);
      }
      // A busy machine: worker-1 may be taken for lost, which ends the load. Once more.
      client::SendSignal(process->id(), SIGINT).IgnoreError();
      EXPECT_TRUE(client::WaitUntilGone(process->id(), absl::Now() + absl::Seconds(20)));
      process->Ended();
      EXPECT_THAT(cluster_->Signal("worker-1", SIGCONT), IsOk());
      EXPECT_TRUE(AwaitNoSession(absl::Seconds(60)));
      EXPECT_THAT(cluster_->WaitUntilHealthy(), IsOk());
    }
  }
  // What workers use without any tile: each keeps back what its three peers may send unasked, which
  // is as much on each of them once all of them are connected.
  int64_t IdleBytes() {
    // All may have connected to equally many, and share memory with the others a moment later.
    constexpr absl::Duration kSettled = absl::Milliseconds(500);
    std::set<int64_t> before;
    absl::Time since = absl::InfiniteFuture();
    EXPECT_TRUE(Eventually([&] {
      const auto links = client().cluster().ListLinks();
      const auto status = client().cluster().GetStatus();
      if (!links.ok() || !status.ok()) return false;
      std::set<int64_t> used;
      for (const client::WorkerStatus& worker : status->workers) used.insert(worker.used_bytes);
      if (std::exchange(before, used) != used) since = absl::Now();
      return links->links.size() == 6 && used.size() == 1 && *used.begin() > 0 &&
             absl::Now() - since >= kSettled;
    })) << "the workers do not use the same memory";
    return UsedBytes();
  }
  int64_t CountSessions() {
    const auto status = client().cluster().GetStatus();
    EXPECT_THAT(status, IsOk());
    return status.ok() ? status->sessions : -1;
  }
  int64_t CountArrays() {
    const auto status = client().cluster().GetStatus();
    EXPECT_THAT(status, IsOk());
    return status.ok() ? status->arrays : -1;
  }
  bool AwaitNoSession(absl::Duration within) {
    return Eventually([&] { return CountSessions() == 0; }, within);
  }
  int64_t StagedBytes() { return UsedBytes() - idle_bytes_; }
  int64_t UsedBytes() {
    int64_t bytes = 0;
    if (const auto status = client().cluster().GetStatus(); status.ok()) {
      for (const client::WorkerStatus& worker : status->workers) bytes += worker.used_bytes;
    }
    return bytes;
  }
  // After the client has ended: memory is free, and processes end, long before the lease is over.
  void ExpectGivenBack() {
    const absl::Time ended = absl::Now();
    ASSERT_THAT(cluster_->Signal("worker-1", SIGCONT), IsOk());
    EXPECT_TRUE(Eventually([&] { return StagedBytes() == 0; }));
    // A second until heartbeats tell, and the time that a busy machine takes.
    EXPECT_LT(absl::Now() - ended, absl::Seconds(5));
    const absl::Time asked = absl::Now();
    EXPECT_THAT(cluster_->Terminate("worker-0", absl::Seconds(9)), IsOk());
    EXPECT_LT(absl::Now() - asked, absl::Seconds(5));
  }

  std::unique_ptr<TestCluster> cluster_;
  std::string folder_;
  std::string x_;
  int64_t idle_bytes_ = 0;
  int64_t idle_arrays_ = 0;

  absl::Mutex mutex_;
  bool is_held_ ABSL_GUARDED_BY(mutex_) = false;  // no step may begin
  bool step_is_running_ ABSL_GUARDED_BY(mutex_) = false;
};

TEST_F(ReturnTest, NoCommandFailsWhileTheCoordinatorIsRestarted) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(/*durable=*/true));
  ASSERT_NO_FATAL_FAILURE(Prepare());
  ExpectNoneFails([&] {
    EXPECT_THAT(cluster_->Terminate("coordinator"), IsOk());
    EXPECT_THAT(cluster_->Restart("coordinator"), IsOk());
    EXPECT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  });
}

TEST_F(ReturnTest, NoCommandFailsWhileAWorkerIsReplaced) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(/*durable=*/true));
  ASSERT_NO_FATAL_FAILURE(Prepare());
  ExpectNoneFails([&] {
    EXPECT_THAT(cluster_->Terminate("worker-2"), IsOk());
    EXPECT_THAT(cluster_->Restart("worker-2"), IsOk());
    EXPECT_THAT(cluster_->WaitUntilHealthy(), IsOk());
    KillBetweenSteps("worker-3");
    EXPECT_THAT(cluster_->Restart("worker-3"), IsOk());
    EXPECT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  });
}

// Its peers miss it after about 4 s, the coordinator after 5 s. Between the two all are attached.
TEST_F(ReturnTest, NoCommandFailsWhileAWorkerPauses) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(true));
  ASSERT_NO_FATAL_FAILURE(Prepare());
  absl::SleepFor(absl::Seconds(2));  // workers that attached less than 5 s ago may not have met
  ASSERT_THAT(cluster_->Signal("worker-2", SIGSTOP), IsOk());
  EXPECT_TRUE(Eventually([&] {
    const absl::StatusOr<client::ClusterStatus> status = client().cluster().GetStatus();
    return status.ok() && status->workers[0].state == client::WorkerState::kJoining;
  })) << "its peers do not miss it";
  std::thread goes_on([&] {
    absl::SleepFor(absl::Seconds(1));
    ASSERT_THAT(cluster_->Signal("worker-2", SIGCONT), IsOk());
  });
  const CommandResult result = cluster_->Run(
      {"linear", "--input", x_, "--weight", "w", "--out", folder_ + "/y.npy", "--deadline=20s"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  goes_on.join();
}

TEST_F(ReturnTest, AWorkerThatDoesNotComeBackIsWaitedForAWhileAndThenNamed) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(/*durable=*/true, {"--return-grace=3s"}));
  ASSERT_NO_FATAL_FAILURE(Prepare());
  ASSERT_THAT(cluster_->Kill("worker-2"), IsOk());
  const absl::Time killed = absl::Now();
  const CommandResult get =
      cluster_->Run({"get", "w", "--out", folder_ + "/w.npy", "--deadline=20s"});
  EXPECT_EQ(get.exit_code, 1);
  EXPECT_THAT(get.err, AllOf(HasSubstr("waiting: tensor \"w\" waits for the tiles of rank 2"),
                             HasSubstr("expected back for at most 3s (--return-grace"),
                             HasSubstr("(RECOVERING)"), HasSubstr("the tiles are on their disks"),
                             HasSubstr("(ARRAY_DEGRADED)")));
  EXPECT_LT(absl::Now() - killed, absl::Seconds(15));
  const CommandResult linear =
      cluster_->Run({"linear", "--input", x_, "--weight", "w", "--output=json"});
  EXPECT_EQ(linear.exit_code, 1);
  EXPECT_THAT(linear.err, HasSubstr("ARRAY_DEGRADED"));
}

TEST_F(ReturnTest, WithinTheGraceTheDeadlineIsSaidToBeOfTheRecovery) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(/*durable=*/true));
  ASSERT_NO_FATAL_FAILURE(Prepare());
  ASSERT_THAT(cluster_->Kill("worker-2"), IsOk());
  const CommandResult get =
      cluster_->Run({"get", "w", "--out", folder_ + "/w.npy", "--deadline=1s", "--output=json"});
  EXPECT_EQ(get.exit_code, 1);
  EXPECT_THAT(get.err, AllOf(HasSubstr("\"RECOVERING\""), HasSubstr("\"UNAVAILABLE\""),
                             HasSubstr("\"retryable\":true")));
  // A step has a time limit of its own, which the coordinator knows.
  const CommandResult linear =
      cluster_->Run({"linear", "--input", x_, "--weight", "w", "--deadline=1s", "--output=json"});
  EXPECT_THAT(linear.err, AllOf(HasSubstr("\"DEADLINE_EXCEEDED\""), HasSubstr("rank 2")));
}

TEST_F(ReturnTest, AKilledClientGivesBackWhatItStaged) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(/*durable=*/false));
  client::ChildProcess load = StartLoad();
  ASSERT_THAT(client::SendSignal(load.id(), SIGKILL), IsOk());
  ASSERT_TRUE(client::WaitUntilGone(load.id(), absl::Now() + absl::Seconds(10)));
  ExpectGivenBack();
}

TEST_F(ReturnTest, AnInterruptedClientSaysThatNothingWasLoaded) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(/*durable=*/false));
  // The client tries for two seconds to close its session. If the coordinator was too busy for
  // that, the session expires after 30 s, and the next client is to close its own.
  bool is_closed = false;
  for (int attempt = 0; attempt < 3 && !is_closed; ++attempt) {
    if (attempt > 0) {
      ASSERT_THAT(cluster_->Signal("worker-1", SIGCONT), IsOk());
      ASSERT_TRUE(AwaitNoSession(absl::Seconds(60)));
    }
    client::ChildProcess load = StartLoad();
    ASSERT_THAT(client::SendSignal(load.id(), SIGINT), IsOk());
    ASSERT_TRUE(client::WaitUntilGone(load.id(), absl::Now() + absl::Seconds(10)));
    EXPECT_THAT(load.Ended(), Optional(HasSubstr("was killed by signal 2")));
    EXPECT_THAT(client::ReadLog(load.log_path()), HasSubstr("interrupted: nothing was loaded"));
    is_closed = AwaitNoSession(absl::Seconds(20));
  }
  EXPECT_TRUE(is_closed) << "its session is not closed";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<client::Array> arrays,
                                 client().arrays().ListArrays());
  EXPECT_TRUE(arrays.empty());
  ExpectGivenBack();
}

TEST_F(ReturnTest, AFileThatIsCutShortWhileItIsLoadedIsSaidToBe) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(/*durable=*/false));
  client::ChildProcess load = StartLoad();
  ASSERT_EQ(truncate((folder_ + "/big.safetensors").c_str(), 3'000'000), 0);
  ASSERT_THAT(cluster_->Signal("worker-1", SIGCONT), IsOk());
  ASSERT_TRUE(client::WaitUntilGone(load.id(), absl::Now() + absl::Seconds(20)));
  EXPECT_THAT(load.Ended(), Optional(HasSubstr("exited with code 1")));
  EXPECT_THAT(client::ReadLog(load.log_path()),
              HasSubstr("a file was cut short while it was read"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<client::Array> arrays,
                                 client().arrays().ListArrays());
  EXPECT_TRUE(arrays.empty());
}

TEST_F(ReturnTest, AnInterruptedClientEndsThoughTheCoordinatorIsAway) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(/*durable=*/false));
  client::ChildProcess load = StartLoad({"--deadline=2h"});
  ASSERT_THAT(cluster_->Kill("coordinator"), IsOk());
  ASSERT_THAT(client::SendSignal(load.id(), SIGINT), IsOk());
  ASSERT_THAT(cluster_->Signal("worker-1", SIGCONT), IsOk());
  EXPECT_TRUE(client::WaitUntilGone(load.id(), absl::Now() + absl::Seconds(20)))
      << "it asks as long as it may";
  EXPECT_THAT(client::ReadLog(load.log_path()), HasSubstr("interrupted: "));
}

}  // namespace
}  // namespace shardmesh::test
