// The connections of one worker to its peers, and the steps that exchange messages over them. Each
// pair has one Exchange stream, which is kept up while both are members.
//
//   options.customize = [&](grpc::ServerBuilder& b) { links->Customize(b); };
//   services.push_back({.name = PeerLinks::kServiceName, .service = links->service()});
//   links->Start();                                       // once the server runs
//   links->SetMembership(view);                           // at each change
//   auto link = links->OpenLink("default", 7, view.epoch, deadline);  // for each step
//   links->Close();                                       // in the server's on_drain
//
// In each pair, the worker with the bytewise lower identity dials. Each side's first frame is a
// hello. A stream is refused with FAILED_PRECONDITION if its hello differs from the membership in
// worker, incarnation or cluster. Broken or refused streams are dialled again, with growing delays,
// while both workers are members. A peer that is silent for Options::silence_limit counts as lost:
// quiet streams therefore carry pings.
//
// Peers on one host (same boot id, then ShmPeers) exchange data through memory that each maps
// read-only from the other. The stream stays, for aborts and for data outside the arena. Only a
// worker whose memory is an arena shares it.
//
// Over streams, data is sent from its place in memory, in frames of at most 512 KiB. One tag has at
// most Mailbox's tag limit in transit, so a slow receiver of one tag does not block others. One
// stream has at most its credit in transit, so senders wait for a late rank;
// worker/exchange/peer_link.h explains why that cannot deadlock. Control frames go first, short
// messages before long ones, and long ones take turns.
#ifndef SHARDMESH_WORKER_EXCHANGE_PEER_LINKS_H_
#define SHARDMESH_WORKER_EXCHANGE_PEER_LINKS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "rpc/call.h"
#include "rpc/tls/credentials.h"
#include "tensor/buffer.h"
#include "worker/collective/link.h"
#include "worker/collective/mailbox.h"
#include "worker/exchange/link_prober.h"
#include "worker/exchange/membership_view.h"

namespace grpc {
class ServerBuilder;
class Service;
}  // namespace grpc

namespace shardmesh::worker {

// The link of one step. Destroyed when the step is over on this rank: later messages of the step
// are dropped. Must not be destroyed while a Receive is in progress, nor outlive its PeerLinks.
class StepLink : public Link {
 public:
  // OK until the step fails: a member is lost, or a peer or this worker aborted it. Then the error
  // that Receive would return. Costs one short lock, so kernels can call it regularly.
  virtual absl::Status Check() const = 0;
  // Bytes of messages that were sent to peers.
  virtual int64_t sent_bytes() const = 0;
};

class ShmArena;  // worker/shm/shm_arena.h

// The transport of data between peers.
enum class Transport {
  kAuto,    // through shared memory where peers are on one host, over streams elsewhere
  kStream,  // over streams alone
  kShm,     // through shared memory: a peer that shares none counts as unreachable
};

// auto, stream, shm; nullopt for other text.
std::optional<Transport> TransportFromName(std::string_view name);

// Thread-safe.
class PeerLinks {
 public:
  // Full name of the service, for metrics.
  static constexpr const char* kServiceName = "shardmesh.internal.v1.ExchangeService";
  // Called with the epoch and the sorted identities of unreachable peers whenever either changed;
  // the last call has the current state. Runs on the clock's thread, one call at a time, with no
  // lock held, and must not block.
  using PeersChanged =
      std::function<void(int64_t epoch, const std::vector<std::string>& unreached)>;

  struct Options {
    WorkerSelf self;
    rpc::Credentials credentials = rpc::Credentials::Insecure();
    // Outlives the links.
    rpc::Clock* clock = nullptr;
    PeersChanged peers_changed;
    // Most received bytes that may wait for receivers: per tag; and in total over one stream, as
    // its credit. LinkCredit limits this credit by the available memory.
    int64_t tag_limit_bytes = Mailbox::Options().tag_limit_bytes;
    int64_t link_limit_bytes = int64_t{16} << 20;
    // The budget for the credit of streams; outlives the links. Null: nothing is reserved.
    MemoryBudget* budget = nullptr;
    // A stream without a frame for this long is pinged; after the second time it counts as broken.
    absl::Duration ping_interval = absl::Seconds(1);
    absl::Duration silence_limit = absl::Seconds(4);
    // Delays between dials of a peer.
    rpc::RetryPolicy redial;
    Transport transport = Transport::kAuto;
    // The memory of this worker's messages, for peers on this host to read; null: not shared.
    std::shared_ptr<ShmArena> arena = nullptr;
    // Memory for the messages that measure links, in the arena if there is one; null: links are not
    // measured.
    std::shared_ptr<BufferPool> probe_pool = nullptr;
  };

