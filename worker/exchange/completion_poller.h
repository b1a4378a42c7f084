// Polls a gRPC completion queue, either on a thread of its own or on the thread of a receiver that
// waits for a message.
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

// Handles the end of an operation in the completion queue. The operation's tag points to this
// object.
class Completion {
 public:
  virtual ~Completion() = default;
  virtual void Complete(bool ok) = 0;
};

// Runs the completions of one queue. Only one thread polls the queue at a time.
//
// To wake up a thread costs more than everything else that a short message needs. A waiting
// receiver therefore polls the queue itself, and gets its message without another thread's help.
// Meanwhile, the poller's own thread rests. The states of this thread:
//
// clang-format off
//   thread polls -> thread rests: receivers have polled since the thread polled last, and no
//                                 receiver waits for a message now
//   thread rests -> thread polls: a receiver gives up, or stops polling while other receivers
//                                 wait, or no receiver has polled for kRest
// clang-format on
//
// Whenever a receiver waits, some thread polls. While no receiver waits, incoming data may stay in
// the socket, and outgoing data in gRPC's queue, for at most twice kRest.
//
// Thread-safe.
class CompletionPoller {
 public:
  // How long the poller's thread rests while no receiver polls.
  static constexpr absl::Duration kRest = absl::Milliseconds(1);
  // Unsuccessful polls after which a receiver stops polling and sleeps. The receiver yields its
  // core between polls. On an idle core, these polls take about kVainPolls microseconds. On a busy
  // core, the receiver stops after kMostPolling.
  static constexpr int kVainPolls = 200;
  static constexpr absl::Duration kMostPolling = absl::Milliseconds(2);
  // If yielding the core takes longer than kLongYield, the core is busy. The scheduler of a busy
  // core prefers a woken thread to a thread that yields. For the next kBusy, receivers therefore
  // sleep without polling, and the poller's thread polls.
  static constexpr absl::Duration kLongYield = absl::Microseconds(500);
  static constexpr absl::Duration kBusy = absl::Milliseconds(50);

  // `awaited` returns whether a receiver waits for a message that has not come. The poller calls it
  // with its mutex held.
  explicit CompletionPoller(std::function<bool()> awaited) : awaited_(std::move(awaited)) {}
  // Requires that Stop was called, or that Start was never called.
  ~CompletionPoller() = default;
  CompletionPoller(const CompletionPoller&) = delete;
  CompletionPoller& operator=(const CompletionPoller&) = delete;

  // Starts polling. Call it once. The queue outlives the poller.
  void Start(grpc::CompletionQueue* queue) ABSL_LOCKS_EXCLUDED(mutex_);
  // Shuts the queue down, and runs all remaining completions. Requires that no receiver polls.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  // Called by a receiver that waits (awaited() holds). Runs completions on the calling thread until
  // is_done() returns true. Gives up after kMostPolling or kVainPolls, or at once if another thread
  // polls or the core is busy. If Poll gives up, the poller's thread or another receiver runs the
  // completion of the awaited message while the caller sleeps. Call it with no lock held, and not
  // from a Completion.
  void Poll(absl::FunctionRef<bool()> is_done) ABSL_LOCKS_EXCLUDED(mutex_);

  // Runs all completions that are ready, without waiting. Does nothing if another thread polls.
  void PollOnce() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // Called by the poller's thread: waits until no receiver polls. If `rests`, also waits until a
  // receiver needs the thread, until no receiver has polled for kRest, or until Stop is called.
  void AwaitTurn(bool rests) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  using Clock = std::chrono::steady_clock;

  const std::function<bool()> awaited_;
  grpc::CompletionQueue* queue_ = nullptr;  // constant from Start
  std::thread thread_;

  absl::Mutex mutex_;
  absl::CondVar woken_;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_polled_ ABSL_GUARDED_BY(mutex_) = false;  // some thread polls the queue
  bool wake_ ABSL_GUARDED_BY(mutex_) = false;       // the poller's thread must not rest
  int64_t polls_ ABSL_GUARDED_BY(mutex_) = 0;       // calls of Poll while the core was not busy
  Clock::time_point busy_until_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_COMPLETION_POLLER_H_
