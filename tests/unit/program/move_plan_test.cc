// Sizes of the messages and copies of moves on meshes of all sizes.
#include "program/move_plan.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "sharding/mesh.h"
#include "sharding/reshard/plan.h"
#include "sharding/spec.h"
#include "sharding/tile.h"
#include "tensor/dtype.h"

namespace shardmesh {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(MovePlanTest, CopiesOfAllMovesAtOnceHaveAtMost64MiB) {
  for (int64_t devices = 1; devices <= 10'000; ++devices) {
    SCOPED_TRACE(devices);
    const int64_t window_bytes = MoveWindowBytes(devices);
    const int64_t moves = MovesAtOnce(devices);
    // Without a piece for each receiver, the ranks could wait for one another.
    ASSERT_GE(window_bytes, devices * MovePieceBytes(devices));
    ASSERT_GE(moves, 1);
    if (devices <= 16) {
      ASSERT_EQ(moves, 4);
    }
    if (devices <= 2048) {
      ASSERT_GE(moves, 2);
    }
    if (devices <= 4096) {
      ASSERT_LE(moves * window_bytes, 64 * kMiB);
    } else {
      ASSERT_EQ(moves, 1);
    }
  }
}

TEST(MovePlanTest, AsManyMovesRunAsTheMemoryForMovesHasRoomFor) {
  EXPECT_EQ(MovesAtOnce(4, kLeastMoveMemoryBytes), 2);
  EXPECT_EQ(MovesAtOnce(32, kLeastMoveMemoryBytes), 1);
  EXPECT_EQ(MovesAtOnce(2'048, kLeastMoveMemoryBytes), 1);
  EXPECT_LE(MoveWindowBytes(2'048), kLeastMoveMemoryBytes);
  EXPECT_EQ(MovesAtOnce(32, 128 * kMiB), 4);
  EXPECT_EQ(MovesAtOnce(8'192, 512 * kMiB), 4);
  EXPECT_EQ(MovesAtOnce(8'192, kMoveMemoryBytes), 1) << "one needs 128 MiB";
}

TEST(MovePlanTest, OnlyRegionsThatAreNoRunsAreCopied) {
  const Mesh mesh = *Mesh::Create({{"x", 4}});
  const PartitionSpec rows({SpecEntry::Axis("x")});
  const PartitionSpec columns({SpecEntry(), SpecEntry::Axis("x")});
  const auto copies = [&](const Shape& shape, const PartitionSpec& from, const PartitionSpec& to,
                          std::vector<CutPoints> cuts = {}, std::vector<CutPoints> from_cuts = {}) {
    const Tiling target = *Tiling::Create(mesh, to, shape, std::move(cuts));
    const ReshardPlan plan =
        *ReshardPlan::Create(*Tiling::Create(mesh, from, shape, std::move(from_cuts)), target);
    return MoveCopiesBytes(plan, Dtype::kF32, *plan.Totals());
  };
  // Each device sends three quarters of its tile, and has them in rows of it.
  EXPECT_EQ(copies({64, 64}, rows, columns), 3 * 16 * 16 * 4);
  EXPECT_EQ(copies({1, 64, 64}, PartitionSpec({SpecEntry(), SpecEntry::Axis("x")}),
                   PartitionSpec({SpecEntry(), SpecEntry(), SpecEntry::Axis("x")})),
            3 * 16 * 16 * 4);
  // A tile is one row, so parts of it are runs.
  EXPECT_EQ(copies({4, 64}, rows, columns), 0);
  EXPECT_EQ(copies({3, 64}, rows, columns, {}, {{0, 1, 2, 3, 3}, {}}), 0) << "the last is empty";
  EXPECT_EQ(copies({4, 64, 64}, rows, columns), 0);
  EXPECT_GT(
      copies({4, 64, 64}, rows, PartitionSpec({SpecEntry(), SpecEntry(), SpecEntry::Axis("x")})),
      0);
  EXPECT_GT(copies({5, 64}, rows, columns, {}, {{0, 2, 3, 4, 5}, {}}), 0)
      << "the first tile has two rows";
  // From columns, a region has some rows of the tile.
  EXPECT_EQ(copies({64, 64}, columns, rows), 0);
  EXPECT_EQ(copies({64, 64}, rows, PartitionSpec()), 0);
  EXPECT_EQ(copies({64, 64}, rows, rows, {{0, 1, 2, 3, 64}, {}}), 0);
  EXPECT_GT(copies({64, 64}, columns, columns, {{}, {0, 1, 2, 3, 64}}), 0);
  EXPECT_EQ(copies({64, 64}, PartitionSpec(), columns), 0) << "nothing moves";
  // Never more than the window.
  EXPECT_EQ(copies({16'384, 16'384}, rows, columns), MoveWindowBytes(4));
}

TEST(MovePlanTest, RegionsOfElementsThatShareBytesArePaddedOneByOne) {
  const Mesh mesh = *Mesh::Create({{"x", 3}});
  const auto plan_of = [&](const Shape& shape) {
    const Tiling rows = *Tiling::Create(mesh, PartitionSpec({SpecEntry::Axis("x")}), shape);
    const Tiling whole = *Tiling::Create(mesh, PartitionSpec(), shape);
    return *ReshardPlan::Create(rows, whole);
  };
  // Each device receives two regions of five elements.
  const ReshardPlan odd = plan_of({15});
  EXPECT_EQ(*MoveBytes(odd, Dtype::kU8, *odd.Totals()), 3 * 2 * 5);
  EXPECT_EQ(*MoveBytes(odd, Dtype::kF4, *odd.Totals()), 3 * 2 * 3);
  EXPECT_EQ(*MoveBytes(odd, Dtype::kF6E2M3, *odd.Totals()), 3 * 2 * 4);
  // A device that sends two such regions may have copies of both.
  EXPECT_GE(MoveCopiesBytes(odd, Dtype::kF4, *odd.Totals()), 2 * 3);
  const ReshardPlan even = plan_of({24});
  EXPECT_EQ(*MoveBytes(even, Dtype::kF4, *even.Totals()), 3 * 2 * 4);
}

TEST(MovePlanTest, PlansMovesWhoseRegionsBeginWithinAByte) {
  const Mesh mesh = *Mesh::Create({{"x", 2}});
  const ValueDescriptor from = {.dtype = Dtype::kF4,
                                .shape = {3, 5},
                                .spec = PartitionSpec({SpecEntry::Axis("x")}),
                                .cut_points = {{0, 1, 3}, {}}};
  ValueDescriptor to = from;
  to.spec = PartitionSpec({SpecEntry(), SpecEntry::Axis("x")});
  to.cut_points = {{}, {0, 3, 5}};
  const auto plan = MovePlan(mesh, from, to);
  ASSERT_TRUE(plan.ok()) << plan.status();
  // Device 0 receives 2 x 3 elements, and device 1 receives 1 x 2.
  EXPECT_EQ(plan->Totals()->need, 8);
  EXPECT_EQ(*MoveBytes(*plan, Dtype::kF4, *plan->Totals()), 3 + 1);
}

// Workers of different builds exchange these messages, so their sizes may not change.
TEST(MovePlanTest, MessagesHaveTheSizesOfEarlierBuilds) {
  EXPECT_EQ(MovePieceBytes(1), kMiB);
  EXPECT_EQ(MovePieceBytes(32), kMiB);
  EXPECT_EQ(MovePieceBytes(33), 32 * kMiB / 33);
  EXPECT_EQ(MovePieceBytes(64), kMiB / 2);
  EXPECT_EQ(MovePieceBytes(2048), 16 << 10);
  EXPECT_EQ(MovePieceBytes(100'000), 16 << 10);
}

}  // namespace
}  // namespace shardmesh
