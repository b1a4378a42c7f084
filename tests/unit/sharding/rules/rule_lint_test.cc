// Tests of sharding/rules/rule_lint.h: each kind of finding, and what is none.
#include "sharding/rules/rule_lint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "sharding/semantic_axis.h"
#include "status/str_cat.h"
#include "tests/testing/sharding_printers.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Kind = Finding::Kind;

PartitionSpec Spec(const std::vector<std::string>& axes) {
  std::vector<SpecEntry> entries;
  for (const std::string& axis : axes) {
    entries.push_back(axis.empty() ? SpecEntry::None() : SpecEntry::Axis(axis));
  }
  return PartitionSpec(std::move(entries));
}

std::vector<LintTensor> Tree(const std::vector<std::string>& names) {
  std::vector<LintTensor> tree;
  for (const std::string& name : names) {
    tree.push_back({name, Shape{8, 8}});
  }
  return tree;
}

std::vector<LintMesh> Meshes(std::vector<std::pair<std::string, std::string>> meshes) {
  std::vector<LintMesh> out;
  for (const auto& [name, text] : meshes) {
    out.push_back({name, Mesh::Parse(text).value()});
  }
  return out;
}

// `KIND rules mesh modes reason count tensor`, with what is empty left out.
std::vector<std::string> Summaries(const LintReport& report) {
  std::vector<std::string> out;
  for (const Finding& finding : report.findings) {
    std::string text(FindingKindName(finding.kind));
    if (!finding.rules.empty()) {
      StrAppend(&text, " ", StrJoin(finding.rules, ","));
    }
    if (!finding.mesh.empty()) {
      StrAppend(&text, " ", finding.mesh);
    }
    if (!finding.modes.empty()) {
      StrAppend(&text, " ", finding.modes.size(), "modes:", RuntimeModeName(finding.modes[0]));
    }
    if (finding.reason != Reason::kUnspecified) {
      StrAppend(&text, " ", ReasonName(finding.reason));
    }
    StrAppend(&text, " x", finding.count, finding.tensor.empty() ? "" : " ", finding.tensor);
    EXPECT_FALSE(finding.text.empty());
    out.push_back(std::move(text));
  }
  return out;
}

std::vector<std::string> Lint(std::vector<Rule> rules, const std::vector<LintTensor>& tree,
                              const std::vector<LintMesh>& meshes = {},
                              const PartitionAxis* profile = nullptr,
                              const RuleSetOptions& rule_options = {}) {
  const absl::StatusOr<RuleSet> rule_set = RuleSet::Create(std::move(rules), rule_options);
  EXPECT_THAT(rule_set, test::IsOk());
  const absl::StatusOr<LintReport> report = LintRules(*rule_set, tree, profile, meshes);
  EXPECT_THAT(report, test::IsOk());
  return Summaries(*report);
}

TEST(RuleLintTest, HasNothingToSayOfOrdinaryRules) {
  EXPECT_THAT(Lint({{"attn/.*kernel$", Spec({"dp", "tp"})},
                    {"kernel$", Spec({"tp", "dp"})},
                    {".*", Spec({})}},
                   Tree({"attn/q/kernel", "mlp/kernel", "mlp/bias"}),
                   Meshes({{"a", "dp=2,tp=4"}, {"b", "dp=8,tp=1"}})),
              IsEmpty());
}

TEST(RuleLintTest, FindsRulesThatMatchNothing) {
  EXPECT_THAT(Lint({{"kernal$", Spec({"tp"})}, {".*", Spec({})}}, Tree({"mlp/kernel"})),
              ElementsAre("DEAD 0 x0"));
}

