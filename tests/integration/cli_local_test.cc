// The command line without a server: questions are answered in process, all else says what it
// needs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/cli/commands/command_guide.h"
#include "status/str_cat.h"
#include "tests/testing/read_file.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using ::nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kRules[] = SHARDMESH_SOURCE_DIR "/docs/examples/bert.yaml";
constexpr char kMesh[] = "--mesh=fsdp=2,tp=2";

// An address of this host at which nobody listens.
std::string DeadAddress() {
  const int socket_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(socket_fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(socket_fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(socket_fd);
  return StrCat("127.0.0.1:", ntohs(address.sin_port));
}

std::string WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

class LocalCommandTest : public ::testing::Test {
 protected:
  LocalCommandTest() { unsetenv("SHARDMESH_ADDRESS"); }
  ~LocalCommandTest() override {
    unsetenv("SHARDMESH_ADDRESS");
    std::filesystem::remove_all(folder_);
  }

  CommandResult Run(const std::vector<std::string>& arguments) const {
    return RunShardmesh(arguments, folder_);
  }
  // The path of a tree of two tensors.
  std::string Tree() const {
    const std::string path = folder_ + "/tree.json";
    std::ofstream(path) << R"({"encoder.layer.0.output.dense.weight":)"
                        << R"( {"shape": [384, 1536], "dtype": "F32"},)"
                        << R"( "encoder.layer.0.output.dense.bias":)"
                        << R"( {"shape": [384], "dtype": "F32"}})";
    return path;
  }

  const std::string folder_ = MakeTestFolder("local");
};

TEST_F(LocalCommandTest, AnswersQuestionsOfEachGroup) {
  struct Case {
    std::vector<std::string> arguments;
    std::string out;
  };
  const std::string tree = Tree();
  const Case kCases[] = {
      {{"resolve", "--axes=__BATCH__,__EMBED__", "--mode=train", "--shape=32,384", kMesh},
       "effective  -,tp"},
      {{"resolve", "--spec=fsdp,tp", "--shape=32,384", kMesh}, "effective  fsdp,tp"},
      {{"explain", "encoder.layer.0.output.dense.weight", "--shape=384,1536",
        StrCat("--rules=", kRules), kMesh},
       "fsdp,tp"},
      {{"axes", "__BATCH__"}, "fsdp"},
      {{"constrain", "--spec=fsdp", "--shape=4", kMesh}, "fsdp"},
      {{"compare", "fsdp", "fsdp,-", "--rank=2", kMesh}, "place every tensor alike"},
      {{"tiles", "--spec=fsdp,tp", "--shape=4,4", "--device=1", kMesh}, "[0,2)x[2,4)"},
      {{"match", tree, "--rules", kRules}, "encoder.layer.0.output.dense.bias"},
      {{"plan", tree, "--rules", kRules, kMesh}, "2 tensors"},
      {{"plan", tree, "--rules", kRules, "--search=4", "--axes=fsdp,tp"}, "fsdp=2,tp=2"},
      {{"reshard", "--from=fsdp=2,tp=2:fsdp", "--to=fsdp=2,tp=2:tp", "--shape=8"}, "device"},
      {{"rules", "lint", kRules, "--tree", tree, kMesh, "--max-findings=1"}, ""},
      {{"rules", "diff", kRules, kRules, "--tree", tree, kMesh}, ""},
      {{"rules", "test", "dense", "a.dense.b"}, "a.dense.b"},
      {{"rules", "from-text", "attn->fsdp.tp"}, "attn"},
      {{"logical", "resolve", "--names=batch,embed"}, ""},
      {{"presets"}, "__"},
      {{"profile", "show"}, "fsdp"},
      {{"hash", "text"}, ""},
      {{"mesh", "show", "dp=-1,tp=2", "--devices=8"}, "8 devices"},
      {{"mesh", "query", "size", "--axes=tp", kMesh}, "2"},
      {{"spec", "axes", "fsdp,tp"}, "tp"},
      {{"layer", "describe", "--in=8", "--out=16"}, "16"},
      {{"layer", "promote", "BF16", "F32"}, "F32"},
  };
  for (const Case& each : kCases) {
    SCOPED_TRACE(StrJoin(each.arguments, " "));
    const CommandResult result = Run(each.arguments);
    if (each.arguments.front() == "rules" && each.arguments[1] == "lint") {
      EXPECT_THAT(result.exit_code, ::testing::AnyOf(0, 1));  // there may be findings
      EXPECT_THAT(result.out, Not(IsEmpty()));
      continue;
    }
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, IsEmpty());
    EXPECT_THAT(result.out, AllOf(Not(IsEmpty()), HasSubstr(each.out)));
  }
}

TEST_F(LocalCommandTest, WritesJsonAndAReportOfAPlan) {
  const CommandResult result = Run({"plan", "--tree", Tree(), "--rules", kRules, kMesh,
                                    "--output=json", "--html", folder_ + "/plan.html"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(json::accept(result.out));
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/plan.html"));
}

TEST_F(LocalCommandTest, JudgesInputAsACoordinatorDoes) {
  struct Case {
    std::vector<std::string> arguments;
    int exit_code;
    std::string error;
  };
  const Case kCases[] = {
      {{"resolve", "--axes=__BATHC__", "--shape=32", kMesh}, 1, "(UNKNOWN_AXIS)"},
      {{"resolve", "--axes=__BATCH__", "--shape=x", kMesh}, 2, "--shape"},
      {{"resolve", "--spec=tp", "--shape=3", kMesh, "--strict"}, 1, "(NOT_DIVISIBLE)"},
      {{"resolve", "--spec=tp,tp", "--shape=4,4", kMesh}, 1, "(DUPLICATE_AXIS)"},
      {{"mesh", "show", "dp=0"}, 1, "dp"},
      {{"rules", "test", "(", "name"}, 1, "(BAD_PATTERN)"},
      {{"plan", "/no/such/file.json", "--rules", kRules, kMesh}, 1, "/no/such/file.json"},
      {{"presets", "--adress=x:1"}, 2, "did you mean \"--address\"?"},
  };
  for (const Case& each : kCases) {
    SCOPED_TRACE(StrJoin(each.arguments, " "));
    const CommandResult result = Run(each.arguments);
    EXPECT_EQ(result.exit_code, each.exit_code) << result.out;
    EXPECT_THAT(result.err, AllOf(HasSubstr(each.error), Not(HasSubstr("no cluster"))));
    EXPECT_THAT(result.out, IsEmpty());
  }
}

TEST_F(LocalCommandTest, FailsAStrictLintThatCheckedNoMesh) {
  const std::string tree = Tree();
  CommandResult result = Run({"rules", "lint", kRules, "--tree", tree});
  EXPECT_THAT(result.err,
              HasSubstr("no mesh was checked: give --mesh, such as --mesh fsdp=2,tp=2"));
  EXPECT_NE(result.exit_code, 2);
  result = Run({"rules", "lint", kRules, "--tree", tree, "--strict"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("no mesh was checked"));
}

TEST_F(LocalCommandTest, NamesTheOptionThatTellsHowManyDevicesThereAre) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"mesh", "show", "dp=-1,tp=8"}, {"resolve", "--spec=tp", "--shape=8", "--mesh=dp=-1"}}) {
    const CommandResult result = Run(arguments);
    EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(result.err, HasSubstr("give every size, or --devices N"));
  }
}

