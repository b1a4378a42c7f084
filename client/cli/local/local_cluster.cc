// A coordinator and its workers as processes of this host.
#include "client/cli/local/local_cluster.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "client/cli/local/recorded_flags.h"
#include "client/mesh_client.h"
#include "process/file.h"
#include "process/host_port.h"
#include "process/lock_file.h"
#include "process/steady_deadline.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

constexpr char kCoordinator[] = "coordinator";
constexpr char kMesh[] = "default";  // the mesh that `up` makes; further meshes may have no workers
constexpr char kCoordinatorProgram[] = "shardmesh-coordinator";
constexpr char kWorkerProgram[] = "shardmesh-worker";
// The file in a worker's data folder that the running worker has locked.
constexpr char kWorkerLock[] = "/LOCK";
constexpr char kListening[] = "shardmesh-coordinator listening on ";
constexpr char kMetricsServed[] = "metrics served port=";
// How often processes and logs are checked.
constexpr absl::Duration kPollInterval = absl::Milliseconds(20);
constexpr absl::Duration kGrace = absl::Seconds(10);
// How long `up` waits for workers of other meshes after the mesh `default` is complete.
constexpr absl::Duration kOtherMeshesWait = absl::Seconds(10);
// How long Start waits for a worker that was started by hand to attach. The worker tries again
// every 2 s at most.
constexpr absl::Duration kAttachWait = absl::Seconds(10);
// How often that wait looks again who has the workers' folders. A look takes each folder's lock for
// a moment, in which a worker that starts fails. So it is rare.
constexpr absl::Duration kHolderInterval = absl::Milliseconds(500);
constexpr int kLogLines = 10;
// How long NoteMetrics waits for the cluster's lock. The wait is short, because the data to record
// is optional.
constexpr absl::Duration kRecordLockTimeout = absl::Seconds(3);

// The error of a start if another command stopped or changed the cluster during the start.
absl::Status TakenOver(const std::string& name) {
  return absl::AbortedError(
      StrCat("another command, such as `shardmesh down`, stopped or changed the cluster \"", name,
             "\" while it was being started"));
}

absl::StatusOr<std::unique_ptr<MeshClient>> ConnectUntil(const std::string& address,
                                                         const std::string& tls_folder,
                                                         absl::Time deadline) {
  MeshClientOptions options;
  if (!tls_folder.empty()) {
    SHARDMESH_ASSIGN_OR_RETURN(options.credentials,
                               rpc::Credentials::FromFiles(ClientTlsFiles(tls_folder)));
  }
  options.timeout = std::max(deadline - absl::Now(), absl::Milliseconds(1));
  return MeshClient::Connect(address, options);
}

// Returns the path of a process's log; empty if the process does not log to a file.
std::string LogOf(pid_t pid) {
  const std::string output = StrCat("/proc/", pid, "/fd/2");
  std::error_code error;
  if (!std::filesystem::is_regular_file(output, error)) {
    return "";  // a terminal is not a log: reading it would wait for the user
  }
  return std::filesystem::read_symlink(output, error).string();
}

// Returns the workers of ranks that are not ready, with their states, such as `worker-2 (joining)`.
// `identities` are the workers that should serve the ranks. Names the owner of a rank that belongs
// to another worker.
std::vector<std::string> Missing(const ClusterStatus& status,
                                 const std::vector<std::string>& identities) {
  const auto is_ready = [&status](const std::string& identity) {
    return std::any_of(status.workers.begin(), status.workers.end(), [&](const WorkerStatus& w) {
      return w.identity == identity && w.state == WorkerState::kReady;
    });
  };
  std::vector<std::string> missing;
  for (const std::string& identity : identities) {
    const auto worker = std::find_if(status.workers.begin(), status.workers.end(),
                                     [&](const WorkerStatus& w) { return w.identity == identity; });
    if (worker == status.workers.end()) {
      missing.push_back(identity + " (not attached)");
    } else if (worker->state != WorkerState::kReady) {
      missing.push_back(StrCat(identity, " (", WorkerStateName(worker->state), ")"));
    }
  }
  for (const MeshStatus& mesh : status.meshes) {
    for (size_t rank = 0; mesh.mesh_id == kMesh && rank < mesh.workers.size(); ++rank) {
      const std::string& owner = mesh.workers[rank];
      if (std::find(identities.begin(), identities.end(), owner) == identities.end() &&
          !is_ready(owner)) {
        missing.push_back(StrCat("rank ", rank, ", which belongs to \"", owner,
                                 "\", a worker that this command did not start"));
      }
    }
  }
  return missing;
}

// Whether the mesh `default` is complete.
bool IsComplete(const ClusterStatus& status) {
  return std::any_of(status.meshes.begin(), status.meshes.end(),
                     [](const MeshStatus& mesh) { return mesh.mesh_id == kMesh && mesh.complete; });
}

// Whether the worker of that identity is attached, and is ready or drains.
bool HasCome(const ClusterStatus& status, const std::string& identity) {
  return std::any_of(status.workers.begin(), status.workers.end(), [&](const WorkerStatus& w) {
    return w.identity == identity &&
           (w.state == WorkerState::kReady || w.state == WorkerState::kDraining);
  });
}

// Returns the identities of the workers of a mesh's ranks, by rank. `assigned` are the workers by
// the coordinator's state. Each rank without a worker gets one of worker-0, worker-1, ... that
// serves no other rank.
std::vector<std::string> RankWorkers(const Mesh& mesh, std::vector<std::string> assigned = {}) {
  const std::set<std::string> taken(assigned.begin(), assigned.end());
  for (int64_t i = 0; static_cast<int64_t>(assigned.size()) < mesh.size(); ++i) {
    if (std::string identity = LocalWorkerIdentity(i); taken.count(identity) == 0) {
      assigned.push_back(std::move(identity));
    }
  }
  return assigned;
}

// Whether the axes of both meshes have the same names and sizes. The types of axes count only where
// `wanted` has another type than the default. The ids of devices do not count, because `--mesh`
// cannot give them.
bool HasShapeOf(const Mesh& mesh, const Mesh& wanted) {
  return std::equal(mesh.axes().begin(), mesh.axes().end(), wanted.axes().begin(),
                    wanted.axes().end(), [](const MeshAxis& axis, const MeshAxis& other) {
                      return axis.name == other.name && axis.size == other.size &&
                             (other.type == AxisType::kAuto || axis.type == other.type);
                    });
}

// Returns the state of the mesh `default`; nullptr if there is no such mesh.
const MeshStatus* FindMesh(const ClusterStatus& status) {
  const auto found = std::find_if(status.meshes.begin(), status.meshes.end(),
                                  [](const MeshStatus& mesh) { return mesh.mesh_id == kMesh; });
  return found == status.meshes.end() ? nullptr : &*found;
}

// Returns the recorded workers that serve the ranks of the mesh `default`. The record has the
// others after these.
std::vector<std::string> WorkersOfDefault(const ClusterRecord& record) {
  std::vector<std::string> workers = record.workers;
  const absl::StatusOr<Mesh> mesh = Mesh::Parse(record.mesh);
  if (mesh.ok() && mesh->size() < static_cast<int64_t>(workers.size())) {
    workers.resize(static_cast<size_t>(mesh->size()));
  }
  return workers;
}

