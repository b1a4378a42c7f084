// Serves the BeginPut streams of ArrayService, over which clients begin puts (uploads of arrays).
#ifndef SHARDMESH_SERVER_SERVICE_PUT_STREAM_H_
#define SHARDMESH_SERVER_SERVICE_PUT_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <string>

#include "process/clock.h"
#include "server/content/digest_transport.h"
#include "server/resolve/background.h"
#include "server/steps/put_memory.h"
#include "server/steps/put_plan.h"
#include "server/steps/transfers.h"
#include "server/watch/caller_count.h"
#include "shardmesh/v1/array_service.pb.h"

namespace shardmesh::server {

// The objects that the streams use. All of them outlive the streams.
struct PutStreamParts {
  PutPlanParts plan = {};
  Clock* clock = nullptr;
  Transfers* transfers = nullptr;
  DigestTransport* digests = nullptr;  // may be null: no claim about content is true
  int64_t max_streams_per_caller = 0;
  std::string token_key = {};  // see rpc/transfer_token.h
  int64_t term = 0;
};

// Makes the streams, and keeps the data that they share: the puts that have begun, and the number
// of open streams of each caller. Outlives the streams. Thread-safe.
class PutStreams {
 public:
  explicit PutStreams(const PutStreamParts& parts)
      : parts_(parts), begun_(parts.clock), open_(parts.max_streams_per_caller) {}

  // Starts a stream, which deletes itself. Requests come as bytes (rpc/stream/message_bytes.h).
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Open(
      const grpc::CallbackServerContext* call);
  // Answers ArrayService.FindContent, which clients call before they begin a put.
  grpc::ServerUnaryReactor* FindContent(const grpc::CallbackServerContext& call,
                                        const v1::FindContentRequest* request,
                                        v1::FindContentResponse* response);

 private:
  class Stream;

  const PutStreamParts parts_;
  PutMemory begun_;
  CallerCount open_;
  Background background_{2};  // last: its tasks use the members above
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_PUT_STREAM_H_
