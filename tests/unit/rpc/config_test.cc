// YAML files as users write them, and the ways to get them wrong.
#include "rpc/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::rpc {
namespace {

using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;
using ::testing::HasSubstr;

using ::shardmesh::test::kInvalid;

std::string RulesError(std::string_view text) {
  const auto rules = ParseRules(text, "r.yaml");
  EXPECT_EQ(rules.status().code(), kInvalid);
  return std::string(rules.status().message());
}

TEST(ConfigTest, ReadsRules) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSetDefinition definition, ParseRules(R"(
# A comment.
rules:
  - {pattern: 'dense\.weight$', spec: [fsdp, [tp, sp], null]}
  - pattern: ".*"
    spec: []
min_size: 16
strict: false
separator: /
)",
                                                                                "r.yaml"));
  const auto rules = definition.rules.rules();
  ASSERT_EQ(rules.size(), 2u);
  EXPECT_EQ(rules[0].pattern, R"(dense\.weight$)");
  EXPECT_EQ(rules[0].spec.ToString(), "P('fsdp', ('tp', 'sp'), None)");
  EXPECT_EQ(rules[1].spec, PartitionSpec());
  EXPECT_EQ(definition.rules.min_size(), 16);
  EXPECT_FALSE(definition.rules.strict());
  EXPECT_TRUE(definition.slashes);
}

TEST(ConfigTest, RulesHaveDefaults) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSetDefinition plain, ParseRules("rules: []", "r.yaml"));
  EXPECT_EQ(plain.rules.min_size(), 0);
  EXPECT_TRUE(plain.rules.strict());
  EXPECT_FALSE(plain.slashes);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSetDefinition null,
                                 ParseRules("rules: []\nmin_size: null", "r.yaml"));
  EXPECT_EQ(null.rules.min_size(), RuleSet::kDefaultMinSize);
}

TEST(ConfigTest, ErrorsNameThePlaceAndTheNearestKey) {
  EXPECT_THAT(RulesError("rules:\n  - {patern: a, spec: []}"),
              HasSubstr("r.yaml:2:6: unknown key \"patern\" in a rule; did you mean \"pattern\"?"));
  EXPECT_THAT(RulesError("rules: []\nrules: []"), HasSubstr("r.yaml:2:1: key \"rules\" occurs"));
  EXPECT_THAT(RulesError("rules:\n  - {pattern: a}"), HasSubstr("a rule without spec"));
  EXPECT_THAT(RulesError("rules:\n  - {pattern: a, spec: tp}"), HasSubstr("r.yaml:2:24: spec"));
  EXPECT_THAT(RulesError("rules:\n  - {pattern: a, spec: [[[tp]]]}"), HasSubstr("r.yaml:2:"));
  EXPECT_THAT(RulesError("rules:\n  - {pattern: '(', spec: []}"), HasSubstr("r.yaml:2:15: "));
  EXPECT_THAT(RulesError("rules: []\nstrict: 1"), HasSubstr("r.yaml:2:9: strict"));
  EXPECT_THAT(RulesError("rules: []\nmin_size: -1"), HasSubstr("at least 0"));
  EXPECT_THAT(RulesError("rules: []\nseparator: '-'"), HasSubstr("r.yaml:2:12: separator"));
  EXPECT_THAT(RulesError("rules: [\n"), HasSubstr("not YAML"));
  EXPECT_THAT(RulesError("[]"), HasSubstr("must be a mapping"));
  EXPECT_THAT(RulesError(""), HasSubstr("must be a mapping"));
}

TEST(ConfigTest, TellsLogicalRulesFromRulesByName) {
  EXPECT_THAT(
      RulesError("logical_axis_rules: [[batch, data]]"),
      HasSubstr("r.yaml:1:1: this is a file of logical rules; `shardmesh logical resolve`"));
  EXPECT_THAT(
      std::string(ParseLogicalRules("logical_axis_rule: [[batch, data]]", "l").status().message()),
      HasSubstr("did you mean \"logical_axis_rules\"?"));
}

TEST(ConfigTest, TellsMapsOfNamesFromRulesByName) {
  EXPECT_THAT(RulesError("tensors:\n  - {pattern: a}\nunmatched: error"),
              HasSubstr("r.yaml:1:1: this is a map of names; give it with --map"));
  EXPECT_THAT(
      std::string(
          ParseTensorMap("rules:\n  - {pattern: a, spec: []}", "m.yaml").status().message()),
      HasSubstr("m.yaml:1:1: this is a rules file; give it with --rules"));
}

