// Socket options, bind and listen for TCP and unix sockets.
#include "process/listening_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cerrno>
#include <cstring>

#include "absl/time/time.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

// The kernel closes a connection if its peer acknowledges no bytes for this long. gRPC's own
// listener sets the same time.
constexpr absl::Duration kUnacknowledged = absl::Seconds(20);

}  // namespace

FileDescriptor ListenAt(int family, const sockaddr* address, socklen_t size) {
  FileDescriptor bound(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!bound.valid()) return bound;
  const auto set = [&](int level, int option, int value) {
    return setsockopt(bound.get(), level, option, &value, sizeof(value)) == 0;
  };
  if (family != AF_UNIX) {
    // Accepted connections inherit these options.
    const auto patience = static_cast<int>(absl::ToInt64Milliseconds(kUnacknowledged));
    if (!set(SOL_SOCKET, SO_REUSEADDR, 1) || !set(IPPROTO_TCP, TCP_NODELAY, 1) ||
        !set(IPPROTO_TCP, TCP_USER_TIMEOUT, patience) ||
        (family == AF_INET6 && !set(IPPROTO_IPV6, IPV6_V6ONLY, 0))) {
      return {};
    }
  }
  if (bind(bound.get(), address, size) != 0 || listen(bound.get(), SOMAXCONN) != 0) {
    const int error = errno;
    bound = FileDescriptor();
    errno = error;
  }
  return bound;
}

int PortOf(int socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

absl::Status CannotListen(std::string_view address, int error) {
  return WithReason(
      absl::AlreadyExistsError(StrCat(
          "cannot listen on ", address, "; the port is in use, or the address is not this host's (",
          std::strerror(error),
          "). Stop the process that listens there, choose another port, or 0 for a free one")),
      Reason::kAlreadyExists, {{fact::kKind, "address"}, {fact::kName, address}});
}

}  // namespace shardmesh
