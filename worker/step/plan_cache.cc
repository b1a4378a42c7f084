// KnownPlan: a plan and its part of one rank. PlanCache: an LRU cache of decoded plans.
#include "worker/step/plan_cache.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "rpc/codec/plan_codec.h"
#include "sharding/digest.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::worker {

absl::StatusOr<std::shared_ptr<const RankPlan>> KnownPlan::PartOf(DeviceId rank) const {
  absl::MutexLock lock(&mutex_);
  if (part_ == nullptr || part_->rank() != rank) {
    SHARDMESH_ASSIGN_OR_RETURN(RankPlan part, RankPlan::Create(plan_, rank));
    part_ = std::make_shared<const RankPlan>(std::move(part));
  }
  return part_;
}

PlanPtr PlanCache::Find(std::string_view hash) {
  absl::MutexLock lock(&mutex_);
  const PlanPtr* found = plans_.Find(ToAbsl(hash));
  return found == nullptr ? nullptr : *found;
}

absl::StatusOr<PlanPtr> PlanCache::Add(std::string_view hash, std::string_view bytes) {
  if (const std::string actual = Sha256(bytes); actual != hash) {
    return InvalidArgument(Reason::kChecksumMismatch,
                           StrCat("the plan's bytes have SHA-256 ", absl::BytesToHexString(actual),
                                  ", the order says ", absl::BytesToHexString(ToAbsl(hash))),
                           {{fact::kHave, absl::BytesToHexString(actual)},
                            {fact::kNeed, absl::BytesToHexString(ToAbsl(hash))}});
  }
  SHARDMESH_ASSIGN_OR_RETURN(Plan plan, rpc::ParsePlanBytes(bytes));
  auto shared = std::make_shared<const KnownPlan>(std::move(plan));
  // Plans that the cache evicts. They are destroyed after the lock is released.
  LruCache<std::string, PlanPtr>::Forgotten forgotten;
  absl::MutexLock lock(&mutex_);
  return plans_.Add(std::string(hash), std::move(shared), &forgotten);
}

}  // namespace shardmesh::worker
