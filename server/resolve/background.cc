// Threads for answers that take too long for a reaction.
#include "server/resolve/background.h"

#include <utility>

#include "rpc/codec/status.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::server {

Background::Background(int threads) {
  threads_.reserve(static_cast<size_t>(threads));
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { Work(); });
  }
}

Background::~Background() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

bool Background::Run(std::string_view caller, Task task) {
  absl::MutexLock lock(&mutex_);
  if (waiting_ >= kMaxWaiting) {
    return false;
  }
  std::deque<Task>& tasks = of_caller_[std::string(caller)];
  if (tasks.size() >= kMaxWaitingOfCaller) {
    return false;
  }
  tasks.push_back(std::move(task));
  ++waiting_;
  return true;
}

void Background::Work() {
  const auto has_work = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stopping_ || waiting_ > 0;
  };
  while (true) {
    Task task;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&has_work));
      if (waiting_ == 0) {
        return;
      }
      auto next = of_caller_.upper_bound(last_caller_);
      if (next == of_caller_.end()) {
        next = of_caller_.begin();
      }
      last_caller_ = next->first;
      task = std::move(next->second.front());
      next->second.pop_front();
      --waiting_;
      if (next->second.empty()) {
        of_caller_.erase(next);
      }
    }
    std::move(task)();
  }
}

absl::Status TooManyWait() {
  return rpc::WithRetryDelay(
      WithReason(absl::ResourceExhaustedError(StrCat(
                     "too many such calls wait for their answers: at most ",
                     Background::kMaxWaiting, " in all, and ", Background::kMaxWaitingOfCaller,
                     " of one caller; ask again in a while")),
                 Reason::kLimitExceeded),
      absl::Seconds(1));
}

absl::Status BackgroundStop::Explain(const absl::Status& status) const {
  if (status.ok() || cancelled_.load() || !is_over_time() || !absl::IsCancelled(status)) {
    return status;
  }
  return WithReason(
      absl::DeadlineExceededError(
          StrCat("the answer took longer than ", absl::FormatDuration(Background::kTimeLimit),
                 ", the most that a call may compute; ask for less at once")),
      Reason::kDeadline);
}

}  // namespace shardmesh::server
