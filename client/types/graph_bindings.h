// Runs of graphs: operands and outputs by name.
#ifndef SHARDMESH_CLIENT_TYPES_GRAPH_BINDINGS_H_
#define SHARDMESH_CLIENT_TYPES_GRAPH_BINDINGS_H_

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "client/types/step.h"
#include "program/graph/graph.h"
#include "program/graph/graph_builder.h"
#include "sharding/spec.h"

namespace shardmesh::client {

// The operands and outputs of one run of a graph, by their names in the graph.
struct GraphBindings {
  std::map<std::string, Operand, std::less<>> operands;
  // If set, an operand without entry above is the array whose name is this prefix and the operand's
  // name. If not set, each operand needs an entry.
  std::optional<std::string> array_prefix = std::nullopt;
  // The name that an output's array gets. An output without entry gets no name.
  std::map<std::string, std::string, std::less<>> output_names = {};
  // The spec that an output gets. The planner chooses those of the others.
  std::map<std::string, PartitionSpec, std::less<>> output_specs = {};
  bool return_literals = false;  // as OutputOptions::return_literals
  std::string mesh_id = {};      // as ExecuteCall::mesh_id
};

// Returns the call that runs the graph; its outputs are in the order of graph.outputs.
//
// Errors are INVALID_ARGUMENT. MISSING_ARGUMENT: an operand has no binding; the message lists all
// such operands. NOT_FOUND: a binding is for an operand or output that the graph lacks; gives the
// nearest name. SHAPE_MISMATCH: a literal has another type or shape than its operand; with a
// symbolic dimension, the errors of LengthOf (program/graph/symbolic_program.h). BAD_FIELD: a state
// is bound to a literal. The types of arrays are checked when the call runs.
//
// Example:
//   auto call = BindGraph(*graph, {.operands = {{"ids", ids_literal}}, .array_prefix = "minilm/"});
//   auto result = client->compute().Execute(*call);
absl::StatusOr<ExecuteCall> BindGraph(const Graph& graph, const GraphBindings& bindings);

// The same by a handle of the graph's program: the call sends the hash of the plan, and has the
// mesh of the handle if `bindings` names none. Also BAD_FIELD: `bindings` has specs of outputs.
absl::StatusOr<ExecuteCall> BindGraph(const Graph& graph, const CompiledProgram& compiled,
                                      const GraphBindings& bindings);

// Returns the output of that name. NOT_FOUND gives the nearest name. `result` is that of a call
// that BindGraph made for `graph`; the reference is valid while `result` is.
absl::StatusOr<const StepOutput*> FindOutput(const Graph& graph, const StepResult& result,
                                             std::string_view name);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_GRAPH_BINDINGS_H_
