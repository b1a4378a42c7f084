// Tests of sharding/shape.h.
#include "sharding/shape.h"

#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;

using ::shardmesh::test::kInvalid;

TEST(ShapeTest, CountsElements) {
  EXPECT_THAT(ElementCount({}), IsOkAndHolds(1));
  EXPECT_THAT(ElementCount({2, 3, 5}), IsOkAndHolds(30));
  EXPECT_THAT(ElementCount({int64_t{1} << 62, 1}), IsOkAndHolds(int64_t{1} << 62));
  EXPECT_THAT(ElementCount({int64_t{1} << 62, int64_t{1} << 62, int64_t{1} << 62, 0}),
              IsOkAndHolds(0));
}

TEST(ShapeTest, RefusesShapesOutsideItsLimits) {
  EXPECT_THAT(ElementCount({2, -1}), StatusIs(kInvalid, Reason::kInvalidShape));
  EXPECT_THAT(ElementCount({0, -1}), StatusIs(kInvalid, Reason::kInvalidShape));
  EXPECT_THAT(ElementCount({int64_t{1} << 32, int64_t{1} << 31}),
              StatusIs(kInvalid, Reason::kInvalidShape));
  EXPECT_THAT(CheckShape(Shape(17, 1)), StatusIs(kInvalid, Reason::kInvalidShape));
  EXPECT_THAT(CheckShape(Shape(16, int64_t{1} << 62)), StatusIs(kInvalid, Reason::kInvalidShape));
  EXPECT_TRUE(CheckShape(Shape(16, 1)).ok());
}

TEST(ShapeTest, WritesItselfAsPythonDoes) {
  EXPECT_EQ(ShapeToString({}), "()");
  EXPECT_EQ(ShapeToString({8}), "(8,)");
  EXPECT_EQ(ShapeToString({8, 16}), "(8, 16)");
}

}  // namespace
}  // namespace shardmesh
