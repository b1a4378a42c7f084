// Reference results of collectives.
#include "client/inspect/reference_collective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "client/inspect/reference_program.h"
#include "client/inspect/verify_series.h"
#include "client/types/array.h"
#include "program/tensor_op.h"
#include "sharding/spec.h"
#include "status/reason.h"
#include "tensor/elementwise.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::client {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A tensor without partial sums. Its first dimension lies along `axes`.
LaidOutTensor Lay(const std::string& mesh, Shape shape, std::vector<AxisName> axes,
                  std::vector<double> values, Dtype dtype = Dtype::kF32) {
  ValueDescriptor layout;
  layout.dtype = dtype;
  layout.shape = shape;
  layout.spec = PartitionSpec({SpecEntry::Axes(std::move(axes))});
  BoundedTensor elements{.dtype = dtype, .shape = std::move(shape), .values = std::move(values)};
  return {.mesh = *Mesh::Parse(mesh),
          .layout = std::move(layout),
          .sums = {std::make_shared<const BoundedTensor>(std::move(elements))}};
}

LaidOutTensor After(const CollectiveOp& op, const LaidOutTensor& input) {
  absl::StatusOr<LaidOutTensor> result = ReferenceCollective(op, input);
  EXPECT_THAT(result, IsOk());
  return result.ok() ? *std::move(result) : input;
}

CollectiveOp Op(CollectiveKind kind, std::vector<std::string> axes = {"a"}) {
  CollectiveOp op;
  op.kind = kind;
  op.axes = std::move(axes);
  return op;
}

const std::vector<double>& ValuesOf(const LaidOutTensor& tensor, size_t sum = 0) {
  return tensor.sums[sum]->values;
}

TEST(ReferenceCollectiveTest, ReductionsCombineTheTilesOfAGroup) {
  const LaidOutTensor rows = Lay("a=2", {4}, {"a"}, {1, 2, 3, 4});
  const LaidOutTensor copies = Lay("a=2", {4}, {}, {1, 2, 3, 4});
  const LaidOutTensor sum = After(Op(CollectiveKind::kAllReduce), rows);
  EXPECT_EQ(sum.layout.shape, Shape({2}));
  EXPECT_THAT(ValuesOf(sum), ElementsAre(4, 6));
  EXPECT_THAT(ValuesOf(After(Op(CollectiveKind::kAllReduce), copies)), ElementsAre(2, 4, 6, 8));

  CollectiveOp scatter = Op(CollectiveKind::kReduceScatter);
  EXPECT_THAT(ValuesOf(After(scatter, copies)), ElementsAre(2, 4, 6, 8));
  scatter.counts = {1, 3};
  const LaidOutTensor uneven = After(scatter, copies);
  EXPECT_THAT(ValuesOf(uneven), ElementsAre(2, 4, 6, 8));
  EXPECT_THAT(uneven.layout.cut_points, ElementsAre(ElementsAre(0, 1, 4)));
  EXPECT_THAT(ValuesOf(After(Op(CollectiveKind::kAllGather), uneven)), ElementsAre(2, 4, 6, 8));

  // The first axis is the major one. Groups along the second axis are {0, 1} and {2, 3}.
  const LaidOutTensor quarters = Lay("a=2,b=2", {4}, {"a", "b"}, {1, 2, 3, 4});
  EXPECT_THAT(ValuesOf(After(Op(CollectiveKind::kAllReduce, {"b"}), quarters)), ElementsAre(3, 7));
  EXPECT_THAT(ValuesOf(After(Op(CollectiveKind::kAllReduce, {"a"}), quarters)), ElementsAre(4, 6));
  EXPECT_THAT(ValuesOf(After(Op(CollectiveKind::kAllReduce, {"b", "a"}), quarters)),
              ElementsAre(10));
}

