// The peers of one worker: the members, how to reach each of them, the check of hellos, and the
// dials that are due.
#ifndef SHARDMESH_WORKER_EXCHANGE_PEER_TABLE_H_
#define SHARDMESH_WORKER_EXCHANGE_PEER_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rpc/call.h"
#include "rpc/stream/frame.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "tensor/buffer.h"
#include "worker/collective/mailbox.h"
#include "worker/exchange/link_prober.h"
#include "worker/exchange/membership_view.h"
#include "worker/exchange/peer_link.h"
#include "worker/exchange/peer_links.h"
#include "worker/shm/shm_channel.h"
#include "worker/shm/shm_peers.h"

namespace grpc {
class CompletionQueue;
}  // namespace grpc

namespace shardmesh::worker {

// UNAVAILABLE (WORKER_LOST).
absl::Status WorkerLost(std::string_view message);
// FAILED_PRECONDITION with a reason, for a hello that does not fit the membership.
absl::Status WrongHello(std::string_view message, Reason reason, Facts facts);

// A member other than this worker, and the stream to it.
struct Peer {
  explicit Peer(const rpc::RetryPolicy& policy) : backoff(policy) {}

  LinkProber::Connection ConnectionOf() const {
    return {.peer = device.identity, .peer_incarnation = device.incarnation, .number = connection};
  }

  MeshDevice device;               // its identity, incarnation and endpoints
  std::shared_ptr<PeerLink> link;  // dialled or up; null while there is none
  bool up = false;
  // For a peer on this host: the address of its memory, from its last hello; the link that asked
  // for a channel (0: none); the time until which the channel is awaited; the channel.
  ShmAddress shm_address = {};
  uint64_t shm_link = 0;
  absl::Time shm_deadline = absl::InfinitePast();
  std::shared_ptr<ShmChannel> channel = nullptr;
  // The number of the current connection, and the receiver of messages of a running probe.
  uint64_t connection = 0;
  std::weak_ptr<Mailbox> probe = {};
  // Only for a peer that this worker dials.
  rpc::Backoff backoff;
  absl::Time dial_time = absl::InfinitePast();
  size_t next_endpoint = 0;
  // Steps with data sent over a stream that broke: the peer may miss some of it.
  std::set<int64_t> broken_steps;
};

// The ways from a step to the worker of a rank; null for this worker's own rank. The channel is
// null if no memory is shared.
struct PeerWay {
  std::string identity;
  std::shared_ptr<PeerLink> link;
  std::shared_ptr<ShmChannel> channel;
};

// Not synchronised: the owner (PeerLinks) holds its mutex around each call. That mutex is acquired
// before those of links, streams and budget, which some methods acquire. Peers keep their addresses
// until they are removed.
class PeerTable {
 public:
  // The options outlive the table.
  explicit PeerTable(const PeerLinks::Options& options) : options_(options) {}

  // Hellos must name this cluster, unless it is empty.
  void SetClusterId(std::string cluster_id) { cluster_id_ = std::move(cluster_id); }
  // Hellos offer this worker's memory at this address.
  void SetShmAddress(const ShmAddress& address) { shm_address_ = address; }

  // Applies a view. Before a peer that left or restarted is removed, calls `leave` with it; calls
  // `join` with each new one. Returns false, and does nothing, for a view of a lower epoch.
  bool SetMembership(MembershipView view,
                     absl::FunctionRef<void(Peer& peer, std::string_view reason)> leave,
                     absl::FunctionRef<void(const std::string& identity)> join);
  const MembershipView& view() const { return view_; }

  // The mesh, for a step of `epoch`, which is not above the view's.
  //
  // FAILED_PRECONDITION: this worker serves no rank of it (NOT_FOUND); a rank has no worker
  //   (MESH_INCOMPLETE).
  // ABORTED (STALE_EPOCH): its workers changed since.
  absl::StatusOr<const MeshMembers*> MeshFor(std::string_view mesh_id, int64_t epoch) const;
  // Ways to all ranks of a mesh, in order. If a member cannot be reached, sets `blamed` to it,
  // unless it is set. UNAVAILABLE: a member shares no memory, which Transport::kShm requires.
  absl::StatusOr<std::vector<PeerWay>> WaysTo(const MeshMembers& mesh, std::string* blamed) const;

  // Null for a worker that is not a peer.
  Peer* Find(const std::string& identity);
  const Peer* Find(const std::string& identity) const;
  std::map<std::string, Peer>& all() { return peers_; }  // by identity

  // The stream to a worker if it is up, or null.
  std::shared_ptr<PeerLink> LinkTo(const std::string& identity) const;
  // All streams that are up.
  std::vector<std::shared_ptr<PeerLink>> LinksUp() const;

  // The worker with the bytewise lower identity dials.
  bool Dials(const std::string& identity) const { return options_.self.identity < identity; }
  // Whether steps may count on the peer.
  bool IsReached(const Peer& peer, absl::Time now) const;
  // Whether the peer, or a member of the mesh, is about to share its memory. If a step began now,
  // this side would not use that memory, but the other side might.
  bool IsSharing(const Peer& peer) const;
  bool IsSharing(std::string_view mesh_id) const;

  // Checks a hello, and records the address of the peer's memory. `dialled`: the identity that this
  // worker dialled; none for an accepted stream. FAILED_PRECONDITION names the fault:
  // ENDPOINT_UNVERIFIED, CLUSTER_MISMATCH, STALE_EPOCH.
  absl::StatusOr<Peer*> CheckHello(const rpc::FrameHello& hello,
                                   const std::optional<std::string>& dialled);
  // This worker's hello. `reservation` keeps the memory for the credit that the hello gives.
  rpc::FrameHello HelloTo(const MeshDevice& device, MemoryBudget::Reservation* reservation) const;

  // An action and the time at which it is due.
  struct Due {
    std::vector<std::shared_ptr<PeerLink>> links;  // to be ticked
    std::vector<std::pair<std::string, std::shared_ptr<ShmChannel>>> channels;
    std::vector<std::string> unreached;  // identities, sorted
    std::optional<absl::Time> next;      // next time to check; none without peers
  };
  // Dials, over `queue`, the peers that are due. The links' owner outlives the queue's work.
  Due Look(absl::Time now, PeerLink::Owner* owner, grpc::CompletionQueue* queue);

  // A stream was accepted, and its hello has not arrived yet.
  void AddGreeting(std::shared_ptr<PeerLink> link);
  void EndGreeting(const std::shared_ptr<PeerLink>& link) { greeting_.erase(link); }
  const std::set<std::shared_ptr<PeerLink>>& greeting() const { return greeting_; }

  // Dialled or accepted links before their call of OnDown.
  int64_t live_links() const { return live_links_; }
  void EndLink() { --live_links_; }

 private:
  void Dial(Peer& peer, PeerLink::Owner* owner, grpc::CompletionQueue* queue);
  // The credit for a stream: less if memory is short. The minimum is always given, because nothing
  // arrives over a stream without credit.
  int64_t ReserveCredit(MemoryBudget::Reservation* reservation) const;

  const PeerLinks::Options& options_;
  std::string cluster_id_;
  std::optional<ShmAddress> shm_address_;  // none if nothing is shared
  MembershipView view_;
  // The epoch in which a mesh's workers last changed, by mesh.
  std::map<std::string, int64_t, std::less<>> changed_epoch_;
  std::map<std::string, Peer> peers_;  // by identity
  std::set<std::shared_ptr<PeerLink>> greeting_;
  int64_t live_links_ = 0;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_PEER_TABLE_H_
