// Decodes a stored tree, and sums its tensors.
#include "server/state/stored_tree.h"

#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "rpc/codec/status.h"
#include "sharding/shape.h"
#include "status/fact_keys.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"

namespace shardmesh::server {
namespace {

absl::Status TooMuch(std::string_view what) {
  return rpc::WithField(
      InvalidArgument(Reason::kLimitExceeded, StrCat("the tree has more than 2^63 - 1 ", what),
                      {{fact::kLimit, std::numeric_limits<int64_t>::max()}}),
      "tensors");
}

// Adds a tensor's elements to `*parameters` and, if its type is known, its bytes to `*bytes`.
absl::Status AddUp(const rpc::TreeTensor& tensor, int64_t* parameters, int64_t* bytes) {
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(tensor.shape));
  if (__builtin_add_overflow(*parameters, elements, parameters)) {
    return TooMuch("elements");
  }
  if (!tensor.dtype.has_value()) {
    return absl::OkStatus();
  }
  // Types may have less than a byte per element. Eight elements of n bits take n bytes. The bits of
  // the remaining elements are rounded up to bytes.
  const int64_t bits = BitsPerElement(*tensor.dtype);
  int64_t tensor_bytes = 0;
  if (__builtin_mul_overflow(elements / 8, bits, &tensor_bytes) ||
      __builtin_add_overflow(tensor_bytes, (elements % 8 * bits + 7) / 8, &tensor_bytes) ||
      __builtin_add_overflow(*bytes, tensor_bytes, bytes)) {
    return TooMuch("bytes");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const StoredTree>> StoredTree::Create(v1::StoredTree from) {
  std::shared_ptr<StoredTree> tree(new StoredTree());
  SHARDMESH_RETURN_IF_ERROR(tree->Take(std::move(from)));
  return std::shared_ptr<const StoredTree>(std::move(tree));
}

absl::Status StoredTree::Take(v1::StoredTree from) {
  SHARDMESH_RETURN_IF_ERROR(rpc::CheckStoredTreeSize(from.tensors()));
  columns_ = std::move(*from.mutable_tensors());
  absl::StatusOr<absl::Span<const rpc::TreeTensor>> tensors = decoder_.Decode(columns_);
  if (!tensors.ok()) {
    return rpc::WithField(std::move(tensors).status(), "tensors");
  }
  tensors_ = *tensors;
  absl::flat_hash_set<absl::string_view> names;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const rpc::TreeTensor& tensor = tensors_[i];
    if (!names.insert(ToAbsl(tensor.name)).second) {
      return rpc::WithField(
          rpc::WithField(InvalidArgument(Reason::kBadField,
                                         StrCat("tensor ", PythonRepr(tensor.name),
                                                ": the tensor is listed twice"),
                                         {{fact::kValue, tensor.name}}),
                         "name_sizes", i),
          "tensors");
    }
    SHARDMESH_RETURN_IF_ERROR(AddUp(tensor, &parameters_, &bytes_));
  }
  return absl::OkStatus();
}

void StoredTree::EncodeSummary(v1::StoredTree* to) const {
  to->set_tensor_count(static_cast<int64_t>(tensors_.size()));
  to->set_parameters(parameters_);
  to->set_bytes(bytes_);
}

}  // namespace shardmesh::server
