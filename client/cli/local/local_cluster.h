// LocalCluster: a coordinator and its workers as processes of this host.
#ifndef SHARDMESH_CLIENT_CLI_LOCAL_LOCAL_CLUSTER_H_
#define SHARDMESH_CLIENT_CLI_LOCAL_LOCAL_CLUSTER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cli/local/certificate_folder.h"
#include "client/cli/local/child_process.h"
#include "client/cli/local/cluster_record.h"
#include "sharding/mesh.h"

namespace shardmesh::client {

struct LocalClusterOptions {
  std::string name = "default";
  // The name for the record and the logs; see ClusterFolder. The folder is made if missing.
  std::string folder;
  // The folder of the programs shardmesh-coordinator and shardmesh-worker.
  std::string binary_folder;
  // The mesh "default"; one worker for each device.
  Mesh mesh;
  // The coordinator's port; 0: a free one.
  int port = 0;
  // Keeps state and tiles below this folder; empty: in memory.
  std::string data_folder;
  // The folder of WriteCertificates, with certificates for the workers' identities; empty:
  // plaintext.
  std::string tls_folder;
  // The flag --memory of each worker; empty: the worker's default.
  std::string worker_memory;
  std::vector<std::string> coordinator_flags;  // further ones
  std::vector<std::string> worker_flags;
  // Whether the cluster's processes end with this process; otherwise they outlive it.
  bool ends_with_parent = true;
  int parent_end_signal = 15;
  // Called when Start waits, with the reason, such as another command that starts or stops the
  // cluster.
  std::function<void(const std::string& what)> on_wait = {};
};

// The identity of a local cluster's worker: `worker-0`, ...
std::string LocalWorkerIdentity(int64_t index);

// A process that ended without being stopped.
struct EndedProcess {
  std::string identity;
  pid_t pid = 0;
  std::string how;
};

// Workers have the identities worker-0, worker-1, ... Not thread-safe. With `ends_with_parent`, the
// processes end with the thread that started them: that thread must outlive the cluster.
class LocalCluster {
 public:
  // Starts the coordinator, then all workers, without waiting for the workers; see
  // WaitUntilHealthy. If a process does not listen, the error has the end of its log, and Start
  // stops the other processes.
  //
  // If a cluster of that name already exists:
  // - It is up: ALREADY_EXISTS.
  // - None of its processes runs: Start replaces its record.
  // - Some of its processes run: Start restarts the ended ones; see restarted(). If that fails,
  //   nothing is stopped, as after Detach. With ends_with_parent, only the restarted processes end
  //   with this process, even if it is killed. FAILED_PRECONDITION if the cluster has another mesh,
  //   port, data folder or certificates, or an `up` in the foreground.
  // - Some of its processes run, but are unusable: Start stops them and starts a new cluster; see
  //   replaced(). They are unusable in three cases. The earlier start was interrupted before the
  //   coordinator listened; or the cluster is in memory and its coordinator has ended; or all of
  //   its processes are about to end (ClusterRecord::Ending).
  // - Its record is unreadable: DATA_LOSS, as of ReadRecord.
  //
  // Waits for another command that starts or stops the cluster, with the errors of LockCluster.
  //
  // If this process is killed at any time, the record has every process that it started, and the
  // next command continues from there.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Start(LocalClusterOptions options,
                                                             absl::Time deadline);
  // Stops the processes unless they were detached.
  ~LocalCluster();
  LocalCluster(const LocalCluster&) = delete;
  LocalCluster& operator=(const LocalCluster&) = delete;

  const std::string& address() const { return record_.address; }
  const ClusterRecord& record() const { return record_; }
  // The identities of ended processes that Start restarted.
  const std::vector<std::string>& restarted() const { return restarted_; }
  // The identities of the processes that Start stopped, and the reason, as the beginning of a
  // sentence.
  const std::vector<std::string>& replaced() const { return replaced_; }
  const std::string& replaced_why() const { return replaced_why_; }