TEST(ConfigTest, ErrorsKeepTheReasonOfTheAlgebra) {
  EXPECT_THAT(ParseRules("rules: [{pattern: '(', spec: []}]", "r").status(),
              StatusIs(kInvalid, Reason::kBadPattern));
  EXPECT_THAT(ParseRules("x: 1", "r").status(), StatusIs(kInvalid, Reason::kBadFile));
  EXPECT_THAT(ParseRules(std::string(static_cast<size_t>(kMaxConfigBytes) + 1, ' '), "r").status(),
              StatusIs(kInvalid, Reason::kLimitExceeded));
}

TEST(ConfigTest, TakesExclusionsAndNamesThePlaceOfAPatternThatIsNotSupported) {
  const auto rules = [](const std::string& pattern) {
    return "rules:\n  - {pattern: '" + pattern + "', spec: [tp]}\n  - {pattern: '.*', spec: []}";
  };
  EXPECT_THAT(ParseRules(rules("^(?!.*bias)"), "r.yaml").status(), test::IsOk());
  EXPECT_THAT(RulesError(rules("\\N{SPACE}")),
              AllOf(HasSubstr("r.yaml:2:15: "), HasSubstr("named character \\N{SPACE}")));
}

TEST(ConfigTest, KeepsFaultyPatternsIfExact) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const RuleSetDefinition definition,
      ParseRules("rules: [{pattern: '(', spec: []}, {pattern: '^(?!a)', spec: []}]", "r.yaml",
                 Compatibility::kExact));
  EXPECT_EQ(definition.rules.PatternStatus(0).code(), kInvalid);
  EXPECT_EQ(definition.rules.rules()[1].pattern, "^(?!a)");
}

TEST(ConfigTest, WritesRulesAsItReadsThem) {
  const std::string patterns[] = {"a",     "",     "it's", "#x: [y]", "null", "a\nb",
                                  "\"\\d", "käse", " a ",  "~",       "*a",   "\x01"};
  std::vector<Rule> rules;
  for (const std::string& pattern : patterns) {
    std::string axis = pattern.empty() ? "tp" : pattern;
    rules.push_back({pattern, PartitionSpec({SpecEntry::Axis(axis), SpecEntry::None(),
                                             SpecEntry::Axes({axis, "null", "true"})})});
  }
  RuleSetOptions options;
  options.min_size = 7;
  options.strict = false;
  options.defer_pattern_errors = true;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(RuleSet rule_set, RuleSet::Create(rules, options));
  const std::string text = FormatRules({.rules = std::move(rule_set), .slashes = true});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSetDefinition back,
                                 ParseRules(text, "r.yaml", Compatibility::kExact));
  ASSERT_EQ(back.rules.rules().size(), rules.size()) << text;
  for (size_t i = 0; i < rules.size(); ++i) {
    EXPECT_EQ(back.rules.rules()[i].pattern, rules[i].pattern) << text;
    EXPECT_EQ(back.rules.rules()[i].spec, rules[i].spec) << text;
  }
  EXPECT_EQ(back.rules.min_size(), 7);
  EXPECT_FALSE(back.rules.strict());
  EXPECT_TRUE(back.slashes);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSetDefinition open,
                                 ParseRules("{rules: [], min_size: null}", "r.yaml"));
  EXPECT_TRUE(ParseRules(FormatRules(open), "r.yaml")->default_min_size);
}

