// Placements of a tree's tensors. The request has only names, shapes and element types; the answer
// is shown as tables.
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
  // Set if the mesh lacks requested axes; see MeshOfCorrections.
  std::optional<Mesh> mesh = std::nullopt;
  // Only specs were requested (TreeQuestion::match_only): there are no bytes.
  bool match_only = false;
};

// Errors of MeshClient::ResolveTree. Tensors that no rule matches are no error.
absl::StatusOr<Placement> AskPlacement(MeshClient* client, std::vector<TreeTensor> tensors,
                                       TreeQuestion question);

// How many tensors have a spec of the answer, and the first of them.
struct SpecUse {
  int64_t tensors = 0;
  size_t first = 0;
};
// By TreePlacement::spec_index.
std::vector<SpecUse> UsesOfSpecs(const Placement& placement);

// How many tensors have no dtype, and therefore do not count in any number of bytes.
int64_t UncountedTensors(const Placement& placement);

// INVALID_ARGUMENT (UNMATCHED_TENSOR) counts the tensors that no rule matches; names the first.
absl::Status CheckAllMatched(const Placement& placement);

// One row per tensor, unless they are omitted, and then the totals, to standard output.
void PrintPlacement(const Placement& placement, bool with_tensors = true);
// Prints the summary: bytes per device, shares, specs, costly tensors, and corrections with fixes.
void PrintReport(const Placement& placement);
// Each tensor with fixes shows them.
Json PlacementJson(const Placement& placement);
Json ReportJson(const TreeReport& report);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_PLACEMENT_H_