  // The credit of one of `peers` streams, which together may use `budget_bytes` / kCreditPart: at
  // most link_limit_bytes, at least kLeastLinkCredit.
  static constexpr int64_t kCreditPart = 8;
  static constexpr int64_t kLeastLinkCredit = int64_t{64} << 10;
  static int64_t LinkCredit(int64_t link_limit_bytes, int64_t budget_bytes, int64_t peers);

  static std::unique_ptr<PeerLinks> Create(Options options);
  // Closes everything, and waits for it. Requires that Close was called, that the ServerLifecycle
  // of `service()` was drained afterwards, and that no StepLink is left. Destroy that server later.
  virtual ~PeerLinks() = default;
  PeerLinks(const PeerLinks&) = delete;
  PeerLinks& operator=(const PeerLinks&) = delete;

  // The server's side: give both to a separate server (ServerOptions::health false)
  // before it starts, and call Start once it runs. service() belongs to this
  // object.
  virtual void Customize(grpc::ServerBuilder& builder) = 0;
  virtual grpc::Service* service() = 0;
  virtual void Start() = 0;

  // Ends all streams and dials no more; every step fails with UNAVAILABLE. peers_changed is not
  // called after this returns. For on_drain.
  virtual void Close() = 0;

  // The cluster to which peers must belong; set it before the first membership. Empty: hellos are
  // not checked for it.
  virtual void SetClusterId(std::string cluster_id) = 0;

  // Sets the members. Ends the streams to workers that left or restarted, and dials new ones.
  // Ignores a view of a lower epoch.
  virtual void SetMembership(MembershipView view) = 0;
  // The last view.
  virtual MembershipView membership() const = 0;

  // This worker will take part in step `sequence`, as of `epoch`. Messages for it are kept until it
  // is opened, in any order with other steps, or until CloseStep. Steps must be expected in the
  // order of their numbers, above kProbeStep; FAILED_PRECONDITION otherwise.
  virtual absl::Status ExpectStep(int64_t sequence, int64_t epoch) = 0;
  // The step is over here without having been opened. No effect if it is not expected.
  virtual void CloseStep(int64_t sequence) = 0;

  // Begins step `sequence` on a mesh in its state of `epoch`. If this worker does not have a
  // membership of that epoch yet, waits for it until `deadline`; other steps can be opened
  // meanwhile. Calls ExpectStep if the step is not expected.
  //
  // FAILED_PRECONDITION: NOT_FOUND reason if this worker does not serve the mesh; MESH_INCOMPLETE
  //   if a rank has no worker; as of ExpectStep.
  // ABORTED (STALE_EPOCH): the mesh's workers have changed since that epoch.
  // UNAVAILABLE (WORKER_LOST): a member is not reached.
  // DEADLINE_EXCEEDED: no membership of that epoch came.
  // Otherwise: the status with which the step was aborted.
  virtual absl::StatusOr<std::unique_ptr<StepLink>> OpenLink(std::string_view mesh_id,
                                                             int64_t sequence, int64_t epoch,
                                                             absl::Time deadline) = 0;

  // Ends a step's exchanges, even before it is opened: every Receive fails with `status` at once,
  // here and on the peers. `blamed` is the identity of the worker at fault. If the step is over or
  // was aborted before, only drops its unsent messages.
  virtual void AbortStep(int64_t sequence, const absl::Status& status, std::string_view blamed) = 0;

  // The worker at fault for the failure of a step, which is expected, open or a later one; empty if
  // none is known.
  virtual std::string BlamedFor(int64_t sequence) const = 0;

  // The links to peers that this worker dials, if they were measured over connections that are up.
  // The measurement uses kProbeStep, and runs beside steps.
  virtual MeasuredLinks measured_links() const = 0;

  // Counted since the start.
  struct Counters {
    int64_t sent_bytes = 0;      // payload, to all peers
    int64_t received_bytes = 0;  // payload, from all peers
    int64_t shared_bytes = 0;    // part of sent_bytes, through shared memory
    int64_t dropped_frames = 0;  // of ended steps, and of replaced streams
    int64_t stale_frames = 0;    // dropped, too: of a step that is open in another epoch
    // Each of these ends its stream: a wrong checksum; a breach of the protocol; a hello with
    // another cluster, incarnation or epoch.
    int64_t corrupt_frames = 0;
    int64_t malformed_frames = 0;
    int64_t refused_hellos = 0;
    int64_t broken_streams = 0;  // that had been up
    int64_t held_bytes = 0;      // now: in messages that wait for receivers
    int64_t credit_waits = 0;    // how often data waited for credit of its stream
  };
  virtual Counters counters() const = 0;

 protected:
  PeerLinks() = default;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_PEER_LINKS_H_
