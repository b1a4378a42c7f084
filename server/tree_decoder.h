// Takes apart the columns in which trees travel.
#ifndef SHARDMESH_SERVER_TREE_DECODER_H_
#define SHARDMESH_SERVER_TREE_DECODER_H_

#include <deque>
#include <vector>

#include "absl/status/statusor.h"
#include "server/tree_resolver.h"
#include "shardmesh/v1/tree.pb.h"

namespace shardmesh::server {

// Decodes the messages of one tree and keeps the tables that they share. For one thread.
class TreeDecoder {
 public:
  static constexpr size_t kMaxNameBytes = 1024;
  // Most entries of either table.
  static constexpr size_t kMaxTableSize = 100'000;

  // The tensors of the next message. They view into it and into this decoder, and are valid until
  // the next call. INVALID_ARGUMENT names the field, such as `names[7]`: an empty or over-long
  // name, one that is not UTF-8, columns of different lengths, a shape of CheckShape's errors, an
  // index beyond its table, axes and a spec for the same tensor.
  absl::StatusOr<absl::Span<const TreeTensor>> Decode(const v1::TreeTensors& from);

 private:
  std::deque<std::vector<AxisValue>> axes_;  // deques, as tensors know their entries by address
  std::deque<PartitionSpec> specs_;
  std::vector<TreeTensor> tensors_;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_TREE_DECODER_H_
