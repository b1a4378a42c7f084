// Tests of sharding/rules/logical_rules.h beyond the recorded answers of flax.
#include "sharding/rules/logical_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <ostream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "status/python_repr.h"
#include "status/reason.h"
#include "tests/testing/sharding_printers.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {

void PrintTo(const LogicalRule& rule, std::ostream* out) {
  *out << "(" << PythonRepr(rule.name) << ", " << rule.mesh_axes.ToString() << ")";
}

namespace {

using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using ::shardmesh::test::kInvalid;

AxisValue N(std::string name) { return AxisValue::Name(std::move(name)); }
AxisValue T(std::vector<AxisValue> entries) { return AxisValue::Tuple(std::move(entries)); }
const AxisValue kNone = AxisValue::None();
const AxisValue kOpen = AxisValue::Unconstrained();

PartitionSpec P(const std::vector<AxisValue>& entries) { return *PartitionSpec::Create(entries); }

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

// The rules and names of the header's example.
const LogicalRules& ExampleRules() {
  static const auto& kRules = *new LogicalRules{
      {"batch", N("x")}, {"features", N("x")}, {"heads", N("y")}, {"batch", N("z")}};
  return kRules;
}
const std::vector<AxisValue>& ExampleNames() {
  static const auto& kNames =
      *new std::vector<AxisValue>{N("batch"), N("length"), N("heads"), N("features")};
  return kNames;
}

// ---- Random questions ---------------------------------------------------------------------------

const std::vector<std::string>& Pool() {
  static const auto& kPool = *new std::vector<std::string>{"a", "b", "c", "d", "e", "f", "g"};
  return kPool;
}

// Distinct mesh axes; sometimes none.
AxisValue RandomAxes(std::mt19937& random) {
  std::vector<std::string> axes = {"x", "y", "z", "w", "v"};
  std::shuffle(axes.begin(), axes.end(), random);
  switch (random() % 5) {
    case 0:
      return kNone;
    case 1:
    case 2:
      return N(axes[0]);
    default: {
      std::vector<AxisValue> entries;
      for (size_t i = 0; i < 1 + random() % 3; ++i) {
        entries.push_back(N(axes[i]));
      }
      return T(std::move(entries));
    }
  }
}

LogicalRules RandomRules(std::mt19937& random) {
  LogicalRules rules(random() % 12);
  for (LogicalRule& rule : rules) {
    rule = {Pool()[random() % Pool().size()], RandomAxes(random)};
  }
  return rules;
}

std::vector<AxisValue> RandomNames(std::mt19937& random) {
  std::vector<std::string> pool = Pool();
  std::shuffle(pool.begin(), pool.end(), random);
  std::vector<AxisValue> names;
  for (size_t i = 0; i < random() % 6; ++i) {
    const auto kind = random() % 10;
    names.push_back(kind == 0 ? kNone : kind == 1 ? kOpen : N(pool[i]));
  }
  return names;
}

// ---- flax.core.spmd -----------------------------------------------------------------------------

TEST(CompositeRulesTest, AnEmptyListLeavesTheOtherAsItIs) {
  const LogicalRules repeated = {{"a", N("x")}, {"a", N("y")}, {"a", N("x")}};
  EXPECT_THAT(CompositeRules(repeated, {}), IsOkAndHolds(repeated));
  EXPECT_THAT(CompositeRules({}, repeated), IsOkAndHolds(repeated));
  EXPECT_THAT(CompositeRules({}, {}), IsOkAndHolds(LogicalRules()));
}

TEST(CompositeRulesTest, TheLastOfTheFirstListWinsAtItsFirstPlace) {
  const LogicalRules first = {{"a", N("x")}, {"b", kNone}, {"a", N("y")}};
  const LogicalRules second = {{"c", N("z")}, {"a", N("y")}};
  EXPECT_THAT(CompositeRules(first, second),
              IsOkAndHolds(LogicalRules{{"a", N("y")}, {"b", kNone}, {"c", N("z")}}));
}

TEST(CompositeRulesTest, ADisagreementNamesTheAxisAndBothValues) {
  struct Case {
    LogicalRules first;
    LogicalRules second;
  };
  const Case cases[] = {
      {{{"a", N("x")}}, {{"a", N("y")}}},
      {{{"a", N("x")}}, {{"a", T({N("x")})}}},
      {{{"a", N("x")}, {"a", N("y")}}, {{"a", N("x")}}},
      {{{"b", N("x")}}, {{"a", N("x")}, {"a", kNone}}},
      {{{"a", T({N("x")})}}, {{"a", AxisValue::List({N("x")})}}},
  };
  for (const Case& c : cases) {
    const auto refused = CompositeRules(c.first, c.second);
    EXPECT_THAT(refused, StatusIs(kInvalid, Reason::kInvalidAxisValue));
    EXPECT_EQ(PythonTypeOf(refused.status()), "ValueError");
    EXPECT_THAT(MessageOf(refused.status()), HasSubstr("'a'"));
  }
  EXPECT_THAT(MessageOf(CompositeRules({{{"a", N("x")}}}, {{{"a", kNone}}}).status()),
              AllOf(HasSubstr("'x'"), HasSubstr("None")));
}

TEST(CompositeRulesTest, ComposingARuleListWithItselfKeepsWhatItMeans) {
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    const LogicalRules rules = RandomRules(random);
    const std::vector<AxisValue> names = RandomNames(random);
    const auto twice = CompositeRules(rules, rules);
    std::map<std::string, std::set<std::string>> values;
    for (const LogicalRule& rule : rules) {
      values[rule.name].insert(rule.mesh_axes.ToString());
    }
    const bool is_consistent = std::all_of(
        values.begin(), values.end(), [](const auto& entry) { return entry.second.size() == 1; });
    ASSERT_EQ(twice.ok(), is_consistent);
    if (twice.ok()) {
      EXPECT_EQ(twice->size(), values.size());
      EXPECT_EQ(ApplyLogicalRules(names, *twice), ApplyLogicalRules(names, rules));
    }
  }
}

