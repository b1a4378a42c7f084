// Selects the arrays of a reshard, resolves their new layouts, and adds up bytes and memory.
#include "server/reshard/reshard_planning.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "process/random_bytes.h"
#include "rpc/codec/status.h"
#include "server/reshard/partial_sums.h"
#include "server/reshard/short_ranks.h"
#include "server/reshard/worker_loads.h"
#include "server/steps/auxiliary_mesh.h"
#include "server/steps/committed_bytes.h"
#include "sharding/mesh.h"
#include "sharding/reshard/plan.h"
#include "status/byte_text.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"

namespace shardmesh::server {
namespace {

// Number of arrays between two looks at `is_cancelled`.
constexpr size_t kLookEvery = 16;

// Names the array in messages.
std::string TitleOf(const SelectedArray& array) {
  return array.name.name.empty() ? StrCat("array ", array.array->definition.descriptor.array_id)
                                 : StrCat("array ", PythonRepr(array.name.name));
}

// Adds the array to the error, unless the error names it already.
absl::Status About(const SelectedArray& array, const absl::Status& status) {
  const std::string title = TitleOf(array);
  return ToStd(status.message()).find(title) == std::string::npos ? WithContext(status, title)
                                                                  : status;
}

absl::Status NothingMoved() {
  return absl::CancelledError("the call was cancelled before anything moved");
}

absl::Status TooManyArrays(int64_t have) {
  return WithReason(
      absl::ResourceExhaustedError(
          StrCat("a reshard moves at most ", kMaxReshardedArrays, " arrays; give a longer prefix")),
      Reason::kLimitExceeded, {{fact::kHave, have}, {fact::kLimit, kMaxReshardedArrays}});
}

// Calls back for each name, in their order, until the callback returns false.
void ForEachName(const ArrayRegistry& registry,
                 const std::function<bool(ArrayRegistry::NamedArray)>& callback) {
  constexpr int64_t kPage = 1'000;
  std::string after;
  for (bool is_last = false; !is_last;) {
    std::vector<ArrayRegistry::NamedArray> page = registry.ListNames("", after, kPage);
    is_last = std::ssize(page) < kPage;
    for (ArrayRegistry::NamedArray& named : page) {
      after = named.name.name;
      if (!callback(std::move(named))) return;
    }
  }
}

// Returns the named arrays of the mesh that the call moves, by their first names.
std::vector<SelectedArray> SelectOnMesh(const ArrayRegistry& registry, const ReshardCall& call) {
  std::vector<SelectedArray> selected;
  std::set<std::string, std::less<>> seen;
  ForEachName(registry, [&](ArrayRegistry::NamedArray named) {
    const ArrayDescriptor& descriptor = named.array->definition.descriptor;
    if (descriptor.mesh_id != call.from_mesh) return true;
    if (call.only_partial_sums && !HasPartialSums(descriptor)) return true;
    if (!seen.insert(named.name.array_id).second) return true;
    ArrayPtr companion = CompanionOf(registry, *named.array);
    selected.push_back({.array = std::move(named.array),
                        .name = std::move(named.name),
                        .companion = std::move(companion)});
    return std::ssize(selected) < kMaxReshardedArrays;
  });
  return selected;
}

// Adds the further names of the items' arrays.
void AddAliases(const ArrayRegistry& registry, std::vector<ReshardItem>* items) {
  std::map<std::string_view, ReshardItem*> by_id;
  for (ReshardItem& item : *items) by_id.emplace(item.source.name.array_id, &item);
  ForEachName(registry, [&by_id](ArrayRegistry::NamedArray named) {
    const auto found = by_id.find(named.name.array_id);
    if (found != by_id.end() && found->second->source.name.name != named.name.name) {
      found->second->aliases.push_back(std::move(named.name));
    }
    return true;
  });
}

// Returns the arrays to move, by name.
absl::StatusOr<std::vector<SelectedArray>> SelectArrays(const ReshardPlanParts& parts,
                                                        const ReshardCall& call) {
  std::vector<SelectedArray> selected;
  if (!call.from_mesh.empty()) return SelectOnMesh(*parts.registry, call);
  if (call.array.has_value()) {
    auto found = Select(*parts.registry, *call.array, *parts.recovery);
    if (!found.ok()) return rpc::WithField(found.status(), "array");
    selected.push_back(*std::move(found));
    return selected;
  }
  constexpr int64_t kPage = 1'000;
  std::string after;
  for (bool is_last = false; !is_last;) {
    std::vector<ArrayRegistry::NamedArray> page =
        parts.registry->ListNames(call.prefix, after, kPage);
    is_last = std::ssize(page) < kPage;
    for (ArrayRegistry::NamedArray& named : page) {
      after = named.name.name;
      ArrayPtr companion = CompanionOf(*parts.registry, *named.array);
      selected.push_back({.array = std::move(named.array),
                          .name = std::move(named.name),
                          .companion = std::move(companion)});
    }
    if (std::ssize(selected) > kMaxReshardedArrays) return TooManyArrays(std::ssize(selected));
  }
  if (selected.empty()) {
    return rpc::WithField(
        WithReason(absl::NotFoundError(StrCat("no array has a name that begins with ",
                                              PythonRepr(call.prefix),
                                              "; `shardmesh ls` lists the names")),
                   Reason::kNotFound, {{fact::kKind, "array"}, {fact::kName, call.prefix}}),
        "prefix");
  }
  return selected;
}

absl::Status CheckSource(const ReshardPlanParts& parts, const SelectedArray& selected) {
  const Array& array = *selected.array;
  const ArrayDescriptor& descriptor = array.definition.descriptor;
  if (array.state == ArrayState::kDegraded) {
    const std::shared_ptr<const MembershipView> view = parts.put.membership->view();
    if (!descriptor.spec.unreduced().empty()) {
      return Degraded(selected, array.missing_ranks, *view, *parts.recovery);
    }
    // Workers read from other replicas what a rank lacks, and from the companion what all lack.
    SHARDMESH_RETURN_IF_ERROR(
        FindHoldersInBoth(selected, Tile::Whole(descriptor.shape), *view, *parts.recovery)
            .status());
  }
  return absl::OkStatus();
}

// Whether the call names no layout: each new array gets that of the old array.
bool KeepsLayout(const ReshardCall& call) {
  return !call.spec.has_value() && !call.has_rules && !call.axes.has_value() && call.preset.empty();
}

// Whether the new array gets the cut points of the old one. They belong to the effective spec: the
// requested one may have axes that a correction has dropped.
bool KeepsCutPoints(const ReshardCall& call, const ArrayDefinition& source) {
  return KeepsLayout(call) && call.cut_points == nullptr && call.uneven == UnevenCuts::kEqualOnly &&
         !source.descriptor.cut_points.empty();
}

// Returns the tensor of a put that would make the new array. A layout that the call does not give
// is that of the old array, without its unreduced axes.
absl::StatusOr<PutTensor> TensorOf(const ReshardCall& call, const SelectedArray& selected) {
  const ArrayDefinition& definition = selected.array->definition;
  PutTensor tensor{.name = selected.name.name,
                   .dtype = definition.descriptor.dtype,
                   .shape = definition.descriptor.shape,
                   .axes = call.axes,
                   .preset = call.preset};
  if (call.layout_of != nullptr) {
    SHARDMESH_ASSIGN_OR_RETURN(PlacedLayout layout, call.layout_of(definition));
    tensor.spec = std::move(layout.spec);
    tensor.cut_points = std::move(layout.cut_points);
    return tensor;
  }
  if (call.cut_points != nullptr) {
    auto cut_points = call.cut_points(tensor.shape);
    if (!cut_points.ok()) return rpc::WithField(cut_points.status(), "cut_points");
    tensor.cut_points = *std::move(cut_points);
  }
  if (call.spec.has_value()) {
    if (const auto axes = call.spec->unreduced(); !axes.empty()) {
      return rpc::BadField("spec", StrCat("leaves ", StrJoin(axes, ", "),
                                          " unreduced, and the new layout cannot be a partial sum; "
                                          "give the same spec without unreduced axes"));
    }
    tensor.spec = call.spec;
  } else if (KeepsCutPoints(call, definition)) {
    tensor.spec = WithoutUnreduced(definition.descriptor.spec);
    tensor.cut_points = definition.descriptor.cut_points;
  } else if (KeepsLayout(call)) {
    tensor.spec = WithoutUnreduced(definition.requested_spec.value_or(definition.descriptor.spec));
  }
  return tensor;
}

absl::Status SetName(const ReshardCall& call, ReshardItem* item) {
  const NameEntry& own = item->source.name;
  item->name = call.name.empty() ? own.name : call.name;
  if (item->name.empty()) {
    return call.expected_version.has_value()
               ? rpc::BadField("precondition", "is set, and the result has no name; set `name`")
               : absl::OkStatus();
  }
  item->expected_version = call.expected_version;
  if (item->name != own.name) return absl::OkStatus();
  // If another call moves the name meanwhile, this move would undo that call's.
  if (call.array.has_value() && call.array->version != 0) {
    return rpc::BadField("name",
                         StrCat("is not set, and version ", call.array->version, " of ",
                                PythonRepr(own.name), " is not its current one; name the result"));
  }
  if (!item->expected_version.has_value()) item->expected_version = own.version;
  return absl::OkStatus();
}

// Gives the new array the origin of the old one, of which it has the elements.
void KeepOrigin(ReshardItem* item) {
  const ArrayDefinition& from = item->source.array->definition;
  if (!from.descriptor.spec.unreduced().empty()) return;  // the reshard adds up partial sums
  item->target.source = from.source;
  item->target.sent_from = from.sent_from;
}

std::vector<std::string> WorkersOf(const MembershipView& view, const std::string& mesh_id) {
  const MeshRanks* const ranks = view.FindMesh(mesh_id);
  return ranks == nullptr ? std::vector<std::string>() : ranks->identities;
}

// Plans the step that adds up the partial sums of the old array before the array leaves its mesh.
absl::Status PlanSums(const std::function<bool()>& is_cancelled, ReshardItem* item) {
  const ArrayDescriptor& partial = item->source.array->definition.descriptor;
  SHARDMESH_ASSIGN_OR_RETURN(item->sums, SumsOf(partial));
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling source, partial.Tiling());
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling destination, item->sums->Tiling());
  SHARDMESH_ASSIGN_OR_RETURN(const ReshardPlan plan, ReshardPlan::Create(source, destination));
  SHARDMESH_ASSIGN_OR_RETURN(const ReshardTotals totals, plan.Totals(is_cancelled));
  SHARDMESH_ASSIGN_OR_RETURN(item->summed_bytes, PackedSizeBytes(partial.dtype, totals.need));
  item->copies_bytes = MoveCopiesBytes(plan, partial.dtype, totals);
  return absl::OkStatus();
}

