// Layouts of values, and the sizes of their tiles.
#include "program/value_layout.h"

#include <cstdint>
#include <limits>

#include "gtest/gtest.h"
#include "tests/unit/program/plan_examples.h"

namespace shardmesh {
namespace {

TEST(ValueLayoutTest, LeavesOutAxesOfOneDevice) {
  const Mesh mesh = *Mesh::Parse("dp=3,one=1,tp=2");
  const ValueLayout layout =
      LayoutOf(mesh, Value({6, 4}, Spec({{"dp", "one"}, {}}, {"one", "tp"})));
  EXPECT_EQ(layout, (ValueLayout{.dims = {{"dp"}, {}}, .unreduced = {"tp"}}));
  EXPECT_EQ(ToSpec(layout), Spec({{"dp"}, {}}, {"tp"}));
  EXPECT_EQ(AxesSize(mesh, {"tp", "dp"}), 6);
  EXPECT_EQ(AxesSize(mesh, {}), 1);
}

TEST(ValueLayoutTest, UnequalTilesCountAsTheLargest) {
  const Mesh mesh = *Mesh::Parse("dp=2,tp=2");
  const ValueDescriptor cut = CutValue({8, 4}, Spec({{"dp"}, {"tp"}}), {{0, 7, 8}, {}});
  EXPECT_EQ(TileShape(mesh, cut), (Shape{7, 2}));
  EXPECT_EQ(TileElements(mesh, cut), 14);
  EXPECT_EQ(TileBytes(mesh, cut), 56);
  EXPECT_EQ(PointsOf(mesh, cut, 0), (CutPoints{0, 7, 8}));
  EXPECT_EQ(PointsOf(mesh, cut, 1), (CutPoints{0, 2, 4}));
}

TEST(ValueLayoutTest, CutPointsOfEqualPartsAreDropped) {
  ValueDescriptor value = Value({8, 4}, Spec({{"dp"}, {}}));
  SetCutPoints(0, {0, 7, 8}, &value);
  EXPECT_TRUE(IsCut(value, 0));
  EXPECT_FALSE(IsCut(value, 1));
  SetCutPoints(0, {0, 4, 8}, &value);
  EXPECT_TRUE(value.cut_points.empty());
}

TEST(ValueLayoutTest, CountsStopAtTheLargestNumber) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(ProductOf(int64_t{1} << 40, int64_t{1} << 40), kMost);
  EXPECT_EQ(ProductOf(3, 4), 12);
  int64_t sum = 1;
  AddTo(sum, 2);
  EXPECT_EQ(sum, 3);
  AddTo(sum, kMost);
  EXPECT_EQ(sum, kMost);
}

TEST(ValueLayoutTest, BytesAreRightWhereTheBitsAreTooMany) {
  const Mesh mesh = *Mesh::Parse("tp=1");
  EXPECT_EQ(TileBytes(mesh, Value({int64_t{1} << 30, int64_t{1} << 30}, PartitionSpec())),
            int64_t{1} << 62);
  EXPECT_EQ(BytesOf(int64_t{1} << 62, Dtype::kF32), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(BytesOf(7, Dtype::kI64), 56);
  EXPECT_EQ(BytesOf(0, Dtype::kI64), 0);
}

}  // namespace
}  // namespace shardmesh
