// A get that its client carries out and reports, as an operation.
#ifndef SHARDMESH_SERVER_CALLS_REPORTED_GET_H_
#define SHARDMESH_SERVER_CALLS_REPORTED_GET_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "rpc/caller.h"
#include "server/state/operation_table.h"
#include "server/state/session.h"
#include "shardmesh/v1/operation_service.pb.h"

namespace shardmesh::server {

// The messages of one call of OperationService.ReportGet; the proto lists their errors. The first
// message begins an operation of kind kGet. The message with the result ends it. Not thread-safe.
class ReportedGet {
 public:
  // Both arguments outlive this object.
  ReportedGet(OperationTable* operations, const SessionTable* sessions)
      : operations_(operations), sessions_(sessions) {}
  ReportedGet(const ReportedGet&) = delete;
  ReportedGet& operator=(const ReportedGet&) = delete;

  // Takes the client's next message. The first message gives `cancel` to the operation. After an
  // error, the caller must call End.
  absl::Status Take(const v1::ReportGetRequest& request, const rpc::Caller& caller,
                    OperationTable::CancelCallback cancel);
  // Returns the status of a call whose client has ended its side. CANCELLED: no result has come.
  absl::Status Conclude() const;
  // Ends the operation with `status`, unless it has ended or never begun.
  void End(const absl::Status& status);

  bool has_begun() const { return !operation_id_.empty(); }
  // The operation's id; empty before the operation has begun.
  const std::string& operation_id() const { return operation_id_; }

 private:
  absl::Status Begin(const v1::ReportGetHeader& header, const rpc::Caller& caller,
                     OperationTable::CancelCallback cancel);

  OperationTable* const operations_;
  const SessionTable* const sessions_;
  std::string operation_id_;
  bool has_result_ = false;
  int64_t done_ = 0;        // arrays
  int64_t done_bytes_ = 0;  // of these arrays and of the one that is read
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_CALLS_REPORTED_GET_H_
