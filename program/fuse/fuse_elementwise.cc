// Finds the groups of functions of elements from the last instruction to the first: when an op is
// considered, the groups of all its readers are known.
#include "program/fuse/fuse_elementwise.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "program/fuse/replace_instructions.h"
#include "program/memory_plan.h"
#include "program/tensor_op.h"
#include "program/value_layout.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

bool IsElementwise(const TensorOp& op) {
  return std::holds_alternative<MapOp>(op) || std::holds_alternative<ConvertOp>(op);
}

// Returns the instruction's op if it is a function of elements; null otherwise.
const TensorOp* ElementwiseOpOf(const Instruction& instruction) {
  const auto* const compute = std::get_if<LocalCompute>(&instruction.kind);
  return compute != nullptr && IsElementwise(compute->op) ? &compute->op : nullptr;
}

// Finds the groups of a plan. The plan outlives it.
class GroupFinder {
 public:
  // With `saves_memory`, an op joins a group only if its inputs take no more memory than its
  // result.
  GroupFinder(const Plan& plan, bool saves_memory) : plan_(plan), saves_memory_(saves_memory) {
    const size_t values = plan.values.size();
    readers_.resize(values);
    last_use_.assign(values, 0);
    written_over_.assign(values, std::nullopt);
    takes_no_memory_.assign(values, false);
    is_result_.assign(values, false);
    for (size_t i = 0; i < plan.instructions.size(); ++i) {
      for (const ValueIndex input : InputsOf(plan.instructions[i])) {
        readers_[input].push_back(i);
        last_use_[input] = i;
      }
    }
    for (const ValueIndex output : plan.outputs) is_result_[output] = true;
    for (const StateUpdate& update : plan.updates) is_result_[update.value] = true;
    const std::vector<std::optional<ValueIndex>> places = StatePlaces(plan);
    for (size_t value = 0; value < values; ++value) {
      takes_no_memory_[value] = value < plan.operand_count || is_result_[value] ||
                                places[value].has_value() ||
                                TileBytes(plan.mesh, plan.values[value]) <= kMaxConstantBytes;
      if (!places[value].has_value()) continue;
      const size_t maker = value - plan.operand_count;
      const auto& compute = std::get<LocalCompute>(plan.instructions[maker].kind);
      written_over_[std::get<UpdateRowsOp>(compute.op).input] = maker;
    }
  }

  // Returns, by instruction, the last instruction of its group: the instruction itself if it is in
  // no group or is the last one of its group.
  std::vector<size_t> Run() && {
    const size_t count = plan_.instructions.size();
    last_of_.resize(count);
    sizes_.assign(count, 1);
    for (size_t i = count; i-- > 0;) {
      const std::optional<size_t> last = GroupFor(i);
      last_of_[i] = last.value_or(i);
      if (!last.has_value()) continue;
      ++sizes_[*last];
      for (const ValueIndex input : InputsOf(plan_.instructions[i])) {
        last_use_[input] = std::max(last_use_[input], *last);
      }
    }
    return std::move(last_of_);
  }

 private:
  // Returns the last instruction of the group that the instruction joins; nullopt if it joins none.
  std::optional<size_t> GroupFor(size_t index) const {
    const Instruction& instruction = plan_.instructions[index];
    const ValueIndex made = instruction.output;
    if (ElementwiseOpOf(instruction) == nullptr || readers_[made].empty() || is_result_[made]) {
      return std::nullopt;
    }
    const size_t last = last_of_[readers_[made].front()];
    for (const size_t reader : readers_[made]) {
      if (ElementwiseOpOf(plan_.instructions[reader]) == nullptr || last_of_[reader] != last) {
        return std::nullopt;
      }
    }
    const ValueDescriptor& value = plan_.values[made];
    const ValueDescriptor& result = plan_.values[plan_.instructions[last].output];
    const bool lies_alike = value.shape == result.shape && value.cut_points == result.cut_points &&
                            LayoutOf(plan_.mesh, value) == LayoutOf(plan_.mesh, result);
    if (!lies_alike || sizes_[last] >= kMaxFusedOps || !MayReadAt(instruction, last) ||
        !FitsInMemory(index, last)) {
      return std::nullopt;
    }
    return last;
  }

