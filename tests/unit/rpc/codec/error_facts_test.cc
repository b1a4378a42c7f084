// The facts of errors that the layers below the processes make. Errors of the coordinator, of
// workers and of clients have their facts checked beside the tests of their behaviour.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "process/crc32c.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/correction_codec.h"
#include "rpc/codec/status.h"
#include "rpc/stream/frame.h"
#include "rpc/transfer_token.h"
#include "sharding/correction.h"
#include "sharding/mesh.h"
#include "sharding/mode.h"
#include "sharding/partition_axis.h"
#include "sharding/pattern/pattern.h"
#include "sharding/presets.h"
#include "sharding/reshard/plan.h"
#include "sharding/rules/rule_set.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "sharding/tile.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "tensor/buffer.h"
#include "tensor/dtype.h"
#include "tensor/random.h"
#include "tensor/tree_file.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using test::CarriesFacts;

Mesh MeshOf(std::string_view text) { return *Mesh::Parse(text); }
PartitionSpec SpecOf(std::vector<std::string> axes) {
  std::vector<SpecEntry> entries;
  for (std::string& axis : axes) entries.push_back(SpecEntry::Axis(std::move(axis)));
  return PartitionSpec(std::move(entries));
}

TEST(ErrorFactsTest, OfLayouts) {
  const Mesh mesh = MeshOf("dp=2,tp=4");
  EXPECT_THAT(
      Tiling::Create(mesh, SpecOf({"tp"}), {30}),
      CarriesFacts(
          Reason::kNotDivisible,
          {{fact::kDimension, 0}, {fact::kHave, 30}, {fact::kNeed, 4}, {fact::kAxis, "tp"}}));
  EXPECT_THAT(
      Tiling::Create(mesh, SpecOf({"tpp"}), {32}),
      CarriesFacts(Reason::kAxisNotInMesh,
                   {{fact::kAxis, "tpp"}, {fact::kMesh, mesh.ToString()}, {fact::kNearest, "tp"}}));
  EXPECT_THAT(Tiling::Create(mesh, SpecOf({"tp", "tp"}), {32, 32}),
              CarriesFacts(Reason::kDuplicateAxis, {{fact::kAxis, "tp"}}));
  EXPECT_THAT(Tiling::Create(mesh, SpecOf({"tp", "dp"}), {32}),
              CarriesFacts(Reason::kRankMismatch, {{fact::kHave, 2}, {fact::kNeed, 1}}));
  MeshOptions four_devices;
  four_devices.device_count = 4;
  EXPECT_THAT(Mesh::Parse("dp=3", four_devices),
              CarriesFacts(Reason::kMeshSizeMismatch, {{fact::kHave, 4}, {fact::kNeed, 3}}));
  EXPECT_THAT(Correct(SpecOf({"tp"}), {32}, Mesh()), CarriesFacts(Reason::kNoMesh, {}));
}

// As each call does under CORRECTION_POLICY_STRICT.
absl::Status StrictRefusal(const std::vector<Correction>& corrections, const Mesh& mesh) {
  return rpc::WithCorrections(InvalidArgument(corrections.at(0).reason, "it was corrected"),
                              corrections, {}, mesh);
}

