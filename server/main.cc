// The program shardmesh-coordinator.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#ifdef __GLIBC__  // which the headers above define
#include <malloc.h>
#endif

#include "absl/strings/escaping.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "process/descriptor_limit.h"
#include "process/log.h"
#include "process/mutex_checks.h"
#include "process/signal.h"
#include "program/collective_choice.h"
#include "program/move_plan.h"
#include "rpc/flags.h"
#include "rpc/listener.h"
#include "rpc/live_work.h"
#include "rpc/tls/credentials.h"
#include "server/coordinator_server.h"
#include "server/state/store_repair.h"
#include "sharding/mesh.h"
#include "status/byte_text.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// Keeps the freed memory of a large tree in the process, for the next tree. If the process returned
// this memory, the system would clear each page before its next use. That takes a tenth of the time
// of a call with a large tree. At most about 64 MiB in each of 8 arenas stay.
void KeepFreedMemory() {
#ifdef __GLIBC__
  mallopt(M_ARENA_MAX, 8);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
#endif
}

Revision FirstRevisionOf(const LostRows& lost) {
  return std::max<Revision>(0, PositionOf(lost.first).revision);
}

// Prints the result of checking a data folder as text.
void Print(const StoreCheck& check, const std::string& folder, bool set_aside) {
  std::printf("%s: schema %lld, %lld records can be read, revisions %lld to %lld\n", folder.c_str(),
              static_cast<long long>(check.schema_version), static_cast<long long>(check.records),
              static_cast<long long>(check.compacted), static_cast<long long>(check.newest));
  for (const absl::Status& found : {check.log, check.pages, check.bounds}) {
    if (!found.ok()) std::printf("damaged: %s\n", std::string(found.message()).c_str());
  }
  for (const UnreadableRecord& record : check.unreadable) {
    std::printf("unreadable: \"%s\" of revision %lld: %s\n", absl::CEscape(record.key).c_str(),
                static_cast<long long>(PositionOf(record.row_id).revision), record.why.c_str());
    if (record.key.starts_with("manifest/")) {
      std::printf(
          "  it has the names of arrays that were loaded together: without it those names are "
          "lost; a snapshot may have them\n");
    }
  }
  for (const LostRows& lost : check.lost) {
    std::printf(
        "lost: all records between revisions %lld and %s: %s\n",
        static_cast<long long>(FirstRevisionOf(lost)),
        lost.last == kLastRow ? "the newest" : StrCat(PositionOf(lost.last).revision).c_str(),
        lost.why.c_str());
  }
  for (const FormerRecord& former : check.former) {
    const std::string version = former.version == 0 ? "" : StrCat("version ", former.version, " ");
    std::printf(
        "perhaps out of date: \"%s\", %sof revision %lld: a newer record of it may be among the "
        "lost ones\n",
        absl::CEscape(former.key).c_str(), version.c_str(),
        static_cast<long long>(former.revision));
  }
  if (set_aside && !check.replaced.empty() && !check.former.empty()) {
    std::printf(
        "each of these definitions has now a version above %lld: check it, and update it if "
        "needed\n",
        static_cast<long long>(kSkippedVersions));
  }
  for (const LostRanks& lost : check.lost_ranks) {
    std::printf(
        "the workers of the %lld ranks of mesh \"%s\" are not known any more, and %lld "
        "arrays lie on it%s\n",
        static_cast<long long>(lost.mesh.size()), absl::CEscape(lost.mesh_id).c_str(),
        static_cast<long long>(lost.arrays),
        set_aside ? ": the first workers that attach get the ranks"
                  : "; --set-aside needs --ranks=MESH=WORKER,...");
  }
  if (check.lacks_cluster) {
    std::printf(
        "the record of its cluster is gone: no coordinator starts with this state; --set-aside "
        "--cluster-of=SNAPSHOT takes the record from a snapshot\n");
  }
  if (!check.taken_cluster_id.empty()) {
    std::printf("the state is of cluster %s now, as the snapshot says\n",
                check.taken_cluster_id.c_str());
  }
  if (check.is_empty()) {
    std::printf(
        "nothing was ever written into it: a coordinator makes a new cluster of it; if one had its "
        "state here, restore a snapshot first\n");
  } else if (check.is_sound()) {
    std::printf(check.lacks_cluster ? "all else is as it was written\n"
                                    : "all of it is as it was written\n");
  } else if (set_aside) {
    std::printf("set aside%s%s; %s\n",
                check.replaced.empty() ? "" : "; the damaged database is now ",
                check.replaced.c_str(),
                check.lacks_cluster ? "a coordinator starts when the record of its cluster is back"
                                    : "the folder can be opened without it");
  } else if (check.log.ok() && check.pages.ok() && check.bounds.ok()) {
    std::printf("the coordinator leaves out unreadable records; --set-aside moves them away\n");
  } else {
    std::printf(
        "no coordinator starts with this state; --set-aside makes a new state of all that can be "
        "read, and keeps the old one\n");
  }
}

