// The commands admin snapshot, check, sessions and watch, and admin quarantine list, restore and
// drop.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iostream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/clock.h"
#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/grammar.h"
#include "client/cli/interruption.h"
#include "client/cli/local/local_cluster.h"
#include "client/cli/shared_options.h"
#include "client/cli/table.h"
#include "client/cli/watch.h"
#include "client/remote/snapshot_client.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

Json ArrayJson(const QuarantinedArray& array) {
  return {{"worker", array.identity},
          {"array_id", array.array_id},
          {"mesh", array.mesh_id},
          {"shape", array.shape},
          {"dtype", array.dtype},
          {"size_bytes", array.size_bytes},
          {"on_disk", array.on_disk},
          {"committed", array.committed},
          {"array_lives", array.array_lives},
          {"quarantine_time", Timestamp(array.since)},
          {"reason", array.reason}};
}

Json ArraysJson(const std::vector<QuarantinedArray>& arrays) {
  Json json = Json::array();
  for (const QuarantinedArray& array : arrays) json.push_back(ArrayJson(array));
  return json;
}

Json UnnamedJson(const UnnamedArray& array) {
  return {{"array_id", array.array_id},
          {"mesh", array.mesh_id},
          {"shape", array.shape},
          {"dtype", array.dtype},
          {"size_bytes", array.size_bytes},
          {"on_disk", array.on_disk},
          {"missing_ranks", array.missing_ranks},
          {"held_for_s", array.held_for == absl::InfiniteDuration()
                             ? Json(nullptr)
                             : Json(absl::ToDoubleSeconds(array.held_for))}};
}

Json UnreachedJson(const std::vector<UnreachedWorker>& workers) {
  Json json = Json::array();
  for (const UnreachedWorker& worker : workers) {
    json.push_back({{"worker", worker.identity},
                    {"reason", worker.reason},
                    {"expected_back", worker.expected_back}});
  }
  return json;
}

// Prints the workers whose quarantine could not be reached. `what` says what happened to the tiles
// of these workers.
void PrintUnreached(const std::vector<UnreachedWorker>& workers, std::string_view what) {
  for (const UnreachedWorker& worker : workers) {
    std::cout << "Not reached: " << worker.identity << ", " << worker.reason
              << (worker.expected_back ? ", expected back" : "") << "; " << what << "\n";
  }
}

void PrintUnnamed(const std::vector<UnnamedArray>& arrays) {
  std::cout
      << FormatCount(static_cast<int64_t>(arrays.size()), "array")
      << " without a name, which the coordinator found after its start. `shardmesh admin\n"
         "quarantine restore ARRAY --as NAME` gives one a name; others are released or go into "
         "quarantine\nwhen they are held no longer.\n\n";
  Table table({{"array"},
               {"what"},
               {"size", Table::Align::kRight},
               {"where"},
               {"until"},
               {"ranks without a tile"}});
  for (const UnnamedArray& array : arrays) {
    table.AddRow({array.array_id, StrCat(array.dtype, " ", FormatShape(array.shape)),
                  FormatBytes(array.size_bytes), array.on_disk ? "disk" : "memory",
                  FormatHeld(array.held_for),
                  array.missing_ranks.empty() ? "-" : StrJoin(array.missing_ranks, ", ")});
  }
  table.Print();
}

void PrintArrays(const std::vector<QuarantinedArray>& arrays) {
  Table table({{"worker"},
               {"array"},
               {"what"},
               {"size", Table::Align::kRight},
               {"where"},
               {"since", Table::Align::kRight},
               {"reason"}});
  for (const QuarantinedArray& array : arrays) {
    table.AddRow({array.identity, array.array_id,
                  StrCat(array.dtype, " ", FormatShape(array.shape)), FormatBytes(array.size_bytes),
                  array.on_disk ? "disk" : "memory",
                  StrCat(FormatTime(absl::Now() - array.since), " ago"), array.reason});
  }
  table.Print();
}

