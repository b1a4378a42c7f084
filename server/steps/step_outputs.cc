// Checks, describes, commits and assembles the results of steps.
#include "server/steps/step_outputs.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "process/random_bytes.h"
#include "rpc/call.h"
#include "rpc/codec/field_check.h"
#include "rpc/codec/status.h"
#include "server/steps/step_codec.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/view.h"

namespace shardmesh::server {
namespace {

// Checks that the answer to the client fits into one message. `descriptors_bytes`: size of the
// encoded descriptors.
absl::Status CheckAnswerSize(const std::vector<ArrayDescriptor>& described,
                             const StepOutputs& outputs, int64_t descriptors_bytes) {
  // Upper bounds of the bytes that protobuf adds for tags, lengths and numbers: to the answer, to
  // each array, to each literal.
  constexpr int64_t kFramingBytes = 256;
  constexpr int64_t kItemFramingBytes = 96;
  constexpr int64_t kLiteralFramingBytes = 32 + 10 * kMaxRank;
  int64_t names_bytes = 0;
  for (const std::string& name : outputs.names) names_bytes += std::ssize(name);
  int64_t literals_bytes = 0;
  for (const ArrayDescriptor& output : described) {
    if (!outputs.return_literals) break;
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t output_bytes, output.SizeBytes());
    literals_bytes += output_bytes + kLiteralFramingBytes;
  }
  const int64_t size_bytes = kFramingBytes + std::ssize(described) * kItemFramingBytes +
                             descriptors_bytes + names_bytes + literals_bytes;
  if (size_bytes <= rpc::kMaxControlMessageBytes) return absl::OkStatus();
  return InvalidArgument(
      Reason::kLimitExceeded,
      StrCat("the answer may have ", size_bytes, " bytes, ", descriptors_bytes,
             " of them the descriptors of ", described.size(), " results, ", names_bytes,
             " their names and ", literals_bytes, " their elements; the limit is ",
             rpc::kMaxControlMessageBytes,
             ": split the program, give shorter names, or get the arrays instead of literals"),
      {{fact::kHave, size_bytes}, {fact::kLimit, rpc::kMaxControlMessageBytes}});
}

}  // namespace

