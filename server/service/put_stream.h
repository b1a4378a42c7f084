// The BeginPut streams of ArrayService.
#ifndef SHARDMESH_SERVER_SERVICE_PUT_STREAM_H_
#define SHARDMESH_SERVER_SERVICE_PUT_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <string>

#include "process/clock.h"
#include "server/resolve/background.h"
#include "server/steps/put_memory.h"
#include "server/steps/put_plan.h"
#include "server/steps/transfers.h"
#include "server/watch/caller_count.h"

namespace shardmesh::server {

// The objects that the streams use. Each outlives them.
struct PutStreamParts {
  PutPlanParts plan = {};
  rpc::Clock* clock = nullptr;
  Transfers* transfers = nullptr;
  int64_t max_streams_per_caller = 0;
  std::string token_key = {};  // see rpc/transfer_token.h
  int64_t term = 0;
};

// Makes the streams. Keeps their shared data: the begun puts, and the number of streams that each
// caller has open. Outlives the streams. Thread-safe.
class PutStreams {
 public:
  explicit PutStreams(const PutStreamParts& parts)
      : parts_(parts), begun_(parts.clock), open_(parts.max_streams_per_caller) {}

  // Requests come as bytes: see rpc/stream/message_bytes.h. The stream deletes itself.
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Open(
      const grpc::CallbackServerContext* call);

 private:
  class Stream;

  const PutStreamParts parts_;
  PutMemory begun_;
  CallerCount open_;
  Background background_{2};  // last: its tasks use the above
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_PUT_STREAM_H_
