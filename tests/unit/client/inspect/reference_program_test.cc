// Reference values of whole programs.
#include "client/inspect/reference_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "client/inspect/verify_step.h"
#include "program/graph/graph.h"
#include "program/graph/graph_builder.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::client {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

BoundedTensorPtr Whole(Shape shape, std::vector<double> values, Dtype dtype = Dtype::kF32) {
  return std::make_shared<const BoundedTensor>(
      BoundedTensor{.dtype = dtype, .shape = std::move(shape), .values = std::move(values)});
}

// The last value of the program.
absl::StatusOr<BoundedTensor> LastOf(const Program& program,
                                     const std::vector<BoundedTensorPtr>& operands) {
  std::vector<TensorType> types;
  for (const BoundedTensorPtr& operand : operands)
    types.push_back({operand->dtype, operand->shape});
  const auto all = TypesOfValues(program, types);
  if (!all.ok()) return all.status();
  const auto values = ReferenceValues(program, *all, operands);
  if (!values.ok()) return values.status();
  EXPECT_EQ(values->back()->shape, all->back().shape);
  return *values->back();
}

std::vector<double> ValuesOf(const absl::StatusOr<BoundedTensor>& tensor) {
  EXPECT_THAT(tensor, IsOk());
  return tensor.ok() ? tensor->values : std::vector<double>();
}

TEST(ReferenceProgramTest, ProductsOfAllOrientations) {
  const BoundedTensorPtr a = Whole({2, 3}, {1, 2, 3, 4, 5, 6});
  const BoundedTensorPtr a_transposed = Whole({3, 2}, {1, 4, 2, 5, 3, 6});
  const BoundedTensorPtr b = Whole({3, 2}, {1, 0, 0, 1, 1, 1});
  const BoundedTensorPtr b_transposed = Whole({2, 3}, {1, 0, 1, 0, 1, 1});
  for (const bool left : {false, true}) {
    for (const bool right : {false, true}) {
      const Program product = {
          .operand_count = 2,
          .ops = {MatmulOp{.lhs = 0, .rhs = 1, .transpose_lhs = left, .transpose_rhs = right}},
          .outputs = {2}};
      EXPECT_THAT(ValuesOf(LastOf(product, {left ? a_transposed : a, right ? b_transposed : b})),
                  ElementsAre(4, 5, 10, 11))
          << left << right;
    }
  }
  const Program layer = {
      .operand_count = 3,
      .ops = {LinearOp{
                  .input = 0, .weight = 1, .bias = 2, .activation = Activation::kRelu, .scale = 2},
              ReshardOp{.input = 3, .spec = PartitionSpec()}},
      .outputs = {4}};
  EXPECT_THAT(ValuesOf(LastOf(layer, {a, b_transposed, Whole({2}, {-10, 1})})),
              ElementsAre(0, 11, 10, 23));
  // A weight of I8, with a factor for each output feature.
  Program quantised = layer;
  quantised.operand_count = 4;
  std::get<LinearOp>(quantised.ops[0]).scales = 3;
  std::get<ReshardOp>(quantised.ops[1]).input = 4;
  const BoundedTensorPtr integers = Whole({2, 3}, {1, 0, 1, 0, 1, 1}, Dtype::kI8);
  const BoundedTensorPtr bias = Whole({2}, {-10, 1});
  EXPECT_THAT(ValuesOf(LastOf(quantised, {a, integers, bias, Whole({2}, {0.5, 3})})),
              ElementsAre(0, 31, 0, 67));
  EXPECT_THAT(LastOf(quantised, {a, integers, bias, Whole({3}, {0.5, 3, 1})}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kShapeMismatch));
  // A batch that is broadcast, and an input of one dimension.
  const Program batches = {
      .operand_count = 2, .ops = {MatmulOp{.lhs = 0, .rhs = 1}}, .outputs = {2}};
  EXPECT_THAT(
      ValuesOf(LastOf(batches, {Whole({2, 1, 2}, {1, 2, 3, 4}), Whole({1, 2, 2}, {1, 2, 3, 4})})),
      ElementsAre(7, 10, 15, 22));
  const Program vector = {
      .operand_count = 2, .ops = {LinearOp{.input = 0, .weight = 1}}, .outputs = {2}};
  EXPECT_THAT(ValuesOf(LastOf(vector, {Whole({3}, {1, 2, 3}), b_transposed})), ElementsAre(4, 5));
}

