// Tells who sent a request that does not parse what is wrong with it.
#ifndef SHARDMESH_RPC_UNPARSED_REQUESTS_H_
#define SHARDMESH_RPC_UNPARSED_REQUESTS_H_

#include <memory>
#include <string>

#include "absl/types/span.h"

namespace grpc::experimental {
class ServerInterceptorFactoryInterface;
}  // namespace grpc::experimental

namespace shardmesh::rpc {

// gRPC answers a call whose one request does not parse as if it did not know the call:
// UNIMPLEMENTED without a message. Calls of the services named (full names) are answered with
// UnparsedMessage's error instead. A service must then give its own UNIMPLEMENTED a message.
// Stands before interceptors that look at the status. Streams of requests parse their own:
// rpc/message_bytes.h.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> UnparsedRequestInterceptors(
    absl::Span<const std::string> service_names);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_UNPARSED_REQUESTS_H_
