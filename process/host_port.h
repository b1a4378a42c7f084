// Addresses as users write them: `host:port`, `[v6]:port`, `unix:/path`.
#ifndef SHARDMESH_PROCESS_HOST_PORT_H_
#define SHARDMESH_PROCESS_HOST_PORT_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace shardmesh::rpc {

struct HostPort {
  std::string host;  // an IPv6 address without its brackets
  int port = 0;      // 0 to 65535

  // With brackets where the host has colons.
  std::string ToString() const;
};

// `unix:/path`, or `unix-abstract:name` for a socket that no file stands for.
bool IsUnixAddress(std::string_view address);

// Where a process that speaks TLS on `port` answers questions about its health, and nothing else,
// in plaintext to processes of its own host (in Kubernetes: of its own pod): probes have to go on
// when certificate files are wrong, as the process does.
std::string HealthAddress(int port);

// INVALID_ARGUMENT (BAD_FIELD) says what is missing.
absl::StatusOr<HostPort> ParseHostPort(std::string_view address);

// The address with that port instead of its own; unchanged if `port` is 0 or it has none.
std::string WithPort(const std::string& address, int port);

// OK for `host:port` and for unix sockets; otherwise ParseHostPort's error.
absl::Status CheckAddress(std::string_view address);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_PROCESS_HOST_PORT_H_