TEST(ReferenceProgramTest, ScalesMultiplyTheSumsOfColumns) {
  const BoundedTensorPtr a = Whole({2, 3}, {1, 2, 3, 4, 5, 6}, Dtype::kF16);
  const BoundedTensorPtr w = Whole({2, 3}, {1, 0, 1, 0, 1, 1}, Dtype::kI8);
  const BoundedTensorPtr bias = Whole({2}, {-10, 1}, Dtype::kF16);
  const Program layer = {.operand_count = 4,
                         .ops = {LinearOp{.input = 0,
                                          .weight = 1,
                                          .bias = 2,
                                          .activation = Activation::kRelu,
                                          .scale = 2,
                                          .scales = 3}},
                         .outputs = {4}};
  const auto exact = LastOf(layer, {a, w, bias, Whole({2}, {0.5, 2})});
  EXPECT_THAT(ValuesOf(exact), ElementsAre(0, 21, 0, 45));
  EXPECT_EQ(exact->dtype, Dtype::kF16);
  EXPECT_LT(exact->bounds[3], 45 * 0x1.1p-11);
  // Errors of scales that the program computes are errors of the result: (10 + 1) * 2 * 0.1.
  const auto unsure = LastOf(layer, {a, w, bias,
                                     std::make_shared<const BoundedTensor>(BoundedTensor{
                                         .shape = {2}, .values = {0.5, 2}, .bounds = {0, 0.1}})});
  ASSERT_THAT(unsure, IsOk());
  EXPECT_EQ(unsure->bounds[0], exact->bounds[0]);
  EXPECT_GE(unsure->bounds[3], 2.2);
  EXPECT_LT(unsure->bounds[3], 2.3);
  // The weight may be given transposed.
  Program in_out = layer;
  std::get<LinearOp>(in_out.ops[0]).weight_layout = WeightLayout::kInOut;
  EXPECT_THAT(ValuesOf(LastOf(in_out, {a, Whole({3, 2}, {1, 0, 0, 1, 1, 1}, Dtype::kI8), bias,
                                       Whole({2}, {0.5, 2})})),
              ElementsAre(0, 21, 0, 45));
}

TEST(ReferenceProgramTest, AnOpReadsOnlyValuesBeforeIt) {
  const Program product = {
      .operand_count = 2, .ops = {MatmulOp{.lhs = 0, .rhs = 2}}, .outputs = {2}};
  const auto types =
      TypesOfValues(product, std::vector<TensorType>{{Dtype::kF32, {4, 4}}, {Dtype::kF32, {4, 4}}});
  EXPECT_THAT(types, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
}

TEST(ReferenceProgramTest, AProgramWithASymbolicDimensionHasTheLengthOfItsOperands) {
  GraphBuilder builder;
  const GraphExtent seq = builder.Symbol("seq", 1, 16);
  const GraphValue x = builder.Parameter("x", Dtype::kF32, {seq, 4});
  builder.Output("last", builder.Slice(x, 0, seq - 1, seq));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Graph graph, builder.Build());
  const std::vector<TensorType> types = {{Dtype::kF32, {7, 4}}};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Program program, ProgramOfTypes(graph.program, types));
  EXPECT_FALSE(program.symbol.has_value());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<TensorType> all, TypesOfValues(program, types));
  EXPECT_EQ(all.back().shape, (Shape{1, 4}));
  const std::vector<TensorType> too_long = {{Dtype::kF32, {17, 4}}};
  EXPECT_THAT(ProgramOfTypes(graph.program, too_long),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kShapeMismatch));
}

