// Reads a message as whole elements while it arrives.
#ifndef SHARDMESH_WORKER_COLLECTIVE_MESSAGE_READER_H_
#define SHARDMESH_WORKER_COLLECTIVE_MESSAGE_READER_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sharding/mesh.h"
#include "worker/collective/link.h"

namespace shardmesh::worker {

// One message of a known length, in elements of `element_bytes` (1 to 16). The caller reads the
// elements in place; the reader copies only an element that is split over two pieces. Used by one
// thread. The link outlives the reader.
class MessageReader {
 public:
  // Reads the message `tag` of `message_bytes` bytes from `peer`.
  MessageReader(Link* link, DeviceId peer, const Tag& tag, int64_t message_bytes,
                int64_t element_bytes, absl::Time deadline)
      : link_(link),
        peer_(peer),
        tag_(tag),
        message_bytes_(message_bytes),
        element_bytes_(static_cast<size_t>(element_bytes)),
        deadline_(deadline) {}

  // Returns the next elements: at least one, and as many as are contiguous in memory. They stay
  // valid until the next call of Skip. Waits for a piece if none has arrived; errors are those of
  // Link::Receive. Requires that elements are left to read.
  absl::StatusOr<absl::Span<const char>> Peek();

  // Advances by `size_bytes` of Peek's result, a whole number of elements.
  void Skip(size_t size_bytes);

 private:
  Link* link_;
  DeviceId peer_;
  Tag tag_;
  int64_t message_bytes_;
  size_t element_bytes_;
  absl::Time deadline_;

  OwnedBytes piece_;             // the rest of the current piece, not yet read
  std::array<char, 16> shared_;  // an element that is split over two pieces
  size_t shared_bytes_ = 0;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_MESSAGE_READER_H_
