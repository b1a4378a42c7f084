// RLIMIT_NOFILE.
#include "tensor/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <limits>

#include "sharding/str_cat.h"

namespace shardmesh {
namespace {

constexpr rlim_t kReserveShare = 8;
constexpr rlim_t kMinReserve = 32;
constexpr rlim_t kMaxReserve = 256;

// RLIM_INFINITY where it is not known.
rlim_t Limit() {
  rlimit limit = {};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

}  // namespace

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
