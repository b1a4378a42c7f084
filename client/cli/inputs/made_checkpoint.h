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
#include "tensor/dtype.h"
#include "tensor/safetensors.h"

namespace shardmesh::client {

// The tensors of all-MiniLM-L6-v2: names, shapes, types and order as in its file.
std::vector<SafetensorsWriter::Tensor> MiniLmTensors();

// The tensors of a llama-like decoder whose weights take about size_bytes: never more than
// size_bytes, and less by at most the bytes of one layer. INVALID_ARGUMENT if size_bytes is less
// than the smallest such model with one layer takes, or if dtype is not F16, BF16 or F32.
absl::StatusOr<std::vector<SafetensorsWriter::Tensor>> LlamaTensors(int64_t size_bytes,
                                                                    Dtype dtype);

// Writes a checkpoint of these tensors. Floats are normally distributed with standard deviation
// 0.02; the weights of norms have another mean than other tensors. Integers count up from 0, like
// position ids. The same seed and tensors give the same file on every host.
absl::Status WriteRandomCheckpoint(const std::string& path,
                                   const std::vector<SafetensorsWriter::Tensor>& tensors,
                                   uint64_t seed,
                                   const std::function<void(int64_t, int64_t)>& progress);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_INPUTS_MADE_CHECKPOINT_H_
