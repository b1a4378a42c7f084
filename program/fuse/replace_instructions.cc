// Copies the instructions that stay, with the new numbers of their values.
#include "program/fuse/replace_instructions.h"

#include <utility>
#include <variant>

#include "program/tensor_op.h"

namespace shardmesh {
namespace {

// Each Renumber replaces the numbers of the values that an instruction reads.
using Numbers = std::vector<ValueIndex>;  // by old number

void Renumber(const Numbers& number_of, LocalMatmul* matmul) {
  matmul->lhs = number_of[matmul->lhs];
  matmul->rhs = number_of[matmul->rhs];
  if (matmul->bias.has_value()) matmul->bias = number_of[*matmul->bias];
  if (matmul->scales.has_value()) matmul->scales = number_of[*matmul->scales];
}

void Renumber(const Numbers& number_of, LocalEpilogue* epilogue) {
  epilogue->input = number_of[epilogue->input];
  if (epilogue->bias.has_value()) epilogue->bias = number_of[*epilogue->bias];
}

void Renumber(const Numbers& number_of, LocalSlice* slice) {
  slice->input = number_of[slice->input];
}

void Renumber(const Numbers& number_of, GroupCollective* collective) {
  collective->input = number_of[collective->input];
}

void Renumber(const Numbers& number_of, MoveRegions* move) { move->input = number_of[move->input]; }

void Renumber(const Numbers& number_of, LocalCompute* compute) {
  ReplaceInputs(compute->op, [&number_of](ValueIndex value) { return number_of[value]; });
}

void Renumber(const Numbers& number_of, FusedCompute* fused) {
  for (ValueIndex& input : fused->inputs) input = number_of[input];
}

void Renumber(const Numbers& number_of, GatherMatmul* fused) {
  Renumber(number_of, &fused->gather);
  Renumber(number_of, &fused->matmul);
}

void Renumber(const Numbers& number_of, MatmulScatter* fused) {
  Renumber(number_of, &fused->matmul);
  Renumber(number_of, &fused->scatter);
}

}  // namespace

Plan WithChanges(Plan plan, InstructionChanges changes) {
  Plan result = {.mesh_id = plan.mesh_id,
                 .mesh_revision = plan.mesh_revision,
                 .mesh = plan.mesh,
                 .values = {},
                 .operand_count = plan.operand_count,
                 .instructions = {},
                 .outputs = {},
                 .updates = {},
                 .cost = plan.cost};
  Numbers number_of(plan.values.size(), 0);
  for (ValueIndex operand = 0; operand < plan.operand_count; ++operand) {
    number_of[operand] = operand;
    result.values.push_back(std::move(plan.values[operand]));
  }
  for (size_t i = 0; i < plan.instructions.size(); ++i) {
    if (changes.is_left_out[i]) continue;
    Instruction& instruction =
        changes.replaced[i].has_value() ? *changes.replaced[i] : plan.instructions[i];
    std::visit([&](auto& kind) { Renumber(number_of, &kind); }, instruction.kind);
    const auto number = static_cast<ValueIndex>(result.values.size());
    number_of[instruction.output] = number;
    result.values.push_back(std::move(plan.values[instruction.output]));
    instruction.output = number;
    result.instructions.push_back(std::move(instruction));
  }
  for (const ValueIndex output : plan.outputs) result.outputs.push_back(number_of[output]);
  for (const StateUpdate& update : plan.updates) {
    result.updates.push_back({.operand = update.operand, .value = number_of[update.value]});
  }
  return result;
}

}  // namespace shardmesh
