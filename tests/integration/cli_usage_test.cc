// How commands refuse wrong use, and how they report errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "status/str_cat.h"
#include "tests/integration/cli_fixture.h"
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
       "a command is missing: snapshot, check, sessions, watch, quarantine, worker, cache "
       "(see `shardmesh admin --help`)"},
      {{"admin", "quarantine"},
       "a command is missing: list, restore, drop (see `shardmesh admin quarantine --help`)"},
      {{"admin", "--address=x:1"},
       "a command is missing: snapshot, check, sessions, watch, quarantine, worker, cache "
       "(see `shardmesh admin --help`)"},
      {{"--adress", "x:1", "status"}, "unknown option --adress; did you mean \"--address\"?"},
      {{"--spec", "tp", "resolve", "--shape", "8"},
       "option --spec stands before its command; write it after `shardmesh resolve` (see `"},
      {{"resolve", "--spec", "tp", "--spec=-", "--shape", "8"}, "--spec is given more than once ("},
      {{"--output", "table", "status", "-o", "wide"}, "--output is given more than once"},
      {{"describe", "--", "a", "--address"}, "unknown option --address (see"},
      {{"get", "wq", "--out", "x", "--version", "3"},
       "unknown option --version; NAME@VERSION names a version (see `shardmesh get --help`)"},
      {{"describe", "--", "@"}, "\"@\" is no NAME@VERSION"},
      {{"describe", "--", "a", "-b"}, "unknown option -b"},
      {{"\x1b[31mlist"}, "unknown command \"\\x1b[31mlist\""},
      {{"\u009b31mlist"}, "unknown command \"\\u009b31mlist\""},
      {{"admin", "snapshot", ""}, "FILE is empty; name the file that gets the snapshot (see `"},
      {{"get", "wq@0", "--out", "x"}, "\"wq@0\" is no NAME@VERSION"},
      {{"get", "a@b", "--out", "x"}, "; if a@b is the name, write a@b@VERSION (see `"},
      {{"ls", "a", "--unnamed"}, "give PREFIX or --unnamed, not both (see `shardmesh ls --help`)"},
      {{"matmul", "a", "b", "--as", "c", "--plan-only"}, "give --as or --plan-only, not both (see"},
      {{"collective", "all-to-all", "a", "--axes", "tp"},
       "--dimension and --split-dimension are both 0; all-to-all joins one dimension and "
       "partitions another: give another --split-dimension (see"},
      {{"plan", "t.json", "--search", "8", "--axes", "dp", "--memory", "24G"},
       "--memory: \"24G\" is not a number of bytes such as 1024, 64KiB, 4GiB or 24GB (see"},
      {{"plan", "t.json", "--search", "8", "--axes", "dp", "--memory", "24%"},
       "is no number of bytes such as 1024, 64KiB, 4GiB or 24GB (see"},
      {{"plan", "t.json", "--search", "8"}, "name them with --axes dp,fsdp,tp (see"},
      {{"plan", "t.json", "--search", "8", "--mesh", "tp=2"},
       "--search tries meshes of some axes: name them with --axes dp,fsdp,tp, and leave out "
       "--mesh, --devices, --html, --device, --strict, --summary and --exact, which apply to a "
       "given mesh (see"},
      {{"plan", "t.json", "--search", "8", "--axes", "dp", "--mesh", "tp=2"},
       "--search tries meshes of some axes: leave out --mesh, --devices, --html"},
      {{"version", "-o", "name"}, "--output name: this command lists no names; these do: "},
      {{"down", "--watch"}, "--watch: this command cannot be repeated; these can: "},
      {{"status", "--context=a", "--address=x:1"}, "--context and --address both name a cluster"},
      {{"status", "--adress", "x:1"}, "unknown option --adress; did you mean \"--address\"?"},
      {{"status", "more"}, "unexpected argument \"more\" (see"},
      {{"reshard", "w", "tp,-"}, "unexpected argument \"tp,-\"; write --to tp,- (see"},
      {{"reshard", "w", "-,tp"}, "; write --to -,tp (see"},
      {{"get", "w", "z.npy"}, "--out is required; \"z.npy\" looks like a file: write --out z.npy"},
      {{"linear", "--input", "a", "--weight", "b", "--scale", "two"},
       "--scale: \"two\" is not a number, such as 0.125, and neither fan_in nor fan_out"},
      {{"mesh", "resize", "fsdp=2,tp=1", "default"},
       "the name of the mesh comes first: write `shardmesh mesh resize default fsdp=2,tp=1`"},
      {{"status", "--deadline", "soon"}, "\"soon\" is no time above zero"},
      {{"status", "--deadline", "5"}, "\"5\" is no time above zero with its unit; write 30s"},
      {{"status", "--output", "xml"}, "--output"},
      {{"up", "--workers", "x"}, "--workers: \"x\" is no number from 1 to 1024"},
      {{"up", "--mesh", "fsdp=2,tp=2", "--workers", "3"}, "--mesh fsdp=2,tp=2 with --workers 3"},
      {{"up", "--mesh", "tp=2,tp=2"}, "tp"},
      {{"up", "--mesh", "fsdp"}, "--mesh fsdp"},
      {{"up", "--mesh", ""}, "--mesh: is empty; give axes such as fsdp=2,tp=2"},
      {{"up", "--data-dir="}, "--data-dir: is empty; give a folder, or leave the option out"},
      {{"up", "--collective-algorithms="}, "--collective-algorithms: is empty; give some such as"},
      {{"ls", "--address="}, "--address: is empty; give HOST:PORT, or leave the option out"},
      {{"--address", "", "ls"}, "--address: is empty"},
      {{"ls", "--context="}, "--context: is empty; give the name of a context, or leave"},
      {{"ls", "--cluster="}, "--cluster: is empty; give the name of a cluster"},
      {{"up", "--memory", "1"}, "--memory: \"1\" is too little; give 1.00 MiB or more"},
      {{"make-checkpoint", "--out", "x", "--size", "1MiB"}, "the smallest of F32 takes"},
      {{"make-checkpoint", "--out", "x", "--size", "tiny", "--dtype", "F64"},
       "--dtype: weights are F16, BF16 or F32, not F64"},
      {{"make-checkpoint", "--out", "x", "--size", "1b", "--dtype", "I8"},
       "--dtype: weights are F16, BF16 or F32, not I8"},
      {{"make-checkpoint", "--out", "x", "--size", "8000TiB"},
       "--size: 7.81 PiB are over the limit of 1.00 TiB; give 1TiB or less"},
      {{"up", "--transport", "tcp"}, "--transport: tcp not in {auto,stream,shm}"},
      {{"up", "--read-root", "/none"}, "--read-root /none: there is no such folder"},
      {{"up", "--collective-algorithms", "scatter=ring"}, "scatter has no algorithm \"ring\""},
      {{"up", "--cluster", "a/b"}, "\"a/b\" cannot name a cluster"},
      {{"resolve", "--spec", "fsdp,tp"}, "give --shape too"},
      {{"resolve", "--spec", "(fsdp,tp", "--shape", "4,4"}, "lacks a closing \")\""},
      {{"resolve"}, "give one of --axes, --preset and --spec"},
      {{"resolve", "--axes", "__BATCH__", "--mode", "__trian__"}, "__trian__"},
      {{"linear", "--input", "a", "--weight", "b", "--activation", "gelo"},
       "\"gelo\" is none of none, relu, gelu, gelu-tanh, silu; did you mean \"gelu\"?"},
      {{"get", "wq"}, "--out"},
      {{"plan", "t.json", "--html"},
       "shardmesh: --html needs a value (see `shardmesh plan --help`)"},
      {{"ls", "--output"}, "--output needs a value"},
      {{"get", "wq", "--out", "w.txt"}, "name it w.npy or w.safetensors, or - for standard output"},
      {{"reshard", "--tree", "m", "--preset", "ATTN_KEY_VALUE", "--to", "tp"},
       "give one of --to, --rules, --axes and --preset"},
      {{"make-tensor", "--shape", "8", "--out", "a.b/x.txt"},
       "--out: make-tensor writes .npy files; name it a.b/x.npy (see `"},
      {{"matmul", "a", "b", "--out", "y.npz"}, "--out: matmul writes .npy files; name it y.npy"},
      {{"plan", "t.json", "--search", "0", "--axes", "dp"},
       "--search: \"0\" is not a whole number from 1"},
      {{"plan", "t.json", "--search", "4", "--axes", "dp=3..1"}, "1 is below 3"},
      {{"plan", "t.json", "--search", "4", "--axes", "dp", "--rank-by", "wasted_byte"},
       "did you mean \"wasted_bytes\"?"},
      {{"resolve", "--axes", "a", "--mesh", "dp=99999999999999999999"}, "over the limit of"},
      {{"rules", "diff", "a", "b", "--tree", "t", "--max-increase", "5"}, "write 5% or 5B"},
      {{"compare", "fsdp,tp"},
       "shardmesh: the argument B is missing: the other spec; write `shardmesh compare A B` (see "
       "`shardmesh compare --help`)"},
      {{"matmul"}, "the argument A is missing: name of an array, NAME@VERSION, @ID, or a .npy "},
      {{"rm"}, "give the names of arrays, or --tree PREFIX for all names with a prefix"},
      {{"catalog", "put", "mesh", "m"}, "write `shardmesh catalog put KIND ENTRY FILE`"},
      {{"rules", "diff", "r"}, "the argument B is missing: rules after: YAML file, or name in"},
      {{"compare", "a,b", "a", "--rank", "1"}, "--rank 1 is below the 2 dimensions"},
      {{"plan", "t.json", "--rules", "r", "--devices", "8"}, "--devices goes with a --mesh"},
      {{"hash", "\xff"}, "argument 2, \"\\xff\", is not UTF-8"},
      {{"plan", "--mesh", "\xff=2"}, "argument 3, \"\\xff=2\" after --mesh, is not UTF-8"},
      {{"doctor", "--step", "0"}, "--step: \"0\" is not a whole number from 1 (see"},
      {{"catalog", "rm", "mesh", "m", "--if-version", "0"},
       "--if-version: \"0\" is not a whole number from 1"},
      {{"catalog", "put", "mesh", "m", "f", "--if-version", "9223372036854775808"},
       "--if-version: \"9223372036854775808\" is not a whole number from 1"},
      {{"up", "--min-sharding-size=-1"},
       "--min-sharding-size: \"-1\" is not a whole number from 0"},
      {{"collective", "all-gather", "a", "--axes", "tp", "--dimension", "1.5"},
       "--dimension: \"1.5\" is not a whole number from 0"},
      {{"collective", "broadcast", "a", "--axes", "tp", "--root=-1"},
       "--root: \"-1\" is not a whole number from 0"},
      {{"doctor", "--records", "1025"}, "--records"},
      {{"bench", "collectives", "--ops", "all-redcue"}, "did you mean \"all-reduce\"?"},
      {{"bench", "collectives", "--ops", "gather"}, "gather is not timed"},
      {{"bench", "collectives", "--sizes", "8,3"}, "\"3\" is no size from 4 to 1GiB"},
      {{"bench", "collectives", "--calls", "61"}, "--calls"},
      {{"bench", "collectives", "--peer", "nccl"}, "\"nccl\" is neither gloo nor mpi"},
      {{"make-checkpoint", "--out", "-"}, "--out: this is not written to standard output; name a"},
      {{"make-tensor", "--shape", "2", "--out", "-"}, "--out: this is not written to"},
      {{"put", "x.npy", "--spec", "-", "--as", "@0123456789abcdef0123456789abcdef"},
       "--as: \"@0123456789abcdef0123456789abcdef\" is the id of an array, not a name"},
      {{"put", "x.npy", "--spec", "-", "--as", "a@1"}, "--as: \"a@1\" has an @"},
      {{"matmul", "a", "b", "--as", "@0123456789abcdef0123456789abcdef"}, "is the id of an array"},
      {{"admin", "snapshot", "-"}, "FILE: this is not written to standard output"},
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
      {{"--rpc-memory=1"}, "--rpc-memory is 1 B, less than one worker takes"},
      {{"--store-quota=1KiB"}, "--store-quota: \"1KiB\" is too little; give 1.00 MiB or more"},
      {{"--move-memory=1MiB"}, "--move-memory: \"1MiB\" is too little; give 32.0 MiB or more"},
      {{"--move-memory=17GiB"}, "--move-memory: \"17GiB\" is too much; give 16.0 GiB or less"},
      {{"--restore=f"}, "--restore needs --data-dir"},
      {{"--listen=127.0.0.1"}, "--listen: not an address: '127.0.0.1' has no port"},
      {{"--http-listen=nohost"}, "--http-listen: not an address: 'nohost' has no port"},
      {{"--mesh=fsdp"}, "--mesh: "},
      {{"--mesh="}, "--mesh: is empty; give axes such as fsdp=2,tp=2, or leave the flag out"},
      {{"--collective-algorithms="}, "--collective-algorithms: is empty; give some such as"},
      {{"--data-dir="}, "--data-dir: is empty; give FOLDER, or leave the flag out"},
      {{"--restore="}, "--restore: is empty; give FILE, or leave the flag out"},
      {{"--data-dir="},
       "--data-dir: is empty; give DIR, or leave the flag out",
       "shardmesh-worker"},
      {{"--coordinator=nohost"}, "--coordinator: not an address: 'nohost'", "shardmesh-worker"},
      {{"--advertise=foo"}, "--advertise: not an address: 'foo'", "shardmesh-worker"},
      {{"--rpc-memory=1MiB"},
       "--rpc-memory: \"1MiB\" is too little; give 16.0 MiB or more",
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
  const CommandResult result = Run({"status", "--output=json", "--cluster=other"});
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
              AllOf(HasSubstr(address), HasSubstr("does not answer as shardmesh does")));
  EXPECT_LT(result.time, absl::Seconds(4));
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

