// Builds programs by calls, with a check of types and shapes at each call.
#ifndef SHARDMESH_PROGRAM_GRAPH_GRAPH_BUILDER_H_
#define SHARDMESH_PROGRAM_GRAPH_GRAPH_BUILDER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "program/graph/graph.h"
#include "program/program.h"
#include "program/tensor_op.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "status/reason.h"
#include "tensor/dtype.h"
#include "tensor/elementwise.h"
#include "tensor/literal.h"

namespace shardmesh {

class GraphBuilder;

// A tensor of a graph under construction: an operand or the result of an op. Belongs to the builder
// that returned it. A default value, and the result of a call that failed, is no tensor.
class GraphValue {
 public:
  GraphValue() = default;

 private:
  friend class GraphBuilder;
  GraphValue(const GraphBuilder* owner, size_t node) : owner_(owner), node_(node) {}

  const GraphBuilder* owner_ = nullptr;
  size_t node_ = 0;
};

// An extent, or an index, of a graph's tensors: a number, or factor * length + offset, where the
// length is that of the graph's symbolic dimension (GraphBuilder::Symbol). Numbers convert to it.
//
// Example: with `seq` of Symbol, `2 * seq + 1`.
class GraphExtent {
 public:
  GraphExtent(int64_t number) : offset_(number) {}  // NOLINT: a number is an extent.
  GraphExtent(int64_t factor, int64_t offset) : factor_(factor), offset_(offset) {}

  bool is_symbolic() const { return factor_ != 0; }
  int64_t factor() const { return factor_; }  // 0: the extent is the number offset()
  int64_t offset() const { return offset_; }

  friend GraphExtent operator+(GraphExtent a, GraphExtent b) {
    return GraphExtent(a.factor_ + b.factor_, a.offset_ + b.offset_);
  }
  friend GraphExtent operator-(GraphExtent a, GraphExtent b) {
    return GraphExtent(a.factor_ - b.factor_, a.offset_ - b.offset_);
  }
  friend GraphExtent operator*(int64_t number, GraphExtent a) {
    return GraphExtent(number * a.factor_, number * a.offset_);
  }
  friend GraphExtent operator*(GraphExtent a, int64_t number) { return number * a; }
  friend bool operator==(const GraphExtent&, const GraphExtent&) = default;

 private:
  int64_t factor_ = 0;
  int64_t offset_ = 0;
};

// The extents of a tensor of a graph, such as {seq, 64}. A Shape converts to it.
class GraphShape {
 public:
  GraphShape() = default;
  GraphShape(std::initializer_list<GraphExtent> extents) : extents_(extents) {}
  GraphShape(const Shape& shape) : extents_(shape.begin(), shape.end()) {}  // NOLINT: see above.

  const std::vector<GraphExtent>& extents() const { return extents_; }

