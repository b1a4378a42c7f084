// Layouts cross the wire unchanged; what is malformed is refused with its field and reason.
#include "rpc/codec/spec_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rpc/codec/field_check.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::rpc {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;

using ::shardmesh::test::kInvalid;

template <typename Wire, typename Domain, typename... Args>
auto RoundTrip(const Domain& value, const Args&... args) {
  Wire wire;
  Encode(value, &wire);
  return Decode(wire, args...);
}

std::string FieldOf(const absl::Status& status) {
  const auto violations = FieldViolationsOf(status);
  return violations.size() == 1 ? violations[0].field : "";
}

TEST(SpecCodecTest, AxisValuesOfEveryKindCrossTheWire) {
  const AxisValue values[] = {
      AxisValue::NotGiven(),
      AxisValue::None(),
      AxisValue::Unconstrained(),
      AxisValue::Name("tp"),
      AxisValue::Name(""),
      AxisValue::Tuple({}),
      AxisValue::List({}),
      AxisValue::Tuple({AxisValue::Name("a"), AxisValue::None(),
                        AxisValue::List({AxisValue::Name("b"), AxisValue::Tuple({})})}),
  };
  for (const AxisValue& value : values) {
    EXPECT_THAT(RoundTrip<v1::AxisValue>(value), IsOkAndHolds(value));
  }
}

TEST(SpecCodecTest, AxisValuesAreBoundedInDepthAndCount) {
  AxisValue nested = AxisValue::Name("a");
  for (int depth = 0; depth < kMaxAxisValueDepth; ++depth) {
    nested = AxisValue::Tuple({nested});
  }
  EXPECT_THAT(RoundTrip<v1::AxisValue>(nested), IsOkAndHolds(nested));
  const auto too_deep = RoundTrip<v1::AxisValue>(AxisValue::List({nested}));
  EXPECT_THAT(too_deep.status(), StatusIs(kInvalid, Reason::kLimitExceeded));

  // Many in one tuple, and many in several.
  const std::vector<AxisValue> half(static_cast<size_t>(kMaxAxisValues) / 2, AxisValue::None());
  EXPECT_TRUE(RoundTrip<v1::AxisValue>(AxisValue::Tuple(half)).ok());
  EXPECT_THAT(
      RoundTrip<v1::AxisValue>(AxisValue::Tuple({AxisValue::Tuple(half), AxisValue::Tuple(half)}))
          .status(),
      StatusIs(kInvalid, Reason::kLimitExceeded));
  EXPECT_THAT(
      RoundTrip<v1::AxisValue>(AxisValue::Name(std::string(kMaxAxisNameBytes + 1, 'x'))).status(),
      StatusIs(kInvalid, Reason::kLimitExceeded));
}

TEST(SpecCodecTest, AProfileIsBoundedAlsoInWhatItDerives) {
  AxisValue nested = AxisValue::Name("a");
  for (int depth = 0; depth < kMaxAxisValueDepth; ++depth) {
    nested = AxisValue::Tuple({nested});
  }
  // The batch axis, by default, is a tuple of this one and another.
  v1::PartitionAxis profile;
  Encode(nested, profile.mutable_data_parallel_axis());
  const auto refused = Decode(profile);
  EXPECT_THAT(refused.status(), StatusIs(kInvalid, Reason::kLimitExceeded));
  EXPECT_EQ(FieldOf(refused.status()), "batch_axis");
  Encode(AxisValue::Name("b"), profile.mutable_batch_axis());
  EXPECT_THAT(Decode(profile), IsOk());
}

TEST(SpecCodecTest, AnEmptyOrUnknownAxisValueIsRefused) {
  EXPECT_THAT(Decode(v1::AxisValue()).status(), StatusIs(kInvalid, Reason::kBadField));
  v1::AxisValue unknown;
  unknown.set_constant(static_cast<v1::AxisConstant>(9));
  EXPECT_EQ(FieldOf(Decode(unknown).status()), "constant");
}

