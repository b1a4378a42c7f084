// ShmArena: allocates small blocks in shared segments by best fit, and large blocks in segments of
// their own.
#include "worker/shm/shm_arena.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "process/failpoint.h"
#include "process/log.h"
#include "process/pages.h"

namespace shardmesh::worker {
namespace {

constexpr size_t kPageBytes = 4096;

size_t RoundUp(size_t size, size_t multiple) { return (size + multiple - 1) / multiple * multiple; }

size_t MaxSegments() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return ShmArena::kMaxSegments;
  return std::min<size_t>(ShmArena::kMaxSegments, static_cast<size_t>(limit.rlim_cur) / 2);
}

}  // namespace

ShmArena::ShmArena(std::string name) : name_(std::move(name)), max_segments_(MaxSegments()) {}

ShmArena::~ShmArena() = default;

char* ShmArena::Allocate(size_t capacity_bytes) {
  char* data = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    if (capacity_bytes >= kOwnSegmentBytes) {
      const Segment* const segment = AddSegment(RoundUp(capacity_bytes, kPageBytes));
      data = segment == nullptr ? nullptr : segment->memory->bytes().data();
    } else {
      data = TakeShared(RoundUp(capacity_bytes, Buffer::kAlignment));
    }
    if (data == nullptr) data = TakePrivate(capacity_bytes);
  }
  if (data != nullptr && !PopulatePages(data, capacity_bytes)) {
    Free(data, capacity_bytes);
    errno = ENOMEM;
    return nullptr;
  }
  return data;
}

char* ShmArena::AllocateUnfilled(size_t capacity_bytes) {
  if (capacity_bytes < kOwnSegmentBytes || HasHugeSharedPages()) {
    errno = ENOTSUP;
    return nullptr;
  }
  absl::MutexLock lock(&mutex_);
  const Segment* const segment = AddSegment(RoundUp(capacity_bytes, kPageBytes), /*unfilled=*/true);
  return segment == nullptr ? nullptr : segment->memory->bytes().data();
}

bool ShmArena::Write(char* to, absl::Span<const absl::Span<const char>> parts) {
  const ShmSegment* memory = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    memory = FindSegment(to)->second.memory.get();
  }
  // The caller has the block, so its segment stays.
  return memory->Write(static_cast<size_t>(to - memory->bytes().data()), parts);
}

void ShmArena::EndWriting(char* data) {
  absl::MutexLock lock(&mutex_);
  Segment& segment = FindSegment(data)->second;
  if (segment.memory->Seal()) {
    segment.is_unfilled = false;
  } else {
    LogWarning("shared memory cannot be sealed; its bytes go to peers over streams",
               {{"error", std::strerror(errno)}});
  }
}

char* ShmArena::Adopt(FileDescriptor& memory, size_t size_bytes) {
  {
    absl::MutexLock lock(&mutex_);
    // Free tells segments of their own from shared ones by the size of the block.
    if (size_bytes < kOwnSegmentBytes || segments_.size() >= max_segments_) {
      errno = EMFILE;
      return nullptr;
    }
  }
  // Without the lock, because the mapping takes a while. Callers that do this at the same time may
  // exceed the limit by their number.
  std::unique_ptr<ShmSegment> segment = ShmSegment::Adopt(memory, size_bytes);
  if (segment == nullptr) return nullptr;
  absl::MutexLock lock(&mutex_);
  return Insert(std::move(segment)).memory->bytes().data();
}

char* ShmArena::TakePrivate(size_t size_bytes) {
  const size_t mapped_bytes = RoundUp(size_bytes, kPageBytes);
  void* const mapped =
      SHARDMESH_FAILS("memory.map_private")
          ? MAP_FAILED
          : mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  private_[static_cast<char*>(mapped)] = mapped_bytes;
  return static_cast<char*>(mapped);
}

char* ShmArena::TakeShared(size_t size_bytes) {
  auto run = free_runs_.lower_bound({size_bytes, nullptr});
  if (run == free_runs_.end()) {
    Segment* const added = AddSegment(kSharedSegmentBytes);
    if (added == nullptr) return nullptr;
    added->free[0] = kSharedSegmentBytes;
    added->free_bytes = kSharedSegmentBytes;
    run = free_runs_.emplace(kSharedSegmentBytes, added->memory->bytes().data()).first;
  }
  const auto [run_bytes, data] = *run;
  free_runs_.erase(run);
  Segment& segment = FindSegment(data)->second;
  const auto offset = static_cast<size_t>(data - segment.memory->bytes().data());
  segment.free.erase(offset);
  segment.free_bytes -= size_bytes;
  if (run_bytes > size_bytes) {
    segment.free[offset + size_bytes] = run_bytes - size_bytes;
    free_runs_.emplace(run_bytes - size_bytes, data + size_bytes);
  }
  return data;
}

