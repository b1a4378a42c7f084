// Decodes programs and plans with their checks, and encodes them.
#include "rpc/codec/plan_codec.h"

#include <algorithm>
#include <limits>
#include <set>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "program/collective_check.h"
#include "program/graph/symbolic_program.h"
#include "program/plan_check.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/enum_codec.h"
#include "rpc/codec/field_check.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/tensor_op_codec.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

// The wire's enums reserve 0 for "not set", so their values are one more than the domain's.
static_assert(static_cast<int>(Activation::kSilu) + 1 == v1::ACTIVATION_SILU);
static_assert(static_cast<int>(Reduction::kMean) + 1 == v1::REDUCTION_MEAN);
static_assert(static_cast<int>(CollectiveKind::kBarrier) + 1 == v1::COLLECTIVE_KIND_BARRIER);
static_assert(static_cast<int>(CollectiveAlgorithm::kChain) + 1 == v1::COLLECTIVE_ALGORITHM_CHAIN);
static_assert(static_cast<int>(CollectiveOrder::kFastest) + 1 == v1::COLLECTIVE_ORDER_FASTEST);
static_assert(static_cast<int>(WeightLayout::kInOut) + 1 == v1::WEIGHT_LAYOUT_IN_OUT);

absl::Status TooMany(std::string_view field, int64_t have) {
  return WithField(
      InvalidArgument(Reason::kLimitExceeded,
                      StrCat(have, " ", field, "; at most ", kMaxProgramSize, " are allowed"),
                      {{fact::kHave, have}, {fact::kLimit, kMaxProgramSize}}),
      field);
}

absl::StatusOr<std::vector<std::string>> DecodeAxisNames(
    const google::protobuf::RepeatedPtrField<std::string>& from) {
  if (from.size() > kMaxMeshAxes) {
    return WithField(
        InvalidArgument(Reason::kLimitExceeded,
                        StrCat(from.size(), " axes; a mesh has at most ", kMaxMeshAxes),
                        {{fact::kHave, from.size()}, {fact::kLimit, kMaxMeshAxes}}),
        "axes");
  }
  for (int i = 0; i < from.size(); ++i) {
    if (from[i].empty() || from[i].size() > kMaxAxisNameBytes) {
      return BadField(StrCat("axes[", i, "]"), StrCat("a name of ", from[i].size(),
                                                      " bytes; it needs 1 to ", kMaxAxisNameBytes));
    }
  }
  return std::vector<std::string>(from.begin(), from.end());
}

// Works for both v1::CollectiveOp and internal::v1::GroupCollective, which have the same fields. A
// field that only some kinds of collectives have is set only for these kinds (EncodePlaces).
template <typename Wire>
void EncodeCollective(const CollectiveOp& from, Wire* to) {
  to->set_input(from.input);
  to->set_kind(Encode(from.kind));
  to->mutable_axes()->Add(from.axes.begin(), from.axes.end());
  to->set_reduction(Encode(from.reduction));
  EncodePlaces(from, to);
  for (const PermutePair& pair : from.permutation) {
    Encode(pair, to->add_permutation());
  }
  to->set_algorithm(Encode(from.algorithm));
  to->set_order(Encode(from.order));
  to->mutable_counts()->Add(from.counts.begin(), from.counts.end());
}

template <typename Wire>
absl::StatusOr<CollectiveOp> DecodeCollective(const Wire& from) {
  CollectiveOp op;
  op.input = from.input();
  SHARDMESH_ASSIGN_OR_RETURN(op.kind, Decode(from.kind()));
  SHARDMESH_ASSIGN_OR_RETURN(op.axes, DecodeAxisNames(from.axes()));
  SHARDMESH_ASSIGN_OR_RETURN(op.dimension, CheckDimension(from.dimension(), "dimension"));
  SHARDMESH_ASSIGN_OR_RETURN(op.reduction, Decode(from.reduction()));
  if (from.root() < 0) {
    return BadField("root", StrCat("root ", from.root(), " is no place of a group"));
  }
  op.root = from.root();
  SHARDMESH_ASSIGN_OR_RETURN(op.split_dimension,
                             CheckDimension(from.split_dimension(), "split_dimension"));
  op.permutation.reserve(static_cast<size_t>(from.permutation_size()));
  for (const v1::PermutePair& pair : from.permutation()) {
    op.permutation.push_back(Decode(pair));
  }
  SHARDMESH_ASSIGN_OR_RETURN(op.algorithm, Decode(from.algorithm()));
  SHARDMESH_ASSIGN_OR_RETURN(op.order, Decode(from.order()));
  op.counts.assign(from.counts().begin(), from.counts().end());
  return op;
}

