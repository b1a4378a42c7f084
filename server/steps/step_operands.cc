// Finds operands, and checks that they lie on the current version of one mesh.
#include "server/steps/step_operands.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "program/fuse/fuse_exchanges.h"
#include "rpc/codec/field_check.h"
#include "rpc/codec/status.h"
#include "server/steps/auxiliary_mesh.h"
#include "sharding/mesh_definition.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// Names the array of an operand for an error message: by the caller's name, if any, and by its id.
std::string OperandLabel(const FoundOperand& operand) {
  const std::string& id = operand.array->definition.descriptor.array_id;
  return operand.name.empty() ? StrCat("array ", id)
                              : StrCat("array \"", operand.name, "\" (", id, ")");
}

// Checks that a caller may choose this mesh for results. Arrays of callers on an auxiliary mesh
// would keep the coordinator from deleting it.
absl::Status CheckNotAuxiliary(const std::string& mesh_id) {
  if (const std::string_view owner = ReplicatedMeshOf(mesh_id); !owner.empty()) {
    return rpc::BadField("mesh_id", StrCat("is \"", mesh_id,
                                           "\", the auxiliary mesh for second replicas of arrays "
                                           "on \"",
                                           owner, "\"; name that mesh"));
  }
  if (const std::string_view owner = ResizedMeshOf(mesh_id); !owner.empty()) {
    return rpc::BadField("mesh_id",
                         StrCat("is \"", mesh_id, "\", the auxiliary mesh of a resize of \"", owner,
                                "\", which is deleted at its end; name that mesh"));
  }
  return absl::OkStatus();
}

// The most meshes whose rates are kept. The table is cleared at this size, because removed meshes
// stay in it.
constexpr size_t kMostMeshes = 256;

// Returns whether only workers with the feature kTensorOpsFeature (rpc/contract.h) run the plan.
bool NeedsTensorOps(const Plan& plan) {
  return !plan.updates.empty() ||
         std::any_of(plan.instructions.begin(), plan.instructions.end(),
                     [](const Instruction& instruction) {
                       return std::holds_alternative<LocalCompute>(instruction.kind) ||
                              std::holds_alternative<FusedCompute>(instruction.kind);
                     });
}

// Returns the first rank whose worker lacks an ability, which is a member of WorkerInfo; nullopt if
// there is none. Skips workers that the view does not know.
std::optional<size_t> FirstRankWithout(bool WorkerInfo::*ability, const MembershipView& view,
                                       const MeshRanks& mesh) {
  for (size_t rank = 0; rank < mesh.identities.size(); ++rank) {
    const WorkerStatus* const worker = view.FindWorker(mesh.identities[rank]);
    if (worker != nullptr && !(worker->info.*ability)) return rank;
  }
  return std::nullopt;
}

KernelRates SlowestOf(const MembershipView& view, const MeshRanks& mesh) {
  KernelRates rates;
  rates.may_overlap = !mesh.identities.empty();
  rates.may_overlap_parts = rates.may_overlap;
  rates.may_fuse_ops = rates.may_overlap;
  for (const std::string& identity : mesh.identities) {
    const WorkerStatus* const worker = view.FindWorker(identity);
    if (worker == nullptr || !worker->info.overlaps_exchanges) rates.may_overlap = false;
    if (worker == nullptr || !worker->info.overlaps_parts) rates.may_overlap_parts = false;
    if (worker == nullptr || !worker->info.runs_fused_ops) rates.may_fuse_ops = false;
    // No CPU is that slow, and the time of an operation would be infinite.
    if (worker == nullptr || worker->info.kernels.f32_flops_per_second < 1) continue;
    const MeasuredKernels& measured = worker->info.kernels;
    rates.flops_per_second = rates.is_measured
                                 ? std::min(rates.flops_per_second, measured.f32_flops_per_second)
                                 : measured.f32_flops_per_second;
    const auto keep_slower = [](auto& costs, const auto& of_worker) {
      for (size_t i = 0; i < costs.size(); ++i) costs[i] = std::max(costs[i], of_worker[i]);
    };
    keep_slower(rates.costs.seconds, measured.costs.seconds);
    for (size_t kind = 0; kind < kProductKinds; ++kind) {
      keep_slower(rates.costs.products[kind], measured.costs.products[kind]);
    }
    rates.is_measured = true;
  }
  return rates;
}

}  // namespace

