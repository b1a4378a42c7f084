// The stream to the coordinator: what this worker holds and reports goes up, what it is to know and
// do comes down.
#ifndef SHARDMESH_WORKER_SERVICE_COORDINATOR_LINK_H_
#define SHARDMESH_WORKER_SERVICE_COORDINATOR_LINK_H_

#include <cstdint>
#include <functional>
#include <memory>
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
//   detached -> (hello, welcome) -> attached -> (inventory, verdict, membership) -> member
//      ^                                |                                             |
//      +--------- the stream ends: steps and puts under way end, peers stay ----------+
//
// and tries again, with growing delays and for ever, whenever the stream ends, each time over a new
// connection; the log says what it waits for. Only errors that waiting cannot help end it: see
// Options::failed. Messages of the coordinator are acted on in their order, on a thread of the
// link's own.
//
// Heartbeats go up in the interval that the coordinator asks for, and one between as soon as an
// instruction of a step has run for a tenth of a second, so that the coordinator knows who waits
// for whom before the step's time is over. Each carries the step's progress, the records of
// instructions that ended since the last, and what was measured of links, if that is new.
//
// Thread-safe.
class CoordinatorLink {
 public:
  // Pointers outlive the link.
  struct Options {
    std::string coordinator;  // host:port
    rpc::Credentials credentials = rpc::Credentials::Insecure();
    WorkerSelf self;
    std::string nonce;                   // that Identify answers with
    std::vector<std::string> endpoints;  // where this worker is reached, best first
    int exchange_port = 0;               // where its peers reach it, on these hosts; 0: there too
    int threads = 1;                     // for kernels
    // Where the newest term is kept; empty for in memory alone.
    std::string data_dir;
    rpc::Clock* clock = nullptr;
    ShardStore* store = nullptr;
    TileGate* gate = nullptr;
    PeerLinks* links = nullptr;
    StepExecutor* executor = nullptr;
    // Whose records the heartbeats carry; null: none.
    const FlightRecorder* recorder = nullptr;
    // Whether the worker is a member and reaches all its peers. Called at each change, under a lock
    // of the link's: must not call back.
    std::function<void(bool ready)> ready_changed;
    // Called once, when the coordinator refuses this worker for good: CLUSTER_MISMATCH,
    // IDENTITY_MISMATCH, PROTOCOL_MISMATCH, a certificate that is another worker's, or a hello that
    // it calls malformed. The link does nothing more.
    std::function<void(const absl::Status& reason)> failed;
    // The longest delay, and the time of a connection (rpc::Connector), are less than the 2 s
    // within which a worker is to find a coordinator that serves.
    rpc::RetryPolicy retry = {.max_delay = absl::Milliseconds(500)};
  };

  // INVALID_ARGUMENT for a bad address; errors of reading the term.
  static absl::StatusOr<std::unique_ptr<CoordinatorLink>> Create(Options options);
  // Ends the stream.
  virtual ~CoordinatorLink() = default;
  CoordinatorLink(const CoordinatorLink&) = delete;
  CoordinatorLink& operator=(const CoordinatorLink&) = delete;

  // Begins to attach. To be called once.
  virtual void Start() = 0;

  // Reports go up if the worker is attached, and are dropped otherwise: at the next attach the
  // inventory tells what came of them.
  virtual void ReportTile(const TileReport& report) = 0;
  virtual void ReportPeers(int64_t epoch, const std::vector<std::string>& unreached) = 0;

  // Tells the coordinator that the worker leaves and why, waits until that ends the stream, since
  // nothing needs this worker any more, but not beyond `deadline`, and ends it for good.
  virtual void Leave(const std::string& reason, absl::Time deadline) = 0;

  struct State {
    bool attached = false;
    bool ready = false;
    int64_t epoch = 0;  // of the last membership
    int64_t term = 0;   // the newest heard of
  };
  virtual State state() const = 0;

 protected:
  CoordinatorLink() = default;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_COORDINATOR_LINK_H_
