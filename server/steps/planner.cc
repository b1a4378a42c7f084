// Plans programs and caches the plans.
#include "server/steps/planner.h"

#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/escaping.h"
#include "program/graph/symbolic_program.h"
#include "program/kernel_time.h"
#include "rpc/codec/plan_codec.h"
#include "sharding/digest.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// Hashes those fields of a request in which most requests differ. Leaves out the links' figures,
// because requests with similar figures share a plan.
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

// Returns the rough size of a cache entry. The plan is kept as bytes and as values, and the values
// are several times as large as the bytes.
int64_t SizeOf(const Program& program, absl::Span<const ValueDescriptor> operands,
               const PreparedPlan& prepared) {
  constexpr int64_t kPerByte = 8;
  constexpr int64_t kPerPart = 256;
  const size_t parts = program.ops.size() + operands.size() + 4;
  return static_cast<int64_t>(prepared.bytes.size()) * kPerByte +
         static_cast<int64_t>(parts) * kPerPart;
}

const Program& ProgramOf(const Program& own, const PreparedPlan& prepared) {
  return prepared.symbolic == nullptr ? own : prepared.symbolic->program;
}

// Returns the plan of a program for the operands, without its symbolic program.
absl::StatusOr<std::shared_ptr<PreparedPlan>> MakePlan(const Program& program,
                                                       absl::Span<const ValueDescriptor> operands,
                                                       const PlanTarget& target) {
  SHARDMESH_ASSIGN_OR_RETURN(Plan plan, PlanProgram(program, operands, target));
  auto prepared = std::make_shared<PreparedPlan>();
  prepared->bytes = rpc::PlanBytes(plan);
  prepared->hash = Sha256(prepared->bytes);
  prepared->plan = std::move(plan);
  prepared->links = target.links;
  prepared->kernels = target.kernels;
  prepared->forecast = StepForecastOf(prepared->plan, target.links, target.kernels);
  return prepared;
}

// Returns the program that is planned: that of the operands' length.
absl::StatusOr<Program> ProgramFor(const Program& program,
                                   absl::Span<const ValueDescriptor> operands) {
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t length, LengthOf(program, [&](ValueIndex operand) {
                               return operand < operands.size() ? &operands[operand].shape
                                                                : nullptr;
                             }));
  return ProgramAt(program, length);
}

std::string SymbolicHashOf(const Program& program) {
  return Sha256(StrCat("program:", rpc::ProgramBytes(program)));
}

template <typename Key, typename Entry>
void Erase(absl::flat_hash_map<Key, std::vector<Entry>>& from, const Key& key, Entry entry) {
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
  for (const Entry* const entry : found->second) {
    if (entry->prepared->plan.mesh_revision == target.mesh_revision &&
        entry->prepared->plan.mesh_id == target.mesh_id &&
        entry->prepared->links.is_measured == target.links.is_measured &&
        entry->prepared->kernels.is_measured == target.kernels.is_measured &&
        AreAlike(entry->prepared->links, target.links) &&
        AreAlike(entry->prepared->kernels, target.kernels) &&
        absl::MakeConstSpan(entry->operands) == operands) {
      const Program& own = ProgramOf(entry->program, *entry->prepared);
      if (&own == &program || own == program) return Use(entry);
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
  std::shared_ptr<PreparedPlan> prepared;
  if (program.symbol.has_value()) {
    SHARDMESH_ASSIGN_OR_RETURN(const Program at_length, ProgramFor(program, operands));
    SHARDMESH_ASSIGN_OR_RETURN(prepared, MakePlan(at_length, operands, target));
    std::string symbolic_hash = SymbolicHashOf(program);
    prepared->symbolic = FindSymbolic(symbolic_hash);
    if (prepared->symbolic == nullptr) {
      prepared->symbolic = std::make_shared<const SymbolicProgram>(
          SymbolicProgram{.program = program, .hash = std::move(symbolic_hash)});
    }
  } else {
    SHARDMESH_ASSIGN_OR_RETURN(prepared, MakePlan(program, operands, target));
  }

  absl::MutexLock lock(&mutex_);
  if (auto known = Known(digest, program, operands, target); known != nullptr) {
    return known;  // another thread planned the same program meanwhile
  }
  const int64_t bytes = SizeOf(program, operands, *prepared);
  auto entry = std::make_unique<const Entry>(
      Entry{.program = prepared->symbolic == nullptr ? program : Program(),
            .operands = {operands.begin(), operands.end()},
            .prepared = prepared,
            .caller = std::string(caller),
            .digest = digest});
  const Entry* const added = entry.get();
  by_question_[digest].push_back(added);
  by_hash_[prepared->hash].push_back(added);
  if (prepared->symbolic != nullptr) {
    by_symbolic_hash_[prepared->symbolic->hash].push_back(added);
  }
  Plans::Forgotten none;
  callers_.try_emplace(added->caller, Plans::Limits{})
      .first->second.Add(added, std::move(entry), &none, static_cast<size_t>(bytes));
  bytes_ += bytes;
  while (bytes_ > options_.max_bytes) {
    ForgetOldestOf(std::max_element(
        callers_.begin(), callers_.end(),
        [](const auto& a, const auto& b) { return a.second.weight() < b.second.weight(); }));
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
  return Use(found->second.back());
}

std::shared_ptr<const SymbolicProgram> Planner::FindSymbolic(std::string_view hash) const {
  absl::MutexLock lock(&mutex_);
  const auto found = by_symbolic_hash_.find(std::string(hash));
  return found == by_symbolic_hash_.end() ? nullptr : found->second.back()->prepared->symbolic;
}

std::shared_ptr<const PreparedPlan> Planner::Use(const Entry* entry) {
  callers_.find(entry->caller)->second.Find(entry);
  std::vector<const Entry*>& same_plan = by_hash_.find(entry->prepared->hash)->second;
  std::iter_swap(std::find(same_plan.begin(), same_plan.end(), entry), same_plan.end() - 1);
  return entry->prepared;
}

void Planner::ForgetOldestOf(Callers::iterator caller) {
  Plans& plans = caller->second;
  bytes_ -= static_cast<int64_t>(plans.weight());
  const std::unique_ptr<const Entry> oldest = plans.ForgetOldest();
  bytes_ += static_cast<int64_t>(plans.weight());
  Erase(by_question_, oldest->digest, oldest.get());
  Erase(by_hash_, oldest->prepared->hash, oldest.get());
  if (const auto& symbolic = oldest->prepared->symbolic; symbolic != nullptr) {
    Erase(by_symbolic_hash_, symbolic->hash, oldest.get());
  }
  if (plans.size() == 0) callers_.erase(caller);
}

int64_t Planner::size_bytes() const {
  absl::MutexLock lock(&mutex_);
  return bytes_;
}

}  // namespace shardmesh::server
