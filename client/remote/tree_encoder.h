// Encodes trees of tensors for the server: columns, and tables of shared values.
#ifndef SHARDMESH_CLIENT_REMOTE_TREE_ENCODER_H_
#define SHARDMESH_CLIENT_REMOTE_TREE_ENCODER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/types/catalog_entries.h"
#include "client/types/layout_questions.h"
#include "shardmesh/v1/tree.pb.h"

namespace shardmesh::client {

// Packs the tensors of one tree into messages. Not thread-safe.
class TreeEncoder {
 public:
  // Upper bound on the bytes of tensors in one message. The same bound holds, separately, for the
  // bytes of the message's tables. The sum of both bounds is well below gRPC's message limit.
  static constexpr size_t kMessageBytes = size_t{256} << 10;

  // `message_bytes`: see kMessageBytes.
  explicit TreeEncoder(absl::Span<const TreeTensor> tensors, size_t message_bytes = kMessageBytes)
      : message_bytes_(message_bytes), rest_(tensors) {}

  bool done() const { return rest_.empty(); }
  // Fills `to`, which must be empty, with the next tensors.
  void EncodeNext(v1::TreeTensors* to);

 private:
  uint32_t AxesIndex(const std::vector<AxisValue>& axes, v1::TreeTensors* to);
  uint32_t SpecIndex(const PartitionSpec& spec, v1::TreeTensors* to);

  const size_t message_bytes_;
  absl::Span<const TreeTensor> rest_;
  size_t table_bytes_ = 0;  // bytes of the current message's tables
  // Both members map the text of a list of axes, or of a spec, to 1 + the index of the list or spec
  // in the table of the current message.
  absl::flat_hash_map<std::string, uint32_t> axes_;
  absl::flat_hash_map<std::string, uint32_t> specs_;
};

// Encodes a stored tree. INVALID_ARGUMENT, with the request's field, if the tree exceeds the limits
// of CheckStoredTreeSize.
absl::Status Encode(const StoredTree& from, v1::StoredTree* to);
// Decodes a stored tree. Errors of TreeDecoder.
absl::StatusOr<StoredTree> Decode(const v1::StoredTree& from);

// Writes `request`, which must have the header, and after that message the messages with all
// tensors. Stops if the stream breaks.
template <typename Stream, typename Request>
void WriteTree(Stream* stream, Request* request, absl::Span<const TreeTensor> tensors) {
  TreeEncoder encoder(tensors);
  bool is_open = stream->Write(*request);
  while (is_open && !encoder.done()) {
    request->Clear();
    encoder.EncodeNext(request->mutable_tensors());
    is_open = stream->Write(*request);
  }
}

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_REMOTE_TREE_ENCODER_H_
