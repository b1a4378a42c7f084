// What a cluster is and how it is doing, and how far its long operations are.
#ifndef SHARDMESH_CLIENT_TYPES_CLUSTER_H_
#define SHARDMESH_CLIENT_TYPES_CLUSTER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "rpc/codec/flight_record.h"
#include "rpc/codec/measured_link.h"
#include "sharding/mesh.h"
#include "sharding/shape.h"

namespace shardmesh::client {

struct BuildVersion {
  std::string version;   // semantic, such as 0.1.0
  std::string revision;  // of the source, or empty
};

struct ServerVersion {
  BuildVersion build;
  // Protocol versions that it speaks, both included.
  int32_t min_protocol = 0;
  int32_t max_protocol = 0;
  // Names of the optional features that it has.
  std::vector<std::string> features;
  std::string cluster_id;
};

// kUnknown: one that this build does not know.
enum class WorkerState { kUnknown, kJoining, kReady, kDraining, kLost };
enum class CoordinatorState { kUnknown, kRecovering, kServing, kDraining };
enum class OperationState { kUnknown, kRunning, kDone, kFailed, kCancelled };

// In lower case, as users see it: "ready".
std::string_view WorkerStateName(WorkerState state);
std::string_view CoordinatorStateName(CoordinatorState state);
std::string_view OperationStateName(OperationState state);

struct WorkerStatus {
  std::string identity;
  uint64_t incarnation = 0;
  WorkerState state = WorkerState::kUnknown;
  std::vector<std::string> addresses;  // best first
  int exchange_port = 0;               // where peers reach it, on these hosts; 0: there
  int64_t pid = 0;
  int64_t capacity_bytes = 0;
  int64_t used_bytes = 0;  // as of its last heartbeat
  // Arrays with tiles in its quarantine, and the bytes of these, as of then.
  int64_t quarantined_arrays = 0;
  int64_t quarantined_bytes = 0;
  absl::Duration heartbeat_age = absl::ZeroDuration();
  std::string lost_reason;
  absl::Duration lost_age = absl::ZeroDuration();  // since it was lost
  int64_t losses = 0;                              // since the coordinator started
  // Attempts to attach that failed since it took part last, and how the last one did.
  int64_t failed_attaches = 0;
  std::string attach_error;
  absl::Duration attach_error_age = absl::ZeroDuration();
  BuildVersion build;
};

struct MeshStatus {
  std::string mesh_id;
  int64_t revision = 0;
  Mesh mesh;
  // Identities by rank, once workers are given to the ranks; empty before.
  std::vector<std::string> workers;
  // Every rank has a ready worker.
  bool complete = false;
};

// Tiles of an array that a worker has put aside.
struct QuarantinedArray {
  std::string identity;  // the worker
  std::string array_id;
  // As the tiles say; empty where they say nothing that can be read.
  std::string mesh_id;
  std::string dtype;
  Shape shape;
  int64_t size_bytes = 0;
  std::string reason;  // for people
  absl::Time since;
  bool committed = false;
  bool on_disk = false;
  bool array_lives = false;  // the registry knows the array: the tiles are not dropped for room
};

// An array without a name that workers brought after the coordinator's start: it is held for a
// while, and then goes into quarantine unless it gets a name.
struct UnnamedArray {
  std::string array_id;
  std::string mesh_id;
  std::string dtype;
  Shape shape;
  int64_t size_bytes = 0;
  bool on_disk = false;
  std::vector<int64_t> missing_ranks;  // whose tiles no worker has brought yet
  absl::Duration held_for = absl::InfiniteDuration();
};

// A worker whose quarantine was not reached.
struct UnreachedWorker {
  std::string identity;
  std::string reason;  // for people: its ranks, and why
  bool expected_back = false;
};

struct QuarantineList {
  std::vector<QuarantinedArray> arrays;
  std::vector<UnnamedArray> unnamed;       // of a question about all workers
  std::vector<UnreachedWorker> unreached;  // what these have is not listed
};

// What a drop from quarantine deleted.
struct QuarantineDrop {
  std::vector<QuarantinedArray> arrays;
  std::vector<UnreachedWorker> unreached;  // what these have is still there
};

// What came back from quarantine.
struct RestoredArray {
  std::string name;  // empty: the array had one
  std::vector<std::string> identities;
};

struct ClusterStatus {
  std::string cluster_id;
  int64_t epoch = 0;
  int64_t term = 0;
  int64_t revision = 0;
  CoordinatorState state = CoordinatorState::kUnknown;
  std::vector<MeshStatus> meshes;     // by name
  std::vector<WorkerStatus> workers;  // by identity
  int64_t pid = 0;
  int64_t arrays = 0;
  int64_t degraded_arrays = 0;  // of these, that lack tiles
  // Held without a name, and for how long from now on.
  int64_t unnamed_arrays = 0;
  absl::Duration unnamed_held_for = absl::InfiniteDuration();
  int64_t sessions = 0;
  // Records of the coordinator's store that it left out when it started, and the keys of some.
  int64_t unreadable_records = 0;
  std::vector<std::string> unreadable_keys;
};

// What one worker did in its last steps; times are the coordinator's.
struct WorkerFlight {
  std::string identity;
  uint64_t incarnation = 0;
  WorkerState state = WorkerState::kUnknown;
  absl::Duration heartbeat_age = absl::ZeroDuration();
  std::optional<rpc::StepProgress> progress;  // as of its last heartbeat
  std::vector<rpc::FlightRecord> records;     // instructions that ended, in order
  int64_t omitted_records = 0;                // older ones that are not here
};

struct FlightQuestion {
  std::string identity = {};  // of this worker alone; empty: of all
  int64_t step = 0;           // of this step alone; 0: of all
  int32_t max_records = 0;    // of each worker; 0: 64. At most 1,024
};

// How fast the links between workers are. Each pair at most once; those that are missing have not
// been measured yet.
struct ClusterLinks {
  struct Worker {
    std::string identity;
    std::optional<int64_t> rank = {};  // in the mesh that was asked about
  };
  struct Link {
    std::string identity;  // of the worker that measured, its peer is the other one
    rpc::MeasuredLink measured;
  };
  std::vector<Worker> workers;  // by rank or, where no mesh was asked about, identity
  std::vector<Link> links;      // by identities