absl::Status RunList(const Invocation& invocation, const std::string& identity) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  SHARDMESH_ASSIGN_OR_RETURN(const QuarantineList list, client->cluster().ListQuarantine(identity));
  if (invocation.json) {
    Json unnamed = Json::array();
    for (const UnnamedArray& array : list.unnamed) unnamed.push_back(UnnamedJson(array));
    invocation.Print({{"arrays", ArraysJson(list.arrays)},
                      {"unnamed", std::move(unnamed)},
                      {"unreached", UnreachedJson(list.unreached)}});
    return absl::OkStatus();
  }
  if (invocation.names()) {
    // The list has an array once for each worker that has a tile of the array: print each array's
    // id once.
    std::set<std::string> names;
    for (const UnnamedArray& array : list.unnamed) names.insert(array.array_id);
    for (const QuarantinedArray& array : list.arrays) names.insert(array.array_id);
    PrintNames({names.begin(), names.end()});
    return absl::OkStatus();
  }
  if (!list.unnamed.empty()) {
    PrintUnnamed(list.unnamed);
    std::cout << "\n";
  }
  if (!list.arrays.empty()) {
    PrintArrays(list.arrays);
  } else {
    std::cout << (list.unreached.empty() ? "Nothing is in quarantine\n"
                                         : "Nothing is in quarantine of the attached workers\n");
  }
  PrintUnreached(list.unreached, "its quarantine is not listed");
  return absl::OkStatus();
}

// Removes the @ from array ids in the notation @ID. Ids without @, which `admin quarantine list`
// prints, stay unchanged.
std::vector<std::string> IdsOf(std::vector<std::string> arrays) {
  for (std::string& array : arrays) {
    if (IsArrayId(array)) array.erase(0, 1);
  }
  return arrays;
}

// Restores the arrays one after the other. If an array cannot be restored, goes on with the next
// one. Once the coordinator is unreachable, makes no calls for the remaining arrays.
absl::Status RunRestore(const Invocation& invocation, const std::vector<std::string>& array_ids,
                        const std::string& name, bool validate_only) {
  if (array_ids.size() > 1 && !name.empty()) {
    return WrongUse(
        StrCat("--as is the name of one array, and ", array_ids.size(),
               " are given; leave it out for restored/ARRAY, or restore one at a time"));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  Json restored = Json::array();
  Json failed = Json::array();
  absl::Status first_failure;
  // Set once the coordinator is unreachable: the remaining arrays are not tried.
  absl::Status unreachable;
  for (const std::string& array_id : array_ids) {
    const absl::StatusOr<RestoredArray> array =
        unreachable.ok() ? client->cluster().RestoreQuarantined(array_id, name, validate_only)
                         : unreachable;
    if (!array.ok()) {
      failed.push_back({{"array_id", array_id},
                        {"error", ErrorJson(array.status(), ToStd(array.status().message()))}});
      if (array_ids.size() > 1 && !invocation.json) {
        std::cout << "Not restored: array " << array_id << ": " << array.status().message() << "\n";
      }
      first_failure.Update(array.status());
      if (ExitCodeOf(array.status()) == kExitUnreachable) unreachable = array.status();
      continue;
    }
    restored.push_back(
        {{"array_id", array_id}, {"name", array->name}, {"workers", array->identities}});
    if (invocation.json) continue;
    std::cout << (validate_only ? "Would restore array " : "Restored array ") << array_id
              << (array->name.empty() ? "" : StrCat(" as \"", array->name, "\"")) << " on "
              << StrJoin(array->identities, ", ")
              << (array->name.empty() && !name.empty()
                      ? "; it has a name already, so --as was not used\n"
                      : "\n");
  }
  if (invocation.json) {
    invocation.Print(
        MarkIfValidated({{"restored", restored}, {"failed", std::move(failed)}}, validate_only));
  }
  if (first_failure.ok() || array_ids.size() == 1) return first_failure;
  const size_t left = array_ids.size() - restored.size();
  return WithContext(first_failure, StrCat(left, " of ", array_ids.size(),
                                           " arrays were not restored; the first"));
}

absl::Status RunDrop(const Invocation& invocation, const std::vector<std::string>& array_ids,
                     bool even_partly, bool validate_only) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  SHARDMESH_ASSIGN_OR_RETURN(
      const QuarantineDrop dropped,
      client->cluster().DropQuarantined(array_ids, even_partly, validate_only));
  // The answer lists an array once for each worker that had a tile of the array.
  std::set<std::string> there;
  int64_t size_bytes = 0;
  for (const QuarantinedArray& array : dropped.arrays) {
    there.insert(array.array_id);
    size_bytes += array.size_bytes;
  }
  std::vector<std::string> absent;
  std::copy_if(array_ids.begin(), array_ids.end(), std::back_inserter(absent),
               [&](const std::string& id) { return there.count(id) == 0; });
  if (invocation.json) {
    invocation.Print(MarkIfValidated({{"dropped", ArraysJson(dropped.arrays)},
                                      {"absent", absent},
                                      {"unreached", UnreachedJson(dropped.unreached)}},
                                     validate_only));
    return absl::OkStatus();
  }
  std::cout << (validate_only ? "Would drop " : "Dropped ") << FormatBytes(size_bytes) << " of "
            << FormatCount(static_cast<int64_t>(there.size()), "array") << " for good\n";
  if (!absent.empty()) {
    std::cout << "Not in quarantine: " << StrJoin(absent, ", ") << "\n";
  }
  PrintUnreached(dropped.unreached, validate_only ? "its parts of these arrays would stay there"
                                                  : "its parts of these arrays are still there");
  return absl::OkStatus();
}

