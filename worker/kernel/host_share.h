// The part of its host that this process may use: cores, processor time, memory.
#ifndef SHARDMESH_WORKER_KERNEL_HOST_SHARE_H_
#define SHARDMESH_WORKER_KERNEL_HOST_SHARE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shardmesh::worker {

// The kernel's limits: the affinity mask of the process, and the limits of its control group and
// that group's ancestors, of version 1 or 2. Immutable.
//
// Example: in a container with `--cpus 2.5` on 64 cores, Threads() is 2.
struct HostShare {
  int cores = 1;                                       // in the affinity mask
  std::optional<double> quota_cores = std::nullopt;    // processor seconds per second
  std::optional<int64_t> memory_bytes = std::nullopt;  // limit of the group's memory

  // Returns how many threads can compute at once without being throttled by the quota: at least 1.
  int Threads() const;
  // Returns the requests that exceed the limits, each as a sentence for the log. Empty if all are
  // within the limits.
  std::vector<std::string> MisfitsOf(int64_t memory_bytes, int threads) const;

  static HostShare OfThisProcess();
  // Reads the limits. Tests pass a `root` that replaces "/" before /proc and /sys. A file that
  // cannot be read means no limit.
  static HostShare Read(const std::string& root, int cores);
};

// One of several processes that share a host.
struct HostPart {
  // A process is bound to its part only if the part has at least this many cores.
  static constexpr int kLeastBoundCores = 2;

  int64_t index = 0;  // from 0
  int64_t count = 1;
  bool is_bound = false;  // the process has its own cores; all parts share a quota even then

  // Parses "2/8" as the third of eight parts. INVALID_ARGUMENT for other text.
  static absl::StatusOr<HostPart> Parse(const std::string& text);
  // Returns how many threads this process may use of the visible share of the host: at least 1.
  int Threads(const HostShare& share) const;
};

// Binds the process, and all threads that it starts later, to neighbouring cores: its part of the
// cores that it may use. Call it before any thread starts. Does nothing and returns false where a
// part would have fewer than kLeastBoundCores; the kernel's scheduler does better there.
absl::StatusOr<bool> BindToPart(const HostPart& part);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_KERNEL_HOST_SHARE_H_
