// The client that made an RPC, and the time left until the RPC's deadline.
#ifndef SHARDMESH_RPC_CALLER_H_
#define SHARDMESH_RPC_CALLER_H_

#include <string>

#include "absl/time/time.h"

namespace grpc {
class ServerContextBase;
}  // namespace grpc

namespace shardmesh::rpc {

// The client that made an RPC.
struct Caller {
  // The client's name. Limits for each caller and the ids of requests refer to this name. With TLS:
  // the URI of the client's certificate, such as `spiffe://shardmesh/client/ada`, or the
  // certificate's subject if it has no URI. Without TLS: the host of the connection:
  // `host:10.0.0.7`, `host:unix`.
  std::string name;
  // Whether a certificate proves the name. Without a certificate, all clients of one host share a
  // name.
  bool is_proven = false;

  friend bool operator==(const Caller&, const Caller&) = default;
};

Caller CallerOf(const grpc::ServerContextBase& context);

// Returns the host of a gRPC peer: `10.0.0.7` of "ipv4:10.0.0.7:4711", `::1` of
// "ipv6:%5B::1%5D:4711", `unix` of "unix:/run/socket". Returns a peer of any other form unchanged.
std::string HostOfPeer(const std::string& peer);

// Returns the time until the call's deadline. Uses gRPC's steady clock, so a step of the wall clock
// has no effect. Negative after the deadline; InfiniteDuration without a deadline.
absl::Duration TimeLeft(const grpc::ServerContextBase& context);

// A call that waits for workers gives up this long before its deadline, so that the client still
// gets an error that names them.
inline constexpr absl::Duration kTimeToTell = absl::Milliseconds(100);

// Returns how long such a call may wait: until kTimeToTell before its deadline, or for half of the
// time left if that is longer. InfiniteDuration without a deadline.
absl::Duration TimeToWait(const grpc::ServerContextBase& context);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CALLER_H_