TEST(ConfigTest, HostileFilesEndInErrors) {
  std::string deep;
  for (int i = 0; i < 100'000; ++i) {
    deep += "- ";
  }
  EXPECT_THAT(RulesError(deep), HasSubstr("r.yaml"));
  EXPECT_THAT(RulesError(std::string(100'000, '[')), HasSubstr("r.yaml"));
  std::string wide = "rules:\n- {pattern: a, spec: &s [";
  for (int i = 0; i < 1000; ++i) {
    wide += "tp, ";
  }
  EXPECT_THAT(RulesError(wide + "tp]}"), HasSubstr("at most 16"));
}

TEST(ConfigTest, KeepsTheLimitsOfTheWire) {
  const std::string name(256, 'x');
  const auto rules = ParseRules("rules: [{pattern: a, spec: [" + name + "]}]", "r.yaml");
  EXPECT_THAT(rules, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
  EXPECT_THAT(std::string(rules.status().message()),
              AllOf(HasSubstr("r.yaml"), HasSubstr("256"), HasSubstr("255")));
  EXPECT_THAT(ParseProfile("batch_axis: " + name, "p.yaml"),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
}

TEST(ConfigTest, ReadsProfiles) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PartitionAxis profile, ParseProfile(R"(
batch_axis: [fsdp, dp]
head_axis: null
semantic_axes:
  - {name: __MINE__, value: [tp, sp], generation_value: null}
)",
                                                                           "p.yaml"));
  EXPECT_TRUE(profile.field(AxisField::kHead).is_none());
  ASSERT_EQ(profile.semantic_axes().size(), 1u);
  EXPECT_TRUE(profile.semantic_axes()[0].generation_value->is_none());
  EXPECT_TRUE(ParseProfile("", "p.yaml").value() == PartitionAxis());
  EXPECT_THAT(std::string(ParseProfile("head_axs: tp", "p.yaml").status().message()),
              HasSubstr("p.yaml:1:1: unknown key \"head_axs\" in a profile file; did you mean "
                        "\"head_axis\"?"));
}

TEST(ConfigTest, ReadsTheTypesOfAMeshsAxes) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const MeshDefinition mesh,
      ParseMesh("axes: [{name: dp, size: 2, type: explicit}, {name: tp, size: 4}, "
                "{name: pp, size: 1, type: manual}, {name: ep, size: 1, type: auto}]",
                "m.yaml"));
  EXPECT_EQ(mesh.mesh.ToString(), "dp=2:explicit,tp=4,pp=1:manual,ep=1");
  const absl::Status status =
      ParseMesh("axes: [{name: dp, size: 2, type: explict}]", "m.yaml").status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("m.yaml:1:34"), HasSubstr("did you mean \"explicit\"?")));
  EXPECT_THAT(ParseMesh("axes: [{name: dp, size: 2, type: [auto]}]", "m.yaml").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
}

TEST(ConfigTest, ReadsTheOrderOfAMeshsDevices) {
  const std::string axes = "axes: [{name: dp, size: 2}, {name: tp, size: -1}]\n";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const MeshDefinition mesh,
                                 ParseMesh(axes + "devices: [0, 1, 3, 2]", "m.yaml"));
  EXPECT_EQ(mesh.mesh.ToString(), "dp=2,tp=2");
  EXPECT_EQ(mesh.mesh.GlobalIdOf(2), 3);
  for (const char* devices : {"[0, 1, 3]", "[0, 1, 1, 2]", "[0, 1, -2, 3]", "[]", "4", "[a, b]"}) {
    EXPECT_THAT(ParseMesh(axes + "devices: " + devices, "m.yaml").status(),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << devices;
  }
}

TEST(ConfigTest, ReadsMeshes) {
  const auto text = "axes: [{name: fsdp, size: -1}, {name: tp, size: 2}]\n";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const MeshDefinition mesh, ParseMesh(text, "m.yaml", 8));
  EXPECT_EQ(mesh.mesh.ToString(), "fsdp=4,tp=2");
  EXPECT_FALSE(ParseMesh(text, "m.yaml").ok());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const MeshDefinition named,
      ParseMesh(std::string(text) + "workers: [w0, w1, w2, w3]", "m.yaml"));
  EXPECT_EQ(named.mesh.ToString(), "fsdp=2,tp=2");
  EXPECT_EQ(named.workers.size(), 4u);
  EXPECT_THAT(ParseMesh("axes: [{name: a, size: 2}, {name: a, size: 2}]", "m.yaml").status(),
              StatusIs(kInvalid, Reason::kDuplicateAxis));
  EXPECT_THAT(
      std::string(ParseMesh(std::string(text) + "workers: [a, a]", "m.yaml").status().message()),
      HasSubstr("m.yaml:2:14: worker \"a\" serves two ranks"));
  EXPECT_THAT(
      ParseMesh(std::string(text) + "workers: [" + std::string(256, 'w') + "]", "m.yaml").status(),
      StatusIs(kInvalid, Reason::kLimitExceeded));
  EXPECT_THAT(ParseMesh(std::string(text) + "workers: [\"a\\n\", b]", "m.yaml").status(),
              StatusIs(kInvalid, Reason::kBadField));
}