TEST(ErrorFactsTest, OfCorrectionsThatAreErrors) {
  const Mesh mesh = MeshOf("dp=2,tp=4");
  const auto corrected = [&mesh](const PartitionSpec& spec, const Shape& shape) {
    return StrictRefusal(Correct(spec, shape, mesh)->corrections, mesh);
  };
  EXPECT_THAT(
      corrected(SpecOf({"tp"}), {30}),
      CarriesFacts(
          Reason::kNotDivisible,
          {{fact::kDimension, 0}, {fact::kHave, 30}, {fact::kNeed, 4}, {fact::kAxis, "tp"}}));
  EXPECT_THAT(
      corrected(SpecOf({"tpp"}), {32}),
      CarriesFacts(
          Reason::kAxisNotInMesh,
          {{fact::kDimension, 0}, {fact::kHave, 0}, {fact::kNeed, 1}, {fact::kAxis, "tpp"}}));
  EXPECT_THAT(corrected(SpecOf({"tp", "dp"}), {32}),
              CarriesFacts(Reason::kRankTruncated,
                           {{fact::kDimension, 1}, {fact::kHave, 1}, {fact::kNeed, 2}}));
  EXPECT_THAT(corrected(PartitionSpec({SpecEntry::Unconstrained()}), {32}),
              CarriesFacts(Reason::kUnconstrained, {{fact::kDimension, 0}}));
  const RuleSet rules = *RuleSet::Create({{".*", SpecOf({"tp"})}}, {.min_size = 100});
  EXPECT_THAT(StrictRefusal(rules.Match("w", Shape{32})->corrections, mesh),
              CarriesFacts(Reason::kBelowMinSize, {{fact::kHave, 32}, {fact::kNeed, 100}}));
}

TEST(ErrorFactsTest, OfMalformedValues) {
  EXPECT_THAT(ElementCount({8, -1}),
              CarriesFacts(Reason::kInvalidShape, {{fact::kDimension, 1}, {fact::kValue, -1}}));
  EXPECT_THAT(Mesh::Parse("tp=0"),
              CarriesFacts(Reason::kInvalidMesh, {{fact::kAxis, "tp"}, {fact::kValue, 0}}));
  const AxisValue given = AxisValue::NotGiven();
  EXPECT_THAT(SpecEntry::Create(given),
              CarriesFacts(Reason::kInvalidSpec, {{fact::kValue, given.ToString()}}));
  EXPECT_THAT(
      Tiling::Create(MeshOf("tp=2"), SpecOf({"tp"}), {8}, {{0, 9, 8}}),
      CarriesFacts(Reason::kInvalidCutPoints, {{fact::kDimension, 0}, {fact::kValue, "0,9,8"}}));
  EXPECT_THAT(Pattern::Create(std::string(Pattern::kMaxLength + 1, 'x')),
              CarriesFacts(Reason::kLimitExceeded, {{fact::kHave, Pattern::kMaxLength + 1},
                                                    {fact::kLimit, Pattern::kMaxLength}}));
}

TEST(ErrorFactsTest, OfTheResolutionOfLogicalAxes) {
  const PartitionAxis profile = *PartitionAxis::Create({});
  EXPECT_THAT(profile.ResolveAxis({AxisValue::Name("__BATCHH__")}, RuntimeMode::kTrain),
              CarriesFacts(Reason::kUnknownAxis,
                           {{fact::kName, "__BATCHH__"}, {fact::kNearest, "__BATCH__"}}));
  EXPECT_THAT(PartitionAxis::Create({{"head_axiss", AxisValue::None()}}),
              CarriesFacts(Reason::kUnknownField,
                           {{fact::kName, "head_axiss"}, {fact::kNearest, "head_axis"}}));
  EXPECT_THAT(
      Mode::Parse("trainn"),
      CarriesFacts(Reason::kUnknownMode, {{fact::kName, "trainn"}, {fact::kNearest, "__train__"}}));
  EXPECT_THAT(FindPreset("ColumnWisee"),
              CarriesFacts(Reason::kUnknownPreset,
                           {{fact::kName, "ColumnWisee"}, {fact::kNearest, "ColumnWise"}}));
  EXPECT_THAT(PartitionAxis::Create({{"data_parallel_axis", AxisValue::NotGiven()}}),
              CarriesFacts(Reason::kUnresolvedField, {{fact::kName, "data_parallel_axis"}}));
  const auto semantic = [](std::string name, AxisValue value) {
    SemanticAxis axis;
    axis.name = std::move(name);
    axis.value = std::move(value);
    return axis;
  };
  EXPECT_THAT(PartitionAxis::Create({}, {semantic("__BATCH__", AxisValue::None())}),
              CarriesFacts(Reason::kInvalidAxisValue, {{fact::kName, "__BATCH__"}}));
  EXPECT_THAT(PartitionAxis::Create(
                  {}, {semantic("a", AxisValue::Name("b")), semantic("b", AxisValue::Name("a"))}),
              CarriesFacts(Reason::kCyclicAxis, {{fact::kName, "a,b,a"}}));
  EXPECT_THAT(Mode::OfDimension(2).Resolve(Shape{8, 8}),
              CarriesFacts(Reason::kInvalidDimension, {{fact::kDimension, 2}, {fact::kLimit, 2}}));
  EXPECT_THAT(Mode::OfDimension(0).Resolve(std::nullopt),
              CarriesFacts(Reason::kMissingArgument, {{fact::kField, "shape"}}));
}

