// The last instructions of a rank: what it did, when, and whose data it waited for.
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
#include "rpc/codec/flight_record.h"
#include "sharding/mesh.h"

namespace shardmesh::worker {

using rpc::FlightRecord;

// Keeps the instructions that run, of steps that run side by side, and the last kCapacity that have
// ended, the oldest making room for a new one. They are numbered in the order in which they ended.
// An instruction costs a few allocations and short holds of a mutex.
//
// Example: const auto op = recorder.Begin({.step = 7, .op = 2, .what = "all-reduce over tp",
//                                          .started = clock.Now()}, {1, 2, 3});
//          recorder.WaitsFor(op, 2);
//          recorder.DataCame(op, 2, clock.Now());
//          recorder.End(op, status, clock.Now());
// Thread-safe.
class FlightRecorder {
 public:
  static constexpr size_t kCapacity = 1024;

  // Names an instruction until it has ended.
  using Ticket = int64_t;

  // `record` says which instruction it is, and when it began; `peers` whose data it needs.
  Ticket Begin(FlightRecord record, absl::Span<const DeviceId> peers);

  // The calls below have no effect on what has ended.

  // From now on it waits for data of this rank.
  void WaitsFor(Ticket ticket, DeviceId peer);

  // All data that it needs of this rank has come. Of several calls for one rank the last stands. No
  // effect if it does not wait for the rank.
  void DataCame(Ticket ticket, DeviceId peer, absl::Time now);

  // It is over. Whom it waited for is kept where it failed.
  void End(Ticket ticket, absl::Status outcome, absl::Time now);

  // The last `count`, or all that are kept: what has ended in its order, then what runs.
  std::vector<FlightRecord> Last(size_t count = kCapacity) const;

  // The instruction of a step that runs. Those of one step follow one another.
  std::optional<FlightRecord> Running(int64_t step) const;

  // What ended since an earlier call.
  struct Tail {
    std::vector<FlightRecord> records;  // the oldest first; the last ones, if not all
    int64_t next = 0;                   // for the next call
  };
  // Those from number `first` on; at most the last `max_records`.
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
