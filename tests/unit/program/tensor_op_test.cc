// The names of tensor ops, their inputs, the types of their results, and errors.
#include "program/tensor_op.h"

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::kInvalid;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Dtype kF32 = Dtype::kF32;
constexpr Dtype kI32 = Dtype::kI32;

TensorType Type(Dtype dtype, Shape shape) { return {.dtype = dtype, .shape = std::move(shape)}; }

MapOp Map(MapFunction function) {
  return {.function = function,
          .inputs = std::vector<ValueIndex>(InputCountOf(function), ValueIndex{0})};
}

TEST(TensorOpTest, FunctionsHaveDistinctNames) {
  std::set<std::string_view> names;
  for (const MapFunction function : AllMapFunctions()) names.insert(MapFunctionName(function));
  EXPECT_EQ(names.size(), 18u);
  EXPECT_EQ(MapFunctionName(MapFunction::kGeluTanh), "gelu-tanh");
  EXPECT_EQ(InputCountOf(MapFunction::kMaximum), 2u);
  EXPECT_EQ(InputCountOf(MapFunction::kNegate), 1u);
}

TEST(TensorOpTest, HasNames) {
  EXPECT_EQ(TensorOpName(Map(MapFunction::kAdd)), "add");
  EXPECT_EQ(TensorOpName(NormOp{.kind = NormKind::kLayer}), "layer-norm");
  EXPECT_EQ(TensorOpName(NormOp{.kind = NormKind::kL2}), "l2-norm");
  EXPECT_EQ(TensorOpName(ReduceOp{.reduction = Reduction::kMean, .dimensions = {}}), "mean");
  EXPECT_EQ(TensorOpName(UpdateRowsOp{}), "update-rows");
  EXPECT_EQ(TensorOpName(TopKOp{}), "top-k");
}

