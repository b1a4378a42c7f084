// What a server does at the end of each call: mends one status, counts, and times.
#ifndef SHARDMESH_RPC_INTERCEPTORS_H_
#define SHARDMESH_RPC_INTERCEPTORS_H_

#include <memory>
#include <string>

#include "absl/types/span.h"
#include "rpc/metrics/metrics.h"

namespace grpc::experimental {
class ServerInterceptorFactoryInterface;
}  // namespace grpc::experimental

namespace shardmesh::rpc {

// For every call to the services named (full names; others are not looked at):
//
// * A call whose one request does not parse is answered with UnparsedMessage's error
//   (rpc/stream/message_bytes.h). gRPC answers it as if it did not know the call: UNIMPLEMENTED
//   without a message; hence a service must give its own UNIMPLEMENTED a message. Streams of
//   requests parse their own.
// * Unless `metrics` is null, observes
//     shardmesh_rpc_handled_total{method, code} and
//     shardmesh_rpc_duration_seconds{method} (from the call's arrival to its status; unary calls).
//   All series are made here; a call costs an atomic addition and the short lock of a histogram.
//   `metrics` outlives it.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> CallInterceptors(
    Metrics* metrics, absl::Span<const std::string> service_names);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_INTERCEPTORS_H_