  // Returns whether the instruction's inputs have their elements until instruction `last`.
  bool MayReadAt(const Instruction& instruction, size_t last) const {
    const std::vector<ValueIndex> inputs = InputsOf(instruction);
    return std::all_of(inputs.begin(), inputs.end(), [&](ValueIndex input) {
      return !written_over_[input].has_value() || *written_over_[input] > last;
    });
  }

  bool FitsInMemory(size_t index, size_t last) const {
    const bool is_adjacent = std::all_of(last_of_.begin() + static_cast<std::ptrdiff_t>(index) + 1,
                                         last_of_.begin() + static_cast<std::ptrdiff_t>(last),
                                         [last](size_t other_last) { return other_last == last; });
    if (is_adjacent && !saves_memory_) return true;
    const Instruction& instruction = plan_.instructions[index];
    int64_t kept_bytes = 0;
    absl::flat_hash_set<ValueIndex> counted;
    for (const ValueIndex input : InputsOf(instruction)) {
      if (takes_no_memory_[input] || last_use_[input] >= last || !counted.insert(input).second) {
        continue;
      }
      AddTo(kept_bytes, TileBytes(plan_.mesh, plan_.values[input]));
    }
    return kept_bytes <= TileBytes(plan_.mesh, plan_.values[instruction.output]);
  }

  const Plan& plan_;
  const bool saves_memory_;
  std::vector<std::vector<size_t>> readers_;  // by value: the instructions that read it
  std::vector<bool> is_result_;               // by value: outputs, and values of updates
  // By value: whether it is not counted, because it is no temporary, or is small.
  std::vector<bool> takes_no_memory_;
  // By value: the instruction that makes its result in the value's memory, if this is state.
  std::vector<std::optional<size_t>> written_over_;
  std::vector<size_t> last_use_;  // by value: the last instruction that reads it, as groups are now
  std::vector<size_t> last_of_;   // by instruction: the last one of its group
  std::vector<size_t> sizes_;     // by the last instruction of a group
};

// Returns the text of a label before `end`, or all of it.
std::string_view LabelUpTo(std::string_view label, std::string_view end) {
  return label.substr(0, label.find(end));
}

// Returns one instruction for the instructions `members` of the plan, the last of which makes the
// result.
Instruction Fused(const Plan& plan, const std::vector<size_t>& members) {
  const Instruction& last = plan.instructions[members.back()];
  FusedCompute fused;
  std::vector<std::string_view> names;
  absl::flat_hash_map<ValueIndex, ValueIndex> number_of;  // by value of the plan
  for (const size_t member : members) number_of[plan.instructions[member].output] = 0;
  for (const size_t member : members) {
    for (const ValueIndex input : InputsOf(plan.instructions[member])) {
      const auto next = static_cast<ValueIndex>(fused.inputs.size());
      if (number_of.try_emplace(input, next).second) fused.inputs.push_back(input);
    }
  }
  const size_t inputs = fused.inputs.size();
  for (const size_t member : members) {
    number_of[plan.instructions[member].output] =
        static_cast<ValueIndex>(inputs + fused.ops.size());
    const Instruction& instruction = plan.instructions[member];
    FusedOp& added = fused.ops.emplace_back();
    added.op = std::get<LocalCompute>(instruction.kind).op;
    added.label = std::string(LabelUpTo(instruction.label, ": "));
    ReplaceInputs(added.op, [&](ValueIndex value) { return number_of.at(value); });
    names.push_back(TensorOpName(added.op));
  }
  std::string label =
      StrCat(LabelUpTo(LabelUpTo(last.label, ": "), " ("), " (", StrJoin(names, "+"), "): compute");
  return {.output = last.output, .kind = std::move(fused), .label = std::move(label)};
}

