// Decodes operations, and watches the progress of one operation.
#include "client/remote/operation_calls.h"

#include <utility>

#include "client/remote/wire_enums.h"
#include "rpc/codec/status.h"
#include "status/detail.h"
#include "status/status_macros.h"

namespace shardmesh::client {

absl::StatusOr<Operation> DecodeOperation(const v1::Operation& from) {
  Operation operation;
  operation.operation_id = from.operation_id();
  operation.number = from.number();
  operation.kind = KindOf(from.kind());
  operation.session_number = from.session_number();
  operation.description = from.description();
  operation.state = StateOf(from.state());
  operation.done = from.done();
  operation.total = from.total();
  operation.done_bytes = from.done_bytes();
  operation.total_bytes = from.total_bytes();
  operation.bytes_per_second = from.bytes_per_second();
  if (from.has_time_left()) {
    SHARDMESH_ASSIGN_OR_RETURN(operation.time_left, DecodeAnswer(from.time_left()));
  }
  SHARDMESH_ASSIGN_OR_RETURN(operation.start_time, DecodeAnswer(from.start_time()));
  if (from.has_end_time()) {
    SHARDMESH_ASSIGN_OR_RETURN(operation.end_time, DecodeAnswer(from.end_time()));
  }
  if (operation.state == OperationState::kFailed) {
    operation.error = rpc::Decode(from.error());
    if (operation.error.ok()) operation.error = absl::UnknownError("the error is not known");
  }
  return operation;
}

absl::StatusOr<Operation> WatchOperation(const CoordinatorConnection& connection,
                                         const std::string& operation_id,
                                         const std::function<bool(const Operation&)>& on_progress,
                                         const CallLimit& limit) {
  v1::WatchOperationRequest request;
  request.set_operation_id(operation_id);
  CallContext context(connection, limit);
  const auto stream = connection.operations->WatchOperation(context.get(), request);
  v1::WatchOperationResponse response;
  absl::StatusOr<Operation> last = absl::InternalError("the coordinator reported nothing");
  bool is_wanted = true;
  while (is_wanted && stream->Read(&response)) {
    last = DecodeOperation(response.operation());
    is_wanted = last.ok() && on_progress(*last);
  }
  if (!is_wanted) {
    context.TryCancel();
    stream->Finish();  // returns CANCELLED, as requested
    return last;
  }
  const absl::Status status = connection.StatusOf(stream->Finish());
  if (!status.ok()) return limit.is_cancelled() ? CancelledByCaller() : status;
  return last;
}

absl::Status ReportGet(const CoordinatorConnection& connection, const std::string& session_id,
                       const ReportedGet& get, const std::function<GetProgress()>& next,
                       const CallLimit& limit) {
  CallContext context(connection, limit);
  v1::ReportGetResponse response;
  const auto stream = connection.operations->ReportGet(context.get(), &response);
  v1::ReportGetRequest request;
  v1::ReportGetHeader& header = *request.mutable_header();
  header.set_session_id(session_id);
  header.set_description(get.description);
  header.set_total(get.arrays);
  header.set_total_bytes(get.size_bytes);
  bool is_open = true;
  while (is_open && !request.has_result()) {
    const GetProgress progress = next();
    request.set_done(progress.done);
    request.set_done_bytes(progress.done_bytes);
    if (progress.result.has_value()) rpc::Encode(*progress.result, request.mutable_result());
    is_open = stream->Write(request);  // fails once the coordinator has ended the call
    request.clear_header();
  }
  if (is_open) stream->WritesDone();
  return connection.StatusOf(stream->Finish());
}

}  // namespace shardmesh::client