Json SessionJson(const OpenSessionInfo& session) {
  return {{"number", session.number},
          {"id_prefix", session.id_prefix},
          {"caller", session.caller},
          {"client_name", session.client_name},
          {"open_time", Timestamp(session.opened)},
          {"renew_time", Timestamp(session.renewed)},
          {"expire_time", Timestamp(session.expires)},
          {"pinned_arrays", session.pinned_arrays},
          {"transfers", session.transfers},
          {"steps", session.steps}};
}

// Returns the time since `time`. The clocks of two hosts may differ: a time in the future counts as
// now.
std::string Ago(absl::Time time) {
  return StrCat(FormatTime(std::max(absl::Now() - time, absl::ZeroDuration())), " ago");
}

absl::Status RunSessions(const Invocation& invocation) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<OpenSessionInfo> sessions,
                             client->cluster().ListSessions());
  if (invocation.json) {
    Json json = Json::array();
    for (const OpenSessionInfo& session : sessions) json.push_back(SessionJson(session));
    invocation.Print({{"sessions", std::move(json)}});
    return absl::OkStatus();
  }
  if (sessions.empty()) {
    std::cout << "No session is open\n";
    return absl::OkStatus();
  }
  Table table({{"number", Table::Align::kRight},
               {"id"},
               {"caller"},
               {"client"},
               {"opened", Table::Align::kRight},
               {"renewed", Table::Align::kRight},
               {"ends in", Table::Align::kRight},
               {"arrays", Table::Align::kRight},
               {"transfers", Table::Align::kRight},
               {"steps", Table::Align::kRight}});
  for (const OpenSessionInfo& session : sessions) {
    table.AddRow({StrCat(session.number), StrCat(session.id_prefix, "..."), session.caller,
                  session.client_name.empty() ? "-" : session.client_name, Ago(session.opened),
                  Ago(session.renewed),
                  FormatTime(std::max(session.expires - absl::Now(), absl::ZeroDuration())),
                  StrCat(session.pinned_arrays), StrCat(session.transfers), StrCat(session.steps)});
  }
  table.Print();
  return absl::OkStatus();
}
Json EventJson(const WatchStarted& started) {
  return {{"event", "started"},
          {"term", started.term},
          {"epoch", started.epoch},
          {"revision", started.revision}};
}
Json EventJson(const WorkerChange& change) {
  return {{"event", StrCat("worker ", WorkerChangeName(change.kind))},
          {"worker", change.identity},
          {"incarnation", StrCat(change.incarnation)},
          {"epoch", change.epoch},
          {"reason", change.reason}};
}
Json EventJson(const ArrayChange& change) {
  return {{"event", change.is_deleted ? "array deleted" : "array created"},
          {"array_id", change.array_id},
          {"mesh", change.mesh_id}};
}
Json EventJson(const NameChange& change) {
  return {{"event", change.is_deleted ? "name deleted" : "name set"},
          {"name", change.name},
          {"array_id", change.array_id},
          {"version", change.version}};
}

std::string EventText(const WatchStarted& started) {
  return StrCat("watching since epoch ", started.epoch, " and revision ", started.revision);
}
std::string EventText(const WorkerChange& change) {
  return StrCat("worker ", change.identity, " ", WorkerChangeName(change.kind),
                change.reason.empty() ? "" : StrCat(": ", change.reason));
}
std::string EventText(const ArrayChange& change) {
  return StrCat("array ", change.array_id, change.is_deleted ? " deleted" : " created", " on mesh ",
                change.mesh_id);
}
std::string EventText(const NameChange& change) {
  return change.is_deleted ? StrCat("name ", change.name, " deleted")
                           : StrCat("name ", change.name, " set to array ", change.array_id,
                                    ", version ", change.version);
}

