// Addresses as users write them: `host:port`, `[v6]:port`, `unix:/path`.
#ifndef SHARDMESH_PROCESS_HOST_PORT_H_
#define SHARDMESH_PROCESS_HOST_PORT_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace shardmesh {

struct HostPort {
  std::string host;  // an IPv6 address without its brackets
  int port = 0;      // 0 to 65535

  // Adds brackets if the host contains colons.
  std::string ToString() const;
};

// Returns the name of this host, which is the default identity of a worker on it; "worker" if the
// system does not report the name. Thread-safe.
std::string HostName();

// Returns whether `address` is `unix:/path`, or `unix-abstract:name` for a socket without a file.
bool IsUnixAddress(std::string_view address);

// Returns the address of the plaintext health port that belongs to a TLS process on `port`. The
// health port answers only health questions, and only to processes of the same host (in Kubernetes:
// of the same pod). It has no TLS. Probes therefore succeed even if certificate files are broken;
// the process itself continues to work in that case.
std::string HealthAddress(int port);

// Parses `host:port` or `[v6]:port`. The error is INVALID_ARGUMENT (BAD_FIELD) and says which part
// is missing or wrong.
absl::StatusOr<HostPort> ParseHostPort(std::string_view address);

// Returns the address with its port replaced by `port`. Returns the address unchanged if `port` is
// 0 or the address has no port.
std::string WithPort(const std::string& address, int port);

// Returns OK for `host:port` and for unix sockets, else the error of ParseHostPort.
absl::Status CheckAddress(std::string_view address);

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_HOST_PORT_H_
