// The attached workers, the ranks of meshes that they serve, and the epoch that counts changes of
// the live workers.
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
#include "server/state/pause_watch.h"

namespace shardmesh::server {

// Legal transitions:
//
// clang-format off
//   (unknown) -> kAttached          Attach
//   kAttached -> kDraining          Leave, or Drain(true): gets no new work, keeps its tiles
//   kDraining -> kAttached          Drain(false), unless it leaves
//   kAttached, kDraining -> kLost   its stream broke, its heartbeats stopped, or it said good-bye
//   kLost     -> kAttached          Attach, by the same or a new incarnation
//   kLost     -> kDraining          Attach, by the incarnation that Drain(true) was about; once it
//                                   is forgotten, so is the drain
//   kLost     -> (unknown)          it serves no rank, and forget_after has passed; or Forget
// clang-format on
//
// A worker is alive when it is kAttached or kDraining. The epoch rises by one whenever a worker
// becomes alive, is lost, or attaches again.
enum class WorkerState { kAttached, kDraining, kLost };
std::string_view WorkerStateName(WorkerState state);  // "ATTACHED", ...

// A worker's own data when it attaches, once its endpoints are verified.
struct WorkerInfo {
  std::string identity;      // stable over restarts, 1 to 255 bytes
  uint64_t incarnation = 0;  // new at each start; not 0
  std::string build_version;
  std::vector<std::string> endpoints;  // gRPC targets, best first; at least one
  // The port where its peers reach it, on the hosts of its endpoints; nullopt: at its endpoints.
  std::optional<int> exchange_port = std::nullopt;
  int64_t pid = 0;             // on its host; 0: not known
  std::string host;            // for people
  int64_t capacity_bytes = 0;  // memory for shards
  bool durable = false;        // committed tiles are kept on disk
};

// A worker's quarantine: the number of arrays with tiles there, and the bytes of these tiles.
struct QuarantineCount {
  int64_t arrays = 0;
  int64_t size_bytes = 0;
};

// Figures of one worker from its heartbeats. All views share them: a heartbeat changes no view.
// Thread-safe.
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
  bool is_leaving = false;   // its process is ending
  bool is_held = false;      // Drain(true), for the life of its process
  uint64_t attachment = 0;   // see Membership::Attach
  absl::Time attached;       // when it last attached
  std::string lost_because;  // when kLost
  absl::Time lost;           // likewise
  int64_t losses = 0;        // how often it was lost
  std::shared_ptr<Vitals> vitals = std::make_shared<Vitals>();

  absl::Time last_heartbeat() const { return vitals->last_heartbeat(); }  // or attach
  // The used part of capacity_bytes, by its last heartbeat.
  int64_t used_bytes() const { return vitals->used_bytes(); }
  QuarantineCount quarantine() const { return vitals->quarantine(); }  // likewise
};

// The workers of the ranks of one mesh. Immutable.
class MeshRanks {
 public:
  MeshRanks(std::string id, std::vector<std::string> by_rank, int64_t rank_count);

  const std::string mesh_id;
  // The identity of each rank once ranks are assigned. It then stays for the life of the
  // definition, whether the worker is alive or not. Empty before.
  const std::vector<std::string> identities;
  const int64_t size;  // number of ranks

  // Rank that `identity` serves. O(log size).
  std::optional<int64_t> RankOf(std::string_view identity) const;

 private:
  std::vector<uint32_t> by_identity_;  // ranks, in the order of their identities
};

// The state at one epoch. Immutable, except for the vitals; copies share unchanged parts.
struct MembershipView {
  int64_t epoch = 0;
  // By identity, including lost ones.
  std::map<std::string, std::shared_ptr<const WorkerStatus>, std::less<>> workers;
  std::map<std::string, std::shared_ptr<const MeshRanks>, std::less<>> meshes;  // by mesh id
  int64_t alive = 0;  // how many of the workers

  const WorkerStatus* FindWorker(std::string_view identity) const;
  const MeshRanks* FindMesh(std::string_view mesh_id) const;
  bool IsAlive(std::string_view identity) const;
  // Returns text for errors: the rank, its worker, and why that worker is lost if it is: `rank 1
  // (worker-1: no heartbeat for 5s)`. Requires that the mesh's ranks are assigned, and this is one
  // of them.
  std::string DescribeRank(const MeshRanks& mesh, int64_t rank) const;
  // FAILED_PRECONDITION (MESH_INCOMPLETE): not every rank of the mesh has a live worker; names the
  // first of those ranks and their workers. NOT_FOUND: no such mesh.
  absl::Status CheckComplete(std::string_view mesh_id) const;
  // Returns the ranks of the mesh without a live worker; none if the ranks are not assigned.
  std::vector<int64_t> MissingRanks(const MeshRanks& mesh) const;
};

// A change from one view to the next.
struct MembershipEvent {
  enum class Kind {
    kAttached,       // `identity` became alive, or attached again
    kLost,           // `identity` is no longer alive
    kDrainChanged,   // `identity` drains, or no longer drains
    kMeshAdded,      // `mesh_id` is defined
    kRanksAssigned,  // ranks of `mesh_id` have identities: store them
    kRanksMoved,     // ranks of `mesh_id` moved to other workers
    kMeshRemoved,    // `mesh_id` is gone
    kForgotten,      // `identity` was lost, serves no rank, and is unknown now
  };
  Kind kind = Kind::kAttached;
  std::string identity = {};
  std::string mesh_id = {};
  int64_t epoch = 0;                                     // after the change
  std::shared_ptr<const WorkerStatus> worker = nullptr;  // of `identity`: current or last state
  std::shared_ptr<const MeshRanks> mesh = nullptr;       // of kRanksAssigned, kRanksMoved
  std::shared_ptr<const MeshRanks> former = nullptr;     // of kRanksMoved: the ranks before
};

