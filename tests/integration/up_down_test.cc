// `up` and `down` at the same time, and killed in the middle: no process is left that nobody knows,
// and the next `up` works.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "client/cli/local/child_process.h"
#include "client/cli/local/cluster_record.h"
#include "client/cli/local/local_cluster.h"
#include "process/failpoint.h"
#include "process/lock_file.h"
#include "sharding/mesh.h"
#include "status/str_cat.h"
#include "tests/testing/eventually.h"
#include "tests/testing/proxy.h"
#include "tests/testing/read_file.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using ::nlohmann::json;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class UpDownTest : public ::testing::Test {
 protected:
  ~UpDownTest() override {
    for (const pid_t pid : Processes()) kill(pid, SIGKILL);
    if (const auto record = client::ReadRecord(record_); record.ok()) {  // those in memory
      for (const client::RecordedProcess& process : record->processes) {
        client::SendSignal(process.id, SIGKILL).IgnoreError();
      }
    }
    EXPECT_TRUE(Eventually([&] { return Processes().empty(); }));
    std::filesystem::remove_all(folder_);
  }

  CommandResult Run(const std::vector<std::string>& arguments) const {
    return RunShardmesh(arguments, folder_);
  }
  // A command that runs on beside the test.
  client::ChildProcess Begin(const std::vector<std::string>& arguments) const {
    client::ProcessOptions options;
    options.command = {"/bin/sh", "-c", "export XDG_RUNTIME_DIR=\"$1\"; shift; exec \"$0\" \"$@\"",
                       SHARDMESH_BINARY_DIR "/shardmesh", folder_};
    options.command.insert(options.command.end(), arguments.begin(), arguments.end());
    options.log_path = folder_ + "/commands.log";
    auto process = client::ChildProcess::Start(options);
    EXPECT_THAT(process, IsOk());
    return *std::move(process);
  }
  // Returns what `status` says; an empty object if `status` fails or is cut off.
  json StatusOrNothing() const {
    const json status = json::parse(Run({"status", "--output=json"}).out, nullptr, false);
    return status.is_object() ? status : json::object();
  }
  // Kills the processes and waits until they have ended. A process that ends has no command line
  // any more, but still counts as running for a moment, so an empty Processes() is not enough.
  void KillAll() const {
    for (const pid_t pid : Processes()) {
      const auto id = client::IdentifyProcess(pid);
      if (!id.ok()) continue;  // it has ended by itself
      client::SendSignal(*id, SIGKILL).IgnoreError();
      ASSERT_TRUE(client::WaitUntilGone(*id, absl::Now() + absl::Seconds(60)));
    }
    ASSERT_THAT(Processes(), IsEmpty());
  }
  // Those that keep their data below this test's folder.
  std::vector<pid_t> Processes() const {
    std::vector<pid_t> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      const std::string command = ReadFile("/proc/" + name + "/cmdline");
      if (command.find("--data-dir=" + data_) != std::string::npos) {
        found.push_back(static_cast<pid_t>(std::stoi(name)));
      }
    }
    return found;
  }
  // All that was started can be stopped, and there is nothing else.
  void ExpectDownLeavesNothing() {
    const CommandResult down = Run({"down"});
    EXPECT_THAT(down.err, AnyOf(HasSubstr("Stopped the cluster"), HasSubstr("is up on this host"),
                                HasSubstr("its record was removed")));
    EXPECT_THAT(Processes(), IsEmpty()) << down.err << client::ReadLog(folder_ + "/commands.log");
    EXPECT_EQ(Run({"down"}).exit_code, 1) << "a record was left";
  }

  const std::string folder_ = MakeTestFolder("up_down");
  const std::string data_ = folder_ + "/data";
  const std::string record_ = folder_ + "/shardmesh/default";
  const std::vector<std::string> up_ = {"up", "--mesh", "fsdp=1", "--data-dir", data_, "--detach"};
  std::minstd_rand random_{1};
};

TEST_F(UpDownTest, AtTheSameTimeLeaveNoProcessThatNobodyKnows) {
  for (int round = 0; round < 3; ++round) {
    ASSERT_THAT(Run(up_), Succeeded());
    client::ChildProcess down = Begin({"down"});
    absl::SleepFor(absl::Milliseconds(random_() % 150));  // another moment each time
    const CommandResult up = Run(up_);
    ASSERT_TRUE(client::WaitUntilGone(down.id(), absl::Now() + absl::Seconds(60)));
    EXPECT_EQ(down.Ended(), "exited with code 0");
    EXPECT_THAT(up.err, AnyOf(IsEmpty(), HasSubstr("waiting: process"), HasSubstr("is up at"),
                              HasSubstr("while it was being started")));
    ASSERT_NO_FATAL_FAILURE(ExpectDownLeavesNothing());
  }
}

TEST_F(UpDownTest, KilledAtAnyMomentAreFollowedByAnUpThatWorks) {
  for (int round = 0; round < 6; ++round) {
    const bool kill_down = round % 3 == 2;
    if (kill_down) {
      ASSERT_THAT(Run(up_), Succeeded());
    }
    client::ChildProcess command = Begin(kill_down ? std::vector<std::string>{"down"} : up_);
    absl::SleepFor(absl::Milliseconds(random_() % 300));
    client::SendSignal(command.id(), SIGKILL).IgnoreError();
    ASSERT_TRUE(client::WaitUntilGone(command.id(), absl::Now() + absl::Seconds(60)));
    command.Ended();
    const CommandResult up = Run(up_);
    if (up.exit_code != 0) {
      EXPECT_THAT(up.err, HasSubstr("is up at")) << "it had come far enough";
    }
    EXPECT_THAT(Run({"status"}), Succeeded()) << up.err;
    ASSERT_NO_FATAL_FAILURE(ExpectDownLeavesNothing());
  }
}

