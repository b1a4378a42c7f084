// Fuzzes programs as clients send them: what is accepted crosses the wire again as the same, and
// the plans made of it are plans that workers accept.
#include <string>
#include <string_view>
#include <vector>

#include "rpc/codec/plan_codec.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/quiet_protobuf.h"

namespace shardmesh::fuzz {
namespace {

std::string BytesOf(const Program& program) {
  v1::Program message;
  rpc::Encode(program, &message);
  return message.SerializeAsString();
}

// Matrices that lie in different ways, a row, positions and heads, over and over.
std::vector<ValueDescriptor> SomeOperands(uint32_t count) {
  const SpecEntry none;
  const SpecEntry dp = SpecEntry::Axis("dp");
  const SpecEntry tp = SpecEntry::Axis("tp");
  const std::vector<ValueDescriptor> kinds = {
      {Dtype::kF32, {8, 16}, PartitionSpec({dp})},
      {Dtype::kF32, {16, 16}, PartitionSpec({none, tp})},
      {Dtype::kF32, {16}, PartitionSpec()},
      {Dtype::kF32, {4, 8, 16}, PartitionSpec({none, dp, tp})},
      {Dtype::kBF16, {16, 16}, PartitionSpec({tp, dp})},
      {Dtype::kBF16, {8, 0}, PartitionSpec()},
      {Dtype::kF32, {8, 16}, PartitionSpec({SpecEntry::Axes({"dp", "tp"})}), {{0, 1, 3, 6, 8}, {}}},
      {Dtype::kI8, {8, 16}, PartitionSpec({none, tp}), {{}, {0, 9, 16}}},
      {Dtype::kI32, {2}, PartitionSpec()},
      {Dtype::kF32, {2, 8, 4, 8}, PartitionSpec({none, none, tp})},
  };
  std::vector<ValueDescriptor> operands;
  for (uint32_t i = 0; i < count; ++i) {
    operands.push_back(kinds[i % kinds.size()]);
  }
  return operands;
}

}  // namespace

void Check(std::string_view input) {
  static const Mesh mesh = *Mesh::Parse("dp=2,tp=2");
  v1::Program message;
  if (!message.ParseFromString(std::string(input))) {
    return;
  }
  const absl::StatusOr<Program> program = rpc::Decode(message);
  if (!program.ok()) {
    Require(program.status().code() == absl::StatusCode::kInvalidArgument);
    return;
  }
  const std::string bytes = BytesOf(*program);
  Require(message.ParseFromString(bytes));
  const absl::StatusOr<Program> again = rpc::Decode(message);
  Require(again.ok() && BytesOf(*again) == bytes);

  const auto plan = PlanProgram(*program, SomeOperands(program->operand_count), {"m", 1, mesh});
  Require(!plan.ok() || rpc::ParsePlanBytes(rpc::PlanBytes(*plan)).ok());
}

}  // namespace shardmesh::fuzz
