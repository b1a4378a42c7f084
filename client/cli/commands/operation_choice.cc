// Compares a text with the numbers and ids of operations.
#include "client/cli/commands/operation_choice.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "client/cli/command_line.h"
#include "status/fact_keys.h"
#include "status/nearest_name.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

// Maximum number of operations that an error names.
constexpr size_t kMostNamedOperations = 5;

// Returns text such as `17 (save)` for at most kMostNamedOperations operations, the newest first.
// `with_ids`: `17 (save, id 0a1b...)`.
std::string NamesOf(const std::vector<const Operation*>& operations, bool with_ids) {
  std::vector<std::string> named;
  for (auto each = operations.rbegin(); each != operations.rend(); ++each) {
    if (named.size() == kMostNamedOperations) {
      named.push_back(StrCat(operations.size() - kMostNamedOperations, " more"));
      break;
    }
    const Operation& operation = **each;
    named.push_back(StrCat(operation.number, " (", OperationKindName(operation.kind),
                           with_ids ? StrCat(", id ", operation.operation_id) : std::string(),
                           ")"));
  }
  return StrJoin(named, ", ");
}

absl::Status NoSuchOperation(const std::string& text, absl::Span<const Operation> operations) {
  std::vector<std::string_view> ids;
  std::vector<const Operation*> running;
  for (const Operation& operation : operations) {
    ids.push_back(operation.operation_id);
    if (operation.state == OperationState::kRunning) running.push_back(&operation);
  }
  const bool is_short =
      text.size() < kMinIdPrefix &&
      std::any_of(ids.begin(), ids.end(), [&text](auto id) { return id.starts_with(text); });
  return WithReason(
      absl::NotFoundError(
          StrCat("there is no operation \"", text, "\", running or ended in the last ten minutes; ",
                 running.empty() ? std::string("none runs now")
                                 : StrCat("running: ", NamesOf(running, false)),
                 is_short ? StrCat("; give ", kMinIdPrefix, " or more characters of an id")
                          : DidYouMean(text, ids))),
      Reason::kNotFound, {{fact::kKind, "operation"}, {fact::kName, text}});
}

}  // namespace

absl::StatusOr<Operation> ChooseOperation(const std::string& text,
                                          absl::Span<const Operation> operations) {
  std::vector<const Operation*> meant;
  for (const Operation& operation : operations) {
    const bool has_number = StrCat(operation.number) == text;
    if (operation.operation_id == text) return operation;
    if (has_number && operation.state == OperationState::kRunning) return operation;
    if (has_number || (text.size() >= kMinIdPrefix && operation.operation_id.starts_with(text))) {
      meant.push_back(&operation);
    }
  }
  if (meant.empty()) return NoSuchOperation(text, operations);
  if (meant.size() == 1) return *meant.front();
  return WrongUse(StrCat("\"", text, "\" means ", meant.size(),
                         " operations, by the number or the beginning of the id: ",
                         NamesOf(meant, true), "; give the whole id of one"));
}

}  // namespace shardmesh::client
