// Tests of the processes of this host, and of the records of clusters.
#include "client/cli/local/child_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <string>

#include "absl/time/clock.h"
#include "client/cli/local/cluster_record.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::client {
namespace {

using test::IsOk;
using test::IsOkAndHolds;
using test::StatusIs;

absl::Time Soon() { return absl::Now() + absl::Seconds(20); }

ProcessOptions Shell(const std::string& script) {
  ProcessOptions options;
  options.command = {"/bin/sh", "-c", script};
  options.log_path = ::testing::TempDir() + "/process_test.log";
  return options;
}

TEST(ProcessTest, KnowsAProcessAgain) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(ChildProcess child, ChildProcess::Start(Shell("sleep 60")));
  EXPECT_THAT(IdentifyProcess(child.id().pid), IsOkAndHolds(child.id()));
  EXPECT_TRUE(IsRunning(child.id()));
  EXPECT_FALSE(WaitUntilGone(child.id(), absl::Now()));
  // The same pid, started at another time, is another process.
  const ProcessId other = {child.id().pid, child.id().start_ticks + 1};
  EXPECT_FALSE(IsRunning(other));
  EXPECT_THAT(SendSignal(other, SIGKILL), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_TRUE(IsRunning(child.id()));

  ASSERT_THAT(SendSignal(child.id(), SIGKILL), IsOk());
  EXPECT_TRUE(WaitUntilGone(child.id(), Soon()));
  EXPECT_EQ(child.Ended(), "was killed by signal 9 (Killed)");
  EXPECT_THAT(SendSignal(child.id(), SIGKILL), StatusIs(absl::StatusCode::kNotFound));
}

TEST(ProcessTest, ReportsHowItEndedAndWhatItSaid) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(ChildProcess child,
                                 ChildProcess::Start(Shell("echo out; echo err >&2; exit 3")));
  ASSERT_TRUE(WaitUntilGone(child.id(), Soon()));
  EXPECT_EQ(child.Ended(), "exited with code 3");
  EXPECT_EQ(ReadLog(child.log_path(), child.log_offset_bytes()), "out\nerr\n");
}

TEST(ProcessTest, TakesOverAProcessOfAnother) {
  // The shell's child outlives it, and is then nobody's here.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(ChildProcess shell,
                                 ChildProcess::Start(Shell("sleep 60 & echo $!")));
  ASSERT_TRUE(WaitUntilGone(shell.id(), Soon()));
  EXPECT_EQ(shell.Ended(), "exited with code 0");
  const std::string pid = ReadLog(shell.log_path(), shell.log_offset_bytes());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const ProcessId id, IdentifyProcess(std::stoi(pid)));
  ChildProcess taken = ChildProcess::TakeOver(id, shell.log_path());
  EXPECT_EQ(taken.Ended(), std::nullopt);
  ASSERT_THAT(SendSignal(id, SIGKILL), IsOk());
  ASSERT_TRUE(WaitUntilGone(id, Soon()));
  EXPECT_EQ(taken.Ended(), "has ended");
}

TEST(ProcessTest, NamesAProgramThatIsNotThere) {
  ProcessOptions options = Shell("");
  options.command = {"/nowhere/shardmesh-worker"};
  const auto child = ChildProcess::Start(options);
  EXPECT_THAT(child, StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(std::string(child.status().message()), ::testing::HasSubstr(options.command[0]));
}

TEST(ProcessTest, BeginsItsProgramWhenItHasBeenNotedDown) {
  const std::string mark = ::testing::TempDir() + "/process_test.mark." + std::to_string(getpid());
  ProcessId noted;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(ChildProcess child,
                                 ChildProcess::Start(Shell("touch " + mark), [&](const auto& id) {
                                   noted = id;
                                   EXPECT_TRUE(IsRunning(id));
                                   EXPECT_NE(access(mark.c_str(), F_OK), 0);
                                   return absl::OkStatus();
                                 }));
  EXPECT_EQ(noted, child.id());
  ASSERT_TRUE(WaitUntilGone(child.id(), Soon()));
  EXPECT_EQ(child.Ended(), "exited with code 0");
  EXPECT_EQ(access(mark.c_str(), F_OK), 0);
  unlink(mark.c_str());
}

TEST(ProcessTest, NeverBeginsItsProgramIfItCannotBeNotedDown) {
  const std::string mark = ::testing::TempDir() + "/process_test.never." + std::to_string(getpid());
  ProcessId noted;
  EXPECT_THAT(ChildProcess::Start(Shell("touch " + mark),
                                  [&](const auto& id) {
                                    noted = id;
                                    return absl::DataLossError("no disk");
                                  }),
              StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_TRUE(WaitUntilGone(noted, Soon()));
  EXPECT_NE(access(mark.c_str(), F_OK), 0);
}

TEST(ProcessTest, EndsWithAParentThatIsKilledBeforeItIsNotedDown) {
  // A process of its own starts one, tells which, and is killed before it has noted it down.
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    ProcessOptions options = Shell("sleep 60");
    options.ends_with_parent = false;
    const auto child = ChildProcess::Start(options, [&](const ProcessId& id) {
      [[maybe_unused]] const ssize_t written = write(pipe_ends[1], &id, sizeof(id));
      kill(getpid(), SIGKILL);
      return absl::OkStatus();
    });
    _exit(child.ok() ? 0 : 1);
  }
  ProcessId id;
  ASSERT_EQ(read(pipe_ends[0], &id, sizeof(id)), static_cast<ssize_t>(sizeof(id)));
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  EXPECT_TRUE(WaitUntilGone(id, Soon()));
  int state = 0;
  EXPECT_EQ(waitpid(parent, &state, 0), parent);
}

TEST(ProcessTest, LastLines) {
  EXPECT_EQ(LastLines("a\nb\nc\n", 2), "b\nc");
  EXPECT_EQ(LastLines("a\nb", 5), "a\nb");
  EXPECT_EQ(LastLines("", 5), "");
}

TEST(ClusterRecordTest, ComesBackAsWritten) {
  const std::string folder = ::testing::TempDir() + "/records-" + std::to_string(getpid()) + "/x";
  ASSERT_THAT(MakeClusterFolder(folder), IsOk());
  EXPECT_THAT(ReadRecord(folder), StatusIs(absl::StatusCode::kNotFound));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const ProcessId self, IdentifyProcess(getpid()));
  ClusterRecord record{
      .name = "x",
      .address = "127.0.0.1:1",
      .mesh = "tp=2",
      .cluster_id = "c1",
      .data_folder = "/data",
      .port = 7070,
      .coordinator_flags = std::vector<std::string>(),
      .worker_flags = {{"--memory=1048576", "--read-root=/a", "--read-root=/b"}},
      .processes = {{"coordinator", self, folder + "/coordinator.log", "127.0.0.1:9"}},
      .supervisor = self};
  ASSERT_THAT(WriteRecord(folder, record), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const ClusterRecord read, ReadRecord(folder));
  EXPECT_EQ(read.address, record.address);
  EXPECT_EQ(read.cluster_id, record.cluster_id);
  EXPECT_EQ(read.data_folder, record.data_folder);
  EXPECT_EQ(read.port, 7070);
  EXPECT_EQ(read.coordinator_flags, record.coordinator_flags);
  EXPECT_EQ(read.worker_flags, record.worker_flags);
  EXPECT_EQ(read.processes.front().id, self);
  EXPECT_EQ(read.processes.front().metrics_address, "127.0.0.1:9");
  EXPECT_EQ(read.supervisor, self);
  EXPECT_TRUE(read.IsUp());
  RemoveRecord(folder);
  EXPECT_THAT(ReadRecord(folder), StatusIs(absl::StatusCode::kNotFound));
}