TEST(RuleLintTest, LooksAtSeveralTreesAsIfTheyWereOneAndTellsWhatEachAdds) {
  // Rule 0 is dead in the second tree, 1 in the first and shadowed in the second, 2 in all.
  const RuleSet rules = *RuleSet::Create({{"attn", Spec({"tp"})},
                                          {"gate", Spec({"tp"})},
                                          {"nosuch", Spec({})},
                                          {"kernel", Spec({"dp"})},
                                          {"(", Spec({})}},
                                         {.defer_pattern_errors = true});
  std::vector<LintTensor> tensors = Tree({"attn", "bias", "kernel"});
  for (const char* name : {"bias", "head", "gate.kernel"}) {
    tensors.push_back({name, Shape{6, 8}, nullptr, /*tree=*/1});
  }
  const std::vector<LintMesh> meshes = Meshes({{"m", "dp=4,tp=4"}});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const LintReport report,
      LintRules(rules, tensors, nullptr, meshes, {.trees = {"tree 'a'", "tree 'b'", "nothing"}}));
  EXPECT_THAT(Summaries(report),
              ElementsAre("BAD_PATTERN 4 BAD_PATTERN x0", "DEAD 2 x0", "UNMATCHED x2 bias",
                          "UNMATCHED x1 head", "CORRECTED 1 m NOT_DIVISIBLE x1 gate.kernel"));
  using In = Finding::InTree;
  EXPECT_THAT(report.findings[1].text,
              HasSubstr("matches none of 6 tensors that go by rules, of 3 trees"));
  EXPECT_THAT(report.findings[1].trees, IsEmpty());
  EXPECT_THAT(report.findings[2].trees, ElementsAre(In{0, 1}, In{1, 1}));
  EXPECT_THAT(report.findings[2].text, HasSubstr(" (in tree 'a', tree 'b')"));
  EXPECT_THAT(report.findings[3].trees, ElementsAre(In{1, 1}));
  EXPECT_THAT(report.findings[3].text, HasSubstr(" (in tree 'b')"));
  EXPECT_THAT(
      report.trees,
      ElementsAre(LintTreeReport{.tensors = 3, .dead_rules = 2, .unmatched_tensors = 1},
                  LintTreeReport{
                      .tensors = 3, .dead_rules = 2, .shadowed_rules = 1, .unmatched_tensors = 2},
                  LintTreeReport{.dead_rules = 4}));
}

TEST(RuleLintTest, SaysTheSameOfTreesTogetherAsOfOneTreeOfTheirTensors) {
  std::mt19937 random(7);  // NOLINT: the same numbers each time
  const std::vector<std::string> words = {"attn", "mlp", "kernel", "bias", "q", "norm"};
  const auto pick = [&](size_t count) { return static_cast<size_t>(random()) % count; };
  for (int round = 0; round < 200; ++round) {
    std::vector<Rule> list;
    for (size_t i = 0; i < 1 + pick(5); ++i) {
      list.push_back({words[pick(words.size())], Spec({pick(2) == 0 ? "dp" : "tp"})});
    }
    const RuleSet rules = *RuleSet::Create(list);
    std::vector<LintTensor> apart;
    LintOptions options;
    for (int64_t tree = 0; tree < 3; ++tree) {
      options.trees.push_back(StrCat("t", tree));
      for (size_t i = 0; i < pick(6); ++i) {
        apart.push_back({StrCat(words[pick(words.size())], ".", words[pick(words.size())]),
                         Shape{static_cast<int64_t>(1 + pick(6))}, nullptr, tree});
      }
    }
    std::vector<LintTensor> together = apart;
    for (LintTensor& tensor : together) {
      tensor.tree = 0;
    }
    const std::vector<LintMesh> meshes = Meshes({{"m", "dp=2,tp=3"}});
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const LintReport of_trees,
                                   LintRules(rules, apart, nullptr, meshes, options));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const LintReport of_one,
                                   LintRules(rules, together, nullptr, meshes));
    EXPECT_EQ(Summaries(of_trees), Summaries(of_one));
    LintTreeReport sum;
    for (int64_t tree = 0; tree < 3; ++tree) {
      // What is said of a tree is what is said of it alone.
      std::vector<LintTensor> alone;
      for (const LintTensor& tensor : apart) {
        if (tensor.tree == tree) {
          alone.push_back(tensor);
          alone.back().tree = 0;
        }
      }
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const LintReport of_tree,
                                     LintRules(rules, alone, nullptr, meshes));
      const LintTreeReport& said = of_trees.trees[static_cast<size_t>(tree)];
      EXPECT_EQ(said, of_tree.trees[0]);
      EXPECT_EQ(said.dead_rules, of_tree.counts[static_cast<size_t>(Kind::kDead)]);
      EXPECT_EQ(said.shadowed_rules, of_tree.counts[static_cast<size_t>(Kind::kShadowed)]);
      sum.tensors += said.tensors;
      sum.unmatched_tensors += said.unmatched_tensors;
    }
    EXPECT_EQ(sum.tensors, of_one.trees[0].tensors);
    EXPECT_EQ(sum.unmatched_tensors, of_one.trees[0].unmatched_tensors);
    for (const Finding& finding : of_trees.findings) {
      int64_t count = 0;
      for (const Finding::InTree& in : finding.trees) {
        count += in.tensors;
      }
      EXPECT_EQ(count, finding.count) << finding.text;
    }
  }
}

