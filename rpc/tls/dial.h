// Plain connections, to diagnose an address that gRPC cannot connect to.
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

// Returns a TCP connection to `host:port` or `[v6]:port`, for any protocol; its socket does not
// block. All addresses of a host are dialled at once, and the first to accept wins. Blocks at most
// until `deadline` and the time of the name lookup. UNAVAILABLE if no address accepts; NOT_FOUND
// for an unknown host; UNIMPLEMENTED for a unix socket.
absl::StatusOr<FileDescriptor> Dial(std::string_view address, absl::Time deadline);

// The addresses of a host by their answer. Each is as `10.0.0.7:7070`, in the system's order.
struct DialledAddresses {
  std::vector<std::string> accepting;
  std::vector<std::string> refusing;
  std::vector<std::string> silent;  // no answer until the deadline
};

// Dials all addresses of a host at once, and waits until each has answered; blocks as Dial. Returns
// an empty result without dialling for a host with a single address, an unknown host, and a unix
// socket.
DialledAddresses DialEach(std::string_view address, absl::Time deadline);

// Waits until a descriptor has one of poll's `events` or an error. Returns false if `deadline`
// passes or `stop` becomes readable first; a negative `stop` is ignored.
bool AwaitReady(int descriptor, short events, absl::Time deadline, int stop = -1);

// Diagnoses an address that accepts connections but no gRPC connection: one side speaks plaintext
// and the other TLS, or one side refuses the other's certificate. Returns the fault with advice; an
// empty text if it finds none. Blocks for at most a second, and until `deadline`.
std::string DiagnoseConnection(std::string_view address, const Credentials& credentials,
                               const ExpectedPeer& peer,
                               absl::Time deadline = absl::InfiniteFuture());

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_TLS_DIAL_H_
