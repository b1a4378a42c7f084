// Decodes operations, watches the progress of one operation, and reports gets.
#include "client/remote/operation_calls.h"

#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/remote/wire_enums.h"
#include "rpc/codec/status.h"
#include "rpc/stream/message_bytes.h"
#include "status/detail.h"
#include "status/status_macros.h"

namespace shardmesh::client {
namespace {

constexpr const char* kReportGetMethod = "/shardmesh.v1.OperationService/ReportGet";

// One ReportGet call. Each Write also handles what has come over the connection, because no other
// thread may read from it meanwhile: the get may wait for the reader of its output. Thus the client
// learns that the coordinator has ended the call.
//
// A read is in progress from the beginning to the end of the call. Not thread-safe.
class ReportCall {
 public:
  // `context` outlives the object.
  ReportCall(const CoordinatorConnection& connection, grpc::ClientContext* context)
      : stream_(
            grpc::GenericStub(connection.channel).PrepareCall(context, kReportGetMethod, &queue_)) {
    stream_->StartCall(&start_);
    start_.is_pending = true;
    Await(start_);
    Read();
  }
  // Requires that Finish was called.
  ~ReportCall() {
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }
  ReportCall(const ReportCall&) = delete;
  ReportCall& operator=(const ReportCall&) = delete;

  // Whether the call has ended, so that Finish does not wait.
  bool has_ended() const { return !read_.is_pending; }
  // Sends a message, unless the call has ended.
  void Write(const v1::ReportGetRequest& request) {
    stream_->Write(rpc::SerializeMessage(request), &write_);
    write_.is_pending = true;
    Await(write_);
    while (Handle(absl::Now())) {
    }
  }
  // Ends the client's side, waits for the end of the call, and returns its status.
  grpc::Status Finish() {
    if (!has_ended()) {
      stream_->WritesDone(&write_);
      write_.is_pending = true;
      Await(write_);
    }
    Await(read_);
    grpc::Status status;
    stream_->Finish(&status, &finish_);
    finish_.is_pending = true;
    Await(finish_);
    return status;
  }

 private:
  struct Operation {
    bool is_pending = false;
  };

  void Read() {
    stream_->Read(&answer_, &read_);
    read_.is_pending = true;
  }
  void Await(const Operation& operation) {
    while (operation.is_pending) Handle(absl::InfiniteFuture());
  }
  // Handles the end of one operation. Waits for it until `deadline`. Reads from the connection also
  // if the deadline has passed. Returns false if no operation has ended.
  bool Handle(absl::Time deadline) {
    void* tag = nullptr;
    bool ok = false;
    if (queue_.AsyncNext(&tag, &ok, absl::ToChronoTime(deadline)) !=
        grpc::CompletionQueue::GOT_EVENT) {
      return false;
    }
    auto* const operation = static_cast<Operation*>(tag);
    operation->is_pending = false;
    if (operation == &read_ && ok) Read();  // the answer came, and the end follows
    return true;
  }

  grpc::CompletionQueue queue_;
  const std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  grpc::ByteBuffer answer_;
  // The operations of the stream. Their addresses are the tags.
  Operation start_;
  Operation read_;
  Operation write_;
  Operation finish_;
};

}  // namespace

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
  ReportCall call(connection, context.get());
  v1::ReportGetRequest request;
  v1::ReportGetHeader& header = *request.mutable_header();
  header.set_session_id(session_id);
  header.set_description(get.description);
  header.set_total(get.arrays);
  header.set_total_bytes(get.size_bytes);
  while (!call.has_ended() && !request.has_result()) {
    const GetProgress progress = next();
    request.set_done(progress.done);
    request.set_done_bytes(progress.done_bytes);
    if (progress.result.has_value()) rpc::Encode(*progress.result, request.mutable_result());
    call.Write(request);
    request.clear_header();
  }
  return connection.StatusOf(call.Finish());
}

}  // namespace shardmesh::client
