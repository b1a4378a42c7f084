// Takes flock(2) on a file, and writes the holder's name into the file.
#include "process/lock_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/time/clock.h"
#include "process/failpoint.h"
#include "process/steady_deadline.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

constexpr absl::Duration kRetry = absl::Milliseconds(20);

std::string HolderOf(int file) {
  char text[128] = {};
  const ssize_t count = pread(file, text, sizeof(text), 0);
  return count > 0 ? std::string(text, static_cast<size_t>(count)) : "(unknown)";
}

}  // namespace

absl::StatusOr<FileLock> TakeLock(const std::string& path, const LockOptions& options) {
  FileLock lock{
      FileDescriptor(SHARDMESH_FAILS("lock.open")
                         ? -1
                         : open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, options.mode)),
      {}};
  if (!lock.held.valid()) {
    return FileError("open", path, errno);
  }
  const auto end = SteadyDeadline::After(options.timeout);
  auto quiet = SteadyDeadline::After(absl::ZeroDuration());  // time until the next call of on_wait
  while (flock(lock.held.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      return FileError("lock", path, errno);
    }
    if (end.is_over()) {
      lock.holder = HolderOf(lock.held.get());
      lock.held.Close();
      return lock;
    }
    if (options.on_wait && quiet.is_over()) {
      options.on_wait(HolderOf(lock.held.get()), end.left());
      quiet = SteadyDeadline::After(options.tell_every);
    }
    absl::SleepFor(std::min(kRetry, end.left()));
  }
  char host[64] = {};
  if (gethostname(host, sizeof(host) - 1) != 0) {
    host[0] = '\0';
  }
  const std::string self = StrCat(getpid(), " on host ", host);
  const int file = lock.held.get();
  if (SHARDMESH_FAILS("lock.write") || ftruncate(file, 0) != 0 ||
      pwrite(file, self.data(), self.size(), 0) != static_cast<ssize_t>(self.size())) {
    if (errno != ENOSPC && errno != EDQUOT) return FileError("write", path, errno);
  }
  return lock;
}

absl::StatusOr<FileLock> TakeSharedLock(const std::string& path) {
  FileLock lock{FileDescriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC)), {}};
  if (!lock.held.valid()) {
    return FileError("open", path, errno);
  }
  if (flock(lock.held.get(), LOCK_SH | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      return FileError("lock", path, errno);
    }
    lock.holder = HolderOf(lock.held.get());
    lock.held.Close();
  }
  return lock;
}

}  // namespace shardmesh
