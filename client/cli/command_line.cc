// The frame of the command line. CLI11 reads the arguments; this file catches CLI11's exceptions.
#include "client/cli/command_line.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_split.h"
#include "client/cli/context_file.h"
#include "client/cli/interruption.h"
#include "client/cli/local/certificate_folder.h"
#include "client/cli/local/cluster_record.h"
#include "client/cli/shared_options.h"
#include "client/cli/shell_words.h"
#include "client/cli/spec_printing.h"
#include "client/cli/table.h"
#include "client/cli/watch.h"
#include "client/local/local_questions.h"
#include "process/file.h"
#include "process/host_port.h"
#include "process/steady_deadline.h"
#include "process/thread_pool.h"
#include "process/version.h"
#include "rpc/call.h"
#include "rpc/codec/correction_codec.h"
#include "rpc/codec/message_subject.h"
#include "rpc/codec/status.h"
#include "sharding/mesh.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/nearest_name.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "status/utf8.h"

namespace shardmesh::client {
namespace {

constexpr char kProgram[] = "shardmesh";
constexpr char kDefaultAddress[] = "127.0.0.1:7070";
constexpr char kDefaultCluster[] = "default";
constexpr char kAddressVariable[] = "SHARDMESH_ADDRESS";
// The type of the payload that marks a status as wrong use of the command line. If the payload has
// a text, that text is a command: the error message refers the user to the help of this command.
constexpr char kWrongUsePayload[] = "shardmesh.cli/wrong_use";

absl::StatusOr<absl::Duration> ParseDeadline(std::string_view text) {
  absl::Duration duration;
  if (!absl::ParseDuration(ToAbsl(text), &duration) || duration <= absl::ZeroDuration() ||
      duration == absl::InfiniteDuration()) {
    return absl::InvalidArgumentError(ToAbsl(
        StrCat("\"", text, "\" is no time above zero with its unit; write 30s, 500ms or 2m")));
  }
  return duration;
}

std::string ReasonSuffix(const absl::Status& status) {
  const Reason reason = ReasonOf(status);
  return StrCat(" (",
                reason == Reason::kUnspecified ? ToStd(absl::StatusCodeToString(status.code()))
                                               : std::string_view(ReasonName(reason)),
                ")");
}

// Returns the facts and faulty fields that the error carries, as an object. The object is empty if
// the error has neither facts nor faulty fields.
Json DetailsJson(const absl::Status& status) {
  Json details = Json::object();
  for (const rpc::FieldViolation& violation : rpc::FieldViolationsOf(status)) {
    details["fields"].push_back(
        {{"field", violation.field}, {"description", violation.description}});
  }
  if (const auto delay = RetryDelayOf(status); delay.has_value()) {
    details["retry_delay_s"] = absl::ToDoubleSeconds(*delay);
  }
  if (const std::string python_type = PythonTypeOf(status); !python_type.empty()) {
    details["python_type"] = python_type;
  }
  for (const auto& [key, value] : FactsOf(status)) {
    details["facts"][key] = value;
  }
  const rpc::CorrectionFailure failure = rpc::CorrectionsOf(status);
  if (!failure.corrections.empty()) {
    details["corrections"] = CorrectionsJson(failure.corrections, std::nullopt);
  }
  if (!failure.fixes.empty()) {
    details["fixes"] = FixesJson(failure.fixes);
  }
  if (failure.omitted > 0) {
    details["corrections_omitted"] = failure.omitted;
  }
  return details;
}

// Returns the option of the command that has a spec, as it was given, or `spec` if there is none.
// Rules give specs without such an option.
std::string_view SpecOption(const CLI::App& command) {
  for (const std::string_view name : {"--spec", "--to"}) {
    const CLI::Option* const option = command.get_option_no_throw(std::string(name));
    // A layout as in `--to MESH:SPEC` is more than a spec.
    if (option != nullptr && option->count() > 0 &&
        option->results().front().find(':') == std::string::npos) {
      return name;
    }
  }
  return "spec";
}

// Maximum number of fixes that an error shows below its message.
constexpr size_t kMostFixes = 6;

// Returns a line for each fix of the first correction that the error has: the whole spec to ask
// for, as the command takes it. Empty if the message already has the fixes of each tensor.
std::string FixLines(const CLI::App& command, const absl::Status& status) {
  std::string lines;
  if (HasAllCorrected(status)) return lines;
  size_t shown = 0;
  for (const Fix& fix : rpc::CorrectionsOf(status).fixes) {
    if (fix.correction != 0 || shown == kMostFixes) continue;
    ++shown;
    StrAppend(&lines, "  fix: ", SpecOption(command), " '", FormatSpec(fix.spec), "'");
    if (fix.kind == Fix::Kind::kPaddedSize) {
      StrAppend(&lines, " and shape ", StrJoin(fix.shape, ","));
    }
    lines += '\n';
  }
  return lines;
}

// Returns the requested output form. The form must be known before CLI11 parses the arguments,
// because an error of CLI11 must be printed in that form.
OutputForm AskedForm(int argc, const char* const* argv) {
  OutputForm form = OutputForm::kTable;
  for (int i = 1; i < argc; ++i) {
    std::string_view argument = argv[i];
    if (argument == "--output" || argument == "-o") {
      argument = i + 1 < argc ? argv[i + 1] : "";
    } else if (argument.starts_with("--output=")) {
      argument.remove_prefix(std::string_view("--output=").size());
    } else if (argument.starts_with("-o") && !argument.starts_with("--")) {
      argument.remove_prefix(2);
    } else {
      continue;
    }
    form = FindOutputForm(argument).value_or(form);
  }
  return form;
}

// Returns every name, with its dashes, of the options of the command `app` and of the groups above
// that command.
std::vector<std::string> OptionNames(const CLI::App& app) {
  std::vector<std::string> names;
  if (app.get_parent() != nullptr) names = OptionNames(*app.get_parent());
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
  }
  return names;
}

std::vector<std::string> CommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) {
    names.push_back(command->get_name());
  }
  return names;
}

