// The connections of one worker to its peers, and the steps that exchange messages over these
// connections. Each pair of workers has one Exchange stream, and keeps this stream up while both
// workers are members.
//
// clang-format off
//   options.customize = [&](grpc::ServerBuilder& b) { links->Customize(b); };
//   services.push_back({.name = PeerLinks::kServiceName, .service = links->service()});
//   links->Start();                                                   // once the server runs
//   links->SetMembership(view);                                       // at each change
//   auto link = links->OpenLink("default", 7, view.epoch, deadline);  // for each step
//   links->Close();                                                   // in the server's on_drain
// clang-format on
//
// In each pair of workers, the worker with the bytewise lower identity dials. Each side's first
// frame is a hello. A worker refuses a stream with FAILED_PRECONDITION if the identity, incarnation
// or cluster in the hello differs from the membership. While both workers are members, the dialling
// worker dials a broken or refused stream again, with growing delays. A peer that is silent for
// Options::silence_limit counts as lost. Workers therefore send pings over idle streams.
//
// Peers on one host, recognised by the same boot id, exchange data through shared memory: each
// worker maps its peer's memory read-only (ShmPeers). The stream stays open, for aborts and for
// data that shared memory cannot carry. A worker shares only the memory of an arena (ShmArena).
//
// A stream sends data from where it lies, in frames of at most 512 KiB. Under one tag, at most
// tag_limit_bytes are in transit, so a slow receiver of one tag does not block receivers of other
// tags. Over one stream, at most the stream's credit is in transit, so senders wait for a rank that
// is late. worker/exchange/peer_link.h explains why this waiting cannot deadlock. Control frames
// are sent first, then urgent frames, then short messages, then long messages, which take turns.
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

// The link of one step. Its destruction ends the step on this rank: messages of the step that
// arrive later are dropped. Must not be destroyed while a Receive is in progress, nor outlive its
// PeerLinks.
class StepLink : public Link {
 public:
  // Returns OK until the step fails because a member is lost, or because a peer or this worker
  // aborted it. After that, returns the error that Receive would return. Holds a lock only for a
  // short time, so kernels can call Check regularly.
  virtual absl::Status Check() const = 0;
  // Returns how many bytes of messages this rank has sent to peers in this step.
  virtual int64_t sent_bytes() const = 0;
};

class ShmArena;  // worker/shm/shm_arena.h

// How peers exchange data.
enum class Transport {
  kAuto,    // through shared memory if the peer is on this host, otherwise over the stream
  kStream,  // only over the stream
  kShm,     // only through shared memory: a peer that shares no memory is unreachable
};

// Returns the transport named `auto`, `stream` or `shm`; nullopt for other text.
std::optional<Transport> TransportFromName(std::string_view name);

// Thread-safe.
class PeerLinks {
 public:
  // Full gRPC name of the service, for metrics.
  static constexpr const char* kServiceName = "shardmesh.internal.v1.ExchangeService";
  // Called with the epoch and the sorted identities of unreachable peers, whenever the epoch or
  // these identities have changed. The last call therefore has the current state. Runs on the
  // clock's thread, one call at a time, with no lock held, and must not block.
  using PeersChanged =
      std::function<void(int64_t epoch, const std::vector<std::string>& unreached)>;

  struct Options {
    WorkerSelf self;
    rpc::Credentials credentials = rpc::Credentials::Insecure();
    // Outlives this object.
    Clock* clock = nullptr;
    PeersChanged peers_changed;
    // The maximum number of received bytes that may wait for receivers: tag_limit_bytes under one
    // tag, link_limit_bytes in total over one stream. A stream's limit is its credit, which
    // LinkCredit reduces if memory is short.
    int64_t tag_limit_bytes = Mailbox::Options().tag_limit_bytes;
    int64_t link_limit_bytes = int64_t{16} << 20;
    // The memory budget from which the credit of streams is reserved; outlives this object. Null:
    // nothing is reserved.
    MemoryBudget* budget = nullptr;
    // This worker pings a peer that has sent no frame for ping_interval. After silence_limit
    // without a frame, the stream counts as broken.
    absl::Duration ping_interval = absl::Seconds(1);
    absl::Duration silence_limit = absl::Seconds(4);
    // Delays between attempts to dial a peer.
    rpc::RetryPolicy redial;
    Transport transport = Transport::kAuto;
    // Whether the payload of each frame has a checksum, also where something better protects it
    // (rpc::PayloadChecksum::kNone).
    bool frame_checksums = false;
    // The memory in which this worker's messages lie, for peers on this host to read. Null: this
    // worker shares no memory.
    std::shared_ptr<ShmArena> arena = nullptr;
    // The pool from which the messages of link probes get memory. If there is an arena, this pool
    // must take its memory from the arena. Null: links are not measured.
    std::shared_ptr<BufferPool> probe_pool = nullptr;
  };

  // LinkCredit returns the credit of each stream if there are `peers` streams. Together the streams
  // may use `budget_bytes` / kCreditPart. The credit of a stream is at most link_limit_bytes, and
  // at least kLeastLinkCredit.
  static constexpr int64_t kCreditPart = 8;
  static constexpr int64_t kLeastLinkCredit = int64_t{64} << 10;
  static int64_t LinkCredit(int64_t link_limit_bytes, int64_t budget_bytes, int64_t peers);

