// The coordinator's metrics; docs/metrics.md explains each.
#ifndef SHARDMESH_SERVER_COORDINATOR_METRICS_H_
#define SHARDMESH_SERVER_COORDINATOR_METRICS_H_

#include <functional>

#include "rpc/metrics/metrics.h"
#include "server/attach/worker_streams.h"
#include "server/repair/lost_ranks.h"
#include "server/state/array_registry.h"
#include "server/state/membership.h"
#include "server/state/recovery.h"
#include "server/state/session.h"
#include "server/steps/sequencer.h"
#include "server/steps/transfers.h"
#include "server/store/store.h"

namespace shardmesh::server {

// The objects that each scrape reads. They outlive the endpoints that serve metrics.
struct MetricsSources {
  const Store* store = nullptr;
  const ArrayRegistry* registry = nullptr;
  const Membership* membership = nullptr;
  const WorkerStreams* worker_streams = nullptr;
  const SessionTable* sessions = nullptr;
  const Sequencer* sequencer = nullptr;
  const Transfers* transfers = nullptr;
  const Recovery* recovery = nullptr;
  const LostRanks* lost_ranks = nullptr;  // null: no worker is replaced without an operator
  // Returns when the coordinator began to drain; absl::InfiniteFuture() if it has not begun to
  // drain.
  std::function<absl::Time()> draining_since;
};
void ExportState(rpc::Metrics* metrics, const MetricsSources& state);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_COORDINATOR_METRICS_H_
