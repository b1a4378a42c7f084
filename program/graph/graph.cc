// The types of a graph's values, and the order of its ops.
#include "program/graph/graph.h"

#include <algorithm>
#include <set>
#include <type_traits>
#include <utility>
#include <variant>

#include "program/collective_check.h"
#include "program/graph/symbolic_program.h"
#include "program/product_layout.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/nearest_name.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"

namespace shardmesh {
namespace {

absl::Status BadGraph(std::string_view field, std::string_view message) {
  return InvalidArgument(Reason::kBadField, message, {{fact::kField, field}});
}

// Returns the same error with another message.
absl::Status Reworded(const absl::Status& error, std::string_view message) {
  return WithFactsOf(InvalidArgument(ReasonOf(error), message), error);
}

std::string OpText(const Program& program, size_t op) {
  return StrCat("op ", op, " (", ProgramOpName(program.ops[op]), ")");
}

std::string TypeText(const TensorType& type) {
  return StrCat(DtypeName(type.dtype), " ", ShapeToString(type.shape));
}

// Calls `visit` with each value that the op reads, in the order of the fields.
template <typename Op, typename Visit>
void ForEachProgramInput(Op& op, Visit visit) {
  std::visit(
      [&](auto& kind) {
        using Kind = std::decay_t<decltype(kind)>;
        if constexpr (std::is_same_v<Kind, LinearOp>) {
          visit(kind.input);
          visit(kind.weight);
          if (kind.bias.has_value()) visit(*kind.bias);
          if (kind.scales.has_value()) visit(*kind.scales);
        } else if constexpr (std::is_same_v<Kind, MatmulOp>) {
          visit(kind.lhs);
          visit(kind.rhs);
        } else if constexpr (std::is_same_v<Kind, TensorOp>) {
          internal::ForEachInput(kind, visit);
        } else {
          visit(kind.input);
        }
      },
      op);
}

absl::Status CheckInputDimension(int64_t dimension, const Shape& shape) {
  if (dimension >= 0 && dimension < static_cast<int64_t>(shape.size())) return absl::OkStatus();
  return InvalidArgument(
      Reason::kInvalidDimension,
      StrCat("the input of shape ", ShapeToString(shape), " has no dimension ", dimension),
      {{fact::kDimension, dimension}, {fact::kLimit, shape.size()}});
}

struct ResultTypeVisitor {
  absl::Span<const TensorType> inputs;

  absl::StatusOr<TensorType> operator()(const LinearOp& op) const {
    const TensorType& weight = inputs[1];
    if (weight.shape.size() != 2) {
      return InvalidArgument(
          Reason::kShapeMismatch,
          StrCat("the weight has shape ", ShapeToString(weight.shape), "; it must be a matrix"),
          {{fact::kHave, ShapeToString(weight.shape)}});
    }
    SHARDMESH_ASSIGN_OR_RETURN(TensorType result,
                               Product(false, op.weight_layout == WeightLayout::kOutIn,
                                       op.scales.has_value(), /*rhs_is_weight=*/true));
    if (op.scales.has_value()) {
      SHARDMESH_RETURN_IF_ERROR(CheckScales(inputs.back(), result.shape.back()));
    }
    if (!op.bias.has_value()) return result;
    const TensorType& bias = inputs[2];
    const Shape out = {result.shape.back()};
    if (bias.shape != out) {
      return InvalidArgument(
          Reason::kShapeMismatch,
          StrCat("the bias has shape ", ShapeToString(bias.shape), "; it must be ",
                 ShapeToString(out), ", one element for each output feature"),
          {{fact::kHave, ShapeToString(bias.shape)}, {fact::kNeed, ShapeToString(out)}});
    }
    if (bias.dtype != result.dtype) {
      return InvalidArgument(Reason::kUnsupportedDtype,
                             StrCat("the bias is ", DtypeName(bias.dtype), "; it must be ",
                                    DtypeName(result.dtype), " as the input is"),
                             {{fact::kDtype, DtypeName(bias.dtype)}});
    }
    return result;
  }
  absl::StatusOr<TensorType> operator()(const MatmulOp& op) const {
    return Product(op.transpose_lhs, op.transpose_rhs, false, false);
  }
  absl::StatusOr<TensorType> operator()(const CollectiveOp& op) const {
    if (HasDimension(op.kind)) {
      SHARDMESH_RETURN_IF_ERROR(CheckInputDimension(op.dimension, inputs[0].shape));
    }
    if (op.kind == CollectiveKind::kAllToAll) {
      SHARDMESH_RETURN_IF_ERROR(CheckInputDimension(op.split_dimension, inputs[0].shape));
    }
    return inputs[0];
  }
  absl::StatusOr<TensorType> operator()(const ReshardOp& op) const {
    SHARDMESH_RETURN_IF_ERROR(CheckDistinctAxes(op.spec));
    if (op.spec.size() > static_cast<int64_t>(inputs[0].shape.size())) {
      return InvalidArgument(
          Reason::kInvalidDimension,
          StrCat("the spec ", op.spec.ToString(), " has ", op.spec.size(),
                 " entries; the input of shape ", ShapeToString(inputs[0].shape), " has ",
                 inputs[0].shape.size(), " dimensions"),
          {{fact::kDimension, op.spec.size() - 1}, {fact::kLimit, inputs[0].shape.size()}});
    }
    return inputs[0];
  }
  absl::StatusOr<TensorType> operator()(const TensorOp& op) const {
    return ResultTypeOf(op, inputs);
  }

