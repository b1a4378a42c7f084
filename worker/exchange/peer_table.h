// The peers of one worker: which workers are members, how to reach each of them, the check of their
// hellos, and the peers that are to be dialled.
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

// Returns UNAVAILABLE (WORKER_LOST) about the worker `identity`.
absl::Status WorkerLost(std::string_view message, std::string_view identity);
// Returns FAILED_PRECONDITION with a reason, for a hello that does not match the membership.
absl::Status WrongHello(std::string_view message, Reason reason, Facts facts);

// A member other than this worker, and its connection.
struct Peer {
  explicit Peer(const rpc::RetryPolicy& policy) : backoff(policy) {}

  LinkProber::Connection ConnectionOf() const {
    return {.peer = device.identity, .peer_incarnation = device.incarnation, .number = connection};
  }

  MeshDevice device;               // identity, incarnation and endpoints of the peer
  std::shared_ptr<PeerLink> link;  // dialled, or accepted and up; null if there is none
  bool up = false;
  // Shared memory of a peer on this host.
  ShmAddress shm_address = {};  // where to ask for the memory; from the peer's hello
  uint64_t shm_link = 0;        // number of the attempt to share memory; 0: none
  absl::Time shm_deadline = absl::InfinitePast();  // until then, steps wait for `channel`
  std::shared_ptr<ShmChannel> channel = nullptr;   // null if no memory is shared
  // The current connection, and the running probe.
  uint64_t connection = 0;            // number of the current connection
  std::weak_ptr<Mailbox> probe = {};  // gets the messages of the running probe
  // Only for a peer that this worker dials: when and where to dial next.
  rpc::Backoff backoff;
  absl::Time dial_time = absl::InfinitePast();
  size_t next_endpoint = 0;
  // Steps of which this worker sent data over a stream that broke. The peer may miss some of this
  // data.
  std::set<int64_t> broken_steps;
};

// The transports to the worker of a rank. Both pointers are null for this worker's own rank.
// `channel` is null if the worker shares no memory.
struct PeerWay {
  std::string identity;
  std::shared_ptr<PeerLink> link;
  std::shared_ptr<ShmChannel> channel;
};

// Not synchronised: the owner (PeerLinks) holds ExchangeState's mutex around each call. Some
// methods acquire the mutexes of links, of streams or of the memory budget while ExchangeState's
// mutex is held. Pointers to a Peer stay valid until the peer is removed.
class PeerTable {
 public:
  // The options outlive the table.
  explicit PeerTable(const PeerLinks::Options& options) : options_(options) {}

  // Sets the cluster that peers' hellos must name. If empty, every cluster is accepted.
  void SetClusterId(std::string cluster_id) { cluster_id_ = std::move(cluster_id); }
  // Sets the address of this worker's shared memory, which its hellos then offer to peers.
  void SetShmAddress(const ShmAddress& address) { shm_address_ = address; }

  // Applies a new view. Calls `leave` for each peer that left or restarted, before the peer is
  // removed. Calls `join` for each new peer. Returns false, and does nothing, if the epoch of
  // `view` is lower than that of the present view.
  bool SetMembership(MembershipView view,
                     absl::FunctionRef<void(Peer& peer, std::string_view reason)> leave,
                     absl::FunctionRef<void(const std::string& identity)> join);
  const MembershipView& view() const { return view_; }

  // Returns the mesh for a step of `epoch`. Requires that `epoch` is not above the view's epoch.
  //
  // - FAILED_PRECONDITION (NOT_FOUND): this worker serves no rank of the mesh.
  // - FAILED_PRECONDITION (MESH_INCOMPLETE): a rank of the mesh has no worker.
  // - ABORTED (STALE_EPOCH): the mesh's workers have changed since `epoch`.
  absl::StatusOr<const MeshMembers*> MeshFor(std::string_view mesh_id, int64_t epoch) const;
  // Returns the transports to all ranks of a mesh, in the order of the ranks. Sets `blamed` to the
  // first member that is not connected, unless `blamed` is set already. UNAVAILABLE: a member
  // shares no memory, which Transport::kShm requires; `blamed` is then this member.
  absl::StatusOr<std::vector<PeerWay>> WaysTo(const MeshMembers& mesh, std::string* blamed) const;

