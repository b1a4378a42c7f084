// The weights of transformers: names, shapes, and layouts that put the heads of a model onto the
// devices of one mesh axis.
#ifndef SHARDMESH_CLIENT_MODELS_MODEL_WEIGHTS_H_
#define SHARDMESH_CLIENT_MODELS_MODEL_WEIGHTS_H_

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/models/model_config.h"
#include "sharding/mesh.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "tensor/checkpoint/tensor_source.h"
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
  // The matrix of a linear layer, [out, in]. It may be I8, with scales: see WeightTypes.
  bool is_linear = false;

  friend bool operator==(const ModelWeight&, const ModelWeight&) = default;
};

// A tensor that a checkpoint or a cluster has.
struct StoredTensor {
  std::string name;
  Dtype dtype = Dtype::kF32;
  Shape shape;
};

// The element types of a model's weights.
struct WeightTypes {
  // The type of all weights that are not I8.
  Dtype dtype = Dtype::kF32;
  // The names of the weights that are I8. The scales of a weight NAME are the tensor NAME.scale,
  // F32 [out]: the factor of each output feature.
  std::set<std::string, std::less<>> quantised = {};

  friend bool operator==(const WeightTypes&, const WeightTypes&) = default;
};

// A tensor of a checkpoint that has several weights of a model, each in some of its rows.
struct MergedWeight {
  ModelWeight whole;
  std::vector<RowPart> parts;  // the weights, in the order of their rows
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

// Returns the tensors in which the checkpoint of a model has several weights of WeightsOf; none
// unless LlamaConfig::is_merged.
std::vector<MergedWeight> MergedWeightsOf(const ModelConfig& config);

// Returns the name of the scales of a weight that is I8.
std::string ScaleNameOf(std::string_view weight);

// Adds the scales of the weights that are I8 to a list of weights. Those of a weight whose rows are
// partitioned are partitioned alike.
void AddScales(const WeightTypes& types, std::vector<ModelWeight>& weights);

// Checks that the tensors have these weights. Other tensors are ignored. `source` names the
// checkpoint in errors. Returns the element types of the weights: that of the first matrix which is
// not I8, and the weights that are I8.
//
// Errors are INVALID_ARGUMENT. BAD_FILE: a tensor is missing, also the scales of a weight of I8;
// gives the nearest name. SHAPE_MISMATCH: a tensor has another shape than the configuration says;
// the error has both. UNSUPPORTED_DTYPE: a tensor is neither F32, BF16 nor F16, nor a linear weight
// of I8; weights that are not I8 have different types; or scales are not F32.
absl::StatusOr<WeightTypes> CheckModelWeights(std::string_view source,
                                              absl::Span<const ModelWeight> weights,
                                              absl::Span<const StoredTensor> tensors);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_MODELS_MODEL_WEIGHTS_H_
