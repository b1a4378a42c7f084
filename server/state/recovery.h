// The workers whose return the coordinator expects: after its start those in its state, later those
// that left or were lost recently.
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

// A coordinator recovers from its start until each worker with a rank in its durable state has
// attached and brought its inventory once. Until then an array may be degraded only because its
// tiles are not reported yet. It never recovers again: a worker lost later is lost. Without such
// state it does not recover at all.
//
// A worker that keeps its tiles on disk and left or was lost is likely to restart. It is expected
// back for `return_grace`, and so is each awaited worker after the coordinator's start. Until then
// callers get RECOVERING, and retry, instead of an error that tiles or ranks are gone. Thread-safe.
class Recovery {
 public:
  static constexpr absl::Duration kDefaultReturnGrace = absl::Seconds(60);

  // The clock outlives it.
  explicit Recovery(const Clock* clock, absl::Duration return_grace = kDefaultReturnGrace);

  // The workers to wait for. Call it once, before they attach.
  void Begin(std::set<std::string, std::less<>> identities);
  // The worker's inventory was processed.
  void Heard(std::string_view identity);
  // A worker whose tiles are on its disk left or was lost.
  void Lost(std::string_view identity);
  // Meshes have changed: stops waiting for workers that no longer serve a rank.
  void MeshesChanged(const MembershipView& view);

  // Whether the worker is expected back: it left or was lost, or the coordinator started, within
  // the grace; and its inventory was not processed since.
  bool ComesBack(std::string_view identity) const;
  // Like ComesBack, for the start only: then the tiles in the worker's memory come back too.
  bool IsAwaited(std::string_view identity) const;

  // For how long workers are expected back and what the caller does, for the end of an error that
  // names them: "for at most 1m (--return-grace of the coordinator); try again, ...".
  std::string WaitAdvice() const;

  // Number of awaited workers; 0: it has recovered.
  int64_t awaited() const;
  // The time when recovery began, or ended.
  absl::Time since() const;

 private:
  void EndIfComplete() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock* const clock_;
  const absl::Duration return_grace_;
  const absl::Time started_;

  mutable absl::Mutex mutex_;
  std::set<std::string, std::less<>> awaited_ ABSL_GUARDED_BY(mutex_);
  absl::Time since_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, absl::Time, std::less<>> lost_ ABSL_GUARDED_BY(mutex_);  // when
};

// UNAVAILABLE (RECOVERING) with a delay after which the call may be tried again.
absl::Status Recovering(std::string_view message, Facts facts = {});

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_RECOVERY_H_