absl::StatusOr<FoundOperand> OperandFinder::FindOne(StepOperand operand) const {
  FoundOperand found;
  found.donate = operand.donate;
  if (auto* const literal = std::get_if<Literal>(&operand.value); literal != nullptr) {
    found.described = {.dtype = literal->dtype, .shape = literal->shape, .spec = {}};
    found.literal = std::move(*literal);
    return found;
  }
  const ArrayReference& reference = std::get<ArrayReference>(operand.value);
  SHARDMESH_ASSIGN_OR_RETURN(SelectedArray selected,
                             Select(*sources_.registry, reference, *sources_.recovery));
  if (selected.array->state == ArrayState::kDegraded) {
    return Degraded(selected, selected.array->missing_ranks, *sources_.membership->view(),
                    *sources_.recovery);
  }
  const ArrayDescriptor& descriptor = selected.array->definition.descriptor;
  found.described = {.dtype = descriptor.dtype,
                     .shape = descriptor.shape,
                     .spec = descriptor.spec,
                     .cut_points = WithoutEqualParts(descriptor.cut_points)};
  found.name = reference.name;
  found.array = std::move(selected.array);
  return found;
}

absl::StatusOr<FoundOperands> OperandFinder::Find(StepOperands operands) const {
  FoundOperands result;
  ArrayPtr first;
  for (size_t i = 0; i < operands.operands.size(); ++i) {
    absl::StatusOr<FoundOperand> found = FindOne(std::move(operands.operands[i]));
    if (!found.ok()) {
      return rpc::WithField(found.status(), "operands", i);
    }
    const ArrayPtr& array = result.operands.emplace_back(*std::move(found)).array;
    if (array == nullptr) {
      continue;
    }
    if (first == nullptr) {
      first = array;
    }
    const ArrayDescriptor& one = first->definition.descriptor;
    const ArrayDescriptor& other = array->definition.descriptor;
    if (ResizedMeshOf(one.mesh_id) == other.mesh_id ||
        ResizedMeshOf(other.mesh_id) == one.mesh_id) {
      return rpc::WithField(
          Recovering(
              StrCat("operands lie on the meshes \"", one.mesh_id, "\" and \"", other.mesh_id,
                     "\", because the mesh is being resized; try again when all of them have "
                     "moved (`shardmesh ops ls`)")),
          "operands", i);
    }
    if (one.mesh_id != other.mesh_id) {
      return rpc::WithField(
          WithReason(absl::FailedPreconditionError(
                         StrCat("operands lie on different meshes: \"", one.mesh_id,
                                "\" at revision ", one.mesh_revision, " and \"", other.mesh_id,
                                "\" at revision ", other.mesh_revision,
                                "; move one onto the mesh of the other with `shardmesh reshard "
                                "NAME --mesh MESH`, or load them onto one")),
                     Reason::kMeshMismatch,
                     {{fact::kArray, other.array_id},
                      {fact::kHave, other.mesh_id},
                      {fact::kNeed, one.mesh_id}}),
          "operands", i);
    }
  }
  const std::string name = first != nullptr           ? first->definition.descriptor.mesh_id
                           : operands.mesh_id.empty() ? "default"
                                                      : operands.mesh_id;
  SHARDMESH_ASSIGN_OR_RETURN(const auto mesh,
                             sources_.definition_store->state().Find(DefinitionKind::kMesh, name));
  if (first == nullptr) {
    SHARDMESH_RETURN_IF_ERROR(CheckNotAuxiliary(name));
  }
  result.ranks_revision = RanksRevisionOf(*mesh);
  SHARDMESH_ASSIGN_OR_RETURN(result.target, FindTarget(name, result.operands));
  return result;
}

