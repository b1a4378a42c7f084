// Sets up shared-memory channels with the peers on the same host.
#ifndef SHARDMESH_WORKER_SHM_SHM_PEERS_H_
#define SHARDMESH_WORKER_SHM_SHM_PEERS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/shm/shm_arena.h"
#include "worker/shm/shm_channel.h"

namespace shardmesh::worker {

// Where a peer can ask for a worker's shared memory. The worker's hello on the Exchange stream has
// this address, so only the receivers of the hello know the token.
struct ShmAddress {
  std::string socket;  // name of an abstract unix socket, which needs no file
  std::array<char, 16> token = {};

  bool empty() const { return socket.empty(); }
};

// Two workers share a host if their boot ids are equal. Such workers meet on a unix socket. The
// worker that dialled the Exchange stream connects to the other worker's socket, and sends the
// token of the other worker. This token proves that the connecting worker got the other worker's
// hello. Both ends pass their control segments to each other. Each end checks that the received
// segment has the token from the sender's hello. A socket of another user, or of another network
// namespace (pod), cannot be reached or is refused. Workers separated in this way exchange all data
// over the stream.
//
// Has one thread. Thread-safe.
class ShmPeers {
 public:
  struct Options {
    std::string identity;
    std::shared_ptr<ShmArena> arena;
    MemoryBudget* budget = nullptr;  // for messages that must be copied; null: no limit
    // Called when a channel to a peer is ready. `link` is the number that was passed to Expect.
    // Both callbacks run on this object's thread, with no lock held.
    std::function<void(const std::string& peer, uint64_t link, std::shared_ptr<ShmChannel> channel)>
        connected;
    // Called when no channel can be set up for the link `link`, or when its channel has failed. The
    // link gets no other channel. `was_connected` says whether it had a channel.
    std::function<void(const std::string& peer, uint64_t link, bool was_connected,
                       const absl::Status& why)>
        lost;
  };

  // UNAVAILABLE if the process cannot create the unix socket or its wake-up descriptor. This worker
  // then has no channels.
  static absl::StatusOr<std::unique_ptr<ShmPeers>> Start(Options options);
  virtual ~ShmPeers() = default;
  ShmPeers(const ShmPeers&) = delete;
  ShmPeers& operator=(const ShmPeers&) = delete;

  virtual const ShmAddress& address() const = 0;

  // Starts to set up a channel to a peer on this host. Requires that the Exchange stream to the
  // peer is up. The new channel replaces the channel of an earlier link. If `dials` is true, this
  // end connects to the peer's socket; otherwise the peer connects.
  virtual void Expect(const std::string& peer, uint64_t link, const ShmAddress& theirs,
                      bool dials) = 0;
  // Closes the peer's channel because its stream has ended. Does not call `lost`.
  virtual void Forget(const std::string& peer) = 0;

 protected:
  ShmPeers() = default;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SHM_SHM_PEERS_H_
