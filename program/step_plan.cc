// Properties of a plan's values, and the function that compiles programs to plans.
#include "program/step_plan.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "absl/status/status.h"
#include "program/collective_choice.h"
#include "program/plan_builder.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

// Returns the values that an op reads.
std::vector<ValueIndex> InputsOf(const ProgramOp& op) {
  struct Visitor {
    std::vector<ValueIndex> operator()(const LinearOp& linear) const {
      std::vector<ValueIndex> inputs = {linear.input, linear.weight};
      if (linear.bias.has_value()) {
        inputs.push_back(*linear.bias);
      }
      return inputs;
    }
    std::vector<ValueIndex> operator()(const MatmulOp& matmul) const {
      return {matmul.lhs, matmul.rhs};
    }
    std::vector<ValueIndex> operator()(const CollectiveOp& collective) const {
      return {collective.input};
    }
    std::vector<ValueIndex> operator()(const ReshardOp& reshard) const { return {reshard.input}; }
  };
  return std::visit(Visitor{}, op);
}

// Returns the name of an op for messages and labels: "op 0 (linear)".
std::string NameOf(size_t number, const ProgramOp& op) {
  static constexpr std::string_view kNames[] = {"linear", "matmul", "collective", "reshard"};
  return StrCat("op ", number, " (", kNames[op.index()], ")");
}

bool IsProduct(const ProgramOp& op) {
  return std::holds_alternative<LinearOp>(op) || std::holds_alternative<MatmulOp>(op);
}

// Passes each op of a program to the plan builder. Replaces the value indices of the program by
// those of the plan.
class ProgramPlanner {
 public:
  ProgramPlanner(const Program& program, absl::Span<const ValueDescriptor> operands,
                 const PlanTarget& target)
      : program_(program), builder_(target, operands) {
    for (ValueIndex i = 0; i < operands.size(); ++i) {
      values_.push_back(i);
    }
  }