TEST(ReferenceCollectiveTest, TheRootAloneHasTheResultOfReduceAndGather) {
  const LaidOutTensor rows = Lay("a=2", {4}, {"a"}, {1, 2, 3, 4});
  CollectiveOp reduce = Op(CollectiveKind::kReduce);
  reduce.root = 1;
  const LaidOutTensor partial = After(reduce, rows);
  ASSERT_EQ(partial.sums.size(), 2U);
  EXPECT_THAT(partial.layout.spec.unreduced(), ElementsAre("a"));
  EXPECT_THAT(ValuesOf(partial, 0), ElementsAre(0, 0));
  EXPECT_THAT(ValuesOf(partial, 1), ElementsAre(4, 6));
  EXPECT_THAT(ValuesOf(After(Op(CollectiveKind::kAllReduce), partial)), ElementsAre(4, 6));
  // A permute moves partial sums; a broadcast takes those of the root.
  CollectiveOp permute = Op(CollectiveKind::kPermute);
  permute.permutation = {{.source = 1, .target = 0}};
  const LaidOutTensor moved = After(permute, partial);
  EXPECT_THAT(ValuesOf(moved, 0), ElementsAre(4, 6));
  EXPECT_THAT(ValuesOf(moved, 1), ElementsAre(0, 0));
  EXPECT_THAT(ValuesOf(After(Op(CollectiveKind::kBroadcast), moved)), ElementsAre(4, 6));
  EXPECT_THAT(ValuesOf(After(Op(CollectiveKind::kBroadcast), partial)), ElementsAre(0, 0));

  const LaidOutTensor gathered = After(Op(CollectiveKind::kGather), rows);
  ASSERT_EQ(gathered.sums.size(), 2U);
  EXPECT_THAT(ValuesOf(gathered, 0), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(ValuesOf(gathered, 1), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(SumOf(gathered.sums)->values, ElementsAre(1, 2, 3, 4));
}

TEST(ReferenceCollectiveTest, ExchangesMoveTiles) {
  const LaidOutTensor rows = Lay("a=2", {4}, {"a"}, {1, 2, 3, 4});
  CollectiveOp op = Op(CollectiveKind::kBroadcast);
  op.root = 1;
  EXPECT_THAT(ValuesOf(After(op, rows)), ElementsAre(3, 4));
  op.kind = CollectiveKind::kScatter;
  EXPECT_THAT(ValuesOf(After(op, rows)), ElementsAre(3, 4));
  EXPECT_EQ(After(op, rows).layout.spec.entry(0), SpecEntry::Axis("a"));
  op = Op(CollectiveKind::kPermute);
  op.permutation = {{.source = 0, .target = 1}};
  EXPECT_THAT(ValuesOf(After(op, rows)), ElementsAre(0, 0, 1, 2));
  EXPECT_THAT(ValuesOf(After(Op(CollectiveKind::kBarrier), rows)), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(ValuesOf(After(Op(CollectiveKind::kAllGather), rows)), ElementsAre(1, 2, 3, 4));

  op = Op(CollectiveKind::kAllToAll);
  op.split_dimension = 1;
  const LaidOutTensor columns = After(op, Lay("a=2", {2, 4}, {"a"}, {1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_THAT(ValuesOf(columns), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_EQ(columns.layout.spec.entry(1), SpecEntry::Axis("a"));

  // Groups of one device, and tensors of nothing.
  EXPECT_THAT(ValuesOf(After(Op(CollectiveKind::kAllReduce), Lay("a=1", {2}, {"a"}, {1, 2}))),
              ElementsAre(1, 2));
  EXPECT_THAT(ValuesOf(After(Op(CollectiveKind::kAllReduce), Lay("a=2", {0}, {"a"}, {}))),
              ElementsAre());
  op = Op(CollectiveKind::kBroadcast);
  op.root = 2;
  EXPECT_THAT(ReferenceCollective(op, rows),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
}

TEST(ReferenceCollectiveTest, IntegersWrapAndAreExact) {
  const auto reduced = [](Dtype dtype, Reduction reduction, std::vector<double> values) {
    CollectiveOp op = Op(CollectiveKind::kAllReduce);
    op.reduction = reduction;
    const auto count = static_cast<int64_t>(values.size());
    const LaidOutTensor result =
        After(op, Lay("a=" + std::to_string(count), {count}, {"a"}, std::move(values), dtype));
    return std::pair(result.sums[0]->values[0], result.sums[0]->bounds[0]);
  };
  using Pair = std::pair<double, double>;
  EXPECT_EQ(reduced(Dtype::kI8, Reduction::kProduct, {100, 3}), Pair(44, 0));
  EXPECT_EQ(reduced(Dtype::kI8, Reduction::kSum, {100, 30}), Pair(-126, 0));
  EXPECT_EQ(reduced(Dtype::kU8, Reduction::kSum, {200, 100, 1}), Pair(45, 0));
  EXPECT_EQ(reduced(Dtype::kI32, Reduction::kSum, {2147483647, 1}), Pair(-2147483648.0, 0));
  EXPECT_EQ(reduced(Dtype::kI32, Reduction::kProduct, {-65537, 65537}), Pair(-131073, 0));
  EXPECT_EQ(reduced(Dtype::kI64, Reduction::kProduct, {-65536, 65536}), Pair(-4294967296.0, 0));
  EXPECT_EQ(reduced(Dtype::kI64, Reduction::kSum, {0x1p52, 0x1p52}).second, INFINITY);
  EXPECT_EQ(reduced(Dtype::kI32, Reduction::kMin, {4, -3, 5}), Pair(-3, 0));
  EXPECT_EQ(reduced(Dtype::kF32, Reduction::kMax, {4, -3, 5}), Pair(5, 0));
  EXPECT_EQ(reduced(Dtype::kF32, Reduction::kMax, {4, NAN, 5}).second, INFINITY);
  EXPECT_EQ(reduced(Dtype::kF32, Reduction::kMean, {1, 2, 6}).first, 3);
  EXPECT_EQ(reduced(Dtype::kF32, Reduction::kProduct, {2, 3, 0.5}).first, 3);
  EXPECT_EQ(reduced(Dtype::kF32, Reduction::kProduct, {0x1p100, 0x1p100, 0x1p-100}).second,
            INFINITY)
      << "the order decides whether there is an overflow";
  EXPECT_EQ(reduced(Dtype::kF16, Reduction::kSum, {40000, 40000}).second, INFINITY);
}

TEST(ReferenceCollectiveTest, SumsOfFloatsInAnyOrderAreWithinTheBound) {
  constexpr size_t kRanks = 7;
  std::mt19937 random(5);
  for (const Reduction reduction : {Reduction::kSum, Reduction::kMean, Reduction::kProduct}) {
    CollectiveOp op = Op(CollectiveKind::kAllReduce);
    op.reduction = reduction;
    std::vector<double> values;
    for (size_t i = 0; i < 40 * kRanks; ++i) {
      values.push_back(static_cast<double>(static_cast<float>(random() * 0x1p-31 - 1)));
    }
    const LaidOutTensor result = After(op, Lay("a=7", {int64_t{40 * kRanks}}, {"a"}, values));
    double largest = 0;
    for (size_t i = 0; i < 40; ++i) {
      for (const bool is_reversed : {false, true}) {
        float combined = reduction == Reduction::kProduct ? 1 : 0;
        for (size_t place = 0; place < kRanks; ++place) {
          const size_t from = is_reversed ? kRanks - 1 - place : place;
          const auto term = static_cast<float>(values[from * 40 + i]);
          combined = reduction == Reduction::kProduct ? combined * term : combined + term;
        }
        if (reduction == Reduction::kMean) combined *= 1.0F / static_cast<float>(kRanks);
        const double error = std::abs(static_cast<double>(combined) - ValuesOf(result)[i]);
        EXPECT_LE(error, result.sums[0]->bounds[i]);
        largest = std::max(largest, error / result.sums[0]->bounds[i]);
      }
    }
    EXPECT_GT(largest, 1e-3) << "the bound says something";
  }
}

TEST(ReferenceCollectiveTest, ResultsThatArePartialSumsMayBeRoundedEach) {
  const auto whole = [](std::vector<double> values) {
    return std::make_shared<const BoundedTensor>(
        BoundedTensor{.dtype = Dtype::kBF16, .shape = {2}, .values = std::move(values)});
  };
  const std::vector<BoundedTensorPtr> sums = {whole({100, 1}), whole({-99, 2})};
  const BoundedTensorPtr measured = RoundedSumOf(sums);
  EXPECT_THAT(measured->values, ElementsAre(1, 3));
  EXPECT_GE(measured->bounds[0], 199 * 0x1p-8);
  EXPECT_LT(measured->bounds[1], 3.1 * 0x1p-8);
  const BoundedTensor expected{.dtype = Dtype::kBF16, .shape = {2}, .values = {1.5, 3.25}};
  const VerifiedResult compared = CompareElements("output 0", *measured, expected);
  EXPECT_EQ(compared.outside, 1);
  ASSERT_TRUE(compared.first_outside.has_value());
  EXPECT_THAT(compared.first_outside->index, ElementsAre(1));
  EXPECT_EQ(RoundedSumOf({&sums[0], 1}), sums[0]);
}

TEST(ReferenceCollectiveTest, RefusesWhatIsTooLarge) {
  ValueDescriptor layout;
  layout.shape = {int64_t{1} << 25};
  layout.spec = PartitionSpec({SpecEntry::Axis("a")});
  const absl::Status large =
      CheckCollectiveSize(Op(CollectiveKind::kAllGather), *Mesh::Parse("a=2"), layout);
  EXPECT_THAT(large, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
  EXPECT_THAT(std::string(large.message()), HasSubstr("67108864 elements"));
  layout.shape = {1024};
  EXPECT_THAT(CheckCollectiveSize(Op(CollectiveKind::kAllGather), *Mesh::Parse("a=2"), layout),
              IsOk());
}

TEST(ReferenceCollectiveTest, ComparisonsOfStepsAddUp) {
  VerifiedResult total{.what = "state"};
  AddVerified({.checked = 3, .undetermined = 1, .largest_error = 0.5, .bound = 1}, &total);
  AddVerified({.checked = 4,
               .outside = 1,
               .largest_error = 0.25,
               .bound = 0.125,
               .first_outside = VerifiedResult::Element{.index = {2}}},
              &total);
  EXPECT_EQ(total.checked, 7);
  EXPECT_EQ(total.undetermined, 1);
  EXPECT_EQ(total.outside, 1);
  EXPECT_EQ(total.largest_error, 0.5);
  EXPECT_EQ(total.bound, 1);
  ASSERT_TRUE(total.first_outside.has_value());
  EXPECT_THAT(total.first_outside->index, ElementsAre(2));
}

TEST(VerifySeriesTest, TheToleranceLimitsBounds) {
  const auto limited = [](double tolerance, Dtype dtype, double second) {
    BoundedTensor tensor{
        .dtype = dtype, .shape = {3}, .values = {-4, second, 2}, .bounds = {INFINITY, 1, 1e-6}};
    LimitBounds(tolerance, &tensor);
    return tensor.bounds;
  };
  EXPECT_THAT(limited(ToleranceOf(Dtype::kF32), Dtype::kF32, 1), ElementsAre(0.004, 0.004, 1e-6));
  EXPECT_THAT(limited(ToleranceOf(Dtype::kBF16), Dtype::kF32, 1), ElementsAre(0.4, 0.4, 1e-6));
  EXPECT_THAT(limited(0.1, Dtype::kI32, 1), ElementsAre(INFINITY, 1, 1e-6)) << "tokens";
  EXPECT_THAT(limited(0.1, Dtype::kF32, INFINITY), ElementsAre(INFINITY, 1, 1e-6));

  // The largest of two elements is known where they differ by more than the tolerance allows.
  const Program largest = {.operand_count = 1,
                           .ops = {TensorOp{MapOp{.function = MapFunction::kNegate, .inputs = {0}}},
                                   TensorOp{TopKOp{.input = 1, .count = 1}}},
                           .outputs = {2}};
  BoundedTensor scores{
      .dtype = Dtype::kF32, .shape = {2, 2}, .values = {1, 1.5, 1, 1.001}, .bounds = {9, 9, 9, 9}};
  const auto types = TypesOfValues(largest, std::vector<TensorType>{{scores.dtype, scores.shape}});
  ASSERT_THAT(types, IsOk());
  const std::vector<BoundedTensorPtr> operands = {
      std::make_shared<const BoundedTensor>(std::move(scores))};
  const auto unlimited = ReferenceValues(largest, *types, operands);
  ASSERT_THAT(unlimited, IsOk());
  EXPECT_THAT(unlimited->back()->bounds, ElementsAre(INFINITY, INFINITY));
  const auto values = ReferenceValues(largest, *types, operands, 0.01);
  ASSERT_THAT(values, IsOk());
  EXPECT_THAT(values->back()->values, ElementsAre(0, 0));
  EXPECT_THAT(values->back()->bounds, ElementsAre(0, INFINITY));
}

TEST(VerifySeriesTest, ThatNothingIsKnownIsAnError) {
  const VerifiedResult unknown{.what = "output 0", .undetermined = 4};
  const absl::Status status = CheckVerified({&unknown, 1});
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnimplemented, Reason::kNotAvailable));
  EXPECT_THAT(std::string(status.message()), HasSubstr("of 4 elements"));
  const VerifiedResult known{.what = "output 1", .checked = 1};
  EXPECT_THAT(CheckVerified(std::vector<VerifiedResult>{unknown, known}), IsOk());
  EXPECT_THAT(CheckVerified({}), IsOk()) << "a tensor of nothing";
}

TEST(PartialSumTest, CountsPlacesAlongTheUnreducedAxes) {
  ArrayDescriptor array;
  array.mesh = *Mesh::Parse("a=2,b=3,c=2");
  EXPECT_EQ(PartialSumCount(array), 1);
  EXPECT_EQ(PartialSumOf(array, 7), 0);
  array.spec = PartitionSpec({}, {"c", "a"});
  EXPECT_EQ(PartialSumCount(array), 4);
  for (DeviceId rank = 0; rank < 12; ++rank) {
    EXPECT_EQ(PartialSumOf(array, rank), rank / 6 * 2 + rank % 2) << rank;
  }
}

}  // namespace
}  // namespace shardmesh::client