// Returns a wrong-use error unless each argument is UTF-8. Arguments become texts of requests,
// which must be UTF-8 on the wire.
absl::Status CheckUtf8(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    if (!DecodeUtf8(argv[i]).has_value()) {
      const bool is_value = i > 1 && std::string_view(argv[i - 1]).starts_with("--");
      return WrongUse(StrCat("argument ", i, ", ", "\"", absl::CHexEscape(argv[i]), "\"",
                             is_value ? StrCat(" after ", argv[i - 1]) : "",
                             ", is not UTF-8; write it in that encoding"));
    }
  }
  return absl::OkStatus();
}

// Explains gRPC's DEADLINE_EXCEEDED, whose own text is only "Deadline Exceeded": adds the deadline,
// if given, and advice. Adds a given deadline to a server's DEADLINE_EXCEEDED too, because the
// server only knows how much of it was left. Returns other errors unchanged.
absl::Status ExplainDeadline(const absl::Status& status, std::optional<absl::Duration> deadline) {
  constexpr std::string_view kText = "Deadline Exceeded";
  std::string message(status.message());
  if (absl::IsDeadlineExceeded(status) && ReasonOf(status) == Reason::kDeadline &&
      deadline.has_value() && message.find("--deadline") == std::string::npos) {
    return WithMessage(status,
                       StrCat(message, "; the --deadline was ", absl::FormatDuration(*deadline)));
  }
  if (!absl::IsDeadlineExceeded(status) || ReasonOf(status) != Reason::kUnspecified ||
      !message.ends_with(kText)) {
    return status;
  }
  message.resize(message.size() - kText.size());
  if (!deadline.has_value()) {
    return WithReason(absl::DeadlineExceededError(StrCat(
                          message, "no answer came in time; give more time with --deadline")),
                      Reason::kDeadline);
  }
  return WithReason(
      absl::DeadlineExceededError(StrCat(message, "no answer came within the --deadline of ",
                                         absl::FormatDuration(*deadline), "; give more time")),
      Reason::kDeadline, {{fact::kLimit, absl::ToDoubleSeconds(*deadline)}});
}

// If `status` says that the cluster lacks a definition, adds the nearest name and the command that
// lists the definitions of that kind. Returns other errors unchanged.
absl::Status ExplainUnknownDefinition(const absl::Status& status) {
  constexpr std::pair<std::string_view, std::string_view> kKinds[] = {{"mesh", "mesh"},
                                                                      {"profile", "profile"},
                                                                      {"rule_set", "rules"},
                                                                      {"logical_rules", "logical"},
                                                                      {"tree", "tree"}};
  if (!absl::IsNotFound(status) || ReasonOf(status) != Reason::kNotFound) return status;
  const std::string kind = FactOf(status, fact::kKind).value_or("");
  const auto* const known = std::find_if(std::begin(kKinds), std::end(kKinds),
                                         [&kind](const auto& each) { return each.first == kind; });
  // The server's error about a missing version already lists the kept versions.
  const bool is_version = FactOf(status, fact::kName).value_or("").find('@') != std::string::npos;
  if (known == std::end(kKinds) || is_version) return status;
  std::string message(status.message());
  if (const std::optional<std::string> nearest = FactOf(status, fact::kNearest);
      nearest.has_value() && message.find("did you mean") == std::string::npos) {
    StrAppend(&message, "; did you mean \"", *nearest, "\"?");
  }
  // Axes are mistyped as `fsdp:2,tp:2`, which is taken as the name of a mesh.
  std::string axes = FactOf(status, fact::kName).value_or("");
  const bool has_colon = axes.find(':') != std::string::npos;
  std::replace(axes.begin(), axes.end(), ':', '=');
  if (kind == "mesh" && has_colon && Mesh::Parse(axes).ok()) {
    StrAppend(&message, message.ends_with('?') ? "" : ";", " write axes as ", axes);
  }
  const std::filesystem::path file = FactOf(status, fact::kName).value_or("");
  if (kind == "mesh" && (file.extension() == ".yaml" || file.extension() == ".yml")) {
    StrAppend(&message, message.ends_with('?') ? "" : ";", " a file is put first: `", kProgram,
              " catalog put mesh ", file.stem().string(), " ", file.string(), "`");
  }
  StrAppend(&message, message.ends_with('?') ? "" : ";", " `", kProgram, " catalog ls ",
            known->second, "` lists what there is");
  return WithMessage(status, message);
}

