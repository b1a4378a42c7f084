// Ends a unary call whose result is known when its method returns.
#ifndef SHARDMESH_SERVER_SERVICE_UNARY_ANSWER_H_
#define SHARDMESH_SERVER_SERVICE_UNARY_ANSWER_H_

#include <grpcpp/grpcpp.h>

#include "absl/status/status.h"
#include "rpc/codec/status.h"

namespace shardmesh::server {

// Ends the call with the status, and returns the reactor that its method returns. The caller has
// filled the response.
inline grpc::ServerUnaryReactor* FinishUnary(grpc::CallbackServerContext* context,
                                             const absl::Status& status) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(rpc::ToGrpc(status));
  return reactor;
}

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_UNARY_ANSWER_H_
