// The frame of the command line; CLI11 reads the arguments, and its exceptions end here.
#include "client/cli/command_line.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "client/cli/interruption.h"
#include "client/cli/local/certificate_folder.h"
#include "client/cli/local/cluster_record.h"
#include "client/cli/spec_printing.h"
#include "client/cli/table.h"
#include "client/local/local_questions.h"
#include "process/file.h"
#include "process/host_port.h"
#include "process/version.h"
#include "rpc/call.h"
#include "rpc/codec/correction_codec.h"
#include "rpc/codec/message_subject.h"
#include "rpc/codec/status.h"
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
// Marks an error as one of the command line. Its text, where it has one, is the command whose help
// the error points to.
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

// The error's further facts; empty where there are none.
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

std::string ErrorJson(const absl::Status& status, const std::string& message) {
  const Reason reason = ReasonOf(status);
  Json error = {{"code", absl::StatusCodeToString(status.code())},
                {"reason", reason == Reason::kUnspecified ? Json(nullptr)
                                                          : Json(std::string(ReasonName(reason)))},
                {"message", message},
                {"retryable", rpc::IsRetryable(status)}};
  if (Json details = DetailsJson(status); !details.empty()) {
    error["details"] = std::move(details);
  }
  return Json{{"error", std::move(error)}}.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Before the arguments are read, which may fail.
bool AsksForJson(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--output=json" ||
        (argument == "--output" && i + 1 < argc && std::string_view(argv[i + 1]) == "json")) {
      return true;
    }
  }
  return false;
}

// Every name by which the options of `app` can be given, with its dashes.
std::vector<std::string> OptionNames(const CLI::App& app) {
  std::vector<std::string> names;
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

// Requests hold text, which is UTF-8 on the wire.
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

// Fills in options that were not given from the environment.
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

// The innermost command that the arguments chose.
CLI::App* Chosen(CLI::App* app) {
  const std::vector<CLI::App*> chosen = app->get_subcommands();
  return chosen.empty() ? app : Chosen(chosen.front());
}

// `shardmesh catalog get`.
std::string FullName(const CLI::App* app) {
  return app->get_parent() == nullptr ? kProgram
                                      : FullName(app->get_parent()) + " " + app->get_name();
}

// The arguments name no command below `at`. The message includes the part that they do name.
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

// Returns advice if the coordinator recorded by `up` has ended and therefore does not answer.
// Otherwise returns `error` itself.
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
  return absl::UnavailableError(
      StrCat("the coordinator of the cluster \"", cluster_name, "\" at ", record->address, " (pid ",
             coordinator.id.pid, ") has ended; the same `shardmesh up` starts it again",
             coordinator.log_path.empty() ? "" : StrCat("; its log is ", coordinator.log_path)));
}

// Fails if standard output could not be written, for example on a full disk.
absl::Status FlushOutput() {
  errno = 0;
  std::cout.flush();
  if (std::cout.good()) {
    return absl::OkStatus();
  }
  constexpr char kLost[] = "the command was done, but its output is lost";
  // errno is of the last write only. An earlier one may have failed.
  if (errno == 0 && std::fflush(stdout) == 0) {
    return absl::UnknownError(StrCat(kLost, ": cannot write standard output"));
  }
  const absl::Status why = FileError("write", "standard output", errno);
  return absl::UnknownError(StrCat(kLost, ": ", ToStd(why.message())));
}

}  // namespace

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
        std::cerr << StrCat(kProgram, ": waiting: ", ToStd(why.message()), ReasonSuffix(why), "\n");
      });
    };
  }
  options.client_name = "shardmesh command line";
  return options;
}

absl::StatusOr<std::unique_ptr<MeshClient>> Invocation::Connect() const {
  if (address.empty()) {
    return ExplainUnreachable(
        absl::UnavailableError(StrCat("no cluster \"", cluster_name, "\" is up on this host (",
                                      ClusterFolder(cluster_name),
                                      " has no record); give its --address, or another --name")),
        cluster_name);
  }
  MeshClientOptions options = ClientOptions();
  SHARDMESH_ASSIGN_OR_RETURN(options.credentials, Credentials());
  absl::StatusOr<std::unique_ptr<MeshClient>> client = MeshClient::Connect(address, options);
  if (client.ok() || has_address) return client;
  return is_from_environment ? WithContext(client.status(), kAddressVariable)
                             : ExplainUnreachable(client.status(), cluster_name);
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
  // Without a reason the error is not from a coordinator that supports the request.
  const bool is_unreachable = (absl::IsUnavailable(status) || absl::IsUnimplemented(status)) &&
                              ReasonOf(status) == Reason::kUnspecified;
  return is_unreachable ? kExitUnreachable : kExitFailed;
}

void PrintJson(const Json& json) {
  std::cout << json.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
}

