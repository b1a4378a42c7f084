// HttpsServer: one thread waits for callers to say something, others answer them.
#include "rpc/https_server.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/time/clock.h"
#include "rpc/certificate.h"
#include "rpc/host_port.h"
#include "rpc/tls_session.h"
#include "sharding/reason.h"
#include "sharding/status_macros.h"
#include "sharding/str_cat.h"

namespace shardmesh::rpc {
namespace {

using Outcome = TlsSession::Outcome;

// Up to the empty line that ends a request without a body; false if none comes.
bool ReadRequest(TlsSession& session, absl::Time deadline, std::string* request) {
  char buffer[1024];
  while (request->find("\r\n\r\n") == std::string::npos) {
    size_t count = 0;
    if (session.Read(absl::MakeSpan(buffer), &count, deadline) != Outcome::kDone ||
        request->size() + count > HttpsServer::kMaxRequestBytes) {
      return false;
    }
    request->append(buffer, count);
  }
  return true;
}

std::string Reply(std::string_view status, std::string_view content_type, std::string_view body) {
  return StrCat("HTTP/1.1 ", status, "\r\nContent-Type: ", content_type,
                "\r\nContent-Length: ", body.size(), "\r\nConnection: close\r\n\r\n", body);
}

std::string ReplyTo(std::string_view request, const HttpsServer::Handler& handler) {
  const std::string_view line = request.substr(0, request.find("\r\n"));
  const size_t method_end = line.find(' ');
  const size_t path_end = line.find(' ', method_end + 1);
  if (method_end == std::string_view::npos || path_end == std::string_view::npos) {
    return Reply("400 Bad Request", "text/plain", "this is no request of HTTP\n");
  }
  if (line.substr(0, method_end) != "GET") {
    return Reply("405 Method Not Allowed", "text/plain", "there is GET alone\n");
  }
  std::string_view path = line.substr(method_end + 1, path_end - method_end - 1);
  path = path.substr(0, path.find('?'));
  const std::optional<HttpsServer::Answer> answer = handler(path);
  if (!answer.has_value()) {
    return Reply("404 Not Found", "text/plain", StrCat("there is nothing at ", path, "\n"));
  }
  return Reply("200 OK", answer->content_type, answer->body);
}

void Serve(int socket, int stop, const CertificateWatch& watch,
           const HttpsServer::Handler& handler) {
  const absl::Time deadline = absl::Now() + HttpsServer::kPatience;
  const absl::StatusOr<TlsContext> context = TlsContext::ForServer(watch.state()->texts);
  if (!context.ok()) {
    return;  // the texts were checked, so memory is short
  }
  TlsSession session(*context, socket, stop);
  std::string request;
  // Of callers with a name; the authorities may have signed other certificates.
  if (session.Accept(deadline) == Outcome::kDone && ReadPeerCertificate(session.ssl()).ok() &&
      ReadRequest(session, deadline, &request) &&
      session.Write(ReplyTo(request, handler), deadline) == Outcome::kDone) {
    session.End(deadline);
  }
}

absl::Status CannotServe(const std::string& address, int error) {
  return WithReason(
      absl::AlreadyExistsError(StrCat("cannot listen on ", address, " (", std::strerror(error),
                                      "); is the port in use? Choose another, or 0 for a free "
                                      "one")),
      Reason::kAlreadyExists);
}

absl::StatusOr<FileDescriptor> OpenListener(const std::string& address) {
  SHARDMESH_ASSIGN_OR_RETURN(const HostPort parsed, ParseHostPort(address));
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error =
          getaddrinfo(parsed.host.c_str(), StrCat(parsed.port).c_str(), &hints, &found);
      error != 0) {
    return absl::InvalidArgumentError(
        StrCat("cannot listen on ", address, ": ", gai_strerror(error)));
  }
  const absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  FileDescriptor listener(
      socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, /*protocol=*/0));
  const int on = 1;
  if (!listener.valid() ||
      setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(listener.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      listen(listener.get(), static_cast<int>(HttpsServer::kMaxSilent)) != 0) {
    return CannotServe(address, errno);
  }
  return listener;
}

int PortOf(int socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpsServer>> HttpsServer::Start(const std::string& address,
                                                                const CertificateWatch* watch,
                                                                Handler handler) {
  SHARDMESH_ASSIGN_OR_RETURN(FileDescriptor listener, OpenListener(address));
  FileDescriptor stop(eventfd(0, EFD_CLOEXEC));
  if (!stop.valid()) return CannotServe(address, errno);
  const int port = PortOf(listener.get());
  return std::unique_ptr<HttpsServer>(
      new HttpsServer(std::move(listener), std::move(stop), port, watch, std::move(handler)));
}

HttpsServer::HttpsServer(FileDescriptor listener, FileDescriptor stop, int port,
                         const CertificateWatch* watch, Handler handler)
    : listener_(std::move(listener)),
      stop_(std::move(stop)),
      port_(port),
      watch_(watch),
      handler_(std::move(handler)) {
  listening_ = std::thread([this] { Listen(); });
  for (std::thread& thread : serving_) {
    thread = std::thread([this] { ServeCallers(); });
  }
}

HttpsServer::~HttpsServer() {
  const uint64_t one = 1;
  // Cannot fail: the counter is at 0.
  [[maybe_unused]] const ssize_t written = write(stop_.get(), &one, sizeof(one));
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  listening_.join();
  for (std::thread& thread : serving_) {
    thread.join();
  }
}

void HttpsServer::Listen() {
  struct Silent {
    FileDescriptor socket;
    absl::Time deadline;
  };
  std::deque<Silent> silent;  // the oldest first
  std::vector<pollfd> watched;
  for (;;) {
    watched = {{.fd = stop_.get(), .events = POLLIN, .revents = 0},
               {.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    for (const Silent& each : silent) {
      watched.push_back({.fd = each.socket.get(), .events = POLLIN, .revents = 0});
    }
    int timeout_ms = -1;
    if (!silent.empty()) {
      const absl::Duration left =
          std::max(silent.front().deadline - absl::Now(), absl::ZeroDuration());
      timeout_ms = static_cast<int>(absl::ToInt64Milliseconds(left)) + 1;
    }
    poll(watched.data(), watched.size(), timeout_ms);
    if (watched[0].revents != 0) {
      return;
    }
    std::deque<Silent> still;
    for (size_t i = 0; i < silent.size(); ++i) {
      if (watched[i + 2].revents != 0) {
        HandOver(std::move(silent[i].socket));
      } else if (absl::Now() < silent[i].deadline) {
        still.push_back(std::move(silent[i]));
      }
    }
    silent = std::move(still);
    if (watched[1].revents == 0) {
      continue;
    }
    FileDescriptor caller(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    const bool is_short = !caller.valid() && (errno == EMFILE || errno == ENFILE);
    if (caller.valid()) {
      silent.push_back({std::move(caller), absl::Now() + kPatience});
    }
    // The oldest makes room: among those that are waited for, or for another's descriptor.
    if (silent.size() > kMaxSilent || (is_short && !silent.empty())) {
      silent.pop_front();
    } else if (is_short) {
      absl::SleepFor(absl::Milliseconds(100));  // others will close theirs
    }
  }
}

void HttpsServer::HandOver(FileDescriptor caller) {
  absl::MutexLock lock(&mutex_);
  callers_.push_back(std::move(caller));
  if (callers_.size() > kMaxWaiting) {
    callers_.pop_front();
  }
}

void HttpsServer::ServeCallers() {
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !callers_.empty();
  };
  for (;;) {
    FileDescriptor caller;
    {
      absl::MutexLock lock(&mutex_, absl::Condition(&has_work));
      if (stopping_) {
        return;
      }
      caller = std::move(callers_.front());
      callers_.pop_front();
    }
    Serve(caller.get(), stop_.get(), *watch_, handler_);
  }
}

}  // namespace shardmesh::rpc