// Appends to `workers` the workers of the ranks of all meshes that `workers` lacks and for which
// `is_own` returns true.
void AddWorkersOfOtherMeshes(const ClusterStatus& status,
                             const std::function<bool(const std::string& identity)>& is_own,
                             std::vector<std::string>* workers) {
  std::set<std::string> known(workers->begin(), workers->end());
  for (const MeshStatus& mesh : status.meshes) {
    for (const std::string& identity : mesh.workers) {
      if (known.insert(identity).second && is_own(identity)) workers->push_back(identity);
    }
  }
}

// Checks that a worker's identity can name a folder and a log beside those of the coordinator.
absl::Status CheckLocalIdentity(const std::string& identity) {
  if (CheckClusterName(identity).ok() && identity != kCoordinator) {
    return absl::OkStatus();
  }
  return WithReason(
      absl::FailedPreconditionError(StrCat(
          "a rank of the mesh \"", kMesh, "\" belongs to the worker \"", identity,
          "\", which `up` cannot start: its identity names no folder. Give the rank to another "
          "worker with `shardmesh admin worker replace`")),
      Reason::kMeshIncomplete, {{fact::kMesh, kMesh}, {fact::kIdentity, identity}});
}

// Returns the identities of the processes of a recorded cluster: the coordinator, and the workers
// that serve the ranks of the mesh.
absl::StatusOr<std::vector<std::string>> RecordedIdentities(const ClusterRecord& record) {
  std::vector<std::string> identities = {kCoordinator};
  std::vector<std::string> workers = record.workers;
  if (workers.empty()) {
    SHARDMESH_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Parse(record.mesh));
    workers = RankWorkers(mesh);
  }
  identities.insert(identities.end(), workers.begin(), workers.end());
  return identities;
}

const RecordedProcess* FindProcess(const ClusterRecord& record, const std::string& identity) {
  const auto found =
      std::find_if(record.processes.begin(), record.processes.end(),
                   [&](const RecordedProcess& process) { return process.identity == identity; });
  return found == record.processes.end() ? nullptr : &*found;
}

// Returns those of `identities` whose processes run, if `running`; otherwise those whose processes
// do not run.
std::vector<std::string> Choose(const ClusterRecord& record,
                                const std::vector<std::string>& identities, bool running) {
  std::vector<std::string> chosen;
  for (const std::string& identity : identities) {
    const RecordedProcess* const process = FindProcess(record, identity);
    if ((process != nullptr && IsRunning(process->id)) == running) {
      chosen.push_back(identity);
    }
  }
  return chosen;
}

// Whether `options` demand another shape of the mesh than that of the cluster.
bool WantsOtherMesh(const ClusterRecord& record, const LocalClusterOptions& options) {
  const absl::StatusOr<Mesh> recorded = Mesh::Parse(record.mesh);
  return !options.takes_stored_mesh && !(recorded.ok() && HasShapeOf(*recorded, options.mesh));
}

// Compares the flags that `options` give with those of the cluster, and takes into `options` what
// the record has and `options` does not give. The mesh of `options` stays as it is.
RecordedFlags MergeFlags(const ClusterRecord& record, LocalClusterOptions* options) {
  RecordedFlags flags(options->flag_defaults);
  flags.Merge("--mesh", record.mesh,
              options->takes_stored_mesh         ? std::string()
              : WantsOtherMesh(record, *options) ? options->mesh.ToString()
                                                 : record.mesh);
  if (options->port != 0 && !absl::EndsWith(record.address, StrCat(":", options->port))) {
    flags.Merge("--port", record.address.substr(record.address.rfind(':') + 1),
                StrCat(options->port));
  }
  options->data_folder = flags.Merge("--data-dir", record.data_folder, options->data_folder);
  options->tls_folder = flags.Merge("--tls", record.tls_folder, options->tls_folder);
  options->coordinator_flags = flags.Merge(record.coordinator_flags, options->coordinator_flags);
  options->worker_flags = flags.Merge(record.worker_flags, options->worker_flags);
  return flags;
}

// Says what `down` leaves of the arrays of the cluster.
std::string LeftByDown(const ClusterRecord& record) {
  if (record.data_folder.empty()) {
    return "its arrays, names and definitions are in memory, and `down` loses them";
  }
  return StrCat("what is under its --data-dir ", record.data_folder,
                " stays; `down` loses arrays that are only in memory, unless the workers can read "
                "them again from their file or a checkpoint");
}

// Says how the cluster gets another mesh and keeps its arrays.
std::string ResizeAdvice(const ClusterRecord& record, const Mesh& mesh) {
  return StrCat("`shardmesh mesh resize ", kMesh, " ", mesh.ToString(), " --cluster ", record.name,
                "` gives it that mesh and keeps its arrays");
}

// The error of a start of a cluster whose processes all run.
absl::Status AlreadyUp(const ClusterRecord& record, const LocalClusterOptions& options) {
  LocalClusterOptions merged = options;
  const RecordedFlags flags = MergeFlags(record, &merged);
  std::string message = StrCat("the cluster \"", record.name, "\" is up at ", record.address);
  if (!flags.differences().empty()) {
    StrAppend(&message, ", and this `up` has other flags: ", StrJoin(flags.differences(), ", "));
  }
  const bool wants_mesh = WantsOtherMesh(record, options);
  if (wants_mesh) StrAppend(&message, "\n  ", ResizeAdvice(record, options.mesh));
  StrAppend(&message, "\n  ", wants_mesh ? "otherwise stop" : "stop",
            " it with `shardmesh down --cluster ", record.name,
            "`, or choose another --cluster\n  ", LeftByDown(record));
  return WithReason(absl::AlreadyExistsError(ToAbsl(message)), Reason::kAlreadyExists,
                    {{fact::kKind, "cluster"}, {fact::kName, record.name}});
}

// Takes into `options` what the record has and `options` does not give. FAILED_PRECONDITION if the
// `ended` processes of the cluster cannot be restarted with `options`. Returns the flags that came
// from the record.
absl::StatusOr<std::vector<std::string>> TakeRecordedFlags(const ClusterRecord& record,
                                                           const std::vector<std::string>& ended,
                                                           LocalClusterOptions* options) {
  const auto refused = [&](std::string_view why) {
    return WithReason(absl::FailedPreconditionError(StrCat(
                          "the cluster \"", record.name, "\" at ", record.address,
                          " runs without these processes, which have ended: ", StrJoin(ended, ", "),
                          "; ", why, ", or stop the others with `shardmesh down --cluster ",
                          record.name, "` and start again: ", LeftByDown(record))),
                      Reason::kAlreadyExists,
                      {{fact::kKind, "cluster"}, {fact::kName, record.name}});
  };
  if (record.supervisor.has_value() && IsRunning(*record.supervisor)) {
    return refused(
        StrCat("stop the `shardmesh up` in the foreground, pid ", record.supervisor->pid));
  }
  const RecordedFlags flags = MergeFlags(record, options);
  if (!flags.differences().empty()) {
    return refused(StrCat(
        "this `up` has other flags than the cluster: ", StrJoin(flags.differences(), ", "),
        "; leave them out to start the ended processes as before",
        WantsOtherMesh(record, *options) ? StrCat("; then ", ResizeAdvice(record, options->mesh))
                                         : std::string()));
  }
  if (options->takes_stored_mesh) {
    SHARDMESH_ASSIGN_OR_RETURN(options->mesh, Mesh::Parse(record.mesh));
  }
  return flags.taken();
}

