// Says what a file or folder is that is no checkpoint, and which command takes it.
#ifndef SHARDMESH_CLIENT_CLI_INPUTS_FILE_KIND_H_
#define SHARDMESH_CLIENT_CLI_INPUTS_FILE_KIND_H_

#include <string>

#include "absl/status/status.h"

namespace shardmesh::client {

// Both return `error`, which opening `path` gave, with a message that says what is at `path` and
// what to do; code, reason and facts stay. They recognise .npy and .npz files, pickles as
// torch.save writes them, YAML files, folders, and a step whose folder has another name, by the
// first bytes of the file where it has such. If there is nothing at `path`, they name a file or
// folder beside it whose name is similar. Return `error` unchanged if they recognise nothing.

// `load` and `plan` take `path` as a checkpoint.
absl::Status ExplainCheckpoint(const absl::Status& error, const std::string& path);
// `put` takes the tensor `tensor` of the checkpoint `path`; empty: it takes `path` itself.
absl::Status ExplainTensor(const absl::Status& error, const std::string& path,
                           const std::string& tensor);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_INPUTS_FILE_KIND_H_
