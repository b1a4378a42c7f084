// Threads for answers that take too long for a reaction.
#include "server/background.h"

#include <utility>

#include "sharding/reason.h"

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

bool Background::Run(Task task) {
  absl::MutexLock lock(&mutex_);
  if (waiting_.size() >= kMaxWaiting) {
    return false;
  }
  waiting_.push_back(std::move(task));
  return true;
}

void Background::Work() {
  const auto has_work = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !waiting_.empty();
  };
  while (true) {
    Task task;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&has_work));
      if (waiting_.empty()) {
        return;
      }
      task = std::move(waiting_.front());
      waiting_.pop_front();
    }
    std::move(task)();
  }
}

absl::Status TooManyWait() {
  return WithReason(absl::ResourceExhaustedError(
                        "too many such calls wait for their answers; ask again in a while"),
                    Reason::kLimitExceeded);
}

}  // namespace shardmesh::server
