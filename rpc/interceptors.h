// Interceptors of a server's calls. At the end of each call, an interceptor repairs one kind of
// status, counts the call, and measures its time.
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

// Returns interceptors for all calls of the given services (full names). Other services are not
// affected.
//
// * A call whose single request does not parse gets UnparsedMessage's error
//   (rpc/stream/message_bytes.h). Without the interceptor, gRPC would answer such a call like an
//   unknown method: UNIMPLEMENTED without a message. The interceptor recognises the call by this
//   status, so a service must give every UNIMPLEMENTED of its own a message. Services whose
//   requests are streams parse their messages themselves.
// * Unless `metrics` is null, observes
//     shardmesh_rpc_handled_total{method, code} and
//     shardmesh_rpc_duration_seconds{method} (from the call's arrival to its status; unary calls).
//   This function creates all series. A call costs an atomic addition and the short lock of a
//   histogram. `metrics` must outlive the result.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> CallInterceptors(
    Metrics* metrics, absl::Span<const std::string> service_names);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_INTERCEPTORS_H_
