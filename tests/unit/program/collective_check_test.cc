// Refusals of collectives: each names the op, the fault and the reason.
#include "program/collective_check.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sharding/mesh.h"
#include "status/reason.h"
#include "tests/unit/program/plan_examples.h"

namespace shardmesh {
namespace {

using ::testing::HasSubstr;

TEST(CollectiveCheckTest, RefusesCollectivesThatCannotBeWithTheReason) {
  using Kind = CollectiveKind;
  struct Case {
    CollectiveOp op;
    Reason reason;
    std::string message;
    PartitionSpec spec = Spec({{"tp"}, {}});
    Dtype dtype = Dtype::kF32;
    Shape shape = {6, 9};
  };
  const std::vector<std::string> tp = {"tp"};
  const Case cases[] = {
      {{.axes = {"xx"}}, Reason::kAxisNotInMesh, "axis 'xx' is not in the mesh"},
      {{.axes = {"tpp"}}, Reason::kAxisNotInMesh, "; did you mean \"tp\"?"},
      {{.axes = {}}, Reason::kMissingArgument, "no mesh axes are given"},
      {{.axes = {"tp", "tp"}}, Reason::kDuplicateAxis, "axis 'tp' is given twice"},
      {{.axes = tp}, Reason::kUnsupportedDtype, "BOOL has no arithmetic", {}, Dtype::kBool},
      {{.kind = Kind::kReduce, .axes = tp, .reduction = Reduction::kMean},
       Reason::kUnsupportedDtype,
       "the mean of I32 is not defined; use a sum",
       {},
       Dtype::kI32},
      {{.kind = Kind::kBroadcast, .axes = {"dp"}, .root = 3},
       Reason::kBadField,
       "root 3 is no place of a group; it has the places 0 to 2"},
      {{.kind = Kind::kReduce, .axes = {"one"}, .root = 1}, Reason::kBadField, "root 1"},
      {{.kind = Kind::kScatter, .axes = tp, .dimension = 0, .root = -1},
       Reason::kBadField,
       "root -1"},
      {{.kind = Kind::kAllReduce, .axes = tp, .root = 1},
       Reason::kBadField,
       "all-reduce has no root"},
      {{.kind = Kind::kPermute, .axes = tp}, Reason::kMissingArgument, "no pairs of places"},
      {{.kind = Kind::kBarrier, .axes = tp, .permutation = {{0, 1}}},
       Reason::kBadField,
       "only permute has them, not barrier"},
      {{.kind = Kind::kPermute, .axes = tp, .permutation = {{0, 2}}},
       Reason::kBadField,
       "the pair 0:2 names place 2; a group has the places 0 to 1"},
      {{.kind = Kind::kPermute, .axes = tp, .permutation = {{-1, 0}}},
       Reason::kBadField,
       "names place -1"},
      {{.kind = Kind::kPermute, .axes = {"dp"}, .permutation = {{0, 1}, {2, 1}}},
       Reason::kBadField,
       "place 1 is the target of two pairs"},
      {{.kind = Kind::kPermute, .axes = {"dp"}, .permutation = {{2, 0}, {2, 1}}},
       Reason::kBadField,
       "place 2 is the source of two pairs; use broadcast"},
      {{.kind = Kind::kPermute, .axes = {"tp", "dp"}, .permutation = {{0, 1}}},
       Reason::kInvalidSpec,
       "is replicated along dp, and its replicas would differ afterwards"},
      {{.kind = Kind::kAllGather, .axes = tp, .dimension = 2},
       Reason::kInvalidDimension,
       "dimension 2 is not one of the 2 dimensions"},
      {{.kind = Kind::kAllToAll, .axes = tp, .dimension = 0, .split_dimension = 2},
       Reason::kInvalidDimension,
       "split_dimension 2 is not one of the 2 dimensions"},
      {{.kind = Kind::kAllToAll, .axes = tp, .dimension = 0, .split_dimension = 0},
       Reason::kInvalidDimension,
       "dimension and split_dimension are both 0"},
      {{.kind = Kind::kAllToAll, .axes = tp, .dimension = 0, .split_dimension = 1},
       Reason::kNotDivisible,
       "dimension 1 of a tile has 9 elements; tp=2 does not divide it"},
      {{.kind = Kind::kScatter, .axes = tp, .dimension = 1}, Reason::kNotDivisible, "9 elements"},
      {{.kind = Kind::kReduceScatter, .axes = tp, .dimension = 1},
       Reason::kNotDivisible,
       "9 elements"},
      {{.axes = tp, .counts = {3, 3}}, Reason::kBadField, "scatter have them, not all-reduce"},
      {{.kind = Kind::kScatter, .axes = tp, .dimension = 1, .counts = {9}},
       Reason::kBadField,
       "1 counts are given for groups of 2 devices; give one for each place"},
      {{.kind = Kind::kScatter, .axes = tp, .dimension = 1, .counts = {9, 0}},
       Reason::kBadField,
       "counts 9,0: every part has at least one index, not 0"},
      {{.kind = Kind::kScatter, .axes = tp, .dimension = 1, .counts = {4, 4}},
       Reason::kShapeMismatch,
       "counts 4,4 do not add up to the 9 elements that dimension 1 of a tile has"},
      {{.kind = Kind::kReduceScatter,
        .axes = tp,
        .dimension = 1,
        .counts = {std::numeric_limits<int64_t>::max(), 10}},
       Reason::kShapeMismatch,
       "do not add up to the 9 elements"},
      {{.kind = Kind::kScatter, .axes = {"one"}, .dimension = 1, .counts = {8}},
       Reason::kShapeMismatch,
       "counts 8 do not add up to the 9 elements"},
      {{.kind = Kind::kScatter, .axes = tp, .dimension = 1, .counts = {4, 5}},
       Reason::kUnsupportedDtype,
       "F4 elements share bytes; only equal tiles of them are exchanged",
       Spec({{}, {}}),
       Dtype::kF4},
      {{.kind = Kind::kGather, .axes = {"dp"}, .dimension = 0},
       Reason::kInvalidSpec,
       "is not partitioned over dp as its minor axes; there is nothing to gather"},
      {{.kind = Kind::kAllToAll, .axes = {"dp"}, .dimension = 0, .split_dimension = 1},
       Reason::kInvalidSpec,
       "there is nothing to exchange"},
      {{.kind = Kind::kAllReduce, .axes = tp, .reduction = Reduction::kMax},
       Reason::kInvalidSpec,
       "partial sums along dp, and a product, minimum or maximum of partial sums means nothing; "
       "sum over dp first",
       Spec({{"tp"}, {}}, {"dp"})},
      {{.kind = Kind::kReduceScatter, .axes = tp, .reduction = Reduction::kProduct},
       Reason::kInvalidSpec,
       "sum over tp first",
       Spec({{}, {}}, {"tp"})},
      {{.kind = Kind::kAllGather, .axes = tp, .dimension = 1},
       Reason::kUnsupportedDtype,
       "F4 elements share bytes, and parts along dimension 1 of a tile of shape (2, 6) would cut "
       "one",
       Spec({{}, {"tp"}}),
       Dtype::kF4,
       {2, 6}},
      {{.kind = Kind::kAllToAll, .axes = tp, .algorithm = CollectiveAlgorithm::kRing},
       Reason::kInvalidDimension,
       "both 0"},
      {{.kind = Kind::kGather, .axes = tp, .algorithm = CollectiveAlgorithm::kRing},
       Reason::kBadField,
       "gather has no algorithm \"ring\"; those that fit: pairwise"},
      {{.axes = tp, .algorithm = CollectiveAlgorithm::kRing},
       Reason::kBadField,
       "a ring sums in an order of its own, and all-reduce allows that only with the order "
       "\"fastest\"; those that fit: pairwise, direct, doubling, halving"},
  };
  for (const Case& c : cases) {
    const auto plan = PlanOf(c.op, Value(c.shape, c.spec, c.dtype));
    SCOPED_TRACE(c.message);
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ReasonOf(plan.status()), c.reason) << plan.status();
    EXPECT_THAT(std::string(plan.status().message()),
                testing::AllOf(HasSubstr("op 0 (collective)"), HasSubstr(c.message)));
  }
}

TEST(CollectiveCheckTest, UnequalTilesAreRefusedWhereTilesHaveToBeOfOneSize) {
  using Kind = CollectiveKind;
  const ValueDescriptor cut = CutValue({8, 4}, Spec({{"tp"}, {}}), {{0, 7, 8}, {}});
  for (const Kind kind : {Kind::kAllReduce, Kind::kReduce, Kind::kBroadcast, Kind::kScatter,
                          Kind::kReduceScatter, Kind::kPermute}) {
    CollectiveOp op = {.kind = kind, .axes = {"tp"}, .dimension = 1};
    if (kind != Kind::kScatter && kind != Kind::kReduceScatter) op.dimension = 0;
    if (kind == Kind::kPermute) op.permutation = {{0, 1}};
    const auto plan = PlanOf(op, cut, "tp=2");
    EXPECT_EQ(ReasonOf(plan.status()), Reason::kShapeMismatch) << CollectiveKindName(kind);
    EXPECT_THAT(std::string(plan.status().message()),
                HasSubstr("dimension 0 is cut at 0,7,8 over P('tp', None): tiles along tp"));
  }
  // A part of seven cannot be halved.
  EXPECT_EQ(ReasonOf(PlanOf({.kind = Kind::kScatter, .axes = {"dp"}},
                            CutValue({9, 4}, Spec({{"tp"}, {}}), {{0, 7, 9}, {}}), "tp=2,dp=2")
                         .status()),
            Reason::kNotDivisible);
  for (const ProgramOp& op : {ProgramOp(MatmulOp{.lhs = 0, .rhs = 0}),
                              ProgramOp(ReshardOp{.input = 0, .spec = Spec({{}, {}})})}) {
    const auto plan =
        PlanProgram({.operand_count = 1, .ops = {op}, .outputs = {1}},
                    {CutValue({8, 8}, Spec({{"tp"}, {}}), {{0, 7, 8}, {}})}, Target("tp=2"));
    EXPECT_TRUE(plan.ok()) << plan.status();
  }
}

TEST(CollectiveCheckTest, ExchangesAlongTheAxesOfMoreThanOneDevice) {
  const Mesh mesh = *Mesh::Parse("dp=3,one=1,tp=2");
  EXPECT_EQ(*ExchangeAxes({.axes = {"tp", "one", "dp"}}, mesh), (Axes{"tp", "dp"}));
  EXPECT_EQ(*ExchangeAxes({.axes = {"one"}}, mesh), Axes());
  EXPECT_EQ(ReasonOf(ExchangeAxes({.axes = {}}, mesh).status()), Reason::kMissingArgument);
  EXPECT_EQ(ReasonOf(ExchangeAxes({.axes = {"one", "one"}}, mesh).status()),
            Reason::kDuplicateAxis);
}

TEST(CollectiveCheckTest, EachPartOfADimensionIsSplitAnew) {
  const Mesh mesh = *Mesh::Parse("dp=2,tp=2");
  const ValueDescriptor equal = Value({12}, Spec({{"dp"}}));
  const ValueDescriptor cut = CutValue({12}, Spec({{"dp"}}), {{0, 8, 12}});
  const CollectiveOp halves = {.kind = CollectiveKind::kScatter, .axes = {"tp"}};
  CollectiveOp thirds = halves;
  thirds.counts = {2, 4};
  EXPECT_EQ(*SplitPoints(halves, 2, equal, 0, mesh), (CutPoints{0, 3, 6, 9, 12}));
  EXPECT_EQ(*SplitPoints(halves, 2, cut, 0, mesh), (CutPoints{0, 4, 8, 10, 12}));
  EXPECT_EQ(*SplitPoints(thirds, 2, equal, 0, mesh), (CutPoints{0, 2, 6, 8, 12}));
  EXPECT_EQ(ReasonOf(SplitPoints(thirds, 2, cut, 0, mesh).status()), Reason::kShapeMismatch);
}

}  // namespace
}  // namespace shardmesh
