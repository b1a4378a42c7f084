// HollowWorkers: many workers in one process, which hold no tensors and run no steps.
#ifndef SHARDMESH_TESTS_TESTING_HOLLOW_WORKERS_H_
#define SHARDMESH_TESTS_TESTING_HOLLOW_WORKERS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace shardmesh::internal::v1 {
class AttachRequest;
class AttachResponse;
class InventoryPage;
}  // namespace shardmesh::internal::v1

namespace shardmesh::test {

// Simulated workers without tiles. Each speaks the protocol of AttachService as a real worker does:
// hello, the call back to its endpoint, an empty inventory, and heartbeats. For each membership it
// reports that it reaches its peers, without trying. It answers no order about its quarantine, and
// reports no step. It reopens an ended stream after a delay, unless its worker was told to stay
// away.
//
// clang-format off
//   auto workers = *HollowWorkers::Start({.coordinator = address, .count = 256});
//   workers->AwaitMembers(256, absl::Seconds(30));
// clang-format on
//
// One server takes the calls back of all workers: each has its own endpoint address in 127.0.0.0/8.
// Plaintext. Thread-safe.
class HollowWorkers {
 public:
  struct Options {
    std::string coordinator = {};  // host:port
    int64_t count = 0;             // 1 to 60,000
    // Identities are this and a number of six digits, from 0.
    std::string identity_prefix = "worker-";
    absl::Duration attach_delay = absl::Milliseconds(200);
    // The last page of each inventory: its number of tiles, and whether it is marked as the last.
    int64_t inventory_tiles = 0;
    bool ends_inventory = true;
    // Puts more into that page; may be called on several threads.
    std::function<void(int64_t index, internal::v1::InventoryPage* page)> add_to_inventory =
        nullptr;
    // Pages of each inventory, and the time between them. Heartbeats come after the last, as they
    // do where a worker has sent all pages at once and its link is slow.
    int64_t inventory_pages = 1;
    int64_t page_bytes = 0;  // padding of each page
    absl::Duration page_interval = absl::ZeroDuration();
    // No worker sends a page before all workers together received this many welcomes.
    int64_t pages_after_welcomes = 0;
    // Delay of each worker before its endpoint answers Identify.
    absl::Duration identify_delay = absl::ZeroDuration();
    // Sees every message that a worker gets, without a lock; may be called on several threads.
    std::function<void(int64_t index, const internal::v1::AttachResponse& message)> heard = nullptr;
  };

  static absl::StatusOr<std::unique_ptr<HollowWorkers>> Start(const Options& options);
  virtual ~HollowWorkers() = default;
  HollowWorkers(const HollowWorkers&) = delete;
  HollowWorkers& operator=(const HollowWorkers&) = delete;

  virtual std::string IdentityOf(int64_t index) const = 0;

  // Totals of all workers since the start.
  struct Totals {
    int64_t members = 0;           // that have a membership of their stream now
    int64_t lowest_epoch = 0;      // of the members'; 0 where there are none
    int64_t membership_pages = 0;  // received
    int64_t membership_bytes = 0;  // of these
    int64_t attaches = 0;          // streams that were begun
    int64_t identifies = 0;        // calls back to endpoints
    int64_t drops = 0;             // messages received that name arrays to drop
    int64_t stale_snapshots = 0;   // received, in which their receiver is not alive
    int64_t welcomes = 0;          // received
    int64_t inventories = 0;       // sent to their last page
    int64_t most_bringing = 0;     // the most workers, at any one time, with unsent inventory
    int64_t cancelled = 0;         // streams that ended without a reason of the coordinator's
    std::string last_end = {};     // of the stream that ended last, for people
  };
  virtual Totals totals() const = 0;

  // Waits until `holds` of the totals; false: not within `timeout`.
  virtual bool Await(const std::function<bool(const Totals&)>& holds, absl::Duration timeout) = 0;
  bool AwaitMembers(int64_t count, absl::Duration timeout) {
    return Await([count](const Totals& totals) { return totals.members == count; }, timeout);
  }

  // Returns the incarnation of the worker's current process.
  virtual uint64_t IncarnationOf(int64_t index) const = 0;
  // Sends something more on the worker's stream; nothing where it has none.
  virtual void Send(int64_t index, const internal::v1::AttachRequest& message) = 0;
  // The same process attaches over another stream; the one before stays as it is, without
  // heartbeats.
  virtual void AttachAgain(int64_t index) = 0;
  // Ends the stream of a worker, which stays away until Return, and is then another incarnation.
  virtual void Leave(int64_t index) = 0;
  virtual void Return(int64_t index) = 0;
  // Stops the heartbeats, and goes on reading.
  virtual void FallSilent(int64_t index) = 0;
  // StopReading takes only one more message, and keeps sending heartbeats; the other call reads
  // again.
  virtual void StopReading(int64_t index) = 0;
  virtual void ReadOn(int64_t index) = 0;

 protected:
  HollowWorkers() = default;
};

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_TESTING_HOLLOW_WORKERS_H_
