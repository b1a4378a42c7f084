// The write side of a stream: a queue of messages, bounded in bytes, with one write in progress.
#ifndef SHARDMESH_RPC_STREAM_OUTBOX_H_
#define SHARDMESH_RPC_STREAM_OUTBOX_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "status/fact_keys.h"
#include "status/reason.h"

namespace shardmesh::rpc {

// For a reactor of gRPC's callback API, of a server or a client. The reactor passes its StartWrite
// to the constructor, and calls OnWriteDone from its own OnWriteDone. It ends its stream in the
// function that it passes to Close:
//
//   outbox_([this](const Message* m) { StartWrite(m); })
//   void OnWriteDone(bool ok) override { outbox_.OnWriteDone(ok); }
//   outbox_.Close(Outbox<Message>::kFlush, [this] { Finish(grpc::Status::OK); });
//
// States: open -> closing (Close) -> closed (no write is in progress, `closed` was called). A
// failed write drops the queue and makes later pushes fail. The reactor must call Close also after
// a failed write. No write starts after the call of `closed`, so Finish never races with a write.
//
// Thread-safe. `start_write` and `closed` run without a lock, within the call of Push, OnWriteDone
// or Close that triggers them. The outbox must outlive the last call of OnWriteDone and Close,
// including `closed`.
template <typename Message>
class Outbox {
 public:
  enum CloseMode {
    kFlush,  // all queued messages are written before `closed` is called
    kDrop,   // only the write in progress ends before `closed` is called
  };

  // The queue holds at most `limit_bytes`, or one message of any size.
  Outbox(int64_t limit_bytes, std::function<void(const Message*)> start_write)
      : limit_bytes_(limit_bytes), start_write_(std::move(start_write)) {}
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  // Queues a message of about `size_bytes`. One message can be in many outboxes without a copy.
  // RESOURCE_EXHAUSTED (LIMIT_EXCEEDED), with have and need: there is no room, because the peer
  // reads too slowly. UNAVAILABLE after Close or a failed write.
  absl::Status Push(std::shared_ptr<const Message> message, int64_t size_bytes)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    const Message* first = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      if (state_ != State::kOpen || broken_) {
        return WithReason(absl::UnavailableError("the stream is closed"), Reason::kNotServing);
      }
      if (!queue_.empty() && size_bytes > limit_bytes_ - queued_bytes_) {
        return WithReason(
            absl::ResourceExhaustedError(absl::StrCat(
                "the peer reads too slowly: ", queued_bytes_, " bytes wait for it, and ",
                size_bytes, " more are over the limit of ", limit_bytes_)),
            Reason::kLimitExceeded,
            {{fact::kHave, queued_bytes_ + size_bytes}, {fact::kLimit, limit_bytes_}});
      }
      queue_.push_back({std::move(message), size_bytes});
      queued_bytes_ += size_bytes;
      first = NextWrite();
    }
    StartWrite(first);
    return absl::OkStatus();
  }

  // Records the end of the write in progress, and starts the next write.
  void OnWriteDone(bool ok) ABSL_LOCKS_EXCLUDED(mutex_) {
    const Message* next = nullptr;
    absl::AnyInvocable<void()> closed;
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      PopFront();
      if (!ok) {
        broken_ = true;
        DropWaiting();
      }
      next = NextWrite();
      closed = TakeClosedIfDone();
    }
    StartWrite(next);
    if (closed) {
      std::move(closed)();
    }
  }

  // Closes the outbox. Calls `closed` once, when no write is in progress, possibly within this
  // call. If called several times, the `closed` of the first call counts, and kDrop wins over
  // kFlush. Returns whether this was the first call.
  bool Close(CloseMode mode, absl::AnyInvocable<void()> closed) ABSL_LOCKS_EXCLUDED(mutex_) {
    bool is_first = false;
    absl::AnyInvocable<void()> due;
    {
      absl::MutexLock lock(&mutex_);
      if (state_ == State::kOpen) {
        is_first = true;
        state_ = State::kClosing;
        closed_ = std::move(closed);
      }
      if (mode == kDrop) {
        DropWaiting();
      }
      due = TakeClosedIfDone();
    }
    if (due) {
      std::move(due)();
    }
    return is_first;
  }

  // The bytes of the queued messages, including the one that is being written.
  int64_t queued_bytes() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return queued_bytes_;
  }

 private:
  enum class State { kOpen, kClosing, kClosed };
  struct Entry {
    std::shared_ptr<const Message> message;
    int64_t size_bytes;
  };

  // Returns the message to write now, if one is queued and no write is in progress. The message
  // stays in the queue until its write has ended.
  const Message* NextWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || queue_.empty()) {
      return nullptr;
    }
    writing_ = true;
    return queue_.front().message.get();
  }

  void PopFront() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    queued_bytes_ -= queue_.front().size_bytes;
    queue_.pop_front();
  }

  void DropWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const size_t kept = writing_ ? 1 : 0;
    while (queue_.size() > kept) {
      queued_bytes_ -= queue_.back().size_bytes;
      queue_.pop_back();
    }
  }

  absl::AnyInvocable<void()> TakeClosedIfDone() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (state_ != State::kClosing || writing_ || !queue_.empty()) {
      return nullptr;
    }
    state_ = State::kClosed;
    return std::move(closed_);
  }

  void StartWrite(const Message* message) {
    if (message != nullptr) {
      start_write_(message);
    }
  }

  const int64_t limit_bytes_;
  const std::function<void(const Message*)> start_write_;

  mutable absl::Mutex mutex_;
  // The front message is being written if writing_ is true.
  std::deque<Entry> queue_ ABSL_GUARDED_BY(mutex_);
  int64_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kOpen;
  absl::AnyInvocable<void()> closed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_STREAM_OUTBOX_H_