// Sets each path of `files` that is empty, because no option gave it, from the environment.
void FillFromEnvironment(rpc::TlsFiles* files) {
  for (const auto& [name, path] : {std::pair("SHARDMESH_TLS_CERT", &files->certificate),
                                   std::pair("SHARDMESH_TLS_KEY", &files->private_key),
                                   std::pair("SHARDMESH_TLS_CA", &files->authorities)}) {
    if (const char* const value = std::getenv(name); path->empty() && value != nullptr) {
      *path = value;
    }
  }
}

std::string DidYouMeanOneOf(std::string_view name, const std::vector<std::string>& known) {
  return DidYouMean(name, std::vector<std::string_view>(known.begin(), known.end()));
}

// Returns the innermost command that CLI11 found in the arguments.
CLI::App* Chosen(CLI::App* app) {
  const std::vector<CLI::App*> chosen = app->get_subcommands();
  return chosen.empty() ? app : Chosen(chosen.front());
}

// Returns the full name of a command, such as `shardmesh catalog get`.
std::string FullName(const CLI::App* app) {
  return app->get_parent() == nullptr ? kProgram
                                      : FullName(app->get_parent()) + " " + app->get_name();
}

// Returns an argument's name as in the manual, such as `CHECKPOINT`.
std::string ArgumentName(const CLI::Option& argument) {
  return absl::AsciiStrToUpper(argument.get_name(/*positional=*/true));
}

// Returns a command with its arguments, but without options: `shardmesh rm TENSOR...`.
std::string UsageOf(const CLI::App* command) {
  std::string usage = FullName(command);
  for (const CLI::Option* argument : command->get_options()) {
    if (!argument->get_positional()) continue;
    const std::string name =
        StrCat(ArgumentName(*argument), argument->get_items_expected_max() > 1 ? "..." : "");
    StrAppend(&usage, " ", argument->get_required() ? name : StrCat("[", name, "]"));
  }
  return usage;
}

// The error for arguments that name no subcommand of `at`, the command that the preceding words
// name. The error message refers the user to the help of `at`.
class WrongCommand : public CLI::ParseError {
 public:
  WrongCommand(const CLI::App* at, std::string message)
      : CLI::ParseError(std::move(message), CLI::ExitCodes::ExtrasError), at_(FullName(at)) {}

  absl::Status status() const {
    absl::Status status = WrongUse(what());
    status.SetPayload(kWrongUsePayload, absl::Cord(at_));
    return status;
  }

 private:
  std::string at_;
};

// Explains the error of an unreachable coordinator. Returns a new error in three cases: the default
// cluster has no record on this host; the cluster's record is unreadable; or the recorded
// coordinator has ended. In other cases returns `error` itself.
absl::Status ExplainUnreachable(const absl::Status& error, const std::string& cluster_name) {
  if (ExitCodeOf(error) != kExitUnreachable || !CheckClusterName(cluster_name).ok()) return error;
  const absl::StatusOr<ClusterRecord> record = ReadRecord(ClusterFolder(cluster_name));
  if (absl::IsNotFound(record.status()) && cluster_name == kDefaultCluster) {
    return WithContext(error, StrCat("no cluster \"", cluster_name,
                                     "\" is up on this host; `shardmesh up` starts one, and "
                                     "--address names one elsewhere"));
  }
  if (absl::IsDataLoss(record.status())) return record.status();
  if (!record.ok() || record->processes.empty()) return error;
  const RecordedProcess& coordinator = record->processes.front();
  if (IsRunning(coordinator.id)) return error;
  return absl::UnavailableError(StrCat(
      "the coordinator of the cluster \"", cluster_name, "\" at ", record->address, " (pid ",
      coordinator.id.pid,
      ") has ended; the same `shardmesh up` starts it again, and follows one that was started "
      "by hand at that address",
      coordinator.log_path.empty() ? "" : StrCat("; its log is ", coordinator.log_path)));
}

// Flushes standard output. Returns an error if the output was not written completely, for example
// because the disk is full.
absl::Status FlushOutput() {
  errno = 0;
  std::cout.flush();
  if (std::cout.good()) {
    return absl::OkStatus();
  }
  constexpr char kLost[] = "the command was done, but its output is lost";
  // An errno of zero does not prove success: errno belongs to the last write, and an earlier write
  // may have failed.
  if (errno == 0 && std::fflush(stdout) == 0) {
    return absl::UnknownError(StrCat(kLost, ": cannot write standard output"));
  }
  const absl::Status why = FileError("write", "standard output", errno);
  return absl::UnknownError(StrCat(kLost, ": ", ToStd(why.message())));
}

// Returns an advice for an argument that no positional argument of `command` takes: the option for
// which the argument is probably meant. Empty if there is none.
std::string OptionFor(const CLI::App& command, const std::string& argument) {
  if (argument.find(',') == std::string::npos) return "";
  for (const char* const name : {"--to", "--spec"}) {
    if (command.get_option_no_throw(name) == nullptr) continue;
    return StrCat("; write ", name, " ", argument);
  }
  return "";
}

// Returns an advice if `option` is missing and a positional argument of `command` looks like a file
// to write. Otherwise empty.
std::string FileAmongArguments(const CLI::App& command, std::string_view option) {
  if (option != "--out") return "";
  for (const CLI::Option* const each : command.get_options()) {
    if (!each->get_positional()) continue;
    for (const std::string& text : each->results()) {
      if (text.ends_with(".npy") || text.ends_with(".safetensors")) {
        return StrCat("; \"", text, "\" looks like a file: write --out ", text);
      }
    }
  }
  return "";
}

}  // namespace

