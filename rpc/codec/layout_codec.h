// Converts reshard plans, and reports on the layout of trees, between messages and the types of
// sharding/.
#ifndef SHARDMESH_RPC_CODEC_LAYOUT_CODEC_H_
#define SHARDMESH_RPC_CODEC_LAYOUT_CODEC_H_

#include "absl/status/statusor.h"
#include "sharding/compatibility.h"
#include "sharding/layout/analysis.h"
#include "sharding/layout/held_shardings.h"
#include "sharding/layout/mesh_search.h"
#include "sharding/reshard/plan.h"
#include "shardmesh/compat/v1/compat_service.pb.h"
#include "shardmesh/v1/layout_service.pb.h"
#include "shardmesh/v1/reshard_service.pb.h"
#include "shardmesh/v1/tree.pb.h"

namespace shardmesh::rpc {

// Maximum number of entries of LayoutReport::specs in a message.
inline constexpr size_t kMaxReportedSpecs = 1000;

// Encodes all fields of a LayoutReport, but at most kMaxReportedSpecs specs. The caller sets the
// message's other fields, such as `devices` and `replicated_tensors`.
void Encode(const LayoutReport& from, v1::LayoutReport* to);
// Errors name the malformed field.
absl::StatusOr<LayoutReport> Decode(const v1::LayoutReport& from);

v1::ReshardPattern Encode(ReshardPattern pattern);
// Returns kGeneral for a pattern that this build does not know.
ReshardPattern Decode(v1::ReshardPattern pattern);
void Encode(const ReshardStep& from, v1::ReshardStep* to);
ReshardStep Decode(const v1::ReshardStep& from);

v1::SearchMeshesHeader::Criterion Encode(MeshCriterion criterion);
absl::StatusOr<MeshCriterion> Decode(v1::SearchMeshesHeader::Criterion from);

void Encode(const HeldLeaf& from, compat::v1::ArrayLeaf* to);
// Requires a name of at most kMaxLeafNameBytes. A mesh and a spec are allowed only for the kinds of
// leaves that have them.
absl::StatusOr<HeldLeaf> Decode(const compat::v1::ArrayLeaf& from, Compatibility compatibility);
inline constexpr size_t kMaxLeafNameBytes = 1024;

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_LAYOUT_CODEC_H_
