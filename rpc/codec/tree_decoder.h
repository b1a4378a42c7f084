// Decodes the columns of a tree on the wire, and checks the size of stored trees.
#ifndef SHARDMESH_RPC_CODEC_TREE_DECODER_H_
#define SHARDMESH_RPC_CODEC_TREE_DECODER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/axis_value.h"
#include "sharding/spec.h"
#include "shardmesh/v1/tree.pb.h"
#include "tensor/dtype.h"

namespace shardmesh::rpc {

// A tensor of a tree. It has only views: into a message, and into tables that the tensors of a tree
// share. The address of a table's entry identifies the entry.
struct TreeTensor {
  std::string_view name;
  absl::Span<const int64_t> shape;
  std::optional<Dtype> dtype = std::nullopt;     // nullopt: no bytes are counted
  const std::vector<AxisValue>* axes = nullptr;  // semantic, instead of rules
  const PartitionSpec* spec = nullptr;           // the tensor's own, instead of either
};

// Decodes the messages of one tree and keeps their shared tables. For one thread.
class TreeDecoder {
 public:
  static constexpr size_t kMaxNameBytes = 1024;
  // Upper bound on the entries of either table.
  static constexpr size_t kMaxTableSize = 100'000;

  // Returns the tensors of the next message. They view into the message and this decoder, and are
  // valid until the next call. INVALID_ARGUMENT names the field, such as `names[7]`: an empty or
  // over-long name, one that is not UTF-8, columns of different lengths, a shape that CheckShape
  // refuses, an index beyond its table, axes and a spec for the same tensor.
  absl::StatusOr<absl::Span<const TreeTensor>> Decode(const v1::TreeTensors& from);

 private:
  std::deque<std::vector<AxisValue>> axes_;  // deques: the addresses of entries must not change
  std::deque<PartitionSpec> specs_;
  std::vector<TreeTensor> tensors_;
};

// Upper bounds on a stored tree. It fits into a message and a store transaction, and so does one
// answer about all of its tensors.
inline constexpr int64_t kMaxStoredTreeBytes = int64_t{1} << 20;  // as TreeTensors
inline constexpr int64_t kMaxStoredTreeTensors = 100'000;

// Checks only the size. INVALID_ARGUMENT (BAD_FIELD without tensors, LIMIT_EXCEEDED over a limit
// above) names the field `tensors` of a StoredTree.
absl::Status CheckStoredTreeSize(const v1::TreeTensors& tensors);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_TREE_DECODER_H_
