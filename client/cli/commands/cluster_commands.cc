// The commands up, down, status and version.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/grammar.h"
#include "client/cli/local/certificate_folder.h"
#include "client/cli/local/cluster_record.h"
#include "client/cli/local/local_cluster.h"
#include "client/cli/local/recorded_flags.h"
#include "client/cli/replica_wait.h"
#include "client/cli/stopwatch.h"
#include "client/cli/table.h"
#include "process/file.h"
#include "process/signal.h"
#include "process/steady_deadline.h"
#include "process/version.h"
#include "program/collective_choice.h"
#include "rpc/flags.h"
#include "sharding/rules/rule_set.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

constexpr char kDefaultMesh[] = "fsdp=2,tp=2";
constexpr char kDefaultTransport[] = "auto";
constexpr absl::Duration kStartTimeout = absl::Seconds(30);
constexpr absl::Duration kGrace = absl::Seconds(10);
// How long `down` waits if --deadline is not given: for the cluster's lock, and for the
// coordinator's answer about processes that were restarted by hand.
constexpr absl::Duration kFollowTimeout = absl::Seconds(30);

struct UpFlags {
  std::string mesh;  // the value of --mesh; empty if it was not given
  std::optional<int64_t> workers;
  std::string data_folder;
  std::string tls_folder;
  int port = 0;
  bool detach = false;
  std::string memory;
  std::optional<int64_t> min_sharding_size;
  std::string transport;
  std::string algorithms;
  std::vector<std::string> read_roots;
  std::vector<std::string> write_roots;
};

// The file where `up` records the mesh of a data folder's cluster.
std::string MeshFile(const std::string& data_folder) { return data_folder + "/mesh"; }

// Returns the mesh that `up` recorded in the data folder; empty if the folder has no recorded mesh.
std::string NotedMesh(const std::string& data_folder) {
  std::string text;
  if (std::ifstream file(MeshFile(data_folder)); !data_folder.empty() && file) {
    std::getline(file, text);
  }
  return text;
}

absl::Status NoteMesh(const std::string& data_folder, const std::string& mesh) {
  if (data_folder.empty() || NotedMesh(data_folder) == mesh) return absl::OkStatus();
  SHARDMESH_ASSIGN_OR_RETURN(AtomicFileWriter file,
                             AtomicFileWriter::Create(MeshFile(data_folder)));
  SHARDMESH_RETURN_IF_ERROR(file.Append(mesh + "\n"));
  return file.Finish();
}

// Returns the mesh that the flags give. Without flags for a mesh, returns the mesh recorded in the
// data folder. Flags that contradict each other are wrong use.
absl::StatusOr<Mesh> MeshOf(const UpFlags& flags) {
  std::string text = flags.mesh;
  if (text.empty() && !flags.workers.has_value()) {
    text = NotedMesh(flags.data_folder);
  }
  if (text.empty()) {
    text = flags.workers.has_value() ? StrCat("fsdp=", *flags.workers) : kDefaultMesh;
  }
  MeshOptions options;
  options.device_count = flags.workers;
  absl::StatusOr<Mesh> mesh = Mesh::Parse(text, options);
  if (!mesh.ok()) {
    return WrongUse(StrCat(
        "--mesh ", text,
        flags.workers.has_value() ? StrCat(" with --workers ", *flags.workers) : std::string(),
        ": ", ToStd(mesh.status().message())));
  }
  return mesh;
}

Json RecordJson(const ClusterRecord& record) {
  Json processes = Json::array();
  for (const RecordedProcess& process : record.processes) {
    processes.push_back({{"identity", process.identity},
                         {"pid", process.id.pid},
                         {"log", process.log_path},
                         {"metrics", process.metrics_address}});
  }
  return {{"name", record.name},
          {"address", record.address},
          {"mesh", record.mesh},
          {"processes", std::move(processes)}};
}

