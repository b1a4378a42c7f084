// The streamed questions about the layout of a tree.
#ifndef SHARDMESH_SERVER_RESOLVE_TREE_STREAMS_H_
#define SHARDMESH_SERVER_RESOLVE_TREE_STREAMS_H_

#include <memory>

#include "server/resolve/resolve_answers.h"
#include "server/resolve/tree_call.h"
#include "server/resolve/tree_resolver.h"
#include "server/state/definitions.h"
#include "shardmesh/v1/layout_service.pb.h"

namespace shardmesh::server {

// Encodes the totals of a tree. Bytes are counted only with a mesh. Errors: those of
// LayoutAnalysis::Report.
absl::Status EncodeReport(const TreeResolver& from, v1::LayoutReport* to);

using ResolveTreeCall = TreeCall<v1::ResolveTreeRequest, v1::ResolveTreeResponse>;

// `counter` outlives the call.
std::unique_ptr<ResolveTreeCall> MakeResolveTreeCall(std::shared_ptr<const Definitions> state,
                                                     const CorrectionCounter& counter);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_RESOLVE_TREE_STREAMS_H_
