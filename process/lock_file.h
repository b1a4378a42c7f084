// A lock file that one process at a time holds, and that names its holder.
#ifndef SHARDMESH_PROCESS_LOCK_FILE_H_
#define SHARDMESH_PROCESS_LOCK_FILE_H_

#include <sys/types.h>

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "process/file.h"

namespace shardmesh {

// The outcome of TakeLock.
struct FileLock {
  // The locked file. The lock lasts while the file is open. The descriptor is not valid if another
  // process has the lock. The kernel releases the lock when this process ends in any way.
  FileDescriptor held;
  // If `held` is not valid: the process that has the lock, as `1234 on host a`. It is `(unknown)`
  // if the file names no process. The text is for people only.
  std::string holder;
};

struct LockOptions {
  // Longest time to wait for another process to release the lock; zero does not wait.
  absl::Duration timeout = absl::ZeroDuration();
  // Called with the holder of the lock and the rest of `timeout`: when the wait begins, and then
  // every `tell_every`.
  std::function<void(const std::string& holder, absl::Duration left)> on_wait = {};
  absl::Duration tell_every = absl::InfiniteDuration();
  // The mode of a file that TakeLock makes.
  mode_t mode = 0666;
};

// Locks the file `path` and writes this process's name into it. Creates a missing file. If the disk
// is full, takes the lock without writing the name. Returns errors of system calls as FileError
// does. Failpoints: lock.open, lock.write.
absl::StatusOr<FileLock> TakeLock(const std::string& path, const LockOptions& options = {});

// Takes a shared lock, which several readers can hold at the same time. Does not wait, and does not
// write to the file. Returns NOT_FOUND if there is no file.
absl::StatusOr<FileLock> TakeSharedLock(const std::string& path);

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_LOCK_FILE_H_