// Prints the change as one line of text or JSON; with --output yaml, as a YAML document.
void PrintChange(const ClusterChange& change, const Invocation& invocation) {
  const bool has_time = change.time != absl::InfinitePast();
  if (invocation.json) {
    Json json = std::visit([](const auto& event) { return EventJson(event); }, change.event);
    if (has_time) json["time"] = Timestamp(change.time);
    std::cout << (invocation.output == OutputForm::kYaml ? "---\n" : "")
              << TreeLine(json, invocation.output);
  } else {
    std::cout << (has_time ? StrCat(Timestamp(change.time), " ") : std::string())
              << EscapeForTerminal(
                     std::visit([](const auto& event) { return EventText(event); }, change.event))
              << "\n";
  }
  std::cout.flush();
}

absl::StatusOr<std::vector<ClusterSubject>> SubjectsOf(const std::vector<std::string>& names) {
  std::vector<ClusterSubject> subjects;
  for (const std::string& name : names) {
    if (name == "workers") {
      subjects.push_back(ClusterSubject::kWorkers);
    } else if (name == "arrays") {
      subjects.push_back(ClusterSubject::kArrays);
    } else if (name == "names") {
      subjects.push_back(ClusterSubject::kNames);
    } else {
      return WrongUse(
          StrCat("--of: \"", name, "\" is nothing to watch; there are workers, arrays and names"));
    }
  }
  return subjects;
}

absl::Status RunWatch(const Invocation& invocation, const std::vector<std::string>& names) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<ClusterSubject> subjects, SubjectsOf(names));
  return RunUntilStopped([&](Cancellation* stopped) -> absl::Status {
    SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
    bool has_begun = false;
    const absl::Status watched =
        client->cluster().WatchChanges(subjects,
                                       [&](const ClusterChange& change) {
                                         has_begun = true;
                                         PrintChange(change, invocation);
                                         // A result of false ends the watch; the command line
                                         // reports why the output failed.
                                         return std::cout.good();
                                       },
                                       {.timeout = invocation.deadline, .cancellation = stopped});
    // A watch that ends at --deadline has succeeded, like a watch that ends by Ctrl-C.
    const bool is_over = has_begun && invocation.deadline.has_value() &&
                         absl::IsDeadlineExceeded(watched) &&
                         ReasonOf(watched) == Reason::kUnspecified;
    if (stopped->is_cancelled() || is_over) return absl::OkStatus();
    if (has_begun && absl::IsUnavailable(watched) && ReasonOf(watched) == Reason::kUnspecified) {
      return absl::UnavailableError(
          StrCat("the watch has ended, because the connection broke (", ToStd(watched.message()),
                 "); later changes are not shown: watch again when `shardmesh status` answers"));
    }
    return watched;
  });
}

// Time limit of a snapshot if --deadline is not given. This time suffices for the largest state
// over a slow network.
constexpr absl::Duration kSnapshotTime = absl::Minutes(10);

absl::Status RunSnapshot(const Invocation& invocation, const std::string& path) {
  if (path.empty()) return WrongUse("FILE is empty; name the file that gets the snapshot");
  const auto interruption = GuardOutputFile(path, invocation.output);
  if (invocation.address.empty()) return invocation.Connect().status();
  SHARDMESH_ASSIGN_OR_RETURN(const rpc::Credentials credentials, invocation.Credentials());
  const absl::StatusOr<SavedSnapshot> saved =
      SaveSnapshot(invocation.address, credentials, path, invocation.DeadlineOr(kSnapshotTime));
  if (!saved.ok()) return invocation.ExplainUnanswered(saved.status());
  if (invocation.json) {
    invocation.Print(
        {{"file", path}, {"revision", saved->revision}, {"size_bytes", saved->size_bytes}});
  } else {
    std::cout << "Saved revision " << saved->revision << " to " << path << ", "
              << FormatBytes(saved->size_bytes) << "\n";
  }
  return absl::OkStatus();
}

// Replaces this process by the coordinator's program (exec), which can check the folder of a
// coordinator. Returns only an error: exec failed, or the arguments are wrong.
absl::Status RunCheck(const Invocation& invocation, const std::string& folder, bool set_aside,
                      const std::string& cluster_of, const std::string& ranks) {
  // With an empty folder, the program would not check anything, but start to serve.
  if (folder.empty()) return WrongUse("FOLDER is empty; give the coordinator's --data-dir");
  SHARDMESH_ASSIGN_OR_RETURN(const std::string binaries, OwnBinaryFolder());
  const std::string program = binaries + "/shardmesh-coordinator";
  // The program's error messages begin with argv[0].
  std::vector<std::string> words = {"shardmesh", "--check=" + folder};
  if (set_aside) words.emplace_back("--set-aside");
  if (!cluster_of.empty()) words.push_back("--cluster-of=" + cluster_of);
  if (!ranks.empty()) words.push_back("--ranks=" + ranks);
  if (invocation.json) words.emplace_back("--check-json");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execv(program.c_str(), arguments.data());
  return WithContext(FileError("run", program, errno),
                     "`admin check` runs the coordinator's program");
}

}  // namespace

