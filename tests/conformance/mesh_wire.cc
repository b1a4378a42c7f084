// A coordinator's answers about meshes.
#include "status/status_macros.h"
#include "tests/conformance/mesh_subject.h"

namespace shardmesh::conformance {
namespace {

using Kind = client::MeshAxesQuestion::Kind;

class Meshes final : public MeshSubject {
 public:
  explicit Meshes(client::MeshClient& client) : client_(client) {}

  absl::StatusOr<Mesh> Make(absl::Span<const MeshAxis> axes,
                            absl::Span<const int64_t> device_ids) const override {
    return Describe(
        {.mesh = client::MeshFields{.axes = {axes.begin(), axes.end()},
                                    .device_ids = {device_ids.begin(), device_ids.end()}}});
  }

  // A request brings the innermost mesh: a coordinator keeps no context for its callers.
  absl::StatusOr<Mesh> Context(absl::Span<const Mesh> entered, bool required) const override {
    return Describe({.mesh = client::MeshSelector(entered.empty() ? Mesh() : entered.back()),
                     .required = required});
  }

  absl::StatusOr<bool> HasAxes(const Mesh& mesh,
                               absl::Span<const std::string> names) const override {
    SHARDMESH_ASSIGN_OR_RETURN(const client::MeshAxesAnswer answer,
                               Ask(Kind::kPresent, mesh, names));
    return answer.present;
  }

  absl::StatusOr<std::vector<std::string>> AxisNames(const Mesh& mesh) const override {
    SHARDMESH_ASSIGN_OR_RETURN(const Mesh described,
                               Describe({.mesh = client::MeshSelector(mesh)}));
    std::vector<std::string> names;
    for (const MeshAxis& axis : described.axes()) names.push_back(axis.name);
    return names;
  }

  absl::StatusOr<std::vector<std::string>> NamesOf(
      absl::Span<const PartitionSpec> specs) const override {
    return client_.layouts().ListSpecAxes(specs);
  }

  absl::StatusOr<int64_t> AxesSize(const Mesh& mesh,
                                   absl::Span<const std::string> axes) const override {
    SHARDMESH_ASSIGN_OR_RETURN(const client::MeshAxesAnswer answer, Ask(Kind::kSize, mesh, axes));
    return answer.size;
  }

  absl::StatusOr<int64_t> MappedAxesSize(const Mesh& mesh,
                                         absl::Span<const std::string> axes) const override {
    SHARDMESH_ASSIGN_OR_RETURN(const client::MeshAxesAnswer answer,
                               Ask(Kind::kMappedSize, mesh, axes));
    return answer.size;
  }

  absl::StatusOr<std::vector<int64_t>> SubmeshIndices(
      const Mesh& mesh, absl::Span<const std::string> axes) const override {
    SHARDMESH_ASSIGN_OR_RETURN(client::MeshAxesAnswer answer, Ask(Kind::kIndex, mesh, axes));
    return std::move(answer.indexes);
  }

 private:
  absl::StatusOr<Mesh> Describe(client::MeshQuestion question) const {
    question.compatibility = Compatibility::kExact;
    SHARDMESH_ASSIGN_OR_RETURN(const client::MeshAnswer answer,
                               client_.layouts().DescribeMesh(question));
    return answer.mesh;
  }

  absl::StatusOr<client::MeshAxesAnswer> Ask(Kind kind, const Mesh& mesh,
                                             absl::Span<const std::string> axes) const {
    return client_.layouts().QueryMesh({.kind = kind,
                                        .mesh = mesh,
                                        .axes = {axes.begin(), axes.end()},
                                        .compatibility = Compatibility::kExact});
  }

  client::MeshClient& client_;
};

}  // namespace

std::shared_ptr<const MeshSubject> WireMeshes(client::MeshClient& client) {
  return std::make_shared<Meshes>(client);
}

}  // namespace shardmesh::conformance
