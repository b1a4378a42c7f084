// Which workers are attached, which rank of which mesh each serves, and the epoch that counts the
// changes of who is alive.
#ifndef SHARDMESH_SERVER_MEMBERSHIP_H_
#define SHARDMESH_SERVER_MEMBERSHIP_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "rpc/clock.h"
#include "server/event_queue.h"

namespace shardmesh::server {

// Legal transitions:
//   (unknown) -> kAttached          Attach
//   kAttached -> kDraining          Drain(true): gets no new work, keeps what it has
//   kDraining -> kAttached          Drain(false)
//   kAttached, kDraining -> kLost   its stream broke, its heartbeats stopped, or it said good-bye
//   kLost     -> kAttached          Attach, by the same or a new incarnation
// A worker is alive when it is kAttached or kDraining. The epoch rises by one whenever a worker
// becomes alive, is lost, or attaches anew.
enum class WorkerState { kAttached, kDraining, kLost };
std::string_view WorkerStateName(WorkerState state);  // "ATTACHED", ...

// What a worker says of itself when it attaches, once its endpoints are verified.
struct WorkerInfo {
  std::string identity;      // stable over restarts, 1 to 255 bytes
  uint64_t incarnation = 0;  // drawn anew at each start; not 0
  std::string build_version;
  std::vector<std::string> endpoints;  // gRPC targets, best first; at least one
  // Where its peers reach it, on the hosts of its endpoints; 0: at its endpoints.
  int exchange_port = 0;
  int64_t pid = 0;             // on its host; 0: not known
  std::string host;            // for people
  int64_t capacity_bytes = 0;  // memory for shards
  bool durable = false;        // committed tiles are kept on disk
};

// What a worker has put aside: arrays with tiles there, and the bytes of these.
struct QuarantineCount {
  int64_t arrays = 0;
  int64_t size_bytes = 0;
};

struct WorkerStatus {
  WorkerInfo info;
  WorkerState state = WorkerState::kAttached;
  uint64_t attachment = 0;     // see Membership::Attach
  absl::Time attached;         // when it last attached
  absl::Time last_heartbeat;   // or attach
  int64_t used_bytes = 0;      // of capacity_bytes, by its last heartbeat
  QuarantineCount quarantine;  // by its last heartbeat
  std::string lost_because;    // when kLost
  absl::Time lost;             // likewise
  int64_t losses = 0;          // how often it was lost
};

// Who serves which rank of one mesh.
struct MeshRanks {
  std::string mesh_id;
  // The identity of each rank, once ranks are given: then it holds for the life of the definition,
  // whether the worker is alive or not. Empty before.
  std::vector<std::string> identities;
  int64_t size = 0;  // number of ranks

  // Rank that `identity` serves.
  std::optional<int64_t> RankOf(std::string_view identity) const;
};

// Everything at one epoch. Immutable.
struct MembershipView {
  int64_t epoch = 0;
  std::map<std::string, WorkerStatus, std::less<>> workers;  // by identity, lost ones included
  std::map<std::string, MeshRanks, std::less<>> meshes;      // by mesh id