absl::Status CheckPresence(bool is_set, bool is_needed, CollectiveKind kind,
                           std::string_view field) {
  if (is_set == is_needed) return absl::OkStatus();
  return BadField(field, is_needed ? StrCat("is not set; ", CollectiveKindName(kind), " needs it")
                                   : StrCat("is set; ", CollectiveKindName(kind), " has none"));
}

absl::StatusOr<CollectiveOp> DecodeCollectiveOp(const v1::CollectiveOp& from) {
  SHARDMESH_ASSIGN_OR_RETURN(CollectiveOp op, DecodeCollective(from));
  SHARDMESH_RETURN_IF_ERROR(
      CheckPresence(from.has_dimension(), HasDimension(op.kind), op.kind, "dimension"));
  SHARDMESH_RETURN_IF_ERROR(CheckPresence(from.has_root(), HasRoot(op.kind), op.kind, "root"));
  SHARDMESH_RETURN_IF_ERROR(CheckPresence(from.has_split_dimension(),
                                          op.kind == CollectiveKind::kAllToAll, op.kind,
                                          "split_dimension"));
  return op;
}

void EncodeOp(const LinearOp& from, v1::ProgramOp* to) {
  v1::LinearOp* linear = to->mutable_linear();
  linear->set_input(from.input);
  linear->set_weight(from.weight);
  if (from.bias.has_value()) {
    linear->set_bias(*from.bias);
  }
  if (from.scales.has_value()) linear->set_scales(*from.scales);
  linear->set_weight_layout(Encode(from.weight_layout));
  linear->set_activation(Encode(from.activation));
  linear->set_scale(from.scale);
}

void EncodeOp(const MatmulOp& from, v1::ProgramOp* to) {
  v1::MatmulOp* matmul = to->mutable_matmul();
  matmul->set_lhs(from.lhs);
  matmul->set_rhs(from.rhs);
  matmul->set_transpose_lhs(from.transpose_lhs);
  matmul->set_transpose_rhs(from.transpose_rhs);
}

void EncodeOp(const CollectiveOp& from, v1::ProgramOp* to) {
  EncodeCollective(from, to->mutable_collective());
}

void EncodeOp(const ReshardOp& from, v1::ProgramOp* to) {
  to->mutable_reshard()->set_input(from.input);
  Encode(from.spec, to->mutable_reshard()->mutable_spec());
  for (size_t dim = 0; dim < from.part_starts.size(); ++dim) {
    if (from.part_starts[dim].empty()) continue;
    v1::CutPoints* const added = to->mutable_reshard()->add_cut_points();
    added->set_dimension(static_cast<int32_t>(dim));
    added->mutable_starts()->Add(from.part_starts[dim].begin(), from.part_starts[dim].end());
  }
}

absl::StatusOr<ProgramOp> DecodeLinear(const v1::LinearOp& from) {
  LinearOp op;
  op.input = from.input();
  op.weight = from.weight();
  if (from.has_bias()) {
    op.bias = from.bias();
  }
  if (from.has_scales()) op.scales = from.scales();
  SHARDMESH_ASSIGN_OR_RETURN(op.weight_layout, Decode(from.weight_layout()));
  SHARDMESH_ASSIGN_OR_RETURN(op.activation, Decode(from.activation()));
  op.scale = from.has_scale() ? from.scale() : 1;
  SHARDMESH_RETURN_IF_ERROR(CheckFinite(op.scale, "scale"));
  return op;
}

