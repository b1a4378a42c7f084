// Layouts of arrays on meshes of another shape, and the names of auxiliary meshes.
#include "server/reshard/resize_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "rpc/codec/correction_codec.h"
#include "rpc/codec/status.h"
#include "server/reshard/partial_sums.h"
#include "server/reshard/worker_loads.h"
#include "server/steps/auxiliary_mesh.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using test::IsOk;
using test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const PartitionSpec kRowsOverDp({SpecEntry::Axis("dp"), SpecEntry()});

ArrayDefinition ArrayOf(const Shape& shape, const PartitionSpec& spec,
                        const std::string& mesh = "dp=4,tp=2") {
  ArrayDefinition array;
  array.descriptor = {.array_id = "a",
                      .dtype = Dtype::kF32,
                      .shape = shape,
                      .spec = spec,
                      .mesh_id = "m",
                      .mesh_revision = 1,
                      .mesh = *Mesh::Parse(mesh),
                      .cut_points = {}};
  return array;
}

TEST(ResizePlanTest, AnArrayKeepsItsSpecIfTheShapeDividesIt) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const PlacedLayout layout,
      LayoutOn({.mesh = *Mesh::Parse("dp=3,tp=2")}, ArrayOf({12, 4}, kRowsOverDp)));
  EXPECT_EQ(layout.spec, kRowsOverDp);
  EXPECT_EQ(layout.requested_spec, std::nullopt);
  EXPECT_THAT(layout.cut_points, IsEmpty());
}

TEST(ResizePlanTest, AnArrayIsRefusedIfItWouldLoseAnAxis) {
  const ArrayDefinition array = ArrayOf({8, 4}, kRowsOverDp);
  EXPECT_THAT(LayoutOn({.mesh = *Mesh::Parse("dp=3,tp=2")}, array),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kNotDivisible));
  EXPECT_THAT(LayoutOn({.mesh = *Mesh::Parse("ep=4")}, array),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kAxisNotInMesh));
  EXPECT_THAT(LayoutOn({.mesh = *Mesh::Parse("ep=4"), .uneven = UnevenCuts::kCeilChunks}, array),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kAxisNotInMesh));
}

TEST(ResizePlanTest, ARuleCutsWhatTheShapeDoesNotDivide) {
  const ArrayDefinition array = ArrayOf({8, 4}, kRowsOverDp);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const PlacedLayout ceil,
      LayoutOn({.mesh = *Mesh::Parse("dp=3"), .uneven = UnevenCuts::kCeilChunks}, array));
  EXPECT_THAT(ceil.cut_points, ElementsAre(ElementsAre(0, 3, 6, 8), IsEmpty()));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const PlacedLayout weighed,
      LayoutOn(
          {.mesh = *Mesh::Parse("dp=3"), .uneven = UnevenCuts::kByWeights, .weights = {2, 1, 1}},
          array));
  EXPECT_THAT(weighed.cut_points, ElementsAre(ElementsAre(0, 4, 6, 8), IsEmpty()));
}