TEST_F(LocalCommandTest, SaysThatNoDefinitionIsStored) {
  const std::string tree = Tree();
  const std::vector<std::string> kCases[] = {
      {"resolve", "--spec=tp", "--shape=4"},  // the mesh "default"
      {"resolve", "--spec=tp", "--shape=4", "--mesh=prod"},
      {"resolve", "--axes=__BATCH__", "--profile=prod"},
      {"plan", tree, "--rules=prod", kMesh},
      {"plan", "--stored-tree=prod", "--rules", kRules, kMesh},
      {"logical", "resolve", "--names=batch", "--rules=prod"},
      {"mesh", "show", "prod@3"},
  };
  for (const std::vector<std::string>& arguments : kCases) {
    SCOPED_TRACE(StrJoin(arguments, " "));
    const CommandResult result = Run(arguments);
    EXPECT_EQ(result.exit_code, 1) << result.out;
    EXPECT_THAT(result.err,
                AllOf(HasSubstr("there is no cluster, so no stored definition: give "),
                      HasSubstr(", or --address (NOT_FOUND)"), Not(HasSubstr("rule_set"))));
  }
}

TEST_F(LocalCommandTest, KeepsTheErrorsOfCommandsThatNeedACluster) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"presets", "--cluster=other"},
           {"status", "--cluster=other"},
           {"ls", "--cluster=other"},
           {"shardings", "--cluster=other"},
           {"catalog", "ls", "--cluster=other"},
           {"rules", "lint", kRules, "--held=", "--cluster=other"}}) {
    SCOPED_TRACE(StrJoin(arguments, " "));
    const CommandResult result = Run(arguments);
    EXPECT_EQ(result.exit_code, 3) << result.out;
    EXPECT_THAT(result.err, HasSubstr("no cluster \"other\" is up on this host"));
  }
}

