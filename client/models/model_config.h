// Configurations of transformers: config.json as HuggingFace's checkpoints have it.
#ifndef SHARDMESH_CLIENT_MODELS_MODEL_CONFIG_H_
#define SHARDMESH_CLIENT_MODELS_MODEL_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "tensor/elementwise.h"

namespace shardmesh::client {

// The scaling of rotary frequencies of Llama 3. Waves longer than original_positions / low_factor
// are stretched by `factor`, waves shorter than original_positions / high_factor stay, and those
// between are stretched in part.
struct RotaryScaling {
  double factor = 1;       // at least 1
  double low_factor = 1;   // above 0
  double high_factor = 4;  // above low_factor
  int64_t original_positions = 8192;

  friend bool operator==(const RotaryScaling&, const RotaryScaling&) = default;
};

// A Llama-shaped decoder. The values of model_type that mean one, and how they differ:
//   - "llama": a Llama. attention_bias is about all four weights of attention.
//   - "mistral": no biases. sliding_window limits max_positions, because positions that see no
//     token outside of a window are as those without window.
//   - "phi3": no biases; a checkpoint has the query, key and value weights of a layer as one
//     tensor, and so the gate and up weights. sliding_window as above.
//   - "qwen2": query, key and value have biases. sliding_window as above, with use_sliding_window.
// All numbers are at least 1.
struct LlamaConfig {
  int64_t hidden_size = 0;
  int64_t layers = 0;
  int64_t heads = 0;      // a multiple of key_heads
  int64_t key_heads = 0;  // heads of keys and values
  int64_t head_size = 0;  // features of a head; even
  int64_t intermediate_size = 0;
  int64_t vocabulary_size = 0;
  int64_t max_positions = 0;
  double norm_epsilon = 1e-6;
  double rope_theta = 10000;
  std::optional<RotaryScaling> rope_scaling = std::nullopt;
  bool ties_embeddings = false;   // the embeddings are also the weight of the logits
  bool has_input_biases = false;  // of query, key and value
  bool has_output_bias = false;   // of the weight after attention
  bool has_mlp_biases = false;    // of gate, up and down
  // Whether the checkpoint has merged weights: see MergedWeightsOf. Graphs take their parts.
  bool is_merged = false;
  std::vector<int64_t> stop_tokens = {};

  friend bool operator==(const LlamaConfig&, const LlamaConfig&) = default;
};

// A BERT-like encoder of sentences ("model_type": "bert"). All numbers are at least 1.
struct BertConfig {
  int64_t hidden_size = 0;  // a multiple of heads
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t intermediate_size = 0;
  int64_t vocabulary_size = 0;
  int64_t max_positions = 0;
  int64_t token_types = 0;
  double norm_epsilon = 1e-12;
  Activation activation = Activation::kGelu;

  friend bool operator==(const BertConfig&, const BertConfig&) = default;
};

using ModelConfig = std::variant<LlamaConfig, BertConfig>;

// Parses the text of a config.json. `source` names it in errors. Keys that are not needed are
// ignored; keys that may be missing have the defaults of transformers, but without `eos_token_id`
// there are no stop tokens.
//
// Errors are INVALID_ARGUMENT (BAD_FILE), with the file, the key and its value: the text is not a
// JSON object, a key is missing, has another type or a value that is out of range, or asks for
// something that is not supported, such as another model_type or kind of rotary positions.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view source, std::string_view json);
// Reads and parses the file at `path`, of at most 1 MiB. Also errors of OpenInputFile.
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& path);

// Returns the text of a config.json with this configuration, for transformers and for
// ParseModelConfig. Its model_type is the one that has these biases, and these tensors.
std::string FormatModelConfig(const ModelConfig& config);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_MODELS_MODEL_CONFIG_H_
