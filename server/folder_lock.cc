// flock on a folder's LOCK.
#include "server/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "rpc/clock.h"
#include "rpc/log.h"
#include "sharding/reason.h"
#include "sharding/status_macros.h"
#include "sharding/str_cat.h"

namespace shardmesh::server {
namespace {

// How often the lock is tried.
constexpr absl::Duration kRetry = absl::Milliseconds(50);
// How often the log repeats who has it.
constexpr absl::Duration kLogInterval = absl::Seconds(10);
constexpr size_t kMaxHolderBytes = 128;

absl::Status FileFailed(const std::string& what, const std::string& path) {
  const int error = errno;
  return WithReason(
      absl::Status(absl::ErrnoToStatusCode(error),
                   absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(error))),
      Reason::kStoreFailed);
}

// What the file says of the process that has the lock.
std::string ReadHolder(const FileDescriptor& file) {
  char text[kMaxHolderBytes] = {};
  const ssize_t count = pread(file.get(), text, sizeof(text), 0);
  return count > 0 ? std::string(text, static_cast<size_t>(count)) : "(unknown)";
}

absl::Status WriteHolder(const FileDescriptor& file, const std::string& path) {
  char host[64] = {};
  if (gethostname(host, sizeof(host) - 1) != 0) host[0] = '\0';
  const std::string text = StrCat(getpid(), " on host ", host);
  if (ftruncate(file.get(), 0) != 0 ||
      pwrite(file.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return FileFailed("write", path);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<FileDescriptor> LockFolder(const std::string& folder, absl::Duration timeout) {
  const std::string path = folder + "/LOCK";
  FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file.valid()) return FileFailed("open", path);
  const absl::Time deadline = absl::Now() + timeout;
  absl::Time next_log = absl::InfinitePast();
  while (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return FileFailed("lock", path);
    const absl::Time now = absl::Now();
    if (now >= deadline) {
      return WithReason(absl::FailedPreconditionError(
                            StrCat("the data folder ", folder, " is in use by process ",
                                   ReadHolder(file), "; stop it, or use another folder")),
                        Reason::kStoreFailed);
    }
    if (now >= next_log) {
      rpc::LogWarning("waiting for the data folder, which another process has",
                      {{"folder", folder},
                       {"process", ReadHolder(file)},
                       {"give_up_in", rpc::FormatRounded(deadline - now)}});
      next_log = now + kLogInterval;
    }
    absl::SleepFor(std::min(kRetry, deadline - now));
  }
  SHARDMESH_RETURN_IF_ERROR(WriteHolder(file, path));
  return file;
}

}  // namespace shardmesh::server
