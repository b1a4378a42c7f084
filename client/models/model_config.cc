// Reads and writes config.json.
#include "client/models/model_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/types/span.h"
#include "process/file.h"
#include "process/json_error.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxConfigBytes = int64_t{1} << 20;
// Above any size of a real model, and far below what overflows a product of two sizes.
constexpr int64_t kMaxSize = int64_t{1} << 30;
// Weights are listed by layer.
constexpr int64_t kMaxLayers = 1024;

// Returns the value for an error. Text of lists and objects is left out: they may be nested so
// deeply that printing them, which is recursive, would exhaust the stack.
std::string TextOf(const Json& value) {
  constexpr size_t kMostBytes = 100;
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  const std::string text = value.dump();
  return text.size() > kMostBytes ? StrCat("of ", text.size(), " bytes") : text;
}

// Reads the keys of an object. After the first error, reads nothing and keeps that error, so that
// code that reads many keys checks once.
class KeyReader {
 public:
  // `json` must outlive the reader. `source` is the file, with the path of the object in it.
  KeyReader(std::string_view file, std::string source, const Json& json)
      : file_(file), source_(std::move(source)), json_(json) {}

  const absl::Status& status() const { return status_; }

  // Returns the value of the key; null if it is missing or null.
  const Json* Find(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }

  // A whole number from 1; `otherwise` if the key is missing, which is an error if it is nullopt.
  int64_t Size(const char* key, std::optional<int64_t> otherwise = std::nullopt) {
    const Json* const value = Find(key);
    if (value == nullptr) {
      if (!otherwise.has_value()) Refuse(key, "is missing; it must be a whole number from 1");
      return otherwise.value_or(1);
    }
    const bool is_size = value->is_number_integer() && *value >= 1 && *value <= kMaxSize;
    if (!is_size) {
      Refuse(key,
             StrCat("is ", TextOf(*value), "; it must be a whole number from 1 to ", kMaxSize));
    }
    return is_size ? value->get<int64_t>() : 1;
  }

  // A number above 0.
  double Positive(const char* key, std::optional<double> otherwise = std::nullopt) {
    const Json* const value = Find(key);
    if (value == nullptr) {
      if (!otherwise.has_value()) Refuse(key, "is missing; it must be a number above 0");
      return otherwise.value_or(1);
    }
    const bool is_positive = value->is_number() && value->get<double>() > 0;
    if (!is_positive) Refuse(key, StrCat("is ", TextOf(*value), "; it must be a number above 0"));
    return is_positive ? value->get<double>() : 1;
  }

  bool Flag(const char* key, bool otherwise) {
    const Json* const value = Find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) {
      Refuse(key, StrCat("is ", TextOf(*value), "; it must be true or false"));
      return otherwise;
    }
    return value->get<bool>();
  }

  // A text; `otherwise` if the key is missing.
  std::string Text(const char* key, std::string_view otherwise) {
    const Json* const value = Find(key);
    if (value == nullptr) return std::string(otherwise);
    if (!value->is_string()) {
      Refuse(key, StrCat("is ", TextOf(*value), "; it must be a text"));
      return std::string(otherwise);
    }
    return value->get<std::string>();
  }

  // A token, a list of tokens, or none.
  std::vector<int64_t> Tokens(const char* key) {
    std::vector<int64_t> tokens;
    const Json* const value = Find(key);
    if (value == nullptr) return tokens;
    const auto add = [&](const Json& token) {
      if (token.is_number_integer() && token >= 0 && token <= kMaxSize) {
        tokens.push_back(token.get<int64_t>());
      } else {
        Refuse(key, StrCat("has ", TextOf(token), "; tokens are whole numbers from 0"));
      }
    };
    if (value->is_array()) {
      for (const Json& token : *value) add(token);
    } else {
      add(*value);
    }
    return tokens;
  }

  // Whether the key is there, perhaps with null.
  bool Has(const char* key) const { return json_.contains(key); }

  int64_t Layers() {
    const int64_t layers = Size("num_hidden_layers");
    if (layers > kMaxLayers) {
      Refuse("num_hidden_layers",
             StrCat("is ", layers, "; at most ", kMaxLayers, " are supported"));
    }
    return layers;
  }

  void Refuse(std::string_view key, std::string_view what) {
    if (!status_.ok()) return;
    status_ = InvalidArgument(Reason::kBadFile, StrCat(source_, ": ", key, " ", what),
                              {{fact::kFile, file_}});
  }

 private:
  const std::string file_;
  const std::string source_;
  const Json& json_;
  absl::Status status_;
};

