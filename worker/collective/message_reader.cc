// MessageReader: puts whole elements together from pieces that are cut at any byte.
#include "worker/collective/message_reader.h"

#include <algorithm>
#include <cstring>

#include "status/status_macros.h"

namespace shardmesh::worker {

absl::StatusOr<absl::Span<const char>> MessageReader::Peek() {
  while (shared_bytes_ < element_bytes_) {
    if (shared_bytes_ == 0 && piece_.bytes.size() >= element_bytes_) {
      return piece_.bytes.first(piece_.bytes.size() / element_bytes_ * element_bytes_);
    }
    const size_t size_bytes = std::min(element_bytes_ - shared_bytes_, piece_.bytes.size());
    if (size_bytes > 0) {
      std::memcpy(shared_.data() + shared_bytes_, piece_.bytes.data(), size_bytes);
      shared_bytes_ += size_bytes;
      piece_.bytes.remove_prefix(size_bytes);
    }
    if (shared_bytes_ < element_bytes_) {
      piece_ = OwnedBytes();
      SHARDMESH_ASSIGN_OR_RETURN(piece_, link_->Receive(peer_, tag_, message_bytes_, deadline_));
    }
  }
  return absl::MakeConstSpan(shared_.data(), element_bytes_);
}

void MessageReader::Skip(size_t size_bytes) {
  if (shared_bytes_ == element_bytes_ && size_bytes > 0) {
    shared_bytes_ = 0;
  } else {
    piece_.bytes.remove_prefix(size_bytes);
  }
  if (piece_.bytes.empty()) piece_ = OwnedBytes();
}

}  // namespace shardmesh::worker
