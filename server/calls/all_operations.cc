// Answers about long operations.
#include "server/calls/all_operations.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "rpc/codec/field_check.h"
#include "rpc/codec/status.h"
#include "server/calls/cluster_pages.h"
#include "server/codec/operation_codec.h"
#include "status/detail.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// A page of operations ends once it has this many bytes.
constexpr int64_t kOperationPageBytes = int64_t{1} << 20;

}  // namespace

bool AllOperations::IsInTable(const std::string& operation_id) const {
  return operations_->Progress(operation_id).ok();
}

absl::StatusOr<OperationProgress> AllOperations::Progress(const std::string& operation_id) const {
  if (const auto put = transfers_->Progress(operation_id); put.ok()) return AsOperation(*put);
  return operations_->Progress(operation_id);
}

OperationWorkers AllOperations::WorkersOf(const std::string& operation_id) const {
  OperationWorkers workers = transfers_->WorkersOf(operation_id);
  workers.Add(operations_->WorkersOf(operation_id));
  return workers;
}

absl::Status AllOperations::GetOperation(const std::string& operation_id,
                                         v1::Operation* operation) const {
  SHARDMESH_ASSIGN_OR_RETURN(const OperationProgress progress, Progress(operation_id));
  Encode(progress, operation);
  return absl::OkStatus();
}

absl::Status AllOperations::ListOperations(const v1::ListOperationsRequest& request,
                                           v1::ListOperationsResponse* response) const {
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t page_size,
                             rpc::CheckPageSize(request.page_size(), "page_size"));
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t after, NumberOfPageToken(request.page_token()));
  std::set<int> states(request.states().begin(), request.states().end());
  for (const int state : states) {
    if (state == v1::OPERATION_STATE_UNSPECIFIED || !v1::OperationState_IsValid(state)) {
      return rpc::BadField("states", StrCat("has the number ", state, ", which is no state"));
    }
  }
  const auto is_wanted = [&states](const OperationProgress& progress) {
    return states.empty() || states.contains(EncodeState(progress));
  };
  const Transfers::Listed puts = transfers_->List(
      after, page_size,
      [&](const TransferProgress& progress) { return is_wanted(AsOperation(progress)); });
  OperationTable::Listed others = operations_->List(after, page_size, is_wanted);
  std::vector<OperationProgress> listed = std::move(others.operations);
  for (const TransferProgress& put : puts.puts) listed.push_back(AsOperation(put));
  std::sort(listed.begin(), listed.end(),
            [](const auto& one, const auto& other) { return one.number < other.number; });
  // Beyond the point where one of the two lists broke off, the other list alone is not complete.
  constexpr int64_t kNoEnd = std::numeric_limits<int64_t>::max();
  const auto end_of = [](int64_t next_after) { return next_after == 0 ? kNoEnd : next_after; };
  const int64_t complete_until = std::min(end_of(puts.next_after), end_of(others.next_after));
  PageBudget budget(page_size, kOperationPageBytes);
  int64_t next_after = complete_until == kNoEnd ? 0 : complete_until;
  for (const OperationProgress& progress : listed) {
    if (progress.number > complete_until) break;
    if (budget.is_spent()) {
      next_after = response->operations().rbegin()->number();
      break;
    }
    v1::Operation* const added = response->add_operations();
    Encode(progress, added);
    budget.Spend(*added);
  }
  if (next_after > 0) response->set_next_page_token(StrCat(next_after));
  return absl::OkStatus();
}

absl::Status AllOperations::CancelOperation(const v1::CancelOperationRequest& request,
                                            const rpc::Caller& caller,
                                            v1::Operation* operation) const {
  const std::string& id = request.operation_id();
  SHARDMESH_RETURN_IF_ERROR(sessions_->Check(request.session_id(), caller));
  if (IsInTable(id)) {
    SHARDMESH_RETURN_IF_ERROR(operations_->Cancel(id, request.session_id()));
  } else {
    SHARDMESH_RETURN_IF_ERROR(transfers_->CheckOwner(id, request.session_id()));
    SHARDMESH_RETURN_IF_ERROR(transfers_->Abort(
        id, WithReason(absl::CancelledError("the operation was cancelled"), Reason::kCancelled)));
  }
  return GetOperation(id, operation);
}

absl::Status AllOperations::ForceCancelOperation(const std::string& operation_id,
                                                 const rpc::Caller& caller,
                                                 v1::Operation* operation) const {
  const absl::Status reason =
      WithReason(absl::CancelledError(StrCat("an administrator (", caller.name, ") cancelled it")),
                 Reason::kCancelled);
  SHARDMESH_RETURN_IF_ERROR(IsInTable(operation_id) ? operations_->CancelFor(operation_id, reason)
                                                    : transfers_->Abort(operation_id, reason));
  return GetOperation(operation_id, operation);
}

}  // namespace shardmesh::server
