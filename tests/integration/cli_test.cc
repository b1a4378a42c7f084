// The command line against real clusters: what it does, and how it refuses bad input.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/cli/local/child_process.h"
#include "client/cli/local/cluster_record.h"
#include "client/remote/worker_client.h"
#include "rpc/call.h"
#include "status/str_cat.h"
#include "tests/testing/eventually.h"
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

constexpr char kRules[] = SHARDMESH_SOURCE_DIR "/docs/examples/bert.yaml";

std::string WriteFile(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

// A file with this header, `length` before it (its true one by default), and so many bytes of data.
std::string Safetensors(const std::string& header, size_t data_bytes, int64_t length = -1) {
  const uint64_t declared = length < 0 ? header.size() : static_cast<uint64_t>(length);
  std::string text(sizeof(declared), '\0');
  std::memcpy(text.data(), &declared, sizeof(declared));
  return text + header + std::string(data_bytes, 'x');
}

// A socket bound to a free port of this host, and its address.
int BindLoopback(std::string* text) {
  const int socket_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(socket_fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(socket_fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  *text = StrCat("127.0.0.1:", ntohs(address.sin_port));
  return socket_fd;
}

// Tests without a cluster.
class CommandLineTest : public ::testing::Test {
 protected:
  ~CommandLineTest() override { std::filesystem::remove_all(folder_); }

  CommandResult Run(const std::vector<std::string>& arguments) const {
    return RunShardmesh(arguments, folder_);
  }

  // In what `up --output json` said.
  static pid_t PidOf(const json& cluster, const std::string& identity) {
    for (const json& process : cluster["processes"]) {
      if (process["identity"] == identity) {
        return process["pid"].get<pid_t>();
      }
    }
    ADD_FAILURE() << "no " << identity << " in " << cluster;
    return -1;
  }
  static void Kill(const json& cluster, const std::string& identity) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ProcessId id,
                                   client::IdentifyProcess(PidOf(cluster, identity)));
    ASSERT_THAT(client::SendSignal(id, SIGKILL), IsOk());
    ASSERT_TRUE(client::WaitUntilGone(id, absl::Now() + absl::Seconds(10)));
  }

  // Of a cluster's, by its name.
  std::string RecordFolder(const std::string& name) const { return folder_ + "/shardmesh/" + name; }

  const std::string folder_ = MakeTestFolder("records");
};

TEST_F(CommandLineTest, RefusesWrongUse) {
  struct Case {
    std::vector<std::string> arguments;
    std::string error;
  };
  const Case kCases[] = {
      {{}, "a command is missing"},
      {{"statsu"}, "unknown command \"statsu\"; did you mean \"status\"?"},
      {{"catalog", "gte"},
       "unknown command \"gte\"; did you mean \"get\"? (see `shardmesh catalog --help`)"},
      {{"catalog", "get", "mehs"}, "(see `shardmesh catalog get --help`)"},
      {{"admin"},
       "a command is missing: snapshot, check, quarantine (see `shardmesh admin --help`)"},
      {{"admin", "quarantine"},
       "a command is missing: list, restore, drop (see `shardmesh admin quarantine --help`)"},
      {{"--address=x:1", "status"},
       "--address goes after the command: shardmesh COMMAND --address=... (see `shardmesh "
       "--help`)"},
      {{"admin", "--address=x:1"},
       "goes after the command: shardmesh admin COMMAND --address=... (see `shardmesh admin "
       "--help`)"},
      {{"status", "--adress", "x:1"}, "unknown option --adress; did you mean \"--address\"?"},
      {{"status", "more"}, "unexpected argument \"more\""},
      {{"status", "--deadline", "soon"}, "\"soon\" is no time above zero"},
      {{"status", "--deadline", "5"}, "\"5\" is no time above zero with its unit; write 30s"},
      {{"status", "--output", "xml"}, "--output"},
      {{"up", "--workers", "x"}, "--workers: \"x\" is no number from 1 to 1024"},
      {{"up", "--mesh", "fsdp=2,tp=2", "--workers", "3"}, "--mesh fsdp=2,tp=2 with --workers 3"},
      {{"up", "--mesh", "tp=2,tp=2"}, "tp"},
      {{"up", "--mesh", "fsdp"}, "--mesh fsdp"},
      {{"up", "--mesh", ""}, "--mesh: is empty; give axes such as fsdp=2,tp=2"},
      {{"up", "--memory", "1"}, "--memory: \"1\" is too little; give 1048576 bytes or more"},
      {{"make-checkpoint", "--out", "x", "--size", "1MiB"}, "the smallest of F32 takes"},
      {{"up", "--transport", "tcp"}, "--transport: tcp not in {auto,stream,shm}"},
      {{"up", "--collective-algorithms", "scatter=ring"}, "scatter has no algorithm \"ring\""},
      {{"up", "--name", "a/b"}, "\"a/b\" cannot name a cluster"},
      {{"resolve", "--spec", "fsdp,tp"}, "give --shape too"},
      {{"resolve", "--spec", "(fsdp,tp", "--shape", "4,4"}, "lacks a closing \")\""},
      {{"resolve"}, "give one of --axes, --preset and --spec"},
      {{"resolve", "--axes", "__BATCH__", "--mode", "__trian__"}, "__trian__"},
      {{"linear", "--input", "a", "--weight", "b", "--activation", "gelo"},
       "\"gelo\" is none of none, relu, gelu, gelu-tanh, silu; did you mean \"gelu\"?"},
      {{"get", "wq"}, "--out"},
      {{"plan", "t.json", "--search", "0", "--axes", "dp"}, "--search"},
      {{"plan", "t.json", "--search", "4", "--axes", "dp=3..1"}, "1 is below 3"},
      {{"plan", "t.json", "--search", "4", "--axes", "dp", "--rank-by", "wasted_byte"},
       "did you mean \"wasted_bytes\"?"},
      {{"resolve", "--axes", "a", "--mesh", "dp=99999999999999999999"}, "over the limit of"},
      {{"rules", "diff", "a", "b", "--tree", "t", "--max-increase", "5"}, "write 5% or 5B"},
      {{"compare", "a,b", "a", "--rank", "1"}, "--rank 1 is below the 2 dimensions"},
      {{"plan", "t.json", "--rules", "r", "--devices", "8"}, "--devices goes with a --mesh"},
      {{"hash", "\xff"}, "argument 2, \"\\xff\", is not UTF-8"},
      {{"plan", "--mesh", "\xff=2"}, "argument 3, \"\\xff=2\" after --mesh, is not UTF-8"},
      {{"doctor", "--step", "0"}, "--step"},
      {{"doctor", "--records", "1025"}, "--records"},
      {{"bench", "collectives", "--ops", "all-redcue"}, "did you mean \"all-reduce\"?"},
      {{"bench", "collectives", "--ops", "gather"}, "gather is not timed"},
      {{"bench", "collectives", "--sizes", "8,3"}, "\"3\" is no size from 4 to 1GiB"},
      {{"bench", "collectives", "--calls", "61"}, "--calls"},
      {{"bench", "collectives", "--peer", "nccl"}, "\"nccl\" is neither gloo nor mpi"},
      {{"make-checkpoint", "--out", "x", "--like", "llama"}, "--like llama needs a --size"},
  };
  for (const Case& c : kCases) {
    SCOPED_TRACE(StrJoin(c.arguments, " "));
    const CommandResult result = Run(c.arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, AllOf(::testing::StartsWith("shardmesh: "), HasSubstr(c.error)));
    EXPECT_THAT(result.out, IsEmpty());
  }
}

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

TEST_F(CommandLineTest, AServerRefusesFlagsThatDoNotReadOrDoNotFitTogether) {
  const struct Case {
    std::vector<std::string> flags;
    std::string error;
    std::string program = "shardmesh-coordinator";
  } kCases[] = {
      {{"--set-aside"}, "--set-aside is for a check of a data folder; give --check FOLDER too"},
      {{"--ranks=m=a,b"}, "--ranks is for a check of a data folder; give --check FOLDER too"},
      {{"--heartbeat-interval=10s"},
       "--lost-after 5s is less than two of --heartbeat-interval 10s, so workers that are well "
       "would be lost; give --lost-after 20s or more, or a shorter --heartbeat-interval"},
      {{"--lost-after=1ms"}, "--lost-after 1ms is less than two of --heartbeat-interval 1s"},
      {{"--rpc-memory=1"}, "--rpc-memory is 1 bytes, less than one worker takes"},
      {{"--store-quota=1KiB"}, "--store-quota: \"1KiB\" is too little; give 1048576 bytes or more"},
      {{"--restore=f"}, "--restore needs --data-dir"},
      {{"--listen=127.0.0.1"}, "--listen: not an address: '127.0.0.1' has no port"},
      {{"--http-listen=nohost"}, "--http-listen: not an address: 'nohost' has no port"},
      {{"--mesh=fsdp"}, "--mesh: "},
      {{"--coordinator=nohost"}, "--coordinator: not an address: 'nohost'", "shardmesh-worker"},
      {{"--advertise=foo"}, "--advertise: not an address: 'foo'", "shardmesh-worker"},
      {{"--rpc-memory=1MiB"},
       "--rpc-memory: \"1MiB\" is too little; give 16777216 bytes or more",
       "shardmesh-worker"},
      {{"--memory=1"}, "--memory: \"1\" is too little", "shardmesh-worker"},
      {{"--host-part=x"}, "--host-part: \"x\" is no part of a host", "shardmesh-worker"},
  };
  for (const Case& c : kCases) {
    std::vector<std::string> flags = c.flags;
    flags.insert(flags.begin(), {"--listen=127.0.0.1:0", "--http-listen="});
    ServerProcess server(c.program, flags);
    EXPECT_EQ(server.AwaitEnd(), "exited with code 2") << c.error;
    EXPECT_THAT(server.Log(), AllOf(HasSubstr(c.program + ": " + c.error), HasSubstr("--help")));
  }
}

TEST_F(CommandLineTest, ReportsErrorsAsJson) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"statsu", "--output=json"}, {"status", "--output", "json", "--deadline", "soon"}}) {
    const CommandResult result = Run(arguments);
    EXPECT_EQ(result.exit_code, 2);
    const json error = json::parse(result.err)["error"];
    EXPECT_EQ(error["code"], "INVALID_ARGUMENT");
    EXPECT_EQ(error["reason"], nullptr);
    EXPECT_EQ(error["retryable"], false);
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("--help`"));
  }
  const CommandResult result = Run({"status", "--output=json", "--name=other"});
  EXPECT_EQ(result.exit_code, 3);
  const json error = json::parse(result.err)["error"];
  EXPECT_EQ(error["code"], "UNAVAILABLE");
  EXPECT_EQ(error["retryable"], true);
  EXPECT_FALSE(error.contains("details"));
}

