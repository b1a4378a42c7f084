// The tensors of a model in the catalog's form: decoded once, for all questions that name
// them.
#ifndef SHARDMESH_SERVER_STATE_STORED_TREE_H_
#define SHARDMESH_SERVER_STATE_STORED_TREE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "rpc/codec/tree_decoder.h"
#include "shardmesh/v1/tree.pb.h"

namespace shardmesh::server {

// Immutable, so threads can share it.
class StoredTree {
 public:
  // INVALID_ARGUMENT names the field of the message, such as `tensors.name_sizes[7]`. It has the
  // errors of TreeDecoder and CheckStoredTreeSize, a tensor listed twice, and LIMIT_EXCEEDED for
  // elements or bytes that together exceed 63 bits. Only the tensors of the message are read.
  static absl::StatusOr<std::shared_ptr<const StoredTree>> Create(v1::StoredTree from);

  // In the given order; valid as long as this tree.
  absl::Span<const rpc::TreeTensor> tensors() const { return tensors_; }

  // Encodes everything except the tensors, for lists.
  void EncodeSummary(v1::StoredTree* to) const;

 private:
  StoredTree() = default;

  absl::Status Take(v1::StoredTree from);

  v1::TreeTensors columns_;  // the tensors are views into these
  rpc::TreeDecoder decoder_;
  absl::Span<const rpc::TreeTensor> tensors_;
  int64_t parameters_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_STORED_TREE_H_
