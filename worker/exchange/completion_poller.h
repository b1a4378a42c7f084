// Polls a completion queue: on its own thread, or on the thread of a waiting receiver.
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

// The object that a completion queue's tag points to.
class Completion {
 public:
  virtual ~Completion() = default;
  virtual void Complete(bool ok) = 0;
};

// Runs the completions of one queue, on one thread at a time.
//
// A thread wake-up costs more than the rest of a short message. A waiting receiver therefore polls
// the queue itself, and gets its message without another thread:
//
// clang-format off
//   thread polls --it completed an awaited message, and receivers polled lately--> thread rests
//   thread rests --a receiver gives up or leaves others waiting; kRest without any--> thread polls
// clang-format on
//
// Whenever a receiver waits, some thread polls. While none waits, incoming data may stay in the
// socket, and outgoing data in its queue, for at most twice kRest.
//
// Thread-safe.
class CompletionPoller {
 public:
  // How long the thread rests while no receiver polls.
  static constexpr absl::Duration kRest = absl::Milliseconds(1);
  // Unsuccessful polls of a receiver before it sleeps. It yields its core between polls: they take
  // about as many microseconds on an idle core, and at most kMostPolling on a busy one.
  static constexpr int kVainPolls = 200;
  static constexpr absl::Duration kMostPolling = absl::Milliseconds(2);
  // If yielding the core takes longer than this, the core is busy, and its scheduler prefers a
  // woken thread to one that yields. Receivers then sleep for the time kBusy, and the thread polls.
  static constexpr absl::Duration kLongYield = absl::Microseconds(500);
  static constexpr absl::Duration kBusy = absl::Milliseconds(50);

  // `awaited` returns whether a receiver waits for a message that has not come; it is called with a
  // lock held.
  explicit CompletionPoller(std::function<bool()> awaited) : awaited_(std::move(awaited)) {}
  // Requires that Stop was called, or Start was not.
  ~CompletionPoller() = default;
  CompletionPoller(const CompletionPoller&) = delete;
  CompletionPoller& operator=(const CompletionPoller&) = delete;

  // Starts polling. Call it once. The queue outlives the poller.
  void Start(grpc::CompletionQueue* queue) ABSL_LOCKS_EXCLUDED(mutex_);
  // Shuts the queue down, and completes all remaining operations. Requires that no receiver polls.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  // For a receiver for which awaited() holds: runs completions on this thread until `is_done`.
  // Gives up after a while, or at once if another thread polls. That thread, or this object's, then
  // completes the message while the receiver sleeps. Call it with no lock held, and not from a
  // Completion.
  void Poll(absl::FunctionRef<bool()> is_done) ABSL_LOCKS_EXCLUDED(mutex_);

  // Runs the completions that are ready, without waiting. Does nothing if another thread polls.
  void PollOnce() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // For the thread: waits until no receiver polls and, if it `rests`, until it is needed.
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
  bool wake_ ABSL_GUARDED_BY(mutex_) = false;       // the thread must not rest
  int64_t polls_ ABSL_GUARDED_BY(mutex_) = 0;       // of receivers
  Clock::time_point busy_until_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_COMPLETION_POLLER_H_
