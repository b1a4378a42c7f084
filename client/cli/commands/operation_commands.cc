// Commands ops ls, show, watch and cancel: the long operations of a cluster.
#include <algorithm>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/operation_choice.h"
#include "client/cli/progress_bar.h"
#include "client/cli/table.h"
#include "client/cli/watch.h"
#include "status/fact_keys.h"
#include "status/nearest_name.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

constexpr char kOperationHelp[] =
    "number of the operation as `ops ls` shows it, its id, or the first characters of its id";

// Interval at which `ops watch` without an operation shows the running ones anew.
constexpr absl::Duration kTableInterval = absl::Seconds(1);

constexpr size_t kIdCharacters = 32;

Json OperationJson(const Operation& operation) {
  return {{"number", operation.number},
          {"operation_id", operation.operation_id},
          {"kind", OperationKindName(operation.kind)},
          {"state", OperationStateName(operation.state)},
          {"description", operation.description},
          {"session_number", operation.session_number},
          {"done", operation.done},
          {"total", operation.total},
          {"done_bytes", operation.done_bytes},
          {"total_bytes", operation.total_bytes},
          {"bytes_per_second", operation.bytes_per_second},
          {"time_left_s",
           operation.time_left.has_value() ? Json(Seconds(*operation.time_left)) : Json(nullptr)},
          {"start_time", Timestamp(operation.start_time)},
          {"end_time",
           operation.end_time.has_value() ? Json(Timestamp(*operation.end_time)) : Json(nullptr)},
          {"error", operation.error.ok()
                        ? Json(nullptr)
                        : ErrorJson(operation.error, ToStd(operation.error.message()))}};
}

// Reads the names of states or kinds. `option`: the option that has them.
template <typename Value, size_t kCount>
absl::StatusOr<std::vector<Value>> ValuesOf(std::string_view option,
                                            const std::vector<std::string>& names,
                                            const Value (&known)[kCount],
                                            std::string_view (*name_of)(Value)) {
  std::vector<std::string_view> known_names;
  for (const Value value : known) known_names.push_back(name_of(value));
  std::vector<Value> values;
  for (const std::string& name : names) {
    const auto found = std::find(known_names.begin(), known_names.end(), name);
    if (found == known_names.end()) {
      return WrongUse(StrCat(option, ": \"", name, "\" is none of ", StrJoin(known_names, ", "),
                             DidYouMean(name, known_names)));
    }
    values.push_back(known[found - known_names.begin()]);
  }
  return values;
}

// Returns the share that is done, such as `40 %`; `-` while the total is not known.
std::string ShareOf(const Operation& operation) {
  const bool by_bytes = operation.total_bytes > 0;
  const int64_t done = by_bytes ? operation.done_bytes : operation.done;
  const int64_t total = by_bytes ? operation.total_bytes : operation.total;
  if (total <= 0) return operation.state == OperationState::kDone ? "100 %" : "-";
  return StrCat(static_cast<int>(100.0 * static_cast<double>(done) / static_cast<double>(total)),
                " %");
}

std::string RateOf(const Operation& operation) {
  return operation.bytes_per_second > 0 ? StrCat(FormatBytes(operation.bytes_per_second), "/s")
                                        : "-";
}

// Returns the bytes that are done of all, such as `40.0 MiB of 64.0 MiB`; `-` while these are not
// known.
std::string BytesOf(const Operation& operation) {
  if (operation.total_bytes <= 0) {
    return operation.done_bytes > 0 ? FormatBytes(operation.done_bytes) : "-";
  }
  return StrCat(FormatBytes(operation.done_bytes), " of ", FormatBytes(operation.total_bytes));
}

std::string TimeLeftOf(const Operation& operation) {
  return operation.time_left.has_value() ? FormatTime(*operation.time_left) : "-";
}

absl::Duration TimeOf(const Operation& operation) {
  return operation.end_time.value_or(std::max(absl::Now(), operation.start_time)) -
         operation.start_time;
}

// The owner as tables show it.
std::string OwnerOf(const Operation& operation) {
  return operation.session_number == 0 ? "-" : StrCat(operation.session_number);
}