TEST_F(LocalCommandTest, AsksTheAddressThatIsGivenAndNoOther) {
  const std::string address = DeadAddress();
  const std::vector<std::string> question = {"resolve", "--spec=tp", "--shape=4", kMesh};
  std::vector<std::string> with_option = question;
  with_option.push_back("--address=" + address);
  const CommandResult option = Run(with_option);
  EXPECT_EQ(option.exit_code, 3);
  EXPECT_THAT(option.err, HasSubstr(address));
  EXPECT_THAT(option.out, IsEmpty());

  setenv("SHARDMESH_ADDRESS", address.c_str(), 1);
  const CommandResult variable = Run(question);
  EXPECT_EQ(variable.exit_code, 3);
  EXPECT_THAT(variable.err, AllOf(HasSubstr("SHARDMESH_ADDRESS"), HasSubstr(address)));
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"health"}, {"admin", "snapshot", folder_ + "/snapshot"}}) {
    SCOPED_TRACE(arguments.front());
    const CommandResult result = Run(arguments);
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.err, AllOf(HasSubstr("SHARDMESH_ADDRESS"), HasSubstr(address)));
  }
  std::vector<std::string> with_name = question;
  with_name.push_back("--cluster=other");
  EXPECT_THAT(Run(with_name).err, HasSubstr("no cluster \"other\" is up on this host"))
      << "an option is stronger than the environment";

  setenv("SHARDMESH_ADDRESS", "nowhere", 1);
  const CommandResult wrong = Run(question);
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("SHARDMESH_ADDRESS: "));

  setenv("SHARDMESH_ADDRESS", "", 1);
  EXPECT_THAT(Run(question), Succeeded()) << "an empty variable is none";
}

TEST_F(LocalCommandTest, AsksTheClusterThatIsUp) {
  const CommandResult up = Run({"up", "--mesh=fsdp=1,tp=1", "--detach"});
  ASSERT_EQ(up.exit_code, 0) << up.err;
  const CommandResult stored = Run({"resolve", "--spec=tp", "--shape=4"});
  const CommandResult missing = Run({"resolve", "--spec=tp", "--shape=4", "--mesh=prod"});
  EXPECT_THAT(Run({"down"}), Succeeded());
  EXPECT_EQ(stored.exit_code, 0) << stored.err << "\nits mesh is \"default\"";
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.err, Not(HasSubstr("no cluster")));
  EXPECT_EQ(Run({"resolve", "--spec=tp", "--shape=4"}).exit_code, 1) << "it is gone again";
}