TEST(ClusterRecordTest, KnowsThatAStopWasBegun) {
  const std::string folder = ::testing::TempDir() + "/records-" + std::to_string(getpid()) + "/z";
  ASSERT_THAT(MakeClusterFolder(folder), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const ProcessId self, IdentifyProcess(getpid()));
  ClusterRecord record{
      .name = "z",
      .address = "127.0.0.1:1",
      .mesh = "tp=2",
      .cluster_id = "",
      .data_folder = "",
      .processes = {{"coordinator", self, "a.log"}, {"worker-0", self, "b.log", "", true}},
      .supervisor = {}};
  EXPECT_TRUE(record.Ending().empty());
  record.is_stopping = true;
  ASSERT_THAT(WriteRecord(folder, record), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(ClusterRecord read, ReadRecord(folder));
  EXPECT_EQ(read.Ending().size(), 2u);
  EXPECT_TRUE(IsRecorded(folder, record));
  read.is_stopping = false;
  read.supervisor = self;
  EXPECT_TRUE(read.Ending().empty());
  read.supervisor = ProcessId{self.pid, self.start_ticks + 1};
  ASSERT_EQ(read.Ending().size(), 1u) << "what it ends with is gone";
  EXPECT_EQ(read.Ending()[0].identity, "worker-0");
  // What ran before that `up` is no part of what ends with it.
  ASSERT_THAT(WriteRecord(folder, read), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const ClusterRecord alone, ReadRecord(folder));
  EXPECT_FALSE(alone.processes[0].ends_with_supervisor);
  EXPECT_TRUE(alone.processes[1].ends_with_supervisor);
  read.processes[0].id.start_ticks += 1;
  EXPECT_FALSE(IsRecorded(folder, read));
  RemoveRecord(folder);
}

TEST(ClusterRecordTest, ReadsWhatOlderBuildsWroteAndRefusesWhatNobodyDid) {
  const std::string folder = ::testing::TempDir() + "/records-" + std::to_string(getpid()) + "/y";
  ASSERT_THAT(MakeClusterFolder(folder), IsOk());
  std::ofstream(folder + "/cluster.json")
      << R"({"name": "y", "address": "127.0.0.1:1", "mesh": "tp=2", "processes": [)"
      << R"({"identity": "coordinator", "pid": 1, "start_ticks": 2, "log": "a.log"}]})";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const ClusterRecord read, ReadRecord(folder));
  EXPECT_EQ(read.mesh, "tp=2");
  EXPECT_EQ(read.cluster_id, "");
  EXPECT_EQ(read.data_folder, "");
  EXPECT_EQ(read.port, 0);
  EXPECT_FALSE(read.coordinator_flags.has_value());
  EXPECT_FALSE(read.worker_flags.has_value());
  ASSERT_EQ(read.processes.size(), 1u);
  EXPECT_EQ(read.processes.front().log_path, "a.log");
  EXPECT_EQ(read.processes.front().metrics_address, "");

  for (const char* text : {"", "{", "[]", R"({"name": "y"})"}) {
    std::ofstream(folder + "/cluster.json") << text;
    EXPECT_THAT(ReadRecord(folder), StatusIs(absl::StatusCode::kDataLoss)) << text;
  }
  RemoveRecord(folder);
}

TEST(ClusterRecordTest, RefusesNamesThatLeadElsewhere) {
  EXPECT_THAT(CheckClusterName("default"), IsOk());
  for (const char* name : {"", ".", "..", "a/b", ".hidden", "a b"}) {
    EXPECT_THAT(CheckClusterName(name), StatusIs(absl::StatusCode::kInvalidArgument)) << name;
  }
}

}  // namespace
}  // namespace shardmesh::client
