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

// Where a buffer pool's blocks come from when peers are to read them in place.
//
// Blocks of kOwnSegmentBytes or more have a segment of their own, which goes back to the host with
// the block; smaller ones share segments of kSharedSegmentBytes, best fit, and such a segment goes
// back once it is empty, unless it is the last. (Parts of a sealed segment cannot be given back.)
// A block for which no segment can be had is this process's alone: what lies there goes to peers
// over streams.
//
// Thread-safe.
class ShmArena final : public BlockSource {
 public:
  static constexpr size_t kOwnSegmentBytes = size_t{256} << 10;
  static constexpr size_t kSharedSegmentBytes = size_t{4} << 20;
  // Segments at most, or half of the descriptors that the process may have: the rest is for
  // connections and files, and for the mappings of peers' segments.
  static constexpr size_t kMaxSegments = 16'384;

  // `name` is what /proc shows of its segments.
  explicit ShmArena(std::string name);
  // Every block was freed.
  ~ShmArena() override;

  // BlockSource.
  char* Allocate(size_t capacity_bytes) override;
  void Free(char* data, size_t capacity_bytes) override;

  // Where bytes lie, in the terms of peers.
  struct Place {
    uint64_t segment_id = 0;  // never used twice
    uint64_t offset_bytes = 0;
  };
  // nullopt if they are not of a block of this arena.
  std::optional<Place> Locate(const char* data, size_t size_bytes) const;

  // Calls `use` with the segment's descriptor and size; false if the segment is gone. The
  // descriptor is the arena's, for as long as the call lasts.
  bool WithSegment(uint64_t segment_id,
                   const std::function<void(int fd, int64_t size_bytes)>& use) const;

  // Called with the id of each segment that goes back to the host; must not call the arena. Waits
  // for a call of the one before to return.
  void OnFreed(std::function<void(uint64_t segment_id)> freed);

 private:
  struct Segment {
    uint64_t id = 0;
    std::unique_ptr<ShmSegment> memory;
    // By offset: what is free, neighbours joined.
    std::map<size_t, size_t> free = {};
    size_t free_bytes = 0;

    size_t size_bytes() const { return memory->bytes().size(); }
  };
  using Segments = std::map<const char*, Segment>;  // by where it begins

  Segments::iterator FindSegment(const char* data) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null if the kernel refuses, with errno set.
  Segment* AddSegment(size_t size_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  char* TakeShared(size_t size_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null, with errno set, if the host has no memory.
  char* TakePrivate(size_t size_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string name_;
  const size_t max_segments_;
  mutable absl::Mutex mutex_;
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  Segments segments_ ABSL_GUARDED_BY(mutex_);
  std::map<char*, size_t> private_ ABSL_GUARDED_BY(mutex_);  // blocks outside segments
  std::map<uint64_t, const char*> by_id_ ABSL_GUARDED_BY(mutex_);
  // Free runs of shared segments: size, address.
  std::set<std::pair<size_t, char*>> free_runs_ ABSL_GUARDED_BY(mutex_);

  absl::Mutex freed_mutex_;  // held while freed_ is called; not together with mutex_
  std::function<void(uint64_t)> freed_ ABSL_GUARDED_BY(freed_mutex_);
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SHM_SHM_ARENA_H_
