// How the tensors of a checkpoint are to lie: asked of the coordinator by the file's header alone,
// and shown as a table.
#ifndef SHARDMESH_CLIENT_CLI_PLACEMENT_H_
#define SHARDMESH_CLIENT_CLI_PLACEMENT_H_

#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/command_line.h"
#include "client/layout.h"
#include "client/mesh_client.h"
#include "tensor/safetensors.h"

namespace shardmesh::client {

struct Placement {
  std::vector<TreeTensor> tensors;
  TreeAnswer answer;
  // Only specs were asked for (TreeQuestion::match_only): there are no bytes.
  bool match_only = false;
};

// Errors of MeshClient::ResolveTree; tensors that no rule matches are none.
absl::StatusOr<Placement> AskPlacement(MeshClient* client, const Checkpoint& checkpoint,
                                       TreeQuestion question);

// INVALID_ARGUMENT (UNMATCHED_TENSOR) says how many tensors no rule matches, and names the first.
absl::Status CheckAllMatched(const Placement& placement);

// One row per tensor, then the totals, to standard output.
void PrintPlacement(const Placement& placement);
Json PlacementJson(const Placement& placement);
Json ReportJson(const TreeReport& report);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_PLACEMENT_H_
