// The end of a stream on which several threads work: it is finished once, after the last of them.
#ifndef SHARDMESH_RPC_STREAM_FINISH_ONCE_H_
#define SHARDMESH_RPC_STREAM_FINISH_ONCE_H_

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace shardmesh::rpc {

// A reactor ends its stream through this object, and brackets all work outside of gRPC's reactions
// with BeginWork and EndWork. `finish` runs once: when the stream has ended and no work is under
// way. It runs without a lock, as the last use of this object, which it may destroy.
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
  // Gets the first status of End and EndWork that is not OK; OK if there was none.
  using Finish = absl::AnyInvocable<void(const absl::Status&) &&>;

  explicit FinishOnce(Finish finish) : finish_(std::move(finish)) {}
  FinishOnce(const FinishOnce&) = delete;
  FinishOnce& operator=(const FinishOnce&) = delete;

  // Keeps the stream from being finished until EndWork. CANCELLED: it has ended, and may be gone.
  absl::Status BeginWork() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends a work; a status that is not OK ends the stream. The caller must not touch the stream
  // afterwards.
  void EndWork(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the stream. The first call counts. Outside of a reaction of gRPC's or of a work, the
  // caller must not touch the stream afterwards.
  void End(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);

  bool has_ended() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool is_at_work() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Keeps the first error, and runs `finish` if that is due.
  void Note(absl::Status status, bool ends, int works) ABSL_LOCKS_EXCLUDED(mutex_);

  mutable absl::Mutex mutex_;
  Finish finish_ ABSL_GUARDED_BY(mutex_);  // null once it ran
  int works_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_STREAM_FINISH_ONCE_H_
