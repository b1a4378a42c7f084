// Converts programs and plans between messages and the types of program/. spec_codec.h states the
// rules for all codecs.
#ifndef SHARDMESH_RPC_CODEC_PLAN_CODEC_H_
#define SHARDMESH_RPC_CODEC_PLAN_CODEC_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "program/collective_check.h"
#include "program/program.h"
#include "program/step_plan.h"
#include "shardmesh/internal/v1/plan.pb.h"
#include "shardmesh/v1/program.pb.h"

namespace shardmesh::rpc {

void Encode(const Program& from, v1::Program* to);
// Requires at most kMaxProgramSize operands, ops, outputs and updates. Ops may refer only to
// earlier values. An update takes the result of an op; each operand and each value has one at most.
// Also errors of CheckSymbolicProgram (program/graph/symbolic_program.h).
absl::StatusOr<Program> Decode(const v1::Program& from);

// Returns the bytes of the program's message: the same for equal programs of one build.
std::string ProgramBytes(const Program& program);

void Encode(const SymbolicDimension& from, v1::SymbolicDimension* to);
// Checks nothing.
SymbolicDimension Decode(const v1::SymbolicDimension& from);

void Encode(const ProgramOp& from, v1::ProgramOp* to);
// Values may have any numbers.
absl::StatusOr<ProgramOp> Decode(const v1::ProgramOp& from);

// Requests also contain these enums directly. An unset value means the default of the contract
// (proto/). A collective's kind has no default.
v1::Activation Encode(Activation from);
absl::StatusOr<Activation> Decode(v1::Activation from);
v1::Reduction Encode(Reduction from);
absl::StatusOr<Reduction> Decode(v1::Reduction from);
v1::CollectiveKind Encode(CollectiveKind from);
absl::StatusOr<CollectiveKind> Decode(v1::CollectiveKind from);
v1::CollectiveAlgorithm Encode(CollectiveAlgorithm from);
absl::StatusOr<CollectiveAlgorithm> Decode(v1::CollectiveAlgorithm from);
v1::CollectiveOrder Encode(CollectiveOrder from);
absl::StatusOr<CollectiveOrder> Decode(v1::CollectiveOrder from);
v1::WeightLayout Encode(WeightLayout from);
absl::StatusOr<WeightLayout> Decode(v1::WeightLayout from);

// Sets those of dimension, root and split_dimension that the kind of the collective (a CollectiveOp
// or a CollectiveCall) has. Also sets a field that the kind lacks if its value is not 0: the
// decoder then refuses the message.
template <typename From, typename Wire>
void EncodePlaces(const From& from, Wire* to) {
  if (HasDimension(from.kind) || from.dimension != 0) {
    to->set_dimension(static_cast<int32_t>(from.dimension));
  }
  if (HasRoot(from.kind) || from.root != 0) to->set_root(from.root);
  if (from.kind == CollectiveKind::kAllToAll || from.split_dimension != 0) {
    to->set_split_dimension(static_cast<int32_t>(from.split_dimension));
  }
}

void Encode(const PermutePair& from, v1::PermutePair* to);
PermutePair Decode(const v1::PermutePair& from);

void Encode(const ValueDescriptor& from, internal::v1::ValueDescriptor* to);
absl::StatusOr<ValueDescriptor> Decode(const internal::v1::ValueDescriptor& from);

void Encode(const PlanCost& from, v1::PlanCost* to);
PlanCost Decode(const v1::PlanCost& from);

void Encode(const Plan& from, internal::v1::Plan* to);
// After all other checks, requires CheckPlan to succeed.
absl::StatusOr<Plan> Decode(const internal::v1::Plan& from);

// Returns the bytes of a plan, which are the same for all workers. The plan's hash is their
// SHA-256.
std::string PlanBytes(const Plan& plan);
// INVALID_ARGUMENT also for bytes that are not an internal::v1::Plan.
absl::StatusOr<Plan> ParsePlanBytes(std::string_view bytes);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_PLAN_CODEC_H_
