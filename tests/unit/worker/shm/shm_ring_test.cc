// Notes through shared memory: order, bounds, and a writer that says what is not so.
#include "worker/shm/shm_ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>

#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"
#include "worker/shm/shm_segment.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;

class ShmRingTest : public ::testing::Test {
 protected:
  std::string Read() {
    RingReader::Note note;
    const absl::StatusOr<bool> read = reader_.TryRead(&note);
    if (!read.ok()) return std::string(read.status().message());
    if (!*read) return "nothing";
    reader_.Release(note.number);
    return std::string(note.text());
  }

  // Value-initialized: zeros, as a new segment has.
  const std::unique_ptr<RingSlots> slots_ = std::make_unique<RingSlots>();
  const std::unique_ptr<RingReads> reads_ = std::make_unique<RingReads>();
  RingWriter writer_{slots_.get(), reads_.get()};
  RingReader reader_{slots_.get(), reads_.get()};
};

TEST_F(ShmRingTest, NotesArriveInOrder) {
  EXPECT_EQ(Read(), "nothing");
  EXPECT_EQ(writer_.TryWrite("a"), 0u);
  EXPECT_EQ(writer_.TryWrite(""), 1u);
  EXPECT_EQ(writer_.TryWrite(std::string(kMaxNoteBytes, 'c')), 2u);
  EXPECT_EQ(writer_.TryWrite(std::string(kMaxNoteBytes + 1, 'd')), std::nullopt);
  EXPECT_EQ(Read(), "a");
  EXPECT_EQ(Read(), "");
  EXPECT_EQ(Read(), std::string(kMaxNoteBytes, 'c'));
  EXPECT_EQ(Read(), "nothing");
}

TEST_F(ShmRingTest, RoomIsWhereNotesWereLetGoOfWithoutAGap) {
  RingReader::Note note;
  for (size_t i = 0; i < kRingSlots; ++i) {
    ASSERT_EQ(writer_.TryWrite(StrCat(i)), i);
    ASSERT_TRUE(*reader_.TryRead(&note));
    if (i != 2) reader_.Release(i);
  }
  EXPECT_TRUE(writer_.HasRoom());
  EXPECT_TRUE(writer_.TryWrite("first").has_value());
  EXPECT_TRUE(writer_.TryWrite("second").has_value());
  EXPECT_FALSE(writer_.HasRoom());
  EXPECT_EQ(writer_.TryWrite("third"), std::nullopt);
  reader_.Release(2);
  EXPECT_EQ(writer_.TryWrite("third"), kRingSlots + 2);
  for (size_t i = 3; i < kRingSlots; ++i) ASSERT_TRUE(writer_.TryWrite("more").has_value()) << i;
  EXPECT_FALSE(writer_.HasRoom()) << "none of the second round was let go of";
}

TEST_F(ShmRingTest, ASlotIsFreeOnlyOnceItsNoteWasLetGoOf) {
  for (size_t i = 0; i < kRingSlots; ++i) ASSERT_EQ(writer_.TryWrite(StrCat(i)), i);
  EXPECT_EQ(writer_.TryWrite("full"), std::nullopt);
  RingReader::Note first;
  RingReader::Note second;
  ASSERT_TRUE(*reader_.TryRead(&first));
  ASSERT_TRUE(*reader_.TryRead(&second));
  reader_.Release(second.number);
  EXPECT_TRUE(writer_.IsReleased(1));
  EXPECT_FALSE(writer_.IsReleased(0));
  EXPECT_EQ(writer_.TryWrite("full"), std::nullopt) << "the first note's slot comes first";
  reader_.Release(first.number);
  EXPECT_EQ(writer_.TryWrite("next"), kRingSlots);
  EXPECT_EQ(writer_.TryWrite("after"), kRingSlots + 1);
  EXPECT_EQ(writer_.TryWrite("full"), std::nullopt);
}

TEST_F(ShmRingTest, ALongerNoteThanNotesAreIsRefused) {
  ASSERT_TRUE(writer_.TryWrite("a").has_value());
  slots_->slots[0].size_bytes = kMaxNoteBytes + 1;
  RingReader::Note note;
  EXPECT_THAT(reader_.TryRead(&note).status(), StatusIs(absl::StatusCode::kDataLoss));
}

TEST_F(ShmRingTest, ThreadsExchangeManyNotes) {
  constexpr uint64_t kNotes = 100'000;
  std::thread writing([&] {
    for (uint64_t i = 0; i < kNotes;) {
      writer_.TryWrite(StrCat("note ", i)).has_value() ? ++i : (std::this_thread::yield(), i);
    }
  });
  for (uint64_t i = 0; i < kNotes;) {
    const std::string text = Read();
    if (text == "nothing") {
      std::this_thread::yield();
      continue;
    }
    ASSERT_EQ(text, StrCat("note ", i++));
  }
  writing.join();
}

// The parts of both processes, each at the start of its own segment.
TEST(ShmRingProcessTest, ProcessesExchangeNotesThroughSegmentsThatTheOtherOnlyReads) {
  constexpr int64_t kBytes = 1 << 17;
  constexpr int kNotes = 10'000;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto slots, ShmSegment::Create("slots", kBytes, true));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto reads, ShmSegment::Create("reads", kBytes, true));
  const pid_t child = fork();
  if (child == 0) {
    // Writes, and sees the reader's part through a mapping that it can only read.
    const auto view = ShmView::Open(FileDescriptor(dup(reads->fd())), kBytes);
    if (!view.ok()) _exit(1);
    RingWriter writer(reinterpret_cast<RingSlots*>(slots->bytes().data()),
                      reinterpret_cast<const RingReads*>((*view)->bytes().data()));
    for (int i = 0; i < kNotes;) {
      writer.TryWrite(StrCat(i)).has_value() ? void(++i) : std::this_thread::yield();
    }
    _exit(0);
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto view,
                                 ShmView::Open(FileDescriptor(dup(slots->fd())), kBytes));
  RingReader reader(reinterpret_cast<const RingSlots*>(view->bytes().data()),
                    reinterpret_cast<RingReads*>(reads->bytes().data()));
  RingReader::Note note;
  for (int i = 0; i < kNotes;) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const bool read, reader.TryRead(&note));
    if (!read) {
      std::this_thread::yield();
      continue;
    }
    ASSERT_EQ(note.text(), StrCat(i++));
    reader.Release(note.number);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace shardmesh::worker
