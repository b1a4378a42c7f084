// Linear layers: where the default answers differ from the original's, and the corners of both.
#include "sharding/layout/parallel_linear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "status/reason.h"
#include "tests/testing/sharding_printers.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using test::IsOkAndHolds;
using test::StatusIs;
using ::testing::HasSubstr;
using Parts = std::vector<int64_t>;

using test::kInvalid;
constexpr Compatibility kDefault = Compatibility::kDefault;
constexpr Compatibility kExact = Compatibility::kExact;

ArrayLayout Named(int64_t rank, PartitionSpec spec) {
  return {rank, ArrayLayout::Kind::kNamed, std::move(spec)};
}
PartitionSpec Spec(std::vector<SpecEntry> entries) { return PartitionSpec(std::move(entries)); }
SpecEntry Axis(std::string name) { return SpecEntry::Axis(std::move(name)); }

TEST(ParallelLinearTest, TakesPartsWithABiasByDefaultAlone) {
  struct Case {
    Parts parts;
    int64_t sum;
  };
  for (const Case& each : {Case{{8, 4, 4}, 16}, Case{{8}, 8}, Case{{0, 4}, 4}}) {
    ParallelLinearOptions options;
    options.in_features = 4;
    options.out_features = each.parts;
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const ParallelLinear layer, MakeParallelLinear(options));
    EXPECT_EQ(layer.tp_merged, static_cast<int64_t>(each.parts.size()));
    EXPECT_EQ(layer.kernel_shape, (Shape{4, each.sum}));
    EXPECT_EQ(layer.bias_shape, Shape{each.sum});

    const auto exact = MakeParallelLinear(options, kExact);
    EXPECT_THAT(exact, StatusIs(kInvalid, Reason::kInvalidShape));
    EXPECT_EQ(PythonTypeOf(exact.status()), "TypeError");
  }
}

TEST(ParallelLinearTest, TakesPartsWithFanOutByDefaultAlone) {
  for (const Parts& parts : {Parts{8, 8}, Parts{16}}) {
    ParallelLinearOptions options;
    options.in_features = 4;
    options.out_features = parts;
    options.scale = "fan_out";
    options.use_bias = false;
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const ParallelLinear layer, MakeParallelLinear(options));
    EXPECT_EQ(layer.scale_factor, 0.25);
    EXPECT_EQ(layer.bias_shape, std::nullopt);
    EXPECT_EQ(PythonTypeOf(MakeParallelLinear(options, kExact).status()), "TypeError");
  }
}

TEST(ParallelLinearTest, TakesOnePartByDefaultAlone) {
  ParallelLinearOptions options;
  options.in_features = 4;
  options.out_features = Parts{8};
  options.use_bias = false;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const ParallelLinear layer, MakeParallelLinear(options));
  EXPECT_EQ(layer, (ParallelLinear{1, {4, 8}, std::nullopt, 1.0, ParallelDirection::kNone}));
  EXPECT_EQ(PythonTypeOf(MakeParallelLinear(options, kExact).status()), "TypeError");
}

TEST(ParallelLinearTest, TakesNegativePartsToTheLetterAlone) {
  ParallelLinearOptions options;
  options.in_features = 4;
  options.out_features = Parts{-1, 9};
  options.use_bias = false;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const ParallelLinear layer, MakeParallelLinear(options, kExact));
  EXPECT_EQ(layer.kernel_shape, (Shape{4, 8}));
  EXPECT_THAT(MakeParallelLinear(options), StatusIs(kInvalid, Reason::kInvalidShape));
}

TEST(ParallelLinearTest, ComputesTheScale) {
  ParallelLinearOptions options;
  options.in_features = 768;
  options.out_features = 3072;
  options.direction = ParallelDirection::kRow;
  for (const Compatibility compatibility : {kDefault, kExact}) {
    options.scale = "fan_in";
    EXPECT_EQ(MakeParallelLinear(options, compatibility)->scale_factor, 0.03608439182435161);
    options.scale = "fan_out";
    EXPECT_EQ(MakeParallelLinear(options, compatibility)->scale_factor, 0.018042195912175804);
    options.scale = -1.5;
    EXPECT_EQ(MakeParallelLinear(options, compatibility)->scale_factor, -1.5);
    EXPECT_EQ(MakeParallelLinear(options, compatibility)->direction, ParallelDirection::kRow);
    options.scale = "fan_inn";
    const auto unknown = MakeParallelLinear(options, compatibility);
    EXPECT_THAT(unknown, StatusIs(kInvalid, Reason::kBadField));
    EXPECT_EQ(PythonTypeOf(unknown.status()), "TypeError");
    EXPECT_THAT(unknown.status().ToString(), HasSubstr("did you mean \"fan_in\"?"));
  }
}