TEST(ResizePlanTest, ARefusalSaysWhatIsWrongThenWhatToDoAndThenWhichArrays) {
  const auto definition = std::make_shared<Definition>();
  definition->name = "m";
  PlannedResize plan{.definition = definition, .layouts = {.mesh = *Mesh::Parse("dp=3,tp=2")}};
  const absl::Status error = LayoutOn(plan.layouts, ArrayOf({8, 4}, kRowsOverDp)).status();
  plan.refusals = {{.name = "w", .array_id = "a", .error = error},
                   {.name = "", .array_id = "b", .error = error}};
  plan.refusal_count = 7;
  const absl::Status refused = CheckResize(plan);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kNotDivisible));
  const std::vector<std::string> lines = absl::StrSplit(std::string(refused.message()), '\n');
  ASSERT_EQ(lines.size(), 5u) << refused.message();
  EXPECT_EQ(lines[0],
            "the mesh \"m\" cannot become dp=3,tp=2, and nothing was moved: 7 arrays cannot move");
  EXPECT_THAT(lines[1], HasSubstr("--uneven ceil"));
  EXPECT_THAT(lines[2], ::testing::StartsWith("  array 'w': dimension 0"));
  EXPECT_THAT(lines[3], ::testing::StartsWith("  array b: "));
  EXPECT_EQ(lines[4], "  and 5 more; --validate-only lists them and moves nothing");
  EXPECT_THAT(std::string(refused.message()), ::testing::Not(HasSubstr("to mend")))
      << "a resize asks for no spec";
  EXPECT_THAT(rpc::CorrectionsOf(refused).fixes, IsEmpty());

  // Long names do not push the advice out of the message.
  plan.refusals.front().name = std::string(2'000, 'n');
  EXPECT_THAT(rpc::WireMessage(CheckResize(plan)), HasSubstr("--uneven ceil"));

  plan.refusals.resize(1);
  plan.refusal_count = 1;
  plan.refusals[0].error =
      LayoutOn({.mesh = *Mesh::Parse("ep=4")}, ArrayOf({8, 4}, kRowsOverDp)).status();
  EXPECT_THAT(std::string(CheckResize(plan).message()),
              HasSubstr("cannot move\nKeep the axes that specs name, with size 1, or reshard "));

  // The advice fits the cause: an array with unequal parts needs a rule, and no shape divides it.
  plan.refusals.front().name = "w";
  ArrayDefinition cut = ArrayOf({8, 4}, kRowsOverDp);
  cut.descriptor.cut_points = {{0, 1, 2, 3, 8}, {}};
  plan.refusals[0].error = LayoutOn({.mesh = *Mesh::Parse("dp=2,tp=2")}, cut).status();
  EXPECT_THAT(std::string(CheckResize(plan).message()),
              ::testing::AllOf(HasSubstr("cannot move\nCut arrays with unequal parts anew"),
                               ::testing::Not(HasSubstr("Choose a shape"))));
  // An error with advice of its own needs no other.
  ArrayDefinition partial = ArrayOf({8, 4}, PartitionSpec({SpecEntry()}, {"dp"}));
  partial.descriptor.dtype = Dtype::kBool;
  plan.refusals[0].error = SumsOf(partial.descriptor).status();
  EXPECT_THAT(std::string(CheckResize(plan).message()),
              HasSubstr("cannot move\n  array 'w': it holds partial sums"));
}

TEST(ResizePlanTest, ARefusalNamesTheAxisThatAMistypedOneMeans) {
  const auto definition = std::make_shared<Definition>();
  definition->name = "m";
  definition->value = MeshDefinition{.mesh = *Mesh::Parse("dp=4,tp=2"), .workers = {}};
  const auto refused = [&](const char* shape) {
    PlannedResize plan{.definition = definition, .layouts = {.mesh = *Mesh::Parse(shape)}};
    plan.refusals = {{.name = "w",
                      .array_id = "a",
                      .error = LayoutOn(plan.layouts, ArrayOf({8, 4}, kRowsOverDp)).status()}};
    plan.refusal_count = 1;
    return std::string(CheckResize(plan).message());
  };
  EXPECT_THAT(refused("pd=2,tp=2"),
              HasSubstr("cannot move\nThe mesh dp=4,tp=2 has no axis \"pd\"; did you mean \"dp\"?\n"
                        "Keep the axes that specs name, with size 1, or reshard "));
  // An axis that remains is not what another one means, and a far name means none.
  EXPECT_THAT(refused("tpp=2,tp=2"), ::testing::Not(HasSubstr("did you mean \"tp\"")));
  EXPECT_THAT(refused("rows=2,tp=2"), ::testing::Not(HasSubstr("The mesh dp=4,tp=2 has no axis")));
}

TEST(ResizePlanTest, AnAxisThatDidNotFitBeforeComesBackIfItFitsNow) {
  ArrayDefinition array = ArrayOf({9, 4}, PartitionSpec());
  array.requested_spec = kRowsOverDp;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PlacedLayout fits,
                                 LayoutOn({.mesh = *Mesh::Parse("dp=3")}, array));
  EXPECT_EQ(fits.spec, kRowsOverDp);
  EXPECT_EQ(fits.requested_spec, std::nullopt);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PlacedLayout still,
                                 LayoutOn({.mesh = *Mesh::Parse("dp=2")}, array));
  EXPECT_EQ(still.spec, PartitionSpec());
  EXPECT_EQ(still.requested_spec, kRowsOverDp);
}

