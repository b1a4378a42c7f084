// Creates a worker's metrics: counters of its work, and values that a scrape reads from its parts.
#include "worker/worker_metrics.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "program/collective_choice.h"
#include "program/program.h"

namespace shardmesh::worker {
namespace {

std::string_view OutcomeLabel(StepOutcome outcome) {
  switch (outcome) {
    case StepOutcome::kDone:
      return "done";
    case StepOutcome::kFailed:
      return "failed";
    case StepOutcome::kNeedPlan:
      return "need_plan";
  }
  return "";
}

// Returns the kind's label in metrics, such as `all_reduce`.
std::string KindLabel(CollectiveKind kind) {
  std::string label(CollectiveKindName(kind));
  std::replace(label.begin(), label.end(), '-', '_');
  return label;
}

// The metrics of one kind of collective with one algorithm.
struct CollectiveSeries {
  CollectiveSeries(rpc::Metrics* metrics, const rpc::MetricLabels& labels)
      : operations(metrics->AddCounter("shardmesh_worker_collectives_total",
                                       "Collectives that this worker took part in.", labels)),
        sent_bytes(metrics->AddCounter("shardmesh_worker_collective_sent_bytes_total",
                                       "Bytes that collectives sent to peers.", labels)),
        copied_to_send_bytes(
            metrics->AddCounter("shardmesh_worker_collective_copied_to_send_bytes_total",
                                "Bytes copied into one piece before they were sent.", labels)),
        copied_received_bytes(
            metrics->AddCounter("shardmesh_worker_collective_copied_received_bytes_total",
                                "Bytes from peers copied into place.", labels)),
        seconds(metrics->AddCounter("shardmesh_worker_collective_seconds_total",
                                    "Time in collectives, waiting for peers included.", labels)) {}

  void Count(const StepObserver::CollectiveBytes& bytes, absl::Duration elapsed) const {
    operations.Add();
    sent_bytes.Add(static_cast<double>(bytes.sent));
    copied_to_send_bytes.Add(static_cast<double>(bytes.copied_to_send));
    copied_received_bytes.Add(static_cast<double>(bytes.copied_received));
    seconds.Add(absl::ToDoubleSeconds(elapsed));
  }

  rpc::Counter operations;
  rpc::Counter sent_bytes;
  rpc::Counter copied_to_send_bytes;
  rpc::Counter copied_received_bytes;
  rpc::Counter seconds;
};

// Counters of discarded frames, by reason.
struct DiscardedFrames {
  explicit DiscardedFrames(rpc::Metrics* metrics)
      : step_over(Add(metrics, "step_over")),
        stale_epoch(Add(metrics, "stale_epoch")),
        corrupt(Add(metrics, "corrupt")),
        malformed(Add(metrics, "malformed")),
        refused_hello(Add(metrics, "refused_hello")) {}

  static rpc::Counter Add(rpc::Metrics* metrics, const std::string& reason) {
    return metrics->AddCounter("shardmesh_worker_discarded_frames_total",
                               "Frames from peers that were discarded, by reason.",
                               {{"reason", reason}});
  }