absl::StatusOr<std::optional<RotaryScaling>> ScalingFrom(std::string_view file, const char* key,
                                                         const Json& json) {
  KeyReader reader(file, StrCat(file, ": ", key), json);
  // Older configurations have `type`.
  const std::string type = reader.Text("rope_type", reader.Text("type", "default"));
  if (reader.status().ok() && type == "default") return std::optional<RotaryScaling>();
  if (type != "llama3") {
    reader.Refuse("rope_type",
                  StrCat("is \"", type, "\"; only \"default\" and \"llama3\" are supported"));
  }
  RotaryScaling scaling;
  scaling.factor = reader.Positive("factor");
  scaling.low_factor = reader.Positive("low_freq_factor");
  scaling.high_factor = reader.Positive("high_freq_factor");
  scaling.original_positions = reader.Size("original_max_position_embeddings");
  if (scaling.factor < 1) reader.Refuse("factor", "is below 1; it must be at least 1");
  if (scaling.high_factor <= scaling.low_factor) {
    reader.Refuse("high_freq_factor", "is not above low_freq_factor; it must be");
  }
  SHARDMESH_RETURN_IF_ERROR(reader.status());
  return std::optional<RotaryScaling>(scaling);
}

void RefusePartialRotary(KeyReader& reader) {
  const char* const key = "partial_rotary_factor";
  if (const double part = reader.Positive(key, 1); part != 1) {
    reader.Refuse(key, StrCat("is ", part, "; only 1 is supported: all features are rotated"));
  }
}

// Reads the members about rotary positions: `rope_theta` and `rope_scaling`, or, since transformers
// 5, `rope_parameters` with both.
absl::Status ReadRotary(std::string_view file, KeyReader& reader, LlamaConfig& config) {
  const char* key = "rope_parameters";
  const Json* scaling = reader.Find(key);
  config.rope_theta = reader.Positive("rope_theta", 10000);
  RefusePartialRotary(reader);
  if (scaling == nullptr) {
    key = "rope_scaling";
    scaling = reader.Find(key);
  }
  if (scaling == nullptr) return absl::OkStatus();
  if (!scaling->is_object()) {
    reader.Refuse(key, StrCat("is ", TextOf(*scaling), "; it must be an object"));
    return reader.status();
  }
  KeyReader inner(file, StrCat(file, ": ", key), *scaling);
  config.rope_theta = inner.Positive("rope_theta", config.rope_theta);
  RefusePartialRotary(inner);
  SHARDMESH_RETURN_IF_ERROR(inner.status());
  SHARDMESH_ASSIGN_OR_RETURN(config.rope_scaling, ScalingFrom(file, key, *scaling));
  return absl::OkStatus();
}

// A value of model_type that means a Llama-shaped decoder, and its defaults in transformers.
struct DecoderType {
  std::string_view name;
  int64_t key_heads;  // 0: as many as heads
  int64_t max_positions;
  double norm_epsilon;
};
constexpr DecoderType kDecoderTypes[] = {
    {"llama", 0, 2048, 1e-6},
    {"mistral", 8, 131072, 1e-6},
    {"phi3", 0, 4096, 1e-5},
    {"qwen2", 32, 32768, 1e-6},
};
constexpr char kSupportedTypes[] =
    "supported are \"bert\", \"llama\", \"mistral\", \"phi3\" and \"qwen2\"";

// Limits the positions to those for which a sliding window changes nothing.
void ReadWindow(std::string_view type, KeyReader& reader, LlamaConfig& config) {
  constexpr int64_t kDefaultWindow = 4096;  // of transformers, for mistral and qwen2
  const char* const key = "sliding_window";
  if (type == "llama") return;
  if (type == "qwen2" && !reader.Flag("use_sliding_window", false)) return;
  const bool has_default = type != "phi3" && !reader.Has(key);
  if (!has_default && reader.Find(key) == nullptr) return;
  config.max_positions = std::min(config.max_positions, reader.Size(key, kDefaultWindow));
}

void ReadBiases(std::string_view type, KeyReader& reader, LlamaConfig& config) {
  if (type == "qwen2") config.has_input_biases = true;
  if (type != "llama") return;
  config.has_input_biases = config.has_output_bias = reader.Flag("attention_bias", false);
  config.has_mlp_biases = reader.Flag("mlp_bias", false);
}

