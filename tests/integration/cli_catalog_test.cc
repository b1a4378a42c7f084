// Stored definitions and their older versions on the command line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "status/str_cat.h"
#include "tests/integration/cli_fixture.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using ::nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(ClusterCommandTest, KeepsDefinitions) {
  CommandResult result = cluster_->Run({"catalog", "put", "rules", "bert", kRules});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  result = cluster_->Run({"catalog", "put", "rules", "bert", kRules});
  EXPECT_THAT(result.out, HasSubstr("version 2"));
  EXPECT_THAT(cluster_->Run({"catalog", "ls", "--prefix", "be", "-o", "name"}).out, "bert\n");
  result = cluster_->Run({"catalog", "ls", "--prefix", "x", "-o", "name"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "");
  result = cluster_->Run({"catalog", "put", "rules", "bert", kRules, "--validate-only"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("Would put rules bert, version 3"));
  result = cluster_->Run({"catalog", "rm", "rules", "bert", "--validate-only"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("Would remove rules bert"));
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"put", "rules", "bert", kRules}, {"rm", "rules", "bert"}}) {
    std::vector<std::string> arguments = {"catalog"};
    arguments.insert(arguments.end(), command.begin(), command.end());
    arguments.insert(arguments.end(), {"--validate-only", "-ojson"});
    result = cluster_->Run(arguments);
    EXPECT_THAT(result.out, HasSubstr("\"validate_only\": true")) << result.err;
  }
  // None changed it.
  result = cluster_->Run({"catalog", "put", "rules", "bert", kRules, "--validate-only"});
  EXPECT_THAT(result.out, HasSubstr("Would put rules bert, version 3"));
  EXPECT_THAT(cluster_->Run({"match", checkpoint_, "--rules", "bert"}), Succeeded());
  EXPECT_THAT(cluster_->Run({"catalog", "get", "rules", "bert"}).out, HasSubstr("word_embeddings"));
  EXPECT_THAT(cluster_->Run({"catalog", "rm", "rules", "bert"}), Succeeded());
  EXPECT_EQ(cluster_->Run({"catalog", "get", "rules", "bert"}).exit_code, 1);
}

TEST_F(ClusterCommandTest, NamesTheNearestDefinitionAndWhatListsThem) {
  ASSERT_THAT(cluster_->Run({"catalog", "put", "rules", "bert", kRules}), Succeeded());
  struct Case {
    std::vector<std::string> arguments;
    std::string error;
  };
  const Case kCases[] = {
      {{"resolve", "--spec=tp", "--shape=4", "--mesh=defualt"},
       "there is no mesh named \"defualt\"; did you mean \"default\"? `shardmesh catalog ls "
       "mesh` lists what there is (NOT_FOUND)"},
      {{"resolve", "--spec=tp", "--shape=4", "--mesh=fsdp:2,tp:2"},
       "there is no mesh named \"fsdp:2,tp:2\"; write axes as fsdp=2,tp=2; `shardmesh catalog ls "
       "mesh` lists what there is (NOT_FOUND)"},
      {{"catalog", "get", "rules", "brt"},
       "did you mean \"bert\"? `shardmesh catalog ls rules` lists what there is"},
      {{"catalog", "get", "profile", "nope"},
       "there is no profile named \"nope\"; `shardmesh catalog ls profile` lists what there is"},
      {{"catalog", "put", "mesh", "pod", "dp=2,tp=2"},
       "there is no file dp=2,tp=2; FILE is YAML, such as axes: [{name: dp, size: 2}"},
      {{"catalog", "get", "mesh", "serving.yaml"},
       "there is no mesh named \"serving.yaml\"; a file is put first: `shardmesh catalog put mesh "
       "serving serving.yaml`; `shardmesh catalog ls mesh` lists what there is"},
      {{"catalog", "put", "mesh", "serving.yaml", "serving"},
       "; the name comes first: write `shardmesh catalog put mesh serving serving.yaml`"},
      {{"catalog", "get", "logical", "nope"}, "; `shardmesh catalog ls logical` lists"},
      {{"plan", "--stored-tree=nope", "--rules=bert"}, "; `shardmesh catalog ls tree` lists"},
  };
  for (const Case& c : kCases) {
    SCOPED_TRACE(StrJoin(c.arguments, " "));
    const CommandResult result = cluster_->Run(c.arguments);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, HasSubstr(c.error));
  }
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
              HasSubstr("version 4 of the rule set \"r1\" is still to come; kept are versions 1 to "
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

  EXPECT_THAT(cluster_->Run({"catalog", "put", "rules", "r1", kRules, "--if-version", "2"}).err,
              HasSubstr("VERSION_MISMATCH"));
  for (const auto& [kind, name] :
       std::map<std::string, std::string>{{"rules", "r1"}, {"tree", "t1"}, {"mesh", "m1"}}) {
    EXPECT_THAT(cluster_->Run({"catalog", "rm", kind, name}), Succeeded());
    EXPECT_EQ(cluster_->Run({"catalog", "get", kind, name + "@1"}).exit_code, 1);
  }
}

}  // namespace
}  // namespace shardmesh::test
