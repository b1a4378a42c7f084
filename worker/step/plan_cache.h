// The plans that a worker knows, by the SHA-256 of their bytes, each with the worker's part in it.
#ifndef SHARDMESH_WORKER_STEP_PLAN_CACHE_H_
#define SHARDMESH_WORKER_STEP_PLAN_CACHE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "program/step_plan.h"
#include "sharding/mesh.h"
#include "status/lru_cache.h"
#include "worker/step/rank_plan.h"

namespace shardmesh::worker {

// A decoded plan, and the part of one rank in it. Thread-safe.
class KnownPlan {
 public:
  explicit KnownPlan(Plan plan) : plan_(std::move(plan)) {}
  KnownPlan(const KnownPlan&) = delete;
  KnownPlan& operator=(const KnownPlan&) = delete;

  const Plan& plan() const { return plan_; }

  // Returns the part of `rank`, which refers to plan(). Keeps the part of the last rank that was
  // asked for: a worker serves one rank of a mesh, until the coordinator assigns the ranks anew.
  // The first call for a rank takes longer, and concurrent calls wait for it. Errors of
  // RankPlan::Create.
  absl::StatusOr<std::shared_ptr<const RankPlan>> PartOf(DeviceId rank) const;

 private:
  const Plan plan_;
  mutable absl::Mutex mutex_;
  mutable std::shared_ptr<const RankPlan> part_ ABSL_GUARDED_BY(mutex_);
};

using PlanPtr = std::shared_ptr<const KnownPlan>;

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
