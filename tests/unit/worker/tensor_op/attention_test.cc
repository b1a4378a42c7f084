// Attention against plain sums: grouped heads, positions, masks, NaNs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "tests/testing/instruction_sets.h"
#include "tests/unit/worker/tensor_op/op_run.h"

namespace shardmesh::worker::op_test {
namespace {

using ::shardmesh::test::OnEachInstructionSet;

struct AttentionCase {
  int64_t batch = 1;
  int64_t queries = 1;
  int64_t rows = 1;
  int64_t key_heads = 1;
  int64_t group = 1;
  int64_t features = 8;
  int64_t value_features = 8;
};

std::vector<double> PlainAttention(const AttentionOp& op, const AttentionCase& sizes,
                                   const std::vector<TestTile>& inputs) {
  const std::vector<double> query = ValuesOf(inputs[0]), keys = ValuesOf(inputs[1]),
                            values = ValuesOf(inputs[2]);
  const std::vector<double> positions =
      op.positions.has_value() ? ValuesOf(inputs[3]) : std::vector<double>();
  const std::vector<double> mask = op.mask.has_value() ? ValuesOf(inputs.back()) : positions;
  const auto d = static_cast<size_t>(sizes.features), e = static_cast<size_t>(sizes.value_features);
  const auto heads = static_cast<size_t>(sizes.key_heads * sizes.group);
  const auto rows = static_cast<size_t>(sizes.rows), queries = static_cast<size_t>(sizes.queries);
  std::vector<double> result;
  for (size_t vector = 0; vector < static_cast<size_t>(sizes.batch) * queries * heads; ++vector) {
    const size_t head = vector % heads, s = vector / heads % queries, b = vector / heads / queries;
    std::vector<long double> scores;
    std::vector<size_t> seen;
    for (size_t row = 0; row < rows; ++row) {
      if (op.positions.has_value() &&
          static_cast<double>(row) > positions[inputs[3].shape.size() == 1 ? s : b * queries + s]) {
        continue;
      }
      if (op.mask.has_value() && mask[b * rows + row] == 0) continue;
      const size_t at = (b * rows + row) * static_cast<size_t>(sizes.key_heads) +
                        head / static_cast<size_t>(sizes.group);
      long double score = 0;
      for (size_t i = 0; i < d; ++i) score += query[vector * d + i] * keys[at * d + i];
      scores.push_back(score * op.scale);
      seen.push_back(at);
    }
    long double largest = -std::numeric_limits<long double>::infinity(), sum = 0;
    for (const long double score : scores) largest = std::max(largest, score);
    for (long double& score : scores) sum += score = std::exp(score - largest);
    for (size_t i = 0; i < e; ++i) {
      long double value = 0;
      for (size_t j = 0; j < seen.size(); ++j) value += scores[j] * values[seen[j] * e + i] / sum;
      result.push_back(static_cast<double>(value));
    }
  }
  return result;
}

std::vector<TestTile> AttentionInputs(Dtype dtype, const AttentionCase& sizes) {
  return {
      Random(dtype, {sizes.batch, sizes.queries, sizes.key_heads * sizes.group, sizes.features}, 1),
      Random(dtype, {sizes.batch, sizes.rows, sizes.key_heads, sizes.features}, 2),
      Random(dtype, {sizes.batch, sizes.rows, sizes.key_heads, sizes.value_features}, 3)};
}

// Runs the case with each kind of positions and of masks.
void TestAttention(Dtype dtype, const AttentionCase& sizes) {
  for (const int kind : {0, 1, 2, 3}) {
    AttentionOp op = {.positions = std::nullopt, .mask = std::nullopt, .scale = 0.4f};
    std::vector<TestTile> inputs = AttentionInputs(dtype, sizes);
    if (kind != 0) {
      op.positions = 0;
      std::vector<double> positions;
      const bool is_shared = kind == 1;
      for (int64_t i = 0; i < (is_shared ? 1 : sizes.batch) * sizes.queries; ++i) {
        // As a prefill, but some see nothing, and some see all.
        positions.push_back(static_cast<double>(i % 7 == 3 ? -1 : i % 5 == 4 ? sizes.rows + 9 : i));
      }
      if (sizes.queries == 1) positions[0] = static_cast<double>(sizes.rows * 3 / 4);
      inputs.push_back(Made(Dtype::kI32,
                            is_shared ? Shape{sizes.queries} : Shape{sizes.batch, sizes.queries},
                            positions));
    }
    if (kind >= 2) {
      op.mask = 0;
      std::vector<double> mask;
      for (int64_t i = 0; i < sizes.batch * sizes.rows; ++i) mask.push_back(i % 3 != 1 ? 1 : 0);
      inputs.push_back(
          Made(kind == 2 ? Dtype::kBool : Dtype::kI32, {sizes.batch, sizes.rows}, mask));
    }
    SCOPED_TRACE(std::string(DtypeName(dtype)) + " " + std::to_string(kind) + " rows " +
                 std::to_string(sizes.rows) + " queries " + std::to_string(sizes.queries));
    const TestTile result = RunOp(op, inputs);
    ExpectClose(result, PlainAttention(op, sizes, inputs), dtype == Dtype::kF32 ? 60 : 1, 0.5);
  }
}

TEST(AttentionTest, FewQueries) {
  for (const Dtype dtype : kShortFloats) {
    TestAttention(dtype, {});
    TestAttention(dtype, {.batch = 2,
                          .queries = 1,
                          .rows = 33,
                          .key_heads = 2,
                          .group = 3,
                          .features = 16,
                          .value_features = 16});
    TestAttention(dtype, {.batch = 1,
                          .queries = 5,
                          .rows = 70,
                          .key_heads = 2,
                          .group = 1,
                          .features = 7,
                          .value_features = 13});
    TestAttention(dtype, {.batch = 2,
                          .queries = 1,
                          .rows = 1100,
                          .key_heads = 2,
                          .group = 4,
                          .features = 20,
                          .value_features = 3});
    TestAttention(dtype, {.batch = 1,
                          .queries = 3,
                          .rows = 4,
                          .key_heads = 3,
                          .group = 2,
                          .features = 1,
                          .value_features = 1});
  }
}

TEST(AttentionTest, ManyQueries) {
  for (const Dtype dtype : kShortFloats) {
    TestAttention(dtype, {.batch = 2,
                          .queries = 40,
                          .rows = 40,
                          .key_heads = 2,
                          .group = 2,
                          .features = 16,
                          .value_features = 16});
    TestAttention(dtype, {.batch = 1,
                          .queries = 33,
                          .rows = 300,
                          .key_heads = 1,
                          .group = 3,
                          .features = 7,
                          .value_features = 5});
  }
  // More than one block of queries.
  TestAttention(Dtype::kF32, {.batch = 1,
                              .queries = 530,
                              .rows = 530,
                              .key_heads = 1,
                              .group = 1,
                              .features = 4,
                              .value_features = 4});
}

TEST(AttentionTest, RowsThatAQueryDoesNotSeeDoNotMatter) {
  const double nan = std::nan("");
  for (const int64_t queries : {4, 64}) {
    const AttentionCase sizes = {
        .queries = queries, .rows = 80, .features = 4, .value_features = 4};
    std::vector<TestTile> inputs = AttentionInputs(Dtype::kF32, sizes);
    // Row 2 is hidden by the mask; rows from 30 on are beyond most queries, and the last 10 beyond
    // all of them.
    std::vector<double> keys = ValuesOf(inputs[1]), values = ValuesOf(inputs[2]);
    for (size_t row = 0; row < 80; ++row) {
      if (row != 2 && row < 30) continue;
      for (size_t i = 0; i < 4; ++i) keys[row * 4 + i] = values[row * 4 + i] = nan;
    }
    inputs[1] = Made(Dtype::kF32, inputs[1].shape, keys);
    inputs[2] = Made(Dtype::kF32, inputs[2].shape, values);
    std::vector<double> positions, mask(80, 1);
    for (int64_t i = 0; i < queries; ++i) positions.push_back(static_cast<double>(i % 29));
    positions.back() = 69;
    mask[2] = 0;
    inputs.push_back(Made(Dtype::kI32, {queries}, positions));
    inputs.push_back(Made(Dtype::kBool, {1, 80}, mask));
    const AttentionOp op = {.positions = 0, .mask = 0, .scale = 1};
    ExpectClose(RunOp(op, inputs), PlainAttention(op, sizes, inputs), 60, 0.5);
  }
}

TEST(AttentionTest, NothingToSeeIsZero) {
  for (const int64_t queries : {2, 40}) {
    const AttentionCase sizes = {.queries = queries, .rows = 50};
    std::vector<TestTile> inputs = AttentionInputs(Dtype::kBF16, sizes);
    inputs.push_back(Made(Dtype::kI32, {1, 50}, std::vector<double>(50, 0)));
    const AttentionOp op = {.positions = std::nullopt, .mask = 0, .scale = 1};
    for (const double value : ValuesOf(RunOp(op, inputs))) EXPECT_EQ(value, 0);
  }
  // No rows, and no features.
  const std::vector<TestTile> no_rows = AttentionInputs(Dtype::kF32, {.rows = 0});
  for (const double value : ValuesOf(RunOp(AttentionOp{}, no_rows))) EXPECT_EQ(value, 0);
  const AttentionCase no_features = {.rows = 3, .features = 0};
  const std::vector<TestTile> inputs = AttentionInputs(Dtype::kF32, no_features);
  ExpectClose(RunOp(AttentionOp{}, inputs), PlainAttention({}, no_features, inputs), 4, 1);
  EXPECT_EQ(RunOp(AttentionOp{}, AttentionInputs(Dtype::kF32, {.batch = 0})).size(), 0u);
  EXPECT_EQ(RunOp(AttentionOp{}, AttentionInputs(Dtype::kF32, {.value_features = 0})).size(), 0u);
}

TEST(AttentionTest, LargeScoresDoNotOverflow) {
  for (const int64_t queries : {2, 40}) {
    const AttentionCase sizes = {.queries = queries, .rows = 60};
    const std::vector<TestTile> inputs = AttentionInputs(Dtype::kF32, sizes);
    const AttentionOp op = {.positions = std::nullopt, .mask = std::nullopt, .scale = 1e4f};
    // A score of 1e5 is exact to 0.01.
    const std::vector<double> values = ValuesOf(RunOp(op, inputs));
    const std::vector<double> expected = PlainAttention(op, sizes, inputs);
    for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], 0.1);
  }
}