// Compares the two layouts: sets the bytes of the move, and whether there is nothing to move.
absl::Status CompareLayouts(const MembershipView& view, const std::function<bool()>& is_cancelled,
                            ReshardItem* item) {
  const ArrayDescriptor& old = item->source.array->definition.descriptor;
  if (HasPartialSums(old) && !item->stays_on_mesh()) {
    SHARDMESH_RETURN_IF_ERROR(PlanSums(is_cancelled, item));
  }
  const ArrayDescriptor& from = item->sums.has_value() ? *item->sums : old;
  const ArrayDescriptor& to = item->target.descriptor;
  SHARDMESH_ASSIGN_OR_RETURN(Tiling source, from.Tiling());
  SHARDMESH_ASSIGN_OR_RETURN(Tiling destination, to.Tiling());
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t size_bytes, to.SizeBytes());
  if (__builtin_mul_overflow(size_bytes, destination.replica_count(), &item->total_bytes)) {
    item->total_bytes = std::numeric_limits<int64_t>::max();
  }
  if (!item->stays_on_mesh()) {
    const WorkerNumbers numbers =
        NumberWorkers(WorkersOf(view, from.mesh_id), WorkersOf(view, to.mesh_id));
    if (std::ssize(numbers.sources) == source.mesh().size() &&
        std::ssize(numbers.destinations) == destination.mesh().size()) {
      SHARDMESH_ASSIGN_OR_RETURN(source, OnWorkers(from, numbers.sources));
      SHARDMESH_ASSIGN_OR_RETURN(destination, OnWorkers(to, numbers.destinations));
    }
  }
  auto plan = ReshardPlan::Create(source, destination);
  if (!plan.ok()) return rpc::WithField(plan.status(), "spec");
  item->is_skipped =
      item->stays_on_mesh() && from.mesh == to.mesh && plan->pattern() == ReshardPattern::kNoop;
  if (item->is_skipped) {
    item->total_bytes = 0;
    return absl::OkStatus();
  }
  if (!to.spec.unreduced().empty()) {
    return rpc::BadField("spec",
                         StrCat("keeps partial sums along ", StrJoin(to.spec.unreduced(), ", "),
                                ", and a reshard adds them up; leave these axes out"));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const ReshardTotals totals, plan->Totals(is_cancelled));
  SHARDMESH_ASSIGN_OR_RETURN(item->moved_bytes, MoveBytes(*plan, to.dtype, totals));
  item->moved_bytes = AddCapped(item->moved_bytes, item->summed_bytes);
  if (item->moves_as_step()) item->copies_bytes = MoveCopiesBytes(*plan, to.dtype, totals);
  return absl::OkStatus();
}