TEST(RuleLintTest, TakesNoNoticeOfTensorsThatNoRuleIsAskedAbout) {
  std::vector<LintTensor> tree = Tree({"w"});
  tree.push_back({"scale", Shape{}});
  tree.push_back({"step", std::nullopt});
  EXPECT_THAT(Lint({{"scale", Spec({})}, {"w", Spec({})}}, tree), ElementsAre("DEAD 0 x0"));
  RuleSetOptions options;
  options.strict = false;
  EXPECT_THAT(Lint({{"scale", Spec({})}, {"w", Spec({})}}, tree, {}, nullptr, options),
              ElementsAre("UNMATCHED x1 step"));
}

TEST(RuleLintTest, CountsTheScalarsThatNoRuleIsAskedAbout) {
  const std::vector<AxisValue> axes;
  std::vector<LintTensor> tree = Tree({"w"});
  tree.push_back({"scale", Shape{}});
  tree.push_back({"axes", Shape{}, &axes});
  tree.push_back({"step", std::nullopt, nullptr, 1});
  tree.push_back({"last", Shape{}, nullptr, 1});
  LintOptions options;
  options.trees = {"a", "b"};
  for (const bool strict : {true, false}) {
    const RuleSet rules = *RuleSet::Create({{".*", Spec({})}}, {.strict = strict});
    const auto report = LintRules(rules, tree, nullptr, {}, options);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->trees[0].tensors, 3);
    EXPECT_EQ(report->trees[0].scalars, strict ? 1 : 0);
    EXPECT_EQ(report->trees[1].scalars, strict ? 2 : 0);
  }
}

TEST(RuleLintTest, FindsRulesOfWhichEarlierOnesTakeAll) {
  EXPECT_THAT(Lint({{"q", Spec({"tp"})},
                    {"kernel", Spec({"dp"})},
                    {"[qk]/kernel", Spec({"sp"})},
                    {".*", Spec({})}},
                   Tree({"k/kernel", "q/kernel", "v/kernel", "q/bias", "x"})),
              ElementsAre("SHADOWED 2,0,1 x2 k/kernel", "CONFLICTING 0,1 x1 q/kernel"));
}