  // Returns null if the worker is not a peer.
  Peer* Find(const std::string& identity);
  const Peer* Find(const std::string& identity) const;
  std::map<std::string, Peer>& all() { return peers_; }  // by identity

  // Returns the stream to a worker if the stream is up, otherwise null.
  std::shared_ptr<PeerLink> LinkTo(const std::string& identity) const;
  // Returns all streams that are up.
  std::vector<std::shared_ptr<PeerLink>> LinksUp() const;

  // Returns whether this worker dials the peer: the worker with the bytewise lower identity does.
  bool Dials(const std::string& identity) const { return options_.self.identity < identity; }
  // Returns whether steps can use the peer. The peer must be connected. Also, either a channel of
  // shared memory exists, or the wait for a channel is over and the transport is not
  // Transport::kShm.
  bool IsReached(const Peer& peer, absl::Time now) const;
  // Returns whether the peer, or a member of the mesh, is about to share its memory. If so, a step
  // should not begin now: this worker would not use the shared memory, but the peer might.
  bool IsSharing(const Peer& peer) const;
  bool IsSharing(std::string_view mesh_id) const;

  // Checks a hello, and records the address of the peer's memory. `dialled` is the identity that
  // this worker dialled; nullopt for an accepted stream.
  //
  // - FAILED_PRECONDITION (ENDPOINT_UNVERIFIED): the hello is for another worker or incarnation, or
  //   comes from a worker that should not be at the other end of this stream.
  // - FAILED_PRECONDITION (CLUSTER_MISMATCH): the hello names another cluster.
  // - FAILED_PRECONDITION (STALE_EPOCH): the sender is not a member, or has another incarnation
  //   than this member.
  absl::StatusOr<Peer*> CheckHello(const rpc::FrameHello& hello,
                                   const std::optional<std::string>& dialled);
  // Returns this worker's hello to a peer. `reservation` receives the memory reserved for the
  // credit that the hello gives the peer.
  rpc::FrameHello HelloTo(const MeshDevice& device, MemoryBudget::Reservation* reservation) const;

  // The next task of Look's caller, and the time of the next call of Look.
  struct Due {
    std::vector<std::shared_ptr<PeerLink>> links;  // to be ticked
    std::vector<std::pair<std::string, std::shared_ptr<ShmChannel>>> channels;
    std::vector<std::string> unreached;  // identities, sorted
    // When to call Look next; nullopt if there are no peers and no links.
    std::optional<absl::Time> next;
  };
  // Dials, over `queue`, the peers whose time to dial has come. Returns what else is due. `owner`
  // becomes the owner of the new links. `owner` must exist until `queue` has returned all
  // operations.
  Due Look(absl::Time now, PeerLink::Owner* owner, grpc::CompletionQueue* queue);

  // Adds an accepted stream whose hello has not arrived yet.
  void AddGreeting(std::shared_ptr<PeerLink> link);
  void EndGreeting(const std::shared_ptr<PeerLink>& link) { greeting_.erase(link); }
  const std::set<std::shared_ptr<PeerLink>>& greeting() const { return greeting_; }

  // Returns the number of dialled or accepted links whose OnDown has not been called yet.
  int64_t live_links() const { return live_links_; }
  void EndLink() { --live_links_; }

 private:
  void Dial(Peer& peer, PeerLink::Owner* owner, grpc::CompletionQueue* queue);
  // Reserves memory for the credit of a stream and returns the credit. The credit is below
  // Options::link_limit_bytes if memory is short. A stream gets at least kLeastLinkCredit, even
  // without memory reserved, because without credit no data arrives.
  int64_t ReserveCredit(MemoryBudget::Reservation* reservation) const;

  const PeerLinks::Options& options_;
  std::string cluster_id_;
  std::optional<ShmAddress> shm_address_;  // nullopt if this worker shares no memory
  MembershipView view_;
  // For each mesh: the epoch in which its workers last changed.
  std::map<std::string, int64_t, std::less<>> changed_epoch_;
  std::map<std::string, Peer> peers_;  // by identity
  std::set<std::shared_ptr<PeerLink>> greeting_;
  int64_t live_links_ = 0;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_PEER_TABLE_H_