CommandLine::CommandLine()
    : app_("Places tensors on meshes of workers, keeps them there, and computes with them.") {
  app_.name(kProgram);
  app_.set_version_flag("--version", StrCat(kProgram, " ", rpc::BuildVersion()));
  app_.require_subcommand(1);
  app_.footer(
      "`shardmesh COMMAND --help` explains a command. Exit codes: 0 done, 1 the operation "
      "failed, 2 wrong use, 3 the cluster cannot be reached.");
}

CLI::App* CommandLine::AddCommand(const std::string& name, const std::string& help, Handler handler,
                                  CLI::App* parent) {
  CLI::App* command = (parent == nullptr ? &app_ : parent)->add_subcommand(name, help);
  command->add_option("--address", common_.address,
                      "the coordinator, HOST:PORT (default: $SHARDMESH_ADDRESS, else the cluster "
                      "that `up` recorded; without one, questions about layouts are answered in "
                      "this process, and other commands ask 127.0.0.1:7070)");
  command->add_option("--name", common_.cluster_name,
                      "name of the cluster on this host that `up` recorded (default: default)");
  AddParsedOption(command, "--deadline", &common_.deadline, ParseDeadline,
                  "time limit for each call, and for connecting before it (default: 30s; for "
                  "transfers 30m)");
  command
      ->add_option_function<std::string>(
          "--output", [this](const std::string& text) { common_.json = text == "json"; },
          "table or json (default: table)")
      ->check(CLI::IsMember({"table", "json"}));
  command->add_option("--tls-cert", common_.tls.certificate,
                      "certificate to show to a cluster with TLS (PEM), with --tls-key and "
                      "--tls-ca (default: $SHARDMESH_TLS_CERT)");
  command->add_option("--tls-key", common_.tls.private_key,
                      "the certificate's key (PEM; default: $SHARDMESH_TLS_KEY)");
  command->add_option("--tls-ca", common_.tls.authorities,
                      "the authorities that sign the cluster's certificates (PEM; default: "
                      "$SHARDMESH_TLS_CA)");
  handlers_[command] = std::move(handler);
  return command;
}

CLI::App* CommandLine::AddGroup(const std::string& name, const std::string& help,
                                CLI::App* parent) {
  CLI::App& above = parent == nullptr ? app_ : *parent;
  const std::vector<CLI::App*> there =
      above.get_subcommands([&](const CLI::App* each) { return each->get_name() == name; });
  if (!there.empty()) return there.front();
  CLI::App* group = above.add_subcommand(name, help);
  group->require_subcommand(1);
  return group;
}

const CLI::App* CommandLine::FindCommand(int argc, const char* const* argv) {
  CLI::App* app = &app_;
  for (int i = 1; handlers_.find(app) == handlers_.end(); ++i) {
    const std::vector<std::string> known = CommandNames(*app);
    if (i == argc) {
      throw WrongCommand(app, StrCat("a command is missing: ", StrJoin(known, ", ")));
    }
    const std::string name = argv[i];
    if (name.starts_with('-')) {
      const std::string option = name.substr(0, name.find('='));
      const bool is_of_commands = app->get_option_no_throw(option) == nullptr &&
                                  handlers_.begin()->first->get_option_no_throw(option) != nullptr;
      if (is_of_commands) {
        throw WrongCommand(app, StrCat(option, " goes after the command: ", FullName(app),
                                       " COMMAND ", option, "=..."));
      }
      return nullptr;  // an option of the program itself: CLI11's to judge
    }
    const auto found = std::find(known.begin(), known.end(), name);
    if (found == known.end()) {
      throw WrongCommand(app,
                         StrCat("unknown command \"", name, "\"", DidYouMeanOneOf(name, known)));
    }
    app = app->get_subcommand(name);
  }
  return app;
}

std::vector<std::string> CommandLine::Arguments(int argc, const char* const* argv,
                                                const CLI::App* command) {
  const bool takes_specs = spec_commands_.find(command) != spec_commands_.end();
  std::vector<std::string> arguments;
  bool is_value = false;  // of the option before
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--") {
      arguments.insert(arguments.end(), argv + i, argv + argc);
      break;
    }
    const bool is_option = !is_value && argument.starts_with("--");
    if (is_option && argument.ends_with('=') && argument.find('=') + 1 == argument.size()) {
      arguments.emplace_back(argument.substr(0, argument.size() - 1));
      arguments.emplace_back();
      continue;
    }
    if (takes_specs && !is_value && argument.starts_with("-,")) {
      arguments.push_back(StrCat("_", argument.substr(1)));
    } else {
      arguments.emplace_back(argument);
    }
    const CLI::Option* const option = is_option && command != nullptr
                                          ? command->get_option_no_throw(std::string(argument))
                                          : nullptr;
    is_value = option != nullptr && option->get_items_expected_max() > 0;
  }
  return arguments;
}

