// Memory for gathered tensors.
#include "client/types/array.h"

#include <limits>

#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {

absl::StatusOr<GatheredTensor> GatheredTensor::Allocate(Array array) {
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t size_bytes, array.descriptor.SizeBytes());
  // Only the host's memory limits the allocation.
  auto budget = std::make_shared<MemoryBudget>(std::numeric_limits<int64_t>::max());
  const auto pool = BufferPool::Create(budget.get(), /*max_idle_bytes=*/0);
  SHARDMESH_ASSIGN_OR_RETURN(
      Buffer buffer, pool->Allocate(size_bytes, StrCat("array ", array.descriptor.array_id)));
  return GatheredTensor(std::move(array), std::move(budget), std::move(buffer));
}

TensorView GatheredTensor::view() const {
  // Allocate gave the buffer the size that dtype and shape need.
  return *TensorView::Create(array_.descriptor.dtype, array_.descriptor.shape, buffer_.bytes());
}

MutableTensorView GatheredTensor::mutable_view() {
  return *MutableTensorView::Create(array_.descriptor.dtype, array_.descriptor.shape,
                                    buffer_.mutable_bytes());
}

}  // namespace shardmesh::client
