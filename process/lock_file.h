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
  // Holds the lock while it is open; not valid if another process holds the lock. The kernel
  // releases the lock when the process ends in any way.
  FileDescriptor held;
  // The other process, as `1234 on host a`; `(unknown)` if the file does not name it. For people
  // only.
  std::string holder;
};

struct LockOptions {
  // How long to wait for the end of another process that has the lock; zero: not at all.
  absl::Duration timeout = absl::ZeroDuration();
  // Called with the holder of the lock when waiting begins, and then at each such interval.
  std::function<void(const std::string& holder, absl::Duration left)> on_wait = {};
  absl::Duration tell_every = absl::InfiniteDuration();
  // The mode of a file that TakeLock makes.
  mode_t mode = 0666;
};

// Takes the lock of the file `path`, which is made if it is missing, and writes this process into
// it; a full disk does not prevent it. Errors of the system as FileError. Failpoints: lock.open,
// lock.write.
absl::StatusOr<FileLock> TakeLock(const std::string& path, const LockOptions& options = {});

// Shares the lock with other readers, without writing to the file. NOT_FOUND: there is no file.
absl::StatusOr<FileLock> TakeSharedLock(const std::string& path);

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_LOCK_FILE_H_
