// Profiles: where the default answers differ from the originals', users' own axes, explanations.
// The original's answers are in profile_golden_test.cc.
#include "sharding/partition_axis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sharding/semantic_axis.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/sharding_printers.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using test::StatusIs;
using ::testing::ElementsAre;
using ::testing::FieldsAre;
using ::testing::HasSubstr;
using Kind = ExplanationStep::Kind;

constexpr RuntimeMode kTrain = RuntimeMode::kTrain;
constexpr RuntimeMode kDecode = RuntimeMode::kAutoregressive;

AxisValue Name(std::string_view name) { return AxisValue::Name(std::string(name)); }
AxisValue None() { return AxisValue::None(); }

AxisValue List(std::vector<AxisValue> entries) { return AxisValue::List(std::move(entries)); }
AxisValue Tuple(std::vector<AxisValue> entries) { return AxisValue::Tuple(std::move(entries)); }

PartitionAxis MakeProfile(std::vector<FieldValue> fields,
                          std::vector<SemanticAxis> semantic_axes = {}) {
  absl::StatusOr<PartitionAxis> profile = PartitionAxis::Create(fields, semantic_axes);
  EXPECT_TRUE(profile.ok()) << profile.status();
  return profile.ok() ? *profile : PartitionAxis();
}

// The spec as text, or the error's.
std::string SpecText(const PartitionAxis& profile, std::vector<AxisValue> axes,
                     RuntimeMode mode = kTrain,
                     Compatibility compatibility = Compatibility::kDefault) {
  const absl::StatusOr<PartitionSpec> spec = profile.ResolveSpec(axes, mode, compatibility);
  return spec.ok() ? spec->ToString() : spec.status().ToString();
}

TEST(PartitionAxisTest, AnswersWithTheDefaultProfile) {
  const PartitionAxis profile;
  EXPECT_EQ(SpecText(profile, {Name(semantic::kBatch), Name(semantic::kLength),
                               Name(semantic::kEmbed), None(), Name("_")}),
            "P(('fsdp', 'dp'), 'sp', 'tp', None, None)");
  EXPECT_EQ(SpecText(profile, {}), "P()");
}

TEST(PartitionAxisTest, TakesTheDecodeFieldInGenerationModesUnlessItIsNone) {
  const PartitionAxis profile = MakeProfile(
      {{"decode_batch_axis", Name("x")}, {"decode_head_axis", None()}, {"head_axis", Name("h")}});
  const std::vector<AxisValue> axes = {Name(semantic::kBatch), Name(semantic::kHead)};
  EXPECT_EQ(SpecText(profile, axes, RuntimeMode::kTrain), "P(('fsdp', 'dp'), 'h')");
  EXPECT_EQ(SpecText(profile, axes, RuntimeMode::kPrefill), "P(('fsdp', 'dp'), 'h')");
  EXPECT_EQ(SpecText(profile, axes, RuntimeMode::kAutoregressive), "P('x', 'h')");
  EXPECT_EQ(SpecText(profile, axes, RuntimeMode::kInsert), "P('x', 'h')");
}

TEST(PartitionAxisTest, RefusesAFieldThatIsUnknownOrGivenTwice) {
  const absl::Status unknown = PartitionAxis::Create({{"hed_axis", Name("tp")}}).status();
  EXPECT_THAT(unknown, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnknownField));
  EXPECT_THAT(ToStd(unknown.message()), HasSubstr("did you mean \"head_axis\"?"));
  const absl::Status twice =
      PartitionAxis::Create({{"head_axis", Name("tp")}, {"head_axis", Name("tp")}}).status();
  EXPECT_THAT(twice, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnknownField));
}

