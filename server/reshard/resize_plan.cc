// Chooses the workers of the new shape, lays out the arrays on it, and adds up bytes and memory.
#include "server/reshard/resize_plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "process/clock.h"
#include "program/move_plan.h"
#include "rpc/codec/correction_codec.h"
#include "rpc/codec/field_check.h"
#include "rpc/codec/status.h"
#include "server/reshard/partial_sums.h"
#include "server/reshard/short_ranks.h"
#include "server/reshard/worker_loads.h"
#include "server/resolve/cut_weights.h"
#include "server/state/array_selection.h"
#include "server/state/session.h"
#include "server/steps/auxiliary_mesh.h"
#include "server/steps/committed_bytes.h"
#include "sharding/correction.h"
#include "sharding/layout/resize_advice.h"
#include "sharding/mesh_definition.h"
#include "sharding/reshard/plan.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/nearest_name.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"

namespace shardmesh::server {
namespace {

constexpr int64_t kNamesOfPage = 1'000;
// The maximum number of refused arrays that one error names.
constexpr size_t kRefusalsNamed = 4;

absl::Status PlanCancelled() {
  return absl::CancelledError("the call was cancelled before anything moved");
}

const Mesh& MeshOf(const Definition& definition) {
  return std::get<MeshDefinition>(definition.value).mesh;
}

bool HasAxes(const Mesh& mesh, const std::vector<MeshAxis>& axes) {
  return std::equal(mesh.axes().begin(), mesh.axes().end(), axes.begin(), axes.end());
}

// Returns a line for each axis of the new shape that the old one lacks and that is near an axis
// that is gone: it may be a mistyped one.
std::string LinesOfMistyped(const PlannedResize& plan) {
  const auto* const old = std::get_if<MeshDefinition>(&plan.definition->value);
  if (old == nullptr) return "";
  std::vector<std::string_view> gone;
  for (const MeshAxis& axis : old->mesh.axes()) {
    if (!plan.layouts.mesh.HasAxis(axis.name)) gone.push_back(axis.name);
  }
  std::string lines;
  for (const MeshAxis& axis : plan.layouts.mesh.axes()) {
    if (old->mesh.HasAxis(axis.name)) continue;
    const std::string hint = DidYouMean(axis.name, gone);
    if (hint.empty()) continue;
    StrAppend(&lines, "\nThe mesh ", old->mesh.ToString(), " has no axis \"", axis.name, "\"",
              hint);
  }
  return lines;
}

// Returns lines with what to do, and then one line for each of the first refused arrays. The advice
// comes first because a long message is cut at its end.
std::string LinesOfRefused(const PlannedResize& plan) {
  std::string arrays;
  std::vector<Reason> reasons;
  const size_t named = std::min(plan.refusals.size(), kRefusalsNamed);
  for (size_t i = 0; i < named; ++i) {
    const ResizeRefusal& each = plan.refusals[i];
    StrAppend(&arrays, "\n  ",
              each.name.empty() ? StrCat("array ", each.array_id)
                                : StrCat("array ", PythonRepr(each.name)),
              ": ", each.error.message());
  }
  const int64_t more = plan.refusal_count - static_cast<int64_t>(named);
  if (more > 0) {
    StrAppend(&arrays, "\n  and ", more, " more; --validate-only lists them and moves nothing");
  }
  // The arrays that are not named may have other causes.
  for (const ResizeRefusal& each : plan.refusals) reasons.push_back(ReasonOf(each.error));
  std::string lines;
  if (std::find(reasons.begin(), reasons.end(), Reason::kAxisNotInMesh) != reasons.end()) {
    lines = LinesOfMistyped(plan);
  }
  for (const std::string& advice : AdviceOnResize(reasons, plan.layouts.uneven)) {
    StrAppend(&lines, "\n", advice);
  }
  return lines + arrays;
}

// Plans one call.
class Planning {
 public:
  Planning(const ReshardPlanParts& parts, const ResizeCall& call,
           const std::function<bool()>& is_cancelled)
      : parts_(parts),
        call_(call),
        is_cancelled_(is_cancelled),
        state_(parts.put.definition_store->shared_state()),
        view_(parts.put.membership->view()) {}

  absl::StatusOr<PlannedResize> Run() {
    SHARDMESH_RETURN_IF_ERROR(parts_.put.sessions->Check(call_.session_id, call_.caller));
    SHARDMESH_RETURN_IF_ERROR(FindMeshes());
    if (plan_.has_nothing_to_do()) return std::move(plan_);
    SHARDMESH_RETURN_IF_ERROR(ChooseWorkers());
    SHARDMESH_RETURN_IF_ERROR(WeighWorkers());
    plan_.ranks.resize(plan_.workers.size());
    for (size_t rank = 0; rank < plan_.ranks.size(); ++rank) {
      plan_.ranks[rank].identity = plan_.workers[rank];
    }
    SHARDMESH_RETURN_IF_ERROR(AddNamed());
    SHARDMESH_RETURN_IF_ERROR(AddNameless());
    SHARDMESH_RETURN_IF_ERROR(AddMemory());
    return std::move(plan_);
  }