void PrintOperations(const std::vector<Operation>& operations) {
  Table table({{"number", Table::Align::kRight},
               {"id"},
               {"kind"},
               {"state"},
               {"session", Table::Align::kRight},
               {"began", Table::Align::kRight},
               {"took", Table::Align::kRight},
               {"bytes", Table::Align::kRight},
               {"", Table::Align::kRight},
               {"rate", Table::Align::kRight},
               {"left", Table::Align::kRight},
               {"operation"}});
  for (const Operation& operation : operations) {
    const absl::Duration age = std::max(absl::Now() - operation.start_time, absl::ZeroDuration());
    table.AddRow({StrCat(operation.number), operation.operation_id,
                  std::string(OperationKindName(operation.kind)),
                  std::string(OperationStateName(operation.state)), OwnerOf(operation),
                  StrCat(FormatTime(age), " ago"), FormatTime(TimeOf(operation)),
                  BytesOf(operation), ShareOf(operation), RateOf(operation), TimeLeftOf(operation),
                  operation.description});
  }
  table.Print();
  // Errors are long: each has a line of its own below the table.
  for (const Operation& operation : operations) {
    if (operation.error.ok()) continue;
    std::cout << operation.number << " " << OperationStateName(operation.state) << ": "
              << EscapeForTerminal(ToStd(operation.error.message())) << "\n";
  }
}

struct OperationsFlags {
  std::vector<std::string> states;
  std::vector<std::string> kinds;
};

absl::Status RunOpsLs(const Invocation& invocation, const OperationsFlags& flags) {
  constexpr OperationState kStates[] = {OperationState::kRunning, OperationState::kDone,
                                        OperationState::kFailed, OperationState::kCancelled};
  constexpr OperationKind kKinds[] = {OperationKind::kPut,       OperationKind::kLoad,
                                      OperationKind::kSave,      OperationKind::kReshard,
                                      OperationKind::kRepair,    OperationKind::kResize,
                                      OperationKind::kReplicate, OperationKind::kGet};
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<OperationState> states,
                             ValuesOf("--state", flags.states, kStates, &OperationStateName));
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<OperationKind> kinds,
                             ValuesOf("--kind", flags.kinds, kKinds, &OperationKindName));
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<Operation> operations,
                             client->cluster().ListOperations(states));
  std::erase_if(operations, [&kinds](const Operation& operation) {
    return !kinds.empty() && std::count(kinds.begin(), kinds.end(), operation.kind) == 0;
  });
  if (invocation.json) {
    Json json = Json::array();
    for (const Operation& operation : operations) json.push_back(OperationJson(operation));
    invocation.Print({{"operations", std::move(json)}});
  } else if (invocation.names()) {
    std::vector<std::string> ids;
    for (const Operation& operation : operations) ids.push_back(operation.operation_id);
    PrintNames(ids);
  } else if (operations.empty()) {
    std::cout << "No operations\n";
  } else {
    PrintOperations(operations);
  }
  return absl::OkStatus();
}

// Returns the operation that `text` means: see ChooseOperation.
absl::StatusOr<Operation> FindOperation(MeshClient* client, const std::string& text) {
  if (text.size() == kIdCharacters) {
    absl::StatusOr<Operation> found = client->cluster().GetOperation(text);
    if (!absl::IsNotFound(found.status())) return found;
  }
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<Operation> operations,
                             client->cluster().ListOperations());
  return ChooseOperation(text, operations);
}

// Prints an operation line by line.
void PrintOperation(const Operation& operation) {
  std::cout << "number      " << operation.number << "\n"
            << "id          " << operation.operation_id << "\n"
            << "operation   " << EscapeForTerminal(operation.description) << "\n"
            << "kind        " << OperationKindName(operation.kind) << "\n"
            << "state       " << OperationStateName(operation.state) << "\n"
            << "begun by    "
            << (operation.session_number == 0 ? std::string("the coordinator")
                                              : StrCat("session ", operation.session_number))
            << ", " << Timestamp(operation.start_time) << "\n";
  if (operation.end_time.has_value()) {
    std::cout << "ended       " << Timestamp(*operation.end_time) << ", after "
              << FormatTime(TimeOf(operation)) << "\n";
  }
  std::cout << "done        " << ShareOf(operation) << ": " << operation.done << " of "
            << operation.total << " pieces, " << FormatBytes(operation.done_bytes) << " of "
            << FormatBytes(operation.total_bytes) << "\n"
            << "rate        " << RateOf(operation) << "\n";
  if (operation.state == OperationState::kRunning) {
    std::cout << "time left   " << TimeLeftOf(operation) << "\n";
  }
  if (!operation.error.ok()) {
    std::cout << "error       " << EscapeForTerminal(ToStd(operation.error.message())) << "\n";
  }
}

