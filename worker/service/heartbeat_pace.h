// Decides when the worker sends its next heartbeat.
#ifndef SHARDMESH_WORKER_SERVICE_HEARTBEAT_PACE_H_
#define SHARDMESH_WORKER_SERVICE_HEARTBEAT_PACE_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "program/flight_record.h"

namespace shardmesh::worker {

// A heartbeat is due after each interval that the coordinator asked for. An extra heartbeat is due
// as soon as an instruction has run for kSlowAfter. Each instruction causes at most one extra
// heartbeat.
//
// clang-format off
//   pace.Begin(interval, now);
//   at pace.next(), and at each time that a call returned:
//     if (due = pace.NotDueUntil(progress, now)) look again at *due
//     else { send a heartbeat; look again at pace.Sent(progress, now) }
// clang-format on
//
// To each call of NotDueUntil and Sent, the caller passes the progress of the steps that run at
// that time. Not thread-safe.
class HeartbeatPace {
 public:
  // An instruction that runs for this long is slow, and is reported at once.
  static constexpr absl::Duration kSlowAfter = absl::Milliseconds(100);
  // The shortest interval. It applies if the coordinator asks for a shorter interval.
  static constexpr absl::Duration kMinInterval = absl::Milliseconds(10);

  // Call it when a stream to a coordinator begins. That coordinator may know nothing of this
  // worker, so instructions that were reported before are reported again.
  void Begin(absl::Duration interval, absl::Time now);

  // Makes a heartbeat due at `now`.
  void MakeDue(absl::Time now) { next_ = now; }

  // Returns the time of the next regular heartbeat.
  absl::Time next() const { return next_; }

  // Returns the time of the next call of NotDueUntil; nullopt if a heartbeat is due now.
  std::optional<absl::Time> NotDueUntil(const std::vector<StepProgress>& progress,
                                        absl::Time now) const;

  // Records that a heartbeat with `progress` was sent. Returns the time of the next call of
  // NotDueUntil.
  absl::Time Sent(const std::vector<StepProgress>& progress, absl::Time now);

 private:
  // The number of a running step, and of its running instruction (-1 if no instruction runs).
  using Running = std::pair<int64_t, int64_t>;

  static Running RunningOf(const StepProgress& step);

  absl::Duration interval_ = absl::Seconds(1);
  absl::Time next_;
  std::vector<Running> told_;  // the instructions in the last heartbeat
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_HEARTBEAT_PACE_H_
