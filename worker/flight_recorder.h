// The last instructions of a rank: what it did, when, and whose data it waited for.
#ifndef SHARDMESH_WORKER_FLIGHT_RECORDER_H_
#define SHARDMESH_WORKER_FLIGHT_RECORDER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "rpc/flight_record.h"
#include "sharding/mesh.h"

namespace shardmesh::worker {

using rpc::FlightRecord;

// Keeps the last kCapacity instructions, the oldest making room for a new one. An instruction costs
// one allocation or two and a few short holds of a mutex.
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

  // Names an instruction until it is pushed out: its number.
  using Ticket = int64_t;

  // `record` says which instruction it is, and when it began; `peers` whose data it needs.
  Ticket Begin(FlightRecord record, absl::Span<const DeviceId> peers);

  // The calls below have no effect on what was pushed out.

  // From now on it waits for data of this rank.
  void WaitsFor(Ticket ticket, DeviceId peer);

  // All data that it needs of this rank has come. Of several calls for one rank the last stands. No
  // effect if it does not wait for the rank.
  void DataCame(Ticket ticket, DeviceId peer, absl::Time now);

  // It is over. Whom it waited for is kept where it failed.
  void End(Ticket ticket, absl::Status outcome, absl::Time now);

  // The last `count`, or all that are kept, the oldest first.
  std::vector<FlightRecord> Last(size_t count = kCapacity) const;

  // The one begun last, if it runs. Instructions of a rank follow one another.
  std::optional<FlightRecord> Running() const;

  // What ended since an earlier call.
  struct Tail {
    std::vector<FlightRecord> records;  // the oldest first; the last ones, if not all
    Ticket next = 0;                    // for the next call
  };
  // Those from `first` on, up to the first that still runs; at most the last `max_records`.
  Tail EndedSince(Ticket first, size_t max_records) const;

 private:
  // Null if pushed out.
  FlightRecord* Find(Ticket ticket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  const FlightRecord& At(Ticket ticket) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return ring_[static_cast<size_t>(ticket) % kCapacity];
  }

  mutable absl::Mutex mutex_;
  std::vector<FlightRecord> ring_ ABSL_GUARDED_BY(mutex_);  // ticket t at t % kCapacity
  Ticket next_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_FLIGHT_RECORDER_H_