TEST_F(LocalCommandTest, PrintsTheSameTreeAsJsonAndAsYaml) {
  const CommandResult tree = Run({"mesh", "show", "fsdp=2,tp=2", "-o", "json"});
  ASSERT_EQ(tree.exit_code, 0) << tree.err;
  const CommandResult yaml = Run({"-o", "yaml", "mesh", "show", "fsdp=2,tp=2"});
  ASSERT_EQ(yaml.exit_code, 0) << yaml.err;
  EXPECT_THAT(yaml.out, AllOf(HasSubstr("axes:\n  - name: fsdp\n    size: 2\n"),
                              HasSubstr("\nsize: 4\ntext: \"fsdp=2,tp=2\"\n")));
  EXPECT_EQ(json::parse(tree.out)["size"], 4);
  const CommandResult error = Run({"statsu", "-oyaml"});
  EXPECT_THAT(error.err, HasSubstr("error:\n  code: INVALID_ARGUMENT\n  reason: null\n"));
}

TEST_F(LocalCommandTest, PrintsNamesOrTablesWithoutHeaders) {
  const CommandResult names = Run({"presets", "-o", "name"});
  ASSERT_EQ(names.exit_code, 0) << names.err;
  EXPECT_THAT(names.out, AllOf(HasSubstr("AttnQSharding\n"), Not(HasSubstr(" "))));
  const CommandResult table = Run({"presets"});
  const CommandResult rows = Run({"--no-headers", "presets"});
  EXPECT_EQ(table.out.rfind("preset ", 0), 0U);
  EXPECT_EQ(rows.out.find("preset "), std::string::npos);
  EXPECT_EQ(std::count(table.out.begin(), table.out.end(), '\n'),
            std::count(rows.out.begin(), rows.out.end(), '\n') + 1);
}