void ShmArena::Free(char* data, size_t capacity_bytes) {
  if (data == nullptr) return;
  Segment gone;
  {
    absl::MutexLock lock(&mutex_);
    if (const auto own = private_.find(data); own != private_.end()) {
      munmap(own->first, own->second);
      private_.erase(own);
      return;
    }
    const auto found = FindSegment(data);
    Segment& segment = found->second;
    if (capacity_bytes < kOwnSegmentBytes) {
      char* const base = segment.memory->bytes().data();
      auto offset = static_cast<size_t>(data - base);
      size_t size_bytes = RoundUp(capacity_bytes, Buffer::kAlignment);
      segment.free_bytes += size_bytes;
      if (const auto after = segment.free.find(offset + size_bytes); after != segment.free.end()) {
        free_runs_.erase({after->second, base + after->first});
        size_bytes += after->second;
        segment.free.erase(after);
      }
      if (auto before = segment.free.lower_bound(offset); before != segment.free.begin()) {
        before = std::prev(before);
        if (before->first + before->second == offset) {
          free_runs_.erase({before->second, base + before->first});
          offset = before->first;
          size_bytes += before->second;
          segment.free.erase(before);
        }
      }
      segment.free[offset] = size_bytes;
      free_runs_.emplace(size_bytes, base + offset);
      // Return an empty segment to the host only if another empty segment stays for the next small
      // block.
      const bool is_empty = segment.free_bytes == segment.size_bytes();
      const auto largest = free_runs_.end() == free_runs_.begin() ? 0 : free_runs_.rbegin()->first;
      const bool is_spare = is_empty && largest == kSharedSegmentBytes &&
                            std::next(free_runs_.rbegin()) != free_runs_.rend() &&
                            std::next(free_runs_.rbegin())->first == kSharedSegmentBytes;
      if (!is_spare) return;
      free_runs_.erase({segment.size_bytes(), base});
    }
    gone = std::move(segment);
    by_id_.erase(gone.id);
    segments_.erase(found);
  }
  absl::MutexLock lock(&freed_mutex_);
  if (freed_) freed_(gone.id);
}

std::optional<ShmArena::Place> ShmArena::Locate(const char* data, size_t size_bytes) const {
  absl::MutexLock lock(&mutex_);
  auto found = segments_.upper_bound(data);
  if (found == segments_.begin()) return std::nullopt;
  found = std::prev(found);
  if (found->second.is_unfilled) return std::nullopt;
  const auto offset = static_cast<size_t>(data - found->first);
  const size_t segment_bytes = found->second.size_bytes();
  if (offset > segment_bytes || size_bytes > segment_bytes - offset) return std::nullopt;
  return Place{.segment_id = found->second.id, .offset_bytes = offset};
}

bool ShmArena::WithSegment(uint64_t segment_id,
                           const std::function<void(int fd, int64_t size_bytes)>& use) const {
  absl::MutexLock lock(&mutex_);
  const auto found = by_id_.find(segment_id);
  if (found == by_id_.end()) return false;
  const Segment& segment = segments_.find(found->second)->second;
  use(segment.memory->fd(), static_cast<int64_t>(segment.size_bytes()));
  return true;
}

void ShmArena::OnFreed(std::function<void(uint64_t segment_id)> freed) {
  absl::MutexLock lock(&freed_mutex_);
  freed_ = std::move(freed);
}

ShmArena::Segments::iterator ShmArena::FindSegment(const char* data) {
  return std::prev(segments_.upper_bound(data));
}

ShmArena::Segment* ShmArena::AddSegment(size_t size_bytes, bool unfilled) {
  if (segments_.size() >= max_segments_) {
    errno = EMFILE;
    return nullptr;
  }
  const auto memory_bytes = static_cast<int64_t>(size_bytes);
  auto memory = unfilled ? ShmSegment::CreateUnfilled(name_, memory_bytes)
                         : ShmSegment::Create(name_, memory_bytes, /*prefault=*/false);
  if (!memory.ok()) {
    LogWarning("no shared memory", {{"error", memory.status()}});
    errno = ENOMEM;
    return nullptr;
  }
  Segment& segment = Insert(*std::move(memory));
  segment.is_unfilled = unfilled;
  return &segment;
}

ShmArena::Segment& ShmArena::Insert(std::unique_ptr<ShmSegment> memory) {
  const char* const begin = memory->bytes().data();
  Segment& segment = segments_[begin];
  segment.id = next_id_++;
  segment.memory = std::move(memory);
  by_id_[segment.id] = begin;
  return segment;
}

}  // namespace shardmesh::worker
