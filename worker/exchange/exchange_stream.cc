// ExchangeStream: runs gRPC operations in the same order on dialled and accepted streams. Also has
// the class of dialled streams.
#include "worker/exchange/exchange_stream.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>

#include <utility>

#include "rpc/codec/status.h"

namespace shardmesh::worker {
namespace {

constexpr const char* kMethod = "/shardmesh.internal.v1.ExchangeService/Exchange";

class DialledStream final : public ExchangeStream {
 public:
  DialledStream(const std::shared_ptr<grpc::Channel>& channel, grpc::CompletionQueue* queue)
      : stub_(channel), call_(stub_.PrepareCall(&context_, kMethod, queue)) {}

  // No check needed: the channel's credentials accept only the peer for which the channel was
  // created.
  absl::Status CheckPeer(const rpc::Credentials& /*own*/,
                         const std::string& /*identity*/) const override {
    return absl::OkStatus();
  }
  void Open(std::shared_ptr<Handler> handler) override {
    SetHandler(std::move(handler));
    call_->StartCall(open_.Begin(shared_from_this()));
  }

 private:
  void StartRead(grpc::ByteBuffer* frame, void* tag) override { call_->Read(frame, tag); }
  void StartWrite(const grpc::ByteBuffer& frame, void* tag) override { call_->Write(frame, tag); }
  void StartFinish(const absl::Status& /*status*/, void* tag) override {
    call_->Finish(&peer_status_, tag);
  }
  void Cancel() override { context_.TryCancel(); }
  bool finish_ends_call() const override { return false; }
  absl::Status PeerStatus() const override {
    return peer_status_.ok() ? absl::UnavailableError("the peer ended the stream")
                             : rpc::FromGrpc(peer_status_);
  }

  grpc::ClientContext context_;
  grpc::GenericStub stub_;
  grpc::Status peer_status_;
  const std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

}  // namespace

void ExchangeStream::Write(const grpc::ByteBuffer& frame) {
  absl::MutexLock lock(&mutex_);
  if (closing_ || ended_ || finishing_) return;
  writing_ = true;
  StartWrite(frame, write_.Begin(shared_from_this()));
}

void ExchangeStream::Close(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  if (closing_ || finishing_) return;
  closing_ = true;
  reason_ = status;
  if (finish_ends_call() && !writing_ && !opening_) {
    FinishIfDue();
  } else {
    Cancel();
  }
}

void ExchangeStream::OnOpened(bool ok) {
  {
    absl::MutexLock lock(&mutex_);
    opening_ = false;
    ended_ = !ok;
  }
  if (ok) {
    handler_->OnOpen();
    absl::MutexLock lock(&mutex_);
    reading_ = true;
  }
  ReadNext();
}

void ExchangeStream::ReadNext() {
  {
    absl::MutexLock lock(&mutex_);
    if (!ended_ && !(finish_ends_call() && finishing_)) {
      incoming_.Clear();
      StartRead(&incoming_, read_.Begin(shared_from_this()));
      return;
    }
    reading_ = false;
    FinishIfDue();
  }
  TellIfClosed();
}

void ExchangeStream::OnRead(bool ok) {
  if (ok) {
    handler_->OnFrame(incoming_);
  } else {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
  }
  ReadNext();
}

void ExchangeStream::OnWriteDone(bool ok) {
  {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    FinishIfDue();
  }
  // After a failed write, the pending read fails too; OnRead then ends the stream.
  if (ok) handler_->OnWritten();
  TellIfClosed();
}

void ExchangeStream::FinishIfDue() {
  if (finishing_ || opening_) return;
  const bool due = finish_ends_call() ? (ended_ || closing_) && !writing_ : ended_;
  if (!due) return;
  finishing_ = true;
  StartFinish(reason_, finish_.Begin(shared_from_this()));
}

void ExchangeStream::OnFinished(bool /*ok*/) {
  {
    absl::MutexLock lock(&mutex_);
    finished_ = true;
  }
  TellIfClosed();
}

void ExchangeStream::TellIfClosed() {
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    if (!finished_ || reading_ || writing_) return;
    status = closing_ ? reason_ : PeerStatus();
  }
  if (const std::shared_ptr<Handler> handler = std::move(handler_); handler != nullptr) {
    handler_ = nullptr;
    handler->OnClosed(status);
  }
}

std::shared_ptr<ExchangeStream> DialExchange(const std::shared_ptr<grpc::Channel>& channel,
                                             grpc::CompletionQueue* queue) {
  return std::make_shared<DialledStream>(channel, queue);
}

}  // namespace shardmesh::worker
