// Reads and writes a JSON file: the record of `shardmesh up` about a cluster.
#include "client/cli/local/cluster_record.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/time/clock.h"
#include "process/file.h"
#include "process/json_error.h"
#include "process/lock_file.h"
#include "process/steady_deadline.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

using Json = nlohmann::ordered_json;

std::string RecordPath(const std::string& folder) { return folder + "/cluster.json"; }

Json ToJson(const ProcessId& id) { return {{"pid", id.pid}, {"start_ticks", id.start_ticks}}; }

ProcessId ProcessFromJson(const Json& json) {
  return {json.at("pid").get<pid_t>(), json.at("start_ticks").get<uint64_t>()};
}

// Sends SIGTERM, and SIGKILL if the process still runs at `deadline`. Returns whether SIGKILL was
// needed.
bool StopProcess(const ProcessId& id, const SteadyDeadline& deadline) {
  if (!SendSignal(id, SIGTERM).ok() || WaitUntilGone(id, deadline.wall())) {
    return false;
  }
  if (SendSignal(id, SIGKILL).ok()) {
    WaitUntilGone(id, absl::Now() + absl::Seconds(5));
  }
  return true;
}

}  // namespace

bool ClusterRecord::IsUp() const {
  return std::any_of(processes.begin(), processes.end(),
                     [](const RecordedProcess& process) { return IsRunning(process.id); });
}

std::vector<RecordedProcess> ClusterRecord::Ending() const {
  const bool is_alone = supervisor.has_value() && !IsRunning(*supervisor);
  std::vector<RecordedProcess> ending;
  std::copy_if(processes.begin(), processes.end(), std::back_inserter(ending),
               [&](const RecordedProcess& process) {
                 return (is_stopping || (is_alone && process.ends_with_supervisor)) &&
                        IsRunning(process.id);
               });
  return ending;
}

absl::Status CheckClusterName(std::string_view name) {
  const bool fits = !name.empty() && name.size() <= 64 && name.front() != '.' &&
                    std::all_of(name.begin(), name.end(), [](char c) {
                      return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' ||
                             c == '.' || c == '-';
                    });
  if (fits) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      StrCat("\"", name,
             "\" cannot name a cluster: 1 to 64 letters, digits, _, - and . are "
             "allowed, the first no dot"));
}

std::string ClusterFolder(const std::string& name) {
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  return runtime != nullptr && *runtime == '/'
             ? StrCat(runtime, "/shardmesh/", name)
             : StrCat("/tmp/shardmesh-", static_cast<int64_t>(getuid()), "/", name);
}

