// Reference results of ops beside those of workers: within the bounds, which are not much larger
// than the errors that can be.
#include "client/inspect/reference_ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "client/inspect/reference_program.h"
#include "program/program.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/tensor_op/op_run.h"
#include "worker/kernel/matmul.h"

namespace shardmesh::client {
namespace {

using ::shardmesh::test::StatusIs;
using ::shardmesh::worker::op_test::Made;
using ::shardmesh::worker::op_test::Random;
using ::shardmesh::worker::op_test::RunOp;
using ::shardmesh::worker::op_test::TestTile;
using ::shardmesh::worker::op_test::ValuesOf;

BoundedTensor Exact(const TestTile& tile) {
  return *ExactTensor(*TensorView::Create(tile.dtype, tile.shape, absl::MakeConstSpan(tile.bytes)));
}

struct Case {
  std::string name;
  TensorOp op;
  std::vector<TestTile> inputs;
  // The largest bound beside an element of magnitude 1 or less, in units of the type's roundoff.
  double units = 64;
};

std::vector<TestTile> Two(Dtype dtype) {
  return {Random(dtype, {3, 4, 5}, 1), Random(dtype, {4, 1}, 2)};
}

std::vector<Case> CasesOf(Dtype dtype) {
  std::vector<Case> cases;
  for (const MapFunction function : AllMapFunctions()) {
    Case c{.name = std::string(MapFunctionName(function)), .op = {}, .inputs = Two(dtype)};
    c.inputs.resize(InputCountOf(function));
    // Away from the poles of the functions.
    if (function == MapFunction::kLog || function == MapFunction::kSqrt ||
        function == MapFunction::kRsqrt || function == MapFunction::kDivide) {
      TestTile& last = c.inputs.back();
      std::vector<double> values = ValuesOf(last);
      for (double& value : values) value = std::abs(value) + 0.5;
      last = Made(dtype, last.shape, values);
    }
    c.op = MapOp{.function = function, .inputs = std::vector<ValueIndex>(c.inputs.size(), 0)};
    cases.push_back(std::move(c));
  }
  const TestTile x = Random(dtype, {2, 3, 16}, 3);
  const TestTile feature = Random(dtype, {16}, 4);
  for (const NormKind kind : {NormKind::kRms, NormKind::kLayer, NormKind::kL2}) {
    cases.push_back({.name = StrCat("norm ", static_cast<int>(kind)),
                     .op = NormOp{.kind = kind, .weight = 1, .bias = 2},
                     .inputs = {x, feature, feature},
                     .units = 512});
  }
  const TestTile mask = Made(Dtype::kI32, {3, 16}, std::vector<double>(48, 1));
  TestTile holes = mask;
  holes = Made(Dtype::kI32, {3, 16}, [] {
    std::vector<double> values(48, 1);
    for (size_t i = 0; i < 20; ++i) values[i] = 0;  // a row is masked out
    return values;
  }());
  cases.push_back({.name = "softmax", .op = SoftmaxOp{.scale = 0.5F}, .inputs = {x}});
  cases.push_back({.name = "masked softmax", .op = SoftmaxOp{.mask = 1}, .inputs = {x, holes}});
  for (const Reduction reduction : {Reduction::kSum, Reduction::kMean, Reduction::kMax}) {
    cases.push_back({.name = StrCat("reduce ", static_cast<int>(reduction)),
                     .op = ReduceOp{.reduction = reduction, .dimensions = {0, 2}},
                     .inputs = {x},
                     .units = 2048});
  }
  const TestTile positions = Made(Dtype::kI32, {2, 3}, {0, 1, 2, 5, 3, -1});
  const TestTile heads = Random(dtype, {2, 3, 4, 8}, 5);
  for (const bool is_interleaved : {false, true}) {
    cases.push_back({.name = StrCat("rotary ", is_interleaved),
                     .op = RotaryOp{.is_interleaved = is_interleaved},
                     .inputs = {heads, positions, Made(Dtype::kF32, {4}, {1, 0.5, 0.25, 0.1})},
                     .units = 128});
  }
  cases.push_back({.name = "embedding",
                   .op = EmbeddingOp{},
                   .inputs = {Random(dtype, {5, 8}, 6), Made(Dtype::kI32, {2, 2}, {4, -1, 0, 5})}});
  const TestTile keys = Random(dtype, {2, 6, 2, 8}, 7);
  cases.push_back({.name = "attention",
                   .op = AttentionOp{.positions = 3, .mask = 4, .scale = 0.35F},
                   .inputs = {heads, keys, Random(dtype, {2, 6, 2, 8}, 8), positions,
                              Made(Dtype::kI32, {2, 6}, {1, 0, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1})},
                   .units = 1024});
  cases.push_back({.name = "attention to all rows",
                   .op = AttentionOp{.scale = 0.35F},
                   .inputs = {heads, keys, Random(dtype, {2, 6, 2, 8}, 8)},
                   .units = 1024});
  cases.push_back(
      {.name = "top-k", .op = TopKOp{.count = 3, .gives_indices = false}, .inputs = {x}});
  cases.push_back(
      {.name = "transpose", .op = TransposeOp{.permutation = {2, 0, 1}}, .inputs = {x}});
  cases.push_back({.name = "slice",
                   .op = SliceOp{.starts = {0, 1, 2}, .limits = {2, 3, 15}, .steps = {1, 1, 3}},
                   .inputs = {x}});
  cases.push_back({.name = "concatenate",
                   .op = ConcatenateOp{.inputs = {0, 1}, .dimension = 1},
                   .inputs = {x, Random(dtype, {2, 5, 16}, 9)}});
  cases.push_back({.name = "reshape", .op = ReshapeOp{.shape = {6, 16}}, .inputs = {x}});
  cases.push_back({.name = "update rows",
                   .op = UpdateRowsOp{},
                   .inputs = {Random(dtype, {2, 4, 6}, 10), Random(dtype, {2, 3, 6}, 11),
                              Made(Dtype::kI32, {2, 3}, {0, 3, 3, 4, -1, 2})}});
  cases.push_back({.name = "convert", .op = ConvertOp{.dtype = Dtype::kBF16}, .inputs = {x}});
  return cases;
}

// The reference for inputs whose elements may be `error` from their values.
BoundedTensor ReferenceOf(const Case& c, double error) {
  std::mt19937 random(12);
  std::vector<BoundedTensorPtr> inputs;
  std::vector<TensorType> types;
  for (const TestTile& tile : c.inputs) {
    BoundedTensor tensor = Exact(tile);
    types.push_back({tile.dtype, tile.shape});
    if (error > 0 && IsFloat(tile.dtype)) {
      tensor.bounds.assign(tensor.size(), error);
      for (double& value : tensor.values) {
        value += error * (static_cast<double>(random()) * 0x1p-31 - 1);
      }
    }
    inputs.push_back(std::make_shared<const BoundedTensor>(std::move(tensor)));
  }
  const absl::StatusOr<TensorType> type = ResultTypeOf(c.op, types);
  EXPECT_TRUE(type.ok()) << type.status();
  absl::StatusOr<BoundedTensor> result = ReferenceResult(c.op, *type, inputs);
  EXPECT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->shape, type->shape);
  return *std::move(result);
}

class ReferenceOpsTest : public testing::TestWithParam<Dtype> {};

INSTANTIATE_TEST_SUITE_P(All, ReferenceOpsTest,
                         testing::Values(Dtype::kF32, Dtype::kBF16, Dtype::kF16),
                         [](const auto& tested) { return std::string(DtypeName(tested.param)); });

TEST_P(ReferenceOpsTest, ResultsOfWorkersAreWithinTheBounds) {
  for (const Case& c : CasesOf(GetParam())) {
    SCOPED_TRACE(c.name);
    const TestTile made = RunOp(c.op, c.inputs);
    const std::vector<double> elements = ValuesOf(made);
    const BoundedTensor reference = ReferenceOf(c, 0);
    ASSERT_EQ(reference.size(), elements.size());
    const double unit = PrecisionOf(made.dtype).roundoff;
    for (size_t i = 0; i < elements.size(); ++i) {
      ASSERT_LE(std::abs(elements[i] - reference.values[i]), reference.bound(i))
          << "element " << i << " is " << elements[i] << ", not " << reference.values[i];
      // Functions of a BF16 are computed in F32, so that the rounding of the result dominates.
      ASSERT_LE(reference.bound(i), c.units * unit * std::max(std::abs(elements[i]), 1.0))
          << "element " << i << " is " << elements[i];
    }
  }
}

TEST_P(ReferenceOpsTest, BoundsHaveTheErrorsOfInputs) {
  for (const Case& c : CasesOf(GetParam())) {
    SCOPED_TRACE(c.name);
    const std::vector<double> elements = ValuesOf(RunOp(c.op, c.inputs));
    const BoundedTensor reference = ReferenceOf(c, 1e-3);
    ASSERT_EQ(reference.size(), elements.size());
    for (size_t i = 0; i < elements.size(); ++i) {
      ASSERT_LE(std::abs(elements[i] - reference.values[i]), reference.bound(i))
          << "element " << i << " is " << elements[i] << ", not " << reference.values[i];
      ASSERT_LE(reference.bound(i), 2.0) << "element " << i;
    }
  }
}

// Products of the type, and of the type with weights of I8.
TEST_P(ReferenceOpsTest, ProductsOfWorkersAreWithinTheBounds) {
  constexpr int64_t kRows = 3;
  constexpr int64_t kColumns = 70;
  const Dtype dtype = GetParam();
  worker::MatmulKernel kernel({.threads = 1});
  for (const bool has_scales : {false, true}) {
    for (const int64_t k : {1, 300}) {
      for (const Activation activation : {Activation::kNone, Activation::kGelu}) {
        SCOPED_TRACE(StrCat(has_scales ? "I8, k=" : "k=", k, ", ", static_cast<int>(activation)));
        const Dtype weight_dtype = has_scales ? Dtype::kI8 : dtype;
        const TestTile x = Random(dtype, {kRows, k}, 1);
        const TestTile w = Random(weight_dtype, {kColumns, k}, 2);
        const TestTile bias = Random(dtype, {kColumns}, 3);
        std::vector<double> factors;
        for (int64_t i = 0; i < kColumns; ++i) {
          factors.push_back(0.02 * (static_cast<double>(i + 1) / kColumns) * (i % 2 == 0 ? 1 : -1));
        }
        const TestTile scales = Made(Dtype::kF32, {kColumns}, factors);
        TestTile made = worker::op_test::Unset(dtype, {kRows, kColumns});
        const absl::Status run = kernel.Run(
            {.m = kRows,
             .n = kColumns,
             .k = k,
             .lhs_dtype = dtype,
             .rhs_dtype = weight_dtype,
             .bias_dtype = dtype,
             .out_dtype = dtype,
             .transpose_rhs = true,
             .has_bias = true,
             .has_scales = has_scales,
             .scale = 0.5F,
             .activation = activation},
            {.lhs = x.bytes,
             .rhs = w.bytes,
             .bias = bias.bytes,
             .out = absl::MakeSpan(made.bytes),
             .scales = has_scales ? absl::MakeConstSpan(scales.bytes) : absl::Span<const char>()});
        ASSERT_TRUE(run.ok()) << run;

        Program program = {.operand_count = 4, .ops = {}, .outputs = {4}};
        LinearOp op{.input = 0, .weight = 1, .bias = 2, .activation = activation, .scale = 0.5F};
        if (has_scales) op.scales = 3;
        program.ops.emplace_back(op);
        std::vector<BoundedTensorPtr> operands;
        std::vector<TensorType> types;
        for (const TestTile* tile : {&x, &w, &bias, &scales}) {
          operands.push_back(std::make_shared<const BoundedTensor>(Exact(*tile)));
          types.push_back({tile->dtype, tile->shape});
        }
        const auto all = TypesOfValues(program, types);
        ASSERT_TRUE(all.ok()) << all.status();
        EXPECT_EQ(all->back().dtype, dtype);
        const auto values = ReferenceValues(program, *all, operands);
        ASSERT_TRUE(values.ok()) << values.status();
        const BoundedTensor& reference = *values->back();
        const std::vector<double> elements = ValuesOf(made);
        const auto terms = static_cast<double>(k);
        for (size_t i = 0; i < elements.size(); ++i) {
          ASSERT_LE(std::abs(elements[i] - reference.values[i]), reference.bound(i))
              << "element " << i << " is " << elements[i] << ", not " << reference.values[i];
          // No term of a sum is larger than 2.
          ASSERT_LE(reference.bound(i),
                    4 * PrecisionOf(dtype).roundoff * std::max(std::abs(elements[i]), 1.0) +
                        4 * terms * (terms + 32) * 0x1p-24)
              << "element " << i << " is " << elements[i];
        }
      }
    }
  }
}

TEST(ReferenceOpsTest, SumsThatMayOverflowAreUnknown) {
  const std::vector<double> large = {3e38, 3e38, -3e38};
  const std::vector<double> ones = {1, 1, 1};
  const auto element = [&](const ProductEnd& end) {
    return ProductElement({.values = large}, {.values = ones}, {}, end);
  };
  EXPECT_TRUE(std::isinf(element({.factor = {.value = 1e-6}}).bound)) << "before they are scaled";
  EXPECT_FALSE(std::isinf(element({.dtype = Dtype::kF64}).bound));
  const std::vector<double> many = {1e10};
  const std::vector<double> few = {1e7};
  const std::vector<double> one = {1};
  const ProductEnd twice = {.scale = 1e30, .factor = {.value = 1e-30}};
  EXPECT_TRUE(std::isinf(ProductElement({.values = many}, {.values = one}, {}, twice).bound));
  EXPECT_FALSE(std::isinf(ProductElement({.values = few}, {.values = one}, {}, twice).bound));
}

// A sum that becomes zero because it is below the normal numbers is lost for good.
TEST(ReferenceOpsTest, ErrorsBelowTheNormalNumbersAreScaledToo) {
  const ProductEnd end = {.scale = 1e-30, .factor = {.value = 1e30}};
  const std::vector<double> tiny = {1e-20};
  const std::vector<double> one = {1};
  const BoundedNumber element = ProductElement({.values = tiny}, {.values = one}, {}, end);
  EXPECT_GE(element.bound, std::abs(element.value));
}

TEST(ReferenceOpsTest, IntegersWrapAndAreExact) {
  const Case add{
      .name = "add",
      .op = MapOp{.function = MapFunction::kAdd, .inputs = {0, 1}},
      .inputs = {Made(Dtype::kI8, {3}, {127, -128, 5}), Made(Dtype::kI8, {3}, {1, -1, 6})}};
  const BoundedTensor sum = ReferenceOf(add, 0);
  EXPECT_EQ(sum.values, ValuesOf(RunOp(add.op, add.inputs)));
  EXPECT_EQ(sum.bounds, std::vector<double>(3, 0));
  const Case total{.name = "sum",
                   .op = ReduceOp{.reduction = Reduction::kSum, .dimensions = {0}},
                   .inputs = {Random(Dtype::kI32, {40, 3}, 1)}};
  EXPECT_EQ(ReferenceOf(total, 0).values, ValuesOf(RunOp(total.op, total.inputs)));
}

TEST(ReferenceOpsTest, AnOrderThatErrorsMayChangeIsUnknown) {
  Case top{.name = "top",
           .op = TopKOp{.count = 2},
           .inputs = {Made(Dtype::kF32, {2, 3}, {3, 1, 2, 5, 5.0001, 1})}};
  const BoundedTensor exact = ReferenceOf(top, 0);
  EXPECT_EQ(exact.values, ValuesOf(RunOp(top.op, top.inputs)));
  EXPECT_EQ(exact.bounds, std::vector<double>(4, 0));
  const BoundedTensor unsure = ReferenceOf(top, 1e-3);
  EXPECT_EQ(unsure.bounds[0], 0);
  EXPECT_EQ(unsure.bounds[1], 0);
  EXPECT_TRUE(std::isinf(unsure.bounds[2]));
  EXPECT_TRUE(std::isinf(unsure.bounds[3]));
}

TEST(ReferenceOpsTest, IntegersOfUnsureFloatsAreUnknown) {
  const Case convert{.name = "convert",
                     .op = ConvertOp{.dtype = Dtype::kI32},
                     .inputs = {Made(Dtype::kF32, {3}, {2.5, 2.9999, -3e9})}};
  const BoundedTensor unsure = ReferenceOf(convert, 1e-3);
  EXPECT_EQ(unsure.values[0], 2);
  EXPECT_EQ(unsure.bounds[0], 0);
  EXPECT_TRUE(std::isinf(unsure.bounds[1]));
  EXPECT_TRUE(std::isinf(unsure.bounds[2])) << "beyond the type";
}

// Integers that a program converts from floats may have infinite bounds.
TEST(ReferenceOpsTest, UnknownPositionsAndMasksMakeResultsUnknown) {
  const auto result_of = [](const TensorOp& op, const std::vector<TestTile>& tiles,
                            size_t unknown_input, size_t unknown_element) {
    std::vector<BoundedTensorPtr> inputs;
    std::vector<TensorType> types;
    for (const TestTile& tile : tiles) {
      BoundedTensor tensor = Exact(tile);
      if (inputs.size() == unknown_input) {
        tensor.bounds.assign(tensor.size(), 0);
        tensor.bounds[unknown_element] = INFINITY;
      }
      inputs.push_back(std::make_shared<const BoundedTensor>(std::move(tensor)));
      types.push_back({tile.dtype, tile.shape});
    }
    const BoundedTensor result = *ReferenceResult(op, *ResultTypeOf(op, types), inputs);
    std::vector<bool> is_known;
    for (const double bound : result.bounds) is_known.push_back(std::isfinite(bound));
    return is_known;
  };
  const TestTile mask = Made(Dtype::kI32, {2, 2}, {1, 1, 1, 1});
  EXPECT_EQ(result_of(SoftmaxOp{.mask = 1}, {Made(Dtype::kF32, {2, 2}, {1, 2, 3, 4}), mask}, 1, 0),
            (std::vector<bool>{false, false, true, true}));
  const TestTile x = Made(Dtype::kF32, {2, 1, 1, 2}, {1, 2, 3, 4});
  const TestTile keys = Made(Dtype::kF32, {2, 2, 1, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  const TestTile positions = Made(Dtype::kI32, {2, 1}, {1, 1});
  const AttentionOp attention{.positions = 3, .mask = 4};
  EXPECT_EQ(result_of(attention, {x, keys, keys, positions, mask}, 3, 0),
            (std::vector<bool>{false, false, true, true}));
  EXPECT_EQ(result_of(attention, {x, keys, keys, positions, mask}, 4, 3),
            (std::vector<bool>{true, true, false, false}));
  EXPECT_EQ(result_of(RotaryOp{}, {x, positions, Made(Dtype::kF32, {1}, {0.5})}, 1, 1),
            (std::vector<bool>{true, true, false, false}));
  EXPECT_EQ(result_of(UpdateRowsOp{},
                      {Made(Dtype::kF32, {2, 2, 1}, {1, 2, 3, 4}),
                       Made(Dtype::kF32, {2, 1, 1}, {5, 6}), positions},
                      2, 0),
            (std::vector<bool>{false, false, true, true}));
}

TEST(ReferenceOpsTest, ANumberBeyondTheTypeIsUnknown) {
  EXPECT_TRUE(std::isinf(RoundedBound(Dtype::kF16, 65510, 0)));
  EXPECT_FALSE(std::isinf(RoundedBound(Dtype::kBF16, 65510, 0)));
  EXPECT_TRUE(std::isinf(RoundedBound(Dtype::kF32, std::nan(""), 0)));
  EXPECT_TRUE(std::isinf(RoundedBound(Dtype::kI64, 0x1p60, 0)));
}

TEST(ReferenceOpsTest, TypesThatAreNotVerifiedAreRefused) {
  const char byte = 0;
  EXPECT_THAT(ExactTensor(*TensorView::Create(Dtype::kF8E4M3Fn, {1}, {&byte, 1})),
              StatusIs(absl::StatusCode::kUnimplemented, Reason::kNotAvailable));
}

}  // namespace
}  // namespace shardmesh::client
