// The coordinator's metrics that each scrape reads from the parts of the coordinator.
#include "server/coordinator_metrics.h"

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace shardmesh::server {
namespace {

// A gauge with one series for each of the given values of a label.
class GaugeBy {
 public:
  GaugeBy(rpc::Metrics* metrics, const std::string& name, const std::string& help,
          const std::string& label, const std::vector<std::string>& values,
          rpc::MetricLabels labels = {}) {
    for (const std::string& value : values) {
      labels[label] = value;
      gauges_.emplace(value, metrics->AddGauge(name, help, labels));
    }
  }

  // Sets each series to its count, or to 0 if `counts` lacks the value.
  void Set(const std::map<std::string_view, int64_t>& counts) const {
    for (const auto& [value, gauge] : gauges_) {
      const auto count = counts.find(value);
      gauge.Set(count == counts.end() ? 0 : static_cast<double>(count->second));
    }
  }

 private:
  std::map<std::string, rpc::Gauge> gauges_;
};

// Returns the worker's state in the words of `shardmesh status`.
std::string_view StateLabel(const WorkerStatus& worker, const WorkerStreams& streams) {
  switch (worker.state) {
    case WorkerState::kAttached:
      return streams.IsReady(worker.info.identity) ? "ready" : "joining";
    case WorkerState::kDraining:
      return "draining";
    case WorkerState::kLost:
      return "lost";
  }
  return "";
}

std::map<std::string_view, int64_t> ByState(const Sequencer::LiveCounts& live) {
  return {{"waiting", live.waiting}, {"running", live.running}, {"committing", live.committing}};
}

void ExportWorkers(rpc::Metrics* metrics, const MetricsSources& state) {
  const rpc::Gauge epoch =
      metrics->AddGauge("shardmesh_epoch", "Version of the membership; rises with each change.");
  const GaugeBy workers(metrics, "shardmesh_workers", "Workers by state.", "state",
                        {"joining", "ready", "draining", "lost"});
  const GaugeBy meshes(metrics, "shardmesh_meshes",
                       "Meshes by whether steps can run on them; unassigned: no ranks given yet.",
                       "state", {"ready", "not_ready", "unassigned"});
  const rpc::Counter replaced =
      metrics->AddCounter("shardmesh_replaced_workers_total",
                          "Lost workers whose ranks spare workers got without an operator.");
  const rpc::Gauge without_spare =
      metrics->AddGauge("shardmesh_lost_workers_without_spare",
                        "Lost workers that were to be replaced, but there is no spare worker.");
  metrics->OnScrape([=] {
    const std::shared_ptr<const MembershipView> view = state.membership->view();
    epoch.Set(static_cast<double>(view->epoch));
    std::map<std::string_view, int64_t> counts;
    for (const auto& [identity, worker] : view->workers) {
      ++counts[StateLabel(*worker, *state.worker_streams)];
    }
    workers.Set(counts);
    counts.clear();
    for (const auto& [mesh_id, ranks] : view->meshes) {
      ++counts[ranks->identities.empty()                        ? "unassigned"
               : state.worker_streams->CheckReady(mesh_id).ok() ? "ready"
                                                                : "not_ready"];
    }
    meshes.Set(counts);
    if (state.lost_ranks == nullptr) return;
    const LostRanks::Totals totals = state.lost_ranks->totals();
    replaced.RaiseTo(static_cast<double>(totals.replaced));
    without_spare.Set(static_cast<double>(totals.without_spare));
  });
}

void ExportQuarantine(rpc::Metrics* metrics, const MetricsSources& state) {
  const rpc::Gauge arrays =
      metrics->AddGauge("shardmesh_quarantined_arrays",
                        "Arrays with tiles in the quarantines of attached workers, each worker's.");
  const rpc::Gauge bytes = metrics->AddGauge(
      "shardmesh_quarantined_bytes", "Bytes of tiles in the quarantines of attached workers.");
  const rpc::Gauge unconfirmed =
      metrics->AddGauge("shardmesh_unconfirmed_releases",
                        "Released arrays whose tiles some worker has not confirmed to be gone.");
  metrics->OnScrape([=] {
    QuarantineCount total;
    const std::shared_ptr<const MembershipView> view = state.membership->view();
    for (const auto& [identity, worker] : view->workers) {
      if (!view->IsAlive(identity)) continue;
      total.arrays += worker->vitals->quarantine().arrays;
      total.size_bytes += worker->vitals->quarantine().size_bytes;
    }
    arrays.Set(static_cast<double>(total.arrays));
    bytes.Set(static_cast<double>(total.size_bytes));
    unconfirmed.Set(static_cast<double>(state.registry->CountUnconfirmed()));
  });
}

void ExportWork(rpc::Metrics* metrics, const MetricsSources& state) {
  const rpc::Gauge sessions = metrics->AddGauge("shardmesh_sessions", "Open sessions.");
  const rpc::Gauge revision =
      metrics->AddGauge("shardmesh_store_revision", "Revision of the durable state.");
  const rpc::Gauge compacted =
      metrics->AddGauge("shardmesh_store_compacted_revision",
                        "Oldest revision of the durable state that can be read or watched.");
  const GaugeBy memory(metrics, "shardmesh_store_memory_bytes",
                       "Memory of the durable state; history: overwritten or deleted.", "content",
                       {"live", "history"});
  const rpc::Gauge used = metrics->AddGauge(
      "shardmesh_store_used_bytes", "Bytes of the durable state on disk, without free pages.");
  const rpc::Gauge file =
      metrics->AddGauge("shardmesh_store_file_bytes", "Size of the durable state's database.");
  const rpc::Gauge quota =
      metrics->AddGauge("shardmesh_store_quota_bytes",
                        "Limit of shardmesh_store_used_bytes; 0: state in memory only.");
  const rpc::Gauge unreadable =
      metrics->AddGauge("shardmesh_store_unreadable_records",
                        "Records that could not be read when the coordinator started.");
  const GaugeBy arrays(metrics, "shardmesh_arrays", "Arrays by state.", "state",
                       {"staging", "available", "degraded"});
  const GaugeBy lost(metrics, "shardmesh_lost_tiles",
                     "Lost tiles of attached workers; repairing: read again or waiting for that.",
                     "state", {"repairing", "failed"});
  const rpc::Counter repaired_tiles = metrics->AddCounter(
      "shardmesh_repaired_tiles_total", "Lost tiles that workers have read again.");
  const rpc::Counter repaired_bytes = metrics->AddCounter(
      "shardmesh_repaired_bytes_total", "Bytes of lost tiles that workers have read again.");
  const GaugeBy second(metrics, "shardmesh_second_replicas",
                       "Second replicas of arrays, by state; degraded: a worker has lost a tile.",
                       "state", {"complete", "degraded", "waiting", "failed"});
  const rpc::Counter replicated_bytes =
      metrics->AddCounter("shardmesh_replicated_bytes_total",
                          "Bytes of the tiles that workers have copied as second "
                          "replicas.");
  const rpc::Gauge names = metrics->AddGauge("shardmesh_names", "Names that point to arrays.");
  const rpc::Gauge cached = metrics->AddGauge(
      "shardmesh_cached_arrays", "Released arrays whose tiles the workers keep as a cache.");
  const rpc::Gauge cached_bytes =
      metrics->AddGauge("shardmesh_cached_bytes", "Bytes of the tiles of cached arrays.");
  const rpc::Counter hits = metrics->AddCounter("shardmesh_cache_hits_total",
                                                "Tensors of puts that used a cached array.");
  const rpc::Counter misses = metrics->AddCounter("shardmesh_cache_misses_total",
                                                  "Tensors of puts whose content no array had.");
  const rpc::Counter evictions = metrics->AddCounter("shardmesh_cache_evictions_total",
                                                     "Cached arrays that were released for good.");
  const std::vector<std::string> live_states = {"waiting", "running", "committing"};
  const GaugeBy steps(metrics, "shardmesh_live_steps", "Steps that have not ended, by state.",
                      "state", live_states);
  const rpc::Counter put = metrics->AddCounter("shardmesh_put_bytes_total",
                                               "Bytes of the tiles of committed puts and loads.");
  const rpc::Counter reused =
      metrics->AddCounter("shardmesh_put_reused_bytes_total",
                          "Bytes of such tiles whose elements were on the workers already.");
  const rpc::Counter moved = metrics->AddCounter(
      "shardmesh_put_moved_bytes_total",
      "Bytes that workers sent to one another to copy such elements to another layout.");
  const GaugeBy transfers(metrics, "shardmesh_live_transfers",
                          "Puts, loads and repairs that have not ended, by state.", "state",
                          live_states);
  metrics->OnScrape([=] {
    sessions.Set(static_cast<double>(state.sessions->size()));
    revision.Set(static_cast<double>(state.store->revision()));
    const StoreStats store = state.store->stats();
    compacted.Set(static_cast<double>(state.store->compacted_revision()));
    memory.Set({{"live", store.live_bytes}, {"history", store.history_bytes}});
    used.Set(static_cast<double>(store.used_bytes));
    file.Set(static_cast<double>(store.file_bytes));
    quota.Set(static_cast<double>(store.quota_bytes));
    unreadable.Set(static_cast<double>(store.unreadable_records));
    const ArrayCounts counts = state.registry->CountArrays();
    arrays.Set({{"staging", counts.staging},
                {"available", counts.available},
                {"degraded", counts.degraded}});
    const ArrayCounts companions = state.registry->CountCompanions();
    const ReplicaTotals replicas = state.recovery->replicas();
    second.Set({{"complete", companions.available},
                {"degraded", companions.degraded},
                {"waiting", replicas.waiting},
                {"failed", replicas.failed}});
    replicated_bytes.RaiseTo(static_cast<double>(replicas.copied_bytes));
    const RepairTotals repairs = state.recovery->repairs();
    lost.Set({{"repairing", repairs.tiles}, {"failed", repairs.failed_tiles}});
    repaired_tiles.RaiseTo(static_cast<double>(repairs.repaired_tiles));
    repaired_bytes.RaiseTo(static_cast<double>(repairs.repaired_bytes));
    names.Set(static_cast<double>(state.registry->CountNames()));
    const CacheTotals cache = state.registry->cache_totals();
    cached.Set(static_cast<double>(cache.arrays));
    cached_bytes.Set(static_cast<double>(cache.bytes));
    hits.RaiseTo(static_cast<double>(cache.hits));
    misses.RaiseTo(static_cast<double>(cache.misses));
    evictions.RaiseTo(static_cast<double>(cache.evictions));
    steps.Set(ByState(state.sequencer->CountSteps()));
    transfers.Set(ByState(state.sequencer->CountTransfers()));
    const Transfers::Totals totals = state.transfers->totals();
    put.RaiseTo(static_cast<double>(totals.put_bytes));
    reused.RaiseTo(static_cast<double>(totals.reused_bytes));
    moved.RaiseTo(static_cast<double>(totals.moved_bytes));
  });
}

}  // namespace

void ExportState(rpc::Metrics* metrics, const MetricsSources& state) {
  metrics->AddGauge("shardmesh_term", "The coordinator's leadership version.")
      .Set(static_cast<double>(state.registry->term()));
  const GaugeBy coordinator(metrics, "shardmesh_coordinator_state",
                            "1 for the coordinator's current state, 0 for the others.", "state",
                            {"recovering", "serving", "draining"});
  const rpc::Gauge changed =
      metrics->AddGauge("shardmesh_coordinator_state_changed_timestamp_seconds",
                        "When the coordinator entered its current state, in seconds since 1970.");
  const rpc::Gauge awaited =
      metrics->AddGauge("shardmesh_coordinator_awaited_workers",
                        "Workers of ranks that have not attached since the coordinator started.");
  metrics->OnScrape([=] {
    const int64_t missing = state.recovery->awaited();
    const absl::Time draining_since = state.draining_since();
    const bool is_draining = draining_since != absl::InfiniteFuture();
    coordinator.Set({{is_draining ? "draining" : missing > 0 ? "recovering" : "serving", 1}});
    changed.Set(absl::ToDoubleSeconds((is_draining ? draining_since : state.recovery->since()) -
                                      absl::UnixEpoch()));
    awaited.Set(static_cast<double>(missing));
  });
  ExportWorkers(metrics, state);
  ExportQuarantine(metrics, state);
  ExportWork(metrics, state);
}

}  // namespace shardmesh::server