TEST_F(CommandLineTest, NamesTheAddressOfACoordinatorThatIsNotThere) {
  // A port that was free a moment ago.
  std::string text;
  close(BindLoopback(&text));
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"status"}, {"ls"}, {"presets"}}) {
    std::vector<std::string> arguments = command;
    arguments.push_back("--address=" + text);
    const CommandResult result = Run(arguments);
    EXPECT_EQ(result.exit_code, 3) << result.err;
    EXPECT_THAT(result.err, HasSubstr(text));
    EXPECT_LT(result.time, absl::Seconds(4));  // the limit of 3 s, and a start of the program
  }
}

TEST_F(CommandLineTest, SaysThatAHostIsNotKnown) {
  const CommandResult result = Run({"status", "--address=no-such-host.invalid:7070"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("cannot reach no-such-host.invalid:7070: no host "
                                    "\"no-such-host.invalid\" is known; is the address right?"));
}

TEST_F(CommandLineTest, KnowsAnotherServerFromACoordinator) {
  std::string address;
  const int listener = BindLoopback(&address);
  ASSERT_EQ(listen(listener, 8), 0);
  std::thread http([listener] {
    for (int peer = 0; (peer = accept(listener, nullptr, nullptr)) >= 0; close(peer)) {
      const std::string_view answer = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
      send(peer, answer.data(), answer.size(), MSG_NOSIGNAL);
    }
  });
  const CommandResult result = Run({"status", "--address=" + address});
  shutdown(listener, SHUT_RDWR);
  http.join();
  close(listener);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr(address), HasSubstr("answers there, but not as a shardmesh")));
  EXPECT_LT(result.time, absl::Seconds(4));
}

TEST_F(CommandLineTest, SaysThatNoClusterIsUp) {
  const CommandResult result = Run({"down"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("no cluster \"default\" is up on this host"));
}

TEST_F(CommandLineTest, MakesTheSameCheckpointFromTheSameSeed) {
  for (const char* name : {"a", "b"}) {
    const CommandResult result =
        Run({"make-checkpoint", "--out", folder_ + "/" + name, "--seed", "7"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("104 tensors"));
  }
  EXPECT_TRUE(ReadFile(folder_ + "/a") == ReadFile(folder_ + "/b"));
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
  EXPECT_THAT(result.err, HasSubstr("the cluster \"default\" is up at"));

  const std::string address = record["address"];
  const std::string port = address.substr(address.rfind(':') + 1);
  result = Run({"up", "--mesh", "fsdp=1", "--name", "other", "--port", port, "--detach"});
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
    ASSERT_EQ(Run({"up", "--mesh", "fsdp=2", "--transport", flag, "--detach"}).exit_code, 0);
    json link;
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    do {
      const CommandResult links = Run({"links", "--output", "json"});
      ASSERT_EQ(links.exit_code, 0) << links.err;
      link = json::parse(links.out)["links"].at(0);
    } while (!link["measured"].get<bool>() && absl::Now() < deadline);
    EXPECT_EQ(link["transport"], transport);
    ASSERT_EQ(Run({"down"}).exit_code, 0);
  }
}

TEST_F(CommandLineTest, StartsAgainWhatEndedOfAClusterOnDisk) {
  const std::vector<std::string> up = {"up",       "--mesh", "fsdp=2",     "--detach",
                                       "--output", "json",   "--data-dir", folder_ + "/data"};
  CommandResult result = Run(up);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json before = json::parse(result.out);
  const std::string rules =
      WriteFile(folder_ + "/rules.yaml", "rules:\n- {pattern: '.*', spec: [fsdp]}\n");
  ASSERT_EQ(Run({"make-checkpoint", "--out", folder_ + "/c.safetensors"}).exit_code, 0);
  ASSERT_EQ(Run({"load", folder_ + "/c.safetensors", "--rules", rules}).exit_code, 0);

  ASSERT_NO_FATAL_FAILURE(Kill(before, "coordinator"));
  ASSERT_NO_FATAL_FAILURE(Kill(before, "worker-1"));
  result = Run({"up", "--mesh", "fsdp=2", "--detach"});
  EXPECT_EQ(result.exit_code, 1) << "this one is in memory";
  EXPECT_THAT(result.err, AllOf(HasSubstr("coordinator, worker-1 ended"),
                                HasSubstr("--data-dir " + folder_ + "/data")));
  result = Run(up);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("Started again what had ended: coordinator, worker-1"));
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
  EXPECT_THAT(result.err, HasSubstr("is up at " + after["address"].get<std::string>()));
  EXPECT_EQ(Run({"down"}).exit_code, 0);
}

TEST_F(CommandLineTest, StartsANewClusterWhenStateInMemoryIsGone) {
  const std::vector<std::string> up = {"up", "--mesh", "fsdp=2", "--detach", "--output", "json"};
  CommandResult result = Run(up);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json before = json::parse(result.out);
  ASSERT_NO_FATAL_FAILURE(Kill(before, "worker-1"));
  result = Run(up);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("Started again what had ended: worker-1"));

  ASSERT_NO_FATAL_FAILURE(Kill(before, "coordinator"));
  result = Run(up);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("stopped worker-0, worker-1 and started a new cluster"));
  EXPECT_NE(PidOf(json::parse(result.out), "worker-0"), PidOf(before, "worker-0"));
  EXPECT_EQ(Run({"down"}).exit_code, 0);
}

