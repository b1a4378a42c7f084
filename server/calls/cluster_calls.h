// The answers about the cluster: status, flight records, links and the diagnosis.
#ifndef SHARDMESH_SERVER_CALLS_CLUSTER_CALLS_H_
#define SHARDMESH_SERVER_CALLS_CLUSTER_CALLS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "server/attach/coordinator_parts.h"
#include "server/attach/quarantine_orders.h"
#include "server/diagnosis/flight_log.h"
#include "server/diagnosis/step_watch.h"
#include "server/state/recovery.h"
#include "server/steps/sequencer.h"
#include "shardmesh/v1/cluster_service.pb.h"

namespace shardmesh::server {

struct ClusterServiceOptions {
  std::string cluster_id;
  std::string build_version;
  std::function<bool()> is_draining;
  const Recovery* recovery = nullptr;
  const FlightLog* flight_log = nullptr;
  const StepWatch* step_watch = nullptr;
  UnreadableRecords unreadable = {};
  // The parts of the coordinator that the calls about workers (drain, forget, replace) change.
  Membership* membership = nullptr;
  DefinitionStore* definition_store = nullptr;
  // Passes an operator's orders about quarantined tiles to the workers.
  QuarantineAccess* hub = nullptr;
  // Returns the steps and transfers that run now.
  std::function<std::vector<Sequencer::LiveWork>()> live;
  // Returns whether the coordinator looks in vain for a spare worker for the ranks of this lost
  // worker. Null: never.
  std::function<bool(std::string_view identity)> lacks_spare = {};
};

// Answers the calls of cluster_service.proto, which lists their errors. Answers come in pages of
// bounded size. Thread-safe.
class ClusterCalls {
 public:
  // All objects that `context` and `options` point to must outlive this object.
  ClusterCalls(const CoordinatorParts& context, const ClusterServiceOptions& options)
      : context_(context), options_(options) {}

  absl::Status GetStatus(const v1::GetStatusRequest& request,
                         v1::GetStatusResponse* response) const;
  absl::Status ListFlightRecords(const v1::ListFlightRecordsRequest& request,
                                 v1::ListFlightRecordsResponse* response) const;
  absl::Status ListLinks(const v1::ListLinksRequest& request,
                         v1::ListLinksResponse* response) const;
  absl::Status Diagnose(const v1::DiagnoseRequest& request, v1::DiagnoseResponse* response) const;
  // Fills in the term, epoch and revision at which a watch starts.
  void DescribeStart(v1::WatchStarted* to) const;

 private:
  int64_t DegradedArrays() const;
  void DescribeCluster(const MembershipView& view, v1::GetStatusResponse* response) const;
  int64_t DescribeMesh(const Definition& definition, const MembershipView& view, int64_t first_rank,
                       v1::MeshStatus* to) const;
  void DescribeWorker(const WorkerStatus& worker, v1::WorkerStatus* to) const;

  const CoordinatorParts context_;
  const ClusterServiceOptions options_;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_CALLS_CLUSTER_CALLS_H_
