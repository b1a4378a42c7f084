// The state and health of a cluster, and the progress of its long operations.
#ifndef SHARDMESH_CLIENT_TYPES_CLUSTER_STATUS_H_
#define SHARDMESH_CLIENT_TYPES_CLUSTER_STATUS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "program/flight_record.h"
#include "program/measured_rates.h"
#include "sharding/mesh.h"
#include "sharding/shape.h"

namespace shardmesh::client {

struct BuildVersion {
  std::string version;   // semantic, such as 0.1.0
  std::string revision;  // revision of the source code; may be empty
};

struct ServerVersion {
  BuildVersion build;
  // The supported versions of the protocol, from min_protocol to max_protocol inclusive.
  int32_t min_protocol = 0;
  int32_t max_protocol = 0;
  // Names of the supported optional features.
  std::vector<std::string> features;
  std::string cluster_id;
};

// kUnknown stands for a state that this build does not know, from a newer server.
enum class WorkerState { kUnknown, kJoining, kReady, kDraining, kLost };
enum class CoordinatorState { kUnknown, kRecovering, kServing, kDraining };
enum class OperationState { kUnknown, kRunning, kDone, kFailed, kCancelled };
enum class OperationKind {
  kUnknown,
  kPut,
  kLoad,
  kSave,
  kReshard,
  kRepair,
  kResize,
  kReplicate,
  kGet
};

// The state's name in lower case, as users see it: "ready".
std::string_view WorkerStateName(WorkerState state);
std::string_view CoordinatorStateName(CoordinatorState state);
std::string_view OperationStateName(OperationState state);
std::string_view OperationKindName(OperationKind kind);

struct WorkerStatus {
  std::string identity;
  uint64_t incarnation = 0;
  WorkerState state = WorkerState::kUnknown;
  std::vector<std::string> addresses;  // the preferred address first
  // The port on which other workers reach this worker, at the same hosts as `addresses`. Nullopt:
  // the port of the addresses.
  std::optional<int> exchange_port = std::nullopt;
  int64_t pid = 0;
  int64_t capacity_bytes = 0;
  int64_t used_bytes = 0;  // as reported by the worker's last heartbeat
  // The number of arrays with tiles in the worker's quarantine, and the tiles' bytes, as reported
  // by the worker's last heartbeat. A worker's quarantine keeps tiles that the coordinator does not
  // count as in use.
  int64_t quarantined_arrays = 0;
  int64_t quarantined_bytes = 0;
  int64_t cached_bytes = 0;  // a part of used_bytes; freed as soon as the memory is needed
  absl::Duration heartbeat_age = absl::ZeroDuration();
  std::string lost_reason;
  absl::Duration lost_age = absl::ZeroDuration();  // time since the worker was lost
  // How often the worker was lost since the coordinator started.
  int64_t losses = 0;
  // The number of the worker's failed attempts to attach since it was last attached, and the error
  // of the last attempt.
  int64_t failed_attaches = 0;
  std::string attach_error;
  absl::Duration attach_error_age = absl::ZeroDuration();
  BuildVersion build;
};

struct MeshStatus {
  std::string mesh_id;
  int64_t revision = 0;
  Mesh mesh;
  // The workers' identities by rank; empty until ranks are assigned to workers.
  std::vector<std::string> workers;
  // Whether every rank has a ready worker.
  bool complete = false;
};

// The tiles of one array that are in one worker's quarantine.
struct QuarantinedArray {
  std::string identity;  // the worker
  std::string array_id;
  // Mesh, dtype and shape as recorded in the tiles; empty if the tiles are unreadable.
  std::string mesh_id;
  std::string dtype;
  Shape shape;
  int64_t size_bytes = 0;
  std::string reason;  // for people
  absl::Time since;
  bool committed = false;
  bool on_disk = false;
  // Whether the coordinator's registry has the array. A worker never drops tiles of such an array
  // to make room.
  bool array_lives = false;
};

// An array without a name that the coordinator found after its restart. The coordinator holds the
// array for a limited time. If the array has no name by then, the coordinator quarantines it, or
// releases it if it is certain that the array had no other name.
struct UnnamedArray {
  std::string array_id;
  std::string mesh_id;
  std::string dtype;
  Shape shape;
  int64_t size_bytes = 0;
  bool on_disk = false;
  std::vector<int64_t> missing_ranks;  // ranks whose tiles no worker has reported yet
  absl::Duration held_for = absl::InfiniteDuration();
};

// A worker that the coordinator could not ask about its quarantine.
struct UnreachedWorker {
  std::string identity;
  std::string reason;  // for people: the worker's ranks, and why the worker was not reached
  bool expected_back = false;
};

struct QuarantineList {
  std::vector<QuarantinedArray> arrays;
  std::vector<UnnamedArray> unnamed;       // only for a question about all workers
  std::vector<UnreachedWorker> unreached;  // workers whose quarantine is not listed
};

// An open session of any client. The session's full id is not shown, because the id gives access to
// the session.
struct OpenSessionInfo {
  // 1 for the first session that the coordinator's process opened, 2 for the next one, and so on.
  int64_t number = 0;
  std::string id_prefix;  // the first 8 characters of the session's id
  // The identity in the client's certificate; without TLS, the client's host.
  std::string caller;
  std::string client_name;
  absl::Time opened;
  absl::Time renewed;  // `opened` if the session was never renewed
  absl::Time expires;  // time at which the session ends, unless the client renews it
  int64_t pinned_arrays = 0;
  int64_t transfers = 0;  // transfers under way
  int64_t steps = 0;      // steps under way
};

// The tiles that a drop from quarantine deleted. Beyond 512 KiB of descriptions, the list leaves
// out tiles of arrays that were held without a name.
struct QuarantineDrop {
  std::vector<QuarantinedArray> arrays;
  std::vector<UnreachedWorker> unreached;  // workers whose quarantine is unchanged
};

// An array that was restored from quarantine.
struct RestoredArray {
  std::string name;  // the name that the array got; empty if it already had a name
  std::vector<std::string> identities;
};

// The repairs of arrays that lack tiles, all together.
struct RepairStatus {
  int64_t operations = 0;  // that run; the next three figures are sums over them
  int64_t done_bytes = 0;
  int64_t total_bytes = 0;
  int64_t bytes_per_second = 0;
  std::optional<absl::Duration> time_left;  // of the last operation; nullopt: not known
  int64_t tiles = 0;                        // that are read again or wait for their turn
  int64_t failed_tiles = 0;                 // that wait for another try
};

// The second replicas of arrays that want two, all together.
struct ReplicaStatus {
  int64_t waiting = 0;  // arrays whose copy is made, or waits for its turn
  int64_t failed = 0;   // arrays whose copy could not be made, and waits for another try
};

// The cached arrays that were released, and the bytes of their tiles.
struct DroppedCache {
  int64_t arrays = 0;
  int64_t bytes = 0;
};

struct ClusterStatus {
  std::string cluster_id;
  int64_t epoch = 0;
  int64_t term = 0;
  int64_t revision = 0;
  CoordinatorState state = CoordinatorState::kUnknown;
  std::vector<MeshStatus> meshes;     // sorted by name
  std::vector<WorkerStatus> workers;  // sorted by identity
  int64_t pid = 0;
  int64_t arrays = 0;
  int64_t degraded_arrays = 0;  // arrays with missing tiles
  // Released arrays whose tiles the workers keep as a cache, and the bytes of these tiles.
  int64_t cached_arrays = 0;
  int64_t cached_bytes = 0;
  std::optional<RepairStatus> repairs;    // nullopt: no tile can be repaired at present
  std::optional<ReplicaStatus> replicas;  // nullopt: no array waits for a second replica
  // The number of arrays that the coordinator holds without a name, and how long it will still hold
  // them.
  int64_t unnamed_arrays = 0;
  absl::Duration unnamed_held_for = absl::InfiniteDuration();
  int64_t sessions = 0;
  // The number of records of the store that the coordinator could not read and therefore skipped at
  // its start, and the keys of some of these records.
  int64_t unreadable_records = 0;
  std::vector<std::string> unreadable_keys;
};

// The recent activity of one worker: its last instructions, as in a flight recorder. Times are by
// the coordinator's clock.
struct WorkerFlight {
  std::string identity;
  uint64_t incarnation = 0;
  WorkerState state = WorkerState::kUnknown;
  absl::Duration heartbeat_age = absl::ZeroDuration();
  std::optional<StepProgress> progress;  // as reported by the worker's last heartbeat
  std::vector<FlightRecord> records;     // finished instructions, oldest first
  int64_t omitted_records = 0;           // older records that the answer leaves out
};

struct FlightQuestion {
  std::string identity = {};                   // only this worker; empty: all workers
  std::optional<int64_t> step = std::nullopt;  // only this step; nullopt: all steps
  int32_t max_records = 0;                     // limit for each worker, at most 1,024; 0 means 64
};

// The speeds of the links between workers. Each pair of workers occurs at most once. A pair that is
// missing has not been measured yet.
struct ClusterLinks {
  struct Worker {
    std::string identity;
    std::optional<int64_t> rank = {};  // the worker's rank in the mesh of the question
  };
  struct Link {
    std::string identity;  // the worker that measured the link to the worker `measured.peer`
    MeasuredLink measured;
  };
  std::vector<Worker> workers;  // sorted by rank, or by identity if the question has no mesh
  std::vector<Link> links;      // sorted by the identities of the two workers

