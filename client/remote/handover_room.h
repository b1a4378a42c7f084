// How much memory a put may hand over without danger to the client.
#ifndef SHARDMESH_CLIENT_REMOTE_HANDOVER_ROOM_H_
#define SHARDMESH_CLIENT_REMOTE_HANDOVER_ROOM_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace shardmesh::client {

// Returns how many bytes are left below the memory limits of this process's control group (version
// 1 or 2) and of that group's ancestors; at least 0. Pages of files that the kernel can drop count
// as left. nullopt: there is no limit. Tests pass a `root` that replaces "/" before /proc and /sys.
// If a file cannot be read, there is no limit from it.
std::optional<int64_t> MemoryLeftInGroup(const std::string& root = "");

// The memory that one put may hand over: half of what is left of the client's memory group. The
// kernel charges handed-over pages to the client's group until they are freed, although a worker
// keeps them, and ends processes of a group that exceeds its limit. Thread-safe.
class HandoverRoom {
 public:
  // `left_bytes`: as MemoryLeftInGroup returns it; nullopt for room without end.
  explicit HandoverRoom(std::optional<int64_t> left_bytes) : left_bytes_(left_bytes) {}
  HandoverRoom(const HandoverRoom&) = delete;
  HandoverRoom& operator=(const HandoverRoom&) = delete;

  // Takes room for a tile. RESOURCE_EXHAUSTED: there is not so much.
  absl::Status Take(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives back room that was taken for memory that is freed.
  void GiveBack(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // The last error of Take; OK if there was none.
  absl::Status refusal() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const std::optional<int64_t> left_bytes_;
  mutable absl::Mutex mutex_;
  int64_t taken_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_REMOTE_HANDOVER_ROOM_H_
