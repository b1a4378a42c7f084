// Sharding rules of tensor ops, compared with factors written by hand.
#include "program/sharding_rule.h"

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

TensorType OfShape(Shape shape, Dtype dtype = Dtype::kF32) {
  return {.dtype = dtype, .shape = std::move(shape)};
}

// Returns the rule as text: the factors of each dimension by letter, in the order of the factors'
// numbers, and `1` for a dimension without factors. Dimensions are separated by commas. Then the
// sizes; `w` marks whole factors, `+` summed ones.
std::string TextOf(const TensorOp& op, const std::vector<TensorType>& inputs) {
  const auto result = ResultTypeOf(op, inputs);
  if (!result.ok()) return std::string(result.status().message());
  const ShardingRule rule = ShardingRuleOf(op, inputs, *result);
  const auto dims_text = [](const std::vector<DimFactors>& dims) {
    return StrJoin(dims, ",", [](std::string* out, const DimFactors& dim) {
      if (dim.empty()) *out += '1';
      for (const size_t factor : dim) *out += static_cast<char>('a' + factor);
    });
  };
  std::string text = StrJoin(rule.inputs, " ", [&](std::string* out, const auto& dims) {
    *out += "[" + dims_text(dims) + "]";
  });
  StrAppend(&text, " -> [", dims_text(rule.result), "]");
  for (size_t i = 0; i < rule.sizes.size(); ++i) {
    const FactorKind kind = rule.kinds[i];
    StrAppend(&text, " ", rule.sizes[i],
              kind == FactorKind::kWhole    ? "w"
              : kind == FactorKind::kSummed ? "+"
                                            : "");
  }
  return text;
}

TEST(ShardingRuleTest, MapsAreBroadcast) {
  EXPECT_EQ(TextOf(MapOp{.function = MapFunction::kAdd, .inputs = {0, 1}},
                   {OfShape({4, 1, 3}), OfShape({5, 1})}),
            "[a,1,c] [b,1] -> [a,b,c] 4 5 3");
  EXPECT_EQ(TextOf(ConvertOp{.dtype = Dtype::kF16}, {OfShape({4, 1})}), "[a,1] -> [a,1] 4");
}

TEST(ShardingRuleTest, LastDimensionsOfNormsSoftmaxAndTopKAreWhole) {
  EXPECT_EQ(TextOf(NormOp{.weight = 1, .bias = 2}, {OfShape({2, 8}), OfShape({8}), OfShape({8})}),
            "[a,b] [b] [b] -> [a,b] 2 8w");
  EXPECT_EQ(TextOf(SoftmaxOp{.mask = 1}, {OfShape({2, 3, 8}), OfShape({3, 1}, Dtype::kI32)}),
            "[a,b,c] [b,1] -> [a,b,c] 2 3 8w");
  EXPECT_EQ(TextOf(TopKOp{.count = 3}, {OfShape({2, 8})}), "[a,b] -> [a,c] 2 8w 3w");
  EXPECT_EQ(TextOf(TopKOp{.drops_dimension = true}, {OfShape({2, 8})}), "[a,b] -> [a] 2 8w");
}

TEST(ShardingRuleTest, SumsOfPartsAreSums) {
  EXPECT_EQ(TextOf(ReduceOp{.dimensions = {1}}, {OfShape({2, 8, 3})}), "[a,b,c] -> [a,c] 2 8+ 3");
  EXPECT_EQ(TextOf(ReduceOp{.dimensions = {1}, .keeps_dimensions = true}, {OfShape({2, 8, 3})}),
            "[a,b,c] -> [a,1,c] 2 8+ 3");
  EXPECT_EQ(TextOf(ReduceOp{.dimensions = {0}}, {OfShape({8}, Dtype::kBF16)}), "[a] -> [] 8w");
  EXPECT_EQ(TextOf(ReduceOp{.dimensions = {0}}, {OfShape({8}, Dtype::kI16)}), "[a] -> [] 8w");
  EXPECT_EQ(TextOf(ReduceOp{.reduction = Reduction::kMin, .dimensions = {0}}, {OfShape({8})}),
            "[a] -> [] 8w");
  EXPECT_EQ(TextOf(EmbeddingOp{}, {OfShape({9, 6}), OfShape({2, 1}, Dtype::kI32)}),
            "[c,b] [a,1] -> [a,1,b] 2 6 9+");
}

