// StepTracer: spans relative to the begin of the step.
#include "worker/step/step_tracer.h"

#include <algorithm>
#include <utility>

namespace shardmesh::worker {

StepTracer::StepTracer(const Clock* clock, int64_t max_spans)
    : clock_(*clock),
      max_spans_(static_cast<size_t>(std::clamp<int64_t>(max_spans, 0, kMaxRankSpans))),
      started_(clock->Now()),
      wall_started_(WallTime(*clock, started_)) {}

void StepTracer::Add(const Ended& span) {
  const absl::Duration elapsed = clock_.Now() - span.started;
  if (span.kind == TraceSpanKind::kWait && elapsed < kShortestWait) return;
  Record({.kind = span.kind,
          .op = span.op,
          .start = span.started - started_,
          .elapsed = elapsed,
          .flops = span.flops,
          .bytes = span.bytes,
          .peer = span.peer});
}

void StepTracer::AddKernel(int64_t op, int64_t flops, absl::Duration waited,
                           absl::Duration elapsed) {
  // Waits are measured by another clock than `elapsed`: the difference may be below zero.
  elapsed = std::max(elapsed, absl::ZeroDuration());
  const absl::Duration start = clock_.Now() - started_ - elapsed;
  if (waited >= kShortestWait) {
    Record({.kind = TraceSpanKind::kWait, .op = op, .start = start - waited, .elapsed = waited});
  }
  Record({.kind = TraceSpanKind::kKernel,
          .op = op,
          .start = start,
          .elapsed = elapsed,
          .flops = flops});
}

void StepTracer::Record(const TraceSpan& span) {
  absl::MutexLock lock(&mutex_);
  if (trace_.spans.size() < max_spans_) {
    trace_.spans.push_back(span);
  } else {
    ++trace_.omitted_spans;
  }
}

RankTrace StepTracer::Take(DeviceId rank) {
  absl::MutexLock lock(&mutex_);
  RankTrace taken = std::move(trace_);
  taken.rank = rank;
  taken.started = wall_started_;
  return taken;
}

}  // namespace shardmesh::worker