TEST(SpecCodecTest, SpecsCrossTheWireAndStayDistinct) {
  const PartitionSpec specs[] = {
      PartitionSpec(),
      PartitionSpec({SpecEntry::None()}),
      PartitionSpec({SpecEntry::Axis("dp"), SpecEntry::None(), SpecEntry::Unconstrained()}),
      PartitionSpec({SpecEntry::Axes({"fsdp", std::nullopt, "tp"})}, {"ep", "sp"}),
  };
  for (const PartitionSpec& spec : specs) {
    EXPECT_THAT(RoundTrip<v1::PartitionSpec>(spec), IsOkAndHolds(spec));
  }
}

TEST(SpecCodecTest, AnAxisOfEmptyNameStaysOne) {
  const PartitionSpec spec({SpecEntry::Axis(""), SpecEntry::Axes({"", "tp"}), SpecEntry::None()});
  EXPECT_THAT(RoundTrip<v1::PartitionSpec>(spec), IsOkAndHolds(spec));
}

TEST(SpecCodecTest, MalformedSpecsNameTheirField) {
  v1::PartitionSpec not_given;
  not_given.add_dimensions()->set_name("tp");
  not_given.add_dimensions()->set_constant(v1::AXIS_CONSTANT_NOT_GIVEN);
  EXPECT_THAT(Decode(not_given).status(), StatusIs(kInvalid, Reason::kInvalidSpec));
  EXPECT_EQ(FieldOf(Decode(not_given).status()), "dimensions[1]");

  v1::PartitionSpec deep;
  deep.add_dimensions()->mutable_tuple()->add_values();
  EXPECT_EQ(FieldOf(Decode(deep).status()), "dimensions[0].tuple.values[0].kind");

  v1::PartitionSpec both;
  both.add_dimensions()->set_name("tp");
  both.add_unreduced_axes("tp");
  EXPECT_THAT(Decode(both).status(), StatusIs(kInvalid, Reason::kDuplicateAxis));
  EXPECT_EQ(FieldOf(Decode(both).status()), "unreduced_axes[0]");

  v1::PartitionSpec twice;
  twice.add_unreduced_axes("a");
  twice.add_unreduced_axes("a");
  EXPECT_THAT(Decode(twice).status(), StatusIs(kInvalid, Reason::kDuplicateAxis));

  v1::PartitionSpec wide;
  for (int64_t i = 0; i <= kMaxRank; ++i) {
    wide.add_dimensions()->set_constant(v1::AXIS_CONSTANT_NONE);
  }
  EXPECT_THAT(Decode(wide).status(), StatusIs(kInvalid, Reason::kLimitExceeded));
}

TEST(SpecCodecTest, MeshesCrossTheWire) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Mesh plain, Mesh::Parse("dp=2,tp=4"));
  EXPECT_THAT(RoundTrip<v1::Mesh>(plain), IsOkAndHolds(plain));
  EXPECT_THAT(RoundTrip<v1::Mesh>(Mesh()), IsOkAndHolds(Mesh()));
  MeshOptions options;
  options.global_ids = {3, 1, 2, 0};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Mesh numbered, Mesh::Parse("a=4", options));
  EXPECT_THAT(RoundTrip<v1::Mesh>(numbered), IsOkAndHolds(numbered));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Mesh vast, Mesh::Parse("a=65536,b=32768"));
  v1::Mesh wire;
  Encode(vast, &wire);
  EXPECT_EQ(wire.device_ids_size(), 0);
}