// Waits for a signal, and during the wait reports each process that ends. FAILED_PRECONDITION once
// no process of the cluster runs.
absl::Status Supervise(LocalCluster* cluster, StopSignal* stop) {
  while (!stop->WaitFor(absl::Milliseconds(200)).has_value()) {
    for (const EndedProcess& ended : cluster->CollectEnded()) {
      std::cerr << ended.identity << " (pid " << ended.pid << ") " << ended.how
                << "; `shardmesh status` shows what is left\n";
    }
    if (!cluster->AnyRunning()) {
      return absl::FailedPreconditionError("all processes of the cluster have ended");
    }
  }
  return absl::OkStatus();
}

void ReportStopped(const std::string& name, const std::vector<std::string>& killed) {
  for (const std::string& identity : killed) {
    std::cerr << identity << " did not stop within " << absl::FormatDuration(kGrace)
              << " and was killed\n";
  }
  std::cerr << "Stopped the cluster \"" << name << "\"\n";
}

// Reports what Start did with an earlier cluster of the same name.
void ReportEarlier(const LocalCluster& cluster) {
  if (!cluster.restarted().empty()) {
    std::cerr << "Restarted the processes that had ended: " << StrJoin(cluster.restarted(), ", ")
              << "\n";
  }
  if (const std::vector<std::string>& replaced = cluster.replaced(); !replaced.empty()) {
    std::cerr << cluster.replaced_why() << ": stopped " << StrJoin(replaced, ", ")
              << " and started a new cluster\n";
  }
  if (!cluster.kept_flags().empty()) {
    std::cerr << (cluster.restarted().empty() ? "The new cluster has" : "They have")
              << " the flags with which the cluster was started: "
              << StrJoin(cluster.kept_flags(), ", ") << "\n";
  }
  if (!cluster.running().empty()) {
    constexpr size_t kMostNamed = 16;
    std::vector<std::string> workers;
    for (const auto& [identity, pid] : cluster.running()) {
      workers.push_back(pid == 0 ? identity : StrCat(identity, " (pid ", pid, ")"));
    }
    const bool is_one = workers.size() == 1;
    std::cerr << (is_one
                      ? "Not started, because a process that was started by hand is this worker: "
                      : "Not started, because processes that were started by hand are these "
                        "workers: ")
              << StrJoinFirst(kMostNamed, workers, ", ") << "; `down` does not stop "
              << (is_one ? "it" : "them") << "\n";
  }
}

void SayWaiting(const std::string& what) { std::cerr << "waiting: " << what << "\n"; }

// Returns the absolute path of a folder, without a slash at its end.
std::string AbsoluteFolder(const std::string& folder) {
  const std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).string();
}

// Adds `flag` to the flags of the workers, once for each folder.
absl::Status PassRoots(std::string_view flag, const std::vector<std::string>& roots,
                       std::vector<std::string>* worker_flags) {
  for (const std::string& root : roots) {
    const std::string folder = AbsoluteFolder(root);
    std::error_code error;
    if (!std::filesystem::is_directory(folder, error)) {
      return WrongUse(StrCat(flag, " ", root, ": there is no such folder; create it first"));
    }
    worker_flags->push_back(StrCat(flag, "=", folder));
  }
  return absl::OkStatus();
}

