// SharedReceive over a channel of shared memory and a mailbox: no stream, no server.
#include "worker/exchange/shared_receive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "tests/unit/worker/shm/channel_ends.h"

namespace shardmesh::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kStep = 7;
constexpr int64_t kEpoch = 9;
constexpr uint64_t kHash = 17;
constexpr DeviceId kPeer = 1;

class SharedReceiveTest : public ::testing::Test, public SharedReceive::Owner {
 protected:
  SharedReceiveTest() {
    ConnectEnds(ends_);
    EXPECT_TRUE(mailbox_.OpenStep(kStep, {"w-0", "w-1"}).ok());
  }

  void CountReceived(int64_t size_bytes) override { received_bytes_ += size_bytes; }
  absl::Status TakeOther(ShmChannel::Arrived arrived) override {
    others_.emplace_back(arrived.message.bytes.data(), arrived.message.bytes.size());
    return absl::OkStatus();
  }
  void Refuse(const absl::Status& why) override {
    refused_ = why;
    mailbox_.Abort(kStep, why);
  }
  bool has_exhausted_streams() const override { return has_exhausted_streams_; }
  void Demand(const Tag& tag, int64_t message_bytes) override {
    EXPECT_EQ(tag.step(), kStep);
    demanded_bytes_ = message_bytes;
    has_exhausted_streams_ = false;
  }

  static Tag TagOf(int64_t op, int64_t round) { return *Tag::Create(kStep, op, round); }
  void Send(const std::string& text, const Tag& tag, int64_t epoch = kEpoch,
            uint64_t signature_hash = 0) {
    EXPECT_TRUE(ends_[1].channel->TrySend(tag, epoch, signature_hash == 0 ? "" : "add",
                                          signature_hash, {text, nullptr}));
  }
  absl::Status Deliver(const std::string& text, const Tag& tag) {
    auto kept = std::make_shared<const std::string>(text);
    return mailbox_.Deliver(
        "w-1", tag, {.message_bytes = static_cast<int64_t>(text.size()), .content = {*kept, kept}});
  }
  // Receives a message of four bytes; the error's code otherwise.
  std::string Receive(const Tag& tag, absl::Duration limit = absl::Seconds(20),
                      int64_t ranks = 1 << 20) {
    SharedReceive receive(&mailbox_, ranks);
    const auto received = receive.Receive(
        *ends_[0].channel,
        {.peer = kPeer, .tag = tag, .epoch = kEpoch, .message_bytes = 4, .signature_hash = kHash},
        checked_changes_, *this, absl::Now() + limit);
    if (!received.ok()) return absl::StatusCodeToString(received.status().code());
    return std::string(received->bytes.data(), received->bytes.size());
  }

  // Looks for a message of four bytes: "none" if there is none, and the error's code otherwise.
  std::string TryReceive(const Tag& tag) {
    SharedReceive receive(&mailbox_, 1);
    const auto received = receive.TryReceive(
        *ends_[0].channel,
        {.peer = kPeer, .tag = tag, .epoch = kEpoch, .message_bytes = 4, .signature_hash = kHash},
        *this);
    if (!received.ok()) return absl::StatusCodeToString(received.status().code());
    if (!received->has_value()) return "none";
    return std::string((*received)->bytes.data(), (*received)->bytes.size());
  }

  ChannelEnd ends_[2];
  Mailbox mailbox_{Mailbox::Options()};
  std::atomic<uint64_t> checked_changes_ = ~uint64_t{0};
  int64_t received_bytes_ = 0;
  std::vector<std::string> others_;
  absl::Status refused_;
  std::atomic<bool> has_exhausted_streams_ = false;
  int64_t demanded_bytes_ = 0;
};

TEST_F(SharedReceiveTest, TakesTheMessageThatIsWaitedFor) {
  Send("four", TagOf(0, 1));
  EXPECT_EQ(Receive(TagOf(0, 1)), "four");
  EXPECT_EQ(received_bytes_, 4);
  EXPECT_THAT(others_, IsEmpty());
}

