// The tensors of a model as the catalog stores them, decoded once for all requests that name the
// tree.
#ifndef SHARDMESH_SERVER_STATE_STORED_TREE_H_
#define SHARDMESH_SERVER_STATE_STORED_TREE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "rpc/codec/tree_decoder.h"
#include "shardmesh/v1/tree.pb.h"

namespace shardmesh::server {

// Immutable, so threads may share it.
class StoredTree {
 public:
  // INVALID_ARGUMENT names the field of the message, such as `tensors.name_sizes[7]`. It is
  // returned for the errors of TreeDecoder and CheckStoredTreeSize, and for a tensor that occurs
  // twice. With LIMIT_EXCEEDED: the number of elements, or of bytes, of all tensors exceeds 2^63 -
  // 1. Create reads only the tensors of the message.
  static absl::StatusOr<std::shared_ptr<const StoredTree>> Create(v1::StoredTree from);

  // The tensors in their stored order; valid as long as this tree.
  absl::Span<const rpc::TreeTensor> tensors() const { return tensors_; }

  // Encodes everything except the tensors. Answers that list trees use this form.
  void EncodeSummary(v1::StoredTree* to) const;

 private:
  StoredTree() = default;

  absl::Status Take(v1::StoredTree from);

  v1::TreeTensors columns_;  // the elements of `tensors_` are views into these columns
  rpc::TreeDecoder decoder_;
  absl::Span<const rpc::TreeTensor> tensors_;
  int64_t parameters_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_STORED_TREE_H_
