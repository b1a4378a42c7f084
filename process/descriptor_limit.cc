// Reads RLIMIT_NOFILE, and opens placeholders for closed standard descriptors.
#include "process/descriptor_limit.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

#include "status/str_cat.h"

namespace shardmesh {
namespace {

constexpr rlim_t kReserveShare = 8;
constexpr rlim_t kMinReserve = 32;
constexpr rlim_t kMaxReserve = 256;

// Returns this process's limit on file descriptors; RLIM_INFINITY if it is unknown.
rlim_t Limit() {
  rlimit limit = {};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

}  // namespace

void KeepStandardDescriptors() {
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(number, F_GETFD) >= 0) continue;
    // open() takes the lowest free descriptor, which is `number`. The placeholder of standard input
    // is opened for writing, and the placeholders of standard output and error for reading: every
    // use of them fails.
    const int opened = open("/dev/null", number == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    if (opened >= 0 && opened != number) close(opened);
  }
}

absl::Status CheckDescriptorLimit() {
  const rlim_t limit = Limit();
  if (limit >= static_cast<rlim_t>(kMinDescriptors)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      StrCat("this process may have ", limit, " file descriptors and needs at least ",
             kMinDescriptors, ", one more for each connection: raise the limit (ulimit -Hn)"));
}

int FirstReservedDescriptor() {
  const rlim_t limit = Limit();
  if (limit == RLIM_INFINITY) {
    return std::numeric_limits<int>::max();
  }
  const rlim_t reserve = std::clamp(limit / kReserveShare, kMinReserve, kMaxReserve);
  const rlim_t most = std::numeric_limits<int>::max();
  return static_cast<int>(std::min(most, limit - std::min(limit, reserve)));
}

}  // namespace shardmesh
