// HollowWorkers: many workers in one process, which hold no tensors and run no steps.
#ifndef SHARDMESH_TESTS_TESTING_HOLLOW_WORKERS_H_
#define SHARDMESH_TESTS_TESTING_HOLLOW_WORKERS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace shardmesh::internal::v1 {
class AttachRequest;
class AttachResponse;
class InventoryPage;
}  // namespace shardmesh::internal::v1

namespace shardmesh::test {

// Simulated workers without tiles. Each worker speaks the protocol of AttachService as a real
// worker does: hello, an answer to the coordinator's call back to its endpoint, an empty inventory,
// and heartbeats. For each membership, it reports that it reaches its peers, without trying. It
// answers no order about its quarantine, and reports no step. If its stream ends, it opens a new
// one after a delay, unless the test made it leave.
//
// clang-format off
//   auto workers = *HollowWorkers::Start({.coordinator = address, .count = 256});
//   workers->AwaitMembers(256, absl::Seconds(30));
// clang-format on
//
// One server answers the coordinator's calls back to all workers: each worker has its own endpoint
// address in 127.0.0.0/8. Plaintext. Thread-safe.
class HollowWorkers {
 public:
  struct Options {
    std::string coordinator = {};  // host:port
    int64_t count = 0;             // 1 to 60,000
    // A worker's identity is this prefix and its index as six digits, from 0.
    std::string identity_prefix = "worker-";
    absl::Duration attach_delay = absl::Milliseconds(200);
    // For the last page of each inventory: its number of tiles, and whether it is marked as the
    // last page.
    int64_t inventory_tiles = 0;
    bool ends_inventory = true;
    // Called to add more to the last page; may be called on several threads.
    std::function<void(int64_t index, internal::v1::InventoryPage* page)> add_to_inventory =
        nullptr;
    // The number of pages of each inventory, and the time between pages. Heartbeats begin after the
    // last page, as if a worker had sent all pages at once over a slow link.
    int64_t inventory_pages = 1;
    int64_t page_bytes = 0;  // bytes of padding in each page
    absl::Duration page_interval = absl::ZeroDuration();
    // No worker sends a page before all workers together have received this many welcome messages.
    int64_t pages_after_welcomes = 0;
    std::vector<std::string> features = {};  // of each worker's hello
    // Delay of each worker before its endpoint answers Identify.
    absl::Duration identify_delay = absl::ZeroDuration();
    // Called with every message that a worker gets, without a lock; may be called on several
    // threads.
    std::function<void(int64_t index, const internal::v1::AttachResponse& message)> heard = nullptr;
  };

  static absl::StatusOr<std::unique_ptr<HollowWorkers>> Start(const Options& options);
  virtual ~HollowWorkers() = default;
  HollowWorkers(const HollowWorkers&) = delete;
  HollowWorkers& operator=(const HollowWorkers&) = delete;

  virtual std::string IdentityOf(int64_t index) const = 0;

  // Totals of all workers since the start.
  struct Totals {
    int64_t members = 0;           // workers that now have a membership on their stream
    int64_t lowest_epoch = 0;      // lowest epoch of the members; 0 if there are none
    int64_t membership_pages = 0;  // received
    int64_t membership_bytes = 0;  // of these
    int64_t attaches = 0;          // streams that workers opened
    int64_t identifies = 0;        // calls of Identify to endpoints
    int64_t drops = 0;             // received messages that name arrays to drop
    int64_t stale_snapshots = 0;   // received memberships in which the receiver is not alive
    int64_t welcomes = 0;          // received
    int64_t inventories = 0;       // inventories sent to their last page
    int64_t most_bringing = 0;     // most workers at the same time with unsent inventory
    int64_t cancelled = 0;         // streams that ended without a reason from the coordinator
    std::string last_end = {};     // how the last ended stream ended, for people
  };
  virtual Totals totals() const = 0;

  // Waits until `holds(totals)` is true. Returns false if that does not happen within `timeout`.
  virtual bool Await(const std::function<bool(const Totals&)>& holds, absl::Duration timeout) = 0;
  bool AwaitMembers(int64_t count, absl::Duration timeout) {
    return Await([count](const Totals& totals) { return totals.members == count; }, timeout);
  }

  // Returns the incarnation of the worker's current process.
  virtual uint64_t IncarnationOf(int64_t index) const = 0;
  // Sends an additional message on the worker's stream; does nothing if the worker has no stream.
  virtual void Send(int64_t index, const internal::v1::AttachRequest& message) = 0;
  // Makes the same worker process attach over another stream. The earlier stream stays open,
  // without heartbeats.
  virtual void AttachAgain(int64_t index) = 0;
  // Ends the stream of a worker. The worker stays away until Return, and then has a new
  // incarnation.
  virtual void Leave(int64_t index) = 0;
  virtual void Return(int64_t index) = 0;
  // Stops the worker's heartbeats; the worker continues to read.
  virtual void FallSilent(int64_t index) = 0;
  // After StopReading, the worker reads only one more message, and continues to send heartbeats.
  // ReadOn lets the worker read again.
  virtual void StopReading(int64_t index) = 0;
  virtual void ReadOn(int64_t index) = 0;

 protected:
  HollowWorkers() = default;
};

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_TESTING_HOLLOW_WORKERS_H_
