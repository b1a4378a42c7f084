// Command explain-error: the meaning of a reason, and what to do about it.
#include <iostream>
#include <memory>
#include <string>

#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/error_explanations.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

absl::Status RunExplainError(const Invocation& invocation, const std::string& reason) {
  SHARDMESH_ASSIGN_OR_RETURN(const ErrorExplanation explanation, ExplainError(reason));
  if (invocation.json) {
    invocation.Print({{"reason", explanation.reason},
                      {"code", explanation.code},
                      {"meaning", explanation.meaning},
                      {"action", explanation.action},
                      {"facts", explanation.facts}});
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
  auto reason = std::make_shared<std::string>();
  line->AddCommand(
          "explain-error",
          "Explain the reason of an error: its meaning, its status code, and what to do about it",
          [reason](const Invocation& i) { return RunExplainError(i, *reason); })
      ->add_option("reason", *reason,
                   "the word in parentheses at the end of an error, such as NOT_DIVISIBLE")
      ->required();
}

}  // namespace shardmesh::client
