// The attached workers, the ranks that they serve, and the epoch. The epoch rises with each change
// of the live workers.
#ifndef SHARDMESH_SERVER_STATE_MEMBERSHIP_H_
#define SHARDMESH_SERVER_STATE_MEMBERSHIP_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "process/event_queue.h"
#include "program/measured_rates.h"
#include "server/state/pause_watch.h"

namespace shardmesh::server {

// Legal transitions:
//
// clang-format off
//   (unknown) -> kAttached          Attach
//   kAttached -> kDraining          Leave, or Drain(true): gets no new work, keeps its tiles
//   kDraining -> kAttached          Drain(false), unless the worker is leaving
//   kAttached, kDraining -> kLost   its stream broke or ended, or its heartbeats stopped
//   kLost     -> kAttached          Attach, by the same or a new incarnation
//   kLost     -> kDraining          Attach, by the incarnation that Drain(true) named;
//                                   forgetting the worker ends the drain
//   kLost     -> (unknown)          it serves no rank, and forget_after has passed; or Forget
// clang-format on
//
// A worker is alive when it is kAttached or kDraining. The epoch rises by one whenever a worker
// becomes alive, is lost, or attaches again.
enum class WorkerState { kAttached, kDraining, kLost };
std::string_view WorkerStateName(WorkerState state);  // "ATTACHED", ...

// The data that a worker sends about itself when it attaches. The endpoints are verified.
struct WorkerInfo {
  std::string identity;      // stable over restarts, 1 to 255 bytes
  uint64_t incarnation = 0;  // new at each start; not 0
  std::string build_version;
  std::vector<std::string> endpoints;  // gRPC targets, best first; at least one
  // The port for the worker's peers, on the hosts of the worker's endpoints; nullopt: the peers use
  // these endpoints.
  std::optional<int> exchange_port = std::nullopt;
  int64_t pid = 0;                      // process id on its host; 0: unknown
  std::string host;                     // for people
  int64_t capacity_bytes = 0;           // memory for shards
  bool durable = false;                 // keeps committed tiles on disk
  int64_t cache_bytes = 0;              // memory that tiles of released arrays may take
  MeasuredKernels kernels = {};         // the speed of its kernels
  bool answers_clock = false;           // answers each CoordinatorClock with a heartbeat at once
  bool multiplies_batches = false;      // runs plans for which MultipliesBatches is true
  bool runs_tensor_ops = false;         // runs plans with LocalCompute and with updates
  bool multiplies_short_types = false;  // runs plans for which MultipliesShortTypes is true
  bool overlaps_exchanges = false;      // runs plans for which OverlapsExchanges is true
  bool overlaps_parts = false;          // runs plans for which OverlapsParts is true
  bool runs_fused_ops = false;          // runs plans for which HasFusedOps is true
};

// A worker's quarantine: the number of arrays with tiles there, and the bytes of these tiles.
struct QuarantineCount {
  int64_t arrays = 0;
  int64_t size_bytes = 0;
};

// Figures of one worker from its heartbeats. All views share this object, so a heartbeat needs no
// new view. Thread-safe.
class Vitals {
 public:
  absl::Time last_heartbeat() const {
    return absl::FromUnixNanos(last_heartbeat_ns_.load(std::memory_order_relaxed));
  }
  int64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }

  void Beat(absl::Time now) {
    last_heartbeat_ns_.store(absl::ToUnixNanos(now), std::memory_order_relaxed);
  }
  QuarantineCount quarantine() const {
    return {.arrays = quarantined_arrays_.load(std::memory_order_relaxed),
            .size_bytes = quarantined_bytes_.load(std::memory_order_relaxed)};
  }
  void SetQuarantine(const QuarantineCount& count) {
    quarantined_arrays_.store(count.arrays, std::memory_order_relaxed);
    quarantined_bytes_.store(count.size_bytes, std::memory_order_relaxed);
  }
  void SetUsedBytes(int64_t used_bytes) {
    used_bytes_.store(used_bytes, std::memory_order_relaxed);
  }

 private:
  std::atomic<int64_t> last_heartbeat_ns_ = 0;
  std::atomic<int64_t> used_bytes_ = 0;
  std::atomic<int64_t> quarantined_arrays_ = 0;
  std::atomic<int64_t> quarantined_bytes_ = 0;
};

struct WorkerStatus {
  WorkerInfo info;
  WorkerState state = WorkerState::kAttached;
  bool is_leaving = false;   // the worker's process is ending
  bool is_held = false;      // drained by Drain(true), until its process ends
  uint64_t attachment = 0;   // see Membership::Attach
  absl::Time attached;       // time of its last Attach
  std::string lost_because;  // when kLost
  absl::Time lost;           // when kLost
  int64_t losses = 0;        // number of times that the worker was lost
  std::shared_ptr<Vitals> vitals = std::make_shared<Vitals>();

  // Attach counts as the first heartbeat.
  absl::Time last_heartbeat() const { return vitals->last_heartbeat(); }
  // The used part of capacity_bytes, as of the last heartbeat.
  int64_t used_bytes() const { return vitals->used_bytes(); }
  QuarantineCount quarantine() const { return vitals->quarantine(); }  // as of the last heartbeat
};

