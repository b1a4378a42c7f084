// Who looks after a completion queue: a thread of its own, or whoever waits for what it brings.
#ifndef SHARDMESH_WORKER_EXCHANGE_COMPLETION_POLLER_H_
#define SHARDMESH_WORKER_EXCHANGE_COMPLETION_POLLER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace grpc {
class CompletionQueue;
}  // namespace grpc

namespace shardmesh::worker {

// What a completion queue's tag points to.
class Completion {
 public:
  virtual ~Completion() = default;
  virtual void Complete(bool ok) = 0;
};

// Completes what one queue brings, on one thread at a time.
//
// Waking a thread costs more than all the rest of a short message. So receivers that wait poll the
// queue themselves, and find what they wait for without any other thread:
//
//   thread polls --it brought what was awaited, and receivers have polled lately--> thread rests
//   thread rests --a receiver gives up or leaves others waiting; kRest without any--> thread polls
//
// So whenever a receiver waits, somebody polls. While none does, what comes in may wait in the
// socket, and what is to go out in its queue, for at most twice kRest.
//
// Thread-safe.
class CompletionPoller {
 public:
  // How long the thread rests where nobody polls in its place.
  static constexpr absl::Duration kRest = absl::Milliseconds(1);
  // How often a receiver polls in vain before it goes to sleep; it yields its core between, so that
  // this takes about as many microseconds where nothing else is to run, and at most kMostPolling
  // where much is.
  static constexpr int kVainPolls = 200;
  static constexpr absl::Duration kMostPolling = absl::Milliseconds(2);
  // A core that comes back later than this after it was yielded has other work, to which who wakes
  // up comes before who yields: receivers sleep for the time kBusy, and the thread polls.
  static constexpr absl::Duration kLongYield = absl::Microseconds(500);
  static constexpr absl::Duration kBusy = absl::Milliseconds(50);

  // `awaited`: whether anybody waits for what has not come yet; called with a lock held.
  explicit CompletionPoller(std::function<bool()> awaited) : awaited_(std::move(awaited)) {}
  // Stop was called, or Start was not.
  ~CompletionPoller() = default;
  CompletionPoller(const CompletionPoller&) = delete;
  CompletionPoller& operator=(const CompletionPoller&) = delete;

  // Once. The queue outlives the poller.
  void Start(grpc::CompletionQueue* queue) ABSL_LOCKS_EXCLUDED(mutex_);
  // Shuts the queue down, and completes all that is left in it. Nobody polls.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  // For a receiver for which awaited() holds: completes what comes until `is_done`, on this thread.
  // Gives up after a while, or at once where another thread polls: then that one, or this
  // object's thread, brings what is awaited, and the receiver sleeps. Called with no lock held,
  // and not by a Completion.
  void Poll(absl::FunctionRef<bool()> is_done) ABSL_LOCKS_EXCLUDED(mutex_);

  // Completes what has come, without waiting, unless another thread does so.
  void PollOnce() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // For the thread: waits until nobody else polls, and, if it `rests`, until it is needed.
  void AwaitTurn(bool rests) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  using Clock = std::chrono::steady_clock;

  const std::function<bool()> awaited_;
  grpc::CompletionQueue* queue_ = nullptr;  // constant from Start
  std::thread thread_;

  absl::Mutex mutex_;
  absl::CondVar woken_;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_polled_ ABSL_GUARDED_BY(mutex_) = false;  // by the thread or a receiver
  bool wake_ ABSL_GUARDED_BY(mutex_) = false;       // the thread is not to rest
  int64_t polls_ ABSL_GUARDED_BY(mutex_) = 0;       // of receivers
  Clock::time_point busy_until_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_COMPLETION_POLLER_H_
