// One thread polls all connections, and advances each as far as its socket allows without blocking.
#include "rpc/metrics/http_server.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "process/host_port.h"
#include "process/listening_socket.h"
#include "process/log.h"
#include "process/steady_deadline.h"
#include "rpc/tls/certificate.h"
#include "rpc/tls/tls_session.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

using Outcome = TlsSession::Outcome;

// A deadline in the past: a call with this deadline returns without waiting.
constexpr absl::Time kAtOnce = absl::InfinitePast();
// Maximum number of bytes that one write passes to the socket or to TLS.
constexpr size_t kPieceBytes = size_t{16} << 10;
// Pause of the listener if no file descriptor is free for a new connection.
constexpr absl::Duration kRest = absl::Milliseconds(100);
// Minimum time between two log lines about missing descriptors.
constexpr absl::Duration kLogInterval = absl::Seconds(10);

std::string Reply(std::string_view status, std::string_view content_type, std::string_view body) {
  return StrCat("HTTP/1.1 ", status, "\r\nContent-Type: ", content_type,
                "\r\nContent-Length: ", body.size(), "\r\nConnection: close\r\n\r\n", body);
}

std::string ReplyTo(std::string_view request, const HttpServer::Handler& handler) {
  const std::string_view line = request.substr(0, request.find("\r\n"));
  const size_t method_end = line.find(' ');
  const size_t path_end = line.find(' ', method_end + 1);
  if (method_end == std::string_view::npos || path_end == std::string_view::npos) {
    return Reply("400 Bad Request", "text/plain", "this is not an HTTP request\n");
  }
  if (line.substr(0, method_end) != "GET") {
    return Reply("405 Method Not Allowed", "text/plain", "only GET is supported\n");
  }
  std::string_view path = line.substr(method_end + 1, path_end - method_end - 1);
  path = path.substr(0, path.find('?'));
  const std::optional<HttpServer::Answer> answer = handler(path);
  if (!answer.has_value()) {
    return Reply("404 Not Found", "text/plain", StrCat("there is nothing at ", path, "\n"));
  }
  return Reply("200 OK", answer->content_type, answer->body);
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
  FileDescriptor listener = ListenAt(found->ai_family, found->ai_addr, found->ai_addrlen);
  if (!listener.valid()) return CannotListen(address, errno);
  return listener;
}

// Returns the most connections that may be open: an eighth of the process's descriptor limit, but
// at least 4 and at most kMaxConnections.
size_t MaxConnections() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return HttpServer::kMaxConnections;
  return std::clamp<size_t>(limit.rlim_cur / 8, 4, HttpServer::kMaxConnections);
}

}  // namespace

// One connection: a handshake, a request, an answer. Each call of Advance does what is possible
// without waiting.
class HttpServer::Connection {
 public:
  Connection(FileDescriptor socket, SteadyDeadline deadline)
      : socket_(std::move(socket)), deadline_(deadline) {}

  SteadyDeadline deadline() const { return deadline_; }
  pollfd watched() const {
    // After the request, the server reads nothing more, and only waits for room to write.
    const int events = has_reply_ ? POLLOUT : has_unsent() ? POLLIN | POLLOUT : POLLIN;
    return {.fd = socket_.get(), .events = static_cast<short>(events), .revents = 0};
  }

  // Advances the connection without waiting. Returns false when the connection is over.
  bool Advance(const HttpServer& server) {
    if (server.watch_ != nullptr && tls_ == nullptr) {
      absl::StatusOr<TlsContext> context = TlsContext::ForServer(server.watch_->state()->texts);
      if (!context.ok()) return false;  // the texts were checked before, so memory is exhausted
      context_ = std::make_unique<TlsContext>(*std::move(context));
      tls_ = std::make_unique<TlsSession>(*context_, socket_.get());
    }
    if (tls_ != nullptr && !has_accepted_) {
      const Outcome outcome = tls_->Accept(kAtOnce);
      if (outcome == Outcome::kTimeout) return true;
      // The authorities may have signed certificates for other purposes. Accept only certificates
      // with a name of PeerName's form.
      if (outcome != Outcome::kDone || !ReadPeerCertificate(tls_->ssl()).ok()) return false;
      has_accepted_ = true;
    }
    if (!has_reply_) {
      const Outcome outcome = ReadRequest();
      if (outcome == Outcome::kTimeout) return true;
      if (outcome != Outcome::kDone) return false;
      reply_ = ReplyTo(request_, server.handler_);
      has_reply_ = true;
    }
    if (!Send()) return false;
    if (has_unsent()) return true;
    tls_ != nullptr ? tls_->End(kAtOnce) : static_cast<void>(shutdown(socket_.get(), SHUT_WR));
    return false;
  }

 private:
  bool has_unsent() const {
    return sent_bytes_ < reply_.size() || (tls_ != nullptr && tls_->has_unsent());
  }

  // Reads up to the empty line that ends a request without a body. Returns kRefused if the request
  // is too long.
  Outcome ReadRequest() {
    char buffer[1024];
    while (request_.find("\r\n\r\n") == std::string::npos) {
      size_t count = 0;
      if (const Outcome outcome = Read(absl::MakeSpan(buffer), &count); outcome != Outcome::kDone) {
        return outcome;
      }
      if (request_.size() + count > kMaxRequestBytes) return Outcome::kRefused;
      request_.append(buffer, count);
    }
    return Outcome::kDone;
  }

