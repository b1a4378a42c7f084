// Finds the operands of a step and the rates of its mesh, and checks whether the step may run:
// which operands its session may donate, and whether the workers run its plan.
#ifndef SHARDMESH_SERVER_STEPS_STEP_OPERANDS_H_
#define SHARDMESH_SERVER_STEPS_STEP_OPERANDS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "program/collective_choice.h"
#include "program/step_plan.h"
#include "server/state/array_registry.h"
#include "server/state/definitions.h"
#include "server/state/link_table.h"
#include "server/state/membership.h"
#include "server/state/recovery.h"
#include "server/state/session.h"
#include "server/steps/step_call.h"
#include "tensor/literal.h"

namespace shardmesh::server {

// An operand that was found: an array or a literal.
struct FoundOperand {
  ArrayPtr array = nullptr;  // null: the operand is `literal`
  Literal literal = {};
  ValueDescriptor described = {};
  std::string name = {};  // the caller's name for the array; empty: the caller gave its id
  bool donate = false;
  bool overwritten = false;  // donated, and a result will overwrite its memory
  bool is_updated = false;   // the step updates the array: see StateUpdate
};

// The operands of a call and the mesh on which they lie.
struct FoundOperands {
  std::vector<FoundOperand> operands = {};
  PlanTarget target = {};
  Revision ranks_revision = 0;  // RanksRevisionOf the mesh
};

// Keeps the kernel rates of meshes until the epoch or the workers of the mesh change. Thread-safe.
class KernelTable {
 public:
  // Returns the rates of the mesh's slowest worker that has measured its kernels, since the ranks
  // of a step wait for each other. They may overlap if all workers of the mesh do. Returns the
  // defaults if no worker has, or if there is no such mesh. Compares the workers of the mesh with
  // those of the last call; in a new epoch, also looks at each of them.
  KernelRates RatesOf(const MembershipView& view, std::string_view mesh_id) const;

 private:
  struct Known {
    int64_t epoch = 0;
    std::vector<std::string> identities = {};
    KernelRates rates = {};
  };

  mutable absl::Mutex mutex_;
  mutable std::map<std::string, Known, std::less<>> known_ ABSL_GUARDED_BY(mutex_);  // by mesh
};

// FAILED_PRECONDITION (NOT_AVAILABLE): the plan multiplies batches, has tensor ops or fused
// instructions, or updates arrays, and a worker of the mesh does not run such plans; the message
// names the worker. Requires that the mesh has all its workers.
absl::Status CheckWorkersRun(const Plan& plan, const MembershipView& view);

// Finds operands in the coordinator's state. All arguments outlive the finder. Thread-safe.
class OperandFinder {
 public:
  struct Sources {
    const DefinitionStore* definition_store = nullptr;
    const Membership* membership = nullptr;
    const ArrayRegistry* registry = nullptr;
    const LinkTable* links = nullptr;
    const Recovery* recovery = nullptr;
    PreferredAlgorithms preferred_algorithms = {};
  };
  explicit OperandFinder(Sources sources) : sources_(std::move(sources)) {}

  // Finds the operands. An error about one operand names its field.
  //   NOT_FOUND                              no such array or name (see Select), or no such mesh.
  //   INVALID_ARGUMENT (BAD_FIELD)           no operand is an array, and StepOperands::mesh_id
  //                                          names an auxiliary mesh.
  //   the errors of Degraded                 an array lacks tiles.
  //   FAILED_PRECONDITION (MESH_MISMATCH)    the operands lie on different meshes.
  //   FAILED_PRECONDITION (MESH_MISMATCH)    the mesh changed since an operand was made on it.
  absl::StatusOr<FoundOperands> Find(StepOperands operands) const;

  // Returns the number of devices of the mesh on which Find would find the operands; 0 if it would
  // return an error because there is no such array or mesh.
  int64_t DevicesOf(const StepOperands& operands) const;

 private:
  absl::StatusOr<FoundOperand> FindOne(StepOperand operand) const;
  absl::StatusOr<PlanTarget> FindTarget(const std::string& mesh_id,
                                        const std::vector<FoundOperand>& operands) const;

  const Sources sources_;
  KernelTable kernels_;
};

// Marks the operands that the plan updates, and checks that it may. An error names the field of the
// operand. The registry makes the other checks: see ArrayRegistry::MakeState.
//   INVALID_ARGUMENT (BAD_FIELD)       an operand that is updated is a literal, or donated, or
//   holds
//                                      partial sums, or another operand is the same array.
absl::Status MarkUpdates(const Plan& plan, std::vector<FoundOperand>* operands);

// Checks that the session may donate the operands: it must pin their arrays. If the session does
// not pin an array that has a name, sets `donate` to false, and the step only reads the array.
// PERMISSION_DENIED (NOT_OWNER): an array to donate is not pinned by the session and has no name.
absl::Status CheckDonor(const ArrayRegistry& registry, const SessionTable& sessions,
                        const std::string& session_id, std::vector<FoundOperand>* operands);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_STEP_OPERANDS_H_
