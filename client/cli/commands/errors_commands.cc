// Command explain-error: the meaning of a reason, and what to do about it; or all reasons.
#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/error_explanations.h"
#include "client/cli/table.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

Json ReasonJson(const ErrorExplanation& explanation) {
  return {{"reason", explanation.reason},
          {"code", explanation.code},
          {"meaning", explanation.meaning},
          {"action", explanation.action},
          {"facts", explanation.facts}};
}

absl::Status ListReasons(const Invocation& invocation) {
  Json list = Json::array();
  std::vector<std::string> names;
  Table table({{"reason"}, {"code"}, {"meaning"}});
  for (const ErrorExplanation& each : ParseErrorsPage(ErrorsPage())) {
    list.push_back(ReasonJson(each));
    names.push_back(each.reason);
    // The table shows only the first sentence of a meaning. The explanation of one reason shows the
    // whole meaning.
    const size_t end = std::min(each.meaning.find(". "), each.meaning.size() - 1);
    table.AddRow({each.reason, each.code, each.meaning.substr(0, end + 1)});
  }
  if (invocation.json) {
    invocation.Print(list);
  } else if (invocation.names()) {
    PrintNames(names);
  } else {
    table.Print();
  }
  return absl::OkStatus();
}

absl::Status RunExplainError(const Invocation& invocation,
                             const std::optional<std::string>& reason) {
  if (!reason.has_value()) return ListReasons(invocation);
  SHARDMESH_ASSIGN_OR_RETURN(const ErrorExplanation explanation, ExplainError(*reason));
  if (invocation.json) {
    invocation.Print(ReasonJson(explanation));
  } else if (invocation.names()) {
    PrintNames({explanation.reason});
  } else {
    std::cout << "reason   " << explanation.reason << "\n"
              << "code     " << explanation.code << "\n"
              << "meaning  " << explanation.meaning << "\n"
              << "action   " << explanation.action << "\n"
              << "facts    "
              << (explanation.facts.empty() ? "none" : StrJoin(explanation.facts, ", ")) << "\n";
  }
  return absl::OkStatus();
}

}  // namespace

void AddErrorsCommands(CommandLine* line) {
  auto reason = std::make_shared<std::optional<std::string>>();
  CLI::App* const command = line->AddCommand(
      "explain-error",
      "Explain the reason of an error: its meaning, its status code, and what to do about it",
      [reason](const Invocation& i) { return RunExplainError(i, *reason); });
  line->PrintsNames(command);
  AddParsedOption(
      command, "reason", reason.get(),
      [](std::string_view text) -> absl::StatusOr<std::string> { return std::string(text); },
      "the word in parentheses at the end of an error, such as NOT_DIVISIBLE (default: list all)");
}

}  // namespace shardmesh::client
