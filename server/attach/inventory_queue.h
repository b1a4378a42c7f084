// Decides when workers may send their inventories (lists of the tiles that they hold), and
// processes the complete inventories one after the other.
#ifndef SHARDMESH_SERVER_ATTACH_INVENTORY_QUEUE_H_
#define SHARDMESH_SERVER_ATTACH_INVENTORY_QUEUE_H_

#include <cstdint>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "server/attach/worker_stream.h"

namespace shardmesh::server {

// Bounds the memory of inventories that wait to be processed. Calls for one stream, in this order:
//   AwaitTurn -> its `admit` -> Keep for each page -> TakeIn -> TakeWholeInventory -> EndTurn
// A stream may call EndTurn at any point. Thread-safe. Callbacks run without a lock.
class InventoryQueue {
 public:
  struct Limits {
    // Maximum number of streams that bring their inventories at the same time; at least 1.
    int64_t streams = 256;
    // Maximum number of bytes of inventories that have arrived and still wait to be processed. One
    // stream at a time may exceed this limit. While a stream exceeds it, the queue refuses further
    // bytes of all other streams.
    int64_t bytes = int64_t{256} << 20;
  };
  using Admit = absl::AnyInvocable<void() &&>;

  // `clock` outlives the queue.
  InventoryQueue(const Clock* clock, Limits limits);
  // Processes all waiting inventories, then ends the thread of the queue.
  ~InventoryQueue();
  InventoryQueue(const InventoryQueue&) = delete;
  InventoryQueue& operator=(const InventoryQueue&) = delete;

  // Waits for the stream's turn, which is the time in which the stream may bring its inventory.
  // Calls `admit` when the turn begins: now, or once fewer other streams have a turn. The stream
  // must not end before `admit` ran.
  void AwaitTurn(WorkerStream* stream, Admit admit);
  // Counts `bytes` more of the stream's inventory. No effect if the stream's turn has ended.
  // RESOURCE_EXHAUSTED (OVERLOADED), with a retry delay: too many bytes of inventories wait. The
  // stream must then drop these bytes.
  absl::Status Keep(WorkerStream* stream, int64_t bytes);
  // Queues the stream's complete inventory. The queue's thread calls TakeWholeInventory of one
  // stream after the other. The stream must not end before that call.
  void TakeIn(WorkerStream* stream);
  // Ends the stream's turn: its inventory was processed, or never will be. Admits the next streams.
  // No effect if the stream has no turn.
  void EndTurn(WorkerStream* stream);

 private:
  // A stream that is bringing its inventory, or whose complete inventory waits to be processed.
  struct Bringing {
    int64_t bytes = 0;
    bool is_whole = false;
  };

  bool HasTurn() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void TakeInventories();

  const Clock* const clock_;
  const Limits limits_;

  absl::Mutex mutex_;
  absl::flat_hash_map<WorkerStream*, Bringing> bringing_ ABSL_GUARDED_BY(mutex_);
  // Streams that wait for a turn.
  std::deque<std::pair<WorkerStream*, Admit>> waiting_ ABSL_GUARDED_BY(mutex_);
  // Streams whose complete inventories wait to be processed.
  std::deque<WorkerStream*> whole_ ABSL_GUARDED_BY(mutex_);
  int64_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // sum of bytes over bringing_
  // Size of the largest recent inventory.
  int64_t largest_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time last_end_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // when a turn last ended
  // The one stream that has exceeded limits_.bytes; null: none.
  WorkerStream* beyond_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread taker_;  // last: the thread uses all members above
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_ATTACH_INVENTORY_QUEUE_H_
