// The shared memory of one worker: blocks cut from sealed segments, which peers on the same host
// map to read them.
#ifndef SHARDMESH_WORKER_SHM_SHM_ARENA_H_
#define SHARDMESH_WORKER_SHM_SHM_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "tensor/buffer.h"
#include "worker/shm/shm_segment.h"

namespace shardmesh::worker {

// Source of a buffer pool's blocks that peers can read in place.
//
// A block of kOwnSegmentBytes or more has its own segment, which returns to the host with the
// block. Smaller blocks share segments of kSharedSegmentBytes, best fit. An empty shared segment
// returns to the host unless it is the last one. (Parts of a sealed segment cannot be returned.) If
// no segment is available, the block is private to this process: its bytes go to peers over
// streams.
//
// Thread-safe.
class ShmArena final : public BlockSource {
 public:
  static constexpr size_t kOwnSegmentBytes = size_t{256} << 10;
  static constexpr size_t kSharedSegmentBytes = size_t{4} << 20;
  // Most segments; half of the process's descriptor limit if that is less. The other descriptors
  // are for connections, files and mappings of peers' segments.
  static constexpr size_t kMaxSegments = 16'384;

  // `name` is the name of the segments in /proc.
  explicit ShmArena(std::string name);
  // Requires that every block was freed.
  ~ShmArena() override;

  // BlockSource.
  char* Allocate(size_t capacity_bytes) override;
  void Free(char* data, size_t capacity_bytes) override;

  // Location of bytes, in terms that peers understand.
  struct Place {
    uint64_t segment_id = 0;  // never used twice
    uint64_t offset_bytes = 0;
  };
  // Returns nullopt if the bytes are not in a block of this arena.
  std::optional<Place> Locate(const char* data, size_t size_bytes) const;

  // Calls `use` with the segment's descriptor and size; returns false if the segment is gone. The
  // arena owns the descriptor, which is valid only during the call.
  bool WithSegment(uint64_t segment_id,
                   const std::function<void(int fd, int64_t size_bytes)>& use) const;

  // Sets the callback for the id of each segment that returns to the host; it must not call the
  // arena. Waits until a running call of the previous callback has returned.
  void OnFreed(std::function<void(uint64_t segment_id)> freed);

 private:
  struct Segment {
    uint64_t id = 0;
    std::unique_ptr<ShmSegment> memory;
    // Free ranges by offset; adjacent ranges are merged.
    std::map<size_t, size_t> free = {};
    size_t free_bytes = 0;

    size_t size_bytes() const { return memory->bytes().size(); }
  };
  using Segments = std::map<const char*, Segment>;  // by start address

  Segments::iterator FindSegment(const char* data) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns null if the kernel refuses, with errno set.
  Segment* AddSegment(size_t size_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  char* TakeShared(size_t size_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns null, with errno set, if the host has no memory.
  char* TakePrivate(size_t size_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string name_;
  const size_t max_segments_;
  mutable absl::Mutex mutex_;
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  Segments segments_ ABSL_GUARDED_BY(mutex_);
  std::map<char*, size_t> private_ ABSL_GUARDED_BY(mutex_);  // blocks outside segments
  std::map<uint64_t, const char*> by_id_ ABSL_GUARDED_BY(mutex_);
  // Free ranges of shared segments: size, address.
  std::set<std::pair<size_t, char*>> free_runs_ ABSL_GUARDED_BY(mutex_);

  absl::Mutex freed_mutex_;  // held while freed_ runs; not together with mutex_
  std::function<void(uint64_t)> freed_ ABSL_GUARDED_BY(freed_mutex_);
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SHM_SHM_ARENA_H_