TEST(ApplyLogicalRulesTest, ReplacesEachNameOnceByItsLastRule) {
  const LogicalRules rules = {{"a", N("b")},          {"b", N("x")},    {"c", N("y")},
                              {"c", kNone},           {"None", N("x")}, {"", N("x")},
                              {"('a',)", N("tuple")}, {"()", N("x")}};
  const std::vector<AxisValue> names = {
      N("a"), N("b"), N("c"), N("d"), kNone, N(""), T({N("a")}), T({}), T({N("a"), N("b")})};
  EXPECT_THAT(ApplyLogicalRules(names, rules),
              ElementsAre(N("b"), N("x"), kNone, N("d"), kNone, N(""), N("tuple"), T({}),
                          T({N("a"), N("b")})));
}

TEST(ResolveLogicalSpecTest, KnowsNoPrecedenceAmongDimensions) {
  EXPECT_THAT(ResolveLogicalSpec(ExampleNames(), ExampleRules()),
              IsOkAndHolds(P({N("z"), N("length"), N("y"), N("x")})));
  EXPECT_THAT(ResolveLogicalSpec({N("a"), N("a")}, {{{"a", N("x")}}}),
              IsOkAndHolds(P({N("x"), N("x")})));
}

TEST(ResolveLogicalSpecTest, RulesOfTheContextComeFirstAndMayNotBeContradicted) {
  const LogicalRules context = {{"a", N("x")}, {"a", N("y")}};
  const LogicalRules rules = {{"b", N("z")}};
  EXPECT_THAT(ResolveLogicalSpec({N("a"), N("b")}, rules, context),
              IsOkAndHolds(P({N("y"), N("z")})));
  EXPECT_THAT(ResolveLogicalSpec({N("a")}, {}, context), IsOkAndHolds(P({N("y")})));
  EXPECT_THAT(ResolveLogicalSpec({N("b")}, {{{"a", N("x")}}}, context),
              StatusIs(kInvalid, Reason::kInvalidAxisValue));
  // The other way round it is the context that disagrees with itself.
  EXPECT_THAT(ResolveLogicalSpec({N("b")}, context, rules),
              StatusIs(kInvalid, Reason::kInvalidAxisValue));
}

TEST(ResolveLogicalSpecTest, RefusesWhatIsNoSpec) {
  EXPECT_THAT(ResolveLogicalSpec({N("a")}, {{{"a", T({N("x"), T({N("y")})})}}}),
              StatusIs(kInvalid, Reason::kInvalidSpec));
}

// ---- shard_value --------------------------------------------------------------------------------