 private:
  absl::StatusOr<TensorType> Product(bool transpose_lhs, bool transpose_rhs, bool has_scales,
                                     bool rhs_is_weight) const {
    SHARDMESH_ASSIGN_OR_RETURN(
        const ProductDims dims,
        ProductDimsOf(inputs[0].shape, transpose_lhs, inputs[1].shape, transpose_rhs));
    SHARDMESH_RETURN_IF_ERROR(
        CheckProductTypes(inputs[0].dtype, inputs[1].dtype, has_scales, rhs_is_weight));
    return TensorType{.dtype = inputs[0].dtype, .shape = OutputShapeOf(dims)};
  }
};

// Returns the index of the tensor with this name.
template <typename Tensor>
absl::StatusOr<size_t> Find(const std::vector<Tensor>& tensors, std::string_view name,
                            std::string_view kind) {
  std::vector<std::string_view> names;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name == name) return i;
    names.push_back(tensors[i].name);
  }
  const std::optional<std::string_view> nearest = NearestName(name, names);
  constexpr size_t kMostNames = 10;
  const std::string advice =
      nearest.has_value() ? DidYouMean(name, names)
      : names.empty()     ? StrCat("; it has no ", kind, "s")
                          : StrCat("; it has ", kind, "s ", StrJoinFirst(kMostNames, names, ", "));
  return WithReason(
      absl::NotFoundError(StrCat("the graph has no ", kind, " \"", name, "\"", advice)),
      Reason::kNotFound,
      {{fact::kKind, kind}, {fact::kName, name}, {fact::kNearest, nearest.value_or("")}});
}

template <typename Tensor>
absl::Status CheckNames(const std::vector<Tensor>& tensors, std::string_view kind) {
  std::set<std::string_view> names;
  for (const Tensor& tensor : tensors) {
    SHARDMESH_RETURN_IF_ERROR(CheckGraphName(kind, tensor.name));
    if (!names.insert(tensor.name).second) {
      return BadGraph("name", StrCat("two ", kind, "s have the name \"", tensor.name, "\""));
    }
  }
  return absl::OkStatus();
}

// Visits the ops of a program so that each follows those that it reads.
class OpSorter {
 public:
  explicit OpSorter(const Program& program)
      : program_(program), states_(program.ops.size(), State::kNew) {}

  absl::StatusOr<std::vector<size_t>> Run() && {
    for (size_t op = 0; op < program_.ops.size(); ++op) {
      SHARDMESH_RETURN_IF_ERROR(Visit(op));
    }
    return std::move(order_);
  }

 private:
  enum class State : uint8_t { kNew, kOnPath, kDone };
  struct Step {
    size_t op = 0;
    std::vector<ValueIndex> inputs;
    size_t next = 0;  // of inputs
  };

  // Adds the op to the order, after all that it depends on and that is not in the order yet. The
  // path is a list rather than recursion: it can be as long as the program.
  absl::Status Visit(size_t root) {
    if (states_[root] == State::kDone) return absl::OkStatus();
    SHARDMESH_RETURN_IF_ERROR(Enter(root));
    while (!path_.empty()) {
      Step& step = path_.back();
      if (step.next == step.inputs.size()) {
        states_[step.op] = State::kDone;
        order_.push_back(step.op);
        path_.pop_back();
        continue;
      }
      const ValueIndex input = step.inputs[step.next++];
      if (input < program_.operand_count) continue;
      const size_t read = input - program_.operand_count;
      if (states_[read] == State::kOnPath) return Cycle(read);
      if (states_[read] == State::kNew) SHARDMESH_RETURN_IF_ERROR(Enter(read));
    }
    return absl::OkStatus();
  }