Json ErrorJson(const absl::Status& status, std::string_view message) {
  const Reason reason = ReasonOf(status);
  Json error = {{"code", absl::StatusCodeToString(status.code())},
                {"reason", reason == Reason::kUnspecified ? Json(nullptr)
                                                          : Json(std::string(ReasonName(reason)))},
                {"message", std::string(message)},
                {"retryable", rpc::IsRetryable(status)}};
  if (Json details = DetailsJson(status); !details.empty()) {
    error["details"] = std::move(details);
  }
  return error;
}

std::optional<SteadyDeadline> Invocation::BeginDeadline() const {
  if (!deadline.has_value()) return std::nullopt;
  return SteadyDeadline::After(*deadline);
}

std::function<absl::Status()> Invocation::KeepOpening(const std::optional<SteadyDeadline>& end) {
  if (!end.has_value()) return nullptr;
  return OpenUntil(*end);
}

MeshClientOptions Invocation::ClientOptions() const {
  MeshClientOptions options;
  if (deadline.has_value()) {
    options.timeout = *deadline;
    options.transfer_timeout = *deadline;
    options.await_coordinator = true;
  }
  if (!json) {
    options.on_wait = [said = std::make_shared<std::once_flag>()](const absl::Status& why) {
      std::call_once(*said, [&] {
        std::cerr << StrCat(
            kProgram, ": waiting: ", EscapeForTerminal(ToStd(why.message()), /*keep_lines=*/true),
            ReasonSuffix(why), "\n");
      });
    };
  }
  options.client_name = "shardmesh command line";
  return options;
}

absl::StatusOr<std::unique_ptr<MeshClient>> Invocation::Connect(
    const std::optional<SteadyDeadline>& end) const {
  if (!context_error.ok()) return context_error;
  if (address.empty()) {
    return ExplainUnreachable(
        absl::UnavailableError(StrCat("no cluster \"", cluster_name, "\" is up on this host (",
                                      ClusterFolder(cluster_name),
                                      " has no record); give its --address, or another --cluster")),
        cluster_name);
  }
  MeshClientOptions options = ClientOptions();
  if (end.has_value()) {
    options.timeout = std::max(end->left(), absl::Nanoseconds(1));
    options.transfer_timeout = options.timeout;
  }
  SHARDMESH_ASSIGN_OR_RETURN(options.credentials, Credentials());
  absl::StatusOr<std::unique_ptr<MeshClient>> client = MeshClient::Connect(address, options);
  if (!client.ok()) return WithOrigin(client.status());
  return client;
}

absl::Status Invocation::ExplainUnanswered(const absl::Status& error) const {
  return ExitCodeOf(error) == kExitUnreachable ? WithOrigin(error) : error;
}

absl::Status Invocation::WithOrigin(const absl::Status& error) const {
  if (has_address) return error;
  if (is_from_environment) return WithContext(error, kAddressVariable);
  if (!context.empty()) return WithContext(error, StrCat("context \"", context, "\""));
  return ExplainUnreachable(error, cluster_name);
}

absl::StatusOr<std::shared_ptr<MeshClient>> Invocation::ConnectToAsk() const {
  if (has_cluster) return Connect();
  *is_local = true;
  SHARDMESH_ASSIGN_OR_RETURN(std::shared_ptr<LocalQuestions> local,
                             LocalQuestions::Start(ClientOptions()));
  MeshClient* const client = &local->client();
  return std::shared_ptr<MeshClient>(std::move(local), client);
}

absl::Status WrongUse(std::string_view message) {
  absl::Status status = absl::InvalidArgumentError(ToAbsl(message));
  status.SetPayload(kWrongUsePayload, absl::Cord());
  return status;
}

int ExitCodeOf(const absl::Status& status) {
  if (status.ok()) {
    return kExitDone;
  }
  if (status.GetPayload(kWrongUsePayload).has_value()) {
    return kExitWrongUse;
  }
  // An error of a coordinator has a reason if the coordinator knows the call.
  const bool is_unreachable = (absl::IsUnavailable(status) || absl::IsUnimplemented(status)) &&
                              ReasonOf(status) == Reason::kUnspecified;
  return is_unreachable ? kExitUnreachable : kExitFailed;
}

CommandLine::CommandLine()
    : app_("Places tensors on meshes of workers, keeps them there, and computes with them.") {
  app_.name(kProgram);
  app_.fallthrough();
  app_.formatter(help_);
  app_.set_version_flag("--version", StrCat(kProgram, " ", shardmesh::BuildVersion()));
  app_.require_subcommand(1);
  app_.footer(
      "`shardmesh help COMMAND` explains a command, as do `shardmesh COMMAND --help` and `man`. "
      "Exit codes: 0 done, 1 the operation failed, 2 wrong use, 3 the cluster cannot be reached.");
  AddCommonOptions();
}