// Options that other tests do not use with their commands. EXACT accepts meshes of no device, which
// are a usage error otherwise.
TEST_F(LocalCommandTest, AnswersWithEachOption) {
  struct Case {
    std::vector<std::string> arguments;
    int exit_code;
    std::string text;  // of either stream
  };
  const std::string tree = Tree();
  const std::string axes = WriteText(
      folder_ + "/axes.jsonl",
      R"({"name": "h", "shape": [6, 8], "dtype": "F32", "axes": ["__BATCH__", "__EMBED__"]})"
      "\n");
  const std::string profile = WriteText(folder_ + "/profile.yaml", "batch_axis: data\n");
  const std::string logical =
      WriteText(folder_ + "/logical.yaml", "rules:\n- {name: batch, axes: data}\n");
  const std::string longer =
      WriteText(folder_ + "/long.yaml", "rules:\n- {pattern: dense, spec: [fsdp, tp]}\n");
  const std::string bad =
      WriteText(folder_ + "/bad.yaml", "rules:\n- {pattern: (dense, spec: [fsdp, tp]}\n");
  const std::string out = folder_ + "/out.safetensors";
  const Case kCases[] = {
      {{"axes", "__BATCH__", "--mode", "train"}, 0, "('fsdp', 'dp')"},
      {{"axes", "__BATCH__", "--exact"}, 0, "('fsdp', 'dp')"},
      {{"compare", "fsdp", "fsdp,-", "--rank=2", "--mesh=fsdp=-1", "--devices=8"},
       0,
       "place every tensor alike"},
      {{"compare", "-", "-,-", "--rank=2", "--mesh=fsdp=0", "--exact"}, 1, "NO_MESH"},
      {{"constrain", "--axes=__BATCH__,__EMBED__", "--mode=train", "--shape=4,4",
        "--mesh=fsdp=-1,tp=2", "--devices=4"},
       0,
       "the mesh fsdp=2,tp=2 has no axis 'dp'"},
      {{"constrain", "--axes=__BATCH__", "--mode=train", StrCat("--profile=", profile), "--shape=4",
        "--mesh=data=2"},
       0,
       "constraint data"},
      {{"constrain", "--preset=AttnQSharding", "--shape=8,128,16,64", "--mesh=fsdp=2,tp=2"},
       0,
       "constraint -,-,tp,-"},
      {{"constrain", "--spec=fsdp", "--shape=5", "--strict", "--mesh=fsdp=2"}, 1, "NOT_DIVISIBLE"},
      {{"constrain", "--spec=fsdp", "--shape=4", "--mesh=fsdp=0", "--exact"}, 0, "constraint"},
      {{"explain", "a", "--axes=__BATCH__", "--mode=train", "--shape=4", "--mesh=fsdp=-1",
        "--devices=4"},
       0,
       "the mesh fsdp=4 has no axis 'dp'"},
      {{"explain", "a", "--axes=__BATCH__", "--mode=train", "--shape=4", "--mesh=fsdp=0",
        "--exact"},
       1,
       "NO_MESH"},
      {{"hash", "x", "--algorithm=SHA-256", "--exact"}, 1, "is a name of OpenSSL's"},
      {{"layer", "check", "--mesh=tp=2", "--method=all_gather", "--axis-name=y"},
       1,
       "axis_name 'y' is no axis of the mesh tp=2"},
      {{"layer", "describe", "--in=4", "--out=8", "--dtype=BF16"}, 0, "BF16 4x8"},
      {{"layer", "describe", "--in=4", "--out=8", "--exact"}, 0, "4x8"},
      {{"layer", "output", "matmul", "--lhs=dp,tp", "--rank=3", "--rhs=tp,-"}, 0, "dp"},
      {{"layer", "promote", "BF16", "I32", "--dtype=F16"}, 0, "F16"},
      {{"logical", "resolve", "--names=batch", StrCat("--rules=", logical), "--mesh=data=-1",
        "--devices=4"},
       0,
       "data"},
      {{"logical", "resolve", "--names=batch", StrCat("--rules=", logical), "--mesh=data=0",
        "--exact"},
       0,
       "data"},
      {{"make-checkpoint", StrCat("--out=", out), "--size=40MiB", "--dtype=BF16"}, 0, "Wrote"},
      {{"match", tree, StrCat("--rules=", longer), "--strict"}, 1, "RANK_TRUNCATED"},
      {{"match", tree, StrCat("--rules=", bad), "--exact"},
       1,
       "tensor 'encoder.layer.0.output.dense.weight': rule 0: bad pattern"},
      {{"mesh", "query", "size", "--axes=fsdp", "--mesh=fsdp=-1,tp=2", "--devices=8"}, 0, "4"},
      {{"mesh", "query", "size", "--axes=fsdp", "--mesh=fsdp=0", "--exact"}, 0, "0"},
      {{"plan", axes, "--mode=train", StrCat("--profile=", profile), "--mesh=data=2,tp=2"},
       0,
       "data,tp"},
      {{"plan", axes, "--mode=train", "--strict", "--mesh=fsdp=4,tp=2"},
       1,
       "tensor 'h': dimension 0"},
      {{"resolve", "--axes=__BATCH__", "--mesh=fsdp=-1", "--devices=8", "--shape=8"},
       0,
       "the mesh fsdp=8 has no axis 'dp'"},
      {{"resolve", "--axes=__BATCH__", "--mesh=fsdp=2", "--exact"},
       1,
       "axes and mode are not both given"},
      {{"resolve", "--preset=AttnQSharding", "--shape=8,128,16,64", "--mesh=fsdp=2,tp=2"},
       0,
       "effective  -,-,tp,-"},
      {{"rules", "diff", kRules, kRules, StrCat("--tree=", tree), "--mesh=fsdp=-1,tp=2",
        "--devices=4", "--max-bytes=1KiB"},
       1,
       "the budget allows 1024"},
      {{"rules", "diff", kRules, kRules, StrCat("--tree=", axes), "--mode=train",
        StrCat("--profile=", profile), "--mesh=data=2,tp=2"},
       0,
       "0 of 1 tensor differ"},
      {{"rules", "diff", bad, bad, StrCat("--tree=", tree), "--exact", "--mesh=fsdp=2"},
       1,
       "layout A: tensor"},
      {{"rules", "lint", bad, StrCat("--tree=", tree), "--exact", "--mesh=fsdp=2"},
       1,
       "BAD_PATTERN"},
      {{"rules", "lint", kRules, StrCat("--tree=", axes), StrCat("--profile=", profile),
        "--mesh=data=2,tp=2"},
       1,
       "DEAD"},
      {{"tiles", "--spec=fsdp", "--shape=8", "--mesh=fsdp=-1", "--devices=4"},
       0,
       "distinct tiles  4"},
      {{"tiles", "--spec=fsdp", "--shape=8", "--mesh=fsdp=0", "--exact"}, 1, "NO_MESH"},
  };
  for (const Case& c : kCases) {
    const CommandResult result = Run(c.arguments);
    const std::string words = StrJoin(c.arguments, " ");
    EXPECT_EQ(result.exit_code, c.exit_code) << words << "\n" << result.err;
    EXPECT_THAT(result.out + result.err, HasSubstr(c.text)) << words;
  }
}