TEST(RuleLintTest, FindsRulesThatOnlyTheirOrderTellsApart) {
  const std::vector<LintTensor> tree = Tree({"attn/kernel", "attn/bias", "mlp/kernel"});
  EXPECT_THAT(Lint({{"attn", Spec({"tp"})}, {"kernel", Spec({"dp"})}}, tree),
              ElementsAre("CONFLICTING 0,1 x1 attn/kernel"));
  // The same spec, or the same once the tensor's rank is known.
  EXPECT_THAT(Lint({{"attn", Spec({"tp"})}, {"kernel", Spec({"tp", "", "dp"})}}, tree),
              ElementsAre("CORRECTED 1 RANK_TRUNCATED x1 mlp/kernel"));
  // A special case of a later rule.
  EXPECT_THAT(Lint({{"attn/kernel", Spec({"tp"})}, {"kernel", Spec({"dp"})}, {"", {}}}, tree),
              IsEmpty());
  // Too small to be partitioned at all.
  RuleSetOptions options;
  options.min_size = 65;
  EXPECT_THAT(Lint({{"attn", Spec({"tp"})}, {"kernel", Spec({"dp"})}}, tree, {}, nullptr, options),
              IsEmpty());
}

TEST(RuleLintTest, ListsTensorsWithoutARule) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet rules, RuleSet::Create({{"mlp/kernel$", {}}}));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const LintReport report,
      LintRules(rules, Tree({"mlp/kernel", "mlp/kernel_2", "x"}), nullptr, {}));
  EXPECT_THAT(Summaries(report), ElementsAre("UNMATCHED x1 mlp/kernel_2", "UNMATCHED x1 x"));
  EXPECT_EQ(report.findings[0].text,
            "no rule matches 'mlp/kernel_2'; nearest: rule 0 'mlp/kernel$'");
}

TEST(RuleLintTest, CountsCorrectionsOnEveryMeshAndNamesTheWorst) {
  std::vector<LintTensor> tree = Tree({"a", "b"});
  tree.push_back({"c", Shape{7, 100}});
  tree.push_back({"d", Shape{16}});
  EXPECT_THAT(
      Lint({{"", Spec({"dp", "tp"})}}, tree, Meshes({{"small", "dp=2,tp=4"}, {"large", "dp=16"}})),
      ElementsAre("CORRECTED 0 RANK_TRUNCATED x1 d", "CORRECTED 0 small NOT_DIVISIBLE x1 c",
                  "CORRECTED 0 large NOT_DIVISIBLE x3 c",
                  "CORRECTED 0 large AXIS_NOT_IN_MESH x3 c"));
}

TEST(RuleLintTest, NamesTheAxesThatAMeshLacksAndThoseThatWereProbablyMeant) {
  const auto text_of = [](const std::vector<std::string>& spec, const std::string& mesh) {
    const absl::StatusOr<RuleSet> rules = RuleSet::Create({{"", Spec(spec)}}, {});
    const std::vector<LintTensor> tree = {{"w", Shape(spec.size(), 8)}};
    return LintRules(*rules, tree, nullptr, Meshes({{"m", mesh}}))->findings.front().text;
  };
  EXPECT_EQ(text_of({"fsd", "tp"}, "fsdp=2,tp=2"),
            "rule 0 '' on mesh 'm': the mesh lacks the axis 'fsd' (did you mean 'fsdp'?), for 1 "
            "tensor, the largest 'w'");
  // One usual axis is no misspelling of another.
  EXPECT_THAT(text_of({"sp", "model"}, "fsdp=2,tp=2"),
              HasSubstr(": the mesh lacks the axes 'sp', 'model', for 1 tensor"));
  EXPECT_THAT(text_of({"a", "b", "c", "d"}, "fsdp=2,tp=2"),
              HasSubstr(": the mesh lacks the axes 'a', 'b', 'c' and 1 more, for 1 tensor"));
}

