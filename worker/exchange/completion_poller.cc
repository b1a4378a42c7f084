// CompletionPoller: lets either its own thread or a waiting receiver poll the queue.
#include "worker/exchange/completion_poller.h"

#include <grpcpp/completion_queue.h>
#include <sched.h>

namespace shardmesh::worker {
namespace {

// Takes one ready completion from the queue, without waiting, and runs it. Returns AsyncNext's
// result: GOT_EVENT if there was a completion.
grpc::CompletionQueue::NextStatus CompleteNext(grpc::CompletionQueue& queue) {
  void* tag = nullptr;
  bool ok = false;
  const auto status = queue.AsyncNext(&tag, &ok, gpr_time_0(GPR_CLOCK_MONOTONIC));
  if (status == grpc::CompletionQueue::GOT_EVENT) static_cast<Completion*>(tag)->Complete(ok);
  return status;
}

}  // namespace

void CompletionPoller::Start(grpc::CompletionQueue* queue) {
  absl::MutexLock lock(&mutex_);
  queue_ = queue;
  started_ = true;
  thread_ = std::thread([this] { Run(); });
}

void CompletionPoller::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    if (!started_ || stopped_) return;
    stopped_ = true;
    woken_.SignalAll();
  }
  queue_->Shutdown();
  thread_.join();
}

void CompletionPoller::Run() {
  int64_t polls = 0;
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      // If receivers have polled since this thread polled last, they will probably poll again. This
      // thread then rests, so that the receivers find the queue free.
      AwaitTurn(/*rests=*/polls_ != polls && !awaited_());
      is_polled_ = true;
      polls = polls_;
    }
    void* tag = nullptr;
    bool ok = false;
    const bool has_next = queue_->Next(&tag, &ok);
    if (has_next) static_cast<Completion*>(tag)->Complete(ok);
    absl::MutexLock lock(&mutex_);
    is_polled_ = false;
    if (!has_next) return;
  }
}

void CompletionPoller::AwaitTurn(bool rests) {
  wake_ = false;
  while (is_polled_ || (rests && !wake_ && !stopped_)) {
    const int64_t polls = polls_;
    const bool timed_out = woken_.WaitWithTimeout(&mutex_, kRest);
    if (timed_out && polls == polls_) rests = false;
  }
}

void CompletionPoller::Poll(absl::FunctionRef<bool()> is_done) {
  {
    absl::MutexLock lock(&mutex_);
    if (Clock::now() < busy_until_) return;
    ++polls_;
    if (is_polled_ || !started_ || stopped_) return;
    is_polled_ = true;
  }
  Clock::time_point now = Clock::now();
  const Clock::time_point give_up = now + absl::ToChronoNanoseconds(kMostPolling);
  bool done = is_done();
  bool is_busy = false;
  for (int polls = 0; !done && !is_busy && now < give_up && polls < kVainPolls; ++polls) {
    if (CompleteNext(*queue_) != grpc::CompletionQueue::GOT_EVENT) {
      const Clock::time_point before = Clock::now();
      sched_yield();
      now = Clock::now();
      is_busy = now - before > absl::ToChronoNanoseconds(kLongYield);
    }
    done = is_done();  // true if the message came, or if its step failed
  }
  absl::MutexLock lock(&mutex_);
  is_polled_ = false;
  if (is_busy) busy_until_ = now + absl::ToChronoNanoseconds(kBusy);
  if (awaited_() || !done) {
    wake_ = true;
    woken_.SignalAll();
  }
}

void CompletionPoller::PollOnce() {
  {
    absl::MutexLock lock(&mutex_);
    if (is_polled_ || !started_ || stopped_) return;
    is_polled_ = true;
  }
  while (CompleteNext(*queue_) == grpc::CompletionQueue::GOT_EVENT) {
  }
  absl::MutexLock lock(&mutex_);
  is_polled_ = false;
  if (awaited_()) {
    wake_ = true;
    woken_.SignalAll();
  }
}

}  // namespace shardmesh::worker
