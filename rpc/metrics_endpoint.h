// The HTTP port from which Prometheus scrapes a process.
#ifndef SHARDMESH_RPC_METRICS_ENDPOINT_H_
#define SHARDMESH_RPC_METRICS_ENDPOINT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "rpc/metrics.h"

namespace prometheus {
class Exposer;
}  // namespace prometheus

namespace shardmesh::rpc {

// Serves `GET /metrics` until destroyed. Thread-safe.
class MetricsEndpoint {
 public:
  // `address`: `host:port`, port 0 for a free one. `metrics` outlives the endpoint.
  // Errors: those of CheckBindAddress; ALREADY_EXISTS if the port is in use or cannot be bound.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(const Metrics& metrics,
                                                                const std::string& address,
                                                                bool insecure = false);
  ~MetricsEndpoint();

  int port() const { return port_; }

 private:
  MetricsEndpoint(std::unique_ptr<prometheus::Exposer> exposer, std::string host, int port);

  std::unique_ptr<prometheus::Exposer> exposer_;
  const std::string host_;  // an IP address
  const int port_;
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_METRICS_ENDPOINT_H_
