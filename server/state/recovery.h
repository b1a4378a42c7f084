// The workers whose return the coordinator expects: after its start the workers in its durable
// state, later the workers that recently left or were lost.
#ifndef SHARDMESH_SERVER_STATE_RECOVERY_H_
#define SHARDMESH_SERVER_STATE_RECOVERY_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "server/state/membership.h"
#include "status/fact_keys.h"

namespace shardmesh::server {

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

  // Returns the closing words of an error message about workers that are expected back. They say
  // for how long the workers are expected, and what the caller can do. Example: "for at most 1m
  // (--return-grace of the coordinator); try again, ...".
  std::string WaitAdvice() const;

  // Returns the number of awaited workers; 0: recovery has ended.
  int64_t awaited() const;
  // Returns the time at which recovery began or, if recovery has ended, the time of its end.
  absl::Time since() const;

 private:
  void EndIfComplete() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock* const clock_;
  const absl::Duration return_grace_;
  const absl::Time started_;

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
