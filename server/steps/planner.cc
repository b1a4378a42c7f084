// Plans programs and caches the plans.
#include "server/steps/planner.h"

#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/escaping.h"
#include "rpc/codec/plan_codec.h"
#include "sharding/digest.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"

namespace shardmesh::server {
namespace {

// Hashes the fields in which most requests differ. Links are left out, so that similar figures find
// one plan.
size_t DigestOf(const Program& program, absl::Span<const ValueDescriptor> operands,
                const PlanTarget& target) {
  size_t digest = absl::HashOf(target.mesh_id, target.mesh_revision, program.operand_count,
                               program.ops.size(), program.outputs);
  for (const ProgramOp& op : program.ops) {
    digest = absl::HashOf(digest, op.index());
  }
  for (const ValueDescriptor& operand : operands) {
    digest = absl::HashOf(digest, operand.dtype, operand.shape);
  }
  return digest;
}

// Returns the rough size of an entry: the plan exists as bytes and as values, which are several
// times as large.
int64_t SizeOf(const Program& program, absl::Span<const ValueDescriptor> operands,
               const PreparedPlan& prepared) {
  constexpr int64_t kPerByte = 8;
  constexpr int64_t kPerPart = 256;
  const size_t parts = program.ops.size() + operands.size() + 4;
  return static_cast<int64_t>(prepared.bytes.size()) * kPerByte +
         static_cast<int64_t>(parts) * kPerPart;
}

template <typename Key, typename Iterator>
void Erase(absl::flat_hash_map<Key, std::vector<Iterator>>& from, const Key& key, Iterator entry) {
  const auto found = from.find(key);
  std::erase(found->second, entry);
  if (found->second.empty()) {
    from.erase(found);
  }
}

}  // namespace

std::shared_ptr<const PreparedPlan> Planner::Known(size_t digest, const Program& program,
                                                   absl::Span<const ValueDescriptor> operands,
                                                   const PlanTarget& target) {
  const auto found = by_question_.find(digest);
  if (found == by_question_.end()) {
    return nullptr;
  }
  for (const Entries::iterator entry : found->second) {
    if (entry->prepared->plan.mesh_revision == target.mesh_revision &&
        entry->prepared->plan.mesh_id == target.mesh_id && AreAlike(entry->links, target.links) &&
        absl::MakeConstSpan(entry->operands) == operands && entry->program == program) {
      AskedFor(entry);
      return entry->prepared;
    }
  }
  return nullptr;
}

absl::StatusOr<std::shared_ptr<const PreparedPlan>> Planner::Prepare(
    std::string_view caller, const Program& program, absl::Span<const ValueDescriptor> operands,
    const PlanTarget& target) {
  const size_t digest = DigestOf(program, operands, target);
  {
    absl::MutexLock lock(&mutex_);
    if (auto known = Known(digest, program, operands, target); known != nullptr) {
      return known;
    }
  }
  SHARDMESH_ASSIGN_OR_RETURN(Plan plan, PlanProgram(program, operands, target));
  auto prepared = std::make_shared<PreparedPlan>();
  prepared->bytes = rpc::PlanBytes(plan);
  prepared->hash = Sha256(prepared->bytes);
  prepared->plan = std::move(plan);

  absl::MutexLock lock(&mutex_);
  if (auto known = Known(digest, program, operands, target); known != nullptr) {
    return known;  // another thread planned it meanwhile
  }
  const int64_t bytes = SizeOf(program, operands, *prepared);
  OfCaller& of_caller = callers_[std::string(caller)];
  of_caller.entries.push_front({.program = program,
                                .operands = {operands.begin(), operands.end()},
                                .links = target.links,
                                .prepared = prepared,
                                .caller = std::string(caller),
                                .digest = digest,
                                .bytes = bytes});
  of_caller.bytes += bytes;
  bytes_ += bytes;
  by_question_[digest].push_back(of_caller.entries.begin());
  by_hash_[prepared->hash].push_back(of_caller.entries.begin());
  while (bytes_ > options_.max_bytes) {
    const auto most = std::max_element(
        callers_.begin(), callers_.end(),
        [](const auto& a, const auto& b) { return a.second.bytes < b.second.bytes; });
    Forget(std::prev(most->second.entries.end()));
  }
  return prepared;
}

absl::StatusOr<std::shared_ptr<const PreparedPlan>> Planner::Find(std::string_view hash) {
  absl::MutexLock lock(&mutex_);
  const auto found = by_hash_.find(std::string(hash));
  if (found == by_hash_.end()) {
    return WithReason(
        absl::NotFoundError("no plan of that hash is remembered; send the program again"),
        Reason::kNotFound,
        {{fact::kKind, "plan"}, {fact::kName, absl::BytesToHexString(ToAbsl(hash))}});
  }
  const Entries::iterator entry = found->second.front();
  AskedFor(entry);
  return entry->prepared;
}

void Planner::AskedFor(Entries::iterator entry) {
  Entries& entries = callers_.find(entry->caller)->second.entries;
  entries.splice(entries.begin(), entries, entry);
}

void Planner::Forget(Entries::iterator entry) {
  Erase(by_question_, entry->digest, entry);
  Erase(by_hash_, entry->prepared->hash, entry);
  bytes_ -= entry->bytes;
  const auto caller = callers_.find(entry->caller);
  caller->second.bytes -= entry->bytes;
  caller->second.entries.erase(entry);
  if (caller->second.entries.empty()) {
    callers_.erase(caller);
  }
}

int64_t Planner::size_bytes() const {
  absl::MutexLock lock(&mutex_);
  return bytes_;
}

}  // namespace shardmesh::server