absl::Status RunUp(const Invocation& invocation, const UpFlags& flags) {
  if (const absl::Status status = CheckClusterName(invocation.cluster_name); !status.ok()) {
    return WrongUse(ToStd(status.message()));
  }
  SHARDMESH_ASSIGN_OR_RETURN(Mesh mesh, MeshOf(flags));
  if (mesh.size() > 1024) {
    return WrongUse(StrCat("a mesh of ", mesh.size(),
                           " workers is too large for one host; at most 1024 are started"));
  }
  LocalClusterOptions options;
  options.name = invocation.cluster_name;
  options.folder = ClusterFolder(invocation.cluster_name);
  SHARDMESH_ASSIGN_OR_RETURN(options.binary_folder, OwnBinaryFolder());
  options.mesh = std::move(mesh);
  options.takes_stored_mesh = flags.mesh.empty() && !flags.workers.has_value();
  options.port = flags.port;
  if (!flags.data_folder.empty()) {
    options.data_folder = AbsoluteFolder(flags.data_folder);
  }
  if (!flags.tls_folder.empty()) {
    options.tls_folder = AbsoluteFolder(flags.tls_folder);
    CertificateFolderOptions certificates{
        .folder = options.tls_folder, .workers = {}, .hosts = {}, .only_missing = true};
    for (int64_t i = 0; i < options.mesh.size(); ++i) {
      certificates.workers.push_back(LocalWorkerIdentity(i));
    }
    SHARDMESH_RETURN_IF_ERROR(WriteCertificates(certificates).status());
  }
  if (!flags.memory.empty()) {
    options.worker_flags.push_back(StrCat("--memory=", flags.memory));
  }
  if (flags.min_sharding_size.has_value()) {
    options.coordinator_flags.push_back(StrCat("--min-sharding-size=", *flags.min_sharding_size));
  }
  if (!flags.algorithms.empty()) {
    options.coordinator_flags.push_back(StrCat("--collective-algorithms=", flags.algorithms));
  }
  if (!flags.transport.empty()) {
    options.worker_flags.push_back(StrCat("--transport=", flags.transport));
  }
  SHARDMESH_RETURN_IF_ERROR(PassRoots("--read-root", flags.read_roots, &options.worker_flags));
  SHARDMESH_RETURN_IF_ERROR(PassRoots("--write-root", flags.write_roots, &options.worker_flags));
  options.flag_defaults = {{"--transport", kDefaultTransport},
                           {"--min-sharding-size", StrCat(kDefaultMinSize)}};
  options.ends_with_parent = !flags.detach;
  options.on_wait = SayWaiting;
  options.on_correction = [](const std::string& what) { std::cerr << what << "\n"; };

  std::optional<StopSignal> stop;
  if (!flags.detach) {
    stop.emplace();
  }
  const Stopwatch stopwatch;
  const auto deadline = SteadyDeadline::After(invocation.DeadlineOr(kStartTimeout));
  SHARDMESH_ASSIGN_OR_RETURN(const std::unique_ptr<LocalCluster> cluster,
                             LocalCluster::Start(std::move(options), deadline.wall()));
  SHARDMESH_RETURN_IF_ERROR(cluster->WaitUntilHealthy(deadline.wall()));
  if (const absl::Status noted = NoteMesh(cluster->record().data_folder, cluster->record().mesh);
      !noted.ok()) {
    std::cerr << "the next `up` needs its --mesh " << cluster->record().mesh << ": "
              << noted.message() << "\n";
  }

  ReportEarlier(*cluster);
  for (const std::string& absent : cluster->absent()) {
    std::cerr << absent << "\n";
  }
  if (!invocation.context.empty()) {
    std::cerr << "The context \"" << invocation.context
              << "\" is the current one: commands ask this cluster with --cluster "
              << invocation.cluster_name << "\n";
  }
  if (invocation.json) {
    invocation.Print(RecordJson(cluster->record()));
  } else {
    std::cout << "Cluster \"" << invocation.cluster_name << "\" is up at " << cluster->address()
              << ": mesh " << cluster->record().mesh << ", "
              << FormatCount(cluster->record().processes.size() - 1, "worker") << ", ready after "
              << FormatTime(stopwatch.time()) << "\n";
    std::cout << "Logs are in " << ClusterFolder(invocation.cluster_name) << "\n";
  }
  std::cout.flush();
  if (flags.detach) {
    cluster->Detach();
    return absl::OkStatus();
  }
  std::cerr << "Ctrl-C stops it\n";
  const absl::Status status = Supervise(cluster.get(), &*stop);
  ReportStopped(invocation.cluster_name, cluster->Stop(kGrace));
  return status;
}

