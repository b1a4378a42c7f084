// The library's answers about meshes.
#include "sharding/mesh_query.h"
#include "status/status_macros.h"
#include "tests/conformance/mesh_subject.h"

namespace shardmesh::conformance {
namespace {

class MeshLibrary final : public MeshSubject {
 public:
  absl::StatusOr<Mesh> Make(absl::Span<const MeshAxis> axes,
                            absl::Span<const int64_t> device_ids) const override {
    MeshOptions options;
    options.allow_degenerate = true;
    options.global_ids.assign(device_ids.begin(), device_ids.end());
    return Mesh::Create({axes.begin(), axes.end()}, std::move(options));
  }
  absl::StatusOr<Mesh> Context(absl::Span<const Mesh> entered, bool required) const override {
    return ContextMesh(entered, required);
  }
  absl::StatusOr<bool> HasAxes(const Mesh& mesh,
                               absl::Span<const std::string> names) const override {
    return shardmesh::HasAxes(mesh, names);
  }
  absl::StatusOr<std::vector<std::string>> AxisNames(const Mesh& mesh) const override {
    return MeshAxisNames(mesh);
  }
  absl::StatusOr<std::vector<std::string>> NamesOf(
      absl::Span<const PartitionSpec> specs) const override {
    return AxisNamesOf(specs);
  }
  absl::StatusOr<int64_t> AxesSize(const Mesh& mesh,
                                   absl::Span<const std::string> axes) const override {
    return shardmesh::AxesSize(mesh, axes);
  }
  absl::StatusOr<int64_t> MappedAxesSize(const Mesh& mesh,
                                         absl::Span<const std::string> axes) const override {
    return shardmesh::MappedAxesSize(mesh, axes);
  }
  absl::StatusOr<std::vector<int64_t>> SubmeshIndices(
      const Mesh& mesh, absl::Span<const std::string> axes) const override {
    std::vector<int64_t> indices;
    for (DeviceId device = 0; device < mesh.size(); ++device) {
      SHARDMESH_ASSIGN_OR_RETURN(const int64_t index, SubmeshIndex(mesh, axes, device));
      indices.push_back(index);
    }
    return indices;
  }
};

}  // namespace

std::shared_ptr<const MeshSubject> LibraryMeshes() { return std::make_shared<MeshLibrary>(); }

}  // namespace shardmesh::conformance
