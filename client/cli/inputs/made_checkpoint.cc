// Checkpoints of random values.
#include "client/cli/inputs/made_checkpoint.h"

#include <algorithm>
#include <cstring>

#include "sharding/shape.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/random.h"

namespace shardmesh::client {
namespace {

using Tensor = SafetensorsWriter::Tensor;

constexpr double kDeviation = 0.02;
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

void AddLlamaLayer(int64_t layer, int64_t hidden, Dtype dtype, std::vector<Tensor>* tensors) {
  const int64_t mlp = hidden * 11 / 4;
  const std::string prefix = StrCat("model.layers.", layer, ".");
  tensors->push_back({prefix + "input_layernorm.weight", dtype, {hidden}});
  for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
    tensors->push_back({StrCat(prefix, "self_attn.", name, ".weight"), dtype, {hidden, hidden}});
  }
  tensors->push_back({prefix + "post_attention_layernorm.weight", dtype, {hidden}});
  tensors->push_back({prefix + "mlp.gate_proj.weight", dtype, {mlp, hidden}});
  tensors->push_back({prefix + "mlp.up_proj.weight", dtype, {mlp, hidden}});
  tensors->push_back({prefix + "mlp.down_proj.weight", dtype, {hidden, mlp}});
}

// Fills `out` with elements of one tensor. `first` is the index of the first of these elements in
// the tensor.
absl::Status FillElements(Dtype dtype, uint64_t seed, int64_t first, absl::Span<char> out) {
  if (dtype != Dtype::kI64) {
    return FillNormal(dtype, seed, kDeviation, first, out);
  }
  for (size_t offset = 0; offset < out.size(); offset += sizeof(first), ++first) {
    std::memcpy(out.data() + offset, &first, sizeof(first));
  }
  return absl::OkStatus();
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

absl::StatusOr<std::vector<Tensor>> LlamaTensors(int64_t size_bytes, Dtype dtype) {
  if (dtype != Dtype::kF16 && dtype != Dtype::kBF16 && dtype != Dtype::kF32) {
    return WithReason(
        absl::InvalidArgumentError(StrCat("weights are F16, BF16 or F32, not ", DtypeName(dtype))),
        Reason::kUnsupportedDtype, {{fact::kDtype, DtypeName(dtype)}});
  }
  // Choose the widest model that leaves room for at least 8 layers beside its embeddings. If there
  // is none, choose the smallest model.
  int64_t smallest_bytes = 0;
  for (const int64_t hidden : {8192, 4096, 2048, 1024, 512, 256}) {
    constexpr int64_t kVocabulary = 32000;
    std::vector<Tensor> tensors = {{"model.embed_tokens.weight", dtype, {kVocabulary, hidden}},
                                   {"model.norm.weight", dtype, {hidden}},
                                   {"lm_head.weight", dtype, {kVocabulary, hidden}}};
    std::vector<Tensor> one_layer;
    AddLlamaLayer(0, hidden, dtype, &one_layer);
    const int64_t layers = (size_bytes - TotalBytes(tensors)) / TotalBytes(one_layer);
    smallest_bytes = TotalBytes(tensors) + TotalBytes(one_layer);
    if (layers < 1 || (layers < 8 && hidden != 256)) {
      continue;
    }
    for (int64_t layer = 0; layer < layers; ++layer) {
      AddLlamaLayer(layer, hidden, dtype, &tensors);
    }
    return tensors;
  }
  return absl::InvalidArgumentError(StrCat("a model of ", size_bytes,
                                           " bytes is too small; the smallest of ",
                                           DtypeName(dtype), " takes ", smallest_bytes, " bytes"));
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
      SHARDMESH_RETURN_IF_ERROR(FillElements(tensors[i].dtype, seed + i * 0x9E3779B97F4A7C15u,
                                             offset / element_bytes, bytes));
      SHARDMESH_RETURN_IF_ERROR(writer.Append(bytes));
      done_bytes += static_cast<int64_t>(bytes.size());
      progress(done_bytes, total_bytes);
    }
  }
  return writer.Finish();
}

}  // namespace shardmesh::client
