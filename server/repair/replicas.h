// Keeps the second copy of each tile of the arrays that want two replicas.
#ifndef SHARDMESH_SERVER_REPAIR_REPLICAS_H_
#define SHARDMESH_SERVER_REPAIR_REPLICAS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "server/repair/search_thread.h"
#include "server/state/array_registry.h"
#include "server/state/definitions.h"
#include "server/state/membership.h"
#include "server/state/operation_table.h"
#include "server/state/recovery.h"
#include "server/steps/fill_transport.h"
#include "server/steps/mesh_endpoints.h"
#include "server/steps/sequencer.h"
#include "server/steps/transfers.h"
#include "sharding/mesh_definition.h"
#include "sharding/tile.h"

namespace shardmesh::server {

class ArrayCache;

// The objects that the copies use. All of them outlive the copies. The sequencer ends its work
// before it is destroyed, and may be destroyed after Stop.
struct ReplicaParts {
  Clock* clock = nullptr;
  const Membership* membership = nullptr;
  ArrayRegistry* registry = nullptr;
  DefinitionStore* definitions = nullptr;
  OperationTable* operations = nullptr;
  Sequencer* sequencer = nullptr;
  const MeshEndpoints* endpoints = nullptr;
  FillTransport* fill = nullptr;
  const Transfers* transfers = nullptr;
  ArrayCache* cache = nullptr;  // to take memory from; null: there is none
  // Returns a mesh as DefinitionStore takes it: a serialised v1::EntryValue.
  std::function<std::string(const MeshDefinition&)> encode = nullptr;
  std::string token_key = {};  // see rpc/transfer_token.h
  int64_t term = 0;
};

// An array that wants two replicas gets a companion array with the same shape, spec and cut points.
// The companion lies on an auxiliary mesh of the same shape (ReplicaMeshName), whose ranks have the
// workers of the mesh in another order (ReplicaWorkers). Its tiles are fetched from those of the
// array:
//
//   array is committed -> auxiliary mesh defined, if there is none -> companion staged
//     -> workers fetch its tiles -> checksums compared with those of the array -> committed
//
// From its commit on, the companion is held by the array: see ArrayRegistry. Repairs read lost
// tiles of either one from the other. An array whose spec alone puts each tile on two hosts gets no
// companion.
//
// All copies that run or wait at a time are one operation (OperationKind::kReplicate). A copy that
// fails is tried again, each time after twice the time, and at once when a worker attaches or takes
// work again. The copies of an operation that was cancelled begin again only then. An array that
// wants a replica after the end of that operation is copied by itself, in an operation of its own.
//
// An auxiliary mesh that no companion needs is deleted some seconds later.
//
// Nothing of this is durable but the definitions of the auxiliary meshes, and the companions: a
// coordinator that starts finds the arrays without companions again.
//
// The callbacks of its operation in the OperationTable point to this object. Stop, and so the
// destructor, ends the operation and thereby drops them. A call of the table that runs at that time
// may still use them: destroy this object only when no thread calls the table any more. The
// coordinator ends all calls of clients and stops its clock before.
//
// Thread-safe. No function blocks, except Stop and the destructor, which wait for the own thread.
class Replicas {
 public:
  struct Options {
    absl::Duration first_retry = absl::Seconds(5);
    absl::Duration last_retry = absl::Minutes(5);
    // How long a copy waits for a mesh that becomes ready, or for an array in repair, before it
    // counts as failed; and the time between two looks meanwhile.
    absl::Duration patience = absl::Seconds(15);
    absl::Duration poll = absl::Milliseconds(100);
    // Time between two looks for auxiliary meshes that nothing needs any more.
    absl::Duration tidy = absl::Seconds(10);
    size_t arrays_at_once = 4;
  };

  explicit Replicas(ReplicaParts parts) : Replicas(std::move(parts), Options()) {}
  Replicas(ReplicaParts parts, Options options);
  ~Replicas();
  Replicas(const Replicas&) = delete;
  Replicas& operator=(const Replicas&) = delete;

  // Begins the copies that are due: some array wants one, or (`is_chance`) a worker attached or
  // takes work again, so that copies that failed may succeed. Call it once at the start.
  void Look(bool is_chance);
  // Ends all copies, and begins no more. Waits for the own thread. For a coordinator that stops.
  void Stop();

  // Records progress, as Transfers does; no effect for other transfers. `bytes`: how much the
  // worker has of its tile so far.
  void TileArriving(std::string_view transfer_id, std::string_view identity, int64_t bytes);