TEST(PartitionAxisTest, NamesWhatAnUnknownAxisWasMeantToBe) {
  const PartitionAxis profile = MakeProfile({}, {{"rotary", None(), std::nullopt}});
  const std::pair<std::string, std::string> cases[] = {
      {"__BATHC__", "did you mean \"__BATCH__\"?"},
      {"BATCH", "did you mean \"__BATCH__\"?"},
      {"batch", "did you mean \"__BATCH__\"?"},
      {"batch_axis",
       "\"batch_axis\" is a field of the profile, not a logical axis; write "
       "\"__BATCH__\""},
      {"tp", "\"tp\" is a mesh axis, not a logical axis; write \"__TENSOR_PARALLEL__\""},
      {"rotari", "did you mean \"rotary\"?"},
      {"", "\"\" is not a logical axis"},
  };
  for (const auto& [name, hint] : cases) {
    const absl::Status status = profile.ResolveSpec({Name(name)}, kTrain).status();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnknownAxis)) << name;
    EXPECT_THAT(ToStd(status.message()), HasSubstr(hint));
  }
}

TEST(PartitionAxisTest, ResolvesAListInGenerationModesUnlessExact) {
  const PartitionAxis profile = MakeProfile({{"decode_head_axis", Name("dh")}});
  const std::vector<AxisValue> axes = {
      List({Name(semantic::kHead), Name("head_axis"), Name(semantic::kEmbed)})};
  EXPECT_EQ(SpecText(profile, axes, kTrain), "P(('tp', 'tp', 'tp'))");
  EXPECT_EQ(SpecText(profile, axes, kDecode), "P(('dh', 'dh', 'tp'))");
  const absl::Status exact = profile.ResolveSpec(axes, kDecode, Compatibility::kExact).status();
  EXPECT_THAT(exact, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidAxisValue));
  EXPECT_EQ(PythonTypeOf(exact), "TypeError");
}

TEST(PartitionAxisTest, FlattensWhatIsNestedWithinADimensionUnlessExact) {
  const PartitionAxis profile =
      MakeProfile({{"tensor_parallel_axis", Tuple({Name("a"), Name("b")})},
                   {"vocab_axis", List({Name("x"), Tuple({Name("y"), None()}), Tuple({})})}});
  const struct {
    AxisValue axis;
    std::string spec;
  } cases[] = {
      {List({Name(semantic::kBatch), Name(semantic::kLength)}), "P(('fsdp', 'dp', 'sp'))"},
      {List({Name(semantic::kHead), Name(semantic::kExpert)}), "P(('a', 'b', 'ep'))"},
      {Name(semantic::kVocab), "P(('x', 'y', None))"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(SpecText(profile, {c.axis}), c.spec);
    const absl::Status exact =
        profile.ResolveSpec({c.axis}, kTrain, Compatibility::kExact).status();
    EXPECT_THAT(exact, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidSpec))
        << c.spec;
    EXPECT_EQ(PythonTypeOf(exact), "ValueError") << c.spec;
  }
  const AxisValue nested = List({Name(semantic::kLength), List({Name(semantic::kExpert)})});
  EXPECT_EQ(SpecText(profile, {nested}), "P(('sp', 'ep'))");
  EXPECT_EQ(PythonTypeOf(profile.ResolveSpec({nested}, kTrain, Compatibility::kExact).status()),
            "TypeError");
}

TEST(PartitionAxisTest, ReportsAnAxisThatDoesNotResolveBeforeAValueThatDoesNotFit) {
  const PartitionAxis profile = MakeProfile({{"vocab_axis", Tuple({Tuple({Name("x")})})}});
  const std::vector<AxisValue> axes = {Name(semantic::kVocab), Name("nope")};
  EXPECT_THAT(profile.ResolveSpec(axes, kTrain, Compatibility::kExact).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnknownAxis));
}

TEST(PartitionAxisTest, RefusesValuesThatAreNoAxisInBothCompatibilities) {
  const PartitionAxis profile;
  const struct {
    AxisValue axis;
    std::string python_type;
  } cases[] = {
      {Tuple({Name(semantic::kHead)}), "ValueError"},
      {Tuple({List({Name(semantic::kHead)})}), "TypeError"},
      {AxisValue::NotGiven(), "ValueError"},
      {AxisValue::Unconstrained(), "ValueError"},
      {List({None()}), "TypeError"},
      {List({Name("_")}), "LookupError"},
      {List({Name("dp")}), "LookupError"},
      {List({Name("__BATHC__")}), "LookupError"},
      {List({Tuple({Name(semantic::kHead)})}), "TypeError"},
  };
  for (const auto& c : cases) {
    for (const Compatibility compatibility : {Compatibility::kDefault, Compatibility::kExact}) {
      const absl::Status status = profile.ResolveAxis({c.axis}, kTrain, compatibility).status();
      EXPECT_EQ(PythonTypeOf(status), c.python_type) << c.axis.ToString();
      EXPECT_EQ(profile.ResolveSpec({c.axis}, kTrain, compatibility).status(), status);
    }
  }
}

