// Counts and times the calls that a server answers.
#ifndef SHARDMESH_RPC_RPC_METRICS_H_
#define SHARDMESH_RPC_RPC_METRICS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "rpc/metrics.h"

namespace grpc::experimental {
class ServerInterceptorFactoryInterface;
}  // namespace grpc::experimental

namespace shardmesh::rpc {

// Observes for every call to the services named (full names; others are not looked at)
//   shardmesh_rpc_handled_total{method, code} and
//   shardmesh_rpc_duration_seconds{method} (from the call's arrival to its status; unary calls)
// All series are made here; a call costs two atomic additions and no lock. `metrics` outlives it.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> RpcMetricsInterceptors(
    Metrics& metrics, absl::Span<const std::string> service_names);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_RPC_METRICS_H_