absl::Status RunOpsShow(const Invocation& invocation, const std::string& text) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  SHARDMESH_ASSIGN_OR_RETURN(const Operation operation, FindOperation(client.get(), text));
  if (invocation.json) {
    invocation.Print(OperationJson(operation));
  } else {
    PrintOperation(operation);
  }
  return absl::OkStatus();
}

// Shows the operation on the bar.
void ShowOperation(const Operation& operation, ProgressBar& bar) {
  if (operation.total_bytes <= 0 && operation.total > 0) {
    return bar.ShowNumbers(operation.done, operation.total,
                           FormatCountProgress(operation.done, operation.total, {}));
  }
  std::string numbers = FormatByteProgress(operation.done_bytes, operation.total_bytes, {});
  if (operation.total_bytes <= 0) {
    numbers = operation.done_bytes > 0 ? FormatBytes(operation.done_bytes) : "begins";
  }
  if (operation.bytes_per_second > 0) StrAppend(&numbers, ", ", RateOf(operation));
  if (operation.time_left.has_value()) {
    StrAppend(&numbers, ", ", TimeLeftOf(operation), " left");
  }
  // A total that is not known yet is an empty bar, not a full one.
  bar.ShowNumbers(operation.done_bytes, std::max<int64_t>(operation.total_bytes, 1), numbers);
}

// Returns text such as `Operation 17 (save) is done: 2.00 GiB in 4.00 s`.
std::string OutcomeOf(const Operation& operation) {
  const std::string_view state =
      operation.state == OperationState::kRunning ? "runs" : OperationStateName(operation.state);
  return StrCat("Operation ", operation.number, " (", OperationKindName(operation.kind), ") ",
                operation.state == OperationState::kFailed    ? "has "
                : operation.state == OperationState::kRunning ? ""
                                                              : "is ",
                state, ": ", FormatBytes(operation.done_bytes), " of ",
                FormatBytes(operation.total_bytes), " in ", FormatTime(TimeOf(operation)));
}

// Watches one operation until its end. The end of the operation is the end of the command: an
// operation that failed or was cancelled is an error of the command.
absl::Status WatchOne(const Invocation& invocation, const std::string& text) {
  std::optional<Operation> last;
  const absl::Status watched = RunUntilStopped([&](Cancellation* stopped) -> absl::Status {
    SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
    SHARDMESH_ASSIGN_OR_RETURN(const Operation found, FindOperation(client.get(), text));
    ProgressBar bar(StrCat(found.number, " ", OperationKindName(found.kind)),
                    invocation.quiet || invocation.json);
    const auto show = [&](const Operation& operation) {
      if (invocation.json) {
        std::cout << TreeLine(OperationJson(operation), invocation.output) << std::flush;
      } else {
        ShowOperation(operation, bar);
      }
      return static_cast<bool>(std::cout);
    };
    CallOptions options{.cancellation = stopped};
    options.timeout = invocation.DeadlineOr(absl::InfiniteDuration());
    const absl::StatusOr<Operation> ended =
        client->cluster().WatchOperation(found.operation_id, show, options);
    if (stopped->is_cancelled()) return absl::OkStatus();
    if (ended.ok()) last = *ended;
    return ended.status();
  });
  SHARDMESH_RETURN_IF_ERROR(watched);
  if (!last.has_value()) return absl::OkStatus();  // Ctrl-C ended the watch, not the operation
  if (!invocation.json) std::cout << OutcomeOf(*last) << "\n";
  if (last->state == OperationState::kFailed) return last->error;
  if (last->state == OperationState::kCancelled) {
    return WithReason(absl::CancelledError(StrCat("operation ", last->number, " was cancelled")),
                      Reason::kCancelled);
  }
  return absl::OkStatus();
}

absl::Status RunOpsWatch(const Invocation& invocation, const std::string& text) {
  if (!text.empty()) return WatchOne(invocation, text);
  return Watch({.interval = kTableInterval, .output = invocation.output, .skip_repeats = true},
               [&] { return RunOpsLs(invocation, {.states = {"running"}, .kinds = {}}); });
}