// Takes into the `options` of a new cluster what `record` has and `options` does not give. `record`
// is that of an earlier cluster of the same name, which nobody stopped. Returns the flags that came
// from the record.
absl::StatusOr<std::vector<std::string>> InheritFlags(const ClusterRecord& record,
                                                      LocalClusterOptions* options) {
  if (!options->data_folder.empty() && RecordedForm("--data-dir", options->data_folder) !=
                                           RecordedForm("--data-dir", record.data_folder)) {
    return std::vector<std::string>();  // the state of another cluster
  }
  RecordedFlags flags(options->flag_defaults, RecordedFlags::OnDifference::kTakeGiven);
  if (options->takes_stored_mesh) {
    flags.Merge("--mesh", record.mesh, "");
    SHARDMESH_ASSIGN_OR_RETURN(options->mesh, Mesh::Parse(record.mesh));
  }
  if (options->port == 0 && record.port != 0) {
    flags.Merge("--port", StrCat(record.port), "");
    options->port = record.port;
  }
  options->data_folder = flags.Merge("--data-dir", record.data_folder, options->data_folder);
  options->tls_folder = flags.Merge("--tls", record.tls_folder, options->tls_folder);
  options->coordinator_flags = flags.Merge(record.coordinator_flags, options->coordinator_flags);
  options->worker_flags = flags.Merge(record.worker_flags, options->worker_flags);
  return flags.taken();
}

// The error of a start over a state that has another mesh `default` than `options` demand.
// `kept_flags` are those that came from the record.
absl::Status OtherMesh(const LocalClusterOptions& options, const Mesh& stored,
                       const std::vector<std::string>& kept_flags) {
  const std::string wanted = options.mesh.ToString();
  const bool is_kept =
      std::any_of(kept_flags.begin(), kept_flags.end(),
                  [](const std::string& flag) { return absl::StartsWith(flag, "--data-dir "); });
  return WithReason(
      absl::FailedPreconditionError(StrCat(
          "the cluster in ", options.data_folder, " has the mesh ", stored.ToString(), ", not ",
          wanted,
          "; start it without --mesh and --workers, and give it the other shape by `shardmesh mesh "
          "resize ",
          kMesh, " ", wanted, "`, or start a new cluster in another --data-dir",
          is_kept ? StrCat(" (this one is that of the last `up`: `shardmesh down --cluster ",
                           options.name, "` forgets it)")
                  : std::string())),
      Reason::kAlreadyExists, {{fact::kKind, "mesh"}, {fact::kName, kMesh}});
}

}  // namespace

std::string LocalWorkerIdentity(int64_t index) { return StrCat("worker-", index); }

absl::StatusOr<std::string> OwnBinaryFolder() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    return FileError("read", "/proc/self/exe", error.value());
  }
  return program.parent_path().string();
}

std::string LocalCluster::LogPath(const std::string& identity) const {
  return StrCat(options_.folder, "/", identity, ".log");
}

void LocalCluster::AddTls(const rpc::TlsFiles& files, std::vector<std::string>* command) const {
  if (!options_.tls_folder.empty()) {
    command->push_back("--tls-cert=" + files.certificate);
    command->push_back("--tls-key=" + files.private_key);
    command->push_back("--tls-ca=" + files.authorities);
  }
}

ProcessOptions LocalCluster::CoordinatorProcess(const std::string& listen,
                                                bool defines_mesh) const {
  ProcessOptions process;
  process.command = {StrCat(options_.binary_folder, "/", kCoordinatorProgram), "--listen=" + listen,
                     "--http-listen=127.0.0.1:0"};
  if (defines_mesh) {
    process.command.push_back("--mesh=" + options_.mesh.ToString());
  }
  if (!options_.data_folder.empty()) {
    process.command.push_back(StrCat("--data-dir=", options_.data_folder, "/", kCoordinator));
  }
  AddTls(CoordinatorTlsFiles(options_.tls_folder), &process.command);
  process.command.insert(process.command.end(), options_.coordinator_flags.begin(),
                         options_.coordinator_flags.end());
  process.log_path = LogPath(kCoordinator);
  return process;
}

ProcessOptions LocalCluster::WorkerProcess(const std::string& identity) const {
  ProcessOptions process;
  process.command = {StrCat(options_.binary_folder, "/", kWorkerProgram),
                     "--coordinator=" + record_.address, "--listen=127.0.0.1:0",
                     "--http-listen=127.0.0.1:0", "--identity=" + identity};
  const std::vector<std::string>& workers = record_.workers;
  const auto at = std::find(workers.begin(), workers.end(), identity);
  if (at != workers.end()) {
    process.command.push_back(StrCat("--host-part=", at - workers.begin(), "/", workers.size()));
  }
  if (!options_.data_folder.empty()) {
    process.command.push_back(StrCat("--data-dir=", options_.data_folder, "/", identity));
  }
  AddTls(WorkerTlsFiles(options_.tls_folder, identity), &process.command);
  process.command.insert(process.command.end(), options_.worker_flags.begin(),
                         options_.worker_flags.end());
  process.log_path = LogPath(identity);
  return process;
}

absl::Status LocalCluster::About(const Member& member, absl::StatusCode code,
                                 std::string_view what) {
  const std::string& log = member.process.log_path();
  const std::string tail = LastLines(ReadLog(log, member.process.log_offset_bytes()), kLogLines);
  return absl::Status(code, StrCat(member.identity, " (pid ", member.process.id().pid, ") ", what,
                                   log.empty()    ? std::string("; it writes no log file")
                                   : tail.empty() ? StrCat("; its log ", log, " is empty")
                                                  : StrCat("; its log ends:\n", tail)));
}

LocalCluster::Member* LocalCluster::Find(const std::string& identity) {
  const auto found = std::find_if(members_.begin(), members_.end(), [&](const Member& member) {
    return member.identity == identity;
  });
  return found == members_.end() ? nullptr : &*found;
}

bool LocalCluster::HasState() const {
  std::error_code error;
  return !options_.data_folder.empty() &&
         std::filesystem::exists(StrCat(options_.data_folder, "/", kCoordinator), error);
}

absl::Status LocalCluster::TakeRanks(absl::Time deadline) {
  const auto limit = SteadyDeadline::At(deadline);
  Member& coordinator = members_.front();
  absl::Status last;
  std::unique_ptr<MeshClient> client;
  for (;;) {
    if (client == nullptr) {
      absl::StatusOr<std::unique_ptr<MeshClient>> connected =
          ConnectUntil(record_.address, options_.tls_folder, limit.wall());
      last = connected.status();
      if (connected.ok()) client = *std::move(connected);
    }
    if (client != nullptr) {
      const absl::StatusOr<ClusterStatus> status = client->cluster().GetStatus();
      last = status.status();
      const MeshStatus* const mesh = status.ok() ? FindMesh(*status) : nullptr;
      if (mesh != nullptr) {
        if (!HasShapeOf(mesh->mesh, options_.mesh)) {
          if (!options_.takes_stored_mesh) return OtherMesh(options_, mesh->mesh, kept_flags_);
          // The mesh was changed after the record was written: it is not that of the record.
          std::erase_if(kept_flags_,
                        [](const std::string& flag) { return absl::StartsWith(flag, "--mesh "); });
        }
        record_.mesh = mesh->mesh.ToString();
        record_.workers = RankWorkers(mesh->mesh, mesh->workers);
        for (const std::string& identity : record_.workers) {
          SHARDMESH_RETURN_IF_ERROR(CheckLocalIdentity(identity));
        }
        AddWorkersOfOtherMeshes(
            *status, [this](const std::string& identity) { return IsOwn(identity); },
            &record_.workers);
        return MakeMissingCertificates();
      }
      if (status.ok()) {
        // The next round reads the mesh, whether this call or another command defined it.
        MeshDefinition definition;
        definition.mesh = options_.mesh;
        last = client->catalog().CreateEntry(kMesh, definition).status();
      }
    }
    if (const std::optional<std::string> end = coordinator.process.Ended(); end.has_value()) {
      return About(coordinator, absl::StatusCode::kUnavailable, *end);
    }
    if (limit.is_over()) {
      return About(coordinator, absl::StatusCode::kDeadlineExceeded,
                   StrCat("does not say which workers serve the mesh: ", ToStd(last.message())));
    }
    absl::SleepFor(kPollInterval);
  }
}

