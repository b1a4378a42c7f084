// A plan as one HTML page: what it comes to, and pictures of how tensors lie on the mesh.
#ifndef SHARDMESH_CLIENT_CLI_COMMANDS_PLAN_REPORT_H_
#define SHARDMESH_CLIENT_CLI_COMMANDS_PLAN_REPORT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/placement.h"
#include "sharding/mesh.h"

namespace shardmesh::client {

struct PlanReport {
  std::string title;  // what was planned, such as the file's name
  std::string rules;  // by which rules; may be empty
  Mesh mesh;          // that the placement is for
  const Placement* placement = nullptr;
  std::vector<DeviceId> devices = {};  // of the mesh, whose tiles to list
};

// The most pictures and the most rows of the table of tensors that a page has; it says what it
// leaves out. Tensors whose names differ in numbers alone, and which lie alike, share a row.
inline constexpr size_t kMaxPictures = 60;
inline constexpr size_t kMaxTensorRows = 5000;

// The page: HTML that is well-formed XML too, and loads nothing. All texts from the plan are
// escaped. Costs nothing per device of the mesh. Errors: those of Tiling::Create for a placement
// that is not one of the mesh.
absl::StatusOr<std::string> PlanHtml(const PlanReport& report);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_COMMANDS_PLAN_REPORT_H_
