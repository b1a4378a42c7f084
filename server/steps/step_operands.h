// Finds the operands of a step, and checks which operands the step's session may donate.
#ifndef SHARDMESH_SERVER_STEPS_STEP_OPERANDS_H_
#define SHARDMESH_SERVER_STEPS_STEP_OPERANDS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
};

// The operands of a call and the mesh on which they lie.
struct FoundOperands {
  std::vector<FoundOperand> operands = {};
  PlanTarget target = {};
  Revision ranks_revision = 0;  // RanksRevisionOf the mesh
};

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

 private:
  absl::StatusOr<FoundOperand> FindOne(StepOperand operand) const;
  absl::StatusOr<PlanTarget> FindTarget(const std::string& mesh_id,
                                        const std::vector<FoundOperand>& operands) const;

  const Sources sources_;
};

// Checks that the session may donate the operands: it must pin their arrays. If the session does
// not pin an array that has a name, sets `donate` to false, and the step only reads the array.
// PERMISSION_DENIED (NOT_OWNER): an array to donate is not pinned by the session and has no name.
absl::Status CheckDonor(const ArrayRegistry& registry, const SessionTable& sessions,
                        const std::string& session_id, std::vector<FoundOperand>* operands);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_STEP_OPERANDS_H_
