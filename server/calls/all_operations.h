// Answers about long operations: the puts of Transfers and the operations of OperationTable as one.
#ifndef SHARDMESH_SERVER_CALLS_ALL_OPERATIONS_H_
#define SHARDMESH_SERVER_CALLS_ALL_OPERATIONS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rpc/caller.h"
#include "server/state/operation_table.h"
#include "server/state/session.h"
#include "server/steps/transfers.h"
#include "shardmesh/v1/operation_service.pb.h"

namespace shardmesh::server {

// Answers calls of operation_service.proto and AdminService.ForceCancelOperation; the protos list
// their errors. Thread-safe.
class AllOperations {
 public:
  // All arguments outlive this object.
  AllOperations(Transfers* transfers, OperationTable* operations, const SessionTable* sessions)
      : transfers_(transfers), operations_(operations), sessions_(sessions) {}

  absl::StatusOr<OperationProgress> Progress(const std::string& operation_id) const;
  // Returns the workers of a running operation, as far as they are known.
  OperationWorkers WorkersOf(const std::string& operation_id) const;
  absl::Status GetOperation(const std::string& operation_id, v1::Operation* operation) const;
  absl::Status ListOperations(const v1::ListOperationsRequest& request,
                              v1::ListOperationsResponse* response) const;
  absl::Status CancelOperation(const v1::CancelOperationRequest& request, const rpc::Caller& caller,
                               v1::Operation* operation) const;
  // `caller`: who cancels; the operation's error says so.
  absl::Status ForceCancelOperation(const std::string& operation_id, const rpc::Caller& caller,
                                    v1::Operation* operation) const;

 private:
  // Whether the operation is one of OperationTable.
  bool IsInTable(const std::string& operation_id) const;

  Transfers* const transfers_;
  OperationTable* const operations_;
  const SessionTable* const sessions_;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_CALLS_ALL_OPERATIONS_H_