TEST(TensorOpTest, ListsInputsInTheOrderOfTheFields) {
  EXPECT_THAT(InputsOf(MapOp{.function = MapFunction::kAdd, .inputs = {4, 4}}), ElementsAre(4, 4));
  EXPECT_THAT(InputsOf(NormOp{.input = 1, .bias = 3}), ElementsAre(1, 3));
  EXPECT_THAT(InputsOf(NormOp{.input = 1, .weight = 2, .bias = 3}), ElementsAre(1, 2, 3));
  EXPECT_THAT(InputsOf(SoftmaxOp{.input = 5, .mask = 2}), ElementsAre(5, 2));
  EXPECT_THAT(InputsOf(RotaryOp{.input = 7, .positions = 8, .frequencies = 9}),
              ElementsAre(7, 8, 9));
  EXPECT_THAT(InputsOf(EmbeddingOp{.table = 2, .ids = 1}), ElementsAre(2, 1));
  EXPECT_THAT(InputsOf(AttentionOp{.query = 1, .keys = 2, .values = 3, .mask = 5}),
              ElementsAre(1, 2, 3, 5));
  EXPECT_THAT(InputsOf(AttentionOp{.query = 1, .keys = 2, .values = 3, .positions = 4, .mask = 5}),
              ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(InputsOf(ConcatenateOp{.inputs = {3, 1, 3}}), ElementsAre(3, 1, 3));
  EXPECT_THAT(InputsOf(UpdateRowsOp{.input = 3, .update = 2, .positions = 1}),
              ElementsAre(3, 2, 1));
  EXPECT_THAT(InputsOf(ConstantOp{}), IsEmpty());
  TensorOp op = NormOp{.input = 1, .weight = 2};
  ReplaceInputs(op, [](ValueIndex value) { return value + 10; });
  EXPECT_THAT(InputsOf(op), ElementsAre(11, 12));
}

TEST(TensorOpTest, OpsOverOneInputOverwriteIt) {
  EXPECT_TRUE(MayOverwriteInput(Map(MapFunction::kAdd), 1));
  EXPECT_TRUE(MayOverwriteInput(UpdateRowsOp{}, 0));
  EXPECT_FALSE(MayOverwriteInput(UpdateRowsOp{}, 1));
  EXPECT_FALSE(MayOverwriteInput(NormOp{.weight = 1}, 1));
  EXPECT_FALSE(MayOverwriteInput(TransposeOp{}, 0));
}

struct TypeCase {
  TensorOp op;
  std::vector<TensorType> inputs;
  TensorType result;
};

TEST(TensorOpTest, GivesTypesOfResults) {
  const TypeCase cases[] = {
      {Map(MapFunction::kAdd), {Type(kF32, {4, 1, 3}), Type(kF32, {5, 1})}, Type(kF32, {4, 5, 3})},
      {Map(MapFunction::kAdd), {Type(kI32, {0, 3}), Type(kI32, {1, 1})}, Type(kI32, {0, 3})},
      {Map(MapFunction::kTanh), {Type(Dtype::kF64, {})}, Type(Dtype::kF64, {})},
      {ConvertOp{.dtype = Dtype::kI8}, {Type(Dtype::kBool, {2})}, Type(Dtype::kI8, {2})},
      {NormOp{.weight = 1, .bias = 2},
       {Type(Dtype::kBF16, {2, 8}), Type(kF32, {8}), Type(Dtype::kBF16, {8})},
       Type(Dtype::kBF16, {2, 8})},
      {SoftmaxOp{.mask = 1},
       {Type(kF32, {2, 4, 8}), Type(Dtype::kBool, {4, 1})},
       Type(kF32, {2, 4, 8})},
      {ReduceOp{.dimensions = {0, 2}}, {Type(kF32, {2, 4, 8})}, Type(kF32, {4})},
      {ReduceOp{.dimensions = {0, 2}, .keeps_dimensions = true},
       {Type(kF32, {2, 4, 8})},
       Type(kF32, {1, 4, 1})},
      {ReduceOp{.dimensions = {0}}, {Type(kF32, {0})}, Type(kF32, {})},
      {RotaryOp{},
       {Type(kF32, {2, 3, 4, 6}), Type(kI32, {2, 3}), Type(kF32, {3})},
       Type(kF32, {2, 3, 4, 6})},
      {EmbeddingOp{}, {Type(kF32, {9, 6}), Type(kI32, {2, 3})}, Type(kF32, {2, 3, 6})},
      {EmbeddingOp{}, {Type(kF32, {9, 6}), Type(kI32, {})}, Type(kF32, {6})},
      {AttentionOp{.mask = 4},
       {Type(kF32, {2, 3, 8, 6}), Type(kF32, {2, 5, 4, 6}), Type(kF32, {2, 5, 4, 7}),
        Type(kI32, {2, 5})},
       Type(kF32, {2, 3, 8, 7})},
      {TopKOp{.count = 3}, {Type(kF32, {2, 8})}, Type(kI32, {2, 3})},
      {TopKOp{.count = 3, .gives_indices = false}, {Type(kF32, {2, 8})}, Type(kF32, {2, 3})},
      {TopKOp{.drops_dimension = true}, {Type(kF32, {2, 8})}, Type(kI32, {2})},
      {ReshapeOp{.shape = {3, 0}}, {Type(kF32, {0})}, Type(kF32, {3, 0})},
      {ReshapeOp{.shape = {1, 1}}, {Type(kF32, {})}, Type(kF32, {1, 1})},
      {TransposeOp{.permutation = {2, 0, 1}}, {Type(kF32, {2, 3, 4})}, Type(kF32, {4, 2, 3})},
      {SliceOp{.starts = {1, 0}, .limits = {8, 0}, .steps = {3, 1}},
       {Type(kF32, {8, 2})},
       Type(kF32, {3, 0})},
      {ConcatenateOp{.inputs = {0, 1}, .dimension = 1},
       {Type(kF32, {2, 3}), Type(kF32, {2, 0})},
       Type(kF32, {2, 3})},
      {UpdateRowsOp{},
       {Type(kF32, {2, 9, 4}), Type(kF32, {2, 3, 4}), Type(kI32, {3})},
       Type(kF32, {2, 9, 4})},
      {ConstantOp{.value = {.dtype = kI32, .shape = {2}, .bytes = std::string(8, '\0')}},
       {},
       Type(kI32, {2})},
  };
  for (const TypeCase& each : cases) {
    SCOPED_TRACE(TensorOpName(each.op));
    const auto type = ResultTypeOf(each.op, each.inputs);
    ASSERT_THAT(type, IsOk());
    EXPECT_EQ(*type, each.result) << ShapeToString(type->shape);
  }
}

struct ErrorCase {
  TensorOp op;
  std::vector<TensorType> inputs;
  Reason reason;
  std::string_view message;
};

TEST(TensorOpTest, ErrorsSayWhatWouldFit) {
  const ErrorCase cases[] = {
      {Map(MapFunction::kAdd),
       {Type(kF32, {4, 2}), Type(kF32, {3})},
       Reason::kShapeMismatch,
       "shapes (4, 2) and (3,) cannot be broadcast: from the last dimension on, extents must "
       "agree, or one must be 1"},
      {Map(MapFunction::kAdd),
       {Type(kF32, {4}), Type(Dtype::kBF16, {4})},
       Reason::kUnsupportedDtype,
       "`inputs[1]` has type BF16; it must be F32 as `inputs[0]` is; convert one of them"},
      {Map(MapFunction::kDivide),
       {Type(kI32, {4}), Type(kI32, {4})},
       Reason::kUnsupportedDtype,
       "`inputs[0]` has type I32; it must be one of F64, F32, BF16, F16; convert it"},
      {MapOp{.function = MapFunction::kAdd, .inputs = {0}},
       {Type(kF32, {4})},
       Reason::kBadField,
       "the function has 2 inputs; 1 are given"},
      {ConvertOp{.dtype = Dtype::kBool},
       {Type(kF32, {4})},
       Reason::kUnsupportedDtype,
       "cannot convert to BOOL"},
      {NormOp{},
       {Type(kF32, {})},
       Reason::kShapeMismatch,
       "`input` has shape (); it must be (..., features)"},
      {NormOp{.weight = 1},
       {Type(kF32, {2, 8}), Type(kF32, {2})},
       Reason::kShapeMismatch,
       "`weight` has shape (2,); it must be (8,)"},
      {NormOp{.epsilon = -1}, {Type(kF32, {8})}, Reason::kBadField, "at least 0"},
      {SoftmaxOp{.mask = 1},
       {Type(kF32, {2, 8}), Type(kI32, {2})},
       Reason::kShapeMismatch,
       "a shape that is broadcast to (2, 8)"},
      {SoftmaxOp{.mask = 1},
       {Type(kF32, {2, 8}), Type(kF32, {8})},
       Reason::kUnsupportedDtype,
       "one of BOOL, I32"},
      {ReduceOp{.dimensions = {}}, {Type(kF32, {2})}, Reason::kBadField, "at least one dimension"},
      {ReduceOp{.dimensions = {1, 0}},
       {Type(kF32, {2, 3})},
       Reason::kBadField,
       "the dimensions 1, 0 must rise"},
      {ReduceOp{.dimensions = {2}},
       {Type(kF32, {2, 3})},
       Reason::kBadField,
       "dimension 2 is out of range; the input has 2 dimensions"},
      {ReduceOp{.reduction = Reduction::kMax, .dimensions = {0}},
       {Type(kF32, {0, 3})},
       Reason::kShapeMismatch,
       "at least one element in dimension 0"},
      {ReduceOp{.reduction = Reduction::kMean, .dimensions = {0}},
       {Type(kI32, {3})},
       Reason::kUnsupportedDtype,
       "F64, F32"},
      {RotaryOp{},
       {Type(kF32, {2, 3, 4, 5}), Type(kI32, {3}), Type(kF32, {2})},
       Reason::kShapeMismatch,
       "an even number"},
      {RotaryOp{},
       {Type(kF32, {2, 3, 4, 6}), Type(kI32, {2}), Type(kF32, {3})},
       Reason::kShapeMismatch,
       "`positions` has shape (2,); it must be (3,) or (2, 3)"},
      {EmbeddingOp{},
       {Type(kF32, {9, 6}), Type(Dtype::kI64, {2})},
       Reason::kUnsupportedDtype,
       "`ids` has type I64; it must be I32; convert it"},
      {EmbeddingOp{}, {Type(kF32, {9, 6}), Type(kI32, Shape(16, 1))}, Reason::kInvalidShape, ""},
      {AttentionOp{},
       {Type(kF32, {2, 3, 8, 6}), Type(kF32, {2, 5, 3, 6}), Type(kF32, {2, 5, 3, 6})},
       Reason::kShapeMismatch,
       "`keys` has shape (2, 5, 3, 6); it must be of a number of heads"},
      {AttentionOp{},
       {Type(kF32, {2, 3, 8, 6}), Type(kF32, {2, 5, 4, 6}), Type(kF32, {2, 4, 4, 6})},
       Reason::kShapeMismatch,
       "it must be (2, 5, 4, value features) to fit `keys`"},
      {TopKOp{.count = 9}, {Type(kF32, {8})}, Reason::kShapeMismatch, "at least 9 elements"},
      {TopKOp{.count = 0}, {Type(kF32, {8})}, Reason::kBadField, "count is 0"},
      {TopKOp{.count = 2, .drops_dimension = true},
       {Type(kF32, {8})},
       Reason::kBadField,
       "cannot be dropped"},
      {ReshapeOp{.shape = {3}},
       {Type(kF32, {2, 2})},
       Reason::kShapeMismatch,
       "`input` has shape (2, 2); it must be of 3 elements as (3,) is"},
      {ReshapeOp{.shape = {-1}}, {Type(kF32, {2, 2})}, Reason::kBadField, "-1"},
      {ReshapeOp{.shape = {4}},
       {Type(Dtype::kF4, {2, 2})},
       Reason::kUnsupportedDtype,
       "whole bytes"},
      {TransposeOp{.permutation = {0, 0}},
       {Type(kF32, {2, 2})},
       Reason::kBadField,
       "(0, 0) is no permutation of the 2 dimensions of the input"},
      {SliceOp{.starts = {0}, .limits = {3}},
       {Type(kF32, {2})},
       Reason::kBadField,
       "the indices of dimension 0 are [0, 3); they must be in [0, 2)"},
      {SliceOp{.starts = {0, 0}, .limits = {2}},
       {Type(kF32, {2})},
       Reason::kBadField,
       "starts has 2 numbers; the input has 1 dimensions"},
      {SliceOp{.starts = {0}, .limits = {2}, .steps = {0}},
       {Type(kF32, {2})},
       Reason::kBadField,
       "the step of dimension 0 is 0"},
      {ConcatenateOp{.inputs = {0, 1}, .dimension = 1},
       {Type(kF32, {2, 3}), Type(kF32, {3, 3})},
       Reason::kShapeMismatch,
       "`inputs[1]` has shape (3, 3); it must be (2, 3) as inputs[0] is, except in dimension 1"},
      {ConcatenateOp{.inputs = {}}, {}, Reason::kBadField, "at least one input"},
      {UpdateRowsOp{},
       {Type(kF32, {2, 9, 4}), Type(kF32, {3, 3, 4}), Type(kI32, {3})},
       Reason::kShapeMismatch,
       "`update` has shape (3, 3, 4)"},
      {ConstantOp{.value = {.dtype = kF32, .shape = {2}, .bytes = "1"}},
       {},
       Reason::kBadField,
       "the constant has 1 bytes; F32 of shape (2,) has 8"},
      {ConstantOp{.value = {.dtype = kF32, .shape = {1025}, .bytes = ""}},
       {},
       Reason::kLimitExceeded,
       "the constant has 4100 bytes; at most 4096 are allowed"},
  };
  for (const ErrorCase& each : cases) {
    const absl::Status status = ResultTypeOf(each.op, each.inputs).status();
    EXPECT_THAT(status, StatusIs(kInvalid, each.reason)) << TensorOpName(each.op);
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(each.message)));
  }
}

}  // namespace
}  // namespace shardmesh