absl::StatusOr<ModelConfig> LlamaFrom(std::string_view file, const DecoderType& type,
                                      KeyReader& reader) {
  LlamaConfig config;
  config.is_merged = type.name == "phi3";
  config.hidden_size = reader.Size("hidden_size");
  config.layers = reader.Layers();
  config.heads = reader.Size("num_attention_heads");
  // A null means as many as heads; only a missing key has the default.
  const char* const key_heads = "num_key_value_heads";
  const bool has_default = type.key_heads != 0 && !reader.Has(key_heads);
  config.key_heads = reader.Size(key_heads, has_default ? type.key_heads : config.heads);
  config.intermediate_size = reader.Size("intermediate_size");
  config.vocabulary_size = reader.Size("vocab_size");
  config.max_positions = reader.Size("max_position_embeddings", type.max_positions);
  config.norm_epsilon = reader.Positive("rms_norm_eps", type.norm_epsilon);
  config.ties_embeddings = reader.Flag("tie_word_embeddings", false);
  config.stop_tokens = reader.Tokens("eos_token_id");
  ReadBiases(type.name, reader, config);
  ReadWindow(type.name, reader, config);
  if (const std::string name = reader.Text("hidden_act", "silu"); name != "silu") {
    reader.Refuse("hidden_act", StrCat("is \"", name, "\"; only \"silu\" is supported"));
  }
  if (reader.Find("head_dim") == nullptr && config.hidden_size % config.heads != 0) {
    reader.Refuse("hidden_size", StrCat("is ", config.hidden_size,
                                        ", not a multiple of num_attention_heads, which is ",
                                        config.heads, "; head_dim is missing"));
  }
  config.head_size =
      reader.Size("head_dim", std::max<int64_t>(1, config.hidden_size / config.heads));
  if (config.head_size % 2 != 0) {
    reader.Refuse("head_dim", StrCat("is ", config.head_size,
                                     "; rotary positions need an even number of features"));
  }
  if (config.heads % config.key_heads != 0) {
    reader.Refuse("num_key_value_heads",
                  StrCat("is ", config.key_heads, "; it must divide num_attention_heads, which is ",
                         config.heads));
  }
  SHARDMESH_RETURN_IF_ERROR(ReadRotary(file, reader, config));
  SHARDMESH_RETURN_IF_ERROR(reader.status());
  return config;
}

absl::StatusOr<ModelConfig> BertFrom(KeyReader& reader) {
  BertConfig config;
  config.hidden_size = reader.Size("hidden_size");
  config.layers = reader.Layers();
  config.heads = reader.Size("num_attention_heads");
  config.intermediate_size = reader.Size("intermediate_size");
  config.vocabulary_size = reader.Size("vocab_size");
  config.max_positions = reader.Size("max_position_embeddings", 512);
  config.token_types = reader.Size("type_vocab_size", 2);
  config.norm_epsilon = reader.Positive("layer_norm_eps", 1e-12);
  const std::string activation = reader.Text("hidden_act", "gelu");
  if (activation == "gelu") {
    config.activation = Activation::kGelu;
  } else if (activation == "gelu_new" || activation == "gelu_pytorch_tanh") {
    config.activation = Activation::kGeluTanh;
  } else if (activation == "relu") {
    config.activation = Activation::kRelu;
  } else {
    reader.Refuse("hidden_act",
                  StrCat("is \"", activation,
                         "\"; supported are gelu, gelu_new, gelu_pytorch_tanh and relu"));
  }
  if (const std::string kind = reader.Text("position_embedding_type", "absolute");
      kind != "absolute") {
    reader.Refuse("position_embedding_type",
                  StrCat("is \"", kind, "\"; only \"absolute\" is supported"));
  }
  if (config.hidden_size % config.heads != 0) {
    reader.Refuse("hidden_size",
                  StrCat("is ", config.hidden_size,
                         ", not a multiple of num_attention_heads, which is ", config.heads));
  }
  SHARDMESH_RETURN_IF_ERROR(reader.status());
  return config;
}