  // Waits until every rank of the mesh has a ready worker. Adds the cluster's id and the addresses
  // of metrics to the record. DEADLINE_EXCEEDED names the missing ranks. UNAVAILABLE names a
  // process that ended, with the end of its log. ABORTED if another command stopped or changed the
  // cluster meanwhile.
  absl::Status WaitUntilHealthy(absl::Time deadline);

  // The processes that ended since the last call.
  std::vector<EndedProcess> CollectEnded();
  bool AnyRunning() const;

  // Sends a signal to the coordinator or a worker. After SIGSTOP, waits until the process has
  // stopped; DEADLINE_EXCEEDED after 10 s. NOT_FOUND for an unknown identity, or if the process has
  // ended.
  absl::Status Signal(const std::string& identity, int signal);
  // Restarts the process of that identity unchanged: the coordinator at the same port, a worker
  // with the same identity. FAILED_PRECONDITION while the process still runs.
  absl::Status Restart(const std::string& identity, absl::Time deadline);

  // Ends all processes (see StopRecorded). Returns the identities that had to be killed. Without
  // `ends_with_parent`, stops nothing if another command has changed the cluster meanwhile.
  std::vector<std::string> Stop(absl::Duration grace);
  // Leaves the processes running when this object is destroyed.
  void Detach() { detached_ = true; }

 private:
  struct Member {
    std::string identity;
    ProcessOptions options;
    ChildProcess process;
    std::string metrics_address = {};
    bool ends_with_supervisor = false;
    bool reported = false;  // as ended
  };

  explicit LocalCluster(LocalClusterOptions options);

  // Restarts the ended processes of the cluster in `record`.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Resume(LocalClusterOptions options,
                                                              const ClusterRecord& record,
                                                              FileDescriptor lock,
                                                              absl::Time deadline);

  std::string LogPath(const std::string& identity) const;
  // Appends the flags of TLS to `command`, if the cluster uses TLS.
  void AddTls(const rpc::TlsFiles& files, std::vector<std::string>* command) const;
  ProcessOptions CoordinatorProcess(const std::string& listen) const;
  ProcessOptions WorkerProcess(const std::string& identity) const;
  // Starts a process, after adding it to the record. Requires the lock.
  absl::Status Launch(const std::string& identity, ProcessOptions process);
  // Like Restart, with the lock held.
  absl::Status StartAgain(const std::string& identity, absl::Time deadline);
  // Waits until the coordinator has written its address to its log.
  absl::Status WaitUntilListening(Member* coordinator, absl::Time deadline);
  // Writes the record with the current members. `starting`, if given, replaces the member of its
  // identity or is added. If the write fails, record_ stays unchanged.
  absl::Status WriteDown(const RecordedProcess* starting = nullptr);
  // Reads the addresses of metrics from the logs, and writes them to the record. ABORTED if another
  // command has changed the record.
  absl::Status NoteMetrics();
  // Like WaitUntilHealthy, but does not check whether other commands have changed the cluster.
  absl::Status AwaitHealthy(absl::Time deadline);
  Member* Find(const std::string& identity);
  // An error about a member, with the end of its log.
  static absl::Status About(const Member& member, absl::StatusCode code, std::string_view what);

  const LocalClusterOptions options_;
  std::vector<Member> members_;  // the coordinator first
  ClusterRecord record_;
  std::vector<std::string> restarted_;
  std::vector<std::string> replaced_;
  std::string replaced_why_;
  bool detached_ = false;
  // Held during Start; a failed Start stops processes before it releases the lock.
  FileDescriptor lock_;
};

// Updates the record for processes that were restarted by hand. A process that has ended is
// replaced by the one that the coordinator reports for its identity, if that one runs on this host.
// Its log is found, but not its metrics address. Leaves the record unchanged if no coordinator
// answers by `deadline`, or if the coordinator of another cluster answers.
void FollowRestarts(ClusterRecord* record, absl::Time deadline);

// Returns the folder of the running program, which also holds the other programs.
absl::StatusOr<std::string> OwnBinaryFolder();

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_LOCAL_LOCAL_CLUSTER_H_