TEST_F(UpDownTest, AnUpInTheForegroundThatIsKilledIsFollowedByAnotherAtOnce) {
  std::vector<std::string> foreground = up_;
  foreground.pop_back();
  for (int round = 0; round < 2; ++round) {
    client::ChildProcess up = Begin(foreground);
    ASSERT_TRUE(Eventually([&] {
      return client::ReadLog(up.log_path(), up.log_offset_bytes()).find("Ctrl-C stops it") !=
             std::string::npos;
    }));
    ASSERT_THAT(client::SendSignal(up.id(), SIGKILL), IsOk());
    ASSERT_TRUE(client::WaitUntilGone(up.id(), absl::Now() + absl::Seconds(60)));
    up.Ended();
    const CommandResult next = Run(up_);
    EXPECT_EQ(next.exit_code, 0) << next.err;
    ASSERT_NO_FATAL_FAILURE(ExpectDownLeavesNothing());
  }
}

TEST_F(UpDownTest, DownWaitsForTheCommandThatHasTheLockAndNamesIt) {
  ASSERT_THAT(Run(up_), Succeeded());
  const std::string folder = folder_ + "/shardmesh/default";
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        const FileDescriptor lock,
        client::LockCluster(folder, "default", absl::Seconds(10), nullptr));
    for (const std::vector<std::string>& command :
         {std::vector<std::string>{"down", "--deadline=300ms"}, up_}) {
      std::vector<std::string> bounded = command;
      if (command == up_) bounded.push_back("--deadline=300ms");
      const CommandResult refused = Run(bounded);
      EXPECT_EQ(refused.exit_code, 1);
      EXPECT_THAT(refused.err,
                  AllOf(HasSubstr(StrCat("waiting: process ", getpid())),
                        HasSubstr(StrCat("started or stopped by process ", getpid()))));
    }
  }
  EXPECT_THAT(Run({"down"}), Succeeded());
}

TEST_F(UpDownTest, AnUpThatIsKilledEndsOnlyWhatItStartedAgain) {
  const std::vector<std::string> in_memory = {"up",       "--mesh",   "fsdp=2",
                                              "--detach", "--output", "json"};
  CommandResult up = Run(in_memory);
  ASSERT_EQ(up.exit_code, 0) << up.err;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ClusterRecord before, client::ReadRecord(record_));
  std::ofstream(folder_ + "/rules.yaml") << "rules:\n- {pattern: '.*', spec: [fsdp]}\n";
  ASSERT_THAT(Run({"make-checkpoint", "--out", folder_ + "/c.safetensors"}), Succeeded());
  ASSERT_THAT(Run({"load", folder_ + "/c.safetensors", "--rules", folder_ + "/rules.yaml"}),
              Succeeded());
  const json arrays = json::parse(Run({"status", "--output=json"}).out)["arrays"];
  ASSERT_GT(arrays.get<int64_t>(), 0);

  for (const bool is_healthy : {false, true}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ClusterRecord record, client::ReadRecord(record_));
    ASSERT_EQ(record.processes.size(), 3u);
    ASSERT_THAT(client::SendSignal(record.processes[2].id, SIGKILL), IsOk());
    ASSERT_TRUE(client::WaitUntilGone(record.processes[2].id, absl::Now() + absl::Seconds(60)));
    client::ChildProcess foreground = Begin({"up", "--mesh", "fsdp=2"});
    EXPECT_TRUE(Eventually([&] {
      if (is_healthy) {
        return client::ReadLog(foreground.log_path(), foreground.log_offset_bytes())
                   .find("Ctrl-C stops it") != std::string::npos;
      }
      const auto changed = client::ReadRecord(record_);
      return changed.ok() && changed->supervisor.has_value();
    }));
    ASSERT_THAT(client::SendSignal(foreground.id(), SIGKILL), IsOk());
    ASSERT_TRUE(client::WaitUntilGone(foreground.id(), absl::Now() + absl::Seconds(60)));
    foreground.Ended();

    up = Run(in_memory);
    ASSERT_EQ(up.exit_code, 0) << up.err;
    EXPECT_EQ(up.err, "Restarted the processes that had ended: worker-1\n");
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ClusterRecord after, client::ReadRecord(record_));
    EXPECT_EQ(after.processes[0].id, before.processes[0].id);
    EXPECT_EQ(after.processes[1].id, before.processes[1].id);
    EXPECT_EQ(json::parse(Run({"status", "--output=json"}).out)["arrays"], arrays);
  }
  EXPECT_THAT(Run({"down"}), Succeeded());
}

TEST_F(UpDownTest, AStartThatFailsEndsAtOnceAndLeavesNoRecord) {
  std::filesystem::create_directory(data_);
  std::ofstream(data_ + "/coordinator") << "a file where the coordinator wants a folder";
  for (const bool detach : {true, false}) {
    std::vector<std::string> command = up_;
    if (!detach) command.pop_back();
    const CommandResult up = Run(command);
    EXPECT_EQ(up.exit_code, 1);
    EXPECT_THAT(up.err, HasSubstr("coordinator (pid "));
    EXPECT_LT(up.time, client::kClusterLockTimeout / 2) << "it waited for its own lock";
    const CommandResult down = Run({"down"});
    EXPECT_EQ(down.exit_code, 1);
    EXPECT_THAT(down.err, HasSubstr("no cluster \"default\" is up on this host"));
  }
}

