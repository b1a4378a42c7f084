// The part of the host that this process may use: cores, processor time, memory.
#ifndef SHARDMESH_WORKER_KERNEL_HOST_SHARE_H_
#define SHARDMESH_WORKER_KERNEL_HOST_SHARE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shardmesh::worker {

// The limits that the operating system sets for this process. They are its affinity mask, and the
// limits of its control group (version 1 or 2) and that group's ancestors. Immutable.
//
// Example: in a container with `--cpus 2.5` on 64 cores, Threads() is 2.
struct HostShare {
  int cores = 1;                                       // cores in the affinity mask
  std::optional<double> quota_cores = std::nullopt;    // CPU quota, in processor seconds per second
  std::optional<int64_t> memory_bytes = std::nullopt;  // memory limit of the control group

  // Returns how many threads can compute at once without throttling by the quota: at least 1.
  int Threads() const;
  // Returns a sentence for the log for each limit that the two settings exceed. Empty if they
  // exceed none.
  std::vector<std::string> MisfitsOf(int64_t memory_bytes, int threads) const;

  static HostShare OfThisProcess();
  // Reads the limits. `cores` is the number of cores in the affinity mask. Tests pass a `root` that
  // replaces "/" before /proc and /sys. If a file cannot be read, there is no limit from it.
  static HostShare Read(const std::string& root, int cores);
};

// The part of a host that one of several processes uses.
struct HostPart {
  // BindToPart binds a process only if its part has at least this many cores.
  static constexpr int kLeastBoundCores = 2;

  int64_t index = 0;  // from 0
  int64_t count = 1;
  // Whether the process is bound to the cores of its part. All parts share the CPU quota, even if
  // each process is bound to its cores.
  bool is_bound = false;

  // Parses "2/8" as the third of eight parts. INVALID_ARGUMENT for other text.
  static absl::StatusOr<HostPart> Parse(const std::string& text);
  // Returns how many threads this process may use: at least 1. `share` is the share of the host
  // that all parts have together.
  int Threads(const HostShare& share) const;
};

// Binds the process to the cores of its part, which are neighbouring cores. Threads that the
// process starts later are bound too, so call it before any thread starts. Returns true if the
// process was bound. Does nothing and returns false if a part would have fewer than
// kLeastBoundCores cores, because the operating system then places threads better. Does nothing and
// returns false if there is only one part. INTERNAL if hwloc fails.
absl::StatusOr<bool> BindToPart(const HostPart& part);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_KERNEL_HOST_SHARE_H_
