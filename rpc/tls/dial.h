// Plain connections, to see what is at an address that gRPC cannot connect to.
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

// A TCP connection to `host:port` or `[v6]:port`, whatever is spoken there; its socket does not
// block. All addresses of a host are dialled at once, and the first to accept is taken. Blocks, at
// most until `deadline` and the time that the host's name takes. UNAVAILABLE if nobody accepts;
// NOT_FOUND if the host is not known; UNIMPLEMENTED for a unix socket.
absl::StatusOr<FileDescriptor> Dial(std::string_view address, absl::Time deadline);

// Which addresses of a host accept a connection. Each is as `10.0.0.7:7070`, in the system's order.
struct DialledAddresses {
  std::vector<std::string> accepting;
  std::vector<std::string> refusing;
  std::vector<std::string> silent;  // nothing came until the deadline
};

// Dials all addresses of a host at once, and waits until each has answered; blocks as Dial. Returns
// nothing, and dials nobody, for a host with a single address, one that nobody knows, and a unix
// socket.
DialledAddresses DialEach(std::string_view address, absl::Time deadline);

// Whether a descriptor has one of poll's `events`, or an error, before `deadline` and before `stop`
// is readable; a negative `stop` is none. Blocks until then.
bool AwaitReady(int descriptor, short events, absl::Time deadline, int stop = -1);

// What is wrong where something accepts connections at `address` and no gRPC connection to it comes
// about: one side speaks plaintext and the other TLS, or one does not take the other's certificate.
// Says what to do about it. Empty if nothing of the kind is found. Blocks, at most for a second and
// until `deadline`.
std::string DiagnoseConnection(std::string_view address, const Credentials& credentials,
                               const ExpectedPeer& peer,
                               absl::Time deadline = absl::InfiniteFuture());

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_TLS_DIAL_H_