TEST(ResizePlanTest, CutPointsStayIfTheyFitAndAreRefusedIfNot) {
  ArrayDefinition array = ArrayOf({8, 4}, kRowsOverDp);
  array.descriptor.cut_points = {{0, 1, 2, 3, 8}, {}};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PlacedLayout stay,
                                 LayoutOn({.mesh = *Mesh::Parse("dp=4,tp=3")}, array));
  EXPECT_EQ(stay.cut_points, array.descriptor.cut_points);
  const absl::Status refused = LayoutOn({.mesh = *Mesh::Parse("dp=2,tp=2")}, array).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(refused), Reason::kInvalidCutPoints) << "AdviceOnResize names a rule";
  EXPECT_THAT(std::string(refused.message()), HasSubstr("are for the shape dp=4,tp=2 and not for"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const PlacedLayout cut,
      LayoutOn({.mesh = *Mesh::Parse("dp=3"), .uneven = UnevenCuts::kCeilChunks}, array));
  EXPECT_THAT(cut.cut_points, ElementsAre(ElementsAre(0, 3, 6, 8), IsEmpty()));
}

TEST(ResizePlanTest, AnArrayGoesBackWithoutTheAxesThatTheOldShapeDoesNotDivide) {
  // The array had no axis on dp=4, and got dp on dp=3.
  const ArrayDefinition array = ArrayOf({9, 4}, kRowsOverDp, "dp=3");
  EXPECT_THAT(LayoutOn({.mesh = *Mesh::Parse("dp=4")}, array),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kNotDivisible));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const PlacedLayout back,
      LayoutOn({.mesh = *Mesh::Parse("dp=4"), .is_old_shape = true}, array));
  EXPECT_EQ(back.spec, PartitionSpec());
  EXPECT_EQ(back.requested_spec, kRowsOverDp);
  EXPECT_THAT(back.cut_points, IsEmpty());
  // Axes that the old shape has not at all.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const PlacedLayout other,
      LayoutOn({.mesh = *Mesh::Parse("tp=4"), .is_old_shape = true}, array));
  EXPECT_EQ(other.spec, PartitionSpec());
  EXPECT_EQ(other.requested_spec, kRowsOverDp);
  // A rule cuts what the old shape does not divide.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const PlacedLayout cut,
      LayoutOn(
          {.mesh = *Mesh::Parse("dp=4"), .uneven = UnevenCuts::kCeilChunks, .is_old_shape = true},
          array));
  EXPECT_EQ(cut.spec, kRowsOverDp);
  EXPECT_EQ(cut.requested_spec, std::nullopt);
  EXPECT_THAT(cut.cut_points, ElementsAre(ElementsAre(0, 3, 6, 9, 9), IsEmpty()));
}

TEST(ResizePlanTest, AnArrayGoesBackWithoutCutPointsThatDoNotFitTheOldShape) {
  ArrayDefinition array = ArrayOf({8, 4}, kRowsOverDp, "dp=3");
  array.descriptor.cut_points = {{0, 3, 6, 8}, {}};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const PlacedLayout back,
      LayoutOn({.mesh = *Mesh::Parse("dp=4"), .is_old_shape = true}, array));
  EXPECT_EQ(back.spec, kRowsOverDp);
  EXPECT_EQ(back.requested_spec, std::nullopt);
  EXPECT_THAT(back.cut_points, IsEmpty());
  // The old shape does not divide what was cut.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const PlacedLayout whole,
      LayoutOn({.mesh = *Mesh::Parse("dp=5"), .is_old_shape = true}, array));
  EXPECT_EQ(whole.spec, PartitionSpec());
  EXPECT_EQ(whole.requested_spec, kRowsOverDp);
}

