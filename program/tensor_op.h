// Ops on tensors that a device computes from its own tiles, without its peers: functions of
// elements, norms, attention, changes of shape.
#ifndef SHARDMESH_PROGRAM_TENSOR_OP_H_
#define SHARDMESH_PROGRAM_TENSOR_OP_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/shape.h"
#include "tensor/dtype.h"
#include "tensor/elementwise.h"
#include "tensor/literal.h"

namespace shardmesh {

// The number of a value in a program or in a plan. The operands have the first numbers. The results
// of the program's ops, or of the plan's instructions, follow in order.
using ValueIndex = uint32_t;

// A number that depends on the length of a program's symbolic dimension (SymbolicDimension in
// program/program.h): factor * length + offset. It replaces an entry of a list of numbers.
struct SymbolicNumber {
  int64_t index = 0;   // the entry that it replaces
  int64_t factor = 1;  // not 0; at most kMaxSymbolicFactor in magnitude
  int64_t offset = 0;  // at most kMaxLength in magnitude

  friend bool operator==(const SymbolicNumber&, const SymbolicNumber&) = default;
};
inline constexpr int64_t kMaxSymbolicFactor = int64_t{1} << 20;
// The longest length of a symbolic dimension.
inline constexpr int64_t kMaxLength = int64_t{1} << 40;

// A function that MapOp applies to each element, or to each pair of elements.
enum class MapFunction : uint8_t {
  // Functions of two inputs.
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kMinimum,
  kMaximum,
  // Functions of one input.
  kNegate,
  kAbs,
  kExp,
  kLog,
  kSqrt,
  kRsqrt,  // 1 / sqrt(x)
  kTanh,
  kSigmoid,  // 1 / (1 + exp(-x))
  kRelu,
  kGelu,
  kGeluTanh,
  kSilu,
};

// Returns every function once.
absl::Span<const MapFunction> AllMapFunctions();
// Returns a name such as `add` or `gelu-tanh`.
std::string_view MapFunctionName(MapFunction function);
// Returns the number of the function's inputs: 1 or 2.
size_t InputCountOf(MapFunction function);

// Applies a function to each element. Two inputs have one element type and are broadcast as numpy
// broadcasts them: dimensions are matched from the last one, an extent of 1 becomes that of the
// other input. Integers (I8 to I64) have kAdd, kSubtract, kMultiply, kMinimum, kMaximum, kNegate
// and kAbs, and wrap. F32, BF16 and F16 have all; computed in F32, rounded once. F64 is computed in
// F64.
struct MapOp {
  MapFunction function = MapFunction::kAdd;
  std::vector<ValueIndex> inputs;  // InputCountOf(function) of them

  friend bool operator==(const MapOp&, const MapOp&) = default;
};

// Converts elements to another type: floats to the nearest value (ties to even), floats to integers
// towards zero with saturation, integers to integers by wrapping, BOOL to 0 and 1.
struct ConvertOp {
  ValueIndex input = 0;
  Dtype dtype = Dtype::kF32;

  friend bool operator==(const ConvertOp&, const ConvertOp&) = default;
};

// The kinds of NormOp.
enum class NormKind : uint8_t {
  kRms,    // x / sqrt(mean(x^2) + epsilon) * weight + bias
  kLayer,  // (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) * weight + bias
  kL2,     // x / max(sqrt(sum(x^2)), epsilon) * weight + bias
};

// Normalises along the last dimension. Computed in F32, rounded once to the input's type.
struct NormOp {
  NormKind kind = NormKind::kRms;
  ValueIndex input = 0;                             // [..., features]; F32, BF16 or F16
  std::optional<ValueIndex> weight = std::nullopt;  // [features]; the input's type or F32
  std::optional<ValueIndex> bias = std::nullopt;    // [features]; the input's type or F32
  float epsilon = 1e-5F;                            // at least 0

  friend bool operator==(const NormOp&, const NormOp&) = default;
};

// Computes exp(scale * x - m) / sum(exp(scale * x - m)) along the last dimension, where m is the
// maximum of scale * x. With a mask, elements where the mask is 0 take no part, and their results
// are 0; a row that is masked out entirely becomes 0. Computed in F32, rounded once.
struct SoftmaxOp {
  ValueIndex input = 0;  // F32, BF16 or F16
  // BOOL or I32, broadcast to the input's shape as numpy broadcasts it.
  std::optional<ValueIndex> mask = std::nullopt;
  float scale = 1;

