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
  // Returns the state of the mesh `mesh_id` and of its workers; if `mesh_id` is empty, of all
  // meshes and workers. If the mesh has no workers yet, the answer has all workers. NOT_FOUND: no
  // such mesh.
  absl::StatusOr<ClusterStatus> GetStatus(const std::string& mesh_id = "",
                                          const CallOptions& options = {});
  // Diagnoses one step; nullopt: all steps and the workers. Returns which ranks wait for which
  // ranks, the failures of the last five minutes, and the workers at fault.
  absl::StatusOr<Diagnosis> Diagnose(std::optional<int64_t> step = std::nullopt,
                                     const CallOptions& options = {});
  // Returns the speeds of the links between the workers of the mesh `mesh_id`; if `mesh_id` is
  // empty, between all attached workers. NOT_FOUND: no such mesh. FAILED_PRECONDITION: no worker is
  // attached, or a rank of the mesh has no worker.
  absl::StatusOr<ClusterLinks> ListLinks(const std::string& mesh_id = "",
                                         const CallOptions& options = {});
  // With `validate_only`, each of the functions below makes all checks and no change. It returns
  // the answer that the change would give, as far as that answer is known in advance.

  // Takes a worker out of use: the worker gets no new steps, puts or ranks. With `resume`, takes
  // the worker back into use. Returns the worker's ranks, work and tiles. NOT_FOUND: no live worker
  // has the identity.
  absl::StatusOr<DrainedWorker> DrainWorker(const std::string& identity, bool resume = false,
                                            bool validate_only = false,
                                            const CallOptions& options = {});
  // Removes a lost worker that serves no rank from the list of workers. FAILED_PRECONDITION: the
  // worker is not lost (WORKER_ATTACHED), or it serves ranks (WORKER_SERVES_RANK).
  absl::Status ForgetWorker(const std::string& identity, bool validate_only = false,
                            const CallOptions& options = {});
  // Releases all arrays that the workers keep only as a cache (ClusterStatus::cached_arrays).
  absl::StatusOr<DroppedCache> DropCache(const CallOptions& options = {});
  // Gives the ranks of the lost worker `identity` to the attached worker `replacement`; no tile
  // moves. FAILED_PRECONDITION: `identity` is not lost (WORKER_ATTACHED); the definition of a mesh
  // in which `identity` serves a rank names the workers (RANKS_DEFINED); `replacement` serves a
  // rank of the same mesh (WORKER_SERVES_RANK); or `replacement` is draining (NOT_SERVING).
  absl::StatusOr<ReplacedWorker> ReplaceWorker(const std::string& identity,
                                               const std::string& replacement,
                                               bool validate_only = false,
                                               const CallOptions& options = {});
  // Reports changes of the given subjects (empty: workers, arrays and names) as they happen. The
  // first event is WatchStarted: a caller that lists the subjects after that event misses no
  // change. Returns OK once `on_change` returns false. No time limit applies unless the options
  // have one. RESOURCE_EXHAUSTED: the caller takes events more slowly than they happen
  // (SLOW_READER), or the coordinator has too many watches (OVERLOADED).
  absl::Status WatchChanges(const std::vector<ClusterSubject>& subjects,
                            const std::function<bool(const ClusterChange&)>& on_change,
                            const CallOptions& options = {});
  // The open sessions of all clients, oldest first.
  absl::StatusOr<std::vector<OpenSessionInfo>> ListSessions(const CallOptions& options = {});
  // Lists the tiles in quarantine of one attached worker, or of all workers if `identity` is empty.
  // The list for all workers also has arrays held without a name, and workers that could not be
  // reached. NOT_FOUND: no such worker.
  absl::StatusOr<QuarantineList> ListQuarantine(const std::string& identity = "",
                                                const CallOptions& options = {});
  // Takes an array in quarantine back into use, or gives `name` to an array that is held without a
  // name. An empty `name` means `restored/` followed by the array's id. Waits for workers that are
  // expected back. FAILED_PRECONDITION: some ranks lack their tile of the array; the message names
  // these ranks.
  absl::StatusOr<RestoredArray> RestoreQuarantined(const std::string& array_id,
                                                   const std::string& name = "",
                                                   bool validate_only = false,
                                                   const CallOptions& options = {});
  // Deletes arrays from the quarantine, and arrays that are held without a name; returns the
  // deleted tiles. Waits for workers that are expected back. FAILED_PRECONDITION: workers of an
  // array's mesh cannot be reached, or a session pins an array without a name. With `even_partly`,
  // unreachable workers are no error: the call deletes the tiles of the workers that can be
  // reached. NOT_FOUND: none of the arrays is in quarantine.
  absl::StatusOr<QuarantineDrop> DropQuarantined(const std::vector<std::string>& array_ids,
                                                 bool even_partly = false,
                                                 bool validate_only = false,
                                                 const CallOptions& options = {});
  // Returns the workers' records of recent instructions (flight records), sorted by identity.
  // NOT_FOUND: the coordinator does not know the worker that the question names.
  absl::StatusOr<std::vector<WorkerFlight>> ListFlightRecords(const FlightQuestion& question = {},
                                                              const CallOptions& options = {});

  // Running and recently ended operations of all clients, oldest first. An empty list of states
  // means any state.
  absl::StatusOr<std::vector<Operation>> ListOperations(
      const std::vector<OperationState>& states = {}, const CallOptions& options = {});
  // Returns one operation (a long-running task of the coordinator) by its id.
  absl::StatusOr<Operation> GetOperation(const std::string& operation_id,
                                         const CallOptions& options = {});
  // Calls `on_progress` for each report until the operation ends or `on_progress` returns false.
  // Returns the last reported state. DEADLINE_EXCEEDED after the timeout of the options; if the
  // options have none, after MeshClientOptions::transfer_timeout.
  absl::StatusOr<Operation> WatchOperation(const std::string& operation_id,
                                           const std::function<bool(const Operation&)>& on_progress,
                                           const CallOptions& options = {});
  // Cancels an operation that this client's session began, and returns it. The operation may still
  // be running then, but ends soon: WatchOperation waits for its end. PERMISSION_DENIED
  // (NOT_OWNER): another session began the operation, or the coordinator did.
  absl::StatusOr<Operation> CancelOperation(const std::string& operation_id,
                                            const CallOptions& options = {});
  // The same for an operation of any session: for administrators.
  absl::StatusOr<Operation> ForceCancelOperation(const std::string& operation_id,
                                                 const CallOptions& options = {});

 private:
  ClientCore* const core_;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLUSTER_H_
