// The streams of clients that watch workers, arrays and names.
#ifndef SHARDMESH_SERVER_WATCH_CLUSTER_WATCH_H_
#define SHARDMESH_SERVER_WATCH_CLUSTER_WATCH_H_

#include <grpcpp/grpcpp.h>

#include <functional>

#include "server/state/cluster_changes.h"
#include "server/watch/watch_pump.h"
#include "server/watch/watch_stream.h"
#include "shardmesh/v1/cluster_service.pb.h"

namespace shardmesh::server {

// Makes and counts the streams of the call WatchCluster. Must outlive the streams. Thread-safe.
class ClusterWatches {
 public:
  // `describe` fills in the point at which a watch starts. A stream calls `describe` after its
  // watch has begun, so the watch gets every change after that point. `changes` must outlive this
  // object.
  ClusterWatches(ClusterChanges* changes, const WatchLimits& limits,
                 std::function<void(v1::WatchStarted*)> describe);
  ~ClusterWatches();

  // Opens a stream, which deletes itself when it is done.
  grpc::ServerWriteReactor<v1::WatchClusterResponse>* Open(grpc::CallbackServerContext* context,
                                                           const v1::WatchClusterRequest& request);
  // Ends all present and future streams with UNAVAILABLE (NOT_SERVING).
  void EndAll();

 private:
  class Stream;

  ClusterChanges* const changes_;
  const std::function<void(v1::WatchStarted*)> describe_;
  WatchCount count_;
  WatchStream<v1::WatchClusterResponse, ClusterChangePtr>::Streams streams_;
  WatchPump pump_;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_WATCH_CLUSTER_WATCH_H_
