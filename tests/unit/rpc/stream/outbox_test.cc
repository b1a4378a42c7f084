// The write side of streams, with a writer that the test completes by hand or from a thread.
#include "rpc/stream/outbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::rpc {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class OutboxTest : public ::testing::Test {
 protected:
  absl::Status Push(const std::string& text, int64_t size_bytes = 1) {
    return outbox_.Push(std::make_shared<const std::string>(text), size_bytes);
  }

  std::vector<std::string> started_;
  Outbox<std::string> outbox_{10, [this](const std::string* m) { started_.push_back(*m); }};
};

TEST_F(OutboxTest, WritesOneMessageAtATimeInOrder) {
  EXPECT_THAT(Push("a"), IsOk());
  EXPECT_THAT(Push("b"), IsOk());
  EXPECT_THAT(started_, ElementsAre("a"));
  outbox_.OnWriteDone(true);
  EXPECT_THAT(started_, ElementsAre("a", "b"));
  outbox_.OnWriteDone(true);
  EXPECT_EQ(outbox_.queued_bytes(), 0);
}

TEST_F(OutboxTest, RefusesWhatIsOverTheLimitUntilThereIsRoom) {
  EXPECT_THAT(Push("a", 6), IsOk());
  EXPECT_THAT(Push("b", 5), StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded));
  EXPECT_THAT(Push("c", 4), IsOk());
  outbox_.OnWriteDone(true);
  EXPECT_THAT(Push("d", 6), IsOk());
}

TEST_F(OutboxTest, TakesOneMessageOfAnySizeWhenEmpty) {
  EXPECT_THAT(Push("a", 1000), IsOk());
  EXPECT_THAT(Push("b"), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(OutboxTest, ClosesAtOnceWhenNothingIsUnderWay) {
  int closed = 0;
  EXPECT_TRUE(outbox_.Close(Outbox<std::string>::kFlush, [&] { ++closed; }));
  EXPECT_EQ(closed, 1);
  EXPECT_FALSE(outbox_.Close(Outbox<std::string>::kDrop, [&] { ++closed; }));
  EXPECT_EQ(closed, 1);
  EXPECT_THAT(Push("a"), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(started_, IsEmpty());
}

TEST_F(OutboxTest, FlushWritesWhatWaitsFirst) {
  bool closed = false;
  EXPECT_THAT(Push("a"), IsOk());
  EXPECT_THAT(Push("b"), IsOk());
  outbox_.Close(Outbox<std::string>::kFlush, [&] { closed = true; });
  EXPECT_THAT(Push("c"), StatusIs(absl::StatusCode::kUnavailable));
  outbox_.OnWriteDone(true);
  EXPECT_FALSE(closed);
  outbox_.OnWriteDone(true);
  EXPECT_TRUE(closed);
  EXPECT_THAT(started_, ElementsAre("a", "b"));
}

TEST_F(OutboxTest, DropWaitsOnlyForTheMessageUnderWay) {
  bool closed = false;
  EXPECT_THAT(Push("a"), IsOk());
  EXPECT_THAT(Push("b"), IsOk());
  outbox_.Close(Outbox<std::string>::kDrop, [&] { closed = true; });
  EXPECT_FALSE(closed);
  EXPECT_EQ(outbox_.queued_bytes(), 1);
  outbox_.OnWriteDone(true);
  EXPECT_TRUE(closed);
  EXPECT_THAT(started_, ElementsAre("a"));
}

TEST_F(OutboxTest, AFailedWriteDropsWhatWaitsAndRefusesMore) {
  bool closed = false;
  EXPECT_THAT(Push("a"), IsOk());
  EXPECT_THAT(Push("b"), IsOk());
  outbox_.OnWriteDone(false);
  EXPECT_THAT(Push("c"), StatusIs(absl::StatusCode::kUnavailable));
  outbox_.Close(Outbox<std::string>::kFlush, [&] { closed = true; });
  EXPECT_TRUE(closed);
  EXPECT_THAT(started_, ElementsAre("a"));
}

// A writer on a thread of its own, as gRPC's are, and several threads that push.
TEST(OutboxThreadsTest, EveryMessageIsWrittenOnceAndClosedComesLast) {
  constexpr int kThreads = 4;
  constexpr int kMessages = 2000;
  absl::Mutex mutex;
  std::vector<const int*> to_write;
  std::atomic<int> in_flight = 0;
  std::atomic<int> written = 0;
  std::atomic<bool> stop = false;
  Outbox<int> outbox(1 << 30, [&](const int* m) {
    EXPECT_EQ(in_flight.fetch_add(1), 0);
    absl::MutexLock lock(&mutex);
    to_write.push_back(m);
  });
  std::thread writer([&] {
    while (!stop) {
      {
        absl::MutexLock lock(&mutex);
        const auto ready = [&] { return !to_write.empty() || stop; };
        mutex.AwaitWithTimeout(absl::Condition(&ready), absl::Milliseconds(50));
        if (to_write.empty()) {
          continue;
        }
        to_write.clear();
      }
      in_flight.fetch_sub(1);
      written.fetch_add(1);
      outbox.OnWriteDone(true);
    }
  });
  std::vector<std::thread> pushers;
  for (int t = 0; t < kThreads; ++t) {
    pushers.emplace_back([&] {
      for (int i = 0; i < kMessages; ++i) {
        EXPECT_TRUE(outbox.Push(std::make_shared<const int>(i), 4).ok());
      }
    });
  }
  for (std::thread& pusher : pushers) {
    pusher.join();
  }
  absl::Notification closed;
  outbox.Close(Outbox<int>::kFlush, [&] { closed.Notify(); });
  EXPECT_TRUE(closed.WaitForNotificationWithTimeout(absl::Seconds(60)));
  EXPECT_EQ(written, kThreads * kMessages);
  stop = true;
  writer.join();
}

}  // namespace
}  // namespace shardmesh::rpc
