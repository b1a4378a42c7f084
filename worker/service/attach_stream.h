// The worker's end of the gRPC call Attach.
#ifndef SHARDMESH_WORKER_SERVICE_ATTACH_STREAM_H_
#define SHARDMESH_WORKER_SERVICE_ATTACH_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
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

// The client's side of Attach as synchronous pseudocode:
//
// clang-format off
//   write(...) through the outbox; while (message = read()) inbox.push(message)
// clang-format on
//
// Owns the call, the messages that wait to be written (outbox), and those that wait to be handled
// (inbox). One thread takes messages from the inbox until the stream is over. A short message that
// need not wait for another may be handled by the thread that has read it: a change of threads
// costs more than many a step. Create it as a shared_ptr: the stream keeps itself alive from Start
// to the end of the call.
//
// Thread-safe, except that only one thread may call Next and Wait.
class AttachStream final
    : public grpc::ClientBidiReactor<internal::v1::AttachRequest, internal::v1::AttachResponse>,
      public AttachSink,
      public std::enable_shared_from_this<AttachStream> {
 public:
  // The maximum number of messages that wait to be handled. While the inbox is full, the stream
  // reads no more, and further messages stay in the coordinator's outbox.
  static constexpr size_t kMaxInbox = 64;
  // The maximum number of bytes of messages that wait to be written. An inventory of millions of
  // tiles fits. If more bytes wait for a coordinator, the coordinator counts as lost.
  static constexpr int64_t kOutboxBytes = int64_t{256} << 20;

  // Handles a short message and returns true, or leaves it to Next and returns false. Never called
  // while another message waits or is being handled: from the return of Next to the next call of
  // Next, the message that it returned counts as being handled. Must not block.
  using TakeAtOnce =
      std::function<bool(internal::v1::AttachResponse* message, const AttachSinkPtr& stream)>;
  // Longer messages are never handled by the thread that has read them, in bytes.
  static constexpr size_t kMostBytesAtOnce = 4096;

  AttachStream(const std::shared_ptr<grpc::Channel>& channel, TakeAtOnce take_at_once);

  // Begins the call. Call it once, before all other methods.
  void Start();

  // Queues a message. A full outbox means that the coordinator does not read; Send then cancels the
  // stream.
  void Send(internal::v1::AttachRequest request) override;
  // Half-closes the stream when all queued messages are written.
  void CloseAfterWrites();
  // Ends the call. Messages that come later are left to Next.
  void Cancel();
  std::string peer() const override { return context_.peer(); }

  // Waits for the next message. Returns nullopt once the stream is over and all messages were
  // taken.
  std::optional<internal::v1::AttachResponse> Next();
  // Waits for the end of the stream, and returns its status.
  absl::Status Wait();

  // Implement grpc::ClientBidiReactor.
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override { outbox_.OnWriteDone(ok); }
  void OnDone(const grpc::Status& status) override;

 private:
  using Outbox = rpc::Outbox<internal::v1::AttachRequest>;

  bool HasNextOrIsOver() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !is_handling_ && (over_ || !inbox_.empty());
  }
  // Handles the message that has been read, or returns false.
  bool TakeReadAtOnce() ABSL_LOCKS_EXCLUDED(mutex_);

  // The connection of this stub carries no other stream or call.
  const std::unique_ptr<internal::v1::AttachService::Stub> stub_;
  const TakeAtOnce take_at_once_;
  grpc::ClientContext context_;
  Outbox outbox_;
  internal::v1::AttachResponse read_;   // message of the pending read
  std::shared_ptr<AttachStream> self_;  // until OnDone

  absl::Mutex mutex_;
  std::deque<internal::v1::AttachResponse> inbox_ ABSL_GUARDED_BY(mutex_);
  bool is_handling_ ABSL_GUARDED_BY(mutex_) = false;  // some thread handles a message
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;  // the inbox is full, so no read is pending
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_ATTACH_STREAM_H_