TEST_F(UpDownTest, AStartThatCannotBeNotedDownLeavesNothingRunning) {
  std::filesystem::create_directory(folder_ + "/shardmesh");
  client::LocalClusterOptions options;
  options.folder = record_;
  options.binary_folder = SHARDMESH_BINARY_DIR;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(options.mesh, Mesh::Parse("fsdp=1"));
  options.data_folder = data_;
  options.ends_with_parent = false;
  // The coordinator is noted down, the worker is not: neither its file nor that file's name comes.
  for (const char* const failure : {"file.create=enospc:2", "file.sync_folder=eio:2"}) {
    ASSERT_THAT(ArmFailpoints(failure), IsOk());
    const absl::Time start = absl::Now();
    const auto cluster = client::LocalCluster::Start(options, start + absl::Seconds(30));
    EXPECT_FALSE(cluster.ok()) << failure;
    EXPECT_LT(absl::Now() - start, client::kClusterLockTimeout / 2) << failure;
    EXPECT_THAT(Processes(), IsEmpty()) << failure;
    EXPECT_THAT(client::ReadRecord(record_), StatusIs(absl::StatusCode::kNotFound));
  }
}

TEST_F(UpDownTest, NamesTheProcessThatHasAWorkersFolder) {
  std::vector<std::string> up = up_;
  up.insert(up.end(), {"--output", "json"});
  const CommandResult first = Run(up);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const json cluster = json::parse(first.out);
  const pid_t coordinator = cluster["processes"][0]["pid"].get<pid_t>();
  const pid_t worker = cluster["processes"][1]["pid"].get<pid_t>();
  // Only its worker is left, and no record of it.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ProcessId id, client::IdentifyProcess(coordinator));
  ASSERT_THAT(client::SendSignal(id, SIGKILL), IsOk());
  ASSERT_TRUE(client::WaitUntilGone(id, absl::Now() + absl::Seconds(60)));
  client::RemoveRecord(folder_ + "/shardmesh/default");
  const CommandResult refused = Run(up_);
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, AllOf(HasSubstr(StrCat("is in use by process ", worker, " on host ")),
                                 HasSubstr(StrCat("`kill ", worker, "` ends it, then run")),
                                 HasSubstr("end that process")));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ProcessId left, client::IdentifyProcess(worker));
  ASSERT_THAT(client::SendSignal(left, SIGKILL), IsOk());
  ASSERT_TRUE(client::WaitUntilGone(left, absl::Now() + absl::Seconds(60)));
  EXPECT_THAT(Run(up_), Succeeded());
  ExpectDownLeavesNothing();
}

TEST_F(UpDownTest, AnUpWithoutAMeshTakesThatOfItsDataFolder) {
  CommandResult up = Run(up_);
  ASSERT_EQ(up.exit_code, 0) << up.err;
  EXPECT_THAT(Run({"down"}), Succeeded());
  const std::vector<std::string> same = {"up", "--data-dir", data_, "--detach", "--output=json"};
  up = Run(same);
  ASSERT_EQ(up.exit_code, 0) << up.err;
  EXPECT_EQ(json::parse(up.out)["mesh"], "fsdp=1");

  // A coordinator that has ended is told from one that is somewhere else.
  const pid_t coordinator = json::parse(up.out)["processes"][0]["pid"].get<pid_t>();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ProcessId id, client::IdentifyProcess(coordinator));
  ASSERT_THAT(client::SendSignal(id, SIGKILL), IsOk());
  ASSERT_TRUE(client::WaitUntilGone(id, absl::Now() + absl::Seconds(60)));
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"status"}, {"health"}, {"admin", "snapshot", folder_ + "/snapshot"}}) {
    SCOPED_TRACE(arguments.front());
    const CommandResult result = Run(arguments);
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.err,
                AllOf(HasSubstr(StrCat("(pid ", coordinator, ") has ended")),
                      HasSubstr("`shardmesh up` starts it again"), HasSubstr("/coordinator.log")));
  }
  EXPECT_THAT(Run(same), Succeeded());
  ExpectDownLeavesNothing();
}

TEST_F(UpDownTest, AnUpStartsTheWorkerThatReplacedAnother) {
  const std::vector<std::string> two = {"up",  "--mesh",   "fsdp=2",       "--data-dir",
                                        data_, "--detach", "--output=json"};
  CommandResult up = Run(two);
  ASSERT_EQ(up.exit_code, 0) << up.err;
  client::ProcessOptions options;
  options.command = {SHARDMESH_BINARY_DIR "/shardmesh-worker",
                     StrCat("--coordinator=", json::parse(up.out)["address"].get<std::string>()),
                     "--listen=127.0.0.1:0", "--identity=spare",
                     StrCat("--data-dir=", data_, "/spare")};
  options.log_path = folder_ + "/spare.log";
  auto spare = client::ChildProcess::Start(options);
  ASSERT_THAT(spare, IsOk());
  const auto is_in_state = [this](const std::string& identity, const std::string& state) {
    json status = StatusOrNothing();
    for (const json& worker : status["workers"]) {
      if (worker["identity"] == identity) return worker["state"] == state;
    }
    return false;
  };
  ASSERT_TRUE(Eventually([&] { return is_in_state("spare", "ready"); }));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ClusterRecord record, client::ReadRecord(record_));
  ASSERT_EQ(record.processes.size(), 3u);
  ASSERT_THAT(client::SendSignal(record.processes[2].id, SIGKILL), IsOk());
  ASSERT_TRUE(Eventually([&] { return is_in_state("worker-1", "lost"); }));
  ASSERT_THAT(Run({"admin", "worker", "replace", "worker-1", "spare"}), Succeeded());

  // The worker that serves no rank any more is not started again, and the spare runs already.
  up = Run(two);
  EXPECT_EQ(up.exit_code, 1);
  EXPECT_THAT(up.err, HasSubstr("is up at"));
  EXPECT_THAT(Run({"down"}), Succeeded());
  ASSERT_THAT(client::SendSignal(spare->id(), SIGKILL), IsOk());
  ASSERT_TRUE(client::WaitUntilGone(spare->id(), absl::Now() + absl::Seconds(60)));
  spare->Ended();

  up = Run(two);
  ASSERT_EQ(up.exit_code, 0) << up.err;
  const json processes = json::parse(up.out)["processes"];
  ASSERT_EQ(processes.size(), 3u) << up.out;
  EXPECT_EQ(processes[1]["identity"], "worker-0");
  EXPECT_EQ(processes[2]["identity"], "spare");
  // A later `up` starts the spare again, too.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ProcessId id,
                                 client::IdentifyProcess(processes[2]["pid"].get<pid_t>()));
  ASSERT_THAT(client::SendSignal(id, SIGKILL), IsOk());
  ASSERT_TRUE(client::WaitUntilGone(id, absl::Now() + absl::Seconds(60)));
  up = Run(two);
  EXPECT_EQ(up.exit_code, 0) << up.err;
  EXPECT_EQ(up.err, "Restarted the processes that had ended: spare\n");
  ExpectDownLeavesNothing();
}