// Makes the items of the arrays that go to one mesh.
class MeshPlans {
 public:
  MeshPlans(const ReshardPlanParts& parts, const ReshardCall& call,
            const std::function<bool()>& is_cancelled)
      : parts_(parts), call_(call), is_cancelled_(is_cancelled) {}

  absl::StatusOr<ReshardItem> Plan(SelectedArray selected) {
    SHARDMESH_RETURN_IF_ERROR(CheckNotState(*selected.array));
    const std::string& mesh_id =
        call_.mesh_id.empty() ? selected.array->definition.descriptor.mesh_id : call_.mesh_id;
    SHARDMESH_ASSIGN_OR_RETURN(PutPlan * plan, PlanOf(mesh_id));
    SHARDMESH_ASSIGN_OR_RETURN(PutTensor tensor, TensorOf(call_, selected));
    SHARDMESH_RETURN_IF_ERROR(plan->TakeTensor(std::move(tensor), is_cancelled_));
    PutPlan::Planned planned = plan->TakePlanned();
    ReshardItem item{.source = std::move(selected),
                     .target = std::move(planned.items.front().definition),
                     .corrections = std::move(planned.corrections.front())};
    const ArrayDefinition& from = item.source.array->definition;
    if (call_.layout_of != nullptr) {
      SHARDMESH_ASSIGN_OR_RETURN(PlacedLayout layout, call_.layout_of(from));
      item.target.requested_spec = std::move(layout.requested_spec);
    } else if (KeepsCutPoints(call_, from)) {
      item.target.requested_spec = from.requested_spec;
    }
    KeepOrigin(&item);
    item.target.replicas = from.replicas;
    if (from.replicas > 1) {
      item.source_companion = parts_.registry->FindTwin(from.descriptor.array_id);
    }
    SHARDMESH_RETURN_IF_ERROR(SetName(call_, &item));
    return item;
  }