// Prints the result of checking a data folder as JSON.
void PrintJson(const StoreCheck& check, const std::string& folder, bool set_aside) {
  using Json = nlohmann::ordered_json;
  Json damaged = Json::array();
  for (const absl::Status& found : {check.log, check.pages, check.bounds}) {
    if (!found.ok()) damaged.push_back(std::string(found.message()));
  }
  Json unreadable = Json::array();
  for (const UnreadableRecord& record : check.unreadable) {
    unreadable.push_back({{"key", absl::CEscape(record.key)},
                          {"revision", PositionOf(record.row_id).revision},
                          {"why", record.why}});
  }
  Json lost = Json::array();
  for (const LostRows& rows : check.lost) {
    const bool is_open = rows.last == kLastRow;
    lost.push_back({{"first_revision", FirstRevisionOf(rows)},
                    {"last_revision", is_open ? Json() : Json(PositionOf(rows.last).revision)},
                    {"why", rows.why}});
  }
  Json former = Json::array();
  for (const FormerRecord& record : check.former) {
    former.push_back({{"key", absl::CEscape(record.key)},
                      {"revision", record.revision},
                      {"version", record.version == 0 ? Json() : Json(record.version)}});
  }
  Json lost_ranks = Json::array();
  for (const LostRanks& ranks : check.lost_ranks) {
    lost_ranks.push_back({{"mesh", absl::CEscape(ranks.mesh_id)},
                          {"ranks", ranks.mesh.size()},
                          {"arrays", ranks.arrays}});
  }
  const Json document = {{"folder", folder},
                         {"sound", check.is_sound()},
                         {"empty", check.is_empty()},
                         {"schema_version", check.schema_version},
                         {"records", check.records},
                         {"compacted_revision", check.compacted},
                         {"newest_revision", check.newest},
                         {"damaged", std::move(damaged)},
                         {"unreadable", std::move(unreadable)},
                         {"lost", std::move(lost)},
                         {"perhaps_out_of_date", std::move(former)},
                         {"lost_ranks", std::move(lost_ranks)},
                         {"lacks_cluster", check.lacks_cluster},
                         {"taken_cluster_id", check.taken_cluster_id},
                         {"set_aside", set_aside && !check.is_empty() &&
                                           !(check.is_sound() && check.taken_cluster_id.empty())},
                         {"replaced", check.replaced}};
  std::printf("%s\n", document.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
}

// Prints the error in the form of the command line `shardmesh`, which runs this program and passes
// its own name as `program`.
void PrintError(const absl::Status& error, std::string_view program, bool json) {
  using Json = nlohmann::ordered_json;
  const std::string code = absl::StatusCodeToString(error.code());
  const std::string reason(ReasonName(ReasonOf(error)));
  const bool has_reason = ReasonOf(error) != Reason::kUnspecified;
  const std::string message(error.message());
  if (!json) {
    std::fprintf(stderr, "%s: %s (%s)\n", std::string(program).c_str(), message.c_str(),
                 (has_reason ? reason : code).c_str());
    return;
  }
  const Json document = {{"error",
                          {{"code", code},
                           {"reason", has_reason ? Json(reason) : Json(nullptr)},
                           {"message", message},
                           {"retryable", false}}}};
  std::fprintf(stderr, "%s\n",
               document.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
}

// Parses the value of --ranks: MESH=WORKER,WORKER...;MESH=...
absl::StatusOr<GivenRanks> ParseRanks(const std::string& text) {
  GivenRanks ranks;
  for (const absl::string_view mesh : absl::StrSplit(text, ';', absl::SkipEmpty())) {
    const size_t sign = mesh.find('=');
    if (sign == 0 || sign == absl::string_view::npos) {
      return InvalidArgument(Reason::kBadField,
                             StrCat("--ranks ", text, " is no MESH=WORKER,WORKER...;MESH=..."),
                             {{fact::kField, "--ranks"}, {fact::kValue, text}});
    }
    const std::vector<std::string> workers =
        absl::StrSplit(mesh.substr(sign + 1), ',', absl::SkipEmpty());
    ranks[std::string(mesh.substr(0, sign))] = workers;
  }
  return ranks;
}

// Examines a data folder, and prints the findings.
int Check(const std::string& folder, bool set_aside, const std::string& cluster_of,
          const std::string& ranks, bool json, std::string_view program) {
  const absl::StatusOr<GivenRanks> given = ParseRanks(ranks);
  const absl::StatusOr<StoreCheck> check =
      given.ok() ? CheckDataFolder(folder, set_aside, cluster_of, *given) : given.status();
  if (!check.ok()) {
    PrintError(check.status(), program, json);
    return rpc::FlagSet::kFailed;
  }
  json ? PrintJson(*check, folder, set_aside) : Print(*check, folder, set_aside);
  const bool opens = check->is_sound() || (set_aside && !check->is_empty());
  return opens && !check->lacks_cluster ? rpc::FlagSet::kDone : rpc::FlagSet::kFailed;
}

// Restores a snapshot, and logs how the restored state differs from the previous one.
absl::Status Restore(const std::string& folder, const std::string& file) {
  const absl::StatusOr<Restored> restored = RestoreSnapshot(folder, file);
  if (!restored.ok()) {
    return restored.status();
  }
  if (restored->was_done_before) {
    LogWarning(
        "this snapshot was restored before and is not restored again; to do so, put a file "
        "`restore-again` into the data folder",
        {{"file", file}});
    return absl::OkStatus();
  }
  LogWarning("a snapshot was restored", {{"file", file},
                                         {"term", restored->term},
                                         {"revision", restored->revision},
                                         {"replaced", restored->replaced},
                                         {"lost", restored->lost_count},
                                         {"back", restored->back_count},
                                         {"changed", restored->changed_count}});
  if (!restored->unread.ok()) {
    LogWarning("the previous state could not be read, so the differences are not known",
               {{"error", restored->unread}});
  }
  for (const auto& [what, keys] :
       {std::pair("lost", &restored->lost), std::pair("back", &restored->back),
        std::pair("changed", &restored->changed)}) {
    for (const std::string& key : *keys) {
      LogWarning("differs from the state before", {{"how", what}, {"key", key}});
    }
  }
  return absl::OkStatus();
}

// The flags for the check of a data folder.
struct CheckFlags {
  const std::string& folder;
  bool set_aside;
  const std::string& cluster_of;
  const std::string& ranks;
  bool json;
};

// Checks flags against each other. INVALID_ARGUMENT: flags, each of which is valid, contradict each
// other or lack a flag that they need.
absl::Status CheckTogether(const CheckFlags& check, const std::string& restore,
                           const CoordinatorOptions& options) {
  if (!restore.empty() && options.data_dir.empty()) {
    return absl::InvalidArgumentError("--restore needs --data-dir, where the state goes");
  }
  // These flags need --check. Without it, the program would start a coordinator and ignore them.
  if (check.folder.empty() &&
      (check.set_aside || check.json || !check.cluster_of.empty() || !check.ranks.empty())) {
    return absl::InvalidArgumentError(
        StrCat(check.set_aside             ? "--set-aside"
               : check.json                ? "--check-json"
               : !check.cluster_of.empty() ? "--cluster-of"
                                           : "--ranks",
               " is for a check of a data folder; give --check FOLDER too"));
  }
  // With a shorter limit, the coordinator would repeatedly lose healthy workers: the limit would
  // end before their next heartbeat is due.
  const MembershipOptions& membership = options.membership;
  if (membership.lost_after < 2 * membership.heartbeat_interval) {
    return absl::InvalidArgumentError(
        StrCat("--lost-after ", absl::FormatDuration(membership.lost_after),
               " is less than two of --heartbeat-interval ",
               absl::FormatDuration(membership.heartbeat_interval),
               ", so workers that are well would be lost; give --lost-after ",
               absl::FormatDuration(2 * membership.heartbeat_interval),
               " or more, or a shorter --heartbeat-interval"));
  }
  // Half of the memory is for inventories, and one inventory takes 9 MiB.
  constexpr int64_t kMinRpcMemoryBytes = int64_t{18} << 20;
  if (options.limits.rpc_memory_bytes < kMinRpcMemoryBytes) {
    const auto [have, need] = FormatBytesApart(options.limits.rpc_memory_bytes, kMinRpcMemoryBytes);
    return absl::InvalidArgumentError(StrCat("--rpc-memory is ", have,
                                             ", less than one worker takes when it attaches; give ",
                                             need, " or more"));
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  KeepFreedMemory();
  KeepStandardDescriptors();
  rpc::RaiseDescriptorLimit();
  SkipMutexChecks();
  IgnoreFileSizeSignal();
  StopSignal stop;
  CoordinatorOptions options;
  options.lock_timeout = absl::Seconds(10);
  rpc::TlsFiles tls;
  LogOptions log;
  absl::Duration grace = absl::Seconds(10);
  rpc::FlagSet flags("shardmesh-coordinator",
                     "Answers which device holds which piece of which tensor, and directs the "
                     "workers that hold them.");
  flags.AddAddress("listen", "where to serve; port 0 takes a free one", &options.listen_address);
  flags.AddHostPort("http-listen", "where to serve metrics; empty for nowhere",
                    &options.http_address, /*may_be_empty=*/true);
  flags.AddText("data-dir", "FOLDER", "where to keep state, by default only in memory",
                &options.data_dir);
  std::string restore;
  std::string check;
  bool set_aside = false;
  std::string cluster_of;
  std::string ranks;
  bool check_json = false;
  flags.AddText("restore", "FILE",
                "snapshot to put into --data-dir before serving, unless it was the last one "
                "restored; the previous state is kept in the folder",
                &restore);
  flags.AddText("check", "FOLDER",
                "look for unreadable records in the data folder of a stopped coordinator, and exit",
                &check);
  flags.AddSwitch(
      "set-aside",
      "with --check: move unreadable records away, so that the folder opens without them",
      &set_aside);
  flags.AddText("cluster-of", "FILE",
                "with --set-aside: the snapshot that names the cluster of the state, if the state "
                "has lost its own record of it",
                &cluster_of);
  flags.AddText("ranks", "MESH=WORKER,...;...",
                "with --set-aside: the workers, by rank, of meshes whose record of their workers "
                "is lost; MESH= gives the ranks to the first workers that attach",
                &ranks);
  flags.AddSwitch("check-json", "with --check: print the findings as JSON", &check_json);
  flags.AddBytes("store-quota", "how large the state in --data-dir may grow; at least 1MiB",
                 &options.store_quota_bytes, kMinStoreQuotaBytes);
  flags.AddBytes("history-bytes",
                 "how many bytes of overwritten or deleted state are kept for watches; kept "
                 "versions of definitions do not count",
                 &options.history_bytes);
  flags.AddDuration("history-time", "how long at most overwritten or deleted state is kept",
                    &options.history_time);
  flags.AddDuration("lock-timeout",
                    "how long to wait while another coordinator holds the data folder",
                    &options.lock_timeout);
  flags.AddParsed("mesh", "AXIS=SIZE,...", "defines the mesh \"default\" if there is none yet",
                  [&options](std::string_view value) -> absl::Status {
                    if (value.empty()) {
                      return absl::InvalidArgumentError(
                          "is empty; give axes such as fsdp=2,tp=2, or leave the flag out");
                    }
                    SHARDMESH_ASSIGN_OR_RETURN(options.mesh, Mesh::Parse(value));
                    return absl::OkStatus();
                  });
  flags.AddInt(
      "min-sharding-size",
      "least number of elements of a tensor that is sharded, for rules whose min_size is null", 0,
      std::numeric_limits<int64_t>::max(), &options.min_sharding_size);
  flags.AddParsed("collective-algorithms", "KIND=ALGORITHM,...",
                  "algorithms for calls that name none, such as all-reduce=halving; kinds not "
                  "listed here use the algorithm that is predicted to be fastest",
                  [&options](std::string_view value) -> absl::Status {
                    if (value.empty()) {
                      return absl::InvalidArgumentError(
                          "is empty; give some such as all-reduce=halving, or leave the flag out");
                    }
                    SHARDMESH_ASSIGN_OR_RETURN(options.preferred_algorithms,
                                               ParsePreferredAlgorithms(value));
                    return absl::OkStatus();
                  });
  flags.AddDuration("heartbeat-interval", "how often workers send a heartbeat",
                    &options.membership.heartbeat_interval);
  flags.AddDuration("lost-after", "how long a worker may be silent until it counts as lost",
                    &options.membership.lost_after);
  flags.AddDuration("return-grace",
                    "how long a worker that was lost, or has not attached since the start, is "
                    "expected back; calls that need it fail with a retry delay until then",
                    &options.return_grace);
  flags.AddDuration("replace-lost-after",
                    "how long a worker may be lost until a ready worker that serves no rank gets "
                    "its ranks; at least --return-grace for a worker that has a data folder or has "
                    "not attached since the start; inf: never",
                    &options.replace_lost_after);
  flags.AddSwitch("no-repair", "do not read lost tiles again from other workers and files",
                  &options.no_repair);
  flags.AddDuration(
      "unnamed-grace",
      "how long, after a start, arrays without names are kept for the clients that held them",
      &options.unnamed_grace);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  flags.AddInt("max-sessions", "sessions that may be open", 1, kMost,
               &options.sessions.max_sessions);
  flags.AddInt("max-sessions-per-caller",
               "sessions of one caller, identified by its certificate, or else by its host", 1,
               kMost, &options.sessions.max_sessions_per_caller);
  flags.AddInt("max-work-per-session", "transfers and steps that a session may have under way", 1,
               kMost, &options.sessions.max_work_per_session);
  flags.AddInt("max-put-streams-per-caller", "BeginPut calls that a caller may have open", 1, kMost,
               &options.max_put_streams_per_caller);
  flags.AddInt("step-answer-bytes", "bytes of answers to steps that are kept for repeated requests",
               0, kMost, &options.steps.max_bytes);
  flags.AddInt("step-answer-bytes-per-caller", "the same for one caller", 0, kMost,
               &options.steps.max_bytes_per_caller);
  flags.AddInt("request-answer-bytes",
               "bytes of answers to other requests that are kept, in the store too", 0, kMost,
               &options.requests.max_bytes);
  flags.AddInt("request-answer-bytes-per-caller", "the same for one caller", 0, kMost,
               &options.requests.max_bytes_per_caller);
  flags.AddInt("plan-bytes", "bytes of plans that are remembered", 0, kMost,
               &options.plans.max_bytes);
  flags.AddBytes("move-memory",
                 "memory that the arrays of a reshard or a resize may take on a worker while they "
                 "move, beyond their old and new tiles",
                 &options.move_memory_bytes, kLeastMoveMemoryBytes, kMostMoveMemoryBytes);
  flags.AddDuration("grace", "how long running calls may go on when stopping", &grace);
  CoordinatorLimits& limits = options.limits;
  flags.AddInt("max-meshes", "meshes in the catalog", 1, kMost, &limits.max_meshes);
  flags.AddInt("max-definitions", "definitions of all kinds in the catalog", 1, kMost,
               &limits.max_definitions);
  flags.AddInt("max-names", "names of arrays", 1, kMost, &limits.max_names);
  flags.AddInt("max-watches", "watches of the catalog, and as many of the cluster, at a time", 1,
               kMost, &limits.max_watches);
  flags.AddInt("max-watches-per-caller", "the same for one caller", 1, kMost,
               &limits.max_watches_per_caller);
  // This bound also limits by how many steps one worker can be ahead of a slower worker.
  flags.AddInt("max-live-work", "steps and transfers that have not ended", 1, rpc::kMaxLiveWork,
               &limits.max_live_work);
  flags.AddInt("max-connections", "connections; 0: as many as there are file descriptors for", 0,
               kMost, &limits.max_connections.all);
  flags.AddInt("max-connections-per-host", "the same for one host; 0: no separate limit", 0, kMost,
               &limits.max_connections.per_host);
  flags.AddInt("max-connection-calls", "calls of one connection at a time; more wait at the client",
               1, std::numeric_limits<int32_t>::max(), &limits.max_connection_calls);
  flags.AddBytes("rpc-memory",
                 "memory that running calls may take before connections are refused and streams "
                 "are cancelled, workers' too; at least 512KiB a worker",
                 &limits.rpc_memory_bytes);
  flags.AddInt("max-inventory-tiles", "tiles that a worker may bring when it attaches", 1, kMost,
               &limits.max_inventory_tiles);
  flags.AddDuration("hello-timeout", "how long a worker may take to send its hello",
                    &limits.hello_timeout);
  flags.AddDuration("inventory-timeout", "how long a worker may take to send its whole inventory",
                    &limits.inventory_timeout);
  flags.AddDuration("forget-lost-after", "how long a lost worker that serves no rank is remembered",
                    &options.membership.forget_after);
  flags.AddTls(&tls, &options.insecure);
  flags.AddSwitch("http-plaintext",
                  "serve metrics in plaintext, also to other hosts and also with TLS",
                  &options.http_plaintext);
  flags.AddSwitch("insecure", "allow plaintext connections from other hosts; not with TLS",
                  &options.insecure);
  flags.AddLog(&log);
  flags.AddFailpoints();
  flags.AddCheck([&] {
    return CheckTogether({check, set_aside, cluster_of, ranks, check_json}, restore, options);
  });
  if (const std::optional<int> code = flags.ParseMain(argc, argv); code.has_value()) {
    return *code;
  }
  ConfigureLog(log);
  if (!check.empty()) {
    const std::string_view program = argv[0];
    return Check(check, set_aside, cluster_of, ranks, check_json,
                 program.substr(program.rfind('/') + 1));
  }
  if (const absl::Status enough = CheckDescriptorLimit(); !enough.ok()) {
    LogError("cannot start", {{"error", enough}});
    return rpc::FlagSet::kFailed;
  }
  absl::StatusOr<rpc::Credentials> credentials = rpc::Credentials::FromFiles(tls);
  if (!credentials.ok()) {
    LogError("cannot start", {{"error", credentials.status()}});
    return rpc::FlagSet::kFailed;
  }
  options.credentials = *std::move(credentials);
  if (!restore.empty()) {
    if (const absl::Status restored = Restore(options.data_dir, restore); !restored.ok()) {
      LogError("cannot restore", {{"file", restore}, {"error", restored}});
      return rpc::FlagSet::kFailed;
    }
  }
  const auto server = CoordinatorServer::Start(std::move(options));
  if (!server.ok()) {
    LogError("cannot start", {{"error", server.status()}});
    return rpc::FlagSet::kFailed;
  }
  std::printf("shardmesh-coordinator listening on %s\n", (*server)->address().c_str());
  std::fflush(stdout);
  const int signal = stop.Wait();
  LogInfo("stopping", {{"signal", signal}, {"grace", grace}});
  (*server)->Drain(absl::Now() + grace);
  return rpc::FlagSet::kDone;
}

}  // namespace
}  // namespace shardmesh::server

int main(int argc, char** argv) { return shardmesh::server::Main(argc, argv); }