// While its coordinator is down, nothing but its folder tells that a worker runs.
TEST_F(UpDownTest, AnUpNeitherStartsNorClaimsAWorkerThatRunsByHand) {
  std::vector<std::string> two = {"up",  "--mesh",   "fsdp=2",       "--data-dir",
                                  data_, "--detach", "--output=json"};
  CommandResult up = Run(two);
  ASSERT_EQ(up.exit_code, 0) << up.err;
  const auto address = json::parse(up.out)["address"].get<std::string>();
  client::ProcessOptions options;
  options.command = {SHARDMESH_BINARY_DIR "/shardmesh-worker", StrCat("--coordinator=", address),
                     "--listen=127.0.0.1:0", "--identity=spare",
                     StrCat("--data-dir=", data_, "/spare")};
  options.log_path = folder_ + "/spare.log";
  auto spare = client::ChildProcess::Start(options);
  ASSERT_THAT(spare, IsOk());
  const auto is_in_state = [this](const std::string& identity, const std::string& state) {
    json status = StatusOrNothing();
    for (const json& worker : status["workers"]) {
      if (worker["identity"] == identity) return worker["state"] == state;
    }
    return false;
  };
  ASSERT_TRUE(Eventually([&] { return is_in_state("spare", "ready"); }));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ClusterRecord record, client::ReadRecord(record_));
  ASSERT_EQ(record.processes.size(), 3u);
  const auto end = [&record](size_t process) {
    const client::ProcessId id = record.processes[process].id;
    return client::SendSignal(id, SIGKILL).ok() &&
           client::WaitUntilGone(id, absl::Now() + absl::Seconds(60));
  };
  ASSERT_TRUE(end(2));
  ASSERT_TRUE(Eventually([&] { return is_in_state("worker-1", "lost"); }));
  ASSERT_THAT(Run({"admin", "worker", "replace", "worker-1", "spare"}), Succeeded());
  ASSERT_TRUE(end(0));

  // The coordinator is started again, and the spare attaches to it.
  const std::string note =
      StrCat("Not started, because a process that was started by hand is this worker: spare (pid ",
             spare->id().pid, "); `down` does not stop it\n");
  up = Run(two);
  ASSERT_EQ(up.exit_code, 0) << up.err;
  EXPECT_EQ(up.err, StrCat("Restarted the processes that had ended: coordinator\n", note));
  EXPECT_EQ(json::parse(up.out)["processes"].size(), 2u) << up.out;
  EXPECT_TRUE(is_in_state("spare", "ready"));
  up = Run(two);
  EXPECT_EQ(up.exit_code, 1);
  EXPECT_THAT(up.err, HasSubstr("is up at"));

  // A new cluster at the same address.
  EXPECT_THAT(Run({"down"}), Succeeded());
  ASSERT_TRUE(client::IsRunning(spare->id()));
  two.push_back(StrCat("--port=", address.substr(address.rfind(':') + 1)));
  up = Run(two);
  ASSERT_EQ(up.exit_code, 0) << up.err;
  EXPECT_EQ(up.err, note);
  EXPECT_EQ(json::parse(up.out)["processes"].size(), 2u) << up.out;

  ASSERT_THAT(client::SendSignal(spare->id(), SIGKILL), IsOk());
  ASSERT_TRUE(client::WaitUntilGone(spare->id(), absl::Now() + absl::Seconds(60)));
  spare->Ended();
  ExpectDownLeavesNothing();
}

// A process that ends gives its folder up, and will not attach.
TEST_F(UpDownTest, AnUpDoesNotWaitForAProcessThatGivesAWorkersFolderUp) {
  ASSERT_THAT(Run(up_), Succeeded());
  ASSERT_THAT(Run({"down"}), Succeeded());
  const std::string log = record_ + "/coordinator.log";
  std::filesystem::remove(log);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(FileLock lock, TakeLock(data_ + "/worker-0/LOCK"));
  ASSERT_TRUE(lock.held.valid());
  client::ChildProcess up = Begin(up_);
  ASSERT_TRUE(Eventually([&] {
    return client::ReadLog(log).find("shardmesh-coordinator listening on ") != std::string::npos;
  }));
  absl::SleepFor(absl::Seconds(1));  // `up` waits meanwhile for the holder to attach, up to 10 s
  lock.held.Close();
  const absl::Time start = absl::Now();
  ASSERT_TRUE(client::WaitUntilGone(up.id(), absl::Now() + absl::Seconds(60)));
  EXPECT_LT(absl::Now() - start, absl::Seconds(8));
  EXPECT_EQ(up.Ended(), "exited with code 0") << client::ReadLog(folder_ + "/commands.log");
  ExpectDownLeavesNothing();
}