absl::Status MakeClusterFolder(const std::string& folder) {
  const std::string parent = folder.substr(0, folder.rfind('/'));
  for (const std::string& path : {parent, folder}) {
    if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
      return FileError("make folder", path, errno);
    }
    struct stat state = {};
    if (lstat(path.c_str(), &state) != 0) {
      return FileError("look at", path, errno);
    }
    if (!S_ISDIR(state.st_mode) || state.st_uid != getuid()) {
      return absl::FailedPreconditionError(
          StrCat(path, " is not a folder of this user; set XDG_RUNTIME_DIR to one that is"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<FileDescriptor> LockCluster(
    const std::string& folder, const std::string& name, absl::Duration timeout,
    const std::function<void(const std::string& what)>& on_wait) {
  SHARDMESH_ASSIGN_OR_RETURN(
      FileLock lock,
      TakeLock(folder + "/lock", {.timeout = std::min(timeout, kClusterLockTimeout),
                                  .on_wait = [&](const std::string& holder, absl::Duration) {
                                    if (on_wait) {
                                      on_wait(StrCat("process ", holder,
                                                     " is starting or stopping the cluster \"",
                                                     name, "\""));
                                    }
                                  }}));
  if (!lock.held.valid()) {
    return WithReason(
        absl::AlreadyExistsError(StrCat("the cluster \"", name,
                                        "\" is being started or stopped by process ", lock.holder,
                                        "; try again when that has ended, or end it: the next "
                                        "command finishes what it leaves")),
        Reason::kAlreadyExists, {{fact::kKind, "cluster"}, {fact::kName, name}});
  }
  return std::move(lock.held);
}

absl::StatusOr<ClusterRecord> ReadRecord(const std::string& folder) {
  const std::string path = RecordPath(folder);
  if (access(path.c_str(), F_OK) != 0) {
    return FileError("open", path, errno);
  }
  try {
    const Json json = Json::parse(ReadLog(path));
    ClusterRecord record;
    record.name = json.at("name").get<std::string>();
    record.address = json.at("address").get<std::string>();
    record.mesh = json.at("mesh").get<std::string>();
    // Records of older builds may lack the following fields, which therefore have defaults.
    record.cluster_id = json.value("cluster_id", "");
    record.data_folder = json.value("data_dir", "");
    record.tls_folder = json.value("tls_dir", "");
    record.port = json.value("port", 0);
    record.workers = json.value("workers", std::vector<std::string>());
    for (const auto& [key, flags] : {std::pair("coordinator_flags", &record.coordinator_flags),
                                     std::pair("worker_flags", &record.worker_flags)}) {
      if (json.contains(key)) *flags = json.at(key).get<std::vector<std::string>>();
    }
    if (const auto supervisor = json.find("supervisor"); supervisor != json.end()) {
      record.supervisor = ProcessFromJson(*supervisor);
    }
    for (const Json& process : json.at("processes")) {
      record.processes.push_back(
          {process.at("identity").get<std::string>(), ProcessFromJson(process),
           process.at("log").get<std::string>(), process.value("metrics", ""),
           process.value("ends_with_supervisor", record.supervisor.has_value())});
    }
    record.replaces_listening = json.value("replaces_listening", false);
    record.is_stopping = json.value("stopping", false);
    return record;
  } catch (const Json::exception& error) {
    return absl::DataLossError(StrCat(path, " is no record of a cluster (",
                                      JsonErrorText(error.what()),
                                      "); stop its processes, if any still run, and delete it"));
  }
}

absl::Status WriteRecord(const std::string& folder, const ClusterRecord& record) {
  Json json = {{"name", record.name},
               {"address", record.address},
               {"mesh", record.mesh},
               {"cluster_id", record.cluster_id},
               {"data_dir", record.data_folder},
               {"tls_dir", record.tls_folder},
               {"port", record.port},
               {"workers", record.workers},
               {"processes", Json::array()}};
  for (const auto& [key, flags] : {std::pair("coordinator_flags", &record.coordinator_flags),
                                   std::pair("worker_flags", &record.worker_flags)}) {
    if (flags->has_value()) json[key] = **flags;
  }
  for (const RecordedProcess& process : record.processes) {
    Json entry = {{"identity", process.identity}};
    entry.update(ToJson(process.id));
    entry["log"] = process.log_path;
    entry["metrics"] = process.metrics_address;
    entry["ends_with_supervisor"] = process.ends_with_supervisor;
    json["processes"].push_back(std::move(entry));
  }
  if (record.supervisor.has_value()) {
    json["supervisor"] = ToJson(*record.supervisor);
  }
  if (record.replaces_listening) {
    json["replaces_listening"] = true;
  }
  if (record.is_stopping) {
    json["stopping"] = true;
  }
  const std::string text = json.dump(2) + "\n";
  SHARDMESH_ASSIGN_OR_RETURN(AtomicFileWriter file, AtomicFileWriter::Create(RecordPath(folder)));
  SHARDMESH_RETURN_IF_ERROR(file.Append(text));
  return file.Finish();
}

void RemoveRecord(const std::string& folder) { unlink(RecordPath(folder).c_str()); }

bool IsRecorded(const std::string& folder, const ClusterRecord& record) {
  const absl::StatusOr<ClusterRecord> found = ReadRecord(folder);
  return found.ok() &&
         std::equal(found->processes.begin(), found->processes.end(), record.processes.begin(),
                    record.processes.end(), [](const RecordedProcess& a, const RecordedProcess& b) {
                      return a.identity == b.identity && a.id == b.id;
                    });
}

std::optional<ClusterRecord> RecordedCluster(const std::string& name) {
  if (!CheckClusterName(name).ok()) {
    return std::nullopt;
  }
  absl::StatusOr<ClusterRecord> record = ReadRecord(ClusterFolder(name));
  if (!record.ok() || !record->IsUp()) {
    return std::nullopt;
  }
  return *std::move(record);
}

std::vector<std::string> StopProcesses(const ClusterRecord& record, absl::Duration grace) {
  std::vector<std::string> killed;
  if (record.supervisor.has_value() && *record.supervisor != *IdentifyProcess(getpid()) &&
      SendSignal(*record.supervisor, SIGTERM).ok()) {
    WaitUntilGone(*record.supervisor, absl::Now() + grace);
  }
  // Stop all workers at the same time: each has the whole `grace` to end. Afterwards stop the
  // coordinator, which is the first process.
  for (size_t i = 1; i < record.processes.size(); ++i) {
    // The process may have ended already.
    SendSignal(record.processes[i].id, SIGTERM).IgnoreError();
  }
  auto deadline = SteadyDeadline::After(grace);
  for (size_t i = record.processes.size(); i-- > 0;) {
    if (i == 0) {
      deadline = SteadyDeadline::After(grace);
    }
    if (StopProcess(record.processes[i].id, deadline)) {
      killed.push_back(record.processes[i].identity);
    }
  }
  return killed;
}

std::vector<std::string> StopRecorded(const std::string& folder, ClusterRecord record,
                                      absl::Duration grace) {
  record.is_stopping = true;
  WriteRecord(folder, record).IgnoreError();  // a full disk must not prevent stopping
  std::vector<std::string> killed = StopProcesses(record, grace);
  if (!record.IsUp()) {
    RemoveRecord(folder);
  }
  return killed;
}

absl::Status FinishEnding(const std::string& folder, const ClusterRecord& record,
                          absl::Duration grace) {
  ClusterRecord ending = record;
  ending.processes = record.Ending();
  if (ending.processes.empty()) {
    return absl::OkStatus();  // send no signal: the supervisor may be an `up` that continues
  }
  StopProcesses(ending, grace);
  SHARDMESH_RETURN_IF_ERROR(CheckStopped(ending));
  if (!record.IsUp()) {
    RemoveRecord(folder);
  }
  return absl::OkStatus();
}

absl::Status CheckStopped(const ClusterRecord& record) {
  std::vector<std::string> running;
  for (const RecordedProcess& process : record.processes) {
    if (IsRunning(process.id)) {
      running.push_back(StrCat(process.identity, " (pid ", process.id.pid, ")"));
    }
  }
  return running.empty() ? absl::OkStatus()
                         : absl::FailedPreconditionError(
                               StrCat("processes of the cluster \"", record.name,
                                      "\" were killed and still run: ", StrJoin(running, ", "),
                                      "; try again when they have ended"));
}

}  // namespace shardmesh::client
