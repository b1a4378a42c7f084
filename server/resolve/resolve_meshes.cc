// Answers about meshes, a selection of their axes, and the axes that specs name.
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/resolve/resolve_answers.h"
#include "sharding/device_group.h"
#include "sharding/mesh_query.h"
#include "sharding/spec.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// Maximum size, in bytes, of the text of a mesh. A mesh needs 4.5 KB at most, plus any blanks
// around its names.
constexpr int64_t kMaxMeshTextBytes = 8192;
constexpr int64_t kMaxQueriedAxes = 64;
constexpr int64_t kMaxListedSpecs = 10'000;
constexpr int64_t kMaxListedNames = 65'536;

// Returns the mesh that the question names or describes.
absl::StatusOr<Mesh> MeshOf(const Definitions& state, const v1::DescribeMeshRequest& request,
                            Compatibility compatibility, v1::DescribeMeshResponse* response) {
  std::optional<int64_t> device_count;
  if (request.has_device_count()) {
    device_count = request.device_count();
  }
  switch (request.source_case()) {
    case v1::DescribeMeshRequest::kMesh: {
      if (request.mesh().has_value()) {
        SHARDMESH_DECODE(mesh, "mesh.value",
                         rpc::Decode(request.mesh().value(), device_count, compatibility));
        return mesh;
      }
      SHARDMESH_DECODE(named, "mesh", FindMesh(state, request.mesh()));
      std::vector<std::string> workers = named->workers;
      // For an older version, list only the workers that this version itself names.
      if (const auto referred = state.FindReferred(DefinitionKind::kMesh, request.mesh().name());
          referred.ok()) {
        workers = WorkersOf(**referred);
      }
      response->mutable_workers()->Add(workers.begin(), workers.end());
      MeshOptions options;
      options.device_count = device_count;
      const absl::Span<const MeshAxis> axes = named->mesh.axes();
      const absl::Status fits =
          Mesh::Create({axes.begin(), axes.end()}, std::move(options)).status();
      if (!fits.ok()) {
        return rpc::WithField(fits, "device_count");
      }
      return named->mesh;
    }
    case v1::DescribeMeshRequest::kText: {
      SHARDMESH_RETURN_IF_ERROR(CheckCount(static_cast<int64_t>(request.text().size()),
                                           kMaxMeshTextBytes, "bytes", "text"));
      MeshOptions options;
      options.device_count = device_count;
      options.allow_degenerate = compatibility == Compatibility::kExact;
      SHARDMESH_DECODE(mesh, "text", Mesh::Parse(request.text(), std::move(options)));
      return mesh;
    }
    case v1::DescribeMeshRequest::SOURCE_NOT_SET:
      break;
  }
  return rpc::BadField("source", "is not set; give a mesh or its text");
}

// Returns an error for the empty mesh, which has no devices to answer about.
absl::Status CheckHasDevices(const Mesh& mesh) {
  return rpc::WithField(ContextMesh(absl::MakeConstSpan(&mesh, 1)).status(), "mesh");
}

absl::Status AnswerIndexes(const Mesh& mesh, absl::Span<const std::string> axes,
                           const compat::v1::QueryMeshRequest& request,
                           compat::v1::QueryMeshResponse* response) {
  std::vector<DeviceId> devices(request.devices().begin(), request.devices().end());
  if (devices.empty()) {
    SHARDMESH_RETURN_IF_ERROR(
        CheckCount(mesh.size(), kMaxListedDevices, "devices of the mesh", "devices"));
    devices.resize(static_cast<size_t>(mesh.size()));
    std::iota(devices.begin(), devices.end(), 0);
  }
  SHARDMESH_DECODE(indexes, "axes", SubmeshIndices(mesh, axes, devices));
  response->mutable_indexes()->Add(indexes.begin(), indexes.end());
  return absl::OkStatus();
}

void Encode(const DeviceGroup& from, v1::DeviceGroup* to) {
  to->mutable_devices()->Add(from.devices().begin(), from.devices().end());
}

absl::Status AnswerGroups(const Mesh& mesh, const std::vector<std::string>& axes,
                          const compat::v1::QueryMeshRequest& request,
                          compat::v1::QueryMeshResponse* response) {
  SHARDMESH_DECODE(groups, "axes", DeviceGroups::Create(mesh, axes));
  if (request.devices().empty()) {
    SHARDMESH_RETURN_IF_ERROR(
        CheckCount(mesh.size(), kMaxListedDevices, "devices of the mesh", "devices"));
    for (int64_t group = 0; group < groups.count(); ++group) {
      Encode(groups.GroupAt(group), response->add_groups());
    }
    return absl::OkStatus();
  }
  SHARDMESH_RETURN_IF_ERROR(CheckCount(request.devices_size() * groups.group_size(),
                                       kMaxListedDevices, "devices in these groups", "devices"));
  for (const DeviceId device : request.devices()) {
    SHARDMESH_DECODE(group, "axes", DeviceGroup::Create(mesh, axes, device));
    Encode(group, response->add_groups());
  }
  return absl::OkStatus();
}