TEST(ParallelLinearTest, RefusesFeaturesThatMakeNoLayer) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  struct Case {
    int64_t in;
    std::variant<int64_t, Parts> out;
    std::variant<double, std::string> scale;
    const char* python_type;
  };
  const Case cases[] = {
      {0, 8, 1.0, "ZeroDivisionError"},
      {8, 0, 1.0, "ZeroDivisionError"},
      {-1, 0, 1.0, "ZeroDivisionError"},
      {0, 8, "fan_in", "ZeroDivisionError"},
      {8, 0, "fan_out", "ZeroDivisionError"},
      {-1, 8, 1.0, "TypeError"},
      {8, -1, 1.0, "TypeError"},
      {-1, 8, "fan_in", "TypeError"},
      {8, Parts{}, 1.0, "TypeError"},
      {0, Parts{}, "fan_in", "ZeroDivisionError"},
      {8, Parts{0, 0}, 1.0, "ZeroDivisionError"},
      {8, Parts{kMost, kMost}, 1.0, "ValueError"},
      {kMost, 2, 1.0, "ValueError"},
  };
  for (const Case& each : cases) {
    ParallelLinearOptions options;
    options.in_features = each.in;
    options.out_features = each.out;
    options.scale = each.scale;
    options.use_bias = false;
    for (const Compatibility compatibility : {kDefault, kExact}) {
      const auto layer = MakeParallelLinear(options, compatibility);
      EXPECT_THAT(layer, StatusIs(kInvalid, Reason::kInvalidShape));
      EXPECT_EQ(PythonTypeOf(layer.status()), each.python_type) << layer.status();
    }
  }
}

TEST(GetShardingTest, TellsTheSpecWhereThereIsOne) {
  EXPECT_THAT(GetSharding({2, ArrayLayout::Kind::kNone, {}}), IsOkAndHolds(std::nullopt));
  EXPECT_THAT(GetSharding(Named(2, Spec({Axis("dp")}))), IsOkAndHolds(Spec({Axis("dp")})));
  const auto single = GetSharding({2, ArrayLayout::Kind::kSingleDevice, {}});
  EXPECT_THAT(single, StatusIs(kInvalid, Reason::kInvalidSpec));
  EXPECT_EQ(PythonTypeOf(single.status()), "AttributeError");
}

TEST(GetOutputPartitionSpecTest, SwapsForMatricesAndElsePutsTheAxisLast) {
  const PartitionSpec rhs = Spec({Axis("a"), SpecEntry::Axes({"b", "c"}), Axis("d")});
  EXPECT_THAT(GetOutputPartitionSpec(Named(2, {}), Named(2, rhs), "tp"),
              IsOkAndHolds(Spec({SpecEntry::Axes({"b", "c"}), Axis("a")})));
  EXPECT_THAT(GetOutputPartitionSpec(Named(3, {}), Named(2, {}), "tp"),
              IsOkAndHolds(Spec({{}, {}, Axis("tp")})));
  EXPECT_THAT(GetOutputPartitionSpec(Named(0, {}), Named(2, {}), "tp"),
              IsOkAndHolds(Spec({Axis("tp")})));
  EXPECT_THAT(GetOutputPartitionSpec(Named(1, {}), Named(2, {}), ""), IsOkAndHolds(Spec({{}})));
  EXPECT_THAT(GetOutputPartitionSpec({}, Named(2, rhs), "tp"), IsOkAndHolds(std::nullopt));
}

TEST(GetOutputPartitionSpecTest, RefusesWhatItCannotSwap) {
  const auto short_spec = GetOutputPartitionSpec(Named(2, {}), Named(2, Spec({Axis("a")})), "tp");
  EXPECT_THAT(short_spec, StatusIs(kInvalid, Reason::kInvalidSpec));
  EXPECT_EQ(PythonTypeOf(short_spec.status()), "IndexError");
  // A side on a single device is refused even where the other one is not placed.
  const auto single = GetOutputPartitionSpec({}, {2, ArrayLayout::Kind::kSingleDevice, {}}, "tp");
  EXPECT_EQ(PythonTypeOf(single.status()), "AttributeError");
  for (const int64_t rank : {int64_t{-1}, kMaxRank + 1}) {
    EXPECT_THAT(GetOutputPartitionSpec(Named(rank, {}), Named(2, {}), "tp"),
                StatusIs(kInvalid, Reason::kInvalidShape));
  }
}

