// The plans that a worker knows, by the hash of their bytes.
#ifndef SHARDMESH_WORKER_STEP_PLAN_CACHE_H_
#define SHARDMESH_WORKER_STEP_PLAN_CACHE_H_

#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "program/step_plan.h"

namespace shardmesh::worker {

using PlanPtr = std::shared_ptr<const Plan>;

// LRU cache of plans. Thread-safe.
class PlanCache {
 public:
  // capacity >= 1.
  explicit PlanCache(size_t capacity) : capacity_(capacity) {}

  // Returns null if the plan is not in the cache.
  PlanPtr Find(std::string_view hash);
  // Decodes a plan and keeps it. INVALID_ARGUMENT if `hash` is not the SHA-256 of the bytes, or the
  // bytes are no valid plan.
  absl::StatusOr<PlanPtr> Add(std::string_view hash, std::string_view bytes);

 private:
  using Entry = std::pair<std::string, PlanPtr>;

  const size_t capacity_;
  absl::Mutex mutex_;
  std::list<Entry> used_ ABSL_GUARDED_BY(mutex_);  // most recently used first
  absl::flat_hash_map<std::string, std::list<Entry>::iterator> by_hash_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STEP_PLAN_CACHE_H_
