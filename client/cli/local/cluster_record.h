// The record of `shardmesh up` about a cluster of this host, for later commands.
//
// The folder of cluster NAME is $XDG_RUNTIME_DIR/shardmesh/NAME, or /tmp/shardmesh-UID/NAME without
// that variable. It holds the record cluster.json, and the processes' logs.
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
  // `coordinator`, or a worker's identity.
  std::string identity;
  ProcessId id;
  // Empty if unknown.
  std::string log_path;
  // The address of its metrics, HOST:PORT; empty until the cluster was healthy.
  std::string metrics_address = {};
  // Whether it ends with the record's supervisor. Processes that already ran when a supervisor
  // restarted the others do not.
  bool ends_with_supervisor = false;
};

struct ClusterRecord {
  std::string name;
  // Empty until the coordinator listens.
  std::string address;
  std::string mesh;
  // Identifies the coordinator at the address as this cluster's; empty until the cluster was
  // healthy.
  std::string cluster_id;
  // The folder of state and tiles; empty: in memory.
  std::string data_folder;
  // The folder of certificates of its processes and clients; empty: plaintext.
  std::string tls_folder = {};
  // The coordinator first.
  std::vector<RecordedProcess> processes;
  // The `up` that stays in the foreground and stops the others when it is stopped.
  std::optional<ProcessId> supervisor;
  // Set before the first process gets a signal to stop. Commands then know that the remaining ones
  // are not a running cluster.
  bool is_stopping = false;

  // Whether any of them still runs.
  bool IsUp() const;
  // Returns the running processes that are about to end: all if a stop has begun, and those whose
  // foreground `up` has ended.
  std::vector<RecordedProcess> Ending() const;
};

// INVALID_ARGUMENT unless 1 to 64 characters of [A-Za-z0-9_.-], the first no dot.
absl::Status CheckClusterName(std::string_view name);
// The folder of the cluster, which need not exist.
std::string ClusterFolder(const std::string& name);
// Makes the folder and its parents, readable only by this user. FAILED_PRECONDITION if one of them
// belongs to another user.
absl::Status MakeClusterFolder(const std::string& folder);

// How long `up` and `down` wait for each other.
inline constexpr absl::Duration kClusterLockTimeout = absl::Seconds(20);

// Locks a cluster. Each command that starts or stops its processes, or changes its record, takes
// this lock. The open descriptor holds it; the system releases it when the command ends in any way.
//
// While another process holds the lock, calls `on_wait` (may be empty) once with its description,
// and waits for `timeout`, at most kClusterLockTimeout. ALREADY_EXISTS after that, naming the
// process. NOT_FOUND if the folder is missing.
absl::StatusOr<FileDescriptor> LockCluster(
    const std::string& folder, const std::string& name, absl::Duration timeout,
    const std::function<void(const std::string& what)>& on_wait);

// NOT_FOUND if there is no record in the folder; DATA_LOSS if it cannot be parsed.
absl::StatusOr<ClusterRecord> ReadRecord(const std::string& folder);
absl::Status WriteRecord(const std::string& folder, const ClusterRecord& record);
// Removes the record; the logs stay for inspection.
void RemoveRecord(const std::string& folder);
// Whether the folder's record has the same processes: no other command has changed it since.
bool IsRecorded(const std::string& folder, const ClusterRecord& record);

// The record of the cluster of that name, if there is one and the cluster is up.
std::optional<ClusterRecord> RecordedCluster(const std::string& name);

// Asks the processes to end, workers before the coordinator, and kills those still running after
// `grace`. Returns the identities of the killed ones.
std::vector<std::string> StopProcesses(const ClusterRecord& record, absl::Duration grace);
// Like StopProcesses, with the cluster's lock held. First marks the record as stopping, and finally
// removes it. It stays if a process does not end even by SIGKILL; `record` is then current.
std::vector<std::string> StopRecorded(const std::string& folder, ClusterRecord record,
                                      absl::Duration grace);
// Like StopProcesses, but only for processes about to end (ClusterRecord::Ending), with the
// cluster's lock held. Removes the record if no process of the cluster runs then.
// FAILED_PRECONDITION if a process does not end even by SIGKILL.
absl::Status FinishEnding(const std::string& folder, const ClusterRecord& record,
                          absl::Duration grace);
// FAILED_PRECONDITION, naming them, if some of the processes still run after they were killed.
absl::Status CheckStopped(const ClusterRecord& record);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_LOCAL_CLUSTER_RECORD_H_
