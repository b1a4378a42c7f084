// Serves metrics over HTTP.
#include "rpc/metrics_endpoint.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <exception>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "prometheus/exposer.h"
#include "rpc/credentials.h"
#include "rpc/host_port.h"
#include "rpc/https_server.h"
#include "rpc/metrics_collector.h"
#include "sharding/reason.h"
#include "sharding/status_macros.h"
#include "sharding/str_cat.h"

namespace shardmesh::rpc {
namespace {

constexpr std::string_view kPath = "/metrics";
// Of Prometheus' text format.
constexpr const char* kContentType = "text/plain; version=0.0.4; charset=utf-8";
constexpr absl::Duration kKnockInterval = absl::Milliseconds(10);

// Connects to a listening port of this host, and leaves. Best effort.
void Knock(const std::string& host, int port) {
  const addrinfo hints{.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
                       .ai_family = AF_UNSPEC,
                       .ai_socktype = SOCK_STREAM,
                       .ai_protocol = 0,
                       .ai_addrlen = 0,
                       .ai_addr = nullptr,
                       .ai_canonname = nullptr,
                       .ai_next = nullptr};
  addrinfo* address = nullptr;
  if (getaddrinfo(host.c_str(), StrCat(port).c_str(), &hints, &address) != 0) {
    return;
  }
  const int socket_fd =
      socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, /*protocol=*/0);
  if (socket_fd >= 0) {
    connect(socket_fd, address->ai_addr, address->ai_addrlen);  // under way is enough
    close(socket_fd);
  }
  freeaddrinfo(address);
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(
    const Metrics& metrics, const std::string& address, const Credentials& credentials,
    bool plaintext) {
  SHARDMESH_ASSIGN_OR_RETURN(HostPort parsed, ParseHostPort(address));
  if (parsed.host == "localhost") {
    parsed.host = "127.0.0.1";  // The servers take no names.
  }
  if (credentials.is_secure() && !plaintext) {
    SHARDMESH_ASSIGN_OR_RETURN(
        std::unique_ptr<HttpsServer> https,
        HttpsServer::Start(parsed.ToString(), credentials.watch(),
                           [&metrics](std::string_view path) -> std::optional<HttpsServer::Answer> {
                             if (path != kPath) return std::nullopt;
                             return HttpsServer::Answer{kContentType, metrics.Text()};
                           }));
    return std::unique_ptr<MetricsEndpoint>(new MetricsEndpoint(std::move(https)));
  }
  if (!plaintext && !IsLoopbackAddress(address)) {
    return absl::FailedPreconditionError(
        StrCat("refusing to serve metrics in plaintext on ", address,
               ", which others than this host can reach; bind 127.0.0.1, turn on TLS, or pass ",
               "--http-plaintext: they hold no secrets, and whoever reaches the port reads them"));
  }
  try {
    auto exposer = std::make_unique<prometheus::Exposer>(parsed.ToString(), /*num_threads=*/1);
    const int port = exposer->GetListeningPorts().at(0);
    exposer->RegisterCollectable(metrics.collector_);
    return std::unique_ptr<MetricsEndpoint>(
        new MetricsEndpoint(std::move(exposer), parsed.host, port));
  } catch (const std::exception& e) {
    return WithReason(
        absl::AlreadyExistsError(StrCat("cannot serve metrics on ", address, " (", e.what(),
                                        "); is the port in use? Choose another, or 0 for a free "
                                        "one")),
        Reason::kAlreadyExists);
  }
}

MetricsEndpoint::MetricsEndpoint(std::unique_ptr<HttpsServer> https)
    : https_(std::move(https)), port_(https_->port()) {}

MetricsEndpoint::MetricsEndpoint(std::unique_ptr<prometheus::Exposer> exposer, std::string host,
                                 int port)
    : exposer_(std::move(exposer)), host_(std::move(host)), port_(port) {}

// The HTTP server sees that it is to end when a connection comes, or else every 2 s.
MetricsEndpoint::~MetricsEndpoint() {
  if (exposer_ == nullptr) return;
  absl::Notification closed;
  std::thread knocking([&] {
    while (!closed.WaitForNotificationWithTimeout(kKnockInterval)) {
      Knock(host_, port_);
    }
  });
  exposer_.reset();
  closed.Notify();
  knocking.join();
}

}  // namespace shardmesh::rpc
