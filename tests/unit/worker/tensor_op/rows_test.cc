// Lookups in tables and their tiles, and updates of rows.
#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/worker/tensor_op/op_run.h"

namespace shardmesh::worker::op_test {
namespace {

TEST(RowsTest, AnIdOutsideTheTableGivesZeros) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kI8, Dtype::kF64}) {
    for (const int64_t features : {1, 5, 64}) {
      const TestTile table = Random(dtype, {7, features}, 1);
      const std::vector<double> rows = ValuesOf(table);
      const std::vector<double> ids = {0, 6, -1, 7, 3, 3, -2147483648.0, 2147483647};
      const TestTile result = RunOp(EmbeddingOp{}, {table, Made(Dtype::kI32, {2, 4}, ids)});
      EXPECT_EQ(result.shape, (Shape{2, 4, features}));
      std::vector<double> expected;
      for (const double id : ids) {
        for (int64_t i = 0; i < features; ++i) {
          const bool is_row = id >= 0 && id < 7;
          expected.push_back(
              is_row ? rows[static_cast<size_t>(static_cast<int64_t>(id) * features + i)] : 0);
        }
      }
      EXPECT_EQ(ValuesOf(result), expected);
    }
  }
}

TEST(RowsTest, TheTilesOfATableAddUp) {
  const TestTile table = Random(Dtype::kF32, {10, 3}, 2);
  std::vector<double> ids;
  for (int id = -2; id < 13; ++id) ids.push_back(id);
  const TestTile id_tile = Made(Dtype::kI32, {static_cast<int64_t>(ids.size())}, ids);
  std::vector<double> sums(ids.size() * 3, 0);
  // Parts of unequal size, one of them empty.
  const std::vector<IndexRange> parts = {{0, 4}, {4, 4}, {4, 5}, {5, 10}};
  for (const IndexRange& part : parts) {
    TestTile rows = RunOp(SliceOp{.starts = {part.start, 0}, .limits = {part.stop, 3}}, {table});
    rows.tile.ranges[0] = part;
    const std::vector<double> result = ValuesOf(RunOp(EmbeddingOp{}, {rows, id_tile}));
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += result[i];
  }
  EXPECT_EQ(sums, ValuesOf(RunOp(EmbeddingOp{}, {table, id_tile})));
}

TEST(RowsTest, EmptyTables) {
  const TestTile ids = Made(Dtype::kI32, {3}, {0, 1, 2});
  EXPECT_EQ(ValuesOf(RunOp(EmbeddingOp{}, {Unset(Dtype::kF32, {0, 2}), ids})),
            std::vector<double>(6, 0));
  EXPECT_EQ(RunOp(EmbeddingOp{}, {Unset(Dtype::kF32, {4, 0}), ids}).size(), 0u);
  EXPECT_EQ(RunOp(EmbeddingOp{}, {Unset(Dtype::kF32, {4, 2}), Unset(Dtype::kI32, {0})}).size(), 0u);
}

TEST(RowsTest, UpdatesReplaceRowsAtTheirPositions) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kI8}) {
    const TestTile cache = Random(dtype, {2, 6, 2, 3}, 3);
    const TestTile update = Random(dtype, {2, 4, 2, 3}, 4);
    const std::vector<double> own_positions = {5, -1, 0, 6, 2, 2, 100, 1};
    for (const bool is_shared : {false, true}) {
      const TestTile positions = is_shared ? Made(Dtype::kI32, {4}, {3, -7, 3, 1})
                                           : Made(Dtype::kI32, {2, 4}, own_positions);
      std::vector<double> expected = ValuesOf(cache);
      const std::vector<double> rows = ValuesOf(update);
      const std::vector<double> at = ValuesOf(positions);
      for (size_t b = 0; b < 2; ++b) {
        for (size_t s = 0; s < 4; ++s) {
          const double position = at[is_shared ? s : b * 4 + s];
          if (position < 0 || position >= 6) continue;
          for (size_t i = 0; i < 6; ++i) {
            expected[(b * 6 + static_cast<size_t>(position)) * 6 + i] = rows[(b * 4 + s) * 6 + i];
          }
        }
      }
      EXPECT_EQ(ValuesOf(RunOp(UpdateRowsOp{}, {cache, update, positions})), expected);
    }
  }
}

TEST(RowsTest, UpdatesOfNothing) {
  const TestTile cache = Random(Dtype::kF32, {2, 3, 4}, 5);
  EXPECT_EQ(
      RunOp(UpdateRowsOp{}, {cache, Unset(Dtype::kF32, {2, 0, 4}), Unset(Dtype::kI32, {0})}).bytes,
      cache.bytes);
  EXPECT_EQ(RunOp(UpdateRowsOp{}, {Unset(Dtype::kF32, {2, 0, 4}), Unset(Dtype::kF32, {2, 1, 4}),
                                   Made(Dtype::kI32, {1}, {0})})
                .size(),
            0u);
}

}  // namespace
}  // namespace shardmesh::worker::op_test
