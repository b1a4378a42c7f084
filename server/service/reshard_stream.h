// Serves the streams of ArrayService.Reshard.
#ifndef SHARDMESH_SERVER_SERVICE_RESHARD_STREAM_H_
#define SHARDMESH_SERVER_SERVICE_RESHARD_STREAM_H_

#include <grpcpp/grpcpp.h>

#include "process/clock.h"
#include "server/attach/coordinator_parts.h"
#include "server/reshard/reshard_runner.h"
#include "server/reshard/resize_runner.h"
#include "server/resolve/background.h"
#include "server/steps/step_runner.h"
#include "shardmesh/v1/array_service.pb.h"

namespace shardmesh::server {

// Makes the streams and the calls of resizes, and keeps the runners that they share. Outlives the
// streams and calls. Thread-safe.
class ReshardStreams {
 public:
  // `steps`: the parts that run the steps of reshards.
  ReshardStreams(const CoordinatorParts& context, const StepRunnerParts& steps);

  // Starts a call, which deletes itself. Never blocks: the runner plans on threads of its own.
  grpc::ServerWriteReactor<v1::ReshardResponse>* Open(const grpc::CallbackServerContext& call,
                                                      const v1::ReshardRequest& request);
  // Begins a resize of a mesh on a thread of the background.
  grpc::ServerUnaryReactor* Resize(const grpc::CallbackServerContext& call,
                                   const v1::ResizeMeshRequest* request,
                                   v1::ResizeMeshResponse* response);
  // Ends all resizes, and begins no more, so that the server can stop.
  void EndResizes();
  // Waits until all resizes have ended, and with them the reshards that they began. Call it after
  // EndResizes, when all calls have ended.
  void JoinResizes() { resizes_.Join(); }

 private:
  Clock* const clock_;
  StepRunner steps_;
  ReshardRunner runner_;
  ResizeRunner resizes_;
  Background background_{1};  // last: its thread uses the members above
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_RESHARD_STREAM_H_