TEST(GetMatmulOutputShardingTest, DropsAxesThatEarlierDimensionsHave) {
  EXPECT_EQ(GetMatmulOutputSharding(Spec({Axis("dp"), Axis("tp")}),
                                    Spec({Axis("tp"), SpecEntry::Axes({"dp", "sp"})})),
            Spec({Axis("dp"), Axis("sp")}));
  // Repeats within one entry stay; an entry of which nothing is left becomes none.
  EXPECT_EQ(GetMatmulOutputSharding(Spec({SpecEntry::Axes({"a", "a"}), Axis("a"), Axis("x")}),
                                    Spec({SpecEntry::Axes({"a", "a"})})),
            Spec({SpecEntry::Axes({"a", "a"}), {}, {}}));
  // A none within an entry counts like an axis.
  EXPECT_EQ(GetMatmulOutputSharding(Spec({{}, Axis("x")}),
                                    Spec({SpecEntry::Axes({"a", "b", std::nullopt})})),
            Spec({{}, SpecEntry::Axes({"a", "b"})}));
  // And so does a dimension that is left open.
  EXPECT_EQ(GetMatmulOutputSharding(Spec({SpecEntry::Unconstrained(), Axis("x")}),
                                    Spec({SpecEntry::Unconstrained()})),
            Spec({SpecEntry::Unconstrained(), {}}));
}

TEST(GetMatmulOutputShardingTest, FillsUpToTheLeftSide) {
  EXPECT_EQ(GetMatmulOutputSharding(Spec({Axis("a"), Axis("b"), Axis("c")}), PartitionSpec()),
            Spec({Axis("a"), Axis("b"), {}}));
  EXPECT_EQ(GetMatmulOutputSharding(Spec({Axis("a")}), PartitionSpec()), Spec({{}}));
  EXPECT_EQ(GetMatmulOutputSharding(PartitionSpec(), Spec({Axis("a")})), Spec({Axis("a")}));
  EXPECT_EQ(GetMatmulOutputSharding(PartitionSpec(), PartitionSpec()), PartitionSpec());
  EXPECT_EQ(GetMatmulOutputSharding(std::nullopt, Spec({Axis("a")})), PartitionSpec());
  EXPECT_EQ(GetMatmulOutputSharding(PartitionSpec({Axis("a"), Axis("b")}, {"c"}), PartitionSpec()),
            Spec({Axis("a"), {}}));
}

TEST(TensorParallelConfigTest, TakesTheContextsMeshForAMethodAlone) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Mesh context, Mesh::Parse("dp=2,tp=4"));
  TensorParallelConfig config;
  EXPECT_THAT(CheckTensorParallelConfig(config, context), IsOkAndHolds(config));
  config.matmul_method = "";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(TensorParallelConfig checked,
                                 CheckTensorParallelConfig(config, context));
  EXPECT_EQ(checked.mesh, context);
  const auto without = CheckTensorParallelConfig(config, Mesh());
  EXPECT_THAT(without, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoMesh));
  EXPECT_EQ(PythonTypeOf(without.status()), "AssertionError");
}

TEST(TensorParallelConfigTest, ChecksTheAxisForAMethodAlone) {
  TensorParallelConfig config;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(config.mesh, Mesh::Parse("dp=2,tp=4"));
  config.axis_name = "to";
  EXPECT_THAT(CheckTensorParallelConfig(config, Mesh()), IsOkAndHolds(config));
  config.matmul_method = "all_gather";
  const auto checked = CheckTensorParallelConfig(config, Mesh());
  EXPECT_THAT(checked, StatusIs(kInvalid, Reason::kAxisNotInMesh));
  EXPECT_EQ(PythonTypeOf(checked.status()), "ValueError");
  EXPECT_THAT(checked.status().ToString(), HasSubstr("did you mean \"tp\"?"));
}

}  // namespace
}  // namespace shardmesh
