// The weights of a mesh's devices by which a rule cuts dimensions into parts of unequal sizes.
#ifndef SHARDMESH_SERVER_RESOLVE_CUT_WEIGHTS_H_
#define SHARDMESH_SERVER_RESOLVE_CUT_WEIGHTS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/state/membership.h"
#include "sharding/mesh.h"
#include "sharding/uneven.h"

namespace shardmesh::server {

// Whether the rule takes its weights from the workers of the mesh.
bool WeighsWorkers(UnevenCuts rule);

// The rule of a request, and the mesh that it is for.
struct CutQuestion {
  UnevenCuts rule = UnevenCuts::kEqualOnly;
  std::vector<int64_t> weights = {};  // only with kByWeights: one for each device, by rank
  const Mesh* mesh = nullptr;
  std::string mesh_id = {};
  // The identities of the mesh's workers, by rank. Used only if WeighsWorkers(rule).
  std::vector<std::string> workers = {};
  // Where the fields `uneven` and `weights` are in the request: a prefix, such as `header.`.
  std::string_view path = {};
};

// Returns one weight for each device of the mesh, as CutByRule takes them; none if the rule needs
// none. Errors name the field.
//   INVALID_ARGUMENT (INVALID_CUT_POINTS)  the errors of CheckWeights.
//   FAILED_PRECONDITION (MESH_INCOMPLETE), with a retry delay: a rank has no worker that is known.
//   FAILED_PRECONDITION (NOT_AVAILABLE)    the rule is kBySpeed, and a worker has not measured its
//                                          speed; the message names the rank.
absl::StatusOr<std::vector<int64_t>> ChooseWeights(const CutQuestion& question,
                                                   const MembershipView& view);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_RESOLVE_CUT_WEIGHTS_H_
