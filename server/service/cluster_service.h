// Serves shardmesh.v1.ClusterService: what the cluster is, how it is doing, and what its workers
// did.
#ifndef SHARDMESH_SERVER_SERVICE_CLUSTER_SERVICE_H_
#define SHARDMESH_SERVER_SERVICE_CLUSTER_SERVICE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/service/array_service.h"
#include "server/state/recovery.h"
#include "server/steps/flight_log.h"
#include "server/steps/quarantine_orders.h"
#include "server/steps/sequencer.h"
#include "server/steps/step_watch.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace shardmesh::server {

struct ClusterServiceOptions {
  std::string cluster_id;
  std::string build_version;
  std::function<bool()> is_draining;
  const Recovery* recovery = nullptr;
  const FlightLog* flight_log = nullptr;
  const StepWatch* step_watch = nullptr;
  UnreadableRecords unreadable = {};
  // To which orders about quarantines go.
  QuarantineAccess* hub = nullptr;
  // What is live now.
  std::function<std::vector<Sequencer::LiveWork>()> live;
};

// Thread-safe. What `context` names outlives the service.
std::unique_ptr<grpc::Service> MakeClusterService(const CoordinatorParts& context,
                                                  ClusterServiceOptions options);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_CLUSTER_SERVICE_H_