bool LocalCluster::IsOwn(const std::string& identity) const {
  if (std::any_of(members_.begin(), members_.end(),
                  [&](const Member& member) { return member.identity == identity; })) {
    return true;
  }
  if (options_.data_folder.empty() || !CheckLocalIdentity(identity).ok()) return false;
  const auto lock = TakeSharedLock(StrCat(options_.data_folder, "/", identity, kWorkerLock));
  return lock.ok() && lock->held.valid();
}

void LocalCluster::FindRunningWorkers(absl::Time deadline) {
  if (options_.data_folder.empty()) return;
  std::map<std::string, std::string> holders;  // of the workers' folders, by identity
  const auto find_holder = [&](const std::string& identity) {
    if (std::string holder = HolderOf(identity); !holder.empty()) {
      holders.emplace(identity, std::move(holder));
    }
  };
  for (const std::string& identity : record_.workers) {
    const Member* const member = Find(identity);
    if (running_.contains(identity) || (member != nullptr && IsRunning(member->process.id()))) {
      continue;
    }
    find_holder(identity);
  }
  const auto limit = SteadyDeadline::At(std::min(deadline, absl::Now() + kAttachWait));
  auto next_look = SteadyDeadline::After(kHolderInterval);
  std::unique_ptr<MeshClient> client;
  while (!holders.empty()) {
    if (client == nullptr) {
      auto connected = ConnectUntil(record_.address, options_.tls_folder, limit.wall());
      if (connected.ok()) client = *std::move(connected);
    }
    if (client != nullptr) {
      const absl::StatusOr<ClusterStatus> status = client->cluster().GetStatus();
      if (status.ok()) {
        for (const WorkerStatus& worker : status->workers) {
          const auto holder = holders.find(worker.identity);
          // A worker writes the same pid into the lock file as it sends to the coordinator.
          if (holder != holders.end() && worker.state != WorkerState::kLost &&
              holder->second.starts_with(StrCat(worker.pid, " on host "))) {
            running_.emplace(worker.identity, worker.pid);
            holders.erase(holder);
          }
        }
      }
    }
    if (limit.is_over()) return;
    absl::SleepFor(kPollInterval);
    if (next_look.is_over()) {
      // A process may have ended, and another one may have taken its place.
      const std::map<std::string, std::string> before = std::exchange(holders, {});
      for (const auto& [identity, holder] : before) find_holder(identity);
      next_look = SteadyDeadline::After(kHolderInterval);
    }
  }
}

absl::Status LocalCluster::FollowRunningMembers(absl::Time deadline) {
  ClusterRecord record = record_;
  record.processes.clear();
  for (const Member& member : members_) {
    if (running_.contains(member.identity) && !IsRunning(member.process.id())) {
      record.processes.push_back({member.identity, member.process.id(), member.process.log_path()});
    }
  }
  if (record.processes.empty()) return absl::OkStatus();
  const FollowedRestarts followed = FollowRestarts(&record, deadline);
  if (followed.corrected.empty()) return absl::OkStatus();
  for (const RecordedProcess& process : record.processes) {
    Member& member = *Find(process.identity);
    if (member.process.id() == process.id) continue;
    member = {process.identity, WorkerProcess(process.identity),
              ChildProcess::TakeOver(process.id, process.log_path)};
    running_.erase(process.identity);
  }
  SHARDMESH_RETURN_IF_ERROR(WriteDown());
  if (options_.on_correction) options_.on_correction(followed.Sentence());
  return absl::OkStatus();
}

void LocalCluster::ForgetRunningMembers() {
  std::erase_if(members_, [this](const Member& member) {
    return running_.contains(member.identity) && !IsRunning(member.process.id());
  });
}

absl::Status LocalCluster::MakeMissingCertificates() const {
  if (options_.tls_folder.empty()) return absl::OkStatus();
  CertificateFolderOptions certificates{
      .folder = options_.tls_folder, .workers = {}, .hosts = {}, .only_missing = true};
  for (const std::string& identity : record_.workers) {
    std::error_code error;
    if (!std::filesystem::exists(WorkerTlsFiles(options_.tls_folder, identity).certificate,
                                 error)) {
      certificates.workers.push_back(identity);
    }
  }
  return certificates.workers.empty() ? absl::OkStatus() : WriteCertificates(certificates).status();
}

