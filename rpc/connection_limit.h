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

// The value 0 means no limit, except the process's limit on file descriptors.
struct ConnectionLimits {
  // Limit on the connections of all hosts together.
  int64_t all = 0;
  // Limit on the connections of one host. Only the host is known before TLS identifies a caller.
  // All processes of a host share this limit, and so do all hosts behind one address.
  int64_t per_host = 0;
};

// Returns the key under which a connection from `peer` is counted. The key of an IPv4 address, also
// in IPv6 form, is the address. The key of `::1` is the address. The key of any other IPv6 address
// is its network (`2001:db8:1:2::/64`), because one host owns a whole network. The key of a unix
// socket is `this host`.
std::string HostOfPeer(const sockaddr_storage& peer);

// Counts connections that other objects own and close. Thread-compatible.
class ConnectionLimit {
 public:
  explicit ConnectionLimit(ConnectionLimits limits) : limits_(limits) {}

  // Counts a connection, and returns an empty text. If a limit is reached, returns the reason
  // instead, with have and need, and does not count the connection.
  std::string Take(int descriptor, const sockaddr_storage& peer);

 private:
  // The inode identifies the socket, because its descriptor number may be reused after it is
  // closed.
  struct Connection {
    int descriptor;
    ino_t inode;
  };

  // Removes closed connections from the table. After a removal that took the time t, calls have no
  // effect for 7 t.
  void LookAgain();
  int64_t CountOf(const std::string& host) const;

  const ConnectionLimits limits_;
  absl::flat_hash_map<std::string, std::vector<Connection>> hosts_;
  int64_t all_ = 0;      // connections in hosts_, of which some may be closed already
  int64_t look_at_ = 0;  // table size at which closed connections are removed
  std::chrono::steady_clock::time_point next_look_;
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CONNECTION_LIMIT_H_
