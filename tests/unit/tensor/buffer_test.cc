// Buffers: alignment, the budget, reuse, and many threads at once.
#include "tensor/buffer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "process/failpoint.h"
#include "process/sealed/sealed_memory.h"
#include "tests/testing/huge_pages.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(BufferTest, LargeBuffersAskForHugePages) {
  MemoryBudget budget(int64_t{16} << 20);
  const auto pool = BufferPool::Create(&budget, 0);
  const absl::StatusOr<Buffer> buffer = pool->Allocate(int64_t{4} << 20, "a test");
  ASSERT_TRUE(buffer.ok());
  EXPECT_TRUE(test::AsksForHugePages(buffer->data()));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % (size_t{2} << 20), 0u);
}

TEST(BufferTest, StartsAtAMultipleOfItsAlignmentAtAnySize) {
  MemoryBudget budget(int64_t{64} << 20);
  const auto pool = BufferPool::Create(&budget, 0);
  for (const int64_t size : {1, 63, 64, 65, 4095, 4096, 4097, 1 << 20, (4 << 20) + 3}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(Buffer buffer, pool->Allocate(size, "a test"));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % Buffer::kAlignment, 0u) << size;
    EXPECT_EQ(buffer.size(), static_cast<size_t>(size));
    buffer.data()[0] = buffer.data()[size - 1] = 'x';
  }
  EXPECT_EQ(budget.used_bytes(), 0);
}

TEST(BufferTest, RefusesWhatIsOverTheLimitAndSaysHaveAndNeed) {
  MemoryBudget budget(1 << 20);
  const auto pool = BufferPool::Create(&budget, 0);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Buffer kept, pool->Allocate(1 << 19, "a"));
  const auto refused = pool->Allocate(int64_t{1} << 60, "tile [0,4) of array w");
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("1.00 EiB are needed"), HasSubstr("tile [0,4) of array w"),
                    HasSubstr("512 KiB of the limit of 1.00 MiB")));
  EXPECT_EQ(budget.used_bytes(), 1 << 19);
}

TEST(BufferTest, ReusesWhatWasGivenBack) {
  MemoryBudget budget(1 << 20);
  const auto pool = BufferPool::Create(&budget, 1 << 20);
  const char* data = nullptr;
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Buffer first, pool->Allocate(100'000, "a"));
    data = first.data();
  }
  EXPECT_GT(pool->idle_bytes(), 0);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Buffer second, pool->Allocate(99'000, "b"));
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(pool->idle_bytes(), 0);
}

TEST(BufferTest, AReturnedBufferIsKeptInsteadOfThoseThatWereReturnedLongestAgo) {
  constexpr int64_t kPage = 4096;
  MemoryBudget budget(1'000 * kPage);
  const auto pool = BufferPool::Create(&budget, 100 * kPage);
  // Sizes so far apart that none is used for a request of another.
  std::vector<Buffer> others;
  for (const int64_t pages : {50, 30, 20}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(others.emplace_back(), pool->Allocate(pages * kPage, "a"));
  }
  const char* const newest = others[2].data();
  for (Buffer& other : others) other = Buffer();
  ASSERT_EQ(pool->idle_bytes(), 100 * kPage);
  const char* data = nullptr;
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Buffer block, pool->Allocate(70 * kPage, "a block"));
    data = block.data();
  }
  EXPECT_EQ(pool->idle_bytes(), 90 * kPage) << "the block, and the smallest of the others";
  EXPECT_EQ(budget.used_bytes(), 90 * kPage);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Buffer again, pool->Allocate(70 * kPage, "a block"));
  EXPECT_EQ(again.data(), data);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Buffer other, pool->Allocate(20 * kPage, "a"));
  EXPECT_EQ(other.data(), newest);
  EXPECT_EQ(pool->idle_bytes(), 0);
}

TEST(BufferTest, ABufferLargerThanAllIdleBuffersMayBeReplacesNone) {
  MemoryBudget budget(1 << 20);
  const auto pool = BufferPool::Create(&budget, 1 << 18);
  { SHARDMESH_ASSERT_OK_AND_ASSIGN(const Buffer kept, pool->Allocate(1 << 17, "a")); }
  { SHARDMESH_ASSERT_OK_AND_ASSIGN(const Buffer large, pool->Allocate(1 << 19, "b")); }
  EXPECT_EQ(pool->idle_bytes(), 1 << 17);
  EXPECT_EQ(budget.used_bytes(), 1 << 17);
}

TEST(BufferTest, GivesIdleMemoryUpBeforeRefusing) {
  MemoryBudget budget(1 << 20);
  const auto pool = BufferPool::Create(&budget, 1 << 20);
  { SHARDMESH_ASSERT_OK_AND_ASSIGN(const Buffer idle, pool->Allocate(1 << 19, "a")); }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Buffer large, pool->Allocate(1 << 20, "b"));
  EXPECT_EQ(pool->idle_bytes(), 0);
  EXPECT_EQ(budget.used_bytes(), 1 << 20);
}

