// LocalCluster: a coordinator and its workers as processes of this host.
#ifndef SHARDMESH_CLIENT_CLI_LOCAL_LOCAL_CLUSTER_H_
#define SHARDMESH_CLIENT_CLI_LOCAL_LOCAL_CLUSTER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
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

struct ClusterStatus;
struct FollowedRestarts;

struct LocalClusterOptions {
  std::string name = "default";
  // The folder for the record and the logs; see ClusterFolder. Start makes the folder if it is
  // missing.
  std::string folder;
  // The folder of the programs shardmesh-coordinator and shardmesh-worker.
  std::string binary_folder;
  // The mesh "default" of the cluster. The cluster has one worker for each device of this mesh. If
  // the state has no such mesh, Start defines `mesh`.
  Mesh mesh;
  // If true and there is a record of the cluster, or the data folder has a cluster's state, the
  // mesh "default" of that cluster replaces `mesh`. If false, Start fails if the state has a mesh
  // whose axes have other names, sizes or, where `mesh` has one that is not auto, types.
  bool takes_stored_mesh = false;
  // The coordinator's port; 0 means a free port.
  int port = 0;
  // The folder below which the cluster keeps its state and tiles; empty: in memory only.
  std::string data_folder;
  // A folder made by WriteCertificates, with certificates for the workers' identities; empty means
  // plaintext.
  std::string tls_folder;
  // Further flags of the coordinator and of each worker, as `--name=value`. The record keeps them.
  std::vector<std::string> coordinator_flags;
  std::vector<std::string> worker_flags;
  // The values of flags that are not given, by their names, such as {"--transport", "auto"}. Start
  // uses them to compare flags with those of the record.
  std::map<std::string, std::string, std::less<>> flag_defaults = {};
  // Whether the cluster's processes end when this process ends. If false, they outlive this
  // process.
  bool ends_with_parent = true;
  int parent_end_signal = 15;
  // Start and Restart call this if they must wait for the cluster's lock. `what` says which process
  // is starting or stopping the cluster.
  std::function<void(const std::string& what)> on_wait = {};
  // Start calls this if the record named processes that have ended and whose place others have
  // taken. `what` is a sentence that names them.
  std::function<void(const std::string& what)> on_correction = {};
};

// The identity of a local cluster's worker: `worker-0`, ...
std::string LocalWorkerIdentity(int64_t index);

// A process that ended without being stopped.
struct EndedProcess {
  std::string identity;
  pid_t pid = 0;
  std::string how;
};

// A coordinator and its workers as processes of this host. The workers are those that serve the
// ranks of the mesh "default" by the coordinator's state: worker-0, worker-1, ... unless
// `admin worker replace` or a new definition of the mesh gave the ranks to others. The cluster also
// has the workers that serve ranks of other meshes, if this host has their data. Not thread-safe.
// With `ends_with_parent`, the processes end with the thread that started them. That
// thread must therefore outlive the cluster.
class LocalCluster {
 public:
  // Starts the coordinator, and then a worker for each rank of the mesh. Does not wait until the
  // workers are ready; see WaitUntilHealthy. If the coordinator does not begin to listen, Start
  // stops all processes that it started, and returns an error with the last lines of the
  // coordinator's log.
  //
  // If a cluster of that name already exists:
  // - It is up: ALREADY_EXISTS.
  // - None of its processes runs: Start replaces its record, and starts a new cluster.
  // - Some of its processes run: Start restarts the ended processes; see restarted(). If a restart
  //   fails, Start stops nothing, as after Detach. With `ends_with_parent`, only the restarted
  //   processes end with this process, even if this process is killed. Does not start a worker that
  //   serves no rank any more, or that was started by hand and runs. Flags, data folder and
  //   certificates that `options` does not give are those of the record; see kept_flags().
  //   FAILED_PRECONDITION if one that `options` gives, or the mesh or port, is not that of the
  //   record (the message names each), or if the cluster has an `up` in the foreground.
  // - Some of its processes run, but are unusable: Start stops them and starts a new cluster; see
  //   replaced(). They are unusable in three cases. The earlier start was interrupted before the
  //   coordinator listened. The cluster is in memory, and its coordinator has ended. All running
  //   processes of the cluster are about to end (ClusterRecord::Ending).
  // - A new cluster in the place of one that nobody stopped gets the flags, mesh, data folder,
  //   certificates and port of the record that `options` does not give; see kept_flags(). If
  //   `options` gives another data folder, the new cluster gets nothing from the record. If the new
  //   cluster is stopped before it was healthy, the record comes back. If this process is killed
  //   before, the next Start gets the flags of the new cluster.
  // - Its record is unreadable: DATA_LOSS, as of ReadRecord.
  //
  // If another command is starting or stopping the cluster, waits for that command, with the errors
  // of LockCluster.
  //
  // If this process is killed at any time, the record has every process that this process started.
  // The next command continues with that record.
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
  // The workers that Start did not start, because another process, which the record does not have,
  // has the worker's identity and is attached: the pid by identity, 0 if the pid is not known. If
  // workers have data folders, that process must hold the worker's folder, and Start waits up to
  // 10 s for it to attach or to end.
  const std::map<std::string, int64_t>& running() const { return running_; }
  // The recorded flags of the cluster that the options of Start did not give, such as
  // `--memory 1048576`; empty unless Start restarted processes or replaced a cluster.
  const std::vector<std::string>& kept_flags() const { return kept_flags_; }
  // The identities of the processes that Start stopped, and the reason why Start stopped them. The
  // reason is the beginning of a sentence.
  const std::vector<std::string>& replaced() const { return replaced_; }
  const std::string& replaced_why() const { return replaced_why_; }

