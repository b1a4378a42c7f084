// Specs, profiles, meshes, layers and layouts on the command line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_split.h"
#include "status/str_cat.h"
#include "tests/integration/cli_fixture.h"
#include "tests/testing/read_file.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using ::nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

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
  result = cluster_->Run({"hash", "--profile", profile, "--output=json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_FALSE(json::parse(result.out)["hash"].get<std::string>().empty());
  EXPECT_TRUE(json::parse(result.out).contains("value"));
  result = cluster_->Run({"hash", "text", "--profile", profile});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("either a text, --attributes or --profile"));
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
  EXPECT_THAT(result.out, HasSubstr("The one device holds 86.6 MiB; "));
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
  EXPECT_THAT(result.out, AllOf(HasSubstr("Each of the 65536 devices holds 1.00 MiB"),
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
  ASSERT_THAT(cluster_->Run({"load", checkpoint_, "--rules", kRules, "--quiet"}), Succeeded());
  CommandResult result = cluster_->Run({"shardings", "encoder.layer.0.output", "--output=json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json layouts = json::parse(result.out);
  ASSERT_FALSE(layouts.empty());
  EXPECT_EQ(layouts[0]["mesh"]["fsdp"], 2);
  result = cluster_->Run({"shardings", "encoder.layer.0.output.dense.weight", "--specs"});
  EXPECT_THAT(result.out, HasSubstr("fsdp,tp"));
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
                    Not(HasSubstr("no axis was asked for that cuts the tensor"))))
      << "word asks for no axis, and gets none";
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
              AllOf(HasSubstr("because they have no dtype: 1 tensor"), Not(HasSubstr("100.0 %"))));
  result = cluster_->Run({"plan", tree, "--rules", rules, "--output=json"});
  EXPECT_EQ(json::parse(result.out)["summary"]["tensors_without_dtype"], 1);
  WriteFile(tree, "{}");
  result = cluster_->Run({"plan", tree, "--rules", rules});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("has no tensors"),
                                HasSubstr(R"({"w": {"shape": [8, 8], "dtype": "F32"}})")));
  const std::string text = WriteFile(Path("tree.yaml"), "a: {shape: [4], dtype: F32}\n");
  result = cluster_->Run({"plan", text, "--rules", rules});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("ends in .json or .jsonl"));
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
  result = cluster_->Run(search);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("best 4 of 4 meshes of 8 devices; no --memory was given, "
                                          "so none was excluded for its bytes"),
                                Not(HasSubstr("yes"))));
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
  EXPECT_THAT(result.out, AllOf(HasSubstr("fsdp,-"), Not(HasSubstr("no axis was asked"))));
  EXPECT_THAT(ReadFile(Path("plan.html")), Not(HasSubstr("<p class=\"warn\">asked for")));
}

}  // namespace
}  // namespace shardmesh::test
