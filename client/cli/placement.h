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
  // The mesh of the question; set only if the mesh lacks requested axes (see MeshOfCorrections).
  std::optional<Mesh> mesh = std::nullopt;
  // Only specs were requested (TreeQuestion::match_only): there are no bytes.
  bool match_only = false;
};

// Resolves the layouts of a tree's tensors. Errors of LayoutClient::ResolveTree. A tensor that no
// rule matches is not an error.
absl::StatusOr<Placement> AskPlacement(MeshClient* client, std::vector<TreeTensor> tensors,
                                       TreeQuestion question);

// The number of tensors that have one of the answer's specs, and the index of the first of these
// tensors.
struct SpecUse {
  int64_t tensors = 0;
  size_t first = 0;
};
// By TreePlacement::spec_index.
std::vector<SpecUse> UsesOfSpecs(const Placement& placement);

// How many tensors have no dtype, and therefore do not count in any number of bytes.
int64_t UncountedTensors(const Placement& placement);

// INVALID_ARGUMENT (UNMATCHED_TENSOR) if some tensors match no rule; the message has their number
// and the first one's name.
absl::Status CheckAllMatched(const Placement& placement);

// Prints one row for each tensor (only `with_tensors`), and then the totals.
void PrintPlacement(const Placement& placement, bool with_tensors = true);
// Prints the summary: bytes per device, shares, specs, costly tensors, and corrections with fixes.
void PrintReport(const Placement& placement);
// The placement as JSON. A tensor's fixes, if any, are in its object.
Json PlacementJson(const Placement& placement);
Json ReportJson(const TreeReport& report);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_PLACEMENT_H_
