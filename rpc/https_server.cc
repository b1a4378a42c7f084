// HttpsServer over OpenSSL, whose reads and writes go through memory: its own writes to a socket
// may end the process with SIGPIPE.
#include "rpc/https_server.h"

#include <netdb.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/time/clock.h"
#include "rpc/certificate.h"
#include "rpc/host_port.h"
#include "rpc/openssl_owned.h"
#include "sharding/reason.h"
#include "sharding/status_macros.h"
#include "sharding/str_cat.h"

namespace shardmesh::rpc {
namespace {

using Context = OpensslOwned<SSL_CTX, SSL_CTX_free>;

// With the certificates that are in use now; null if memory is short.
Context MakeContext(const CertificateWatch& watch) {
  Context context(SSL_CTX_new(TLS_server_method()));
  if (context == nullptr || SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION) != 1 ||
      !UseTls(watch.state()->texts, context.get()).ok()) {
    return nullptr;
  }
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  // Callers are asked for their certificate each time.
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_TICKET);
  return context;
}

// One caller's connection. All calls return false when the connection has ended, time is over or
// the server stops.
class Connection {
 public:
  Connection(int socket, int stop, absl::Time deadline, SSL_CTX* context)
      : socket_(socket), stop_(stop), deadline_(deadline), ssl_(SSL_new(context)) {
    SSL_set_bio(ssl_.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
  }

  // Of callers with a name; the authorities may have signed other certificates.
  bool Accept() {
    return Drive([this] { return SSL_accept(ssl_.get()); }) > 0 &&
           ReadPeerCertificate(ssl_.get()).ok();
  }
  // Up to the empty line that ends a request without a body.
  bool ReadRequest(std::string* request) {
    char buffer[1024];
    while (request->find("\r\n\r\n") == std::string::npos) {
      const int count =
          Drive([&] { return SSL_read(ssl_.get(), buffer, static_cast<int>(sizeof(buffer))); });
      if (count <= 0 || request->size() + sizeof(buffer) > HttpsServer::kMaxRequestBytes) {
        return false;
      }
      request->append(buffer, static_cast<size_t>(count));
    }
    return true;
  }
  bool Write(std::string_view text) {
    constexpr size_t kPiece = size_t{16} << 10;
    for (; !text.empty(); text.remove_prefix(std::min(text.size(), kPiece))) {
      const std::string_view piece = text.substr(0, kPiece);
      if (Drive([&] {
            return SSL_write(ssl_.get(), piece.data(), static_cast<int>(piece.size()));
          }) <= 0) {
        return false;
      }
    }
    return true;
  }
  void End() {
    SSL_shutdown(ssl_.get());
    Flush();
    shutdown(socket_, SHUT_WR);
  }

 private:
  bool Await(short events) const {
    pollfd ready[] = {{.fd = socket_, .events = events, .revents = 0},
                      {.fd = stop_, .events = POLLIN, .revents = 0}};
    const absl::Duration left = std::max(deadline_ - absl::Now(), absl::ZeroDuration());
    return poll(ready, 2, static_cast<int>(absl::ToInt64Milliseconds(left))) > 0 &&
           ready[1].revents == 0;
  }

  // What OpenSSL has to say.
  bool Flush() const {
    BIO* const out = SSL_get_wbio(ssl_.get());
    char* data = nullptr;
    auto left = static_cast<size_t>(BIO_get_mem_data(out, &data));
    while (left > 0) {
      const ssize_t sent = send(socket_, data, left, MSG_NOSIGNAL);
      if (sent >= 0) {
        data += sent;
        left -= static_cast<size_t>(sent);
      } else if ((errno != EAGAIN && errno != EINTR) || !Await(POLLOUT)) {
        return false;
      }
    }
    BIO_reset(out);
    return true;
  }

  // What the caller says.
  bool Fill() const {
    char buffer[4096];
    const ssize_t count = recv(socket_, buffer, sizeof(buffer), 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    return count > 0 && BIO_write(SSL_get_rbio(ssl_.get()), buffer, static_cast<int>(count)) > 0;
  }

  // Repeats a step of OpenSSL's until it is done; its result then, else 0 or less.
  template <typename Step>
  int Drive(const Step& step) {
    for (;;) {
      ERR_clear_error();
      const int result = step();
      const int error = SSL_get_error(ssl_.get(), result);
      if (!Flush()) return -1;
      if (result > 0 || error != SSL_ERROR_WANT_READ) return result;
      if (!Await(POLLIN) || !Fill()) return -1;
    }
  }

  const int socket_;
  const int stop_;
  const absl::Time deadline_;
  const OpensslOwned<SSL, SSL_free> ssl_;
};

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
  const Context context = MakeContext(watch);
  if (context == nullptr) {
    ERR_clear_error();
    return;
  }
  Connection connection(socket, stop, absl::Now() + HttpsServer::kPatience, context.get());
  std::string request;
  if (connection.Accept() && connection.ReadRequest(&request) &&
      connection.Write(ReplyTo(request, handler))) {
    connection.End();
  }
  ERR_clear_error();
}

absl::Status CannotServe(const std::string& address, int error) {
  return WithReason(
      absl::AlreadyExistsError(StrCat("cannot listen on ", address, " (", std::strerror(error),
                                      "); is the port in use? Choose another, or 0 for a free "
                                      "one")),
      Reason::kAlreadyExists);
}

absl::StatusOr<FileDescriptor> Listen(const std::string& address) {
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
      listen(listener.get(), /*backlog=*/16) != 0) {
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
  SHARDMESH_ASSIGN_OR_RETURN(FileDescriptor listener, Listen(address));
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
  for (std::thread& thread : threads_) {
    thread = std::thread([this] { Run(); });
  }
}

HttpsServer::~HttpsServer() {
  const uint64_t one = 1;
  // Cannot fail: the counter is at 0.
  [[maybe_unused]] const ssize_t written = write(stop_.get(), &one, sizeof(one));
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void HttpsServer::Run() const {
  for (;;) {
    pollfd ready[] = {{.fd = listener_.get(), .events = POLLIN, .revents = 0},
                      {.fd = stop_.get(), .events = POLLIN, .revents = 0}};
    poll(ready, 2, /*timeout=*/-1);
    if (ready[1].revents != 0) return;
    const FileDescriptor caller(
        accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (caller.valid()) {
      Serve(caller.get(), stop_.get(), *watch_, handler_);
    } else if (errno == EMFILE || errno == ENFILE) {
      absl::SleepFor(absl::Milliseconds(100));  // others will close theirs
    }
  }
}

}  // namespace shardmesh::rpc
