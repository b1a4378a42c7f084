// A socket that listens.
#ifndef SHARDMESH_PROCESS_LISTENING_SOCKET_H_
#define SHARDMESH_PROCESS_LISTENING_SOCKET_H_

#include <sys/socket.h>

#include <string_view>

#include "absl/status/status.h"
#include "process/file.h"

namespace shardmesh {

// Binds and listens; the socket does not block. A TCP socket accepts an address that was in use a
// moment ago. An IPv6 socket also accepts IPv4 connections. Returns a negative descriptor, with
// errno set, on failure.
FileDescriptor ListenAt(int family, const sockaddr* address, socklen_t size);

// Returns the port of a bound TCP socket.
int PortOf(int socket);

// Returns ALREADY_EXISTS with advice for the `errno` of a failed ListenAt.
absl::Status CannotListen(std::string_view address, int error);

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_LISTENING_SOCKET_H_
