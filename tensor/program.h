// A computation over arrays, written without regard to how they lie.
#ifndef SHARDMESH_TENSOR_PROGRAM_H_
#define SHARDMESH_TENSOR_PROGRAM_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "sharding/spec.h"
#include "tensor/elementwise.h"

namespace shardmesh {

// Values of a program or plan are numbered: first the operands, then the result of each op.
using ValueIndex = uint32_t;

// Most operands, ops and outputs of a program.
inline constexpr uint32_t kMaxProgramSize = 1024;

enum class WeightLayout : uint8_t {
  kOutIn,  // [out, in], as in PyTorch checkpoints
  kInOut,  // [in, out], as in flax
};

enum class CollectiveKind : uint8_t { kAllReduce, kAllGather, kReduceScatter };

// activation(scale * input * weight + bias) over the last dimension of the input.
struct LinearOp {
  ValueIndex input = 0;                           // [..., in]
  ValueIndex weight = 0;                          // a matrix
  std::optional<ValueIndex> bias = std::nullopt;  // [out]
  WeightLayout weight_layout = WeightLayout::kOutIn;
  Activation activation = Activation::kNone;
  float scale = 1;

  friend bool operator==(const LinearOp&, const LinearOp&) = default;
};

// lhs * rhs for two matrices, each transposed first if so said.
struct MatmulOp {
  ValueIndex lhs = 0;  // [M, K]
  ValueIndex rhs = 0;  // [K, N]
  bool transpose_lhs = false;
  bool transpose_rhs = false;

  friend bool operator==(const MatmulOp&, const MatmulOp&) = default;
};

// A collective over every group of devices along some mesh axes. What a device brings is its tile:
//   - all-reduce: tiles of one size become one tile, the same on all devices of the group. An
//     unreduced axis is thereby reduced; a dimension partitioned over a reduced axis shrinks by it.
//   - all-gather: a dimension partitioned over (..., axes) is joined along `axes`.
//   - reduce-scatter: all-reduce, then each device keeps its part of `dimension`.
struct CollectiveOp {
  ValueIndex input = 0;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::vector<std::string> axes;          // major to minor
  int64_t dimension = 0;                  // all-gather, reduce-scatter
  Reduction reduction = Reduction::kSum;  // all-reduce, reduce-scatter

  friend bool operator==(const CollectiveOp&, const CollectiveOp&) = default;
};

// The same tensor, laid out anew.
struct ReshardOp {
  ValueIndex input = 0;
  PartitionSpec spec;  // must fit

  friend bool operator==(const ReshardOp&, const ReshardOp&) = default;
};

using ProgramOp = std::variant<LinearOp, MatmulOp, CollectiveOp, ReshardOp>;

// Op i makes value operand_count + i and refers to earlier values only.
struct Program {
  uint32_t operand_count = 0;
  std::vector<ProgramOp> ops;
  std::vector<ValueIndex> outputs;

  friend bool operator==(const Program&, const Program&) = default;
};

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_PROGRAM_H_
