// Checkpoints of random values: of a real model's architecture, or of any size.
#ifndef SHARDMESH_CLIENT_CLI_INPUTS_MADE_CHECKPOINT_H_
#define SHARDMESH_CLIENT_CLI_INPUTS_MADE_CHECKPOINT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/models/model_config.h"
#include "tensor/dtype.h"
#include "tensor/safetensors.h"

namespace shardmesh::client {

// The configuration of all-MiniLM-L6-v2, and a small one of the same kind.
BertConfig MiniLmConfig();
BertConfig TinyBertConfig();
// The tensors of all-MiniLM-L6-v2: names, shapes, types and order as in its file.
std::vector<SafetensorsWriter::Tensor> MiniLmTensors();

// A Llama-shaped model of 1.1 billion parameters with 32 heads and 4 key heads, and one of 170,000
// with 8 heads and 4 key heads.
LlamaConfig BillionLlamaConfig();
LlamaConfig TinyLlamaConfig();
// Returns a Llama-shaped model whose weights take about size_bytes: never more than size_bytes, and
// less by at most the bytes of one layer. INVALID_ARGUMENT if size_bytes is less than the smallest
// such model with one layer takes, or if dtype is not F16, BF16 or F32.
absl::StatusOr<LlamaConfig> LlamaConfigOfBytes(int64_t size_bytes, Dtype dtype);

// Returns the weights of a model as tensors of this type.
std::vector<SafetensorsWriter::Tensor> TensorsOf(const ModelConfig& config, Dtype dtype);

// Writes a checkpoint of these tensors. Floats are normally distributed, so that the values in a
// model with these weights keep their size from layer to layer: the standard deviation is one over
// the root of the last extent for matrices and 0.1 for vectors; the mean is 1 for the weights of
// norms, else 0. Integers count up from 0, like position ids. The same seed and tensors give the
// same file on every host.
absl::Status WriteRandomCheckpoint(const std::string& path,
                                   const std::vector<SafetensorsWriter::Tensor>& tensors,
                                   uint64_t seed,
                                   const std::function<void(int64_t, int64_t)>& progress);

// Writes the folder of a model: config.json and model.safetensors. Makes the folder.
absl::Status WriteRandomModel(const std::string& folder, const ModelConfig& config, Dtype dtype,
                              uint64_t seed, const std::function<void(int64_t, int64_t)>& progress);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_INPUTS_MADE_CHECKPOINT_H_