 private:
  absl::Status FindMeshes() {
    if (NamesVersion(call_.mesh_id)) {
      return rpc::BadField("mesh", StrCat(PythonRepr(call_.mesh_id),
                                          " names a version; only a mesh as it is now can change"));
    }
    SHARDMESH_ASSIGN_OR_RETURN(plan_.definition,
                               state_->Find(DefinitionKind::kMesh, call_.mesh_id));
    if (const std::string_view owner = ReplicatedMeshOf(call_.mesh_id); !owner.empty()) {
      return rpc::BadField("mesh", StrCat(PythonRepr(call_.mesh_id),
                                          " is the auxiliary mesh for second replicas of "
                                          "arrays on \"",
                                          owner, "\", and follows that mesh; resize that one"));
    }
    if (const std::string_view owner = ResizedMeshOf(call_.mesh_id); !owner.empty()) {
      return rpc::BadField(
          "mesh", StrCat(PythonRepr(call_.mesh_id), " is the auxiliary mesh of a resize of \"",
                         owner, "\"; resize that mesh"));
    }
    if (call_.mesh_id.size() > kMaxResizedName) {
      return rpc::BadField(
          "mesh", StrCat("is a name of ", call_.mesh_id.size(),
                         " bytes; a mesh that can be resized has at most ", kMaxResizedName));
    }
    const Mesh& old = MeshOf(*plan_.definition);
    std::vector<MeshAxis> axes = call_.axes;
    for (MeshAxis& axis : axes) {
      const std::optional<int64_t> same = old.FindAxis(axis.name);
      if (same.has_value()) axis.type = old.axes()[static_cast<size_t>(*same)].type;
    }
    auto mesh = Mesh::Create(axes);
    if (!mesh.ok()) return rpc::WithField(mesh.status(), "shape");
    plan_.has_shape = HasAxes(old, axes);
    // The arrays of the auxiliary mesh have this shape too, unless they go back.
    plan_.layouts = {.mesh = plan_.has_shape ? old : *mesh,
                     .uneven = call_.uneven,
                     .is_old_shape = plan_.has_shape};
    plan_.auxiliary_id = ResizeMeshName(*plan_.definition);
    const auto auxiliary = state_->Find(DefinitionKind::kMesh, plan_.auxiliary_id);
    plan_.has_auxiliary = auxiliary.ok();
    if (!plan_.has_auxiliary) return absl::OkStatus();
    auxiliary_ = *auxiliary;
    if (plan_.has_shape || HasAxes(MeshOf(*auxiliary_), axes)) return absl::OkStatus();
    return WithReason(
        absl::FailedPreconditionError(StrCat(
            "a resize of the mesh \"", call_.mesh_id, "\" to ", MeshOf(*auxiliary_).ToString(),
            " stopped midway; repeat that resize, or go back to ", old.ToString(), " first")),
        Reason::kMeshInUse, {{fact::kMesh, plan_.auxiliary_id}});
  }

  // The ranks that remain keep their workers, except lost ones where other workers are left.
  absl::Status ChooseWorkers() {
    const std::vector<std::string>& present = server::WorkersOf(*plan_.definition);
    if (plan_.has_shape) {
      plan_.workers = present;
      return absl::OkStatus();
    }
    if (auxiliary_ != nullptr) {
      plan_.workers = server::WorkersOf(*auxiliary_);
      return absl::OkStatus();
    }
    SHARDMESH_RETURN_IF_ERROR(CheckAssigned(present));
    const auto need = static_cast<size_t>(plan_.layouts.mesh.size());
    plan_.workers.assign(present.begin(),
                         present.begin() + static_cast<ptrdiff_t>(std::min(need, present.size())));
    std::vector<std::string> others;
    for (const auto& [identity, worker] : view_->workers) {
      if (worker->state != WorkerState::kAttached) continue;
      if (std::find(present.begin(), present.end(), identity) != present.end()) continue;
      others.push_back(identity);
    }
    std::vector<std::string> left;  // in the order in which they take the place of lost workers
    for (size_t rank = need; rank < present.size(); ++rank) {
      const WorkerStatus* const worker = view_->FindWorker(present[rank]);
      const bool is_ready = worker != nullptr && worker->state == WorkerState::kAttached;
      if (is_ready) left.push_back(present[rank]);
    }
    for (const std::string& identity : others) {
      (plan_.workers.size() < need ? plan_.workers : left).push_back(identity);
    }
    if (plan_.workers.size() == need) {
      ReplaceLost(left);
      return absl::OkStatus();
    }
    return WithReason(
        absl::FailedPreconditionError(
            StrCat("the mesh \"", call_.mesh_id, "\" as ", plan_.layouts.mesh.ToString(), " needs ",
                   need, " workers, and there are ", plan_.workers.size(), ": ", present.size(),
                   " of the mesh, and ", others.size(),
                   others.size() == 1 ? " other that is attached and not drained"
                                      : " others that are attached and not drained",
                   "\nStart ", need - plan_.workers.size(),
                   " more, each with an identity and a folder of its own: `shardmesh-worker "
                   "--identity NAME --coordinator HOST:PORT --listen HOST:PORT --data-dir FOLDER`, "
                   "and the --read-root, --write-root and --memory of the others")),
        Reason::kMeshIncomplete,
        {{fact::kMesh, call_.mesh_id}, {fact::kHave, plan_.workers.size()}, {fact::kNeed, need}});
  }

