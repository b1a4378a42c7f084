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
#include "rpc/tls/certificate.h"
#include "rpc/tls/credentials.h"
#include "status/str_cat.h"

namespace shardmesh::client {

// Exit codes of the program; part of its contract.
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;       // the operation failed, or the server refused it
inline constexpr int kExitWrongUse = 2;     // the command line itself
inline constexpr int kExitUnreachable = 3;  // no cluster answers at the address

// Settings of one run of one command, besides its own options.
struct Invocation {
  // The coordinator: --address, else --context, else $SHARDMESH_ADDRESS, else that of the
  // current context, else of the cluster that `up` recorded, else 127.0.0.1:7070. Empty if there
  // is none.
  std::string address;
  // Whether --address was given.
  bool has_address = false;
  // Whether the address is $SHARDMESH_ADDRESS.
  bool is_from_environment = false;
  // The context that gave the address; empty if none did.
  std::string context;
  // Why the chosen context has no address: the error of Connect.
  absl::Status context_error;
  // Whether the command requires a cluster: an address, a context, --cluster or TLS options were
  // given, or a cluster's record was found. Otherwise questions are answered in process.
  bool has_cluster = false;
  // The name of the cluster for `up` and `down`.
  std::string cluster_name;
  // As given. Otherwise commands that move tensors use their own, longer deadline.
  std::optional<absl::Duration> deadline;
  OutputForm output = OutputForm::kTable;
  // Whether the answer is a tree of values, which Print writes: JSON or YAML.
  bool json = false;
  // --no-headers: tables have neither headers nor totals.
  bool headers = true;
  // --quiet: only errors on standard error.
  bool quiet = false;
  // As given by options or in the environment, else from the context, or the client's files of the
  // cluster that `up` recorded; empty for plaintext.
  rpc::TlsFiles tls = {};
  // As given by options.
  rpc::TlsFiles given_tls = {};

  // Whether only names are printed (PrintNames).
  bool names() const { return output == OutputForm::kName; }
  // Writes a document to standard output in the form of --output.
  void Print(const Json& json_value) const { PrintTree(json_value, output); }
  absl::Duration DeadlineOr(absl::Duration otherwise) const { return deadline.value_or(otherwise); }
  // Errors of rpc::Credentials::FromFiles.
  absl::StatusOr<rpc::Credentials> Credentials() const { return rpc::Credentials::FromFiles(tls); }
  // Errors of Credentials and of MeshClient::Connect; UNAVAILABLE if a cluster was named that is
  // not up here.
  absl::StatusOr<std::unique_ptr<MeshClient>> Connect() const;
  // For commands that call `address` without Connect. If `error` says that it cannot be reached,
  // adds the origin of the address, or that no cluster is up on this host and what starts one.
  // Returns other errors as they are.
  absl::Status ExplainUnanswered(const absl::Status& error) const;
  // The client for questions that need neither workers nor arrays: that of the cluster, else one
  // that answers in this process. Errors of Connect, and of LocalQuestions::Start.
  absl::StatusOr<std::shared_ptr<MeshClient>> ConnectToAsk() const;
  // Set by ConnectToAsk: whether this process answers.
  std::shared_ptr<bool> is_local = std::make_shared<bool>(false);

 private:
  MeshClientOptions ClientOptions() const;
  // As ExplainUnanswered, of every error of a connection.
  absl::Status WithOrigin(const absl::Status& error) const;
};

// Runs a command. Results go to standard output, all other text to standard error.
using Handler = std::function<absl::Status(const Invocation&)>;

// A wrong-use error: its exit code is kExitWrongUse.
absl::Status WrongUse(std::string_view message);

// An error as `--output json` shows it: code, reason, `message`, retryable and details.
Json ErrorJson(const absl::Status& status, std::string_view message);

// The program's exit code after `status`: an UNAVAILABLE without a reason comes from the
// connection, not from a server.
int ExitCodeOf(const absl::Status& status);

// The program's commands. Not thread-safe.
class CommandLine {
 public:
  CommandLine();

  // Defines a command below `parent` (null: the program). Returns an app for its own options.
  // Common options belong to the program and may stand before or after a command.
  CLI::App* AddCommand(const std::string& name, const std::string& help, Handler handler,
                       CLI::App* parent = nullptr);
  // Lets a command print names with `--output name`; other commands refuse that.
  void PrintsNames(const CLI::App* command) { name_commands_.insert(command); }
  // Lets a command repeat with --watch; other commands refuse that.
  void CanBeWatched(const CLI::App* command) { watched_commands_.insert(command); }
  // Marks the operands of a command as specs, so that one may begin with a dash: `-,tp`.
  void TakeSpecOperands(const CLI::App* command) { spec_commands_.insert(command); }
  // Defines a group of commands, or returns the existing group.
  CLI::App* AddGroup(const std::string& name, const std::string& help, CLI::App* parent = nullptr);

  // Puts the program's commands with these names into a section of its help. Sections appear in the
  // order of the calls.
  void AddSection(const std::string& title, const std::vector<std::string>& commands);
  // Appends each text to the help of the command that it names, such as `shardmesh ls layers`. The
  // shell's quotes separate the words.
  void AddExamples(const std::vector<std::string>& examples);
  // The examples of a command.
  std::vector<std::string> ExamplesOf(const CLI::App* command) const;
  // The program with all its commands.
  const CLI::App& app() const { return app_; }
  // Whether the arguments, without the program's name, are a command and its options. Call it once
  // for each object.
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
  // The option of the command or the program with which `argument` begins; null: none.
  const CLI::Option* FindOption(const CLI::App* command, const std::string& argument) const;
  // The command that the words name, and the index after its name. Common options may be in
  // between; other options give null. Throws CLI::ParseError if the words name no command.
  std::pair<const CLI::App*, int> FindCommand(int argc, const char* const* argv) const;
  // The arguments in CLI11's notation: `--shape=` becomes `--shape ''`, and a spec's leading dash
  // becomes the underscore, which has the same meaning.
  std::vector<std::string> Arguments(int argc, const char* const* argv, const CLI::App* command,
                                     int after_command) const;
  // Reads the arguments into the options' targets. Throws CLI::ParseError.
  void Parse(int argc, const char* const* argv);
  // A wrong-use error if the common options do not fit the command or each other.
  absl::Status CheckCommonOptions(const CLI::App* command) const;
  // Converts wrong arguments to a usage error.
  absl::Status ParseErrorStatus(const CLI::ParseError& error);
  // An error for a person. If it concerns a field that its text does not name, adds the name of the
  // field, or of the option with the same name.
  std::string MessageOf(const absl::Status& status);
  // The cluster of a command: from the options, then the environment, then the current context,
  // then the records.
  Invocation MakeInvocation() const;
  // Takes the address and the TLS files of the chosen context, if any.
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

// Adds an option whose text `parse` reads into `*target`, which outlives the app. An error of
// `parse` counts as wrong use. Target may be T or std::optional<T>.
template <typename Parse, typename Target>
CLI::Option* AddParsedOption(CLI::App* app, const std::string& names, Target* target, Parse parse,
                             const std::string& help) {
  return app->add_option_function<std::string>(
      names,
      [target, parse, names](const std::string& text) {
        auto value = parse(std::string_view(text));
        if (!value.ok()) {
          // The error names the option: its name comes after the positional name, if any.
          throw CLI::ValidationError(names.substr(names.rfind(',') + 1),
                                     std::string(value.status().message()));
        }
        *target = *std::move(value);
      },
      help);
}

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_COMMAND_LINE_H_