absl::Status RunDown(const Invocation& invocation) {
  if (invocation.has_address) {
    return WrongUse(
        "`down` stops what `up` started on this host: choose it by --cluster, not by "
        "--address");
  }
  const std::string& name = invocation.cluster_name;
  if (const absl::Status status = CheckClusterName(name); !status.ok()) {
    return WrongUse(ToStd(status.message()));
  }
  const std::string folder = ClusterFolder(name);
  const auto deadline = SteadyDeadline::After(invocation.DeadlineOr(kFollowTimeout));
  const absl::StatusOr<FileDescriptor> lock =
      LockCluster(folder, name, deadline.left(), SayWaiting);
  if (!lock.ok() && !absl::IsNotFound(lock.status())) {
    return lock.status();
  }
  absl::StatusOr<ClusterRecord> record = ReadRecord(folder);
  if (absl::IsNotFound(record.status())) {
    return WithReason(absl::NotFoundError(StrCat("no cluster \"", name, "\" is up on this host (",
                                                 folder, " has no record)")),
                      Reason::kNotFound, {{fact::kKind, "cluster"}, {fact::kName, name}});
  }
  SHARDMESH_RETURN_IF_ERROR(record.status());
  const FollowedRestarts followed = FollowRestarts(&*record, deadline.wall());
  const bool was_up = record->IsUp();
  if (!followed.corrected.empty()) {
    std::cerr << followed.Sentence() << "\n";
  }
  const std::vector<std::string> killed = StopRecorded(folder, *record, kGrace);
  SHARDMESH_RETURN_IF_ERROR(CheckStopped(*record));
  if (!was_up) {
    std::cerr << "The processes of cluster \"" << name
              << "\" were gone already; its record was removed\n";
    return absl::OkStatus();
  }
  ReportStopped(name, killed);
  if (const std::string note = NoteOnUnrecorded(followed.unrecorded); !note.empty()) {
    std::cerr << note << "\n";
  }
  return absl::OkStatus();
}

// The metrics addresses of the cluster's processes on this host, from the record of `up`. If there
// is no such record, the object has no addresses.
class MetricsAddresses {
 public:
  explicit MetricsAddresses(const Invocation& invocation) {
    if (!CheckClusterName(invocation.cluster_name).ok()) {
      return;
    }
    absl::StatusOr<ClusterRecord> record = ReadRecord(ClusterFolder(invocation.cluster_name));
    if (record.ok() && record->address == invocation.address) {
      processes_ = std::move(record->processes);
      scheme_ = record->tls_folder.empty() ? "http" : "https";
      std::erase_if(processes_,
                    [](const RecordedProcess& process) { return process.metrics_address.empty(); });
    }
  }

  const char* scheme() const { return scheme_; }
  // Whether the metrics address of any process is known.
  bool known() const { return !processes_.empty(); }
  std::string Of(int64_t pid) const {
    for (const RecordedProcess& process : processes_) {
      if (process.id.pid == pid) {
        return process.metrics_address;
      }
    }
    return "";
  }

 private:
  std::vector<RecordedProcess> processes_;
  const char* scheme_ = "http";
};

Json WorkerJson(const WorkerStatus& worker, const std::string& metrics) {
  return {
      {"identity", worker.identity},
      {"incarnation", StrCat(worker.incarnation)},
      {"state", std::string(WorkerStateName(worker.state))},
      {"pid", worker.pid},
      {"addresses", worker.addresses},
      {"exchange_port", worker.exchange_port.has_value() ? Json(*worker.exchange_port) : Json()},
      {"metrics", metrics},
      {"capacity_bytes", worker.capacity_bytes},
      {"used_bytes", worker.used_bytes},
      {"quarantined_arrays", worker.quarantined_arrays},
      {"quarantined_bytes", worker.quarantined_bytes},
      {"cached_bytes", worker.cached_bytes},
      {"heartbeat_age_s", Seconds(worker.heartbeat_age)},
      {"lost_reason", worker.lost_reason},
      {"lost_age_s", Seconds(worker.lost_age)},
      {"losses", worker.losses},
      {"failed_attaches", worker.failed_attaches},
      {"attach_error", worker.attach_error},
      {"attach_error_age_s", Seconds(worker.attach_error_age)},
      {"version", worker.build.version}};
}

Json RepairsJson(const std::optional<RepairStatus>& repairs) {
  if (!repairs.has_value()) return nullptr;
  return {{"operations", repairs->operations},
          {"done_bytes", repairs->done_bytes},
          {"total_bytes", repairs->total_bytes},
          {"bytes_per_second", repairs->bytes_per_second},
          {"time_left_s",
           repairs->time_left.has_value() ? Json(Seconds(*repairs->time_left)) : Json(nullptr)},
          {"tiles", repairs->tiles},
          {"failed_tiles", repairs->failed_tiles}};
}