TEST(SpecCodecTest, AxisTypesCrossTheWireAndAutoIsLeftOut) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Mesh typed, Mesh::Parse("a=2,b=2:explicit,c=2:manual"));
  EXPECT_THAT(RoundTrip<v1::Mesh>(typed), IsOkAndHolds(typed));
  v1::Mesh wire;
  Encode(typed, &wire);
  EXPECT_EQ(wire.axes(0).type(), v1::AXIS_TYPE_UNSPECIFIED);
  EXPECT_EQ(wire.axes(1).type(), v1::AXIS_TYPE_EXPLICIT);
  EXPECT_EQ(wire.axes(2).type(), v1::AXIS_TYPE_MANUAL);
  EXPECT_EQ(wire.device_ids_size(), 0);
  wire.mutable_axes(0)->set_type(v1::AXIS_TYPE_AUTO);
  EXPECT_THAT(Decode(wire), IsOkAndHolds(typed));

  MeshOptions options;
  options.global_ids = {1, 0};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Mesh numbered, Mesh::Parse("a=2:explicit", options));
  EXPECT_THAT(RoundTrip<v1::Mesh>(numbered), IsOkAndHolds(numbered));
  wire.mutable_axes(2)->set_type(static_cast<v1::AxisType>(4));
  EXPECT_EQ(FieldOf(Decode(wire).status()), "axes[2].type");
}

TEST(SpecCodecTest, AMissingSizeNeedsTheNumberOfDevices) {
  v1::Mesh wire;
  wire.add_axes()->set_name("dp");
  wire.mutable_axes(0)->set_size(-1);
  EXPECT_FALSE(Decode(wire).ok());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Mesh mesh, Decode(wire, 8));
  EXPECT_EQ(mesh.ToString(), "dp=8");
  wire.mutable_axes(0)->set_type(static_cast<v1::AxisType>(50));
  EXPECT_EQ(FieldOf(Decode(wire, 8).status()), "axes[0].type");
}

TEST(SpecCodecTest, EmptyMeshesHaveAxesOnlyIfExact) {
  v1::Mesh wire;
  wire.add_axes()->set_name("dp");
  EXPECT_THAT(Decode(wire).status(), StatusIs(kInvalid, Reason::kInvalidMesh));
  EXPECT_TRUE(Decode(wire, std::nullopt, Compatibility::kExact).ok());
}

TEST(SpecCodecTest, WorkersOfAMeshAreDistinctAndAsManyAsItsDevices) {
  MeshDefinition definition{*Mesh::Parse("dp=2"), {"w0", "w1"}};
  EXPECT_THAT(RoundTrip<v1::MeshDefinition>(definition), IsOkAndHolds(definition));
  definition.workers = {"w0", "w0"};
  EXPECT_EQ(FieldOf(RoundTrip<v1::MeshDefinition>(definition).status()), "workers[1]");
  definition.workers = {"w0"};
  EXPECT_THAT(RoundTrip<v1::MeshDefinition>(definition).status(),
              StatusIs(kInvalid, Reason::kMeshSizeMismatch));
  EXPECT_THAT(Decode(v1::MeshDefinition()).status(), StatusIs(kInvalid));
}

TEST(SpecCodecTest, ProfilesCrossTheWireWithEveryField) {
  std::vector<FieldValue> fields;
  for (const std::string_view name : AxisFieldNames()) {
    fields.push_back({std::string(name), AxisValue::Name("x_" + std::string(name))});
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PartitionAxis all, PartitionAxis::Create(fields));
  const SemanticAxis axes[] = {
      {"__MINE__", AxisValue::Name("tp"), std::nullopt},
      {"__OTHER__", AxisValue::TupleOf({"dp", "sp"}), AxisValue::None()},
  };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PartitionAxis more, PartitionAxis::Create({}, axes));
  for (const PartitionAxis& profile : {PartitionAxis(), all, more}) {
    EXPECT_TRUE(RoundTrip<v1::PartitionAxis>(profile).value() == profile);
  }
  EXPECT_TRUE(Decode(v1::PartitionAxis()).value() == PartitionAxis());
}

TEST(SpecCodecTest, AFieldWithoutARuleMustNotBeLeftOpen) {
  v1::PartitionAxis wire;
  wire.mutable_expert_gate_axis()->set_constant(v1::AXIS_CONSTANT_NOT_GIVEN);
  EXPECT_THAT(Decode(wire).status(), StatusIs(kInvalid, Reason::kUnresolvedField));
  wire.Clear();
  wire.mutable_batch_axis();
  EXPECT_EQ(FieldOf(Decode(wire).status()), "batch_axis.kind");
}