TEST_F(CommandLineTest, LeavesAloneAnotherClusterAtItsFormerAddress) {
  CommandResult result =
      Run({"up", "--mesh", "fsdp=2", "--name", "a", "--detach", "--output", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json a = json::parse(result.out);
  ASSERT_NO_FATAL_FAILURE(Kill(a, "coordinator"));
  ASSERT_NO_FATAL_FAILURE(Kill(a, "worker-0"));
  const std::string address = a["address"];
  const std::string port = address.substr(address.rfind(':') + 1);
  result = Run({"up", "--mesh", "fsdp=1", "--name", "b", "--port", port, "--detach"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ClusterRecord b,
                                 client::ReadRecord(RecordFolder("b")));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(client::ClusterRecord of_a, client::ReadRecord(RecordFolder("a")));
  EXPECT_NE(of_a.cluster_id, b.cluster_id);

  result = Run({"down", "--name", "a"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_FALSE(of_a.IsUp());
  for (const client::RecordedProcess& process : b.processes) {
    EXPECT_TRUE(client::IsRunning(process.id)) << process.identity;
  }
  of_a.cluster_id.clear();  // as an older build left it
  ASSERT_THAT(client::WriteRecord(RecordFolder("a"), of_a), IsOk());
  EXPECT_EQ(Run({"down", "--name", "a"}).exit_code, 0);
  for (const client::RecordedProcess& process : b.processes) {
    EXPECT_TRUE(client::IsRunning(process.id)) << process.identity;
  }
  EXPECT_EQ(Run({"down", "--name", "b"}).exit_code, 0);
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
    EXPECT_THAT(result.err, HasSubstr("Started again what had ended: worker-1\n"));
    cluster = json::parse(result.out);
    const json& recorded = cluster["processes"][1];
    EXPECT_EQ(recorded["pid"], worker.id().pid);
    EXPECT_EQ(recorded["log"], log);
    const std::string metrics = recorded["metrics"];
    EXPECT_THAT(client::ReadLog(log, worker.log_offset_bytes()),
                HasSubstr("metrics served port=" + metrics.substr(metrics.rfind(':') + 1) + "\n"));
  }
  EXPECT_EQ(Run({"down"}).exit_code, 0);
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
  EXPECT_EQ(Run({"down"}).exit_code, 0);
}

TEST_F(CommandLineTest, OutputThatCannotBeWrittenIsAnError) {
  for (const char* const arguments : {"version --output=json", "ls --help"}) {
    SCOPED_TRACE(arguments);
    const std::string errors = folder_ + "/errors";
    const int ended = std::system(
        StrCat(SHARDMESH_BINARY_DIR "/shardmesh ", arguments, " > /dev/full 2> ", errors).c_str());
    EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 1) << ended;
    EXPECT_THAT(ReadFile(errors), HasSubstr("cannot write standard output: the disk is full"));
  }
}

// The system would give their numbers to the files that the program opens.
TEST_F(CommandLineTest, StandardStreamsThatAreClosedAreNotWrittenIntoFiles) {
  const auto run = [&](const std::string& arguments) {
    const int ended = std::system(StrCat(SHARDMESH_BINARY_DIR "/shardmesh ", arguments).c_str());
    return WIFEXITED(ended) ? WEXITSTATUS(ended) : -1;
  };
  const std::string make = "make-checkpoint --like all-minilm-l6-v2 --seed 1 --out " + folder_;
  ASSERT_EQ(run(make + "/whole > /dev/null 2>&1"), 0);
  EXPECT_EQ(run(make + "/quiet 0<&- > /dev/null 2>&-"), 0);
  EXPECT_TRUE(ReadFile(folder_ + "/quiet") == ReadFile(folder_ + "/whole"));
  EXPECT_EQ(run(StrCat("version >&- 2> ", folder_, "/errors")), 1);
  EXPECT_THAT(ReadFile(folder_ + "/errors"), HasSubstr("cannot write standard output"));
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
  result = Run({"ls", "--name=default"});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr(path + " is no record of a cluster"));
  WriteFile(path, record);
  EXPECT_EQ(Run({"down"}).exit_code, 0);
}

TEST_F(CommandLineTest, StopsWithinTheDeadlineThoughNobodyAnswers) {
  client::ClusterRecord record;
  record.name = "mute";
  record.cluster_id = "c1";
  const int listener = BindLoopback(&record.address);
  ASSERT_EQ(listen(listener, 8), 0);
  std::filesystem::create_directories(RecordFolder("mute"));
  ASSERT_THAT(client::WriteRecord(RecordFolder("mute"), record), IsOk());
  const CommandResult result = Run({"down", "--name=mute", "--deadline=100ms"});
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
  EXPECT_EQ(Run({"down"}).exit_code, 0);
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

// Tests against one cluster.
class ClusterCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(cluster_, TestCluster::Start());
    checkpoint_ = cluster_->folder() + "/model.safetensors";
    ASSERT_EQ(cluster_->Run({"make-checkpoint", "--out", checkpoint_}).exit_code, 0);
  }

  // The cluster's arrays and definitions.
  std::string Contents() const {
    return cluster_->Run({"ls", "--output=json"}).out +
           cluster_->Run({"catalog", "ls", "--output=json"}).out;
  }

  struct Refused {
    std::string what;
    std::vector<std::string> arguments;
    std::string error;
  };
  // Each fails with its error, and the cluster is as it was.
  void ExpectRefused(const std::vector<Refused>& cases) const {
    const std::string before = Contents();
    for (const Refused& c : cases) {
      SCOPED_TRACE(c.what);
      const CommandResult result = cluster_->Run(c.arguments);
      EXPECT_EQ(result.exit_code, 1);
      EXPECT_THAT(result.err, HasSubstr(c.error));
      EXPECT_THAT(result.out, IsEmpty());
    }
    EXPECT_EQ(Contents(), before);
  }

  std::string Path(const std::string& name) const { return cluster_->folder() + "/" + name; }

  std::unique_ptr<TestCluster> cluster_;
  std::string checkpoint_;
};

TEST_F(ClusterCommandTest, ResolvesAndCorrects) {
  CommandResult result = cluster_->Run({"resolve", "--axes", "__BATCH__,__LENGTH__,__EMBED__",
                                        "--mode", "__train__", "--output=json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["requested"], json::parse(R"([["fsdp","dp"],"sp","tp"])"));

  result = cluster_->Run({"resolve", "--spec", "fsdp,tp", "--shape", "30522,384"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("effective  fsdp,tp"));

  result = cluster_->Run(
      {"resolve", "--spec", "dp+tp,-", "--shape", "30522,384", "--mesh", "dp=4,tp=8"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("30522 is not divisible by 32"));

  const std::string hint =
      "'tpp' dropped, the mesh fsdp=2,tp=2 has no such axis; did you mean "
      "\"tp\"?";
  for (const char* const command : {"resolve", "constrain"}) {
    result = cluster_->Run({command, "--spec", "fsdp,tpp", "--shape", "8,8"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr(hint)) << command;
    result = cluster_->Run({command, "--spec", "fsdp,tpp", "--shape", "8,8", "--strict"});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, HasSubstr(hint)) << command;
  }
  result = cluster_->Run(
      {"resolve", "--spec", "dp,tpp", "--shape", "8,8", "--mesh", "dp=2,tp=4", "--output=json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(json::parse(result.out)["corrections"][0]["text"].get<std::string>(),
              HasSubstr("the mesh dp=2,tp=4 has no such axis; did you mean \"tp\"?"));
}

TEST_F(ClusterCommandTest, NamesThePresetsWhereOneIsUnknown) {
  for (const char* const command : {"resolve", "constrain"}) {
    CommandResult result =
        cluster_->Run({command, "--preset", "AtnQSharding", "--shape", "8,128,16,64"});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, HasSubstr("unknown preset \"AtnQSharding\"; did you mean "
                                      "\"AttnQSharding\"? (UNKNOWN_PRESET)"));
    result = cluster_->Run({command, "--preset", "activationn", "--shape", "8,128,16,64"});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, AllOf(HasSubstr("there are HiddenStateSharding, AttnQSharding, "),
                                  HasSubstr("ExpertActivationsAlt (UNKNOWN_PRESET)")));
  }
}

TEST_F(ClusterCommandTest, ShowsProfilesAndHashes) {
  CommandResult result = cluster_->Run({"profile", "show"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("__HEAD__"), HasSubstr("fingerprint  ")));
  const std::string profile = WriteFile(Path("profile.yaml"), "tensor_parallel_axis: model\n");
  result = cluster_->Run({"profile", "show", "--profile", profile, "--output=json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["fields"]["head_axis"], "'model'");

  result = cluster_->Run({"hash", "", "--output=json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["hash"], "281949768489412648962353822266799178366");
  // As Python prints the values that eformer's hash_fn counts.
  result = cluster_->Run({"hash", "--attributes",
                          R"({"a":1,"b":[1,2.5,"x",null,true],"c":{"k":"v"},"d":"no"})",
                          "--output=json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["text"], "1[1, 2.5, 'x', None, True]{'k': 'v'}");
  EXPECT_EQ(json::parse(result.out)["hash"], "180444392705484764807662449959245547643");
  result = cluster_->Run({"hash", "--attributes", "[1]"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--attributes [1] is no JSON object"));
  result = cluster_->Run({"hash", "x", "--algorithm", "sha257"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("did you mean \"sha256\"?"));
}

TEST_F(ClusterCommandTest, AnswersAboutMeshes) {
  CommandResult result =
      cluster_->Run({"mesh", "show", "dp:-1,tp:4", "--devices", "32", "--output=json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["text"], "dp=8,tp=4");
  result = cluster_->Run({"mesh", "show"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("fsdp"), HasSubstr("4 devices"), HasSubstr("worker-0")));

  result = cluster_->Run({"mesh", "show", "=2", "--exact", "--output=json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["axes"][0]["name"], "");
  EXPECT_EQ(cluster_->Run({"mesh", "show", "=2"}).exit_code, 1) << "an axis without a name";

  result = cluster_->Run({"mesh", "query", "groups", "--mesh", "dp=2,tp=4", "--axes", "tp",
                          "--device", "5", "--output=json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["groups"], json::parse("[[4,5,6,7]]"));
  result = cluster_->Run({"mesh", "query", "present", "--axes", "tp,pp"});
  EXPECT_THAT(result.out, HasSubstr("no: pp missing"));
  result = cluster_->Run({"mesh", "query", "size", "--axes", "pp"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("AXIS_NOT_IN_MESH"));
  result = cluster_->Run({"mesh", "query", "sise", "--axes", "tp"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("did you mean \"size\"?"));

  result = cluster_->Run({"spec", "axes", "(fsdp,dp),-", "tp", "--output=json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["axes"], json::parse(R"(["dp","fsdp","tp"])"));
}

TEST_F(ClusterCommandTest, AnswersAboutLayers) {
  CommandResult result =
      cluster_->Run({"layer", "output", "matmul", "--lhs", "dp,tp", "--rhs", "tp,sp"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "dp,sp\n");
  result = cluster_->Run({"layer", "output", "matmul", "--lhs", "dp,tp"});
  EXPECT_EQ(result.exit_code, 2);
  result = cluster_->Run({"layer", "check", "--method", "all_gather", "--output=json"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("NO_MESH"));
  result = cluster_->Run(
      {"layer", "check", "--method", "all_gather", "--context-mesh", "default", "--output=json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["axis_name"], "tp");
  result = cluster_->Run({"layer", "describe", "--in", "16", "--out", "64,32", "--scale", "fan_in",
                          "--direction", "row", "--output=json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["kernel_shape"], json::parse("[16,96]"));
  EXPECT_EQ(json::parse(result.out)["scale_factor"], 0.25);
  result = cluster_->Run({"layer", "promote", "BF16", "F16"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "F32\n");
}

TEST_F(ClusterCommandTest, MatchesAndPlansFromTheHeaderAlone) {
  CommandResult result = cluster_->Run({"match", checkpoint_, "--rules", kRules});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("104 tensors, all matched"));

  result = cluster_->Run(
      {"plan", checkpoint_, "--rules", kRules, "--mesh", "fsdp=4,tp=8", "--output=json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json plan = json::parse(result.out);
  EXPECT_EQ(plan["tensors"].size(), 104u);
  EXPECT_EQ(plan["summary"]["devices"], 32);
  EXPECT_EQ(plan["summary"]["total_bytes"], 90'856'960);

  result = cluster_->Run({"plan", checkpoint_, "--rules", kRules, "--mesh", "fsdp=1"});
  EXPECT_THAT(result.out, HasSubstr("The one device holds 90.9 MB; "));
}

TEST_F(ClusterCommandTest, PlansATreeOnDevicesThatThereAreNot) {
  const std::string tree = WriteFile(
      Path("tree.json"),
      R"({"layers": {"0": {"w": {"shape": [4096, 4096], "dtype": "BF16"}}}, "b": {"shape": [30]}})");
  const std::string rules =
      WriteFile(Path("rules.yaml"), "rules:\n- {pattern: '.*', spec: [tp]}\n");
  const std::string html = Path("plan.html");
  CommandResult result = cluster_->Run({"plan", "--tree", tree, "--rules", rules, "--mesh",
                                        "dp=2048,tp=32", "--device", "65535", "--html", html});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("Each of the 65536 devices holds 1.05 MB"),
                                HasSubstr("[3968,4096)x[0,4096)"),
                                HasSubstr("fix: pad dimension 0 from 30 to 32")));
  EXPECT_THAT(ReadFile(html), AllOf(HasSubstr("<svg"), HasSubstr("layers.0.w")));

  result = cluster_->Run({"plan", tree, "--rules", rules, "--search", "8", "--axes", "dp,tp=2..4",
                          "--memory", "10MB", "--output=json"});
  ASSERT_EQ(result.exit_code, 1) << "b has no dtype";
  EXPECT_THAT(result.err, HasSubstr("MISSING_ARGUMENT"));
  WriteFile(tree, R"({"w": {"shape": [4096, 4096], "dtype": "BF16"}})");
  result = cluster_->Run({"plan", tree, "--rules", rules, "--search", "8", "--axes", "dp,tp=2..4",
                          "--memory", "10MB", "--output=json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json search = json::parse(result.out);
  EXPECT_EQ(search["evaluated"], 2);
  EXPECT_EQ(search["fitting"], 1);
  EXPECT_EQ(search["meshes"][0]["mesh"]["tp"], 4);
  EXPECT_EQ(cluster_->Run({"plan", tree, "--rules", rules, "--search", "8"}).exit_code, 2);
  EXPECT_EQ(cluster_->Run({"plan", tree, "--mesh", "tp=4"}).exit_code, 2) << "there are no rules";
}

TEST_F(ClusterCommandTest, PlansWhatMovesBetweenLayouts) {
  CommandResult result =
      cluster_->Run({"reshard", "--from", "tp=4:tp", "--to", "-,tp", "--shape", "8,8", "--dtype",
                     "F32", "--device", "2", "--source", "1", "--output=json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json plan = json::parse(result.out);
  EXPECT_EQ(plan["pattern"], "all-to-all");
  EXPECT_EQ(plan["total_needed_bytes"], 192);
  EXPECT_EQ(plan["devices"][0]["regions"].size(), 3u);
  EXPECT_EQ(plan["sent"].size(), 3u);
  result = cluster_->Run(
      {"reshard", "--from", "tp=4:-", "--to", "tp", "--shape", "8", "--partial", "tp"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("reduce-scatter"));
}

TEST_F(ClusterCommandTest, ListsTheLayoutsOfItsArrays) {
  ASSERT_EQ(cluster_->Run({"load", checkpoint_, "--rules", kRules, "--quiet"}).exit_code, 0);
  CommandResult result = cluster_->Run({"shardings", "encoder.layer.0.output", "--output=json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json layouts = json::parse(result.out);
  ASSERT_FALSE(layouts.empty());
  EXPECT_EQ(layouts[0]["mesh"]["fsdp"], 2);
  result = cluster_->Run({"shardings", "encoder.layer.0.output.dense.weight", "--specs"});
  EXPECT_THAT(result.out, HasSubstr("fsdp,tp"));
}

TEST_F(ClusterCommandTest, NamesTheTensorsThatNoRuleMatches) {
  const std::string rules =
      WriteFile(Path("few.yaml"), "rules:\n- {pattern: LayerNorm, spec: []}\n");
  const std::string error = "no rule matches 78 of 104 tensors: embeddings.position_ids, ";
  for (const char* command : {"match", "plan", "load"}) {
    SCOPED_TRACE(command);
    const CommandResult result = cluster_->Run({command, checkpoint_, "--rules", rules});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, AllOf(HasSubstr(error), HasSubstr(" and 73 more; add rules"),
                                  HasSubstr("UNMATCHED_TENSOR")));
    EXPECT_THAT(result.out, command == std::string("match")
                                ? ::testing::Matcher<const std::string&>(HasSubstr("(no rule)"))
                                : IsEmpty());
  }
}

TEST_F(ClusterCommandTest, SaysWhySpecsDiffer) {
  const std::string rules = WriteFile(
      Path("why.yaml"),
      "rules:\n- {pattern: bias, spec: [tp, fsdp]}\n- {pattern: word, spec: [null, null]}\n"
      "- {pattern: '.*', spec: [[tp, xx]]}\n");
  CommandResult result = cluster_->Run({"match", checkpoint_, "--rules", rules});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("the tensor has 1 dimension and the spec 2"));
  result = cluster_->Run({"plan", checkpoint_, "--rules", rules});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("('tp', 'xx') dropped, the mesh fsdp=2,tp=2 has no axis 'xx'"),
                    HasSubstr("nothing was asked for that cuts the tensor")));
}

TEST_F(ClusterCommandTest, FixesThatItPrintsNeedNoCorrection) {
  const CommandResult explained =
      cluster_->Run({"explain", "embeddings.word_embeddings.weight", "--tree", checkpoint_,
                     "--rules", kRules, "--mesh", "dp=4,tp=8", "--strict"});
  EXPECT_EQ(explained.exit_code, 1) << "something was corrected";
  int fixes = 0;
  for (const absl::string_view line : absl::StrSplit(explained.out, '\n')) {
    const size_t spec = line.find(": spec ");
    if (line.find("fix: ") == absl::string_view::npos || spec == absl::string_view::npos) {
      continue;
    }
    const std::string_view request = ToStd(line.substr(spec + 7));
    const size_t shape = request.find(", shape ");
    const CommandResult asked = cluster_->Run(
        {"resolve", "--strict", "--mesh", "dp=4,tp=8", StrCat("--spec=", request.substr(0, shape)),
         StrCat("--shape=",
                shape == std::string_view::npos ? "30522,384" : request.substr(shape + 8))});
    EXPECT_EQ(asked.exit_code, 0) << line << ": " << asked.err;
    ++fixes;
  }
  EXPECT_EQ(fixes, 3) << explained.out;
  const CommandResult plan = cluster_->Run(
      {"plan", checkpoint_, "--rules", kRules, "--mesh", "dp=4,tp=8", "--output=json"});
  const json answer = json::parse(plan.out);
  bool has_fix = false;
  for (const json& tensor : answer["tensors"]) {
    EXPECT_EQ(tensor.contains("fixes"), !tensor["corrections"].empty()) << tensor;
    for (const json& fix : tensor.value("fixes", json::array())) {
      EXPECT_EQ(fix["shape"].size(), tensor["shape"].size()) << tensor;
    }
    if (tensor["name"] == "embeddings.word_embeddings.weight") {
      has_fix = tensor["fixes"][1]["spec"] == json::array({"tp", nullptr}) &&
                tensor["fixes"][1]["shape"] == json::array({30528, 384});
    }
  }
  EXPECT_TRUE(has_fix);
}

TEST_F(ClusterCommandTest, ExplainsUpToAnErrorAndNamesTheMode) {
  const std::string profile = WriteFile(Path("profile.yaml"),
                                        "semantic_axes:\n"
                                        "- {name: __CONV__, value: tp, generation_value: null}\n"
                                        "- {name: __B__, value: __CONV__}\n");
  CommandResult result =
      cluster_->Run({"explain", "q", "--axes", "__B__", "--mode", "insert", "--shape", "8",
                     "--profile", profile, "--mesh", "tp=2,sp=2"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("mode __insert__  __CONV__  None"),
                                HasSubstr("mesh axes        __B__     None")));
  result = cluster_->Run({"explain", "q", "--axes", "__B__,__CONV__", "--shape", "8,8", "--profile",
                          profile, "--mesh", "tp=2,sp=2"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("DUPLICATE_AXIS"));
  EXPECT_THAT(result.out, AllOf(HasSubstr("requested  tp,tp"), HasSubstr("__CONV__  'tp'")));
}

TEST_F(ClusterCommandTest, SaysWhatIsNotCounted) {
  const std::string tree = WriteFile(Path("tree.json"), R"({"a": {"shape": [4]}})");
  const std::string rules =
      WriteFile(Path("rules.yaml"), "rules:\n- {pattern: '.*', spec: [fsdp]}\n");
  CommandResult result = cluster_->Run({"plan", tree, "--rules", rules});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("in no number of bytes: 1 tensor"), Not(HasSubstr("100.0 %"))));
  result = cluster_->Run({"plan", tree, "--rules", rules, "--output=json"});
  EXPECT_EQ(json::parse(result.out)["summary"]["tensors_without_dtype"], 1);
  WriteFile(tree, "{}");
  result = cluster_->Run({"plan", tree, "--rules", rules});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("has no tensors"));
}

TEST_F(ClusterCommandTest, NamesTheOptionThatARefusalIsAbout) {
  ExpectRefused({
      {"an option", {"compare", "a", "b", "--rank", "17", "--mesh", "a=2,b=2"}, "--rank is 17; it"},
      {"an option's text",
       {"tiles", "--spec", "tp", "--shape", "8", "--range", "0:5000"},
       "--range ends at 5000"},
  });
}

TEST_F(ClusterCommandTest, TakesSpecsThatBeginWithADashAndEmptyValues) {
  CommandResult result = cluster_->Run({"compare", "()", "-,-"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("() and -,- are two specs"));
  result = cluster_->Run({"spec", "axes", "-,tp"});
  EXPECT_EQ(result.out, "tp\n") << result.err;
  result = cluster_->Run({"resolve", "--spec", "()", "--shape=", "--mesh", "tp=2"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("tile       scalar"));
}

TEST_F(ClusterCommandTest, TakesMeshesAsTheyAreGiven) {
  const std::string mesh =
      WriteFile(Path("ring.yaml"),
                "axes: [{name: fsdp, size: 2}, {name: tp, size: -1}]\ndevices: [0, 1, 3, 2]\n");
  CommandResult result = cluster_->Run({"mesh", "show", mesh});
  EXPECT_THAT(result.out, HasSubstr("device ids 0,1,3,2")) << result.err;
  result = cluster_->Run({"reshard", "--from", "fsdp=2,tp=2:tp", "--to", mesh + ":tp", "--shape",
                          "8", "--dtype", "float32"});
  EXPECT_THAT(result.out, HasSubstr("pattern      permute")) << result.err;
  result = cluster_->Run({"plan", checkpoint_, "--rules", kRules, "--mesh", "fsdp=-1,tp=8",
                          "--devices", "32", "--summary"});
  EXPECT_THAT(result.out, HasSubstr("Each of the 32 devices")) << result.err;
  result = cluster_->Run({"plan", checkpoint_, "--rules", kRules, "--mesh", "fsdp=4,tp=2,tp=8",
                          "--exact", "--summary"});
  EXPECT_THAT(result.out, HasSubstr("Each of the 32 devices")) << result.err;
}

TEST_F(ClusterCommandTest, FailsWhereNoMeshFits) {
  const std::vector<std::string> search = {"plan",     checkpoint_, "--rules", kRules,
                                           "--search", "8",         "--axes",  "fsdp,tp"};
  std::vector<std::string> arguments = search;
  arguments.insert(arguments.end(), {"--memory", "1KiB"});
  CommandResult result = cluster_->Run(arguments);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("0 of 4 meshes of 8 devices fit in 1KiB per device"));
  EXPECT_THAT(result.err, HasSubstr("none of 4 meshes fits"));
  arguments = search;
  arguments.insert(arguments.end(), {"--rank-by", "corrections,device_bytes", "--output=json"});
  result = cluster_->Run(arguments);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json meshes = json::parse(result.out)["meshes"];
  for (size_t i = 1; i < meshes.size(); ++i) {
    EXPECT_LE(meshes[i - 1]["corrected_tensors"], meshes[i]["corrected_tensors"]);
  }
}

TEST_F(ClusterCommandTest, DoesNotExplainASpecThatIsFilledUpToTheRank) {
  const std::string tree =
      WriteFile(Path("tree.json"), R"({"w": {"shape": [8, 8], "dtype": "F32"}})");
  const std::string rules =
      WriteFile(Path("rules.yaml"), "rules:\n- {pattern: '.*', spec: [fsdp]}\n");
  const CommandResult result = cluster_->Run(
      {"plan", tree, "--rules", rules, "--mesh", "fsdp=2,tp=2", "--html", Path("plan.html")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("fsdp,-"), Not(HasSubstr("nothing was asked"))));
  EXPECT_THAT(ReadFile(Path("plan.html")), Not(HasSubstr("<p class=\"warn\">asked for")));
}

TEST_F(ClusterCommandTest, GivesUpWhenTheDeadlineIsOver) {
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"status", "--deadline=1ns"},
           {"ls", "--deadline=1ns"},
           {"load", checkpoint_, "--rules", kRules, "--deadline=1ns"}}) {
    const CommandResult result = cluster_->Run(command);
    // Where connecting came first the call is late.
    EXPECT_THAT(result.exit_code, AnyOf(3, 1));
    EXPECT_THAT(result.err,
                HasSubstr(result.exit_code == 3 ? std::string("no connection within")
                                                : cluster_->address() + ": Deadline Exceeded"));
  }
}

TEST_F(ClusterCommandTest, NamesAWorkerAsNoCoordinator) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ClusterStatus status,
                                 cluster_->client().GetStatus());
  const std::string address = status.workers.front().addresses.front();
  const CommandResult result = RunShardmesh({"ls", "--address=" + address}, cluster_->folder());
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err,
              HasSubstr(address + " does not know this call: it is no shardmesh coordinator"));
}

TEST_F(ClusterCommandTest, ProbesTellAliveFromReady) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ClusterStatus status,
                                 cluster_->client().GetStatus());
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
  EXPECT_EQ(probe({"ready", "--wait", "--deadline=500ms"}, worker).exit_code, 1);
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
  EXPECT_THAT(log, AllOf(HasSubstr("cannot attach, will retry"), HasSubstr("worker-0"),
                         HasSubstr("retry_in=")));
  EXPECT_THAT(client::SendSignal(second.id(), SIGKILL), IsOk());
  EXPECT_TRUE(client::WaitUntilGone(second.id(), deadline));
}

TEST_F(ClusterCommandTest, LoadsGetsAndComputes) {
  CommandResult result = cluster_->Run({"load", checkpoint_, "--rules", kRules, "--mesh", "tp=2"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("there is \"default\" fsdp=2,tp=2"));
  result = cluster_->Run({"load", checkpoint_, "--rules", kRules, "--quiet"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("Loaded 104 tensors"));
  EXPECT_THAT(result.err, IsEmpty());
  const std::string layer = "encoder.layer.0.";
  result = cluster_->Run({"ls", layer, "--output=json"});
  EXPECT_EQ(json::parse(result.out).size(), 16u);

  ASSERT_EQ(cluster_->Run({"make-tensor", "--shape", "128,384", "--out", Path("x.npy")}).exit_code,
            0);
  result = cluster_->Run(
      {"linear", "--input", Path("x.npy"), "--weight", layer + "intermediate.dense.weight",
       "--bias", layer + "intermediate.dense.bias", "--activation", "gelu", "--as", "hidden"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("named hidden (in memory)"));
  result = cluster_->Run({"linear", "--input", "hidden", "--weight", layer + "output.dense.weight",
                          "--bias", layer + "output.dense.bias", "--out", Path("y.npy"),
                          "--output=json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["shape"], json({128, 384}));
  EXPECT_TRUE(std::filesystem::exists(Path("y.npy")));

  EXPECT_EQ(cluster_->Run({"rm", "hidden"}).exit_code, 0);
  result = cluster_->Run({"describe", layer + "output.dense.weight"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("[0,192)x[0,768)"));
  const std::string typo = WriteFile(Path("typo.yaml"), "rules:\n- {pattern: '.*', spec: [tpp]}\n");
  ExpectRefused(
      {{"a name that does not exist", {"get", "hidden", "--out", Path("h.npy")}, "hidden"},
       {"a name that does not exist", {"rm", "hidden"}, "hidden"},
       {"a name that does not exist beside one that does",
        {"rm", layer + "output.dense.weight", "hidden"},
        "hidden"},
       {"an axis that the mesh does not have",
        {"load", checkpoint_, "--rules", typo, "--quiet", "--strict"},
        "tpp"},
       {"a name that nearly exists",
        {"describe", "embeddings.word_embedings.weight"},
        "did you mean \"embeddings.word_embeddings.weight\"?"},
       {"no name", {"get", "", "--out", Path("h.npy")}, "no array is named"},
       {"shapes that do not multiply",
        {"matmul", layer + "output.dense.weight", layer + "output.dense.weight"},
        "SHAPE_MISMATCH"}});
  EXPECT_FALSE(std::filesystem::exists(Path("h.npy")));
  result = cluster_->Run({"load", checkpoint_, "--rules", typo, "--quiet"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("of 104 tensors were corrected to fit"));
}

TEST_F(ClusterCommandTest, ExchangesTiles) {
  ASSERT_EQ(cluster_->Run({"make-tensor", "--shape", "8,4", "--out", Path("a.npy")}).exit_code, 0);
  const auto collective = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "collective");
    return cluster_->Run(std::move(arguments));
  };
  const auto expect = [&](std::vector<std::string> arguments, const std::string& spec) {
    const CommandResult result = collective(std::move(arguments));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("spec " + spec));
  };
  expect({"scatter", Path("a.npy"), "--axes", "fsdp,tp", "--root", "3", "--as", "rows"},
         "(fsdp,tp),-, named rows");
  expect({"all-to-all", "rows", "--axes", "tp", "--split-dimension", "1"}, "fsdp,tp");
  expect({"all-gather", "rows", "--axes", "tp", "--algorithm", "ring"}, "fsdp,-");
  expect({"permute", "rows", "--axes", "fsdp,tp", "--pairs", "0:1,1:2"}, "(fsdp,tp),-");
  expect({"send", "rows", "--axes", "tp", "--from", "1", "--to", "0"}, "(fsdp,tp),-");
  expect({"reduce", "rows", "--axes", "tp", "--root=1", "--algorithm", "binomial"},
         "fsdp,- unreduced tp");
  expect({"all-reduce", "rows", "--axes", "tp", "--order", "fastest", "--algorithm", "ring"},
         "fsdp,-");
  expect({"barrier", "rows", "--axes", "tp"}, "(fsdp,tp),-");
  expect({"scatter", Path("a.npy"), "--axes", "fsdp,tp", "--counts", "1,2,4,1", "--as", "uneven"},
         "(fsdp,tp),-, named uneven");
  EXPECT_THAT(cluster_->Run({"describe", "uneven"}).out, HasSubstr("[3,7)x[0,4)"));
  ASSERT_EQ(cluster_->Run({"get", "uneven", "--out", Path("b.npy")}).exit_code, 0);
  EXPECT_EQ(ReadFile(Path("a.npy")), ReadFile(Path("b.npy")));

  ExpectRefused(
      {{"a root that is no place",
        {"collective", "broadcast", "rows", "--axes", "tp", "--root", "2"},
        "root 2 is no place of a group; it has the places 0 to 1"},
       {"an algorithm that the kind does not have",
        {"collective", "gather", "rows", "--axes", "tp", "--algorithm", "chain"},
        "gather has no algorithm \"chain\"; those that fit: pairwise"},
       {"no pairs", {"collective", "permute", "rows", "--axes", "tp"}, "no pairs of places"},
       {"an axis that the mesh does not have",
        {"collective", "all-reduce", "rows", "--axes", "tpp"},
        "axis 'tpp' is not in the mesh fsdp=2,tp=2; did you mean \"tp\"?"},
       {"an array that there is not",
        {"collective", "all-reduce", "rosw", "--axes", "tp"},
        "no array is named \"rosw\"; did you mean \"rows\"?"},
       {"a file in a folder that there is not",
        {"collective", "all-reduce", "rows", "--axes", "tp", "--as", "unmade", "--out",
         Path("none/a.npy")},
        "cannot create " + Path("none/a.npy") + ": No such file"},
       {"a result that was not computed", {"describe", "unmade"}, "no array is named \"unmade\""},
       {"counts that do not add up",
        {"collective", "scatter", Path("a.npy"), "--axes", "tp", "--counts", "4,5"},
        "counts 4,5 do not add up to the 8 elements that dimension 0 of a tile has"},
       {"tiles of unequal size",
        {"collective", "all-reduce", "uneven", "--axes", "tp"},
        "dimension 0 is cut at 0,1,3,7,8"}});
  const std::pair<std::vector<std::string>, std::string> wrong[] = {
      {{"permute", "rows", "--axes", "tp", "--pairs", "0-1"}, "is no pair of places, as in"},
      {{"send", "rows", "--axes", "tp", "--from", "1"}, "--to"},
      {{"send", "rows", "--axes", "tp", "--from=1", "--to=0", "--pairs", "0:1"}, "--pairs"},
      {{"broadcst", "rows", "--axes", "tp"}, "shardmesh: kind: \"broadcst\" is none of"},
      {{"broadcst", "rows", "--axes", "tp"}, "did you mean \"broadcast\"?"},
      {{"scatter", "rows", "--axes", "tp", "--counts", "4,x"}, "--counts"},
      {{"all-reduce", "rows", "--axes", "tp", "--order", "slowest"}, "reproducible, fastest"},
  };
  for (const auto& [arguments, error] : wrong) {
    const CommandResult result = collective(arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(error));
  }
  EXPECT_EQ(cluster_->Run({"rm", "rows"}).exit_code, 0);
  EXPECT_EQ(cluster_->Run({"rm", "uneven"}).exit_code, 0);
}

TEST_F(ClusterCommandTest, KeepsDefinitions) {
  CommandResult result = cluster_->Run({"catalog", "put", "rules", "bert", kRules});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  result = cluster_->Run({"catalog", "put", "rules", "bert", kRules});
  EXPECT_THAT(result.out, HasSubstr("version 2"));
  EXPECT_EQ(cluster_->Run({"match", checkpoint_, "--rules", "bert"}).exit_code, 0);
  EXPECT_THAT(cluster_->Run({"catalog", "get", "rules", "bert"}).out, HasSubstr("word_embeddings"));
  EXPECT_EQ(cluster_->Run({"catalog", "rm", "rules", "bert"}).exit_code, 0);
  EXPECT_EQ(cluster_->Run({"catalog", "get", "rules", "bert"}).exit_code, 1);
}

TEST_F(ClusterCommandTest, ReadsAndUsesOlderVersionsOfDefinitions) {
  const auto put = [&](const std::string& kind, const std::string& name, const std::string& file,
                       const std::string& text) {
    const CommandResult result =
        cluster_->Run({"catalog", "put", kind, name, WriteFile(Path(file), text)});
    ASSERT_EQ(result.exit_code, 0) << result.err;
  };
  const std::string tree =
      WriteFile(Path("tree.json"), R"({"w": {"shape": [8, 8], "dtype": "F32"}})");
  put("rules", "r1", "r.yaml", "rules:\n- {pattern: 'first', spec: [tp]}\n");
  put("rules", "r1", "r.yaml", "rules:\n- {pattern: 'w', spec: [tp]}\n");
  put("rules", "r1", "r.yaml", "rules:\n- {pattern: 'w', spec: [fsdp, tp]}\n");
  put("tree", "t1", "t.json", R"({"w": {"shape": [8, 8], "dtype": "F32"}})");
  put("tree", "t1", "t.json", R"({"w": {"shape": [4], "dtype": "F32"}})");
  put("mesh", "m1", "m.yaml", "axes: [{name: tp, size: 2}]\n");
  put("mesh", "m1", "m.yaml", "axes: [{name: fsdp, size: 2}, {name: tp, size: 4}]\n");

  CommandResult result = cluster_->Run({"catalog", "get", "rules", "r1@1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("rules r1, version 1"), HasSubstr("first")));
  EXPECT_THAT(cluster_->Run({"catalog", "get", "rules", "r1@4"}).err,
              HasSubstr("version 4 of the rule_set \"r1\" is still to come; kept are versions 1 to "
                        "3 (NOT_FOUND)"));
  result = cluster_->Run({"catalog", "history", "rules", "r1"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("version  made"), HasSubstr("Z  ")));
  const json history =
      json::parse(cluster_->Run({"catalog", "history", "rules", "r1", "--output=json"}).out);
  ASSERT_EQ(history.size(), 3u);
  EXPECT_EQ(history[0]["version"], 3);
  EXPECT_EQ(history[2]["version"], 1);
  EXPECT_GT(history[0]["revision"], history[2]["revision"]);
  EXPECT_GT(history[2]["size_bytes"], 0);
  EXPECT_GE(history[0]["update_time"], history[2]["update_time"]);
  EXPECT_EQ(cluster_->Run({"catalog", "history", "rules", "none"}).exit_code, 1);

  result = cluster_->Run({"rules", "diff", "r1@2", "r1@3", "--tree", tree, "--output=json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["changes"].size(), 1u) << result.out;
  result = cluster_->Run({"rules", "diff", "r1@3", "r1", "--tree", tree, "--output=json"});
  EXPECT_EQ(json::parse(result.out)["changes"].size(), 0u) << result.out;
  EXPECT_THAT(cluster_->Run({"rules", "diff", "r1@x", "r1", "--tree", tree}).err,
              HasSubstr("'r1@x' names no version"));
  result = cluster_->Run({"plan", "--stored-tree", "t1@1", "--rules", "r1@2", "--mesh", "m1@1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("8x8"));
  EXPECT_THAT(cluster_->Run({"mesh", "show", "m1@1"}).out, Not(HasSubstr("fsdp")));
  EXPECT_THAT(cluster_->Run({"load", checkpoint_, "--rules", kRules, "--mesh", "default@1"}).err,
              HasSubstr("arrays lie on a mesh as it is now"));

  EXPECT_THAT(cluster_->Run({"catalog", "put", "rules", "r1", kRules, "--version", "2"}).err,
              HasSubstr("VERSION_MISMATCH"));
  for (const auto& [kind, name] :
       std::map<std::string, std::string>{{"rules", "r1"}, {"tree", "t1"}, {"mesh", "m1"}}) {
    EXPECT_EQ(cluster_->Run({"catalog", "rm", kind, name}).exit_code, 0);
    EXPECT_EQ(cluster_->Run({"catalog", "get", kind, name + "@1"}).exit_code, 1);
  }
}

TEST_F(ClusterCommandTest, TimesCollectivesAndChecksTheirResults) {
  const CommandResult result =
      cluster_->Run({"bench", "collectives", "--sizes", "100000", "--calls", "5", "--algorithms",
                     "auto,ring", "--output", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::map<std::string, int> rows;  // by op
  for (const json& row : json::parse(result.out)) {
    SCOPED_TRACE(row.dump());
    ++rows[row["op"]];
    EXPECT_EQ(row["system"], "shardmesh");
    EXPECT_EQ(row["calls"], 5);
    EXPECT_EQ(row["right"], true);
    EXPECT_GT(row["p50_us"], 0);
    EXPECT_GE(row["p99_us"], row["p50_us"]);
    EXPECT_NE(row["algorithm"], "auto");
  }
  const std::map<std::string, int> expected = {{"all-reduce", 2},     {"all-gather", 2},
                                               {"reduce-scatter", 2}, {"all-to-all", 1},
                                               {"broadcast", 1},      {"barrier", 1}};
  EXPECT_EQ(rows, expected);
  EXPECT_THAT(cluster_->Run({"ls"}).out, Not(HasSubstr("array-")));

  const CommandResult table = cluster_->Run(
      {"bench", "collectives", "--ops", "all-reduce", "--sizes", "1KiB", "--calls", "5"});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("alg/s"), HasSubstr("bus/s"), HasSubstr("right")));
  const CommandResult unknown = cluster_->Run({"bench", "collectives", "--mesh", "nope"});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(unknown.err, HasSubstr("there is no mesh named \"nope\""));
  EXPECT_THAT(cluster_->Run({"bench", "collectives", "--axes", "dpp"}).err, HasSubstr("dpp"));
}

TEST_F(ClusterCommandTest, LooksThroughRules) {
  CommandResult result = cluster_->Run({"rules", "lint", kRules, "--tree", checkpoint_, "--mesh",
                                        "fsdp=2,tp=2", "--mesh", "fsdp=4,tp=64"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("104 tensors on 2 meshes"));
  result = cluster_->Run({"rules", "lint", kRules, "--tree", checkpoint_, "--mesh", "fsdp=4,tp=64",
                          "--strict", "--output=json"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_GT(json::parse(result.out)["counts"]["CORRECTED"], 0);

  const std::string bad =
      WriteFile(Path("bad.yaml"),
                "rules:\n- {pattern: 'a(?=b)', spec: []}\n- {pattern: nosuch, spec: []}\n"
                "- {pattern: '.*', spec: []}\n");
  result = cluster_->Run({"rules", "lint", bad, "--tree", checkpoint_});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("BAD_PATTERN"), HasSubstr("DEAD")));
  EXPECT_THAT(result.err, HasSubstr("the rules have 2 findings beside corrections"));
  EXPECT_THAT(result.out, Not(HasSubstr("scalar")));
}

TEST_F(ClusterCommandTest, TellsGivenTreesAndTheirScalarsApart) {
  const std::string rules =
      WriteFile(Path("two.yaml"), "rules:\n- {pattern: 'w\\d+$', spec: [tp]}\n");
  const std::string a = WriteFile(
      Path("a.json"), R"({"w1": {"shape": [8]}, "step": {"shape": []}, "v": {"shape": [8]}})");
  const std::string b = WriteFile(Path("b.json"), R"({"w1": {"shape": [8]}})");
  CommandResult result = cluster_->Run({"rules", "lint", rules, "--tree", a, "--tree", b});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("no rule matches 'v' (in tree '" + a + "')"),
                                HasSubstr("4 tensors of 2 trees on "),
                                HasSubstr("1 scalar of these left out")));
  result = cluster_->Run({"rules", "lint", rules, "--tree", a, "--tree", b, "--output=json"});
  const json answer = json::parse(result.out);
  EXPECT_EQ(answer["scalars"], 1);
  EXPECT_EQ(answer["trees"][0]["name"], a);
  EXPECT_EQ(answer["trees"][0]["scalars"], 1);
  EXPECT_EQ(answer["trees"][1]["name"], b);
  EXPECT_EQ(answer["trees"][1]["unmatched_tensors"], 0);
  EXPECT_EQ(cluster_->Run({"rules", "lint", rules, "--tree", a, "--tree", a}).exit_code, 2);
  result = cluster_->Run({"rules", "lint", rules, "--tree", b, "--mesh", "dp=2", "--strict"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr(R"(rule 0 'w\d+$')")) << "as it was written";
}

TEST_F(ClusterCommandTest, SaysOfADescriptionThatThereIsNothingToLoad) {
  for (const auto& [name, text] : std::vector<std::pair<std::string, std::string>>{
           {"t.json", R"({"w": {"shape": [8]}, "v": {"shape": [8]}})"},
           {"t.jsonl", "{\"name\": \"w\", \"shape\": [8]}\n{\"name\": \"v\", \"shape\": [8]}\n"}}) {
    const std::string path = WriteFile(Path(name), text);
    const CommandResult result = cluster_->Run({"load", path, "--rules", kRules});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err,
                AllOf(HasSubstr(name + ": describes a tree, 2 tensors"),
                      HasSubstr("`shardmesh plan " + path + "`"), HasSubstr("(BAD_FILE)")));
  }
  const std::string broken = WriteFile(Path("broken.json"), "{\"a\": ");
  EXPECT_THAT(cluster_->Run({"load", broken, "--rules", kRules}).err,
              Not(HasSubstr("describes a tree")));
  EXPECT_THAT(cluster_->Run({"plan", broken, "--rules", kRules}).err,
              HasSubstr("expected '[', '{', or a literal"));
}

TEST_F(ClusterCommandTest, KeepsTreesAndLooksThroughRulesOverThem) {
  const std::string rules =
      WriteFile(Path("fleet.yaml"),
                "rules:\n- {pattern: 'gate', spec: [tp]}\n- {pattern: 'word', spec: [tp]}\n"
                "- {pattern: '.*', spec: []}\n");
  // Nothing is loaded or stored.
  CommandResult result = cluster_->Run({"rules", "lint", rules});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("there is nothing to look at"));

  result = cluster_->Run({"catalog", "put", "tree", "bert", checkpoint_});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("Put tree bert, version 1"));
  const std::string moe = WriteFile(Path("moe.json"),
                                    R"({"z.gate": {"shape": [8, 8], "dtype": "BF16"},
          "a.word": {"shape": [8], "axes": ["__EMBED__"]},
          "norm": {"shape": [4], "dtype": "F32", "spec": [["fsdp", "tp"]]}, "shape": {"shape": []}})");
  ASSERT_EQ(cluster_->Run({"catalog", "put", "tree", "moe", moe}).exit_code, 0);
  EXPECT_THAT(cluster_->Run({"catalog", "ls", "tree"}).out,
              AllOf(HasSubstr("104 tensors, "), HasSubstr("4 tensors, 77 parameters, 144 B")));
  EXPECT_THAT(cluster_->Run({"catalog", "get", "tree", "moe"}).out,
              AllOf(HasSubstr("z.gate"), HasSubstr("axes __EMBED__"), HasSubstr("spec (fsdp,tp)")));

  // What is shown as JSON is a tree file that says the same.
  const std::string shown = cluster_->Run({"catalog", "get", "tree", "moe", "--output=json"}).out;
  const std::string copy = WriteFile(Path("copy.json"), shown);
  ASSERT_EQ(cluster_->Run({"catalog", "put", "tree", "copy", copy}).exit_code, 0);
  EXPECT_EQ(cluster_->Run({"catalog", "get", "tree", "copy", "--output=json"}).out, shown);
  ASSERT_EQ(cluster_->Run({"catalog", "rm", "tree", "copy"}).exit_code, 0);

  // Every rule has a tree in which it decides something.
  result = cluster_->Run({"rules", "lint", rules, "--mesh", "fsdp=2,tp=2"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("107 tensors of 2 trees on 1 mesh"));
  result = cluster_->Run({"rules", "lint", rules, "--stored-tree", "bert", "--output=json"});
  EXPECT_EQ(result.exit_code, 1);
  const json lint = json::parse(result.out);
  EXPECT_EQ(lint["counts"]["DEAD"], 1) << "bert has no gate";
  EXPECT_EQ(lint["trees"][0]["name"], "bert");
  EXPECT_EQ(lint["trees"][0]["dead_rules"], 1);

  // A question that names the tree is answered as one with its file.
  for (const std::vector<std::string>& question : std::vector<std::vector<std::string>>{
           {"plan", "--rules", kRules, "--summary"},
           {"plan", "--rules", kRules, "--search", "4", "--axes", "fsdp,tp"},
           {"rules", "diff", kRules, rules}}) {
    std::vector<std::string> of_file = question;
    of_file.insert(of_file.end(), {"--tree", checkpoint_});
    std::vector<std::string> stored = question;
    stored.insert(stored.end(), {"--stored-tree", "bert"});
    result = cluster_->Run(stored);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, cluster_->Run(of_file).out);
    stored.insert(stored.end(), {"--tree", checkpoint_});
    EXPECT_EQ(cluster_->Run(stored).exit_code, 2) << "two trees";
  }
  EXPECT_EQ(cluster_->Run({"match", "--stored-tree", "bert", "--rules", kRules}).out,
            cluster_->Run({"match", checkpoint_, "--rules", kRules}).out);
  result = cluster_->Run({"rules", "diff", kRules, rules, "--stored-tree", "brt"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("\"bert\""));
  EXPECT_EQ(cluster_->Run({"match", "--rules", kRules}).exit_code, 2) << "no tree";
}

TEST_F(ClusterCommandTest, ComparesRulesWithinABudget) {
  const std::string none =
      WriteFile(Path("replicate.yaml"), "rules:\n- {pattern: '.*', spec: []}\n");
  const std::vector<std::string> diff = {"rules",  "diff",      kRules,   none,
                                         "--tree", checkpoint_, "--mesh", "fsdp=2,tp=2"};
  const auto within = [&](const std::string& option, const std::string& value) {
    std::vector<std::string> command = diff;
    command.insert(command.end(), {option, value});
    return cluster_->Run(command);
  };
  CommandResult result = cluster_->Run(diff);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("tp,fsdp"), HasSubstr(" of 104 tensors differ")));
  EXPECT_EQ(within("--max-increase", "500%").exit_code, 0);
  EXPECT_EQ(within("--max-bytes", "100MB").exit_code, 0);
  result = within("--max-increase", "5%");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("over budget: a device holds 90856960 bytes instead of "));
  EXPECT_EQ(within("--max-increase", "1MiB").exit_code, 1);
  EXPECT_EQ(within("--max-bytes", "80MB").exit_code, 1);
  EXPECT_EQ(within("--max-increase", "some").exit_code, 2);
  EXPECT_EQ(cluster_->Run({"rules", "diff", kRules, kRules, "--tree", checkpoint_}).exit_code, 0);
}

TEST_F(ClusterCommandTest, RewritesRulesThatExcludeNames) {
  const std::string excluding = WriteFile(
      Path("excluding.yaml"),
      "rules:\n- {pattern: '^(?!.*bias).*weight$', spec: [tp]}\n- {pattern: '.*', spec: []}\n");
  CommandResult result = cluster_->Run({"match", checkpoint_, "--rules", excluding});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("excluding.yaml:2:13"), HasSubstr("rules rewrite FILE"),
                                HasSubstr("UNSUPPORTED_PATTERN")));
  result = cluster_->Run({"rules", "rewrite", excluding});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string rewritten = WriteFile(Path("rewritten.yaml"), result.out);
  EXPECT_EQ(cluster_->Run({"match", checkpoint_, "--rules", rewritten}).exit_code, 0);
  result = cluster_->Run({"rules", "rewrite", kRules});
  EXPECT_THAT(result.err, HasSubstr("No rule excludes names"));

  result = cluster_->Run({"rules", "from-text", "word|bias->tp.fsdp,LayerNorm->"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string from_text = WriteFile(Path("text.yaml"), result.out);
  EXPECT_EQ(cluster_->Run({"match", checkpoint_, "--rules", from_text}).exit_code, 0);
  result = cluster_->Run({"rules", "from-text", "word|bias->tp.fsdp", "--tensor", "a.bias"});
  EXPECT_EQ(result.out, "tp,fsdp\n");
  result = cluster_->Run({"rules", "test", "ker(nel|n)$", "a.kernel", "a.bias"});
  EXPECT_THAT(result.out, AllOf(HasSubstr("a.kernel  yes"), HasSubstr("a.bias    no")));
}

TEST_F(ClusterCommandTest, ResolvesLogicalNames) {
  const std::string rules = WriteFile(Path("logical.yaml"),
                                      "rules:\n- {name: batch, axes: fsdp}\n"
                                      "- {name: embed, axes: fsdp}\n- {name: embed, axes: tp}\n");
  CommandResult result =
      cluster_->Run({"logical", "resolve", "--names", "batch,length,embed", "--rules", rules});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("spec    fsdp,length,tp"));
  result = cluster_->Run({"logical", "resolve", "--names", "batch,-,embed", "--rules", rules,
                          "--linen", "--output=json"});
  EXPECT_EQ(json::parse(result.out)["spec"], json::parse(R"(["fsdp",null,"tp"])"));
  result = cluster_->Run({"logical", "resolve", "--names", "length", "--rules", rules, "--linen",
                          "--fallback", "raise_error"});
  EXPECT_EQ(result.exit_code, 1);
  result = cluster_->Run(
      {"logical", "resolve", "--names", "embed", "--rules", rules, "--mesh", "tp=2:explicit"});
  EXPECT_THAT(result.out, HasSubstr("action  reshard"));
  result = cluster_->Run({"logical", "compose", rules, rules});
  EXPECT_EQ(result.exit_code, 1) << "it disagrees with itself about embed";
  EXPECT_EQ(cluster_->Run({"catalog", "put", "logical", "few", rules}).exit_code, 0);
  result = cluster_->Run({"logical", "compose", "few", WriteFile(Path("none.yaml"), "rules: []")});
  EXPECT_THAT(result.out, HasSubstr("batch"));
}

TEST_F(ClusterCommandTest, RefusesCheckpointsThatAreNotWhole) {
  const std::string tensor = R"("a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]})";
  const auto file = [this](const std::string& name, const std::string& text) {
    return std::vector<std::string>{"load", WriteFile(Path(name), text), "--rules", kRules};
  };
  ExpectRefused({
      {"missing", {"load", Path("nowhere.safetensors"), "--rules", kRules}, "nowhere.safetensors"},
      {"cut off", file("cut", Safetensors("{" + tensor + "}", 15)), "BAD_FILE"},
      {"overlapping",
       file("overlap",
            Safetensors("{" + tensor + R"(,"b":{"dtype":"F32","shape":[4],"data_offsets":[8,24]}})",
                        24)),
       "BAD_FILE"},
      {"out of bounds",
       file("beyond",
            Safetensors(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[16,32]}})", 16)),
       "BAD_FILE"},
      {"header longer than the file", file("long", Safetensors("{" + tensor + "}", 16, 1 << 20)),
       "BAD_FILE"},
      {"header over the limit", file("huge", Safetensors("{}", 0, int64_t{1} << 40)), "BAD_FILE"},
      {"not UTF-8",
       file("latin", Safetensors("{\"\xE4\":{\"dtype\":\"F32\",\"shape\":[4],"
                                 "\"data_offsets\":[0,16]}}",
                                 16)),
       "BAD_FILE"},
      {"unknown dtype",
       file("dtype", Safetensors(R"({"a":{"dtype":"F31","shape":[4],"data_offsets":[0,16]}})", 16)),
       "UNKNOWN_DTYPE"},
  });
}

TEST_F(ClusterCommandTest, RefusesRulesAndAxesThatDoNotFit) {
  const auto rules = [this](const std::string& name, const std::string& text) {
    return std::vector<std::string>{"load", checkpoint_, "--rules",
                                    WriteFile(Path(name), "rules:\n" + text)};
  };
  ExpectRefused({
      {"bad pattern", rules("bad.yaml", "- {pattern: 'a(', spec: []}\n"), "BAD_PATTERN"},
      {"unmatched tensor", rules("few.yaml", "- {pattern: LayerNorm, spec: []}\n"),
       "UNMATCHED_TENSOR"},
      {"an axis twice after correction", rules("twice.yaml", "- {pattern: '.*', spec: [tp, tp]}\n"),
       "DUPLICATE_AXIS"},
      {"unknown logical axis", {"resolve", "--axes", "__BATHC__"}, "__BATCH__"},
      {"unknown rules", {"match", checkpoint_, "--rules", "none-such"}, "none-such"},
      {"a mesh that nearly exists",
       {"plan", checkpoint_, "--rules", kRules, "--mesh", "defualt"},
       "did you mean \"default\"?"},
      {"a mesh with an axis twice",
       {"catalog", "put", "mesh", "twice",
        WriteFile(Path("mesh.yaml"), "axes: [{name: tp, size: 2}, {name: tp, size: 2}]\n")},
       "tp"},
  });
}

TEST_F(ClusterCommandTest, ReportsRefusalsAsJson) {
  const CommandResult result = cluster_->Run({"resolve", "--axes", "__BATHC__", "--output=json"});
  EXPECT_EQ(result.exit_code, 1);
  const json error = json::parse(result.err)["error"];
  EXPECT_EQ(error["code"], "INVALID_ARGUMENT");
  EXPECT_EQ(error["reason"], "UNKNOWN_AXIS");
  EXPECT_EQ(error["details"]["python_type"], "ValueError");
}

TEST_F(ClusterCommandTest, RefusesATileWithoutAToken) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ClusterStatus status,
                                 cluster_->client().GetStatus());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const auto worker, client::WorkerClient::Connect(
                             status.workers.front().identity, status.workers.front().addresses,
                             rpc::Credentials::Insecure(), absl::Now() + absl::Seconds(5)));
  const std::string bytes(16, 'x');
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const TensorView view,
                                 TensorView::Create(Dtype::kF32, {4}, bytes));
  client::OutgoingTile tile{
      .token = "", .array_id = "anything", .rank = 0, .tile = Tile::Whole({4}), .tensor = view};
  client::Cancellation cancellation;
  const std::string before = Contents();
  EXPECT_THAT(
      worker->PutTiles(
          {&tile, 1}, [](int64_t) {}, &cancellation, rpc::CallOptions::Within(absl::Seconds(5))),
      StatusIs(absl::StatusCode::kUnauthenticated, Reason::kBadToken));
  EXPECT_EQ(Contents(), before);
}

}  // namespace
}  // namespace shardmesh::test
