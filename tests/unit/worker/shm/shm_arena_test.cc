// ShmArena: blocks never overlap, are where Locate says, and segments go back.
#include "worker/shm/shm_arena.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "process/failpoint.h"
#include "process/pages.h"
#include "process/sealed/sealed_memory.h"
#include "tests/testing/huge_pages.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// What a peer would see of a segment.
std::unique_ptr<ShmView> ViewOf(const ShmArena& arena, uint64_t segment_id) {
  std::unique_ptr<ShmView> view;
  EXPECT_TRUE(arena.WithSegment(segment_id, [&](int fd, int64_t size_bytes) {
    auto opened = ShmView::Open(FileDescriptor(dup(fd)), size_bytes);
    ASSERT_TRUE(opened.ok()) << opened.status();
    view = *std::move(opened);
  }));
  return view;
}

TEST(ShmArenaTest, LargeBlocksAskForHugePagesAndPeersSeeTheSameBytes) {
  ShmArena arena("test");
  constexpr size_t kHuge = size_t{2} << 20;
  for (const size_t size_bytes : {kHuge, 3 * kHuge + 4096, ShmArena::kOwnSegmentBytes}) {
    char* const data = arena.Allocate(size_bytes);
    ASSERT_NE(data, nullptr);
    EXPECT_EQ(test::AsksForHugePages(data), size_bytes >= kHuge) << size_bytes;
    if (size_bytes >= kHuge) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % kHuge, 0u);
    }
    data[size_bytes - 1] = 'x';
    const auto place = arena.Locate(data, size_bytes);
    ASSERT_TRUE(place.has_value());
    EXPECT_EQ(ViewOf(arena, place->segment_id)->bytes()[size_bytes - 1], 'x');
    arena.Free(data, size_bytes);
  }
}

TEST(ShmArenaTest, BlocksOfAnySizeAreReadWhereTheyAreLocatedAndNeverOverlap) {
  ShmArena arena("test");
  std::mt19937 random(7);
  struct Block {
    char* data;
    size_t size_bytes;
    char fill;
  };
  std::vector<Block> blocks;
  for (int round = 0; round < 3000; ++round) {
    if (blocks.size() < 40 || random() % 2 == 0) {
      const size_t most = random() % 50 == 0  ? ShmArena::kOwnSegmentBytes * 2
                          : random() % 5 == 0 ? size_t{2} << 20
                                              : size_t{8} << 10;
      const size_t size_bytes = (random() % most / 64 + 1) * 64;
      const char fill = static_cast<char>(random());
      char* const data = arena.Allocate(size_bytes);
      ASSERT_NE(data, nullptr);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(data) % Buffer::kAlignment, 0u);
      // Both ends tell whether another block overlaps.
      data[0] = data[size_bytes - 1] = fill;
      blocks.push_back({data, size_bytes, fill});
    } else {
      const size_t i = random() % blocks.size();
      const Block block = blocks[i];
      ASSERT_EQ(block.data[0], block.fill);
      ASSERT_EQ(block.data[block.size_bytes - 1], block.fill);
      arena.Free(block.data, block.size_bytes);
      blocks.erase(blocks.begin() + static_cast<int64_t>(i));
    }
    ASSERT_LT(blocks.size(), 400u);
    if (blocks.size() > 60) {
      arena.Free(blocks.back().data, blocks.back().size_bytes);
      blocks.pop_back();
    }
  }
  std::map<uint64_t, std::unique_ptr<ShmView>> views;
  for (const Block& block : blocks) {
    const auto place = arena.Locate(block.data, block.size_bytes);
    ASSERT_TRUE(place.has_value());
    auto& view = views[place->segment_id];
    if (view == nullptr) view = ViewOf(arena, place->segment_id);
    const char* const seen = view->bytes().data() + place->offset_bytes;
    EXPECT_EQ(seen[0], block.fill);
    EXPECT_EQ(seen[block.size_bytes - 1], block.fill);
    arena.Free(block.data, block.size_bytes);
  }
}

TEST(ShmArenaTest, WhatIsNotOfAnArenaIsNotLocatedThere) {
  ShmArena arena("test");
  char* const data = arena.Allocate(4096);
  EXPECT_TRUE(arena.Locate(data + 10, 100).has_value());
  EXPECT_FALSE(arena.Locate(data, ShmArena::kSharedSegmentBytes + 1).has_value());
  std::vector<char> other(10);
  EXPECT_FALSE(arena.Locate(other.data(), other.size()).has_value());
  arena.Free(data, 4096);
}

