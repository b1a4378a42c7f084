// The worker's stream to the coordinator: inventory and reports go up, orders and memberships come
// down.
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
#include "rpc/call.h"
#include "rpc/tls/credentials.h"
#include "worker/exchange/membership_view.h"
#include "worker/exchange/peer_links.h"
#include "worker/service/tile_gate.h"
#include "worker/step/flight_recorder.h"
#include "worker/step/step_executor.h"
#include "worker/store/shard_store.h"

namespace shardmesh::worker {

// Keeps the worker attached:
//
// clang-format off
//   detached -> (hello, welcome) -> attached -> (inventory, verdict, membership) -> member
//      ^                                |                                             |
//      +--------- the stream ends: running steps and puts end, peers stay -------------+
// clang-format on
//
// Whenever the stream ends, the link retries for ever, over a new connection each time, with
// growing delays. The log says what it waits for. Only errors that waiting cannot cure end it: see
// Options::failed. The link handles the coordinator's messages in order, on its own thread.
//
// Heartbeats go up in the interval that the coordinator asks for. As soon as an instruction of a
// step has run for a tenth of a second, an extra heartbeat goes up. The coordinator therefore knows
// which rank waits for which before the step's deadline. Each heartbeat carries the step's
// progress, the records of instructions that ended since the last one, and new measurements of
// links.
//
// Thread-safe.
class CoordinatorLink {
 public:
  // Pointers outlive the link.
  struct Options {
    std::string coordinator;  // host:port
    rpc::Credentials credentials = rpc::Credentials::Insecure();
    WorkerSelf self;
    std::string nonce;                   // the answer to Identify
    std::vector<std::string> endpoints;  // where clients reach this worker, best first
    // Where peers reach it, on the same hosts; nullopt: at the endpoints.
    std::optional<int> exchange_port = std::nullopt;
    int threads = 1;  // for kernels
    // Where the newest term is kept; empty: only in memory.
    std::string data_dir;
    Clock* clock = nullptr;
    ShardStore* store = nullptr;
    TileGate* gate = nullptr;
    PeerLinks* links = nullptr;
    StepExecutor* executor = nullptr;
    // The heartbeats carry its records; null: none.
    const FlightRecorder* recorder = nullptr;
    // Called at each change of whether the worker is a member and reaches all its peers. Runs under
    // a lock of the link: it must not call back.
    std::function<void(bool ready)> ready_changed;
    // Called once, when the coordinator permanently refuses this worker: CLUSTER_MISMATCH,
    // IDENTITY_MISMATCH, PROTOCOL_MISMATCH, a certificate of another worker, or a malformed hello.
    // The link then does nothing more.
    std::function<void(const absl::Status& reason)> failed;
    // The longest delay and the connection timeout (rpc::Connector) are both less than 2 s, the
    // limit for a worker to find a serving coordinator.
    rpc::RetryPolicy retry = {.max_delay = absl::Milliseconds(500)};
  };

  // INVALID_ARGUMENT for a bad address; errors of reading the term.
  static absl::StatusOr<std::unique_ptr<CoordinatorLink>> Create(Options options);
  // Ends the stream.
  virtual ~CoordinatorLink() = default;
  CoordinatorLink(const CoordinatorLink&) = delete;
  CoordinatorLink& operator=(const CoordinatorLink&) = delete;

  // Begins to attach. Call it once.
  virtual void Start() = 0;

  // Sends a report if the worker is attached, and drops it otherwise: the inventory of the next
  // attach covers it.
  virtual void ReportTile(const TileReport& report) = 0;
  virtual void ReportPeers(int64_t epoch, const std::vector<std::string>& unreached) = 0;

  // Tells the coordinator that the worker drains, and why. Waits at most until `deadline` for the
  // coordinator to end the stream, which it does when nothing needs this worker. Ends the stream
  // permanently.
  virtual void Leave(const std::string& reason, absl::Time deadline) = 0;

  struct State {
    bool attached = false;
    bool ready = false;
    int64_t epoch = 0;  // of the last membership
    int64_t term = 0;   // the newest known term
  };
  virtual State state() const = 0;

 protected:
  CoordinatorLink() = default;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_COORDINATOR_LINK_H_