// Returns the bytes of the first `count` elements along dimension 1 of a tile with batch 1.
TestTile FirstOf(const TestTile& tile, int64_t count) {
  TestTile first = Unset(tile.dtype, {1, count, tile.shape[2], tile.shape[3]});
  std::copy_n(tile.bytes.begin(), first.bytes.size(), first.bytes.begin());
  return first;
}

TEST(AttentionTest, BitsDependNeitherOnOtherQueriesNorOnLaterRows) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
    // More queries of a key head than a block has.
    const AttentionCase sizes = {
        .queries = 40, .rows = 300, .key_heads = 2, .group = 3, .value_features = 24};
    const std::vector<TestTile> all = AttentionInputs(dtype, sizes);
    std::vector<double> positions;
    for (int64_t i = 0; i < sizes.queries; ++i) positions.push_back(static_cast<double>(100 + i));
    const AttentionOp op = {.positions = 3, .mask = std::nullopt, .scale = 0.3f};
    const TestTile whole =
        RunOp(op, {all[0], all[1], all[2], Made(Dtype::kI32, {sizes.queries}, positions)});
    positions.resize(13);
    const TestTile part = RunOp(op, {FirstOf(all[0], 13), FirstOf(all[1], 120),
                                     FirstOf(all[2], 120), Made(Dtype::kI32, {13}, positions)});
    EXPECT_EQ(part.bytes, FirstOf(whole, 13).bytes);
  }
}

TEST(AttentionTest, EachInstructionSet) {
  OnEachInstructionSet([](const char* /*name*/) {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
      for (const int64_t features : {5, 16}) {
        TestAttention(dtype, {.queries = 11,
                              .rows = 37,
                              .key_heads = 2,
                              .features = features,
                              .value_features = 18});
      }
    }
  });
}

TEST(AttentionTest, ALargeOneEndsWithItsAbort) {
  const TestTile query = Unset(Dtype::kF32, {64, 64, 1, 32});
  const TestTile rows = Unset(Dtype::kF32, {64, 512, 1, 32});
  OpContext context;
  int calls = 0;
  context.abort_check = [&calls] {
    ++calls;
    return absl::AbortedError("the step was aborted");
  };
  EXPECT_EQ(ErrorOf(AttentionOp{}, {query, rows, rows}, query, context).code(),
            absl::StatusCode::kAborted);
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace shardmesh::worker::op_test
