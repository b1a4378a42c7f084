// ExchangeService: accepts streams with frames as raw byte buffers. The service always keeps one
// gRPC request for the next stream pending.
#include "worker/exchange/exchange_service.h"

#include <grpcpp/completion_queue.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>

#include <utility>

#include "absl/synchronization/mutex.h"
#include "rpc/codec/status.h"
#include "shardmesh/internal/v1/exchange_service.grpc.pb.h"
#include "status/retry.h"

namespace shardmesh::worker {
namespace {

using RawService =
    internal::v1::ExchangeService::WithRawMethod_Exchange<internal::v1::ExchangeService::Service>;

class AcceptedStream final : public ExchangeStream {
 public:
  void Request(RawService& service, grpc::ServerCompletionQueue* queue, void* tag) {
    service.RequestExchange(&context_, &call_, queue, queue, tag);
  }
  absl::Status CheckPeer(const rpc::Credentials& own, const std::string& identity) const override {
    return rpc::CheckCaller(own, context_, {rpc::PeerRole::kWorker, identity});
  }
  // Called when gRPC has accepted a peer's stream into this object.
  void Open(std::shared_ptr<Handler> handler) override {
    SetHandler(std::move(handler));
    OnOpened(/*ok=*/true);
  }

 private:
  void StartRead(grpc::ByteBuffer* frame, void* tag) override { call_.Read(frame, tag); }
  void StartWrite(const grpc::ByteBuffer& frame, void* tag) override { call_.Write(frame, tag); }
  void StartFinish(const absl::Status& status, void* tag) override {
    // Remove the retry information: the peer dials again after its own back-off.
    call_.Finish(rpc::ToGrpc(WithoutRetry(status)), tag);
  }
  void Cancel() override { context_.TryCancel(); }
  bool finish_ends_call() const override { return true; }
  absl::Status PeerStatus() const override {
    return absl::UnavailableError("the peer ended the stream, or the connection is lost");
  }

  grpc::ServerContext context_;
  grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> call_{&context_};
};

class ExchangeServiceImpl final : public ExchangeService {
 public:
  explicit ExchangeServiceImpl(Accept accept) : accept_(std::move(accept)) {}

  void Customize(grpc::ServerBuilder& builder) override { queue_ = builder.AddCompletionQueue(); }
  grpc::Service* service() override { return &service_; }
  grpc::CompletionQueue* queue() override { return queue_.get(); }
  void Start() override { RequestNext(); }
  void StopAccepting() override {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  void AwaitIdle() override {
    absl::MutexLock lock(&mutex_);
    const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return requests_ == 0; };
    mutex_.Await(absl::Condition(&idle));
  }

 private:
  // The pending gRPC request for the next stream.
  class Request final : public Completion {
   public:
    explicit Request(ExchangeServiceImpl* owner) : owner_(owner) {}

    void Begin() {
      stream_ = std::make_shared<AcceptedStream>();
      stream_->Request(owner_->service_, owner_->queue_.get(), static_cast<Completion*>(this));
    }
    void Complete(bool ok) override {
      const std::shared_ptr<AcceptedStream> stream = std::move(stream_);
      if (ok) {
        owner_->RequestNext();
        stream->Open(owner_->accept_(stream));
      }  // if !ok, the server is stopping
      absl::MutexLock lock(&owner_->mutex_);
      --owner_->requests_;
    }

   private:
    ExchangeServiceImpl* const owner_;
    std::shared_ptr<AcceptedStream> stream_;
  };

  void RequestNext() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return;
    ++requests_;
    request_.Begin();
  }

  const Accept accept_;
  RawService service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;  // null until Customize

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Number of requests that are pending, or whose stream is being opened.
  int requests_ ABSL_GUARDED_BY(mutex_) = 0;
  Request request_{this};
};

}  // namespace

std::unique_ptr<ExchangeService> ExchangeService::Create(Accept accept) {
  return std::make_unique<ExchangeServiceImpl>(std::move(accept));
}

}  // namespace shardmesh::worker
