// Ends a stream on which several threads work: once, when no thread works on it any more.
#ifndef SHARDMESH_RPC_STREAM_FINISH_ONCE_H_
#define SHARDMESH_RPC_STREAM_FINISH_ONCE_H_

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace shardmesh::rpc {

// A reactor ends its stream through this object. Work outside of reactions (gRPC callbacks) happens
// between BeginWork and EndWork. `finish` runs once: when the stream has ended and no work is in
// progress. It runs without a lock and is the last use of this object, so it may destroy the
// object.
//
//   void OnReadDone(bool ok) { if (!ok) return end_.End(absl::OkStatus()); ... }
//   void OnCancel() { end_.End(absl::CancelledError("the client left")); }
//   void Compute() {
//     if (!end_.BeginWork().ok()) return;
//     pool->Push([this] { end_.EndWork(Result()); });
//   }
//
// Thread-safe.
class FinishOnce {
 public:
  // Receives the first status of End and EndWork that is not OK; OK if there was none.
  using Finish = absl::AnyInvocable<void(const absl::Status&) &&>;

  explicit FinishOnce(Finish finish) : finish_(std::move(finish)) {}
  FinishOnce(const FinishOnce&) = delete;
  FinishOnce& operator=(const FinishOnce&) = delete;

  // Begins work, which delays `finish` until EndWork. CANCELLED: the stream has ended. The caller
  // must not use the stream's reactor, because it may be destroyed.
  absl::Status BeginWork() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends work. A status that is not OK ends the stream. After EndWork the caller must not use the
  // stream.
  void EndWork(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the stream. Only the first call counts. After End the caller may use the stream only in a
  // reaction or between BeginWork and EndWork.
  void End(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);

  bool has_ended() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool is_at_work() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Records the first error, and runs `finish` if the stream has ended and no work is in progress.
  void Note(absl::Status status, bool ends, int works) ABSL_LOCKS_EXCLUDED(mutex_);

  mutable absl::Mutex mutex_;
  Finish finish_ ABSL_GUARDED_BY(mutex_);  // null after it ran
  int works_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_STREAM_FINISH_ONCE_H_
