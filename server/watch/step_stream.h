// Serves the ExecuteStream streams of ComputeService, over which clients run steps back to back.
#ifndef SHARDMESH_SERVER_WATCH_STEP_STREAM_H_
#define SHARDMESH_SERVER_WATCH_STEP_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>

#include "server/resolve/background.h"
#include "server/steps/step_runner.h"
#include "server/watch/caller_count.h"
#include "server/watch/stream_set.h"

namespace shardmesh::server {

// Makes the streams, and keeps what they share. Outlives the streams. Thread-safe.
class StepStreams {
 public:
  // The most steps of one stream that are admitted and not answered.
  static constexpr int64_t kMaxInFlight = 64;
  // The most streams that one caller has open.
  static constexpr int64_t kMaxPerCaller = 64;

  // `runner` outlives the streams.
  explicit StepStreams(StepRunner* runner);
  ~StepStreams();

  // Starts a stream, which deletes itself. Requests come as bytes (rpc/stream/message_bytes.h).
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Open(
      const grpc::CallbackServerContext* call);
  // Ends all current and future streams with UNAVAILABLE (NOT_SERVING).
  void EndAll();

 private:
  class Stream;

  StepRunner* const runner_;
  StreamSet<Stream> streams_;
  CallerCount open_{kMaxPerCaller};
  Background planning_{1};  // of steps whose planning takes long; last: its tasks use the others
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_WATCH_STEP_STREAM_H_