TEST_F(UpDownTest, AnUpSucceedsIfAllEndedWorkersRunByHand) {
  const std::vector<std::string> two = {"up",  "--mesh",   "fsdp=2",       "--data-dir",
                                        data_, "--detach", "--output=json"};
  CommandResult up = Run(two);
  ASSERT_EQ(up.exit_code, 0) << up.err;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ClusterRecord record, client::ReadRecord(record_));
  ASSERT_EQ(record.processes.size(), 3u);
  const client::ProcessId ended = record.processes[2].id;
  ASSERT_THAT(client::SendSignal(ended, SIGKILL), IsOk());
  ASSERT_TRUE(client::WaitUntilGone(ended, absl::Now() + absl::Seconds(60)));
  const auto is_in_state = [this](const std::string& state) {
    json status = StatusOrNothing();
    for (const json& worker : status["workers"]) {
      if (worker["identity"] == "worker-1") return worker["state"] == state;
    }
    return false;
  };
  ASSERT_TRUE(Eventually([&] { return is_in_state("lost"); }));
  // The record follows only programs of the usual name.
  client::ProcessOptions options;
  options.command = {folder_ + "/other-worker", StrCat("--coordinator=", record.address),
                     "--listen=127.0.0.1:0", "--identity=worker-1",
                     StrCat("--data-dir=", data_, "/worker-1")};
  options.log_path = folder_ + "/other-worker.log";
  std::filesystem::copy_file(SHARDMESH_BINARY_DIR "/shardmesh-worker", options.command.front());
  auto worker = client::ChildProcess::Start(options);
  ASSERT_THAT(worker, IsOk());
  ASSERT_TRUE(Eventually([&] { return is_in_state("ready"); }));

  for (int round = 0; round < 2; ++round) {
    up = Run(two);
    ASSERT_EQ(up.exit_code, 0) << up.err;
    EXPECT_EQ(up.err,
              StrCat("Not started, because a process that was started by hand is this worker: "
                     "worker-1 (pid ",
                     worker->id().pid, "); `down` does not stop it\n"));
    EXPECT_EQ(json::parse(up.out)["processes"].size(), 2u) << up.out;
    EXPECT_TRUE(is_in_state("ready"));
  }
  ASSERT_THAT(client::SendSignal(worker->id(), SIGKILL), IsOk());
  ASSERT_TRUE(client::WaitUntilGone(worker->id(), absl::Now() + absl::Seconds(60)));
  worker->Ended();
  ExpectDownLeavesNothing();
}

// A worker may attach only after `up` has compared its record with the attached workers.
TEST_F(UpDownTest, AnUpFollowsAWorkerThatAttachesMeanwhileInPlaceOfAnEndedOne) {
  const std::vector<std::string> two = {"up",  "--mesh",   "fsdp=2",       "--data-dir",
                                        data_, "--detach", "--output=json"};
  for (const bool coordinator_runs : {false, true}) {
    SCOPED_TRACE(coordinator_runs);
    CommandResult up = Run(two);
    ASSERT_EQ(up.exit_code, 0) << up.err;
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ClusterRecord record, client::ReadRecord(record_));
    ASSERT_EQ(record.processes.size(), 3u);
    const auto end = [&record](size_t process) {
      const client::ProcessId id = record.processes[process].id;
      return client::SendSignal(id, SIGKILL).ok() &&
             client::WaitUntilGone(id, absl::Now() + absl::Seconds(60));
    };
    ASSERT_TRUE(end(2));
    ASSERT_TRUE(Eventually([this] {
      json status = StatusOrNothing();
      for (const json& worker : status["workers"]) {
        if (worker["identity"] == "worker-1") return worker["state"] == "lost";
      }
      return false;
    }));
    if (!coordinator_runs) {
      ASSERT_TRUE(end(0));
    }
    // The worker reaches a running coordinator only when the proxy passes its bytes on.
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Proxy> proxy,
                                   Proxy::Start(record.address));
    proxy->Set(Proxy::Mode::kHold);
    client::ProcessOptions options;
    options.command = {
        SHARDMESH_BINARY_DIR "/shardmesh-worker",
        StrCat("--coordinator=", coordinator_runs ? proxy->address() : record.address),
        "--listen=127.0.0.1:0", "--identity=worker-1", StrCat("--data-dir=", data_, "/worker-1")};
    options.log_path = folder_ + "/by_hand.log";
    auto worker = client::ChildProcess::Start(options);
    ASSERT_THAT(worker, IsOk());
    const client::ProcessId id = worker->id();
    ASSERT_TRUE(Eventually([&] {
      return ReadFile(data_ + "/worker-1/LOCK").starts_with(StrCat(id.pid, " on host "));
    })) << client::ReadLog(options.log_path);

    const std::string follows = StrCat(
        "Processes were restarted by hand, and the record of `up` follows them: ", "worker-1 (pid ",
        record.processes[2].id.pid, " has ended, pid ", id.pid, " runs)\n");
    if (coordinator_runs) {
      const std::string log = folder_ + "/commands.log";
      client::ChildProcess waiting = Begin(two);
      // `up` waits up to 10 s for the worker to attach.
      absl::SleepFor(absl::Seconds(1));
      proxy->Set(Proxy::Mode::kPass);
      ASSERT_TRUE(client::WaitUntilGone(waiting.id(), absl::Now() + absl::Seconds(60)));
      waiting.Ended();
      // If `up` began only after the worker had attached, the cluster was up already.
      EXPECT_THAT(client::ReadLog(log), HasSubstr(follows));
      EXPECT_THAT(client::ReadLog(log), Not(HasSubstr("Not started")));
    } else {
      up = Run(two);
      ASSERT_EQ(up.exit_code, 0) << up.err;
      EXPECT_EQ(up.err, StrCat(follows, "Restarted the processes that had ended: coordinator\n"));
      EXPECT_EQ(json::parse(up.out)["processes"].size(), 3u) << up.out;
    }
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ClusterRecord after, client::ReadRecord(record_));
    ASSERT_EQ(after.processes.size(), 3u);
    EXPECT_EQ(after.processes[2].identity, "worker-1");
    EXPECT_EQ(after.processes[2].id, id);

    // `down` stops the worker as it stops the others.
    ASSERT_NO_FATAL_FAILURE(ExpectDownLeavesNothing());
    EXPECT_TRUE(worker->Ended().has_value());
  }
}

