// The names of the files and folders in a folder.
#ifndef SHARDMESH_PROCESS_FOLDERS_FOLDER_ENTRIES_H_
#define SHARDMESH_PROCESS_FOLDERS_FOLDER_ENTRIES_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "process/file.h"

namespace shardmesh {

// Returns the names of all entries, sorted, without "." and "..". Errors as FileError, also for an
// error midway: a caller never takes the first names for all. Failpoint: folder.read.
absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& path);
// The same for an open folder, whose position in its listing stays. `path` is for errors.
absl::StatusOr<std::vector<std::string>> ListFolder(const FileDescriptor& folder,
                                                    std::string_view path);

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_FOLDERS_FOLDER_ENTRIES_H_
