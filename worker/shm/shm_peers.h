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

// Where a peer can ask for a worker's memory, from the worker's hello on the Exchange stream. Only
// the receivers of that hello know the token.
struct ShmAddress {
  std::string socket;  // an abstract unix socket, which leaves no file behind
  std::array<char, 16> token = {};

  bool empty() const { return socket.empty(); }
};

// Two workers whose boot ids show that they share a host meet on a unix socket. The end that
// dialled the stream connects and shows the other's token. Both ends pass their control segments,
// and each checks that the received memory holds the other's token. Sockets of other users and of
// other network namespaces (pods) are not reached: such pairs keep to the stream.
//
// Has one thread. Thread-safe.
class ShmPeers {
 public:
  struct Options {
    std::string identity;
    std::shared_ptr<ShmArena> arena;
    MemoryBudget* budget = nullptr;  // for messages that have to be copied; null: no limit
    // A channel to a peer is ready, for the link that was passed to Expect. Both callbacks
    // run on this object's thread, with no lock held.
    std::function<void(const std::string& peer, uint64_t link, std::shared_ptr<ShmChannel> channel)>
        connected;
    // The link has no channel, and will get none. `was_connected` if it had one.
    std::function<void(const std::string& peer, uint64_t link, bool was_connected,
                       const absl::Status& why)>
        lost;
  };

  // UNAVAILABLE where the host lacks such sockets or memory: this worker will have no channels.
  static absl::StatusOr<std::unique_ptr<ShmPeers>> Start(Options options);
  virtual ~ShmPeers() = default;
  ShmPeers(const ShmPeers&) = delete;
  ShmPeers& operator=(const ShmPeers&) = delete;

  virtual const ShmAddress& address() const = 0;

  // Begins to set up a channel to a peer on this host whose stream is up. It replaces the channel
  // of an earlier link. `dials` is true on the end that connects.
  virtual void Expect(const std::string& peer, uint64_t link, const ShmAddress& theirs,
                      bool dials) = 0;
  // Closes the channel because the stream is gone, without a call of `lost`.
  virtual void Forget(const std::string& peer) = 0;

 protected:
  ShmPeers() = default;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SHM_SHM_PEERS_H_