 private:
  std::vector<GraphExtent> extents_;
};

// Optional arguments of GraphBuilder's ops. The ops in program/program.h and program/tensor_op.h
// say what the members mean.
struct LinearArgs {
  std::optional<GraphValue> bias = std::nullopt;    // [out]
  std::optional<GraphValue> scales = std::nullopt;  // [out], F32: of a weight of I8
  Activation activation = Activation::kNone;
  float scale = 1;
  WeightLayout weight_layout = WeightLayout::kOutIn;
};
struct MatmulArgs {
  bool transpose_lhs = false;
  bool transpose_rhs = false;
};
struct NormArgs {
  std::optional<GraphValue> weight = std::nullopt;  // [features]
  std::optional<GraphValue> bias = std::nullopt;    // [features]
  float epsilon = 1e-5F;
};
struct SoftmaxArgs {
  std::optional<GraphValue> mask = std::nullopt;
  float scale = 1;
};
struct AttentionArgs {
  std::optional<GraphValue> positions = std::nullopt;
  std::optional<GraphValue> mask = std::nullopt;
  float scale = 1;
};

// Builds a Graph. Each call adds an operand or an op and returns its result. Operands may be
// declared at any time. The builder checks types and shapes as far as these are known without a
// mesh; the planner checks the rest.
//
// After an error, all further calls do nothing and return values that are no tensors. Code that
// builds a graph therefore needs no checks of its own: Build() returns the first error. It names
// the op, its inputs and their shapes, as in
//   layers.3: op 41 (add): ... ; inputs: op 40 (linear) F32 (4, 8), "residual" F32 (4, 9)
//
// Dimensions may be counted from the end: -1 is the last one. Where an op of two inputs takes a
// number, the number is a constant of the type of the other input.
//
// Example, y = softmax(x * w + b):
//   GraphBuilder graph;
//   const GraphValue x = graph.Parameter("x", Dtype::kF32, {8, 16});
//   const GraphValue w = graph.Parameter("w", Dtype::kF32, {4, 16});
//   const GraphValue b = graph.Parameter("b", Dtype::kF32, {4});
//   graph.Output("y", graph.Softmax(graph.Linear(x, w, {.bias = b})));
//   absl::StatusOr<Graph> built = graph.Build();
//
// One dimension of a graph may be symbolic: its length is known when the graph runs. Operands that
// have it say so in their shapes, and shapes of results follow. Each call checks the shapes at some
// lengths that decide for all (LengthsToCheck in program/graph/symbolic_program.h). Errors then
// begin with the length, as in
//   op 3 (add): at seq 2: shapes (2, 8) and (4, 8) cannot be broadcast ...
//
// Example, the sums of the rows of x but for the first:
//   const GraphExtent seq = graph.Symbol("seq", 2, 512);
//   const GraphValue x = graph.Parameter("x", Dtype::kF32, {seq, 64});
//   graph.Output("y", graph.Sum(graph.Slice(x, 0, 1, seq), {1}));
//
// Not thread-safe. Neither copied nor moved, since values refer to their builder.
class GraphBuilder {
 public:
  GraphBuilder() = default;
  GraphBuilder(const GraphBuilder&) = delete;
  GraphBuilder& operator=(const GraphBuilder&) = delete;

  // Names the part of the model to which the following ops belong, such as "layers.3". Errors of
  // these ops begin with the name. Empty: no part.
  void SetScope(std::string_view scope) { scope_ = std::string(scope); }

  // Declares the symbolic dimension, and returns its length. At most one call; before any operand
  // that has the dimension. SymbolicDimension in program/program.h says what the numbers may be.
  GraphExtent Symbol(std::string_view name, int64_t min, int64_t max, int64_t multiple = 1);

  // Operands. Names are unique. Symbolic extents have factors of at least 1. An operand of State is
  // an array that the step changes in place: Build requires an Update of it.
  GraphValue Parameter(std::string_view name, Dtype dtype, const GraphShape& shape);
  GraphValue State(std::string_view name, Dtype dtype, const GraphShape& shape);

  // Constants of the program: at most kMaxConstantBytes each. Scalar gives a tensor without
  // dimensions; `value` is rounded to `dtype`, which is F64, F32, BF16, F16, or an integer type of
  // 8 to 64 bits that represents `value` exactly. Vectors have one dimension.
  GraphValue Constant(Literal value);
  GraphValue Scalar(Dtype dtype, double value);
  GraphValue Vector(absl::Span<const float> values);    // F32
  GraphValue Vector(absl::Span<const int32_t> values);  // I32

  // Products. Linear: input [..., in].
  GraphValue Linear(GraphValue input, GraphValue weight, const LinearArgs& args = {});
  GraphValue Matmul(GraphValue lhs, GraphValue rhs, const MatmulArgs& args = {});

