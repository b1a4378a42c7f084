// Streamed calls that ask about the given layouts of a tree, about meshes for a tree, or about the
// layouts of arrays.
#ifndef SHARDMESH_SERVER_RESOLVE_LAYOUT_STREAMS_H_
#define SHARDMESH_SERVER_RESOLVE_LAYOUT_STREAMS_H_

#include <grpcpp/grpcpp.h>

#include <memory>

#include "server/resolve/resolve_answers.h"
#include "server/resolve/tree_call.h"
#include "server/state/array_registry.h"
#include "server/state/definitions.h"
#include "shardmesh/compat/v1/compat_service.pb.h"
#include "shardmesh/v1/layout_service.pb.h"

namespace shardmesh::server {

// A reactor of these calls lives until its call is done. gRPC's call owns the requests and
// responses. All other pointers and references outlive the reactor.

using AnalyzeLayoutCall = TreeCall<v1::AnalyzeLayoutRequest, v1::AnalyzeLayoutResponse>;
using ShardingStrategyCall = TreeCall<compat::v1::AnalyzeShardingStrategyRequest,
                                      compat::v1::AnalyzeShardingStrategyResponse>;
using SearchMeshesCall = TreeCall<v1::SearchMeshesRequest, v1::SearchMeshesResponse>;

std::unique_ptr<AnalyzeLayoutCall> MakeAnalyzeLayoutCall(std::shared_ptr<const Definitions> state);
std::unique_ptr<ShardingStrategyCall> MakeShardingStrategyCall(
    std::shared_ptr<const Definitions> state);
std::unique_ptr<SearchMeshesCall> MakeSearchMeshesCall(std::shared_ptr<const Definitions> state);

// The returned reactor lives until its call is done. The call owns `request`. `registry` outlives
// the call; null: there are no named arrays.
grpc::ServerWriteReactor<compat::v1::ListShardingsResponse>* MakeListShardingsReactor(
    std::shared_ptr<const Definitions> state, const ArrayRegistry* registry,
    const compat::v1::ListShardingsRequest* request);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_RESOLVE_LAYOUT_STREAMS_H_
