// The streamed questions that lint rules or compare layouts over a tree.
#ifndef SHARDMESH_SERVER_RESOLVE_RULE_STREAMS_H_
#define SHARDMESH_SERVER_RESOLVE_RULE_STREAMS_H_

#include <memory>

#include "server/resolve/tree_call.h"
#include "server/state/array_registry.h"
#include "server/state/definitions.h"
#include "shardmesh/v1/layout_service.pb.h"
#include "shardmesh/v1/rule_service.pb.h"

namespace shardmesh::server {

using LintRulesCall = TreeCall<v1::LintRulesRequest, v1::LintRulesResponse>;
using DiffLayoutsCall = TreeCall<v1::DiffLayoutsRequest, v1::DiffLayoutsResponse>;

// `registry` outlives the call; null: there are no named arrays.
std::unique_ptr<LintRulesCall> MakeLintRulesCall(std::shared_ptr<const Definitions> state,
                                                 const ArrayRegistry* registry);
std::unique_ptr<DiffLayoutsCall> MakeDiffLayoutsCall(std::shared_ptr<const Definitions> state);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_RESOLVE_RULE_STREAMS_H_
