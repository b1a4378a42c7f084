// What `shardmesh up` notes down about a cluster of this host, for the commands that come after it.
//
// The folder of cluster NAME is $XDG_RUNTIME_DIR/shardmesh/NAME, or /tmp/shardmesh-UID/NAME where
// there is no such variable. It holds cluster.json, which is the record, and the processes' logs.
#ifndef SHARDMESH_CLIENT_CLI_CLUSTER_RECORD_H_
#define SHARDMESH_CLIENT_CLI_CLUSTER_RECORD_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cli/process.h"

namespace shardmesh::client {

struct RecordedProcess {
  // `coordinator`, or a worker's identity.
  std::string identity;
  ProcessId id;
  // Empty if unknown.
  std::string log_path;
  // Where it serves its metrics, HOST:PORT; empty until the cluster was healthy.
  std::string metrics_address = {};
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

  // Whether any of them still runs.
  bool IsUp() const;
};

// INVALID_ARGUMENT unless 1 to 64 characters of [A-Za-z0-9_.-], the first no dot.
absl::Status CheckClusterName(std::string_view name);
// The folder of the cluster, which need not exist.
std::string ClusterFolder(const std::string& name);
// Makes the folder and those above it, for this user alone. FAILED_PRECONDITION if one of them
// belongs to somebody else.
absl::Status MakeClusterFolder(const std::string& folder);

// NOT_FOUND if there is no record in the folder; DATA_LOSS if it does not read.
absl::StatusOr<ClusterRecord> ReadRecord(const std::string& folder);
absl::Status WriteRecord(const std::string& folder, const ClusterRecord& record);
// Removes the record; logs stay, for whoever wonders.
void RemoveRecord(const std::string& folder);

// The record of the cluster of that name, if there is one and the cluster is up.
std::optional<ClusterRecord> RecordedCluster(const std::string& name);

// Asks the processes to end, workers before the coordinator, kills those that are still there after
// `grace`, and removes the record. Returns the identities of those that had to be killed.
std::vector<std::string> StopRecorded(const std::string& folder, const ClusterRecord& record,
                                      absl::Duration grace);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_CLUSTER_RECORD_H_