TEST(SpecCodecTest, RuleSetsCrossTheWire) {
  RuleSetOptions options;
  options.min_size = 7;
  options.strict = false;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      RuleSet rules,
      RuleSet::Create({{"kernel$", PartitionSpec({SpecEntry::Axis("tp")})}, {".*", {}}}, options));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSetDefinition back,
                                 RoundTrip<v1::RuleSet>(RuleSetDefinition{rules, true}));
  ASSERT_EQ(back.rules.rules().size(), 2u);
  EXPECT_EQ(back.rules.rules()[0].pattern, "kernel$");
  EXPECT_EQ(back.rules.rules()[0].spec, rules.rules()[0].spec);
  EXPECT_EQ(back.rules.min_size(), 7);
  EXPECT_FALSE(back.rules.strict());
  EXPECT_EQ(NameForRules(back, "a.b.c"), "a/b/c");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const RuleSetDefinition empty, Decode(v1::RuleSet()));
  EXPECT_TRUE(empty.rules.strict());
  EXPECT_EQ(empty.rules.min_size(), 0);
  EXPECT_EQ(NameForRules(empty, "a.b"), "a.b");
}

TEST(SpecCodecTest, MalformedRuleSetsNameTheirField) {
  v1::RuleSet wire;
  wire.set_separator("-");
  EXPECT_EQ(FieldOf(Decode(wire).status()), "separator");
  wire.Clear();
  wire.set_min_size(-1);
  EXPECT_EQ(FieldOf(Decode(wire).status()), "min_size");
  EXPECT_TRUE(Decode(wire, Compatibility::kExact).ok());
  wire.Clear();
  wire.add_rules()->set_pattern("(");
  EXPECT_THAT(Decode(wire).status(), StatusIs(kInvalid, Reason::kBadPattern));
  EXPECT_TRUE(Decode(wire, Compatibility::kExact).ok());
  wire.mutable_rules(0)->mutable_spec()->add_dimensions();
  EXPECT_EQ(FieldOf(Decode(wire).status()), "rules[0].spec.dimensions[0].kind");
}

TEST(SpecCodecTest, ModesCrossTheWire) {
  for (const Mode& mode : {Mode(RuntimeMode::kInsert), Mode::OfDimension(-2)}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto back, RoundTrip<v1::ModeSelector>(mode));
    EXPECT_EQ(back, mode);
  }
  for (const int64_t far : {int64_t{1} << 32, -(int64_t{1} << 32)}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto back,
                                   RoundTrip<v1::ModeSelector>(Mode::OfDimension(far)));
    EXPECT_THAT(back->Resolve(Shape{4, 1}), StatusIs(kInvalid, Reason::kInvalidDimension));
  }
  EXPECT_EQ(Decode(v1::ModeSelector()).value(), std::nullopt);
  v1::ModeSelector unknown;
  unknown.set_name("__sleep__");
  EXPECT_THAT(Decode(unknown).status(), StatusIs(kInvalid, Reason::kUnknownMode));
  EXPECT_TRUE(Decode(unknown, Compatibility::kExact).ok());
}

TEST(SpecCodecTest, CorrectionsAndExplanationsCrossTheWire) {
  const Correction correction{1, SpecEntry::Axes({"tp", "sp"}), Reason::kNotDivisible, 30, 4};
  v1::Correction wire;
  Encode(correction, &wire);
  EXPECT_EQ(wire.message(), correction.ToString());
  EXPECT_THAT(Decode(wire), IsOkAndHolds(correction));
  EXPECT_EQ(wire.have(), 30);
  EXPECT_EQ(wire.need(), 4);
  const ExplanationStep step{ExplanationStep::Kind::kCorrection, -1, "'tp'", "None"};
  EXPECT_THAT(RoundTrip<v1::ExplanationStep>(step), IsOkAndHolds(step));
}