void CommandLine::AddCommonOptions() {
  // Refuses empty values: an unset variable of a script must not select another cluster.
  const auto not_empty = [](std::string what) {
    return [what = std::move(what)](std::string_view text) -> absl::StatusOr<std::string> {
      if (text.empty()) {
        return WrongUse(StrCat("is empty; give ", what, ", or leave the option out"));
      }
      return std::string(text);
    };
  };
  AddParsedOption(&app_, "--address", &common_.address, not_empty("HOST:PORT"),
                  "the coordinator, HOST:PORT (default: $SHARDMESH_ADDRESS, else the current "
                  "context, else the cluster that `up` recorded; without one, questions about "
                  "layouts are answered in this process, and other commands ask 127.0.0.1:7070)");
  AddParsedOption(&app_, "--cluster", &common_.cluster_name, not_empty("the name of a cluster"),
                  "name of the cluster on this host that `up` recorded (default: default)");
  AddParsedOption(&app_, "--context", &common_.context, not_empty("the name of a context"),
                  "a cluster that `shardmesh config` knows (default: the current context)");
  AddParsedOption(&app_, "--deadline", &common_.deadline, ParseDeadline,
                  "time limit for each call, and for connecting before it (default: 30s; for "
                  "transfers 30m)");
  app_.add_option_function<std::string>(
          "-o,--output",
          [this](const std::string& text) {
            common_.output = FindOutputForm(text).value_or(OutputForm::kTable);
          },
          "table; wide: with the columns that tables leave out; json; yaml; name: only names "
          "(default: table)")
      ->check([](const std::string& text) {
        const bool is_file = text.find_first_of("./") != std::string::npos;
        return is_file
                   ? StrCat("\"", text, "\" is no form of the output; --out FILE writes to a file")
                   : std::string();
      })
      ->check(CLI::IsMember(OutputFormNames()));
  app_.add_flag("--no-headers", common_.no_headers, "print tables without header lines and sums");
  app_.add_flag("-q,--quiet", common_.quiet, "show no progress");
  app_.add_flag("-w,--watch", common_.watch, "repeat the command until Ctrl-C");
  AddParsedOption(&app_, "--interval", &common_.interval, ParseDeadline,
                  "time between two runs of --watch (default: 2s)");
  app_.add_option("--tls-cert", common_.tls.certificate,
                  "certificate to show to a cluster with TLS (PEM), with --tls-key and "
                  "--tls-ca (default: $SHARDMESH_TLS_CERT)");
  app_.add_option("--tls-key", common_.tls.private_key,
                  "the certificate's key (PEM; default: $SHARDMESH_TLS_KEY)");
  app_.add_option("--tls-ca", common_.tls.authorities,
                  "the authorities that sign the cluster's certificates (PEM; default: "
                  "$SHARDMESH_TLS_CA)");
  for (CLI::Option* const option : app_.get_options()) {
    if (option != app_.get_help_ptr() && option != app_.get_version_ptr()) {
      option->group(kCommonOptions);
    }
  }
}

CLI::App* CommandLine::AddCommand(const std::string& name, const std::string& help, Handler handler,
                                  CLI::App* parent) {
  CLI::App* command = (parent == nullptr ? &app_ : parent)->add_subcommand(name, help);
  command->footer("");  // otherwise the command would have the footer of the program
  handlers_[command] = std::move(handler);
  return command;
}

void CommandLine::AddSection(const std::string& title, const std::vector<std::string>& commands) {
  help_->AddSection(title, commands);
  for (const std::string& name : commands) {
    app_.get_subcommand(name)->group(title);
  }
}

void CommandLine::AddExamples(const std::vector<std::string>& examples) {
  for (const std::string& example : examples) {
    const std::vector<std::string> words = ShellWords(example);
    std::vector<const char*> arguments;
    for (const std::string& word : words) arguments.push_back(word.c_str());
    const CLI::App* const found =
        FindCommand(static_cast<int>(arguments.size()), arguments.data()).first;
    examples_[found].push_back(example);
    const_cast<CLI::App*>(found)->footer(
        StrCat("Examples:\n  ", StrJoin(examples_[found], "\n  ")));
  }
}

std::vector<std::string> CommandLine::ExamplesOf(const CLI::App* command) const {
  const auto found = examples_.find(command);
  return found == examples_.end() ? std::vector<std::string>() : found->second;
}

CLI::App* CommandLine::AddGroup(const std::string& name, const std::string& help,
                                CLI::App* parent) {
  CLI::App& above = parent == nullptr ? app_ : *parent;
  const std::vector<CLI::App*> there =
      above.get_subcommands([&](const CLI::App* each) { return each->get_name() == name; });
  if (!there.empty()) return there.front();
  CLI::App* group = above.add_subcommand(name, help);
  group->footer("");  // otherwise the group would have the footer of the program
  group->require_subcommand(1);
  return group;
}

const CLI::Option* CommandLine::FindOption(const CLI::App* command,
                                           const std::string& argument) const {
  // `-ojson` is the option -o followed by its value.
  const std::string name =
      argument.starts_with("--") ? argument.substr(0, argument.find('=')) : argument.substr(0, 2);
  for (const CLI::App* app = command; app != nullptr; app = app->get_parent()) {
    if (const CLI::Option* const option = app->get_option_no_throw(name)) return option;
  }
  return nullptr;
}

