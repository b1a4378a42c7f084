// Makes sockets that listen for connections.
#ifndef SHARDMESH_PROCESS_LISTENING_SOCKET_H_
#define SHARDMESH_PROCESS_LISTENING_SOCKET_H_

#include <sys/socket.h>

#include <string_view>

#include "absl/status/status.h"
#include "process/file.h"

namespace shardmesh {

// Returns a non-blocking socket that listens at the address. A TCP socket may reuse an address that
// was in use a moment ago (SO_REUSEADDR). An IPv6 socket also accepts IPv4 connections. On failure,
// returns a negative descriptor and sets errno.
FileDescriptor ListenAt(int family, const sockaddr* address, socklen_t size);

// Returns the port of a bound TCP socket.
int PortOf(int socket);

// Returns ALREADY_EXISTS with advice; `error` is the errno of a failed ListenAt.
absl::Status CannotListen(std::string_view address, int error);

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_LISTENING_SOCKET_H_
