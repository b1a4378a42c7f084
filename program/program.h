// A computation over arrays, independent of their layouts.
#ifndef SHARDMESH_PROGRAM_PROGRAM_H_
#define SHARDMESH_PROGRAM_PROGRAM_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "program/tensor_op.h"
#include "sharding/spec.h"
#include "tensor/dtype.h"
#include "tensor/elementwise.h"

namespace shardmesh {

// The largest permitted number of operands, of ops, and of outputs in a program: each of the three
// has this limit.
inline constexpr uint32_t kMaxProgramSize = 8192;
// The largest permitted number of inputs of all ops of a program together. Only concatenations can
// exceed it: all other ops have at most 5 inputs. It bounds the time of planning.
inline constexpr size_t kMaxProgramInputs = 8 * size_t{kMaxProgramSize};

enum class WeightLayout : uint8_t {
  kOutIn,  // [out, in], as in PyTorch checkpoints
  kInOut,  // [in, out], as in flax
};

// The kinds of CollectiveOp.
enum class CollectiveKind : uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kPermute,
  kBarrier,
};

// Returns every kind once.
absl::Span<const CollectiveKind> AllCollectiveKinds();
// Returns a name such as `all-reduce` or `reduce-scatter`.
std::string_view CollectiveKindName(CollectiveKind kind);

// How the devices of a group exchange the data of a collective. program/collective_choice.h has the
// algorithms of each kind and their costs.
enum class CollectiveAlgorithm : uint8_t {
  kAuto,      // the planner chooses the algorithm with the least predicted time
  kPairwise,  // each device sends every other device the part that the receiver needs
  kDirect,    // each device sends its operand to each receiver; a receiver combines all operands
  kDoubling,  // in rounds, devices 1, 2, 4, ... places apart exchange all data that they have
  kHalving,   // each round: two devices combine half of their data each; at the end, results return
  kRing,      // each device receives from the place before it and sends to the place after it
  kBinomial,  // data moves along a binomial tree whose root is the place `root`
  kChain,     // data moves in chunks from the place `root` to the next place, and on to the last
};

// Returns every algorithm once, kAuto first.
absl::Span<const CollectiveAlgorithm> AllCollectiveAlgorithms();
// Returns a name such as `auto` or `pairwise`.
std::string_view CollectiveAlgorithmName(CollectiveAlgorithm algorithm);

// The orders in which a reduction may combine its operands.
enum class CollectiveOrder : uint8_t {
  kReproducible,  // only the canonical order: the same bits for every algorithm, size and run
  kFastest,       // any order; but each device, and each run of one plan, gets the same bits
};

// A pair of places in a permutation: the tile of `source` moves to `target`.
struct PermutePair {
  int64_t source = 0;
  int64_t target = 0;

  friend bool operator==(const PermutePair&, const PermutePair&) = default;
};

// Computes activation(scale * (input * weight) * scales + bias). The product contracts the last
// dimension of the input. A weight of I8 has `scales`: the weight's elements are integers, and a
// factor for each output feature gives their values. Other weights have none.
struct LinearOp {
  ValueIndex input = 0;                           // [..., in]
  ValueIndex weight = 0;                          // a matrix
  std::optional<ValueIndex> bias = std::nullopt;  // [out]
  WeightLayout weight_layout = WeightLayout::kOutIn;
  Activation activation = Activation::kNone;
  float scale = 1;
  std::optional<ValueIndex> scales = std::nullopt;  // [out], F32

  friend bool operator==(const LinearOp&, const LinearOp&) = default;
};

// Computes lhs * rhs for two batches of matrices. In each operand, the matrices are transposed
// first if requested. The batch dimensions are broadcast as numpy's matmul broadcasts them: matched
// from the last one, an extent of 1 becomes that of the other operand.
struct MatmulOp {
  ValueIndex lhs = 0;          // [batch..., M, K]
  ValueIndex rhs = 0;          // [batch..., K, N]
  bool transpose_lhs = false;  // lhs is [batch..., K, M]
  bool transpose_rhs = false;  // rhs is [batch..., N, K]

  friend bool operator==(const MatmulOp&, const MatmulOp&) = default;
};

