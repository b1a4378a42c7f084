// The HTTP port from which Prometheus scrapes a process.
#ifndef SHARDMESH_RPC_METRICS_METRICS_ENDPOINT_H_
#define SHARDMESH_RPC_METRICS_METRICS_ENDPOINT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "rpc/metrics/metrics.h"

namespace shardmesh::rpc {

class Credentials;
class HttpServer;

// Serves `GET /metrics` until destroyed. If the process has certificates and `plaintext` is false,
// the endpoint uses TLS and answers only clients with a certificate of the authority. In all other
// cases it answers all clients in plaintext. Thread-safe.
class MetricsEndpoint {
 public:
  // `address`: `host:port`; port 0: any free port. `plaintext`: use HTTP even if there are
  // certificates, and on addresses beyond loopback. `metrics` must outlive the endpoint.
  //
  // FAILED_PRECONDITION: HTTP beyond loopback without `plaintext`. INVALID_ARGUMENT: `address` is
  // other text. ALREADY_EXISTS: the port is in use or cannot be bound.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(const Metrics& metrics,
                                                                const std::string& address,
                                                                const Credentials& credentials,
                                                                bool plaintext = false);
  ~MetricsEndpoint();

  int port() const;

 private:
  explicit MetricsEndpoint(std::unique_ptr<HttpServer> server);

  const std::unique_ptr<HttpServer> server_;
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_METRICS_METRICS_ENDPOINT_H_