  // Returns the state of the array's replicas. Nullopt: the array wants one only.
  std::optional<ArrayReplicas> Describe(const Array& array) const;
  ReplicaTotals totals() const;

 private:
  // An array whose copy could not be made, or has to wait.
  struct Trouble {
    absl::Status status = {};
    bool is_waiting = false;  // for something that comes soon by itself, at most until `give_up`
    absl::Time give_up = absl::InfiniteFuture();
    int rounds = 0;  // that failed
    absl::Time next_try = absl::InfinitePast();
  };
  // A copy that runs.
  struct Copy {
    std::string array_id = {};
    std::string companion_id = {};
    std::string replica_mesh = {};
    int64_t size_bytes = 0;                                      // of all tiles
    std::map<std::string, int64_t, std::less<>> by_worker = {};  // bytes of the tile of each worker
    std::map<std::string, int64_t, std::less<>> arrived = {};    // so far
  };
  // An array whose copy may begin.
  struct Waiting {
    std::string array_id = {};
    int64_t size_bytes = 0;  // of all tiles
  };
  // A copy that can begin.
  struct Planned {
    ArrayPtr array = nullptr;
    ArrayDefinition companion = {};
    std::vector<std::string> sources = {};       // the workers of the array's mesh, by rank
    std::vector<std::string> destinations = {};  // of the auxiliary mesh
    Copy copy = {};
  };

  // The functions from here to EndOperation run on the own thread.
  void Refill();
  void Pump();
  void Begin(const std::string& array_id);
  absl::StatusOr<Planned> Plan(const ArrayPtr& array);
  // Returns the auxiliary mesh, which has the shape and the workers of `mesh`. Defines it if
  // needed.
  absl::StatusOr<std::shared_ptr<const Definition>> EnsureMesh(const Definition& mesh);
  // ABORTED: some workers have yet to drop tiles of the auxiliary mesh. It waits for lost workers,
  // and if the mesh `is_in_the_way` for all, no longer than Options::patience.
  absl::Status CheckDropped(const std::string& name, bool is_in_the_way);
  // `is_in_the_way`: a copy needs another mesh of this name.
  absl::Status DeleteMesh(const std::string& name, bool is_in_the_way);
  absl::Status CheckMemory(const Copy& copy) const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Send(const Planned& planned, const std::string& transfer_id,
                    absl::Duration timeout) const;
  void Ended(const std::string& transfer_id, const absl::Status& status);
  void Fail(const std::string& array_id, const absl::Status& status);
  void RemoveUnused();
  void EnsureOperation();
  void EndOperation();

  // Checks the tiles that the workers have staged, and commits the companion.
  void Commit(const ArrayPtr& array, const std::string& companion_id, const WorkOutcome& outcome,
              absl::AnyInvocable<void(absl::Status) &&> decided) const;
  bool IsBySpec(const Array& array, const Tiling& tiling) const;
  void Cancel(const std::string& operation_id, const absl::Status& reason);
  // Returns the workers for which copies of the operation wait before they begin.
  OperationWorkers AwaitedBy(const std::string& operation_id) const;
  void UpdateTotal() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ReplicaParts parts_;
  const Options options_;
  // When auxiliary meshes may be deleted although a worker may have tiles of them. For the own
  // thread.
  std::map<std::string, absl::Time> deletable_;

  mutable absl::Mutex mutex_;
  bool is_chance_ ABSL_GUARDED_BY(mutex_) = false;  // see Look
  std::deque<Waiting> queue_ ABSL_GUARDED_BY(mutex_);
  int64_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;                             // of queue_
  std::map<std::string, Copy, std::less<>> running_ ABSL_GUARDED_BY(mutex_);     // by transfer
  std::map<std::string, Trouble, std::less<>> trouble_ ABSL_GUARDED_BY(mutex_);  // by array
  // The operation; empty: none runs. The next five fields belong to it.
  std::string operation_id_ ABSL_GUARDED_BY(mutex_);
  int64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t done_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t failed_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status first_failure_ ABSL_GUARDED_BY(mutex_);
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);
  int64_t copied_arrays_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t copied_bytes_ ABSL_GUARDED_BY(mutex_) = 0;

  SearchThread thread_;  // the own thread, which calls Refill; last: its tasks use the members
                         // above
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_REPAIR_REPLICAS_H_
