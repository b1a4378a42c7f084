// Limits on a server's connections, in all and for each host.
#ifndef SHARDMESH_RPC_CONNECTION_LIMIT_H_
#define SHARDMESH_RPC_CONNECTION_LIMIT_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace shardmesh::rpc {

// 0: only the limit of the process's file descriptors.
struct ConnectionLimits {
  int64_t all = 0;
  // Before TLS identifies a caller, only its host is known. Processes of one host share this limit,
  // and so do hosts behind one address.
  int64_t per_host = 0;
};

// Returns the key that an address counts under. An IPv4 address, also one written as IPv6, is its
// own key. An IPv6 address has the key of its network, because a host owns a whole one
// (`2001:db8:1:2::/64`). A unix socket has the key `this host`.
std::string HostOfPeer(const sockaddr_storage& peer);

// Counts connections that other objects own and close. Thread-compatible.
class ConnectionLimit {
 public:
  explicit ConnectionLimit(ConnectionLimits limits) : limits_(limits) {}

  // Counts a connection, and returns an empty text. If a limit is reached, does not count it and
  // returns the reason, with have and need.
  std::string Take(int descriptor, const sockaddr_storage& peer);

 private:
  // The inode identifies a socket: its descriptor number may be reused after it is closed.
  struct Connection {
    int descriptor;
    ino_t inode;
  };

  // Purges closed connections; after a slow purge, skips the next ones for a while.
  void LookAgain();
  int64_t CountOf(const std::string& host) const;

  const ConnectionLimits limits_;
  absl::flat_hash_map<std::string, std::vector<Connection>> hosts_;
  int64_t all_ = 0;      // some may be closed already
  int64_t look_at_ = 0;  // table size that triggers a purge, for any limits
  std::chrono::steady_clock::time_point next_look_;
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CONNECTION_LIMIT_H_