Json StatusJson(const std::string& address, const ClusterStatus& status,
                const MetricsAddresses& metrics) {
  Json meshes = Json::array();
  for (const MeshStatus& mesh : status.meshes) {
    meshes.push_back({{"name", mesh.mesh_id},
                      {"revision", mesh.revision},
                      {"axes", MeshJson(mesh.mesh)},
                      {"workers", mesh.workers},
                      {"complete", mesh.complete}});
  }
  Json workers = Json::array();
  for (const WorkerStatus& worker : status.workers) {
    workers.push_back(WorkerJson(worker, metrics.Of(worker.pid)));
  }
  return {{"address", address},
          {"cluster_id", status.cluster_id},
          {"state", std::string(CoordinatorStateName(status.state))},
          {"pid", status.pid},
          {"metrics", metrics.Of(status.pid)},
          {"metrics_scheme", metrics.scheme()},
          {"epoch", status.epoch},
          {"term", status.term},
          {"revision", status.revision},
          {"arrays", status.arrays},
          {"degraded_arrays", status.degraded_arrays},
          {"cached_arrays", status.cached_arrays},
          {"cached_bytes", status.cached_bytes},
          {"repairs", RepairsJson(status.repairs)},
          {"replicas", status.replicas.has_value() ? Json({{"waiting", status.replicas->waiting},
                                                           {"failed", status.replicas->failed}})
                                                   : Json(nullptr)},
          {"unnamed_arrays", status.unnamed_arrays},
          {"unnamed_held_for_s", status.unnamed_held_for == absl::InfiniteDuration()
                                     ? Json(nullptr)
                                     : Json(Seconds(status.unnamed_held_for))},
          {"sessions", status.sessions},
          {"unreadable_records", status.unreadable_records},
          {"unreadable_keys", status.unreadable_keys},
          {"meshes", std::move(meshes)},
          {"workers", std::move(workers)}};
}

void PrintReplicas(const ClusterStatus& status) {
  const ReplicaStatus& replicas = *status.replicas;
  if (replicas.waiting > 0) {
    std::cout << "Replicas: " << FormatCount(replicas.waiting, "array") << " with replicas 1 of 2, "
              << FormatWaitingReplicas(status) << "\n";
  }
  if (replicas.failed > 0) {
    std::cout << "Replicas: " << FormatCount(replicas.failed, "array")
              << " with replicas 1 of 2 could not be copied; `shardmesh ls` lists them, "
                 "`shardmesh describe NAME` says why\n";
  }
}

void PrintRepairs(const RepairStatus& repairs) {
  if (repairs.tiles > 0 || repairs.operations > 0) {
    std::cout << "Repair: " << FormatCount(repairs.tiles, "lost tile") << " to read again";
    if (repairs.total_bytes > 0) {
      std::cout << ", " << FormatBytes(repairs.done_bytes) << " of "
                << FormatBytes(repairs.total_bytes) << " done";
    }
    if (repairs.bytes_per_second > 0) {
      std::cout << ", " << FormatBytes(repairs.bytes_per_second) << "/s";
    }
    if (repairs.time_left.has_value()) {
      std::cout << ", " << FormatTime(*repairs.time_left) << " left";
    }
    std::cout << " (`shardmesh ops ls`)\n";
  }
  if (repairs.failed_tiles > 0) {
    std::cout << "Repair: " << FormatCount(repairs.failed_tiles, "lost tile")
              << " could not be read again; `shardmesh ls` says why\n";
  }
}

// Returns the ranks of a worker, such as `default:0,small:1`. If the cluster has only one mesh, the
// text omits the mesh's name: `0`.
std::string Ranks(const ClusterStatus& status, const std::string& identity) {
  std::vector<std::string> ranks;
  for (const MeshStatus& mesh : status.meshes) {
    for (size_t rank = 0; rank < mesh.workers.size(); ++rank) {
      if (mesh.workers[rank] == identity) {
        ranks.push_back(status.meshes.size() == 1 ? StrCat(rank) : StrCat(mesh.mesh_id, ":", rank));
      }
    }
  }
  return ranks.empty() ? "-" : StrJoin(ranks, ",");
}

