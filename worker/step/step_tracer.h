// Records what a rank does in one step, for the step's timeline.
#ifndef SHARDMESH_WORKER_STEP_STEP_TRACER_H_
#define SHARDMESH_WORKER_STEP_STEP_TRACER_H_

#include <cstdint>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "program/flight_record.h"
#include "sharding/mesh.h"

namespace shardmesh::worker {

// Records the spans of one step, the first `max_spans` of those that are added. Thread-safe.
class StepTracer {
 public:
  // A shorter wait is not recorded: the data was there.
  static constexpr absl::Duration kShortestWait = absl::Microseconds(1);

  // The step begins now. `clock` outlives this object. Records at most kMaxRankSpans spans.
  StepTracer(const Clock* clock, int64_t max_spans);

  // A span that has just ended.
  struct Ended {
    TraceSpanKind kind = TraceSpanKind::kInstruction;
    int64_t op = 0;
    absl::Time started = absl::InfinitePast();  // by the clock
    int64_t flops = 0;
    int64_t bytes = 0;
    std::optional<DeviceId> peer = std::nullopt;
  };
  // Adds a span that ends now.
  void Add(const Ended& span);
  // Adds a kernel that ends now and took `elapsed`, and before it a wait of `waited` for its turns.
  // The kernel may have waited several times meanwhile; the timeline has one wait, before it.
  void AddKernel(int64_t op, int64_t flops, absl::Duration waited, absl::Duration elapsed);

  absl::Time Now() const { return clock_.Now(); }

  // Returns what was recorded. Call it once, at the end of the step.
  RankTrace Take(DeviceId rank);

 private:
  void Record(const TraceSpan& span);

  const Clock& clock_;
  const size_t max_spans_;
  const absl::Time started_;       // by clock_
  const absl::Time wall_started_;  // the same time by the host's wall clock
  absl::Mutex mutex_;
  RankTrace trace_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STEP_STEP_TRACER_H_