std::pair<const CLI::App*, int> CommandLine::FindCommand(int argc, const char* const* argv) const {
  const CLI::App* app = &app_;
  int i = 1;
  for (; handlers_.find(const_cast<CLI::App*>(app)) == handlers_.end(); ++i) {
    const std::vector<std::string> known = CommandNames(*app);
    if (i >= argc) {
      throw WrongCommand(app, StrCat("a command is missing: ", StrJoin(known, ", ")));
    }
    const std::string name = argv[i];
    if (name.starts_with('-')) {
      const CLI::Option* const option = FindOption(app, name);
      if (option == nullptr || option->get_group() != kCommonOptions) {
        return {nullptr, i};  // CLI11 decides whether this option is valid
      }
      const bool has_value =
          name.starts_with("--") ? name.find('=') != std::string::npos : name.size() > 2;
      i += option->get_items_expected_max() > 0 && !has_value ? 1 : 0;
      continue;
    }
    const auto found = std::find(known.begin(), known.end(), name);
    if (found == known.end()) {
      throw WrongCommand(app,
                         StrCat("unknown command \"", name, "\"", DidYouMeanOneOf(name, known)));
    }
    app = app->get_subcommand(name);
  }
  return {app, i};
}

std::vector<std::string> CommandLine::Arguments(int argc, const char* const* argv,
                                                const CLI::App* command, int after_command) const {
  const bool takes_specs = spec_commands_.find(command) != spec_commands_.end();
  std::vector<std::string> arguments;
  bool is_value = false;  // the argument is the value of the previous option
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--" && !is_value) {
      arguments.insert(arguments.end(), argv + i, argv + argc);
      break;
    }
    const bool is_option = !is_value && argument.starts_with('-') && argument.size() > 1;
    const bool is_long = is_option && argument.starts_with("--");
    const CLI::Option* const option =
        is_option ? FindOption(command, std::string(argument)) : nullptr;
    if (command != nullptr && i >= after_command && option != nullptr &&
        option == app_.get_version_ptr()) {
      throw WrongCommand(command, "unknown option --version; NAME@VERSION names a version");
    }
    if (is_long && argument.ends_with('=') && argument.find('=') + 1 == argument.size()) {
      arguments.emplace_back(argument.substr(0, argument.size() - 1));
      arguments.emplace_back();
      continue;
    }
    if (takes_specs && !is_value && argument.starts_with("-,")) {
      arguments.push_back(StrCat("_", argument.substr(1)));
    } else {
      arguments.emplace_back(argument);
    }
    const bool has_value =
        is_long ? argument.find('=') != std::string_view::npos : argument.size() > 2;
    is_value = option != nullptr && !has_value && option->get_items_expected_max() > 0;
  }
  return arguments;
}

absl::Status CommandLine::ParseErrorStatus(const CLI::ParseError& error) {
  const CLI::App* command = Chosen(&app_);
  std::string message = error.what();
  std::vector<std::string> rest = app_.remaining(/*recurse=*/true);
  // `--` ends the options and is no error itself: the parser complains about another argument.
  const bool has_end = std::erase(rest, "--") > 0;
  if (!rest.empty()) {
    std::string first = rest.front();
    if (first.starts_with("_,")) first[0] = '-';  // Arguments() made an underscore of the dash
    const std::string name = first.substr(0, first.find('='));
    const std::vector<std::string> known = OptionNames(*command);
    const bool is_known = std::find(known.begin(), known.end(), name) != known.end();
    if (!first.starts_with('-') || first.starts_with("-,")) {
      message = StrCat("unexpected argument \"", first, "\"", OptionFor(*command, first));
    } else if (is_known && !has_end) {
      message = StrCat("option ", name, " stands before its command; write it after `",
                       FullName(command), "`");
    } else {
      message =
          StrCat("unknown option ", first, is_known ? std::string() : DidYouMeanOneOf(name, known));
    }
  }
  // CLI11's message does not quote a value that is out of the option's range: add the quotes.
  constexpr std::string_view kValue = "Value ";
  constexpr std::string_view kRange = " not in range ";
  const size_t value = message.find(kValue);
  const size_t range = message.find(kRange);
  if (value < range && range != std::string::npos) {
    const size_t begin = value + kValue.size();
    message = StrCat(message.substr(0, value), "\"", message.substr(begin, range - begin),
                     "\" is no number from ", message.substr(range + kRange.size()));
  }
  // Matches a message of CLI11 such as `tensor is required`.
  constexpr std::string_view kIsRequired = " is required";
  if (rest.empty() && message.ends_with(kIsRequired)) {
    const CLI::Option* const argument =
        command->get_option_no_throw(message.substr(0, message.size() - kIsRequired.size()));
    if (argument != nullptr && argument->get_positional() && !argument->nonpositional()) {
      message =
          StrCat("the argument ", ArgumentName(*argument),
                 " is missing: ", argument->get_description(), "; write `", UsageOf(command), "`");
    } else {
      const std::string name = message.substr(0, message.size() - kIsRequired.size());
      StrAppend(&message, FileAmongArguments(*command, name));
    }
  }
  // Matches a message of CLI11 such as `Could not convert: --scale = two`.
  constexpr std::string_view kNotConverted = "Could not convert: ";
  constexpr std::string_view kEquals = " = ";
  if (const size_t equals = message.find(kEquals);
      message.starts_with(kNotConverted) && equals != std::string::npos) {
    const std::string name = message.substr(kNotConverted.size(), equals - kNotConverted.size());
    const CLI::Option* const option = command->get_option_no_throw(name);
    const bool is_fraction =
        option != nullptr && option->get_type_name().find("FLOAT") != std::string::npos;
    message = StrCat(name, ": \"", message.substr(equals + kEquals.size()), "\" is not a ",
                     is_fraction ? "number, such as 0.125" : "whole number, or is too large");
  }
  // Matches a message of CLI11 such as `prefix excludes --unnamed`.
  constexpr std::string_view kExcludes = " excludes ";
  const size_t excludes = message.find(kExcludes);
  if (error.get_name() == "ExcludesError" && excludes != std::string::npos) {
    const auto name_of = [command](const std::string& name) {
      const CLI::Option* const option = command->get_option_no_throw(name);
      return option != nullptr && !option->nonpositional() ? ArgumentName(*option) : name;
    };
    message = StrCat("give ", name_of(message.substr(0, excludes)), " or ",
                     name_of(message.substr(excludes + kExcludes.size())), ", not both");
  }
  // Matches a message of CLI11 such as `--html: 1 required TEXT missing`.
  constexpr std::string_view kRequired = ": 1 required ";
  if (const size_t place = message.find(kRequired);
      place != std::string::npos && message.ends_with(" missing")) {
    message = StrCat(message.substr(0, place), " needs a value");
  }
  // Matches a message of CLI11 such as `--spec: At Most 1 required but received 2`.
  if (const size_t place = message.find(": At Most 1 required but received ");
      place != std::string::npos) {
    message = StrCat(message.substr(0, place), " is given more than once");
  }
  return WrongUse(message);
}

