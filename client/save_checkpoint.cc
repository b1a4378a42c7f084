// Saves of ArrayClient: begins a save, watches it, and fetches its result.
#include <string>
#include <utility>

#include "client/arrays.h"
#include "client/client_core.h"
#include "client/remote/coordinator_connection.h"
#include "client/remote/operation_calls.h"
#include "process/steady_deadline.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

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
  request.set_detached(options.detached);
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
          .kept_steps = {from.kept_steps().begin(), from.kept_steps().end()},
          .revision = from.revision()};
}

absl::StatusOr<SavedCheckpoint> AwaitSave(const CoordinatorConnection& connection,
                                          const std::string& operation_id,
                                          const ProgressCallback& on_progress,
                                          const SteadyDeadline& deadline,
                                          const CallOptions& options) {
  // The watch only shows progress: if it breaks, the result still comes.
  if (on_progress) {
    WatchOperation(
        connection, operation_id,
        [&on_progress](const Operation& operation) {
          if (operation.total_bytes > 0) {
            on_progress(operation.done_bytes, operation.total_bytes);
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

// Returns the error of a save that was begun as `operation_id`. Says why the coordinator does not
// know the operation, if that is the error. The id is right: the coordinator gave it.
absl::Status ErrorOfBegun(const absl::Status& error, const std::string& operation_id,
                          const std::string& folder, const SaveOptions& options) {
  if (!absl::IsNotFound(error) || FactOf(error, fact::kKind) != "operation") return error;
  const std::string message = StrCat(
      "the coordinator no longer knows the save into ", folder, " (operation \"", operation_id,
      "\"), which may have ended well: the coordinator was restarted, or the save ended over ten "
      "minutes ago; repeat the save: it goes on with the bytes that the workers wrote",
      options.overwrite ? "" : ", or ends with ALREADY_EXISTS if the checkpoint is complete");
  return WithFactsOf(WithReason(absl::NotFoundError(message), ReasonOf(error)), error);
}

// Asks the coordinator to cancel a save of the session. A save that has ended ignores this.
void CancelSave(const CoordinatorConnection& connection, const std::string& operation_id,
                const std::string& session_id) {
  v1::CancelOperationRequest cancel;
  cancel.set_operation_id(operation_id);
  cancel.set_session_id(session_id);
  v1::CancelOperationResponse ignored;
  connection
      .Call(connection.operations, &v1::OperationService::Stub::CancelOperation, cancel,
            CallLimit::Within(kCancelTime), &ignored)
      .IgnoreError();
}

// Begins a save in a session, and sets `*owner` to its id.
absl::StatusOr<BegunSave> BeginIn(ClientCore* core, const std::string& prefix,
                                  const std::string& folder, const SaveOptions& save_options,
                                  const SteadyDeadline& deadline, const CallOptions& options,
                                  std::string* owner) {
  const CoordinatorConnection& connection = core->connection();
  v1::BeginSaveRequest request = Encode(prefix, folder, save_options);
  SHARDMESH_ASSIGN_OR_RETURN(
      const v1::BeginSaveResponse begun,
      core->InSession(deadline, options,
                      [&](const std::string& session_id,
                          const CallLimit& limit) -> absl::StatusOr<v1::BeginSaveResponse> {
                        *owner = session_id;
                        request.set_session_id(session_id);
                        v1::BeginSaveResponse response;
                        SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.saves,
                                                                  &v1::SaveService::Stub::BeginSave,
                                                                  request, limit, &response));
                        return response;
                      }));
  if (save_options.detached && !save_options.validate_only && !begun.detached()) {
    CancelSave(connection, begun.operation_id(), *owner);
    return WithReason(absl::FailedPreconditionError(
                          "the coordinator is of an older build, whose saves end with the client "
                          "that began them; the save was cancelled; update the coordinator, or "
                          "save without detaching"),
                      Reason::kNotAvailable, {{fact::kField, "detached"}});
  }
  if (!save_options.validate_only && save_options.on_begun) {
    save_options.on_begun(begun.operation_id());
  }
  return BegunSave{.operation_id = begun.operation_id(),
                   .tensors = begun.tensors(),
                   .files = begun.files(),
                   .size_bytes = begun.size_bytes(),
                   .revision = begun.revision()};
}

}  // namespace

absl::StatusOr<SavedCheckpoint> ArrayClient::SaveCheckpoint(const std::string& prefix,
                                                            const std::string& folder,
                                                            const SaveOptions& save_options,
                                                            const CallOptions& options) {
  const SteadyDeadline deadline = core_->TransferDeadline(options);
  const CoordinatorConnection& connection = core_->connection();
  std::string owner;
  SHARDMESH_ASSIGN_OR_RETURN(const BegunSave begun, BeginIn(core_, prefix, folder, save_options,
                                                            deadline, options, &owner));
  if (save_options.validate_only) {
    return SavedCheckpoint{.path = "",
                           .tensors = begun.tensors,
                           .files = begun.files,
                           .size_bytes = begun.size_bytes,
                           .removed_steps = {},
                           .kept_steps = {},
                           .revision = begun.revision};
  }
  absl::StatusOr<SavedCheckpoint> saved =
      AwaitSave(connection, begun.operation_id, save_options.progress, deadline, options);
  // The coordinator answers shortly before the deadline.
  const bool is_given_up =
      deadline.is_over() || absl::IsDeadlineExceeded(saved.status()) ||
      (options.cancellation != nullptr && options.cancellation->is_cancelled());
  if (saved.ok()) return saved;
  if (is_given_up) CancelSave(connection, begun.operation_id, owner);
  return ErrorOfBegun(saved.status(), begun.operation_id, folder, save_options);
}

absl::StatusOr<BegunSave> ArrayClient::BeginSave(const std::string& prefix,
                                                 const std::string& folder,
                                                 const SaveOptions& save_options,
                                                 const CallOptions& options) {
  std::string owner;
  return BeginIn(core_, prefix, folder, save_options, core_->TransferDeadline(options), options,
                 &owner);
}

absl::StatusOr<SavedCheckpoint> ArrayClient::WaitSave(const std::string& operation_id,
                                                      const ProgressCallback& progress,
                                                      const CallOptions& options) {
  return AwaitSave(core_->connection(), operation_id, progress, core_->TransferDeadline(options),
                   options);
}

}  // namespace shardmesh::client