 private:
  absl::StatusOr<PutPlan*> PlanOf(const std::string& mesh_id) {
    std::unique_ptr<PutPlan>& plan = plans_[mesh_id];
    if (plan == nullptr) {
      auto begun = std::make_unique<PutPlan>(parts_.put);
      SHARDMESH_RETURN_IF_ERROR(begun->TakeHeader(
          {.session_id = call_.session_id,
           .mesh_id = mesh_id,
           .strict = call_.strict,
           .mode = call_.mode,
           .compatibility = call_.compatibility,
           .path = "",
           .uneven = call_.uneven,
           .weights = call_.weights,
           .may_be_resize_mesh = call_.mesh_id.empty() || !call_.operation_id.empty()},
          call_.caller,
          [this](const Definitions& state) { return call_.rule_source(state, is_cancelled_); },
          call_.profile_source));
      plan = std::move(begun);
    }
    return plan.get();
  }

  const ReshardPlanParts& parts_;
  const ReshardCall& call_;
  const std::function<bool()>& is_cancelled_;
  std::map<std::string, std::unique_ptr<PutPlan>> plans_;
};

// Marks the items after which nothing holds the old array: the last one of each array, if the items
// take all names from the array, and no pin stays. Exception: the pin of the session goes if the
// call selects the array by its id.
void MarkFreed(const ReshardPlanParts& parts, const ReshardCall& call,
               std::vector<ReshardItem>* items) {
  struct Taken {
    int64_t names = 0;
    int64_t pins = 0;
    ReshardItem* last = nullptr;
  };
  std::map<std::string_view, Taken> by_array;
  for (ReshardItem& item : *items) {
    if (item.is_skipped) continue;
    const std::string& array_id = item.source.array->definition.descriptor.array_id;
    Taken& taken = by_array[array_id];
    taken.last = &item;
    if (!item.source.name.name.empty()) {
      taken.names += 1 + std::ssize(item.aliases);
    } else if (parts.put.sessions->PinsArray(call.session_id, array_id).value_or(false)) {
      taken.pins = 1;
    }
  }
  for (const auto& [array_id, taken] : by_array) {
    const ArrayRegistry::Holds holds = parts.registry->HoldsOf(array_id);
    taken.last->takes_all_names = holds.names <= taken.names;
    taken.last->frees_source = taken.last->takes_all_names && holds.pins <= taken.pins;
  }
}

