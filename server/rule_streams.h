// The calls of ResolveService that look through rules, and compare layouts, over a streamed tree.
#ifndef SHARDMESH_SERVER_RULE_STREAMS_H_
#define SHARDMESH_SERVER_RULE_STREAMS_H_

#include <grpcpp/grpcpp.h>

#include <memory>

#include "server/background.h"
#include "server/catalogue.h"
#include "server/cluster_state.h"
#include "shardmesh/v1/resolve_service.pb.h"

namespace shardmesh::server {

// Each lives until its call is done. `catalogue`, `background` and the response outlive it.
grpc::ServerReadReactor<grpc::ByteBuffer>* MakeLintRulesReactor(
    std::shared_ptr<const ClusterState> state, const Catalogue* catalogue, Background* background,
    grpc::ByteBuffer* response);
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* MakeDiffLayoutsReactor(
    std::shared_ptr<const ClusterState> state);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_RULE_STREAMS_H_