  absl::Status Enter(size_t op) {
    std::vector<ValueIndex> inputs = InputsOfOp(program_.ops[op]);
    const size_t values = program_.operand_count + program_.ops.size();
    for (const ValueIndex input : inputs) {
      if (input < values) continue;
      return BadGraph("ops", StrCat(OpText(program_, op), " reads value ", input,
                                    ", which nothing computes; there are ", program_.operand_count,
                                    " operands and ", program_.ops.size(),
                                    " ops, so values are below ", values));
    }
    states_[op] = State::kOnPath;
    path_.push_back({.op = op, .inputs = std::move(inputs)});
    return absl::OkStatus();
  }

  // Returns the error for a cycle that begins and ends at `first`, which is on the path.
  absl::Status Cycle(size_t first) const {
    const auto begin = std::find_if(path_.begin(), path_.end(),
                                    [&](const Step& step) { return step.op == first; });
    constexpr std::ptrdiff_t kMostOps = 16;
    std::string text = OpText(program_, first);
    std::string_view separator = " reads ";
    auto step = begin + 1;
    for (; step != path_.end() && step - begin < kMostOps; ++step) {
      StrAppend(&text, separator, OpText(program_, step->op));
      separator = ", which reads ";
    }
    if (step != path_.end()) {
      StrAppend(&text, ", and so on over ", path_.end() - step, " more ops to ",
                OpText(program_, path_.back().op));
    }
    StrAppend(&text, separator, OpText(program_, first));
    return BadGraph("ops", StrCat(OpText(program_, first), " depends on itself: ", text));
  }

  const Program& program_;
  std::vector<State> states_;  // by op
  std::vector<Step> path_;
  std::vector<size_t> order_;
};

absl::Status CheckSizes(const Program& program) {
  const auto check = [](std::string_view what, size_t have) -> absl::Status {
    if (have <= kMaxProgramSize) return absl::OkStatus();
    return InvalidArgument(
        Reason::kLimitExceeded,
        StrCat("the graph has ", have, " ", what, "; it may have at most ", kMaxProgramSize),
        {{fact::kField, what}, {fact::kHave, have}, {fact::kLimit, kMaxProgramSize}});
  };
  SHARDMESH_RETURN_IF_ERROR(check("operands", program.operand_count));
  SHARDMESH_RETURN_IF_ERROR(check("ops", program.ops.size()));
  SHARDMESH_RETURN_IF_ERROR(check("outputs", program.outputs.size()));
  return check("updates", program.updates.size());
}

// Checks the outputs and updates, which are results of ops.
absl::Status CheckResults(const Program& program) {
  const size_t values = program.operand_count + program.ops.size();
  const auto check = [&](std::string_view field, std::string_view what, ValueIndex value,
                         std::set<ValueIndex>& taken) -> absl::Status {
    if (value >= values) {
      return BadGraph(field, StrCat(what, " is value ", value,
                                    ", which nothing computes; values are below ", values));
    }
    if (value < program.operand_count) {
      return BadGraph(
          field, StrCat(what, " is value ", value, ", an operand; it must be the result of an op"));
    }
    if (!taken.insert(value).second) {
      return BadGraph(field, StrCat(what, " is value ", value, ", which occurs twice"));
    }
    return absl::OkStatus();
  };
  std::set<ValueIndex> taken;
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    SHARDMESH_RETURN_IF_ERROR(check("outputs", StrCat("output ", i), program.outputs[i], taken));
  }
  taken.clear();
  std::set<ValueIndex> operands;
  for (size_t i = 0; i < program.updates.size(); ++i) {
    const StateUpdate& update = program.updates[i];
    SHARDMESH_RETURN_IF_ERROR(
        check("updates", StrCat("the value of update ", i), update.value, taken));
    if (update.operand >= program.operand_count) {
      return BadGraph("updates",
                      StrCat("update ", i, " is of value ", update.operand,
                             ", which is no operand; operands are below ", program.operand_count));
    }
    if (!operands.insert(update.operand).second) {
      return BadGraph("updates", StrCat("operand ", update.operand, " is updated twice"));
    }
  }
  return absl::OkStatus();
}