// Adds the load of the second replica that the new array gets, if it wants one.
absl::Status TakeReplica(const MembershipView& view, const ArrayDefinition& target,
                         WorkerLoads* loads) {
  const std::vector<std::string> workers = WorkersOf(view, target.descriptor.mesh_id);
  if (target.replicas < 2 || workers.size() < 2) return absl::OkStatus();
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, target.descriptor.Tiling());
  const std::vector<std::string> hosts = HostsOf(view, workers);
  if (std::ssize(workers) != tiling.mesh().size() || IsReplicatedBySpec(tiling, hosts)) {
    return absl::OkStatus();
  }
  return loads->Take(target.descriptor, ReplicaWorkers(workers, hosts));
}

// How the old arrays of the items leave the workers.
struct SourceEnds {
  bool are_released = false;  // at the commit of the new array, if the item frees the old one
  // For each item, whether the old array leaves memory before; empty: none does.
  std::vector<bool> are_unloaded = {};
};

// The old array and its companion leave the memory of their workers.
absl::Status DropSource(const MembershipView& view, const ReshardItem& item, WorkerLoads* loads) {
  if (item.source_companion != nullptr) {
    const ArrayDescriptor& copy = item.source_companion->definition.descriptor;
    SHARDMESH_RETURN_IF_ERROR(
        loads->Drop(copy, WorkersOf(view, copy.mesh_id), item.source_companion->missing_ranks));
  }
  const Array& source = *item.source.array;
  const ArrayDescriptor& from = source.definition.descriptor;
  return loads->Drop(from, WorkersOf(view, from.mesh_id), source.missing_ranks);
}

// The workers make the new array, and copies to send it, unless the old array leaves memory before:
// then no step moves it. If partial sums are added up first, the sums and the copies are on the old
// mesh, and the workers drop the sums when they have the new array. Second replicas count, except
// in a move that is a part of a resize: PlanResize has counted these.
absl::Status TakeTarget(const MembershipView& view, const ReshardCall& call,
                        const ReshardItem& item, bool is_unloaded, WorkerLoads* loads) {
  const ArrayDescriptor& to = item.target.descriptor;
  const std::vector<std::string> workers = WorkersOf(view, to.mesh_id);
  if (item.sums.has_value()) {
    const std::vector<std::string> summing = WorkersOf(view, item.sums->mesh_id);
    SHARDMESH_RETURN_IF_ERROR(loads->Take(*item.sums, summing, item.copies_bytes));
    SHARDMESH_RETURN_IF_ERROR(loads->Take(to, workers));
    SHARDMESH_RETURN_IF_ERROR(loads->Drop(*item.sums, summing));
  } else {
    SHARDMESH_RETURN_IF_ERROR(loads->Take(to, workers, is_unloaded ? 0 : item.copies_bytes));
  }
  return call.from_mesh.empty() ? TakeReplica(view, item.target, loads) : absl::OkStatus();
}

