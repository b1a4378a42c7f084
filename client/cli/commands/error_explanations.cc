// Reads the tables of docs/errors.md.
#include "client/cli/commands/error_explanations.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "status/fact_keys.h"
#include "status/nearest_name.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

// A cell in the form for a terminal. Paths of links are relative to docs/.
std::string PlainText(std::string_view cell) {
  std::string plain;
  while (true) {
    const size_t text = cell.find('[');
    const size_t path = cell.find("](", text);
    const size_t end = cell.find(')', path);
    if (text == std::string_view::npos || path == std::string_view::npos ||
        end == std::string_view::npos) {
      return plain.append(cell);
    }
    StrAppend(&plain, cell.substr(0, text), cell.substr(text + 1, path - text - 1), " (docs/",
              cell.substr(path + 2, end - path - 2), ")");
    cell.remove_prefix(end + 1);
  }
}

// The names in backticks.
std::vector<std::string> QuotedNames(std::string_view cell) {
  std::vector<std::string> names;
  const std::vector<std::string> pieces = absl::StrSplit(ToAbsl(cell), '`');
  for (size_t i = 1; i < pieces.size(); i += 2) {
    names.push_back(pieces[i]);
  }
  return names;
}

bool IsStatusCode(std::string_view name) {
  for (int code = 1; code <= static_cast<int>(absl::StatusCode::kUnauthenticated); ++code) {
    if (name == absl::StatusCodeToString(static_cast<absl::StatusCode>(code))) return true;
  }
  return false;
}

}  // namespace

std::vector<ErrorExplanation> ParseErrorsPage(std::string_view page) {
  std::vector<ErrorExplanation> explanations;
  for (const absl::string_view line : absl::StrSplit(ToAbsl(page), '\n')) {
    // "| `REASON` | code | meaning | action | facts |" has an empty piece at each end.
    const std::vector<absl::string_view> pieces = absl::StrSplit(line, '|');
    if (pieces.size() != 7 || !absl::StartsWith(line, "| `")) continue;
    const auto cell = [&](size_t i) {
      return PlainText(ToStd(absl::StripAsciiWhitespace(pieces[i])));
    };
    const std::string reason = cell(1);
    explanations.push_back({.reason = reason.substr(1, reason.size() - 2),
                            .code = cell(2),
                            .meaning = cell(3),
                            .action = cell(4),
                            .facts = QuotedNames(ToStd(pieces[5]))});
  }
  return explanations;
}

absl::StatusOr<ErrorExplanation> ExplainError(std::string_view reason) {
  const std::vector<ErrorExplanation> explanations = ParseErrorsPage(ErrorsPage());
  std::vector<std::string_view> known;
  for (const ErrorExplanation& each : explanations) {
    if (each.reason == reason) return each;
    known.push_back(each.reason);
  }
  const std::optional<std::string_view> nearest = NearestName(reason, known);
  const std::string message =
      IsStatusCode(reason)
          ? StrCat("\"", reason,
                   "\" is a status code. An error that shows it has no reason: it is a verdict of "
                   "the command, such as `plan --search` or `doctor`, or the connection failed, or "
                   "the server is newer; read the message")
          : StrCat("no reason of an error is named \"", reason, "\"", DidYouMean(reason, known),
                   nearest.has_value() ? " " : "; ",
                   "`shardmesh explain-error` without a reason lists all");
  return WithReason(
      absl::NotFoundError(ToAbsl(message)), Reason::kNotFound,
      {{fact::kKind, "reason"}, {fact::kName, reason}, {fact::kNearest, nearest.value_or("")}});
}

}  // namespace shardmesh::client
