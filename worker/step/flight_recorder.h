// Records the last instructions of a rank: what they are, when they ran, and for which peers they
// waited.
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

// Keeps the records of the running instructions of all steps, and of the last kCapacity
// instructions that have ended. A newly ended instruction replaces the oldest ended one. If more
// than kCapacity instructions run, forgets the running instructions that began first. Numbers ended
// instructions from 0, in the order in which they ended. Recording an instruction costs a few
// allocations and short holds of a mutex. Thread-safe.
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

  // Records the start of an instruction. `record` has its description and its start time. `peers`
  // are the ranks whose data the instruction needs.
  Ticket Begin(FlightRecord record, absl::Span<const DeviceId> peers);

  // WaitsFor, DataCame, Received and End have no effect if the instruction has ended.

  // Records that the instruction waits for data from this peer.
  void WaitsFor(Ticket ticket, DeviceId peer);

  // Records that all data that the instruction needs from this peer has come. If called repeatedly
  // for one peer, the last call counts. No effect if the instruction does not need data from the
  // peer.
  void DataCame(Ticket ticket, DeviceId peer, absl::Time now);

  // Records that `bytes` more have come from other ranks.
  void Received(Ticket ticket, int64_t bytes);

  // Records the end of the instruction. If the instruction failed, its record keeps the peer for
  // which it waited last.
  void End(Ticket ticket, absl::Status outcome, absl::Time now);

  // Returns `count` records, or all if there are fewer. Takes the running instructions that began
  // last, and fills up with the instructions that ended last. In the result, ended instructions
  // come first, in the order of their ends; running instructions follow.
  std::vector<FlightRecord> Last(size_t count = kCapacity) const;

  // Returns the running instruction of a step; nullopt if none runs. A step runs one instruction at
  // a time.
  std::optional<FlightRecord> Running(int64_t step) const;

  // The records that EndedSince returns.
  struct Tail {
    // In the order in which the instructions ended. Older records are missing if there are more
    // than the call asks for, or more than the recorder keeps.
    std::vector<FlightRecord> records;
    int64_t next = 0;  // pass it as `first` in the next call
  };
  // Returns the records of ended instructions from number `first` on. If there are more than
  // `max_records`, returns only the last `max_records`.
  Tail EndedSince(int64_t first, size_t max_records) const;

 private:
  mutable absl::Mutex mutex_;
  std::map<Ticket, FlightRecord> running_ ABSL_GUARDED_BY(mutex_);
  Ticket next_ticket_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<FlightRecord> ring_ ABSL_GUARDED_BY(mutex_);  // record n is at index n % kCapacity
  int64_t ended_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STEP_FLIGHT_RECORDER_H_