TEST(SpecCodecTest, ACorrectionHasFiguresWhereItsReasonHasThem) {
  v1::Correction wire;
  Encode(Correction{0, SpecEntry::Axis("tp"), Reason::kUnconstrained, 0, 0}, &wire);
  EXPECT_FALSE(wire.has_have());
  EXPECT_FALSE(wire.has_need());
  for (const Reason reason : {Reason::kNotDivisible, Reason::kAxisNotInMesh, Reason::kRankTruncated,
                              Reason::kBelowMinSize}) {
    v1::Correction with_figures;
    Encode(Correction{0, SpecEntry::Axis("tp"), reason, 0, 1}, &with_figures);
    EXPECT_TRUE(with_figures.has_have()) << ReasonName(reason);
    EXPECT_TRUE(with_figures.has_need()) << ReasonName(reason);
  }
}

TEST(SpecCodecTest, TilesCrossTheWireAndAreChecked) {
  Tile tile;
  tile.ranges = {{0, 4}, {8, 8}};
  EXPECT_THAT(RoundTrip<v1::Tile>(tile), IsOkAndHolds(tile));
  EXPECT_THAT(Decode(v1::Tile()), IsOkAndHolds(Tile()));
  tile.ranges = {{0, 4}, {8, 7}};
  const auto refused = RoundTrip<v1::Tile>(tile);
  EXPECT_THAT(refused.status(), StatusIs(kInvalid, Reason::kBadTile));
  EXPECT_EQ(FieldOf(refused.status()), "ranges[1]");
}

TEST(SpecCodecTest, CutPointsCrossTheWireWithoutTheirEnds) {
  const std::vector<CutPoints> cuts = {{}, {0, 20, 40, 48}};
  const Shape shape = {8, 48};
  google::protobuf::RepeatedPtrField<v1::CutPoints> wire;
  Encode(cuts, &wire);
  ASSERT_EQ(wire.size(), 1);
  EXPECT_EQ(wire[0].starts_size(), 2);
  EXPECT_THAT(DecodeCutPoints(wire, shape), IsOkAndHolds(cuts));
  for (const int64_t start : {19, 49}) {
    wire[0].set_starts(1, start);
    EXPECT_THAT(DecodeCutPoints(wire, shape).status(),
                StatusIs(kInvalid, Reason::kInvalidCutPoints));
  }
  wire[0].set_starts(1, 40);
  *wire.Add() = wire[0];
  EXPECT_EQ(FieldOf(DecodeCutPoints(wire, shape).status()), "cut_points[1]");
}

TEST(SpecCodecTest, CutPointsOfEmptyPartsCrossTheWire) {
  const std::vector<CutPoints> cuts = {{0, 0, 8, 8}, {0, 48, 48, 48}};
  const Shape shape = {8, 48};
  google::protobuf::RepeatedPtrField<v1::CutPoints> wire;
  Encode(cuts, &wire);
  EXPECT_THAT(DecodeCutPoints(wire, shape), IsOkAndHolds(cuts));
  wire[0].set_starts(0, 9);
  EXPECT_EQ(FieldOf(DecodeCutPoints(wire, shape).status()), "cut_points[0]");
  wire[0].set_starts(0, -1);
  EXPECT_THAT(DecodeCutPoints(wire, shape).status(), StatusIs(kInvalid, Reason::kInvalidCutPoints));
}

