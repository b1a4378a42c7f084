// The worker's stream to the coordinator. The worker sends its inventory and reports. The
// coordinator sends orders and membership updates.
#ifndef SHARDMESH_WORKER_SERVICE_COORDINATOR_LINK_H_
#define SHARDMESH_WORKER_SERVICE_COORDINATOR_LINK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "program/measured_rates.h"
#include "rpc/call.h"
#include "rpc/tls/credentials.h"
#include "worker/exchange/membership_view.h"
#include "worker/exchange/peer_links.h"
#include "worker/save/save_orders.h"
#include "worker/service/attach_memory_requests.h"
#include "worker/service/tile_filler.h"
#include "worker/service/tile_gate.h"
#include "worker/step/flight_recorder.h"
#include "worker/step/step_executor.h"
#include "worker/store/shard_store.h"

namespace shardmesh::worker {

// Keeps the worker attached to the coordinator. The inventory lists the tiles that the worker
// holds. With its verdict, the coordinator decides about each of these tiles. A membership update
// says which worker serves which rank.
//
// clang-format off
//   detached -> (hello, welcome) -> attached -> (inventory, verdict, membership) -> member
//      ^                                |                                             |
//      +----- the stream ends: running steps and puts end, links to peers stay --------+
// clang-format on
//
// Whenever the stream ends, the link attaches again, without a limit on the number of attempts.
// Each attempt uses a new connection, after a growing delay. The log has the error of each attempt.
// Only permanent errors end the link: see Options::failed. The link handles the coordinator's
// messages in order, on its own thread.
//
// The link sends heartbeats in the interval that the coordinator asks for. As soon as an
// instruction of a step has run for a tenth of a second, the link sends an extra heartbeat. Before
// the step's deadline, the coordinator therefore knows which rank waits for which other rank. Each
// heartbeat carries the progress of running steps, the records of instructions that ended since the
// last heartbeat, and new measurements of links.
//
// Thread-safe.
class CoordinatorLink {
 public:
  // The objects to which pointers refer outlive the link.
  struct Options {
    std::string coordinator;  // host:port
    rpc::Credentials credentials = rpc::Credentials::Insecure();
    WorkerSelf self;
    std::string nonce;                   // random bytes in the hello, which Identify returns
    std::vector<std::string> endpoints;  // addresses for clients of this worker, best first
    // The port at which peers reach this worker, on the hosts of `endpoints`. nullopt: peers use
    // the ports in `endpoints`.
    std::optional<int> exchange_port = std::nullopt;
    int threads = 1;                  // for kernels
    MeasuredKernels kernels = {};     // speed of the kernels
    bool overlaps_exchanges = false;  // runs plans for which OverlapsExchanges is true
    bool overlaps_parts = false;      // runs plans for which OverlapsParts is true
    // The folder in which the newest known term is kept. Empty: the term is kept only in memory.
    std::string data_dir;
    Clock* clock = nullptr;
    ShardStore* store = nullptr;
    int64_t cache_bytes = 0;           // memory that tiles of released arrays may take
    MemoryRequests* memory = nullptr;  // null: the worker asks for no memory
    TileGate* gate = nullptr;
    PeerLinks* links = nullptr;
    StepExecutor* executor = nullptr;
    SaveOrders* saves = nullptr;  // null: the worker takes part in no save
    TileFiller* filler = nullptr;
    // The instruction records for heartbeats. Null: heartbeats carry no instruction records.
    const FlightRecorder* recorder = nullptr;
    // Called whenever `ready` changes: whether the worker is a member and reaches all its peers.
    // Called with a lock of the link held, so it must not call the link.
    std::function<void(bool ready)> ready_changed;
    // Called once, when the coordinator permanently refuses this worker: CLUSTER_MISMATCH,
    // IDENTITY_MISMATCH, PROTOCOL_MISMATCH, a certificate of another worker, a malformed hello, or
    // a Detach message without a time for a retry. The link then does nothing more.
    std::function<void(const absl::Status& reason)> failed;
    // A worker must find a serving coordinator within 2 s. Therefore max_delay and the time after
    // which rpc::Connector renews an attempt (kRenewal) are both less than 2 s.
    rpc::RetryPolicy retry = {.max_delay = absl::Milliseconds(500)};
  };

  // INVALID_ARGUMENT if the coordinator's address is malformed. Otherwise errors of
  // TermKeeper::Open.
  static absl::StatusOr<std::unique_ptr<CoordinatorLink>> Create(Options options);
  // Ends the stream, and waits for the link's thread.
  virtual ~CoordinatorLink() = default;
  CoordinatorLink(const CoordinatorLink&) = delete;
  CoordinatorLink& operator=(const CoordinatorLink&) = delete;

  // Starts to attach. Call it once.
  virtual void Start() = 0;

  // Sends the report if the worker is attached. Otherwise drops it: the inventory of the next
  // attach lists the tile.
  virtual void ReportTile(const TileReport& report) = 0;
  virtual void ReportPeers(int64_t epoch, const std::vector<std::string>& unreached) = 0;
  virtual void ReportDamaged(const std::string& array_id, const std::string& reason) = 0;
  // Reports that an array came back from the quarantine. If the worker is not attached, sends the
  // report after the next attach.
  virtual void ReportRestored(const std::string& array_id) = 0;

  // Tells the coordinator that the worker drains, and why. Waits, at most until `deadline`, for the
  // coordinator to end the stream. The coordinator does so when nothing needs this worker. After
  // that, ends the stream if it is still open. The link does not attach again.
  virtual void Leave(const std::string& reason, absl::Time deadline) = 0;

  struct State {
    bool attached = false;
    bool ready = false;
    int64_t epoch = 0;  // epoch of the last membership view
    int64_t term = 0;   // the newest term that the worker knows
  };
  virtual State state() const = 0;

 protected:
  CoordinatorLink() = default;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_COORDINATOR_LINK_H_