// Returns one list for each dimension up to the last one that has cut points. Planning later checks
// that the operand has these dimensions, and that the starts lie within them.
absl::StatusOr<std::vector<std::vector<int64_t>>> DecodePartStarts(
    const google::protobuf::RepeatedPtrField<v1::CutPoints>& from) {
  std::vector<std::vector<int64_t>> part_starts;
  for (int i = 0; i < from.size(); ++i) {
    const auto invalid = [&](std::string_view message) {
      return WithField(InvalidArgument(Reason::kInvalidCutPoints, message,
                                       {{fact::kDimension, from[i].dimension()},
                                        {fact::kValue, StrJoin(from[i].starts(), ",")}}),
                       "cut_points", static_cast<size_t>(i));
    };
    const int32_t dimension = from[i].dimension();
    if (dimension < 0 || dimension >= kMaxRank) {
      return invalid(StrCat("dimension ", dimension, " is not from 0 to ", kMaxRank - 1));
    }
    const auto dim = static_cast<size_t>(dimension);
    part_starts.resize(std::max(part_starts.size(), dim + 1));
    if (!part_starts[dim].empty()) {
      return invalid(StrCat("dimension ", dim, " has cut points twice"));
    }
    if (from[i].starts().empty()) {
      return invalid(StrCat("dimension ", dim, " has no starts; leave it out for equal parts"));
    }
    int64_t before = 0;
    for (const int64_t start : from[i].starts()) {
      if (start < before) {
        return invalid(StrCat("cut point ", start, " of dimension ", dim, " follows ", before,
                              "; cut points must not fall (two equal ones make an empty part)"));
      }
      part_starts[dim].push_back(start);
      before = start;
    }
  }
  return part_starts;
}

absl::StatusOr<ProgramOp> DecodeReshard(const v1::ReshardOp& from) {
  auto spec = Decode(from.spec());
  if (!spec.ok()) {
    return WithField(std::move(spec).status(), "spec");
  }
  ReshardOp op = {.input = from.input(), .spec = *std::move(spec)};
  SHARDMESH_ASSIGN_OR_RETURN(op.part_starts, DecodePartStarts(from.cut_points()));
  return op;
}

void EncodeOp(const TensorOp& from, v1::ProgramOp* to) { Encode(from, to->mutable_tensor()); }

// Decodes an op. The field path of an error begins with the oneof case that is set.
absl::StatusOr<ProgramOp> DecodeOp(const v1::ProgramOp& from) {
  const auto at = [](std::string_view field, absl::StatusOr<ProgramOp> op) {
    return op.ok() ? std::move(op) : WithField(std::move(op).status(), field);
  };
  switch (from.op_case()) {
    case v1::ProgramOp::kLinear:
      return at("linear", DecodeLinear(from.linear()));
    case v1::ProgramOp::kMatmul:
      return MatmulOp{from.matmul().lhs(), from.matmul().rhs(), from.matmul().transpose_lhs(),
                      from.matmul().transpose_rhs()};
    case v1::ProgramOp::kCollective:
      return at("collective", DecodeCollectiveOp(from.collective()));
    case v1::ProgramOp::kReshard:
      return at("reshard", DecodeReshard(from.reshard()));
    case v1::ProgramOp::kTensor:
      return at("tensor", Decode(from.tensor()));
    case v1::ProgramOp::OP_NOT_SET:
      break;
  }
  return BadField("op",
                  "an op is empty, or of a newer build; set linear, matmul, collective, reshard or "
                  "tensor");
}

template <typename Message>
void EncodeUpdates(absl::Span<const StateUpdate> from, Message* to) {
  for (const StateUpdate& update : from) {
    v1::StateUpdate* const added = to->add_updates();
    added->set_operand(update.operand);
    added->set_value(update.value);
  }
}