int64_t OperandFinder::DevicesOf(const StepOperands& operands) const {
  for (const StepOperand& operand : operands.operands) {
    const auto* const reference = std::get_if<ArrayReference>(&operand.value);
    if (reference == nullptr) continue;
    const absl::StatusOr<SelectedArray> selected = Select(*sources_.registry, *reference);
    return selected.ok() ? selected->array->definition.descriptor.mesh.size() : 0;
  }
  const auto definition = sources_.definition_store->state().Find(
      DefinitionKind::kMesh, operands.mesh_id.empty() ? "default" : operands.mesh_id);
  return definition.ok() ? std::get<MeshDefinition>((*definition)->value).mesh.size() : 0;
}

absl::StatusOr<PlanTarget> OperandFinder::FindTarget(
    const std::string& mesh_id, const std::vector<FoundOperand>& operands) const {
  SHARDMESH_ASSIGN_OR_RETURN(const auto definition, sources_.definition_store->state().Find(
                                                        DefinitionKind::kMesh, mesh_id));
  const Mesh& mesh = std::get<MeshDefinition>(definition->value).mesh;
  // Compares the meshes themselves, not their revisions: a repair or a restore gives the same mesh
  // another revision. The check does not look at tiles: whether each rank's worker has its tile is
  // known from the array's state.
  for (size_t i = 0; i < operands.size(); ++i) {
    const ArrayPtr& array = operands[i].array;
    if (array == nullptr || array->definition.descriptor.mesh == mesh) {
      continue;
    }
    const ArrayDescriptor& descriptor = array->definition.descriptor;
    return rpc::WithField(
        WithReason(absl::FailedPreconditionError(
                       StrCat(OperandLabel(operands[i]), " lies on the mesh \"", mesh_id, "\" as ",
                              descriptor.mesh.ToString(), " of revision ", descriptor.mesh_revision,
                              ", which is ", mesh.ToString(), " of revision ", definition->revision,
                              " now; load it again")),
                   Reason::kMeshMismatch,
                   {{fact::kArray, descriptor.array_id},
                    {fact::kHave, descriptor.mesh.ToString()},
                    {fact::kNeed, mesh.ToString()}}),
        "operands", i);
  }
  return PlanTarget{.mesh_id = mesh_id,
                    .mesh_revision = definition->revision,
                    .mesh = mesh,
                    .links = sources_.links->CostOf(*sources_.membership->view(), mesh_id),
                    .preferred = sources_.preferred_algorithms,
                    .kernels = kernels_.RatesOf(*sources_.membership->view(), mesh_id)};
}

absl::Status MarkUpdates(const Plan& plan, std::vector<FoundOperand>* operands) {
  if (plan.updates.empty()) return absl::OkStatus();
  absl::flat_hash_map<std::string_view, int> counts;  // of operands, by array
  for (const FoundOperand& operand : *operands) {
    if (operand.array != nullptr) ++counts[operand.array->definition.descriptor.array_id];
  }
  for (const StateUpdate& update : plan.updates) {
    FoundOperand& operand = (*operands)[update.operand];
    const auto refused = [&](std::string_view why) {
      return rpc::BadField(
          StrCat("operands[", update.operand, "]"),
          StrCat("operand ", update.operand, " is updated by the program, but ", why));
    };
    if (operand.array == nullptr) {
      return refused("is a literal; give an array by its name or id");
    }
    if (operand.donate) return refused("is donated; a step keeps the array that it updates");
    if (!operand.described.spec.unreduced().empty()) {
      return refused("holds partial sums; reduce it first");
    }
    const std::string& id = operand.array->definition.descriptor.array_id;
    if (counts[id] > 1) {
      return refused(StrCat("array ", id, " is another operand too; give it once"));
    }
    operand.is_updated = true;
  }
  return absl::OkStatus();
}

