// For each error reason, its meaning and its remedy, from docs/errors.md.
#ifndef SHARDMESH_CLIENT_CLI_COMMANDS_ERROR_EXPLANATIONS_H_
#define SHARDMESH_CLIENT_CLI_COMMANDS_ERROR_EXPLANATIONS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace shardmesh::client {

// One row of the tables of docs/errors.md.
struct ErrorExplanation {
  std::string reason;              // such as "NOT_DIVISIBLE"
  std::string code;                // such as "INVALID_ARGUMENT, or a correction"
  std::string meaning;             // a sentence
  std::string action;              // a sentence about what the caller can do
  std::vector<std::string> facts;  // keys of facts that errors of this reason may have
};

// The text of docs/errors.md, which the build compiles into the program. The page is the only
// source of explanations.
std::string_view ErrorsPage();

// Returns the rows of all tables of a page like docs/errors.md, in the order of the page. A link
// `[text](path)` becomes `text (docs/path)`.
std::vector<ErrorExplanation> ParseErrorsPage(std::string_view page);

// The explanation of a reason. NOT_FOUND if there is no such reason; the message has the most
// similar reason, and the command that lists all reasons.
absl::StatusOr<ErrorExplanation> ExplainError(std::string_view reason);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_COMMANDS_ERROR_EXPLANATIONS_H_
