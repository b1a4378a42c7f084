// Tests of sharding/layout/held_shardings.h.
#include "sharding/layout/held_shardings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "status/reason.h"
#include "tests/testing/sharding_printers.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::HasSubstr;

using Kind = HeldLeaf::Kind;

PartitionSpec P(std::vector<SpecEntry> entries) { return PartitionSpec(std::move(entries)); }
SpecEntry Axis(std::string name) { return SpecEntry::Axis(std::move(name)); }

class HeldShardingsTest : public testing::Test {
 protected:
  const Mesh mesh_ = *Mesh::Parse("dp=2,tp=4");
  const Mesh other_ = *Mesh::Parse("x=8");
};

TEST_F(HeldShardingsTest, FindsLayoutsOfShardedArraysAlone) {
  const std::vector<HeldLeaf> leaves = {{"a", Kind::kSharded, mesh_, P({Axis("tp")})},
                                        {"b", Kind::kSingle},
                                        {"c", Kind::kHostArray},
                                        {"d", Kind::kNumber},
                                        {"e", Kind::kOther},
                                        {"f", Kind::kNone},
                                        {"g", Kind::kSpecOnly, Mesh(), P({Axis("x")})}};
  const auto structure = ExtractShardingStructure(leaves);
  ASSERT_EQ(structure.size(), leaves.size());
  EXPECT_EQ(structure[0], (NamedSharding{mesh_, P({Axis("tp")})}));
  for (size_t i = 1; i < leaves.size(); ++i) {
    EXPECT_EQ(structure[i], std::nullopt) << leaves[i].name;
  }
  // A bare spec gets the mesh of the call, a whole layout keeps its own.
  const auto shardings = ExtractShardings(leaves, other_);
  ASSERT_THAT(shardings, IsOk());
  EXPECT_EQ((*shardings)[0], (NamedSharding{mesh_, P({Axis("tp")})}));
  EXPECT_EQ((*shardings)[6], (NamedSharding{other_, P({Axis("x")})}));
  EXPECT_EQ((*shardings)[5], std::nullopt);
}

TEST_F(HeldShardingsTest, ExtractsNothingWithoutAMesh) {
  const absl::Status status = ExtractShardings({}, Mesh()).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoMesh));
  EXPECT_EQ(PythonTypeOf(status), "AssertionError");
}

TEST_F(HeldShardingsTest, GivesNumbersTheEmptySpecAndRefusesOtherLeaves) {
  const auto specs = GetPartitionSpecs(
      {{"a", Kind::kSharded, mesh_, P({Axis("tp")})}, {"b", Kind::kNumber}, {"c", Kind::kNone}});
  ASSERT_THAT(specs, IsOk());
  EXPECT_EQ((*specs)[0], P({Axis("tp")}));
  EXPECT_EQ((*specs)[1], P({}));
  EXPECT_EQ((*specs)[2], std::nullopt);
  struct Row {
    Kind kind;
    std::string_view python_type;
  };
  for (const Row& row : {Row{Kind::kSingle, "AttributeError"}, Row{Kind::kHostArray, "ValueError"},
                         Row{Kind::kOther, "ValueError"}, Row{Kind::kSpecOnly, "ValueError"}}) {
    const absl::Status status =
        GetPartitionSpecs({{"fine", Kind::kNumber}, {"odd", row.kind}}).status();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidSpec));
    EXPECT_EQ(PythonTypeOf(status), row.python_type);
    EXPECT_THAT(std::string(status.message()), HasSubstr("odd"));
  }
}

TEST_F(HeldShardingsTest, PlacesLeavesAsConstraintsDoAndGathersThemReplicated) {
  const auto plan = PlanShardAndGather({{"left", {8, 8}, P({})},
                                        {"fits", {8, 8}, P({Axis("tp")})},
                                        {"odd", {7, 8}, P({Axis("tp"), Axis("dp")})},
                                        {"long", {4, 4}, P({Axis("dp"), {}, {}})}},
                                       mesh_);
  ASSERT_THAT(plan, IsOk());
  EXPECT_EQ((*plan)[0].shard, std::nullopt);
  EXPECT_EQ((*plan)[1].shard->effective, P({Axis("tp"), {}}));
  EXPECT_TRUE((*plan)[1].shard->corrections.empty());
  EXPECT_EQ((*plan)[2].shard->effective, P({{}, Axis("dp")}));
  EXPECT_EQ((*plan)[2].shard->corrections.front().reason, Reason::kNotDivisible);
  EXPECT_EQ((*plan)[3].shard->effective, P({Axis("dp"), {}}));
  for (const LeafPlacement& placement : *plan) {
    EXPECT_EQ(placement.gather, P({}));
  }
}

TEST_F(HeldShardingsTest, RefusesSpecsThatAreNoneOfTheMeshBeforeAnyShape) {
  // Correction would drop the axis; the original never gets there.
  EXPECT_THAT(PlanShardAndGather({{"a", {-1}, P({})}, {"b", {4}, P({Axis("nope")})}}, mesh_),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kAxisNotInMesh));
  const absl::Status twice =
      PlanShardAndGather({{"b", {3}, P({SpecEntry::Axes({"dp", "dp"})})}}, mesh_).status();
  EXPECT_THAT(twice, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kDuplicateAxis));
  EXPECT_EQ(PythonTypeOf(twice), "DuplicateSpecError");
  EXPECT_THAT(PlanShardAndGather({{"a", {-1}, P({})}}, mesh_),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidShape));
  EXPECT_THAT(PlanShardAndGather({}, Mesh()),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoMesh));
}

}  // namespace
}  // namespace shardmesh
