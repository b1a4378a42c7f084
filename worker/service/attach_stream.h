// The worker's end of the call Attach.
#ifndef SHARDMESH_WORKER_SERVICE_ATTACH_STREAM_H_
#define SHARDMESH_WORKER_SERVICE_ATTACH_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "rpc/stream/outbox.h"
#include "shardmesh/internal/v1/attach_service.grpc.pb.h"
#include "worker/service/attach_sink.h"

namespace shardmesh::worker {

// Attach, the client's side:
//
// clang-format off
//   write(...) through the outbox; while (message = read()) inbox.push(message)
// clang-format on
//
// Owns the call, the messages that wait to be written, and those that wait to be handled. One
// thread takes messages from the inbox, and ends with the stream. Made as a shared_ptr; the stream
// keeps itself alive from Start to the end of the call.
//
// Thread-safe. Next and Wait are for one thread.
class AttachStream final
    : public grpc::ClientBidiReactor<internal::v1::AttachRequest, internal::v1::AttachResponse>,
      public AttachSink,
      public std::enable_shared_from_this<AttachStream> {
 public:
  // Most orders that wait for this worker; further ones stay in the coordinator's outbox.
  static constexpr size_t kMaxInbox = 64;
  // Reports that wait for a coordinator that does not read: an inventory of millions of tiles fits,
  // and a coordinator that is further behind is as good as lost.
  static constexpr int64_t kOutboxBytes = int64_t{256} << 20;

  explicit AttachStream(const std::shared_ptr<grpc::Channel>& channel);

  // Begins the call. Call it once, before all others.
  void Start();

  // A message that finds no room ends the stream: the coordinator does not read.
  void Send(internal::v1::AttachRequest request) override;
  // Half-closes the stream when all is written.
  void CloseAfterWrites();
  void Cancel() { context_.TryCancel(); }
  std::string peer() const override { return context_.peer(); }

  // Waits for the next message; nullopt once the stream is over and all messages were taken.
  std::optional<internal::v1::AttachResponse> Next();
  // Waits for the stream's end.
  absl::Status Wait();

  // Reactions of gRPC.
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override { outbox_.OnWriteDone(ok); }
  void OnDone(const grpc::Status& status) override;

 private:
  using Outbox = rpc::Outbox<internal::v1::AttachRequest>;

  bool HasNextOrIsOver() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return over_ || !inbox_.empty();
  }

  // Has a connection of its own: no other stream or call uses it.
  const std::unique_ptr<internal::v1::AttachService::Stub> stub_;
  grpc::ClientContext context_;
  Outbox outbox_;
  internal::v1::AttachResponse read_;   // of the pending read
  std::shared_ptr<AttachStream> self_;  // until OnDone

  absl::Mutex mutex_;
  std::deque<internal::v1::AttachResponse> inbox_ ABSL_GUARDED_BY(mutex_);
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;  // no read is under way: the inbox is full
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_ATTACH_STREAM_H_
