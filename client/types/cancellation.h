// Cancellation: ends the calls of several threads at the same time.
#ifndef SHARDMESH_CLIENT_TYPES_CANCELLATION_H_
#define SHARDMESH_CLIENT_TYPES_CANCELLATION_H_

#include <functional>
#include <list>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace shardmesh::client {

// Cancel calls every registered function. The cancellation is permanent: a registration after
// Cancel calls its function at once. Functions must be quick, and must not call this object.
// Thread-safe.
class Cancellation {
 public:
  // As long as this object exists, Cancellation::Cancel calls `cancel`. If Cancel was called
  // before, the constructor calls `cancel`. If a call of `cancel` is in progress, the destructor
  // waits for the end of that call.
  class Registration {
   public:
    Registration(Cancellation* cancellation, std::function<void()> cancel)
        : cancellation_(cancellation), entry_(cancellation->Add(std::move(cancel))) {}
    ~Registration() { cancellation_->Remove(entry_); }
    Registration(const Registration&) = delete;
    Registration& operator=(const Registration&) = delete;

   private:
    friend class Cancellation;
    Cancellation* const cancellation_;
    const std::list<std::function<void()>>::iterator entry_;
  };

  void Cancel() {
    absl::MutexLock lock(&mutex_);
    if (!std::exchange(is_cancelled_, true)) {
      for (const std::function<void()>& cancel : functions_) {
        cancel();
      }
    }
  }

  bool is_cancelled() const {
    absl::MutexLock lock(&mutex_);
    return is_cancelled_;
  }

 private:
  std::list<std::function<void()>>::iterator Add(std::function<void()> cancel) {
    absl::MutexLock lock(&mutex_);
    functions_.push_back(std::move(cancel));
    if (is_cancelled_) {
      functions_.back()();
    }
    return std::prev(functions_.end());
  }
  void Remove(std::list<std::function<void()>>::iterator entry) {
    absl::MutexLock lock(&mutex_);
    functions_.erase(entry);
  }

  mutable absl::Mutex mutex_;
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::list<std::function<void()>> functions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_CANCELLATION_H_
