// Compares the peak of a plan with the memory that workers have left.
#include "server/steps/step_room.h"

#include <algorithm>
#include <optional>
#include <string>

#include "program/memory_plan.h"
#include "program/value_layout.h"
#include "server/steps/array_cache.h"
#include "server/steps/committed_bytes.h"
#include "sharding/tile.h"
#include "status/byte_text.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"

namespace shardmesh::server {
namespace {

struct ShortWorker {
  size_t rank = 0;
  int64_t have_bytes = 0;
  int64_t need_bytes = 0;
  int64_t capacity_bytes = 0;
};

absl::Status TooLittle(const MeshRanks& ranks, absl::Span<const ShortWorker> short_workers) {
  // The advice comes before the list: a long message is cut at its end.
  std::string message =
      StrCat("the step lacks memory on ", short_workers.size(),
             short_workers.size() == 1 ? " rank" : " ranks",
             "; release arrays, partition its operands and results over more devices, split the "
             "program, or start these workers with more --memory");
  std::vector<size_t> named;
  std::vector<std::string> identities;
  for (const ShortWorker& each : short_workers.subspan(0, kShortWorkersNamed)) {
    const std::string& identity = ranks.identities[each.rank];
    const auto [have, need] = FormatBytesApart(each.have_bytes, each.need_bytes);
    StrAppend(&message, "\n  rank ", each.rank, " (worker \"", identity, "\") has ", have, " of ",
              FormatBytes(each.capacity_bytes), " left, and needs ", need);
    named.push_back(each.rank);
    identities.push_back(identity);
  }
  if (const size_t more = short_workers.size() - named.size(); more > 0) {
    StrAppend(&message, "\n  and ", more, " more");
  }
  const ShortWorker& first = short_workers.front();
  return WithReason(absl::ResourceExhaustedError(message), Reason::kMemoryLimit,
                    {{fact::kHave, first.have_bytes},
                     {fact::kNeed, first.need_bytes},
                     {fact::kRank, StrJoin(named, ",")},
                     {fact::kIdentity, StrJoin(identities, ",")}});
}

}  // namespace

std::vector<int64_t> NeedOfStep(const Plan& plan, absl::Span<const FoundOperand> operands,
                                int64_t memory_bytes) {
  std::vector<int64_t> need(static_cast<size_t>(plan.mesh.size()), memory_bytes);
  // The cost has the largest tile of each result. Subtracts from it what a rank does not need.
  std::vector<bool> is_made_in_place(plan.values.size(), false);
  const std::vector<std::optional<ValueIndex>> results = ResultsOverOperands(plan);
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].donate && results[i].has_value()) is_made_in_place[*results[i]] = true;
  }
  // The results that have memory of their own when the step ends.
  std::vector<ValueIndex> kept = plan.outputs;
  if (!plan.updates.empty()) {
    const std::vector<std::optional<ValueIndex>> places = StatePlaces(plan);
    for (const StateUpdate& update : plan.updates) {
      if (!places[update.value].has_value()) kept.push_back(update.value);
    }
  }
  for (const ValueIndex output : kept) {
    const ValueDescriptor& value = plan.values[output];
    const bool is_in_place = is_made_in_place[output];
    if (!is_in_place && value.cut_points.empty()) continue;
    const int64_t largest_bytes = TileBytes(plan.mesh, value);
    const absl::StatusOr<Tiling> tiling = TilingOf(plan, value);
    for (size_t rank = 0; rank < need.size(); ++rank) {
      int64_t own_bytes = 0;
      if (!is_in_place && tiling.ok()) {
        own_bytes =
            BytesOf(tiling->TileOf(static_cast<DeviceId>(rank)).element_count(), value.dtype);
      }
      need[rank] = std::max<int64_t>(0, need[rank] - (largest_bytes - own_bytes));
    }
  }
  return need;
}

absl::Status CheckStepRoom(const Plan& plan, absl::Span<const FoundOperand> operands,
                           const MembershipView& view, const ArrayRegistry& registry) {
  const MeshRanks* const ranks = view.FindMesh(plan.mesh_id);
  if (ranks == nullptr) return absl::OkStatus();
  // No rank needs more than the peak. Mostly all workers have that much left, and the needs of the
  // ranks, which take a look at each instruction, are not worked out.
  const auto has_peak = [&](const std::string& identity) {
    const WorkerStatus* const worker = view.FindWorker(identity);
    return worker == nullptr ||
           plan.cost.memory_bytes <= worker->info.capacity_bytes - worker->used_bytes();
  };
  if (std::all_of(ranks->identities.begin(), ranks->identities.end(), has_peak)) {
    return absl::OkStatus();
  }
  const std::vector<int64_t> need = NeedOfStep(plan, operands, plan.cost.memory_bytes);
  const size_t size = std::min(need.size(), ranks->identities.size());
  std::vector<ShortWorker> short_workers;
  std::optional<ArrayRegistry::BytesByMesh> cached;
  for (size_t rank = 0; rank < size; ++rank) {
    const std::string& identity = ranks->identities[rank];
    const WorkerStatus* const worker = view.FindWorker(identity);
    if (worker == nullptr) continue;
    const int64_t capacity_bytes = worker->info.capacity_bytes;
    int64_t have_bytes = capacity_bytes - worker->used_bytes();
    if (need[rank] <= have_bytes) continue;
    if (!cached.has_value()) cached = registry.CachedBytes();
    have_bytes += CachedBytesOn(view, *cached, identity);
    if (need[rank] <= have_bytes) continue;
    short_workers.push_back({.rank = rank,
                             .have_bytes = have_bytes,
                             .need_bytes = need[rank],
                             .capacity_bytes = capacity_bytes});
  }
  if (short_workers.empty()) return absl::OkStatus();
  // A worker that lacks memory for the peak does with less.
  const std::vector<int64_t> least = NeedOfStep(plan, operands, LeastBytesOf(plan));
  const auto has_room = [&least](const ShortWorker& each) {
    return least[each.rank] <= each.have_bytes;
  };
  std::erase_if(short_workers, has_room);
  if (short_workers.empty()) return absl::OkStatus();
  CommittedBytes committed(view, registry);
  SHARDMESH_RETURN_IF_ERROR(committed.CountAll(registry));
  for (ShortWorker& each : short_workers) {
    const int64_t used_bytes = committed.CountedOn(ranks->identities[each.rank]);
    each.have_bytes = std::max<int64_t>(
        {0, each.have_bytes, each.capacity_bytes - std::min(used_bytes, each.capacity_bytes)});
  }
  std::erase_if(short_workers, has_room);
  if (short_workers.empty()) return absl::OkStatus();
  return TooLittle(*ranks, short_workers);
}

}  // namespace shardmesh::server
