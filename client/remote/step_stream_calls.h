// One call of ComputeService.ExecuteStream.
#ifndef SHARDMESH_CLIENT_REMOTE_STEP_STREAM_CALLS_H_
#define SHARDMESH_CLIENT_REMOTE_STEP_STREAM_CALLS_H_

#include <grpcpp/client_context.h>
#include <grpcpp/support/sync_stream.h>

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "client/remote/coordinator_connection.h"
#include "client/types/cancellation.h"
#include "shardmesh/v1/compute_service.pb.h"

namespace shardmesh::client {

// An open call. One thread may write and another one read at the same time. The destructor cancels
// the call unless Finish was called.
class StepCallStream {
 public:
  // Opens the call. `connection` and the limit's cancellation outlive it.
  StepCallStream(const CoordinatorConnection* connection, const CallLimit& limit);
  ~StepCallStream();
  StepCallStream(const StepCallStream&) = delete;
  StepCallStream& operator=(const StepCallStream&) = delete;

  // Return false if the call has ended; Finish says why.
  bool Write(const v1::ExecuteStreamRequest& request) { return stream_->Write(request); }
  bool Read(v1::ExecuteStreamResponse* response) {
    return !is_finished_ && stream_->Read(response);
  }
  // Ends the client's side of the call.
  void EndWrites() { stream_->WritesDone(); }
  void Cancel() { context_.TryCancel(); }
  // Returns the status of the call. Call it when Read has returned false; later calls return the
  // same.
  absl::Status Finish();

 private:
  const CoordinatorConnection* const connection_;
  grpc::ClientContext context_;
  std::optional<Cancellation::Registration> registration_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ExecuteStreamRequest, v1::ExecuteStreamResponse>>
      stream_;
  bool is_finished_ = false;
  absl::Status status_;  // of Finish
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_REMOTE_STEP_STREAM_CALLS_H_
