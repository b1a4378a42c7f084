// Encodes trees of tensors for the server: columns, and tables of shared values.
#include "client/remote/tree_encoder.h"

#include <algorithm>
#include <cstdint>

#include "rpc/codec/array_codec.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/tree_decoder.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {

uint32_t TreeEncoder::AxesIndex(const std::vector<AxisValue>& axes, v1::TreeTensors* to) {
  const auto [known, is_new] =
      axes_.try_emplace(AxisValue::List(axes).ToString(), static_cast<uint32_t>(axes_.size()) + 1);
  if (is_new) {
    v1::LogicalAxes* table = to->add_axes_table();
    for (const AxisValue& axis : axes) {
      rpc::Encode(axis, table->add_axes());
    }
    table_bytes_ += table->ByteSizeLong();
  }
  return known->second;
}

uint32_t TreeEncoder::SpecIndex(const PartitionSpec& spec, v1::TreeTensors* to) {
  const auto [known, is_new] =
      specs_.try_emplace(spec.ToString(), static_cast<uint32_t>(specs_.size()) + 1);
  if (is_new) {
    v1::PartitionSpec* table = to->add_spec_table();
    rpc::Encode(spec, table);
    table_bytes_ += table->ByteSizeLong();
  }
  return known->second;
}

void TreeEncoder::EncodeNext(v1::TreeTensors* to) {
  size_t count = 0;
  size_t name_bytes = 0;
  bool has_dtypes = false;
  bool has_axes = false;
  bool has_specs = false;
  for (size_t bytes = 0; count < rest_.size() && bytes < message_bytes_; ++count) {
    const TreeTensor& tensor = rest_[count];
    name_bytes += tensor.name.size();
    bytes += tensor.name.size() + 4 * tensor.shape.size() + 8;
    has_dtypes = has_dtypes || tensor.dtype.has_value();
    has_axes = has_axes || tensor.axes.has_value();
    has_specs = has_specs || tensor.spec.has_value();
  }
  to->mutable_names()->reserve(name_bytes);
  to->mutable_name_sizes()->Reserve(static_cast<int>(count));
  to->mutable_ranks()->Reserve(static_cast<int>(count));
  table_bytes_ = 0;
  size_t written = 0;
  for (; written < count && table_bytes_ < kMessageBytes; ++written) {
    const TreeTensor& tensor = rest_[written];
    to->mutable_names()->append(tensor.name);
    to->add_name_sizes(static_cast<uint32_t>(tensor.name.size()));
    to->add_ranks(static_cast<uint32_t>(tensor.shape.size()));
    to->mutable_sizes()->Add(tensor.shape.begin(), tensor.shape.end());
    if (has_dtypes) {
      to->add_dtypes(tensor.dtype.has_value() ? rpc::Encode(*tensor.dtype) : v1::DTYPE_UNSPECIFIED);
    }
    if (has_axes) {
      to->add_axes_indexes(tensor.axes.has_value() ? AxesIndex(*tensor.axes, to) : 0);
    }
    if (has_specs) {
      to->add_spec_indexes(tensor.spec.has_value() ? SpecIndex(*tensor.spec, to) : 0);
    }
  }
  rest_.remove_prefix(written);
}

absl::Status Encode(const StoredTree& from, v1::StoredTree* to) {
  TreeEncoder(from.tensors, SIZE_MAX).EncodeNext(to->mutable_tensors());
  return rpc::CheckStoredTreeSize(to->tensors());
}

absl::StatusOr<StoredTree> Decode(const v1::StoredTree& from) {
  rpc::TreeDecoder decoder;
  SHARDMESH_ASSIGN_OR_RETURN(const absl::Span<const rpc::TreeTensor> tensors,
                             decoder.Decode(from.tensors()));
  StoredTree tree = {
      .tensor_count = from.tensor_count(), .parameters = from.parameters(), .bytes = from.bytes()};
  tree.tensors.reserve(tensors.size());
  for (const rpc::TreeTensor& tensor : tensors) {
    TreeTensor& to = tree.tensors.emplace_back();
    to.name = std::string(tensor.name);
    to.shape.assign(tensor.shape.begin(), tensor.shape.end());
    to.dtype = tensor.dtype;
    if (tensor.axes != nullptr) {
      to.axes = *tensor.axes;
    }
    if (tensor.spec != nullptr) {
      to.spec = *tensor.spec;
    }
  }
  return tree;
}

}  // namespace shardmesh::client
