// Rule sets, trees and logical names on the command line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/cli_fixture.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using ::nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

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

TEST_F(ClusterCommandTest, LooksThroughRules) {
  CommandResult result = cluster_->Run({"rules", "lint", kRules, "--tree", checkpoint_, "--mesh",
                                        "fsdp=2,tp=2", "--mesh", "fsdp=4,tp=64"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("104 tensors on 2 meshes: 0 findings, "),
                                HasSubstr(" (not counted without --strict)")));
  result = cluster_->Run({"rules", "lint", kRules, "--tree", checkpoint_, "--mesh", "fsdp=4,tp=64",
                          "--strict", "--output=json"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_GT(json::parse(result.out)["counts"]["CORRECTED"], 0);

  const std::string misspelt =
      WriteFile(Path("misspelt.yaml"), "rules:\n- {pattern: '.*', spec: [tp, fspd]}\n");
  result =
      cluster_->Run({"rules", "lint", misspelt, "--tree", checkpoint_, "--mesh", "fsdp=2,tp=2"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("MISSPELT_AXIS"), HasSubstr("did you mean 'fsdp'?"),
                                HasSubstr(": 1 finding, ")));

  const std::string bad =
      WriteFile(Path("bad.yaml"),
                "rules:\n- {pattern: '\\N{SPACE}', spec: []}\n- {pattern: nosuch, spec: []}\n"
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
  ASSERT_THAT(cluster_->Run({"catalog", "put", "tree", "moe", moe}), Succeeded());
  EXPECT_THAT(cluster_->Run({"catalog", "ls", "tree"}).out,
              AllOf(HasSubstr("104 tensors, "), HasSubstr("4 tensors, 77 parameters, 144 B")));
  EXPECT_THAT(cluster_->Run({"catalog", "get", "tree", "moe"}).out,
              AllOf(HasSubstr("z.gate"), HasSubstr("axes __EMBED__"), HasSubstr("spec (fsdp,tp)")));

  // What is shown as JSON is a tree file that says the same.
  const std::string shown = cluster_->Run({"catalog", "get", "tree", "moe", "--output=json"}).out;
  const std::string copy = WriteFile(Path("copy.json"), shown);
  ASSERT_THAT(cluster_->Run({"catalog", "put", "tree", "copy", copy}), Succeeded());
  EXPECT_EQ(cluster_->Run({"catalog", "get", "tree", "copy", "--output=json"}).out, shown);
  ASSERT_THAT(cluster_->Run({"catalog", "rm", "tree", "copy"}), Succeeded());

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
  result = cluster_->Run({"rules", "diff", kRules, kRules, "--tree", checkpoint_});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("0 of 104 tensors differ on mesh default "))
      << "no --mesh names the mesh";
}

TEST_F(ClusterCommandTest, RewritesRulesThatExcludeNames) {
  const std::string excluding = WriteFile(
      Path("excluding.yaml"),
      "rules:\n- {pattern: '^(?!.*bias).*weight$', spec: [tp]}\n- {pattern: '.*', spec: []}\n");
  const CommandResult matched = cluster_->Run({"match", checkpoint_, "--rules", excluding});
  ASSERT_EQ(matched.exit_code, 0) << matched.err;
  CommandResult result = cluster_->Run({"rules", "rewrite", excluding});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string rewritten = WriteFile(Path("rewritten.yaml"), result.out);
  EXPECT_THAT(cluster_->Run({"match", checkpoint_, "--rules", rewritten}), Succeeded());
  result = cluster_->Run({"rules", "rewrite", kRules});
  EXPECT_THAT(result.err, HasSubstr("No rule excludes names"));

  result = cluster_->Run({"rules", "from-text", "word|bias->tp.fsdp,LayerNorm->"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string from_text = WriteFile(Path("text.yaml"), result.out);
  EXPECT_THAT(cluster_->Run({"match", checkpoint_, "--rules", from_text}), Succeeded());
  result = cluster_->Run({"rules", "from-text", "word|bias->tp.fsdp", "--tensor", "a.bias"});
  EXPECT_EQ(result.out, "tp,fsdp\n");
  EXPECT_THAT(result.err, IsEmpty());
  result = cluster_->Run({"rules", "from-text", "attention>fsdp.tp,norm->,"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("norm"));
  EXPECT_EQ(result.err, "Passed over \"attention>fsdp.tp\": it has no `->`\n");
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
  EXPECT_THAT(cluster_->Run({"catalog", "put", "logical", "few", rules}), Succeeded());
  result = cluster_->Run({"logical", "compose", "few", WriteFile(Path("none.yaml"), "rules: []")});
  EXPECT_THAT(result.out, HasSubstr("batch"));
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

}  // namespace
}  // namespace shardmesh::test
