// `up`, `down` and `health`: clusters of this machine, their records and their processes.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/cli/local/child_process.h"
#include "client/cli/local/cluster_record.h"
#include "process/host_port.h"
#include "status/str_cat.h"
#include "tensor/view.h"
#include "tests/integration/cli_fixture.h"
#include "tests/testing/eventually.h"
#include "tests/testing/read_file.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using ::nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(CommandLineTest, LeavesNothingInAFolderThatIsNoneOfACoordinator) {
  const std::string folder = folder_ + "/elsewhere";
  std::filesystem::create_directories(folder);
  const std::string file = WriteFile(folder + "/notes.txt", "mine");
  for (const std::vector<std::string>& options : std::vector<std::vector<std::string>>{
           {}, {"--set-aside"}, {"--set-aside", "--cluster-of", file}, {"--output=json"}}) {
    std::vector<std::string> arguments = {"admin", "check", folder};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const CommandResult result = Run(arguments);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, AllOf(HasSubstr("there is no database"), HasSubstr(folder)));
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1) << result.err;
  }
}

TEST_F(CommandLineTest, SaysThatNoClusterIsUp) {
  const CommandResult result = Run({"down"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("no cluster \"default\" is up on this host"));
}

TEST_F(CommandLineTest, StartsAClusterAndStopsItAgain) {
  CommandResult result = Run({"up", "--mesh", "fsdp=2", "--detach", "--output", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json record = json::parse(result.out);
  ASSERT_EQ(record["processes"].size(), 3u);

  result = Run({"status", "--output", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json status = json::parse(result.out);
  EXPECT_EQ(status["address"], record["address"]);
  EXPECT_EQ(status["meshes"][0]["axes"], json({{"fsdp", 2}}));
  EXPECT_EQ(status["meshes"][0]["complete"], true);
  EXPECT_EQ(status["metrics"], record["processes"][0]["metrics"]);
  EXPECT_EQ(status["metrics_scheme"], "http");
  for (const json& worker : status["workers"]) {
    EXPECT_EQ(worker["state"], "ready");
    EXPECT_THAT(worker["metrics"].get<std::string>(), ::testing::StartsWith("127.0.0.1:"));
  }
  EXPECT_THAT(Run({"status"}).out,
              HasSubstr("http://" + status["metrics"].get<std::string>() + "/metrics"));

  result = Run({"up", "--mesh", "fsdp=2", "--detach"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("the cluster \"default\" is up at"),
                                HasSubstr("are in memory, and `down` loses them"),
                                Not(HasSubstr("mesh resize"))));
  result = Run({"up", "--mesh", "fsdp=4", "--memory", "64MiB", "--detach"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(
      result.err,
      AllOf(HasSubstr("other flags: --mesh fsdp=4 (the cluster has fsdp=2), --memory 64MiB"),
            HasSubstr("`shardmesh mesh resize default fsdp=4 --cluster default` gives it that "
                      "mesh and keeps its arrays\n"),
            HasSubstr("\n  otherwise stop it with `shardmesh down --cluster default`, or choose "
                      "another --cluster\n  its arrays, names and definitions are in memory")));

  const std::string address = record["address"];
  const std::string port = address.substr(address.rfind(':') + 1);
  result = Run({"up", "--mesh", "fsdp=1", "--cluster", "other", "--port", port, "--detach"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr(address)) << "a port in use is named";

  SHARDMESH_ASSERT_OK_AND_ASSIGN(client::ClusterRecord written,
                                 client::ReadRecord(RecordFolder("default")));
  EXPECT_TRUE(written.IsUp());
  written.processes[0].metrics_address.clear();
  ASSERT_THAT(client::WriteRecord(RecordFolder("default"), written), IsOk());
  EXPECT_THAT(Run({"status"}).out,
              AllOf(HasSubstr(written.processes[1].metrics_address), Not(HasSubstr("Metrics at"))));
  result = Run({"down"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_FALSE(written.IsUp());
  EXPECT_EQ(Run({"down"}).exit_code, 1);
}

TEST_F(CommandLineTest, StartsWorkersThatUseTheTransportThatIsAskedFor) {
  for (const auto& [flag, transport] : {std::pair{"stream", "stream"}, {"shm", "shared memory"}}) {
    ASSERT_THAT(Run({"up", "--mesh", "fsdp=2", "--transport", flag, "--detach"}), Succeeded());
    json link;
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    do {
      const CommandResult links = Run({"links", "--output", "json"});
      ASSERT_EQ(links.exit_code, 0) << links.err;
      link = json::parse(links.out)["links"].at(0);
    } while (!link["measured"].get<bool>() && absl::Now() < deadline);
    EXPECT_EQ(link["transport"], transport);
    ASSERT_THAT(Run({"down"}), Succeeded());
  }
}

TEST_F(CommandLineTest, GivesReadRootsToItsWorkersAsAbsolutePaths) {
  std::filesystem::create_directories(folder_ + "/a");
  std::filesystem::create_directories(folder_ + "/b");
  const CommandResult up = Run({"up", "--mesh", "fsdp=1", "--read-root", folder_ + "/a/../a",
                                "--read-root", folder_ + "/b", "--detach", "--output", "json"});
  ASSERT_EQ(up.exit_code, 0) << up.err;
  const int64_t pid = json::parse(up.out)["processes"].at(1)["pid"].get<int64_t>();
  std::ifstream file(StrCat("/proc/", pid, "/cmdline"), std::ios::binary);
  std::string command(std::istreambuf_iterator<char>(file), {});
  std::replace(command.begin(), command.end(), '\0', ' ');
  EXPECT_THAT(command, AllOf(HasSubstr(StrCat(" --read-root=", folder_, "/a ")),
                             HasSubstr(StrCat(" --read-root=", folder_, "/b "))));
  ASSERT_THAT(Run({"down"}), Succeeded());
}

TEST_F(CommandLineTest, StartsAgainWhatEndedOfAClusterOnDisk) {
  const std::vector<std::string> up = {"up",       "--mesh", "fsdp=2",     "--detach",
                                       "--output", "json",   "--data-dir", folder_ + "/data"};
  CommandResult result = Run(up);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json before = json::parse(result.out);
  const std::string rules =
      WriteFile(folder_ + "/rules.yaml", "rules:\n- {pattern: '.*', spec: [fsdp]}\n");
  ASSERT_THAT(Run({"make-checkpoint", "--out", folder_ + "/c.safetensors"}), Succeeded());
  ASSERT_THAT(Run({"load", folder_ + "/c.safetensors", "--rules", rules}), Succeeded());

  ASSERT_NO_FATAL_FAILURE(Kill(before, "coordinator"));
  ASSERT_NO_FATAL_FAILURE(Kill(before, "worker-1"));
  result = Run({"up", "--mesh", "fsdp=2", "--data-dir", folder_ + "/other", "--detach"});
  EXPECT_EQ(result.exit_code, 1) << "this is another folder";
  EXPECT_THAT(result.err, AllOf(HasSubstr("have ended: coordinator, worker-1"),
                                HasSubstr(StrCat("--data-dir ", folder_, "/other (the cluster has ",
                                                 folder_, "/data); leave them out"))));
  result = Run(up);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err,
              HasSubstr("Restarted the processes that had ended: coordinator, worker-1"));
  const json after = json::parse(result.out);
  EXPECT_EQ(after["address"], before["address"]);
  EXPECT_NE(PidOf(after, "coordinator"), PidOf(before, "coordinator"));
  EXPECT_EQ(PidOf(after, "worker-0"), PidOf(before, "worker-0"));
  EXPECT_NE(PidOf(after, "worker-1"), PidOf(before, "worker-1"));
  const std::string tensor = "embeddings.word_embeddings.weight";
  result = Run({"get", tensor, "--out", folder_ + "/w.npy"});
  EXPECT_EQ(result.exit_code, 0) << result.err;

  result = Run(up);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("is up at " + after["address"].get<std::string>()),
                                HasSubstr("what is under its --data-dir ")));
  EXPECT_THAT(Run({"down"}), Succeeded());
}

TEST_F(CommandLineTest, StartsAWorkerAgainWithTheFlagsOfTheFirstUp) {
  std::filesystem::create_directories(folder_ + "/a");
  CommandResult result = Run({"up", "--mesh", "fsdp=1,tp=2", "--memory", "96MiB", "--read-root",
                              folder_ + "/a", "--detach", "--output", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json before = json::parse(result.out);
  ASSERT_NO_FATAL_FAILURE(Kill(before, "worker-1"));
  result = Run({"up", "--mesh", "fsdp=4", "--memory", "64MiB", "--detach"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("--mesh fsdp=4 (the cluster has fsdp=1,tp=2)"),
                    HasSubstr("--memory 64MiB (the cluster has 96MiB)"),
                    HasSubstr("shardmesh mesh resize default fsdp=4"),
                    HasSubstr("`down` loses them"), HasSubstr("shardmesh down --cluster default")));

  // Flags that say the same as those of the first `up` are no difference.
  result = Run({"up", "--transport", "auto", "--min-sharding-size", "16384", "--read-root",
                folder_ + "/a/", "--detach", "--output", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("Restarted the processes that had ended: worker-1\n"),
                                HasSubstr("--mesh fsdp=1,tp=2, --memory 96MiB\n")));
  const json after = json::parse(result.out);
  EXPECT_EQ(after["mesh"], "fsdp=1,tp=2");
  EXPECT_EQ(PidOf(after, "worker-0"), PidOf(before, "worker-0"));
  const std::vector<std::string> command = absl::StrSplit(
      ReadFile(StrCat("/proc/", PidOf(after, "worker-1"), "/cmdline")), '\0', absl::SkipEmpty());
  EXPECT_THAT(command, ::testing::IsSupersetOf(
                           {std::string("--memory=96MiB"), StrCat("--read-root=", folder_, "/a")}));
  EXPECT_THAT(Run({"down"}), Succeeded());
}

TEST_F(CommandLineTest, FollowsAClusterOfWhichEachProcessWasStartedByHand) {
  CommandResult result = Run(
      {"up", "--mesh", "fsdp=1", "--data-dir", folder_ + "/data", "--detach", "--output", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json cluster = json::parse(result.out);
  std::vector<client::ProcessOptions> commands;
  for (const char* const identity : {"coordinator", "worker-0"}) {
    client::ProcessOptions options;
    options.command = absl::StrSplit(
        ReadFile(StrCat("/proc/", PidOf(cluster, identity), "/cmdline")), '\0', absl::SkipEmpty());
    options.log_path = StrCat(folder_, "/", identity, ".log");
    commands.push_back(std::move(options));
  }
  // The coordinator got a free port; by hand it must listen at the recorded address.
  for (std::string& argument : commands[0].command) {
    if (argument.starts_with("--listen=")) {
      argument = "--listen=" + cluster["address"].get<std::string>();
    }
  }
  ASSERT_NO_FATAL_FAILURE(Kill(cluster, "worker-0"));
  ASSERT_NO_FATAL_FAILURE(Kill(cluster, "coordinator"));
  std::vector<client::ChildProcess> by_hand;
  for (const client::ProcessOptions& options : commands) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(client::ChildProcess process,
                                   client::ChildProcess::Start(options));
    by_hand.push_back(std::move(process));
  }
  const std::string address = "--address=" + cluster["address"].get<std::string>();
  ASSERT_TRUE(Eventually(
      [&] {
        const CommandResult status = Run({"status", address, "--output=json"});
        return status.exit_code == 0 &&
               json::parse(status.out)["workers"][0]["pid"] == by_hand[1].id().pid;
      },
      absl::Seconds(60)));
  // All recorded processes have ended, and the cluster is up nevertheless.
  result = Run({"up", "--detach"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("restarted by hand"),
                    HasSubstr(StrCat("coordinator (pid ", PidOf(cluster, "coordinator"),
                                     " has ended, pid ", by_hand[0].id().pid, " runs)")),
                    HasSubstr("is up at")));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ClusterRecord record,
                                 client::ReadRecord(RecordFolder("default")));
  EXPECT_EQ(record.processes[1].id, by_hand[1].id());
  EXPECT_THAT(Run({"status"}), Succeeded()) << "the record leads to the cluster";
  result = Run({"down"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("Stopped the cluster \"default\""));
  for (client::ChildProcess& process : by_hand) EXPECT_TRUE(process.Ended().has_value());
}

TEST_F(CommandLineTest, StartsANewClusterWhenStateInMemoryIsGone) {
  const std::vector<std::string> up = {"up", "--mesh", "fsdp=2", "--detach", "--output", "json"};
  CommandResult result = Run(up);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json before = json::parse(result.out);
  ASSERT_NO_FATAL_FAILURE(Kill(before, "worker-1"));
  result = Run(up);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("Restarted the processes that had ended: worker-1"));

  ASSERT_NO_FATAL_FAILURE(Kill(before, "coordinator"));
  result = Run(up);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("stopped worker-0, worker-1 and started a new cluster"));
  EXPECT_NE(PidOf(json::parse(result.out), "worker-0"), PidOf(before, "worker-0"));
  EXPECT_THAT(Run({"down"}), Succeeded());
}

TEST_F(CommandLineTest, KeepsTheFlagsOfAClusterInMemoryWhoseCoordinatorWasKilled) {
  CommandResult result = Run({"up", "--mesh", "fsdp=1,tp=2", "--memory", "96MiB", "--transport",
                              "stream", "--detach", "--output", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  ASSERT_NO_FATAL_FAILURE(Kill(json::parse(result.out), "coordinator"));
  const auto flags_of_worker = [](const json& cluster) -> std::vector<std::string> {
    return absl::StrSplit(ReadFile(StrCat("/proc/", PidOf(cluster, "worker-1"), "/cmdline")), '\0',
                          absl::SkipEmpty());
  };
  result = Run({"up", "--detach", "--output", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err,
              HasSubstr("The new cluster has the flags with which the cluster was started: --mesh "
                        "fsdp=1,tp=2, --memory 96MiB, --transport stream\n"));
  json cluster = json::parse(result.out);
  EXPECT_EQ(cluster["mesh"], "fsdp=1,tp=2");
  EXPECT_THAT(
      flags_of_worker(cluster),
      ::testing::IsSupersetOf({std::string("--memory=96MiB"), std::string("--transport=stream")}));

  // The new cluster has no data of the old one, so a flag with another value takes its place.
  ASSERT_NO_FATAL_FAILURE(Kill(cluster, "coordinator"));
  result = Run({"up", "--memory", "64MiB", "--detach", "--output", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  cluster = json::parse(result.out);
  EXPECT_THAT(
      flags_of_worker(cluster),
      ::testing::IsSupersetOf({std::string("--memory=64MiB"), std::string("--transport=stream")}));
  EXPECT_THAT(Run({"down"}), Succeeded());

  // `down` ends the record of the flags.
  result = Run({"up", "--mesh", "fsdp=1,tp=2", "--detach", "--output", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(flags_of_worker(json::parse(result.out)),
              ::testing::Not(::testing::Contains(HasSubstr("--transport"))));
  EXPECT_THAT(Run({"down"}), Succeeded());
}

TEST_F(CommandLineTest, LeavesAloneAnotherClusterAtItsFormerAddress) {
  CommandResult result =
      Run({"up", "--mesh", "fsdp=2", "--cluster", "a", "--detach", "--output", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json a = json::parse(result.out);
  ASSERT_NO_FATAL_FAILURE(Kill(a, "coordinator"));
  ASSERT_NO_FATAL_FAILURE(Kill(a, "worker-0"));
  const std::string address = a["address"];
  const std::string port = address.substr(address.rfind(':') + 1);
  result = Run({"up", "--mesh", "fsdp=1", "--cluster", "b", "--port", port, "--detach"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ClusterRecord b,
                                 client::ReadRecord(RecordFolder("b")));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(client::ClusterRecord of_a, client::ReadRecord(RecordFolder("a")));
  EXPECT_NE(of_a.cluster_id, b.cluster_id);

  result = Run({"down", "--cluster", "a"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_FALSE(of_a.IsUp());
  for (const client::RecordedProcess& process : b.processes) {
    EXPECT_TRUE(client::IsRunning(process.id)) << process.identity;
  }
  of_a.cluster_id.clear();  // as an older build left it
  ASSERT_THAT(client::WriteRecord(RecordFolder("a"), of_a), IsOk());
  EXPECT_THAT(Run({"down", "--cluster", "a"}), Succeeded());
  for (const client::RecordedProcess& process : b.processes) {
    EXPECT_TRUE(client::IsRunning(process.id)) << process.identity;
  }
  EXPECT_THAT(Run({"down", "--cluster", "b"}), Succeeded());
}

TEST_F(CommandLineTest, FollowsAProcessThatWasStartedByHand) {
  const std::vector<std::string> up = {"up", "--mesh", "fsdp=2", "--detach", "--output", "json"};
  CommandResult result = Run(up);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  json cluster = json::parse(result.out);
  client::ProcessOptions options;
  options.command = absl::StrSplit(
      ReadFile(StrCat("/proc/", PidOf(cluster, "worker-0"), "/cmdline")), '\0', absl::SkipEmpty());
  // The first of these has the output of an earlier run already.
  for (const std::string& log : {RecordFolder("default") + "/worker-0.log", folder_ + "/other"}) {
    ASSERT_NO_FATAL_FAILURE(Kill(cluster, "worker-0"));
    ASSERT_NO_FATAL_FAILURE(Kill(cluster, "worker-1"));
    options.log_path = log;
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ChildProcess worker,
                                   client::ChildProcess::Start(options));
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    for (json known; known != worker.id().pid; absl::SleepFor(absl::Milliseconds(20))) {
      ASSERT_LT(absl::Now(), deadline) << client::ReadLog(log);
      const json status = json::parse(Run({"status", "--output=json"}).out);
      for (const json& each : status["workers"]) {
        if (each["identity"] == "worker-0") {
          known = each["pid"];
        }
      }
    }
    result = Run(up);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("Restarted the processes that had ended: worker-1\n"));
    cluster = json::parse(result.out);
    const json& recorded = cluster["processes"][1];
    EXPECT_EQ(recorded["pid"], worker.id().pid);
    EXPECT_EQ(recorded["log"], log);
    const std::string metrics = recorded["metrics"];
    EXPECT_THAT(client::ReadLog(log, worker.log_offset_bytes()),
                HasSubstr("metrics served port=" + metrics.substr(metrics.rfind(':') + 1) + "\n"));
  }
  EXPECT_THAT(Run({"down"}), Succeeded());
}

TEST_F(CommandLineTest, StopsAProcessThatWasStartedByHandThoughItsMeshIsGone) {
  CommandResult result = Run({"up", "--mesh", "fsdp=1", "--detach", "--output", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json cluster = json::parse(result.out);
  client::ProcessOptions options;
  options.command = absl::StrSplit(
      ReadFile(StrCat("/proc/", PidOf(cluster, "worker-0"), "/cmdline")), '\0', absl::SkipEmpty());
  options.log_path = folder_ + "/by_hand";
  ASSERT_NO_FATAL_FAILURE(Kill(cluster, "worker-0"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(client::ChildProcess worker, client::ChildProcess::Start(options));
  ASSERT_TRUE(Eventually(
      [&] {
        const json status = json::parse(Run({"status", "--output=json"}).out);
        return status["workers"].size() == 1 && status["workers"][0]["pid"] == worker.id().pid;
      },
      absl::Seconds(60)))
      << client::ReadLog(options.log_path);
  result = Run({"catalog", "rm", "mesh", "default"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  result = Run({"down"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(worker.Ended().has_value());
}

// Starts a worker of the cluster of which `up` has printed `started` as JSON.
absl::StatusOr<client::ChildProcess> StartWorkerByHand(const std::string& folder,
                                                       const CommandResult& started,
                                                       const std::vector<std::string>& flags) {
  client::ProcessOptions options;
  options.command = {
      SHARDMESH_BINARY_DIR "/shardmesh-worker",
      StrCat("--coordinator=", json::parse(started.out)["address"].get<std::string>()),
      "--listen=127.0.0.1:0"};
  options.command.insert(options.command.end(), flags.begin(), flags.end());
  options.log_path = folder + "/by_hand.log";
  return client::ChildProcess::Start(options);
}

TEST_F(CommandLineTest, DownNamesAWorkerThatItDoesNotStop) {
  CommandResult result = Run({"up", "--mesh", "fsdp=1", "--detach", "--output", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ChildProcess spare,
                                 StartWorkerByHand(folder_, result, {"--identity=spare"}));
  ASSERT_TRUE(Eventually([&] { return Run({"status"}).out.find("spare") != std::string::npos; },
                         absl::Seconds(60)))
      << client::ReadLog(spare.log_path());
  result = Run({"down"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const int64_t pid = spare.id().pid;
  EXPECT_THAT(result.err,
              HasSubstr(StrCat("Not stopped, because `up` did not start it: spare (pid ", pid,
                               "); `kill ", pid, "` ends it\n")));
  EXPECT_THAT(client::SendSignal(spare.id(), SIGTERM), IsOk()) << "it still runs";
  EXPECT_TRUE(client::WaitUntilGone(spare.id(), absl::Now() + absl::Seconds(60)));
}

// Without --identity, a worker has the name of its host.
TEST_F(CommandLineTest, DownNamesThePidOfAWorkerThatHasTheNameOfThisHost) {
  CommandResult result = Run({"up", "--mesh", "fsdp=1", "--detach", "--output", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ChildProcess nameless,
                                 StartWorkerByHand(folder_, result, {}));
  ASSERT_TRUE(Eventually(
      [&] {
        const CommandResult status = Run({"status", "--output=json"});
        return status.exit_code == 0 && json::parse(status.out)["workers"].size() == 2;
      },
      absl::Seconds(60)))
      << client::ReadLog(nameless.log_path());
  result = Run({"down"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const int64_t pid = nameless.id().pid;
  EXPECT_THAT(result.err,
              HasSubstr(StrCat("Not stopped, because `up` did not start it: ", HostName(), " (pid ",
                               pid, "); `kill ", pid, "` ends it\n")));
  EXPECT_THAT(client::SendSignal(nameless.id(), SIGTERM), IsOk()) << "it still runs";
  EXPECT_TRUE(client::WaitUntilGone(nameless.id(), absl::Now() + absl::Seconds(60)));
}

TEST_F(CommandLineTest, StartsANewClusterWhereAStartWasCutOff) {
  const std::vector<std::string> up = {"up",       "--mesh", "fsdp=1",     "--detach",
                                       "--output", "json",   "--data-dir", folder_ + "/data"};
  CommandResult result = Run(up);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json before = json::parse(result.out);
  // As the record was before the coordinator listened.
  ASSERT_NO_FATAL_FAILURE(Kill(before, "worker-0"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(client::ClusterRecord record,
                                 client::ReadRecord(RecordFolder("default")));
  record.address.clear();
  record.cluster_id.clear();
  record.processes.resize(1);
  ASSERT_THAT(client::WriteRecord(RecordFolder("default"), record), IsOk());

  result = Run(up);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err,
              HasSubstr("start was cut off: stopped coordinator and started a new cluster"));
  EXPECT_FALSE(record.IsUp());
  EXPECT_THAT(Run({"down"}), Succeeded());
}

TEST_F(CommandLineTest, KeepsARecordThatItCannotRead) {
  const std::vector<std::string> up = {"up", "--mesh", "fsdp=1", "--detach"};
  CommandResult result = Run(up);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string path = RecordFolder("default") + "/cluster.json";
  const std::string record = ReadFile(path);
  WriteFile(path, "{");
  for (const std::vector<std::string>& command : {up, {"down"}}) {
    result = Run(command);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, HasSubstr(path + " is no record of a cluster"));
    EXPECT_EQ(ReadFile(path), "{");
  }
  result = Run({"ls", "--cluster=default"});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr(path + " is no record of a cluster"));
  WriteFile(path, record);
  EXPECT_THAT(Run({"down"}), Succeeded());
}

TEST_F(CommandLineTest, StopsWithinTheDeadlineThoughNobodyAnswers) {
  client::ClusterRecord record;
  record.name = "mute";
  record.cluster_id = "c1";
  const int listener = BindLoopback(&record.address);
  ASSERT_EQ(listen(listener, 8), 0);
  std::filesystem::create_directories(RecordFolder("mute"));
  ASSERT_THAT(client::WriteRecord(RecordFolder("mute"), record), IsOk());
  const CommandResult result = Run({"down", "--cluster=mute", "--deadline=100ms"});
  close(listener);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_LT(result.time, absl::Seconds(2));  // and not the 3 s of a connection
}

TEST_F(CommandLineTest, CleansUpARecordWhoseProcessesAreGone) {
  CommandResult result = Run({"up", "--mesh", "fsdp=1", "--detach", "--output", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json record = json::parse(result.out);
  for (const json& process : record["processes"]) {
    ASSERT_NO_FATAL_FAILURE(Kill(record, process["identity"]));
  }
  result = Run({"up", "--mesh", "fsdp=1", "--detach"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(Run({"down"}), Succeeded());
}

TEST_F(CommandLineTest, StopsEverythingWhenTheForegroundCommandIsStopped) {
  client::ProcessOptions options;
  options.command = {"/bin/sh", "-c", "export XDG_RUNTIME_DIR=\"$1\"; exec \"$0\" up --mesh fsdp=1",
                     SHARDMESH_BINARY_DIR "/shardmesh", folder_};
  options.log_path = folder_ + "/up.log";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(client::ChildProcess up, client::ChildProcess::Start(options));
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (client::ReadLog(options.log_path).find("is up at") == std::string::npos) {
    ASSERT_LT(absl::Now(), deadline) << client::ReadLog(options.log_path);
    absl::SleepFor(absl::Milliseconds(20));
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ClusterRecord record,
                                 client::ReadRecord(RecordFolder("default")));
  ASSERT_THAT(client::SendSignal(up.id(), SIGTERM), IsOk());
  ASSERT_TRUE(client::WaitUntilGone(up.id(), absl::Now() + absl::Seconds(30)));
  EXPECT_EQ(up.Ended(), "exited with code 0") << client::ReadLog(options.log_path);
  EXPECT_FALSE(record.IsUp());
}

TEST_F(ClusterCommandTest, ProbesTellAliveFromReady) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ClusterStatus status,
                                 cluster_->client().cluster().GetStatus());
  const std::string worker = "--address=" + status.workers.front().addresses.front();
  const auto probe = [&](std::vector<std::string> arguments, const std::string& address) {
    arguments.insert(arguments.begin(), "health");
    arguments.push_back(address);
    return RunShardmesh(arguments, cluster_->folder());
  };
  for (const std::string& address : {"--address=" + cluster_->address(), worker}) {
    for (const std::string service : {"live", "ready"}) {
      const CommandResult result = probe({service}, address);
      EXPECT_EQ(result.exit_code, 0) << result.err;
      EXPECT_EQ(result.out, address.substr(10) + ": " + service + "\n");
    }
  }
  CommandResult result = probe({"redy"}, worker);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("has no service \"redy\"; ask for live, ready, or"));

  // Without its coordinator a worker is alive, and not ready.
  ASSERT_THAT(cluster_->Kill("coordinator"), IsOk());
  EXPECT_EQ(probe({"live"}, "--address=" + cluster_->address()).exit_code, 3);
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  do {
    result = probe({"ready", "--output=json"}, worker);
  } while (result.exit_code == 0 && absl::Now() < deadline);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_FALSE(json::parse(result.out)["serving"].get<bool>());
  EXPECT_THAT(json::parse(result.err)["error"]["message"].get<std::string>(),
              HasSubstr("is not ready"));
  EXPECT_EQ(probe({"live"}, worker).exit_code, 0);
  result = probe({"ready", "--wait", "--deadline=2s"}, worker);
  EXPECT_EQ(result.exit_code, 1) << result.err;
}

TEST_F(ClusterCommandTest, ASecondWorkerOfAnIdentityWaitsAndSaysSo) {
  client::ProcessOptions options;
  options.command = {SHARDMESH_BINARY_DIR "/shardmesh-worker",
                     "--coordinator=" + cluster_->address(), "--listen=127.0.0.1:0",
                     "--identity=worker-0"};
  options.log_path = Path("second.log");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ChildProcess second,
                                 client::ChildProcess::Start(options));
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  std::string log;
  while (log.find("retry_in=") == std::string::npos && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(20));
    log = client::ReadLog(options.log_path);
  }
  EXPECT_THAT(log, AllOf(HasSubstr("cannot attach, will retry"), HasSubstr("(IDENTITY_IN_USE)"),
                         HasSubstr("worker-0"), HasSubstr("retry_in=")));
  EXPECT_THAT(client::SendSignal(second.id(), SIGKILL), IsOk());
  EXPECT_TRUE(client::WaitUntilGone(second.id(), deadline));
}

TEST_F(ClusterCommandTest, ListsOpenSessionsWithoutTheirIds) {
  EXPECT_EQ(cluster_->Run({"admin", "sessions"}).out, "No session is open\n");
  const std::vector<float> values(4, 1.0F);
  const client::PutTensor tensor = {
      .name = "",  // pinned by the session alone
      .view = *TensorView::Create(
          Dtype::kF32, {2, 2},
          {reinterpret_cast<const char*>(values.data()), sizeof(float) * values.size()}),
      .spec = PartitionSpec()};
  ASSERT_THAT(cluster_->client().arrays().PutTensors({&tensor, 1}), IsOk());

  CommandResult result = cluster_->Run({"admin", "sessions", "--output", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json sessions = json::parse(result.out)["sessions"];
  ASSERT_EQ(sessions.size(), 1u) << result.out;
  EXPECT_EQ(sessions[0]["number"], 1);
  EXPECT_EQ(sessions[0]["id_prefix"].get<std::string>().size(), 8u);
  EXPECT_THAT(sessions[0]["caller"].get<std::string>(), HasSubstr("127.0.0.1"));
  EXPECT_EQ(sessions[0]["pinned_arrays"], 1);
  EXPECT_EQ(sessions[0]["transfers"], 0);
  EXPECT_EQ(sessions[0]["steps"], 0);
  EXPECT_LT(sessions[0]["renew_time"].get<std::string>(),
            sessions[0]["expire_time"].get<std::string>());

  result = cluster_->Run({"admin", "sessions"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("number"), HasSubstr("ends in"),
                                HasSubstr(sessions[0]["id_prefix"].get<std::string>() + "..."),
                                HasSubstr(sessions[0]["caller"].get<std::string>())));
}

TEST_F(ClusterCommandTest, ListsOperationsOfAllClientsByState) {
  EXPECT_EQ(cluster_->Run({"ops", "ls"}).out, "No operations\n");
  ASSERT_THAT(cluster_->Run({"load", checkpoint_, "--rules", kRules}), Succeeded());

  CommandResult result = cluster_->Run({"ops", "ls", "--output", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json operations = json::parse(result.out)["operations"];
  ASSERT_EQ(operations.size(), 1u) << result.out;
  EXPECT_EQ(operations[0]["number"], 1);
  EXPECT_EQ(operations[0]["state"], "done");
  EXPECT_EQ(operations[0]["done"], operations[0]["total"]);
  EXPECT_GT(operations[0]["done_bytes"], 0);
  EXPECT_EQ(operations[0]["session_number"], 1);
  EXPECT_EQ(operations[0]["kind"], "load");
  EXPECT_GT(operations[0]["bytes_per_second"], 0);
  EXPECT_EQ(operations[0]["time_left_s"], nullptr);
  EXPECT_LE(operations[0]["start_time"].get<std::string>(),
            operations[0]["end_time"].get<std::string>());

  result = cluster_->Run({"ops", "ls", "--state", "done,failed"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("number"), HasSubstr("100 %"), HasSubstr("load of /")));
  // The size that is done, of the whole size.
  EXPECT_THAT(cluster_->Run({"ops", "ls", "--kind", "load"}).out,
              AllOf(HasSubstr("100 %"), HasSubstr("B of ")));
  for (const std::vector<std::string>& none :
       {std::vector<std::string>{"--state", "running"}, {"--kind", "save"}, {"--kind", "put"}}) {
    std::vector<std::string> command = {"ops", "ls"};
    command.insert(command.end(), none.begin(), none.end());
    EXPECT_EQ(cluster_->Run(command).out, "No operations\n");
  }
  result = cluster_->Run({"ops", "ls", "--state", "gone"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("running"));
  result = cluster_->Run({"ops", "ls", "--kind", "putt"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("did you mean \"put\"?"));

  // By number, by id and by the beginning of the id.
  const std::string id = operations[0]["operation_id"];
  EXPECT_EQ(cluster_->Run({"ops", "ls", "--output", "name"}).out, id + "\n");
  for (const std::string& text : {std::string("1"), id, id.substr(0, 6)}) {
    result = cluster_->Run({"ops", "show", text, "--output", "json"});
    ASSERT_EQ(result.exit_code, 0) << text << ": " << result.err;
    EXPECT_EQ(json::parse(result.out)["operation_id"], id) << text;
  }
  EXPECT_THAT(cluster_->Run({"ops", "show", "1"}).out,
              AllOf(HasSubstr("begun by    session 1"), HasSubstr("100 %")));
  std::string mistyped = id;
  mistyped[3] = mistyped[3] == 'a' ? 'b' : 'a';
  result = cluster_->Run({"ops", "show", mistyped});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("did you mean \"" + id + "\"?"));
  EXPECT_THAT(cluster_->Run({"ops", "watch", "17"}).err, HasSubstr("none runs now"));

  // An ended operation is watched to its end, and cancelling it changes nothing.
  EXPECT_THAT(cluster_->Run({"ops", "watch", "1"}).out, HasSubstr("Operation 1 (load) is done"));
  EXPECT_THAT(cluster_->Run({"ops", "cancel", "1"}).out, HasSubstr("it had ended before"));
  EXPECT_THAT(cluster_->Run({"ops", "cancel", "1", "--force"}).out,
              HasSubstr("it had ended before"));
  EXPECT_EQ(json::parse(cluster_->Run({"status", "--output", "json"}).out)["running_operations"],
            0);
}

TEST(OperationsOfGetsTest, AGetIsShownToOthersWhoCancelItAndLeavesNoFile) {
  // A worker that stands still holds the gets, and counts as attached.
  TestCluster::Options started;
  started.mesh = "tp=2";
  started.coordinator_flags = {"--lost-after=10m"};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, TestCluster::Start(started));
  constexpr int64_t kElements = int64_t{16} << 20;  // 64 MiB
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const std::string array_id,
      PutFloats(cluster->client(), "w", {kElements}, std::vector<float>(kElements, 1),
                PartitionSpec({SpecEntry::Axis("tp")})));
  const auto gets = [&] {
    return json::parse(
        cluster->Run({"ops", "ls", "--kind=get", "--output=json"}).out)["operations"];
  };
  const std::string folder = cluster->folder() + "/got";
  std::filesystem::create_directory(folder);
  size_t count = 0;
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"get", "w", "--out=" + folder + "/w.npy"},
                                             {"get", "w", "--out=" + folder + "/w.safetensors"},
                                             {"get", "--tree=w", "--out=" + folder + "/tree/"}}) {
    SCOPED_TRACE(command.back());
    ASSERT_THAT(cluster->Signal("worker-1", SIGSTOP), IsOk());
    client::ProcessOptions options;
    options.command = {SHARDMESH_BINARY_DIR "/shardmesh", "--address=" + cluster->address()};
    options.command.insert(options.command.end(), command.begin(), command.end());
    options.log_path = StrCat(cluster->folder(), "/get-", ++count, ".log");
    SHARDMESH_ASSERT_OK_AND_ASSIGN(client::ChildProcess get, client::ChildProcess::Start(options));
    ASSERT_TRUE(Eventually([&] { return gets().size() == count; }))
        << client::ReadLog(options.log_path);
    json operation = gets().back();
    EXPECT_EQ(operation["state"], "running");
    EXPECT_EQ(operation["description"], "get of w");
    EXPECT_EQ(operation["total"], 1);
    EXPECT_EQ(operation["total_bytes"], 4 * kElements);
    const std::string id = operation["operation_id"];
    EXPECT_EQ(cluster->Run({"ops", "cancel", id}).exit_code, 1) << "it is of another session";
    const CommandResult cancelled = cluster->Run({"ops", "cancel", id, "--force"});
    EXPECT_EQ(cancelled.exit_code, 0) << cancelled.err;
    EXPECT_TRUE(client::WaitUntilGone(get.id(), absl::Now() + absl::Seconds(30)));
    EXPECT_THAT(cluster->Signal("worker-1", SIGCONT), IsOk());
    EXPECT_EQ(get.Ended(), "exited with code 1");
    EXPECT_THAT(
        client::ReadLog(options.log_path),
        AllOf(HasSubstr("the get was cancelled: an administrator"), HasSubstr("CANCELLED")));
    EXPECT_TRUE(std::filesystem::is_empty(folder));
    EXPECT_EQ(gets().back()["state"], "cancelled");
  }

  // One that nobody cancels is done in the end; and a small get is no operation.
  ASSERT_THAT(cluster->Run({"get", "w", "--out=" + folder + "/w.npy"}), Succeeded());
  EXPECT_EQ(gets().back()["state"], "done");
  EXPECT_EQ(gets().back()["done_bytes"], 4 * kElements);
  ASSERT_THAT(cluster->Run({"get", "w", "--slice=0:1000", "--out=" + folder + "/s.npy"}),
              Succeeded());
  EXPECT_EQ(gets().size(), count + 1);
}

TEST(OperationsOfGetsTest, AGetIntoAPipeIsCancelledWhileItWaitsForItsReader) {
  TestCluster::Options started;
  started.mesh = "tp=2";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto cluster, TestCluster::Start(started));
  constexpr int64_t kElements = int64_t{16} << 20;  // 64 MiB
  ASSERT_THAT(PutFloats(cluster->client(), "w", {kElements}, std::vector<float>(kElements, 1),
                        PartitionSpec({SpecEntry::Axis("tp")})),
              IsOk());
  const auto gets = [&] {
    return json::parse(
        cluster->Run({"ops", "ls", "--kind=get", "--output=json"}).out)["operations"];
  };
  // The reader takes nothing; then all that does not fit into the pipe but for some bytes.
  size_t count = 0;
  for (const int64_t taken : {int64_t{0}, 4 * kElements - (int64_t{256} << 10)}) {
    SCOPED_TRACE(taken);
    const std::string pipe = StrCat(cluster->folder(), "/pipe-", ++count);
    ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
    const int reader = open(pipe.c_str(), O_RDWR | O_CLOEXEC);  // needs no writer
    ASSERT_GE(reader, 0);
    client::ProcessOptions options;
    options.command = {"/bin/sh", "-c",
                       StrCat("exec " SHARDMESH_BINARY_DIR "/shardmesh --address=",
                              cluster->address(), " get w --out=- > ", pipe)};
    options.log_path = StrCat(pipe, ".log");
    SHARDMESH_ASSERT_OK_AND_ASSIGN(client::ChildProcess get, client::ChildProcess::Start(options));
    ASSERT_TRUE(Eventually([&] { return gets().size() == count; }))
        << client::ReadLog(options.log_path);
    std::string buffer(size_t{1} << 20, '\0');
    for (int64_t left = taken; left > 0;) {
      // This process also has the pipe open for writing: without a limit, a read would never end if
      // the get has ended early.
      pollfd in = {.fd = reader, .events = POLLIN, .revents = 0};
      ASSERT_EQ(poll(&in, 1, /*timeout=*/60'000), 1) << client::ReadLog(options.log_path);
      const ssize_t got =
          read(reader, buffer.data(), static_cast<size_t>(std::min<int64_t>(left, 1 << 20)));
      ASSERT_GT(got, 0);
      left -= got;
    }
    const std::string id = gets().back()["operation_id"];
    EXPECT_EQ(gets().back()["state"], "running");
    EXPECT_THAT(cluster->Run({"ops", "cancel", id, "--force"}), Succeeded());
    EXPECT_TRUE(client::WaitUntilGone(get.id(), absl::Now() + absl::Seconds(30)));
    EXPECT_EQ(get.Ended(), "exited with code 1");
    EXPECT_THAT(
        client::ReadLog(options.log_path),
        AllOf(HasSubstr("the get was cancelled: an administrator"), HasSubstr("CANCELLED")));
    EXPECT_EQ(gets().back()["state"], "cancelled");
    close(reader);
  }
}

TEST_F(ClusterCommandTest, WatchesAnIdleClusterWithoutSayingSoAgain) {
  client::ProcessOptions options;
  options.command = {SHARDMESH_BINARY_DIR "/shardmesh", "ops", "watch",
                     "--address=" + cluster_->address()};
  options.log_path = Path("idle.log");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(client::ChildProcess watch, client::ChildProcess::Start(options));
  ASSERT_TRUE(Eventually([&] { return !client::ReadLog(Path("idle.log")).empty(); }));
  absl::SleepFor(absl::Milliseconds(2'500));  // two more answers, on a host that is not too busy
  EXPECT_EQ(client::ReadLog(Path("idle.log")), "No operations\n");
  ASSERT_THAT(client::SendSignal(watch.id(), SIGINT), IsOk());
  ASSERT_TRUE(client::WaitUntilGone(watch.id(), absl::Now() + absl::Seconds(30)));
  EXPECT_EQ(watch.Ended(), "exited with code 0");
}

bool HasText(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(ClusterCommandTest, PrintsChangesAsTheyHappenUntilItIsStopped) {
  const auto start = [&](const std::string& log, const std::vector<std::string>& more) {
    client::ProcessOptions options;
    options.command = {SHARDMESH_BINARY_DIR "/shardmesh", "admin", "watch",
                       "--address=" + cluster_->address()};
    options.command.insert(options.command.end(), more.begin(), more.end());
    options.log_path = Path(log);
    return client::ChildProcess::Start(options);
  };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(client::ChildProcess lines, start("lines.log", {}));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(client::ChildProcess workers,
                                 start("workers.log", {"--of", "workers", "--output", "json"}));
  const auto await = [&](const std::string& log, const std::string& text) {
    return Eventually([&] { return HasText(client::ReadLog(Path(log)), text); });
  };
  ASSERT_TRUE(await("lines.log", "watching since epoch "));
  ASSERT_TRUE(await("workers.log", R"("event":"started")"));

  const std::vector<float> values(4, 1.0F);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const std::string array_id,
      PutFloats(cluster_->client(), "watched", {2, 2}, values, PartitionSpec()));
  EXPECT_TRUE(await("lines.log", "array " + array_id + " created on mesh default\n"));
  EXPECT_TRUE(await("lines.log", "name watched set to array " + array_id + ", version "));
  ASSERT_THAT(cluster_->Run({"rm", "watched"}), Succeeded());
  EXPECT_TRUE(await("lines.log", "name watched deleted\n"));
  EXPECT_TRUE(await("lines.log", "array " + array_id + " deleted on mesh default\n"));
  ASSERT_THAT(cluster_->Kill("worker-3"), IsOk());
  EXPECT_TRUE(await("lines.log", "worker worker-3 lost: its stream broke"));
  ASSERT_THAT(cluster_->Restart("worker-3"), IsOk());
  EXPECT_TRUE(await("lines.log", "worker worker-3 attached\n"));
  EXPECT_TRUE(await("workers.log", R"("event":"worker attached","worker":"worker-3")"));
  // An id of 64 bits: as a number, readers that keep numbers as doubles would round it.
  EXPECT_TRUE(HasText(client::ReadLog(Path("workers.log")), R"("incarnation":")"));
  EXPECT_FALSE(HasText(client::ReadLog(Path("workers.log")), "watched"));

  ASSERT_THAT(client::SendSignal(lines.id(), SIGINT), IsOk());
  ASSERT_TRUE(client::WaitUntilGone(lines.id(), absl::Now() + absl::Seconds(30)));
  EXPECT_EQ(lines.Ended(), "exited with code 0") << client::ReadLog(Path("lines.log"));
  // The other one ends with the coordinator, and says so.
  ASSERT_THAT(cluster_->Terminate("coordinator"), IsOk());
  ASSERT_TRUE(client::WaitUntilGone(workers.id(), absl::Now() + absl::Seconds(30)));
  EXPECT_EQ(workers.Ended(), "exited with code 1");
  EXPECT_TRUE(HasText(client::ReadLog(Path("workers.log")), R"("reason":"NOT_SERVING")"));

  EXPECT_EQ(cluster_->Run({"admin", "watch", "--of", "steps"}).exit_code, 2);
}

TEST_F(ClusterCommandTest, AWatchSaysThatItsConnectionBroke) {
  client::ProcessOptions options;
  options.command = {SHARDMESH_BINARY_DIR "/shardmesh", "admin", "watch",
                     "--address=" + cluster_->address()};
  options.log_path = Path("broken.log");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(client::ChildProcess watch, client::ChildProcess::Start(options));
  const auto log = [&] { return client::ReadLog(Path("broken.log")); };
  ASSERT_TRUE(Eventually([&] { return HasText(log(), "watching since epoch "); }));
  ASSERT_THAT(cluster_->Kill("coordinator"), IsOk());
  ASSERT_TRUE(client::WaitUntilGone(watch.id(), absl::Now() + absl::Seconds(30)));
  EXPECT_EQ(watch.Ended(), "exited with code 3");
  EXPECT_THAT(log(),
              HasSubstr("the watch has ended, because the connection broke (coordinator at " +
                        cluster_->address() + ": "));
  EXPECT_THAT(log(), HasSubstr("watch again when `shardmesh status` answers (UNAVAILABLE)"));
}

TEST_F(ClusterCommandTest, ADeadlineEndsAWatch) {
  const CommandResult result = cluster_->Run({"admin", "watch", "--deadline", "3s"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("watching since epoch "));
}

TEST_F(ClusterCommandTest, AnotherWorkerTakesTheRankOfALostOne) {
  const std::vector<float> values = {1, 2, 3, 4};
  client::MeshClient& client = cluster_->client();
  const PartitionSpec sharded({SpecEntry::Axis("fsdp"), SpecEntry::Axis("tp")});
  ASSERT_THAT(PutFloats(client, "replicated", {2, 2}, values, PartitionSpec()), IsOk());
  ASSERT_THAT(PutFloats(client, "sharded", {2, 2}, values, sharded), IsOk());
  ServerProcess spare("shardmesh-worker", {"--coordinator=" + cluster_->address(),
                                           "--listen=127.0.0.1:0", "--identity=spare"});
  ASSERT_TRUE(Eventually([&] { return HasText(cluster_->Run({"status"}).out, "spare"); }))
      << spare.Log();

  CommandResult result = cluster_->Run({"admin", "worker", "drain", "worker-3", "--validate-only"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("worker-3 would drain. It holds:"));
  const auto is_marked = [&](std::vector<std::string> command) {
    command.insert(command.begin(), {"admin", "worker"});
    command.insert(command.end(), {"--validate-only", "-ojson"});
    return HasText(cluster_->Run(command).out, "\"validate_only\": true");
  };
  EXPECT_TRUE(is_marked({"drain", "worker-3"}));
  ASSERT_THAT(PutFloats(client, "untouched", {2, 2}, values, PartitionSpec()), IsOk());
  ASSERT_THAT(client.arrays().DeleteName("untouched"), IsOk());
  result = cluster_->Run({"admin", "worker", "drain", "worker-3"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("worker-3 drains. It holds:"),
                                HasSubstr("ranks: rank 3 of mesh default"),
                                HasSubstr("under way: 0"), HasSubstr("tiles of arrays: 2, ")));
  EXPECT_THAT(client.arrays().Gather(client::ArraySelector::ByName("sharded")), IsOk())
      << "its tiles are read";
  EXPECT_THAT(PutFloats(client, "refused", {2, 2}, values, sharded),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshIncomplete));
  result = cluster_->Run({"admin", "worker", "drain", "worker-3", "--resume"});
  EXPECT_EQ(result.out, "worker-3 takes work again\n");
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  ASSERT_THAT(PutFloats(client, "taken", {2, 2}, values, sharded), IsOk());

  result = cluster_->Run({"admin", "worker", "replace", "worker-3", "spare"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("(WORKER_ATTACHED)"));
  ASSERT_THAT(cluster_->Kill("worker-3"), IsOk());
  ASSERT_TRUE(Eventually([&] { return HasText(cluster_->Run({"status"}).out, " lost "); }));
  result = cluster_->Run({"admin", "worker", "forget", "worker-3"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("(WORKER_SERVES_RANK)"));
  result = cluster_->Run({"admin", "worker", "replace", "worker-3", "spare", "--validate-only"});
  EXPECT_EQ(result.out, "spare would get from worker-3: rank 3 of mesh default\n") << result.err;
  EXPECT_TRUE(is_marked({"replace", "worker-3", "spare"}));
  result = cluster_->Run({"admin", "worker", "replace", "worker-3", "spare"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out,
            "spare has from worker-3: rank 3 of mesh default\n"
            "Lost tiles are read again now where there is a source (`shardmesh ops ls --kind "
            "repair`);\narrays without one stay degraded (`shardmesh ls`)\n");
  result = cluster_->Run({"admin", "worker", "forget", "worker-3", "--validate-only"});
  EXPECT_EQ(result.out, "worker-3 would be forgotten\n") << result.err;
  EXPECT_TRUE(is_marked({"forget", "worker-3"}));
  result = cluster_->Run({"admin", "worker", "forget", "worker-3"});
  EXPECT_EQ(result.out, "worker-3 is forgotten\n") << result.err;
  result = cluster_->Run({"admin", "worker", "replace", "worker-3", "spare"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("(NOT_FOUND)"));

  // The mesh is complete again. A replica is read from another rank; a tile that only worker-3 had
  // is missing until the array is put again.
  ASSERT_TRUE(Eventually([&] {
    return PutFloats(client, "new", {2, 2}, values, sharded).ok();
  })) << spare.Log();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const auto copy, client.arrays().Gather(client::ArraySelector::ByName("replicated")));
  EXPECT_EQ(FloatsOf(copy.view().bytes()), values);
  EXPECT_THAT(client.arrays().Gather(client::ArraySelector::ByName("sharded")).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kArrayDegraded));
  ASSERT_THAT(PutFloats(client, "sharded", {2, 2}, values, sharded), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto again,
                                 client.arrays().Gather(client::ArraySelector::ByName("sharded")));
  EXPECT_EQ(FloatsOf(again.view().bytes()), values);

  // The ranks are durable only with a data folder, and the lost worker is a spare one if it
  // returns.
  ASSERT_THAT(cluster_->Restart("worker-3"), IsOk());
  ASSERT_TRUE(Eventually([&] { return HasText(cluster_->Run({"status"}).out, "worker-3"); }));
  EXPECT_THAT(client.arrays().Gather(client::ArraySelector::ByName("sharded")), IsOk());
}

}  // namespace
}  // namespace shardmesh::test
