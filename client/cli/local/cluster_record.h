// The record of `shardmesh up` about a cluster of this host, for later commands.
//
// The folder of cluster NAME is $XDG_RUNTIME_DIR/shardmesh/NAME, or /tmp/shardmesh-UID/NAME if that
// variable is not set. The folder holds the record, cluster.json, and the logs of the processes.
#ifndef SHARDMESH_CLIENT_CLI_LOCAL_CLUSTER_RECORD_H_
#define SHARDMESH_CLIENT_CLI_LOCAL_CLUSTER_RECORD_H_

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cli/local/child_process.h"
#include "process/file.h"

namespace shardmesh::client {

struct RecordedProcess {
  // The process's identity: `coordinator`, or that of a worker.
  std::string identity;
  ProcessId id;
  // The path of the process's log; empty if unknown.
  std::string log_path;
  // The address where the process serves metrics, HOST:PORT; empty until the cluster was healthy.
  std::string metrics_address = {};
  // Whether the process ends with the record's supervisor. False for processes that already ran
  // when the supervisor restarted the ended processes of the cluster.
  bool ends_with_supervisor = false;
};

struct ClusterRecord {
  std::string name;
  // The coordinator's address; empty until the coordinator listens.
  std::string address;
  std::string mesh;
  // The identities of the workers that serve the ranks of the mesh, by rank, and then those of
  // workers that serve only ranks of other meshes. Empty in records of older builds: then the
  // workers are `worker-0`, `worker-1`, ...
  std::vector<std::string> workers = {};
  // The cluster's id. Commands use it to check that the coordinator at `address` belongs to this
  // cluster. Empty until the cluster was healthy.
  std::string cluster_id;
  // The folder of the cluster's state and tiles; empty if these are only in memory.
  std::string data_folder;
  // The folder with the certificates of the cluster's processes and clients; empty means plaintext.
  std::string tls_folder = {};
  // The coordinator's port that `up` gave; 0 means a free port.
  int port = 0;
  // The flags of `up` for the coordinator and for each worker, such as `--memory=1048576`. A
  // later `up` of the cluster uses them. Nullopt in records of older builds.
  std::optional<std::vector<std::string>> coordinator_flags = {};
  std::optional<std::vector<std::string>> worker_flags = {};
  // The cluster's processes, the coordinator first.
  std::vector<RecordedProcess> processes;
  // The `up` process that stays in the foreground. When this `up` process is stopped, it stops the
  // cluster's processes. Nullopt if there is no such process.
  std::optional<ProcessId> supervisor;
  // Whether this cluster took the place of one that had listened and that nobody stopped. A later
  // `up` then takes the flags of this record even if `address` is empty, because this cluster's
  // `up` was killed. Without this field, that `up` would forget the data folder.
  bool replaces_listening = false;
  // Set before the first process gets a signal to stop. While this is set, commands do not mistake
  // the remaining processes for a running cluster.
  bool is_stopping = false;

  // Whether any of the processes still runs.
  bool IsUp() const;
  // Returns the running processes that are about to end. If a stop has begun, these are all running
  // processes. If the supervisor has ended, these are the processes that end with the supervisor.
  std::vector<RecordedProcess> Ending() const;
};

// INVALID_ARGUMENT unless the name has 1 to 64 characters of [A-Za-z0-9_.-] and does not begin with
// a dot.
absl::Status CheckClusterName(std::string_view name);
// The folder of the cluster, which need not exist.
std::string ClusterFolder(const std::string& name);
// Makes the folder and its parents, readable only by this user. FAILED_PRECONDITION if one of these
// folders belongs to another user.
absl::Status MakeClusterFolder(const std::string& folder);

// Limit on the time that a command such as `up` or `down` waits for the cluster's lock while
// another command holds it.
inline constexpr absl::Duration kClusterLockTimeout = absl::Seconds(20);

// Locks a cluster. Each command that starts or stops the processes of a cluster, or changes its
// record, takes this lock. The open descriptor holds the lock: the system releases the lock when
// the command ends in any way.
//
// If another process holds the lock, calls `on_wait` (may be empty) once with a description of that
// process. Waits for `timeout`, at most kClusterLockTimeout. ALREADY_EXISTS if the other process
// still holds the lock after that time; the message names the process. NOT_FOUND if the folder is
// missing.
absl::StatusOr<FileDescriptor> LockCluster(
    const std::string& folder, const std::string& name, absl::Duration timeout,
    const std::function<void(const std::string& what)>& on_wait);

// Reads the record in the folder. NOT_FOUND if the folder has no record; DATA_LOSS if the record
// cannot be parsed.
absl::StatusOr<ClusterRecord> ReadRecord(const std::string& folder);
absl::Status WriteRecord(const std::string& folder, const ClusterRecord& record);
// Removes the record from the folder; the logs stay for inspection.
void RemoveRecord(const std::string& folder);
// Whether the record in the folder has the same processes as `record`. If so, no other command has
// changed the record.
bool IsRecorded(const std::string& folder, const ClusterRecord& record);

// Returns the record of the cluster of that name; nullopt if there is no readable record, or if the
// cluster is not up.
std::optional<ClusterRecord> RecordedCluster(const std::string& name);

// Stops a cluster. First sends SIGTERM to the supervisor, unless this process is the supervisor,
// and waits up to `grace` for the supervisor's end. Then sends SIGTERM to the workers, and
// afterwards to the coordinator. Sends SIGKILL to workers and a coordinator that still run `grace`
// after SIGTERM. Returns the identities of the processes that got SIGKILL.
std::vector<std::string> StopProcesses(const ClusterRecord& record, absl::Duration grace);
// Like StopProcesses, but requires the cluster's lock. First marks the record as stopping, and
// finally removes it. The record stays if a process does not end even by SIGKILL.
std::vector<std::string> StopRecorded(const std::string& folder, ClusterRecord record,
                                      absl::Duration grace);
// Like StopProcesses, but only for the processes that are about to end (ClusterRecord::Ending), and
// requires the cluster's lock. Afterwards removes the record if no process of the cluster runs.
// FAILED_PRECONDITION if a process does not end even by SIGKILL.
absl::Status FinishEnding(const std::string& folder, const ClusterRecord& record,
                          absl::Duration grace);
// FAILED_PRECONDITION if some processes of the record still run after StopProcesses; the message
// names these processes.
absl::Status CheckStopped(const ClusterRecord& record);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_LOCAL_CLUSTER_RECORD_H_