  Outcome Read(absl::Span<char> buffer, size_t* count) {
    if (tls_ != nullptr) return tls_->Read(buffer, count, kAtOnce);
    const ssize_t received = recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (received < 0) {
      return errno == EAGAIN || errno == EINTR ? Outcome::kTimeout : Outcome::kEnded;
    }
    *count = static_cast<size_t>(received);
    return received > 0 ? Outcome::kDone : Outcome::kEnded;
  }

  // Sends as much of the answer as the socket accepts. Returns false if the socket is closed.
  bool Send() {
    for (;;) {
      const std::string_view left = std::string_view(reply_).substr(sent_bytes_);
      const std::string_view piece = left.substr(0, kPieceBytes);
      if (tls_ != nullptr) {
        if (!tls_->Flush(kAtOnce)) return tls_->is_open();
        if (piece.empty()) return true;
        const Outcome outcome = tls_->Write(piece, kAtOnce);
        // The TLS session keeps written bytes that the socket has not accepted, so they count as
        // sent.
        if (outcome != Outcome::kDone && !tls_->has_unsent()) return false;
        sent_bytes_ += piece.size();
        continue;
      }
      if (piece.empty()) return true;
      const ssize_t sent = send(socket_.get(), piece.data(), piece.size(), MSG_NOSIGNAL);
      if (sent < 0) return errno == EAGAIN || errno == EINTR;
      sent_bytes_ += static_cast<size_t>(sent);
    }
  }

  const FileDescriptor socket_;
  const SteadyDeadline deadline_;
  std::unique_ptr<TlsContext> context_;
  std::unique_ptr<TlsSession> tls_;  // null for plaintext, and before the first Advance()
  bool has_accepted_ = false;
  std::string request_;
  bool has_reply_ = false;
  std::string reply_;
  size_t sent_bytes_ = 0;
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address,
                                                              const CertificateWatch* watch,
                                                              Handler handler) {
  SHARDMESH_ASSIGN_OR_RETURN(FileDescriptor listener, OpenListener(address));
  FileDescriptor stop(eventfd(0, EFD_CLOEXEC));
  if (!stop.valid()) return CannotListen(address, errno);
  const int port = PortOf(listener.get());
  return std::unique_ptr<HttpServer>(
      new HttpServer(std::move(listener), std::move(stop), port, watch, std::move(handler)));
}

HttpServer::HttpServer(FileDescriptor listener, FileDescriptor stop, int port,
                       const CertificateWatch* watch, Handler handler)
    : listener_(std::move(listener)),
      stop_(std::move(stop)),
      port_(port),
      watch_(watch),
      handler_(std::move(handler)),
      max_connections_(MaxConnections()) {
  thread_ = std::thread([this] { Run(); });
}

HttpServer::~HttpServer() {
  const uint64_t one = 1;
  // Cannot fail: nobody else adds to the eventfd's counter, which is 0.
  [[maybe_unused]] const ssize_t written = write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

void HttpServer::Run() {
  std::deque<std::unique_ptr<Connection>> connections;  // the oldest first
  std::vector<pollfd> watched;
  // The listener pauses while `rest` runs; the log repeats no warning while `quiet` runs.
  auto rest = SteadyDeadline::After(absl::ZeroDuration());
  auto quiet = rest;
  for (;;) {
    while (!connections.empty() && connections.front()->deadline().is_over()) {
      connections.pop_front();
    }
    const bool rests = !rest.is_over();
    watched = {
        {.fd = stop_.get(), .events = POLLIN, .revents = 0},
        // poll ignores a negative descriptor: the listener pauses.
        {.fd = rests ? -1 : listener_.get(), .events = POLLIN, .revents = 0},
    };
    for (const auto& each : connections) watched.push_back(each->watched());
    absl::Duration wait = rests ? rest.left() : absl::InfiniteDuration();
    if (!connections.empty()) wait = std::min(wait, connections.front()->deadline().left());
    const int timeout_ms = wait == absl::InfiniteDuration()
                               ? -1
                               : static_cast<int>(absl::ToInt64Milliseconds(wait)) + 1;
    poll(watched.data(), watched.size(), timeout_ms);
    if (watched[0].revents != 0) return;
    std::deque<std::unique_ptr<Connection>> open;
    for (size_t i = 0; i < connections.size(); ++i) {
      if (watched[i + 2].revents == 0 || connections[i]->Advance(*this)) {
        open.push_back(std::move(connections[i]));
      }
    }
    connections = std::move(open);
    if (watched[1].revents == 0) continue;
    FileDescriptor caller(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    const int error = errno;
    if (caller.valid()) {
      connections.push_back(
          std::make_unique<Connection>(std::move(caller), SteadyDeadline::After(kPatience)));
      if (connections.size() > max_connections_) connections.pop_front();
    } else if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
      if (quiet.is_over()) {
        quiet = SteadyDeadline::After(kLogInterval);
        LogWarning("no file descriptor is left for an HTTP connection",
                   {{"port", port_}, {"error", std::strerror(error)}});
      }
      // Closes the oldest connection to free a descriptor. If no connection is open, waits until
      // other parts of the process free descriptors.
      if (connections.empty()) {
        rest = SteadyDeadline::After(kRest);
      } else {
        connections.pop_front();
      }
    }
  }
}

}  // namespace shardmesh::rpc