// Requires operands, and values that are results of ops. Neither may occur twice. `known` is the
// number of the program's values.
absl::StatusOr<std::vector<StateUpdate>> DecodeUpdates(const v1::Program& from, ValueIndex known) {
  std::vector<StateUpdate> updates;
  std::set<ValueIndex> seen;
  for (int i = 0; i < from.updates_size(); ++i) {
    const StateUpdate update = {from.updates(i).operand(), from.updates(i).value()};
    const auto invalid = [i](std::string_view field, std::string_view message) {
      return WithField(BadField(field, message), "updates", static_cast<size_t>(i));
    };
    if (update.operand >= from.operand_count()) {
      return invalid("operand", StrCat("update ", i, " is of value ", update.operand,
                                       ", which is no operand; there are ", from.operand_count()));
    }
    if (update.value < from.operand_count() || update.value >= known) {
      return invalid("value", StrCat("update ", i, " takes value ", update.value,
                                     ", which is not the result of an op; these are the values ",
                                     from.operand_count(), " to below ", known));
    }
    if (!seen.insert(update.operand).second) {
      return invalid("operand", StrCat("operand ", update.operand, " is updated twice"));
    }
    if (!seen.insert(update.value).second) {
      return invalid("value", StrCat("value ", update.value, " updates two operands"));
    }
    updates.push_back(update);
  }
  return updates;
}

void EncodeMatmul(const LocalMatmul& from, internal::v1::LocalMatmul* to) {
  to->set_lhs(from.lhs);
  to->set_rhs(from.rhs);
  if (from.bias.has_value()) {
    to->set_bias(*from.bias);
  }
  if (from.scales.has_value()) to->set_scales(*from.scales);
  to->set_transpose_lhs(from.transpose_lhs);
  to->set_transpose_rhs(from.transpose_rhs);
  to->set_scale(from.scale);
  to->set_activation(Encode(from.activation));
}

void EncodeKind(const LocalMatmul& from, internal::v1::Instruction* to) {
  EncodeMatmul(from, to->mutable_matmul());
}

void EncodeKind(const LocalEpilogue& from, internal::v1::Instruction* to) {
  internal::v1::LocalEpilogue* epilogue = to->mutable_epilogue();
  epilogue->set_input(from.input);
  if (from.bias.has_value()) {
    epilogue->set_bias(*from.bias);
  }
  epilogue->set_activation(Encode(from.activation));
}

void EncodeKind(const LocalSlice& from, internal::v1::Instruction* to) {
  to->mutable_slice()->set_input(from.input);
}

void EncodeKind(const MoveRegions& from, internal::v1::Instruction* to) {
  to->mutable_move()->set_input(from.input);
}

void EncodeKind(const GroupCollective& from, internal::v1::Instruction* to) {
  EncodeCollective(from, to->mutable_collective());
}

void EncodeKind(const LocalCompute& from, internal::v1::Instruction* to) {
  Encode(from.op, to->mutable_compute());
}

void EncodeKind(const GatherMatmul& from, internal::v1::Instruction* to) {
  internal::v1::GatherMatmul* const fused = to->mutable_gather_matmul();
  EncodeCollective(from.gather, fused->mutable_gather());
  Encode(from.gathered, fused->mutable_gathered());
  EncodeMatmul(from.matmul, fused->mutable_matmul());
  fused->set_gathers_rhs(from.gathers_rhs);
}

void EncodeKind(const MatmulScatter& from, internal::v1::Instruction* to) {
  internal::v1::MatmulScatter* const fused = to->mutable_matmul_scatter();
  EncodeMatmul(from.matmul, fused->mutable_matmul());
  Encode(from.product, fused->mutable_product());
  EncodeCollective(from.scatter, fused->mutable_scatter());
}

void EncodeKind(const FusedCompute& from, internal::v1::Instruction* to) {
  internal::v1::FusedCompute* const fused = to->mutable_fused_compute();
  fused->mutable_inputs()->Add(from.inputs.begin(), from.inputs.end());
  for (const FusedOp& op : from.ops) {
    internal::v1::FusedOp* const added = fused->add_ops();
    Encode(op.op, added->mutable_op());
    added->set_label(op.label);
  }
}

absl::StatusOr<LocalMatmul> DecodeLocalMatmul(const internal::v1::LocalMatmul& from) {
  LocalMatmul matmul;
  matmul.lhs = from.lhs();
  matmul.rhs = from.rhs();
  if (from.has_bias()) {
    matmul.bias = from.bias();
  }
  if (from.has_scales()) matmul.scales = from.scales();
  matmul.transpose_lhs = from.transpose_lhs();
  matmul.transpose_rhs = from.transpose_rhs();
  matmul.scale = from.scale();
  SHARDMESH_ASSIGN_OR_RETURN(matmul.activation, Decode(from.activation()));
  return matmul;
}