TEST(ShmArenaTest, LargeBlocksGoBackToTheHostAndSmallOnesKeepOneSegment) {
  ShmArena arena("test");
  std::vector<uint64_t> freed;
  arena.OnFreed([&](uint64_t id) { freed.push_back(id); });
  char* const large = arena.Allocate(ShmArena::kOwnSegmentBytes);
  const uint64_t large_id = arena.Locate(large, 1)->segment_id;
  arena.Free(large, ShmArena::kOwnSegmentBytes);
  EXPECT_EQ(freed, std::vector<uint64_t>{large_id});
  EXPECT_FALSE(arena.WithSegment(large_id, [](int, int64_t) {}));

  constexpr size_t kBlock = ShmArena::kOwnSegmentBytes - 64;
  std::vector<char*> blocks;
  for (int i = 0; i < 40; ++i) blocks.push_back(arena.Allocate(kBlock));
  for (char* const block : blocks) arena.Free(block, kBlock);
  // Three segments of sixteen blocks: two went back.
  EXPECT_EQ(freed.size(), 3u);
  char* const again = arena.Allocate(64);
  EXPECT_TRUE(arena.Locate(again, 64).has_value());
  arena.Free(again, 64);
  EXPECT_EQ(freed.size(), 3u);
}

TEST(ShmArenaTest, WithoutDescriptorsToSpareBlocksAreThisProcessesAlone) {
  rlimit old = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
  const rlimit few = {.rlim_cur = 8, .rlim_max = old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  ShmArena arena("test");  // takes half of them at most
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
  const std::vector<size_t> sizes = {ShmArena::kOwnSegmentBytes, ShmArena::kOwnSegmentBytes,
                                     ShmArena::kOwnSegmentBytes, ShmArena::kOwnSegmentBytes,
                                     ShmArena::kOwnSegmentBytes, 64};
  std::vector<char*> blocks;
  for (const size_t size_bytes : sizes) {
    blocks.push_back(arena.Allocate(size_bytes));
    ASSERT_NE(blocks.back(), nullptr);
    blocks.back()[0] = blocks.back()[size_bytes - 1] = 'x';
    EXPECT_EQ(arena.Locate(blocks.back(), 1).has_value(), blocks.size() <= 4);
  }
  for (size_t i = 0; i < sizes.size(); ++i) arena.Free(blocks[i], sizes[i]);
  char* const again = arena.Allocate(ShmArena::kOwnSegmentBytes);
  EXPECT_TRUE(arena.Locate(again, 1).has_value());
  arena.Free(again, ShmArena::kOwnSegmentBytes);
}

TEST(ShmArenaTest, APoolHandsOutItsBlocksAndCountsThemAgainstTheBudget) {
  auto arena = std::make_shared<ShmArena>("test");
  MemoryBudget budget(1 << 20);
  const auto pool = BufferPool::Create(&budget, 1 << 20, arena);
  {
    auto buffer = pool->Allocate(100'000, "a test");
    ASSERT_TRUE(buffer.ok());
    EXPECT_TRUE(arena->Locate(buffer->data(), buffer->size()).has_value());
    EXPECT_GE(budget.used_bytes(), 100'000);
    EXPECT_FALSE(pool->Allocate(2 << 20, "a test").ok());
  }
  auto small = pool->Allocate(3, "a test");
  ASSERT_TRUE(small.ok());
  EXPECT_TRUE(arena->Locate(small->data(), small->size()).has_value());
}

TEST(ShmArenaTest, TakesSealedMemoryOfAnotherProcessAsASegmentThatPeersRead) {
  ShmArena arena("test");
  const std::string bytes(ShmArena::kOwnSegmentBytes + 100, 'x');  // no multiple of a page
  auto writer = SealedMemoryWriter::Create(static_cast<int64_t>(bytes.size()));
  ASSERT_TRUE(writer.ok() && writer->Append(bytes).ok());
  auto sealed = std::move(*writer).Seal();
  ASSERT_TRUE(sealed.ok());
  char* const data = arena.Adopt(*sealed, bytes.size());
  ASSERT_NE(data, nullptr);
  EXPECT_FALSE(sealed->valid());
  EXPECT_EQ(std::memcmp(data, bytes.data(), bytes.size()), 0);
  const auto place = arena.Locate(data, bytes.size());
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(ViewOf(arena, place->segment_id)->bytes()[bytes.size() - 1], 'x');
  uint64_t freed = 0;
  arena.OnFreed([&](uint64_t segment_id) { freed = segment_id; });
  arena.Free(data, bytes.size() + 4096 - bytes.size() % 4096);
  EXPECT_EQ(freed, place->segment_id);
  EXPECT_FALSE(arena.Locate(data, bytes.size()).has_value());
}

TEST(ShmArenaTest, LeavesMemoryThatItCannotTakeToItsCaller) {
  ShmArena arena("test");
  const std::string bytes(4096, 'x');  // of the size of blocks that share a segment
  auto writer = SealedMemoryWriter::Create(4096);
  ASSERT_TRUE(writer.ok() && writer->Append(bytes).ok());
  auto sealed = std::move(*writer).Seal();
  ASSERT_TRUE(sealed.ok());
  EXPECT_EQ(arena.Adopt(*sealed, bytes.size()), nullptr);
  EXPECT_TRUE(sealed->valid());
}

TEST(ShmArenaTest, MissingPagesOfSealedMemoryAreFaultedInAtOnce) {
  ShmArena arena("test");
  constexpr size_t kSize = ShmArena::kOwnSegmentBytes;
  FileDescriptor memory(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(memory.get(), off_t{kSize}), 0);
  ASSERT_EQ(fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), 0);
  const FileDescriptor same(dup(memory.get()));
  struct stat facts = {};
  ASSERT_EQ(fstat(same.get(), &facts), 0);
  ASSERT_EQ(facts.st_blocks, 0);
  char* const data = arena.Adopt(memory, kSize);
  ASSERT_NE(data, nullptr);
  ASSERT_EQ(fstat(same.get(), &facts), 0);
  EXPECT_EQ(facts.st_blocks * 512, off_t{kSize});
  arena.Free(data, kSize);
}

class UnfilledBlocksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (HasHugeSharedPages()) GTEST_SKIP() << "this host gives shared memory huge pages";
  }

  static constexpr int64_t kSize = int64_t{3} * ShmArena::kOwnSegmentBytes + 100;  // within a page

  // Writes all of the buffer, or its first bytes, in pieces of several parts.
  static absl::Status Fill(Buffer& buffer, const std::string& bytes) {
    constexpr size_t kPart = 50'000;
    for (size_t begin = 0; begin < bytes.size(); begin += 2 * kPart) {
      const absl::Span<const char> piece = absl::MakeConstSpan(bytes).subspan(begin, 2 * kPart);
      const std::vector<absl::Span<const char>> parts = {
          piece.subspan(0, kPart), piece.subspan(std::min(kPart, piece.size()))};
      absl::Status written = buffer.Write(begin, parts);
      if (!written.ok()) return written;
    }
    return absl::OkStatus();
  }
  static std::string Pattern(int64_t size) {
    std::string bytes(static_cast<size_t>(size), '\0');
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 + i / 251);
    return bytes;
  }

  std::shared_ptr<ShmArena> arena_ = std::make_shared<ShmArena>("test");
  MemoryBudget budget_{int64_t{8} << 20};
  std::shared_ptr<BufferPool> pool_ = BufferPool::Create(&budget_, int64_t{4} << 20, arena_);
};