  const WorkerStatus* FindWorker(std::string_view identity) const;
  const MeshRanks* FindMesh(std::string_view mesh_id) const;
  bool IsAlive(std::string_view identity) const;
  // `rank 1 (worker-1: no heartbeat for 5s)`, for errors: the rank, who serves it, and why that one
  // is lost if it is. Ranks of the mesh are given, and this is one of them.
  std::string DescribeRank(const MeshRanks& mesh, int64_t rank) const;
  // FAILED_PRECONDITION (MESH_INCOMPLETE): not every rank of the mesh has a live worker; names
  // those ranks and their workers. NOT_FOUND: no such mesh.
  absl::Status CheckComplete(std::string_view mesh_id) const;
  // The ranks of the mesh without a live worker; of one whose ranks are not given, none.
  std::vector<int64_t> MissingRanks(const MeshRanks& mesh) const;
};

// What changed from one view to the next.
struct MembershipEvent {
  enum class Kind {
    kAttached,       // `identity` became alive, or attached anew
    kLost,           // `identity` is alive no more
    kDrainChanged,   // `identity` drains, or does not any more
    kMeshAdded,      // `mesh_id` is defined
    kRanksAssigned,  // the ranks of `mesh_id` have their identities: write them down
    kMeshRemoved,    // `mesh_id` is gone
  };
  Kind kind = Kind::kAttached;
  std::string identity = {};
  std::string mesh_id = {};
  std::shared_ptr<const MembershipView> view = nullptr;  // after the change
};

struct MembershipOptions {
  absl::Duration heartbeat_interval = absl::Seconds(1);  // what workers are told
  absl::Duration lost_after = absl::Seconds(5);          // without a heartbeat
  // The epoch before the first change; above every epoch of an earlier run.
  int64_t first_epoch = 0;
};

// Thread-safe. Listeners are called in order of the changes, one at a time, without a lock, on the
// thread that made the change or the clock's. Destroy it before its clock and what the listeners
// touch.
class Membership {
 public:
  using Listener = std::function<void(const MembershipEvent&)>;

  explicit Membership(rpc::Clock* clock, MembershipOptions options = {});

  const MembershipOptions& options() const { return options_; }

  // Adds a listener for the changes from now on. Only before workers attach.
  void AddListener(Listener listener);

  // The newest view, heartbeats included.
  std::shared_ptr<const MembershipView> view() const;

  // A worker attached; returns the number of this attachment, never 0, by which its stream is known
  // from here on. The same incarnation attaching again takes over from its older stream, whose
  // attachment ends silently.
  //   ALREADY_EXISTS (IDENTITY_IN_USE)  another incarnation has the identity and is alive; names
  //                                     its pid, host and endpoint. Retry when it is lost.
  //   INVALID_ARGUMENT                  a field is out of its range.
  absl::StatusOr<uint64_t> Attach(WorkerInfo info);

  // ABORTED: this attachment ended; the worker attaches anew.
  absl::Status Heartbeat(uint64_t attachment, int64_t used_bytes, QuarantineCount quarantine = {});

  // The stream of an attachment ended; `reason` is for people ("its stream broke: ..."). Nothing if
  // the attachment ended before.
  void Detach(uint64_t attachment, std::string reason);

  // NOT_FOUND: no live worker has the identity.
  absl::Status Drain(std::string_view identity, bool draining);

  // Defines a mesh of `size` ranks. `identities` names the worker of each rank, each at most once,
  // or is empty: the ranks are then given to the first `size` workers that are attached, in the
  // bytewise order of their identities, once there are so many. Several meshes may use the same
  // workers. ALREADY_EXISTS, INVALID_ARGUMENT.
  absl::Status AddMesh(std::string mesh_id, int64_t size, std::vector<std::string> identities);
  // NOT_FOUND.
  absl::Status RemoveMesh(std::string_view mesh_id);

 private:
  void LoseSilent();
  void Lose(WorkerStatus* worker, std::string reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  WorkerStatus* FindAttachment(uint64_t attachment) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AssignRanks() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Publishes state_ as the new view, and tells the listeners.
  void Publish(MembershipEvent event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  rpc::Clock* const clock_;
  const MembershipOptions options_;

  EventQueue events_;

  mutable absl::Mutex mutex_;
  MembershipView state_ ABSL_GUARDED_BY(mutex_);
  // Of state_; null when that has changed since, until somebody asks: a copy for each heartbeat
  // would cost the square of the number of workers.
  mutable std::shared_ptr<const MembershipView> view_ ABSL_GUARDED_BY(mutex_);
  std::vector<Listener> listeners_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_attachment_ ABSL_GUARDED_BY(mutex_) = 1;

  rpc::Alarm silence_;  // last: its destructor waits for LoseSilent
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_MEMBERSHIP_H_
