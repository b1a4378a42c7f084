// The last ops of a rank: what it did, when, and whose data it waited for.
#ifndef SHARDMESH_WORKER_FLIGHT_RECORDER_H_
#define SHARDMESH_WORKER_FLIGHT_RECORDER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sharding/mesh.h"

namespace shardmesh::worker {

// One op of one step as this rank saw it.
struct FlightRecord {
  struct Peer {
    DeviceId rank = 0;
    absl::Time data_came = absl::InfiniteFuture();  // InfiniteFuture: not yet
  };

  int64_t step = 0;
  int64_t op = 0;
  std::string what;  // "op 0 (linear): all-reduce over tp"
  absl::Time started;
  absl::Time ended = absl::InfiniteFuture();  // InfiniteFuture: still runs
  absl::Status outcome;                       // OK while it runs
  std::vector<Peer> peers;                    // whose data it needs; may be empty
};

// Keeps the last kCapacity ops, the oldest making room for a new one. An op costs one allocation or
// two and a few short holds of a mutex.
//
// Example: const auto op = recorder.Begin(7, 2, "all-reduce over tp", {1, 2, 3}, clock.Now());
//          recorder.DataCame(op, 2, clock.Now());
//          recorder.End(op, status, clock.Now());
// Thread-safe.
class FlightRecorder {
 public:
  static constexpr size_t kCapacity = 1024;

  // Names an op until it is pushed out.
  using Ticket = int64_t;

  Ticket Begin(int64_t step, int64_t op, std::string what, absl::Span<const DeviceId> peers,
               absl::Time now);

  // All data that the op needs of this rank has come. Of several calls for one rank the last
  // stands. No effect on an op that was pushed out, or that does not wait for the rank.
  void DataCame(Ticket ticket, DeviceId peer, absl::Time now);

  // The op is over. No effect on an op that was pushed out.
  void End(Ticket ticket, absl::Status outcome, absl::Time now);

  // The last `count` ops, or all that are kept, the oldest first.
  std::vector<FlightRecord> Last(size_t count = kCapacity) const;

 private:
  // Null if pushed out.
  FlightRecord* Find(Ticket ticket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::vector<FlightRecord> ring_ ABSL_GUARDED_BY(mutex_);  // ticket t at t % kCapacity
  Ticket next_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_FLIGHT_RECORDER_H_
