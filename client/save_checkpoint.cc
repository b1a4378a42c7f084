// ArrayClient::SaveCheckpoint: begins a save, watches it, and fetches its result.
#include <string>
#include <utility>

#include "client/arrays.h"
#include "client/client_core.h"
#include "client/remote/coordinator_connection.h"
#include "client/remote/operation_calls.h"
#include "process/steady_deadline.h"
#include "status/reason.h"
#include "status/status_macros.h"

namespace shardmesh::client {
namespace {

// Time for the coordinator to take the cancellation of a save whose caller gives up.
constexpr absl::Duration kCancelTime = absl::Seconds(5);

v1::BeginSaveRequest Encode(const std::string& prefix, const std::string& folder,
                            const SaveOptions& options) {
  v1::BeginSaveRequest request;
  request.set_request_id(NewRequestId());
  request.set_prefix(prefix);
  request.set_folder(folder);
  if (options.step.has_value()) request.set_step(*options.step);
  request.set_keep(options.keep);
  request.set_max_file_bytes(options.max_file_bytes);
  request.set_single_file(options.single_file);
  request.set_overwrite(options.overwrite);
  request.set_strip_prefix(options.strip_prefix);
  request.set_validate_only(options.validate_only);
  return request;
}

SavedCheckpoint Decode(const v1::WaitSaveResponse& from) {
  return {.path = from.path(),
          .tensors = from.tensors(),
          .files = from.files(),
          .size_bytes = from.size_bytes(),
          .written_bytes = from.written_bytes(),
          .found_bytes = from.found_bytes(),
          .linked_files = from.linked_files(),
          .took_over = from.took_over(),
          .removed_steps = {from.removed_steps().begin(), from.removed_steps().end()},
          .revision = from.revision()};
}

absl::StatusOr<SavedCheckpoint> AwaitSave(const CoordinatorConnection& connection,
                                          const std::string& operation_id,
                                          const SaveOptions& save_options,
                                          const SteadyDeadline& deadline,
                                          const CallOptions& options) {
  // The watch only shows progress: if it breaks, the result still comes.
  if (save_options.progress) {
    WatchOperation(
        connection, operation_id,
        [&save_options](const Operation& operation) {
          if (operation.total_bytes > 0) {
            save_options.progress(operation.done_bytes, operation.total_bytes);
          }
          return true;
        },
        ClientCore::LimitAt(deadline, options))
        .IgnoreError();
  }
  v1::WaitSaveRequest request;
  request.set_operation_id(operation_id);
  v1::WaitSaveResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.saves, &v1::SaveService::Stub::WaitSave,
                                            request, ClientCore::LimitAt(deadline, options),
                                            &response));
  return Decode(response);
}

}  // namespace

absl::StatusOr<SavedCheckpoint> ArrayClient::SaveCheckpoint(const std::string& prefix,
                                                            const std::string& folder,
                                                            const SaveOptions& save_options,
                                                            const CallOptions& options) {
  const SteadyDeadline deadline = core_->TransferDeadline(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::BeginSaveRequest request = Encode(prefix, folder, save_options);
  std::string owner;
  SHARDMESH_ASSIGN_OR_RETURN(
      const v1::BeginSaveResponse begun,
      core_->InSession(deadline, options,
                       [&](const std::string& session_id,
                           const CallLimit& limit) -> absl::StatusOr<v1::BeginSaveResponse> {
                         owner = session_id;
                         request.set_session_id(session_id);
                         v1::BeginSaveResponse response;
                         SHARDMESH_RETURN_IF_ERROR(
                             connection.Call(connection.saves, &v1::SaveService::Stub::BeginSave,
                                             request, limit, &response));
                         return response;
                       }));
  if (save_options.validate_only) {
    return SavedCheckpoint{.path = "",
                           .tensors = begun.tensors(),
                           .files = begun.files(),
                           .size_bytes = begun.size_bytes(),
                           .removed_steps = {},
                           .revision = begun.revision()};
  }
  if (save_options.on_begun) save_options.on_begun(begun.operation_id());
  absl::StatusOr<SavedCheckpoint> saved =
      AwaitSave(connection, begun.operation_id(), save_options, deadline, options);
  // The coordinator answers shortly before the deadline. A save that has ended ignores the
  // cancellation.
  const bool is_given_up =
      deadline.is_over() || absl::IsDeadlineExceeded(saved.status()) ||
      (options.cancellation != nullptr && options.cancellation->is_cancelled());
  if (!saved.ok() && is_given_up) {
    v1::CancelOperationRequest cancel;
    cancel.set_operation_id(begun.operation_id());
    cancel.set_session_id(owner);
    v1::CancelOperationResponse ignored;
    connection
        .Call(connection.operations, &v1::OperationService::Stub::CancelOperation, cancel,
              CallLimit::Within(kCancelTime), &ignored)
        .IgnoreError();
  }
  return saved;
}

}  // namespace shardmesh::client