TEST(ConfigTest, RefusesControlCharactersButEscapedOnes) {
  constexpr char kWithNul[] = "rules: [{pattern: 'a\0b', spec: []}]";
  EXPECT_THAT(ParseRules(std::string_view(kWithNul, sizeof(kWithNul) - 1), "r.yaml"),
              StatusIs(kInvalid, Reason::kBadFile));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const RuleSetDefinition rules,
      ParseRules("rules: [{pattern: \"a\\0\\x01b\", spec: []}]", "r.yaml"));
  ASSERT_EQ(rules.rules.rules()[0].pattern, std::string("a\0\x01"
                                                        "b",
                                                        4));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSetDefinition again,
                                 ParseRules(FormatRules(rules), "again.yaml"));
  EXPECT_EQ(again.rules.rules()[0].pattern, rules.rules.rules()[0].pattern);
}

TEST(ConfigTest, FilesThatCannotBeReadAreNamed) {
  const std::string missing = ::testing::TempDir() + "/none.yaml";
  EXPECT_THAT(LoadRules(missing).status(), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(std::string(LoadRules(missing).status().message()), HasSubstr(missing));
  EXPECT_THAT(LoadMesh(::testing::TempDir()).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  const std::string path = ::testing::TempDir() + "/mesh.yaml";
  std::ofstream(path) << "axes: [{name: tp, size: 2}]";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const MeshDefinition mesh, LoadMesh(path));
  EXPECT_EQ(mesh.mesh.size(), 2);
}

TEST(ConfigTest, ReadsLogicalRulesAsFlaxAndMaxTextWriteThem) {
  const auto ours = ParseLogicalRules(
      "rules:\n"
      "  - {name: batch, axes: [data, fsdp]}\n"
      "  - {name: heads, axes: tensor}\n"
      "  - {name: length, axes: null}\n",
      "ours.yaml");
  ASSERT_TRUE(ours.ok()) << ours.status();
  constexpr std::string_view kPairs =
      "[['batch', ['data', 'fsdp']], ['heads', 'tensor'], ['length', null]]";
  for (const std::string& text : {std::string(kPairs), StrCat("run_name: ''\nsteps: 150\n"
                                                              "logical_axis_rules: ",
                                                              kPairs, "\n")}) {
    const auto pairs = ParseLogicalRules(text, "base.yml");
    ASSERT_TRUE(pairs.ok()) << pairs.status();
    EXPECT_EQ(*pairs, *ours) << text;
  }
  const absl::Status triple = ParseLogicalRules("[[a, b, c]]", "x.yml").status();
  EXPECT_THAT(std::string(triple.message()), ::testing::HasSubstr("must be a pair"));
}

std::string MapError(std::string_view text) {
  const auto map = ParseTensorMap(text, "m.yaml");
  EXPECT_EQ(map.status().code(), kInvalid) << text;
  return std::string(map.status().message());
}

TEST(ConfigTest, ReadsMapsOfNames) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const TensorMap map, ParseTensorMap(R"(
tensors:
  - {pattern: 'layer\.(\d+)\.weight$', replace: 'h/\1/kernel', transpose: true, shape: [null, 8]}
  - {pattern: conv, transpose: [2, 3, 1, 0], dtype: bfloat16}
  - {pattern: position_ids, skip: true}
  - pattern: embedding
    dtype: I8
    channel: 1
unmatched: error
)",
                                                                     "m.yaml"));
  EXPECT_TRUE(map.refuse_unmatched);
  EXPECT_EQ(map.source, "m.yaml");
  ASSERT_EQ(map.rules.size(), 4u);
  EXPECT_EQ(**map.rules[0].replacement.Apply("layer.3.weight"), "h/3/kernel");
  EXPECT_TRUE(map.rules[0].reverse);
  EXPECT_EQ(map.rules[0].place, "m.yaml:3:5");
  EXPECT_EQ(*map.rules[0].shape, (std::vector<std::optional<int64_t>>{std::nullopt, 8}));
  EXPECT_EQ(map.rules[1].permutation, (std::vector<size_t>{2, 3, 1, 0}));
  EXPECT_EQ(map.rules[1].dtype, Dtype::kBF16);
  EXPECT_EQ(**map.rules[1].replacement.Apply("a.conv.b"), "a.conv.b");
  EXPECT_TRUE(map.rules[2].skip);
  EXPECT_EQ(map.rules[3].dtype, Dtype::kI8);
  EXPECT_EQ(map.rules[3].channel, 1u);
  EXPECT_FALSE(ParseTensorMap("tensors: []", "m.yaml")->refuse_unmatched);
  EXPECT_FALSE(ParseTensorMap("tensors: []\nunmatched: keep", "m.yaml")->refuse_unmatched);
}

