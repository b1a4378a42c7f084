// The weights of transformers: names, shapes, and layouts that put the heads of a model onto the
// devices of one mesh axis.
#ifndef SHARDMESH_CLIENT_MODELS_MODEL_WEIGHTS_H_
#define SHARDMESH_CLIENT_MODELS_MODEL_WEIGHTS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/models/model_config.h"
#include "sharding/mesh.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "tensor/dtype.h"

namespace shardmesh::client {

// A mesh axis, and the number of devices along it. The model is partitioned over this axis and
// replicated along all others.
struct ModelAxis {
  std::string name = "tp";
  int64_t size = 1;

  // Returns the axis of this name; if the mesh lacks it, an axis of size 1: nothing is partitioned.
  static ModelAxis Of(const Mesh& mesh, std::string_view name);
};

// A tensor of a checkpoint that a model needs.
struct ModelWeight {
  std::string name;
  Shape shape;
  PartitionSpec spec;

  friend bool operator==(const ModelWeight&, const ModelWeight&) = default;
};

// A tensor that a checkpoint or a cluster has.
struct StoredTensor {
  std::string name;
  Dtype dtype = Dtype::kF32;
  Shape shape;
};

// Returns the weights of a model, under their names in HuggingFace's checkpoints.
//
// The rows of query, key, value, gate, up and intermediate weights are partitioned, and so are the
// columns of the weights that follow them: each device has whole heads, and a layer needs two sums
// over the devices. Tables of tokens are partitioned by rows if the axis divides the vocabulary;
// all other weights are replicated. Source: https://arxiv.org/abs/1909.08053, section 3.
//
// INVALID_ARGUMENT (NOT_DIVISIBLE): the axis does not divide the heads, the key heads or the
// intermediate size; the error names what fits.
absl::StatusOr<std::vector<ModelWeight>> WeightsOf(const ModelConfig& config,
                                                   const ModelAxis& axis);

// Checks that the tensors have these weights. Other tensors are ignored. `source` names the
// checkpoint in errors. Returns the element type of the weights: that of the first matrix.
//
// Errors are INVALID_ARGUMENT. BAD_FILE: a tensor is missing; gives the nearest name.
// SHAPE_MISMATCH: a tensor has another shape than the configuration says; the error has both.
// UNSUPPORTED_DTYPE: a tensor is neither F32, BF16 nor F16, or matrices have different types.
absl::StatusOr<Dtype> CheckModelWeights(std::string_view source,
                                        absl::Span<const ModelWeight> weights,
                                        absl::Span<const StoredTensor> tensors);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_MODELS_MODEL_WEIGHTS_H_
