// Sizes of the messages and copies of moves on meshes of all sizes.
#include "program/move_plan.h"

#include <gtest/gtest.h>

#include <cstdint>

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
