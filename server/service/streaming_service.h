// A service with streams that live until somebody ends them.
#ifndef SHARDMESH_SERVER_SERVICE_STREAMING_SERVICE_H_
#define SHARDMESH_SERVER_SERVICE_STREAMING_SERVICE_H_

#include <functional>
#include <memory>

#include "server/watch/stream_set.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace shardmesh::server {

struct StreamingService {
  std::unique_ptr<grpc::Service> service;
  // Ends all current and future streams of the service with UNAVAILABLE, so that the server can
  // stop.
  std::function<void()> end_streams;
  // Waits for the threads of the service that may go on after its last call, and that use the
  // sequencer. Called once, after `end_streams`, when all calls have ended. Null: there are none.
  std::function<void()> join_threads = nullptr;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_STREAMING_SERVICE_H_
