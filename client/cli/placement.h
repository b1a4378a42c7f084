// Placements of a tree's tensors: requests them, and prints the answer as tables or as JSON.
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
  // Whether only specs were requested (TreeQuestion::match_only). If true, the answer has no bytes.
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
// Returns the use of each spec of the answer, indexed by TreePlacement::spec_index.
std::vector<SpecUse> UsesOfSpecs(const Placement& placement);

// How many tensors have no dtype, and therefore do not count in any number of bytes.
int64_t UncountedTensors(const Placement& placement);

// INVALID_ARGUMENT (UNMATCHED_TENSOR) if some tensors match no rule. The message has the number of
// these tensors and the name of the first one.
absl::Status CheckAllMatched(const Placement& placement);

// Prints the totals. With `with_tensors`, first prints one row for each tensor.
void PrintPlacement(const Placement& placement, bool with_tensors = true);
// Prints the summary:
//   - bytes per device, the sharded percentage of parameters and bytes, and the bytes in copies;
//   - the specs, and the tensors with the most bytes on a device and in copies;
//   - the corrected specs, with the corrections and the fixes that would make them unnecessary.
// If no tensor has a dtype, prints only the corrected specs.
void PrintReport(const Placement& placement);
// The placement as JSON, with an object for each tensor. The object has the tensor's fixes, if any.
Json PlacementJson(const Placement& placement);
Json ReportJson(const TreeReport& report);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_PLACEMENT_H_
