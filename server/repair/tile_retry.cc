// The constants behind the time limits of copies.
#include "server/repair/tile_retry.h"

#include <algorithm>

#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

constexpr absl::Duration kFixedTimeout = absl::Minutes(5);
constexpr double kSlowestBytesPerSecond = 4 << 20;

}  // namespace

absl::Duration CopyTimeout(int64_t size_bytes) {
  return kFixedTimeout + absl::Seconds(static_cast<double>(size_bytes) / kSlowestBytesPerSecond);
}

absl::Duration RetryWait(int rounds, absl::Duration first, absl::Duration last) {
  absl::Duration wait = first;
  for (int i = 1; i < rounds && wait < last; ++i) wait *= 2;
  return std::min(wait, last);
}

std::string FailureInWords(const absl::Status& status) {
  const Reason reason = ReasonOf(status);
  return reason == Reason::kUnspecified ? std::string(status.message())
                                        : StrCat(status.message(), " (", ReasonName(reason), ")");
}

}  // namespace shardmesh::server