TEST(RuleLintTest, CountsAnAxisNearOneOfTheMeshAsMisspeltBesideItsCorrections) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet rules, RuleSet::Create({{"a", Spec({"tp", "fspd"})},
                                                                       {"b", Spec({"none"})},
                                                                       {"", Spec({"fsdp+tp"})}}));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const LintReport report,
      LintRules(rules, Tree({"a1", "a2", "b", "c"}), nullptr, Meshes({{"m", "fsdp=2,tp=2"}})));
  EXPECT_THAT(
      Summaries(report),
      ElementsAre("CORRECTED 0 m AXIS_NOT_IN_MESH x2 a1", "CORRECTED 1 m AXIS_NOT_IN_MESH x1 b",
                  "CORRECTED 2 m AXIS_NOT_IN_MESH x1 c", "MISSPELT_AXIS 0 AXIS_NOT_IN_MESH x2 a1",
                  "MISSPELT_AXIS 1 AXIS_NOT_IN_MESH x1 b",
                  "MISSPELT_AXIS 2 AXIS_NOT_IN_MESH x1 c"));
  EXPECT_EQ(report.findings[3].text,
            "rule 0 'a': no mesh has the axis 'fspd'; did you mean 'fsdp'?");
  EXPECT_EQ(report.findings[4].text,
            "rule 1 'b': no mesh has the axis 'none'; write null for no axis");
  EXPECT_EQ(report.findings[5].text,
            "rule 2 '': no mesh has the axis 'fsdp+tp'; write [a, b] for several axes");
}

TEST(RuleLintTest, TakesNoAxisForMisspeltThatAMeshMayHave) {
  const std::vector<LintTensor> tree = Tree({"w"});
  const auto misspelt = [&](const std::string& axis, const std::vector<LintMesh>& meshes) {
    const std::vector<std::string> found = Lint({{"", Spec({axis})}}, tree, meshes);
    return testing::Value(found, testing::Contains(HasSubstr("MISSPELT_AXIS")));
  };
  EXPECT_TRUE(misspelt("TP", Meshes({{"m", "fsdp=2,tp=2"}})));
  EXPECT_FALSE(misspelt("cp", Meshes({{"m", "fsdp=2,tp=2"}}))) << "two letters";
  EXPECT_FALSE(misspelt("sp", Meshes({{"m", "fsdp=2,tp=2"}}))) << "a usual axis";
  EXPECT_FALSE(misspelt("model", Meshes({{"m", "fsdp=2,tp=2"}}))) << "nothing is near";
  EXPECT_FALSE(misspelt("data", Meshes({{"a", "date=2"}, {"b", "data=2"}}))) << "of another mesh";
  EXPECT_FALSE(misspelt("fspd", {})) << "no mesh";
}

TEST(RuleLintTest, FindsAnAxisThatStaysTwiceOnTheMeshesWhereItDoes) {
  const std::vector<Rule> rules = {{"", Spec({"tp", "tp"})}};
  const std::vector<LintTensor> tree = {{"w", Shape{8, 3}}, {"v", Shape{8, 8}}};
  EXPECT_THAT(Lint(rules, tree), ElementsAre("DUPLICATE_AXIS 0 x2 w"));
  EXPECT_THAT(Lint(rules, tree, Meshes({{"one", "tp=2"}, {"none", "dp=2"}})),
              ElementsAre("DUPLICATE_AXIS 0 one x1 v", "CORRECTED 0 one NOT_DIVISIBLE x1 w",
                          "CORRECTED 0 none AXIS_NOT_IN_MESH x2 v"));
}

