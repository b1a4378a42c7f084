// The program of a linear layer for arrays that exist.
#ifndef SHARDMESH_PROGRAM_GRAPH_LAYER_PROGRAM_H_
#define SHARDMESH_PROGRAM_GRAPH_LAYER_PROGRAM_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "program/graph/linear_layer.h"
#include "program/program.h"
#include "program/step_plan.h"
#include "sharding/mesh.h"
#include "tensor/dtype.h"

namespace shardmesh {

// A layer whose weights are arrays. Members of `options` that follow from the arrays are ignored:
// layer.in_features, layer.out_features and param_dtype.
struct LayerCall {
  LinearLayerOptions options;
  // The number of output features of each result. Empty: each weight gives one result. Several
  // numbers with one weight: the weight is merged, and the results are its parts.
  std::vector<int64_t> out_features = {};
  // The shards of a merged weight: see MergedColumns. Its bias and its scales are merged alike.
  int64_t shards = 1;
  // The type to which weights and biases are converted first; nullopt: they stay as they are.
  // Weights with scales always stay as they are.
  std::optional<Dtype> param_dtype = std::nullopt;
};

// Returns the program of the layer on `mesh`, with one output for each result. `operands` are the
// input; then, for each part, its weight, its bias if options.layer.use_bias, and its scales if
// options.has_scales.
//
// The program converts its operands to the type of the computation, and its results to
// LinearLayerProgram::dtype. With a config, it moves weights, biases and scales to the layout that
// the config gives them, if they lie otherwise. The results lie as LowerLinearLayer says.
//
// Errors are INVALID_ARGUMENT:
//   - errors of LowerLinearLayer and MergedColumns;
//   - SHAPE_MISMATCH: a weight is no matrix, or has another number of input features than the first
//     one; a bias or scales do not fit their weight; out_features does not sum to the output
//     features of a merged weight, or has another number than a weight has;
//   - UNSUPPORTED_DTYPE: a weight with scales is not I8, or its scales are not F32;
//   - BAD_FIELD: no weight is given; or several weights, but another number of out_features.
absl::StatusOr<Program> ProgramOfLayer(const LayerCall& call,
                                       absl::Span<const ValueDescriptor> operands,
                                       const Mesh& mesh);

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_GRAPH_LAYER_PROGRAM_H_