TEST_F(SharedReceiveTest, PassesOnWhatOthersWaitFor) {
  Send("late", TagOf(0, 2));
  Send("past", TagOf(0, 1), kEpoch - 1);
  Send("more than four", TagOf(0, 1));
  Send("kind", TagOf(0, 1), kEpoch, kHash + 1);
  Send("four", TagOf(0, 1), kEpoch, kHash);
  EXPECT_EQ(Receive(TagOf(0, 1)), "four");
  EXPECT_THAT(others_, ElementsAre("late", "past", "more than four", "kind"));
  EXPECT_EQ(received_bytes_, 4);
}

TEST_F(SharedReceiveTest, TakesWhatIsThereWithoutWaiting) {
  EXPECT_EQ(TryReceive(TagOf(0, 1)), "none");
  Send("late", TagOf(0, 2));
  EXPECT_EQ(TryReceive(TagOf(0, 1)), "none");
  EXPECT_THAT(others_, ElementsAre("late"));
  Send("four", TagOf(0, 1), kEpoch, kHash);
  EXPECT_EQ(TryReceive(TagOf(0, 1)), "four");
  EXPECT_EQ(received_bytes_, 4);
  EXPECT_EQ(TryReceive(TagOf(0, 1)), "none");
  ASSERT_TRUE(Deliver("five", TagOf(0, 3)).ok());
  EXPECT_EQ(TryReceive(TagOf(0, 3)), "five");
  mailbox_.Abort(kStep, absl::UnavailableError("the peer is gone"));
  EXPECT_EQ(TryReceive(TagOf(0, 1)), "UNAVAILABLE");
}

TEST_F(SharedReceiveTest, TakesAMessageThatCameOverTheStream) {
  ASSERT_TRUE(Deliver("four", TagOf(0, 1)).ok());
  EXPECT_EQ(Receive(TagOf(0, 1)), "four");
  EXPECT_EQ(received_bytes_, 0) << "counted when it came";
}

TEST_F(SharedReceiveTest, LooksIntoTheMailboxThoughTheStepWasJustChecked) {
  ASSERT_TRUE(Deliver("four", TagOf(0, 1)).ok());
  checked_changes_ = mailbox_.changes();
  EXPECT_EQ(Receive(TagOf(0, 1)), "four");
}

TEST_F(SharedReceiveTest, SleepsUntilTheSenderWritesSpinningOrNot) {
  for (const int64_t ranks : {1, 1 << 20}) {
    std::thread sender([&] {
      absl::SleepFor(absl::Milliseconds(20));
      Send("four", TagOf(0, ranks));
    });
    EXPECT_EQ(Receive(TagOf(0, ranks), absl::Seconds(20), ranks), "four");
    sender.join();
  }
}

TEST_F(SharedReceiveTest, AFailureOfTheStepWakesIt) {
  std::thread aborter([&] {
    absl::SleepFor(absl::Milliseconds(20));
    mailbox_.Abort(kStep, absl::UnavailableError("the peer is gone"));
  });
  EXPECT_EQ(Receive(TagOf(0, 1)), "UNAVAILABLE");
  aborter.join();
}

TEST_F(SharedReceiveTest, GivesUpAtTheDeadline) {
  EXPECT_EQ(Receive(TagOf(0, 1), absl::Milliseconds(5)), "DEADLINE_EXCEEDED");
}

TEST_F(SharedReceiveTest, DemandsWhatAStreamWithoutCreditHoldsBack) {
  has_exhausted_streams_ = true;
  EXPECT_EQ(Receive(TagOf(0, 1), absl::Milliseconds(20)), "DEADLINE_EXCEEDED");
  EXPECT_EQ(demanded_bytes_, 4);
}

TEST_F(SharedReceiveTest, AClosedChannelLeavesTheMailbox) {
  Send("four", TagOf(0, 1));
  ends_[0].channel->Close();  // this end: nothing is taken from it any more
  ASSERT_TRUE(Deliver("last", TagOf(0, 1)).ok());
  EXPECT_EQ(Receive(TagOf(0, 1)), "last");
  EXPECT_TRUE(refused_.ok());
}

}  // namespace
}  // namespace shardmesh::worker