  static std::unique_ptr<PeerLinks> Create(Options options);
  // Closes all connections, and waits until they are closed. Requires that Close was called, that
  // the ServerLifecycle of `service()` was drained afterwards, and that no StepLink is left.
  // Destroy the server of `service()` only after this object.
  virtual ~PeerLinks() = default;
  PeerLinks(const PeerLinks&) = delete;
  PeerLinks& operator=(const PeerLinks&) = delete;

  // Methods for the server. Pass `Customize` and `service()` to a separate server
  // (ServerOptions::health false) before that server starts, and call Start once the server runs.
  // service() belongs to this object.
  virtual void Customize(grpc::ServerBuilder& builder) = 0;
  virtual grpc::Service* service() = 0;
  virtual void Start() = 0;

  // Ends all streams and dials no more peers. Every open step fails with UNAVAILABLE. peers_changed
  // is not called after Close returns. Call it in the server's on_drain.
  virtual void Close() = 0;

  // Sets the cluster to which peers must belong. Call it before the first SetMembership. If
  // `cluster_id` is empty, hellos of any cluster are accepted.
  virtual void SetClusterId(std::string cluster_id) = 0;

  // Sets the members. Ends the streams to workers that left or restarted, and dials new members.
  // Ignores a view whose epoch is lower than that of the last view.
  virtual void SetMembership(MembershipView view) = 0;
  // Returns the last view.
  virtual MembershipView membership() const = 0;

  // Announces that this worker will take part in step `sequence`, with the members of `epoch`. From
  // now on, messages for the step are kept until the step is opened, or until CloseStep. Expected
  // steps may be opened in any order. The caller must expect steps in the order of their numbers,
  // above kProbeStep; FAILED_PRECONDITION otherwise.
  virtual absl::Status ExpectStep(int64_t sequence, int64_t epoch) = 0;
  // Ends a step that this worker expected but did not open. No effect if the step is not expected.
  virtual void CloseStep(int64_t sequence) = 0;

  // Begins step `sequence` on a mesh as it was in `epoch`. Calls ExpectStep if the step is not
  // expected. If this worker has no membership view of `epoch` or later yet, waits for such a view,
  // at most until `deadline`. Also waits while a member is about to share its memory. Other threads
  // can open other steps during the wait.
  //
  // - FAILED_PRECONDITION (NOT_FOUND): this worker does not serve the mesh.
  // - FAILED_PRECONDITION (MESH_INCOMPLETE): a rank of the mesh has no worker.
  // - FAILED_PRECONDITION: ExpectStep failed, or the step is open already.
  // - ABORTED (STALE_EPOCH): the workers of the mesh have changed since `epoch`.
  // - UNAVAILABLE (WORKER_LOST): this worker cannot reach a member, or is shutting down.
  // - DEADLINE_EXCEEDED: no membership view of `epoch` or later came before `deadline`.
  // - The status with which the step was aborted: the abort came before a membership view of
  //   `epoch` or later.
  virtual absl::StatusOr<std::unique_ptr<StepLink>> OpenLink(std::string_view mesh_id,
                                                             int64_t sequence, int64_t epoch,
                                                             absl::Time deadline) = 0;

  // Aborts a step, even before it is opened: every Receive of the step fails with `status` at once,
  // here and on the peers. `blamed` is the identity of the worker at fault. If the step is over or
  // was aborted before, only drops the step's unsent messages.
  virtual void AbortStep(int64_t sequence, const absl::Status& status, std::string_view blamed) = 0;

  // Returns the identity of the worker at fault for the failure of a step. Works for steps that are
  // expected, open, or not expected yet. Empty if no worker is known to be at fault.
  virtual std::string BlamedFor(int64_t sequence) const = 0;

  // Returns the measurements of the links to peers that this worker dials, for connections that are
  // up. Probes have the step number kProbeStep, and may run at the same time as steps.
  virtual MeasuredLinks measured_links() const = 0;

  // Counters since the start of this object.
  struct Counters {
    int64_t sent_bytes = 0;      // payload, to all peers
    int64_t received_bytes = 0;  // payload, from all peers
    int64_t shared_bytes = 0;    // the part of sent_bytes that went through shared memory
    int64_t dropped_frames = 0;  // frames of ended steps, and of replaced streams
    // Frames that were dropped because their step is registered in another epoch. dropped_frames
    // does not count them.
    int64_t stale_frames = 0;
    // Faults of a peer because of which this worker ended the stream. Corrupt: a wrong checksum.
    // Malformed: a breach of the protocol. Refused: a hello that this worker did not accept, for
    // example because of its cluster, incarnation or epoch.
    int64_t corrupt_frames = 0;
    int64_t malformed_frames = 0;
    int64_t refused_hellos = 0;
    int64_t broken_streams = 0;  // streams that ended after they had been up
    int64_t held_bytes = 0;      // present value: bytes in messages that wait for receivers
    int64_t credit_waits = 0;    // how often data had to wait for credit of its stream
  };
  virtual Counters counters() const = 0;

 protected:
  PeerLinks() = default;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_PEER_LINKS_H_