// Returns a copy of the plan in which groups are one instruction each; nullopt if there are none.
std::optional<Plan> WithGroups(const Plan& plan, bool saves_memory) {
  const std::vector<size_t> last_of = GroupFinder(plan, saves_memory).Run();
  std::vector<std::vector<size_t>> members(last_of.size());  // by the last one of the group
  for (size_t i = 0; i < last_of.size(); ++i) members[last_of[i]].push_back(i);
  InstructionChanges changes(last_of.size());
  bool has_groups = false;
  for (size_t last = 0; last < members.size(); ++last) {
    if (members[last].size() < 2) continue;
    has_groups = true;
    for (const size_t member : members[last]) changes.is_left_out[member] = member != last;
    changes.replaced[last] = Fused(plan, members[last]);
  }
  if (!has_groups) return std::nullopt;
  return WithChanges(plan, std::move(changes));
}

// Checks that the ops are functions of elements, and that their inputs and results are read.
absl::Status CheckOps(const FusedCompute& fused) {
  const auto refuse = [](std::string_view why) {
    return InvalidArgument(Reason::kBadField, StrCat("a fused instruction ", why),
                           {{fact::kField, "ops"}});
  };
  const size_t inputs = fused.inputs.size();
  const size_t ops = fused.ops.size();
  if (ops < 2 || ops > kMaxFusedOps) {
    return refuse(StrCat("has ", ops, " ops; it must have 2 to ", kMaxFusedOps));
  }
  const absl::flat_hash_set<ValueIndex> distinct(fused.inputs.begin(), fused.inputs.end());
  if (distinct.size() != inputs) return refuse("lists an input twice");
  std::vector<bool> is_read(inputs + ops, false);
  is_read.back() = true;
  for (size_t i = 0; i < ops; ++i) {
    const TensorOp& op = fused.ops[i].op;
    if (!IsElementwise(op)) {
      return refuse(StrCat("has the op ", TensorOpName(op), ", which is no function of elements"));
    }
    for (const ValueIndex input : InputsOf(op)) {
      if (input >= inputs + i) {
        return refuse(StrCat("has an op ", i, ", which reads value ", input, " before it is made"));
      }
      is_read[input] = true;
    }
  }
  const bool are_read = std::find(is_read.begin(), is_read.end(), false) == is_read.end();
  return are_read ? absl::OkStatus() : refuse("has an input or a result that no op reads");
}

}  // namespace

Plan FuseElementwise(Plan plan) {
  std::optional<int64_t> most_bytes;
  for (const bool saves_memory : {false, true}) {
    std::optional<Plan> fused = WithGroups(plan, saves_memory);
    if (!fused.has_value()) return plan;
    if (!most_bytes.has_value()) {
      most_bytes = LeastBytesOf(plan);
      AddTo(*most_bytes, kMostMoreBytes);
    }
    if (LeastBytesOf(*fused) <= *most_bytes) return *std::move(fused);
  }
  return plan;
}

absl::StatusOr<Plan> PlainFormOf(const Plan& plan, const FusedCompute& fused, ValueIndex output) {
  SHARDMESH_RETURN_IF_ERROR(CheckOps(fused));
  Plan plain = {.mesh_id = plan.mesh_id,
                .mesh_revision = plan.mesh_revision,
                .mesh = plan.mesh,
                .values = {},
                .operand_count = static_cast<uint32_t>(fused.inputs.size()),
                .instructions = {},
                .outputs = {},
                .updates = {},
                .cost = {}};
  for (const ValueIndex input : fused.inputs) plain.values.push_back(plan.values[input]);
  for (const FusedOp& op : fused.ops) {
    const auto number = static_cast<ValueIndex>(plain.values.size());
    ValueDescriptor value = plan.values[output];
    if (plain.instructions.size() + 1 < fused.ops.size()) {
      std::vector<TensorType> types;
      for (const ValueIndex input : InputsOf(op.op)) {
        types.push_back({.dtype = plain.values[input].dtype, .shape = plain.values[input].shape});
      }
      const absl::StatusOr<TensorType> type = ResultTypeOf(op.op, types);
      if (!type.ok()) return WithContext(type.status(), op.label);
      value.dtype = type->dtype;
    }
    plain.instructions.push_back(
        {.output = number, .kind = LocalCompute{.op = op.op}, .label = op.label});
    plain.values.push_back(std::move(value));
  }
  plain.outputs = {plain.instructions.back().output};
  return plain;
}

}  // namespace shardmesh
