// ClusterClient: the state of a cluster, its quarantine, its diagnosis and its long operations.
#ifndef SHARDMESH_CLIENT_CLUSTER_H_
#define SHARDMESH_CLIENT_CLUSTER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/types/call_options.h"
#include "client/types/cluster_status.h"

namespace shardmesh::client {

class ClientCore;

// The state of a cluster and of its workers.
//
// Example:
//   auto status = client->cluster().GetStatus();
//
// Errors, retries and time limits are those of MeshClient, which owns this object. Thread-safe.
class ClusterClient {
 public:
  // `core` outlives this object.
  explicit ClusterClient(ClientCore* core) : core_(core) {}
  ClusterClient(const ClusterClient&) = delete;
  ClusterClient& operator=(const ClusterClient&) = delete;

  absl::StatusOr<ServerVersion> GetVersion(const CallOptions& options = {});
  // The state of all meshes and workers, or of one mesh and its workers (all workers, while none
  // serves the mesh). NOT_FOUND: no such mesh.
  absl::StatusOr<ClusterStatus> GetStatus(const std::string& mesh_id = "",
                                          const CallOptions& options = {});
  // Diagnoses one step, or (nullopt) all steps and the workers: which ranks wait for which, the
  // failures of the last five minutes, and the workers at fault.
  absl::StatusOr<Diagnosis> Diagnose(std::optional<int64_t> step = std::nullopt,
                                     const CallOptions& options = {});
  // Links between the workers of a mesh or, without a mesh name, all attached workers. NOT_FOUND:
  // no such mesh. FAILED_PRECONDITION: no worker is attached, or a rank of the mesh has none.
  absl::StatusOr<ClusterLinks> ListLinks(const std::string& mesh_id = "",
                                         const CallOptions& options = {});
  // `validate_only` of the changes below: makes all checks and no change, and returns the answer
  // that the change would give, as far as it is known before.

  // Takes a worker out of use, or (`resume`) back into use. Returns its tiles and work. NOT_FOUND:
  // no live worker has the identity.
  absl::StatusOr<DrainedWorker> DrainWorker(const std::string& identity, bool resume = false,
                                            bool validate_only = false,
                                            const CallOptions& options = {});
  // Forgets a lost worker that serves no rank. FAILED_PRECONDITION: it is not lost
  // (WORKER_ATTACHED), or serves ranks (WORKER_SERVES_RANK).
  absl::Status ForgetWorker(const std::string& identity, bool validate_only = false,
                            const CallOptions& options = {});
  // Gives the ranks of a lost worker to an attached one; no tile moves. FAILED_PRECONDITION: the
  // worker is not lost (WORKER_ATTACHED), a mesh names its workers (RANKS_DEFINED), or the
  // replacement serves a rank of the same mesh (WORKER_SERVES_RANK) or drains (NOT_SERVING).
  absl::StatusOr<ReplacedWorker> ReplaceWorker(const std::string& identity,
                                               const std::string& replacement,
                                               bool validate_only = false,
                                               const CallOptions& options = {});
  // Reports the changes of workers, arrays and names as they happen; no subjects: all. The first
  // event is WatchStarted: list after it, then nothing is missed. Returns OK once `on_change`
  // returns false. No time limit applies unless the options have one.
  // RESOURCE_EXHAUSTED: SLOW_READER, or there are too many watches (OVERLOADED).
  absl::Status WatchChanges(const std::vector<ClusterSubject>& subjects,
                            const std::function<bool(const ClusterChange&)>& on_change,
                            const CallOptions& options = {});
  // The open sessions of all clients, oldest first.
  absl::StatusOr<std::vector<OpenSessionInfo>> ListSessions(const CallOptions& options = {});
  // Tiles in the quarantine of one attached worker or of all, arrays held without a name, and
  // workers that are away. NOT_FOUND: no such worker.
  absl::StatusOr<QuarantineList> ListQuarantine(const std::string& identity = "",
                                                const CallOptions& options = {});
  // Takes an array back into use, or gives this name to an array held without one. `name` empty:
  // `restored/` and the id. Waits for workers that are expected back. FAILED_PRECONDITION: not
  // every rank has its tile; names those without.
  absl::StatusOr<RestoredArray> RestoreQuarantined(const std::string& array_id,
                                                   const std::string& name = "",
                                                   bool validate_only = false,
                                                   const CallOptions& options = {});
  // Deletes arrays from the quarantine; returns those deleted. Waits for workers that are expected
  // back. FAILED_PRECONDITION: workers of an array's mesh are away. With `even_partly`, the tiles
  // of the other workers are deleted anyway. NOT_FOUND: no such array was there.
  absl::StatusOr<QuarantineDrop> DropQuarantined(const std::vector<std::string>& array_ids,
                                                 bool even_partly = false,
                                                 bool validate_only = false,
                                                 const CallOptions& options = {});
  // Records by identity. NOT_FOUND: the worker in the question is not known.
  absl::StatusOr<std::vector<WorkerFlight>> ListFlightRecords(const FlightQuestion& question = {},
                                                              const CallOptions& options = {});

  // Running and recently ended operations of all clients; oldest first. Without states: in any
  // state.
  absl::StatusOr<std::vector<Operation>> ListOperations(
      const std::vector<OperationState>& states = {}, const CallOptions& options = {});
  // Long operations, by id.
  absl::StatusOr<Operation> GetOperation(const std::string& operation_id,
                                         const CallOptions& options = {});
  // Reports until the operation ends (returned last), `on_progress` returns false, or the client's
  // transfer timeout is reached (DEADLINE_EXCEEDED).
  absl::StatusOr<Operation> WatchOperation(const std::string& operation_id,
                                           const std::function<bool(const Operation&)>& on_progress,
                                           const CallOptions& options = {});
  absl::StatusOr<Operation> CancelOperation(const std::string& operation_id,
                                            const CallOptions& options = {});

 private:
  ClientCore* const core_;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLUSTER_H_
