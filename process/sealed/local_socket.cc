// Unix sockets with abstract names. Passes descriptors with SCM_RIGHTS.
#include "process/sealed/local_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "status/str_cat.h"

namespace shardmesh {
namespace {

constexpr int kBacklog = 64;
constexpr size_t kMaxDescriptors = 16;
constexpr size_t kMaxTextBytes = 4096;

// Returns errno as an error with the given code. `what` says what failed.
absl::Status SocketError(std::string_view what) {
  return absl::UnavailableError(StrCat(what, ": ", std::strerror(errno)));
}

FileDescriptor NewSocket() {
  return FileDescriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// Writes the address of the abstract socket `name` to `address` and returns its length. Returns 0
// if the name is too long. An empty name asks the kernel for a free name (autobind): five
// hexadecimal digits.
socklen_t AddressOf(std::string_view name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  if (name.empty()) return sizeof(sa_family_t);
  if (name.size() > sizeof(address->sun_path) - 1) return 0;
  std::memcpy(address->sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

}  // namespace

absl::StatusOr<LocalListener> ListenLocally(std::string_view name) {
  LocalListener listener{.socket = NewSocket(), .name = {}};
  sockaddr_un address;
  socklen_t size = AddressOf(name, &address);
  if (size == 0) errno = ENAMETOOLONG;
  if (!listener.socket.valid() || size == 0 ||
      bind(listener.socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      listen(listener.socket.get(), kBacklog) != 0) {
    return SocketError("no socket for processes on this host");
  }
  size = sizeof(address);
  if (getsockname(listener.socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return SocketError("no name of a socket for processes on this host");
  }
  listener.name.assign(address.sun_path + 1, size - offsetof(sockaddr_un, sun_path) - 1);
  return listener;
}

absl::StatusOr<FileDescriptor> ConnectLocally(std::string_view name) {
  FileDescriptor socket = NewSocket();
  sockaddr_un address;
  const socklen_t size = AddressOf(name, &address);
  if (name.empty() || size == 0) errno = EINVAL;
  if (!socket.valid() || name.empty() || size == 0 ||
      connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    return SocketError("no way to a socket of this host");
  }
  if (!IsOfUser(socket.get(), geteuid())) {
    return absl::PermissionDeniedError(
        "a process of another user listens at a socket of this host");
  }
  return socket;
}

bool IsOfUser(int socket, uid_t user) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == user;
}

absl::Status SendDescriptors(int socket, std::string_view text, absl::Span<const int> fds) {
  if (text.empty() || text.size() > kMaxTextBytes || fds.size() > kMaxDescriptors) {
    return absl::InvalidArgumentError(StrCat("a message of ", text.size(), " bytes with ",
                                             fds.size(), " descriptors; it has 1 to ",
                                             kMaxTextBytes, ", with at most ", kMaxDescriptors));
  }
  iovec data = {.iov_base = const_cast<char*>(text.data()), .iov_len = text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(text.size())
             ? absl::OkStatus()
             : SocketError("a peer on this host is not there");
}

absl::StatusOr<ReceivedDescriptors> ReceiveDescriptors(int socket) {
  ReceivedDescriptors received;
  received.text.resize(kMaxTextBytes);
  iovec data = {.iov_base = received.text.data(), .iov_len = received.text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t size = 0;
  do {
    size = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  for (cmsghdr* header = size < 0 ? nullptr : CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    std::vector<int> fds((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(fds.data(), CMSG_DATA(header), fds.size() * sizeof(int));
    for (const int fd : fds) {
      received.fds.emplace_back(fd);
    }
  }
  if (size <= 0) {
    return size == 0 ? absl::UnavailableError("a peer on this host has hung up")
                     : SocketError("cannot receive from a peer on this host");
  }
  // If the message has more descriptors than this process has free, the kernel drops descriptors of
  // the message. The kernel reports this only by the flag MSG_CTRUNC.
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == MSG_CTRUNC &&
      received.fds.size() < kMaxDescriptors) {
    return absl::ResourceExhaustedError(
        "a peer on this host shares memory, and this process is out of file descriptors for it; "
        "raise its limit (ulimit -n)");
  }
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return absl::InvalidArgumentError(StrCat("a peer on this host sent more than ", kMaxTextBytes,
                                             " bytes or ", kMaxDescriptors,
                                             " descriptors at once"));
  }
  received.text.resize(static_cast<size_t>(size));
  return received;
}

}  // namespace shardmesh
