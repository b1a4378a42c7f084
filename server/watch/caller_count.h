// Counts the objects, such as watches, that each caller has at the same time, and limits them.
#ifndef SHARDMESH_SERVER_WATCH_CALLER_COUNT_H_
#define SHARDMESH_SERVER_WATCH_CALLER_COUNT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

namespace shardmesh::server {

// Thread-safe.
class CallerCount {
 public:
  // Counts as one object of a caller until the Place is destroyed. The CallerCount must outlive it.
  class Place {
   public:
    Place(CallerCount* count, std::string caller) : count_(count), caller_(std::move(caller)) {}
    Place(Place&& other) noexcept
        : count_(std::exchange(other.count_, nullptr)), caller_(std::move(other.caller_)) {}
    Place& operator=(Place&&) = delete;
    ~Place() {
      if (count_ != nullptr) {
        count_->Leave(caller_);
      }
    }

   private:
    CallerCount* count_;
    std::string caller_;
  };

  explicit CallerCount(int64_t max_per_caller) : max_per_caller_(max_per_caller) {}

  int64_t max_per_caller() const { return max_per_caller_; }

  // Counts one more object of the caller (rpc::Caller::name). Returns nullopt if the caller has
  // already reached the limit.
  std::optional<Place> Take(const std::string& caller) {
    absl::MutexLock lock(&mutex_);
    int64_t& count = counts_[caller];
    if (count >= max_per_caller_) {  // a new entry (0) is below the limit, so no entry of 0 stays
      return std::nullopt;
    }
    ++count;
    return std::optional<Place>(std::in_place, this, caller);
  }

 private:
  void Leave(const std::string& caller) {
    absl::MutexLock lock(&mutex_);
    if (const auto found = counts_.find(caller); --found->second == 0) {
      counts_.erase(found);
    }
  }

  const int64_t max_per_caller_;
  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, int64_t> counts_ ABSL_GUARDED_BY(mutex_);  // never 0
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_WATCH_CALLER_COUNT_H_
