// Answers to clients' questions for arrays that may have the elements of tensors.
#ifndef SHARDMESH_SERVER_CALLS_CONTENT_CALLS_H_
#define SHARDMESH_SERVER_CALLS_CONTENT_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "server/state/array_registry.h"
#include "shardmesh/v1/array_service.pb.h"

namespace shardmesh::server {

// The limits of FindContentRequest.
inline constexpr int kMaxContentTensors = 1'000;
inline constexpr int kMaxContentFiles = 1'000;

// Answers ArrayService.FindContent; array_service.proto lists its errors. `response` must be empty.
// Takes some milliseconds for a full page: do not call it on a gRPC thread. CANCELLED:
// `is_cancelled`, which is polled, returned true.
absl::Status FindContent(const ArrayRegistry& registry, const v1::FindContentRequest& request,
                         const std::function<bool()>& is_cancelled,
                         v1::FindContentResponse* response);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_CALLS_CONTENT_CALLS_H_
