// Questions about what moves between two layouts.
#ifndef SHARDMESH_TESTS_CONFORMANCE_RESHARD_SUBJECT_H_
#define SHARDMESH_TESTS_CONFORMANCE_RESHARD_SUBJECT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "client/mesh_client.h"
#include "sharding/mesh.h"
#include "sharding/reshard/plan.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "tests/conformance/question.h"

namespace shardmesh::conformance {

// A tensor and its two layouts.
struct ReshardQuestion {
  Mesh from_mesh;
  PartitionSpec from;
  Mesh to_mesh;
  PartitionSpec to;
  Shape shape;
  int64_t bits_per_element = 0;
};

struct ReshardAnswer {
  std::vector<DeviceReshard> devices;  // by position in the destination mesh
  int64_t elements = 0;                // of the tensor
  int64_t need = 0;                    // over all devices
  int64_t need_bytes = 0;
  int64_t max_need = 0;  // of one device
  bool noop = false;
};

class ReshardSubject {
 public:
  virtual ~ReshardSubject() = default;

  // The source layout is judged before the destination's.
  virtual absl::StatusOr<ReshardAnswer> Reshard(const ReshardQuestion& question) const = 0;
};

std::shared_ptr<const ReshardSubject> LibraryReshard();
// `client` outlives the subject.
std::shared_ptr<const ReshardSubject> WireReshard(client::MeshClient& client);

// `reshard`.
void AddReshardQuestions(std::shared_ptr<const ReshardSubject> subject, Questions* questions);

}  // namespace shardmesh::conformance

#endif  // SHARDMESH_TESTS_CONFORMANCE_RESHARD_SUBJECT_H_
