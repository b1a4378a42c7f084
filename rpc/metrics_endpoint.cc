// Serves metrics over HTTP.
#include "rpc/metrics_endpoint.h"

#include <exception>
#include <utility>

#include "prometheus/exposer.h"
#include "rpc/credentials.h"
#include "rpc/host_port.h"
#include "rpc/metrics_collector.h"
#include "sharding/reason.h"
#include "sharding/status_macros.h"
#include "sharding/str_cat.h"

namespace shardmesh::rpc {

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(const Metrics& metrics,
                                                                        const std::string& address,
                                                                        bool insecure) {
  SHARDMESH_RETURN_IF_ERROR(CheckBindAddress(address, insecure));
  SHARDMESH_ASSIGN_OR_RETURN(HostPort parsed, ParseHostPort(address));
  if (parsed.host == "localhost") {
    parsed.host = "127.0.0.1";  // The HTTP server takes no names.
  }
  try {
    auto exposer = std::make_unique<prometheus::Exposer>(parsed.ToString(), /*num_threads=*/1);
    const int port = exposer->GetListeningPorts().at(0);
    exposer->RegisterCollectable(metrics.collector_);
    return std::unique_ptr<MetricsEndpoint>(new MetricsEndpoint(std::move(exposer), port));
  } catch (const std::exception& e) {
    return WithReason(
        absl::AlreadyExistsError(StrCat("cannot serve metrics on ", address, " (", e.what(),
                                        "); is the port in use? Choose another, or 0 for a free "
                                        "one")),
        Reason::kAlreadyExists);
  }
}

MetricsEndpoint::MetricsEndpoint(std::unique_ptr<prometheus::Exposer> exposer, int port)
    : exposer_(std::move(exposer)), port_(port) {}

MetricsEndpoint::~MetricsEndpoint() = default;

}  // namespace shardmesh::rpc