// The workers of the ranks of one mesh. Immutable.
class MeshRanks {
 public:
  MeshRanks(std::string id, std::vector<std::string> by_rank, int64_t rank_count);

  const std::string mesh_id;
  // The identity of the worker of each rank; empty until the ranks are assigned. The ranks stay
  // assigned as long as the mesh is defined, whether or not the workers are alive. Only SetRanks
  // moves them to other workers.
  const std::vector<std::string> identities;
  const int64_t size;  // number of ranks

  // Returns the rank that `identity` serves; nullopt if it serves none. O(log size).
  std::optional<int64_t> RankOf(std::string_view identity) const;

 private:
  std::vector<uint32_t> by_identity_;  // ranks, in the order of their identities
};

// The membership at one epoch. Immutable except for the vitals. Copies share unchanged parts.
struct MembershipView {
  int64_t epoch = 0;
  // By identity, including lost workers.
  std::map<std::string, std::shared_ptr<const WorkerStatus>, std::less<>> workers;
  std::map<std::string, std::shared_ptr<const MeshRanks>, std::less<>> meshes;  // by mesh id
  int64_t alive = 0;  // number of live workers

  const WorkerStatus* FindWorker(std::string_view identity) const;
  const MeshRanks* FindMesh(std::string_view mesh_id) const;
  bool IsAlive(std::string_view identity) const;
  // Returns text for errors: the rank, its worker and, if the worker is lost, the reason: `rank 1
  // (worker-1: no heartbeat for 5s)`. Requires that the mesh's ranks are assigned and that `rank`
  // is one of them.
  std::string DescribeRank(const MeshRanks& mesh, int64_t rank) const;
  // FAILED_PRECONDITION (MESH_INCOMPLETE): some rank of the mesh has no live worker. The message
  // names the first such ranks and their workers. NOT_FOUND: no such mesh.
  absl::Status CheckComplete(std::string_view mesh_id) const;
  // Returns the ranks of the mesh without a live worker. Returns none if the ranks are not
  // assigned.
  std::vector<int64_t> MissingRanks(const MeshRanks& mesh) const;
};

// A change from one membership view to the next.
struct MembershipEvent {
  enum class Kind {
    kAttached,       // `identity` became alive, or attached again
    kLost,           // `identity` is no longer alive
    kDrainChanged,   // `identity` drains, or no longer drains
    kMeshAdded,      // `mesh_id` is defined
    kRanksAssigned,  // the listener must store the identities of the ranks of `mesh_id`
    kRanksMoved,     // ranks of `mesh_id` moved to other workers
    kMeshRemoved,    // `mesh_id` is gone
    kForgotten,      // `identity` was lost, served no rank, and is no longer known
  };
  Kind kind = Kind::kAttached;
  std::string identity = {};
  std::string mesh_id = {};
  int64_t epoch = 0;                                     // after the change
  std::shared_ptr<const WorkerStatus> worker = nullptr;  // the current or last state of `identity`
  std::shared_ptr<const MeshRanks> mesh = nullptr;       // new ranks (kRanksAssigned, kRanksMoved)
  std::shared_ptr<const MeshRanks> former = nullptr;     // former ranks (kRanksMoved)
};

// A rank that a worker serves.
struct ServedRank {
  std::string mesh_id;
  int64_t rank = 0;
};

struct MembershipOptions {
  absl::Duration heartbeat_interval = absl::Seconds(1);  // sent to workers
  // A worker without a heartbeat for this time is lost. Time in which this process itself was
  // stopped does not count (PauseWatch).
  absl::Duration lost_after = absl::Seconds(5);
  // Time after which a lost worker that serves no rank is forgotten.
  absl::Duration forget_after = absl::Minutes(10);
  // The epoch before the first change. It must be above every epoch of earlier runs of the
  // coordinator.
  int64_t first_epoch = 0;
};

// Thread-safe. Listeners get the changes one at a time, in the order in which they happen, without
// a lock held. Listeners run on the thread that made the change, or on the clock's thread. Destroy
// the membership before its clock and before the objects that the listeners use.
class Membership {
 public:
  using Listener = std::function<void(const MembershipEvent&)>;

  explicit Membership(Clock* clock, MembershipOptions options = {});

  const MembershipOptions& options() const { return options_; }

  // Adds a listener for later changes. Call it before workers attach.
  void AddListener(Listener listener);

  // Returns the newest view, including heartbeats. After a change, the first call makes the view.
  std::shared_ptr<const MembershipView> view() const;

  // Returns the ranks that this identity serves, by mesh. O(number of these ranks).
  std::vector<ServedRank> RanksOf(std::string_view identity) const;

  // Records that a worker attached. Returns the number of this attachment, never 0, which
  // identifies the worker's stream in later calls. If the same incarnation attaches again, the new
  // stream replaces the older stream. The older attachment then ends without an event.
  //   ALREADY_EXISTS (IDENTITY_IN_USE)  another incarnation has the identity and is alive; the
  //                                     message names that incarnation's pid, host and endpoint.
  //                                     Retry when that incarnation is lost.
  //   INVALID_ARGUMENT                  a field is out of its range.
  absl::StatusOr<uint64_t> Attach(WorkerInfo info);

