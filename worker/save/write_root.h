// Folders below which a process may write files that others name, and no symbolic link leads out.
#ifndef SHARDMESH_WORKER_SAVE_WRITE_ROOT_H_
#define SHARDMESH_WORKER_SAVE_WRITE_ROOT_H_

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "process/file.h"

namespace shardmesh::worker {

// A folder below a root.
struct RootedFolder {
  FileDescriptor descriptor;
  // Number of folders that OpenFolder has created: this one, and some above it. Of OpenNearest:
  // that are missing.
  int new_levels = 0;
};

// The roots of a process. Immutable, and safe to share between threads.
//
// Example: with the root /ckpt, OpenFolder("/ckpt/run-1", true) creates and opens the folder run-1.
// OpenFolder("/ckpt/../etc", false), OpenFolder("/etc", false), and a link from /ckpt/x to /etc are
// refused.
class WriteRoots {
 public:
  // No roots: every folder is refused.
  WriteRoots() = default;
  // INVALID_ARGUMENT (BAD_FIELD) if a path is not absolute or not a folder.
  static absl::StatusOr<WriteRoots> Create(std::vector<std::string> paths);

  const std::vector<std::string>& paths() const { return paths_; }

  // Opens the folder at an absolute path. `create` creates missing folders, below the root only,
  // and syncs the folders above them. After an error, no folder that it created is left.
  // Failpoints: write_root.open, write_root.create, write_root.sync. INVALID_ARGUMENT (BAD_FIELD):
  // the path is under no root, or a link in it leads out of the root. The message names the roots.
  // Otherwise errors as FileError.
  absl::StatusOr<RootedFolder> OpenFolder(const std::string& path, bool create) const;

  // Opens the folder at an absolute path, or the nearest folder above it that is there, at most the
  // root. Creates nothing: `new_levels` is the number of folders that OpenFolder would create.
  // Errors: as OpenFolder.
  absl::StatusOr<RootedFolder> OpenNearest(const std::string& path) const;

 private:
  struct Place;  // a root and a path below it

  absl::StatusOr<Place> Find(const std::string& path) const;

  // Without a slash at the end, except "/" itself.
  std::vector<std::string> paths_;
  std::vector<std::string> known_as_;  // the paths, and the real path of each, as it was at first
};

// Opens what `path` names below the open folder; no part of the path leads out of the folder.
// `flags` and `mode`: as for open(2); O_CLOEXEC is added. `folder_path` is for errors, which are
// those of FileError, and INVALID_ARGUMENT (BAD_FIELD) for a path that leads out.
absl::StatusOr<FileDescriptor> OpenBeneath(const FileDescriptor& folder,
                                           std::string_view folder_path, const std::string& path,
                                           int flags, mode_t mode = 0);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SAVE_WRITE_ROOT_H_
