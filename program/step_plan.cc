// Properties of a plan's values, and the function that compiles programs to plans.
#include "program/step_plan.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "program/collective_choice.h"
#include "program/layout_wishes.h"
#include "program/plan_builder.h"
#include "program/plan_forecast.h"
#include "program/tensor_op.h"
#include "program/value_layout.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

// Returns the name of an op for messages and labels: "op 0 (linear)".
std::string NameOf(size_t number, const ProgramOp& op) {
  return StrCat("op ", number, " (", ProgramOpName(op), ")");
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
      : program_(program),
        operands_(operands),
        target_(target),
        mesh_(target.mesh),
        builder_(target, operands) {
    for (ValueIndex i = 0; i < operands.size(); ++i) {
      values_.push_back(i);
    }
  }

  absl::StatusOr<Plan> Run() && {
    Begin();
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      SHARDMESH_RETURN_IF_ERROR(AddOp(i));
    }
    return std::move(*this).Finish();
  }

  // Returns the plan of Run, and then others, the fastest first. Requires a program with `products`
  // products, at least one.
  absl::StatusOr<std::vector<PlanCandidate>> Candidates(size_t products, size_t most) &&;

 private:
  struct Path;

  void Begin() {
    FindReaders();
    wishes_ = LayoutWishesOf(program_, operands_, mesh_);
  }
  absl::Status AddOp(size_t number) {
    const ProgramOp& op = program_.ops[number];
    builder_.Name(NameOf(number, op));
    SHARDMESH_ASSIGN_OR_RETURN(const ValueIndex result,
                               std::visit([&](const auto& each) { return Add(each, number); }, op));
    values_.push_back(result);
    return absl::OkStatus();
  }
  absl::StatusOr<Plan> Finish() && {
    SHARDMESH_ASSIGN_OR_RETURN(std::vector<StateUpdate> updates, PlanUpdates());
    SHARDMESH_ASSIGN_OR_RETURN(std::vector<ValueIndex> outputs, PlanOutputs());
    return std::move(builder_).Finish(std::move(outputs), std::move(updates));
  }
  // Returns the `most` fastest ways to add the product `number` to one of the paths. The first is
  // that of AddOp for the first path.
  absl::StatusOr<std::vector<Path>> Branched(const std::vector<Path>& paths, size_t number,
                                             size_t products, size_t most) const;
  // Whether the program has ops that are neither products nor planned together with one.
  bool HasOtherOps(size_t products) const {
    const auto resharded = std::count(is_planned_.begin(), is_planned_.end(), true);
    return program_.ops.size() > products + static_cast<size_t>(resharded);
  }

  // Finds the products whose result is used by one op only, a reshard, and the values that one op
  // or a collective reads.
  void FindReaders() {
    const size_t values = program_.operand_count + program_.ops.size();
    std::vector<size_t> last_user(values, 0);
    uses_.assign(values, 0);
    has_collective_.assign(values, false);
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      for (const ValueIndex input : InputsOfOp(program_.ops[i])) {
        if (input >= values) continue;  // Add refuses it
        ++uses_[input];
        last_user[input] = i;
        if (std::holds_alternative<CollectiveOp>(program_.ops[i])) has_collective_[input] = true;
      }
    }
    for (const ValueIndex output : program_.outputs) {
      if (output < values) ++uses_[output];
    }
    for (const StateUpdate& update : program_.updates) {
      if (update.value < values) ++uses_[update.value];
    }
    reshard_of_.assign(program_.ops.size(), std::nullopt);
    is_planned_.assign(program_.ops.size(), false);
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      const size_t result = program_.operand_count + i;
      const size_t user = last_user[result];
      if (uses_[result] != 1 || user <= i || !IsProduct(program_.ops[i]) ||
          !std::holds_alternative<ReshardOp>(program_.ops[user])) {
        continue;
      }
      reshard_of_[i] = user;
      is_planned_[user] = true;
    }
  }

  absl::StatusOr<std::vector<ValueIndex>> PlanOutputs() {
    builder_.Name("outputs");
    std::vector<ValueIndex> outputs;
    absl::flat_hash_set<ValueIndex> given;
    for (const ValueIndex output : program_.outputs) {
      SHARDMESH_ASSIGN_OR_RETURN(const ValueIndex planned, ValueOf(output));
      const auto refuse = [&](std::string_view what) {
        return builder_.Error(Reason::kBadField, StrCat("value ", output, what),
                              {{fact::kField, "outputs"}, {fact::kValue, output}});
      };
      if (output < program_.operand_count) return refuse(" is an operand");
      if (!given.insert(planned).second) return refuse(" is given twice");
      outputs.push_back(planned);
    }
    return outputs;
  }

  // Lays out the value of each update as its operand.
  absl::StatusOr<std::vector<StateUpdate>> PlanUpdates() {
    std::vector<StateUpdate> updates;
    absl::flat_hash_set<ValueIndex> operands;
    absl::flat_hash_set<ValueIndex> results(program_.outputs.begin(), program_.outputs.end());
    for (const StateUpdate& update : program_.updates) {
      builder_.Name(StrCat("update of operand ", update.operand));
      const auto refuse = [&](std::string_view message) {
        return builder_.Error(Reason::kBadField, message, {{fact::kField, "updates"}});
      };
      if (update.operand >= program_.operand_count) {
        return refuse(StrCat("the program has ", program_.operand_count, " operands"));
      }
      if (!operands.insert(update.operand).second) return refuse("the operand is updated twice");
      SHARDMESH_ASSIGN_OR_RETURN(ValueIndex planned, ValueOf(update.value));
      if (update.value < program_.operand_count) {
        return refuse(StrCat("value ", update.value, " is an operand; give the result of an op"));
      }
      if (!results.insert(update.value).second) {
        return refuse(StrCat("value ", update.value,
                             " is an output or updates another operand, too; give another op's "
                             "result"));
      }
      SHARDMESH_RETURN_IF_ERROR(CheckUpdate(update, planned));
      SHARDMESH_ASSIGN_OR_RETURN(planned, builder_.LaidOutAsOperand(planned, update.operand));
      updates.push_back({.operand = update.operand, .value = planned});
    }
    return updates;
  }

  // Returns OK if the value has the type and shape of the operand.
  absl::Status CheckUpdate(const StateUpdate& update, ValueIndex planned) const {
    const ValueDescriptor& operand = builder_.value(update.operand);
    const ValueDescriptor& value = builder_.value(planned);
    const std::string name = StrCat("value ", update.value, " of ",
                                    NameOf(update.value - program_.operand_count,
                                           program_.ops[update.value - program_.operand_count]));
    if (value.shape != operand.shape) {
      return builder_.Error(
          Reason::kShapeMismatch,
          StrCat(name, " has shape ", ShapeToString(value.shape), "; the operand has ",
                 ShapeToString(operand.shape)),
          {{fact::kHave, ShapeToString(value.shape)}, {fact::kNeed, ShapeToString(operand.shape)}});
    }
    if (value.dtype != operand.dtype) {
      return builder_.Error(Reason::kUnsupportedDtype,
                            StrCat(name, " has type ", DtypeName(value.dtype), "; the operand has ",
                                   DtypeName(operand.dtype), "; convert it"),
                            {{fact::kDtype, DtypeName(value.dtype)}});
    }
    return absl::OkStatus();
  }

  absl::StatusOr<ValueIndex> ValueOf(ValueIndex index) const {
    if (index < values_.size()) return values_[index];
    const size_t total = program_.operand_count + program_.ops.size();
    std::string message;
    if (index >= total) {
      message = StrCat("value ", index, " does not exist; the program has ", total, " values");
    } else {
      const size_t reader = values_.size() - program_.operand_count;
      message = StrJoin(PathTo(index, reader), "; ");
    }
    return builder_.Error(Reason::kBadField, message, {{fact::kValue, index}});
  }

  // Returns sentences that say why op `reader` cannot read value `index`, which it or a later op
  // makes: if that op needs the result of `reader`, the way from one to the other.
  std::vector<std::string> PathTo(size_t index, size_t reader) const {
    const size_t operands = program_.operand_count;
    const size_t maker = index - operands;
    if (maker == reader) return {StrCat("reads value ", index, ", its own result")};
    // For each op from `maker` on that was reached: the op that reads its result.
    absl::flat_hash_map<size_t, size_t> read_by = {{maker, reader}};
    std::vector<size_t> open = {maker};
    while (!open.empty() && !read_by.contains(reader)) {
      const size_t op = open.back();
      open.pop_back();
      for (const ValueIndex input : InputsOfOp(program_.ops[op])) {
        const size_t from = input - std::min<size_t>(input, operands);
        if (input < operands || from < reader || from >= program_.ops.size()) continue;
        if (read_by.try_emplace(from, op).second) open.push_back(from);
      }
    }
    const auto reads = [&](size_t value) {
      return StrCat("reads value ", value, ", which ",
                    NameOf(value - operands, program_.ops[value - operands]), " makes");
    };
    std::vector<std::string> path = {reads(index)};
    if (!read_by.contains(reader)) {
      path.emplace_back("an op reads only operands and the results of ops before it");
      return path;
    }
    std::vector<std::string> back;
    for (size_t op = reader; op != maker;) {
      const size_t by = read_by.at(op);
      back.push_back(StrCat("op ", by, " ", reads(operands + op)));
      op = by;
    }
    path.insert(path.end(), back.rbegin(), back.rend());
    path.emplace_back("this is a cycle");
    return path;
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
    if (op.scales.has_value()) {
      SHARDMESH_ASSIGN_OR_RETURN(product.scales, ValueOf(*op.scales));
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
    if (is_planned_[number]) return input;
    // The result of a tensor op that nothing else reads may lie as wanted already.
    const bool is_op =
        op.input >= program_.operand_count &&
        std::holds_alternative<TensorOp>(program_.ops[op.input - program_.operand_count]);
    return builder_.AddReshard(op, input, /*may_return_input=*/is_op && uses_[op.input] == 1);
  }
  absl::StatusOr<ValueIndex> Add(TensorOp op, size_t number) {
    absl::Status failure;
    ReplaceInputs(op, [&](ValueIndex input) {
      const absl::StatusOr<ValueIndex> planned = ValueOf(input);
      failure.Update(planned.status());
      return planned.value_or(0);
    });
    SHARDMESH_RETURN_IF_ERROR(failure);
    const size_t result = program_.operand_count + number;
    return builder_.AddCompute(
        op, {.wish = wishes_[result], .take_partial_sums = has_collective_[result]});
  }

  const Program& program_;
  const absl::Span<const ValueDescriptor> operands_;
  const PlanTarget& target_;
  const Mesh& mesh_;
  PlanBuilder builder_;
  std::vector<std::optional<ValueDescriptor>> wishes_;  // LayoutWishesOf the program
  std::vector<size_t> uses_;          // by program value: how often ops, outputs, updates use it
  std::vector<bool> has_collective_;  // by program value: whether a collective reads it
  std::vector<ValueIndex> values_;    // the plan's number of each program value
  // By op: for a product, the only op that uses its result, if this is a reshard. The product is
  // planned together with the reshard.
  std::vector<std::optional<size_t>> reshard_of_;
  std::vector<bool> is_planned_;  // by op: a reshard that is planned together with its product
};