  // The link between two workers, whichever measured it; null if none has yet.
  const rpc::MeasuredLink* Find(std::string_view one, std::string_view other) const;
};

// One thing that is wrong with a cluster.
struct ClusterFinding {
  // kUnknown: one that this build does not know.
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
    int64_t rank = -1;  // -1: not known
    std::string identity;
    std::string reason;  // "has sent no heartbeat for 2.1s"
  };

  Kind kind = Kind::kUnknown;
  std::string summary;  // one sentence
  int64_t step = 0;     // 0: about no step
  std::string op;
  std::string mesh_id;
  std::optional<int64_t> instruction;  // in which ranks wait
  std::string label;                   // of it
  std::vector<int64_t> waiting_ranks;
  std::vector<Culprit> culprits;
  absl::Time time = absl::InfinitePast();  // since when it is so; when a step failed
};
// `stuck`, `deadlock`, `cut-off`, `failed`, `worker`, `degraded`, `quarantined`, `unreadable`.
std::string_view ClusterFindingName(ClusterFinding::Kind kind);

struct Diagnosis {
  bool healthy = false;
  std::string verdict;                   // one sentence
  std::vector<ClusterFinding> findings;  // the worst first
};

struct Operation {
  std::string operation_id;
  std::string description;
  OperationState state = OperationState::kUnknown;
  // In units of the operation (tiles, for a put), and in bytes.
  int64_t done = 0;
  int64_t total = 0;
  int64_t done_bytes = 0;
  int64_t total_bytes = 0;
  absl::Time start_time = absl::InfinitePast();
  std::optional<absl::Time> end_time;
  // What went wrong; OK unless it failed.
  absl::Status error;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_CLUSTER_H_