  // Returns the link between two workers, as measured by either of them. Null if neither worker has
  // measured the link.
  const MeasuredLink* Find(std::string_view one, std::string_view other) const;
};

// One fault of a cluster.
struct ClusterFinding {
  // kUnknown stands for a kind that this build does not know, from a newer coordinator.
  enum class Kind {
    kUnknown,
    kStuck,
    kDeadlock,
    kCutOff,
    kFailed,
    kWorker,
    kDegraded,
    kQuarantined,
    kUnreadable
  };
  struct Culprit {
    std::optional<int64_t> rank;  // nullopt: unknown
    std::string identity;
    std::string reason;  // such as "has sent no heartbeat for 2.1s"
  };

  Kind kind = Kind::kUnknown;
  std::string summary;  // one sentence
  std::optional<int64_t> step;
  std::string op;
  std::string mesh_id;
  std::optional<int64_t> instruction;  // the instruction in which ranks wait
  std::string label;                   // that instruction's label
  std::vector<int64_t> waiting_ranks;
  std::vector<Culprit> culprits;
  // The time at which the fault began, or at which the failed step failed.
  absl::Time time = absl::InfinitePast();
};
// The name of a kind: `stuck`, `deadlock`, `cut-off`, `failed`, `worker`, `degraded`,
// `quarantined`, `unreadable`.
std::string_view ClusterFindingName(ClusterFinding::Kind kind);

struct Diagnosis {
  bool healthy = false;
  std::string verdict;                   // one sentence
  std::vector<ClusterFinding> findings;  // the worst fault first
};

struct Operation {
  std::string operation_id;
  OperationKind kind = OperationKind::kUnknown;
  std::string description;
  OperationState state = OperationState::kUnknown;
  // The progress, in units that depend on the operation (tiles for a put), and in bytes. A total of
  // 0 is not known yet.
  int64_t done = 0;
  int64_t total = 0;
  int64_t done_bytes = 0;
  int64_t total_bytes = 0;
  absl::Time start_time = absl::InfinitePast();
  std::optional<absl::Time> end_time;
  // Over the last five seconds of a running operation; over the whole time of an ended one.
  int64_t bytes_per_second = 0;
  // How long the remaining bytes take at that rate; nullopt if nobody can tell.
  std::optional<absl::Duration> time_left = std::nullopt;
  // The error of a failed operation; otherwise OK.
  absl::Status error;
  // 1 for the first operation that the coordinator's process began, 2 for the next one, and so on.
  int64_t number = 0;
  // OpenSessionInfo::number of the session that began the operation; 0: the coordinator did.
  int64_t session_number = 0;
};

// A rank that a worker serves.
struct ServedRank {
  std::string mesh_id;
  int64_t rank = 0;
};

// The ranks, work and tiles of a draining worker.
struct DrainedWorker {
  std::vector<ServedRank> ranks;  // at most the first 1,000 ranks
  int64_t rank_count = 0;
  int64_t work = 0;    // running steps and transfers with this worker
  int64_t arrays = 0;  // arrays of which a tile on this worker is in use
  int64_t used_bytes = 0;
};

// The ranks that the replacement of a lost worker got.
struct ReplacedWorker {
  std::vector<ServedRank> ranks;  // at most the first 1,000 ranks
  int64_t rank_count = 0;
};

// The subjects about which a watch of the cluster can report changes.
enum class ClusterSubject { kWorkers, kArrays, kNames };

// The first event of a watch. The watch reports all changes after the term, epoch and revision that
// this event states.
struct WatchStarted {
  int64_t term = 0;  // changes at each start of the coordinator
  int64_t epoch = 0;
  int64_t revision = 0;  // of the store
};

struct WorkerChange {
  enum class Kind { kUnknown, kAttached, kLost, kDraining, kResumed, kForgotten };
  Kind kind = Kind::kUnknown;
  std::string identity;
  uint64_t incarnation = 0;
  int64_t epoch = 0;   // the cluster's epoch after the change
  std::string reason;  // why the worker was lost; empty for other changes
};
std::string_view WorkerChangeName(WorkerChange::Kind kind);  // "attached"

struct ArrayChange {
  std::string array_id;
  std::string mesh_id;
  bool is_deleted = false;  // false: the array was created
};

struct NameChange {
  std::string name;
  std::string array_id;  // empty if the name was deleted
  int64_t version = 0;
  bool is_deleted = false;  // false: the name now points to the array
};

struct ClusterChange {
  absl::Time time = absl::InfinitePast();  // by the coordinator's clock; unset for WatchStarted
  std::variant<WatchStarted, WorkerChange, ArrayChange, NameChange> event;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_CLUSTER_STATUS_H_
