// A plan as one HTML page: its totals, and pictures of how tensors lie on the mesh.
#ifndef SHARDMESH_CLIENT_CLI_REPORT_PLAN_REPORT_H_
#define SHARDMESH_CLIENT_CLI_REPORT_PLAN_REPORT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/placement.h"
#include "sharding/mesh.h"

namespace shardmesh::client {

struct PlanReport {
  std::string title;  // what was planned, e.g. the file's name
  std::string rules;  // name of the rules that were used; may be empty
  Mesh mesh;          // the mesh of the placement
  const Placement* placement = nullptr;
  std::vector<DeviceId> devices = {};  // devices whose tiles are listed
};

// Limits on the number of pictures of a page and on the number of rows of a table. The page states
// how many pictures or rows are omitted. Tensors share a row if their layouts are equal and their
// names differ only in numbers.
inline constexpr size_t kMaxPictures = 60;
inline constexpr size_t kMaxTensorRows = 5000;

// Returns the page: HTML that is also well-formed XML, and loads no other files. All texts from the
// plan are escaped. The time that the function takes does not depend on the number of devices.
// Errors: those of Tiling::Create, if the placement does not fit the mesh.
absl::StatusOr<std::string> PlanHtml(const PlanReport& report);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_REPORT_PLAN_REPORT_H_
