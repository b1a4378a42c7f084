// Starts the search from an alarm, and ends the thread without a lock.
#include "server/repair/search_thread.h"

#include <algorithm>
#include <utility>

namespace shardmesh::server {

SearchThread::SearchThread(Clock* clock, std::function<void()> search)
    : search_(std::move(search)),
      alarm_(std::make_unique<Alarm>(clock, [this] { Run(search_); })),
      pool_(std::make_unique<ThreadPool>(1)) {}

SearchThread::~SearchThread() { Stop(); }

void SearchThread::SearchAt(absl::Time when) {
  absl::MutexLock lock(&mutex_);
  if (alarm_ != nullptr) alarm_->SetNoLaterThan(std::max(when, no_search_before_));
}

void SearchThread::NoSearchBefore(absl::Time when) {
  absl::MutexLock lock(&mutex_);
  no_search_before_ = when;
}

void SearchThread::Run(ThreadPool::Task task) {
  absl::MutexLock lock(&mutex_);
  if (pool_ != nullptr) pool_->Push(std::move(task));
}

bool SearchThread::Stop() {
  std::unique_ptr<Alarm> alarm;
  std::unique_ptr<ThreadPool> pool;
  {
    absl::MutexLock lock(&mutex_);
    if (pool_ == nullptr) return false;
    alarm = std::move(alarm_);
    pool = std::move(pool_);
  }
  // Without the lock, which the alarm's function and the tasks take.
  alarm.reset();
  pool.reset();
  return true;
}

bool SearchThread::is_stopped() const {
  absl::MutexLock lock(&mutex_);
  return pool_ == nullptr;
}

}  // namespace shardmesh::server