TEST(ResolveShardValueTest, TheTypesOfTheAxesDecide) {
  const std::vector<AxisValue> names = {N("a"), kNone};
  const LogicalRules rules = {{"a", T({N("x"), N("y")})}};
  const PartitionSpec spec = P({T({N("x"), N("y")}), kNone});
  const auto on = [&](std::string_view mesh) {
    return ResolveShardValue(names, rules, *Mesh::Parse(mesh));
  };
  using Decision = ShardValueDecision;
  EXPECT_THAT(on("x=2,y=2"), IsOkAndHolds(Decision{ShardValueAction::kConstrain, spec}));
  EXPECT_THAT(on("x=2:explicit,y=2:explicit"),
              IsOkAndHolds(Decision{ShardValueAction::kReshard, spec}));
  for (const std::string_view mesh : {"x=2:manual,y=2:manual", "x=2,y=2:explicit", "x=2:manual,y=2",
                                      "x=2:explicit,y=2:manual", "x=2:explicit,y=2:explicit,z=1"}) {
    const auto refused = on(mesh);
    EXPECT_THAT(refused, StatusIs(kInvalid, Reason::kInvalidMesh)) << mesh;
    EXPECT_EQ(PythonTypeOf(refused.status()), "ValueError");
  }
}

TEST(ResolveShardValueTest, WithoutNamesNothingIsAsked) {
  const LogicalRules a = {{"a", N("x")}};
  const LogicalRules b = {{"a", N("y")}};
  EXPECT_THAT(ResolveShardValue({}, a, Mesh(), b), IsOkAndHolds(ShardValueDecision{}));
  EXPECT_THAT(ResolveShardValue({}, {}, *Mesh::Parse("x=2:manual")),
              IsOkAndHolds(ShardValueDecision{}));
}

TEST(ResolveShardValueTest, RefusesInTheOrderOfFlax) {
  struct Case {
    std::vector<AxisValue> names;
    LogicalRules rules;
    Mesh mesh;
    Reason reason;
    std::string python_type;
  };
  const LogicalRules nested = {{"a", T({N("x"), T({})})}};
  const LogicalRules twice = {{"a", N("q")}, {"b", N("q")}};
  const LogicalRules unknown = {{"a", N("q")}};
  const LogicalRules half = {{"a", T({N("x"), kNone})}};
  const LogicalRules halves = {{"a", T({N("x"), kNone})}, {"b", T({N("y"), kNone})}};
  const Mesh mixed = *Mesh::Parse("x=2,y=2:explicit");
  const Mesh fixed = *Mesh::Parse("x=2:explicit,y=2:manual");
  const std::vector<Case> cases = {
      {{N("a")}, nested, Mesh(), Reason::kNoMesh, "ValueError"},
      {{N("a")}, nested, mixed, Reason::kInvalidSpec, "ValueError"},
      {{N("a"), N("b")}, twice, mixed, Reason::kDuplicateAxis, "DuplicateSpecError"},
      {{N("a"), N("b")}, halves, mixed, Reason::kDuplicateAxis, "DuplicateSpecError"},
      {{N("a")}, half, mixed, Reason::kAxisNotInMesh, "ValueError"},
      {{N("a"), kOpen}, unknown, fixed, Reason::kAxisNotInMesh, "ValueError"},
      {{kNone, kOpen}, {}, fixed, Reason::kUnconstrained, "ValueError"},
      {{kNone, kOpen}, {}, mixed, Reason::kInvalidMesh, "ValueError"},
  };
  for (const Case& c : cases) {
    const auto refused = ResolveShardValue(c.names, c.rules, c.mesh);
    EXPECT_THAT(refused, StatusIs(kInvalid, c.reason));
    EXPECT_EQ(PythonTypeOf(refused.status()), c.python_type) << refused.status();
  }
}

// ---- flax.linen ---------------------------------------------------------------------------------

TEST(ResolveLogicalAxesTest, AMeshAxisGoesToTheFirstRuleThatCanHaveIt) {
  EXPECT_THAT(ResolveLogicalAxes(ExampleNames(), ExampleRules()),
              IsOkAndHolds(P({N("x"), kNone, N("y"), kNone})));
  // The order of the rules counts, not that of the dimensions.
  EXPECT_THAT(ResolveLogicalAxes({N("features"), N("batch")}, ExampleRules()),
              IsOkAndHolds(P({kNone, N("x")})));
  // A taken axis leaves the next rule of the name.
  LogicalRules rules = ExampleRules();
  std::rotate(rules.begin(), rules.begin() + 1, rules.end());
  EXPECT_THAT(ResolveLogicalAxes(ExampleNames(), rules),
              IsOkAndHolds(P({N("z"), kNone, N("y"), N("x")})));
}