  friend bool operator==(const SoftmaxOp&, const SoftmaxOp&) = default;
};

// Combines the elements along `dimensions` into one. Sums and means of floats are computed in F32
// and rounded once; their order does not depend on the number of threads.
struct ReduceOp {
  ValueIndex input = 0;
  Reduction reduction = Reduction::kSum;
  std::vector<int64_t> dimensions;  // at least one; rising
  bool keeps_dimensions = false;    // reduced dimensions stay, with extent 1

  friend bool operator==(const ReduceOp&, const ReduceOp&) = default;
};

// Rotary position embedding. Each head's features are pairs; pair i at position p is rotated by the
// angle p * frequencies[i], in radians. A pair whose angle is beyond 3e9 becomes NaNs. Source:
// https://arxiv.org/abs/2104.09864, section 3.4.
struct RotaryOp {
  ValueIndex input = 0;        // [batch, sequence, heads, features]; F32, BF16 or F16
  ValueIndex positions = 0;    // I32, [sequence] or [batch, sequence]
  ValueIndex frequencies = 0;  // F32, [features / 2]
  // Whether pair i is features 2i and 2i + 1. Otherwise it is features i and i + features / 2, as
  // in checkpoints in HuggingFace's layout.
  bool is_interleaved = false;

  friend bool operator==(const RotaryOp&, const RotaryOp&) = default;
};

// Looks up rows of a table: result[i..., :] = table[ids[i...], :]. A row whose id is outside
// [0, rows) is zero. If mesh axes partition the table's rows, the result is unreduced along them.
struct EmbeddingOp {
  ValueIndex table = 0;  // [rows, features]
  ValueIndex ids = 0;    // I32, any shape

  friend bool operator==(const EmbeddingOp&, const EmbeddingOp&) = default;
};

// Scaled dot-product attention: softmax(scale * query * keys^T) * values, by sequence and head.
// Query head h reads the keys and values of head h / (heads / key heads). Computed with F32 sums.
struct AttentionOp {
  ValueIndex query = 0;   // [batch, queries, heads, features]; F32, BF16 or F16
  ValueIndex keys = 0;    // [batch, rows, key heads, features]; heads is a multiple of key heads
  ValueIndex values = 0;  // [batch, rows, key heads, value features]
  // I32, [queries] or [batch, queries]: the position of each query. A query sees the rows from 0 to
  // its position, both included. A query at a negative position sees none: its result is zero.
  // Without positions, each query sees all rows.
  std::optional<ValueIndex> positions = std::nullopt;
  // BOOL or I32, [batch, rows]: no query of the sequence sees a row whose mask is 0.
  std::optional<ValueIndex> mask = std::nullopt;
  float scale = 1;

  friend bool operator==(const AttentionOp&, const AttentionOp&) = default;
};

// The largest elements along the last dimension, in falling order; of equal elements, that with the
// lower index comes first. A NaN is larger than any number. `gives_indices`: the result has their
// indices (I32), otherwise the elements themselves.
struct TopKOp {
  ValueIndex input = 0;
  int64_t count = 1;  // at least 1, at most the last extent
  bool gives_indices = true;
  // Drops the last dimension. Requires count 1.
  bool drops_dimension = false;

  friend bool operator==(const TopKOp&, const TopKOp&) = default;
};

// The same elements in row-major order under another shape.
struct ReshapeOp {
  ValueIndex input = 0;
  Shape shape;
  // The extents that depend on the length. Only programs have them, and no plan.
  std::vector<SymbolicNumber> symbolic_shape = {};

  friend bool operator==(const ReshapeOp&, const ReshapeOp&) = default;
};

// Dimension i of the result is dimension permutation[i] of the input.
struct TransposeOp {
  ValueIndex input = 0;
  std::vector<int64_t> permutation;

  friend bool operator==(const TransposeOp&, const TransposeOp&) = default;
};

// The indices starts[i] <= index < limits[i] of each dimension i, every steps[i]-th of them.
struct SliceOp {
  ValueIndex input = 0;
  std::vector<int64_t> starts;
  std::vector<int64_t> limits;
  std::vector<int64_t> steps = {};  // each at least 1; empty: all 1
  // The starts and limits that depend on the length. Only programs have them, and no plan.
  std::vector<SymbolicNumber> symbolic_starts = {};
  std::vector<SymbolicNumber> symbolic_limits = {};

  friend bool operator==(const SliceOp&, const SliceOp&) = default;
};

// Joins inputs of one type along a dimension. Their other extents are equal.
struct ConcatenateOp {
  std::vector<ValueIndex> inputs;  // at least one
  int64_t dimension = 0;