absl::Status CheckDonor(const ArrayRegistry& registry, const SessionTable& sessions,
                        const std::string& session_id, std::vector<FoundOperand>* operands) {
  for (size_t i = 0; i < operands->size(); ++i) {
    FoundOperand& operand = (*operands)[i];
    if (!operand.donate || operand.array == nullptr) {
      continue;
    }
    const std::string& array_id = operand.array->definition.descriptor.array_id;
    SHARDMESH_ASSIGN_OR_RETURN(operand.donate, sessions.PinsArray(session_id, array_id));
    if (!operand.donate && !registry.HasName(array_id)) {
      return rpc::WithField(
          WithReason(absl::PermissionDeniedError(StrCat(
                         OperandLabel(operand), " is not kept by session \"", session_id,
                         "\", which may not donate it; begin a get of it in this session first, or "
                         "do not donate it")),
                     Reason::kNotOwner, {{fact::kKind, "array"}, {fact::kName, array_id}}),
          "operands", i);
    }
  }
  return absl::OkStatus();
}

KernelRates KernelTable::RatesOf(const MembershipView& view, std::string_view mesh_id) const {
  const MeshRanks* const mesh = view.FindMesh(mesh_id);
  if (mesh == nullptr) return {};
  absl::MutexLock lock(&mutex_);
  const auto found = known_.find(mesh_id);
  if (found != known_.end() && found->second.epoch == view.epoch &&
      found->second.identities == mesh->identities) {
    return found->second.rates;
  }
  if (known_.size() >= kMostMeshes) known_.clear();
  const KernelRates rates = SlowestOf(view, *mesh);
  known_.insert_or_assign(
      std::string(mesh_id),
      Known{.epoch = view.epoch, .identities = mesh->identities, .rates = rates});
  return rates;
}

absl::Status CheckWorkersRun(const Plan& plan, const MembershipView& view) {
  const MeshRanks* const mesh = view.FindMesh(plan.mesh_id);
  if (mesh == nullptr) return absl::OkStatus();
  // Requires, if `is_needed`, that each worker has the ability. `why` says of a worker without it
  // what that means.
  const auto check = [&](bool is_needed, bool WorkerInfo::*ability, std::string_view why) {
    const auto rank = is_needed ? FirstRankWithout(ability, view, *mesh) : std::nullopt;
    if (!rank.has_value()) return absl::OkStatus();
    return WithReason(absl::FailedPreconditionError(StrCat("worker \"", mesh->identities[*rank],
                                                           "\" (rank ", *rank, ") ", why)),
                      Reason::kNotAvailable, {{fact::kField, "program"}});
  };
  SHARDMESH_RETURN_IF_ERROR(check(MultipliesBatches(plan), &WorkerInfo::multiplies_batches,
                                  "runs an older build, which does not multiply batches of "
                                  "matrices; upgrade the worker"));
  SHARDMESH_RETURN_IF_ERROR(check(NeedsTensorOps(plan), &WorkerInfo::runs_tensor_ops,
                                  "runs an older build, which does not run tensor ops or update "
                                  "arrays; upgrade the worker"));
  SHARDMESH_RETURN_IF_ERROR(check(MultipliesShortTypes(plan), &WorkerInfo::multiplies_short_types,
                                  "runs an older build, which does not multiply F16, nor by "
                                  "weights of I8; upgrade the worker"));
  SHARDMESH_RETURN_IF_ERROR(check(HasFusedOps(plan), &WorkerInfo::runs_fused_ops,
                                  "has come since the plan was made, and runs an older build, "
                                  "which does not compute several functions of elements at once; "
                                  "compile the program again"));
  constexpr std::string_view kPlanAgain =
      "has come since the plan was made, and does not multiply while it exchanges; compile "
      "the program again";
  SHARDMESH_RETURN_IF_ERROR(
      check(OverlapsExchanges(plan), &WorkerInfo::overlaps_exchanges, kPlanAgain));
  return check(OverlapsParts(plan), &WorkerInfo::overlaps_parts, kPlanAgain);
}

}  // namespace shardmesh::server
