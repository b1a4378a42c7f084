// Placements of a tree's tensors: asked of the coordinator only by names, shapes and element types,
// and shown as tables.
#ifndef SHARDMESH_CLIENT_CLI_PLACEMENT_H_
#define SHARDMESH_CLIENT_CLI_PLACEMENT_H_

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/command_line.h"
#include "client/mesh_client.h"
#include "client/types/layout_questions.h"
#include "sharding/mesh.h"

namespace shardmesh::client {

struct Placement {
  std::vector<TreeTensor> tensors;
  TreeAnswer answer;
  // Where the mesh lacks axes that were asked for; see MeshOfCorrections.
  std::optional<Mesh> mesh = std::nullopt;
  // Only specs were asked for (TreeQuestion::match_only): there are no bytes.
  bool match_only = false;
};

// Errors of MeshClient::ResolveTree; tensors that no rule matches are none.
absl::StatusOr<Placement> AskPlacement(MeshClient* client, std::vector<TreeTensor> tensors,
                                       TreeQuestion question);

// How many tensors have a spec of the answer, and the first of them.
struct SpecUse {
  int64_t tensors = 0;
  size_t first = 0;
};
// By TreePlacement::spec_index.
std::vector<SpecUse> UsesOfSpecs(const Placement& placement);

// How many tensors have no dtype, and are therefore in no number of bytes.
int64_t UncountedTensors(const Placement& placement);

// INVALID_ARGUMENT (UNMATCHED_TENSOR) says how many tensors no rule matches, and names the first.
absl::Status CheckAllMatched(const Placement& placement);

// One row per tensor, unless these are left out, then the totals, to standard output.
void PrintPlacement(const Placement& placement, bool with_tensors = true);
// Prints the summary: bytes per device, shares, specs, costly tensors, and corrections with fixes.
void PrintReport(const Placement& placement);
// Fixes stand at each tensor that has some.
Json PlacementJson(const Placement& placement);
Json ReportJson(const TreeReport& report);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_PLACEMENT_H_
