// Memory that one process writes and its peers on the same host read.
//
//   owner:  ShmSegment::Create -> bytes() to write, fd() to hand out over a unix socket
//   peer:   ShmView::Open(fd, ...) -> bytes() to read
//
// A segment is a memfd without a name: no privileges are needed, and nothing is left behind,
// however a process ends. It is sealed against shrinking, growing and mappings for writing other
// than the owner's first one, so that a peer that holds the descriptor can neither change what it
// reads nor make the owner fault; and a view is opened only of a segment that is sealed so, so that
// an owner cannot make its peers fault by shrinking it.
//
// What a view shows may change while it is read: whoever reads it copies first and judges the copy.
#ifndef SHARDMESH_WORKER_SHM_SHM_SEGMENT_H_
#define SHARDMESH_WORKER_SHM_SHM_SEGMENT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "process/file.h"

namespace shardmesh::worker {

// The owner's end. Thread-compatible; the bytes are any memory.
class ShmSegment {
 public:
  // Memory of size_bytes > 0, a multiple of the page size, zeros at first and faulted in at once if
  // `prefault`. `name` is what /proc shows of it. RESOURCE_EXHAUSTED if the host has no memory or
  // descriptors for it; UNIMPLEMENTED if its kernel cannot seal memory (before 5.1).
  static absl::StatusOr<std::unique_ptr<ShmSegment>> Create(const std::string& name,
                                                            int64_t size_bytes, bool prefault);
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;
  ~ShmSegment();

  absl::Span<char> bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }

 private:
  ShmSegment(FileDescriptor fd, absl::Span<char> bytes) : fd_(std::move(fd)), bytes_(bytes) {}

  const FileDescriptor fd_;
  const absl::Span<char> bytes_;
};

// A peer's segment, to be read where it is mapped, or else through its descriptor.
//
// A host allows a process so many mappings (vm.max_map_count), and malloc and threads need some. So
// all views of the process together take at most MaxMapped of them; one beyond that, or that the
// kernel refuses to map, keeps the descriptor, and what it has is copied.
class ShmView {
 public:
  // The segment of a descriptor that came from a peer. INVALID_ARGUMENT if it is none, if it has
  // not `size_bytes`, or if it is not sealed as ShmSegment seals it.
  static absl::StatusOr<std::unique_ptr<ShmView>> Open(FileDescriptor fd, int64_t size_bytes);
  // Half of what the host allows, unless SetMaxMapped said otherwise, for tests.
  static int64_t MaxMapped();
  static void SetMaxMapped(int64_t views);
  ShmView(const ShmView&) = delete;
  ShmView& operator=(const ShmView&) = delete;
  ~ShmView();

  int64_t size_bytes() const { return size_bytes_; }
  bool is_mapped() const { return bytes_.data() != nullptr; }
  // Of one that is mapped.
  absl::Span<const char> bytes() const { return bytes_; }
  // Copies what lies at an offset, from one that is not mapped; it must lie within the segment.
  absl::Status Read(int64_t offset_bytes, absl::Span<char> to) const;

 private:
  ShmView(FileDescriptor fd, absl::Span<const char> bytes, int64_t size_bytes)
      : fd_(std::move(fd)), bytes_(bytes), size_bytes_(size_bytes) {}

  const FileDescriptor fd_;  // open if it is not mapped
  const absl::Span<const char> bytes_;
  const int64_t size_bytes_;
};

// A message with descriptors over a connected unix socket (SOCK_SEQPACKET). At most 16 of them and
// 4 KiB of text. UNAVAILABLE if the other side is gone.
absl::Status SendDescriptors(int socket, std::string_view text, absl::Span<const int> fds);

struct ReceivedDescriptors {
  std::string text;
  std::vector<FileDescriptor> fds;
};
// Waits for a message; UNAVAILABLE if the other side is gone, INVALID_ARGUMENT if the message is
// longer than allowed (its descriptors are closed), RESOURCE_EXHAUSTED if this process has no place
// left for its descriptors.
absl::StatusOr<ReceivedDescriptors> ReceiveDescriptors(int socket);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SHM_SHM_SEGMENT_H_