void AddAdminCommands(CommandLine* line) {
  CLI::App* const admin = line->AddGroup("admin", "Look after the state of a cluster");

  auto file = std::make_shared<std::string>();
  line->AddCommand(
          "snapshot",
          "Save the state of a running coordinator, for `shardmesh-coordinator --restore FILE`",
          [=](const Invocation& i) { return RunSnapshot(i, *file); }, admin)
      ->add_option("FILE", *file, "file to write; an existing file is replaced")
      ->required()
      ->check(RefuseStandardOutput);

  auto folder = std::make_shared<std::string>();
  auto set_aside = std::make_shared<bool>(false);
  auto cluster_of = std::make_shared<std::string>();
  auto ranks = std::make_shared<std::string>();
  CLI::App* const check = line->AddCommand(
      "check", "Look for unreadable records in the data folder of a stopped coordinator",
      [=](const Invocation& i) { return RunCheck(i, *folder, *set_aside, *cluster_of, *ranks); },
      admin);
  check->add_option("FOLDER", *folder, "the coordinator's --data-dir, on this host")->required();
  CLI::Option* const aside =
      check->add_flag("--set-aside", *set_aside,
                      "moves unreadable records away, so that the folder opens without them");
  check
      ->add_option("--cluster-of", *cluster_of,
                   "the snapshot that names the cluster of the state, if the state has lost its "
                   "own record of it")
      ->needs(aside);
  check
      ->add_option("--ranks", *ranks,
                   "MESH=WORKER,...;...: the workers, by rank, of meshes whose record of their "
                   "workers is lost; MESH= gives the ranks to the first workers that attach")
      ->needs(aside);

  line->CanBeWatched(line->AddCommand(
      "sessions", "List the open sessions: who holds arrays, and until when",
      [](const Invocation& i) { return RunSessions(i); }, admin));

  auto subjects = std::make_shared<std::vector<std::string>>();
  line->AddCommand(
          "watch", "Print changes of workers, arrays and names, until Ctrl-C or --deadline",
          [=](const Invocation& i) { return RunWatch(i, *subjects); }, admin)
      ->add_option("--of", *subjects, "only these, separated by commas: workers, arrays, names")
      ->delimiter(',');

  CLI::App* const quarantine = line->AddGroup(
      "quarantine",
      "Tiles that workers put aside, because the registry does not assign them to these workers",
      admin);

  auto identity = std::make_shared<std::string>();
  CLI::App* const list = line->AddCommand(
      "list", "List the tiles in quarantine, by worker, and arrays that are held without a name",
      [=](const Invocation& i) { return RunList(i, *identity); }, quarantine);
  list->add_option("--worker", *identity,
                   "only the quarantine of this worker (default: of all attached workers)");
  line->PrintsNames(list);
  line->CanBeWatched(list);

  auto restored = std::make_shared<std::vector<std::string>>();
  auto as = std::make_shared<std::string>();
  auto validates_restore = std::make_shared<bool>(false);
  CLI::App* const restore = line->AddCommand(
      "restore", "Take arrays back into use, under a name each",
      [=](const Invocation& i) { return RunRestore(i, IdsOf(*restored), *as, *validates_restore); },
      quarantine);
  restore->add_option("ARRAY", *restored, "ids of arrays")->required();
  restore->add_option("--as", *as, "the name that one array gets (default: restored/ARRAY)")
      ->check([](const std::string& name) {
        return name.empty() ? "the name is empty; leave --as out for restored/ARRAY"
                            : RefuseNameWithAt(name);
      });
  restore->add_flag("--validate-only", *validates_restore, "check everything, and restore nothing");

  auto dropped = std::make_shared<std::vector<std::string>>();
  auto even_partly = std::make_shared<bool>(false);
  auto validates_drop = std::make_shared<bool>(false);
  CLI::App* const drop = line->AddCommand(
      "drop", "Delete arrays from the quarantine, or held without a name, for good",
      [=](const Invocation& i) {
        return RunDrop(i, IdsOf(*dropped), *even_partly, *validates_drop);
      },
      quarantine);
  drop->add_option("ARRAY", *dropped, "ids of arrays")->required();
  drop->add_flag("--even-partly", *even_partly,
                 "delete the parts that can be reached, even if workers with other parts are away");
  drop->add_flag("--validate-only", *validates_drop, "check everything, and delete nothing");
}

}  // namespace shardmesh::client
