// Sets up channels of shared memory with the peers that are on the same host.
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

// Where a worker's memory can be asked for, as its hello on the Exchange stream says. The token is
// known to those alone who got that hello.
struct ShmAddress {
  std::string socket;  // an abstract unix socket: nothing is left of it
  std::array<char, 16> token = {};

  bool empty() const { return socket.empty(); }
};

// Two workers that found over their stream that they share a host (boot ids) meet on a unix socket:
// the one that dialled the stream connects and shows the other's token, both pass their control
// segments, and each looks for the other's token in the memory it got. Sockets of other users, and
// of workers in other network namespaces (pods), are not reached: these pairs keep to the stream.
//
// One thread of its own. Thread-safe.
class ShmPeers {
 public:
  struct Options {
    std::string identity;
    std::shared_ptr<ShmArena> arena;
    MemoryBudget* budget = nullptr;  // for messages that have to be copied; null: no limit
    // A channel to a peer is ready, for the link that Expect was given. Both are called on this
    // object's thread, with no lock held.
    std::function<void(const std::string& peer, uint64_t link, std::shared_ptr<ShmChannel> channel)>
        connected;
    // There is, or will be, no channel for that link; `was_connected` if there was one.
    std::function<void(const std::string& peer, uint64_t link, bool was_connected,
                       const absl::Status& why)>
        lost;
  };

  // UNAVAILABLE where the host has no such sockets or memory: there will be none for this worker.
  static absl::StatusOr<std::unique_ptr<ShmPeers>> Start(Options options);
  virtual ~ShmPeers() = default;
  ShmPeers(const ShmPeers&) = delete;
  ShmPeers& operator=(const ShmPeers&) = delete;

  virtual const ShmAddress& address() const = 0;

  // A stream to a peer on this host is up: begins to set a channel up, instead of one for an
  // earlier link. `dials` on the end that connects.
  virtual void Expect(const std::string& peer, uint64_t link, const ShmAddress& theirs,
                      bool dials) = 0;
  // The stream is gone: closes the channel, without a call of `lost`.
  virtual void Forget(const std::string& peer) = 0;

 protected:
  ShmPeers() = default;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SHM_SHM_PEERS_H_
