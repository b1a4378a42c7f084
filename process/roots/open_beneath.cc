// The one call of openat2(2), for which the C library has no function.
#include "process/roots/open_beneath.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace shardmesh {
namespace {

// The kernel answers EAGAIN if something is renamed while it follows a path with `..`.
constexpr int kMaxOpenAttempts = 16;

}  // namespace

FileDescriptor OpenPathBeneath(const FileDescriptor& folder, const std::string& path, int flags,
                               mode_t mode) {
  open_how how = {};
  how.flags = static_cast<uint64_t>(static_cast<unsigned>(flags | O_CLOEXEC));
  how.mode = mode;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  for (int attempt = 1;; ++attempt) {
    const int64_t opened = syscall(SYS_openat2, folder.get(), path.c_str(), &how, sizeof(how));
    if (opened >= 0) return FileDescriptor(static_cast<int>(opened));
    if ((errno != EAGAIN && errno != EINTR) || attempt == kMaxOpenAttempts) {
      return FileDescriptor();
    }
  }
}

}  // namespace shardmesh