  // Functions of elements. Two inputs are broadcast as numpy broadcasts them.
  GraphValue Map(MapFunction function, GraphValue input);
  GraphValue Map(MapFunction function, GraphValue lhs, GraphValue rhs);
  GraphValue Map(MapFunction function, GraphValue lhs, double rhs);
  GraphValue Map(MapFunction function, double lhs, GraphValue rhs);
  template <typename Lhs, typename Rhs>
  GraphValue Add(Lhs lhs, Rhs rhs) {
    return Map(MapFunction::kAdd, lhs, rhs);
  }
  template <typename Lhs, typename Rhs>
  GraphValue Subtract(Lhs lhs, Rhs rhs) {
    return Map(MapFunction::kSubtract, lhs, rhs);
  }
  template <typename Lhs, typename Rhs>
  GraphValue Multiply(Lhs lhs, Rhs rhs) {
    return Map(MapFunction::kMultiply, lhs, rhs);
  }
  template <typename Lhs, typename Rhs>
  GraphValue Divide(Lhs lhs, Rhs rhs) {
    return Map(MapFunction::kDivide, lhs, rhs);
  }
  template <typename Lhs, typename Rhs>
  GraphValue Minimum(Lhs lhs, Rhs rhs) {
    return Map(MapFunction::kMinimum, lhs, rhs);
  }
  template <typename Lhs, typename Rhs>
  GraphValue Maximum(Lhs lhs, Rhs rhs) {
    return Map(MapFunction::kMaximum, lhs, rhs);
  }
  GraphValue Negate(GraphValue input) { return Map(MapFunction::kNegate, input); }
  GraphValue Abs(GraphValue input) { return Map(MapFunction::kAbs, input); }
  GraphValue Exp(GraphValue input) { return Map(MapFunction::kExp, input); }
  GraphValue Log(GraphValue input) { return Map(MapFunction::kLog, input); }
  GraphValue Sqrt(GraphValue input) { return Map(MapFunction::kSqrt, input); }
  GraphValue Rsqrt(GraphValue input) { return Map(MapFunction::kRsqrt, input); }
  GraphValue Tanh(GraphValue input) { return Map(MapFunction::kTanh, input); }
  GraphValue Sigmoid(GraphValue input) { return Map(MapFunction::kSigmoid, input); }
  GraphValue Relu(GraphValue input) { return Map(MapFunction::kRelu, input); }
  GraphValue Gelu(GraphValue input) { return Map(MapFunction::kGelu, input); }
  GraphValue GeluTanh(GraphValue input) { return Map(MapFunction::kGeluTanh, input); }
  GraphValue Silu(GraphValue input) { return Map(MapFunction::kSilu, input); }
  // Returns `input` itself if it has the type already.
  GraphValue Convert(GraphValue input, Dtype dtype);

  // Along the last dimension.
  GraphValue Norm(NormKind kind, GraphValue input, const NormArgs& args);
  GraphValue RmsNorm(GraphValue input, const NormArgs& args = {}) {
    return Norm(NormKind::kRms, input, args);
  }
  GraphValue LayerNorm(GraphValue input, const NormArgs& args = {}) {
    return Norm(NormKind::kLayer, input, args);
  }
  GraphValue L2Normalize(GraphValue input, float epsilon = 1e-12F) {
    return Norm(NormKind::kL2, input, {.epsilon = epsilon});
  }
  GraphValue Softmax(GraphValue input, const SoftmaxArgs& args = {});
  GraphValue TopK(GraphValue input, int64_t count);         // the elements
  GraphValue TopKIndices(GraphValue input, int64_t count);  // I32
  GraphValue Argmax(GraphValue input);                      // I32, without the last dimension

  // Along `dimensions`, in any order.
  GraphValue Reduce(GraphValue input, Reduction reduction, std::vector<int64_t> dimensions,
                    bool keeps_dimensions = false);
  GraphValue Sum(GraphValue input, std::vector<int64_t> dimensions, bool keeps_dimensions = false) {
    return Reduce(input, Reduction::kSum, std::move(dimensions), keeps_dimensions);
  }
  GraphValue Mean(GraphValue input, std::vector<int64_t> dimensions,
                  bool keeps_dimensions = false) {
    return Reduce(input, Reduction::kMean, std::move(dimensions), keeps_dimensions);
  }

