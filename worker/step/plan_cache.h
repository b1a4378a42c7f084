// The plans that a worker knows, by the SHA-256 of their bytes.
#ifndef SHARDMESH_WORKER_STEP_PLAN_CACHE_H_
#define SHARDMESH_WORKER_STEP_PLAN_CACHE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "program/step_plan.h"
#include "status/lru_cache.h"

namespace shardmesh::worker {

using PlanPtr = std::shared_ptr<const Plan>;

// LRU cache of decoded plans. Thread-safe.
class PlanCache {
 public:
  // Requires capacity >= 1, the most plans in the cache.
  explicit PlanCache(size_t capacity) : plans_({.entries = capacity}) {}

  // Returns the plan with this hash; null if it is not in the cache.
  PlanPtr Find(std::string_view hash);
  // Decodes a plan and adds it. INVALID_ARGUMENT if `hash` is not the SHA-256 of the bytes, or if
  // the bytes are no valid plan.
  absl::StatusOr<PlanPtr> Add(std::string_view hash, std::string_view bytes);

 private:
  absl::Mutex mutex_;
  LruCache<std::string, PlanPtr> plans_ ABSL_GUARDED_BY(mutex_);  // by hash
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STEP_PLAN_CACHE_H_
