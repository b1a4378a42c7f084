// An interface that says whether a mesh can run steps now, and at which addresses its workers are.
#ifndef SHARDMESH_SERVER_STEPS_MESH_ENDPOINTS_H_
#define SHARDMESH_SERVER_STEPS_MESH_ENDPOINTS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shardmesh::server {

// A live worker, with the addresses where clients reach it.
struct RankEndpoint {
  int64_t rank = 0;
  std::string identity;
  uint64_t incarnation = 0;
  std::vector<std::string> endpoints;  // best first
};

// Gives steps and puts information on the attached workers. Thread-safe.
class MeshEndpoints {
 public:
  virtual ~MeshEndpoints() = default;

  // OK if every rank of the mesh has a worker that is not draining and reaches the workers of all
  // other ranks. Errors:
  // - UNAVAILABLE (RECOVERING): some ranks have no such worker, but all of these ranks are expected
  //   to have one soon. Also while ranks are being assigned, or workers have not yet received them.
  // - FAILED_PRECONDITION (MESH_INCOMPLETE): some ranks have no such worker, and at least one of
  //   these ranks is not expected to have one soon. The error names the ranks.
  // - NOT_FOUND: no such mesh.
  // - UNAVAILABLE (NOT_SERVING): the coordinator is stopping.
  virtual absl::Status CheckReady(std::string_view mesh_id) const = 0;
  // Returns the live workers of a mesh, by rank. NOT_FOUND: no such mesh.
  virtual absl::StatusOr<std::vector<RankEndpoint>> Endpoints(std::string_view mesh_id) const = 0;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_MESH_ENDPOINTS_H_