absl::Status CheckOutputs(const StepOutputs& outputs, const Plan& plan) {
  if (plan.outputs.empty() && plan.updates.empty() && !plan.instructions.empty()) {
    return rpc::BadField("program.outputs",
                         "is empty, and the program updates no state; a program with ops makes or "
                         "updates at least one array");
  }
  if (outputs.names.size() > plan.outputs.size()) {
    return rpc::BadField("output.names", StrCat("has ", outputs.names.size(), " entries for ",
                                                plan.outputs.size(), " results"));
  }
  int64_t literal_bytes = 0;
  for (size_t i = 0; i < plan.outputs.size(); ++i) {
    const ValueDescriptor& value = plan.values[plan.outputs[i]];
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(value.shape));
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t bytes, PackedSizeBytes(value.dtype, elements));
    literal_bytes += bytes;
    if (outputs.return_literals && !value.spec.unreduced().empty()) {
      return rpc::BadField("output.return_literals",
                           StrCat("result ", i, " is a partial sum; reduce it first"));
    }
  }
  if (outputs.return_literals && literal_bytes > kMaxLiteralBytes) {
    return rpc::BadField("output.return_literals",
                         StrCat("the results have ", literal_bytes, " bytes; at most ",
                                kMaxLiteralBytes, " are returned inline; get the arrays instead"));
  }
  for (const std::string& name : outputs.names) {
    if (name.empty()) continue;
    SHARDMESH_RETURN_IF_ERROR(rpc::CheckArrayName(name, "output.names"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Program> WithOutputSpecs(Program program, const StepOutputs& outputs) {
  if (outputs.specs.size() > program.outputs.size()) {
    return rpc::BadField("output.layouts", StrCat("has ", outputs.specs.size(), " entries for ",
                                                  program.outputs.size(), " results"));
  }
  for (size_t i = 0; i < outputs.specs.size(); ++i) {
    if (!outputs.specs[i].has_value()) continue;
    const auto resharded = static_cast<ValueIndex>(program.operand_count + program.ops.size());
    program.ops.push_back(ReshardOp{.input = program.outputs[i], .spec = *outputs.specs[i]});
    program.outputs[i] = resharded;
  }
  return program;
}

std::vector<ArrayDescriptor> DescribeOutputs(const Plan& plan, Revision ranks_revision) {
  std::vector<ArrayDescriptor> described;
  described.reserve(plan.outputs.size());
  for (const ValueIndex output : plan.outputs) {
    const ValueDescriptor& value = plan.values[output];
    described.push_back(
        {.array_id = RandomId(),
         .dtype = value.dtype,
         .shape = value.shape,
         .spec = value.spec,
         .mesh_id = plan.mesh_id,
         .mesh_revision = value.spec.unreduced().empty() ? plan.mesh_revision : ranks_revision,
         .mesh = plan.mesh,
         .cut_points = value.cut_points});
  }
  return described;
}

absl::Status CheckMessageSizes(const PreparedPlan& plan, const std::vector<FoundOperand>& operands,
                               const std::vector<ArrayDescriptor>& described,
                               const StepOutputs& outputs) {
  // Upper bounds of tags, lengths and numbers: of the message, and of each operand and output.
  constexpr int64_t kFramingBytes = 256;
  constexpr int64_t kItemFramingBytes = 16;
  const int64_t plan_bytes = std::ssize(plan.bytes);
  int64_t literal_bytes = 0;
  int64_t other_bytes = kFramingBytes;
  int64_t descriptors_bytes = 0;
  for (const FoundOperand& operand : operands) {
    other_bytes += kItemFramingBytes;
    if (operand.array != nullptr) {
      other_bytes += std::ssize(operand.array->definition.descriptor.array_id);
    } else {
      literal_bytes += EncodedSizeBytes(operand.literal);
    }
  }
  for (const ArrayDescriptor& output : described) {
    descriptors_bytes += EncodedSizeBytes(output);
    other_bytes += kItemFramingBytes;
  }
  const int64_t size_bytes = plan_bytes + literal_bytes + descriptors_bytes + other_bytes;
  if (size_bytes <= rpc::kMaxControlMessageBytes) {
    return CheckAnswerSize(described, outputs, descriptors_bytes);
  }
  return InvalidArgument(
      Reason::kLimitExceeded,
      StrCat("the step has ", size_bytes, " bytes for each worker, ", literal_bytes,
             " of them literals and ", plan_bytes, " its plan; the limit is ",
             rpc::kMaxControlMessageBytes, ": put large literals as arrays, or split the program"),
      {{fact::kHave, size_bytes}, {fact::kLimit, rpc::kMaxControlMessageBytes}});
}

CommitRequest CommitOf(const std::vector<ArrayDescriptor>& described, const StepOutputs& outputs,
                       const WorkOutcome& outcome, std::vector<std::string> updated) {
  CommitRequest commit;
  commit.updated = std::move(updated);
  commit.step = outcome.sequence;
  absl::flat_hash_map<std::string_view, size_t> places;  // index of each output, by array id
  for (size_t i = 0; i < described.size(); ++i) {
    const std::string& array_id = described[i].array_id;
    places.emplace(array_id, i);
    commit.arrays.push_back({.array_id = array_id,
                             .durability = Durability::kMemory,
                             .tile_crc32c = std::vector<uint32_t>(outcome.ranks.size()),
                             .epoch = outcome.epoch});
    if (const std::string& name = outputs.NameOf(i); !name.empty()) {
      commit.moves.push_back({.name = name,
                              .array_id = array_id,
                              .expected_version = i < outputs.expected_versions.size()
                                                      ? outputs.expected_versions[i]
                                                      : std::nullopt});
    }
  }
  if (outputs.other_moves && !described.empty()) {
    const std::vector<NameMove> others = outputs.other_moves(described.front().array_id);
    commit.moves.insert(commit.moves.end(), others.begin(), others.end());
  }
  commit.superseded = outputs.superseded;
  for (const RankResult& rank : outcome.ranks) {
    for (const StagedTileReport& tile : rank.tiles) {
      if (const auto place = places.find(tile.array_id); place != places.end()) {
        commit.arrays[place->second].tile_crc32c[static_cast<size_t>(rank.participant.rank)] =
            tile.crc32c;
      }
    }
  }
  return commit;
}

absl::StatusOr<Literal> AssembleLiteral(const ArrayDescriptor& descriptor,
                                        absl::Span<const RankResult> ranks) {
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, descriptor.Tiling());
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t size_bytes, descriptor.SizeBytes());
  Literal literal{.dtype = descriptor.dtype,
                  .shape = descriptor.shape,
                  .bytes = std::string(static_cast<size_t>(size_bytes), '\0')};
  SHARDMESH_ASSIGN_OR_RETURN(
      const MutableTensorView whole,
      MutableTensorView::Create(literal.dtype, literal.shape, absl::MakeSpan(literal.bytes)));
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto device = static_cast<DeviceId>(rank);
    if (tiling.ReplicaIdOf(device) != 0) {
      continue;
    }
    const auto& tile_bytes = ranks[rank].detail.tile_bytes;
    const auto staged = tile_bytes.find(descriptor.array_id);
    if (staged == tile_bytes.end()) {
      return absl::InternalError(StrCat("rank ", rank, " returned no elements of its tile"));
    }
    SHARDMESH_RETURN_IF_ERROR(PasteTileBytes(staged->second, tiling.TileOf(device), 0, whole));
  }
  return literal;
}

}  // namespace shardmesh::server
