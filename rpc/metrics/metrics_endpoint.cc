// Serves metrics over HTTP.
#include "rpc/metrics/metrics_endpoint.h"

#include <optional>
#include <string_view>
#include <utility>

#include "process/host_port.h"
#include "rpc/metrics/http_server.h"
#include "rpc/tls/credentials.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

constexpr std::string_view kPath = "/metrics";
// Content type of Prometheus' text format.
constexpr const char* kContentType = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(
    const Metrics& metrics, const std::string& address, const Credentials& credentials,
    bool plaintext) {
  SHARDMESH_ASSIGN_OR_RETURN(HostPort parsed, ParseHostPort(address));
  if (parsed.host == "localhost") {
    parsed.host = "127.0.0.1";  // HttpServer accepts addresses only, not host names.
  }
  const bool is_tls = credentials.is_secure() && !plaintext;
  if (!is_tls && !plaintext && !IsLoopbackAddress(address)) {
    return absl::FailedPreconditionError(
        StrCat("refusing to serve metrics in plaintext on ", address,
               ", which other hosts can reach; bind 127.0.0.1, turn on TLS, or pass ",
               "--http-plaintext: metrics hold no secrets, but anyone who reaches the port can "
               "read them"));
  }
  SHARDMESH_ASSIGN_OR_RETURN(
      std::unique_ptr<HttpServer> server,
      HttpServer::Start(parsed.ToString(), is_tls ? credentials.watch() : nullptr,
                        [&metrics](std::string_view path) -> std::optional<HttpServer::Answer> {
                          if (path != kPath) return std::nullopt;
                          return HttpServer::Answer{kContentType, metrics.Text()};
                        }));
  return std::unique_ptr<MetricsEndpoint>(new MetricsEndpoint(std::move(server)));
}

MetricsEndpoint::MetricsEndpoint(std::unique_ptr<HttpServer> server) : server_(std::move(server)) {}
MetricsEndpoint::~MetricsEndpoint() = default;

int MetricsEndpoint::port() const { return server_->port(); }

}  // namespace shardmesh::rpc