// Returns remarks about a worker: why it is lost, its failed attempts to attach, and how often it
// was lost.
std::string Remark(const WorkerStatus& worker) {
  std::vector<std::string> remarks;
  if (worker.state == WorkerState::kLost) {
    remarks.push_back(StrCat(worker.lost_reason, ", ", FormatTime(worker.lost_age),
                             " ago; has not come back since"));
  }
  if (worker.failed_attaches > 0) {
    remarks.push_back(StrCat("tried ", worker.failed_attaches,
                             worker.failed_attaches == 1 ? " time" : " times", " to attach, last ",
                             FormatTime(worker.attach_error_age), " ago: ", worker.attach_error));
  }
  if (worker.losses > 1) {
    remarks.push_back(StrCat("was lost ", worker.losses, " times since the coordinator started"));
  }
  return StrJoin(remarks, "; ");
}

void PrintStatus(const std::string& address, const ClusterStatus& status,
                 const MetricsAddresses& metrics) {
  std::cout << "Coordinator at " << address << ", pid " << status.pid << ": "
            << CoordinatorStateName(status.state) << ", epoch " << status.epoch << ", term "
            << status.term << ", revision " << status.revision << "\n"
            << "Cluster " << status.cluster_id << ": " << FormatCount(status.arrays, "array")
            << (status.degraded_arrays > 0 ? StrCat(" (", status.degraded_arrays, " degraded)")
                                           : "")
            << ", " << FormatCount(status.sessions, "session") << "\n";
  if (status.cached_arrays > 0) {
    std::cout << "Cache: " << FormatCount(status.cached_arrays, "released array") << " of "
              << FormatBytes(status.cached_bytes)
              << ", freed when the memory is needed (`shardmesh admin cache drop`)\n";
  }
  if (status.repairs.has_value()) PrintRepairs(*status.repairs);
  if (status.replicas.has_value()) PrintReplicas(status);
  if (const std::string served = metrics.Of(status.pid); !served.empty()) {
    std::cout << "Metrics at " << metrics.scheme() << "://" << served << "/metrics\n";
  }
  for (const MeshStatus& mesh : status.meshes) {
    const int64_t missing = mesh.mesh.size() - static_cast<int64_t>(mesh.workers.size());
    std::cout << "Mesh \"" << mesh.mesh_id << "\" " << mesh.mesh.ToString() << ": "
              << (mesh.complete ? "complete" : "not complete");
    if (missing > 0) {
      std::cout << ", " << missing << " of " << FormatCount(mesh.mesh.size(), "rank")
                << " never had a worker";
    }
    std::cout << "\n";
  }
  if (status.unreadable_records > 0) {
    std::cout << FormatCount(status.unreadable_records, "record")
              << " of the coordinator's state cannot be read, such as "
              << StrJoin(status.unreadable_keys, ", ") << "; `shardmesh doctor` says what to do\n";
  }
  if (status.unnamed_arrays > 0) {
    std::cout << FormatCount(status.unnamed_arrays, "array") << " without a name, "
              << FormatHeld(status.unnamed_held_for)
              << "; `shardmesh admin quarantine list` shows them\n";
  }
  if (status.workers.empty()) {
    return;
  }
  int64_t aside = 0;
  int64_t aside_bytes = 0;
  for (const WorkerStatus& worker : status.workers) {
    aside += worker.quarantined_arrays;
    aside_bytes += worker.quarantined_bytes;
  }
  if (aside > 0) {
    std::cout << "Quarantine: " << FormatCount(aside, "part") << " of arrays, "
              << FormatBytes(aside_bytes) << "; `shardmesh admin quarantine list` shows them\n";
  }
  std::vector<Table::Column> columns = {{"worker"},
                                        {"rank", Table::Align::kRight},
                                        {"state"},
                                        {"pid", Table::Align::kRight},
                                        {"address"},
                                        {"memory", Table::Align::kRight},
                                        {"of", Table::Align::kRight},
                                        {"heartbeat", Table::Align::kRight}};
  const auto wide = [](std::string title) {
    return Table::Column{std::move(title), Table::Align::kRight, Table::Shown::kWide};
  };
  for (const char* const title : {"incarnation", "exchange port", "losses", "version"}) {
    columns.push_back(wide(title));
  }
  if (metrics.known()) {
    columns.push_back({"metrics"});
  }
  columns.push_back({"remark"});
  Table table(std::move(columns));
  for (const WorkerStatus& worker : status.workers) {
    std::vector<std::string> row = {worker.identity,
                                    Ranks(status, worker.identity),
                                    std::string(WorkerStateName(worker.state)),
                                    StrCat(worker.pid),
                                    worker.addresses.empty() ? "-" : worker.addresses.front(),
                                    FormatBytes(worker.used_bytes),
                                    FormatBytes(worker.capacity_bytes),
                                    StrCat(FormatTime(worker.heartbeat_age), " ago")};
    for (std::string& cell : std::vector<std::string>{
             StrCat(worker.incarnation),
             worker.exchange_port.has_value() ? StrCat(*worker.exchange_port) : "-",
             StrCat(worker.losses), worker.build.version}) {
      row.push_back(std::move(cell));
    }
    if (metrics.known()) {
      row.push_back(metrics.Of(worker.pid));
    }
    row.push_back(Remark(worker));
    table.AddRow(std::move(row));
  }
  std::cout << "\n";
  table.Print();
}