TEST(ResizePlanTest, AnArrayGoesBackWithItsOwnSpecIfTheRequestedOneHasAnAxisTwice) {
  const PartitionSpec twice({SpecEntry::Axis("dp"), SpecEntry::Axis("dp")});
  ArrayDefinition array = ArrayOf({12, 8}, kRowsOverDp, "dp=3");
  array.requested_spec = twice;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const PlacedLayout back,
      LayoutOn({.mesh = *Mesh::Parse("dp=4"), .is_old_shape = true}, array));
  EXPECT_EQ(back.spec, kRowsOverDp);
  EXPECT_EQ(back.requested_spec, twice);
}

TEST(ResizePlanTest, PartialSumsGetTheLayoutOfTheirSums) {
  const PartitionSpec over_tp({SpecEntry(), SpecEntry::Axis("tp")});
  const ArrayDefinition array =
      ArrayOf({8, 4}, PartitionSpec({SpecEntry(), SpecEntry::Axis("tp")}, {"dp"}));
  EXPECT_EQ(LayoutOf(array).spec, over_tp);
  for (const bool is_old_shape : {false, true}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        const PlacedLayout layout,
        LayoutOn({.mesh = *Mesh::Parse("tp=2"), .is_old_shape = is_old_shape}, array));
    EXPECT_EQ(layout.spec, over_tp) << "the shape needs no axis of the partial sums";
    EXPECT_EQ(layout.requested_spec, std::nullopt);
  }
}

TEST(ResizePlanTest, SumsThatAResizeHasScatteredNeedNotFitTheNewShape) {
  const PartitionSpec over_tp({SpecEntry(), SpecEntry::Axis("tp")});
  ArrayDefinition array = ArrayOf({8, 4}, PartitionSpec({SpecEntry::Axis("dp"), over_tp.entry(1)}));
  array.requested_spec = over_tp;
  EXPECT_EQ(LayoutOf(array).spec, over_tp);
  for (const char* const mesh : {"dp=3,tp=2", "tp=2"}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const PlacedLayout layout,
                                   LayoutOn({.mesh = *Mesh::Parse(mesh)}, array));
    EXPECT_EQ(layout.spec, over_tp);
    EXPECT_EQ(layout.requested_spec, std::nullopt);
  }
}

TEST(ResizePlanTest, EachRankThatIsShortOfMemoryIsNamed) {
  PlannedResize plan;
  auto definition = std::make_shared<Definition>();
  definition->name = "train";
  plan.definition = definition;
  plan.layouts.mesh = *Mesh::Parse("dp=3");
  for (const char* identity : {"a", "b", "c"}) {
    plan.ranks.push_back({.identity = identity,
                          .have_bytes = 10,
                          .capacity_bytes = 1 << 20,
                          .need_bytes = identity[0] == 'a' ? 10 : 11});
  }
  const absl::Status refused = CheckResize(plan);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_EQ(
      refused.message(),
      "the resize to dp=3 lacks memory on 2 ranks (--validate-only lists them), and nothing "
      "was moved; release arrays, choose more ranks, or start these workers with --memory "
      "2MiB or more\n"
      "  rank 1 of the mesh \"train\" (worker \"b\") has 10 B of 1.00 MiB left, and needs 11 B\n"
      "  rank 2 of the mesh \"train\" (worker \"c\") has 10 B of 1.00 MiB left, and needs 11 B");
  EXPECT_EQ(FactOf(refused, fact::kRank), "1,2");
  plan.ranks.resize(1);
  EXPECT_THAT(CheckResize(plan), IsOk());
}

TEST(WorkerLoadsTest, ThePeakIsTheMostBytesAtOneTime) {
  // Each of eight ranks has two rows of four numbers: 32 bytes.
  const ArrayDescriptor rows = ArrayOf({8, 4}, kRowsOverDp).descriptor;
  const ArrayDescriptor on_two = ArrayOf({8, 4}, kRowsOverDp, "dp=2").descriptor;
  const std::vector<std::string> old_workers = {"a", "b", "c", "d", "e", "f", "g", "h"};
  WorkerLoads loads;
  EXPECT_EQ(loads.PeakOf("a"), 0);
  // Rank 1 has lost its tile, so its worker has nothing to drop.
  for (int array = 0; array < 2; ++array) {
    ASSERT_THAT(loads.Take(on_two, {"a", "b"}), IsOk());
    ASSERT_THAT(loads.Drop(rows, old_workers, {1}), IsOk());
  }
  EXPECT_EQ(loads.PeakOf("a"), 64 - 32 + 64);
  EXPECT_EQ(loads.PeakOf("b"), 64 + 64);
  EXPECT_EQ(loads.PeakOf("h"), 0);
  EXPECT_EQ(loads.LargestOf("b"), 64);
  // A mesh whose ranks have no workers yet counts for nothing.
  ASSERT_THAT(loads.Take(on_two, {}), IsOk());
  EXPECT_EQ(loads.PeakOf("b"), 64 + 64);
}