TEST(ResolveLogicalAxesTest, ATupleIsTakenWholeOrNotAtAll) {
  const LogicalRules rules = {
      {"a", T({N("x"), N("y")})}, {"b", T({N("y"), N("z")})}, {"b", N("z")}};
  EXPECT_THAT(ResolveLogicalAxes({N("b"), N("a")}, rules),
              IsOkAndHolds(P({N("z"), T({N("x"), N("y")})})));
}

TEST(ResolveLogicalAxesTest, ARuleToNoneEndsTheSearch) {
  const LogicalRules rules = {{"a", kNone}, {"a", N("x")}, {"b", T({})}, {"b", N("y")}};
  EXPECT_THAT(ResolveLogicalAxes({N("a"), N("b")}, rules, RulesFallback::kRaiseError),
              IsOkAndHolds(P({kNone, kNone})));
}

TEST(ResolveLogicalAxesTest, OtherEntriesThanNamesStayAndHoldTheirAxes) {
  const LogicalRules rules = {{"a", N("x")}, {"a", N("y")}, {"b", kOpen}};
  EXPECT_THAT(ResolveLogicalAxes({N("a"), T({N("x"), N("z")}), kOpen, kNone, kOpen, N("b")}, rules,
                                 RulesFallback::kRaiseError),
              IsOkAndHolds(P({N("y"), T({N("x"), N("z")}), kOpen, kNone, kOpen, kOpen})));
}

TEST(ResolveLogicalAxesTest, TheThreePoliciesForNamesWithoutAxes) {
  const LogicalRules rules = {{"a", N("x")}, {"taken", T({N("y"), N("x")})}};
  for (const char* name : {"taken", "unknown", ""}) {
    const std::vector<AxisValue> names = {N("a"), N(name)};
    EXPECT_THAT(ResolveLogicalAxes(names, rules, RulesFallback::kAxisIsUnsharded),
                IsOkAndHolds(P({N("x"), kNone})));
    EXPECT_THAT(ResolveLogicalAxes(names, rules, RulesFallback::kNoConstraint),
                IsOkAndHolds(std::nullopt));
    const auto refused = ResolveLogicalAxes(names, rules, RulesFallback::kRaiseError);
    EXPECT_THAT(refused, StatusIs(kInvalid, Reason::kUnknownAxis));
    EXPECT_EQ(PythonTypeOf(refused.status()), "ValueError");
  }
  EXPECT_THAT(ResolveLogicalAxes({}, {}, RulesFallback::kRaiseError), IsOkAndHolds(P({})));
}

TEST(ResolveLogicalAxesTest, ARefusalTellsANameWithoutRuleFromOneThatCameLate) {
  const LogicalRules rules = {{"heads", N("x")}, {"mlp", T({N("y"), N("x")})}, {"mlp", N("x")}};
  EXPECT_THAT(
      MessageOf(
          ResolveLogicalAxes({N("mlp"), N("heads")}, rules, RulesFallback::kRaiseError).status()),
      AllOf(HasSubstr("dimension 0, 'mlp'"), HasSubstr("('y', 'x')"),
            HasSubstr("'x' went to dimension 1, 'heads'")));
  EXPECT_THAT(
      MessageOf(ResolveLogicalAxes({N("head")}, rules, RulesFallback::kRaiseError).status()),
      AllOf(HasSubstr("no rule is for"), HasSubstr("did you mean \"heads\"")));
}

TEST(ResolveLogicalAxesTest, RefusesRepeatedNamesAndLists) {
  for (const RulesFallback fallback : {RulesFallback::kAxisIsUnsharded, RulesFallback::kRaiseError,
                                       RulesFallback::kNoConstraint}) {
    const auto repeated = ResolveLogicalAxes({N("a"), kNone, N("a")}, {}, fallback);
    EXPECT_THAT(repeated, StatusIs(kInvalid, Reason::kDuplicateAxis));
    EXPECT_EQ(PythonTypeOf(repeated.status()), "ValueError");
    EXPECT_THAT(MessageOf(repeated.status()), HasSubstr("dimensions 0 and 2"));
    for (const AxisValue& list : {AxisValue::List({}), T({N("a"), AxisValue::List({N("b")})})}) {
      const auto refused = ResolveLogicalAxes({N("a"), N("a"), list}, {}, fallback);
      EXPECT_THAT(refused, StatusIs(kInvalid, Reason::kInvalidAxisValue));
      EXPECT_EQ(PythonTypeOf(refused.status()), "TypeError");
    }
  }
}