absl::Status RunStatus(const Invocation& invocation) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  SHARDMESH_ASSIGN_OR_RETURN(const ClusterStatus status, client->cluster().GetStatus());
  const MetricsAddresses metrics(invocation);
  // The status is worth showing even if the operations cannot be listed.
  const auto operations = client->cluster().ListOperations({OperationState::kRunning});
  if (invocation.json) {
    Json json = StatusJson(invocation.address, status, metrics);
    json["running_operations"] = operations.ok() ? Json(operations->size()) : Json(nullptr);
    invocation.Print(json);
  } else if (invocation.names()) {
    std::vector<std::string> names;
    for (const WorkerStatus& worker : status.workers) names.push_back(worker.identity);
    PrintNames(names);
  } else {
    PrintStatus(invocation.address, status, metrics);
    if (operations.ok() && !operations->empty()) {
      std::cout << "\nRunning: " << FormatCount(std::ssize(*operations), "operation")
                << "; `shardmesh ops watch` shows how far\n";
    }
  }
  return absl::OkStatus();
}

absl::Status RunVersion(const Invocation& invocation) {
  const std::string own(shardmesh::BuildVersion());
  absl::StatusOr<ServerVersion> server = absl::UnavailableError("");
  if (const auto client = invocation.Connect(); client.ok()) {
    server = (*client)->cluster().GetVersion();
  } else {
    server = client.status();
  }
  if (invocation.json) {
    Json json = {{"client", own}, {"server", nullptr}};
    if (server.ok()) {
      json["server"] = {
          {"address", invocation.address},        {"version", server->build.version},
          {"revision", server->build.revision},   {"min_protocol", server->min_protocol},
          {"max_protocol", server->max_protocol}, {"features", server->features},
          {"cluster_id", server->cluster_id}};
    }
    invocation.Print(json);
    return absl::OkStatus();
  }
  std::cout << "shardmesh " << own << "\n";
  if (!server.ok()) {
    std::cout << "no coordinator answers: " << server.status().message() << "\n";
    return absl::OkStatus();
  }
  std::cout << "coordinator at " << invocation.address << ": " << server->build.version
            << (server->build.revision.empty() ? "" : " of " + server->build.revision)
            << ", protocol " << server->min_protocol << " to " << server->max_protocol << "\n"
            << "features: " << StrJoin(server->features, ", ") << "\n";
  return absl::OkStatus();
}

}  // namespace

