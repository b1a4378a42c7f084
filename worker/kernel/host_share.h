// What part of its host this process may use: cores, processor time, memory.
#ifndef SHARDMESH_WORKER_KERNEL_HOST_SHARE_H_
#define SHARDMESH_WORKER_KERNEL_HOST_SHARE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shardmesh::worker {

// As the kernel says: the affinity mask of the process, and the limits of its control group and of
// the groups above it, of version 1 or 2. Immutable.
//
// Example: in a container with `--cpus 2.5` on 64 cores, Threads() is 2.
struct HostShare {
  int cores = 1;                                       // in the affinity mask
  std::optional<double> quota_cores = std::nullopt;    // processor seconds per second
  std::optional<int64_t> memory_bytes = std::nullopt;  // limit of the group's memory

  // Threads that compute at once without being stopped for the quota: at least 1.
  int Threads() const;
  // What of this a process may not use, each as a sentence for its log; nothing where all of it is
  // within the limits.
  std::vector<std::string> MisfitsOf(int64_t memory_bytes, int threads) const;

  static HostShare OfThisProcess();
  // With `root` in place of "/" before /proc and /sys, for tests. What cannot be read is no limit.
  static HostShare Read(const std::string& root, int cores);
};

// One of several processes that share a host.
struct HostPart {
  // A part has at least this many cores, or its process is not bound to it.
  static constexpr int kLeastBoundCores = 2;

  int64_t index = 0;  // from 0
  int64_t count = 1;
  bool is_bound = false;  // the process has cores of its part alone; a quota is shared all the same

  // "2/8" is the third of eight parts. INVALID_ARGUMENT if it does not say so.
  static absl::StatusOr<HostPart> Parse(const std::string& text);
  // What this process may use of what it sees of the host: at least 1.
  int Threads(const HostShare& share) const;
};

// Binds the process, and all threads that it starts from now on, to its part of the cores that it
// may use, those that are close to one another. Call it before any thread starts. Does nothing, and
// returns false, where a part would have fewer than kLeastBoundCores: the kernel's scheduler then
// does better.
absl::StatusOr<bool> BindToPart(const HostPart& part);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_KERNEL_HOST_SHARE_H_
