// The frame of the command line: commands with their common options, errors and exit codes.
#ifndef SHARDMESH_CLIENT_CLI_COMMAND_LINE_H_
#define SHARDMESH_CLIENT_CLI_COMMAND_LINE_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cli/help_formatter.h"
#include "client/cli/output_form.h"
#include "client/mesh_client.h"
#include "process/steady_deadline.h"
#include "rpc/tls/certificate.h"
#include "rpc/tls/credentials.h"
#include "status/str_cat.h"

namespace shardmesh::client {

// Exit codes of the program; part of its contract.
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;       // the operation failed, or the server refused it
inline constexpr int kExitWrongUse = 2;     // the command line itself is wrong
inline constexpr int kExitUnreachable = 3;  // no cluster answers at the address

// Settings of one run of a command, without the options that only this command has.
struct Invocation {
  // The coordinator's address: the first that is given of --address, the context of --context,
  // $SHARDMESH_ADDRESS, the current context, and the record of `up`. If none is given,
  // 127.0.0.1:7070. Empty if `context_error` is set or the record of `up` is unreadable. Also empty
  // if --cluster names a cluster, other than the default one, that is not up on this host.
  std::string address;
  // Whether the option --address was given.
  bool has_address = false;
  // Whether the address comes from $SHARDMESH_ADDRESS.
  bool is_from_environment = false;
  // The name of the context that gave the address; empty if no context did.
  std::string context;
  // Why the chosen context could not be read; otherwise OK. Connect returns this error.
  absl::Status context_error;
  // Whether the command requires a cluster: an address, a context, --cluster or TLS options were
  // given, or a cluster's record was found. If false, this process answers questions.
  bool has_cluster = false;
  // The name of the local cluster that `up` starts and `down` stops.
  std::string cluster_name;
  // The value of --deadline; nullopt if it was not given. If --deadline was not given, commands
  // that move tensors have a longer deadline than other commands.
  std::optional<absl::Duration> deadline;
  OutputForm output = OutputForm::kTable;
  // Whether the answer is printed as JSON or YAML (by Print).
  bool json = false;
  // Whether tables have headers and totals; false with --no-headers.
  bool headers = true;
  // Whether standard error gets only errors; set by --quiet.
  bool quiet = false;
  // The TLS files that options or the environment give. If they give none, the files of the
  // context, or the client's files of the cluster that `up` recorded. Empty means plaintext.
  rpc::TlsFiles tls = {};
  // The TLS files that options give; files from the environment, a context or a record do not
  // count.
  rpc::TlsFiles given_tls = {};

  // Whether only names are printed (PrintNames).
  bool names() const { return output == OutputForm::kName; }
  // Writes a document to standard output in the form of --output.
  void Print(const Json& json_value) const { PrintTree(json_value, output); }
  absl::Duration DeadlineOr(absl::Duration otherwise) const { return deadline.value_or(otherwise); }
  // Returns the end of --deadline for a command that begins now; nullopt without --deadline. A
  // command of several parts calls this once, and passes the result to all of its parts.
  std::optional<SteadyDeadline> BeginDeadline() const;
  // Returns what OpenUntil returns for a checkpoint whose opening begins now; null without
  // --deadline.
  std::function<absl::Status()> KeepOpening() const { return KeepOpening(BeginDeadline()); }
  // Returns what OpenUntil returns for `end`; null if `end` is nullopt.
  static std::function<absl::Status()> KeepOpening(const std::optional<SteadyDeadline>& end);
  // Loads `tls`. Errors of rpc::Credentials::FromFiles.
  absl::StatusOr<rpc::Credentials> Credentials() const { return rpc::Credentials::FromFiles(tls); }
  // Connects to the cluster. Errors of Credentials and of MeshClient::Connect; UNAVAILABLE if
  // --cluster names a cluster that is not up on this host. `end`: the BeginDeadline of the command;
  // the time that is left limits the connection and each call of the client, instead of the whole
  // of --deadline.
  absl::StatusOr<std::unique_ptr<MeshClient>> Connect(
      const std::optional<SteadyDeadline>& end = std::nullopt) const;
  // Explains the error of a command that calls `address` without Connect. If `error` says that the
  // address cannot be reached, adds to the message where the address comes from. If no cluster is
  // up on this host, adds that fact and how to start one. Returns other errors unchanged.
  absl::Status ExplainUnanswered(const absl::Status& error) const;
  // Returns a client for questions that need neither workers nor arrays. The cluster answers if
  // `has_cluster` is true; this process answers if it is false. Errors of Connect, and of
  // LocalQuestions::Start.
  absl::StatusOr<std::shared_ptr<MeshClient>> ConnectToAsk() const;
  // Whether this process, and not a cluster, answers the questions. ConnectToAsk sets this.
  std::shared_ptr<bool> is_local = std::make_shared<bool>(false);

 private:
  MeshClientOptions ClientOptions() const;
  // Returns the error of a connection with the additions that ExplainUnanswered describes.
  absl::Status WithOrigin(const absl::Status& error) const;
};

// Runs a command. Results go to standard output, all other text to standard error.
using Handler = std::function<absl::Status(const Invocation&)>;

// Returns a wrong-use error, for which the program exits with kExitWrongUse.
absl::Status WrongUse(std::string_view message);

// An error as `--output json` shows it: code, reason, `message`, retryable and details.
Json ErrorJson(const absl::Status& status, std::string_view message);

// The program's exit code after `status`. The code is kExitUnreachable for UNAVAILABLE and
// UNIMPLEMENTED without a reason. Such an error comes from the connection, or from a server that is
// no coordinator of this version.
int ExitCodeOf(const absl::Status& status);

// The program's commands. Not thread-safe.
class CommandLine {
 public:
  CommandLine();

