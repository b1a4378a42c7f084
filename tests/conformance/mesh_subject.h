// Questions about meshes, and whoever answers them.
#ifndef SHARDMESH_TESTS_CONFORMANCE_MESH_SUBJECT_H_
#define SHARDMESH_TESTS_CONFORMANCE_MESH_SUBJECT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/mesh_client.h"
#include "sharding/mesh.h"
#include "sharding/spec.h"
#include "tests/conformance/question.h"

namespace shardmesh::conformance {

// Meshes are as JAX accepts them (MeshOptions::allow_degenerate); the empty one stands for none.
class MeshSubject {
 public:
  virtual ~MeshSubject() = default;
  // The mesh made of these axes over these devices, by default 0, 1, 2, ...
  virtual absl::StatusOr<Mesh> Make(absl::Span<const MeshAxis> axes,
                                    absl::Span<const int64_t> device_ids) const = 0;
  // The one in force within these, outermost first.
  virtual absl::StatusOr<Mesh> Context(absl::Span<const Mesh> entered, bool required) const = 0;
  virtual absl::StatusOr<bool> HasAxes(const Mesh& mesh,
                                       absl::Span<const std::string> names) const = 0;
  virtual absl::StatusOr<std::vector<std::string>> AxisNames(const Mesh& mesh) const = 0;
  virtual absl::StatusOr<std::vector<std::string>> NamesOf(
      absl::Span<const PartitionSpec> specs) const = 0;
  virtual absl::StatusOr<int64_t> AxesSize(const Mesh& mesh,
                                           absl::Span<const std::string> axes) const = 0;
  virtual absl::StatusOr<int64_t> MappedAxesSize(const Mesh& mesh,
                                                 absl::Span<const std::string> axes) const = 0;
  // One index for each device, in the mesh's order.
  virtual absl::StatusOr<std::vector<int64_t>> SubmeshIndices(
      const Mesh& mesh, absl::Span<const std::string> axes) const = 0;
};

std::shared_ptr<const MeshSubject> LibraryMeshes();
// `client` outlives the subject.
std::shared_ptr<const MeshSubject> WireMeshes(client::MeshClient& client);

// names_in_current_mesh, get_names_from_partition_spec, get_mesh_axis_names, get_axes_size_in_mesh,
// get_mesh_axis_size, get_submesh_device_index, get_incontext_mesh, nested_mesh_context, mesh.
void AddMeshQuestions(std::shared_ptr<const MeshSubject> subject, Questions* questions);

}  // namespace shardmesh::conformance

#endif  // SHARDMESH_TESTS_CONFORMANCE_MESH_SUBJECT_H_