// Each run of this program has a session of its own, which can have begun no operation. The plain
// command therefore refuses, and says what cancels the operation all the same.
absl::Status WithForceHint(const absl::Status& status, const Operation& operation) {
  if (ReasonOf(status) != Reason::kNotOwner) return status;
  return WithReason(
      absl::PermissionDeniedError(StrCat(
          "operation ", operation.number, " (", OperationKindName(operation.kind),
          ") was begun by ",
          operation.session_number == 0 ? std::string("the coordinator itself")
                                        : StrCat("session ", operation.session_number,
                                                 " (`shardmesh admin sessions` shows whose it is)"),
          ", not by this one; `shardmesh ops cancel ", operation.number,
          " --force` cancels it all the same")),
      Reason::kNotOwner, {{fact::kKind, "operation"}, {fact::kName, operation.operation_id}});
}

struct CancelFlags {
  std::vector<std::string> operations;
  bool force = false;
};

absl::Status RunOpsCancel(const Invocation& invocation, const CancelFlags& flags) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  // All of them must exist before the first is cancelled.
  std::vector<Operation> operations;
  for (const std::string& text : flags.operations) {
    SHARDMESH_ASSIGN_OR_RETURN(Operation found, FindOperation(client.get(), text));
    operations.push_back(std::move(found));
  }
  Json cancelled = Json::array();
  for (const Operation& operation : operations) {
    const bool had_ended = operation.state != OperationState::kRunning;
    if (!had_ended) {
      const absl::Status asked =
          flags.force ? client->cluster().ForceCancelOperation(operation.operation_id).status()
                      : client->cluster().CancelOperation(operation.operation_id).status();
      SHARDMESH_RETURN_IF_ERROR(WithForceHint(asked, operation));
    }
    CallOptions options;
    options.timeout = invocation.deadline;
    SHARDMESH_ASSIGN_OR_RETURN(
        const Operation ended,
        client->cluster().WatchOperation(
            operation.operation_id, [](const Operation&) { return true; }, options));
    if (invocation.json) {
      cancelled.push_back(OperationJson(ended));
    } else if (had_ended || ended.state != OperationState::kCancelled) {
      std::cout << OutcomeOf(ended)
                << (had_ended ? "; it had ended before\n" : "; it ended before it was cancelled\n");
    } else {
      std::cout << OutcomeOf(ended) << "\n";
    }
  }
  if (invocation.json) invocation.Print({{"operations", std::move(cancelled)}});
  return absl::OkStatus();
}

}  // namespace

void AddOperationCommands(CommandLine* line) {
  CLI::App* const ops =
      line->AddGroup("ops", "Show and cancel long operations: puts, loads, saves, reshards, ...");

  auto list_flags = std::make_shared<OperationsFlags>();
  CLI::App* const ls = line->AddCommand(
      "ls", "List the operations that run or ended in the last ten minutes",
      [=](const Invocation& i) { return RunOpsLs(i, *list_flags); }, ops);
  ls->add_option("--state", list_flags->states,
                 "only these, separated by commas: running, done, failed, cancelled")
      ->delimiter(',');
  ls->add_option("--kind", list_flags->kinds,
                 "only these, separated by commas: put, load, save, reshard, repair, resize, "
                 "replicate, get")
      ->delimiter(',');
  line->PrintsNames(ls);
  line->CanBeWatched(ls);

  auto shown = std::make_shared<std::string>();
  CLI::App* const show = line->AddCommand(
      "show", "Show an operation: how far it is, who began it, and its error",
      [=](const Invocation& i) { return RunOpsShow(i, *shown); }, ops);
  show->add_option("OPERATION", *shown, kOperationHelp)->required();
  line->CanBeWatched(show);

  auto watched = std::make_shared<std::string>();
  CLI::App* const watch = line->AddCommand(
      "watch", "Show how an operation gets on until it ends, or all that run until Ctrl-C",
      [=](const Invocation& i) { return RunOpsWatch(i, *watched); }, ops);
  watch->add_option("OPERATION", *watched, StrCat(kOperationHelp, " (default: all that run)"));
  watch->footer(
      "Exits with 1 if the operation fails or is cancelled. Ctrl-C ends the watch, not the\n"
      "operation.");

  auto cancel_flags = std::make_shared<CancelFlags>();
  CLI::App* const cancel = line->AddCommand(
      "cancel", "Cancel operations and wait until they have ended; nothing stays half done",
      [=](const Invocation& i) { return RunOpsCancel(i, *cancel_flags); }, ops);
  cancel->add_option("OPERATION", cancel_flags->operations, kOperationHelp)->required();
  cancel->add_flag("--force", cancel_flags->force,
                   "cancel operations of any session: those of other clients are not this one's");
}

}  // namespace shardmesh::client