TEST_F(UnfilledBlocksTest, PeersReadThemOnceTheyAreFilled) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(Buffer buffer, pool_->AllocateUnfilled(kSize, "a test"));
  EXPECT_GE(budget_.used_bytes(), kSize) << "all of it counts at once";
  const std::string bytes = Pattern(kSize);
  EXPECT_THAT(Fill(buffer, bytes.substr(0, 300'000)), IsOk());
  EXPECT_TRUE(buffer.is_unfilled());
  EXPECT_FALSE(arena_->Locate(buffer.data(), 100).has_value()) << "it is not sealed yet";
  const absl::Span<const char> rest = absl::MakeConstSpan(bytes).subspan(300'000);
  EXPECT_THAT(buffer.Write(300'000, absl::MakeConstSpan(&rest, 1)), IsOk());
  EXPECT_FALSE(buffer.is_unfilled());
  EXPECT_TRUE(buffer.bytes() == absl::MakeConstSpan(bytes));
  const auto place = arena_->Locate(buffer.data(), buffer.size());
  ASSERT_TRUE(place.has_value());
  const auto view = ViewOf(*arena_, place->segment_id);
  EXPECT_TRUE(view->bytes().subspan(0, bytes.size()) == absl::MakeConstSpan(bytes));
  buffer.data()[0] = 'y';  // it is like other memory now
  const absl::Span<const char> one("z", 1);
  EXPECT_THAT(buffer.Write(1, absl::MakeConstSpan(&one, 1)), IsOk());
  EXPECT_EQ(view->bytes()[0], 'y');
  EXPECT_EQ(view->bytes()[1], 'z');
}

TEST_F(UnfilledBlocksTest, AFilledOneIsUsedAgainAndAnUnfilledOneGoesBackToTheHost) {
  const char* first = nullptr;
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(Buffer buffer, pool_->AllocateUnfilled(kSize, "a test"));
    ASSERT_THAT(Fill(buffer, Pattern(kSize)), IsOk());
    first = buffer.data();
  }
  EXPECT_GE(pool_->idle_bytes(), kSize);
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(Buffer again, pool_->AllocateUnfilled(kSize, "a test"));
    EXPECT_EQ(again.data(), first);
    EXPECT_FALSE(again.is_unfilled()) << "it has all its pages";
    const std::string other(kSize, 'o');
    EXPECT_THAT(Fill(again, other), IsOk());
    EXPECT_TRUE(again.bytes() == absl::MakeConstSpan(other));
  }
  pool_->Trim();
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(Buffer buffer, pool_->AllocateUnfilled(kSize, "a test"));
    ASSERT_THAT(Fill(buffer, Pattern(kSize / 2)), IsOk());
    Buffer moved = std::move(buffer);
    EXPECT_TRUE(moved.is_unfilled());
    EXPECT_FALSE(buffer.is_unfilled());  // NOLINT(bugprone-use-after-move): it is empty
  }
  EXPECT_EQ(pool_->idle_bytes(), 0);
  EXPECT_EQ(budget_.used_bytes(), 0);
}

TEST_F(UnfilledBlocksTest, AHostWithoutMemoryFailsTheWrite) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(Buffer buffer, pool_->AllocateUnfilled(kSize, "a test"));
  ASSERT_THAT(ArmFailpoints("shm.write=enospc:2"), IsOk());
  const absl::Status written = Fill(buffer, Pattern(kSize));
  EXPECT_THAT(written, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_THAT(std::string(written.message()),
              AllOf(HasSubstr("bytes 100000 to 200000 of 786532"), HasSubstr("No space left"),
                    HasSubstr("free memory on the host")));
  EXPECT_THAT(Fill(buffer, Pattern(kSize)), IsOk()) << "the host has memory again";
}

TEST_F(UnfilledBlocksTest, OneThatIsFaultedInIsLikeOthersAndKeepsWhatWasWritten) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(Buffer buffer, pool_->AllocateUnfilled(kSize, "a test"));
  const std::string half = Pattern(kSize / 2);
  ASSERT_THAT(Fill(buffer, half), IsOk());
  ASSERT_THAT(buffer.FaultIn(), IsOk());
  EXPECT_FALSE(buffer.is_unfilled());
  EXPECT_TRUE(buffer.bytes().subspan(0, half.size()) == absl::MakeConstSpan(half));
  EXPECT_EQ(buffer.data()[kSize - 1], '\0');
  EXPECT_TRUE(arena_->Locate(buffer.data(), buffer.size()).has_value());
  const absl::Span<const char> one("z", 1);
  EXPECT_THAT(buffer.Write(kSize - 1, absl::MakeConstSpan(&one, 1)), IsOk());
  EXPECT_EQ(buffer.data()[kSize - 1], 'z');
}

TEST_F(UnfilledBlocksTest, OneThatCannotBeSealedIsShownToNoPeer) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(Buffer buffer, pool_->AllocateUnfilled(kSize, "a test"));
  ASSERT_THAT(ArmFailpoints("shm.seal=eio"), IsOk());
  const std::string bytes = Pattern(kSize);
  ASSERT_THAT(Fill(buffer, bytes), IsOk());
  EXPECT_TRUE(buffer.bytes() == absl::MakeConstSpan(bytes));
  EXPECT_FALSE(arena_->Locate(buffer.data(), buffer.size()).has_value());
}

TEST_F(UnfilledBlocksTest, SmallOnesAndThoseWithoutADescriptorAreFaultedIn) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Buffer small, pool_->AllocateUnfilled(4'096, "a test"));
  EXPECT_FALSE(small.is_unfilled());
  ASSERT_THAT(ArmFailpoints("shm.create=emfile"), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(Buffer large, pool_->AllocateUnfilled(kSize, "a test"));
  EXPECT_FALSE(large.is_unfilled());
  const std::string bytes = Pattern(kSize);
  EXPECT_THAT(Fill(large, bytes), IsOk());
  EXPECT_TRUE(large.bytes() == absl::MakeConstSpan(bytes));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Buffer none, pool_->AllocateUnfilled(0, "a test"));
  EXPECT_FALSE(none.is_unfilled());
}

}  // namespace
}  // namespace shardmesh::worker
