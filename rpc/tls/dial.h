// Plain connections that diagnose why gRPC cannot connect to an address.
#ifndef SHARDMESH_RPC_TLS_DIAL_H_
#define SHARDMESH_RPC_TLS_DIAL_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "process/file.h"
#include "rpc/tls/credentials.h"
#include "rpc/tls/peer_name.h"

namespace shardmesh::rpc {

// Returns a connected, non-blocking TCP socket to `host:port` or `[v6]:port`. Dials all addresses
// of the host at once, and returns the connection to the first address that accepts. Blocks for the
// name lookup, then at most until `deadline`. UNAVAILABLE: no address accepts. NOT_FOUND: the host
// is unknown. UNIMPLEMENTED: `address` is a unix socket.
absl::StatusOr<FileDescriptor> Dial(std::string_view address, absl::Time deadline);

// The addresses of a host, grouped by how they answered. Each has the form `10.0.0.7:7070`, in the
// order of the system's name lookup.
struct DialledAddresses {
  std::vector<std::string> accepting;
  std::vector<std::string> refusing;
  std::vector<std::string> silent;  // did not answer until the deadline
};

// Dials all addresses of a host at once, and waits until each has answered; blocks at most as long
// as Dial. For a host with a single address, an unknown host, and a unix socket, returns an empty
// result without dialling.
DialledAddresses DialEach(std::string_view address, absl::Time deadline);

// Waits until the descriptor has one of poll's `events` or an error. Returns false if `deadline`
// passes first, or if `stop` becomes readable first. A negative `stop` is ignored.
bool AwaitReady(int descriptor, short events, absl::Time deadline, int stop = -1);

// Diagnoses an address that accepts TCP connections but no gRPC connection. Detects that one side
// uses plaintext and the other TLS, and that one side refuses the other's certificate. Returns the
// fault with advice; empty if no fault is found. Blocks for at most a second, and at most until
// `deadline`.
std::string DiagnoseConnection(std::string_view address, const Credentials& credentials,
                               const ExpectedPeer& peer,
                               absl::Time deadline = absl::InfiniteFuture());

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_TLS_DIAL_H_
