// Shared memory that one process writes and other processes on the same host read.
//
// clang-format off
//   owner:  ShmSegment::Create -> bytes() to write, fd() to hand out over a unix socket
//   peer:   ShmView::Open(fd, ...) -> bytes() to read
// clang-format on
//
// A segment is a memfd, without a file: it needs no privileges, and the kernel frees it however a
// process ends.
//
// A segment is sealed against shrinking, growing and mappings for writing other than the owner's
// first mapping. A peer with the descriptor can therefore neither change the data nor cause a page
// fault (SIGBUS) in the owner. ShmView::Open accepts only segments that are sealed in this way.
// Therefore an owner cannot cause page faults in its peers either, by shrinking the segment.
//
// A seal against mappings for writing also ends write(2). An owner that fills a segment with
// write(2) therefore sets this seal afterwards (CreateUnfilled, Write, Seal), before it hands the
// descriptor out.
//
// The data of a view may change while a reader reads the data. A reader that checks data therefore
// copies the data first and checks the copy.
#ifndef SHARDMESH_WORKER_SHM_SHM_SEGMENT_H_
#define SHARDMESH_WORKER_SHM_SHM_SEGMENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "process/file.h"

namespace shardmesh::worker {

// The owner's end of a segment. Thread-compatible. The bytes are ordinary memory without
// synchronisation.
class ShmSegment {
 public:
  // Creates memory of size_bytes > 0, a multiple of the page size, filled with zeros. `prefault`
  // allocates all pages of the memory at once. `name` is the segment's name in /proc.
  // RESOURCE_EXHAUSTED if the host has no memory or no descriptors left. UNIMPLEMENTED if the
  // kernel is older than Linux 5.1, which cannot seal memory in this way.
  static absl::StatusOr<std::unique_ptr<ShmSegment>> Create(const std::string& name,
                                                            int64_t size_bytes, bool prefault);
  // Like Create without `prefault`, for memory that its owner fills with Write. It is sealed
  // against shrinking and growing at once, and as Create seals it only by Seal. No peer may get its
  // descriptor before.
  static absl::StatusOr<std::unique_ptr<ShmSegment>> CreateUnfilled(const std::string& name,
                                                                    int64_t size_bytes);
  // Returns a segment that is sealed memory of another process: see CheckSealed
  // (process/sealed/sealed_memory.h), of size_bytes > 0. This process only reads its bytes, and so
  // do peers, which accept its seals. Faults in its pages if some are missing (MapForReading).
  // Takes the descriptor. Returns null, with errno set and the descriptor unchanged, if the kernel
  // refuses the mapping.
  static std::unique_ptr<ShmSegment> Adopt(FileDescriptor& memory, size_t size_bytes);
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;
  ~ShmSegment();

  absl::Span<char> bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }

  // Writes the parts, one after the other, from offset_bytes on, without a fault: the kernel does
  // not clear pages that are written as a whole. Requires a segment of CreateUnfilled that is not
  // sealed. Returns false, with errno set, if the host has no memory for the parts.
  bool Write(size_t offset_bytes, absl::Span<const absl::Span<const char>> parts) const;
  // Seals a segment of CreateUnfilled. Returns false if the kernel cannot: see Create.
  bool Seal() const;

 private:
  // Create, with these seals.
  static absl::StatusOr<std::unique_ptr<ShmSegment>> CreateWith(const std::string& name,
                                                                int64_t size_bytes, bool prefault,
                                                                int seals);
  ShmSegment(FileDescriptor fd, absl::Span<char> bytes) : fd_(std::move(fd)), bytes_(bytes) {}

  const FileDescriptor fd_;
  const absl::Span<char> bytes_;
};

// A peer's segment. It is read through a mapping, or through its descriptor if it is not mapped.
//
// A host limits the mappings of a process (vm.max_map_count), and malloc and threads need some
// mappings. All views of the process together therefore use at most MaxMapped mappings. A view
// beyond this limit, or one that the kernel refuses to map, keeps the descriptor instead. Its users
// copy the data with Read.
class ShmView {
 public:
  // Opens the segment whose descriptor a peer sent. INVALID_ARGUMENT if the descriptor is not that
  // of a segment of `size_bytes`, or if the segment is not sealed as ShmSegment::Create seals it.
  static absl::StatusOr<std::unique_ptr<ShmView>> Open(FileDescriptor fd, int64_t size_bytes);
  // Returns the most mappings that all views may use: half of the host's limit, unless a test
  // called SetMaxMapped.
  static int64_t MaxMapped();
  static void SetMaxMapped(int64_t views);
  ShmView(const ShmView&) = delete;
  ShmView& operator=(const ShmView&) = delete;
  ~ShmView();

  int64_t size_bytes() const { return size_bytes_; }
  bool is_mapped() const { return bytes_.data() != nullptr; }
  // Requires a mapped view.
  absl::Span<const char> bytes() const { return bytes_; }
  // Copies bytes from a view that is not mapped. Requires that the bytes lie within the segment.
  absl::Status Read(int64_t offset_bytes, absl::Span<char> to) const;

 private:
  ShmView(FileDescriptor fd, absl::Span<const char> bytes, int64_t size_bytes)
      : fd_(std::move(fd)), bytes_(bytes), size_bytes_(size_bytes) {}

  const FileDescriptor fd_;  // open if the view is not mapped
  const absl::Span<const char> bytes_;
  const int64_t size_bytes_;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SHM_SHM_SEGMENT_H_