TEST(ErrorFactsTest, OfRules) {
  const RuleSet rules = *RuleSet::Create({{"mlp/kernel$", SpecOf({"tp"})}}, {});
  EXPECT_THAT(rules.Match("mlp/kernel_2", Shape{1 << 20}),
              CarriesFacts(Reason::kUnmatchedTensor,
                           {{fact::kTensor, "mlp/kernel_2"}, {fact::kNearest, "mlp/kernel$"}}));
  EXPECT_THAT(Pattern::Create(R"(a\N{SPACE})"),
              CarriesFacts(Reason::kUnsupportedPattern,
                           {{fact::kValue, R"(a\N{SPACE})"}, {fact::kPosition, 1}}));
  EXPECT_THAT(Pattern::Create("a{2,1}"),
              CarriesFacts(Reason::kBadPattern, {{fact::kValue, "a{2,1}"}, {fact::kPosition, 1}}));
}

TEST(ErrorFactsTest, OfRequests) {
  EXPECT_THAT(rpc::BadField("spec", "is missing"),
              CarriesFacts(Reason::kBadField, {{fact::kField, "spec"}}));
  rpc::TransferClaims claims;
  ArrayDescriptor array;
  array.array_id = "a-1";
  array.mesh = MeshOf("tp=2");
  array.mesh_id = "m";
  claims.array_descriptor = rpc::ArrayDescriptorBytes(array);
  claims.expire_time = absl::UnixEpoch();
  const std::string key(rpc::kTokenKeyBytes, 'k');
  EXPECT_THAT(rpc::VerifyToken(rpc::SignToken(claims, key), key, rpc::TransferDirection::kGet,
                               absl::UnixEpoch() + absl::Seconds(1)),
              CarriesFacts(Reason::kBadToken, {{fact::kArray, "a-1"}}));
}

TEST(ErrorFactsTest, OfData) {
  const Mesh mesh = MeshOf("tp=2");
  EXPECT_THAT(ReshardPlan::Create(*Tiling::Create(mesh, SpecOf({"tp"}), {8}),
                                  *Tiling::Create(mesh, SpecOf({"tp"}), {4})),
              CarriesFacts(Reason::kShapeMismatch, {{fact::kHave, "(4,)"}, {fact::kNeed, "(8,)"}}));
  EXPECT_THAT(ParseDtype("BF17"), CarriesFacts(Reason::kUnknownDtype,
                                               {{fact::kDtype, "BF17"}, {fact::kNearest, "BF16"}}));
  EXPECT_THAT(FillNormal(Dtype::kI32, 0, 1.0, 0, {}),
              CarriesFacts(Reason::kUnsupportedDtype, {{fact::kDtype, "I32"}}));
  const absl::Status bad_file = ParseTree("tree.json", "[]").status();
  EXPECT_THAT(bad_file, CarriesFacts(Reason::kBadFile, {{fact::kFile, "tree.json"}}));
  MemoryBudget budget(4096);
  EXPECT_THAT(budget.Reserve(8192, "a tile").status(),
              CarriesFacts(Reason::kMemoryLimit, {{fact::kHave, 4096}, {fact::kNeed, 8192}}));
}

}  // namespace
}  // namespace shardmesh