  // Parts of transformers.
  GraphValue Rotary(GraphValue input, GraphValue positions, GraphValue frequencies,
                    bool is_interleaved = false);
  GraphValue Embedding(GraphValue table, GraphValue ids);
  GraphValue Attention(GraphValue query, GraphValue keys, GraphValue values,
                       const AttentionArgs& args = {});
  GraphValue UpdateRows(GraphValue input, GraphValue update, GraphValue positions);

  // Changes of shape. In Reshape, one extent may be -1: it is computed from the others. It is
  // refused if it is no factor * length + offset.
  GraphValue Reshape(GraphValue input, const GraphShape& shape);
  // Dimension i of the result is dimension permutation[i] of the input.
  GraphValue Transpose(GraphValue input, std::vector<int64_t> permutation);
  // The indices start <= index < limit of one dimension, every step-th of them. A negative start or
  // limit is counted from the end, unless it is symbolic. Other dimensions stay whole.
  GraphValue Slice(GraphValue input, int64_t dimension, GraphExtent start, GraphExtent limit,
                   int64_t step = 1);
  GraphValue Concatenate(absl::Span<const GraphValue> inputs, int64_t dimension);
  GraphValue Concatenate(std::initializer_list<GraphValue> inputs, int64_t dimension);

  // Layouts. The mesh is not known yet: the planner checks the axes.
  GraphValue Reshard(GraphValue input, PartitionSpec spec);
  // Any collective; `op.input` is ignored. `shape` is the shape of the result. Without it, the
  // result has the shape of the input, which is not so if the collective merges tiles (all-reduce,
  // reduce-scatter, broadcast, reduce, scatter) along an axis that partitions the input. If the
  // input's shape depends on the length, `shape` is refused.
  GraphValue Collective(GraphValue input, CollectiveOp op,
                        const std::optional<Shape>& shape = std::nullopt);
  GraphValue AllReduce(GraphValue input, std::vector<std::string> axes,
                       Reduction reduction = Reduction::kSum);
  GraphValue AllGather(GraphValue input, std::vector<std::string> axes, int64_t dimension);
  GraphValue ReduceScatter(GraphValue input, std::vector<std::string> axes, int64_t dimension,
                           Reduction reduction = Reduction::kSum);

  // An op in the terms of program/program.h. Its inputs are `inputs`, in the order of
  // InputsOfOp; the numbers in `op` are ignored.
  GraphValue Op(ProgramOp op, absl::Span<const GraphValue> inputs);

  // When the step commits, `state` gets the elements of `value`, which has the same type and shape.
  // `state` is an operand, and is updated once.
  void Update(GraphValue state, GraphValue value);
  // Makes `value` a result of the program. Names are unique.
  void Output(std::string_view name, GraphValue value);

  // Returns the type of a value; an F32 scalar if the value is no tensor. If the shape depends on
  // the length, it is that at the maximum.
  const TensorType& TypeOf(GraphValue value) const;
  const Shape& ShapeOf(GraphValue value) const { return TypeOf(value).shape; }
  Dtype DtypeOf(GraphValue value) const { return TypeOf(value).dtype; }

  // Returns an extent of a value, which may be symbolic; 1, and keeps an error, if the value lacks
  // the dimension, or if the extent is no factor * length + offset.
  GraphExtent ExtentOf(GraphValue value, int64_t dimension);

  // Returns the first error.
  const absl::Status& status() const { return status_; }