absl::StatusOr<LocalEpilogue> DecodeLocalEpilogue(const internal::v1::LocalEpilogue& from) {
  LocalEpilogue epilogue;
  epilogue.input = from.input();
  if (from.has_bias()) {
    epilogue.bias = from.bias();
  }
  SHARDMESH_ASSIGN_OR_RETURN(epilogue.activation, Decode(from.activation()));
  return epilogue;
}

// Returns `decoded`. The field path of an error begins with `field`.
template <typename T>
absl::StatusOr<T> At(std::string_view field, absl::StatusOr<T> decoded) {
  return decoded.ok() ? std::move(decoded) : WithField(std::move(decoded).status(), field);
}

absl::StatusOr<GatherMatmul> DecodeFused(const internal::v1::GatherMatmul& from) {
  GatherMatmul fused;
  SHARDMESH_ASSIGN_OR_RETURN(fused.gather, At("gather", DecodeCollective(from.gather())));
  SHARDMESH_ASSIGN_OR_RETURN(fused.gathered, At("gathered", Decode(from.gathered())));
  SHARDMESH_ASSIGN_OR_RETURN(fused.matmul, At("matmul", DecodeLocalMatmul(from.matmul())));
  fused.gathers_rhs = from.gathers_rhs();
  return fused;
}

absl::StatusOr<MatmulScatter> DecodeFused(const internal::v1::MatmulScatter& from) {
  MatmulScatter fused;
  SHARDMESH_ASSIGN_OR_RETURN(fused.matmul, At("matmul", DecodeLocalMatmul(from.matmul())));
  SHARDMESH_ASSIGN_OR_RETURN(fused.product, At("product", Decode(from.product())));
  SHARDMESH_ASSIGN_OR_RETURN(fused.scatter, At("scatter", DecodeCollective(from.scatter())));
  return fused;
}

absl::StatusOr<FusedCompute> DecodeFused(const internal::v1::FusedCompute& from) {
  FusedCompute fused;
  if (from.ops_size() > static_cast<int>(kMaxFusedOps)) {
    return BadField("ops", StrCat(from.ops_size(), " ops; at most ", kMaxFusedOps, " are allowed"));
  }
  fused.inputs.assign(from.inputs().begin(), from.inputs().end());
  for (int i = 0; i < from.ops_size(); ++i) {
    absl::StatusOr<TensorOp> op = Decode(from.ops(i).op());
    if (!op.ok()) return WithField(std::move(op).status(), "ops", static_cast<size_t>(i));
    fused.ops.push_back({.op = *std::move(op), .label = from.ops(i).label()});
  }
  return fused;
}

absl::StatusOr<Instruction> DecodeInstruction(const internal::v1::Instruction& from) {
  Instruction instruction;
  instruction.output = from.output();
  instruction.label = from.label();
  const auto take = [&](std::string_view field, auto kind) -> absl::Status {
    if (!kind.ok()) {
      return WithField(std::move(kind).status(), field);
    }
    instruction.kind = *std::move(kind);
    return absl::OkStatus();
  };
  switch (from.kind_case()) {
    case internal::v1::Instruction::kMatmul:
      SHARDMESH_RETURN_IF_ERROR(take("matmul", DecodeLocalMatmul(from.matmul())));
      return instruction;
    case internal::v1::Instruction::kEpilogue:
      SHARDMESH_RETURN_IF_ERROR(take("epilogue", DecodeLocalEpilogue(from.epilogue())));
      return instruction;
    case internal::v1::Instruction::kSlice:
      instruction.kind = LocalSlice{from.slice().input()};
      return instruction;
    case internal::v1::Instruction::kCollective:
      SHARDMESH_RETURN_IF_ERROR(take("collective", DecodeCollective(from.collective())));
      return instruction;
    case internal::v1::Instruction::kMove:
      instruction.kind = MoveRegions{from.move().input()};
      return instruction;
    case internal::v1::Instruction::kCompute: {
      absl::StatusOr<TensorOp> op = Decode(from.compute());
      if (!op.ok()) return WithField(std::move(op).status(), "compute");
      instruction.kind = LocalCompute{*std::move(op)};
      return instruction;
    }
    case internal::v1::Instruction::kGatherMatmul:
      SHARDMESH_RETURN_IF_ERROR(take("gather_matmul", DecodeFused(from.gather_matmul())));
      return instruction;
    case internal::v1::Instruction::kMatmulScatter:
      SHARDMESH_RETURN_IF_ERROR(take("matmul_scatter", DecodeFused(from.matmul_scatter())));
      return instruction;
    case internal::v1::Instruction::kFusedCompute:
      SHARDMESH_RETURN_IF_ERROR(take("fused_compute", DecodeFused(from.fused_compute())));
      return instruction;
    case internal::v1::Instruction::KIND_NOT_SET:
      break;
  }
  return BadField("kind", "an instruction of no kind that this build knows");
}

}  // namespace

