// LayoutClient: questions about meshes.
#include "client/layouts.h"

#include <utility>

#include "client/client_core.h"
#include "client/remote/coordinator_connection.h"
#include "rpc/codec/spec_codec.h"
#include "status/status_macros.h"

namespace shardmesh::client {
namespace {

// The wire enum has the same questions in the same order, after 0 for "not set".
static_assert(static_cast<int>(MeshAxesQuestion::Kind::kSubmesh) + 1 ==
              compat::v1::QueryMeshRequest::QUESTION_SUBMESH);

void Encode(const MeshFields& from, v1::Mesh* to) {
  for (const MeshAxis& axis : from.axes) {
    v1::MeshAxis* const added = to->add_axes();
    added->set_name(axis.name);
    added->set_size(axis.size);
    added->set_type(rpc::Encode(axis.type));
  }
  to->mutable_device_ids()->Add(from.device_ids.begin(), from.device_ids.end());
}

// With kExact, the answer's mesh may be one that only JAX accepts.
absl::StatusOr<Mesh> DecodeMesh(const v1::Mesh& from, Compatibility compatibility) {
  absl::StatusOr<Mesh> mesh = rpc::Decode(from, std::nullopt, compatibility);
  return mesh.ok() ? std::move(mesh) : BadAnswer(mesh.status());
}

}  // namespace

absl::StatusOr<MeshAnswer> LayoutClient::DescribeMesh(const MeshQuestion& question,
                                                      const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::DescribeMeshRequest request;
  if (const auto* selector = std::get_if<MeshSelector>(&question.mesh)) {
    EncodeSelector(*selector, request.mutable_mesh());
  } else if (const auto* fields = std::get_if<MeshFields>(&question.mesh)) {
    Encode(*fields, request.mutable_mesh()->mutable_value());
  } else {
    request.set_text(std::get<MeshText>(question.mesh).text);
  }
  if (question.device_count.has_value()) {
    request.set_device_count(*question.device_count);
  }
  request.set_required(question.required);
  request.set_compatibility(EncodeCompatibility(question.compatibility));
  v1::DescribeMeshResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.meshes, &v1::MeshService::Stub::DescribeMesh,
                                            request, limit, &response));
  MeshAnswer answer;
  SHARDMESH_ASSIGN_OR_RETURN(answer.mesh, DecodeMesh(response.mesh(), question.compatibility));
  answer.workers.assign(response.workers().begin(), response.workers().end());
  answer.revision = response.revision();
  return answer;
}

absl::StatusOr<MeshAxesAnswer> LayoutClient::QueryMesh(const MeshAxesQuestion& question,
                                                       const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  compat::v1::QueryMeshRequest request;
  request.set_question(
      static_cast<compat::v1::QueryMeshRequest::Question>(static_cast<int>(question.kind) + 1));
  EncodeSelector(question.mesh, request.mutable_mesh());
  request.mutable_axes()->Add(question.axes.begin(), question.axes.end());
  request.mutable_devices()->Add(question.devices.begin(), question.devices.end());
  request.set_compatibility(EncodeCompatibility(question.compatibility));
  compat::v1::QueryMeshResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.compat, &compat::v1::CompatService::Stub::QueryMesh, request, limit, &response));
  MeshAxesAnswer answer;
  answer.present = response.present();
  answer.absent_axes.assign(response.absent_axes().begin(), response.absent_axes().end());
  answer.size = response.size();
  answer.indexes.assign(response.indexes().begin(), response.indexes().end());
  for (const v1::DeviceGroup& group : response.groups()) {
    answer.groups.emplace_back(group.devices().begin(), group.devices().end());
  }
  SHARDMESH_ASSIGN_OR_RETURN(answer.submesh,
                             DecodeMesh(response.submesh(), question.compatibility));
  answer.revision = response.revision();
  return answer;
}

absl::StatusOr<std::vector<std::string>> LayoutClient::ListSpecAxes(
    absl::Span<const PartitionSpec> specs, const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  compat::v1::ListSpecAxesRequest request;
  for (const PartitionSpec& spec : specs) {
    rpc::Encode(spec, request.add_specs());
  }
  compat::v1::ListSpecAxesResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.compat,
                                            &compat::v1::CompatService::Stub::ListSpecAxes, request,
                                            limit, &response));
  return std::vector<std::string>(response.axes().begin(), response.axes().end());
}

}  // namespace shardmesh::client