TEST(ResolveLogicalAxesTest, NeverGivesAMeshAxisTwice) {
  std::mt19937 random(2);
  for (int i = 0; i < 2000; ++i) {
    const auto spec = ResolveLogicalAxes(RandomNames(random), RandomRules(random));
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_TRUE(CheckDistinctAxes(**spec).ok()) << (*spec)->ToString();
  }
}

TEST(ResolveLogicalAxesTest, GivesADimensionOnlyWhatARuleOfItsNameSays) {
  std::mt19937 random(3);
  for (int i = 0; i < 1000; ++i) {
    const std::vector<AxisValue> names = RandomNames(random);
    const LogicalRules rules = RandomRules(random);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto spec, ResolveLogicalAxes(names, rules));
    ASSERT_EQ(spec->size(), static_cast<int64_t>(names.size()));
    for (size_t dim = 0; dim < names.size(); ++dim) {
      const SpecEntry& entry = spec->entry(static_cast<int64_t>(dim));
      const bool is_from_a_rule =
          std::any_of(rules.begin(), rules.end(), [&](const LogicalRule& rule) {
            return N(rule.name) == names[dim] && *SpecEntry::Create(rule.mesh_axes) == entry;
          });
      EXPECT_TRUE(
          is_from_a_rule ||
          (names[dim].is_name() ? entry.is_none() : *SpecEntry::Create(names[dim]) == entry));
    }
  }
}

TEST(ResolveLogicalAxesTest, PoliciesAgreeWhereEveryNameGetsSomething) {
  std::mt19937 random(4);
  int with_constraint = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::vector<AxisValue> names = RandomNames(random);
    const LogicalRules rules = RandomRules(random);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto spec, ResolveLogicalAxes(names, rules));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto constraint,
                                   ResolveLogicalAxes(names, rules, RulesFallback::kNoConstraint));
    const auto raised = ResolveLogicalAxes(names, rules, RulesFallback::kRaiseError);
    EXPECT_EQ(raised.ok(), constraint.has_value());
    if (constraint.has_value()) {
      ++with_constraint;
      EXPECT_EQ(constraint, spec);
      EXPECT_EQ(*raised, spec);
    }
  }
  EXPECT_GT(with_constraint, 100);
}

TEST(ResolveLogicalAxesTest, RulesForOtherNamesChangeNothing) {
  std::mt19937 random(5);
  for (int i = 0; i < 500; ++i) {
    const std::vector<AxisValue> names = RandomNames(random);
    const LogicalRules rules = RandomRules(random);
    LogicalRules relevant;
    std::copy_if(rules.begin(), rules.end(), std::back_inserter(relevant),
                 [&names](const LogicalRule& rule) {
                   return std::find(names.begin(), names.end(), N(rule.name)) != names.end();
                 });
    EXPECT_EQ(*ResolveLogicalAxes(names, rules), *ResolveLogicalAxes(names, relevant));
  }
}

TEST(ResolveLogicalConstraintTest, WithoutRulesTheArrayIsLeftAlone) {
  for (const RulesFallback fallback : {RulesFallback::kAxisIsUnsharded, RulesFallback::kRaiseError,
                                       RulesFallback::kNoConstraint}) {
    EXPECT_THAT(ResolveLogicalConstraint({N("a"), N("a")}, {}, fallback),
                IsOkAndHolds(std::nullopt));
    EXPECT_THAT(ResolveLogicalConstraint({N("a")}, {{{"a", N("x")}}}, fallback),
                IsOkAndHolds(P({N("x")})));
  }
}

TEST(RulesFallbackTest, NamesReadBack) {
  for (const RulesFallback fallback : {RulesFallback::kAxisIsUnsharded, RulesFallback::kRaiseError,
                                       RulesFallback::kNoConstraint}) {
    EXPECT_EQ(RulesFallbackFromName(RulesFallbackName(fallback)), fallback);
  }
  EXPECT_EQ(RulesFallbackFromName("AXIS_IS_UNSHARDED"), std::nullopt);
}

}  // namespace
}  // namespace shardmesh