absl::Status CommandLine::ParseErrorStatus(const CLI::ParseError& error) {
  const CLI::App* command = Chosen(&app_);
  std::string message = error.what();
  const std::vector<std::string> rest = command->remaining();
  if (!rest.empty()) {
    const std::string& first = rest.front();
    message = first.starts_with('-')
                  ? StrCat("unknown option ", first,
                           DidYouMeanOneOf(first.substr(0, first.find('=')), OptionNames(*command)))
                  : StrCat("unexpected argument \"", first, "\"");
  }
  // The library does not quote a value that is out of its range.
  constexpr std::string_view kValue = "Value ";
  constexpr std::string_view kRange = " not in range ";
  const size_t value = message.find(kValue);
  const size_t range = message.find(kRange);
  if (value < range && range != std::string::npos) {
    const size_t begin = value + kValue.size();
    message = StrCat(message.substr(0, value), "\"", message.substr(begin, range - begin),
                     "\" is no number from ", message.substr(range + kRange.size()));
  }
  return WrongUse(message);
}

std::string CommandLine::MessageOf(const absl::Status& status) {
  std::string message(status.message());
  const std::vector<rpc::FieldViolation> violations = rpc::FieldViolationsOf(status);
  if (violations.size() != 1) {
    return message;
  }
  // A server's message begins with the field.
  const std::string in_front = StrCat(violations.front().field, " ");
  const std::string said =
      message.starts_with(in_front) ? message.substr(in_front.size()) : message;
  if (!rpc::LacksSubject(said)) {
    return message;
  }
  // The field is the request's; often an option has the same name. Streamed calls have their fields
  // in a header.
  std::string_view field = violations.front().field;
  constexpr std::string_view kHeader = "header.";
  const bool is_option = Chosen(&app_)->get_option_no_throw(StrCat("--", field)) != nullptr;
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
  std::string message = common_.json ? std::string(status.message()) : MessageOf(status);
  if (exit_code == kExitWrongUse) {
    const std::string command(status.GetPayload(kWrongUsePayload).value_or(absl::Cord()));
    StrAppend(&message, " (see `", command.empty() ? FullName(Chosen(&app_)) : command,
              " --help`)");
  }
  if (common_.json) {
    std::cerr << ErrorJson(status, message) << "\n";
  } else {
    std::cerr << kProgram << ": " << message
              << (exit_code == kExitWrongUse ? std::string() : ReasonSuffix(status)) << "\n";
  }
  return exit_code;
}

Invocation CommandLine::MakeInvocation() const {
  Invocation invocation;
  invocation.address = common_.address;
  invocation.has_address = !common_.address.empty();
  invocation.cluster_name = common_.cluster_name.value_or(kDefaultCluster);
  invocation.deadline = common_.deadline;
  invocation.json = common_.json;
  invocation.tls = common_.tls;
  // Each of these says that a cluster is meant.
  invocation.has_cluster =
      invocation.has_address || common_.cluster_name.has_value() || !common_.tls.empty();
  FillFromEnvironment(&invocation.tls);
  if (invocation.has_address) return invocation;
  const char* const variable = std::getenv(kAddressVariable);
  if (variable != nullptr && *variable != '\0' && !common_.cluster_name.has_value()) {
    invocation.address = variable;
    invocation.is_from_environment = true;
    invocation.has_cluster = true;
    return invocation;
  }
  if (const auto record = RecordedCluster(invocation.cluster_name); record.has_value()) {
    invocation.address = record->address;
    invocation.has_cluster = true;
    if (invocation.tls.empty() && !record->tls_folder.empty()) {
      invocation.tls = ClientTlsFiles(record->tls_folder);
    }
  } else if (absl::IsDataLoss(ReadRecord(ClusterFolder(invocation.cluster_name)).status())) {
    invocation.has_cluster = true;  // nobody knows whether it is up
  } else if (invocation.cluster_name == kDefaultCluster) {
    invocation.address = kDefaultAddress;  // a cluster that was named is meant, and no other
  }
  return invocation;
}

int CommandLine::Run(int argc, const char* const* argv) {
  common_.json = AsksForJson(argc, argv);
  if (const absl::Status checked = CheckUtf8(argc, argv); !checked.ok()) {
    return Report(checked);
  }
  try {
    const CLI::App* const command = FindCommand(argc, argv);
    std::vector<std::string> arguments = Arguments(argc, argv, command);
    // CLI11 takes them from the end.
    app_.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::Success& help) {
    app_.exit(help);
    return Report(absl::OkStatus());
  } catch (const WrongCommand& error) {
    return Report(error.status());
  } catch (const CLI::ParseError& error) {
    return Report(ParseErrorStatus(error));
  }
  absl::Status status;
  try {
    const Invocation invocation = MakeInvocation();
    if (const absl::Status tls = rpc::CheckComplete(invocation.tls); !tls.ok()) {
      status = WrongUse(ToStd(tls.message()));
    } else if (const absl::Status address = rpc::CheckAddress(invocation.address);
               (invocation.has_address || invocation.is_from_environment) && !address.ok()) {
      status = WrongUse(StrCat(invocation.has_address ? "--address" : kAddressVariable, ": ",
                               ToStd(address.message())));
    } else {
      status = handlers_.at(Chosen(&app_))(invocation);
      if (*invocation.is_local) status = ExplainMissingDefinition(status);
    }
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