// A program that is planned up to some op, with the layouts of the products before it.
struct ProgramPlanner::Path {
  ProgramPlanner planner;
  std::vector<std::string> roles = {};  // of each product
  double seconds = 0;                   // of all products
};

// The most searches for layouts of products in one call, of a program with several products.
constexpr size_t kMostSearchedProducts = 64;

absl::StatusOr<std::vector<PlanCandidate>> ProgramPlanner::Candidates(size_t products,
                                                                      size_t most) && {
  Begin();
  // With several products, each path searches the layouts of the next one anew.
  if (products > 1) most = std::min(most, kMostSearchedProducts / products);
  std::vector<Path> paths;
  paths.push_back({.planner = *this});
  for (size_t i = 0; i < program_.ops.size(); ++i) {
    if (IsProduct(program_.ops[i])) {
      SHARDMESH_ASSIGN_OR_RETURN(paths, Branched(paths, i, products, most));
      continue;
    }
    for (Path& path : paths) SHARDMESH_RETURN_IF_ERROR(path.planner.AddOp(i));
  }
  std::vector<PlanCandidate> candidates;
  const bool has_other_ops = HasOtherOps(products);
  for (Path& path : paths) {
    PlanCandidate& candidate = candidates.emplace_back();
    candidate.roles = StrJoin(path.roles, "; ");
    candidate.seconds = path.seconds;
    SHARDMESH_ASSIGN_OR_RETURN(candidate.plan, std::move(path.planner).Finish());
    if (!has_other_ops) continue;
    const StepForecast forecast = StepForecastOf(candidate.plan, target_.links, target_.kernels);
    candidate.seconds = forecast.kernel_seconds + forecast.exchange_seconds;
  }
  if (has_other_ops) {
    std::stable_sort(candidates.begin() + 1, candidates.end(),
                     [](const PlanCandidate& a, const PlanCandidate& b) {
                       return std::round(a.seconds * 1e9) < std::round(b.seconds * 1e9);
                     });
  }
  return candidates;
}

