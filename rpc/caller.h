// Who makes a call, and how much time it has.
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
  // By what limits are counted and request ids are told apart. Under TLS the URI of the caller's
  // certificate, or its subject where there is no URI: `spiffe://shardmesh/client/ada`. Without,
  // the host that the connection comes from: `host:10.0.0.7`, `host:unix`.
  std::string name;
  // Whether a certificate proves the name. Two callers of one host have one name without.
  bool is_proven = false;

  friend bool operator==(const Caller&, const Caller&) = default;
};

Caller CallerOf(const grpc::ServerContextBase& context);

// The host of a gRPC peer: `10.0.0.7` of "ipv4:10.0.0.7:4711", `::1` of "ipv6:%5B::1%5D:4711",
// `unix` of "unix:/run/socket"; the peer itself if it has another form.
std::string HostOfPeer(const std::string& peer);

// Time until the call's deadline, by the steady clock that gRPC measures it with: a step of the
// wall clock changes nothing. Below zero where the deadline has passed; InfiniteDuration without
// one.
absl::Duration TimeLeft(const grpc::ServerContextBase& context);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CALLER_H_