v1::Activation Encode(Activation from) { return EncodeEnum<v1::Activation>(from); }

absl::StatusOr<Activation> Decode(v1::Activation from) {
  if (from == v1::ACTIVATION_UNSPECIFIED) {
    return Activation::kNone;
  }
  return DecodeEnum<Activation>(from, v1::Activation_IsValid(from), "activation");
}

v1::Reduction Encode(Reduction from) { return EncodeEnum<v1::Reduction>(from); }

absl::StatusOr<Reduction> Decode(v1::Reduction from) {
  if (from == v1::REDUCTION_UNSPECIFIED) {
    return Reduction::kSum;
  }
  return DecodeEnum<Reduction>(from, v1::Reduction_IsValid(from), "reduction");
}

v1::CollectiveKind Encode(CollectiveKind from) { return EncodeEnum<v1::CollectiveKind>(from); }

absl::StatusOr<CollectiveKind> Decode(v1::CollectiveKind from) {
  return DecodeEnum<CollectiveKind>(from, v1::CollectiveKind_IsValid(from), "kind");
}

v1::CollectiveAlgorithm Encode(CollectiveAlgorithm from) {
  return EncodeEnum<v1::CollectiveAlgorithm>(from);
}

absl::StatusOr<CollectiveAlgorithm> Decode(v1::CollectiveAlgorithm from) {
  if (from == v1::COLLECTIVE_ALGORITHM_UNSPECIFIED) {
    return CollectiveAlgorithm::kAuto;
  }
  return DecodeEnum<CollectiveAlgorithm>(from, v1::CollectiveAlgorithm_IsValid(from), "algorithm");
}

v1::CollectiveOrder Encode(CollectiveOrder from) { return EncodeEnum<v1::CollectiveOrder>(from); }

absl::StatusOr<CollectiveOrder> Decode(v1::CollectiveOrder from) {
  if (from == v1::COLLECTIVE_ORDER_UNSPECIFIED) {
    return CollectiveOrder::kReproducible;
  }
  return DecodeEnum<CollectiveOrder>(from, v1::CollectiveOrder_IsValid(from), "order");
}

void Encode(const ProgramOp& from, v1::ProgramOp* to) {
  std::visit([to](const auto& kind) { EncodeOp(kind, to); }, from);
}

absl::StatusOr<ProgramOp> Decode(const v1::ProgramOp& from) { return DecodeOp(from); }

void Encode(const PermutePair& from, v1::PermutePair* to) {
  to->set_source(from.source);
  to->set_target(from.target);
}

PermutePair Decode(const v1::PermutePair& from) { return {from.source(), from.target()}; }

v1::WeightLayout Encode(WeightLayout from) { return EncodeEnum<v1::WeightLayout>(from); }

absl::StatusOr<WeightLayout> Decode(v1::WeightLayout from) {
  if (from == v1::WEIGHT_LAYOUT_UNSPECIFIED) {
    return WeightLayout::kOutIn;
  }
  return DecodeEnum<WeightLayout>(from, v1::WeightLayout_IsValid(from), "weight_layout");
}