std::string CommandLine::MessageOf(const absl::Status& status) {
  std::string message(status.message());
  const std::vector<rpc::FieldViolation> violations = rpc::FieldViolationsOf(status);
  if (violations.size() != 1) {
    return message;
  }
  // The message of a server may begin with the name of the field: judge the text after the name.
  const std::string in_front = StrCat(violations.front().field, " ");
  const std::string said =
      message.starts_with(in_front) ? message.substr(in_front.size()) : message;
  if (!rpc::LacksSubject(said)) {
    return message;
  }
  // `field` is a name in the request. Often the command has an option of the same name. Requests of
  // streamed calls have their fields in `header`.
  std::string_view field = violations.front().field;
  constexpr std::string_view kHeader = "header.";
  const bool is_option = FindOption(Chosen(&app_), StrCat("--", field)) != nullptr;
  field.remove_prefix(field.starts_with(kHeader) ? kHeader.size() : 0);
  return StrCat(is_option ? "--" : "", field, " ", said);
}

int CommandLine::Report(const absl::Status& done) {
  const absl::Status written = FlushOutput();
  const absl::Status& status = done.ok() ? written : done;
  const int exit_code = ExitCodeOf(status);
  if (exit_code == kExitDone) {
    return exit_code;
  }
  const bool is_tree = IsTree(common_.output);
  std::string message = is_tree ? std::string(status.message())
                                : EscapeForTerminal(MessageOf(status), /*keep_lines=*/true);
  if (exit_code == kExitWrongUse) {
    const std::string command(status.GetPayload(kWrongUsePayload).value_or(absl::Cord()));
    StrAppend(&message, " (see `", command.empty() ? FullName(Chosen(&app_)) : command,
              " --help`)");
  }
  if (is_tree) {
    std::cerr << TreeLine({{"error", ErrorJson(status, message)}}, common_.output);
  } else {
    std::cerr << kProgram << ": " << message
              << (exit_code == kExitWrongUse ? std::string() : ReasonSuffix(status)) << "\n"
              << FixLines(*Chosen(&app_), status);
  }
  return exit_code;
}

void CommandLine::UseContext(Invocation* invocation) const {
  const std::string path = ContextFilePath();
  const absl::StatusOr<ContextFile> file = ReadContexts(path);
  if (!file.ok()) {
    invocation->has_cluster = true;
    invocation->context_error = file.status();
    return;
  }
  const std::string& name = common_.context.empty() ? file->current : common_.context;
  if (name.empty()) return;
  invocation->has_cluster = true;
  const absl::StatusOr<Context> context = file->Find(name);
  if (!context.ok()) {
    invocation->context_error = WithContext(context.status(), path);
    return;
  }
  invocation->context = name;
  invocation->address = context->address;
  if (invocation->tls.empty()) invocation->tls = context->tls;
}

Invocation CommandLine::MakeInvocation() const {
  Invocation invocation;
  invocation.address = common_.address;
  invocation.has_address = !common_.address.empty();
  invocation.cluster_name = common_.cluster_name.value_or(kDefaultCluster);
  invocation.deadline = common_.deadline;
  invocation.output = common_.output;
  invocation.json = IsTree(common_.output);
  invocation.headers = !common_.no_headers;
  invocation.quiet = common_.quiet;
  invocation.tls = common_.tls;
  invocation.given_tls = common_.tls;
  // A user who gives an address, the name of a cluster or TLS files expects that a cluster answers,
  // and not this process.
  invocation.has_cluster =
      invocation.has_address || common_.cluster_name.has_value() || !common_.tls.empty();
  FillFromEnvironment(&invocation.tls);
  if (invocation.has_address) return invocation;
  const char* const variable = std::getenv(kAddressVariable);
  if (common_.context.empty() && variable != nullptr && *variable != '\0' &&
      !common_.cluster_name.has_value()) {
    invocation.address = variable;
    invocation.is_from_environment = true;
    invocation.has_cluster = true;
    return invocation;
  }
  if (!common_.cluster_name.has_value()) {
    UseContext(&invocation);
    if (!invocation.context.empty() || !invocation.context_error.ok()) return invocation;
  }
  if (const auto record = RecordedCluster(invocation.cluster_name); record.has_value()) {
    invocation.address = record->address;
    invocation.has_cluster = true;
    if (invocation.tls.empty() && !record->tls_folder.empty()) {
      invocation.tls = ClientTlsFiles(record->tls_folder);
    }
  } else if (absl::IsDataLoss(ReadRecord(ClusterFolder(invocation.cluster_name)).status())) {
    invocation.has_cluster = true;  // the unreadable record does not show whether the cluster is up
  } else if (invocation.cluster_name == kDefaultCluster) {
    invocation.address = kDefaultAddress;  // other clusters have no default address
  }
  return invocation;
}

