// One Exchange stream, dialled or accepted, as its user sees it: frames in, frames out.
//
// It uses a completion queue that serves many streams (CompletionPoller). The class follows gRPC's
// rules, so that its users need not know them: one read and one write at a time, no write after the
// end, objects alive until their tag came back.
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
  // comes first, then OnFrame and OnWritten in any order, OnClosed last. A stream that cannot be
  // opened has only OnClosed. Must not block.
  class Handler {
   public:
    virtual ~Handler() = default;
    virtual void OnOpen() = 0;
    // The next frame is read when this returns.
    virtual void OnFrame(const grpc::ByteBuffer& frame) = 0;
    // The frame given to Write was sent; the next may be written.
    virtual void OnWritten() = 0;
    // `status` is the one passed to Close here, otherwise that of the peer or the network.
    virtual void OnClosed(const absl::Status& status) = 0;
  };

  virtual ~ExchangeStream() = default;
  ExchangeStream(const ExchangeStream&) = delete;
  ExchangeStream& operator=(const ExchangeStream&) = delete;

  // Returns OK if the other end may act as the worker of that identity; otherwise errors of
  // rpc::CheckCaller, with `own` the credentials of this process. Valid from OnOpen on.
  virtual absl::Status CheckPeer(const rpc::Credentials& own,
                                 const std::string& identity) const = 0;

  // Starts the stream. From now on it calls the handler, and keeps it until the stream is closed.
  virtual void Open(std::shared_ptr<Handler> handler) = 0;

  // Writes a frame; the next one only after OnWritten. No effect once the stream is closing.
  void Write(const grpc::ByteBuffer& frame) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends the stream; only the first call counts. The peer of an accepted stream gets `status`, or
  // CANCELLED if a frame was being written. The peer of a dialled stream always gets CANCELLED.
  void Close(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

 protected:
  ExchangeStream() = default;

  // An operation, which keeps its stream alive until the operation has ended.
  class Operation final : public Completion {
   public:
    using Done = void (ExchangeStream::*)(bool ok);

    explicit Operation(Done done) : done_(done) {}
    // Returns the tag for the operation that is about to start.
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
    std::shared_ptr<ExchangeStream> stream_;  // while the operation is pending
  };

  // For Open: call it before the first operation starts.
  void SetHandler(std::shared_ptr<Handler> handler) { handler_ = std::move(handler); }

  void OnOpened(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);
  Operation open_{&ExchangeStream::OnOpened};

 private:
  // Differ between the two ends. All except Cancel start an operation.
  virtual void StartRead(grpc::ByteBuffer* frame, void* tag) = 0;
  virtual void StartWrite(const grpc::ByteBuffer& frame, void* tag) = 0;
  virtual void StartFinish(const absl::Status& status, void* tag) = 0;
  virtual void Cancel() = 0;
  // Returns whether Finish ends the call (accepted), or waits for its end (dialled).
  virtual bool finish_ends_call() const = 0;
  // Returns how the other side ended the call; valid after Finish.
  virtual absl::Status PeerStatus() const = 0;

  void OnRead(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnWriteDone(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnFinished(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);
  void ReadNext() ABSL_LOCKS_EXCLUDED(mutex_);
  // Starts Finish if it is allowed and needed.
  void FinishIfDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellIfClosed() ABSL_LOCKS_EXCLUDED(mutex_);

  std::shared_ptr<Handler> handler_;  // for the polling thread; null once closed
  grpc::ByteBuffer incoming_;         // for the polling thread
  Operation read_{&ExchangeStream::OnRead};
  Operation write_{&ExchangeStream::OnWriteDone};
  Operation finish_{&ExchangeStream::OnFinished};

  absl::Mutex mutex_;
  bool opening_ ABSL_GUARDED_BY(mutex_) = true;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;  // a read is pending, or its frame is being
                                                  // handled
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  // nothing more can be read
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);  // of Close
};

// A stream that dials when it is opened. `queue` outlives it.
std::shared_ptr<ExchangeStream> DialExchange(const std::shared_ptr<grpc::Channel>& channel,
                                             grpc::CompletionQueue* queue);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_EXCHANGE_STREAM_H_
