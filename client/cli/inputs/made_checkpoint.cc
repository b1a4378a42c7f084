// Checkpoints of random values.
#include "client/cli/inputs/made_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "client/models/model_weights.h"
#include "process/file.h"
#include "sharding/shape.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/float_convert.h"
#include "tensor/random.h"

namespace shardmesh::client {
namespace {

using Tensor = SafetensorsWriter::Tensor;

constexpr double kVectorDeviation = 0.1;
// The size of the pieces in which a checkpoint is generated and written. Because of the pieces, a
// checkpoint of any size takes little memory.
constexpr int64_t kPieceBytes = int64_t{1} << 22;

absl::StatusOr<int64_t> SizeBytes(const Tensor& tensor) {
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(tensor.shape));
  return WholeSizeBytes(tensor.dtype, elements);
}

int64_t TotalBytes(const std::vector<Tensor>& tensors) {
  int64_t total = 0;
  for (const Tensor& tensor : tensors) {
    total += SizeBytes(tensor).value_or(0);
  }
  return total;
}

// Returns the mean and the standard deviation of the values of a tensor.
std::pair<float, double> DistributionOf(const Tensor& tensor) {
  if (tensor.shape.size() > 1) {
    return {0.0F, 1 / std::sqrt(static_cast<double>(std::max<int64_t>(1, tensor.shape.back())))};
  }
  const std::string name = absl::AsciiStrToLower(tensor.name);
  const bool is_norm = name.find("norm") != std::string::npos && !name.ends_with("bias");
  return {is_norm ? 1.0F : 0.0F, kVectorDeviation};
}

// Fills `out` with values whose mean is not 0.
absl::Status FillAround(Dtype dtype, uint64_t seed, float mean, double deviation, int64_t first,
                        absl::Span<char> out) {
  const size_t element_bytes = static_cast<size_t>(BitsPerElement(dtype)) / 8;
  std::vector<float> values(out.size() / element_bytes);
  const absl::Span<char> bytes(reinterpret_cast<char*>(values.data()),
                               values.size() * sizeof(float));
  SHARDMESH_RETURN_IF_ERROR(FillNormal(Dtype::kF32, seed, deviation, first, bytes));
  for (size_t i = 0; i < values.size(); ++i) {
    const float value = values[i] + mean;
    const uint16_t half = dtype == Dtype::kBF16 ? F32ToBF16(value) : F32ToF16(value);
    const void* const element =
        dtype == Dtype::kF32 ? static_cast<const void*>(&value) : static_cast<const void*>(&half);
    std::memcpy(out.data() + i * element_bytes, element, element_bytes);
  }
  return absl::OkStatus();
}

// Fills `out` with elements of one tensor. `first` is the index of the first of these elements in
// the tensor.
absl::Status FillElements(const Tensor& tensor, uint64_t seed, int64_t first,
                          absl::Span<char> out) {
  if (tensor.dtype != Dtype::kI64) {
    const auto [mean, deviation] = DistributionOf(tensor);
    if (mean != 0) return FillAround(tensor.dtype, seed, mean, deviation, first, out);
    return FillNormal(tensor.dtype, seed, deviation, first, out);
  }
  for (size_t offset = 0; offset < out.size(); offset += sizeof(first), ++first) {
    std::memcpy(out.data() + offset, &first, sizeof(first));
  }
  return absl::OkStatus();
}

LlamaConfig LlamaOf(int64_t hidden_size, int64_t layers) {
  constexpr int64_t kHeadSize = 128;
  LlamaConfig config;
  config.hidden_size = hidden_size;
  config.layers = layers;
  config.heads = hidden_size / kHeadSize;
  config.key_heads = config.heads;
  config.head_size = kHeadSize;
  config.intermediate_size = hidden_size * 11 / 4;
  config.vocabulary_size = 32000;
  config.max_positions = 4096;
  return config;
}

}  // namespace

std::vector<Tensor> MiniLmTensors() {
  constexpr int64_t kHidden = 384;
  constexpr int64_t kMlp = 1536;
  std::vector<Tensor> tensors;
  const auto add = [&](std::string name, Shape shape) {
    tensors.push_back({std::move(name), Dtype::kF32, std::move(shape)});
  };
  tensors.push_back({"embeddings.position_ids", Dtype::kI64, {1, 512}});
  add("embeddings.LayerNorm.bias", {kHidden});
  add("embeddings.LayerNorm.weight", {kHidden});
  add("embeddings.position_embeddings.weight", {512, kHidden});
  add("embeddings.token_type_embeddings.weight", {2, kHidden});
  add("embeddings.word_embeddings.weight", {30522, kHidden});
  for (int layer = 0; layer < 6; ++layer) {
    const std::string prefix = StrCat("encoder.layer.", layer, ".");
    add(prefix + "attention.output.LayerNorm.bias", {kHidden});
    add(prefix + "attention.output.LayerNorm.weight", {kHidden});
    add(prefix + "attention.output.dense.bias", {kHidden});
    add(prefix + "attention.output.dense.weight", {kHidden, kHidden});
    for (const char* name : {"key", "query", "value"}) {
      add(StrCat(prefix, "attention.self.", name, ".bias"), {kHidden});
      add(StrCat(prefix, "attention.self.", name, ".weight"), {kHidden, kHidden});
    }
    add(prefix + "intermediate.dense.bias", {kMlp});
    add(prefix + "intermediate.dense.weight", {kMlp, kHidden});
    add(prefix + "output.LayerNorm.bias", {kHidden});
    add(prefix + "output.LayerNorm.weight", {kHidden});
    add(prefix + "output.dense.bias", {kHidden});
    add(prefix + "output.dense.weight", {kHidden, kMlp});
  }
  add("pooler.dense.bias", {kHidden});
  add("pooler.dense.weight", {kHidden, kHidden});
  return tensors;
}

