// The program conformance: recorded answers against the library's, the local client's, or a
// coordinator's.
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/local/local_questions.h"
#include "client/mesh_client.h"
#include "process/log.h"
#include "server/coordinator_server.h"
#include "status/str_cat.h"
#include "tests/conformance/all_questions.h"
#include "tests/conformance/runner.h"

namespace shardmesh::conformance {
namespace {

constexpr int kPassed = 0;
constexpr int kFailed = 1;
constexpr int kWrongUse = 2;

constexpr std::string_view kUsage =
    R"(usage: conformance DIR [--wire | --local] [--address HOST:PORT] [--list-unsupported]

Asks every case of DIR/*.jsonl as its "fn" says and compares the answer with the recorded one: the
value, or the Python class of the error; texts of errors are not compared. Prints each line that
fails with both answers, and the counts of each file. tests/data/goldens/README.md describes the
lines.

  --wire               ask a coordinator over gRPC instead of the library; starts one in this process
  --local              ask the client that answers in this process, without a port
  --address HOST:PORT  with --wire: ask this coordinator
  --list-unsupported   print what is unsupported, line by line, and the rest on standard error
  --help               print this

Unsupported, which is no failure, are functions that nobody answers, and patterns that are
not supported (UNSUPPORTED_PATTERN) where the original has an answer.

Exit code: 0 if nothing failed and something passed, 1 if not, 2 for wrong use.

What only Python can express is translated or answered here:
)";

struct Arguments {
  bool help = false;
  std::string folder;
  bool wire = false;
  bool local = false;
  std::string address;  // empty: of a coordinator in this process
  bool list_unsupported = false;
};

// Nullopt, after a word on standard error, for wrong use.
std::optional<Arguments> Parse(int argc, char** argv) {
  Arguments arguments;
  const auto wrong = [](const std::string& message) -> std::optional<Arguments> {
    std::cerr << "conformance: " << message << "; see conformance --help\n";
    return std::nullopt;
  };
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--help" || argument == "-h") {
      arguments.help = true;
      return arguments;
    }
    if (argument == "--wire") {
      arguments.wire = true;
    } else if (argument == "--local") {
      arguments.local = true;
    } else if (argument == "--list-unsupported") {
      arguments.list_unsupported = true;
    } else if (argument == "--address") {
      if (++i == argc) return wrong("--address needs HOST:PORT");
      arguments.address = argv[i];
    } else if (argument.starts_with("-")) {
      return wrong(StrCat("unknown option ", argument));
    } else if (!arguments.folder.empty()) {
      return wrong(StrCat("one folder at a time, not ", arguments.folder, " and ", argument));
    } else {
      arguments.folder = argument;
    }
  }
  if (arguments.folder.empty()) return wrong("no folder is given");
  if (arguments.wire && arguments.local) return wrong("--wire and --local exclude each other");
  if (!arguments.address.empty() && !arguments.wire) return wrong("--address needs --wire");
  return arguments;
}

void PrintHelp() {
  std::cout << kUsage;
  for (const std::string_view text : AnsweredByTheRunner()) std::cout << "  - " << text << "\n";
}

int Ask(const Arguments& arguments, const Questions& questions) {
  std::ostream& out = arguments.list_unsupported ? std::cerr : std::cout;
  const absl::StatusOr<RunResult> result = RunFolder(arguments.folder, questions, out);
  if (!result.ok()) {
    std::cerr << "conformance: " << ToStd(result.status().message()) << "\n";
    return kWrongUse;
  }
  PrintCounts(*result, out);
  if (arguments.list_unsupported) PrintUnsupported(*result, std::cout);
  return result->Succeeded() ? kPassed : kFailed;
}

int AskOverTheWire(const Arguments& arguments) {
  ConfigureLog({.level = LogLevel::kWarning});
  std::unique_ptr<server::CoordinatorServer> server;
  std::string address = arguments.address;
  if (address.empty()) {
    server::CoordinatorOptions options;
    options.listen_address = "127.0.0.1:0";
    options.http_address.clear();
    auto started = server::CoordinatorServer::Start(std::move(options));
    if (!started.ok()) {
      std::cerr << "conformance: no coordinator: " << ToStd(started.status().message()) << "\n";
      return kFailed;
    }
    server = *std::move(started);
    address = server->address();
  }
  int code = kFailed;
  if (auto client = client::MeshClient::Connect(address); client.ok()) {
    code = Ask(arguments, WireQuestions(**client));
  } else {
    std::cerr << "conformance: " << ToStd(client.status().message()) << "\n";
  }
  if (server != nullptr) server->Drain(absl::Now() + absl::Seconds(5));
  return code;
}

int AskLocally(const Arguments& arguments) {
  ConfigureLog({.level = LogLevel::kWarning});
  const auto local = client::LocalQuestions::Start();
  if (!local.ok()) {
    std::cerr << "conformance: " << ToStd(local.status().message()) << "\n";
    return kFailed;
  }
  return Ask(arguments, WireQuestions((*local)->client()));
}

int Main(int argc, char** argv) {
  const std::optional<Arguments> arguments = Parse(argc, argv);
  if (!arguments.has_value()) return kWrongUse;
  if (arguments->help) {
    PrintHelp();
    return kPassed;
  }
  if (arguments->local) return AskLocally(*arguments);
  return arguments->wire ? AskOverTheWire(*arguments) : Ask(*arguments, LibraryQuestions());
}

}  // namespace
}  // namespace shardmesh::conformance

int main(int argc, char** argv) { return shardmesh::conformance::Main(argc, argv); }