// A collective that runs in all groups of devices along the mesh axes `axes` at the same time. Each
// device contributes its tile of the input. A place is the number of a device within its group
// (sharding/device_group.h).
//   - all-reduce: the tiles of a group, which have one size, are combined into one tile. Every
//     device of the group gets this tile. An unreduced axis of `axes` becomes reduced. A dimension
//     that is partitioned over axes of `axes` is divided by the sizes of these axes.
//   - all-gather: `dimension`, partitioned over (..., axes), is joined along `axes`.
//   - reduce-scatter: like all-reduce, but each device keeps only its part of the result along
//     `dimension`.
//   - all-to-all: the same tensor in another layout. `dimension`, partitioned over (..., axes), is
//     joined along `axes`, and `split_dimension` becomes partitioned over (..., axes).
//   - broadcast: every device gets the tile of the place `root`. The result has the layout that an
//     all-reduce gives: along an unreduced axis, the root's partial sums become the value.
//   - reduce, gather: like all-reduce and all-gather, but only the place `root` has the value. The
//     other places have zeros. `axes` are unreduced in the result: the sum over all places is the
//     value.
//   - scatter: each device gets its part, along `dimension`, of the root's tile. The result has the
//     layout that a reduce-scatter gives.
//   - permute: tiles move between places; a device that is no target gets zeros. The layout does
//     not change. Each of `axes` must therefore partition a dimension or be unreduced; on an axis
//     of replicas, the replicas would differ. A permutation of one pair is a send and a receive.
//   - barrier: the result is the input. It is ready once every device of the group has arrived.
// On partial sums, a reduction may be a sum or a mean; the mean over n devices is the sum times
// 1/n. The product, minimum and maximum of partial sums have no meaning and are refused. The kinds
// without reduction, except broadcast and scatter, move partial sums unchanged: an unreduced axis
// stays unreduced.
//
// The tiles of a value may have unequal sizes (cut points). Tiles of one group that are reduced,
// broadcast, scattered or permuted must have one shape. Tiles that are joined may differ in shape,
// and so may the parts that `counts` gives.
struct CollectiveOp {
  ValueIndex input = 0;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::vector<std::string> axes = {};     // major to minor
  int64_t dimension = 0;                  // all-gather, reduce-scatter, all-to-all, gather, scatter
  Reduction reduction = Reduction::kSum;  // all-reduce, reduce-scatter, reduce
  int64_t root = 0;                       // a place, for broadcast, reduce, gather, scatter; else 0
  int64_t split_dimension = 0;            // all-to-all; differs from `dimension`
  // permute: at least one pair. No place is the source of two pairs, or the target of two pairs.
  std::vector<PermutePair> permutation = {};
  // reduce-scatter, all-to-all, scatter: the number of indices in the part of each place, along the
  // dimension that is split. Each count is at least 1; their sum is the extent of the tile along
  // that dimension. If the list is empty, the parts are equal.
  std::vector<int64_t> counts = {};
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kAuto;
  CollectiveOrder order = CollectiveOrder::kReproducible;  // for reductions

  friend bool operator==(const CollectiveOp&, const CollectiveOp&) = default;
};

// Gives the input the layout of `spec` and `part_starts`. Its elements do not change.
struct ReshardOp {
  ValueIndex input = 0;
  PartitionSpec spec;  // must fit the input's shape and the mesh; no unreduced axes
  // For each dimension, the index at which each part except the first starts, in rising order; as
  // many as the spec has parts there, less one. Empty: equal parts. Dimensions at the end may be
  // missing.
  std::vector<std::vector<int64_t>> part_starts = {};

  friend bool operator==(const ReshardOp&, const ReshardOp&) = default;
};

using ProgramOp = std::variant<LinearOp, MatmulOp, CollectiveOp, ReshardOp, TensorOp>;

// Returns OK if values of these types multiply: two of F32, BF16 or F16, both of the same type, or
// one of these and a weight of I8 with scales. INVALID_ARGUMENT (UNSUPPORTED_DTYPE): they do not.
absl::Status CheckProductTypes(Dtype lhs, Dtype rhs, bool has_scales, bool rhs_is_weight);
// Returns OK if a value of this type can be the scales of a weight with `columns` output features.
// INVALID_ARGUMENT (SHAPE_MISMATCH, UNSUPPORTED_DTYPE): it cannot.
absl::Status CheckScales(const TensorType& scales, int64_t columns);

// Returns the values that an op reads, each as often as the op has it, in the order of its fields.
std::vector<ValueIndex> InputsOfOp(const ProgramOp& op);
// Returns the name of an op for messages, such as "linear" or "rms-norm".
std::string_view ProgramOpName(const ProgramOp& op);

// An operand that is state: when the step commits, the operand's array gets the elements of
// `value`. The array keeps its id, its name and its layout. If the step does not commit, the array
// stays as it was. `value` has the operand's type and shape, and is no operand.
struct StateUpdate {
  ValueIndex operand = 0;
  ValueIndex value = 0;

  friend bool operator==(const StateUpdate&, const StateUpdate&) = default;
};

// The dimension of a program whose size is not known yet, such as the length of sequences. One
// program has at most one. A run has a length L: min <= L <= max, and L is a multiple of
// `multiple`.
struct SymbolicDimension {
  std::string name;  // for messages: 1 to kMaxSymbolNameBytes bytes
  int64_t min = 1;   // from 0 to `max`; a multiple of `multiple`
  int64_t max = 1;   // at most kMaxLength; a multiple of `multiple`
  int64_t multiple = 1;

  friend bool operator==(const SymbolicDimension&, const SymbolicDimension&) = default;
};
inline constexpr size_t kMaxSymbolNameBytes = 64;

// An extent of an operand that depends on the length. `extent.index` is the dimension, and
// `extent.factor` is at least 1: the length follows from the operand's shape.
struct SymbolicExtent {
  ValueIndex operand = 0;
  SymbolicNumber extent = {};

  friend bool operator==(const SymbolicExtent&, const SymbolicExtent&) = default;
};

// The result of op i is the value operand_count + i. An op uses only values with lower numbers.
struct Program {
  uint32_t operand_count = 0;
  std::vector<ProgramOp> ops;
  std::vector<ValueIndex> outputs;
  std::vector<StateUpdate> updates = {};  // each operand at most once, each value at most once
  // Nullopt if the program has no symbolic dimension. It then has no symbolic extents and numbers.
  // CheckSymbolicProgram (program/graph/symbolic_program.h) says what holds for them. Only a
  // program of one length (ProgramAt) can be planned.
  std::optional<SymbolicDimension> symbol = std::nullopt;
  std::vector<SymbolicExtent> symbolic_extents = {};

  friend bool operator==(const Program&, const Program&) = default;
};

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_PROGRAM_H_
