// Begins, counts and ends the operation of a get that its client reports.
#include "server/calls/reported_get.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "rpc/codec/status.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

absl::Status CheckNotNegative(int64_t number, std::string_view field) {
  if (number >= 0) return absl::OkStatus();
  return rpc::BadField(field, StrCat("is ", number, "; it must not be negative"));
}

}  // namespace

absl::Status ReportedGet::Take(const v1::ReportGetRequest& request, const rpc::Caller& caller,
                               OperationTable::CancelCallback cancel) {
  if (request.has_header() == has_begun()) {
    return rpc::BadField("header", has_begun()
                                       ? "is set again; it belongs into the first message only"
                                       : "is missing; it must be in the first message");
  }
  if (has_result_) {
    return rpc::BadField("result", "was in the message before this one; end the call after it");
  }
  SHARDMESH_RETURN_IF_ERROR(CheckNotNegative(request.done(), "done"));
  SHARDMESH_RETURN_IF_ERROR(CheckNotNegative(request.done_bytes(), "done_bytes"));
  if (request.has_header()) {
    SHARDMESH_RETURN_IF_ERROR(Begin(request.header(), caller, std::move(cancel)));
  }
  const int64_t more = std::max<int64_t>(request.done() - done_, 0);
  const int64_t more_bytes = std::max<int64_t>(request.done_bytes() - done_bytes_, 0);
  if (more > 0 || more_bytes > 0) operations_->Add(operation_id_, more, more_bytes);
  done_ += more;
  done_bytes_ += more_bytes;
  if (request.has_result()) {
    has_result_ = true;
    End(rpc::DecodeBounded(request.result()));
  }
  return absl::OkStatus();
}

absl::Status ReportedGet::Begin(const v1::ReportGetHeader& header, const rpc::Caller& caller,
                                OperationTable::CancelCallback cancel) {
  SHARDMESH_RETURN_IF_ERROR(CheckNotNegative(header.total(), "header.total"));
  SHARDMESH_RETURN_IF_ERROR(CheckNotNegative(header.total_bytes(), "header.total_bytes"));
  SHARDMESH_RETURN_IF_ERROR(sessions_->Check(header.session_id(), caller));
  SHARDMESH_ASSIGN_OR_RETURN(const Session session, sessions_->Get(header.session_id()));
  std::string what = header.description();
  if (what.empty()) what = StrCat(header.total(), header.total() == 1 ? " array" : " arrays");
  SHARDMESH_ASSIGN_OR_RETURN(
      operation_id_, operations_->Begin(OperationKind::kGet, StrCat("get of ", what), session.id,
                                        session.number, std::move(cancel)));
  operations_->SetTotal(operation_id_, header.total(), header.total_bytes());
  return absl::OkStatus();
}

absl::Status ReportedGet::Conclude() const {
  if (!has_begun()) {
    return rpc::BadField("header", "is missing; it must be in the first message");
  }
  if (has_result_) return absl::OkStatus();
  return absl::CancelledError("the client ended its report without a result");
}

void ReportedGet::End(const absl::Status& status) {
  if (has_begun()) operations_->End(operation_id_, status);
}

}  // namespace shardmesh::server