absl::Status LocalCluster::Launch(const std::string& identity, ProcessOptions process) {
  process.ends_with_parent = options_.ends_with_parent;
  process.parent_end_signal = options_.parent_end_signal;
  SHARDMESH_ASSIGN_OR_RETURN(ChildProcess child,
                             ChildProcess::Start(process, [&](const ProcessId& id) {
                               const RecordedProcess starting = {identity, id, process.log_path, "",
                                                                 options_.ends_with_parent};
                               return WriteDown(&starting);
                             }));
  if (Member* const member = Find(identity); member != nullptr) {
    *member = {identity, std::move(process), std::move(child), "", options_.ends_with_parent};
  } else {
    members_.push_back(
        {identity, std::move(process), std::move(child), "", options_.ends_with_parent});
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::WriteDown(const RecordedProcess* starting) {
  ClusterRecord record = record_;
  record.processes.clear();
  bool is_new = starting != nullptr;
  for (const Member& member : members_) {
    if (starting != nullptr && member.identity == starting->identity) {
      record.processes.push_back(*starting);
      is_new = false;
    } else {
      record.processes.push_back({member.identity, member.process.id(), member.process.log_path(),
                                  member.metrics_address, member.ends_with_supervisor});
    }
  }
  if (is_new) {
    record.processes.push_back(*starting);
  }
  SHARDMESH_RETURN_IF_ERROR(WriteRecord(options_.folder, record));
  record_ = std::move(record);
  return absl::OkStatus();
}

absl::Status LocalCluster::NoteMetrics() {
  // A `down` command may hold the lock while that command waits for this process to end. Therefore
  // do not wait long for the lock.
  const absl::StatusOr<FileDescriptor> lock =
      LockCluster(options_.folder, options_.name, kRecordLockTimeout, nullptr);
  if (!lock.ok() && !absl::IsAlreadyExists(lock.status())) return lock.status();
  if (!IsRecorded(options_.folder, record_)) {
    return TakenOver(options_.name);
  }
  if (!lock.ok()) {
    // Another command has the lock. The cluster is healthy, and is up unless that command stops it.
    const absl::StatusOr<ClusterRecord> found = ReadRecord(options_.folder);
    return found.ok() && !found->is_stopping ? absl::OkStatus() : TakenOver(options_.name);
  }
  for (Member& member : members_) {
    if (!member.metrics_address.empty()) {
      continue;
    }
    const std::string log = ReadLog(member.process.log_path(), member.process.log_offset_bytes());
    // The log of a process that was taken over may also contain earlier runs: use the last line.
    const size_t line = log.rfind(kMetricsServed);
    if (line != std::string::npos) {
      const size_t begin = line + sizeof(kMetricsServed) - 1;
      const size_t end = log.find_first_not_of("0123456789", begin);
      member.metrics_address = StrCat("127.0.0.1:", log.substr(begin, end - begin));
    }
  }
  return WriteDown();
}

absl::Status LocalCluster::WaitUntilListening(Member* coordinator, absl::Time deadline) {
  const auto limit = SteadyDeadline::At(deadline);
  for (;;) {
    // Check whether the process has ended, and only afterwards read the log. In this order, the log
    // of an ended process contains the last lines of the process.
    const std::optional<std::string> end = coordinator->process.Ended();
    const std::string log =
        ReadLog(coordinator->process.log_path(), coordinator->process.log_offset_bytes());
    const size_t line = log.find(kListening);
    const size_t line_end = log.find('\n', line);
    if (line != std::string::npos && line_end != std::string::npos) {
      const size_t begin = line + sizeof(kListening) - 1;
      record_.address = log.substr(begin, line_end - begin);
      return absl::OkStatus();
    }
    if (end.has_value()) {
      return About(*coordinator, absl::StatusCode::kFailedPrecondition, *end);
    }
    if (limit.is_over()) {
      return About(*coordinator, absl::StatusCode::kDeadlineExceeded, "does not listen yet");
    }
    absl::SleepFor(kPollInterval);
  }
}

LocalCluster::LocalCluster(LocalClusterOptions options) : options_(std::move(options)) {
  record_.name = options_.name;
  record_.mesh = options_.mesh.ToString();
  record_.workers = RankWorkers(options_.mesh);
  record_.data_folder = options_.data_folder;
  record_.tls_folder = options_.tls_folder;
  record_.port = options_.port;
  record_.coordinator_flags = options_.coordinator_flags;
  record_.worker_flags = options_.worker_flags;
  if (options_.ends_with_parent) {
    record_.supervisor = *IdentifyProcess(getpid());
  }
}

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Resume(LocalClusterOptions options,
                                                                   const ClusterRecord& record,
                                                                   const FollowedRestarts& followed,
                                                                   FileDescriptor lock,
                                                                   absl::Time deadline) {
  const auto limit = SteadyDeadline::At(deadline);
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<std::string> identities, RecordedIdentities(record));
  SHARDMESH_ASSIGN_OR_RETURN(
      std::vector<std::string> kept_flags,
      TakeRecordedFlags(record, Choose(record, identities, /*running=*/false), &options));
  std::unique_ptr<LocalCluster> cluster(new LocalCluster(std::move(options)));
  cluster->kept_flags_ = std::move(kept_flags);
  cluster->detached_ = true;
  cluster->lock_ = std::move(lock);
  cluster->record_.address = record.address;
  cluster->record_.port = record.port;
  cluster->record_.cluster_id = record.cluster_id;
  cluster->record_.mesh = record.mesh;
  cluster->record_.workers.assign(identities.begin() + 1, identities.end());
  for (const RecordedProcess& process : record.processes) {
    cluster->members_.push_back(
        {process.identity,
         process.identity == kCoordinator
             ? cluster->CoordinatorProcess(record.address, /*defines_mesh=*/false)
             : cluster->WorkerProcess(process.identity),
         ChildProcess::TakeOver(process.id, process.log_path), process.metrics_address,
         process.ends_with_supervisor});
  }
  if (!IsRunning(cluster->members_.front().process.id())) {
    SHARDMESH_RETURN_IF_ERROR(cluster->StartAgain(kCoordinator, limit.wall()));
    cluster->restarted_.push_back(kCoordinator);
  }
  if (!cluster->options_.data_folder.empty()) {
    SHARDMESH_RETURN_IF_ERROR(cluster->TakeRanks(limit.wall()));
  }
  const std::vector<std::string>& workers = cluster->record_.workers;
  std::erase_if(cluster->members_, [&workers](const Member& member) {
    return member.identity != kCoordinator && !IsRunning(member.process.id()) &&
           std::find(workers.begin(), workers.end(), member.identity) == workers.end();
  });
  for (const std::string& identity : followed.elsewhere) {
    if (std::find(workers.begin(), workers.end(), identity) == workers.end()) continue;
    const auto worker = std::find_if(
        followed.unrecorded.begin(), followed.unrecorded.end(),
        [&](const UnrecordedWorker& unrecorded) { return unrecorded.identity == identity; });
    cluster->running_.emplace(identity, worker == followed.unrecorded.end() ? 0 : worker->pid);
  }
  cluster->FindRunningWorkers(limit.wall());
  SHARDMESH_RETURN_IF_ERROR(cluster->FollowRunningMembers(limit.wall()));
  cluster->ForgetRunningMembers();
  // Launch writes record_, so copy its workers.
  for (const std::string& identity : std::vector<std::string>(workers)) {
    const Member* const member = cluster->Find(identity);
    const bool runs = member != nullptr && IsRunning(member->process.id());
    if (!runs && !cluster->running_.contains(identity)) {
      SHARDMESH_RETURN_IF_ERROR(cluster->Launch(identity, cluster->WorkerProcess(identity)));
      cluster->restarted_.push_back(identity);
    }
  }
  if (cluster->restarted_.empty()) {
    cluster->kept_flags_.clear();  // no process has them
    // No launch wrote the record, which WaitUntilHealthy compares with that of this object.
    SHARDMESH_RETURN_IF_ERROR(cluster->WriteDown());
  }
  cluster->lock_.Close();
  return cluster;
}

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Start(LocalClusterOptions options,
                                                                  absl::Time deadline) {
  SHARDMESH_RETURN_IF_ERROR(CheckClusterName(options.name));
  SHARDMESH_RETURN_IF_ERROR(MakeClusterFolder(options.folder));
  const auto limit = SteadyDeadline::At(deadline);
  SHARDMESH_ASSIGN_OR_RETURN(FileDescriptor lock, LockCluster(options.folder, options.name,
                                                              limit.left(), options.on_wait));
  std::vector<std::string> replaced;
  std::vector<std::string> kept_flags;
  std::string replaced_why;
  absl::StatusOr<ClusterRecord> old = ReadRecord(options.folder);
  if (!old.ok() && !absl::IsNotFound(old.status())) {
    return old.status();
  }
  FollowedRestarts followed;
  if (old.ok()) {
    // All recorded processes may have ended, and others may have taken their place.
    followed = FollowRestarts(&*old, limit.wall());
    if (!followed.corrected.empty()) {
      SHARDMESH_RETURN_IF_ERROR(WriteRecord(options.folder, *old));
      if (options.on_correction) options.on_correction(followed.Sentence());
    }
  }
  const bool listened = old.ok() && !old->address.empty();
  if (old.ok() && old->IsUp()) {
    const std::vector<std::string>& elsewhere = followed.elsewhere;
    SHARDMESH_ASSIGN_OR_RETURN(std::vector<std::string> identities, RecordedIdentities(*old));
    std::erase_if(identities, [&elsewhere](const std::string& identity) {
      return std::find(elsewhere.begin(), elsewhere.end(), identity) != elsewhere.end();
    });
    for (const RecordedProcess& process : old->processes) {
      if (IsRunning(process.id)) replaced.push_back(process.identity);
    }
    SHARDMESH_RETURN_IF_ERROR(FinishEnding(options.folder, *old, kGrace));
    if (old->IsUp()) {
      if (Choose(*old, identities, /*running=*/false).empty()) {
        return AlreadyUp(*old, options);
      }
      if (listened && (!old->data_folder.empty() || IsRunning(old->processes.front().id))) {
        return Resume(std::move(options), *old, followed, std::move(lock), limit.wall());
      }
      replaced_why = listened ? "The coordinator had ended, and its state was only in memory"
                              : "An earlier start was cut off";
      StopRecorded(options.folder, *old, kGrace);
      SHARDMESH_RETURN_IF_ERROR(CheckStopped(*old));
    } else {
      replaced_why = old->is_stopping
                         ? "The command that was to stop an earlier cluster was cut off"
                         : "The `up` in the foreground of an earlier cluster was cut off";
    }
  }
  const bool inherits = (listened || (old.ok() && old->replaces_listening)) && !old->is_stopping;
  if (inherits) {
    if (!replaced_why.empty()) {
      // The end of the earlier processes removed the record. This command may fail or be killed
      // before it writes its own record.
      SHARDMESH_RETURN_IF_ERROR(WriteRecord(options.folder, *old));
    }
    SHARDMESH_ASSIGN_OR_RETURN(kept_flags, InheritFlags(*old, &options));
  }
  if (!options.data_folder.empty()) {
    SHARDMESH_RETURN_IF_ERROR(MakeFolders(options.data_folder));
  }

  std::unique_ptr<LocalCluster> cluster(new LocalCluster(std::move(options)));
  cluster->lock_ = std::move(lock);
  cluster->kept_flags_ = std::move(kept_flags);
  if (inherits) cluster->earlier_ = *std::move(old);
  cluster->record_.replaces_listening = inherits;
  cluster->replaced_ = std::move(replaced);
  cluster->replaced_why_ = std::move(replaced_why);
  const std::string listen = StrCat("127.0.0.1:", cluster->options_.port);
  const bool has_state = cluster->HasState();  // before the coordinator makes its folder
  SHARDMESH_RETURN_IF_ERROR(cluster->MakeMissingCertificates());
  SHARDMESH_RETURN_IF_ERROR(cluster->Launch(
      kCoordinator, cluster->CoordinatorProcess(listen, /*defines_mesh=*/!has_state)));
  SHARDMESH_RETURN_IF_ERROR(cluster->WaitUntilListening(&cluster->members_.front(), limit.wall()));
  if (has_state) {
    SHARDMESH_RETURN_IF_ERROR(cluster->TakeRanks(limit.wall()));
  }
  cluster->FindRunningWorkers(limit.wall());
  // Launch writes record_, so copy its workers.
  for (const std::string& identity : std::vector<std::string>(cluster->record_.workers)) {
    if (cluster->running_.contains(identity)) continue;
    SHARDMESH_RETURN_IF_ERROR(cluster->Launch(identity, cluster->WorkerProcess(identity)));
  }
  cluster->lock_.Close();
  return cluster;
}

LocalCluster::~LocalCluster() {
  if (!detached_) {
    Stop(kGrace);
  }
}

absl::Status LocalCluster::WaitUntilHealthy(absl::Time deadline) {
  const absl::Status status = AwaitHealthy(deadline);
  if (status.ok()) {
    earlier_.reset();
    return status;
  }
  const absl::StatusOr<ClusterRecord> found = ReadRecord(options_.folder);
  const bool is_own = found.ok() && !found->is_stopping && IsRecorded(options_.folder, record_);
  return is_own ? status : TakenOver(options_.name);
}

absl::Status LocalCluster::AwaitHealthy(absl::Time deadline) {
  const auto limit = SteadyDeadline::At(deadline);
  const std::vector<std::string> workers = WorkersOfDefault(record_);
  const auto check_running = [&]() -> absl::Status {
    for (Member& member : members_) {
      const bool is_needed =
          member.identity == kCoordinator ||
          std::find(workers.begin(), workers.end(), member.identity) != workers.end();
      if (!is_needed) continue;
      if (const std::optional<std::string> end = member.process.Ended(); end.has_value()) {
        const std::string advice = AdviceOnHolder(HolderOf(member.identity));
        return WithReason(About(member, absl::StatusCode::kUnavailable,
                                advice.empty() ? *end : StrCat(*end, "; ", advice)),
                          Reason::kMeshIncomplete, {{fact::kIdentity, member.identity}});
      }
    }
    return absl::OkStatus();
  };
  absl::StatusOr<std::unique_ptr<MeshClient>> connected =
      ConnectUntil(record_.address, options_.tls_folder, limit.wall());
  if (absl::IsUnavailable(connected.status()) && !limit.is_over()) {
    // gRPC shares connections within a process. If another client of this process knows the address
    // from before a restart, the first attempt may only have waited for that client's next one.
    SHARDMESH_RETURN_IF_ERROR(check_running());
    connected = ConnectUntil(record_.address, options_.tls_folder, limit.wall());
  }
  if (!connected.ok()) {
    SHARDMESH_RETURN_IF_ERROR(check_running());
    return std::move(connected).status();
  }
  const std::unique_ptr<MeshClient> client = *std::move(connected);
  std::optional<SteadyDeadline> others_limit;  // set when the mesh `default` is complete
  for (;;) {
    SHARDMESH_RETURN_IF_ERROR(check_running());
    const absl::StatusOr<ClusterStatus> status = client->cluster().GetStatus();
    if (status.ok() && IsComplete(*status)) {
      if (!others_limit.has_value()) others_limit = SteadyDeadline::After(kOtherMeshesWait);
      const bool waits = !others_limit->is_over() && !limit.is_over();
      if (!FindAbsent(*status) || !waits) {
        record_.cluster_id = status->cluster_id;
        return NoteMetrics();
      }
    } else if (limit.is_over()) {
      if (!status.ok()) {
        return About(members_.front(), absl::StatusCode::kDeadlineExceeded,
                     StrCat("does not answer: ", ToStd(status.status().message())));
      }
      const std::vector<std::string> missing = Missing(*status, workers);
      const Member* first =
          missing.empty() ? nullptr : Find(missing.front().substr(0, missing.front().find(' ')));
      const bool is_worker = first != nullptr;
      if (!is_worker) first = &members_.front();
      return WithReason(
          About(*first, absl::StatusCode::kDeadlineExceeded,
                StrCat(is_worker ? "is not ready" : "has not completed the mesh",
                       missing.empty() ? "" : StrCat("; missing: ", StrJoin(missing, ", ")))),
          Reason::kMeshIncomplete, {{fact::kMesh, kMesh}, {fact::kIdentity, first->identity}});
    }
    absl::SleepFor(kPollInterval);
  }
}

bool LocalCluster::FindAbsent(const ClusterStatus& status) {
  absent_.clear();
  bool may_come = false;
  const size_t first = WorkersOfDefault(record_).size();
  for (size_t i = first; i < record_.workers.size(); ++i) {
    Member* const member = Find(record_.workers[i]);
    if (member == nullptr) continue;  // a worker that was started by hand
    const std::optional<std::string> end = member->process.Ended();
    if (!end.has_value() && HasCome(status, member->identity)) continue;
    may_come |= !end.has_value();
    member->reported |= end.has_value();
    const std::string& log = member->process.log_path();
    const std::string last =
        end.has_value() ? LastLines(ReadLog(log, member->process.log_offset_bytes()), 1) : "";
    absent_.push_back(StrCat(
        member->identity, " (pid ", member->process.id().pid, "), which serves ranks of other ",
        "meshes than \"", kMesh, "\", ", end.value_or("is not ready yet"), "; ",
        log.empty() ? std::string("it writes no log file") : StrCat("its log is ", log),
        last.empty() ? std::string() : StrCat(", and ends:\n", last)));
  }
  std::set<std::string> known(record_.workers.begin(), record_.workers.end());
  for (const MeshStatus& mesh : status.meshes) {
    for (const std::string& identity : mesh.workers) {
      if (!known.insert(identity).second || HasCome(status, identity)) continue;
      const std::string why = WhyNotStarted(identity);
      if (why.empty()) continue;
      may_come = true;  // it may run on another host, or have another data folder
      absent_.push_back(
          StrCat(identity, ", which serves ranks of other meshes than \"", kMesh,
                 "\", is not attached, ", "and `up` did not start it: ", why,
                 ". If it runs elsewhere, start it there. If its folder ",
                 "was moved, put it back, and repeat the `up`. If its tiles are lost, start it "
                 "anew with `",
                 kWorkerProgram, " --coordinator=", record_.address, " --identity=", identity,
                 " --data-dir=", options_.data_folder, "/", identity,
                 "`, or give its ranks to another worker with `shardmesh admin worker replace ",
                 identity, " NEW`"));
    }
  }
  return may_come;
}

std::string LocalCluster::WhyNotStarted(const std::string& identity) const {
  if (options_.data_folder.empty() || !CheckLocalIdentity(identity).ok()) return "";
  const std::string folder = StrCat(options_.data_folder, "/", identity);
  std::error_code error;
  if (!std::filesystem::exists(folder, error)) return StrCat("there is no folder ", folder);
  const auto lock = TakeSharedLock(folder + kWorkerLock);
  return lock.ok() ? std::string()  // a worker that was started by hand has the folder
                   : StrCat(folder, " is no folder of a worker: ", ToStd(lock.status().message()));
}

std::string LocalCluster::HolderOf(const std::string& identity) const {
  if (options_.data_folder.empty()) return "";
  const auto lock = TakeSharedLock(StrCat(options_.data_folder, "/", identity, kWorkerLock));
  return lock.ok() && !lock->held.valid() ? lock->holder : std::string();
}

std::vector<EndedProcess> LocalCluster::CollectEnded() {
  std::vector<EndedProcess> ended;
  for (Member& member : members_) {
    const std::optional<std::string> end = member.process.Ended();
    if (end.has_value() && !std::exchange(member.reported, true)) {
      ended.push_back({member.identity, member.process.id().pid, *end});
    }
  }
  return ended;
}

bool LocalCluster::AnyRunning() const { return record_.IsUp(); }

absl::Status LocalCluster::Signal(const std::string& identity, int signal) {
  Member* const member = Find(identity);
  if (member == nullptr) {
    return absl::NotFoundError(StrCat("the cluster has no \"", identity, "\""));
  }
  SHARDMESH_RETURN_IF_ERROR(SendSignal(member->process.id(), signal));
  if (signal == SIGSTOP) {
    // The other threads of the process continue until the thread that gets SIGSTOP has run.
    // Therefore wait until the process has stopped. WNOWAIT leaves the exit status for Ended().
    const auto deadline = SteadyDeadline::After(absl::Seconds(10));
    siginfo_t info = {};
    while (waitid(P_PID, static_cast<id_t>(member->process.id().pid), &info,
                  WSTOPPED | WEXITED | WNOWAIT | WNOHANG) == 0 &&
           info.si_pid == 0) {
      if (deadline.is_over()) {
        return absl::DeadlineExceededError(
            StrCat("\"", identity, "\" was told to stop and still runs after 10 s"));
      }
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::Restart(const std::string& identity, absl::Time deadline) {
  const auto limit = SteadyDeadline::At(deadline);
  SHARDMESH_ASSIGN_OR_RETURN(
      const FileDescriptor lock,
      LockCluster(options_.folder, options_.name, limit.left(), options_.on_wait));
  return StartAgain(identity, limit.wall());
}

absl::Status LocalCluster::StartAgain(const std::string& identity, absl::Time deadline) {
  Member* const member = Find(identity);
  if (member == nullptr) {
    return absl::NotFoundError(StrCat("the cluster has no \"", identity, "\""));
  }
  if (!member->process.Ended().has_value()) {
    return absl::FailedPreconditionError(StrCat(identity, " still runs"));
  }
  if (identity != kCoordinator) {
    return Launch(identity, member->options);
  }
  const bool defines_mesh = !options_.takes_stored_mesh || !HasState();
  SHARDMESH_RETURN_IF_ERROR(Launch(identity, CoordinatorProcess(record_.address, defines_mesh)));
  return WaitUntilListening(Find(identity), deadline);
}

std::vector<std::string> LocalCluster::Stop(absl::Duration grace) {
  // A `down` command holds the lock while that command waits for this process, the supervisor, to
  // end. If the processes end with their parent, stop them even without the lock: `down` removes
  // the record.
  const bool is_start = lock_.valid();
  const absl::StatusOr<FileDescriptor> lock =
      is_start ? std::move(lock_)
               : LockCluster(options_.folder, options_.name,
                             options_.ends_with_parent ? absl::ZeroDuration() : kClusterLockTimeout,
                             nullptr);
  // During Start this object holds the lock, so no other command can have changed the record.
  // Therefore do not read the record.
  const bool is_own = is_start || IsRecorded(options_.folder, record_);
  if (!is_own && !options_.ends_with_parent) {
    return {};
  }
  std::vector<std::string> killed = lock.ok() && is_own
                                        ? StopRecorded(options_.folder, record_, grace)
                                        : StopProcesses(record_, grace);
  const std::optional<ClusterRecord> earlier = std::exchange(earlier_, std::nullopt);
  if (earlier.has_value() && lock.ok() && is_own && !record_.IsUp()) {
    WriteRecord(options_.folder, *earlier).IgnoreError();  // a full disk must not prevent stopping
  }
  for (Member& member : members_) {
    member.process.Ended();
  }
  return killed;
}

std::string AdviceOnHolder(std::string_view holder) {
  constexpr std::string_view kOnHost = " on host ";
  const size_t end = holder.find(kOnHost);
  if (end == std::string_view::npos || end == 0 || holder.find_first_not_of("0123456789") != end) {
    return "";  // the lock file does not name the process
  }
  const std::string_view pid = holder.substr(0, end);
  return holder.substr(end + kOnHost.size()) == HostName()
             ? StrCat("process ", pid, " has its data folder: `kill ", pid,
                      "` ends it, then run `shardmesh up` again")
             : StrCat("process ", holder,
                      " has its data folder: end it there, then run `shardmesh up` again");
}

std::string NoteOnUnrecorded(const std::vector<UnrecordedWorker>& workers) {
  constexpr size_t kMostNamed = 16;
  std::vector<std::string> here;
  std::vector<std::string> pids;
  std::vector<std::string> remote;
  for (const UnrecordedWorker& worker : workers) {
    if (worker.pid == 0) {
      remote.push_back(worker.address.empty() ? worker.identity
                                              : StrCat(worker.identity, " (", worker.address, ")"));
      continue;
    }
    here.push_back(StrCat(worker.identity, " (pid ", worker.pid, ")"));
    if (pids.size() < kMostNamed) pids.push_back(StrCat(worker.pid));
  }
  std::vector<std::string> notes;
  if (!here.empty()) {
    notes.push_back(
        StrCat("Not stopped, because `up` did not start ",
               here.size() == 1 ? "it: " : "them: ", StrJoinFirst(kMostNamed, here, ", "),
               "; `kill ", StrJoin(pids, " "), here.size() == 1 ? "` ends it" : "` ends them"));
  }
  if (!remote.empty()) {
    notes.push_back(
        StrCat("Not stopped, because not on this host: ", StrJoinFirst(kMostNamed, remote, ", "),
               "; end ", remote.size() == 1 ? "it there" : "them there"));
  }
  return StrJoin(notes, "\n");
}

namespace {

// Returns the word as a shell reads it: between single quotes if it has characters that a shell may
// take for something else.
std::string QuotedForShell(const std::string& word) {
  const auto is_plain = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           std::string_view("_./:=,@%+-").find(c) != std::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) return word;
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

}  // namespace

std::string FurtherWorkerCommand(const ClusterRecord& record,
                                 const std::set<std::string, std::less<>>& taken) {
  std::set<std::string, std::less<>> known = taken;
  known.insert(record.workers.begin(), record.workers.end());
  for (const RecordedProcess& process : record.processes) known.insert(process.identity);
  int64_t number = 0;
  while (known.contains(LocalWorkerIdentity(number))) ++number;
  const std::string identity = LocalWorkerIdentity(number);
  std::vector<std::string> words = {kWorkerProgram, StrCat("--identity=", identity),
                                    StrCat("--coordinator=", record.address),
                                    "--listen=127.0.0.1:0"};
  if (!record.data_folder.empty()) {
    words.push_back(StrCat("--data-dir=", record.data_folder, "/", identity));
  }
  if (!record.tls_folder.empty()) {
    const rpc::TlsFiles files = WorkerTlsFiles(record.tls_folder, identity);
    words.push_back(StrCat("--tls-cert=", files.certificate));
    words.push_back(StrCat("--tls-key=", files.private_key));
    words.push_back(StrCat("--tls-ca=", files.authorities));
  }
  const std::vector<std::string> flags = record.worker_flags.value_or(std::vector<std::string>());
  words.insert(words.end(), flags.begin(), flags.end());
  std::transform(words.begin(), words.end(), words.begin(), QuotedForShell);
  return StrJoin(words, " ");
}

std::string FollowedRestarts::Sentence() const {
  return corrected.empty()
             ? std::string()
             : StrCat("Processes were restarted by hand, and the record of `up` follows them: ",
                      StrJoin(corrected, ", "));
}

namespace {

// Returns the identity that the command line of a process of this host gives to a worker: the name
// of this host without --identity. Empty if the command line cannot be read.
std::string GivenIdentity(int64_t pid) {
  constexpr std::string_view kFlag = "--identity";
  std::ifstream file(StrCat("/proc/", pid, "/cmdline"), std::ios::binary);
  std::string word;
  std::string given;
  bool is_value = false;  // of a flag that is a word of its own
  bool is_read = false;
  while (std::getline(file, word, '\0')) {
    is_read = true;
    if (is_value) given = word;
    is_value = word == kFlag;
    if (word.starts_with(StrCat(kFlag, "="))) given = word.substr(kFlag.size() + 1);
  }
  return given.empty() && is_read ? HostName() : given;
}

}  // namespace

FollowedRestarts FollowRestarts(ClusterRecord* record, absl::Time deadline) {
  if (record->cluster_id.empty()) {
    return {};  // without an id, the coordinator at the address may belong to another cluster
  }
  const auto client = ConnectUntil(record->address, record->tls_folder, deadline);
  // Ask for all workers, not only for those of a mesh: the mesh may have been changed or deleted
  // since `up` recorded it.
  const absl::StatusOr<ClusterStatus> status = client.ok()
                                                   ? (*client)->cluster().GetStatus()
                                                   : absl::StatusOr<ClusterStatus>(client.status());
  if (!status.ok() || status->cluster_id != record->cluster_id) {
    return {};  // no coordinator of this cluster answers: the record stays as it is
  }
  if (const MeshStatus* const mesh = FindMesh(*status); mesh != nullptr) {
    record->mesh = mesh->mesh.ToString();
    record->workers = RankWorkers(mesh->mesh, mesh->workers);
    AddWorkersOfOtherMeshes(
        *status,
        [record](const std::string& identity) { return FindProcess(*record, identity) != nullptr; },
        &record->workers);
  }
  // Whether the process of that identity runs, but is not recorded.
  FollowedRestarts followed;
  const auto follow = [record, &followed](const std::string& identity, int64_t pid,
                                          std::string_view program) {
    const auto process =
        std::find_if(record->processes.begin(), record->processes.end(),
                     [&](const RecordedProcess& each) { return each.identity == identity; });
    if (process != record->processes.end() && IsRunning(process->id)) {
      return false;
    }
    const auto id = IdentifyProcess(static_cast<pid_t>(pid));
    std::error_code error;
    const std::filesystem::path path =
        std::filesystem::read_symlink(StrCat("/proc/", pid, "/exe"), error);
    // The kernel appends a word if the program's file was replaced since, such as by a build.
    const std::string name = path.filename().string();
    if (!id.ok() || error || (name != program && name != StrCat(program, " (deleted)"))) {
      return false;
    }
    // On another host, or reused since, the pid may be that of a process of another identity.
    if (program == kWorkerProgram) {
      const std::string given = GivenIdentity(pid);
      if (!given.empty() && given != identity) return false;
    }
    if (process == record->processes.end()) {
      return true;
    }
    followed.corrected.push_back(
        StrCat(identity, " (pid ", process->id.pid, " has ended, pid ", pid, " runs)"));
    *process = {identity, *id, LogOf(id->pid)};
    return false;
  };
  follow(kCoordinator, status->pid, kCoordinatorProgram);
  for (const WorkerStatus& worker : status->workers) {
    const bool is_here = follow(worker.identity, worker.pid, kWorkerProgram);
    if (is_here) followed.elsewhere.push_back(worker.identity);
    if (worker.state == WorkerState::kLost || FindProcess(*record, worker.identity) != nullptr) {
      continue;
    }
    followed.unrecorded.push_back(
        {.identity = worker.identity,
         // A worker of another host may have the pid of another cluster's worker on this host.
         .pid = is_here && GivenIdentity(worker.pid) == worker.identity ? worker.pid : 0,
         .address = worker.addresses.empty() ? std::string() : worker.addresses.front()});
  }
  return followed;
}

}  // namespace shardmesh::client
