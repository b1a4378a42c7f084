// Read roots: the folders below which a process reads files that callers name.
#ifndef SHARDMESH_PROCESS_ROOTS_READ_ROOT_H_
#define SHARDMESH_PROCESS_ROOTS_READ_ROOT_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "process/file.h"

namespace shardmesh {

// The state of a file. A change of the file's bytes changes its size or one of the two times.
struct FileState {
  int64_t size_bytes = 0;
  absl::Time modify_time;
  absl::Time change_time;  // last change of the bytes, the name or the permissions
  dev_t device = 0;
  ino_t inode = 0;

  friend bool operator==(const FileState&, const FileState&) = default;
};

// Whether a file has kept its bytes: the file, its size and its modify time are the same. The
// change time does not count, since a new or a removed hard link, a new name or new permissions
// change it too.
inline bool HasSameBytes(const FileState& then, const FileState& now) {
  return then.size_bytes == now.size_bytes && then.modify_time == now.modify_time &&
         then.device == now.device && then.inode == now.inode;
}

// A regular file opened for reading, and its state when it was opened.
struct RootedFile {
  FileDescriptor descriptor;
  FileState state;
};

// Folders. A file is opened only if its path lies below a root, and the kernel follows no link out
// of the root (openat2 with RESOLVE_BENEATH). Links within a root are followed. The root is opened
// anew for each file: one that was removed and made again works, as write roots do.
//
// Immutable and thread-safe.
class ReadRoots {
 public:
  // No roots: refuses every file.
  ReadRoots() = default;

  // Checks that the folders can be opened. A relative path is taken from the working folder.
  // Errors: as FileError for a path that is no folder that this process can open. UNIMPLEMENTED if
  // the kernel lacks openat2 (Linux 5.6), or a sandbox forbids it.
  static absl::StatusOr<ReadRoots> Open(absl::Span<const std::string> folders);

  bool empty() const { return roots_.empty(); }
  // Returns the roots' paths, joined by commas.
  const std::string& text() const { return text_; }

  // Opens a regular file at an absolute path.
  // - INVALID_ARGUMENT (BAD_FILE): the path is not absolute, has a zero byte, or is longer than
  //   4,096 bytes; or the file is not a regular file.
  // - FAILED_PRECONDITION (NO_READ_ROOT): no root is above the path, or a link or `..` leads out of
  //   the root.
  // - NOT_FOUND, PERMISSION_DENIED (BAD_FILE): there is no such file, or this process may not read
  //   it.
  // - Other errors: as FileError.
  absl::StatusOr<RootedFile> OpenFile(const std::string& path) const;

 private:
  struct Root {
    std::string path;  // absolute, without a slash at its end; empty for the folder `/`
  };

  absl::Status NoRoot(std::string_view path, std::string_view why) const;
  absl::StatusOr<RootedFile> OpenBelow(const Root& root, const std::string& path) const;

  // The longest path first. A folder that is reached by a link has a root for each of its paths.
  std::vector<Root> roots_;
  std::string text_;
};

// Returns the present state of an open file; `path` is for errors, which are as FileError.
absl::StatusOr<FileState> StateOf(const FileDescriptor& file, std::string_view path);

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_ROOTS_READ_ROOT_H_