  // Waits until every rank of the mesh "default" has a ready worker. Then waits up to 10 s, and not
  // after `deadline`, for the workers of other meshes; see absent(). Finally adds the cluster's id
  // and the addresses of metrics to the record, unless another command has the cluster's lock for
  // 3 s. DEADLINE_EXCEEDED: ranks are missing, which the message names. UNAVAILABLE: the
  // coordinator or a worker of the mesh "default" has ended; the message names the process and has
  // the last lines of its log. ABORTED: another command stopped or changed the cluster during the
  // wait.
  absl::Status WaitUntilHealthy(absl::Time deadline);
  // The workers that serve only ranks of other meshes, and that had ended or were not ready when
  // the last WaitUntilHealthy returned OK. Each is a sentence with the worker's identity, state and
  // log, without a full stop.
  const std::vector<std::string>& absent() const { return absent_; }

  // Returns the processes that have ended since the last call.
  std::vector<EndedProcess> CollectEnded();
  bool AnyRunning() const;

  // Sends a signal to the process of that identity. If the signal is SIGSTOP, waits until the
  // process has stopped; DEADLINE_EXCEEDED after 10 s. NOT_FOUND: the identity is unknown, or the
  // process has ended.
  absl::Status Signal(const std::string& identity, int signal);
  // Restarts the process of that identity unchanged: the coordinator with the same port, a worker
  // with the same identity. FAILED_PRECONDITION while the process still runs.
  absl::Status Restart(const std::string& identity, absl::Time deadline);

