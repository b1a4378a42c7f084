// Where commands get the tensors of a model from.
#include "client/cli/tree_source.h"

#include "sharding/status_macros.h"
#include "tensor/safetensors.h"

namespace shardmesh::client {

absl::StatusOr<std::vector<TreeTensor>> ReadTree(const std::string& path) {
  SHARDMESH_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(path));
  std::vector<TreeTensor> tensors;
  tensors.reserve(checkpoint.tensors().size());
  for (const Checkpoint::Entry& entry : checkpoint.tensors()) {
    tensors.push_back(
        {.name = entry.tensor->name, .shape = entry.tensor->shape, .dtype = entry.tensor->dtype});
  }
  return tensors;
}

}  // namespace shardmesh::client