  // Defines a command below `parent` (null: the program). Returns an app to which the caller adds
  // the command's own options. Common options belong to the program: users may write them before or
  // after the command.
  CLI::App* AddCommand(const std::string& name, const std::string& help, Handler handler,
                       CLI::App* parent = nullptr);
  // Lets a command print names with `--output name`; other commands refuse the form `name`.
  void PrintsNames(const CLI::App* command) { name_commands_.insert(command); }
  // Lets a command repeat with --watch; other commands refuse --watch.
  void CanBeWatched(const CLI::App* command) { watched_commands_.insert(command); }
  // Marks the operands of a command as specs. Such an operand may begin with a dash: `-,tp`.
  void TakeSpecOperands(const CLI::App* command) { spec_commands_.insert(command); }
  // Defines a group of commands, or returns the existing group.
  CLI::App* AddGroup(const std::string& name, const std::string& help, CLI::App* parent = nullptr);

  // Puts the commands of the program with the names `commands` into a section of the program's
  // help. Sections appear in the order of the calls of AddSection.
  void AddSection(const std::string& title, const std::vector<std::string>& commands);
  // Appends each example, such as `shardmesh ls layers`, to the help of its command. The text is
  // split into words as a shell does.
  void AddExamples(const std::vector<std::string>& examples);
  // The examples of a command.
  std::vector<std::string> ExamplesOf(const CLI::App* command) const;
  // The program with all its commands.
  const CLI::App& app() const { return app_; }
  // Returns OK if the arguments, without the program's name, are a valid command with valid
  // options. Runs nothing. Call Check at most once for each object.
  absl::Status Check(const std::vector<std::string>& arguments);

  // Runs the command in the arguments; returns the program's exit code. Writes errors to standard
  // error as `shardmesh: message (REASON)`, or in the form of --output json or yaml.
  int Run(int argc, const char* const* argv);

 private:
  struct CommonOptions {
    std::string address;
    std::string context;
    std::optional<std::string> cluster_name;
    std::optional<absl::Duration> deadline;
    OutputForm output = OutputForm::kTable;
    bool no_headers = false;
    bool quiet = false;
    bool watch = false;
    absl::Duration interval = absl::Seconds(2);
    rpc::TlsFiles tls;
  };

  void AddCommonOptions();
  // Returns the option with which `argument` begins. Searches the options of the command, and of
  // the groups and the program above the command. Null if there is no such option.
  const CLI::Option* FindOption(const CLI::App* command, const std::string& argument) const;
  // Returns the command that the arguments name, and the index of the argument after the command's
  // name. Common options may stand between the words of the name. If any other option stands there,
  // the returned command is null. Throws CLI::ParseError if the words name no command.
  std::pair<const CLI::App*, int> FindCommand(int argc, const char* const* argv) const;
  // Returns the arguments in CLI11's notation: `--shape=` becomes `--shape ''`. The leading dash of
  // a spec becomes an underscore, which has the same meaning in specs.
  std::vector<std::string> Arguments(int argc, const char* const* argv, const CLI::App* command,
                                     int after_command) const;
  // Reads the arguments into the options' targets. Throws CLI::ParseError.
  void Parse(int argc, const char* const* argv);
  // Like Parse, but `help COMMAND` has become `COMMAND --help`.
  void ParseWords(int argc, const char* const* argv);
  // Returns a wrong-use error if a common option does not fit the command, or if common options
  // contradict each other.
  absl::Status CheckCommonOptions(const CLI::App* command) const;
  // Converts wrong arguments to a usage error.
  absl::Status ParseErrorStatus(const CLI::ParseError& error);
  // Returns the error's message for a person. If the error is about one field of the request, and
  // the message does not name the field, prepends the field. If the command has an option with the
  // field's name, prepends the option.
  std::string MessageOf(const absl::Status& status);
  // Returns the settings of the parsed command. The cluster's address comes from the options; else
  // from the environment; else from the current context; else from the record of `up`.
  Invocation MakeInvocation() const;
  // Sets the address and the context of `invocation` from the chosen context, if there is one. Sets
  // the TLS files too, unless `invocation` already has some. If the context cannot be read, sets
  // `context_error`.
  void UseContext(Invocation* invocation) const;
  // Runs the handler of the parsed command.
  absl::Status RunHandler(const Invocation& invocation);
  // Writes an error to standard error; returns the exit code.
  int Report(const absl::Status& status);

  CLI::App app_;
  std::map<const CLI::App*, Handler> handlers_;
  std::set<const CLI::App*> spec_commands_;
  std::set<const CLI::App*> name_commands_;
  std::set<const CLI::App*> watched_commands_;
  std::shared_ptr<HelpFormatter> help_ = std::make_shared<HelpFormatter>();
  std::map<const CLI::App*, std::vector<std::string>> examples_;
  CommonOptions common_;
};

// Adds an option whose text `parse` reads into `*target`, which must outlive the app. An error of
// `parse` is wrong use of the command line. Target is the type T that `parse` returns, or
// std::optional<T>.
template <typename Parse, typename Target>
CLI::Option* AddParsedOption(CLI::App* app, const std::string& names, Target* target, Parse parse,
                             const std::string& help) {
  return app->add_option_function<std::string>(
      names,
      [target, parse, names](const std::string& text) {
        auto value = parse(std::string_view(text));
        if (!value.ok()) {
          // The error shows the option's last name, which follows the positional name, if any.
          throw CLI::ValidationError(names.substr(names.rfind(',') + 1),
                                     std::string(value.status().message()));
        }
        *target = *std::move(value);
      },
      help);
}

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_COMMAND_LINE_H_
