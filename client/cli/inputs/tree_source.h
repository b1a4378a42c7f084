// The sources of a model's tensors for commands: checkpoints, tree files, standard input, the
// catalog.
#ifndef SHARDMESH_CLIENT_CLI_INPUTS_TREE_SOURCE_H_
#define SHARDMESH_CLIENT_CLI_INPUTS_TREE_SOURCE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/mesh_client.h"
#include "client/types/layout_questions.h"

namespace shardmesh::client {

// Reads a tree. Sources:
// - a checkpoint in any form, see TensorSource::Open: only the headers;
// - a JSON file (a name that ends in .json, see ParseTree);
// - JSON lines: a .jsonl file, or standard input if the path is `-` (see ParseTreeLines).
//
// Errors: those of TensorSource::Open, ParseTree and ParseTreeLines. NOT_FOUND or the system's
// error: the file cannot be read. BAD_FILE: the tree has no tensors.
absl::StatusOr<std::vector<TreeTensor>> ReadTree(const std::string& path);

// Fetches the tensors of a stored tree, for commands that show each tensor. Errors of GetEntry.
absl::StatusOr<std::vector<TreeTensor>> FetchTree(MeshClient* client, const std::string& name);

// Help of the options that name trees.
inline constexpr char kTreeHelp[] =
    "checkpoint, such as a safetensors file, index, .npz file or model folder; .json file of name "
    "to "
    "shape and dtype; .jsonl file, or - for such lines on standard input";
inline constexpr char kStoredTreeHelp[] = "the tensors: name of a tree in the catalog";

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_INPUTS_TREE_SOURCE_H_
