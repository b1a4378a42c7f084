// The caller of an RPC and its remaining time.
#ifndef SHARDMESH_RPC_CALLER_H_
#define SHARDMESH_RPC_CALLER_H_

#include <string>

#include "absl/time/time.h"

namespace grpc {
class ServerContextBase;
}  // namespace grpc

namespace shardmesh::rpc {

// The caller of an RPC.
struct Caller {
  // The name that limits are counted by and request ids belong to. With TLS, it is the URI of the
  // caller's certificate, or its subject without a URI: `spiffe://shardmesh/client/ada`. Without
  // TLS, it is the host of the connection: `host:10.0.0.7`, `host:unix`.
  std::string name;
  // Whether a certificate proves the name. Without one, two callers of one host share a name.
  bool is_proven = false;

  friend bool operator==(const Caller&, const Caller&) = default;
};

Caller CallerOf(const grpc::ServerContextBase& context);

// Returns the host of a gRPC peer: `10.0.0.7` of "ipv4:10.0.0.7:4711", `::1` of
// "ipv6:%5B::1%5D:4711", `unix` of "unix:/run/socket"; the peer itself if it has another form.
std::string HostOfPeer(const std::string& peer);

// Returns the time until the call's deadline, by gRPC's own steady clock: a step of the wall clock
// has no effect. Negative after the deadline; InfiniteDuration without one.
absl::Duration TimeLeft(const grpc::ServerContextBase& context);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CALLER_H_
