// A lock file that one process at a time holds, and that names its holder.
#ifndef SHARDMESH_PROCESS_LOCK_FILE_H_
#define SHARDMESH_PROCESS_LOCK_FILE_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "process/file.h"

namespace shardmesh {

// The outcome of TakeLock.
struct FileLock {
  // Holds the lock while it is open; not valid if another process holds the lock. The kernel
  // releases the lock when the process ends in any way.
  FileDescriptor held;
  // The other process, as `1234 on host a`; `(unknown)` if the file does not name it. For people
  // only.
  std::string holder;
};

// Locks the file `path`, creates it if missing, and writes the name of this process into it. If
// another process holds the lock, calls `on_wait` once with that process and retries for `timeout`
// (zero: no retry). A full disk does not prevent the lock. Returns system errors as FileError does.
absl::StatusOr<FileLock> TakeLock(
    const std::string& path, absl::Duration timeout = absl::ZeroDuration(),
    const std::function<void(const std::string& holder)>& on_wait = {});

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_LOCK_FILE_H_
