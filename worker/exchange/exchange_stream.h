// One Exchange stream between two workers, dialled or accepted. Its user writes frames to the peer,
// and gets the peer's frames through a handler.
//
// The stream shares a completion queue with other streams (CompletionPoller). The class keeps
// gRPC's rules, so its users need not know these rules. There is one read and one write at a time,
// and no write after the end of the stream. An operation lives until the queue has returned its
// tag.
#ifndef SHARDMESH_WORKER_EXCHANGE_EXCHANGE_STREAM_H_
#define SHARDMESH_WORKER_EXCHANGE_EXCHANGE_STREAM_H_

#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "rpc/tls/credentials.h"
#include "worker/exchange/completion_poller.h"

namespace grpc {
class Channel;
class CompletionQueue;
}  // namespace grpc

namespace shardmesh::worker {

// States: opening -> open -> closing -> closed. Thread-safe.
class ExchangeStream : public std::enable_shared_from_this<ExchangeStream> {
 public:
  // Receives the stream's events on the polling thread, one at a time, with no lock held. OnOpen
  // comes first, then OnFrame and OnWritten in any order, OnClosed last. If a stream cannot be
  // opened, its only event is OnClosed. The methods must not block.
  class Handler {
   public:
    virtual ~Handler() = default;
    virtual void OnOpen() = 0;
    // A frame arrived. The stream reads the next frame when this method has returned.
    virtual void OnFrame(const grpc::ByteBuffer& frame) = 0;
    // gRPC sent the frame given to Write; the next frame may be written.
    virtual void OnWritten() = 0;
    // The stream is closed. If this end called Close, `status` is the status that it passed.
    // Otherwise `status` comes from the peer or from the network.
    virtual void OnClosed(const absl::Status& status) = 0;
  };

  virtual ~ExchangeStream() = default;
  ExchangeStream(const ExchangeStream&) = delete;
  ExchangeStream& operator=(const ExchangeStream&) = delete;

  // Returns OK if the other end's certificate permits that end to act as the worker `identity`.
  // Otherwise returns errors of rpc::CheckCaller. `own` has the credentials of this process. Call
  // it from OnOpen or later.
  virtual absl::Status CheckPeer(const rpc::Credentials& own,
                                 const std::string& identity) const = 0;

  // Starts the stream. From now on the stream calls the handler's methods, and keeps the handler
  // until the stream is closed.
  virtual void Open(std::shared_ptr<Handler> handler) = 0;

  // Writes a frame. Call it again only after OnWritten. No effect once the stream is closing.
  void Write(const grpc::ByteBuffer& frame) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends the stream; only the first call has an effect. The peer of an accepted stream gets
  // `status`, or CANCELLED if a frame was being written. The peer of a dialled stream always gets
  // CANCELLED.
  void Close(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

 protected:
  ExchangeStream() = default;

  // A gRPC operation. The operation keeps its stream alive until the queue has returned its tag.
  class Operation final : public Completion {
   public:
    using Done = void (ExchangeStream::*)(bool ok);

    explicit Operation(Done done) : done_(done) {}
    // Returns the tag for the operation, which the caller must start now.
    void* Begin(std::shared_ptr<ExchangeStream> stream) {
      stream_ = std::move(stream);
      return static_cast<Completion*>(this);
    }
    void Complete(bool ok) override {
      const std::shared_ptr<ExchangeStream> stream = std::move(stream_);
      (stream.get()->*done_)(ok);
    }

   private:
    const Done done_;
    std::shared_ptr<ExchangeStream> stream_;  // set while the operation is pending
  };

  // Sets the handler. Implementations of Open call it before the first operation starts.
  void SetHandler(std::shared_ptr<Handler> handler) { handler_ = std::move(handler); }

  void OnOpened(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);
  Operation open_{&ExchangeStream::OnOpened};

 private:
  // The gRPC calls, which differ between dialled and accepted streams. All of these methods except
  // Cancel start an asynchronous operation.
  virtual void StartRead(grpc::ByteBuffer* frame, void* tag) = 0;
  virtual void StartWrite(const grpc::ByteBuffer& frame, void* tag) = 0;
  virtual void StartFinish(const absl::Status& status, void* tag) = 0;
  virtual void Cancel() = 0;
  // Returns true if StartFinish ends the call (accepted stream), false if StartFinish waits for the
  // peer to end the call (dialled stream).
  virtual bool finish_ends_call() const = 0;
  // Returns the status with which the other side ended the call. Valid once the operation that
  // StartFinish started is done.
  virtual absl::Status PeerStatus() const = 0;

  void OnRead(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnWriteDone(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnFinished(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);
  void ReadNext() ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls StartFinish if the call is due. On an accepted stream, the call is due if no write is
  // pending and the stream is closing or a read has failed. On a dialled stream, the call is due
  // once a read has failed.
  void FinishIfDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellIfClosed() ABSL_LOCKS_EXCLUDED(mutex_);

  // Used only by the polling thread. handler_ is null once the stream is closed.
  std::shared_ptr<Handler> handler_;
  grpc::ByteBuffer incoming_;
  Operation read_{&ExchangeStream::OnRead};
  Operation write_{&ExchangeStream::OnWriteDone};
  Operation finish_{&ExchangeStream::OnFinished};

  absl::Mutex mutex_;
  bool opening_ ABSL_GUARDED_BY(mutex_) = true;
  // True while a read is pending, and while the handler handles the frame that was read.
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  // a read has failed, so no more can be read
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);  // the status that was passed to Close
};

// Returns a stream that dials when its Open is called. `queue` outlives the stream.
std::shared_ptr<ExchangeStream> DialExchange(const std::shared_ptr<grpc::Channel>& channel,
                                             grpc::CompletionQueue* queue);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_EXCHANGE_STREAM_H_
