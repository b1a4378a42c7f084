// A computation over arrays, independent of their layouts.
#ifndef SHARDMESH_PROGRAM_PROGRAM_H_
#define SHARDMESH_PROGRAM_PROGRAM_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "sharding/spec.h"
#include "tensor/elementwise.h"

namespace shardmesh {

// Values of a program or plan are numbered: first the operands, then the result of each op.
using ValueIndex = uint32_t;

// Upper bound on the operands, on the ops and on the outputs of a program.
inline constexpr uint32_t kMaxProgramSize = 1024;

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

// Every kind, each once.
absl::Span<const CollectiveKind> AllCollectiveKinds();
// Returns a name such as `all-reduce` or `reduce-scatter`.
std::string_view CollectiveKindName(CollectiveKind kind);

// How the devices of a group exchange the data of a collective. program/collective_choice.h has the
// algorithms of each kind and their costs.
enum class CollectiveAlgorithm : uint8_t {
  kAuto,      // the planner chooses the algorithm with the least predicted time
  kPairwise,  // each device sends every other device the part that the other needs
  kDirect,    // each device sends all its data to every receiver, which combines it alone
  kDoubling,  // devices 1, 2, 4, ... places apart exchange all that they have so far
  kHalving,   // such pairs halve the part that each still combines; then results go back
  kRing,      // each device receives from the place before it and sends to the place after it
  kBinomial,  // data moves along a binomial tree whose root is the place `root`
  kChain,     // data moves from place to place, in chunks
};

// Every algorithm, each once, kAuto first.
absl::Span<const CollectiveAlgorithm> AllCollectiveAlgorithms();
// Returns a name such as `auto` or `pairwise`.
std::string_view CollectiveAlgorithmName(CollectiveAlgorithm algorithm);

// The permitted orders of combination in a reduction.
enum class CollectiveOrder : uint8_t {
  kReproducible,  // only the canonical one: the same bits for every algorithm, size and run
  kFastest,       // any; still the same on every device, and in every run of the same plan
};

// A move in a permutation, from one place to another.
struct PermutePair {
  int64_t source = 0;
  int64_t target = 0;

  friend bool operator==(const PermutePair&, const PermutePair&) = default;
};

// Computes activation(scale * input * weight + bias) over the last dimension of the input.
struct LinearOp {
  ValueIndex input = 0;                           // [..., in]
  ValueIndex weight = 0;                          // a matrix
  std::optional<ValueIndex> bias = std::nullopt;  // [out]
  WeightLayout weight_layout = WeightLayout::kOutIn;
  Activation activation = Activation::kNone;
  float scale = 1;

  friend bool operator==(const LinearOp&, const LinearOp&) = default;
};

// Computes lhs * rhs for two matrices, each transposed first if requested.
struct MatmulOp {
  ValueIndex lhs = 0;  // [M, K]
  ValueIndex rhs = 0;  // [K, N]
  bool transpose_lhs = false;
  bool transpose_rhs = false;

  friend bool operator==(const MatmulOp&, const MatmulOp&) = default;
};

// A collective in all groups of devices along some mesh axes at the same time. Each device
// contributes its tile. A place is the number of a device within its group
// (sharding/device_group.h).
//   - all-reduce: tiles of one size become one tile, the same on all devices of the group. This
//     reduces an unreduced axis; a dimension partitioned over a reduced axis shrinks by it.
//   - all-gather: a dimension partitioned over (..., axes) is joined along `axes`.
//   - reduce-scatter: all-reduce, then each device keeps its part of `dimension`.
//   - all-to-all: the same tensor in another layout. `dimension`, partitioned over (..., axes), is
//     joined along `axes`, and `split_dimension` becomes partitioned over (..., axes).
//   - broadcast: every device gets the tile of the place `root`. The layout is that of all-reduce:
//     along an unreduced axis, the root's partial sums become the value.
//   - reduce, gather: like all-reduce and all-gather, but only the place `root` has the value. The
//     others have zeros, and `axes` are unreduced in the result: the sum of all is the value.
//   - scatter: each device gets its part, along `dimension`, of the root's tile. The layout is that
//     of reduce-scatter.
//   - permute: tiles move between places; a device that is no target gets zeros. The layout does
//     not change. Each of `axes` must therefore partition a dimension or be unreduced; otherwise
//     replicas would differ. One pair alone is a send and a receive.
//   - barrier: the value does not change; it is ready once every device of the group has arrived.
// A reduction may sum or average partial sums; the mean over n devices is the value times 1/n. The
// product, minimum and maximum of partial sums have no meaning and are refused. The kinds without
// reduction, except broadcast and scatter, move partial sums unchanged: an unreduced axis stays
// unreduced.
//
// Tiles may be unequal (cut points). Tiles of one group that are reduced, broadcast, scattered or
// permuted must have one shape. Tiles that are joined, and the parts given by `counts`, may differ
// in shape.
struct CollectiveOp {
  ValueIndex input = 0;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::vector<std::string> axes = {};     // major to minor
  int64_t dimension = 0;                  // all-gather, reduce-scatter, all-to-all, gather, scatter
  Reduction reduction = Reduction::kSum;  // all-reduce, reduce-scatter, reduce
  int64_t root = 0;                       // broadcast, reduce, gather, scatter; otherwise 0
  int64_t split_dimension = 0;            // all-to-all; not `dimension`
  std::vector<PermutePair> permutation = {};  // permute: at least one, no source or target twice
  // reduce-scatter, all-to-all, scatter: the number of indices in the part of each place, along the
  // split dimension. Each is at least 1; the sum is the tile's extent. An empty list stands for
  // equal parts.
  std::vector<int64_t> counts = {};
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kAuto;
  CollectiveOrder order = CollectiveOrder::kReproducible;  // of reductions

  friend bool operator==(const CollectiveOp&, const CollectiveOp&) = default;
};

// The same tensor in another layout.
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

#endif  // SHARDMESH_PROGRAM_PROGRAM_H_