TEST_F(CommandLineTest, AnInterruptedCommandLeavesNoPartOfItsFile) {
  const std::string out = folder_ + "/out";
  std::filesystem::create_directory(out);
  const auto files = [&out] {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(out)) {
      names.push_back(entry.path().filename());
    }
    return names;
  };
  client::ProcessOptions options;
  options.command = {SHARDMESH_BINARY_DIR "/shardmesh", "make-checkpoint", "--size=8GiB",
                     "--out=" + out + "/model.safetensors"};
  options.log_path = folder_ + "/make.log";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(client::ChildProcess make, client::ChildProcess::Start(options));
  ASSERT_TRUE(Eventually([&] { return !files().empty(); }));
  EXPECT_THAT(files(), ::testing::ElementsAre(HasSubstr(".partial")));
  ASSERT_THAT(client::SendSignal(make.id(), SIGINT), IsOk());
  ASSERT_TRUE(client::WaitUntilGone(make.id(), absl::Now() + absl::Seconds(30)));
  EXPECT_THAT(make.Ended(), ::testing::Optional(HasSubstr("was killed by signal 2")));
  EXPECT_THAT(files(), IsEmpty());
  EXPECT_THAT(ReadFile(options.log_path),
              HasSubstr("shardmesh: interrupted: no unfinished file is left"));
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

