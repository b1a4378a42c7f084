// The workers whose return the coordinator expects: after its start the workers in its durable
// state, later the workers that recently left or were lost.
#ifndef SHARDMESH_SERVER_STATE_RECOVERY_H_
#define SHARDMESH_SERVER_STATE_RECOVERY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "server/state/membership.h"
#include "status/fact_keys.h"

namespace shardmesh::server {

struct Array;

// The work to bring back the tiles that an array lacks.
struct ArrayRepair {
  // The operation that reads tiles of the array again; empty: none at present.
  std::string operation_id = {};
  // The tiles that are read again or wait for their turn, and their bytes.
  int64_t tiles = 0;
  int64_t size_bytes = 0;
  // Whether no tile is read again yet, and the repair of these tiles is about to begin: it awaits
  // the worker's inventory, or the search for lost tiles, which takes seconds at most.
  bool is_due = false;
  // The ranks of these tiles, rising, without those whose tiles are known to have no source.
  std::vector<int64_t> ranks = {};
  // How long the operation takes at its current rate; nullopt: not known.
  std::optional<absl::Duration> time_left = {};
  // If a tile could not be read again: the time of the next try, and the reason, for people.
  // InfiniteFuture: a worker must attach first.
  absl::Time next_try = absl::InfiniteFuture();
  std::string failure = {};

  // Returns the text for errors, such as `a repair reads 2 tiles again (operation ..., 3s left)`.
  std::string ToString(absl::Time now) const;
};

// Figures of all repairs.
struct RepairTotals {
  int64_t operations = 0;  // that run; the next four figures are sums over them
  int64_t done_bytes = 0;
  int64_t total_bytes = 0;
  int64_t bytes_per_second = 0;
  std::optional<absl::Duration> time_left = {};  // of the last one; nullopt: not known
  int64_t tiles = 0;                             // that are read again or wait for their turn
  int64_t failed_tiles = 0;  // that could not be read again, and wait for another try
  // Since the start of the process.
  int64_t repaired_tiles = 0;
  int64_t repaired_bytes = 0;
};

// The replicas of an array that wants more than one.
struct ArrayReplicas {
  int64_t wanted = 0;
  // How many workers have the tile that the fewest workers have, at most `wanted`.
  int64_t complete = 0;
  // Whether the array's own spec puts each tile on two hosts, so that no second copy is made.
  bool by_spec = false;
  // Whether both copies of some tile are on one host: the mesh has one host only, or one of its
  // hosts has more than half of the workers, or workers were replaced since.
  bool shares_host = false;
  std::string operation_id = {};  // that copies; empty: none at present
  std::string failure = {};       // why the last try failed, for people; empty: it did not
};

// Figures of the second copies of all arrays.
struct ReplicaTotals {
  int64_t waiting = 0;  // arrays whose copy runs or waits for its turn
  int64_t failed = 0;   // arrays whose copy could not be made, and waits for another try
  // Since the start of the process.
  int64_t copied_arrays = 0;
  int64_t copied_bytes = 0;
};

// After its start, a coordinator awaits each worker with a rank in its durable state. Recovery ends
// once each of these workers has attached and its inventory (the list of its tiles) was processed.
// Until then an array may be degraded only because its tiles are not reported yet. Recovery happens
// once: a worker that is lost after its inventory was processed is not awaited. If the durable
// state has no worker with a rank, there is no recovery.
//
// A worker that keeps its tiles on disk is likely to restart after it left or was lost. The
// coordinator expects it back for `return_grace`. The coordinator also expects each awaited worker
// for `return_grace` after the coordinator's own start. While a worker is expected back, callers
// that need it get RECOVERING and retry. They do not get an error that tiles or ranks are gone.
// Thread-safe.
class Recovery {
 public:
  static constexpr absl::Duration kDefaultReturnGrace = absl::Seconds(60);

  // `clock` must outlive this object.
  explicit Recovery(const Clock* clock, absl::Duration return_grace = kDefaultReturnGrace);

