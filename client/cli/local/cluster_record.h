// What `shardmesh up` notes down about a cluster of this host, for the commands that come after it.
//
// The folder of cluster NAME is $XDG_RUNTIME_DIR/shardmesh/NAME, or /tmp/shardmesh-UID/NAME where
// there is no such variable. It holds cluster.json, which is the record, and the processes' logs.
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
  // Where it serves its metrics, HOST:PORT; empty until the cluster was healthy.
  std::string metrics_address = {};
  // Ends with the record's supervisor. What a supervisor found running when it started again the
  // rest does not.
  bool ends_with_supervisor = false;
};

struct ClusterRecord {
  std::string name;
  // Empty until the coordinator listens.
  std::string address;
  std::string mesh;
  // By which the coordinator at the address is known as this cluster's; empty until the cluster was
  // healthy.
  std::string cluster_id;
  // Where state and tiles are kept; empty: in memory.
  std::string data_folder;
  // With the certificates of its processes and of its clients; empty: plaintext.
  std::string tls_folder = {};
  // The coordinator first.
  std::vector<RecordedProcess> processes;
  // The `up` that stays in the foreground and stops the others when it is stopped.
  std::optional<ProcessId> supervisor;
  // Set before the first of the processes is told to stop, so that nobody takes those that are left
  // for running ones.
  bool is_stopping = false;

  // Whether any of them still runs.
  bool IsUp() const;
  // The processes that run and are about to end: all if a stop was begun, and those that end with
  // the `up` in the foreground if that is gone.
  std::vector<RecordedProcess> Ending() const;
};

// INVALID_ARGUMENT unless 1 to 64 characters of [A-Za-z0-9_.-], the first no dot.
absl::Status CheckClusterName(std::string_view name);
// The folder of the cluster, which need not exist.
std::string ClusterFolder(const std::string& name);
// Makes the folder and those above it, for this user alone. FAILED_PRECONDITION if one of them
// belongs to somebody else.
absl::Status MakeClusterFolder(const std::string& folder);

// How long `up` and `down` wait for each other.
inline constexpr absl::Duration kClusterLockTimeout = absl::Seconds(20);

// A command that starts or stops processes of a cluster, or changes its record, takes this lock: no
// two do so at once. It is held while the descriptor is open; the system takes it back when the
// command ends, however it ends.
//
// While another process has it, tells `on_wait` (may be empty) once what is waited for, and waits
// for `timeout`, at most kClusterLockTimeout. ALREADY_EXISTS after that, naming the process;
// NOT_FOUND if the folder is not there.
absl::StatusOr<FileDescriptor> LockCluster(
    const std::string& folder, const std::string& name, absl::Duration timeout,
    const std::function<void(const std::string& what)>& on_wait);

// NOT_FOUND if there is no record in the folder; DATA_LOSS if it does not read.
absl::StatusOr<ClusterRecord> ReadRecord(const std::string& folder);
absl::Status WriteRecord(const std::string& folder, const ClusterRecord& record);
// Removes the record; logs stay, for whoever wonders.
void RemoveRecord(const std::string& folder);
// Whether the folder's record is of the same processes: no other command has changed it since.
bool IsRecorded(const std::string& folder, const ClusterRecord& record);

// The record of the cluster of that name, if there is one and the cluster is up.
std::optional<ClusterRecord> RecordedCluster(const std::string& name);

// Asks the processes to end, workers before the coordinator, and kills those that are still there
// after `grace`. Returns the identities of those that had to be killed.
std::vector<std::string> StopProcesses(const ClusterRecord& record, absl::Duration grace);
// As StopProcesses, with the cluster's lock held: notes in the record that they stop, and removes
// it when they have. It stays if one does not end even when it is killed; `record` then is up.
std::vector<std::string> StopRecorded(const std::string& folder, ClusterRecord record,
                                      absl::Duration grace);
// As StopProcesses, of those that are about to end (ClusterRecord::Ending) and no other, with the
// cluster's lock held: removes the record if none of the cluster runs then. FAILED_PRECONDITION if
// one does not end even when it is killed.
absl::Status FinishEnding(const std::string& folder, const ClusterRecord& record,
                          absl::Duration grace);
// FAILED_PRECONDITION, naming them, if some of the processes still run after they were killed.
absl::Status CheckStopped(const ClusterRecord& record);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_LOCAL_CLUSTER_RECORD_H_
