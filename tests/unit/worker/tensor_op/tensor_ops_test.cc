// Checks of tiles.
#include "worker/tensor_op/tensor_ops.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/tensor_op/op_run.h"

namespace shardmesh::worker::op_test {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::kInvalid;
using ::shardmesh::test::StatusIs;

TEST(TensorOpsTest, RefusesTilesThatDoNotFit) {
  const TestTile input = Random(Dtype::kF32, {2, 3}, 6);
  const MapOp exp = {.function = MapFunction::kExp, .inputs = {0}};
  // Another number of inputs.
  EXPECT_THAT(ErrorOf(exp, {input, input}, input), StatusIs(kInvalid, Reason::kBadField));
  // Memory of another size.
  TestTile short_input = input;
  short_input.bytes.pop_back();
  EXPECT_THAT(ErrorOf(exp, {short_input}, input), StatusIs(kInvalid, Reason::kShapeMismatch));
  EXPECT_THAT(ErrorOf(exp, {input}, short_input), StatusIs(kInvalid, Reason::kShapeMismatch));
  // A tile of another shape.
  TestTile other = input;
  other.tile.ranges[1] = {0, 2};
  EXPECT_THAT(ErrorOf(exp, {other}, input), StatusIs(kInvalid, Reason::kShapeMismatch));
  // A result of another shape or type.
  EXPECT_THAT(ErrorOf(exp, {input}, Unset(Dtype::kF32, {3, 2})),
              StatusIs(kInvalid, Reason::kShapeMismatch));
  EXPECT_THAT(ErrorOf(exp, {input}, Unset(Dtype::kI32, {2, 3})),
              StatusIs(kInvalid, Reason::kUnsupportedDtype));
  // A type without the function.
  EXPECT_THAT(ErrorOf(exp, {Unset(Dtype::kI32, {2})}, Unset(Dtype::kI32, {2})),
              StatusIs(kInvalid, Reason::kUnsupportedDtype));
}

TEST(TensorOpsTest, TheCallerCanMakeRoomForWorkingMemory) {
  MemoryBudget budget(1000);
  OpContext context = TestContext();
  context.pool = BufferPool::Create(&budget, 0);
  const TestTile input = Random(Dtype::kBF16, {1, 64, 1, 8}, 7);
  std::vector<int64_t> asked_bytes;
  context.allocate = [&](int64_t size_bytes, std::string_view what) {
    asked_bytes.push_back(size_bytes);
    return TestContext().pool->Allocate(size_bytes, what);
  };
  EXPECT_THAT(ErrorOf(AttentionOp{}, {input, input, input}, input, context), IsOk());
  ASSERT_EQ(asked_bytes.size(), 1u);
  EXPECT_GT(asked_bytes[0], 1000);
  context.allocate = [](int64_t, std::string_view) { return absl::AbortedError("enough"); };
  EXPECT_THAT(ErrorOf(AttentionOp{}, {input, input, input}, input, context),
              StatusIs(absl::StatusCode::kAborted));
}

}  // namespace
}  // namespace shardmesh::worker::op_test
