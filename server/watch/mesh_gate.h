// Holds answers to changes of meshes back until the membership has the change.
#ifndef SHARDMESH_SERVER_WATCH_MESH_GATE_H_
#define SHARDMESH_SERVER_WATCH_MESH_GATE_H_

#include <limits>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "server/state/definitions.h"

namespace shardmesh::server {

// A mesh is in the catalog at its commit, and in the membership when the watch of the catalog has
// reported it: a client that was answered between the two could not put onto its new mesh.
// Thread-safe.
class MeshGate {
 public:
  // Calls `then` once all changes of meshes up to `revision` are applied: at once, or from the
  // thread that calls Applied or Open.
  void After(Revision revision, absl::AnyInvocable<void() &&> then);

  // Says that the membership has all changes up to `revision`. Calls what waited for it.
  void Applied(Revision revision);
  // Calls all that waits, and lets nothing wait any more.
  void Open() { Applied(std::numeric_limits<Revision>::max()); }

 private:
  absl::Mutex mutex_;
  Revision applied_ ABSL_GUARDED_BY(mutex_) = 0;
  std::multimap<Revision, absl::AnyInvocable<void() &&>> waiting_ ABSL_GUARDED_BY(mutex_);
};

// Returns a callback that calls `callback` once `gate` lets the change through; `callback` itself
// if `gate` is null. A change that failed, or was only validated, does not wait.
DefinitionStore::Callback AfterMembership(MeshGate* gate, DefinitionStore::Callback callback);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_WATCH_MESH_GATE_H_
