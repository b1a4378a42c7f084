// Sends the requests, and hands the answers to the waiting threads.
#include "worker/service/attach_memory_requests.h"

#include <utility>

#include "shardmesh/internal/v1/attach_service.pb.h"

namespace shardmesh::worker {

bool MemoryRequests::Free(int64_t need_bytes, bool on_disk) {
  int64_t order_id = 0;
  AttachSinkPtr stream;
  {
    absl::MutexLock lock(&mutex_);
    if (stream_ == nullptr) return false;
    stream = stream_;
    order_id = ++last_order_;
    orders_.emplace(order_id, std::nullopt);
  }
  internal::v1::AttachRequest request;
  request.mutable_memory_request()->set_order_id(order_id);
  request.mutable_memory_request()->set_need_bytes(need_bytes);
  request.mutable_memory_request()->set_on_disk(on_disk);
  stream->Send(std::move(request));
  absl::MutexLock lock(&mutex_);
  const auto is_answered = [this, order_id]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return orders_.find(order_id)->second.has_value();
  };
  mutex_.AwaitWithTimeout(absl::Condition(&is_answered), timeout_);
  const auto order = orders_.find(order_id);
  const int64_t freed_bytes = order->second.value_or(0);
  orders_.erase(order);
  return freed_bytes > 0;
}

void MemoryRequests::Attached(AttachSinkPtr stream) {
  absl::MutexLock lock(&mutex_);
  stream_ = std::move(stream);
}

void MemoryRequests::Detached() {
  absl::MutexLock lock(&mutex_);
  stream_ = nullptr;
  for (auto& [id, freed_bytes] : orders_) freed_bytes = freed_bytes.value_or(0);
}

void MemoryRequests::Answered(int64_t order_id, int64_t freed_bytes) {
  absl::MutexLock lock(&mutex_);
  const auto order = orders_.find(order_id);
  if (order != orders_.end()) order->second = freed_bytes;  // else nobody waits any more
}

}  // namespace shardmesh::worker
