// The last instructions of a rank: their description, their times, and the peers that they waited
// for.
#ifndef SHARDMESH_WORKER_STEP_FLIGHT_RECORDER_H_
#define SHARDMESH_WORKER_STEP_FLIGHT_RECORDER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "program/flight_record.h"
#include "sharding/mesh.h"

namespace shardmesh::worker {

// Keeps the running instructions of all steps, and the last kCapacity that have ended; a new one
// replaces the oldest. Ended instructions are numbered in the order in which they ended. An
// instruction costs a few allocations and short holds of a mutex. Thread-safe.
//
// Example:
//
// clang-format off
//   const auto op = recorder.Begin({.step = 7, .op = 2, .what = "all-reduce over tp",
//                                   .started = clock.Now()}, {1, 2, 3});
//   recorder.WaitsFor(op, 2);
//   recorder.DataCame(op, 2, clock.Now());
//   recorder.End(op, status, clock.Now());
// clang-format on
class FlightRecorder {
 public:
  static constexpr size_t kCapacity = 1024;

  // Identifies an instruction until it has ended.
  using Ticket = int64_t;

  // Records the start of an instruction. `record` describes it and holds its start time; it needs
  // data from `peers`.
  Ticket Begin(FlightRecord record, absl::Span<const DeviceId> peers);

  // The calls below have no effect on ended instructions.

  // Records that the instruction waits for data from this rank.
  void WaitsFor(Ticket ticket, DeviceId peer);

  // All data that the instruction needs from this rank has come. After several calls for one rank
  // the last one stands. No effect if the instruction does not wait for the rank.
  void DataCame(Ticket ticket, DeviceId peer, absl::Time now);

  // The instruction has ended. If it failed, the record keeps the rank that it waited for.
  void End(Ticket ticket, absl::Status outcome, absl::Time now);

  // Returns the last `count` records, or all: first the ended ones in their order, then the running
  // ones.
  std::vector<FlightRecord> Last(size_t count = kCapacity) const;

  // Returns the running instruction of a step. A step runs one instruction at a time.
  std::optional<FlightRecord> Running(int64_t step) const;

  // Records that ended since an earlier call.
  struct Tail {
    std::vector<FlightRecord> records;  // the oldest first; only the last ones if there are too
                                        // many
    int64_t next = 0;                   // `first` of the next call
  };
  // Returns the records from number `first` on; at most the last `max_records`.
  Tail EndedSince(int64_t first, size_t max_records) const;

 private:
  mutable absl::Mutex mutex_;
  std::map<Ticket, FlightRecord> running_ ABSL_GUARDED_BY(mutex_);
  Ticket next_ticket_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<FlightRecord> ring_ ABSL_GUARDED_BY(mutex_);  // number n at n % kCapacity
  int64_t ended_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STEP_FLIGHT_RECORDER_H_
