// Models on a cluster: their weights as arrays, with their configuration beside them.
#ifndef SHARDMESH_CLIENT_MODELS_LOADED_MODEL_H_
#define SHARDMESH_CLIENT_MODELS_LOADED_MODEL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/held_arrays.h"
#include "client/mesh_client.h"
#include "client/models/model_config.h"
#include "client/models/model_weights.h"
#include "client/types/call_options.h"
#include "client/types/step.h"

namespace shardmesh::client {

// A model whose weights are arrays of a cluster.
struct LoadedModel {
  std::string name;
  ModelConfig config;
  std::string mesh_id;
  ModelAxis axis;
  WeightTypes types;
  // The arrays of the weights, by the names of WeightsOf, and of the scales of those that are I8.
  std::map<std::string, Operand, std::less<>> weights;
  int64_t size_bytes = 0;    // of all weights
  int64_t reused_bytes = 0;  // as PutResult::reused_bytes, of all tiles
};

struct LoadModelOptions {
  std::string mesh = {};  // the mesh's name; empty means "default"
  // The mesh axis over which heads are partitioned. A mesh without this axis has the whole model on
  // each device.
  std::string axis = "tp";
  // Whether the weights of linear layers become I8, with a scale for each output feature. Those
  // that are I8 in the files stay as they are. Tables of embeddings, norms and biases keep their
  // type; so do embeddings that are also the weight of the logits.
  bool quantises = false;
  ProgressCallback progress = nullptr;  // as PutOptions::progress
  // As PutOptions::on_begun.
  std::function<void(const std::string& transfer_id)> on_begun = nullptr;
};

// Puts the weights of the model in `folder` onto a mesh: config.json, and safetensors files as
// Checkpoint::Open finds them. The arrays are named `name`/TENSOR, and `name`/config.json has the
// configuration. Of merged weights, each part becomes an array, and the stored configuration is
// that of a model without merged weights. Weights that the cluster has already, from the same files
// and with the same layout, are not sent again. `options` limit all calls together. Errors of
// ReadModelConfig, TensorSource::Open, WeightsOf, CheckModelWeights, MappedCheckpoint::Elements and
// ArrayClient::PutTensors.
absl::StatusOr<LoadedModel> LoadModel(MeshClient* client, const std::string& folder,
                                      const std::string& name,
                                      const LoadModelOptions& load_options = {},
                                      const CallOptions& options = {});

// Finds a model that LoadModel put onto a cluster. `axis` must be that of the load. `options` limit
// all calls together. NOT_FOUND: the
// cluster has no model of this name. INVALID_ARGUMENT (BAD_FILE, SHAPE_MISMATCH): the arrays under
// the name are not those of the configuration.
absl::StatusOr<LoadedModel> FindModel(MeshClient* client, const std::string& name,
                                      std::string_view axis = "tp",
                                      const CallOptions& options = {});

// Pins the arrays of the model until the result is destroyed, so that a run finds them also if
// their names are removed or mean other arrays meanwhile. NOT_FOUND: an array is gone; FindModel
// finds those that have the names now.
absl::StatusOr<HeldArrays> HoldModel(MeshClient* client, const LoadedModel& model,
                                     const CallOptions& options = {});

// Returns the options of a call that runs a step: without a time limit, the step may take as long
// as the coordinator allows, since steps of large models take longer than other calls.
CallOptions StepOptions(const CallOptions& options);

// Returns the configuration of a model of this kind. INVALID_ARGUMENT (BAD_FIELD): the model is of
// another kind; names the function that it has.
absl::StatusOr<LlamaConfig> LlamaConfigOf(const LoadedModel& model);
absl::StatusOr<BertConfig> BertConfigOf(const LoadedModel& model);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_MODELS_LOADED_MODEL_H_