  // Returns the graph. All errors are INVALID_ARGUMENT, with the reasons of ProgramOpResultType.
  // Further ones:
  //   - BAD_FIELD: a name is empty, repeated or too long; a value is no tensor, or is one of
  //   another
  //     builder; an output or an update is an operand, or is given twice; a state has no update, or
  //     two; there are neither outputs nor updates;
  //   - SHAPE_MISMATCH: an update has another type or shape than its state;
  //   - INVALID_DIMENSION: an input lacks the dimension;
  //   - LIMIT_EXCEEDED: more than kMaxProgramSize operands, ops or outputs;
  //   - the errors of CheckSymbolicDimension and CheckSymbolicNumbers; BAD_FIELD: a symbolic extent
  //     without a call of Symbol; no operand has the symbolic dimension.
  // The builder can be used further, and Build called again.
  absl::StatusOr<Graph> Build() const;

 private:
  struct Node {
    TensorType type;  // at the longest length
    // The shapes at lengths_, if they differ.
    std::vector<Shape> shapes = {};
    std::vector<SymbolicNumber> extents = {};  // of an operand
    // Whether the type is certain. Otherwise it depends on an op for which ResultShapeNeedsMesh
    // holds.
    bool is_exact = true;
    std::string name = {};                       // of an operand
    bool is_state = false;                       // an operand of State
    std::optional<ProgramOp> op = std::nullopt;  // nullopt: an operand. Its values are nodes.
  };

  // Keeps the error, unless there is one.
  void Fail(const absl::Status& error);
  void Refuse(Reason reason, std::string_view message, Facts facts = {});
  // Keeps the error of the next op, with the op's number and name and its inputs.
  GraphValue FailOp(const absl::Status& error, std::string_view op_name,
                    absl::Span<const GraphValue> inputs);
  // Returns whether there is no error, and all values are tensors of this builder. Otherwise keeps
  // an error.
  bool CheckValues(absl::Span<const GraphValue> values, std::string_view op_name);
  // Returns the dimension, counted from the front. Keeps an error if the input lacks it.
  std::optional<int64_t> DimensionOf(GraphValue input, int64_t dimension, std::string_view op_name);
  std::string Describe(GraphValue value) const;
  // The number of lengths at which shapes are checked; 1 without a symbolic dimension.
  size_t length_count() const { return std::max<size_t>(lengths_.size(), 1); }
  const Shape& ShapeAtLength(size_t node, size_t length) const;
  Shape ShapeAtLength(const GraphShape& shape, size_t length) const;
  // Returns the symbolic extents of a shape. Keeps an error if there is no symbolic dimension.
  std::vector<SymbolicNumber> SymbolicExtentsOf(const GraphShape& shape);
  // Returns an extent of a node; nullopt if it is no factor * length + offset.
  std::optional<GraphExtent> FittedExtent(size_t node, size_t dimension) const;
  // The same; keeps an error of the op if there is none.
  std::optional<GraphExtent> RequiredExtent(GraphValue value, size_t dimension,
                                            std::string_view op_name);
  // Returns text such as `(seq, 64)`.
  std::string ShapeText(const Node& node, size_t index) const;
  // Sets the type of the op's result at all lengths.
  absl::Status SetType(const ProgramOp& op, absl::Span<const GraphValue> inputs, Node* node) const;
  GraphValue Operand(std::string_view name, Dtype dtype, const GraphShape& shape, bool is_state);
  GraphValue AddNode(Node node);
  size_t op_count() const { return nodes_.size() - operands_.size(); }
  const Node& NodeOf(GraphValue value) const { return nodes_[value.node_]; }

  using Names = std::map<std::string, size_t, std::less<>>;

  std::optional<SymbolicDimension> symbol_;
  std::vector<int64_t> lengths_;  // LengthsToCheck; empty without a symbolic dimension
  std::vector<Node> nodes_;
  Names operands_;                                       // node by name
  std::vector<std::pair<std::string, size_t>> outputs_;  // name and node
  std::map<size_t, size_t> updates_;                     // node of the value by node of the state
  std::string scope_;
  absl::Status status_;
};

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_GRAPH_GRAPH_BUILDER_H_
