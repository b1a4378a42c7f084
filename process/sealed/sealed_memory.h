// Memory that one process fills and seals, so that another process can use it without a copy.
//
// clang-format off
//   giver:  SealedMemoryWriter::Create -> Append... -> Seal -> SendDescriptors (local_socket.h)
//   taker:  ReceiveDescriptors -> CheckSealed -> map, or ReadSealed
// clang-format on
//
// The memory is a memfd. Its seals are permanent: after them nobody can change the bytes or the
// size, the giver included. Therefore the taker may check the bytes in place, and reading them
// causes no page fault beyond the end (SIGBUS).
#ifndef SHARDMESH_PROCESS_SEALED_SEALED_MEMORY_H_
#define SHARDMESH_PROCESS_SEALED_SEALED_MEMORY_H_

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "process/file.h"

namespace shardmesh {

// Fills memory from its beginning to its end. Never maps the memory: the kernel then need not clear
// a page before the page is filled. Movable. Not thread-safe.
class SealedMemoryWriter {
 public:
  // Begins memory of size_bytes > 0. RESOURCE_EXHAUSTED: the host has no memory or this process no
  // descriptors left. UNIMPLEMENTED: the system gives no such memory.
  static absl::StatusOr<SealedMemoryWriter> Create(int64_t size_bytes);

  // Writes the next bytes. Requires that they do not exceed the memory. RESOURCE_EXHAUSTED: the
  // host has no memory left.
  absl::Status Append(absl::Span<const char> bytes);

  // Seals the memory and returns it. FAILED_PRECONDITION: bytes are missing. UNIMPLEMENTED: the
  // kernel is older than Linux 5.1, which lacks one of the seals.
  absl::StatusOr<FileDescriptor> Seal() &&;

 private:
  SealedMemoryWriter(FileDescriptor memory, int64_t size_bytes)
      : memory_(std::move(memory)), size_bytes_(size_bytes) {}

  FileDescriptor memory_;
  int64_t size_bytes_;
  int64_t written_bytes_ = 0;
};

// Checks memory that another process made. INVALID_ARGUMENT (BAD_TILE), with the facts `have` and
// `need`: it is no memory of pages of the ordinary size, it lacks one of the seals that
// SealedMemoryWriter::Seal sets, or its size is not size_bytes > 0.
absl::Status CheckSealed(const FileDescriptor& memory, int64_t size_bytes);

// Copies the first bytes of sealed memory. Requires that the memory has as many bytes as `to`.
absl::Status ReadSealed(const FileDescriptor& memory, absl::Span<char> to);

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_SEALED_SEALED_MEMORY_H_
