// Whether the coordinator still waits, after its start, for the workers that its state names.
#ifndef SHARDMESH_SERVER_RECOVERY_H_
#define SHARDMESH_SERVER_RECOVERY_H_

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "rpc/clock.h"
#include "server/membership.h"

namespace shardmesh::server {

// A coordinator recovers from its start until each worker that serves a rank by its durable state
// has attached and brought its inventory once: until then arrays may be degraded only because
// nobody has asked for their tiles. It never recovers again; who is lost later is lost. Without
// such state it does not recover at all. Thread-safe.
class Recovery {
 public:
  // The clock outlives it.
  explicit Recovery(const rpc::Clock* clock);

  // The workers to wait for; to be called once, before they attach.
  void Begin(std::set<std::string, std::less<>> identities);
  // The worker's inventory was taken in.
  void Heard(std::string_view identity);
  // Meshes have changed: workers that serve no rank any more are not waited for.
  void MeshesChanged(const MembershipView& view);

  // Workers that are waited for; 0: it has recovered.
  int64_t awaited() const;
  // When it began to recover, or had recovered.
  absl::Time since() const;

 private:
  void EndIfComplete() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const rpc::Clock* const clock_;

  mutable absl::Mutex mutex_;
  std::set<std::string, std::less<>> awaited_ ABSL_GUARDED_BY(mutex_);
  absl::Time since_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_RECOVERY_H_
