// A worker's metrics. docs/metrics.md explains each metric.
#ifndef SHARDMESH_WORKER_WORKER_METRICS_H_
#define SHARDMESH_WORKER_WORKER_METRICS_H_

#include "rpc/metrics/metrics.h"
#include "tensor/buffer.h"
#include "worker/exchange/peer_links.h"
#include "worker/kernel/matmul.h"
#include "worker/service/coordinator_link.h"
#include "worker/service/handover_inbox.h"
#include "worker/service/tile_filler.h"
#include "worker/step/step_executor.h"
#include "worker/store/scrubber.h"
#include "worker/store/shard_store.h"

namespace shardmesh::worker {

// Returns an observer that counts steps, kernels and collectives in `metrics`, which outlives the
// observer. Creates all series at once, so outcomes, kinds and algorithms that never occur are
// exported as 0.
StepObserver ObserveSteps(rpc::Metrics* metrics);

// The objects from which each scrape reads values. They outlive the metrics' endpoints.
struct WorkerState {
  const ShardStore* store = nullptr;
  const BufferPool* pool = nullptr;
  const PeerLinks* links = nullptr;
  const TileFiller* filler = nullptr;
  const HandoverInbox* inbox = nullptr;  // null: the worker has none
  const Scrubber* scrubber = nullptr;
  const MatmulKernel* kernel = nullptr;
  const CoordinatorLink* coordinator = nullptr;
};
void ExportState(rpc::Metrics* metrics, const WorkerState& state);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_WORKER_METRICS_H_