absl::StatusOr<std::vector<ProgramPlanner::Path>> ProgramPlanner::Branched(
    const std::vector<Path>& paths, size_t number, size_t products, size_t most) const {
  struct Branch {
    size_t path = 0;
    double seconds = 0;
    ProductPlan plan;
  };
  const ProgramOp& op = program_.ops[number];
  const std::string name = NameOf(number, op);
  std::vector<Path> searched = paths;  // a search counts in the builder
  std::vector<Branch> branches;
  for (size_t i = 0; i < searched.size(); ++i) {
    ProgramPlanner& planner = searched[i].planner;
    planner.builder_.Name(name);
    const auto* const linear = std::get_if<LinearOp>(&op);
    SHARDMESH_ASSIGN_OR_RETURN(const Product product,
                               linear != nullptr
                                   ? planner.ProductOf(*linear, number)
                                   : planner.ProductOf(std::get<MatmulOp>(op), number));
    SHARDMESH_ASSIGN_OR_RETURN(std::vector<ProductPlan> plans,
                               planner.builder_.ProductPlansOf(product, most));
    for (ProductPlan& plan : plans) {
      const double seconds = searched[i].seconds + plan.seconds;
      branches.push_back({.path = i, .seconds = seconds, .plan = std::move(plan)});
    }
  }
  if (searched.size() > 1) {
    std::stable_sort(branches.begin() + 1, branches.end(),
                     [](const Branch& a, const Branch& b) { return a.seconds < b.seconds; });
  }
  std::vector<Path> added;
  for (size_t i = 0; i < std::min(most, branches.size()); ++i) {
    Branch& branch = branches[i];
    Path& path = added.emplace_back(i == 0 ? paths[0] : searched[branch.path]);
    path.seconds = branch.seconds;
    path.roles.push_back(products == 1 ? branch.plan.roles : StrCat(name, ": ", branch.plan.roles));
    if (i == 0) {
      SHARDMESH_RETURN_IF_ERROR(path.planner.AddOp(number));
    } else {
      path.planner.values_.push_back(path.planner.builder_.Append(std::move(branch.plan)));
    }
  }
  return added;
}

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
  size_t inputs = 0;
  for (const ProgramOp& op : program.ops) inputs += InputsOfOp(op).size();
  if (inputs > kMaxProgramInputs) {
    return InvalidArgument(
        Reason::kLimitExceeded,
        StrCat("the ops of the program have ", inputs, " inputs; at most ", kMaxProgramInputs,
               " are allowed; join fewer inputs in each concatenation"),
        {{fact::kHave, inputs}, {fact::kLimit, kMaxProgramInputs}});
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

// Returns whether the tiles of both values have one type, and one shape on each rank.
bool HaveTilesOfOneShape(const Plan& plan, const ValueDescriptor& a, const ValueDescriptor& b) {
  return a.dtype == b.dtype && a.shape == b.shape && a.cut_points == b.cut_points &&
         LayoutOf(plan.mesh, a) == LayoutOf(plan.mesh, b);
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
      if (matmul.scales.has_value()) {
        inputs.push_back(*matmul.scales);
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
    std::vector<ValueIndex> operator()(const LocalCompute& compute) const {
      return InputsOf(compute.op);
    }
    std::vector<ValueIndex> operator()(const GatherMatmul& fused) const {
      return (*this)(fused.matmul);
    }
    std::vector<ValueIndex> operator()(const MatmulScatter& fused) const {
      return (*this)(fused.matmul);
    }
    std::vector<ValueIndex> operator()(const FusedCompute& fused) const { return fused.inputs; }
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
  for (const StateUpdate& update : plan.updates) readers[update.operand].count = 0;  // no donation
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

std::vector<std::optional<ValueIndex>> StatePlaces(const Plan& plan) {
  std::vector<size_t> last_use(plan.values.size(), 0);  // by value: an instruction
  for (size_t i = 0; i < plan.instructions.size(); ++i) {
    for (const ValueIndex input : InputsOf(plan.instructions[i])) last_use[input] = i;
  }
  std::vector<bool> is_result(plan.values.size(), false);
  for (const ValueIndex output : plan.outputs) is_result[output] = true;
  for (const StateUpdate& update : plan.updates) is_result[update.value] = true;

  std::vector<std::optional<ValueIndex>> places(plan.values.size());
  for (const StateUpdate& update : plan.updates) {
    const ValueDescriptor& operand = plan.values[update.operand];
    std::vector<ValueIndex> chain;
    ValueIndex value = update.value;
    while (value >= plan.operand_count) {
      const size_t number = value - plan.operand_count;
      const auto* const compute = std::get_if<LocalCompute>(&plan.instructions[number].kind);
      const auto* const rows =
          compute == nullptr ? nullptr : std::get_if<UpdateRowsOp>(&compute->op);
      const bool may_overwrite = rows != nullptr && rows->update != rows->input &&
                                 rows->positions != rows->input && !is_result[rows->input] &&
                                 last_use[rows->input] == number;
      if (!may_overwrite || !HaveTilesOfOneShape(plan, plan.values[value], operand)) break;
      chain.push_back(value);
      value = rows->input;
    }
    if (value != update.operand) continue;
    for (const ValueIndex each : chain) places[each] = update.operand;
  }
  return places;
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
  const auto products =
      static_cast<size_t>(std::count_if(program.ops.begin(), program.ops.end(), IsProduct));
  if (products == 0 || products > kMostCandidateProducts) {
    return InvalidArgument(Reason::kBadField,
                           StrCat("the program has ", products, " products; only programs of 1 to ",
                                  kMostCandidateProducts, " have candidates"),
                           {{fact::kField, "program"}, {fact::kValue, products}});
  }
  return ProgramPlanner(program, operands, target).Candidates(products, most);
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

bool MultipliesShortTypes(const Plan& plan) {
  return std::any_of(plan.instructions.begin(), plan.instructions.end(),
                     [&plan](const Instruction& instruction) {
                       const auto* const matmul = std::get_if<LocalMatmul>(&instruction.kind);
                       return matmul != nullptr && (plan.values[matmul->lhs].dtype == Dtype::kF16 ||
                                                    plan.values[matmul->rhs].dtype == Dtype::kI8);
                     });
}

bool OverlapsExchanges(const Plan& plan) {
  return std::any_of(plan.instructions.begin(), plan.instructions.end(),
                     [](const Instruction& instruction) {
                       return std::holds_alternative<GatherMatmul>(instruction.kind) ||
                              std::holds_alternative<MatmulScatter>(instruction.kind);
                     });
}

bool HasFusedOps(const Plan& plan) {
  return std::any_of(plan.instructions.begin(), plan.instructions.end(),
                     [](const Instruction& instruction) {
                       return std::holds_alternative<FusedCompute>(instruction.kind);
                     });
}

}  // namespace shardmesh