  absl::StatusOr<Plan> Run() && {
    FindReshardsOfProducts();
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      const ProgramOp& op = program_.ops[i];
      builder_.Name(NameOf(i, op));
      SHARDMESH_ASSIGN_OR_RETURN(const ValueIndex result,
                                 std::visit([&](const auto& each) { return Add(each, i); }, op));
      values_.push_back(result);
    }
    std::vector<ValueIndex> outputs;
    builder_.Name("outputs");
    for (const ValueIndex output : program_.outputs) {
      SHARDMESH_ASSIGN_OR_RETURN(const ValueIndex planned, ValueOf(output));
      if (output < program_.operand_count) {
        return builder_.Error(Reason::kBadField, StrCat("value ", output, " is an operand"),
                              {{fact::kField, "outputs"}, {fact::kValue, output}});
      }
      if (std::find(outputs.begin(), outputs.end(), planned) != outputs.end()) {
        return builder_.Error(Reason::kBadField, StrCat("value ", output, " is given twice"),
                              {{fact::kField, "outputs"}, {fact::kValue, output}});
      }
      outputs.push_back(planned);
    }
    return std::move(builder_).Finish(std::move(outputs));
  }

  // Returns the plans of the program, which is one product or one product and the reshard of its
  // result.
  absl::StatusOr<std::vector<PlanCandidate>> Candidates(size_t most) && {
    FindReshardsOfProducts();
    builder_.Name(NameOf(0, program_.ops.front()));
    const auto* const linear = std::get_if<LinearOp>(&program_.ops.front());
    SHARDMESH_ASSIGN_OR_RETURN(const Product product,
                               linear != nullptr
                                   ? ProductOf(*linear, 0)
                                   : ProductOf(std::get<MatmulOp>(program_.ops.front()), 0));
    SHARDMESH_ASSIGN_OR_RETURN(std::vector<ProductPlan> plans,
                               builder_.ProductPlansOf(product, most));
    std::vector<PlanCandidate> candidates;
    for (ProductPlan& plan : plans) {
      PlanCandidate& candidate = candidates.emplace_back();
      candidate.roles = std::move(plan.roles);
      candidate.seconds = plan.seconds;
      PlanBuilder builder = builder_;
      const ValueIndex result = builder.Append(std::move(plan));
      candidate.plan = std::move(builder).Finish({result});
    }
    return candidates;
  }

 private:
  // Finds the products whose result is used by one op only, a reshard.
  void FindReshardsOfProducts() {
    const size_t values = program_.operand_count + program_.ops.size();
    std::vector<size_t> uses(values, 0);
    std::vector<size_t> last_user(values, 0);
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      for (const ValueIndex input : InputsOf(program_.ops[i])) {
        if (input >= values) continue;  // Add refuses it
        ++uses[input];
        last_user[input] = i;
      }
    }
    for (const ValueIndex output : program_.outputs) {
      if (output < values) ++uses[output];
    }
    reshard_of_.assign(program_.ops.size(), std::nullopt);
    is_planned_.assign(program_.ops.size(), false);
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      const size_t result = program_.operand_count + i;
      const size_t user = last_user[result];
      if (uses[result] != 1 || user <= i || !IsProduct(program_.ops[i]) ||
          !std::holds_alternative<ReshardOp>(program_.ops[user])) {
        continue;
      }
      reshard_of_[i] = user;
      is_planned_[user] = true;
    }
  }

  absl::StatusOr<ValueIndex> ValueOf(ValueIndex index) const {
    if (index >= values_.size()) {
      return builder_.Error(
          Reason::kBadField,
          StrCat("value ", index, " is not there yet; ", values_.size(), " values precede"),
          {{fact::kValue, index}});
    }
    return values_[index];
  }

  absl::StatusOr<Product> ProductOf(const LinearOp& op, size_t number) const {
    Product product{.transpose_rhs = op.weight_layout == WeightLayout::kOutIn,
                    .rhs_is_weight = true,
                    .scale = op.scale,
                    .activation = op.activation};
    SHARDMESH_ASSIGN_OR_RETURN(product.lhs, ValueOf(op.input));
    SHARDMESH_ASSIGN_OR_RETURN(product.rhs, ValueOf(op.weight));
    if (op.bias.has_value()) {
      SHARDMESH_ASSIGN_OR_RETURN(product.bias, ValueOf(*op.bias));
    }
    SetReshard(number, &product);
    return product;
  }
  absl::StatusOr<Product> ProductOf(const MatmulOp& op, size_t number) const {
    Product product{.transpose_lhs = op.transpose_lhs, .transpose_rhs = op.transpose_rhs};
    SHARDMESH_ASSIGN_OR_RETURN(product.lhs, ValueOf(op.lhs));
    SHARDMESH_ASSIGN_OR_RETURN(product.rhs, ValueOf(op.rhs));
    SetReshard(number, &product);
    return product;
  }
  void SetReshard(size_t number, Product* product) const {
    if (!reshard_of_[number].has_value()) return;
    const ProgramOp& reshard = program_.ops[*reshard_of_[number]];
    product->reshard = std::get<ReshardOp>(reshard);
    product->reshard_name = NameOf(*reshard_of_[number], reshard);
  }

  template <typename ProductOp>
  absl::StatusOr<ValueIndex> Add(const ProductOp& op, size_t number) {
    SHARDMESH_ASSIGN_OR_RETURN(const Product product, ProductOf(op, number));
    return builder_.AddProduct(product);
  }
  absl::StatusOr<ValueIndex> Add(const CollectiveOp& op, size_t /*number*/) {
    SHARDMESH_ASSIGN_OR_RETURN(const ValueIndex input, ValueOf(op.input));
    return builder_.AddCollective(op, input);
  }
  absl::StatusOr<ValueIndex> Add(const ReshardOp& op, size_t number) {
    SHARDMESH_ASSIGN_OR_RETURN(const ValueIndex input, ValueOf(op.input));
    return is_planned_[number] ? input : builder_.AddReshard(op, input);
  }

  const Program& program_;
  PlanBuilder builder_;
  std::vector<ValueIndex> values_;  // the plan's number of each program value
  // By op: for a product, the only op that uses its result, if this is a reshard. The product is
  // planned together with the reshard.
  std::vector<std::optional<size_t>> reshard_of_;
  std::vector<bool> is_planned_;  // by op: a reshard that is planned together with its product
};