TEST(RuleLintTest, LooksAtSemanticAxesInEveryMode) {
  const auto axes = [](const std::vector<std::string_view>& names) {
    std::vector<AxisValue> values;
    for (const std::string_view name : names) {
      values.push_back(AxisValue::Name(std::string(name)));
    }
    return values;
  };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const PartitionAxis profile,
      PartitionAxis::Create({{{"decode_head_axis", AxisValue::Name("fsdp")},
                              {"decode_batch_axis", AxisValue::Name("fsdp")}}}));
  const std::vector<AxisValue> twice = axes({semantic::kBatch, semantic::kHead});
  const std::vector<AxisValue> always = axes({semantic::kHead, semantic::kVocab});
  const std::vector<AxisValue> odd = axes({semantic::kVocab, semantic::kEmpty});
  const std::vector<AxisValue> wrong = axes({"__NONE_SUCH__"});
  const std::vector<LintTensor> tree = {{"twice", Shape{8, 8}, &twice},
                                        {"always", Shape{8, 8}, &always},
                                        {"odd", Shape{7, 8}, &odd},
                                        {"wrong", Shape{8}, &wrong},
                                        {"plain", Shape{8}}};
  EXPECT_THAT(Lint({{"always", {}}}, tree, Meshes({{"m", "dp=2,fsdp=2,tp=2"}}), &profile),
              // Rules are asked about the one without axes.
              ElementsAre("DEAD 0 x0", "UNMATCHED x1 plain",
                          "BAD_AXES 4modes:__train__ UNKNOWN_AXIS x1 wrong",
                          "DUPLICATE_AXIS m 2modes:__train__ x1 always",
                          "DUPLICATE_AXIS m 2modes:__autoregressive__ x1 twice",
                          "CORRECTED m 4modes:__train__ NOT_DIVISIBLE x1 odd"));
}

TEST(RuleLintTest, ListsPatternsThatCannotBeUsed) {
  RuleSetOptions options;
  options.defer_pattern_errors = true;
  EXPECT_THAT(Lint({{"(", {}}, {"\\N{SPACE}", {}}, {"", {}}}, Tree({"w"}), {}, nullptr, options),
              ElementsAre("BAD_PATTERN 0 BAD_PATTERN x0", "BAD_PATTERN 1 UNSUPPORTED_PATTERN x0"));
}

TEST(RuleLintTest, ListsPatternsWhoseSearchTakesTooManySteps) {
  const std::string slow(40, 'a');
  // The second rule is never reached in matching, so the list works.
  EXPECT_THAT(Lint({{"a", Spec({"tp"})}, {"(a+)+(?!a)b", {}}}, Tree({"a", slow, slow})),
              ElementsAre("BAD_PATTERN 1 LIMIT_EXCEEDED x2 " + slow));
  EXPECT_THAT(Lint({{"(a+)+(?!a)b", {}}}, Tree({slow})),
              ElementsAre("BAD_PATTERN 0 LIMIT_EXCEEDED x1 " + slow));
  EXPECT_THAT(Lint({{"(a+)+(?!a)b", {}}, {"^a", {}}, {"c", {}}}, Tree({"a", slow})),
              ElementsAre("BAD_PATTERN 0 LIMIT_EXCEEDED x1 " + slow, "DEAD 2 x0"));
}

TEST(RuleLintTest, BoundsTheFindingsOfAKindAndCountsTheRest) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet rules, RuleSet::Create({{"dead", {}}}));
  LintOptions options;
  options.max_findings_per_kind = 2;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const LintReport report, LintRules(rules, Tree({"a", "b", "c", "d"}), nullptr, {}, options));
  EXPECT_THAT(report.findings, SizeIs(3));
  EXPECT_EQ(report.counts[static_cast<size_t>(Kind::kUnmatched)], 4);
  EXPECT_EQ(report.counts[static_cast<size_t>(Kind::kDead)], 1);
  EXPECT_FALSE(report.clean());
}

TEST(RuleLintTest, RefusesABadShapeAndCanBeStopped) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSet rules, RuleSet::Create({{"", {}}}));
  const absl::Status bad =
      LintRules(rules, std::vector<LintTensor>{{"w", Shape{-1}}}, nullptr, {}).status();
  EXPECT_THAT(bad, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidShape));
  EXPECT_THAT(bad.ToString(), HasSubstr("tensor 'w'"));
  LintOptions options;
  options.is_cancelled = [] { return true; };
  EXPECT_EQ(LintRules(rules, Tree({"w"}), nullptr, {}, options).status().code(),
            absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace shardmesh
