// The connections of one worker to its peers: one Exchange stream a pair, kept up for as long as
// both are members, and the steps that exchange messages over them.
//
//   options.customize = [&](grpc::ServerBuilder& b) { links->Customize(b); };   // before the
//   server services.push_back({.name = PeerLinks::kServiceName, .service = links->service()});
//   links->Start();                                       // once the server runs
//   links->SetMembership(view);                           // at each change
//   auto link = links->OpenLink("default", 7, view.epoch, deadline);  // a step's exchange of
//   messages links->Close();                                       // in the server's on_drain
//
// Of two workers the one with the bytewise lower identity dials. Each side's first frame is a
// hello; a stream whose hello names another worker, incarnation or cluster than the membership says
// is refused with FAILED_PRECONDITION. Broken or refused streams are dialled again, with growing
// delays, while both workers are members. A peer that is silent for Options::silence_limit is given
// up: quiet streams carry pings.
//
// Peers on one host (boot ids, then ShmPeers) pass data through memory that each maps of the other,
// read-only, instead; the stream stays, for aborts and for what does not lie in the arena. Only a
// worker whose memory is an arena shares it.
//
// Over streams, data goes out as frames of at most 512 KiB from the memory where it lies; under one
// tag at most Mailbox's tag limit is under way until the receiver has taken it, so that a slow
// receiver of one tag holds up no other; over one stream at most the stream's credit, so that a
// rank that is late for a step is waited for (worker/exchange/peer_link.h says why that cannot
// deadlock). Control frames go first, short messages before long ones, and long ones take turns.
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

// The link of one step. Destroyed when the step is over on this rank: messages that still come for
// it are dropped. Not to be destroyed while a Receive is under way; must not outlive its PeerLinks.
class StepLink : public Link {
 public:
  // OK until the step fails: a member is gone, or a peer or this worker aborted it. Then the error
  // that a Receive would give. Costs one short lock: for kernels to ask now and then.
  virtual absl::Status Check() const = 0;
  // Bytes of messages that were sent to peers.
  virtual int64_t sent_bytes() const = 0;
};

class ShmArena;  // worker/shm/shm_arena.h

// How data goes between peers.
enum class Transport {
  kAuto,    // through shared memory where peers are on one host, over streams elsewhere
  kStream,  // over streams alone
  kShm,     // through shared memory: a peer that shares none is not reached
};

// auto, stream, shm; nullopt for anything else.
std::optional<Transport> TransportFromName(std::string_view name);

// Thread-safe.
class PeerLinks {
 public:
  // Full name of the service, for metrics.
  static constexpr const char* kServiceName = "shardmesh.internal.v1.ExchangeService";
  // Called with the epoch and the identities of peers that are not reached, sorted, whenever either
  // changed; the last call tells the present state. Runs on the clock's thread, never two at once,
  // holds no lock, and must not block.
  using PeersChanged =
      std::function<void(int64_t epoch, const std::vector<std::string>& unreached)>;

  struct Options {
    WorkerSelf self;
    rpc::Credentials credentials = rpc::Credentials::Insecure();
    // Outlives the links.
    rpc::Clock* clock = nullptr;
    PeersChanged peers_changed;
    // Most bytes that come over a stream and wait for receivers: per tag; and of all together, as
    // the stream's credit, of which LinkCredit is the part that there is memory for.
    int64_t tag_limit_bytes = Mailbox::Options().tag_limit_bytes;
    int64_t link_limit_bytes = int64_t{16} << 20;
    // Where the credit of streams is reserved; outlives the links. Null: nowhere.
    MemoryBudget* budget = nullptr;
    // A stream without a frame for this long is pinged; for that long it is broken.
    absl::Duration ping_interval = absl::Seconds(1);
    absl::Duration silence_limit = absl::Seconds(4);
    // Delays between dials of a peer.
    rpc::RetryPolicy redial;
    Transport transport = Transport::kAuto;
    // Where this worker's messages lie, for peers on this host to read; null: nothing is shared.
    std::shared_ptr<ShmArena> arena = nullptr;
    // Memory for the messages by which links are measured, of the arena if there is one; null: they
    // are not measured.
    std::shared_ptr<BufferPool> probe_pool = nullptr;
  };

  // The credit of one of `peers` streams, where they may take `budget_bytes` / kCreditPart
  // together: link_limit_bytes at most, kLeastLinkCredit at least.
  static constexpr int64_t kCreditPart = 8;
  static constexpr int64_t kLeastLinkCredit = int64_t{64} << 10;
  static int64_t LinkCredit(int64_t link_limit_bytes, int64_t budget_bytes, int64_t peers);