TEST(ShardingRuleTest, HeadsOfQueriesHaveTheHeadsOfKeysAsMajorFactor) {
  EXPECT_EQ(TextOf(AttentionOp{.positions = 3, .mask = 4},
                   {OfShape({2, 3, 8, 6}), OfShape({2, 5, 4, 6}), OfShape({2, 5, 4, 7}),
                    OfShape({3}, Dtype::kI32), OfShape({2, 5}, Dtype::kI32)}),
            "[a,b,cd,f] [a,e,c,f] [a,e,c,g] [b] [a,e] -> [a,b,cd,g] 2 3 4 2 5w 6w 7");
  EXPECT_EQ(
      TextOf(AttentionOp{}, {OfShape({1, 1, 8, 6}), OfShape({1, 5, 1, 6}), OfShape({1, 5, 1, 6})}),
      "[1,1,a,c] [1,b,1,c] [1,b,1,d] -> [1,1,a,d] 8 5w 6w 6");
  EXPECT_EQ(TextOf(RotaryOp{}, {OfShape({2, 3, 4, 6}), OfShape({2, 3}, Dtype::kI32), OfShape({3})}),
            "[a,b,c,d] [a,b] [e] -> [a,b,c,d] 2 3 4 6w 3w");
}

TEST(ShardingRuleTest, KnowsWhichFactorsAreAloneAndWhichMayHaveParts) {
  const std::vector<TensorType> inputs = {OfShape({2, 1, 12, 4}), OfShape({2, 5, 6, 4}),
                                          OfShape({2, 5, 6, 8})};
  const AttentionOp op = {.query = 0, .keys = 1, .values = 2};
  const auto result = ResultTypeOf(op, inputs);
  ASSERT_TRUE(result.ok());
  const ShardingRule rule = ShardingRuleOf(op, inputs, *result);
  ASSERT_EQ(rule.sizes, (std::vector<int64_t>{2, 6, 2, 5, 4, 8}));
  EXPECT_EQ(rule.are_alone, (std::vector<bool>{true, false, false, true, true, true}));
  EXPECT_EQ(rule.divisible, (std::vector<size_t>{0, 1, 2, 5}));
}

TEST(ShardingRuleTest, ReshapesSplitAndMergeFactors) {
  const auto reshape = [](Shape from, Shape to) {
    return TextOf(ReshapeOp{.shape = std::move(to)}, {OfShape(std::move(from))});
  };
  EXPECT_EQ(reshape({2, 24}, {2, 4, 6}), "[a,bc] -> [a,b,c] 2 4 6");
  EXPECT_EQ(reshape({2, 4, 6}, {2, 24}), "[a,b,c] -> [a,bc] 2 4 6");
  EXPECT_EQ(reshape({4, 6}, {6, 4}), "[ab,d] -> [ac,e] 2 2w 3w 6w 4w");
  EXPECT_EQ(reshape({12, 12}, {2, 1, 24, 3}), "[ab,cd] -> [a,1,bc,d] 2 6 4 3");
  EXPECT_EQ(reshape({3, 5}, {5, 3}), "[a,c] -> [b,d] 3w 5w 5w 3w");
  EXPECT_EQ(reshape({3, 5, 4}, {5, 3, 4}), "[a,c,e] -> [b,d,e] 3w 5w 5w 3w 4");
  EXPECT_EQ(reshape({0, 4}, {4, 0, 2}), "[a,b] -> [c,d,e] 0w 4w 4w 0w 2w");
  EXPECT_EQ(reshape({1}, {}), "[1] -> []");
}

TEST(ShardingRuleTest, ChangesOfShapeKeepWholeDimensions) {
  EXPECT_EQ(TextOf(TransposeOp{.permutation = {2, 0, 1}}, {OfShape({2, 3, 4})}),
            "[b,c,a] -> [a,b,c] 4 2 3");
  EXPECT_EQ(TextOf(SliceOp{.starts = {0, 1}, .limits = {4, 8}}, {OfShape({4, 9})}),
            "[a,b] -> [a,c] 4 9w 7w");
  EXPECT_EQ(TextOf(SliceOp{.starts = {0, 1}, .limits = {4, 2}}, {OfShape({4, 9})}),
            "[a,b] -> [a,1] 4 9w");
  EXPECT_EQ(
      TextOf(ConcatenateOp{.inputs = {0, 1}, .dimension = 0}, {OfShape({4, 9}), OfShape({1, 9})}),
      "[c,b] [1,b] -> [a,b] 5w 9 4w");
  EXPECT_EQ(TextOf(UpdateRowsOp{},
                   {OfShape({2, 9, 4}), OfShape({2, 3, 4}), OfShape({2, 3}, Dtype::kI32)}),
            "[a,b,c] [a,d,c] [a,d] -> [a,b,c] 2 9w 4 3w");
  EXPECT_EQ(TextOf(ConstantOp{.value = {.shape = {2, 1}, .bytes = std::string(8, '\0')}}, {}),
            " -> [a,1] 2w");
}

}  // namespace
}  // namespace shardmesh