TEST(BufferTest, ABudgetAsksForMemoryBeforeItRefuses) {
  MemoryBudget budget(100);
  auto kept = budget.Reserve(80, "what can be done without");
  std::vector<int64_t> asked;
  int owner = 0;
  budget.AddReclaim(&owner, [&](int64_t size_bytes) {
    asked.push_back(size_bytes);
    if (size_bytes > budget.limit_bytes()) return false;
    *kept = MemoryBudget::Reservation();
    return true;
  });
  EXPECT_THAT(budget.Reserve(20, "a"), IsOk());
  EXPECT_TRUE(asked.empty()) << "there was room";
  EXPECT_THAT(budget.Reserve(101, "b"),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_EQ(budget.used_bytes(), 80);
  EXPECT_THAT(budget.Reserve(50, "c"), IsOk());
  EXPECT_EQ(asked, (std::vector<int64_t>{101, 50}));
  budget.RemoveReclaim(&owner);
  EXPECT_FALSE(budget.Reserve(101, "d").ok());
  EXPECT_EQ(asked.size(), 2u);
}

TEST(BufferTest, MemoryThatCanWaitTakesIdleBuffersOnly) {
  MemoryBudget budget(1 << 20);
  const auto pool = BufferPool::Create(&budget, 1 << 20);
  int owner = 0;
  bool is_asked = false;
  budget.AddReclaim(&owner, [&](int64_t) {
    is_asked = true;
    return false;
  });
  { SHARDMESH_ASSERT_OK_AND_ASSIGN(const Buffer idle, pool->Allocate(1 << 19, "a")); }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Buffer large, pool->TryAllocate(1 << 20, "b"));
  EXPECT_EQ(pool->idle_bytes(), 0);
  EXPECT_THAT(pool->TryAllocate(1 << 12, "c"),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_FALSE(is_asked);
  EXPECT_THAT(pool->Allocate(1 << 12, "d"),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_TRUE(is_asked);
  budget.RemoveReclaim(&owner);
}

TEST(BufferTest, NothingIsTakenForAnEmptyBuffer) {
  MemoryBudget budget(0);
  const auto pool = BufferPool::Create(&budget, 0);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Buffer empty, pool->Allocate(0, "nothing"));
  EXPECT_TRUE(empty.bytes().empty());
}

TEST(BufferTest, ThreadsNeverHoldMoreThanTheLimitTogether) {
  MemoryBudget budget(1 << 20);
  const auto pool = BufferPool::Create(&budget, 1 << 18);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        auto buffer = pool->Allocate(1000 * (1 + (i * 7 + t) % 300), "a thread");
        EXPECT_LE(budget.used_bytes(), budget.limit_bytes());
        if (buffer.ok()) {
          buffer->data()[0] = buffer->data()[buffer->size() - 1] = static_cast<char>(t);
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  pool->Trim();
  EXPECT_EQ(budget.used_bytes(), 0);
}

TEST(BufferTest, ABufferThatIsToBeFreedIsNotKept) {
  MemoryBudget budget(int64_t{8} << 20);
  const auto pool = BufferPool::Create(&budget, int64_t{4} << 20);
  for (int round = 0; round < 3; ++round) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(Buffer freed, pool->Allocate(100'000, "a test"));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Buffer kept, pool->Allocate(200'000, "a test"));
    pool->FreeOnReturn(freed);
    EXPECT_EQ(freed.size(), 100'000u) << "not before it is returned";
    const Buffer moved = std::move(freed);
    pool->FreeOnReturn(Buffer());
  }
  EXPECT_GE(pool->idle_bytes(), 200'000);
  EXPECT_LT(pool->idle_bytes(), 300'000);
  EXPECT_EQ(budget.used_bytes(), pool->idle_bytes());
  // The mark goes with the buffer, not with its memory, which the next buffer may get.
  for (int i = 0; i < 8; ++i) EXPECT_THAT(pool->Allocate(100'000, "a test"), IsOk());
  EXPECT_GE(pool->idle_bytes(), 300'000);
}

TEST(BufferTest, IdleBuffersGoBackToAHostThatHasNoMemory) {
  MemoryBudget budget(int64_t{8} << 20);
  const auto pool = BufferPool::Create(&budget, int64_t{1} << 20);
  EXPECT_THAT(pool->Allocate(100'000, "a test"), IsOk());
  ASSERT_GT(pool->idle_bytes(), 0);
  ASSERT_THAT(ArmFailpoints("memory.map=enospc"), IsOk());
  EXPECT_THAT(pool->Allocate(int64_t{1} << 20, "a test"), IsOk());
  pool->Trim();
  ASSERT_THAT(ArmFailpoints("memory.map=enospc"), IsOk());
  const absl::Status refused = pool->Allocate(int64_t{1} << 20, "a test").status();
  EXPECT_THAT(ArmFailpoints(""), IsOk());
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_TRUE(IsHostShortage(refused)) << refused;
  const absl::Status over_limit = pool->Allocate(int64_t{9} << 20, "a test").status();
  EXPECT_THAT(over_limit, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_FALSE(IsHostShortage(over_limit)) << over_limit;
  EXPECT_FALSE(IsHostShortage(absl::OkStatus()));
}

TEST(BufferTest, APieceFreesMemoryForItselfAndAFewMore) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  EXPECT_EQ(BytesToFreeFor(kMiB, 1'000 * kMiB), 64 * kMiB);
  EXPECT_EQ(BytesToFreeFor(kMiB, 64 * kMiB + 1), 64 * kMiB);
  EXPECT_EQ(BytesToFreeFor(kMiB, 3 * kMiB), 3 * kMiB);
  EXPECT_EQ(BytesToFreeFor(kMiB, kMiB), kMiB);
  EXPECT_EQ(BytesToFreeFor(100 * kMiB, 1'000 * kMiB), 100 * kMiB);
}

FileDescriptor Sealed(const std::string& bytes) {
  SealedMemoryWriter writer = *SealedMemoryWriter::Create(static_cast<int64_t>(bytes.size()));
  EXPECT_THAT(writer.Append(bytes), IsOk());
  return *std::move(writer).Seal();
}

TEST(BufferTest, WithoutASourceThatCanDoSoNoneIsUnfilled) {
  MemoryBudget budget(1 << 20);
  const auto pool = BufferPool::Create(&budget, 0);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(Buffer buffer, pool->AllocateUnfilled(100'001, "a test"));
  EXPECT_FALSE(buffer.is_unfilled());
  const std::string bytes(100'001, 'x');
  const absl::Span<const char> whole(bytes);
  const std::vector<absl::Span<const char>> parts = {whole.subspan(0, 7), whole.subspan(7)};
  EXPECT_THAT(buffer.Write(0, parts), IsOk());
  EXPECT_TRUE(buffer.bytes() == whole);
  EXPECT_THAT(pool->AllocateUnfilled(1 << 20, "a test"),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
}

TEST(BufferTest, IsTheMemoryOfAnotherProcessWithoutACopyAndNeverReused) {
  MemoryBudget budget(1 << 20);
  const auto pool = BufferPool::Create(&budget, 1 << 20);
  const std::string bytes(100'001, 'x');
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(Buffer buffer, pool->Adopt(Sealed(bytes), 100'001, "a test"));
    EXPECT_TRUE(buffer.is_read_only());
    EXPECT_TRUE(buffer.bytes() == absl::MakeConstSpan(bytes));
    EXPECT_EQ(budget.used_bytes(), 102'400);
    Buffer moved = std::move(buffer);
    EXPECT_TRUE(moved.is_read_only());
    EXPECT_FALSE(buffer.is_read_only());  // NOLINT(bugprone-use-after-move): it is empty
  }
  EXPECT_EQ(budget.used_bytes(), 0);
  EXPECT_EQ(pool->idle_bytes(), 0);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(Buffer own, pool->Allocate(100'001, "a test"));
  own.data()[0] = 'y';
}

TEST(BufferTest, CopiesMemoryOfAnotherProcessThatItCannotUseAsItIs) {
  MemoryBudget budget(1 << 20);
  const auto pool = BufferPool::Create(&budget, 0);
  const std::string bytes(100, 'x');  // less than a page
  SHARDMESH_ASSERT_OK_AND_ASSIGN(Buffer buffer, pool->Adopt(Sealed(bytes), 100, "a test"));
  EXPECT_FALSE(buffer.is_read_only());
  EXPECT_TRUE(buffer.bytes() == absl::MakeConstSpan(bytes));
  EXPECT_EQ(budget.used_bytes(), 128);
}

TEST(BufferTest, MemoryOfAnotherProcessCountsAgainstTheLimit) {
  MemoryBudget budget(1 << 20);
  const auto pool = BufferPool::Create(&budget, 1 << 20);
  { SHARDMESH_ASSERT_OK_AND_ASSIGN(const Buffer idle, pool->Allocate(1 << 20, "a test")); }
  const std::string bytes(1 << 19, 'x');
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Buffer one, pool->Adopt(Sealed(bytes), 1 << 19, "a test"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Buffer two, pool->Adopt(Sealed(bytes), 1 << 19, "a test"));
  EXPECT_THAT(pool->Adopt(Sealed(bytes), 1 << 19, "a test"),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_EQ(budget.used_bytes(), 1 << 20);
}

}  // namespace
}  // namespace shardmesh