  void ReplaceLost(const std::vector<std::string>& others) {
    auto next = others.begin();
    for (std::string& identity : plan_.workers) {
      if (next == others.end()) return;
      if (!view_->IsAlive(identity)) identity = *next++;
    }
  }

  absl::Status CheckAssigned(const std::vector<std::string>& present) const {
    return present.empty() ? view_->CheckComplete(call_.mesh_id) : absl::OkStatus();
  }

  absl::Status WeighWorkers() {
    ResizeLayouts& layouts = plan_.layouts;
    SHARDMESH_ASSIGN_OR_RETURN(layouts.weights, ChooseWeights({.rule = call_.uneven,
                                                               .weights = call_.weights,
                                                               .mesh = &layouts.mesh,
                                                               .mesh_id = call_.mesh_id,
                                                               .workers = plan_.workers},
                                                              *view_));
    return absl::OkStatus();
  }

  absl::Status AddNamed() {
    std::set<std::string, std::less<>> seen;
    std::string after;
    for (bool is_last = false; !is_last;) {
      if (is_cancelled_()) return PlanCancelled();
      const std::vector<ArrayRegistry::NamedArray> page =
          parts_.registry->ListNames("", after, kNamesOfPage);
      is_last = std::ssize(page) < kNamesOfPage;
      for (const ArrayRegistry::NamedArray& named : page) {
        after = named.name.name;
        if (!Concerns(*named.array) || !seen.insert(named.name.array_id).second) continue;
        const absl::Status added = Add({.array = named.array,
                                        .name = named.name,
                                        .companion = CompanionOf(*parts_.registry, *named.array)});
        if (absl::IsCancelled(added)) return added;
        if (!added.ok()) Refuse(*named.array, named.name.name, added);
      }
    }
    if (plan_.array_count <= kMaxReshardedArrays) return absl::OkStatus();
    return WithReason(absl::ResourceExhaustedError(
                          StrCat("a resize moves at most ", kMaxReshardedArrays, " arrays, and ",
                                 plan_.array_count, " lie on the mesh \"", call_.mesh_id, "\"")),
                      Reason::kLimitExceeded,
                      {{fact::kHave, plan_.array_count}, {fact::kLimit, kMaxReshardedArrays}});
  }

  bool Concerns(const Array& array) const {
    const std::string& mesh_id = array.definition.descriptor.mesh_id;
    return (!plan_.has_shape && mesh_id == call_.mesh_id) || mesh_id == plan_.auxiliary_id;
  }

  // Says who holds an array without a name, until when, and what to do.
  std::string Nameless(const ArrayDescriptor& descriptor) const {
    constexpr size_t kMaxShown = 8;
    const std::string& array_id = descriptor.array_id;
    const std::string reshard =
        StrCat("`shardmesh reshard @", array_id, " --mesh ", descriptor.mesh_id, " --as NAME`");
    if (const std::vector<SessionInfo> holders =
            parts_.put.sessions->ListHolders(array_id, kMaxShown);
        !holders.empty()) {
      return StrCat("it has no name, and is held by ", DescribeSessions(holders),
                    ". End that client (`shardmesh admin sessions` shows the sessions), or name "
                    "the array with ",
                    reshard, " and release it in that session");
    }
    const std::optional<UnnamedArray> unnamed = parts_.registry->FindUnnamed(array_id);
    if (!unnamed.has_value()) {
      return "it has no name, and a call in progress holds it. Resize when that call has ended";
    }
    if (unnamed->until == absl::InfiniteFuture()) {
      return StrCat(
          "it has no name, and is kept until the records of the state that cannot be "
          "read are set aside. Name it with `shardmesh admin quarantine restore ",
          array_id, " --as NAME`");
    }
    return StrCat(
        "it has no name, and no session has asked for it since the coordinator's start. "
        "It is kept for another ",
        FormatRounded(unnamed->until - parts_.put.clock->Now()),
        " (--unnamed-grace). Resize after that time, or delete it with `shardmesh admin "
        "quarantine drop ",
        array_id, "`, or name it with `shardmesh admin quarantine restore ", array_id,
        " --as NAME`");
  }