TEST(PartitionAxisTest, ResolvesAUsersOwnAxes) {
  const PartitionAxis profile =
      MakeProfile({{"decode_head_axis", Name("dh")}},
                  {{"rows", List({Name(semantic::kBatch), Name("x")}), std::nullopt},
                   {"wide", Tuple({Name("rows"), Name("lanes")}), std::nullopt},
                   {"lanes", Name(semantic::kHead), std::nullopt},
                   {"cache", Name("lanes"), None()},
                   {"slot", Name("y"), Name("lanes")},
                   {"still", Name("_"), std::nullopt},
                   {"nothing", Tuple({}), std::nullopt}});
  const struct {
    std::string axis;
    std::string train;
    std::string decode;
  } cases[] = {
      {"rows", "P(('fsdp', 'dp', 'x'))", "P(('fsdp', 'dp', 'x'))"},
      {"wide", "P(('fsdp', 'dp', 'x', 'tp'))", "P(('fsdp', 'dp', 'x', 'dh'))"},
      {"lanes", "P('tp')", "P('dh')"},
      {"cache", "P('tp')", "P(None)"},
      {"slot", "P('y')", "P('dh')"},
      {"still", "P(None)", "P(None)"},
      {"nothing", "P(None)", "P(None)"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(SpecText(profile, {Name(c.axis)}, kTrain), c.train) << c.axis;
    EXPECT_EQ(SpecText(profile, {Name(c.axis)}, kDecode), c.decode) << c.axis;
  }
  EXPECT_EQ(SpecText(profile, {List({Name("lanes"), Name(semantic::kExpert)})}, kDecode),
            "P(('dh', 'ep'))");
}

TEST(PartitionAxisTest, RefusesSemanticAxesThatGoInACircle) {
  const std::vector<SemanticAxis> circle = {{"start", Name("a"), std::nullopt},
                                            {"a", Tuple({Name("x"), Name("b")}), std::nullopt},
                                            {"b", Name("a"), std::nullopt}};
  const absl::Status status = PartitionAxis::Create({}, circle).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kCyclicAxis));
  EXPECT_THAT(ToStd(status.message()), HasSubstr("a -> b -> a"));

  const std::vector<SemanticAxis> own_name = {{"expert", Name("expert"), std::nullopt}};
  EXPECT_THAT(PartitionAxis::Create({}, own_name).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kCyclicAxis));

  const std::vector<SemanticAxis> in_generation_only = {{"a", Name("x"), Name("b")},
                                                        {"b", Name("a"), std::nullopt}};
  EXPECT_THAT(PartitionAxis::Create({}, in_generation_only).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kCyclicAxis));

  // Up to here a train value and a generation value may refer to each other's axis.
  const std::vector<SemanticAxis> no_circle = {{"a", Name("x"), Name("b")},
                                               {"b", Name("a"), Name("y")}};
  EXPECT_TRUE(PartitionAxis::Create({}, no_circle).ok());
}

TEST(PartitionAxisTest, RefusesSemanticAxesThatStandForTooMuch) {
  // Each stands for twice as much as the one before.
  std::vector<SemanticAxis> axes = {{"a0", Name("x"), std::nullopt}};
  for (int i = 1; i <= 8; ++i) {
    const AxisValue before = Name(StrCat("a", i - 1));
    axes.push_back({StrCat("a", i), Tuple({before, before}), std::nullopt});
  }
  EXPECT_TRUE(PartitionAxis::Create({}, axes).ok());
  for (int i = 9; i <= 200; ++i) {
    const AxisValue before = Name(StrCat("a", i - 1));
    axes.push_back({StrCat("a", i), Tuple({before, before}), std::nullopt});
  }
  const absl::Status status = PartitionAxis::Create({}, axes).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
  EXPECT_THAT(ToStd(status.message()), HasSubstr("\"a9\""));
}