TEST_F(LocalCommandTest, ContextsNameClusters) {
  const std::string dead = DeadAddress();
  const std::string config = folder_ + "/shardmesh/config.yaml";
  EXPECT_THAT(Run({"presets"}), Succeeded()) << "no file is no context";
  ASSERT_THAT(Run({"config", "set-context", "prod", "--address", dead}), Succeeded());
  EXPECT_EQ(Run({"config", "current-context"}).out, "prod\n") << "the first is the current one";
  ASSERT_THAT(Run({"config", "set-context", "dev", "--address=dev.invalid:1"}), Succeeded());
  EXPECT_EQ(Run({"config", "get-contexts", "-o", "name"}).out, "prod\ndev\n");
  EXPECT_EQ(Run({"config", "current-context"}).out, "prod\n");
  EXPECT_EQ(json::parse(Run({"config", "view", "-o", "json"}).out)["contexts"]["prod"]["address"],
            dead);

  // The current context, also for questions.
  for (const std::string command : {"status", "presets"}) {
    const CommandResult result = Run({command});
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.err, AllOf(HasSubstr("context \"prod\": "), HasSubstr(dead)));
  }
  // A flag is stronger than the environment, which is stronger than the current context.
  setenv("SHARDMESH_ADDRESS", "env.invalid:1", 1);
  EXPECT_THAT(Run({"status"}).err, HasSubstr("env.invalid:1"));
  EXPECT_THAT(Run({"status", "--context", "dev"}).err, HasSubstr("dev.invalid:1"));
  EXPECT_THAT(Run({"--address", dead, "status"}).err, HasSubstr(dead));
  unsetenv("SHARDMESH_ADDRESS");
  EXPECT_THAT(Run({"status", "--cluster=other"}).err, HasSubstr("no cluster \"other\" is up"));
  ASSERT_THAT(Run({"config", "use-context", "dev"}), Succeeded());
  EXPECT_THAT(Run({"status"}).err, HasSubstr("dev.invalid:1"));

  const CommandResult unknown = Run({"status", "--context=prd"});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(unknown.err, AllOf(HasSubstr(config), HasSubstr("did you mean \"prod\"?")));
  EXPECT_EQ(Run({"config", "use-context", "prd"}).exit_code, 1);
  EXPECT_EQ(Run({"config", "set-context", "new"}).exit_code, 2) << "it has no address";
  EXPECT_EQ(Run({"config", "set-context", "a/b", "--address=x:1"}).exit_code, 2);
  ASSERT_THAT(Run({"config", "delete-context", "dev"}), Succeeded());
  EXPECT_THAT(Run({"presets"}), Succeeded()) << "no context is current";
  EXPECT_EQ(Run({"config", "current-context"}).exit_code, 1);
}

