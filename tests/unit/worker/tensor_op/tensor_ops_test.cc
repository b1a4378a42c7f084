// Checks of tiles.
#include "worker/tensor_op/tensor_ops.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/tensor_op/op_run.h"

namespace shardmesh::worker::op_test {
namespace {

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

}  // namespace
}  // namespace shardmesh::worker::op_test