BertConfig MiniLmConfig() {
  return {.hidden_size = 384,
          .layers = 6,
          .heads = 12,
          .intermediate_size = 1536,
          .vocabulary_size = 30522,
          .max_positions = 512,
          .token_types = 2};
}

BertConfig TinyBertConfig() {
  return {.hidden_size = 64,
          .layers = 2,
          .heads = 4,
          .intermediate_size = 160,
          .vocabulary_size = 300,
          .max_positions = 64,
          .token_types = 2};
}

LlamaConfig BillionLlamaConfig() {
  LlamaConfig config = LlamaOf(2048, 22);
  config.heads = 32;
  config.key_heads = 4;
  config.head_size = 64;
  return config;
}

LlamaConfig TinyLlamaConfig() {
  return {.hidden_size = 64,
          .layers = 2,
          .heads = 8,
          .key_heads = 4,
          .head_size = 16,
          .intermediate_size = 160,
          .vocabulary_size = 256,
          .max_positions = 512,
          .norm_epsilon = 1e-5};
}

absl::StatusOr<LlamaConfig> LlamaConfigOfBytes(int64_t size_bytes, Dtype dtype) {
  if (dtype != Dtype::kF16 && dtype != Dtype::kBF16 && dtype != Dtype::kF32) {
    return WithReason(
        absl::InvalidArgumentError(StrCat("weights are F16, BF16 or F32, not ", DtypeName(dtype))),
        Reason::kUnsupportedDtype, {{fact::kDtype, DtypeName(dtype)}});
  }
  // Choose the widest model that leaves room for at least 8 layers beside its embeddings. If there
  // is none, choose the smallest model.
  int64_t smallest_bytes = 0;
  for (const int64_t hidden : {8192, 4096, 2048, 1024, 512, 256}) {
    smallest_bytes = TotalBytes(TensorsOf(LlamaOf(hidden, 1), dtype));
    const int64_t layer_bytes = TotalBytes(TensorsOf(LlamaOf(hidden, 2), dtype)) - smallest_bytes;
    if (size_bytes < smallest_bytes) continue;
    const int64_t layers = 1 + (size_bytes - smallest_bytes) / layer_bytes;
    if (layers >= 8 || hidden == 256) return LlamaOf(hidden, layers);
  }
  return absl::InvalidArgumentError(StrCat("a model of ", size_bytes,
                                           " bytes is too small; the smallest of ",
                                           DtypeName(dtype), " takes ", smallest_bytes, " bytes"));
}

std::vector<Tensor> TensorsOf(const ModelConfig& config, Dtype dtype) {
  std::vector<Tensor> tensors;
  // An axis of size 1 fits every configuration.
  const absl::StatusOr<std::vector<ModelWeight>> weights = WeightsOf(config, ModelAxis());
  if (!weights.ok()) return tensors;
  for (const ModelWeight& weight : *weights) {
    tensors.push_back({weight.name, dtype, weight.shape});
  }
  return tensors;
}

absl::Status WriteRandomCheckpoint(const std::string& path, const std::vector<Tensor>& tensors,
                                   uint64_t seed,
                                   const std::function<void(int64_t, int64_t)>& progress) {
  SHARDMESH_ASSIGN_OR_RETURN(
      SafetensorsWriter writer,
      SafetensorsWriter::Create(
          path, tensors, {{"made_by", "shardmesh make-checkpoint"}, {"seed", StrCat(seed)}}));
  const int64_t total_bytes = TotalBytes(tensors);
  int64_t done_bytes = 0;
  // A vector of 8-byte elements is aligned for every element type.
  std::vector<int64_t> piece(kPieceBytes / sizeof(int64_t));
  for (size_t i = 0; i < tensors.size(); ++i) {
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t size_bytes, SizeBytes(tensors[i]));
    const int64_t element_bytes = BitsPerElement(tensors[i].dtype) / 8;
    for (int64_t offset = 0; offset < size_bytes; offset += kPieceBytes) {
      const absl::Span<char> bytes(reinterpret_cast<char*>(piece.data()),
                                   static_cast<size_t>(std::min(kPieceBytes, size_bytes - offset)));
      // Each tensor has its own seed, so that tensors differ.
      SHARDMESH_RETURN_IF_ERROR(
          FillElements(tensors[i], seed + i * 0x9E3779B97F4A7C15u, offset / element_bytes, bytes));
      SHARDMESH_RETURN_IF_ERROR(writer.Append(bytes));
      done_bytes += static_cast<int64_t>(bytes.size());
      progress(done_bytes, total_bytes);
    }
  }
  return writer.Finish();
}

absl::Status WriteRandomModel(const std::string& folder, const ModelConfig& config, Dtype dtype,
                              uint64_t seed,
                              const std::function<void(int64_t, int64_t)>& progress) {
  SHARDMESH_RETURN_IF_ERROR(MakeFolders(folder));
  SHARDMESH_RETURN_IF_ERROR(WriteRandomCheckpoint(StrCat(folder, "/model.safetensors"),
                                                  TensorsOf(config, dtype), seed, progress));
  SHARDMESH_ASSIGN_OR_RETURN(AtomicFileWriter file,
                             AtomicFileWriter::Create(StrCat(folder, "/config.json")));
  const std::string text = FormatModelConfig(config);
  SHARDMESH_RETURN_IF_ERROR(file.Append(absl::MakeConstSpan(text.data(), text.size())));
  return file.Finish();
}

}  // namespace shardmesh::client