TEST(ReferenceProgramTest, ProductsOfNothing) {
  const Program product = {
      .operand_count = 2, .ops = {MatmulOp{.lhs = 0, .rhs = 1}}, .outputs = {2}};
  EXPECT_THAT(ValuesOf(LastOf(product, {Whole({2, 0}, {}), Whole({0, 2}, {})})),
              ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(ValuesOf(LastOf(product, {Whole({0, 3}, {}), Whole({3, 2}, {1, 2, 3, 4, 5, 6})})),
              ElementsAre());
}

// A sum in F32 is within the bound for it, in whichever order, and an error of the operands of one
// op counts in those after it.
TEST(ReferenceProgramTest, ErrorsOfSumsAreWithinTheBoundThroughAChain) {
  constexpr size_t kSize = 200;
  std::mt19937 random(3);
  std::vector<double> x(kSize);
  std::vector<double> w(kSize * kSize);
  for (double& value : x) value = static_cast<double>(static_cast<float>(random() * 0x1p-31 - 1));
  for (double& value : w) value = static_cast<double>(static_cast<float>(random() * 0x1p-31 - 1));
  const Program chain = {
      .operand_count = 2,
      .ops = {LinearOp{.input = 0, .weight = 1}, LinearOp{.input = 2, .weight = 1}},
      .outputs = {3}};
  const auto reference = LastOf(chain, {Whole({1, kSize}, x), Whole({kSize, kSize}, w)});
  ASSERT_THAT(reference, IsOk());
  std::vector<float> y(x.begin(), x.end());
  for (int op = 0; op < 2; ++op) {
    std::vector<float> next(kSize, 0.0F);
    for (size_t n = 0; n < kSize; ++n) {
      for (size_t k = kSize; k-- > 0;) next[n] += y[k] * static_cast<float>(w[n * kSize + k]);
    }
    y = next;
  }
  double largest = 0;
  for (size_t n = 0; n < kSize; ++n) {
    const double error = std::abs(static_cast<double>(y[n]) - reference->values[n]);
    EXPECT_LE(error, reference->bounds[n]);
    largest = std::max(largest, error / reference->bounds[n]);
  }
  EXPECT_GT(largest, 1e-5) << "the bound says something";
}

TEST(ReferenceProgramTest, RefusesCollectivesAndWhatIsTooLarge) {
  const Program sum = {.operand_count = 1,
                       .ops = {CollectiveOp{.kind = CollectiveKind::kAllReduce, .axes = {"x"}}},
                       .outputs = {1}};
  const auto types = TypesOfValues(sum, std::vector<TensorType>{{Dtype::kF32, {4}}});
  EXPECT_THAT(types, StatusIs(absl::StatusCode::kUnimplemented, Reason::kNotAvailable));
  EXPECT_THAT(std::string(types.status().message()), HasSubstr("op 0 (collective)"));

  const Program product = {
      .operand_count = 2, .ops = {MatmulOp{.lhs = 0, .rhs = 1}}, .outputs = {2}};
  const auto check = [&](Shape lhs, Shape rhs) {
    const auto all = TypesOfValues(product, std::vector<TensorType>{{Dtype::kF32, std::move(lhs)},
                                                                    {Dtype::kF32, std::move(rhs)}});
    return all.ok() ? CheckReferenceSize(product, *all) : all.status();
  };
  EXPECT_THAT(check({1024, 1024}, {1024, 1024}), IsOk());
  EXPECT_THAT(check({1024, 16384}, {16384, 1}), IsOk());
  const absl::Status elements = check({1 << 13, 1 << 12}, {1 << 12, 1});
  EXPECT_THAT(elements, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
  EXPECT_THAT(std::string(elements.message()), HasSubstr("33566720 elements in all values"));
  const absl::Status work = check({3000, 3000}, {3000, 3000});
  EXPECT_THAT(work, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
  EXPECT_THAT(std::string(work.message()), HasSubstr("27000000000 multiplications"));
}

TEST(VerifyStepTest, SamplesHaveTheFirstAndTheLast) {
  EXPECT_THAT(SampleIndices(0, 4, 1), ElementsAre());
  EXPECT_THAT(SampleIndices(3, 8, 1), ElementsAre(0, 1, 2));
  EXPECT_THAT(SampleIndices(9, 1, 1), ElementsAre(0));
  const std::vector<int64_t> some = SampleIndices(1000, 8, 1);
  ASSERT_EQ(some.size(), 8U);
  EXPECT_EQ(some.front(), 0);
  EXPECT_EQ(some.back(), 999);
  EXPECT_TRUE(std::is_sorted(some.begin(), some.end()));
  EXPECT_EQ(SampleIndices(1000, 8, 1), some);
  EXPECT_NE(SampleIndices(1000, 8, 2), some);
}

TEST(VerifyStepTest, NamesTheFirstElementBeyondItsBound) {
  BoundedTensor expected{.shape = {2, 3},
                         .values = {1, 2, 3, 4, std::nan(""), 6},
                         .bounds = {0.5, 0.5, 0.5, 0.5, 0.5, INFINITY}};
  BoundedTensor elements{.shape = {2, 3}, .values = {1.25, 2, 3, 4, std::nan(""), 600}};
  const VerifiedResult right = CompareElements("output 0", elements, expected);
  EXPECT_EQ(right.checked, 5);
  EXPECT_EQ(right.undetermined, 1);
  EXPECT_EQ(right.outside, 0);
  EXPECT_EQ(right.largest_error, 0.25);
  EXPECT_EQ(right.bound, 0.5);
  EXPECT_THAT(CheckVerified({&right, 1}), IsOk());
  elements.values[2] = 3.75;
  elements.values[3] = INFINITY;
  elements.values[4] = 5;
  const VerifiedResult wrong = CompareElements("output 1", elements, expected);
  EXPECT_EQ(wrong.outside, 3);
  EXPECT_EQ(wrong.largest_error, 0.75);
  const absl::Status status = CheckVerified(std::vector<VerifiedResult>{right, wrong});
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("element [0, 2] of output 1 is 3.75; a recomputation in F64 gives 3, and "
                        "the bound of the error is 0.5; 3 of 5 compared elements are beyond"));
}

}  // namespace
}  // namespace shardmesh::client