// Checks a program and its operands before they are planned. Errors are those of PlanProgram.
absl::Status CheckProgram(const Program& program, absl::Span<const ValueDescriptor> operands,
                          const PlanTarget& target) {
  if (program.operand_count != operands.size()) {
    return InvalidArgument(Reason::kBadField,
                           StrCat("the program takes ", program.operand_count, " operands; ",
                                  operands.size(), " are given"),
                           {{fact::kField, "operands"}, {fact::kValue, operands.size()}});
  }
  if (operands.size() > kMaxProgramSize || program.ops.size() > kMaxProgramSize ||
      program.outputs.size() > kMaxProgramSize) {
    return InvalidArgument(
        Reason::kLimitExceeded,
        StrCat("a program has at most ", kMaxProgramSize, " operands, ops and outputs each"),
        {{fact::kLimit, kMaxProgramSize}});
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    if (const auto tiling = Tiling::Create(target.mesh, operands[i].spec, operands[i].shape,
                                           operands[i].cut_points);
        !tiling.ok()) {
      return WithContext(tiling.status(), StrCat("operand ", i));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Tiling> TilingOf(const Plan& plan, const ValueDescriptor& value) {
  return Tiling::Create(plan.mesh, value.spec, value.shape, value.cut_points);
}

std::vector<ValueIndex> InputsOf(const Instruction& instruction) {
  struct Visitor {
    std::vector<ValueIndex> operator()(const LocalMatmul& matmul) const {
      std::vector<ValueIndex> inputs = {matmul.lhs, matmul.rhs};
      if (matmul.bias.has_value()) {
        inputs.push_back(*matmul.bias);
      }
      return inputs;
    }
    std::vector<ValueIndex> operator()(const LocalEpilogue& epilogue) const {
      std::vector<ValueIndex> inputs = {epilogue.input};
      if (epilogue.bias.has_value()) {
        inputs.push_back(*epilogue.bias);
      }
      return inputs;
    }
    std::vector<ValueIndex> operator()(const LocalSlice& slice) const { return {slice.input}; }
    std::vector<ValueIndex> operator()(const GroupCollective& collective) const {
      return {collective.input};
    }
    std::vector<ValueIndex> operator()(const MoveRegions& move) const { return {move.input}; }
    std::vector<ValueIndex> operator()(const GatherMatmul& fused) const {
      return (*this)(fused.matmul);
    }
    std::vector<ValueIndex> operator()(const MatmulScatter& fused) const {
      return (*this)(fused.matmul);
    }
  };
  return std::visit(Visitor{}, instruction.kind);
}

std::vector<std::optional<ValueIndex>> ResultsOverOperands(const Plan& plan) {
  struct Readers {
    const Instruction* last = nullptr;
    int count = 0;
  };
  std::vector<Readers> readers(plan.operand_count);
  for (const Instruction& instruction : plan.instructions) {
    for (const ValueIndex input : InputsOf(instruction)) {
      if (input >= plan.operand_count) continue;
      readers[input].last = &instruction;
      ++readers[input].count;
    }
  }
  std::vector<std::optional<ValueIndex>> results(plan.operand_count);
  for (ValueIndex operand = 0; operand < plan.operand_count; ++operand) {
    if (readers[operand].count != 1) continue;
    const Instruction& reader = *readers[operand].last;
    const auto* collective = std::get_if<GroupCollective>(&reader.kind);
    if (collective == nullptr || !MayOverwriteOperand(collective->kind, collective->algorithm) ||
        std::count(plan.outputs.begin(), plan.outputs.end(), reader.output) != 1) {
      continue;
    }
    const ValueDescriptor& before = plan.values[operand];
    const ValueDescriptor& after = plan.values[reader.output];
    const bool same_size =
        before.dtype == after.dtype && before.cut_points == after.cut_points &&
        TilingOf(plan, before)->ShardShape() == TilingOf(plan, after)->ShardShape();
    if (same_size) results[operand] = reader.output;
  }
  return results;
}

std::optional<ValueIndex> ResultOverOperand(const Plan& plan, ValueIndex operand) {
  return ResultsOverOperands(plan)[operand];
}

absl::StatusOr<Plan> PlanProgram(const Program& program, absl::Span<const ValueDescriptor> operands,
                                 const PlanTarget& target) {
  SHARDMESH_RETURN_IF_ERROR(CheckProgram(program, operands, target));
  return ProgramPlanner(program, operands, target).Run();
}

absl::StatusOr<std::vector<PlanCandidate>> PlanCandidates(
    const Program& program, absl::Span<const ValueDescriptor> operands, const PlanTarget& target,
    size_t most) {
  SHARDMESH_RETURN_IF_ERROR(CheckProgram(program, operands, target));
  const size_t ops = program.ops.size();
  const auto* const reshard = ops == 2 ? std::get_if<ReshardOp>(&program.ops.back()) : nullptr;
  const bool is_one_product =
      (ops == 1 || (reshard != nullptr && reshard->input == program.operand_count)) &&
      IsProduct(program.ops.front()) &&
      program.outputs ==
          std::vector<ValueIndex>{static_cast<ValueIndex>(program.operand_count + ops - 1)};
  if (!is_one_product) {
    return InvalidArgument(Reason::kBadField,
                           "only a program of one product, whose result is its only output, has "
                           "candidates",
                           {{fact::kField, "program"}});
  }
  return ProgramPlanner(program, operands, target).Candidates(most);
}

bool MultipliesBatches(const Plan& plan) {
  return std::any_of(
      plan.instructions.begin(), plan.instructions.end(), [&plan](const Instruction& instruction) {
        const auto* const matmul = std::get_if<LocalMatmul>(&instruction.kind);
        return matmul != nullptr &&
               (plan.values[matmul->rhs].shape.size() > 2 ||
                (matmul->transpose_lhs && plan.values[matmul->lhs].shape.size() > 2));
      });
}

bool OverlapsExchanges(const Plan& plan) {
  return std::any_of(plan.instructions.begin(), plan.instructions.end(),
                     [](const Instruction& instruction) {
                       return std::holds_alternative<GatherMatmul>(instruction.kind) ||
                              std::holds_alternative<MatmulScatter>(instruction.kind);
                     });
}

}  // namespace shardmesh
