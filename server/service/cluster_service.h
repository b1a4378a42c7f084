// Serves shardmesh.v1.ClusterService: state and health of the cluster, and records and changes of
// its workers.
#ifndef SHARDMESH_SERVER_SERVICE_CLUSTER_SERVICE_H_
#define SHARDMESH_SERVER_SERVICE_CLUSTER_SERVICE_H_

#include "server/calls/cluster_calls.h"
#include "server/service/streaming_service.h"
#include "server/state/cluster_changes.h"
#include "server/watch/watch_pump.h"

namespace shardmesh::server {

// Thread-safe. All objects in `context`, and `changes`, outlive the service.
StreamingService MakeClusterService(const CoordinatorParts& context, ClusterServiceOptions options,
                                    ClusterChanges* changes, const WatchLimits& limits);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_CLUSTER_SERVICE_H_