// A rank that a worker serves.
struct ServedRank {
  std::string mesh_id;
  int64_t rank = 0;
};

struct MembershipOptions {
  absl::Duration heartbeat_interval = absl::Seconds(1);  // sent to workers
  // The longest time without a heartbeat, unless this process was stopped itself (PauseWatch).
  absl::Duration lost_after = absl::Seconds(5);
  // How long a lost worker that serves no rank is remembered.
  absl::Duration forget_after = absl::Minutes(10);
  // The epoch before the first change. It is above every epoch of an earlier run.
  int64_t first_epoch = 0;
};

// Thread-safe. Listeners are called in the order of the changes, one at a time, without a lock, on
// the thread that made the change or the clock's. Destroy the membership before its clock and the
// objects that the listeners use.
class Membership {
 public:
  using Listener = std::function<void(const MembershipEvent&)>;

  explicit Membership(Clock* clock, MembershipOptions options = {});

  const MembershipOptions& options() const { return options_; }

  // Adds a listener for the changes from now on. Only before workers attach.
  void AddListener(Listener listener);

  // The newest view, including heartbeats. It is made at the first request after a change.
  std::shared_ptr<const MembershipView> view() const;

  // The ranks that this identity serves, by mesh. O(their number).
  std::vector<ServedRank> RanksOf(std::string_view identity) const;

  // A worker attached. Returns the number of this attachment, never 0, which identifies its stream
  // from here on. If the same incarnation attaches again, it replaces its older stream, and the
  // older attachment ends silently.
  //   ALREADY_EXISTS (IDENTITY_IN_USE)  another incarnation has the identity and is alive; names
  //                                     its pid, host and endpoint. Retry when it is lost.
  //   INVALID_ARGUMENT                  a field is out of its range.
  absl::StatusOr<uint64_t> Attach(WorkerInfo info);

  // Records a heartbeat. ABORTED: this attachment ended; the worker must attach again. O(1).
  absl::Status Heartbeat(uint64_t attachment, int64_t used_bytes, QuarantineCount quarantine = {});

  // The stream of an attachment ended; `reason` is for people ("its stream broke: ..."). No effect
  // if the attachment ended before.
  void Detach(uint64_t attachment, std::string reason);

  // An operator takes the worker out of use, or returns it to use. NOT_FOUND: no live worker has
  // the identity. FAILED_PRECONDITION (NOT_SERVING): it is leaving, and cannot return to use.
  absl::Status Drain(std::string_view identity, bool draining);
  // Returns the error that Drain would return now. Changes nothing.
  absl::Status CheckDrain(std::string_view identity, bool draining) const;
  // The worker's process is ending. NOT_FOUND: no live worker has the identity.
  absl::Status Leave(std::string_view identity);
  // Forgets a lost worker. NOT_FOUND. FAILED_PRECONDITION: it is alive (WORKER_ATTACHED), or serves
  // a rank (WORKER_SERVES_RANK).
  absl::Status Forget(std::string_view identity);
  // Returns the error that Forget would return now. Changes nothing.
  absl::Status CheckForget(std::string_view identity) const;

  // Defines a mesh of `size` ranks. `identities` names the worker of each rank, each at most once,
  // or is empty. If empty, the ranks go to the first `size` attached workers by bytewise order of
  // identity, once there are that many. Several meshes may use the same workers. ALREADY_EXISTS,
  // INVALID_ARGUMENT.
  absl::Status AddMesh(std::string mesh_id, int64_t size, std::vector<std::string> identities);
  // Assigns new workers to the already assigned ranks of a mesh, each at most once. NOT_FOUND,
  // INVALID_ARGUMENT. FAILED_PRECONDITION: the ranks are not assigned.
  absl::Status SetRanks(std::string_view mesh_id, std::vector<std::string> identities);
  // NOT_FOUND.
  absl::Status RemoveMesh(std::string_view mesh_id);

 private:
  // An attachment that has not ended.
  struct Attachment {
    std::string identity;
    std::shared_ptr<Vitals> vitals;
  };

  void LoseSilent();
  // NOT_FOUND: no live worker has the identity. The result is valid while the lock is held.
  absl::StatusOr<const WorkerStatus*> FindLive(std::string_view identity) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status CheckLost(std::string_view identity) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Changes whether the live worker drains, and the reason.
  absl::Status SetDraining(std::string_view identity,
                           const std::function<absl::Status(WorkerStatus*)>& change);
  // Workers of the mesh may now be old enough to forget.
  void ForgetLater(const MeshRanks& mesh) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes the assignment of the mesh's ranks.
  void TakeRanks(const MeshRanks& mesh) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Replaces the worker's known status by `worker`.
  void Replace(WorkerStatus worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Lose(WorkerStatus worker, std::string reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The time at which a lost worker is forgotten; never if it serves a rank.
  absl::Time ForgetTime(const WorkerStatus& worker) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // From now on ranks of the mesh have these identities.
  void SetMesh(std::string mesh_id, std::vector<std::string> identities, int64_t size)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AssignRanks() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Calls the listeners, after filling in the fields common to all events.
  void Publish(MembershipEvent event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Clock* const clock_;
  const MembershipOptions options_;

  EventQueue events_;

  mutable absl::Mutex mutex_;
  MembershipView state_ ABSL_GUARDED_BY(mutex_);
  // A copy of state_; null if that has changed since the last query. A copy for each change would
  // cost the square of the number of workers when all attach.
  mutable std::shared_ptr<const MembershipView> view_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, Attachment> attachments_ ABSL_GUARDED_BY(mutex_);
  // Indexes of state_: the meshes and ranks of each identity, and the meshes without ranks by their
  // size.
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