TEST_F(LocalCommandTest, ABrokenFileOfContextsIsNamed) {
  const std::string path = folder_ + "/broken.yaml";
  std::ofstream(path) << "contexts:\n  a: {adress: 'x:1'}\n";
  setenv("SHARDMESH_CONFIG", path.c_str(), 1);
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"status"}, {"presets"}, {"config", "view"}, {"config", "use-context", "a"}}) {
    const CommandResult result = Run(command);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, AllOf(HasSubstr(path + ":2: unknown key \"adress\""),
                                  HasSubstr("did you mean \"address\"?"), HasSubstr("BAD_FILE")));
  }
  EXPECT_THAT(Run({"explain-error", "NO_MESH"}), Succeeded()) << "it asks no cluster";
  EXPECT_EQ(Run({"explain-error", "NO_MESH", "-oname"}).out, "NO_MESH\n");
  EXPECT_THAT(Run({"explain-error"}).out,
              AllOf(HasSubstr("A mesh is needed and none is there."), HasSubstr("\nRECOVERING ")));
  EXPECT_THAT(Run({"explain-error", "-oname"}).out, HasSubstr("\nNOT_FOUND\n"));
  EXPECT_EQ(Run({"explain-error", ""}).exit_code, 1) << "an empty name is no reason";
  EXPECT_THAT(Run({"status", "--address=" + DeadAddress()}).err, Not(HasSubstr("broken.yaml")));
  unsetenv("SHARDMESH_CONFIG");
}

TEST_F(LocalCommandTest, ExamplesOfTheHelpRun) {
  const std::string prepare =
      StrCat("cd ", folder_, " && cp ", SHARDMESH_SOURCE_DIR, "/docs/examples/*.yaml . && ",
             "PATH=", SHARDMESH_BINARY_DIR, ":$PATH XDG_CONFIG_HOME=$PWD XDG_RUNTIME_DIR=$PWD && ",
             "export PATH XDG_CONFIG_HOME XDG_RUNTIME_DIR && ");
  ASSERT_EQ(std::system(StrCat(prepare,
                               "shardmesh make-checkpoint --out model.safetensors "
                               "> out 2>&1")
                            .c_str()),
            0);
  int64_t ran = 0;
  for (const client::CommandExample& example : client::CommandExamples()) {
    if (!example.runs_alone) continue;
    ++ran;
    EXPECT_EQ(std::system(StrCat(prepare, example.text, " > out 2>&1").c_str()), 0)
        << example.text << "\n"
        << ReadFile(folder_ + "/out");
  }
  EXPECT_GT(ran, 30);
}