TEST(WorkerLoadsTest, CopiesCountOfAsManyArraysAsMoveAtOnce) {
  const ArrayDescriptor array = ArrayOf({8, 4}, kRowsOverDp, "dp=2").descriptor;  // 64 bytes each
  struct Case {
    size_t at_once;
    std::vector<int64_t> copies;
    int64_t peak;
  };
  for (const Case& each : std::vector<Case>{{1, {0}, 64},
                                            {1, {10}, 64 + 10},
                                            // The copies of the first array are gone by then.
                                            {1, {100, 10}, 64 + 100},
                                            {1, {10, 100}, 2 * 64 + 100},
                                            {1, {100, 0, 0}, 3 * 64},
                                            {2, {100, 0, 0}, 3 * 64 + 100},
                                            {2, {10, 30, 20}, 3 * 64 + 30 + 20},
                                            {4, {10, 30, 20}, 3 * 64 + 60},
                                            {4, {1, 2, 3, 4, 5, 6}, 6 * 64 + 3 + 4 + 5 + 6}}) {
    SCOPED_TRACE(each.peak);
    WorkerLoads loads(each.at_once);
    for (const int64_t copies : each.copies) {
      ASSERT_THAT(loads.Take(array, {"a", "b"}, copies), IsOk());
    }
    EXPECT_EQ(loads.PeakOf("a"), each.peak);
    EXPECT_EQ(loads.LargestOf("b"), 64 + *std::max_element(each.copies.begin(), each.copies.end()));
  }
}

TEST(WorkerLoadsTest, ALimitIsForWhatThereIsAndWhatComesNext) {
  // Each of two ranks has four rows of four numbers: 64 bytes.
  const ArrayDescriptor on_two = ArrayOf({8, 4}, kRowsOverDp, "dp=2").descriptor;
  WorkerLoads loads;
  WorkerLoads next;
  ASSERT_THAT(next.Take(on_two, {"a", "b"}), IsOk());
  EXPECT_TRUE(loads.WouldExceed(next, {{"a", 64}, {"b", 63}}));
  EXPECT_FALSE(loads.WouldExceed(next, {{"a", 64}, {"b", 64}}));
  EXPECT_FALSE(loads.WouldExceed(next, {{"c", 0}})) << "workers without a limit";
  ASSERT_THAT(loads.Take(on_two, {"a"}), IsOk());
  EXPECT_TRUE(loads.WouldExceed(next, {{"a", 127}}));
  EXPECT_FALSE(loads.WouldExceed(next, {{"a", 128}}));
  ASSERT_THAT(loads.Drop(on_two, {"a"}), IsOk());
  EXPECT_FALSE(loads.WouldExceed(next, {{"a", 64}}));
}

TEST(ResizePlanTest, TheAuxiliaryMeshIsKnownByItsName) {
  Definition mesh;
  mesh.name = "train.resize-1";
  mesh.uid = "0123456789abcdef0123456789abcdef";
  const std::string name = ResizeMeshName(mesh);
  EXPECT_EQ(name, "train.resize-1.resize-0123456789ab");
  EXPECT_EQ(ResizedMeshOf(name), mesh.name);
  for (const char* other : {"", "train", "train.resize-1", "a.resize-0123456789AB",
                            "a.resize-0123456789abc", "resize-0123456789ab"}) {
    EXPECT_EQ(ResizedMeshOf(other), "") << other;
  }
}

}  // namespace
}  // namespace shardmesh::server