TEST(PartitionAxisTest, ASemanticAxisMayStandForAFieldByItsName) {
  // As register("__MY__", "expert_parallel_axis") of eformer 0.0.98: the field's value, in every
  // mode.
  const PartitionAxis profile = MakeProfile(
      {{"batch_axis", Tuple({Name("fsdp"), Name("dp")})}, {"decode_head_axis", Name("tp")}},
      {{"__MY__", Name("expert_parallel_axis"), std::nullopt},
       {"__TWO__", Tuple({Name("batch_axis"), Name("z")}), std::nullopt},
       {"__OF__", Name("__MY__"), Name("decode_head_axis")}});
  for (const RuntimeMode mode : {kTrain, kDecode}) {
    EXPECT_EQ(SpecText(profile, {Name("__MY__")}, mode), "P('ep')");
    EXPECT_EQ(SpecText(profile, {Name("__TWO__")}, mode), "P(('fsdp', 'dp', 'z'))");
  }
  EXPECT_EQ(SpecText(profile, {Name("__OF__")}, kTrain), "P('ep')");
  EXPECT_EQ(SpecText(profile, {Name("__OF__")}, kDecode), "P('tp')");
}

TEST(PartitionAxisTest, RefusesSemanticAxesOfWrongNameOrValue) {
  const struct {
    std::vector<SemanticAxis> axes;
    Reason reason;
    std::string message;
  } cases[] = {
      {{{"", None(), {}}}, Reason::kInvalidAxisValue, "has a name of 0 bytes"},
      {{{std::string(256, 'x'), None(), {}}}, Reason::kInvalidAxisValue, "256 bytes"},
      {{{"__BATCH__", None(), {}}}, Reason::kInvalidAxisValue, "\"__BATCH__\" bears the name"},
      {{{"_", None(), {}}}, Reason::kInvalidAxisValue, "bears the name"},
      {{{"head_axis", None(), {}}}, Reason::kInvalidAxisValue, "bears the name"},
      {{{"a", None(), {}}, {"a", None(), {}}}, Reason::kInvalidAxisValue, "\"a\" is given twice"},
      {{{"a", AxisValue::NotGiven(), {}}}, Reason::kInvalidAxisValue, "stands for NOT_GIVEN"},
      {{{"a", None(), AxisValue::Unconstrained()}}, Reason::kInvalidAxisValue, "UNCONSTRAINED"},
      {{{"a", Name(""), {}}}, Reason::kInvalidAxisValue, "stands for ''"},
      {{{"a", Name("__BATHC__"), {}}}, Reason::kUnknownAxis, "did you mean \"__BATCH__\"?"},
      {{{"__ROTARY__", None(), {}}, {"a", Name("__ROTARI__"), {}}},
       Reason::kUnknownAxis,
       "did you mean \"__ROTARY__\"?"},
  };
  for (const auto& c : cases) {
    const absl::Status status = PartitionAxis::Create({}, c.axes).status();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, c.reason)) << status;
    EXPECT_THAT(ToStd(status.message()), HasSubstr(c.message));
  }
}

TEST(PartitionAxisTest, ExplainsEachStepOfEachDimension) {
  const PartitionAxis profile =
      MakeProfile({{"decode_batch_axis", Name("x")}}, {{"own", Name(semantic::kHead), Name("y")}});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const std::vector<ExplanationStep> steps,
      profile.Explain({Name(semantic::kBatch), None(), Name(semantic::kHeadDim),
                       List({Name(semantic::kLength), Name("head_axis")}), Name("own"), Name("_")},
                      kDecode));
  EXPECT_THAT(
      steps,
      ElementsAre(FieldsAre(Kind::kSemanticName, 0, "__BATCH__", "batch_axis"),
                  FieldsAre(Kind::kModeVariant, 0, "batch_axis", "decode_batch_axis"),
                  FieldsAre(Kind::kMeshAxes, 0, "decode_batch_axis", "'x'"),
                  FieldsAre(Kind::kMeshAxes, 1, "None", "None"),
                  FieldsAre(Kind::kSemanticName, 2, "__HEAD_DIM__", "attention_dim_axis"),
                  FieldsAre(Kind::kModeVariant, 2, "attention_dim_axis", "attention_dim_axis"),
                  FieldsAre(Kind::kMeshAxes, 2, "attention_dim_axis", "None"),
                  FieldsAre(Kind::kSemanticName, 3, "__LENGTH__", "sequence_axis"),
                  FieldsAre(Kind::kMeshAxes, 3, "sequence_axis", "'sp'"),
                  FieldsAre(Kind::kModeVariant, 3, "head_axis", "decode_head_axis"),
                  FieldsAre(Kind::kMeshAxes, 3, "decode_head_axis", "'tp'"),
                  FieldsAre(Kind::kMeshAxes, 3, "['__LENGTH__', 'head_axis']", "['sp', 'tp']"),
                  FieldsAre(Kind::kSemanticName, 4, "own", "'__HEAD__'"),
                  FieldsAre(Kind::kModeVariant, 4, "own", "'y'"),
                  FieldsAre(Kind::kMeshAxes, 4, "own", "'y'"),
                  FieldsAre(Kind::kMeshAxes, 5, "_", "None")));
}

