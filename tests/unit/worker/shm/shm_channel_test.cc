// ShmChannel: two ends in one process, and what an end that does not keep to the rules can do.
#include "worker/shm/shm_channel.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/time/clock.h"
#include "tests/unit/worker/shm/channel_ends.h"

namespace shardmesh::worker {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kHash = 17;

class ShmChannelTest : public testing::Test {
 protected:
  ShmChannelTest() { ConnectEnds(ends_); }

  bool Send(const OwnedBytes& message, int64_t op = 0, std::string_view signature = "") {
    return one_.channel->TrySend(*Tag::Create(3, op, 1), 9, signature, kHash, message);
  }
  // The next message at the other end; what is wrong with it in square brackets.
  std::string Next(uint64_t expected_hash = 0) {
    two_.Hear();
    const auto came = two_.channel->TryReceive(expected_hash, &arrived_);
    if (!came.ok()) return "[" + came.status().ToString() + "]";
    return *came ? std::string(arrived_.message.bytes.data(), arrived_.message.bytes.size())
                 : "[nothing]";
  }
  ShmControl& ControlOf(ChannelEnd& end) {
    return *reinterpret_cast<ShmControl*>(end.control->bytes().data());
  }

  ChannelEnd ends_[2];
  ChannelEnd& one_ = ends_[0];
  ChannelEnd& two_ = ends_[1];
  ShmChannel::Arrived arrived_;
};

TEST_F(ShmChannelTest, MessagesArriveInOrderWithTheirTags) {
  EXPECT_EQ(Next(), "[nothing]");
  const std::string large(100'000, 'x');
  EXPECT_TRUE(Send(one_.Own("small"), 4));
  EXPECT_TRUE(Send(one_.Own(large), 5));
  EXPECT_EQ(Next(), "small");
  EXPECT_EQ(arrived_.step, 3);
  EXPECT_EQ(arrived_.op, 4);
  EXPECT_EQ(arrived_.round, 1);
  EXPECT_EQ(arrived_.epoch, 9);
  EXPECT_EQ(arrived_.signature_hash, 0u);
  EXPECT_EQ(Next(), large);
  EXPECT_EQ(arrived_.op, 5);
  EXPECT_EQ(Next(), "[nothing]");
}

TEST_F(ShmChannelTest, TheSignatureComesAlongWhereItIsNotTheExpectedOne) {
  EXPECT_TRUE(Send(one_.Own("a"), 0, "all-reduce of F32[8]"));
  EXPECT_TRUE(Send(one_.Own("b"), 1, "all-reduce of F32[8]"));
  EXPECT_EQ(Next(kHash), "a");
  EXPECT_EQ(arrived_.signature_hash, kHash);
  EXPECT_EQ(arrived_.signature, "");
  EXPECT_EQ(Next(kHash + 1), "b");
  EXPECT_EQ(arrived_.signature, "all-reduce of F32[8]");
}

TEST_F(ShmChannelTest, MemoryOfALaterMessageIsReleasedThoughAnEarlierOneIsNotRead) {
  OwnedBytes messages[3];
  std::weak_ptr<const void> owners[3];
  for (int i = 0; i < 3; ++i) {
    messages[i] = one_.Own(std::string(5000, 'm'));
    owners[i] = messages[i].owner;
    ASSERT_TRUE(Send(std::exchange(messages[i], {}), i));
  }
  EXPECT_EQ(Next().size(), 5000u);
  const ShmChannel::Arrived first = arrived_;
  EXPECT_EQ(Next().size(), 5000u);
  arrived_ = {};
  one_.channel->Reap();
  EXPECT_FALSE(owners[0].expired());
  EXPECT_TRUE(owners[1].expired());
  EXPECT_FALSE(owners[2].expired());
}

TEST_F(ShmChannelTest, MemoryIsKeptUntilTheOtherEndHasReadIt) {
  OwnedBytes message = one_.Own(std::string(5000, 'm'));
  const std::weak_ptr<const void> owner = message.owner;
  ASSERT_TRUE(Send(message));
  message = {};
  EXPECT_FALSE(owner.expired());
  EXPECT_EQ(Next().size(), 5000u);
  one_.channel->Reap();
  EXPECT_FALSE(owner.expired());
  arrived_ = {};
  one_.channel->Reap();
  EXPECT_TRUE(owner.expired());
}

TEST_F(ShmChannelTest, AClosedChannelLetsGoOfWhatWasNotReadAndTakesNothing) {
  OwnedBytes message = one_.Own(std::string(5000, 'm'));
  const std::weak_ptr<const void> owner = message.owner;
  ASSERT_TRUE(Send(message));
  message = {};
  one_.channel->Close();
  EXPECT_TRUE(owner.expired());
  EXPECT_FALSE(Send(one_.Own("more")));
  // Who was reading must not believe what it read.
  EXPECT_TRUE(two_.channel->peer_closed());
  EXPECT_FALSE(one_.channel->peer_closed());
  two_.channel->Close();
  EXPECT_EQ(Next(), "[nothing]");
}

TEST_F(ShmChannelTest, WhatFindsNoRoomOrLiesElsewhereIsNotTaken) {
  const std::string elsewhere(5000, 'e');
  EXPECT_FALSE(Send({elsewhere, nullptr}));
  const std::string tiny(ShmChannel::kInlineBytes, 't');
  EXPECT_TRUE(Send({tiny, nullptr}));  // copied
  for (size_t i = 1; i < kRingSlots; ++i) ASSERT_TRUE(Send({tiny, nullptr})) << i;
  EXPECT_FALSE(Send({tiny, nullptr}));
  EXPECT_EQ(Next(), tiny);
  EXPECT_TRUE(Send({tiny, nullptr}));
}

TEST_F(ShmChannelTest, AFreedSegmentIsForgottenAtTheOtherEnd) {
  one_.arena->OnFreed([&](uint64_t id) { one_.channel->SegmentFreed(id); });
  const int64_t size_bytes = static_cast<int64_t>(ShmArena::kOwnSegmentBytes);
  std::vector<uint64_t> ids;
  for (int round = 0; round < 3; ++round) {
    OwnedBytes message = one_.Own(std::string(static_cast<size_t>(size_bytes), 'f'));
    ids.push_back(one_.arena->Locate(message.bytes.data(), 1)->segment_id);
    ASSERT_TRUE(Send(message));
    message = {};
    EXPECT_EQ(static_cast<int64_t>(Next().size()), size_bytes);
    arrived_ = {};
    one_.channel->Reap();
    EXPECT_FALSE(one_.arena->WithSegment(ids.back(), [](int, int64_t) {}));
    two_.Hear();
  }
  EXPECT_EQ(std::set<uint64_t>(ids.begin(), ids.end()).size(), 3u);
}

TEST_F(ShmChannelTest, WhatCannotBeMappedIsCopiedAndTheChannelStays) {
  const int64_t before = ShmView::MaxMapped();
  const std::string text(300'000, 'u');
  OwnedBytes message = one_.Own(text);
  ShmView::SetMaxMapped(0);
  ASSERT_TRUE(Send(message));
  EXPECT_EQ(Next(), text);
  ShmView::SetMaxMapped(before);
  // It was released with the copy, and what comes later is read in place.
  message = {};
  one_.channel->Reap();
  OwnedBytes other = one_.Own(std::string(5000, 'v'));
  ASSERT_TRUE(Send(other));
  EXPECT_EQ(Next(), std::string(5000, 'v'));
}

TEST_F(ShmChannelTest, WhatIsCopiedCountsAgainstTheMemoryLimit) {
  const int64_t before = ShmView::MaxMapped();
  const OwnedBytes message = one_.Own(std::string(300'000, 'u'));
  ShmView::SetMaxMapped(0);
  ASSERT_TRUE(Send(message));
  ASSERT_TRUE(Send(message));
  EXPECT_EQ(Next().size(), 300'000u);
  EXPECT_EQ(two_.budget.used_bytes(), 300'000);
  arrived_ = {};
  EXPECT_EQ(two_.budget.used_bytes(), 0);
  const auto taken = two_.budget.Reserve(two_.budget.limit_bytes() - 299'999, "a test");
  ASSERT_TRUE(taken.ok());
  const auto refused = two_.channel->TryReceive(0, &arrived_);
  ShmView::SetMaxMapped(before);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()), testing::HasSubstr("cannot be mapped"));
}

TEST_F(ShmChannelTest, ANoteWhoseSegmentIsStillToComeHoldsUpNobody) {
  const OwnedBytes message = one_.Own(std::string(5000, 'l'));
  ASSERT_TRUE(Send(message));
  ShmChannel::Arrived arrived;
  const absl::Time begin = absl::Now();
  const auto none = two_.channel->TryReceive(0, &arrived);  // nobody has heard the socket
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_FALSE(*none);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(1));
  two_.Hear();
  const auto came = two_.channel->TryReceive(0, &arrived);
  ASSERT_TRUE(came.ok()) << came.status();
  ASSERT_TRUE(*came);
  EXPECT_EQ(arrived.message.bytes.size(), 5000u);
}

TEST_F(ShmChannelTest, SleepersWakeForAChangeToo) {
  std::atomic<uint32_t> changes = 0;
  std::vector<std::thread> sleepers;
  const absl::Time begin = absl::Now();
  for (int i = 0; i < 3; ++i) {
    sleepers.emplace_back([&] {
      while (changes == 0) two_.channel->Sleep(changes, 0, absl::Seconds(60));
    });
  }
  absl::SleepFor(absl::Milliseconds(20));  // most sleep by then; it holds for those that do not too
  changes = 1;
  syscall(SYS_futex, &changes, FUTEX_WAKE_PRIVATE, 99, nullptr, nullptr, 0);
  for (std::thread& sleeper : sleepers) sleeper.join();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(50));
}

TEST_F(ShmChannelTest, WrongNotesAreRefusedWhateverTheySay) {
  struct Header {  // as the sender writes it
    int64_t step = 1, epoch = 1;
    uint64_t hash = 0;
    int32_t op = 0, round = 0;
    uint32_t signature_bytes = 0, is_inline = 0;
    uint64_t segment_id = 0, offset_bytes = 0, size_bytes = 0;  // of one that is not inline
  };
  constexpr size_t kWhole = sizeof(Header);
  OwnedBytes known = one_.Own(std::string(5000, 'k'));
  ASSERT_TRUE(Send(known));
  EXPECT_EQ(Next().size(), 5000u);
  const uint64_t id = one_.arena->Locate(known.bytes.data(), 1)->segment_id;
  const std::tuple<Header, size_t, const char*> cases[] = {
      {{}, 7, "is too short"},
      {{.is_inline = 1}, kWhole - 24, "has a message of 0 bytes in it"},
      {{.is_inline = 1}, kMaxNoteBytes, "has a message of 196 bytes in it"},
      {{.segment_id = id, .size_bytes = 2}, kWhole - 8, "says where in 16 bytes"},
      {{.segment_id = id, .size_bytes = 0}, kWhole, "points to 0 bytes"},
      {{.segment_id = id, .offset_bytes = 1, .size_bytes = ShmArena::kSharedSegmentBytes},
       kWhole,
       "points to"},
      {{.segment_id = id, .offset_bytes = ~uint64_t{0}, .size_bytes = 2},
       kWhole,
       "points to 2 bytes"},
      {{.hash = 5, .signature_bytes = 513}, kWhole, "signature of 513 bytes"},
  };
  uint64_t number = 1;
  for (const auto& [header, size_bytes, expected] : cases) {
    RingSlots::Slot& slot = ControlOf(one_).slots.slots[number % kRingSlots];
    slot.size_bytes = static_cast<uint32_t>(size_bytes);
    std::memcpy(slot.note.data(), &header, sizeof(header));
    slot.written.store(++number);
    EXPECT_THAT(Next(), HasSubstr(expected));
  }
  ControlOf(one_).slots.slots[number % kRingSlots].size_bytes = 9999;
  ControlOf(one_).slots.slots[number % kRingSlots].written.store(number + 1);
  EXPECT_THAT(Next(), HasSubstr("9999 bytes"));
}

TEST_F(ShmChannelTest, ASleeperIsWokenByTheNextMessage) {
  constexpr int kRounds = 200;
  const std::atomic<uint32_t> changes = 0;
  std::thread receiver([&] {
    for (int i = 0; i < kRounds; ++i) {
      const absl::Time deadline = absl::Now() + absl::Seconds(60);
      ShmChannel::Arrived arrived;
      while (absl::Now() < deadline) {
        const auto came = two_.channel->TryReceive(0, &arrived);
        ASSERT_TRUE(came.ok());
        if (*came) break;
        two_.channel->Sleep(changes, 0, absl::Seconds(60));
      }
      ASSERT_EQ(arrived.op, i);
      ASSERT_TRUE(two_.channel->TrySend(*Tag::Create(1, i, 0), 1, "", 0, {"back", nullptr}));
    }
  });
  const absl::Time begin = absl::Now();
  for (int i = 0; i < kRounds; ++i) {
    ASSERT_TRUE(Send({"there", nullptr}, i));
    ShmChannel::Arrived arrived;
    while (true) {
      const auto came = one_.channel->TryReceive(0, &arrived);
      ASSERT_TRUE(came.ok());
      if (*came) break;
      one_.channel->Sleep(changes, 0, absl::Seconds(60));
    }
  }
  receiver.join();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(50));  // nobody slept its time out
}

}  // namespace
}  // namespace shardmesh::worker