  // An array without a name cannot move: its users know it by its id.
  absl::Status AddNameless() {
    std::string after;
    do {
      if (is_cancelled_()) return PlanCancelled();
      const ArrayRegistry::Nameless page = parts_.registry->ListNameless(after, kNamesOfPage);
      for (const ArrayPtr& array : page.arrays) {
        if (!Concerns(*array)) continue;
        if (plan_.refusals.size() == kMaxRefusals) {
          ++plan_.refusal_count;  // without the text, which takes a search of all sessions
          continue;
        }
        const ArrayDescriptor& descriptor = array->definition.descriptor;
        Refuse(
            *array, "",
            WithReason(absl::FailedPreconditionError(Nameless(descriptor)), Reason::kMeshInUse,
                       {{fact::kMesh, descriptor.mesh_id}, {fact::kArray, descriptor.array_id}}));
      }
      after = page.next_start_after;
    } while (!after.empty());
    return absl::OkStatus();
  }

  void Refuse(const Array& array, const std::string& name, const absl::Status& error) {
    ++plan_.refusal_count;
    if (plan_.refusals.size() == kMaxRefusals) return;
    plan_.refusals.push_back(
        {.name = name, .array_id = array.definition.descriptor.array_id, .error = error});
  }

  // Adds an array to the plan. An array on the mesh moves twice, an array that is on the auxiliary
  // mesh already moves once.
  absl::Status Add(const SelectedArray& selected) {
    const Array& array = *selected.array;
    const ArrayDescriptor& from = array.definition.descriptor;
    SHARDMESH_RETURN_IF_ERROR(CheckNotState(array));
    if (array.state == ArrayState::kDegraded && HasPartialSums(from)) {
      return Degraded(selected, array.missing_ranks, *view_, *parts_.recovery);
    }
    if (array.state == ArrayState::kDegraded) {
      SHARDMESH_RETURN_IF_ERROR(
          FindHoldersInBoth(selected, Tile::Whole(from.shape), *view_, *parts_.recovery).status());
    }
    const bool is_placed = from.mesh_id == plan_.auxiliary_id && from.mesh == plan_.layouts.mesh;
    PlacedLayout layout;
    if (is_placed) {
      layout = LayoutOf(array.definition);
    } else {
      SHARDMESH_ASSIGN_OR_RETURN(layout, LayoutOn(plan_.layouts, array.definition));
    }
    ArrayDescriptor to = from;
    to.mesh = plan_.layouts.mesh;
    to.spec = std::move(layout.spec);
    to.cut_points = std::move(layout.cut_points);
    // Partial sums stay on their mesh: their sums move.
    ArrayDescriptor leaving = from;
    if (HasPartialSums(from)) {
      SHARDMESH_ASSIGN_OR_RETURN(leaving, SumsOf(from));
    }
    SHARDMESH_ASSIGN_OR_RETURN(const Tiling source, leaving.Tiling());
    SHARDMESH_ASSIGN_OR_RETURN(const Tiling target, to.Tiling());
    const MeshRanks* const ranks = view_->FindMesh(from.mesh_id);
    const std::vector<std::string> sources =
        ranks == nullptr ? std::vector<std::string>() : ranks->identities;
    if (std::ssize(sources) != source.mesh().size()) return absl::OkStatus();  // still assigned
    const WorkerNumbers numbers = NumberWorkers(sources, plan_.workers);
    SHARDMESH_ASSIGN_OR_RETURN(const Tiling on_sources, OnWorkers(leaving, numbers.sources));
    SHARDMESH_ASSIGN_OR_RETURN(const Tiling on_targets, OnWorkers(to, numbers.destinations));
    SHARDMESH_ASSIGN_OR_RETURN(const ReshardPlan plan, ReshardPlan::Create(on_sources, on_targets));
    const bool moves_twice = from.mesh_id != plan_.auxiliary_id;
    ++plan_.array_count;
    plan_.move_count += moves_twice ? 2 : 1;
    for (size_t rank = 0; rank < plan_.workers.size(); ++rank) {
      if (rank % 1'024 == 0 && is_cancelled_()) return PlanCancelled();
      const auto device = static_cast<DeviceId>(rank);
      SHARDMESH_ASSIGN_OR_RETURN(const int64_t received_bytes,
                                 PackedSizeBytes(to.dtype, plan.DeviceOf(device).need));
      SHARDMESH_ASSIGN_OR_RETURN(const int64_t tile_bytes, RankTileBytes(to, target, device));
      plan_.ranks[rank].moved_bytes = AddCapped(plan_.ranks[rank].moved_bytes, received_bytes);
      plan_.moved_bytes = AddCapped(plan_.moved_bytes, received_bytes);
      plan_.total_bytes = AddCapped(plan_.total_bytes, tile_bytes);
      if (moves_twice) plan_.total_bytes = AddCapped(plan_.total_bytes, tile_bytes);
    }
    std::optional<AddedUp> added;
    if (HasPartialSums(from)) {
      SHARDMESH_ASSIGN_OR_RETURN(added, AddUp(from, std::move(leaving), sources));
    }
    moves_.push_back({.array = selected.array,
                      .companion = parts_.registry->FindTwin(from.array_id),
                      .added = std::move(added),
                      .to = std::move(to),
                      .moves_twice = moves_twice,
                      .is_pinned = parts_.registry->HoldsOf(from.array_id).pins > 0});
    return absl::OkStatus();
  }

  // The sums of an array with partial sums, on its own mesh.
  struct AddedUp {
    ArrayDescriptor sums;
    int64_t copies_bytes = 0;  // MoveCopiesBytes of the step that makes them
  };

  // Adds the bytes of the step that adds up partial sums. `workers`: of the array's mesh, by rank;
  // those that the new shape lacks have no line of their own.
  absl::StatusOr<AddedUp> AddUp(const ArrayDescriptor& partial, ArrayDescriptor sums,
                                const std::vector<std::string>& workers) {
    SHARDMESH_ASSIGN_OR_RETURN(const Tiling source, partial.Tiling());
    SHARDMESH_ASSIGN_OR_RETURN(const Tiling target, sums.Tiling());
    SHARDMESH_ASSIGN_OR_RETURN(const ReshardPlan plan, ReshardPlan::Create(source, target));
    SHARDMESH_ASSIGN_OR_RETURN(const ReshardTotals totals, plan.Totals(is_cancelled_));
    std::map<std::string_view, ResizeRank*> ranks;
    for (ResizeRank& rank : plan_.ranks) ranks.emplace(rank.identity, &rank);
    ++plan_.move_count;
    for (size_t i = 0; i < workers.size(); ++i) {
      if (i % 1'024 == 0 && is_cancelled_()) return PlanCancelled();
      const auto device = static_cast<DeviceId>(i);
      SHARDMESH_ASSIGN_OR_RETURN(const int64_t received_bytes,
                                 PackedSizeBytes(sums.dtype, plan.DeviceOf(device).need));
      SHARDMESH_ASSIGN_OR_RETURN(const int64_t tile_bytes, RankTileBytes(sums, target, device));
      plan_.moved_bytes = AddCapped(plan_.moved_bytes, received_bytes);
      plan_.total_bytes = AddCapped(plan_.total_bytes, tile_bytes);
      const auto rank = ranks.find(workers[i]);
      if (rank == ranks.end()) continue;
      rank->second->moved_bytes = AddCapped(rank->second->moved_bytes, received_bytes);
    }
    const int64_t copies_bytes = MoveCopiesBytes(plan, sums.dtype, totals);
    return AddedUp{.sums = std::move(sums), .copies_bytes = copies_bytes};
  }

  // An array that moves.
  struct ArrayMove {
    ArrayPtr array;
    ArrayPtr companion;            // goes with the array; null: there is none
    std::optional<AddedUp> added;  // take the place of an array with partial sums before it moves
    ArrayDescriptor to;            // in the new layout, as on the auxiliary mesh
    bool moves_twice = false;
    // A pin keeps the old tiles, at most until all arrays have left the mesh.
    bool is_pinned = false;

    bool is_on_disk() const {
      return array->durability == Durability::kDisk &&
             (companion == nullptr || companion->durability == Durability::kDisk);
    }
  };

  // The old arrays that leave memory before their new ones are made, where both do not fit. Each
  // move decides so by itself, as a reshard with release_source: ReshardItem::unloads_source.
  enum class Unloads { kNone, kOnDisk, kAll };

  absl::Status Drop(const Array& array, WorkerLoads* loads) const {
    const ArrayDescriptor& descriptor = array.definition.descriptor;
    const MeshRanks* const ranks = view_->FindMesh(descriptor.mesh_id);
    if (ranks == nullptr) return absl::OkStatus();
    return loads->Drop(descriptor, ranks->identities, array.missing_ranks);
  }
  // Returns the workers of the array's mesh, by rank.
  std::vector<std::string> OldWorkersOf(const ArrayMove& move) const {
    const MeshRanks* const ranks = view_->FindMesh(move.array->definition.descriptor.mesh_id);
    return ranks == nullptr ? std::vector<std::string>() : ranks->identities;
  }
  // The workers drop the array that has moved: the old array, or its sums.
  absl::Status DropMoved(const ArrayMove& move, WorkerLoads* loads) const {
    if (move.added.has_value()) return loads->Drop(move.added->sums, OldWorkersOf(move));
    return DropOld(move, loads);
  }
  // The workers drop the old array, and its companion.
  absl::Status DropOld(const ArrayMove& move, WorkerLoads* loads) const {
    SHARDMESH_RETURN_IF_ERROR(Drop(*move.array, loads));
    return move.companion == nullptr ? absl::OkStatus() : Drop(*move.companion, loads);
  }

  // Whether the array does not fit beside what the workers have.
  absl::StatusOr<bool> Exceeds(const WorkerLoads& loads, const ArrayDescriptor& array) const {
    WorkerLoads next;
    SHARDMESH_RETURN_IF_ERROR(next.Take(array, plan_.workers));
    return loads.WouldExceed(next, limits_);
  }

  // Whether the arrays are on disk on the auxiliary mesh.
  bool AreWorkersDurable() const {
    return std::all_of(plan_.workers.begin(), plan_.workers.end(),
                       [this](const std::string& identity) {
                         const WorkerStatus* const worker = view_->FindWorker(identity);
                         return worker != nullptr && worker->info.durable;
                       });
  }

  // Sums take the places of all arrays with partial sums. A pin keeps these arrays at most until
  // all arrays have left the mesh.
  absl::Status AddUpAll(WorkerLoads* loads) const {
    for (const ArrayMove& move : moves_) {
      if (!move.added.has_value()) continue;
      if (is_cancelled_()) return PlanCancelled();
      SHARDMESH_RETURN_IF_ERROR(
          loads->Take(move.added->sums, OldWorkersOf(move), move.added->copies_bytes));
      if (!move.is_pinned) SHARDMESH_RETURN_IF_ERROR(DropOld(move, loads));
    }
    return absl::OkStatus();
  }

  // Returns the loads of the workers when all arrays leave the mesh, in their order, and then come
  // back.
  absl::StatusOr<WorkerLoads> LoadsWith(Unloads unloads) const {
    WorkerLoads loads;
    std::vector<const ArrayMove*> kept;
    SHARDMESH_RETURN_IF_ERROR(AddUpAll(&loads));
    for (const ArrayMove& move : moves_) {
      if (is_cancelled_()) return PlanCancelled();
      // Sums are in memory only.
      bool leaves = !move.added.has_value() && (unloads == Unloads::kAll ||
                                                (unloads == Unloads::kOnDisk && move.is_on_disk()));
      if (leaves) {
        SHARDMESH_ASSIGN_OR_RETURN(leaves, Exceeds(loads, move.to));
      }
      if (leaves) SHARDMESH_RETURN_IF_ERROR(DropOld(move, &loads));
      SHARDMESH_RETURN_IF_ERROR(loads.Take(move.to, plan_.workers));
      if (!leaves && move.is_pinned) kept.push_back(&move);
      if (!leaves && (!move.is_pinned || move.added.has_value())) {
        SHARDMESH_RETURN_IF_ERROR(DropMoved(move, &loads));
      }
    }
    for (const ArrayMove* const move : kept) SHARDMESH_RETURN_IF_ERROR(DropOld(*move, &loads));
    const bool may_leave =
        unloads == Unloads::kAll || (unloads == Unloads::kOnDisk && AreWorkersDurable());
    for (const ArrayMove& move : moves_) {
      if (!move.moves_twice) continue;
      if (is_cancelled_()) return PlanCancelled();
      bool leaves = may_leave;
      if (leaves) {
        SHARDMESH_ASSIGN_OR_RETURN(leaves, Exceeds(loads, move.to));
      }
      if (leaves) SHARDMESH_RETURN_IF_ERROR(loads.Drop(move.to, plan_.workers));
      SHARDMESH_RETURN_IF_ERROR(loads.Take(move.to, plan_.workers));
      if (!leaves) SHARDMESH_RETURN_IF_ERROR(loads.Drop(move.to, plan_.workers));
    }
    SHARDMESH_RETURN_IF_ERROR(TakeReplicas(&loads));
    return loads;
  }

  // The arrays that want second replicas get them when all have moved.
  absl::Status TakeReplicas(WorkerLoads* loads) const {
    if (plan_.workers.size() < 2) return absl::OkStatus();
    const std::vector<std::string> hosts = HostsOf(*view_, plan_.workers);
    const std::vector<std::string> workers = ReplicaWorkers(plan_.workers, hosts);
    for (const ArrayMove& move : moves_) {
      if (move.array->definition.replicas < 2) continue;
      if (is_cancelled_()) return PlanCancelled();
      SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, move.to.Tiling());
      if (IsReplicatedBySpec(tiling, hosts)) continue;
      SHARDMESH_RETURN_IF_ERROR(loads->Take(move.to, workers));
    }
    return absl::OkStatus();
  }

  // Sets what the workers need with these loads. Returns whether they have it.
  bool SetNeeds(const WorkerLoads& loads) {
    bool fits = true;
    for (ResizeRank& rank : plan_.ranks) {
      if (!limits_.contains(rank.identity)) continue;  // it was never attached
      rank.need_bytes = loads.PeakOf(rank.identity);
      fits = fits && rank.need_bytes <= rank.have_bytes;
    }
    return fits;
  }

  // Compares the loads of the workers with what they have.
  absl::Status AddMemory() {
    CommittedBytes committed(*view_, *parts_.registry);
    SHARDMESH_RETURN_IF_ERROR(committed.AddAll(*parts_.registry, is_cancelled_));
    for (ResizeRank& rank : plan_.ranks) {
      const WorkerStatus* const worker = view_->FindWorker(rank.identity);
      if (worker == nullptr) continue;
      rank.capacity_bytes = worker->info.capacity_bytes;
      rank.have_bytes = committed.LeftOn(rank.identity, *worker);
      limits_[rank.identity] = rank.have_bytes;
    }
    SHARDMESH_ASSIGN_OR_RETURN(const WorkerLoads loads, LoadsWith(Unloads::kNone));
    if (SetNeeds(loads)) return absl::OkStatus();
    SHARDMESH_ASSIGN_OR_RETURN(const WorkerLoads all_on_disk, LoadsWith(Unloads::kAll));
    plan_.fits_on_disk = SetNeeds(all_on_disk);
    SHARDMESH_ASSIGN_OR_RETURN(const WorkerLoads unloaded, LoadsWith(Unloads::kOnDisk));
    SetNeeds(unloaded);
    return absl::OkStatus();
  }

  const ReshardPlanParts& parts_;
  const ResizeCall& call_;
  const std::function<bool()>& is_cancelled_;
  const std::shared_ptr<const Definitions> state_;
  const std::shared_ptr<const MembershipView> view_;
  std::shared_ptr<const Definition> auxiliary_;
  PlannedResize plan_;
  std::vector<ArrayMove> moves_;           // in the order in which they begin
  std::map<std::string, int64_t> limits_;  // what each worker has left, by identity
};

// Returns the error of an array whose cut points do not fit the new shape.
absl::Status CutsDoNotFit(const ArrayDescriptor& array, const Mesh& mesh,
                          const absl::Status& status) {
  return WithContext(status, StrCat("its cut points are for the shape ", array.mesh.ToString(),
                                    " and not for ", mesh.ToString()));
}

// Returns the error of an array whose spec does not fit the new shape. It has no fixes: those are
// for a caller who asks for a spec, and a resize keeps the specs.
absl::Status SpecDoesNotFit(const Mesh& mesh, const CorrectionResult& corrected) {
  constexpr size_t kMostShown = 4;
  const std::string message = StrJoinFirst(
      kMostShown, corrected.corrections, "; ",
      [&mesh](std::string* out, const Correction& each) { out->append(each.ToString(mesh)); });
  return rpc::WithCorrections(InvalidArgument(corrected.corrections.front().reason, message),
                              corrected.corrections, /*fixes=*/{}, mesh);
}

// Returns the layout of the array on the old shape, with the axes that fit there.
absl::StatusOr<PlacedLayout> LayoutBack(const ResizeLayouts& layouts, const ArrayDefinition& array,
                                        PartSizes sizes) {
  const ArrayDescriptor& descriptor = array.descriptor;
  const PartitionSpec requested = array.requested_spec.value_or(descriptor.spec);
  PlacedLayout layout{.requested_spec = requested};
  if (auto corrected = Correct(requested, descriptor.shape, layouts.mesh, sizes); corrected.ok()) {
    layout.spec = std::move(corrected->effective);
    if (corrected->corrections.empty()) layout.requested_spec.reset();
  } else {
    // The requested spec has an axis twice, of which the new shape dropped one.
    SHARDMESH_ASSIGN_OR_RETURN(CorrectionResult own,
                               Correct(descriptor.spec, descriptor.shape, layouts.mesh, sizes));
    layout.spec = std::move(own.effective);
  }
  SHARDMESH_ASSIGN_OR_RETURN(
      layout.cut_points,
      CutByRule(layouts.uneven, layouts.weights, layouts.mesh, layout.spec, descriptor.shape));
  return layout;
}

}  // namespace

PlacedLayout LayoutOf(const ArrayDefinition& array) {
  ArrayDefinition without = WithoutSums(array);
  return {.spec = std::move(without.descriptor.spec),
          .requested_spec = std::move(without.requested_spec),
          .cut_points = std::move(without.descriptor.cut_points)};
}

absl::StatusOr<PlacedLayout> LayoutOn(const ResizeLayouts& layouts,
                                      const ArrayDefinition& resized) {
  const ArrayDefinition array = WithoutSums(resized);
  const ArrayDescriptor& descriptor = array.descriptor;
  const bool is_equal_only = layouts.uneven == UnevenCuts::kEqualOnly;
  if (!WithoutEqualParts(descriptor.cut_points).empty()) {
    const absl::Status fits =
        Tiling::Create(layouts.mesh, descriptor.spec, descriptor.shape, descriptor.cut_points)
            .status();
    if (fits.ok()) return LayoutOf(array);
    if (is_equal_only && !layouts.is_old_shape) {
      return CutsDoNotFit(descriptor, layouts.mesh, fits);
    }
  }
  const PartSizes sizes = is_equal_only ? PartSizes::kEqual : PartSizes::kAny;
  if (layouts.is_old_shape) return LayoutBack(layouts, array, sizes);
  // The array may lose no axis that its own spec has.
  SHARDMESH_ASSIGN_OR_RETURN(const CorrectionResult own,
                             Correct(descriptor.spec, descriptor.shape, layouts.mesh, sizes));
  if (!own.corrections.empty()) {
    return SpecDoesNotFit(layouts.mesh, own);
  }
  PlacedLayout layout{.spec = descriptor.spec, .requested_spec = array.requested_spec};
  if (array.requested_spec.has_value()) {
    // The requested spec may fit better now.
    SHARDMESH_ASSIGN_OR_RETURN(
        CorrectionResult requested,
        Correct(*array.requested_spec, descriptor.shape, layouts.mesh, sizes));
    layout.spec = std::move(requested.effective);
    if (requested.corrections.empty()) layout.requested_spec.reset();
  }
  SHARDMESH_ASSIGN_OR_RETURN(
      layout.cut_points,
      CutByRule(layouts.uneven, layouts.weights, layouts.mesh, layout.spec, descriptor.shape));
  return layout;
}

absl::StatusOr<PlannedResize> PlanResize(const ReshardPlanParts& parts, const ResizeCall& call,
                                         const std::function<bool()>& is_cancelled) {
  return Planning(parts, call, is_cancelled).Run();
}

absl::Status CheckResize(const PlannedResize& plan) {
  const std::string what = StrCat("the mesh \"", plan.definition->name, "\" cannot become ",
                                  plan.layouts.mesh.ToString(), ", and nothing was moved");
  if (!plan.refusals.empty()) {
    const absl::Status& first = plan.refusals.front().error;
    const std::string message =
        StrCat(what, ": ", plan.refusal_count, plan.refusal_count == 1 ? " array" : " arrays",
               " cannot move", LinesOfRefused(plan));
    absl::Status status(first.code(), ToAbsl(message));
    first.ForEachPayload([&status](absl::string_view type, const absl::Cord& payload) {
      status.SetPayload(type, payload);
    });
    return status;
  }
  std::vector<ReshardMemoryNeed> memory;
  for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    const ResizeRank& each = plan.ranks[rank];
    memory.push_back({.mesh_id = plan.definition->name,
                      .rank = static_cast<int64_t>(rank),
                      .identity = each.identity,
                      .have_bytes = each.have_bytes,
                      .capacity_bytes = each.capacity_bytes,
                      .need_bytes = each.need_bytes});
  }
  const std::vector<ReshardMemoryNeed> short_ranks = ShortRanks(memory);
  if (short_ranks.empty()) return absl::OkStatus();
  const std::string_view on_disk =
      plan.fits_on_disk ? "; it fits if all arrays are on disk (workers with --data-dir), because "
                          "they can leave memory before the new ones are made"
                        : "";
  return TooLittleMemory(short_ranks, StrCat("the resize to ", plan.layouts.mesh.ToString()),
                         "--validate-only",
                         StrCat("release arrays, choose more ranks, or start these workers with ",
                                MemoryFlagFor(short_ranks), " or more", on_disk));
}

}  // namespace shardmesh::server