// Returns the loads of the items, which move in their order.
absl::StatusOr<WorkerLoads> LoadsOf(const MembershipView& view, const ReshardCall& call,
                                    const PlannedReshard& plan, const SourceEnds& sources) {
  const std::vector<ReshardItem>& items = plan.items;
  WorkerLoads loads(ReshardsAtOnce(items, sources.are_released, plan.move_memory_bytes));
  for (size_t i = 0; i < items.size(); ++i) {
    const ReshardItem& item = items[i];
    if (item.is_skipped) continue;
    const bool is_unloaded = !sources.are_unloaded.empty() && sources.are_unloaded[i];
    if (is_unloaded) SHARDMESH_RETURN_IF_ERROR(DropSource(view, item, &loads));
    SHARDMESH_RETURN_IF_ERROR(TakeTarget(view, call, item, is_unloaded, &loads));
    if (is_unloaded || !sources.are_released || !item.frees_source) continue;
    SHARDMESH_RETURN_IF_ERROR(DropSource(view, item, &loads));
  }
  return loads;
}

// Chooses the items whose old arrays leave memory before the new ones are made, with
// release_source: those that do not fit beside their new arrays when it is their turn, if
// `may_unload` allows it. Returns a flag for each item.
template <typename MayUnload>
absl::StatusOr<std::vector<bool>> ChooseUnloads(const MembershipView& view, const ReshardCall& call,
                                                const std::vector<ReshardItem>& items,
                                                const std::vector<ReshardMemoryNeed>& memory,
                                                const MayUnload& may_unload) {
  std::map<std::string, int64_t> limits;
  for (const ReshardMemoryNeed& each : memory) limits[each.identity] = each.have_bytes;
  std::vector<bool> chosen(items.size(), false);
  WorkerLoads loads;
  for (size_t i = 0; i < items.size(); ++i) {
    const ReshardItem& item = items[i];
    if (item.is_skipped) continue;
    WorkerLoads target;
    SHARDMESH_RETURN_IF_ERROR(TakeTarget(view, call, item, /*is_unloaded=*/false, &target));
    chosen[i] = may_unload(item) && loads.WouldExceed(target, limits);
    if (chosen[i]) SHARDMESH_RETURN_IF_ERROR(DropSource(view, item, &loads));
    SHARDMESH_RETURN_IF_ERROR(TakeTarget(view, call, item, chosen[i], &loads));
    if (!chosen[i] && item.frees_source) {
      SHARDMESH_RETURN_IF_ERROR(DropSource(view, item, &loads));
    }
  }
  return chosen;
}

void SetNeeds(const WorkerLoads& loads, std::vector<ReshardMemoryNeed>* memory) {
  for (ReshardMemoryNeed& each : *memory) each.need_bytes = loads.PeakOf(each.identity);
}

absl::Status AddMemory(const ReshardPlanParts& parts, const MembershipView& view,
                       const ReshardCall& call, const std::function<bool()>& is_cancelled,
                       PlannedReshard* plan) {
  CommittedBytes committed(view, *parts.registry);
  if (const absl::Status added = committed.AddAll(*parts.registry, is_cancelled); !added.ok()) {
    return absl::IsCancelled(added) ? NothingMoved() : added;
  }
  std::map<std::string, const MeshRanks*> meshes;
  for (const ReshardItem& item : plan->items) {
    if (item.is_skipped) continue;
    const std::string& mesh_id = item.target.descriptor.mesh_id;
    meshes.try_emplace(mesh_id, view.FindMesh(mesh_id));
    if (!item.sums.has_value()) continue;
    meshes.try_emplace(item.sums->mesh_id, view.FindMesh(item.sums->mesh_id));
  }
  std::vector<ReshardMemoryNeed>& memory = plan->outline.memory;
  for (const auto& [mesh_id, ranks] : meshes) {
    if (ranks == nullptr) continue;
    for (size_t rank = 0; rank < ranks->identities.size(); ++rank) {
      const std::string& identity = ranks->identities[rank];
      const WorkerStatus* const worker = view.FindWorker(identity);
      if (worker == nullptr) continue;
      memory.push_back({.mesh_id = mesh_id,
                        .rank = static_cast<int64_t>(rank),
                        .identity = identity,
                        .have_bytes = committed.LeftOn(identity, *worker),
                        .capacity_bytes = worker->info.capacity_bytes});
    }
  }
  SourceEnds sources{.are_released = call.release_source};
  SHARDMESH_ASSIGN_OR_RETURN(WorkerLoads loads, LoadsOf(view, call, *plan, sources));
  SetNeeds(loads, &memory);
  if (!call.release_source || ShortRanks(memory).empty()) return absl::OkStatus();
  SHARDMESH_ASSIGN_OR_RETURN(sources.are_unloaded, ChooseUnloads(view, call, plan->items, memory,
                                                                 [](const ReshardItem& item) {
                                                                   return item.can_unload_source();
                                                                 }));
  SHARDMESH_ASSIGN_OR_RETURN(loads, LoadsOf(view, call, *plan, sources));
  SetNeeds(loads, &memory);
  for (size_t i = 0; i < plan->items.size(); ++i) {
    plan->items[i].unloads_source = sources.are_unloaded[i];
  }
  return absl::OkStatus();
}

}  // namespace

