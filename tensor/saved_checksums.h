// Compares parts of a saved checkpoint with the checksums of its manifest.
#ifndef SHARDMESH_TENSOR_SAVED_CHECKSUMS_H_
#define SHARDMESH_TENSOR_SAVED_CHECKSUMS_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tensor/source_file.h"

namespace shardmesh {

// Bytes of a file of a checkpoint that a save may have written, such as those of a tensor.
struct SavedPart {
  std::shared_ptr<const SourceFile> file = nullptr;  // as it was opened, in the checkpoint's folder
  int64_t offset_bytes = 0;
  int64_t size_bytes = 0;
};

// Reads the headers of the files, and the tensors in which the parts lie, several files at a time.
// Compares them with the checksums of the manifest in the folder of each file. Leaves out folders
// that no save wrote, or whose save did not end, and files of which the manifest lists no
// checksums, as builds before wrote it. `keep_going` is called after each piece of a few MiB, on
// several threads, and while the function waits for a save; its error ends the work and becomes its
// result. It may be null.
//   DATA_LOSS  (CHECKSUM_MISMATCH) names the file, the tensor, the tile and both checksums.
//   FAILED_PRECONDITION (FILE_CHANGED) a save has replaced or removed a file since it was opened,
//              also a save that did not end.
//   others     as FileError.
absl::Status CheckSavedChecksums(absl::Span<const SavedPart> parts,
                                 const std::function<absl::Status()>& keep_going);

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_SAVED_CHECKSUMS_H_
