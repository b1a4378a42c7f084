// Decodes a tree (names, shapes and element types of a model's tensors) from the columns of its
// messages, and checks the size of stored trees.
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

// A tensor of a tree. Consists of views: of a message, and of tables that the tensors of a tree
// share. The address of a table's entry identifies the entry.
struct TreeTensor {
  std::string_view name;
  absl::Span<const int64_t> shape;
  std::optional<Dtype> dtype = std::nullopt;     // nullopt: the tensor's bytes are not counted
  const std::vector<AxisValue>* axes = nullptr;  // semantic axes; null: the rules apply
  const PartitionSpec* spec = nullptr;           // its own spec; null: the axes or rules apply
};

// Decodes the messages of one tree, and keeps the tables that the tensors share. For one thread.
class TreeDecoder {
 public:
  static constexpr size_t kMaxNameBytes = 1024;
  // Maximum number of entries of the table of axes, and of the table of specs.
  static constexpr size_t kMaxTableSize = 100'000;

  // Returns the tensors of the next message. They are views of the message and of this decoder,
  // valid until the next call of Decode. INVALID_ARGUMENT, with the field such as `names[7]`, for:
  //   - a name that is empty, too long or not UTF-8;
  //   - columns of different lengths;
  //   - a shape that CheckShape refuses;
  //   - an index beyond its table;
  //   - both axes and a spec for one tensor.
  absl::StatusOr<absl::Span<const TreeTensor>> Decode(const v1::TreeTensors& from);

 private:
  // Deques, because the addresses of entries must not change.
  std::deque<std::vector<AxisValue>> axes_;
  std::deque<PartitionSpec> specs_;
  std::vector<TreeTensor> tensors_;
};

// Limits of a stored tree. A tree within these limits fits into a message and into a transaction of
// the state store. One answer about all of its tensors also fits into a message.
inline constexpr int64_t kMaxStoredTreeBytes = int64_t{1} << 20;  // encoded as TreeTensors
inline constexpr int64_t kMaxStoredTreeTensors = 100'000;

// Checks only the size of a tree. INVALID_ARGUMENT names the field `tensors` of a StoredTree:
// BAD_FIELD if it has no tensors, LIMIT_EXCEEDED if it exceeds one of the limits above.
absl::Status CheckStoredTreeSize(const v1::TreeTensors& tensors);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_TREE_DECODER_H_
