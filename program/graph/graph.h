// A program with the names and types of its operands and outputs.
#ifndef SHARDMESH_PROGRAM_GRAPH_GRAPH_H_
#define SHARDMESH_PROGRAM_GRAPH_GRAPH_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "program/program.h"
#include "program/tensor_op.h"

namespace shardmesh {

// The most bytes of the name of an operand or an output.
inline constexpr int64_t kMaxGraphNameBytes = 1024;

// An operand of a graph. A name is not empty, and has at most kMaxGraphNameBytes. The names of the
// operands differ from each other, and so do those of the outputs.
struct GraphOperand {
  std::string name;
  TensorType type;

  friend bool operator==(const GraphOperand&, const GraphOperand&) = default;
};

// An output of a graph. `type` is nullopt if it is not known without a mesh: it depends on a
// collective that merges tiles.
struct GraphOutput {
  std::string name;
  std::optional<TensorType> type;

  friend bool operator==(const GraphOutput&, const GraphOutput&) = default;
};

// `operands` has program.operand_count entries and `outputs` one for each of program.outputs, in
// order. GraphBuilder::Build and CheckGraph give graphs for which this holds. If the program has a
// symbolic dimension, all types are those at its maximum.
struct Graph {
  Program program;
  std::vector<GraphOperand> operands;
  std::vector<GraphOutput> outputs;

  friend bool operator==(const Graph&, const Graph&) = default;
};

// Returns the index of the operand or of the output with this name. NOT_FOUND gives the nearest
// name, or else the first names of the graph.
absl::StatusOr<size_t> FindOperand(const Graph& graph, std::string_view name);
absl::StatusOr<size_t> FindOutput(const Graph& graph, std::string_view name);

// Returns the op with other inputs: those of `inputs`, in the order of InputsOfOp(op).
// Requires as many of them.
ProgramOp WithProgramOpInputs(ProgramOp op, absl::Span<const ValueIndex> inputs);

// Returns whether the shape of the op's result depends on the mesh: a collective that merges the
// tiles of a group (all-reduce, reduce-scatter, broadcast, reduce, scatter) divides the extent of a
// dimension that its axes partition.
bool ResultShapeNeedsMesh(const ProgramOp& op);

// Returns the type of an op's result. `inputs` are the types of InputsOfOp(op), in this order.
// If ResultShapeNeedsMesh(op), returns the type of the input, which is the result's unless an axis
// of the collective partitions the input.
//
// Errors are those of ResultTypeOf for tensor ops. SHAPE_MISMATCH: the shapes do not multiply, bias
// or scales are not [out], or the weight is no matrix. UNSUPPORTED_DTYPE: as CheckProductTypes and
// CheckScales; the bias has another type than the input. INVALID_DIMENSION: the input lacks a
// dimension of a collective, or has fewer than a reshard's spec.
absl::StatusOr<TensorType> ProgramOpResultType(const ProgramOp& op,
                                               absl::Span<const TensorType> inputs);

// Checks that the values to which ops, outputs and updates refer exist, and that no op depends on
// itself. Ops may stand in any order: an op may refer to a later one. Returns the numbers of the
// ops in an order in which each op follows those that it reads; the ops' own order if that is one.
//
// Errors are INVALID_ARGUMENT with BAD_FIELD. A cycle is written as the path of its ops: "op 1
// (add) depends on itself: op 1 (add) reads op 3 (multiply), which reads op 1 (add)". A dangling
// reference names the op, the value and how many values there are. LIMIT_EXCEEDED: more than
// kMaxProgramSize operands, ops, outputs or updates.
absl::StatusOr<std::vector<size_t>> OrderOfOps(const Program& program);

// Returns the graph of one length: its types are those at the length, and its program is that of
// ProgramAt. Errors of CheckLength and CheckGraph. Requires a symbolic dimension.
absl::StatusOr<Graph> GraphAt(const Graph& graph, int64_t length);

// Returns the shape of an operand for messages: with a symbolic dimension as in `(seq, 64)`.
std::string OperandShapeText(const Graph& graph, size_t operand);

// Checks a graph that came from a file, and returns it with its ops in an order that a program may
// have. The types of its outputs are ignored; the result has those that follow from the operands.
// Ops after one for which ResultShapeNeedsMesh holds are checked by the planner only.
//
// Errors as OrderOfOps and ProgramOpResultType; the latter's name the op and its inputs. Also
// BAD_FIELD: a name is empty, too long or repeated; there is not one name for each operand and
// output; an output or the value of an update is an operand, or occurs twice; an update's operand
// is none. SHAPE_MISMATCH: an update has another type than its operand. INVALID_SHAPE: CheckShape
// refuses the shape of an operand.
//
// With a symbolic dimension, the graph is checked at all lengths of LengthsToCheck; an error then
// names the length. The extents that it replaces in the operands' types become those at the
// maximum. Also errors of CheckSymbolicProgram.
absl::StatusOr<Graph> CheckGraph(Graph graph);

// Returns OK for a name that a graph may have. BAD_FIELD: it is empty or too long.
absl::Status CheckGraphName(std::string_view kind, std::string_view name);

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_GRAPH_GRAPH_H_
