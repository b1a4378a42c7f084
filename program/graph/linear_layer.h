// Linear layers of EasyDeL's kind: their element types, the layouts of their arrays, and the
// program that computes them.
#ifndef SHARDMESH_PROGRAM_GRAPH_LINEAR_LAYER_H_
#define SHARDMESH_PROGRAM_GRAPH_LINEAR_LAYER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "program/program.h"
#include "program/step_plan.h"
#include "sharding/layout/parallel_linear.h"
#include "sharding/mesh.h"
#include "sharding/tile.h"
#include "tensor/dtype.h"
#include "tensor/elementwise.h"

namespace shardmesh {

// A layer as its constructor describes it.
struct LinearLayerOptions {
  ParallelLinearOptions layer;
  Dtype param_dtype = Dtype::kF32;  // of the kernel and the bias
  // The element type of the computation; nullopt: the type to which all arrays promote, without
  // weights that have scales.
  std::optional<Dtype> dtype = std::nullopt;
  // Whether each weight is I8 and has scales, F32 [out]: the factor of each output feature.
  // param_dtype is then the type of biases only.
  bool has_scales = false;
  // How the program's operands store the weights.
  WeightLayout weight_layout = WeightLayout::kInOut;
  Activation activation = Activation::kNone;
  // Nullopt: every weight lies whole on each device, and the planner chooses the result's layout.
  std::optional<TensorParallelConfig> parallel = std::nullopt;
};

// A layer for one input, lowered to ops that PlanProgram accepts.
struct LinearLayerProgram {
  Mesh mesh;
  // The element type of the layer's results.
  Dtype dtype = Dtype::kF32;
  // The input; then, for each part of out_features, its weight, its bias if the layer has one, and
  // its scales if it has these. All operands but weights of I8 and their scales have the type in
  // which the program computes: `dtype`, or F32 if `dtype` is F16.
  // The caller converts the arrays to this type before the run, and the results to `dtype` after
  // it.
  std::vector<ValueDescriptor> operands;
  Program program;  // one output for each part of out_features
};

// Lowers a layer to a program.
//
// The result is activation(scale * input * weight + bias), with the product also multiplied by the
// scales of the weight, if it has any. The bias is added exactly once in every layout, after
// partial sums are reduced. `input` is [..., in], of any rank from 1. Its spec may be
// any spec of the mesh. `weight`, if given, takes the place of the layer's kernel; its shape is
// that of options.weight_layout, and it keeps its spec. A layer in several parts takes no such
// weight, and neither does a layer with scales.
//
// With a config, the layer's direction says along which dimension the config's axis partitions the
// weights. kRow: the input features. kColumn: the output features, also of bias and scales. A layer
// without direction gets kColumn from the method ALL_GATHER, kRow from REDUCE_SCATTER, and whole
// weights without a method. Methods are read without regard to upper and lower case.
//
// The method and the flags of the config say how the result lies along the axis:
//   - reduce_scatter_output, or REDUCE_SCATTER without reduce_output: the axis partitions the last
//     dimension of the result;
//   - otherwise, each device along the axis has the whole result.
// The other dimensions of the result lie as those of the input, without the config's axis.
//
// The config's mesh is used; without one, `context`.
//
// Errors are INVALID_ARGUMENT unless stated:
//   - errors of MakeParallelLinear, ParameterDtype, PromoteDtype, CheckTensorParallelConfig, and
//     Tiling::Create for each operand and result;
//   - SHAPE_MISMATCH: the input is a scalar or has another number of features (Python:
//     ValueError); `weight` is no matrix or has another number of input features (Python:
//     ValueError); the bias does not fit `weight` (Python: TypeError);
//   - UNSUPPORTED_DTYPE: the layer would compute in another type than F32, BF16 or F16;
//   - BAD_FIELD: an unknown method, both flags of the config, or a weight for a layer in parts or
//     with scales;
//   - LIMIT_EXCEEDED: more than 4,095 parts, or 2,730 with biases and scales, so that the program
//     keeps within kMaxProgramSize.
absl::StatusOr<LinearLayerProgram> LowerLinearLayer(const LinearLayerOptions& options,
                                                    const ValueDescriptor& input,
                                                    const std::optional<ValueDescriptor>& weight,
                                                    const Mesh& context);

// Returns the columns of a merged kernel that belong to the part with number `part`, in order: one
// range for each of `shards` shards. A merged kernel has the columns of all parts of the first
// shard, then those of the second, and so on. An equal cut of its columns into `shards` pieces
// therefore gives each device its piece of every part. With one shard, the parts are adjacent, as
// in EasyDeL. A merged bias has the same order.
//
// Requires part < parts.size() and parts that are not negative. INVALID_ARGUMENT (NOT_DIVISIBLE)
// if some part does not divide by `shards`; INVALID_ARGUMENT (BAD_FIELD) if shards < 1.
//
// Example: MergedColumns({4, 2}, 2, 0) is [0,2) and [3,5); for part 1, [2,3) and [5,6).
absl::StatusOr<std::vector<IndexRange>> MergedColumns(absl::Span<const int64_t> parts,
                                                      int64_t shards, size_t part);

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_GRAPH_LINEAR_LAYER_H_
