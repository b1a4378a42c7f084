// Changes of workers, arrays and names, sent to watchers as they happen.
#ifndef SHARDMESH_SERVER_STATE_CLUSTER_CHANGES_H_
#define SHARDMESH_SERVER_STATE_CLUSTER_CHANGES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"

namespace shardmesh::server {

// A worker after a change.
struct WorkerChange {
  enum class Kind { kAttached, kLost, kDraining, kResumed, kForgotten };
  Kind kind = Kind::kAttached;
  std::string identity;
  uint64_t incarnation = 0;
  int64_t epoch = 0;   // of the membership, after the change
  std::string reason;  // of a loss, for people
};

// An array became visible, or is no longer visible.
struct ArrayChange {
  std::string array_id;
  std::string mesh_id;
  bool is_deleted = false;
};

// A name was moved or deleted.
struct NameChange {
  std::string name;
  std::string array_id;  // empty: deleted
  int64_t version = 0;   // of the name; of a deletion: the store's revision
};

struct ClusterChange {
  using Value = std::variant<WorkerChange, ArrayChange, NameChange>;

  absl::Time time;
  Value value;

  // Memory that the change takes, roughly.
  size_t SizeBytes() const;
};
using ClusterChangePtr = std::shared_ptr<const ClusterChange>;

// Passes each change to all watchers. Keeps nothing: a watcher that begins later does not get it.
// Thread-safe.
class ClusterChanges {
 public:
  using Callback = std::function<void(const ClusterChangePtr&)>;

  // Ends a watch. Once its destructor has returned, the callback no longer runs.
  class Watch {
   public:
    Watch(ClusterChanges* changes, Callback callback);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    friend class ClusterChanges;
    ClusterChanges* const changes_;
    const Callback callback_;
  };

  // The clock outlives it.
  explicit ClusterChanges(const rpc::Clock* clock) : clock_(clock) {}

  // Whether there is any watch. Call it before making a change: most clusters have no watches.
  bool is_watched() const { return is_watched_.load(std::memory_order_acquire); }

  // Calls the callbacks, one change at a time. Call it without a lock.
  void Add(ClusterChange::Value value);

  // Calls `callback` with each change from now on, under a lock: it must be quick, and may not call
  // this object. Destroy the watch before this object.
  std::unique_ptr<Watch> Begin(Callback callback);

 private:
  const rpc::Clock* const clock_;
  std::atomic<bool> is_watched_ = false;
  absl::Mutex mutex_;
  std::set<const Watch*> watches_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_CLUSTER_CHANGES_H_