TEST_F(UpDownTest, AHealthyClusterIsUpThoughAnotherCommandHasItsLock) {
  std::filesystem::create_directory(folder_ + "/shardmesh");
  client::LocalClusterOptions options;
  options.folder = record_;
  options.binary_folder = SHARDMESH_BINARY_DIR;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(options.mesh, Mesh::Parse("fsdp=1"));
  options.data_folder = data_;
  options.ends_with_parent = false;
  const auto cluster = client::LocalCluster::Start(options, absl::Now() + absl::Seconds(60));
  ASSERT_THAT(cluster, IsOk());
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        const FileDescriptor lock,
        client::LockCluster(record_, "default", absl::Seconds(10), nullptr));
    EXPECT_THAT((*cluster)->WaitUntilHealthy(absl::Now() + absl::Seconds(60)), IsOk());
  }
  EXPECT_THAT(Processes(), ::testing::SizeIs(2));
  (*cluster)->Stop(absl::Seconds(10));
}

TEST_F(UpDownTest, AnUpTakesASmallerMeshFromTheState) {
  CommandResult up = Run({"up", "--mesh", "fsdp=3", "--data-dir", data_, "--detach"});
  ASSERT_EQ(up.exit_code, 0) << up.err;
  ASSERT_THAT(Run({"admin", "worker", "drain", "worker-1"}), Succeeded());
  std::ofstream(folder_ + "/smaller.yaml") << "axes: [{name: fsdp, size: 2}]\n";
  CommandResult put = Run({"catalog", "put", "mesh", "default", folder_ + "/smaller.yaml"});
  ASSERT_EQ(put.exit_code, 0) << put.err;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(client::ClusterRecord record, client::ReadRecord(record_));
  ASSERT_EQ(record.processes.size(), 4u);
  ASSERT_THAT(client::SendSignal(record.processes[2].id, SIGKILL), IsOk());
  ASSERT_TRUE(client::WaitUntilGone(record.processes[2].id, absl::Now() + absl::Seconds(60)));
  ASSERT_TRUE(Eventually([&] {
    const json meshes = StatusOrNothing()["meshes"];
    return !meshes.empty() && meshes[0]["workers"] == json({"worker-0", "worker-2"}) &&
           meshes[0]["complete"] == true;
  }));
  const std::vector<std::string> same = {"up", "--data-dir", data_, "--detach", "--output=json"};
  // All workers with a rank run: the drained one is not started again.
  up = Run(same);
  EXPECT_EQ(up.exit_code, 1);
  EXPECT_THAT(up.err, HasSubstr("is up at"));
  EXPECT_THAT(Run({"down"}), Succeeded());

  up = Run(same);
  ASSERT_EQ(up.exit_code, 0) << up.err;
  const json cluster = json::parse(up.out);
  EXPECT_EQ(cluster["mesh"], "fsdp=2");
  ASSERT_EQ(cluster["processes"].size(), 3u) << up.out;
  EXPECT_EQ(cluster["processes"][1]["identity"], "worker-0");
  EXPECT_EQ(cluster["processes"][2]["identity"], "worker-2");
  ExpectDownLeavesNothing();
}