TEST(SpecCodecTest, RulesForUnevenCutsCrossTheWire) {
  for (const UnevenCuts rule :
       {UnevenCuts::kEqualOnly, UnevenCuts::kCeilChunks, UnevenCuts::kByWeights,
        UnevenCuts::kByMemory, UnevenCuts::kBySpeed}) {
    EXPECT_THAT(DecodeUnevenCuts(Encode(rule), /*has_weights=*/false), IsOkAndHolds(rule));
    const auto weighted = DecodeUnevenCuts(Encode(rule), /*has_weights=*/true);
    EXPECT_EQ(weighted.ok(), rule == UnevenCuts::kByWeights);
    if (!weighted.ok()) {
      EXPECT_EQ(FieldOf(weighted.status()), "weights");
    }
    const auto cut = DecodeUnevenCuts(Encode(rule), /*has_weights=*/false, /*has_cut_points=*/true);
    EXPECT_EQ(cut.ok(), rule == UnevenCuts::kEqualOnly);
    if (!cut.ok()) {
      EXPECT_THAT(cut.status(), StatusIs(kInvalid, Reason::kBadField));
      EXPECT_EQ(FieldOf(cut.status()), "cut_points");
    }
  }
  EXPECT_THAT(DecodeUnevenCuts(v1::UNEVEN_CUTS_UNSPECIFIED, false, /*has_cut_points=*/true),
              IsOkAndHolds(UnevenCuts::kEqualOnly));
  EXPECT_THAT(DecodeUnevenCuts(v1::UNEVEN_CUTS_UNSPECIFIED, /*has_weights=*/false),
              IsOkAndHolds(UnevenCuts::kEqualOnly));
  const auto unknown = DecodeUnevenCuts(static_cast<v1::UnevenCuts>(77), /*has_weights=*/false);
  EXPECT_THAT(unknown.status(), StatusIs(kInvalid, Reason::kBadField));
  EXPECT_EQ(FieldOf(unknown.status()), "uneven");
}

TEST(FieldCheckTest, JudgesNamesAndIds) {
  EXPECT_TRUE(CheckEntryName("mesh-1.x_Y", "name").ok());
  EXPECT_TRUE(CheckArrayName("encoder/0 größe", "name").ok());
  EXPECT_TRUE(CheckArrayId("a_b-9", "array_id").ok());
  const absl::Status bad[] = {CheckEntryName("", "name"),        CheckEntryName("a/b", "name"),
                              CheckArrayName("a\nb", "name"),    CheckArrayName("\xff", "name"),
                              CheckArrayId("a.b", "name"),       CheckRequestId("", "name"),
                              CheckPageSize(-1, "name").status()};
  for (const absl::Status& status : bad) {
    EXPECT_THAT(status, StatusIs(kInvalid, Reason::kBadField));
    EXPECT_EQ(FieldOf(status), "name");
  }
  EXPECT_THAT(CheckIdentity(std::string(256, 'x'), "identity"),
              StatusIs(kInvalid, Reason::kLimitExceeded));
  EXPECT_THAT(CheckPageSize(0, "p"), IsOkAndHolds(100));
  EXPECT_THAT(CheckPageSize(5000, "p"), IsOkAndHolds(1000));
}

TEST(TimeCodecTest, DurationsAndTimesCrossTheWire) {
  for (const absl::Duration d : {absl::ZeroDuration(), absl::Nanoseconds(-1'500'000'001),
                                 absl::Hours(1) + absl::Nanoseconds(3)}) {
    EXPECT_THAT(RoundTrip<google::protobuf::Duration>(d), IsOkAndHolds(d));
  }
  for (const absl::Time t : {absl::UnixEpoch(), absl::FromUnixNanos(-1), absl::FromUnixNanos(1)}) {
    EXPECT_THAT(RoundTrip<google::protobuf::Timestamp>(t), IsOkAndHolds(t));
  }
  EXPECT_TRUE(RoundTrip<google::protobuf::Duration>(absl::InfiniteDuration()).ok());
  EXPECT_TRUE(RoundTrip<google::protobuf::Timestamp>(absl::InfiniteFuture()).ok());
  EXPECT_TRUE(RoundTrip<google::protobuf::Timestamp>(absl::InfinitePast()).ok());
  google::protobuf::Duration mixed;
  mixed.set_seconds(1);
  mixed.set_nanos(-1);
  EXPECT_EQ(FieldOf(Decode(mixed).status()), "nanos");
}

}  // namespace
}  // namespace shardmesh::rpc
