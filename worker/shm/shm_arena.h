// The shared memory of one worker. The arena cuts blocks from sealed segments, which peers on the
// same host map to read them.
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

// The source of a buffer pool's memory. Peers on the same host can read the blocks in place.
//
// A block of kOwnSegmentBytes or more has its own segment, which returns to the host with the
// block. Smaller blocks share segments of kSharedSegmentBytes, allocated by best fit. An empty
// shared segment returns to the host unless it is the only empty shared segment. A part of a
// segment does not return, because the kernel cannot take back a part of a sealed segment. If no
// segment can be created, the block is private to this process, and its bytes go to peers over
// streams.
//
// Thread-safe.
class ShmArena final : public BlockSource {
 public:
  static constexpr size_t kOwnSegmentBytes = size_t{256} << 10;
  static constexpr size_t kSharedSegmentBytes = size_t{4} << 20;
  // The maximum number of segments. If half of the process's limit on file descriptors is less,
  // that half is the limit. The other half of the descriptors is for connections, files and
  // mappings of peers' segments.
  static constexpr size_t kMaxSegments = 16'384;

  // `name` names the segments in /proc.
  explicit ShmArena(std::string name);
  // Requires that every block has been freed.
  ~ShmArena() override;

  // Implement BlockSource.
  char* Allocate(size_t capacity_bytes) override;
  void Free(char* data, size_t capacity_bytes) override;
  // A block of kOwnSegmentBytes or more has a segment of its own, which peers cannot read before
  // EndWriting. Refuses smaller blocks, and every block of a host that gives shared memory huge
  // pages (HasHugeSharedPages), because Write gets none.
  char* AllocateUnfilled(size_t capacity_bytes) override;
  bool Write(char* to, absl::Span<const absl::Span<const char>> parts) override;
  void EndWriting(char* data) override;
  // Makes a segment of the memory, so that peers read the block in place. Refuses memory of less
  // than kOwnSegmentBytes, and any memory once there are max_segments_ segments.
  char* Adopt(FileDescriptor& memory, size_t size_bytes) override;

  // Where bytes lie, in a form that peers understand: the segment's id and an offset.
  struct Place {
    uint64_t segment_id = 0;  // no two segments have the same id
    uint64_t offset_bytes = 0;
  };
  // Returns where the bytes lie; nullopt if they do not lie in a segment of this arena that peers
  // can read.
  std::optional<Place> Locate(const char* data, size_t size_bytes) const;

  // Calls `use` with the segment's descriptor and size. Returns false if the segment no longer
  // exists. The arena owns the descriptor, which is valid only during the call.
  bool WithSegment(uint64_t segment_id,
                   const std::function<void(int fd, int64_t size_bytes)>& use) const;

  // Sets the function that the arena calls with the id of each segment that returns to the host.
  // The function must not call the arena. OnFreed waits until a running call of the previous
  // function has returned.
  void OnFreed(std::function<void(uint64_t segment_id)> freed);

 private:
  struct Segment {
    uint64_t id = 0;
    std::unique_ptr<ShmSegment> memory;
    // Free ranges of the segment: the size of each range, by its offset. Adjacent ranges are
    // merged.
    std::map<size_t, size_t> free = {};
    size_t free_bytes = 0;
    bool is_unfilled = false;  // it is not sealed, so that peers must not get it

    size_t size_bytes() const { return memory->bytes().size(); }
  };
  using Segments = std::map<const char*, Segment>;  // by start address

  Segments::iterator FindSegment(const char* data) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds a segment and returns it. Returns null, with errno set, if there are max_segments_
  // segments already, or if the kernel refuses the segment.
  Segment* AddSegment(size_t size_bytes, bool unfilled = false)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Segment& Insert(std::unique_ptr<ShmSegment> memory) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  char* TakeShared(size_t size_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Allocates a block that is private to this process. If the host has no memory, returns null with
  // errno set.
  char* TakePrivate(size_t size_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string name_;
  const size_t max_segments_;
  mutable absl::Mutex mutex_;
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  Segments segments_ ABSL_GUARDED_BY(mutex_);
  // Blocks outside segments: the mapped size of each block, by its address.
  std::map<char*, size_t> private_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, const char*> by_id_ ABSL_GUARDED_BY(mutex_);
  // Free ranges of all shared segments as (size, address), for best fit.
  std::set<std::pair<size_t, char*>> free_runs_ ABSL_GUARDED_BY(mutex_);

  absl::Mutex freed_mutex_;  // held while freed_ runs, and never together with mutex_
  std::function<void(uint64_t)> freed_ ABSL_GUARDED_BY(freed_mutex_);
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SHM_SHM_ARENA_H_
