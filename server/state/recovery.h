// The workers whose return the coordinator expects: after its start those in its state, later those
// that left or were lost a moment ago.
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

// A coordinator recovers from its start until each worker that serves a rank by its durable state
// has attached and brought its inventory once. Until then an array may be degraded only because its
// tiles are not yet reported. It never recovers again: a worker lost later is lost. Without such
// state it does not recover at all.
//
// A worker that keeps its tiles on disk and left or was lost is likely to restart. It is expected
// back for `return_grace`, and so is each awaited worker after the coordinator's start. Until then
// callers get RECOVERING, and retry, instead of an error that tiles or ranks are gone. Thread-safe.
class Recovery {
 public:
  static constexpr absl::Duration kDefaultReturnGrace = absl::Seconds(60);

  // The clock outlives it.
  explicit Recovery(const rpc::Clock* clock, absl::Duration return_grace = kDefaultReturnGrace);

  // The workers to wait for; to be called once, before they attach.
  void Begin(std::set<std::string, std::less<>> identities);
  // The worker's inventory was taken in.
  void Heard(std::string_view identity);
  // A worker whose tiles are on its disk left or was lost.
  void Lost(std::string_view identity);
  // Meshes have changed: workers that serve no rank any more are not waited for.
  void MeshesChanged(const MembershipView& view);

  // Whether the worker is expected back: it left, was lost, or the coordinator started, less than
  // the grace ago, and its inventory was not taken in since.
  bool ComesBack(std::string_view identity) const;
  // As ComesBack, for the start only: the tiles in the worker's memory come back then too.
  bool IsAwaited(std::string_view identity) const;

  // Workers that are waited for; 0: it has recovered.
  int64_t awaited() const;
  // When it began to recover, or had recovered.
  absl::Time since() const;

 private:
  void EndIfComplete() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const rpc::Clock* const clock_;
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
