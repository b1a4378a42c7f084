// Compares the files of a saved checkpoint with the checksums of its manifest.
#ifndef SHARDMESH_TENSOR_SAVED_CHECKSUMS_H_
#define SHARDMESH_TENSOR_SAVED_CHECKSUMS_H_

#include "absl/status/status.h"
#include "tensor/safetensors.h"

namespace shardmesh {

// Reads all files of the checkpoint that the manifest in their folder lists, several at a time, and
// compares them with their checksums. OK for a checkpoint that no save wrote, and for a folder
// whose save did not end. A file of which the manifest lists no checksums, as builds before wrote
// it, is not compared.
//   DATA_LOSS  (CHECKSUM_MISMATCH) names the file, the tensor, the tile and both checksums.
//   FAILED_PRECONDITION (FILE_CHANGED) a save has replaced a file since the checkpoint was opened.
//   others     as FileError.
absl::Status CheckSavedChecksums(const Checkpoint& checkpoint);

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_SAVED_CHECKSUMS_H_
