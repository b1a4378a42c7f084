// The record of `shardmesh up` about a cluster of this host, for later commands.
//
// The folder of cluster NAME is $XDG_RUNTIME_DIR/shardmesh/NAME, or /tmp/shardmesh-UID/NAME without
// that variable. The folder holds the record cluster.json, and the processes' logs.
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
  // when the supervisor restarted the others.
  bool ends_with_supervisor = false;
};

struct ClusterRecord {
  std::string name;
  // The coordinator's address; empty until the coordinator listens.
  std::string address;
  std::string mesh;
  // The cluster's id, by which a command checks that the coordinator at `address` is this
  // cluster's. Empty until the cluster was healthy.
  std::string cluster_id;
  // The folder of state and tiles; empty: in memory.
  std::string data_folder;
  // The folder of certificates of its processes and clients; empty: plaintext.
  std::string tls_folder = {};
  // The cluster's processes, the coordinator first.
  std::vector<RecordedProcess> processes;
  // The `up` process that stays in the foreground, and stops the cluster's processes when it is
  // stopped.
  std::optional<ProcessId> supervisor;
  // Set before the first process gets a signal to stop. Commands then do not mistake the remaining
  // processes for a running cluster.
  bool is_stopping = false;

  // Whether any of the processes still runs.
  bool IsUp() const;
  // Returns the running processes that are about to end: all if a stop has begun. If the supervisor
  // has ended, those that end with the supervisor.
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

// How long `up` and `down` wait at most for the cluster's lock, which the other command may hold.
inline constexpr absl::Duration kClusterLockTimeout = absl::Seconds(20);

// Locks a cluster. Each command that starts or stops its processes, or changes its record, takes
// this lock. The open descriptor holds it; the system releases it when the command ends in any way.
//
// If another process holds the lock, calls `on_wait` (may be empty) once with a description of that
// process. Waits for `timeout`, at most kClusterLockTimeout, and then returns ALREADY_EXISTS, which
// names the process. NOT_FOUND if the folder is missing.
absl::StatusOr<FileDescriptor> LockCluster(
    const std::string& folder, const std::string& name, absl::Duration timeout,
    const std::function<void(const std::string& what)>& on_wait);

// Reads the folder's record. NOT_FOUND if there is none; DATA_LOSS if it cannot be parsed.
absl::StatusOr<ClusterRecord> ReadRecord(const std::string& folder);
absl::Status WriteRecord(const std::string& folder, const ClusterRecord& record);
// Removes the record; the logs stay for inspection.
void RemoveRecord(const std::string& folder);
// Whether the folder's record still has the processes of `record`, so that no other command has
// changed it.
bool IsRecorded(const std::string& folder, const ClusterRecord& record);

// The record of the cluster of that name, if there is one and the cluster is up.
std::optional<ClusterRecord> RecordedCluster(const std::string& name);

// Sends SIGTERM to the processes, workers before the coordinator, and SIGKILL to those that still
// run after `grace`. Returns the identities of the killed processes.
std::vector<std::string> StopProcesses(const ClusterRecord& record, absl::Duration grace);
// Like StopProcesses, with the cluster's lock held. First marks the record as stopping, and finally
// removes it. If a process does not end even by SIGKILL, the record stays.
std::vector<std::string> StopRecorded(const std::string& folder, ClusterRecord record,
                                      absl::Duration grace);
// Like StopProcesses, but only for processes about to end (ClusterRecord::Ending), with the
// cluster's lock held. Afterwards removes the record if no process of the cluster runs.
// FAILED_PRECONDITION if a process does not end even by SIGKILL.
absl::Status FinishEnding(const std::string& folder, const ClusterRecord& record,
                          absl::Duration grace);
// FAILED_PRECONDITION if some of the processes still run although they were killed; the message
// names them.
absl::Status CheckStopped(const ClusterRecord& record);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_LOCAL_CLUSTER_RECORD_H_