void CommandLine::Parse(int argc, const char* const* argv) {
  if (argc > 1 && std::string_view(argv[1]) == "help") {
    // `shardmesh help COMMAND` is another spelling of `shardmesh COMMAND --help`, and `help help`
    // of `help`.
    const char* const* const end = argv + argc;
    const char* const* const command =
        std::find_if(argv + 2, end, [](std::string_view word) { return word != "help"; });
    std::vector<const char*> words = {argv[0]};
    words.insert(words.end(), command, end);
    words.push_back("--help");
    ParseWords(static_cast<int>(words.size()), words.data());
    return;
  }
  ParseWords(argc, argv);
}

void CommandLine::ParseWords(int argc, const char* const* argv) {
  const auto [command, after_command] = FindCommand(argc, argv);
  std::vector<std::string> arguments = Arguments(argc, argv, command, after_command);
  // CLI11 expects the arguments in reverse order.
  app_.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
}

absl::Status CommandLine::CheckCommonOptions(const CLI::App* command) const {
  const auto names_of = [](const std::set<const CLI::App*>& commands) {
    std::set<std::string> names;
    for (const CLI::App* each : commands) {
      names.insert(FullName(each).substr(std::string_view(kProgram).size() + 1));
    }
    return StrJoin(names, ", ");
  };
  if (common_.output == OutputForm::kName && name_commands_.count(command) == 0) {
    return WrongUse(
        StrCat("--output name: this command lists no names; these do: ", names_of(name_commands_)));
  }
  if (common_.watch && watched_commands_.count(command) == 0) {
    return WrongUse(StrCat("--watch: this command cannot be repeated; these can: ",
                           names_of(watched_commands_)));
  }
  if (!common_.context.empty() && (!common_.address.empty() || common_.cluster_name.has_value())) {
    return WrongUse(StrCat("--context and ", common_.address.empty() ? "--cluster" : "--address",
                           " both name a cluster; give one of them"));
  }
  return absl::OkStatus();
}

absl::Status CommandLine::RunHandler(const Invocation& invocation) {
  const absl::Status status =
      ExplainDeadline(handlers_.at(Chosen(&app_))(invocation), invocation.deadline);
  return *invocation.is_local ? ExplainMissingDefinition(status) : ExplainUnknownDefinition(status);
}

absl::Status CommandLine::Check(const std::vector<std::string>& arguments) {
  std::vector<const char*> words = {kProgram};
  for (const std::string& argument : arguments) words.push_back(argument.c_str());
  try {
    Parse(static_cast<int>(words.size()), words.data());
  } catch (const WrongCommand& error) {
    return error.status();
  } catch (const CLI::ParseError& error) {
    return ParseErrorStatus(error);
  }
  return CheckCommonOptions(Chosen(&app_));
}

int CommandLine::Run(int argc, const char* const* argv) {
  common_.output = AskedForm(argc, argv);
  if (const absl::Status checked = CheckUtf8(argc, argv); !checked.ok()) {
    return Report(checked);
  }
  try {
    Parse(argc, argv);
  } catch (const CLI::Success& help) {
    app_.exit(help);
    return Report(absl::OkStatus());
  } catch (const WrongCommand& error) {
    return Report(error.status());
  } catch (const CLI::ParseError& error) {
    return Report(ParseErrorStatus(error));
  }
  if (const absl::Status checked = CheckCommonOptions(Chosen(&app_)); !checked.ok()) {
    return Report(checked);
  }
  Table::UseStyle({.headers = !common_.no_headers, .wide = common_.output == OutputForm::kWide});
  absl::Status status;
  try {
    const Invocation invocation = MakeInvocation();
    if (const absl::Status tls = rpc::CheckComplete(invocation.tls); !tls.ok()) {
      status = WrongUse(ToStd(tls.message()));
    } else if (const absl::Status address = CheckAddress(invocation.address);
               (invocation.has_address || invocation.is_from_environment) && !address.ok()) {
      status = WrongUse(StrCat(invocation.has_address ? "--address" : kAddressVariable, ": ",
                               ToStd(address.message())));
    } else if (common_.watch) {
      status = Watch({.interval = common_.interval, .output = common_.output},
                     [&] { return RunHandler(invocation); });
    } else {
      status = RunHandler(invocation);
    }
  } catch (const std::system_error& error) {
    const bool is_limit = error.code() == std::errc::resource_unavailable_try_again;
    status = is_limit ? NoThread(error.code()) : absl::InternalError(error.what());
  } catch (const std::exception& error) {
    status = absl::InternalError(error.what());
  }
  const int exit_code = Report(status);
  if (const std::optional<int> signal = InterruptionOf(status); signal.has_value()) {
    EndBy(*signal);
  }
  return exit_code;
}

}  // namespace shardmesh::client
