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

// A change of a worker, with the worker's data after the change.
struct WorkerChange {
  enum class Kind { kAttached, kLost, kDraining, kResumed, kForgotten };
  Kind kind = Kind::kAttached;
  std::string identity;
  uint64_t incarnation = 0;
  int64_t epoch = 0;   // the membership's epoch after the change
  std::string reason;  // why the worker was lost, for people
};

// An array was committed or adopted; or (`is_deleted`) it was released or put into quarantine.
struct ArrayChange {
  std::string array_id;
  std::string mesh_id;
  bool is_deleted = false;
};

// A name was moved or deleted.
struct NameChange {
  std::string name;
  std::string array_id;  // empty: deleted
  int64_t version = 0;   // the name's version; for a deletion the store's revision
};

struct ClusterChange {
  using Value = std::variant<WorkerChange, ArrayChange, NameChange>;

  absl::Time time;
  Value value;

  // Returns roughly how much memory the change takes.
  size_t SizeBytes() const;
};
using ClusterChangePtr = std::shared_ptr<const ClusterChange>;

// Passes each change to all watchers. Keeps no changes: a watcher gets only the changes after its
// Begin. Thread-safe.
class ClusterChanges {
 public:
  using Callback = std::function<void(const ClusterChangePtr&)>;

  // A running watch. The destructor ends the watch. Once the destructor has returned, the callback
  // no longer runs.
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

  // `clock` must outlive this object.
  explicit ClusterChanges(const Clock* clock) : clock_(clock) {}

  // Returns whether there is any watch. Most clusters have no watch: call is_watched before you
  // build a change for Add.
  bool is_watched() const { return is_watched_.load(std::memory_order_acquire); }

  // Passes a change to the callbacks of all watches, one change at a time. The caller must hold no
  // lock.
  void Add(ClusterChange::Value value);

  // Begins a watch: from now on, each change is passed to `callback` under a lock. The callback
  // must therefore be quick, and must not call this object. Destroy the watch before this object.
  std::unique_ptr<Watch> Begin(Callback callback);

 private:
  const Clock* const clock_;
  std::atomic<bool> is_watched_ = false;
  absl::Mutex mutex_;
  std::set<const Watch*> watches_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_CLUSTER_CHANGES_H_
