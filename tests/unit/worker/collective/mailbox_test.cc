// Mailbox: order, bounds, deadlines, and failures that name who was waited for.
#include "worker/collective/mailbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/synchronization/notification.h"
#include "status/fact_keys.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

absl::Time Soon() { return absl::Now() + absl::Seconds(20); }

Tag TagOf(int64_t step, int64_t op = 2, int64_t round = 0) { return *Tag::Create(step, op, round); }

// A piece that owns its bytes.
Mailbox::Piece PieceOf(const std::string& text, int64_t offset_bytes, int64_t message_bytes) {
  auto owner = std::make_shared<const std::string>(text);
  const absl::Span<const char> bytes(owner->data(), owner->size());
  return {offset_bytes, message_bytes, {bytes, owner}};
}
Mailbox::Piece Whole(const std::string& text) {
  return PieceOf(text, 0, static_cast<int64_t>(text.size()));
}

std::string Text(const absl::StatusOr<OwnedBytes>& piece) {
  return piece.ok() ? std::string(piece->bytes.data(), piece->bytes.size())
                    : std::string(piece.status().message());
}

const std::vector<std::string> kMembers = {"w-a", "w-b", "w-c"};

TEST(TagTest, RefusesWhatIsOutOfBounds) {
  EXPECT_THAT(Tag::Create(0, 0, 0), IsOk());
  EXPECT_THAT(Tag::Create(1, Tag::kMaxOp, Tag::kMaxRound), IsOk());
  EXPECT_THAT(Tag::Create(-1, 0, 0), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Tag::Create(0, Tag::kMaxOp + 1, 0), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Tag::Create(0, 0, Tag::kMaxRound + 1), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(MailboxTest, GivesPiecesInOrderAndKeepsTagsApart) {
  Mailbox mailbox({});
  ASSERT_THAT(mailbox.OpenStep(1, kMembers), IsOk());
  ASSERT_THAT(mailbox.Deliver("w-b", TagOf(1), PieceOf("ab", 0, 4)), IsOk());
  ASSERT_THAT(mailbox.Deliver("w-b", TagOf(1, 3), Whole("other")), IsOk());
  ASSERT_THAT(mailbox.Deliver("w-b", TagOf(1), PieceOf("cd", 2, 4)), IsOk());
  EXPECT_EQ(mailbox.held_bytes(), 9);
  EXPECT_EQ(Text(mailbox.Receive(1, TagOf(1), 4, Soon())), "ab");
  EXPECT_EQ(Text(mailbox.Receive(1, TagOf(1), 4, Soon())), "cd");
  EXPECT_EQ(Text(mailbox.Receive(1, TagOf(1, 3), 5, Soon())), "other");
  EXPECT_EQ(mailbox.held_bytes(), 0);
}

TEST(MailboxTest, WakesAReceiverThatWaits) {
  Mailbox mailbox({});
  ASSERT_THAT(mailbox.OpenStep(1, kMembers), IsOk());
  std::string received;
  std::thread receiver([&] { received = Text(mailbox.Receive(2, TagOf(1), 5, Soon())); });
  EXPECT_THAT(mailbox.Deliver("w-c", TagOf(1), Whole("hello")), IsOk());
  receiver.join();
  EXPECT_EQ(received, "hello");
}

TEST(MailboxTest, KeepsMessagesOfAStepThatIsNotYetOpen) {
  Mailbox mailbox({});
  ASSERT_THAT(mailbox.Deliver("w-a", TagOf(5), Whole("early")), IsOk());
  ASSERT_THAT(mailbox.Deliver("w-a", TagOf(4), Whole("never")), IsOk());
  ASSERT_THAT(mailbox.OpenStep(5, kMembers), IsOk());
  EXPECT_EQ(mailbox.held_bytes(), 5) << "step 4 cannot be opened any more";
  EXPECT_EQ(Text(mailbox.Receive(0, TagOf(5), 5, Soon())), "early");
}

TEST(MailboxTest, DropsMessagesOfStepsThatAreOver) {
  Mailbox mailbox({});
  ASSERT_THAT(mailbox.OpenStep(5, kMembers), IsOk());
  ASSERT_THAT(mailbox.Deliver("w-a", TagOf(5), Whole("x")), IsOk());
  mailbox.CloseStep(5);
  EXPECT_THAT(mailbox.Deliver("w-a", TagOf(5), Whole("late")), IsOk());
  EXPECT_THAT(mailbox.Deliver("w-a", TagOf(3), Whole("later")), IsOk());
  EXPECT_EQ(mailbox.held_bytes(), 0);
  EXPECT_THAT(mailbox.Receive(0, TagOf(5), 4, Soon()),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(MailboxTest, OpensStepsInOrderOnly) {
  Mailbox mailbox({});
  ASSERT_THAT(mailbox.OpenStep(5, kMembers), IsOk());
  EXPECT_THAT(mailbox.OpenStep(5, kMembers), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(mailbox.OpenStep(4, kMembers), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(mailbox.OpenStep(6, kMembers), IsOk());
}

TEST(MailboxTest, FailsTheStepWhereAPeerRunsAnotherCollectiveAndShowsBoth) {
  for (const bool peer_is_first : {true, false}) {
    SCOPED_TRACE(peer_is_first);
    Mailbox mailbox({});
    ASSERT_THAT(mailbox.OpenStep(1, kMembers), IsOk());
    Mailbox::Piece piece = Whole("data");
    piece.signature = "all-gather of F32[8]";
    if (!peer_is_first) {
      EXPECT_THAT(mailbox.Begin(1, 2, 0, "all-reduce of F32[8]"), IsOk());
    }
    ASSERT_THAT(mailbox.Deliver("w-b", TagOf(1), piece), IsOk()) << "its stream is not at fault";
    if (peer_is_first) {
      EXPECT_THAT(mailbox.FailureOf(1), IsOk());
      EXPECT_THAT(mailbox.Begin(1, 2, 0, "all-reduce of F32[8]"),
                  StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kCollectiveMismatch));
    }
    // Those who wait for others hear it too.
    const auto received = mailbox.Receive(2, TagOf(1), 4, Soon());
    EXPECT_THAT(received.status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kCollectiveMismatch));
    EXPECT_THAT(received, test::CarriesFacts(Reason::kCollectiveMismatch,
                                             {{fact::kRank, 1},
                                              {fact::kIdentity, "w-b"},
                                              {fact::kStep, 1},
                                              {fact::kOp, 2},
                                              {fact::kHave, "all-gather of F32[8]"},
                                              {fact::kNeed, "all-reduce of F32[8]"}}));
    EXPECT_THAT(std::string(received.status().message()),
                HasSubstr("ranks do not run the same collective as op 2 of step 1: rank 0 runs "
                          "all-reduce of F32[8], rank 1 (w-b) runs all-gather of F32[8]"));
    EXPECT_EQ(mailbox.held_bytes(), 0);
  }
}

TEST(MailboxTest, GoesOnWhereSignaturesAreTheSame) {
  Mailbox mailbox({});
  Mailbox::Piece piece = Whole("data");
  piece.signature = "barrier";
  ASSERT_THAT(mailbox.Deliver("w-b", TagOf(1), piece), IsOk());
  ASSERT_THAT(mailbox.OpenStep(1, kMembers), IsOk());
  ASSERT_THAT(mailbox.Begin(1, 2, 0, "barrier"), IsOk());
  ASSERT_THAT(mailbox.Deliver("w-c", TagOf(1), piece), IsOk());
  EXPECT_EQ(Text(mailbox.Receive(1, TagOf(1), 4, Soon())), "data");
  EXPECT_EQ(Text(mailbox.Receive(2, TagOf(1), 4, Soon())), "data");
  EXPECT_THAT(mailbox.Begin(1, 2, 0, "barrier"), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(mailbox.Begin(2, 2, 0, "barrier"), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(MailboxTest, NamesRankStepAndOpAtTheDeadline) {
  Mailbox mailbox({});
  ASSERT_THAT(mailbox.OpenStep(7, kMembers), IsOk());
  ASSERT_THAT(mailbox.Deliver("w-b", TagOf(7), PieceOf("abc", 0, 10)), IsOk());
  ASSERT_THAT(mailbox.Receive(1, TagOf(7), 10, Soon()), IsOk());
  const auto late = mailbox.Receive(1, TagOf(7), 10, absl::Now() + absl::Milliseconds(5));
  EXPECT_THAT(late, StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  EXPECT_THAT(Text(late), AllOf(HasSubstr("rank 1 (w-b)"), HasSubstr("3 of 10 bytes"),
                                HasSubstr("step 7, op 2, round 0")));
}

TEST(MailboxTest, FailsEveryReceiveOfAStepWhenOneOfItsWorkersIsGone) {
  Mailbox mailbox({});
  ASSERT_THAT(mailbox.OpenStep(7, kMembers), IsOk());
  absl::StatusOr<OwnedBytes> from_lost, from_other;
  std::thread first([&] { from_lost = mailbox.Receive(1, TagOf(7), 10, Soon()); });
  std::thread second([&] { from_other = mailbox.Receive(2, TagOf(7, 3), 10, Soon()); });
  mailbox.FailWorker("w-b", "its stream broke");
  first.join();
  second.join();
  for (const auto& result : {from_lost, from_other}) {
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
    EXPECT_THAT(Text(result),
                AllOf(HasSubstr("rank 1 (w-b) is gone: its stream broke"), HasSubstr("step 7")));
  }
  EXPECT_THAT(Text(from_other), HasSubstr("op 3"));

  EXPECT_THAT(mailbox.OpenStep(8, kMembers),
              StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  EXPECT_THAT(mailbox.OpenStep(9, {"w-a", "w-c"}), IsOk()) << "it takes no part in this one";
  mailbox.RestoreWorker("w-b");
  EXPECT_THAT(mailbox.OpenStep(10, kMembers), IsOk());
}

TEST(MailboxTest, AbortFailsReceivesNowAndLaterWithTheFirstError) {
  Mailbox mailbox({});
  ASSERT_THAT(mailbox.OpenStep(7, kMembers), IsOk());
  ASSERT_THAT(mailbox.Deliver("w-b", TagOf(7), Whole("held")), IsOk());
  mailbox.Abort(7, absl::AbortedError("rank 2 failed in op 1"));
  mailbox.Abort(7, absl::AbortedError("another"));
  EXPECT_EQ(mailbox.held_bytes(), 0);
  const auto result = mailbox.Receive(1, TagOf(7), 4, Soon());
  EXPECT_THAT(result, StatusIs(absl::StatusCode::kAborted));
  EXPECT_THAT(Text(result), HasSubstr("rank 2 failed in op 1; waited for rank 1 (w-b)"));

  mailbox.Abort(9, absl::AbortedError("before it began"));
  ASSERT_THAT(mailbox.OpenStep(9, kMembers), IsOk());
  EXPECT_THAT(mailbox.Receive(1, TagOf(9), 4, Soon()), StatusIs(absl::StatusCode::kAborted));
}

TEST(MailboxTest, RefusesPiecesThatDoNotFit) {
  Mailbox mailbox({});
  ASSERT_THAT(mailbox.OpenStep(1, kMembers), IsOk());
  const auto refused = [&](const std::string& worker, Mailbox::Piece piece) {
    return mailbox.Deliver(worker, TagOf(1), std::move(piece));
  };
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(refused("w-a", PieceOf("", 0, 4)), StatusIs(kInvalid));
  EXPECT_THAT(refused("w-a", PieceOf("abc", 2, 4)), StatusIs(kInvalid));
  EXPECT_THAT(refused("w-a", PieceOf("abc", -1, 4)), StatusIs(kInvalid));
  EXPECT_THAT(refused("w-a", PieceOf("a", 1, 4)), StatusIs(kInvalid)) << "begins in the middle";
  EXPECT_THAT(refused("w-z", PieceOf("a", 0, 4)), StatusIs(kInvalid)) << "no member";
  ASSERT_THAT(refused("w-a", PieceOf("ab", 0, 4)), IsOk());
  EXPECT_THAT(refused("w-a", PieceOf("ab", 0, 4)), StatusIs(kInvalid)) << "twice";
  EXPECT_THAT(refused("w-a", PieceOf("cd", 2, 5)), StatusIs(kInvalid)) << "another length";
  EXPECT_EQ(mailbox.held_bytes(), 2);
  EXPECT_THAT(mailbox.Receive(0, TagOf(1), 8, Soon()), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(mailbox.Receive(3, TagOf(1), 8, Soon()), StatusIs(kInvalid)) << "no such rank";
}

TEST(MailboxTest, ReceiverThatWaitsMayBringInItsMessageItself) {
  Mailbox* box = nullptr;
  int polls = 0;
  Mailbox mailbox({.credit = nullptr, .poll = [&](absl::FunctionRef<bool()> is_done) {
                     EXPECT_TRUE(box->awaited());
                     EXPECT_FALSE(is_done());
                     if (++polls == 1) {
                       ASSERT_THAT(box->Deliver("w-a", TagOf(1, 1), Whole("abcd")), IsOk());
                     } else {
                       box->Abort(1, absl::AbortedError("enough"));
                     }
                     EXPECT_TRUE(is_done());
                   }});
  box = &mailbox;
  ASSERT_THAT(mailbox.OpenStep(1, kMembers), IsOk());
  EXPECT_THAT(mailbox.Receive(0, TagOf(1, 1), 4, Soon()), IsOk());
  EXPECT_FALSE(mailbox.awaited());
  ASSERT_THAT(mailbox.Deliver("w-a", TagOf(1, 2), Whole("a")), IsOk());
  EXPECT_THAT(mailbox.Receive(0, TagOf(1, 2), 1, Soon()), IsOk());
  EXPECT_EQ(polls, 1) << "not for what is there";
  EXPECT_THAT(mailbox.Receive(0, TagOf(1, 3), 1, Soon()), StatusIs(absl::StatusCode::kAborted));
  EXPECT_FALSE(mailbox.awaited());
}

TEST(MailboxTest, StepsThatAreExpectedOpenInAnyOrder) {
  Mailbox mailbox({.credit = nullptr});
  ASSERT_THAT(mailbox.ExpectStep(3), IsOk());
  ASSERT_THAT(mailbox.Deliver("w-a", TagOf(3, 1), Whole("three")), IsOk());
  ASSERT_THAT(mailbox.Deliver("w-a", TagOf(4, 1), Whole("four")), IsOk());
  ASSERT_THAT(mailbox.ExpectStep(5), IsOk());
  EXPECT_THAT(mailbox.ExpectStep(5), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(mailbox.held_bytes(), 5) << "step 4 was passed over";
  ASSERT_THAT(mailbox.OpenStep(5, kMembers), IsOk());
  ASSERT_THAT(mailbox.OpenStep(3, kMembers), IsOk());
  EXPECT_THAT(mailbox.OpenStep(3, kMembers), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(mailbox.Receive(0, TagOf(3, 1), 5, Soon()), IsOk());
  ASSERT_THAT(mailbox.ExpectStep(6), IsOk());
  ASSERT_THAT(mailbox.Deliver("w-a", TagOf(6, 1), Whole("six")), IsOk());
  mailbox.CloseStep(6);  // it was never opened
  EXPECT_EQ(mailbox.held_bytes(), 0);
  ASSERT_THAT(mailbox.Deliver("w-a", TagOf(6, 2), Whole("late")), IsOk());
  EXPECT_EQ(mailbox.held_bytes(), 0);
}

TEST(MailboxTest, SaysWhatIsWaitedForWhereAStreamHasNoCreditLeft) {
  std::atomic<int64_t> exhausted = 0;
  std::vector<std::string> asked;
  Mailbox* box = nullptr;
  Mailbox mailbox({.credit = nullptr,
                   .exhausted = &exhausted,
                   .starved = [&](const std::string& worker, const Tag& tag, int64_t left_bytes) {
                     asked.push_back(StrCat(worker, " ", tag.op(), " ", left_bytes));
                     const std::vector<Mailbox::Wait> waits = box->WaitsFor(worker);
                     ASSERT_EQ(waits.size(), 1u);
                     EXPECT_EQ(waits[0].left_bytes, left_bytes);
                     ASSERT_THAT(box->Deliver(worker, tag, Whole("abcd")), IsOk());
                   }});
  box = &mailbox;
  ASSERT_THAT(mailbox.OpenStep(1, kMembers), IsOk());
  ASSERT_THAT(mailbox.Deliver("w-a", TagOf(1, 1), Whole("here")), IsOk());
  exhausted = 1;
  EXPECT_THAT(mailbox.Receive(0, TagOf(1, 1), 4, Soon()), IsOk());
  EXPECT_THAT(mailbox.Receive(0, TagOf(1, 2), 4, Soon()), IsOk());
  EXPECT_THAT(asked, ::testing::ElementsAre("w-a 2 4")) << "not for what is there";
  EXPECT_TRUE(mailbox.WaitsFor("w-a").empty());
}

TEST(MailboxTest, SignaturesThatCameEarlyTakeMemoryUntilTheirOpBegins) {
  Mailbox mailbox({.worker_limit_bytes = 1000, .credit = nullptr});
  ASSERT_THAT(mailbox.OpenStep(1, kMembers), IsOk());
  const std::string signature(300, 's');
  Mailbox::Piece piece = Whole("a");
  piece.signature = signature;
  ASSERT_THAT(mailbox.Deliver("w-a", TagOf(1, 1), piece), IsOk());
  ASSERT_THAT(mailbox.Receive(0, TagOf(1, 1), 1, Soon()), IsOk());
  EXPECT_THAT(mailbox.Deliver("w-a", TagOf(1, 2), piece),
              StatusIs(absl::StatusCode::kResourceExhausted));
  ASSERT_THAT(mailbox.Begin(1, 1, 0, signature), IsOk());
  EXPECT_THAT(mailbox.Deliver("w-a", TagOf(1, 2), piece), IsOk());
}

TEST(MailboxTest, BoundsWhatIsHeldAndGivesCreditForWhatIsTaken) {
  std::vector<std::string> credits;
  Mailbox mailbox({.tag_limit_bytes = 4,
                   .worker_limit_bytes = 600,
                   .credit = [&](const std::string& worker, const Tag& tag, int64_t size_bytes) {
                     credits.push_back(StrCat(worker, " ", tag.op(), " ", size_bytes));
                   }});
  ASSERT_THAT(mailbox.OpenStep(1, kMembers), IsOk());
  ASSERT_THAT(mailbox.Deliver("w-a", TagOf(1, 1), PieceOf("abcd", 0, 6)), IsOk());
  EXPECT_THAT(mailbox.Deliver("w-a", TagOf(1, 1), PieceOf("ef", 4, 6)),
              StatusIs(absl::StatusCode::kResourceExhausted));
  ASSERT_THAT(mailbox.Receive(0, TagOf(1, 1), 6, Soon()), IsOk());
  ASSERT_THAT(mailbox.Deliver("w-a", TagOf(1, 1), PieceOf("ef", 4, 6)), IsOk());
  ASSERT_THAT(mailbox.Receive(0, TagOf(1, 1), 6, Soon()), IsOk());
  EXPECT_THAT(credits, ::testing::ElementsAre("w-a 1 4")) << "nothing is to follow the last piece";

  ASSERT_THAT(mailbox.Deliver("w-a", TagOf(1, 2), Whole("a")), IsOk());
  ASSERT_THAT(mailbox.Deliver("w-a", TagOf(1, 3), Whole("a")), IsOk());
  EXPECT_THAT(mailbox.Deliver("w-a", TagOf(1, 4), Whole("a")),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(mailbox.Deliver("w-b", TagOf(1, 4), Whole("a")), IsOk()) << "its own account";
}

}  // namespace
}  // namespace shardmesh::worker