  // Records a heartbeat. ABORTED: this attachment has ended, and the worker must attach again.
  // O(1).
  absl::Status Heartbeat(uint64_t attachment, int64_t used_bytes, QuarantineCount quarantine = {});

  // Records that the stream of an attachment ended. `reason` is for people ("its stream broke:
  // ..."). No effect if the attachment has already ended.
  void Detach(uint64_t attachment, std::string reason);

  // Takes the worker out of use for an operator (`draining`), or returns it to use (not
  // `draining`). NOT_FOUND: no live worker has the identity. FAILED_PRECONDITION (NOT_SERVING): the
  // worker is leaving, and cannot return to use.
  absl::Status Drain(std::string_view identity, bool draining);
  // Returns the error that Drain would return now. Changes nothing.
  absl::Status CheckDrain(std::string_view identity, bool draining) const;
  // Records that the worker's process is ending. NOT_FOUND: no live worker has the identity.
  absl::Status Leave(std::string_view identity);
  // Forgets a lost worker. NOT_FOUND: no such worker. FAILED_PRECONDITION: the worker is alive
  // (WORKER_ATTACHED), or serves a rank (WORKER_SERVES_RANK).
  absl::Status Forget(std::string_view identity);
  // Returns the error that Forget would return now. Changes nothing.
  absl::Status CheckForget(std::string_view identity) const;

  // Defines a mesh of `size` ranks. `identities` names the worker of each rank, each worker at most
  // once, or is empty. If it is empty, the ranks stay unassigned until `size` workers are attached.
  // The ranks then go to the first `size` attached workers, by bytewise order of identity. Several
  // meshes may use the same workers. ALREADY_EXISTS: the mesh is defined. INVALID_ARGUMENT: the
  // size, the number of identities or an identity is wrong.
  absl::Status AddMesh(std::string mesh_id, int64_t size, std::vector<std::string> identities);
  // Gives the already assigned ranks of a mesh to other workers. Each worker gets at most one rank.
  // NOT_FOUND: no such mesh. INVALID_ARGUMENT: see AddMesh. FAILED_PRECONDITION: the ranks are not
  // assigned.
  absl::Status SetRanks(std::string_view mesh_id, std::vector<std::string> identities);
  // Removes a mesh with its ranks. NOT_FOUND: no such mesh.
  absl::Status RemoveMesh(std::string_view mesh_id);

 private:
  // An attachment that has not ended.
  struct Attachment {
    std::string identity;
    std::shared_ptr<Vitals> vitals;
  };

  void LoseSilent();
  // Returns a live worker. NOT_FOUND: no live worker has the identity. The result is valid while
  // the lock is held.
  absl::StatusOr<const WorkerStatus*> FindLive(std::string_view identity) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status CheckLost(std::string_view identity) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Lets `change` set the fields that decide whether the live worker drains, and updates the
  // worker's state from them.
  absl::Status SetDraining(std::string_view identity,
                           const std::function<absl::Status(WorkerStatus*)>& change);
  // Schedules the check for forgettable workers: the mesh's workers may no longer serve any rank.
  void ForgetLater(const MeshRanks& mesh) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes the mesh from ranks_of_ and unassigned_.
  void TakeRanks(const MeshRanks& mesh) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Replaces the known status of this worker by `worker`.
  void Replace(WorkerStatus worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Lose(WorkerStatus worker, std::string reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the time at which a lost worker is forgotten; InfiniteFuture if it serves a rank.
  absl::Time ForgetTime(const WorkerStatus& worker) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Sets the identities of the mesh's ranks.
  void SetMesh(std::string mesh_id, std::vector<std::string> identities, int64_t size)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AssignRanks() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Fills in the fields common to all events, and queues the event for the listeners.
  void Publish(MembershipEvent event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Clock* const clock_;
  const MembershipOptions options_;

  EventQueue events_;

  mutable absl::Mutex mutex_;
  MembershipView state_ ABSL_GUARDED_BY(mutex_);
  // A copy of state_ for readers; null if state_ has changed since the last view(). A copy at each
  // change would take quadratic time when all workers attach.
  mutable std::shared_ptr<const MembershipView> view_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, Attachment> attachments_ ABSL_GUARDED_BY(mutex_);
  // Indexes of state_: the meshes and ranks of each identity, and the meshes without assigned
  // ranks, by their size.
  absl::flat_hash_map<std::string, std::map<std::string, int64_t, std::less<>>> ranks_of_
      ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<int64_t, std::string>> unassigned_ ABSL_GUARDED_BY(mutex_);
  int64_t attached_ ABSL_GUARDED_BY(mutex_) = 0;  // workers that are kAttached
  std::vector<Listener> listeners_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_attachment_ ABSL_GUARDED_BY(mutex_) = 1;

  PauseWatch pauses_;
  Alarm silence_;  // last: its destructor waits for LoseSilent
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_MEMBERSHIP_H_
