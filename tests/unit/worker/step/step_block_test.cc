// StepBlock: a part is handed out again only after its last owner is gone.
#include "worker/step/step_block.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

namespace shardmesh::worker {
namespace {

class StepBlockTest : public testing::Test {
 protected:
  Buffer NewBuffer(int64_t size_bytes) { return *pool_->Allocate(size_bytes, "a test"); }

  MemoryBudget budget_{1 << 20};
  std::shared_ptr<BufferPool> pool_ = BufferPool::Create(&budget_, /*max_idle_bytes=*/0);
};

TEST_F(StepBlockTest, PartsThatDoNotOverlapAreFree) {
  StepBlock block(NewBuffer(256));
  const auto low = block.Take(0, 128);
  const auto high = block.Take(128, 128);
  ASSERT_TRUE(low.has_value());
  ASSERT_TRUE(high.has_value());
  EXPECT_EQ(low->bytes.size(), 128U);
  EXPECT_EQ(high->bytes.data() - low->bytes.data(), 128);
}

TEST_F(StepBlockTest, APartIsNotFreeWhileALinkHoldsACopyOfItsOwner) {
  StepBlock block(NewBuffer(256));
  std::optional<OwnedMutableBytes> part = block.Take(64, 128);
  std::shared_ptr<const void> lent = part->owner;
  part.reset();
  EXPECT_FALSE(block.Take(64, 128).has_value());
  EXPECT_FALSE(block.Take(0, 65).has_value()) << "the last byte overlaps";
  EXPECT_FALSE(block.Take(191, 65).has_value());
  EXPECT_FALSE(block.Take(100, 1).has_value());
  EXPECT_TRUE(block.Take(0, 64).has_value());
  EXPECT_TRUE(block.Take(192, 64).has_value());
  lent.reset();
  EXPECT_TRUE(block.Take(0, 256).has_value());
}

TEST_F(StepBlockTest, ASharedPartIsFreeOnceBothOwnersAreGone) {
  StepBlock block(NewBuffer(128));
  std::optional<OwnedMutableBytes> part = block.Take(0, 128);
  OwnedMutableBytes shared = block.Share(0, 128);
  EXPECT_EQ(shared.bytes.data(), part->bytes.data());
  part.reset();
  EXPECT_FALSE(block.Take(0, 128).has_value());
  shared = {};
  EXPECT_TRUE(block.Take(0, 128).has_value());
}

TEST_F(StepBlockTest, AnEmptyPartIsAlwaysFree) {
  StepBlock block(NewBuffer(128));
  const auto all = block.Take(0, 128);
  const auto empty = block.Take(64, 0);
  ASSERT_TRUE(empty.has_value());
  EXPECT_TRUE(empty->bytes.empty());
}

TEST_F(StepBlockTest, OwnersKeepTheMemoryThoughTheBlockIsGone) {
  std::optional<OwnedMutableBytes> part;
  {
    StepBlock block(NewBuffer(8192));
    part = block.Take(4096, 4096);
  }
  EXPECT_EQ(budget_.used_bytes(), 8192);
  std::memset(part->bytes.data(), 1, part->bytes.size());
  part.reset();
  EXPECT_EQ(budget_.used_bytes(), 0);
}

TEST_F(StepBlockTest, AWaitEndsWhenAnotherThreadReleasesAPart) {
  StepBlock block(NewBuffer(4096));
  for (int round = 0; round < 200; ++round) {
    std::optional<OwnedMutableBytes> part = block.Take(0, 4096);
    ASSERT_TRUE(part.has_value());
    std::memset(part->bytes.data(), round, part->bytes.size());
    // As a link reads what it was lent, and then releases it.
    std::atomic<int> wrong = 0;
    std::thread reader([&wrong, round, bytes = part->bytes, owner = part->owner]() mutable {
      for (const char byte : bytes) wrong += byte != static_cast<char>(round) ? 1 : 0;
      owner.reset();
    });
    part.reset();
    while (!(part = block.Take(0, 4096)).has_value()) block.Wait(absl::Seconds(1));
    std::memset(part->bytes.data(), 255, part->bytes.size());
    reader.join();
    EXPECT_EQ(wrong, 0) << "round " << round;
  }
}

TEST_F(StepBlockTest, AWaitForABlockWithoutOwnersEndsAtOnce) {
  StepBlock block(NewBuffer(64));
  block.Wait(absl::InfiniteDuration());
}

}  // namespace
}  // namespace shardmesh::worker
