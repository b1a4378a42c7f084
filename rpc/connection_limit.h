// How many connections a server has, in all and of each host.
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

// 0: no limit but that of the process's file descriptors.
struct ConnectionLimits {
  int64_t all = 0;
  // Before TLS has named a caller, all that is known of it is its host. Processes of one host share
  // this, and so do hosts behind one address.
  int64_t per_host = 0;
};

// Who an address counts as: an IPv4 address, also one written as IPv6; the network of an IPv6
// address, of which a host has a whole one (`2001:db8:1:2::/64`); `this host` for a unix socket.
std::string HostOfPeer(const sockaddr_storage& peer);

// Counts connections that others own and close. Thread-compatible.
class ConnectionLimit {
 public:
  explicit ConnectionLimit(ConnectionLimits limits) : limits_(limits) {}

  // Counts a connection. Not where it is one too many: then why, with have and need.
  std::string Take(int descriptor, const sockaddr_storage& peer);

 private:
  // A socket is known by its inode: its number may be another's once it is closed.
  struct Connection {
    int descriptor;
    ino_t inode;
  };

  // Forgets those that are closed; where that took long, not again at once.
  void LookAgain();
  int64_t CountOf(const std::string& host) const;

  const ConnectionLimits limits_;
  absl::flat_hash_map<std::string, std::vector<Connection>> hosts_;
  int64_t all_ = 0;      // some of which may be closed
  int64_t look_at_ = 0;  // so many are looked through, whatever the limits
  std::chrono::steady_clock::time_point next_look_;
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CONNECTION_LIMIT_H_
