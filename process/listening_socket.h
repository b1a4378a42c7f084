// A socket that listens.
#ifndef SHARDMESH_PROCESS_LISTENING_SOCKET_H_
#define SHARDMESH_PROCESS_LISTENING_SOCKET_H_

#include <sys/socket.h>

#include <string_view>

#include "absl/status/status.h"
#include "process/file.h"

namespace shardmesh::rpc {

// Binds and listens; the socket does not block. One of TCP takes an address that was in use a
// moment ago, and one of IPv6 those of IPv4 too. A negative descriptor, with errno, if that failed.
FileDescriptor ListenAt(int family, const sockaddr* address, socklen_t size);

// The port of a bound socket of TCP.
int PortOf(int socket);

// ALREADY_EXISTS: what to do about the `errno` of ListenAt.
absl::Status CannotListen(std::string_view address, int error);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_PROCESS_LISTENING_SOCKET_H_