TEST_F(ClusterCommandTest, GivesUpWhenTheDeadlineIsOver) {
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"status", "--deadline=1ns"},
           {"ls", "--deadline=1ns"},
           {"load", checkpoint_, "--rules", kRules, "--deadline=1ns"}}) {
    const CommandResult result = cluster_->Run(command);
    // Where connecting came first the call is late.
    EXPECT_THAT(result.exit_code, AnyOf(3, 1));
    if (result.exit_code == 3) {
      EXPECT_THAT(result.err, AnyOf(HasSubstr("no time was left to connect"),
                                    HasSubstr("no connection within")));
    } else {
      EXPECT_THAT(result.err, HasSubstr(cluster_->address() +
                                        ": no answer came within the --deadline of 1ns; give more "
                                        "time (DEADLINE)"));
    }
  }
}

TEST_F(ClusterCommandTest, TellsOfALateAnswerInTheErrorAsJson) {
  const CommandResult result = cluster_->Run({"ls", "--deadline=1us", "--output=json"});
  const json error = json::parse(result.err)["error"];
  if (result.exit_code == 3) {  // connecting was late already
    EXPECT_EQ(error["code"], "UNAVAILABLE");
    return;
  }
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(error["code"], "DEADLINE_EXCEEDED");
  EXPECT_EQ(error["reason"], "DEADLINE");
  EXPECT_EQ(error["details"]["facts"]["limit"], "1e-06");
}