TEST(ConfigTest, ErrorsOfMapsNameThePlaceAndTheKey) {
  const auto rule = [](std::string_view keys) {
    return StrCat("tensors:\n  - {pattern: 'a(b)', ", keys, "}");
  };
  const struct {
    std::string text;
    std::string message;
  } cases[] = {
      {"[]", "m.yaml:1:1: a map of names must be a mapping with the keys tensors, unmatched"},
      {"tensor: []", "did you mean \"tensors\"?"},
      {"unmatched: keep", "a map of names needs tensors"},
      {"tensors: {a: b}", "a map of names needs tensors"},
      {"tensors: []\nunmatched: eror", "m.yaml:2:12: unmatched is keep or error, not \"eror\""},
      {"tensors: [{replace: a}]", "m.yaml:1:11: a rule of a map without pattern"},
      {"tensors: [{pattern: '('}]", "m.yaml:1:21: bad pattern '('"},
      {"tensors: [{pattern: '\\N{SPACE}'}]", "named character"},
      {rule("replace: '\\2'"), "m.yaml:2:32: replacement '\\2': the pattern has no group '2'"},
      {rule("replace: '$1'"), "replace has $1; the text of a group is written \\1"},
      {rule("replace: 'a.$12b'"), "replace: '\\12'"},
      {rule("replace: \"\\2\""), "write patterns and replacements between single quotes"},
      {rule("replace: [a]"), "m.yaml:2:32: replace must be a text"},
      {rule("rename: b"), "unknown key \"rename\" in a rule of a map"},
      {rule("replace: b, replace: c"), "key \"replace\" occurs twice"},
      {rule("transpose: yes"), "m.yaml:2:34: transpose must be true"},
      {rule("transpose: {}"), "transpose must be true"},
      {rule("transpose: [0, 2]"),
       "transpose must name each of its 2 dimensions once, from 0; 2 is"},
      {rule("transpose: [1, 1]"), "from 0; 1 occurs twice"},
      {rule("transpose: [-1, 0]"), "-1 is none"},
      {rule("transpose: [a]"), "a dimension of transpose must be a whole number"},
      {rule("transpose: [0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,"
            "27,28,29,30,31,32,33]"),
       "dimensions of transpose; at most"},
      {rule("dtype: BF17"), "m.yaml:2:30"},
      {rule("dtype: I32"), "tensors cannot be converted to I32; dtype is one of F32, F16, BF16"},
      {rule("dtype: F64"), "tensors cannot be converted to F64"},
      {rule("dtype: I8"), "m.yaml:2:30: dtype I8 needs channel"},
      {rule("dtype: F16, channel: 0"), "m.yaml:2:44: channel is for dtype I8 alone"},
      {rule("channel: 0"), "channel is for dtype I8 alone"},
      {rule("dtype: I8, channel: -1"), "channel -1 is no dimension"},
      {rule("dtype: I8, channel: x"), "channel must be a whole number"},
      {rule("skip: maybe"), "skip must be true or false"},
      {rule("skip: true, dtype: F16"), "a rule with skip: true has no other key but pattern"},
      {rule("shape: 3"), "shape must be a sequence"},
      {rule("shape: [-3]"), "an extent of shape is -3"},
      {rule("shape: [a]"), "an extent of shape must be a whole number"},
      {rule("transpose: [1, 0], shape: [3]"), "shape has 1 dimensions, but transpose has 2"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(MapError(c.text), HasSubstr(c.message)) << c.text;
  }
  EXPECT_THAT(LoadTensorMap("/nowhere/m.yaml"), StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace shardmesh::rpc
