// The time of the next heartbeat.
#ifndef SHARDMESH_WORKER_SERVICE_HEARTBEAT_PACE_H_
#define SHARDMESH_WORKER_SERVICE_HEARTBEAT_PACE_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "program/flight_record.h"

namespace shardmesh::worker {

// Heartbeats go up in the coordinator's interval. An extra one goes up as soon as an instruction
// has run for kSlowAfter, once for each instruction.
//
// clang-format off
//   pace.Begin(interval, now);
//   at pace.next(), and at each time that a call returned:
//     if (due = pace.NotDueUntil(progress, now)) look again at *due
//     else { send a heartbeat; look again at pace.Sent(progress, now) }
// clang-format on
//
// Each call of NotDueUntil and Sent gets the steps that run now. Not thread-safe.
class HeartbeatPace {
 public:
  // An instruction that runs this long is reported at once.
  static constexpr absl::Duration kSlowAfter = absl::Milliseconds(100);
  // A shorter interval of a coordinator counts as this one.
  static constexpr absl::Duration kMinInterval = absl::Milliseconds(10);

  // A stream to a coordinator begins, which may know nothing of this worker.
  void Begin(absl::Duration interval, absl::Time now);

  // Makes a heartbeat due at `now`.
  void MakeDue(absl::Time now) { next_ = now; }

  // Returns the time of the next heartbeat, unless an instruction is slow.
  absl::Time next() const { return next_; }

  // Returns when to look again; nullopt if a heartbeat is due.
  std::optional<absl::Time> NotDueUntil(const std::vector<StepProgress>& progress,
                                        absl::Time now) const;

  // Records that a heartbeat with `progress` was sent. Returns when to look again.
  absl::Time Sent(const std::vector<StepProgress>& progress, absl::Time now);

 private:
  // A running step, and its instruction or -1.
  using Running = std::pair<int64_t, int64_t>;

  static Running RunningOf(const StepProgress& step);

  absl::Duration interval_ = absl::Seconds(1);
  absl::Time next_;
  std::vector<Running> told_;  // with the last heartbeat
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_HEARTBEAT_PACE_H_
