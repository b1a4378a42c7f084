// Where commands get the tensors of a model from.
#ifndef SHARDMESH_CLIENT_CLI_TREE_SOURCE_H_
#define SHARDMESH_CLIENT_CLI_TREE_SOURCE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/layout.h"

namespace shardmesh::client {

// The tensors of a checkpoint, by its headers alone. Errors of Checkpoint::Open.
absl::StatusOr<std::vector<TreeTensor>> ReadTree(const std::string& path);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_TREE_SOURCE_H_
