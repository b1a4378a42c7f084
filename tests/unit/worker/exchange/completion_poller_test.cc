// CompletionPoller: who completes what a queue brings.
#include "worker/exchange/completion_poller.h"

#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>
#include <gtest/gtest.h>

#include <deque>
#include <set>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace shardmesh::worker {
namespace {

// A queue, and the completions that a test puts into it. They are all there before its thread is,
// since ThreadSanitizer does not see the order that gRPC's alarms make.
class Events {
 public:
  explicit Events(int most) {
    for (int i = 0; i < most; ++i) events_.emplace_back(this);
    poller_.Start(&queue_);
  }
  ~Events() {
    poller_.Stop();
    EXPECT_EQ(completed(), next_) << "none is lost";
  }

  CompletionPoller& poller() { return poller_; }
  // Brings a completion after this time; by default before this returns.
  void Add(absl::Duration delay = -absl::Seconds(1)) {
    Event& event = events_.at(static_cast<size_t>(next_++));
    event.alarm.Set(&queue_, absl::ToChronoTime(absl::Now() + delay),
                    static_cast<Completion*>(&event));
  }
  // Waits as a receiver does; true if what it waits for came in time.
  bool AwaitCompleted(int count) {
    const auto has_come = [this, count]()
                              ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return completed_ >= count; };
    {
      absl::MutexLock lock(&mutex_);
      if (has_come()) return true;
      awaited_.insert(count);
    }
    poller_.Poll([&] {
      absl::MutexLock lock(&mutex_);
      return has_come();
    });
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&has_come), absl::Seconds(20));
  }
  int completed() {
    absl::MutexLock lock(&mutex_);
    return completed_;
  }
  // The thread that completed the last one.
  std::thread::id last_thread() {
    absl::MutexLock lock(&mutex_);
    return last_thread_;
  }

 private:
  struct Event final : public Completion {
    explicit Event(Events* owner) : events(owner) {}
    void Complete(bool ok) override {
      absl::MutexLock lock(&events->mutex_);
      EXPECT_EQ(++events->inside_, 1) << "one thread at a time";
      ++events->completed_;
      events->awaited_.erase(events->awaited_.begin(),
                             events->awaited_.upper_bound(events->completed_));
      events->last_thread_ = std::this_thread::get_id();
      --events->inside_;
    }
    Events* const events;
    grpc::Alarm alarm;
  };

  grpc::CompletionQueue queue_;
  std::deque<Event> events_;
  int next_ = 0;  // for the test's thread
  CompletionPoller poller_{[this] {
    absl::MutexLock lock(&mutex_);
    return !awaited_.empty();
  }};
  absl::Mutex mutex_;
  int inside_ ABSL_GUARDED_BY(mutex_) = 0;
  int completed_ ABSL_GUARDED_BY(mutex_) = 0;
  std::multiset<int> awaited_ ABSL_GUARDED_BY(mutex_);  // numbers of completions, yet to come
  std::thread::id last_thread_ ABSL_GUARDED_BY(mutex_);
};

TEST(CompletionPollerTest, CompletesWithoutReceivers) {
  Events events(100);
  for (int i = 0; i < 100; ++i) events.Add();
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (events.completed() < 100 && absl::Now() < deadline) std::this_thread::yield();
  EXPECT_EQ(events.completed(), 100);
  EXPECT_NE(events.last_thread(), std::this_thread::get_id());
}

TEST(CompletionPollerTest, ReceiverThatComesAgainAndAgainCompletesByItself) {
  Events events(20'000);
  bool by_itself = false;
  for (int i = 1; !by_itself && i <= 20'000; ++i) {
    events.Add();
    ASSERT_TRUE(events.AwaitCompleted(i));
    by_itself = events.last_thread() == std::this_thread::get_id();
  }
  EXPECT_TRUE(by_itself);
}

TEST(CompletionPollerTest, ReceiverThatWaitsLongIsServed) {
  Events events(20);
  for (int i = 1; i <= 20; ++i) {
    events.Add(absl::Milliseconds(10));
    ASSERT_TRUE(events.AwaitCompleted(i));
  }
}

TEST(CompletionPollerTest, NobodyIsForgottenWhereManyWait) {
  constexpr int kReceivers = 4;
  constexpr int kRounds = 300;
  Events events(kReceivers * kRounds);
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::thread> receivers;
    for (int i = 1; i <= kReceivers; ++i) {
      receivers.emplace_back(
          [&events, goal = round * kReceivers + i] { EXPECT_TRUE(events.AwaitCompleted(goal)); });
    }
    for (int i = 0; i < kReceivers; ++i) events.Add(absl::Microseconds(round % 5 * 100 * i));
    for (std::thread& receiver : receivers) receiver.join();
  }
}

TEST(CompletionPollerTest, PollOnceCompletesWhatHasComeUnlessTheThreadDoes) {
  Events events(50);
  events.Add();
  ASSERT_TRUE(events.AwaitCompleted(1));
  for (int i = 2; i <= 50; ++i) {
    events.Add();
    events.poller().PollOnce();
    ASSERT_TRUE(events.AwaitCompleted(i));
  }
}

}  // namespace
}  // namespace shardmesh::worker