WorkerNumbers NumberWorkers(const std::vector<std::string>& sources,
                            const std::vector<std::string>& destinations) {
  std::map<std::string_view, int64_t> numbers;
  const auto number = [&numbers](const std::vector<std::string>& workers) {
    std::vector<int64_t> ids;
    ids.reserve(workers.size());
    for (const std::string& worker : workers) {
      ids.push_back(numbers.try_emplace(worker, std::ssize(numbers)).first->second);
    }
    return ids;
  };
  WorkerNumbers result;
  result.sources = number(sources);
  result.destinations = number(destinations);
  return result;
}

absl::StatusOr<Tiling> OnWorkers(const ArrayDescriptor& descriptor,
                                 const std::vector<int64_t>& numbers) {
  const auto axes = descriptor.mesh.axes();
  SHARDMESH_ASSIGN_OR_RETURN(const Mesh mesh,
                             Mesh::Create({axes.begin(), axes.end()},
                                          MeshOptions{.device_count = {}, .global_ids = numbers}));
  return Tiling::Create(mesh, descriptor.spec, descriptor.shape, descriptor.cut_points);
}

absl::StatusOr<PlannedReshard> PlanReshards(const ReshardPlanParts& parts, const ReshardCall& call,
                                            const std::function<bool()>& is_cancelled) {
  if (!call.array.has_value() && (!call.name.empty() || call.expected_version.has_value())) {
    return rpc::BadField(call.name.empty() ? "precondition" : "name",
                         "goes with one array; with a prefix each array keeps its own name");
  }
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<SelectedArray> arrays, SelectArrays(parts, call));
  PlannedReshard plan{.move_memory_bytes = parts.move_memory_bytes};
  plan.outline.array_count = std::ssize(arrays);
  MeshPlans plans(parts, call, is_cancelled);
  const std::shared_ptr<const MembershipView> view = parts.put.membership->view();
  for (size_t i = 0; i < arrays.size(); ++i) {
    const SelectedArray array = arrays[i];
    SHARDMESH_RETURN_IF_ERROR(CheckSource(parts, array));
    absl::StatusOr<ReshardItem> item = plans.Plan(std::move(arrays[i]));
    if (!item.ok()) return About(array, item.status());
    // Late calls too get the errors above, which name the worker that a mesh or an array waits for.
    if (i % kLookEvery == 0 && is_cancelled()) return NothingMoved();
    if (const absl::Status compared = CompareLayouts(*view, is_cancelled, &*item); !compared.ok()) {
      return About(array, compared);
    }
    if (!item->name.empty()) {
      SHARDMESH_RETURN_IF_ERROR(
          parts.registry->CheckNameMove({.name = item->name,
                                         .array_id = array.array->definition.descriptor.array_id,
                                         .expected_version = item->expected_version}));
    }
    plan.outline.total_bytes = AddCapped(plan.outline.total_bytes, item->total_bytes);
    plan.items.push_back(*std::move(item));
  }
  if (!call.from_mesh.empty()) AddAliases(*parts.registry, &plan.items);
  MarkFreed(parts, call, &plan.items);
  SHARDMESH_RETURN_IF_ERROR(AddMemory(parts, *view, call, is_cancelled, &plan));
  return plan;
}