  // Ends all processes (see StopRecorded). Returns the identities of the processes that had to be
  // killed. If another command has changed the cluster's record since Start, and `ends_with_parent`
  // is false, stops nothing.
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
    bool reported = false;  // CollectEnded has returned this member
  };

  explicit LocalCluster(LocalClusterOptions options);

  // Restarts the ended processes of the cluster in `record`. Does not start workers that run but
  // are not recorded: those in `followed`, and those that FindRunningWorkers finds.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Resume(LocalClusterOptions options,
                                                              const ClusterRecord& record,
                                                              const FollowedRestarts& followed,
                                                              FileDescriptor lock,
                                                              absl::Time deadline);

  std::string LogPath(const std::string& identity) const;
  // Appends the flags that name `files` to `command`, if the cluster uses TLS.
  void AddTls(const rpc::TlsFiles& files, std::vector<std::string>* command) const;
  // If not `defines_mesh`, TakeRanks must define the mesh, or compare it with that of the state.
  ProcessOptions CoordinatorProcess(const std::string& listen, bool defines_mesh) const;
  ProcessOptions WorkerProcess(const std::string& identity) const;
  // Whether the data folder has the state of a coordinator.
  bool HasState() const;
  // Asks the coordinator which workers serve the ranks of the mesh, and takes these workers and the
  // mesh over into record_. Also takes the workers of other meshes whose data this host has.
  // Defines the mesh if the coordinator has none. Makes missing certificates for the workers.
  // FAILED_PRECONDITION if the coordinator has another mesh than the options demand.
  absl::Status TakeRanks(absl::Time deadline);
  // Whether a worker of that identity belongs to this cluster: it is a member, or its data is below
  // the data folder and no other process uses that data.
  bool IsOwn(const std::string& identity) const;
  // Adds to running_ the workers of record_ whose process does not run, but whose data folder
  // belongs to another process that is attached to the coordinator. Waits up to kAttachWait, and
  // not after `deadline`, for such a process to attach or to give the folder up. A worker whose
  // folder belongs to a process that does not attach is not added: its start fails, and its log
  // names the process.
  void FindRunningWorkers(absl::Time deadline);
  // Updates the members whose process has ended and whose place a worker in running_ has taken, as
  // FollowRestarts updates a record. Removes these workers from running_, and writes the record. A
  // worker may attach only after Start called FollowRestarts. Leaves workers as they are that do
  // not run on this host, or whose program has another name.
  absl::Status FollowRunningMembers(absl::Time deadline);
  // Removes the members whose process has ended and whose place a worker in running_ has taken.
  void ForgetRunningMembers();
  // Makes the certificates that the workers of record_ lack. Does nothing without TLS.
  absl::Status MakeMissingCertificates() const;
  // Starts a process. Adds the process to the record before its program begins. Requires the
  // cluster's lock.
  absl::Status Launch(const std::string& identity, ProcessOptions process);
  // Like Restart, but requires the cluster's lock.
  absl::Status StartAgain(const std::string& identity, absl::Time deadline);
  // Waits until the coordinator has written its own address to the log.
  absl::Status WaitUntilListening(Member* coordinator, absl::Time deadline);
  // Writes the record with the current members. If `starting` is given, the record has `starting`
  // in place of the member of that identity, or in addition to the members if no member has that
  // identity. If the write fails, record_ stays unchanged.
  absl::Status WriteDown(const RecordedProcess* starting = nullptr);
  // Reads the addresses of metrics from the logs, and writes them to the record. Leaves the record
  // as it is if another command has the cluster's lock for 3 s. ABORTED if another command has
  // changed the record or stops the cluster.
  absl::Status NoteMetrics();
  // Like WaitUntilHealthy, but does not check whether other commands have changed the cluster.
  absl::Status AwaitHealthy(absl::Time deadline);
  // Writes the workers of other meshes that are not there into absent_. Returns whether any of them
  // still runs, or may run elsewhere, and may therefore become ready.
  bool FindAbsent(const ClusterStatus& status);
  // Returns why a worker of another mesh does not count as one of this cluster; empty if it has a
  // folder that another process uses, or if workers have no folders.
  std::string WhyNotStarted(const std::string& identity) const;
  // Returns the process that has the lock of the member's data folder, as FileLock::holder; empty
  // if no process has it.
  std::string HolderOf(const std::string& identity) const;
  Member* Find(const std::string& identity);
  // Returns an error about a member, with the last lines of the member's log.
  static absl::Status About(const Member& member, absl::StatusCode code, std::string_view what);

  const LocalClusterOptions options_;
  std::vector<Member> members_;  // the coordinator first
  ClusterRecord record_;
  std::vector<std::string> restarted_;
  std::map<std::string, int64_t> running_;
  std::vector<std::string> kept_flags_;
  std::vector<std::string> replaced_;
  std::string replaced_why_;
  std::vector<std::string> absent_;
  // The record of the earlier cluster from which this cluster has its flags, until this cluster is
  // healthy. If this cluster is stopped before, the record comes back for the next `up`.
  std::optional<ClusterRecord> earlier_;
  bool detached_ = false;
  // The cluster's lock, held during Start. A failed Start stops processes before it releases the
  // lock.
  FileDescriptor lock_;
};

// An attached worker of a cluster that the cluster's record does not have.
struct UnrecordedWorker {
  std::string identity;
  int64_t pid = 0;      // 0: it does not run on this host
  std::string address;  // empty: it is not known
};

// Returns what to do about the process that has the data folder of a process that ended. `holder`
// is FileLock::holder. Empty if it names no process.
std::string AdviceOnHolder(std::string_view holder);

// Returns lines, without a newline at the end, that name the workers and say how to end them, which
// `down` does not do. Empty without workers.
std::string NoteOnUnrecorded(const std::vector<UnrecordedWorker>& workers);

// Returns the command line that starts a further worker of the cluster, with the flags that `up`
// gave the others. Its identity is the first of `worker-0`, `worker-1`, ... that the record does
// not have, and that is not in `taken`. A shell reads each word as it is: words with other
// characters than letters, digits and `_./:=,@%+-` are between single quotes.
std::string FurtherWorkerCommand(const ClusterRecord& record,
                                 const std::set<std::string, std::less<>>& taken);

// How the processes of a cluster differ from its record.
struct FollowedRestarts {
  // The processes that took the place of recorded ones, such as
  // `worker-0 (pid 12 has ended, pid 34 runs)`.
  std::vector<std::string> corrected;
  // The identities of attached workers that run on this host and are not recorded.
  std::vector<std::string> elsewhere;
  // All attached workers that are not recorded, also those of other hosts.
  std::vector<UnrecordedWorker> unrecorded;

  // A sentence that names the corrected processes; empty if there are none.
  std::string Sentence() const;
};

// Updates the record for processes that were restarted by hand. If a recorded process has ended,
// the coordinator may report another process for the same identity. If that other process runs on
// this host, it replaces the ended process in the record. The record has the log of the other
// process, but no metrics address. Also updates the record's mesh and the workers of its ranks.
// Leaves the record unchanged if no coordinator answers by `deadline`, or if the coordinator of
// another cluster answers.
FollowedRestarts FollowRestarts(ClusterRecord* record, absl::Time deadline);

// Returns the folder of the running program, which also holds the other programs.
absl::StatusOr<std::string> OwnBinaryFolder();

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_LOCAL_LOCAL_CLUSTER_H_
