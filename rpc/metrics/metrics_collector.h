// Collects the series of a scrape: runs the functions that set gauges, then reads the registry of a
// Metrics. Only for metrics.cc and metrics_endpoint.cc.
#ifndef SHARDMESH_RPC_METRICS_METRICS_COLLECTOR_H_
#define SHARDMESH_RPC_METRICS_METRICS_COLLECTOR_H_

#include <functional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "prometheus/collectable.h"
#include "prometheus/registry.h"
#include "rpc/metrics/metrics.h"

namespace shardmesh::rpc {

// Thread-safe.
class Metrics::Collector final : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override;

  void OnScrape(std::function<void()> function);
  prometheus::Registry& registry() { return registry_; }

 private:
  // Merge: a second request for a family of series returns the existing family.
  prometheus::Registry registry_{prometheus::Registry::InsertBehavior::Merge};
  mutable absl::Mutex mutex_;
  std::vector<std::function<void()>> on_scrape_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_METRICS_METRICS_COLLECTOR_H_