size_t ReshardsAtOnce(const std::vector<ReshardItem>& items, bool release_source,
                      int64_t move_memory_bytes) {
  if (release_source) return 1;
  int64_t at_once = kReshardsAtOnce;
  for (const ReshardItem& item : items) {
    // The array of the sums needs memory while the item moves, beside the old and the new one.
    if (item.sums.has_value()) return 1;
    // Workers that fill tiles read as many of them at once as they have threads for it, however
    // many arrays move.
    if (item.is_skipped || !item.moves_as_step()) continue;
    at_once = std::min(at_once, MovesAtOnce(item.target.descriptor.mesh.size(), move_memory_bytes));
  }
  return static_cast<size_t>(at_once);
}

absl::Status CheckReshardMemory(const PlannedReshard& plan, const ReshardCall& call,
                                const Membership& membership) {
  const std::vector<ReshardMemoryNeed>& memory = plan.outline.memory;
  const std::vector<ReshardMemoryNeed> short_ranks = ShortRanks(memory);
  if (short_ranks.empty()) return absl::OkStatus();
  const std::shared_ptr<const MembershipView> view = membership.view();
  // Returns what each worker needs if old arrays go at the commits of the new ones, and before that
  // leave memory where `may_unload` allows it.
  const auto released_with = [&](const auto& may_unload) -> absl::StatusOr<WorkerLoads> {
    SourceEnds sources{.are_released = true};
    SHARDMESH_ASSIGN_OR_RETURN(sources.are_unloaded,
                               ChooseUnloads(*view, call, plan.items, memory, may_unload));
    return LoadsOf(*view, call, plan, sources);
  };
  SHARDMESH_ASSIGN_OR_RETURN(const WorkerLoads released, released_with([](const ReshardItem& item) {
                               return item.can_unload_source();
                             }));
  SHARDMESH_ASSIGN_OR_RETURN(const WorkerLoads released_on_disk,
                             released_with([](const ReshardItem& item) {
                               return item.takes_all_names && !item.sums.has_value();
                             }));
  // Returns the ranks that would be short if each worker needed what `need_of` says.
  const auto short_with = [&memory](const auto& need_of) {
    std::vector<ReshardMemoryNeed> other = memory;
    for (ReshardMemoryNeed& each : other) each.need_bytes = need_of(each.identity);
    return ShortRanks(other);
  };
  const auto with_release = [&](const std::string& worker) { return released.PeakOf(worker); };
  const auto on_disk = [&](const std::string& worker) { return released_on_disk.PeakOf(worker); };
  const auto alone = [&](const std::string& worker) { return released.LargestOf(worker); };
  const std::vector<ReshardMemoryNeed> short_released =
      call.release_source ? short_ranks : short_with(with_release);
  const bool has_sums = std::any_of(plan.items.begin(), plan.items.end(),
                                    [](const ReshardItem& item) { return item.sums.has_value(); });
  std::vector<std::string> advice;
  if (short_released.empty()) {
    int64_t most_bytes = 0;
    for (const ReshardMemoryNeed& each : short_ranks) {
      most_bytes = std::max(most_bytes, with_release(each.identity));
    }
    advice.push_back(StrCat("with release_source (--release-source) the reshard needs at most ",
                            FormatBytes(most_bytes), " there, and fits"));
  } else if (!call.release_source && plan.items.size() > 1 && !has_sums &&
             short_with(alone).empty()) {
    // With release_source, the call does this already. The sums of partial sums lie beside their
    // new array, so the largest part of one array does not say whether it fits.
    advice.push_back(
        "each array by itself fits: reshard them one after the other, and release the old ones "
        "between");
  }
  if (!short_released.empty() && short_with(on_disk).empty()) {
    advice.push_back(
        "with release_source (--release-source) it fits if the old arrays are on disk (workers "
        "with --data-dir), because they can leave memory before the new ones are made; those in "
        "memory only must fit beside the new ones");
  }
  advice.push_back("release arrays");
  const std::string memory_flag = MemoryFlagFor(short_ranks);
  advice.push_back(StrCat("start these workers with ", memory_flag, " or more"));
  if (!short_released.empty() && MemoryFlagFor(short_released) != memory_flag) {
    StrAppend(&advice.back(), "; with --release-source: ", MemoryFlagFor(short_released));
  }
  return TooLittleMemory(short_ranks, "the reshard", "--plan-only", StrJoin(advice, "; or "));
}

}  // namespace shardmesh::server