  rpc::Counter step_over;
  rpc::Counter stale_epoch;
  rpc::Counter corrupt;
  rpc::Counter malformed;
  rpc::Counter refused_hello;
};

}  // namespace

StepObserver ObserveSteps(rpc::Metrics* metrics) {
  std::map<StepOutcome, rpc::Counter> steps;
  std::map<StepOutcome, rpc::Histogram> step_seconds;
  for (const StepOutcome outcome :
       {StepOutcome::kDone, StepOutcome::kFailed, StepOutcome::kNeedPlan}) {
    const rpc::MetricLabels labels = {{"outcome", std::string(OutcomeLabel(outcome))}};
    steps.emplace(outcome, metrics->AddCounter("shardmesh_worker_steps_total",
                                               "Steps by how they ended here.", labels));
    step_seconds.emplace(outcome, metrics->AddHistogram(
                                      "shardmesh_worker_step_duration_seconds",
                                      "From a step's begin on this worker to its report.", labels));
  }
  const rpc::Counter kernel_flops = metrics->AddCounter(
      "shardmesh_worker_kernel_flops_total", "Floating-point operations that kernels did.");
  const rpc::Counter kernel_seconds =
      metrics->AddCounter("shardmesh_worker_kernel_seconds_total", "Time in kernels.");
  std::map<std::pair<CollectiveKind, CollectiveAlgorithm>, CollectiveSeries> collectives;
  for (const CollectiveKind kind : AllCollectiveKinds()) {
    for (const CollectiveAlgorithm algorithm : AlgorithmsOf(kind)) {
      const rpc::MetricLabels labels = {
          {"op", KindLabel(kind)}, {"algorithm", std::string(CollectiveAlgorithmName(algorithm))}};
      collectives.emplace(std::pair(kind, algorithm), CollectiveSeries(metrics, labels));
    }
  }
  const CollectiveSeries moves(metrics, {{"op", "move"}, {"algorithm", "regions"}});
  StepObserver observer;
  observer.step = [=](StepOutcome outcome, absl::Duration elapsed) {
    steps.at(outcome).Add();
    step_seconds.at(outcome).Observe(absl::ToDoubleSeconds(elapsed));
  };
  observer.kernel = [=](int64_t flops, absl::Duration elapsed) {
    kernel_flops.Add(static_cast<double>(flops));
    kernel_seconds.Add(absl::ToDoubleSeconds(elapsed));
  };
  observer.collective = [=](CollectiveKind kind, CollectiveAlgorithm algorithm,
                            const StepObserver::CollectiveBytes& bytes, absl::Duration elapsed) {
    const auto found = collectives.find({kind, algorithm});
    // The kind does not have this algorithm. The collective was refused, so it is not counted.
    if (found == collectives.end()) return;
    found->second.Count(bytes, elapsed);
  };
  observer.move = [=](const StepObserver::CollectiveBytes& bytes, absl::Duration elapsed) {
    moves.Count(bytes, elapsed);
  };
  return observer;
}

void ExportState(rpc::Metrics* metrics, const WorkerState& state) {
  const auto used = metrics->AddGauge("shardmesh_worker_store_used_bytes",
                                      "Shard memory in use, without idle buffers.");
  const auto idle =
      metrics->AddGauge("shardmesh_worker_store_idle_bytes",
                        "Shard memory in idle buffers, which are given up when memory is needed.");
  const auto limit =
      metrics->AddGauge("shardmesh_worker_store_limit_bytes", "Limit of shard memory.");
  const auto aside_disk =
      metrics->AddGauge("shardmesh_worker_quarantine_bytes",
                        "Bytes of tiles in quarantine, by where they are.", {{"where", "disk"}});
  const auto aside_memory =
      metrics->AddGauge("shardmesh_worker_quarantine_bytes",
                        "Bytes of tiles in quarantine, by where they are.", {{"where", "memory"}});
  const auto attached =
      metrics->AddGauge("shardmesh_worker_attached", "1 while attached to a coordinator.");
  const auto ready =
      metrics->AddGauge("shardmesh_worker_ready", "1 while attached and all peers are reached.");
  const auto epoch = metrics->AddGauge("shardmesh_worker_epoch", "Epoch of the last membership.");
  const auto term =
      metrics->AddGauge("shardmesh_worker_term", "The newest term that this worker knows.");
  const auto sent = [metrics](const char* transport) {
    return metrics->AddCounter("shardmesh_worker_peer_sent_bytes_total",
                               "Payload sent to peers, by the way it took.",
                               {{"transport", transport}});
  };
  const auto streamed = sent("stream");
  const auto shared = sent("shared_memory");
  const auto received = metrics->AddCounter("shardmesh_worker_peer_received_bytes_total",
                                            "Payload received from peers.");
  const auto broken = metrics->AddCounter("shardmesh_worker_broken_streams_total",
                                          "Streams to peers that ended after they had been up.");
  const auto held = metrics->AddGauge(
      "shardmesh_worker_peer_held_bytes",
      "Bytes of messages that have come from peers and wait for their receivers.");
  const auto credit_waits = metrics->AddCounter(
      "shardmesh_worker_peer_credit_waits_total",
      "How often data for a peer waited because its stream had no credit left.");
  const auto filled = [metrics](const char* from) {
    return metrics->AddCounter("shardmesh_worker_filled_bytes_total",
                               "Bytes of tiles that this worker filled itself, by their source.",
                               {{"from", from}});
  };
  const auto from_files = filled("files");
  const auto from_own = filled("own");
  const auto from_workers = filled("workers");
  const auto handed_over = metrics->AddCounter(
      "shardmesh_worker_handed_over_bytes_total",
      "Bytes of tiles that clients on this host handed over as memory instead of streaming them.");
  const auto scrubbed = metrics->AddCounter(
      "shardmesh_worker_scrubbed_bytes_total",
      "Bytes of tiles that were compared with their checksums in the background.");
  const auto passes = metrics->AddCounter("shardmesh_worker_scrub_passes_total",
                                          "Visits of all tiles that the scrubber completed.");
  const auto scrub_faults = [metrics](const char* where) {
    return metrics->AddCounter("shardmesh_worker_scrub_faults_total",
                               "Damaged tiles that the scrubber found, by where.",
                               {{"where", where}});
  };
  const auto memory_faults = scrub_faults("memory");
  const auto disk_faults = scrub_faults("disk");
  const auto scrub_repairs = [metrics](const char* where) {
    return metrics->AddCounter(
        "shardmesh_worker_scrub_repairs_total",
        "Such tiles that the worker repaired from its other copy, by where the damage was.",
        {{"where", where}});
  };
  const auto memory_repairs = scrub_repairs("memory");
  const auto disk_repairs = scrub_repairs("disk");
  const auto compiled = metrics->AddCounter(
      "shardmesh_worker_compiled_kernels_total",
      "Kernels that were compiled, each for a product of a shape that had none.");
  const DiscardedFrames discarded(metrics);
  const auto links = metrics->AddGauge("shardmesh_worker_measured_links",
                                       "Links to peers of which this worker knows the speed.");
  const auto latency =
      metrics->AddGauge("shardmesh_worker_max_link_latency_seconds",
                        "Latency of the slowest link that this worker measured; 0 without one.");
  const auto bandwidth =
      metrics->AddGauge("shardmesh_worker_min_link_bytes_per_second",
                        "Bandwidth of the slowest link that this worker measured; 0 without one.");
  metrics->OnScrape([=] {
    used.Set(static_cast<double>(state.store->used_bytes()));
    idle.Set(static_cast<double>(state.pool->idle_bytes()));
    limit.Set(static_cast<double>(state.store->limit_bytes()));
    const QuarantineTotals aside = state.store->quarantine_totals();
    aside_disk.Set(static_cast<double>(aside.disk_bytes));
    aside_memory.Set(static_cast<double>(aside.memory_bytes));
    const CoordinatorLink::State coordinator = state.coordinator->state();
    attached.Set(coordinator.attached ? 1 : 0);
    ready.Set(coordinator.ready ? 1 : 0);
    epoch.Set(static_cast<double>(coordinator.epoch));
    term.Set(static_cast<double>(coordinator.term));

    const TileFiller::Counters bytes = state.filler->counters();
    from_files.RaiseTo(static_cast<double>(bytes.file_bytes));
    from_own.RaiseTo(static_cast<double>(bytes.kept_bytes));
    from_workers.RaiseTo(static_cast<double>(bytes.received_bytes));

    if (state.inbox != nullptr) {
      handed_over.RaiseTo(static_cast<double>(state.inbox->counters().staged_bytes));
    }

    const Scrubber::Counters scrub = state.scrubber->counters();
    scrubbed.RaiseTo(static_cast<double>(scrub.bytes));
    passes.RaiseTo(static_cast<double>(scrub.passes));
    memory_faults.RaiseTo(static_cast<double>(scrub.damaged_tiles));
    disk_faults.RaiseTo(static_cast<double>(scrub.damaged_files));
    memory_repairs.RaiseTo(static_cast<double>(scrub.reread_tiles));
    disk_repairs.RaiseTo(static_cast<double>(scrub.rewritten_files));

    compiled.RaiseTo(static_cast<double>(state.kernel->compilations()));

    const PeerLinks::Counters counters = state.links->counters();
    streamed.RaiseTo(static_cast<double>(counters.sent_bytes - counters.shared_bytes));
    shared.RaiseTo(static_cast<double>(counters.shared_bytes));
    received.RaiseTo(static_cast<double>(counters.received_bytes));
    broken.RaiseTo(static_cast<double>(counters.broken_streams));
    held.Set(static_cast<double>(counters.held_bytes));
    credit_waits.RaiseTo(static_cast<double>(counters.credit_waits));
    discarded.step_over.RaiseTo(static_cast<double>(counters.dropped_frames));
    discarded.stale_epoch.RaiseTo(static_cast<double>(counters.stale_frames));
    discarded.corrupt.RaiseTo(static_cast<double>(counters.corrupt_frames));
    discarded.malformed.RaiseTo(static_cast<double>(counters.malformed_frames));
    discarded.refused_hello.RaiseTo(static_cast<double>(counters.refused_hellos));

    double max_latency_seconds = 0;
    double min_bytes_per_second = 0;
    const MeasuredLinks measured = state.links->measured_links();
    for (const MeasuredLink& link : measured.links) {
      max_latency_seconds = std::max(max_latency_seconds, absl::ToDoubleSeconds(link.latency));
      min_bytes_per_second = min_bytes_per_second == 0
                                 ? link.bytes_per_second
                                 : std::min(min_bytes_per_second, link.bytes_per_second);
    }
    links.Set(static_cast<double>(measured.links.size()));
    latency.Set(max_latency_seconds);
    bandwidth.Set(min_bytes_per_second);
  });
}

}  // namespace shardmesh::worker