void Encode(const Program& from, v1::Program* to) {
  to->set_operand_count(from.operand_count);
  for (const ProgramOp& op : from.ops) {
    std::visit([to](const auto& kind) { EncodeOp(kind, to->add_ops()); }, op);
  }
  to->mutable_outputs()->Add(from.outputs.begin(), from.outputs.end());
  EncodeUpdates(from.updates, to);
  if (from.symbol.has_value()) Encode(*from.symbol, to->mutable_symbol());
  for (const SymbolicExtent& extent : from.symbolic_extents) {
    v1::SymbolicExtent* const added = to->add_symbolic_extents();
    added->set_operand(extent.operand);
    Encode(extent.extent, added->mutable_extent());
  }
}

std::string ProgramBytes(const Program& program) {
  v1::Program message;
  Encode(program, &message);
  return message.SerializeAsString();  // deterministic: the message has no maps
}

void Encode(const SymbolicDimension& from, v1::SymbolicDimension* to) {
  to->set_name(from.name);
  to->set_min(from.min);
  to->set_max(from.max);
  to->set_multiple(from.multiple);
}

SymbolicDimension Decode(const v1::SymbolicDimension& from) {
  return {.name = from.name(),
          .min = from.min(),
          .max = from.max(),
          .multiple = from.multiple() == 0 ? 1 : from.multiple()};
}

absl::StatusOr<Program> Decode(const v1::Program& from) {
  if (from.operand_count() > kMaxProgramSize) {
    return TooMany("operand_count", from.operand_count());
  }
  if (from.ops_size() > static_cast<int>(kMaxProgramSize)) {
    return TooMany("ops", from.ops_size());
  }
  if (from.outputs_size() > static_cast<int>(kMaxProgramSize)) {
    return TooMany("outputs", from.outputs_size());
  }
  if (from.updates_size() > static_cast<int>(kMaxProgramSize)) {
    return TooMany("updates", from.updates_size());
  }
  Program program;
  program.operand_count = from.operand_count();
  program.ops.reserve(static_cast<size_t>(from.ops_size()));
  ValueIndex known = from.operand_count();  // number of values to which the next op may refer
  for (int i = 0; i < from.ops_size(); ++i, ++known) {
    auto op = DecodeOp(from.ops(i));
    if (!op.ok()) {
      return WithField(std::move(op).status(), "ops", static_cast<size_t>(i));
    }
    for (const ValueIndex input : InputsOfOp(*op)) {
      if (input >= known) {
        return BadField(StrCat("ops[", i, "]"),
                        StrCat("op ", i, " (", ProgramOpName(*op), ") refers to value ", input,
                               "; only values before ", known, " are there"));
      }
    }
    program.ops.push_back(*std::move(op));
  }
  for (int i = 0; i < from.outputs_size(); ++i) {
    if (from.outputs(i) >= known) {
      return BadField(StrCat("outputs[", i, "]"),
                      StrCat("output ", i, " is value ", from.outputs(i), "; there are ", known));
    }
    program.outputs.push_back(from.outputs(i));
  }
  SHARDMESH_ASSIGN_OR_RETURN(program.updates, DecodeUpdates(from, known));
  if (from.has_symbol()) program.symbol = Decode(from.symbol());
  for (const v1::SymbolicExtent& extent : from.symbolic_extents()) {
    program.symbolic_extents.push_back(
        {.operand = extent.operand(), .extent = Decode(extent.extent())});
  }
  SHARDMESH_RETURN_IF_ERROR(CheckSymbolicProgram(program));
  return program;
}

void Encode(const ValueDescriptor& from, internal::v1::ValueDescriptor* to) {
  to->set_dtype(Encode(from.dtype));
  Encode(from.shape, to->mutable_shape());
  Encode(from.spec, to->mutable_spec());
  Encode(from.cut_points, to->mutable_cut_points());
}

absl::StatusOr<ValueDescriptor> Decode(const internal::v1::ValueDescriptor& from) {
  ValueDescriptor value;
  auto dtype = Decode(from.dtype());
  if (!dtype.ok()) {
    return WithField(std::move(dtype).status(), "dtype");
  }
  value.dtype = *dtype;
  auto shape = DecodeShape(from.shape());
  if (!shape.ok()) {
    return WithField(std::move(shape).status(), "shape");
  }
  value.shape = *std::move(shape);
  auto spec = Decode(from.spec());
  if (!spec.ok()) {
    return WithField(std::move(spec).status(), "spec");
  }
  value.spec = *std::move(spec);
  SHARDMESH_ASSIGN_OR_RETURN(value.cut_points, DecodeCutPoints(from.cut_points(), value.shape));
  return value;
}

