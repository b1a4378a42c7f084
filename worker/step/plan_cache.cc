// PlanCache: decoded plans; the least recently used is evicted first.
#include "worker/step/plan_cache.h"

#include "absl/strings/escaping.h"
#include "rpc/codec/plan_codec.h"
#include "sharding/digest.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::worker {

PlanPtr PlanCache::Find(std::string_view hash) {
  absl::MutexLock lock(&mutex_);
  const auto found = by_hash_.find(std::string(hash));
  if (found == by_hash_.end()) return nullptr;
  used_.splice(used_.begin(), used_, found->second);
  return found->second->second;
}

absl::StatusOr<PlanPtr> PlanCache::Add(std::string_view hash, std::string_view bytes) {
  if (const std::string actual = Sha256(bytes); actual != hash) {
    return InvalidArgument(Reason::kChecksumMismatch,
                           StrCat("the plan's bytes have SHA-256 ", absl::BytesToHexString(actual),
                                  ", the order says ", absl::BytesToHexString(ToAbsl(hash))));
  }
  SHARDMESH_ASSIGN_OR_RETURN(Plan plan, rpc::ParsePlanBytes(bytes));
  auto shared = std::make_shared<const Plan>(std::move(plan));
  absl::MutexLock lock(&mutex_);
  const auto [it, is_new] = by_hash_.try_emplace(std::string(hash));
  if (!is_new) return it->second->second;
  used_.emplace_front(std::string(hash), shared);
  it->second = used_.begin();
  if (used_.size() > capacity_) {
    by_hash_.erase(used_.back().first);
    used_.pop_back();
  }
  return shared;
}

}  // namespace shardmesh::worker
