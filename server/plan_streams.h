// The calls of ResolveService about plans and held layouts: some stream trees, some take long.
#ifndef SHARDMESH_SERVER_PLAN_STREAMS_H_
#define SHARDMESH_SERVER_PLAN_STREAMS_H_

#include <grpcpp/grpcpp.h>

#include <memory>

#include "server/background.h"
#include "server/catalogue.h"
#include "server/cluster_state.h"
#include "server/resolve_answers.h"
#include "shardmesh/v1/resolve_service.pb.h"

namespace shardmesh::server {

// Each lives until its call is done. Requests and responses are the call's own; what else is handed
// over as a pointer or reference outlives it.

// Works in the background, and ends soon after it is cancelled.
grpc::ServerUnaryReactor* MakePlanReshardReactor(std::shared_ptr<const ClusterState> state,
                                                 const CorrectionCounter& counter,
                                                 const v1::PlanReshardRequest* request,
                                                 v1::PlanReshardResponse* response,
                                                 Background* background);

grpc::ServerReadReactor<grpc::ByteBuffer>* MakeAnalyzeLayoutReactor(
    std::shared_ptr<const ClusterState> state, grpc::ByteBuffer* response, Background* background);

grpc::ServerReadReactor<grpc::ByteBuffer>* MakeSearchMeshesReactor(
    std::shared_ptr<const ClusterState> state, grpc::ByteBuffer* response, Background* background);

// `catalogue` may be null: then there are no named arrays.
grpc::ServerWriteReactor<v1::ListShardingsResponse>* MakeListShardingsReactor(
    std::shared_ptr<const ClusterState> state, const Catalogue* catalogue,
    const v1::ListShardingsRequest* request);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_PLAN_STREAMS_H_
