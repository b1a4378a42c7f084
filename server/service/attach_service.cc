// Connects each worker's bidirectional stream to a WorkerSession.
#include "server/service/attach_service.h"

#include <grpcpp/grpcpp.h>

#include <array>
#include <memory>
#include <string>
#include <utility>

#include "process/log.h"
#include "rpc/call.h"
#include "rpc/codec/status.h"
#include "rpc/stream/message_bytes.h"
#include "rpc/stream/outbox.h"
#include "rpc/tls/peer_name.h"
#include "server/attach/worker_session.h"
#include "shardmesh/internal/v1/attach_service.grpc.pb.h"

namespace shardmesh::server {
namespace {

// Maximum number of unsent bytes for one worker: a few hundred messages of the largest steps. A
// worker with more unsent bytes counts as lost.
constexpr int64_t kOutboxBytes = int64_t{256} << 20;
// Maximum size, in bytes, of one message. gRPC would end the stream for a longer message.
constexpr int64_t kMaxMessageBytes = rpc::kMaxControlMessageBytes;

using RawOutbox = rpc::Outbox<grpc::ByteBuffer>;

// Passes the message's bytes to gRPC without a copy. gRPC keeps the message alive while it needs
// the bytes.
grpc::Slice Lend(const WorkerMessage& message) {
  auto* const kept = new WorkerMessage(message);
  return grpc::Slice(
      const_cast<char*>(message->data()), message->size(),
      [](void* lent) { delete static_cast<WorkerMessage*>(lent); }, kept);
}

class AttachReactor;

// The objects that all streams share. They are constant, except the set of live streams, which
// synchronises itself.
struct Attachments {
  WorkerStreams* const streams;
  Sequencer* const sequencer;
  const rpc::Credentials credentials;
  StreamSet<AttachReactor> live = {};
};

// Attach, as synchronous code:
//   session.Begin()
//   while (message = read()) session.Take(message)     // the session asks for each read
//   session.Close(broken); flush outbox; finish(); session.End()
// All writes go through the outbox, which queues them.
class AttachReactor final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                            private AttachWire {
 public:
  AttachReactor(Attachments* attachments, grpc::CallbackServerContext* context)
      : attachments_(attachments),
        context_(context),
        outbox_(kOutboxBytes, [this](const grpc::ByteBuffer* m) { StartWrite(m); }),
        session_(attachments->streams, attachments->sequencer, this) {
    session_.Begin();
    attachments_->live.Add(this);
    Read();
  }

  // Called by StreamSet when the coordinator stops.
  void End() { session_.Close(CoordinatorStops("attach again later")); }

  void OnReadDone(bool ok) override {
    if (!ok) return session_.Close(absl::CancelledError("its stream broke"));
    internal::v1::AttachRequest request;
    if (const absl::Status parsed = rpc::ParseMessage(&read_, &request); !parsed.ok()) {
      return session_.Close(parsed);
    }
    session_.Take(request);
  }
  void OnWriteDone(bool ok) override { outbox_.OnWriteDone(ok); }
  void OnCancel() override { session_.Close(absl::CancelledError("its stream broke")); }
  void OnDone() override {
    session_.End();
    attachments_->live.Remove(this);
    delete this;
  }

 private:
  absl::Status CheckCaller(const std::string& identity) const override {
    return rpc::CheckCaller(attachments_->credentials, *context_,
                            {rpc::PeerRole::kWorker, identity});
  }
  void Read() override { StartRead(&read_); }
  absl::Status Write(WorkerMessage message) override {
    const grpc::Slice slice = Lend(message);
    return Push(std::make_shared<const grpc::ByteBuffer>(&slice, 1));
  }
  absl::Status WriteParts(const WorkerMessage& head, const WorkerMessage& tail) override {
    const std::array<grpc::Slice, 2> parts = {Lend(head), Lend(tail)};
    return Push(std::make_shared<const grpc::ByteBuffer>(parts.data(), parts.size()));
  }
  absl::Status Push(std::shared_ptr<const grpc::ByteBuffer> message) {
    const auto size_bytes = static_cast<int64_t>(message->Length());
    if (size_bytes > kMaxMessageBytes) {
      // Should not happen: the code that makes long messages checks their lengths.
      LogError("a message to a worker is too long, and was not sent",
               {{"identity", session_.identity()},
                {"size_bytes", size_bytes},
                {"limit_bytes", kMaxMessageBytes}});
      return absl::OkStatus();
    }
    return outbox_.Push(std::move(message), size_bytes);
  }
  void Finish(absl::Status status) override {
    outbox_.Close(RawOutbox::kFlush, [this, status = std::move(status)] {
      ServerBidiReactor::Finish(rpc::ToGrpc(status));
    });
  }
  void Break() override { context_->TryCancel(); }

  Attachments* const attachments_;
  grpc::CallbackServerContext* const context_;
  RawOutbox outbox_;
  grpc::ByteBuffer read_;  // buffer of the current read
  WorkerSession session_;
};

class AttachService final : public internal::v1::AttachService::WithRawCallbackMethod_Attach<
                                internal::v1::AttachService::Service> {
 public:
  AttachService(WorkerStreams* streams, Sequencer* sequencer, rpc::Credentials credentials)
      : attachments_{
            .streams = streams, .sequencer = sequencer, .credentials = std::move(credentials)} {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Attach(
      grpc::CallbackServerContext* context) override {
    return new AttachReactor(&attachments_, context);
  }

  void EndStreams() {
    attachments_.streams->Stop();
    attachments_.live.EndAll();
  }

 private:
  Attachments attachments_;
};

}  // namespace

StreamingService MakeAttachService(WorkerStreams* streams, Sequencer* sequencer,
                                   rpc::Credentials credentials) {
  auto service = std::make_unique<AttachService>(streams, sequencer, std::move(credentials));
  AttachService* const raw = service.get();
  return {.service = std::move(service), .end_streams = [raw] { raw->EndStreams(); }};
}

}  // namespace shardmesh::server
