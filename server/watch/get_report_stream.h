// Serves the ReportGet streams of OperationService, by which gets of clients are operations.
#ifndef SHARDMESH_SERVER_WATCH_GET_REPORT_STREAM_H_
#define SHARDMESH_SERVER_WATCH_GET_REPORT_STREAM_H_

#include <grpcpp/grpcpp.h>

#include "process/clock.h"
#include "server/state/operation_table.h"
#include "server/state/session.h"
#include "server/watch/stream_set.h"

namespace shardmesh::server {

// Makes the streams. Outlives them. Thread-safe.
class GetReports {
 public:
  // All arguments outlive this object.
  GetReports(Clock* clock, OperationTable* operations, const SessionTable* sessions)
      : clock_(clock), operations_(operations), sessions_(sessions) {}

  // Starts a stream, which deletes itself. Requests come as bytes (rpc/stream/message_bytes.h).
  grpc::ServerReadReactor<grpc::ByteBuffer>* Open(const grpc::CallbackServerContext* call,
                                                  grpc::ByteBuffer* response);
  // Ends all current and future streams with UNAVAILABLE.
  void EndAll();

 private:
  class Stream;

  Clock* const clock_;
  OperationTable* const operations_;
  const SessionTable* const sessions_;
  StreamSet<Stream> streams_;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_WATCH_GET_REPORT_STREAM_H_