// Puts the ops into the given order and renumbers the values.
void Reorder(const std::vector<size_t>& order, Program& program) {
  std::vector<ValueIndex> numbers(program.operand_count + order.size());
  for (ValueIndex i = 0; i < program.operand_count; ++i) numbers[i] = i;
  for (size_t i = 0; i < order.size(); ++i) {
    numbers[program.operand_count + order[i]] = static_cast<ValueIndex>(program.operand_count + i);
  }
  std::vector<ProgramOp> ops;
  for (const size_t op : order) {
    ProgramOp& moved = ops.emplace_back(std::move(program.ops[op]));
    ForEachProgramInput(moved, [&](ValueIndex& value) { value = numbers[value]; });
  }
  program.ops = std::move(ops);
  for (ValueIndex& output : program.outputs) output = numbers[output];
  for (StateUpdate& update : program.updates) update.value = numbers[update.value];
}

// The types of a graph's values, by number; nullopt: not known without a mesh.
using Types = std::vector<std::optional<TensorType>>;

std::string ValueText(const Graph& graph, const Types& types, ValueIndex value) {
  const std::string name = value < graph.program.operand_count
                               ? StrCat("\"", graph.operands[value].name, "\"")
                               : OpText(graph.program, value - graph.program.operand_count);
  return types[value].has_value() ? StrCat(name, " ", TypeText(*types[value])) : name;
}

// Returns the types of all values. Each op of `order` follows those that it reads.
absl::StatusOr<Types> TypesOf(const Graph& graph, const std::vector<size_t>& order) {
  Types types;
  for (const GraphOperand& operand : graph.operands) {
    SHARDMESH_RETURN_IF_ERROR(
        WithContext(CheckShape(operand.type.shape), StrCat("operand \"", operand.name, "\"")));
    types.emplace_back(operand.type);
  }
  types.resize(graph.operands.size() + order.size());
  for (const size_t op : order) {
    const std::vector<ValueIndex> inputs = InputsOfOp(graph.program.ops[op]);
    std::vector<TensorType> input_types;
    for (const ValueIndex input : inputs) {
      if (types[input].has_value()) input_types.push_back(*types[input]);
    }
    if (input_types.size() != inputs.size()) continue;
    const absl::StatusOr<TensorType> type = ProgramOpResultType(graph.program.ops[op], input_types);
    if (!type.ok()) {
      const std::string read = StrJoin(inputs, ", ", [&](std::string* out, ValueIndex input) {
        StrAppend(out, ValueText(graph, types, input));
      });
      return Reworded(type.status(), StrCat(OpText(graph.program, op), ": ",
                                            ToStd(type.status().message()), "; inputs: ", read));
    }
    if (!ResultShapeNeedsMesh(graph.program.ops[op])) types[graph.operands.size() + op] = *type;
  }
  return types;
}

// Replaces the symbolic extents of the operands by those at the length.
absl::Status SetLength(const std::vector<SymbolicExtent>& extents, int64_t length,
                       std::vector<GraphOperand>& operands) {
  for (const auto& [operand, extent] : extents) {
    Shape& shape = operands[operand].type.shape;
    const std::string_view name = operands[operand].name;
    if (extent.index >= static_cast<int64_t>(shape.size())) {
      return BadGraph("symbolic_shape",
                      StrCat("operand \"", name, "\" has ", shape.size(),
                             " dimensions, and a symbolic extent of dimension ", extent.index));
    }
    shape = ShapeAt(std::move(shape), {&extent, 1}, length);
  }
  return absl::OkStatus();
}

absl::Status CheckUpdateTypes(const Graph& graph, const Types& types) {
  for (const StateUpdate& update : graph.program.updates) {
    const GraphOperand& state = graph.operands[update.operand];
    if (!types[update.value].has_value() || *types[update.value] == state.type) continue;
    return InvalidArgument(
        Reason::kShapeMismatch,
        StrCat("\"", state.name, "\" is ", TypeText(state.type), " and cannot become ",
               ValueText(graph, types, update.value), "; a state keeps its type and shape"),
        {{fact::kHave, TypeText(*types[update.value])}, {fact::kNeed, TypeText(state.type)}});
  }
  return absl::OkStatus();
}

absl::StatusOr<Types> CheckedTypes(const Graph& graph, const std::vector<size_t>& order) {
  SHARDMESH_ASSIGN_OR_RETURN(Types types, TypesOf(graph, order));
  SHARDMESH_RETURN_IF_ERROR(CheckUpdateTypes(graph, types));
  return types;
}