absl::Status AnswerSubmesh(const Mesh& mesh, const std::vector<std::string>& axes,
                           const compat::v1::QueryMeshRequest& request,
                           compat::v1::QueryMeshResponse* response) {
  SHARDMESH_RETURN_IF_ERROR(CheckHasDevices(mesh));
  if (request.devices_size() > 1) {
    return rpc::BadField("devices", "has several, and a sub-mesh goes through one; name that one");
  }
  SHARDMESH_DECODE(groups, "axes", DeviceGroups::Create(mesh, axes));
  SHARDMESH_RETURN_IF_ERROR(
      CheckCount(groups.group_size(), kMaxListedDevices, "devices of the sub-mesh", "axes"));
  const DeviceId device = request.devices().empty() ? 0 : request.devices(0);
  SHARDMESH_DECODE(submesh, "axes", SubmeshOf(mesh, axes, device));
  rpc::Encode(submesh, response->mutable_submesh());
  return absl::OkStatus();
}

}  // namespace

absl::Status Answer(const AnswerContext& context, const v1::DescribeMeshRequest& request,
                    v1::DescribeMeshResponse* response) {
  SHARDMESH_DECODE(compatibility, "compatibility", rpc::Decode(request.compatibility()));
  SHARDMESH_ASSIGN_OR_RETURN(const Mesh mesh,
                             MeshOf(context.state, request, compatibility, response));
  if (request.required()) {
    SHARDMESH_RETURN_IF_ERROR(CheckHasDevices(mesh));
  }
  rpc::Encode(mesh, response->mutable_mesh());
  response->set_size(mesh.size());
  response->set_text(mesh.ToString());
  response->set_revision(context.state.revision());
  return absl::OkStatus();
}

absl::Status Answer(const AnswerContext& context, const compat::v1::QueryMeshRequest& request,
                    compat::v1::QueryMeshResponse* response) {
  SHARDMESH_DECODE(compatibility, "compatibility", rpc::Decode(request.compatibility()));
  SHARDMESH_DECODE(mesh, "mesh", SelectMesh(context.state, request.mesh(), compatibility));
  SHARDMESH_RETURN_IF_ERROR(CheckCount(request.axes_size(), kMaxQueriedAxes, "axes", "axes"));
  std::vector<std::string> axes;
  for (int i = 0; i < request.axes_size(); ++i) {
    SHARDMESH_RETURN_IF_ERROR(CheckCount(static_cast<int64_t>(request.axes(i).size()),
                                         static_cast<int64_t>(kMaxAxisNameBytes), "bytes of a name",
                                         StrCat("axes[", i, "]")));
    axes.push_back(request.axes(i));
  }
  SHARDMESH_RETURN_IF_ERROR(
      CheckCount(request.devices_size(), kMaxListedDevices, "devices", "devices"));
  for (int i = 0; i < request.devices_size(); ++i) {
    SHARDMESH_RETURN_IF_ERROR(CheckDevice(request.devices(i), mesh, "devices", i));
  }
  response->set_revision(context.state.revision());
  switch (request.question()) {
    case compat::v1::QueryMeshRequest::QUESTION_INDEX:
      return AnswerIndexes(mesh, axes, request, response);
    case compat::v1::QueryMeshRequest::QUESTION_GROUPS:
      return AnswerGroups(mesh, axes, request, response);
    case compat::v1::QueryMeshRequest::QUESTION_SUBMESH:
      return AnswerSubmesh(mesh, axes, request, response);
    default:
      break;
  }
  if (!request.devices().empty()) {
    return rpc::BadField("devices", "are given, and the question is not about devices");
  }
  switch (request.question()) {
    case compat::v1::QueryMeshRequest::QUESTION_PRESENT:
      response->set_present(HasAxes(mesh, axes));
      for (std::string& axis : axes) {
        if (!mesh.HasAxis(axis)) {
          response->add_absent_axes(std::move(axis));
        }
      }
      return absl::OkStatus();
    case compat::v1::QueryMeshRequest::QUESTION_SIZE: {
      SHARDMESH_DECODE(size, "axes", AxesSize(mesh, axes));
      response->set_size(size);
      return absl::OkStatus();
    }
    case compat::v1::QueryMeshRequest::QUESTION_MAPPED_SIZE: {
      SHARDMESH_DECODE(size, "axes", MappedAxesSize(mesh, axes));
      response->set_size(size);
      return absl::OkStatus();
    }
    default:
      return rpc::BadField("question",
                           StrCat("question ", static_cast<int>(request.question()),
                                  " is not known; use PRESENT, SIZE, MAPPED_SIZE, INDEX, GROUPS or "
                                  "SUBMESH"));
  }
}

absl::Status Answer(const AnswerContext&, const compat::v1::ListSpecAxesRequest& request,
                    compat::v1::ListSpecAxesResponse* response) {
  SHARDMESH_RETURN_IF_ERROR(CheckCount(request.specs_size(), kMaxListedSpecs, "specs", "specs"));
  std::vector<PartitionSpec> specs;
  specs.reserve(static_cast<size_t>(request.specs_size()));
  int64_t names = 0;
  for (int i = 0; i < request.specs_size(); ++i) {
    auto spec = rpc::Decode(request.specs(i));
    if (!spec.ok()) {
      return rpc::WithField(std::move(spec).status(), "specs", static_cast<size_t>(i));
    }
    for (const SpecEntry& entry : spec->entries()) {
      names += static_cast<int64_t>(entry.axes().size());
    }
    SHARDMESH_RETURN_IF_ERROR(CheckCount(names, kMaxListedNames, "axes or more", "specs"));
    specs.push_back(*std::move(spec));
  }
  for (std::string& axis : AxisNamesOf(specs)) {
    response->add_axes(std::move(axis));
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::server
