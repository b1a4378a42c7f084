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
  const rpc::Gauge names = metrics->AddGauge("shardmesh_names", "Names that point to arrays.");
  const std::vector<std::string> live_states = {"waiting", "running", "committing"};
  const GaugeBy steps(metrics, "shardmesh_live_steps", "Steps that have not ended, by state.",
                      "state", live_states);
  const GaugeBy transfers(metrics, "shardmesh_live_transfers",
                          "Puts and loads that have not ended, by state.", "state", live_states);
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
    names.Set(static_cast<double>(state.registry->CountNames()));
    steps.Set(ByState(state.sequencer->CountSteps()));
    transfers.Set(ByState(state.sequencer->CountTransfers()));
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
