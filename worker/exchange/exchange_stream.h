// One Exchange stream as its user sees it, dialled or accepted: frames in, frames out.
//
// Works on a completion queue that serves many streams (CompletionPoller). Rules of gRPC (one read
// and one write at a time, no write after the end, everything alive until its tag came back) are
// kept here, so that nothing above has to know them.
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
  // Told what happens, on the thread that polls the queue, never two at once, with no lock held:
  // OnOpen, then OnFrame and OnWritten in any order, at last OnClosed. A stream that cannot be
  // opened has OnClosed alone. Must not block.
  class Handler {
   public:
    virtual ~Handler() = default;
    virtual void OnOpen() = 0;
    // The next frame is read when this returns.
    virtual void OnFrame(const grpc::ByteBuffer& frame) = 0;
    // The frame given to Write is on its way.
    virtual void OnWritten() = 0;
    // What the stream was closed with here, or else how the peer or the network ended it.
    virtual void OnClosed(const absl::Status& status) = 0;
  };

  virtual ~ExchangeStream() = default;
  ExchangeStream(const ExchangeStream&) = delete;
  ExchangeStream& operator=(const ExchangeStream&) = delete;

  // OK if the other end may speak as the worker of that identity; errors of rpc::CheckCaller, with
  // `own` the credentials of this process. From OnOpen on.
  virtual absl::Status CheckPeer(const rpc::Credentials& own,
                                 const std::string& identity) const = 0;

  // Begins: the handler is told from now on, and kept until the stream is closed.
  virtual void Open(std::shared_ptr<Handler> handler) = 0;

  // Writes a frame; the next one only after OnWritten. No effect once the stream is closing.
  void Write(const grpc::ByteBuffer& frame) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends the stream; of several calls the first counts. An accepted stream's peer gets `status`,
  // or CANCELLED if a frame was being written; a dialled one's always CANCELLED.
  void Close(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

 protected:
  ExchangeStream() = default;

  // An operation of the stream, which it keeps alive until it has ended.
  class Operation final : public Completion {
   public:
    using Done = void (ExchangeStream::*)(bool ok);

    explicit Operation(Done done) : done_(done) {}
    // The tag for the operation that is about to start.
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
    std::shared_ptr<ExchangeStream> stream_;  // while under way
  };

  // For Open: before the first operation starts.
  void SetHandler(std::shared_ptr<Handler> handler) { handler_ = std::move(handler); }

  void OnOpened(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);
  Operation open_{&ExchangeStream::OnOpened};

 private:
  // The two ends differ in these. All but Cancel start an operation.
  virtual void StartRead(grpc::ByteBuffer* frame, void* tag) = 0;
  virtual void StartWrite(const grpc::ByteBuffer& frame, void* tag) = 0;
  virtual void StartFinish(const absl::Status& status, void* tag) = 0;
  virtual void Cancel() = 0;
  // Whether Finish ends the call (accepted), or waits for its end (dialled).
  virtual bool finish_ends_call() const = 0;
  // How the other side ended the call; after Finish.
  virtual absl::Status PeerStatus() const = 0;

  void OnRead(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnWriteDone(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnFinished(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);
  void ReadNext() ABSL_LOCKS_EXCLUDED(mutex_);
  // Starts Finish when it is allowed and needed.
  void FinishIfDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellIfClosed() ABSL_LOCKS_EXCLUDED(mutex_);

  std::shared_ptr<Handler> handler_;  // for who polls the queue; null once closed
  grpc::ByteBuffer incoming_;         // for who polls the queue
  Operation read_{&ExchangeStream::OnRead};
  Operation write_{&ExchangeStream::OnWriteDone};
  Operation finish_{&ExchangeStream::OnFinished};

  absl::Mutex mutex_;
  bool opening_ ABSL_GUARDED_BY(mutex_) = true;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;  // a read is under way, or its frame is looked at
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
