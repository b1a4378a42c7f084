// Reads the manifest of a checkpoint through the descriptor of its open folder.
#ifndef SHARDMESH_WORKER_SAVE_FOLDER_MANIFEST_H_
#define SHARDMESH_WORKER_SAVE_FOLDER_MANIFEST_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "process/file.h"
#include "tensor/checkpoint_manifest.h"

namespace shardmesh::worker {

// Opens a regular file of the folder at `path`; `flags` and `mode` as for open(2). Another kind of
// file is BAD_FILE, a link is BAD_FIELD, and a named pipe does not block. Other errors: as
// OpenBeneath.
absl::StatusOr<FileDescriptor> OpenRegular(const FileDescriptor& folder, std::string_view path,
                                           const std::string& name, int flags, mode_t mode = 0);

// Opens a regular file of the folder for reading. Errors: as OpenRegular.
absl::StatusOr<InputFile> OpenToRead(const FileDescriptor& folder, std::string_view path,
                                     const std::string& name);

// Returns a whole file of at most kMaxCheckpointManifestBytes; a larger one is BAD_FILE. Other
// errors: as OpenToRead, and FileError.
absl::StatusOr<std::string> ReadText(const FileDescriptor& folder, std::string_view path,
                                     std::string_view name);

// Returns the files of a checkpoint that a save wrote; nullopt if the folder has no manifest.
// INVALID_ARGUMENT (BAD_FILE) if it has one that this build cannot read. Other errors: as ReadText.
absl::StatusOr<std::optional<std::vector<ManifestFile>>> ReadManifest(const FileDescriptor& folder,
                                                                      std::string_view path);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SAVE_FOLDER_MANIFEST_H_
