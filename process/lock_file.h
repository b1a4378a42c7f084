// A file whose lock one process at a time has, and which says which one.
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
  // Holds the lock while it is open; not valid if another process has it. The kernel takes the lock
  // back when the process ends, however it ends.
  FileDescriptor held;
  // The other process, as `1234 on host a`; `(unknown)` if it did not say. For people only.
  std::string holder;
};

// Takes the lock of the file `path`, which is made if it is missing, and writes this process into
// it. While another process has the lock, tells `on_wait` once which one, and tries again for
// `timeout` (zero: not at all). A full disk does not prevent it. Errors of the system as FileError.
absl::StatusOr<FileLock> TakeLock(
    const std::string& path, absl::Duration timeout = absl::ZeroDuration(),
    const std::function<void(const std::string& holder)>& on_wait = {});

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_LOCK_FILE_H_