  // Sets the workers to await. Call it once, before workers attach.
  void Begin(std::set<std::string, std::less<>> identities);
  // Records that the worker's inventory was processed.
  void Heard(std::string_view identity);
  // Records that a worker left or was lost. Call it only for workers that keep their tiles on disk.
  void Lost(std::string_view identity);
  // After a change of meshes, stops awaiting workers that no longer serve a rank.
  void MeshesChanged(const MembershipView& view);

  // Returns whether the worker is expected back: it left or was lost within the last
  // `return_grace`. A worker that neither left nor was lost is expected back if it is awaited and
  // the coordinator started within the last `return_grace`. Once its inventory was processed, a
  // worker is not expected back.
  bool ComesBack(std::string_view identity) const;
  // Returns whether the worker is awaited since the coordinator's start and expected back. Such a
  // worker still has its tiles, even those in memory.
  bool IsAwaited(std::string_view identity) const;
  // Returns whether some worker is awaited so.
  bool AwaitsAny() const;

  // Returns the closing words of an error message about workers that are expected back. They say
  // for how long the workers are expected, and what the caller can do. Example: "for at most 1m
  // (--return-grace of the coordinator); try again, ...".
  std::string WaitAdvice() const;

  // Sets the functions that describe the repair of an array (nullopt: the repairs know no lost tile
  // of it that an attached worker could read again), and all repairs. Set them before workers
  // attach.
  using DescribeRepair = std::function<std::optional<ArrayRepair>(std::string_view array_id)>;
  using DescribeRepairs = std::function<RepairTotals()>;
  void SetRepairs(DescribeRepair describe, DescribeRepairs totals) {
    describe_repair_ = std::move(describe);
    describe_repairs_ = std::move(totals);
  }
  // The same for the replicas of an array (nullopt: it wants one only), and all replicas.
  using DescribeReplicas = std::function<std::optional<ArrayReplicas>(const Array& array)>;
  using CountReplicas = std::function<ReplicaTotals()>;
  void SetReplicas(DescribeReplicas describe, CountReplicas totals) {
    describe_replicas_ = std::move(describe);
    count_replicas_ = std::move(totals);
  }
  std::optional<ArrayReplicas> ReplicasOf(const Array& array) const {
    return describe_replicas_ ? describe_replicas_(array) : std::nullopt;
  }
  ReplicaTotals replicas() const { return count_replicas_ ? count_replicas_() : ReplicaTotals(); }
  // Return the results of these functions; if none are set, as if there were no repairs.
  std::optional<ArrayRepair> RepairOf(std::string_view array_id) const {
    return describe_repair_ ? describe_repair_(array_id) : std::nullopt;
  }
  RepairTotals repairs() const { return describe_repairs_ ? describe_repairs_() : RepairTotals(); }

  absl::Time now() const { return clock_->Now(); }
  // Returns the number of awaited workers; 0: recovery has ended.
  int64_t awaited() const;
  // Returns the time at which recovery began or, if recovery has ended, the time of its end.
  absl::Time since() const;

 private:
  void EndIfComplete() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock* const clock_;
  const absl::Duration return_grace_;
  const absl::Time started_;
  DescribeRepair describe_repair_;      // constant once workers attach
  DescribeRepairs describe_repairs_;    // as well
  DescribeReplicas describe_replicas_;  // as well
  CountReplicas count_replicas_;        // as well

  mutable absl::Mutex mutex_;
  std::set<std::string, std::less<>> awaited_ ABSL_GUARDED_BY(mutex_);
  absl::Time since_ ABSL_GUARDED_BY(mutex_);
  // The workers passed to Lost, each with the time of that call.
  std::map<std::string, absl::Time, std::less<>> lost_ ABSL_GUARDED_BY(mutex_);
};

// Returns UNAVAILABLE (RECOVERING) with a delay after which the call may be tried again.
absl::Status Recovering(std::string_view message, Facts facts = {});

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_RECOVERY_H_