void AddClusterCommands(CommandLine* line) {
  auto flags = std::make_shared<UpFlags>();
  CLI::App* const up = line->AddCommand("up", "Start a coordinator and workers on this host",
                                        [flags](const Invocation& i) { return RunUp(i, *flags); });
  AddParsedOption(
      up, "--mesh", &flags->mesh,
      [](std::string_view text) -> absl::StatusOr<std::string> {
        if (text.empty()) {
          return WrongUse(
              StrCat("is empty; give axes such as ", kDefaultMesh, ", or leave it out"));
        }
        return std::string(text);
      },
      "axes of the mesh \"default\", one worker a device; one size may be -1 if "
      "--workers is given (default: that which --data-dir has, or fsdp=N with --workers "
      "N alone, else fsdp=2,tp=2)");
  up->add_option("--workers", flags->workers, "how many workers; must be the mesh's product")
      ->check(CLI::Range(1, 1024));
  AddParsedOption(
      up, "--data-dir", &flags->data_folder,
      [](std::string_view text) -> absl::StatusOr<std::string> {
        if (text.empty()) return WrongUse("is empty; give a folder, or leave the option out");
        return std::string(text);
      },
      "keep state and tensors below this folder (default: in memory)");
  up->add_option("--tls", flags->tls_folder,
                 "mutual TLS with the certificates in this folder, which are made if missing, as "
                 "`shardmesh certs` does (default: plaintext)");
  up->add_option("--port", flags->port, "port of the coordinator (default: a free one)")
      ->check(CLI::Range(1, 65535));
  up->add_flag("--detach", flags->detach, "return when the cluster is healthy, and leave it up");
  AddParsedOption(
      up, "--memory", &flags->memory,
      [](std::string_view text) -> absl::StatusOr<std::string> {
        SHARDMESH_ASSIGN_OR_RETURN(const int64_t bytes, ParseSize(text));
        if (bytes < rpc::kMinWorkerMemoryBytes) {
          return WrongUse(StrCat("\"", text, "\" is too little; give ",
                                 FormatBytes(rpc::kMinWorkerMemoryBytes), " or more"));
        }
        return ExactSize(bytes);
      },
      "most memory for tensors of each worker, such as 4GiB");
  up->add_option("--min-sharding-size", flags->min_sharding_size,
                 "least number of elements of a tensor that is sharded, for rules whose min_size "
                 "is null (default: 16384)")
      ->check(WholeNumberFrom(0));
  AddParsedOption(
      up, "--collective-algorithms", &flags->algorithms,
      [](std::string_view text) -> absl::StatusOr<std::string> {
        if (text.empty()) {
          return WrongUse("is empty; give some such as all-reduce=halving, or leave it out");
        }
        SHARDMESH_ASSIGN_OR_RETURN(const PreferredAlgorithms preferred,
                                   ParsePreferredAlgorithms(text));
        // The record of the cluster has the algorithms in the order of their kinds.
        return StrJoin(preferred, ",", [](std::string* out, const auto& each) {
          *out += StrCat(CollectiveKindName(each.first), "=", CollectiveAlgorithmName(each.second));
        });
      },
      "algorithms for calls that name none, as KIND=ALGORITHM,..., such as all-reduce=halving; "
      "kinds not listed here use the algorithm that is predicted to be fastest");
  up->add_option("--transport", flags->transport,
                 "how data goes between workers: through shared memory (shm), over streams "
                 "(stream), or as each pair can (auto, the default)")
      ->check(CLI::IsMember({"auto", "stream", "shm"}));
  up->add_option("--read-root", flags->read_roots,
                 "a folder below which the workers may read the files of puts; may be repeated")
      ->type_name("DIR")
      ->take_all();
  up->add_option("--write-root", flags->write_roots,
                 "a folder below which the workers may save checkpoints; may be repeated")
      ->type_name("DIR")
      ->take_all();

  line->AddCommand("down", "Stop the cluster that `up` started",
                   [](const Invocation& i) { return RunDown(i); });
  CLI::App* const status =
      line->AddCommand("status", "Show the meshes, the workers and their state",
                       [](const Invocation& i) { return RunStatus(i); });
  line->PrintsNames(status);
  line->CanBeWatched(status);
  line->AddCommand("version", "Show the versions of this program and of the coordinator",
                   [](const Invocation& i) { return RunVersion(i); });
}

}  // namespace shardmesh::client