TEST_F(ClusterCommandTest, NamesAWorkerAsNoCoordinator) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ClusterStatus status,
                                 cluster_->client().cluster().GetStatus());
  const std::string address = status.workers.front().addresses.front();
  const CommandResult result = RunShardmesh({"ls", "--address=" + address}, cluster_->folder());
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err,
              HasSubstr(address + " does not know this call: it is no shardmesh coordinator"));
}

TEST_F(ClusterCommandTest, ReportsRefusalsAsJson) {
  const CommandResult result = cluster_->Run({"resolve", "--axes", "__BATHC__", "--output=json"});
  EXPECT_EQ(result.exit_code, 1);
  const json error = json::parse(result.err)["error"];
  EXPECT_EQ(error["code"], "INVALID_ARGUMENT");
  EXPECT_EQ(error["reason"], "UNKNOWN_AXIS");
  EXPECT_EQ(error["details"]["python_type"], "ValueError");
  EXPECT_EQ(error["details"]["facts"], (json{{"name", "__BATHC__"}, {"nearest", "__BATCH__"}}));
}

TEST_F(ClusterCommandTest, ReportsStrictCorrectionsAsJson) {
  const CommandResult result = cluster_->Run({"resolve", "--axes", "__HEAD__", "--shape", "30",
                                              "--mesh", "tp=4", "--strict", "--output=json"});
  EXPECT_EQ(result.exit_code, 1);
  const json error = json::parse(result.err)["error"];
  EXPECT_EQ(error["reason"], "NOT_DIVISIBLE");
  const json& details = error["details"];
  EXPECT_EQ(details["facts"],
            (json{{"axis", "tp"}, {"dimension", "0"}, {"have", "30"}, {"need", "4"}}));
  ASSERT_EQ(details["corrections"].size(), 1u);
  EXPECT_EQ(details["corrections"][0]["need"], 4);
  EXPECT_FALSE(details["fixes"].empty());
}

}  // namespace
}  // namespace shardmesh::test