Json JsonOf(const LlamaConfig& config) {
  const bool is_qwen2 = config.has_input_biases && !config.has_output_bias;
  const char* const type = config.is_merged ? "phi3" : is_qwen2 ? "qwen2" : "llama";
  const char* const architecture = config.is_merged ? "Phi3ForCausalLM"
                                   : is_qwen2       ? "Qwen2ForCausalLM"
                                                    : "LlamaForCausalLM";
  Json json = {{"model_type", type},
               {"architectures", {architecture}},
               {"hidden_size", config.hidden_size},
               {"num_hidden_layers", config.layers},
               {"num_attention_heads", config.heads},
               {"num_key_value_heads", config.key_heads},
               {"head_dim", config.head_size},
               {"intermediate_size", config.intermediate_size},
               {"vocab_size", config.vocabulary_size},
               {"max_position_embeddings", config.max_positions},
               {"rms_norm_eps", config.norm_epsilon},
               {"rope_theta", config.rope_theta},
               {"hidden_act", "silu"},
               {"attention_bias", config.has_input_biases},
               {"mlp_bias", config.has_mlp_biases},
               {"tie_word_embeddings", config.ties_embeddings},
               {"bos_token_id", nullptr},
               {"eos_token_id", nullptr}};
  if (!config.stop_tokens.empty()) json["eos_token_id"] = config.stop_tokens;
  if (config.rope_scaling.has_value()) {
    json["rope_scaling"] = {
        {"rope_type", "llama3"},
        {"factor", config.rope_scaling->factor},
        {"low_freq_factor", config.rope_scaling->low_factor},
        {"high_freq_factor", config.rope_scaling->high_factor},
        {"original_max_position_embeddings", config.rope_scaling->original_positions}};
  }
  return json;
}

Json JsonOf(const BertConfig& config) {
  const char* const activation = config.activation == Activation::kRelu       ? "relu"
                                 : config.activation == Activation::kGeluTanh ? "gelu_new"
                                                                              : "gelu";
  return {{"model_type", "bert"},
          {"architectures", {"BertModel"}},
          {"hidden_size", config.hidden_size},
          {"num_hidden_layers", config.layers},
          {"num_attention_heads", config.heads},
          {"intermediate_size", config.intermediate_size},
          {"vocab_size", config.vocabulary_size},
          {"max_position_embeddings", config.max_positions},
          {"type_vocab_size", config.token_types},
          {"layer_norm_eps", config.norm_epsilon},
          {"hidden_act", activation},
          {"position_embedding_type", "absolute"}};
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view source, std::string_view text) {
  // Values that are nested deeper are left out: no key needs them, and the library would free them
  // by recursion.
  constexpr int kMostDepth = 16;
  Json json;
  try {
    json = Json::parse(text, [](int depth, Json::parse_event_t /*event*/, Json& /*value*/) {
      return depth <= kMostDepth;
    });
  } catch (const nlohmann::json::exception& error) {
    return InvalidArgument(Reason::kBadFile,
                           StrCat(source, " is not JSON: ", JsonErrorText(error.what())),
                           {{fact::kFile, source}});
  }
  if (!json.is_object()) {
    return InvalidArgument(Reason::kBadFile, StrCat(source, " is not an object of JSON"),
                           {{fact::kFile, source}});
  }
  KeyReader reader(source, std::string(source), json);
  const std::string type = reader.Text("model_type", "");
  if (type == "bert") return BertFrom(reader);
  for (const DecoderType& decoder : kDecoderTypes) {
    if (decoder.name == type) return LlamaFrom(source, decoder, reader);
  }
  reader.Refuse("model_type", StrCat(type.empty() ? "is missing" : StrCat("is \"", type, "\""),
                                     "; ", kSupportedTypes));
  return reader.status();
}

absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& path) {
  SHARDMESH_ASSIGN_OR_RETURN(const InputFile file, OpenInputFile(path));
  if (file.size_bytes > kMaxConfigBytes) {
    return InvalidArgument(Reason::kBadFile,
                           StrCat(path, " has ", file.size_bytes, " bytes; the limit is ",
                                  kMaxConfigBytes, ": it is no config.json"),
                           {{fact::kFile, path}});
  }
  std::string text(static_cast<size_t>(file.size_bytes), '\0');
  SHARDMESH_RETURN_IF_ERROR(ReadExactly(file, path, 0, absl::MakeSpan(text.data(), text.size())));
  return ParseModelConfig(path, text);
}

std::string FormatModelConfig(const ModelConfig& config) {
  const Json json = std::visit([](const auto& kind) { return JsonOf(kind); }, config);
  return json.dump(2) + "\n";
}

}  // namespace shardmesh::client