// Returns the types of all values at the longest length, after a check at others. The operands of
// the graph get their shapes at the longest length.
absl::StatusOr<Types> TypesAtLengths(Graph& graph, const std::vector<size_t>& order) {
  const Program& program = graph.program;
  SHARDMESH_RETURN_IF_ERROR(CheckSymbolicProgram(program));
  if (!program.symbol.has_value()) return CheckedTypes(graph, order);
  Types types;
  for (const int64_t length : LengthsToCheck(*program.symbol)) {
    SHARDMESH_RETURN_IF_ERROR(SetLength(program.symbolic_extents, length, graph.operands));
    const Graph at_length = {.program = ProgramAt(program, length),
                             .operands = graph.operands,
                             .outputs = graph.outputs};
    absl::StatusOr<Types> checked = CheckedTypes(at_length, order);
    if (!checked.ok()) {
      return WithContext(checked.status(), StrCat("at ", program.symbol->name, " ", length));
    }
    types = *std::move(checked);
  }
  return types;
}

}  // namespace

absl::StatusOr<size_t> FindOperand(const Graph& graph, std::string_view name) {
  return Find(graph.operands, name, "operand");
}

absl::StatusOr<size_t> FindOutput(const Graph& graph, std::string_view name) {
  return Find(graph.outputs, name, "output");
}

ProgramOp WithProgramOpInputs(ProgramOp op, absl::Span<const ValueIndex> inputs) {
  size_t next = 0;
  ForEachProgramInput(op, [&](ValueIndex& value) { value = inputs[next++]; });
  return op;
}

bool ResultShapeNeedsMesh(const ProgramOp& op) {
  const auto* const collective = std::get_if<CollectiveOp>(&op);
  if (collective == nullptr) return false;
  switch (collective->kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce:
    case CollectiveKind::kScatter:
      return true;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kGather:
    case CollectiveKind::kPermute:
    case CollectiveKind::kBarrier:
      return false;
  }
  return false;
}

absl::StatusOr<TensorType> ProgramOpResultType(const ProgramOp& op,
                                               absl::Span<const TensorType> inputs) {
  return std::visit(ResultTypeVisitor{inputs}, op);
}

absl::StatusOr<std::vector<size_t>> OrderOfOps(const Program& program) {
  SHARDMESH_RETURN_IF_ERROR(CheckSizes(program));
  SHARDMESH_RETURN_IF_ERROR(CheckResults(program));
  return OpSorter(program).Run();
}

absl::StatusOr<Graph> GraphAt(const Graph& graph, int64_t length) {
  SHARDMESH_RETURN_IF_ERROR(CheckLength(*graph.program.symbol, length));
  Graph at_length = graph;
  SHARDMESH_RETURN_IF_ERROR(SetLength(graph.program.symbolic_extents, length, at_length.operands));
  at_length.program = ProgramAt(std::move(at_length.program), length);
  return CheckGraph(std::move(at_length));
}

std::string OperandShapeText(const Graph& graph, size_t operand) {
  const Shape& shape = graph.operands[operand].type.shape;
  if (!graph.program.symbol.has_value()) return ShapeToString(shape);
  return SymbolicShapeText(shape, ExtentsOf(graph.program, static_cast<ValueIndex>(operand)),
                           graph.program.symbol->name);
}

absl::StatusOr<Graph> CheckGraph(Graph graph) {
  Program& program = graph.program;
  if (program.operand_count != graph.operands.size() ||
      program.outputs.size() != graph.outputs.size()) {
    return BadGraph("operands", StrCat("the program has ", program.operand_count, " operands and ",
                                       program.outputs.size(), " outputs; the graph names ",
                                       graph.operands.size(), " operands and ",
                                       graph.outputs.size(), " outputs"));
  }
  SHARDMESH_RETURN_IF_ERROR(CheckNames(graph.operands, "operand"));
  SHARDMESH_RETURN_IF_ERROR(CheckNames(graph.outputs, "output"));
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<size_t> order, OrderOfOps(program));
  SHARDMESH_ASSIGN_OR_RETURN(const Types types, TypesAtLengths(graph, order));
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    graph.outputs[i].type = types[program.outputs[i]];
  }
  Reorder(order, program);
  return graph;
}

absl::Status CheckGraphName(std::string_view kind, std::string_view name) {
  if (name.empty()) return BadGraph("name", StrCat("the name of an ", kind, " is empty"));
  if (static_cast<int64_t>(name.size()) > kMaxGraphNameBytes) {
    return BadGraph("name", StrCat("the name of an ", kind, " has ", name.size(),
                                   " bytes; at most ", kMaxGraphNameBytes, " are allowed"));
  }
  return absl::OkStatus();
}

}  // namespace shardmesh