void Encode(const PlanCost& from, v1::PlanCost* to) {
  to->set_flops(from.flops);
  to->set_sent_bytes(from.sent_bytes);
  to->set_memory_bytes(from.memory_bytes);
}

PlanCost Decode(const v1::PlanCost& from) {
  return {from.flops(), from.sent_bytes(), from.memory_bytes()};
}

void Encode(const Plan& from, internal::v1::Plan* to) {
  to->set_mesh_id(from.mesh_id);
  to->set_mesh_revision(from.mesh_revision);
  Encode(from.mesh, to->mutable_mesh());
  for (const ValueDescriptor& value : from.values) {
    Encode(value, to->add_values());
  }
  to->set_operand_count(from.operand_count);
  for (const Instruction& instruction : from.instructions) {
    internal::v1::Instruction* added = to->add_instructions();
    added->set_output(instruction.output);
    std::visit([added](const auto& kind) { EncodeKind(kind, added); }, instruction.kind);
    added->set_label(instruction.label);
  }
  to->mutable_outputs()->Add(from.outputs.begin(), from.outputs.end());
  EncodeUpdates(from.updates, to);
  Encode(from.cost, to->mutable_cost());
}

absl::StatusOr<Plan> Decode(const internal::v1::Plan& from) {
  Plan plan;
  SHARDMESH_RETURN_IF_ERROR(CheckEntryName(from.mesh_id(), "mesh_id"));
  plan.mesh_id = from.mesh_id();
  plan.mesh_revision = from.mesh_revision();
  auto mesh = Decode(from.mesh());
  if (!mesh.ok()) {
    return WithField(std::move(mesh).status(), "mesh");
  }
  plan.mesh = *std::move(mesh);
  if (plan.mesh.empty()) {
    return BadField("mesh", "a plan is made for a mesh, and this one names no axes");
  }
  plan.values.reserve(static_cast<size_t>(from.values_size()));
  for (int i = 0; i < from.values_size(); ++i) {
    auto value = Decode(from.values(i));
    if (!value.ok()) {
      return WithField(std::move(value).status(), "values", static_cast<size_t>(i));
    }
    plan.values.push_back(*std::move(value));
  }
  plan.operand_count = from.operand_count();
  plan.instructions.reserve(static_cast<size_t>(from.instructions_size()));
  for (int i = 0; i < from.instructions_size(); ++i) {
    auto instruction = DecodeInstruction(from.instructions(i));
    if (!instruction.ok()) {
      return WithField(std::move(instruction).status(), "instructions", static_cast<size_t>(i));
    }
    plan.instructions.push_back(*std::move(instruction));
  }
  plan.outputs.assign(from.outputs().begin(), from.outputs().end());
  plan.updates.reserve(static_cast<size_t>(from.updates_size()));
  for (const v1::StateUpdate& update : from.updates()) {
    plan.updates.push_back({update.operand(), update.value()});
  }
  plan.cost = Decode(from.cost());
  if (absl::Status status = CheckPlan(plan); !status.ok()) {
    return WithField(std::move(status), "instructions");
  }
  return plan;
}

std::string PlanBytes(const Plan& plan) {
  internal::v1::Plan message;
  Encode(plan, &message);
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream output(&stream);
  output.SetSerializationDeterministic(true);
  message.SerializeToCodedStream(&output);
  output.Trim();
  return bytes;
}

absl::StatusOr<Plan> ParsePlanBytes(std::string_view bytes) {
  internal::v1::Plan message;
  if (bytes.size() > static_cast<size_t>(std::numeric_limits<int>::max()) ||
      !message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return BadField("plan", StrCat("the ", bytes.size(), " bytes of the plan are no v1.Plan"));
  }
  return Decode(message);
}

}  // namespace shardmesh::rpc