  friend bool operator==(const ConcatenateOp&, const ConcatenateOp&) = default;
};

// Replaces rows: the result is `input`, but row positions[b, s] of sequence b is update[b, s]. A
// negative position, and one of at least `rows`, replaces nothing. Of equal positions, the last
// one counts. This is how a step adds to a cache of keys or values.
struct UpdateRowsOp {
  ValueIndex input = 0;      // [batch, rows, ...]
  ValueIndex update = 0;     // [batch, sequence, ...], of the input's type
  ValueIndex positions = 0;  // I32, [sequence] or [batch, sequence]

  friend bool operator==(const UpdateRowsOp&, const UpdateRowsOp&) = default;
};

// The limit for the bytes of a ConstantOp. Larger tensors are operands.
inline constexpr int64_t kMaxConstantBytes = 4096;

// A tensor that is part of the program.
struct ConstantOp {
  Literal value;

  friend bool operator==(const ConstantOp&, const ConstantOp&) = default;
};

using TensorOp =
    std::variant<MapOp, ConvertOp, NormOp, SoftmaxOp, ReduceOp, RotaryOp, EmbeddingOp, AttentionOp,
                 TopKOp, ReshapeOp, TransposeOp, SliceOp, ConcatenateOp, UpdateRowsOp, ConstantOp>;

// Returns the name of an op for messages: "add", "rms-norm", "attention", "top-k", ...
std::string_view TensorOpName(const TensorOp& op);

// Returns the values that an op reads, each as often as the op has it, in the order of the fields.
// Fields that are not set are left out.
std::vector<ValueIndex> InputsOf(const TensorOp& op);
// Replaces each value by `replace` of it.
template <typename Replace>
void ReplaceInputs(TensorOp& op, Replace replace);

// The type and shape of a tensor.
struct TensorType {
  Dtype dtype = Dtype::kF32;
  Shape shape;

  friend bool operator==(const TensorType&, const TensorType&) = default;
};

// Returns the type of the op's result. `inputs` are the types of InputsOf(op), in this order.
//
// Errors are INVALID_ARGUMENT; the message names the input and what it has, and what would fit:
// SHAPE_MISMATCH for shapes that do not fit, UNSUPPORTED_DTYPE for an element type that the op
// does not have (lists those that it has), BAD_FIELD for a malformed op, INVALID_SHAPE for a result
// of too many dimensions or elements, LIMIT_EXCEEDED for a constant of more than kMaxConstantBytes.
// An op with symbolic numbers is malformed: see OpAt in program/graph/symbolic_program.h.
absl::StatusOr<TensorType> ResultTypeOf(const TensorOp& op, absl::Span<const TensorType> inputs);

// Returns whether the op may make its result in the memory of input number `input` of InputsOf(op),
// if both have the same element type and tiles of the same size. MapOp (an input that is broadcast
// has another size), ConvertOp to the same type, NormOp, SoftmaxOp, RotaryOp, ReshapeOp and
// UpdateRowsOp may: MapOp over each input, the others over input 0. The memory of no other input
// overlaps that of the result.
bool MayOverwriteInput(const TensorOp& op, size_t input);

// --- Implementation details from here on.

namespace internal {

// Calls `visit` with a reference to each ValueIndex of the op, in the order of InputsOf.
template <typename Op, typename Visit>
void ForEachInput(Op& op, Visit visit) {
  std::visit(
      [&](auto& kind) {
        const auto optional = [&](auto& value) {
          if (value.has_value()) visit(*value);
        };
        if constexpr (
            requires { kind.function; } || requires { kind.inputs; }) {
          for (auto& input : kind.inputs) visit(input);
        } else if constexpr (requires { kind.query; }) {
          visit(kind.query);
          visit(kind.keys);
          visit(kind.values);
          optional(kind.positions);
          optional(kind.mask);
        } else if constexpr (requires { kind.table; }) {
          visit(kind.table);
          visit(kind.ids);
        } else if constexpr (requires { kind.update; }) {
          visit(kind.input);
          visit(kind.update);
          visit(kind.positions);
        } else if constexpr (requires { kind.frequencies; }) {
          visit(kind.input);
          visit(kind.positions);
          visit(kind.frequencies);
        } else if constexpr (requires { kind.epsilon; }) {
          visit(kind.input);
          optional(kind.weight);
          optional(kind.bias);
        } else if constexpr (requires { kind.mask; }) {
          visit(kind.input);
          optional(kind.mask);
        } else if constexpr (requires { kind.input; }) {
          visit(kind.input);
        }
      },
      op);
}

}  // namespace internal

template <typename Replace>
void ReplaceInputs(TensorOp& op, Replace replace) {
  internal::ForEachInput(op, [&](ValueIndex& value) { value = replace(value); });
}

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_TENSOR_OP_H_
