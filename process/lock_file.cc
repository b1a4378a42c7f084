// flock(2) on a file that contains the name of its holder.
#include "process/lock_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "absl/time/clock.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

using Steady = std::chrono::steady_clock;

constexpr absl::Duration kRetry = absl::Milliseconds(20);

std::string HolderOf(int file) {
  char text[128] = {};
  const ssize_t count = pread(file, text, sizeof(text), 0);
  return count > 0 ? std::string(text, static_cast<size_t>(count)) : "(unknown)";
}

}  // namespace

absl::StatusOr<FileLock> TakeLock(const std::string& path, absl::Duration timeout,
                                  const std::function<void(const std::string& holder)>& on_wait) {
  FileLock lock{FileDescriptor(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)), {}};
  if (!lock.held.valid()) {
    return FileError("open", path, errno);
  }
  const Steady::time_point end = Steady::now() + absl::ToChronoNanoseconds(timeout);
  for (bool is_first = true; flock(lock.held.get(), LOCK_EX | LOCK_NB) != 0; is_first = false) {
    if (errno != EWOULDBLOCK) {
      return FileError("lock", path, errno);
    }
    if (Steady::now() >= end) {
      lock.holder = HolderOf(lock.held.get());
      lock.held.Close();
      return lock;
    }
    if (is_first && on_wait) {
      on_wait(HolderOf(lock.held.get()));
    }
    absl::SleepFor(kRetry);
  }
  char host[64] = {};
  if (gethostname(host, sizeof(host) - 1) != 0) {
    host[0] = '\0';
  }
  const std::string self = StrCat(getpid(), " on host ", host);
  // The lock is valid even if this write fails.
  [[maybe_unused]] const bool is_written =
      ftruncate(lock.held.get(), 0) == 0 &&
      pwrite(lock.held.get(), self.data(), self.size(), 0) == static_cast<ssize_t>(self.size());
  return lock;
}

}  // namespace shardmesh
