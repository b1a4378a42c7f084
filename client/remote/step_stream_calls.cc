// Opens and ends calls of ExecuteStream.
#include "client/remote/step_stream_calls.h"

#include <utility>

namespace shardmesh::client {

StepCallStream::StepCallStream(const CoordinatorConnection* connection, const CallLimit& limit)
    : connection_(connection) {
  if (limit.cancellation != nullptr) {
    registration_.emplace(limit.cancellation, [this] { context_.TryCancel(); });
  }
  connection_->Prepare(limit, &context_);
  stream_ = connection_->compute->ExecuteStream(&context_);
}

StepCallStream::~StepCallStream() {
  if (is_finished_) return;
  context_.TryCancel();
  stream_->Finish();  // the status does not matter: the call was given up
}

absl::Status StepCallStream::Finish() {
  if (!std::exchange(is_finished_, true)) status_ = connection_->StatusOf(stream_->Finish());
  return status_;
}

}  // namespace shardmesh::client
