// Binds addresses as gRPC does, and accepts connections on its own thread.
#include "rpc/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/time/clock.h"
#include "process/descriptor_limit.h"
#include "process/host_port.h"
#include "process/listening_socket.h"
#include "process/log.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

// Pause after accept() failed because no file descriptor was free.
constexpr absl::Duration kRest = absl::Milliseconds(100);
// Minimum time between two log lines about refused connections.
constexpr absl::Duration kLogInterval = absl::Seconds(10);
constexpr std::string_view kUnix = "unix:";
constexpr std::string_view kUnixAbstract = "unix-abstract:";

bool IsAnyAddress(const addrinfo& of) {
  return of.ai_family == AF_INET &&
         reinterpret_cast<const sockaddr_in*>(of.ai_addr)->sin_addr.s_addr == htonl(INADDR_ANY);
}

absl::StatusOr<std::vector<FileDescriptor>> ListenOnHost(const std::string& address, int* port) {
  SHARDMESH_ASSIGN_OR_RETURN(const HostPort parsed, ParseHostPort(address));
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICSERV | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error =
          getaddrinfo(parsed.host.c_str(), StrCat(parsed.port).c_str(), &hints, &found);
      error != 0) {
    return WithReason(
        absl::AlreadyExistsError(StrCat("cannot listen on ", address, ": ", gai_strerror(error))),
        Reason::kAlreadyExists, {{fact::kKind, "address"}, {fact::kName, address}});
  }
  const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  *port = parsed.port;
  std::vector<FileDescriptor> sockets;
  int error = 0;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    FileDescriptor bound;
    if (IsAnyAddress(*each)) {
      sockaddr_in6 any = {};
      any.sin6_family = AF_INET6;
      any.sin6_port = htons(static_cast<uint16_t>(*port));
      bound = ListenAt(AF_INET6, reinterpret_cast<const sockaddr*>(&any), sizeof(any));
    }
    if (!bound.valid()) {
      // Bind the further addresses at the port of the first address.
      if (each->ai_family == AF_INET6) {
        reinterpret_cast<sockaddr_in6*>(each->ai_addr)->sin6_port =
            htons(static_cast<uint16_t>(*port));
      } else {
        reinterpret_cast<sockaddr_in*>(each->ai_addr)->sin_port =
            htons(static_cast<uint16_t>(*port));
      }
      bound = ListenAt(each->ai_family, each->ai_addr, each->ai_addrlen);
    }
    if (!bound.valid()) {
      error = errno;
      if (error == EADDRINUSE) return CannotListen(address, error);
      continue;  // the host lacks the address, such as ::1 on a host without IPv6
    }
    *port = PortOf(bound.get());
    sockets.push_back(std::move(bound));
  }
  if (sockets.empty()) return CannotListen(address, error);
  return sockets;
}

absl::StatusOr<std::vector<FileDescriptor>> ListenOnUnix(const std::string& address,
                                                         std::string* path) {
  sockaddr_un to = {};
  to.sun_family = AF_UNIX;
  const bool is_abstract = address.starts_with(kUnixAbstract);
  const std::string_view name =
      std::string_view(address).substr(is_abstract ? kUnixAbstract.size() : kUnix.size());
  const size_t begin = is_abstract ? 1 : 0;
  if (begin + name.size() >= sizeof(to.sun_path)) {
    return WithReason(absl::InvalidArgumentError(StrCat(
                          "cannot listen on ", address, ": the name has ", name.size(),
                          " bytes; a unix socket's has at most ", sizeof(to.sun_path) - begin - 1)),
                      Reason::kBadField, {{fact::kValue, address}});
  }
  name.copy(to.sun_path + begin, name.size());
  auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + begin + name.size());
  if (!is_abstract) {
    *path = std::string(name);
    unlink(path->c_str());
    ++size;  // counts the 0 at the end of the path
  }
  FileDescriptor bound = ListenAt(AF_UNIX, reinterpret_cast<const sockaddr*>(&to), size);
  if (!bound.valid()) return CannotListen(address, errno);
  std::vector<FileDescriptor> sockets;
  sockets.push_back(std::move(bound));
  return sockets;
}

}  // namespace

void RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::Create(const std::string& address,
                                                           std::optional<Counter> refused,
                                                           ConnectionLimits limits) {
  int port = 0;
  std::string path;
  SHARDMESH_ASSIGN_OR_RETURN(
      std::vector<FileDescriptor> sockets,
      IsUnixAddress(address) ? ListenOnUnix(address, &path) : ListenOnHost(address, &port));
  FileDescriptor stop(eventfd(0, EFD_CLOEXEC));
  if (!stop.valid()) return CannotListen(address, errno);
  return std::unique_ptr<Listener>(new Listener(address, std::move(sockets), std::move(stop), port,
                                                std::move(path), refused, limits));
}

Listener::Listener(std::string address, std::vector<FileDescriptor> sockets, FileDescriptor stop,
                   int port, std::string path, std::optional<Counter> refused,
                   ConnectionLimits limits)
    : address_(std::move(address)),
      port_(port),
      path_(std::move(path)),
      refused_(refused),
      stop_(std::move(stop)),
      sockets_(std::move(sockets)),
      limit_(limits) {}

Listener::~Listener() { Stop(); }

void Listener::Start(Handler handler) {
  handler_ = std::move(handler);
  thread_ = std::thread([this] { Run(); });
}

void Listener::Stop() {
  absl::MutexLock lock(&mutex_);
  if (std::exchange(stopped_, true)) return;
  const uint64_t one = 1;
  // Cannot fail: nobody else adds to the eventfd's counter, which is 0.
  [[maybe_unused]] const ssize_t written = write(stop_.get(), &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
  sockets_.clear();
  if (!path_.empty()) unlink(path_.c_str());
}

void Listener::Run() {
  std::vector<pollfd> watched;
  for (;;) {
    watched = {{.fd = stop_.get(), .events = POLLIN, .revents = 0}};
    for (const FileDescriptor& each : sockets_) {
      watched.push_back({.fd = each.get(), .events = POLLIN, .revents = 0});
    }
    poll(watched.data(), watched.size(), -1);
    if (watched[0].revents != 0) return;
    for (size_t i = 1; i < watched.size(); ++i) {
      if (watched[i].revents == 0 || Accept(watched[i].fd)) continue;
      if (poll(watched.data(), 1, static_cast<int>(absl::ToInt64Milliseconds(kRest))) > 0) return;
    }
  }
}

bool Listener::Accept(int socket) {
  sockaddr_storage peer = {};
  socklen_t peer_size = sizeof(peer);
  const int caller =
      accept4(socket, reinterpret_cast<sockaddr*>(&peer), &peer_size, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (caller < 0) {
    const bool is_short = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    if (is_short) Refuse(std::strerror(errno));
    return !is_short;  // if not short, the client has closed the connection: continue
  }
  if (caller >= FirstReservedDescriptor()) {
    close(caller);
    Refuse(
        "the remaining file descriptors are reserved for the process itself; raise its limit "
        "(ulimit -n), or close unused connections");
    return true;
  }
  if (const std::string why = limit_.Take(caller, peer); !why.empty()) {
    close(caller);
    Refuse(why);
    return true;
  }
  if (std::exchange(refused_in_a_row_, 0) > 0) {
    log_time_ = absl::InfinitePast();
    LogInfo("connections are accepted again", {{"address", address_}});
  }
  handler_(caller);
  return true;
}

void Listener::Refuse(const std::string& why) {
  ++refused_in_a_row_;
  if (refused_.has_value()) refused_->Add();
  const absl::Time now = absl::Now();
  if (now - log_time_ < kLogInterval) return;
  log_time_ = now;
  LogWarning("connections are refused",
             {{"address", address_}, {"refused", refused_in_a_row_}, {"error", why}});
}

}  // namespace shardmesh::rpc
