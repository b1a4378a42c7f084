// Binds the operands and outputs of graphs.
#include "client/types/graph_bindings.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "program/graph/symbolic_program.h"
#include "program/tensor_op.h"
#include "sharding/shape.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"

namespace shardmesh::client {
namespace {

std::string TypeText(const TensorType& type) {
  return StrCat(DtypeName(type.dtype), " ", ShapeToString(type.shape));
}

bool IsState(const Graph& graph, ValueIndex operand) {
  for (const StateUpdate& update : graph.program.updates) {
    if (update.operand == operand) return true;
  }
  return false;
}

// Returns the length of the graph's symbolic dimension that follows from the literals; nullopt: the
// graph has no symbolic dimension, or no literal has it.
absl::StatusOr<std::optional<int64_t>> LengthOfLiterals(const Graph& graph,
                                                        const GraphBindings& bindings) {
  if (!graph.program.symbol.has_value()) return std::nullopt;
  const auto shape_of = [&](ValueIndex operand) -> const Shape* {
    const auto bound = bindings.operands.find(graph.operands[operand].name);
    if (bound == bindings.operands.end()) return nullptr;
    const auto* const literal = std::get_if<Literal>(&bound->second.value);
    return literal == nullptr ? nullptr : &literal->shape;
  };
  bool is_known = false;
  for (const SymbolicExtent& extent : graph.program.symbolic_extents) {
    is_known = is_known || shape_of(extent.operand) != nullptr;
  }
  if (!is_known) return std::nullopt;
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t length,
                             LengthOf(graph.program, shape_of, [&](ValueIndex operand) {
                               return StrCat("operand \"", graph.operands[operand].name, "\"");
                             }));
  return std::optional<int64_t>(length);
}

// `length` is that of LengthOfLiterals.
absl::Status CheckLiteral(const Graph& graph, size_t index, const Literal& literal,
                          std::optional<int64_t> length) {
  const GraphOperand& operand = graph.operands[index];
  const bool is_state = IsState(graph, static_cast<ValueIndex>(index));
  const TensorType type = {.dtype = literal.dtype, .shape = literal.shape};
  TensorType wanted = operand.type;
  if (length.has_value()) {
    wanted.shape = ShapeAt(std::move(wanted.shape),
                           ExtentsOf(graph.program, static_cast<ValueIndex>(index)), *length);
  }
  if (type != wanted) {
    return InvalidArgument(Reason::kShapeMismatch,
                           StrCat("operand \"", operand.name, "\" is ", TypeText(wanted), "; ",
                                  TypeText(type), " is given"),
                           {{fact::kHave, TypeText(type)}, {fact::kNeed, TypeText(wanted)}});
  }
  if (is_state) {
    return InvalidArgument(Reason::kBadField,
                           StrCat("operand \"", operand.name,
                                  "\" is state, which the step changes; give an array of the "
                                  "cluster instead of a literal"),
                           {{fact::kField, operand.name}});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Operand>> BindOperands(const Graph& graph,
                                                  const GraphBindings& bindings) {
  for (const auto& [name, operand] : bindings.operands) {
    SHARDMESH_RETURN_IF_ERROR(FindOperand(graph, name).status());
  }
  SHARDMESH_ASSIGN_OR_RETURN(const std::optional<int64_t> length,
                             LengthOfLiterals(graph, bindings));
  std::vector<Operand> operands;
  std::vector<std::string> missing;
  for (size_t i = 0; i < graph.operands.size(); ++i) {
    const GraphOperand& operand = graph.operands[i];
    if (const auto bound = bindings.operands.find(operand.name); bound != bindings.operands.end()) {
      operands.push_back(bound->second);
      const auto* const literal = std::get_if<Literal>(&bound->second.value);
      if (literal == nullptr) continue;
      SHARDMESH_RETURN_IF_ERROR(CheckLiteral(graph, i, *literal, length));
    } else if (bindings.array_prefix.has_value()) {
      operands.emplace_back(ArraySelector::ByName(StrCat(*bindings.array_prefix, operand.name)));
    } else {
      missing.push_back(StrCat("\"", operand.name, "\" ", DtypeName(operand.type.dtype), " ",
                               OperandShapeText(graph, i)));
    }
  }
  if (missing.empty()) return operands;
  constexpr size_t kMostNames = 10;
  return InvalidArgument(
      Reason::kMissingArgument,
      StrCat("nothing is given for ", missing.size(), " of the graph's ", graph.operands.size(),
             " operands: ", StrJoinFirst(kMostNames, missing, ", ")),
      {{fact::kField, "operands"}});
}

}  // namespace

absl::StatusOr<ExecuteCall> BindGraph(const Graph& graph, const GraphBindings& bindings) {
  ExecuteCall call{.work = graph.program, .operands = {}, .mesh_id = bindings.mesh_id};
  SHARDMESH_ASSIGN_OR_RETURN(call.operands, BindOperands(graph, bindings));
  call.output.return_literals = bindings.return_literals;
  if (!bindings.output_names.empty()) call.output.names.resize(graph.outputs.size());
  for (const auto& [output, name] : bindings.output_names) {
    SHARDMESH_ASSIGN_OR_RETURN(const size_t place, shardmesh::FindOutput(graph, output));
    call.output.names[place] = name;
  }
  if (!bindings.output_specs.empty()) call.output.specs.resize(graph.outputs.size());
  for (const auto& [output, spec] : bindings.output_specs) {
    SHARDMESH_ASSIGN_OR_RETURN(const size_t place, shardmesh::FindOutput(graph, output));
    call.output.specs[place] = spec;
  }
  return call;
}

absl::StatusOr<ExecuteCall> BindGraph(const Graph& graph, const CompiledProgram& compiled,
                                      const GraphBindings& bindings) {
  if (!bindings.output_specs.empty()) {
    return InvalidArgument(Reason::kBadField,
                           "specs of outputs are given with a compiled program, whose plan has its "
                           "own; end the graph with reshards and compile it again",
                           {{fact::kField, "output_specs"}});
  }
  SHARDMESH_ASSIGN_OR_RETURN(ExecuteCall call, BindGraph(graph, bindings));
  call.work = compiled.plan_hash;
  call.program = compiled.program;
  if (call.mesh_id.empty()) call.mesh_id = compiled.mesh_id;
  return call;
}

absl::StatusOr<const StepOutput*> FindOutput(const Graph& graph, const StepResult& result,
                                             std::string_view name) {
  SHARDMESH_ASSIGN_OR_RETURN(const size_t place, shardmesh::FindOutput(graph, name));
  if (place >= result.outputs.size()) {
    return InvalidArgument(
        Reason::kBadField,
        StrCat("the step has ", result.outputs.size(), " results, and the graph ",
               graph.outputs.size(), " outputs; it is the result of other work"),
        {{fact::kField, name}});
  }
  return &result.outputs[place];
}

}  // namespace shardmesh::client