TEST(PartitionAxisTest, ExplainsTheNamesThatAnOwnAxisStandsFor) {
  const PartitionAxis profile =
      MakeProfile({}, {{"__CONV__", Name("tp"), None()},
                       {"__B__", Name("__CONV__"), {}},
                       {"all", Tuple({Name("__B__"), Name(semantic::kBatch), Name("__B__")}), {}}});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<ExplanationStep> own,
                                 profile.Explain({Name("__B__")}, kDecode));
  EXPECT_THAT(own, ElementsAre(FieldsAre(Kind::kSemanticName, 0, "__B__", "'__CONV__'"),
                               FieldsAre(Kind::kSemanticName, 0, "__CONV__", "'tp'"),
                               FieldsAre(Kind::kModeVariant, 0, "__CONV__", "None"),
                               FieldsAre(Kind::kMeshAxes, 0, "__CONV__", "None"),
                               FieldsAre(Kind::kMeshAxes, 0, "__B__", "None")));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<ExplanationStep> all,
                                 profile.Explain({Name("all")}, kTrain));
  EXPECT_THAT(
      all, ElementsAre(FieldsAre(Kind::kSemanticName, 0, "all", "('__B__', '__BATCH__', '__B__')"),
                       FieldsAre(Kind::kSemanticName, 0, "__B__", "'__CONV__'"),
                       FieldsAre(Kind::kSemanticName, 0, "__CONV__", "'tp'"),
                       FieldsAre(Kind::kMeshAxes, 0, "__CONV__", "'tp'"),
                       FieldsAre(Kind::kSemanticName, 0, "__BATCH__", "batch_axis"),
                       FieldsAre(Kind::kMeshAxes, 0, "batch_axis", "('fsdp', 'dp')"),
                       FieldsAre(Kind::kMeshAxes, 0, "all", "('tp', 'fsdp', 'dp', 'tp')")));
}

TEST(PartitionAxisTest, ExplainsWithoutAVariantInTraining) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<ExplanationStep> steps,
                                 PartitionAxis().Explain({Name(semantic::kBatch)}, kTrain));
  EXPECT_THAT(steps, ElementsAre(FieldsAre(Kind::kSemanticName, 0, "__BATCH__", "batch_axis"),
                                 FieldsAre(Kind::kMeshAxes, 0, "batch_axis", "('fsdp', 'dp')")));
  EXPECT_EQ(PartitionAxis().Explain({Name("nope")}, kTrain).status(),
            PartitionAxis().ResolveAxis({Name("nope")}, kTrain).status());
}

TEST(PartitionAxisTest, ComparesByFieldsAndSemanticAxes) {
  EXPECT_EQ(MakeProfile({}), PartitionAxis());
  EXPECT_EQ(MakeProfile({{"head_axis", Name("tp")}}), PartitionAxis());
  EXPECT_FALSE(MakeProfile({{"head_axis", Name("x")}}) == PartitionAxis());
  EXPECT_FALSE(MakeProfile({}, {{"own", None(), std::nullopt}}) == PartitionAxis());
}

}  // namespace
}  // namespace shardmesh
