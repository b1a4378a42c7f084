// Places of vectors in the tiles of an attention.
#include "worker/tensor_op/attention.h"

#include <algorithm>

#include "worker/kernel/float_block.h"

namespace shardmesh::worker {

AttentionTiles::AttentionTiles(const AttentionOp& op, OpInputs inputs, const OpOutput& output)
    : dtype(output.dtype),
      element_bytes(FloatBytes(output.dtype)),
      batch(inputs[0].shape[0]),
      queries(inputs[0].shape[1]),
      rows(inputs[1].shape[1]),
      key_heads(inputs[1].shape[2]),
      group(key_heads == 0 ? 0 : inputs[0].shape[2] / key_heads),
      features(inputs[0].shape[3]),
      value_features(inputs[2].shape[3]),
      scale(op.scale),
      query_(inputs[0].bytes.data()),
      keys_(inputs[1].bytes.data()),
      values_(inputs[2].bytes.data()),
      mask_(op.mask.has_value() ? &inputs.back() : nullptr),
      result_(output.bytes.data()) {
  if (!op.positions.has_value()) return;
  positions_ = reinterpret_cast<const int32_t*>(inputs[3].bytes.data());
  positions_are_shared_ = inputs[3].shape.size() == 1;
}

int64_t AttentionTiles::SeenRows(int64_t sequence, int64_t query) const {
  if (positions_ == nullptr) return rows;
  const int64_t position = positions_[positions_are_shared_ ? query : sequence * queries + query];
  return std::clamp<int64_t>(position + 1, 0, rows);
}

int64_t AttentionTiles::MostSeenRows(int64_t sequence, int64_t begin, int64_t end) const {
  if (positions_ == nullptr) return begin < end ? rows : 0;
  int64_t most = 0;
  for (int64_t query = begin; query < end; ++query) {
    most = std::max(most, SeenRows(sequence, query));
  }
  return most;
}

bool AttentionTiles::IsHidden(int64_t sequence, int64_t row) const {
  if (mask_ == nullptr) return false;
  const int64_t element = sequence * rows + row;
  return mask_->dtype == Dtype::kI32
             ? reinterpret_cast<const int32_t*>(mask_->bytes.data())[element] == 0
             : mask_->bytes[static_cast<size_t>(element)] == 0;
}

int64_t AttentionTiles::VectorOf(int64_t sequence, int64_t key_head, int64_t group_query) const {
  const int64_t query = group_query / group;
  return ((sequence * queries + query) * key_heads + key_head) * group + group_query % group;
}

const char* AttentionTiles::Query(int64_t sequence, int64_t key_head, int64_t group_query) const {
  return query_ + VectorOf(sequence, key_head, group_query) * features * element_bytes;
}

const char* AttentionTiles::Key(int64_t sequence, int64_t row, int64_t key_head) const {
  return keys_ + ((sequence * rows + row) * key_heads + key_head) * features * element_bytes;
}

const char* AttentionTiles::Value(int64_t sequence, int64_t row, int64_t key_head) const {
  return values_ +
         ((sequence * rows + row) * key_heads + key_head) * value_features * element_bytes;
}

char* AttentionTiles::Result(int64_t sequence, int64_t key_head, int64_t group_query) const {
  return result_ + VectorOf(sequence, key_head, group_query) * value_features * element_bytes;
}

}  // namespace shardmesh::worker
