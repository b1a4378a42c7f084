// Asks the coordinator for memory or disk space that tiles of released arrays take.
#ifndef SHARDMESH_WORKER_SERVICE_ATTACH_MEMORY_REQUESTS_H_
#define SHARDMESH_WORKER_SERVICE_ATTACH_MEMORY_REQUESTS_H_

#include <cstdint>
#include <map>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/service/attach_sink.h"

namespace shardmesh::worker {

// The worker's questions for memory, over the stream of the current attach. Thread-safe.
class MemoryRequests {
 public:
  // `timeout`: time for the coordinator to answer. A coordinator of an older version does not.
  explicit MemoryRequests(absl::Duration timeout = absl::Seconds(2)) : timeout_(timeout) {}
  MemoryRequests(const MemoryRequests&) = delete;
  MemoryRequests& operator=(const MemoryRequests&) = delete;

  // Asks the coordinator to free `need_bytes` of this worker's memory, or of its disk if `on_disk`,
  // and waits. Returns whether the coordinator has ordered the worker to drop arrays; the worker
  // has carried out the orders then. Returns false at once if the worker is not attached. Blocks:
  // do not call it on a gRPC thread, nor on the thread that calls Answered.
  bool Free(int64_t need_bytes, bool on_disk = false);

  // Called when the worker has attached, and when its stream has ended.
  void Attached(AttachSinkPtr stream);
  void Detached();
  // Called with the coordinator's answer, after the orders that came before it.
  void Answered(int64_t order_id, int64_t freed_bytes);

 private:
  const absl::Duration timeout_;
  absl::Mutex mutex_;
  AttachSinkPtr stream_ ABSL_GUARDED_BY(mutex_);  // null: not attached
  int64_t last_order_ ABSL_GUARDED_BY(mutex_) = 0;
  // The freed bytes, by order; nullopt: not answered yet.
  std::map<int64_t, std::optional<int64_t>> orders_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_ATTACH_MEMORY_REQUESTS_H_
