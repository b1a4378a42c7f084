// Real processes, each with its own flags.
#include "tests/model/process_cluster.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/time/clock.h"
#include "shardmesh/v1/catalog_service.pb.h"
#include "shardmesh/v1/cluster_service.pb.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tests/model/contract_caller.h"

namespace shardmesh::model {
namespace {

constexpr char kListening[] = "shardmesh-coordinator listening on ";
constexpr absl::Duration kPoll = absl::Milliseconds(10);
constexpr absl::Duration kStartTimeout = absl::Seconds(60);

}  // namespace

std::string Cluster::NameOf(int index) {
  return index == 0 ? "coordinator" : StrCat("worker-", index - 1);
}

absl::StatusOr<std::unique_ptr<Cluster>> Cluster::Start(const Options& options) {
  std::unique_ptr<Cluster> cluster(new Cluster(options));
  const char* temporary = getenv("TMPDIR");
  std::string folder = StrCat(temporary == nullptr ? "/tmp" : temporary, "/shardmesh-model-XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) {
    return absl::InternalError(StrCat("cannot make a folder like ", folder));
  }
  cluster->folder_ = folder;
  std::filesystem::create_directory(cluster->files());
  cluster->members_.resize(static_cast<size_t>(cluster->size()));
  for (int i = 0; i < cluster->size(); ++i) {
    Member& member = cluster->members_[static_cast<size_t>(i)];
    member.log_path = StrCat(folder, "/", cluster->NameOf(i), ".log");
  }
  SHARDMESH_RETURN_IF_ERROR(cluster->Launch(0, {}));
  const absl::Time deadline = absl::Now() + kStartTimeout;
  while (cluster->address_.empty()) {
    const std::string log = cluster->Log(0);
    const size_t line = log.find(kListening);
    const size_t end = log.find('\n', line);
    if (line != std::string::npos && end != std::string::npos) {
      const size_t begin = line + sizeof(kListening) - 1;
      cluster->address_ = log.substr(begin, end - begin);
    } else if (cluster->Ended(0).has_value() || absl::Now() > deadline) {
      return absl::UnavailableError(StrCat("the coordinator does not listen: ", log));
    }
    absl::SleepFor(kPoll);
  }
  for (int i = 1; i <= options.workers; ++i) {
    SHARDMESH_RETURN_IF_ERROR(cluster->Launch(i, {}));
  }
  SHARDMESH_RETURN_IF_ERROR(cluster->WaitUntilReady(kStartTimeout).status());
  // Now all ranks are taken.
  for (int i = options.workers + 1; i < cluster->size(); ++i) {
    SHARDMESH_RETURN_IF_ERROR(cluster->Launch(i, {}));
  }
  if (options.spares > 0) {
    SHARDMESH_RETURN_IF_ERROR(cluster->WaitUntilReady(kStartTimeout).status());
  }
  if (options.files) SHARDMESH_RETURN_IF_ERROR(cluster->DefineTurnedMesh());
  return cluster;
}

absl::Status Cluster::DefineTurnedMesh() const {
  v1::CreateEntryRequest request;
  v1::CreateEntryResponse response;
  request.set_request_id("turned-mesh");
  request.set_name(kTurnedMesh);
  v1::MeshDefinition& mesh = *request.mutable_value()->mutable_mesh();
  v1::MeshAxis& axis = *mesh.mutable_mesh()->add_axes();
  axis.set_name("tp");
  axis.set_size(options_.workers);
  for (int i = options_.workers; i > 0; --i) mesh.add_workers(NameOf(i));
  return Caller(address_).Call("CatalogService.CreateEntry", request, &response);
}

Cluster::~Cluster() {
  for (int i = 0; i < size(); ++i) {
    if (static_cast<size_t>(i) < members_.size()) Kill(i).IgnoreError();
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

absl::Status Cluster::Launch(int index, const std::vector<std::string>& flags) {
  Member& member = members_[static_cast<size_t>(index)];
  client::ProcessOptions process;
  std::vector<std::string>& command = process.command;
  if (index == 0) {
    command = {options_.binary_folder + "/shardmesh-coordinator",
               "--listen=" + (address_.empty() ? std::string("127.0.0.1:0") : address_),
               StrCat("--mesh=fsdp=1,tp=", options_.workers), "--http-listen="};
    command.insert(command.end(), options_.coordinator_flags.begin(),
                   options_.coordinator_flags.end());
  } else {
    command = {options_.binary_folder + "/shardmesh-worker",
               "--coordinator=" + (options_.worker_coordinator == nullptr
                                       ? address_
                                       : options_.worker_coordinator(address_)),
               "--listen=127.0.0.1:0",
               "--threads=1",
               "--http-listen=",
               "--memory=" + options_.memory,
               "--identity=" + NameOf(index)};
    if (options_.files) {
      command.insert(command.end(), {"--read-root=" + files(), "--write-root=" + files()});
    }
    command.insert(command.end(), options_.worker_flags.begin(), options_.worker_flags.end());
  }
  if (options_.durable || (index == 0 && options_.durable_coordinator)) {
    command.push_back("--data-dir=" + DataFolder(index));
  }
  command.insert(command.end(), flags.begin(), flags.end());
  process.log_path = member.log_path;
  process.parent_end_signal = SIGKILL;
  SHARDMESH_ASSIGN_OR_RETURN(client::ChildProcess child, client::ChildProcess::Start(process));
  member.process.emplace(std::move(child));
  member.end.reset();
  member.is_away = false;
  return absl::OkStatus();
}

absl::Status Cluster::Signal(int index, int signal) {
  Member& member = members_[static_cast<size_t>(index)];
  if (!member.process.has_value()) return absl::NotFoundError("it never started");
  return client::SendSignal(member.process->id(), signal);
}

absl::Status Cluster::Kill(int index) {
  Member& member = members_[static_cast<size_t>(index)];
  if (!member.process.has_value()) return absl::OkStatus();
  client::SendSignal(member.process->id(), SIGKILL).IgnoreError();
  if (!client::WaitUntilGone(member.process->id(), absl::Now() + absl::Seconds(20))) {
    return absl::DeadlineExceededError(StrCat(NameOf(index), " does not end"));
  }
  Ended(index);
  return absl::OkStatus();
}

absl::Status Cluster::KillForLong(int index) {
  SHARDMESH_RETURN_IF_ERROR(Kill(index));
  members_[static_cast<size_t>(index)].is_away = true;
  return absl::OkStatus();
}

absl::Status Cluster::Restart(int index, const std::vector<std::string>& flags) {
  if (!Ended(index).has_value()) {
    return absl::FailedPreconditionError(StrCat(NameOf(index), " still runs"));
  }
  return Launch(index, flags);
}

std::optional<std::string> Cluster::Ended(int index) {
  Member& member = members_[static_cast<size_t>(index)];
  if (!member.end.has_value() && member.process.has_value()) member.end = member.process->Ended();
  return member.end;
}

absl::StatusOr<absl::Duration> Cluster::WaitUntilReady(absl::Duration timeout) {
  const absl::Time start = absl::Now();
  const Caller caller(address_);
  std::string missing;
  int expected = 0;
  bool is_any_away = false;
  for (int i = 1; i < size(); ++i) {
    const Member& member = members_[static_cast<size_t>(i)];
    expected += member.process.has_value() && !member.is_away ? 1 : 0;
    is_any_away = is_any_away || member.is_away;
  }
  for (;;) {
    v1::GetStatusResponse status;
    const absl::Status called =
        caller.Call("ClusterService.GetStatus", v1::GetStatusRequest(), &status, absl::Seconds(2));
    missing = called.ToString();
    if (called.ok()) {
      int ready = 0;
      for (const v1::WorkerStatus& worker : status.workers()) {
        ready += worker.state() == v1::WORKER_STATE_READY ? 1 : 0;
      }
      missing = StrCat(ready, " of ", expected, " workers are ready");
      // A coordinator that has started again recovers until the worker that is away has no rank.
      const bool is_recovering = status.state() == v1::COORDINATOR_STATE_RECOVERING && is_any_away;
      if (ready == expected && (status.state() == v1::COORDINATOR_STATE_SERVING || is_recovering)) {
        return absl::Now() - start;
      }
    }
    for (int i = 0; i < size(); ++i) {
      if (members_[static_cast<size_t>(i)].is_away) continue;
      if (const auto end = Ended(i); end.has_value()) {
        return absl::UnavailableError(
            StrCat(NameOf(i), " ", *end, "; its log ends:\n", client::LastLines(Log(i), 15)));
      }
    }
    if (absl::Now() - start > timeout) {
      std::string text = StrCat("not ready within ", absl::FormatDuration(timeout), ": ", missing);
      for (int i = 0; i < size(); ++i) {
        StrAppend(&text, "\n--- ", NameOf(i), "\n", client::LastLines(Log(i), 8));
      }
      return absl::DeadlineExceededError(text);
    }
    absl::SleepFor(kPoll);
  }
}

int64_t Cluster::MemoryBytes(int index) const {
  const Member& member = members_[static_cast<size_t>(index)];
  if (!member.process.has_value()) return 0;
  std::ifstream file(StrCat("/proc/", member.process->id().pid, "/statm"));
  int64_t total = 0;
  int64_t resident = 0;
  file >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

std::string Cluster::Log(int index) const {
  const Member& member = members_[static_cast<size_t>(index)];
  if (!member.process.has_value()) return "";
  return client::ReadLog(member.process->log_path(), member.process->log_offset_bytes());
}

}  // namespace shardmesh::model