// What each of these options changes, with it and without it.
TEST_F(LocalCommandTest, TakesOptionsOfRareUse) {
  const std::string logical = WriteText(folder_ + "/logical.yaml", "- [batch, fsdp]\n");
  const std::string around = WriteText(folder_ + "/around.yaml", "- [heads, tp]\n");
  const std::string other = WriteText(folder_ + "/other.yaml", "- [heads, fsdp]\n");
  const std::string axes = "--axes=__BATCH__,__EMBED__";
  struct Case {
    std::vector<std::string> with;
    std::vector<std::string> without;
    std::string expected;  // in the output with it only
  };
  const std::vector<Case> cases = {
      {{"constrain", axes, "--shape=7,7", "--mesh=fsdp=2,tp=2", "--auto-correct"},
       {"constrain", axes, "--shape=7,7", "--mesh=fsdp=2,tp=2"},
       "the array stays as it is"},
      {{"resolve", axes, "--shape=8,8", kMesh, "--explain"},
       {"resolve", axes, "--shape=8,8", kMesh},
       "batch_axis"},
      {{"tiles", "--spec=tp", "--shape=8", "--mesh=tp=2,dp=2", "--group-of=1"},
       {"tiles", "--spec=tp", "--shape=8", "--mesh=tp=2,dp=2"},
       "holders of its tile"},
      {{"rules", "from-text", "attention->tp", "--tensor=norm", "--default=fsdp"},
       {"rules", "from-text", "attention->tp", "--tensor=norm"},
       "fsdp"},
      {{"rules", "diff", kRules, kRules, "--tree", Tree(), kMesh, "--mesh-b=fsdp=4,tp=1"},
       {"rules", "diff", kRules, kRules, "--tree", Tree(), kMesh},
       "1 of 2 tensors differ"},
      {{"layer", "describe", "--in=8", "--out=16", "--no-bias"},
       {"layer", "describe", "--in=8", "--out=16"},
       "bias       -"},
      {{"layer", "output", "linear", "--lhs=dp,-,x", "--rhs=x,-", "--axis-name=x"},
       {"layer", "output", "linear", "--lhs=dp,-,x", "--rhs=x,-"},
       "-,-,x"},
      {{"logical", "resolve", "--names=batch,heads", "--rules", logical, "--context-rules", around},
       {"logical", "resolve", "--names=batch,heads", "--rules", logical, "--context-rules", other},
       "fsdp,tp"},
      {{"reshard", "--from=fsdp=2,tp=2:fsdp", "--to=fsdp=2,tp=2:-", "--shape=8,8", "--partial=tp",
        "--keep-partial=tp"},
       {"reshard", "--from=fsdp=2,tp=2:fsdp", "--to=fsdp=2,tp=2:-", "--shape=8,8", "--partial=tp"},
       "all-gather\n"},
  };
  for (const Case& each : cases) {
    const CommandResult with = Run(each.with);
    EXPECT_EQ(with.exit_code, 0) << each.with[0] << " " << each.with[1] << "\n" << with.err;
    EXPECT_THAT(with.out, HasSubstr(each.expected)) << each.with[0] << " " << each.with[1];
    const CommandResult without = Run(each.without);
    EXPECT_EQ(without.exit_code, 0) << each.without[0] << " " << each.without[1] << without.err;
    EXPECT_THAT(without.out, Not(HasSubstr(each.expected)))
        << each.without[0] << " " << each.without[1] << without.err;
  }
}

TEST_F(LocalCommandTest, ChecksLayersAndNamesOfFlax) {
  const std::vector<std::string> check = {"layer", "check", "--mesh=x=2", "--method=all_gather"};
  EXPECT_THAT(Run(check).err, HasSubstr("AXIS_NOT_IN_MESH"));
  for (const char* reduced : {"--reduce-output", "--reduce-scatter-output"}) {
    std::vector<std::string> arguments = check;
    arguments.insert(arguments.end(), {"--axis-name=x", reduced});
    const CommandResult checked = Run(arguments);
    EXPECT_EQ(checked.exit_code, 0) << checked.err;
    EXPECT_THAT(checked.out, HasSubstr("axis    x"));
  }
  // As in the original, neither both flags nor an unknown method are refused.
  const CommandResult odd = Run({"layer", "check", "--mesh=x=2", "--method=all_gathr",
                                 "--axis-name=x", "--reduce-output", "--reduce-scatter-output"});
  EXPECT_EQ(odd.exit_code, 0) << odd.err;
  const std::string logical = WriteText(folder_ + "/logical.yaml", "- [batch, fsdp]\n");
  CommandResult result =
      Run({"logical", "resolve", "--names=batch", "--rules", logical, "--values"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("fsdp"), Not(HasSubstr("spec"))));
  result = Run({"logical", "resolve", "--names=batch", "--linen", "--constrain"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  result = Run({"logical", "resolve", "--names=batch", "--linen", "--values"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--context-rules")) << "the flag as it is typed";
  result = Run({"layer", "describe", "--in=8", "--out=16", "--merged", "-o", "json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST_F(LocalCommandTest, HelpNamesACommandOnce) {
  EXPECT_THAT(Run({"layer", "check", "--help"}).out,
              HasSubstr("Usage: shardmesh layer check [OPTIONS]"));
  EXPECT_THAT(Run({"constrain", "--help"}).out, HasSubstr("Usage: shardmesh constrain [OPTIONS]"));
}

}  // namespace
}  // namespace shardmesh::test
