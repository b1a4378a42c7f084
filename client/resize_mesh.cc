// ArrayClient::ResizeMesh: begins a resize, and watches it to its end.
#include <string>
#include <utility>

#include "client/arrays.h"
#include "client/client_core.h"
#include "client/remote/coordinator_connection.h"
#include "client/remote/operation_calls.h"
#include "process/steady_deadline.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

// Time for the coordinator to take the cancellation of a resize whose caller gives up.
constexpr absl::Duration kResizeCancelTime = absl::Seconds(5);

ResizeResult DecodeResize(const v1::ResizeMeshResponse& from) {
  ResizeResult to{.operation_id = from.operation_id(),
                  .array_count = from.array_count(),
                  .moved_bytes = from.moved_bytes(),
                  .refusal_count = from.refusal_count()};
  for (const v1::ResizeMeshRank& each : from.ranks()) {
    to.ranks.push_back({.rank = each.rank(),
                        .identity = each.identity(),
                        .moved_bytes = each.moved_bytes(),
                        .have_bytes = each.have_bytes(),
                        .need_bytes = each.need_bytes()});
  }
  for (const v1::ResizeMeshRefusal& each : from.refusals()) {
    to.refusals.push_back(
        {.name = each.name(), .array_id = each.array_id(), .error = rpc::Decode(each.error())});
  }
  return to;
}

// Returns the error with which the operation ended; OK if it succeeded.
absl::Status ErrorOf(const Operation& operation) {
  if (operation.state == OperationState::kDone) return absl::OkStatus();
  if (!operation.error.ok()) return operation.error;
  return WithReason(absl::CancelledError("the resize was cancelled"), Reason::kCancelled);
}

}  // namespace

absl::StatusOr<ResizeResult> ArrayClient::ResizeMesh(const std::string& mesh,
                                                     const std::string& shape,
                                                     const ResizeOptions& resize_options,
                                                     const CallOptions& options) {
  const SteadyDeadline deadline = core_->TransferDeadline(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::ResizeMeshRequest request;
  request.set_mesh(mesh);
  request.set_shape(shape);
  request.set_uneven(rpc::Encode(resize_options.uneven));
  request.mutable_weights()->Add(resize_options.weights.begin(), resize_options.weights.end());
  request.set_validate_only(resize_options.validate_only);
  for (;;) {
    request.set_request_id(NewRequestId());
    std::string owner;
    SHARDMESH_ASSIGN_OR_RETURN(
        const v1::ResizeMeshResponse begun,
        core_->InSession(deadline, options,
                         [&](const std::string& session_id,
                             const CallLimit& limit) -> absl::StatusOr<v1::ResizeMeshResponse> {
                           owner = session_id;
                           request.set_session_id(session_id);
                           v1::ResizeMeshResponse response;
                           SHARDMESH_RETURN_IF_ERROR(connection.Call(
                               connection.arrays, &v1::ArrayService::Stub::ResizeMesh, request,
                               limit, &response));
                           return response;
                         }));
    ResizeResult result = DecodeResize(begun);
    if (result.operation_id.empty()) return result;
    if (resize_options.on_begun) resize_options.on_begun(result.operation_id);
    const absl::StatusOr<Operation> ended = WatchOperation(
        connection, result.operation_id,
        [&resize_options](const Operation& operation) {
          if (operation.total_bytes > 0 && resize_options.progress) {
            resize_options.progress(operation.done_bytes, operation.total_bytes);
          }
          return true;
        },
        ClientCore::LimitAt(deadline, options));
    if (ended.ok()) {
      SHARDMESH_RETURN_IF_ERROR(ErrorOf(*ended));
      return result;
    }
    // The coordinator answers shortly before the deadline.
    const bool is_given_up =
        deadline.is_over() || absl::IsDeadlineExceeded(ended.status()) ||
        (options.cancellation != nullptr && options.cancellation->is_cancelled());
    // A coordinator that started again does not know the operation. The resize is where it was, and
    // goes on with the next request.
    if (!is_given_up && (absl::IsNotFound(ended.status()) || absl::IsUnavailable(ended.status()))) {
      continue;
    }
    if (is_given_up) {
      v1::CancelOperationRequest cancel;
      cancel.set_operation_id(result.operation_id);
      cancel.set_session_id(owner);
      v1::CancelOperationResponse ignored;
      connection
          .Call(connection.operations, &v1::OperationService::Stub::CancelOperation, cancel,
                CallLimit::Within(kResizeCancelTime), &ignored)
          .IgnoreError();
    }
    return ended.status();
  }
}

}  // namespace shardmesh::client
