// Reports on layouts of whole trees between wire and algebra.
#ifndef SHARDMESH_RPC_LAYOUT_CODEC_H_
#define SHARDMESH_RPC_LAYOUT_CODEC_H_

#include "absl/status/statusor.h"
#include "sharding/layout_analysis.h"
#include "shardmesh/v1/tree.pb.h"

namespace shardmesh::rpc {

// Most entries of LayoutReport::specs that travel.
inline constexpr size_t kMaxReportedSpecs = 1000;

// Sets what a LayoutReport has; counts of kinds of tensors are the caller's.
void Encode(const LayoutReport& from, v1::LayoutReport* to);
// Errors name the field.
absl::StatusOr<LayoutReport> Decode(const v1::LayoutReport& from);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_LAYOUT_CODEC_H_
