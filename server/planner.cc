// Plans programs and remembers what it planned.
#include "server/planner.h"

#include <algorithm>
#include <utility>

#include "rpc/plan_codec.h"
#include "sharding/digest.h"
#include "sharding/reason.h"
#include "sharding/status_macros.h"

namespace shardmesh::server {

absl::StatusOr<std::shared_ptr<const PreparedPlan>> Planner::Prepare(
    const Program& program, absl::Span<const ValueDescriptor> operands, const PlanTarget& target) {
  {
    absl::MutexLock lock(&mutex_);
    const auto known = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      return entry.prepared->plan.mesh_revision == target.mesh_revision &&
             entry.prepared->plan.mesh_id == target.mesh_id &&
             AreAlike(entry.links, target.links) &&
             absl::MakeConstSpan(entry.operands) == operands && entry.program == program;
    });
    if (known != entries_.end()) {
      entries_.splice(entries_.begin(), entries_, known);
      return known->prepared;
    }
  }
  SHARDMESH_ASSIGN_OR_RETURN(Plan plan, PlanProgram(program, operands, target));
  auto prepared = std::make_shared<PreparedPlan>();
  prepared->bytes = rpc::PlanBytes(plan);
  prepared->hash = Sha256(prepared->bytes);
  prepared->plan = std::move(plan);
  absl::MutexLock lock(&mutex_);
  entries_.push_front({.program = program,
                       .operands = {operands.begin(), operands.end()},
                       .links = target.links,
                       .prepared = prepared});
  if (entries_.size() > kCapacity) {
    entries_.pop_back();
  }
  return prepared;
}

absl::StatusOr<std::shared_ptr<const PreparedPlan>> Planner::Find(std::string_view hash) {
  absl::MutexLock lock(&mutex_);
  const auto known = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.prepared->hash == hash; });
  if (known == entries_.end()) {
    return WithReason(
        absl::NotFoundError("no plan of that hash is remembered; compile the program again"),
        Reason::kNotFound);
  }
  entries_.splice(entries_.begin(), entries_, known);
  return known->prepared;
}

}  // namespace shardmesh::server