  static std::unique_ptr<PeerLinks> Create(Options options);
  // Closes what is open, and waits for it. Close was called and then the ServerLifecycle that has
  // `service()` drained, which is destroyed after this; no StepLink is left.
  virtual ~PeerLinks() = default;
  PeerLinks(const PeerLinks&) = delete;
  PeerLinks& operator=(const PeerLinks&) = delete;

  // The server's side: give both to a server of their own (ServerOptions::health false) before it
  // starts, and call Start once it runs.
  // service() belongs to this object.
  virtual void Customize(grpc::ServerBuilder& builder) = 0;
  virtual grpc::Service* service() = 0;
  virtual void Start() = 0;

  // Ends all streams and dials no more; every step fails with UNAVAILABLE, and peers_changed is not
  // called any more when this returns. For on_drain.
  virtual void Close() = 0;

  // The cluster that peers have to be of; before the first membership. Empty: hellos are not
  // checked for it.
  virtual void SetClusterId(std::string cluster_id) = 0;

  // Sets the members. Ends the streams to workers that left or started anew, and dials new ones.
  // Ignores a view of a lower epoch.
  virtual void SetMembership(MembershipView view) = 0;
  // The view last set.
  virtual MembershipView membership() const = 0;

  // This worker is to take part in step `sequence`, as of `epoch`: what peers send of it is kept
  // until it is opened, whatever is opened before it, or until CloseStep. Steps are expected in the
  // order of their numbers, which are above kProbeStep; FAILED_PRECONDITION otherwise.
  virtual absl::Status ExpectStep(int64_t sequence, int64_t epoch) = 0;
  // The step is over here, though it was never opened. No effect on one that is not expected.
  virtual void CloseStep(int64_t sequence) = 0;

  // Begins step `sequence` on a mesh, as it was in `epoch`. Waits until `deadline` for a membership
  // of that epoch, if this worker has not heard of it yet; other steps can be opened meanwhile. One
  // that is not expected is so when it is opened.
  //
  // FAILED_PRECONDITION: NOT_FOUND reason if this worker does not serve the mesh; MESH_INCOMPLETE
  //   if a rank has no worker; as of ExpectStep.
  // ABORTED (STALE_EPOCH): the mesh's workers have changed since that epoch.
  // UNAVAILABLE (WORKER_LOST): a member is not reached.
  // DEADLINE_EXCEEDED: no membership of that epoch came.
  // Otherwise: what the step was aborted with.
  virtual absl::StatusOr<std::unique_ptr<StepLink>> OpenLink(std::string_view mesh_id,
                                                             int64_t sequence, int64_t epoch,
                                                             absl::Time deadline) = 0;

  // Ends a step's exchanges, also of one that is still to be opened: every Receive fails with
  // `status` at once, here and on the peers, which are told. `blamed` is the identity of the worker
  // to blame. Of a step that is over or was aborted before, only what still waits to be sent goes.
  virtual void AbortStep(int64_t sequence, const absl::Status& status, std::string_view blamed) = 0;

  // The worker that is to blame for the failure of a step, one that is expected or open or a later
  // one; empty if none is known.
  virtual std::string BlamedFor(int64_t sequence) const = 0;

  // The links to peers that this worker dials, as far as they were measured over connections that
  // are up. Measuring uses kProbeStep, and goes on beside steps.
  virtual MeasuredLinks measured_links() const = 0;

  // Since the start.
  struct Counters {
    int64_t sent_bytes = 0;      // payload, to all peers
    int64_t received_bytes = 0;  // payload, from all peers
    int64_t shared_bytes = 0;    // of those sent, through shared memory
    int64_t dropped_frames = 0;  // of steps that were over, and of streams that were replaced
    int64_t stale_frames = 0;    // dropped too: of a step that is open in another epoch
    // Each ends its stream: a checksum that is wrong; what breaks the protocol; a hello of another
    // cluster, incarnation or epoch.
    int64_t corrupt_frames = 0;
    int64_t malformed_frames = 0;
    int64_t refused_hellos = 0;
    int64_t broken_streams = 0;  // that had been up
    int64_t held_bytes = 0;      // now: of messages that wait for receivers
    int64_t credit_waits = 0;    // how often data waited for credit of its stream
  };
  virtual Counters counters() const = 0;

 protected:
  PeerLinks() = default;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_PEER_LINKS_H_
