// Reads and writes the messages of the gRPC call Attach.
#include "worker/service/attach_stream.h"

#include <utility>

#include "rpc/codec/status.h"

namespace shardmesh::worker {

AttachStream::AttachStream(const std::shared_ptr<grpc::Channel>& channel, TakeAtOnce take_at_once)
    : stub_(internal::v1::AttachService::NewStub(channel)),
      take_at_once_(std::move(take_at_once)),
      outbox_(kOutboxBytes, [this](const internal::v1::AttachRequest* m) { StartWrite(m); }) {}

void AttachStream::Start() {
  self_ = shared_from_this();
  stub_->async()->Attach(&context_, this);
  AddHold();  // held until the outbox is closed
  AddHold();  // held until a read fails
  StartRead(&read_);
  StartCall();
}

void AttachStream::Send(internal::v1::AttachRequest request) {
  const auto size_bytes = static_cast<int64_t>(request.ByteSizeLong());
  auto message = std::make_shared<const internal::v1::AttachRequest>(std::move(request));
  if (absl::IsResourceExhausted(outbox_.Push(std::move(message), size_bytes))) {
    Cancel();
  }
}

void AttachStream::CloseAfterWrites() {
  outbox_.Close(Outbox::kFlush, [this] {
    StartWritesDone();
    RemoveHold();
  });
}

void AttachStream::Cancel() {
  {
    absl::MutexLock lock(&mutex_);
    is_cancelled_ = true;
  }
  context_.TryCancel();
}

std::optional<internal::v1::AttachResponse> AttachStream::Next() {
  bool resume = false;
  std::optional<internal::v1::AttachResponse> message;
  {
    absl::MutexLock lock(&mutex_);
    is_handling_ = false;
    mutex_.Await(absl::Condition(this, &AttachStream::HasNextOrIsOver));
    if (inbox_.empty()) {
      return std::nullopt;
    }
    is_handling_ = true;
    message = std::move(inbox_.front());
    inbox_.pop_front();
    resume = std::exchange(paused_, false);
  }
  if (resume) {
    StartRead(&read_);
  }
  return message;
}

absl::Status AttachStream::Wait() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&over_));
  return status_;
}

bool AttachStream::TakeReadAtOnce() {
  if (read_.ByteSizeLong() > kMostBytesAtOnce) return false;
  {
    absl::MutexLock lock(&mutex_);
    if (is_handling_ || is_cancelled_ || !inbox_.empty()) return false;
    is_handling_ = true;
  }
  const bool is_taken = take_at_once_(&read_, shared_from_this());
  absl::MutexLock lock(&mutex_);
  is_handling_ = false;
  return is_taken;
}

void AttachStream::OnReadDone(bool ok) {
  if (!ok) {
    outbox_.Close(Outbox::kDrop, [this] { RemoveHold(); });
    RemoveHold();
    return;
  }
  if (!TakeReadAtOnce()) {
    absl::MutexLock lock(&mutex_);
    inbox_.push_back(std::move(read_));
    paused_ = inbox_.size() >= kMaxInbox;
    if (paused_) {
      return;
    }
  }
  read_.Clear();
  StartRead(&read_);
}

void AttachStream::OnDone(const grpc::Status& status) {
  const std::shared_ptr<AttachStream> self = std::move(self_);
  absl::MutexLock lock(&mutex_);
  status_ = rpc::FromGrpc(status);
  over_ = true;
}

}  // namespace shardmesh::worker