TEST_F(UpDownTest, AnUpStartsTheWorkersOfAllMeshesOfTheState) {
  CommandResult up = Run({"up", "--mesh", "fsdp=3", "--data-dir", data_, "--detach"});
  ASSERT_EQ(up.exit_code, 0) << up.err;
  std::ofstream(folder_ + "/second.yaml") << "axes: [{name: dp, size: 3}]\n";
  CommandResult result = Run({"catalog", "put", "mesh", "second", folder_ + "/second.yaml"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto are_complete = [this] {
    const json meshes = StatusOrNothing()["meshes"];
    return meshes.size() == 2 && meshes[0]["complete"] == true && meshes[1]["complete"] == true;
  };
  ASSERT_TRUE(Eventually(are_complete));
  result = Run({"mesh", "resize", "default", "fsdp=2"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<std::string> same = {"up", "--data-dir", data_, "--detach", "--output=json"};

  // While the cluster is up: worker-2 serves a rank of the second mesh only.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ClusterRecord record, client::ReadRecord(record_));
  ASSERT_EQ(record.processes.size(), 4u);
  ASSERT_THAT(client::SendSignal(record.processes[3].id, SIGKILL), IsOk());
  ASSERT_TRUE(client::WaitUntilGone(record.processes[3].id, absl::Now() + absl::Seconds(60)));
  up = Run(same);
  ASSERT_EQ(up.exit_code, 0) << up.err;
  EXPECT_THAT(up.err, HasSubstr("Restarted the processes that had ended: worker-2\n"));
  EXPECT_TRUE(Eventually(are_complete));

  // After `down`.
  EXPECT_THAT(Run({"down"}), Succeeded());
  up = Run(same);
  ASSERT_EQ(up.exit_code, 0) << up.err;
  const json cluster = json::parse(up.out);
  EXPECT_EQ(cluster["mesh"], "fsdp=2");
  ASSERT_EQ(cluster["processes"].size(), 4u) << up.out;
  EXPECT_EQ(cluster["processes"][3]["identity"], "worker-2");
  EXPECT_TRUE(Eventually(are_complete));

  // Another mesh's worker that cannot start keeps neither a new nor a running cluster from its
  // `up`.
  EXPECT_THAT(Run({"down"}), Succeeded());
  std::filesystem::remove_all(data_ + "/worker-2/arrays");
  std::ofstream(data_ + "/worker-2/arrays") << "no folder\n";
  for (int i = 0; i < 2; ++i) {
    up = Run(same);
    ASSERT_EQ(up.exit_code, 0) << up.err;
    EXPECT_THAT(up.err,
                AllOf(HasSubstr("worker-2 (pid "),
                      HasSubstr("which serves ranks of other meshes than \"default\", exited with"),
                      HasSubstr(StrCat("its log is ", record_, "/worker-2.log"))));
    const json meshes = StatusOrNothing()["meshes"];
    ASSERT_EQ(meshes.size(), 2u);
    EXPECT_EQ(meshes[0]["complete"], true);
    EXPECT_EQ(meshes[1]["complete"], false);
  }

  // Nor does one whose files are damaged.
  EXPECT_THAT(Run({"down"}), Succeeded());
  std::filesystem::remove(data_ + "/worker-2/arrays");
  std::ofstream(data_ + "/worker-2/cluster_id") << "\x01\n";
  up = Run(same);
  ASSERT_EQ(up.exit_code, 0) << up.err;
  EXPECT_THAT(up.err,
              AllOf(HasSubstr("worker-2 (pid "), HasSubstr("/worker-2/cluster_id is damaged"),
                    HasSubstr("write its old content back")));
  EXPECT_EQ(StatusOrNothing()["meshes"][0]["complete"], true);

  // A worker whose data is not below the data folder does not belong to this `up`, which says so.
  EXPECT_THAT(Run({"down"}), Succeeded());
  std::filesystem::rename(data_ + "/worker-2", folder_ + "/worker-2");
  up = Run(same);
  ASSERT_EQ(up.exit_code, 0) << up.err;
  EXPECT_EQ(json::parse(up.out)["processes"].size(), 3u) << up.out;
  EXPECT_THAT(up.err, AllOf(HasSubstr("worker-2, which serves ranks of other meshes"),
                            HasSubstr(StrCat("there is no folder ", data_, "/worker-2")),
                            HasSubstr("shardmesh admin worker replace worker-2 NEW")));
  ExpectDownLeavesNothing();
}

TEST_F(UpDownTest, AnUpRefusesAnotherMeshThanThatOfTheState) {
  ASSERT_THAT(Run(up_), Succeeded());
  EXPECT_THAT(Run({"down"}), Succeeded());
  const std::vector<std::string> other = {"up", "--mesh", "tp=2", "--data-dir", data_, "--detach"};
  for (const bool was_changed : {false, true}) {
    if (was_changed) {  // the state has a second version of the mesh
      ASSERT_THAT(Run({"up", "--data-dir", data_, "--detach"}), Succeeded());
      std::ofstream(folder_ + "/dp.yaml") << "axes: [{name: dp, size: 1}]\n";
      const CommandResult put = Run({"catalog", "put", "mesh", "default", folder_ + "/dp.yaml"});
      ASSERT_EQ(put.exit_code, 0) << put.err;
      EXPECT_THAT(Run({"down"}), Succeeded());
    }
    const CommandResult up = Run(other);
    EXPECT_EQ(up.exit_code, 1);
    EXPECT_THAT(up.err, AllOf(HasSubstr(StrCat("the cluster in ", data_, " has the mesh ",
                                               was_changed ? "dp" : "fsdp", "=1, not tp=2")),
                              HasSubstr("`shardmesh mesh resize default tp=2`"),
                              HasSubstr("another --data-dir")));
    EXPECT_THAT(Processes(), IsEmpty());
  }
  ASSERT_THAT(Run({"up", "--mesh", "dp=1", "--data-dir", data_, "--detach"}), Succeeded());
  ExpectDownLeavesNothing();
}

TEST_F(UpDownTest, AnUpAfterACrashHasTheFlagsOfTheLastOne) {
  CommandResult up = Run(up_);
  ASSERT_EQ(up.exit_code, 0) << up.err;
  ASSERT_NO_FATAL_FAILURE(KillAll());

  // An `up` that fails does not take the flags away.
  up = Run({"up", "--mesh", "tp=2", "--detach"});
  EXPECT_EQ(up.exit_code, 1);
  EXPECT_THAT(up.err, AllOf(HasSubstr(StrCat("the cluster in ", data_, " has the mesh fsdp=1")),
                            HasSubstr("`shardmesh down --cluster default` forgets it")));
  EXPECT_THAT(Processes(), IsEmpty());
  up = Run({"up", "--detach", "--output=json"});
  ASSERT_EQ(up.exit_code, 0) << up.err;
  EXPECT_THAT(up.err, HasSubstr(StrCat("The new cluster has the flags with which the cluster was "
                                       "started: --mesh fsdp=1, --data-dir ",
                                       data_, "\n")));
  EXPECT_THAT(Processes(), ::testing::SizeIs(2));
  ExpectDownLeavesNothing();

  // Another data folder is another cluster.
  ASSERT_THAT(Run(up_), Succeeded());
  ASSERT_NO_FATAL_FAILURE(KillAll());
  up = Run({"up", "--mesh", "tp=2", "--data-dir", data_ + "-2", "--detach", "--output=json"});
  ASSERT_EQ(up.exit_code, 0) << up.err;
  EXPECT_EQ(json::parse(up.out)["mesh"], "tp=2");
  ExpectDownLeavesNothing();
}

TEST_F(UpDownTest, AnUpThatIsKilledBeforeTheCoordinatorListensKeepsTheFlags) {
  ASSERT_THAT(Run(up_), Succeeded());
  for (const bool coordinator_runs : {true, false}) {
    SCOPED_TRACE(coordinator_runs);
    ASSERT_NO_FATAL_FAILURE(KillAll());
    // The coordinator waits for this lock, and does not listen.
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        FileLock lock, TakeLock(data_ + "/coordinator/LOCK", {.timeout = absl::Seconds(60)}));
    ASSERT_TRUE(lock.held.valid());
    client::ChildProcess up = Begin({"up", "--detach"});
    ASSERT_TRUE(Eventually([&] { return Processes().size() == 1; }));
    client::SendSignal(up.id(), SIGKILL).IgnoreError();
    ASSERT_TRUE(client::WaitUntilGone(up.id(), absl::Now() + absl::Seconds(60)));
    up.Ended();
    if (!coordinator_runs) {
      ASSERT_NO_FATAL_FAILURE(KillAll());
    }
    lock.held.Close();
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ClusterRecord record, client::ReadRecord(record_));
    EXPECT_EQ(record.data_folder, data_);

    const CommandResult next = Run({"up", "--detach", "--output=json"});
    ASSERT_EQ(next.exit_code, 0) << next.err;
    EXPECT_THAT(next.err, HasSubstr(StrCat("--data-dir ", data_)));
    EXPECT_EQ(json::parse(next.out)["mesh"], "fsdp=1");
    EXPECT_THAT(Processes(), ::testing::SizeIs(2));
  }
  ExpectDownLeavesNothing();
}

TEST_F(UpDownTest, AnUpAfterACrashDoesNotNameAMeshThatTheStateNoLongerHas) {
  ASSERT_THAT(Run(up_), Succeeded());
  std::ofstream(folder_ + "/dp.yaml") << "axes: [{name: dp, size: 1}]\n";
  const CommandResult put = Run({"catalog", "put", "mesh", "default", folder_ + "/dp.yaml"});
  ASSERT_EQ(put.exit_code, 0) << put.err;
  ASSERT_NO_FATAL_FAILURE(KillAll());
  const CommandResult up = Run({"up", "--detach", "--output=json"});
  ASSERT_EQ(up.exit_code, 0) << up.err;
  EXPECT_EQ(json::parse(up.out)["mesh"], "dp=1");
  EXPECT_THAT(up.err, HasSubstr(StrCat("--data-dir ", data_)));
  EXPECT_THAT(up.err, Not(HasSubstr("--mesh")));
  ExpectDownLeavesNothing();
}

TEST_F(UpDownTest, AnUpTakesTheTypesOfAxesFromTheState) {
  ASSERT_THAT(Run(up_), Succeeded());
  std::ofstream(folder_ + "/explicit.yaml") << "axes: [{name: fsdp, size: 1, type: explicit}]\n";
  const CommandResult put = Run({"catalog", "put", "mesh", "default", folder_ + "/explicit.yaml"});
  ASSERT_EQ(put.exit_code, 0) << put.err;
  EXPECT_THAT(Run({"down"}), Succeeded());
  std::vector<std::string> same = up_;
  same.push_back("--output=json");
  CommandResult up = Run(same);  // with --mesh fsdp=1
  ASSERT_EQ(up.exit_code, 0) << up.err;
  EXPECT_EQ(json::parse(up.out)["mesh"], "fsdp=1:explicit");

  // While the cluster is up, the types do not differ either.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ClusterRecord record, client::ReadRecord(record_));
  ASSERT_EQ(record.processes.size(), 2u);
  ASSERT_THAT(client::SendSignal(record.processes[1].id, SIGKILL), IsOk());
  ASSERT_TRUE(client::WaitUntilGone(record.processes[1].id, absl::Now() + absl::Seconds(60)));
  up = Run(same);
  EXPECT_EQ(up.exit_code, 0) << up.err;
  ExpectDownLeavesNothing();
}

TEST_F(UpDownTest, AnUpDefinesTheMeshAgainIfTheStateHasNone) {
  ASSERT_THAT(Run(up_), Succeeded());
  const CommandResult removed = Run({"catalog", "rm", "mesh", "default"});
  ASSERT_EQ(removed.exit_code, 0) << removed.err;
  EXPECT_THAT(Run({"down"}), Succeeded());
  const CommandResult up = Run({"up", "--data-dir", data_, "--detach", "--output=json"});
  ASSERT_EQ(up.exit_code, 0) << up.err;
  EXPECT_EQ(json::parse(up.out)["mesh"], "fsdp=1");
  ExpectDownLeavesNothing();
}

}  // namespace
}  // namespace shardmesh::test
