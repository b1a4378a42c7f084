// Applies membership pages in order, and makes a view when the last page of a change has come.
#include "worker/service/membership_book.h"

#include <utility>

#include "rpc/codec/spec_codec.h"
#include "shardmesh/internal/v1/attach_service.pb.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::worker {

absl::StatusOr<std::optional<MembershipView>> MembershipBook::Take(
    const internal::v1::Membership& page) {
  if (page.snapshot()) {
    workers_.clear();
    meshes_.clear();
    has_snapshot_ = true;
  }
  if (!has_snapshot_) {
    return absl::InternalError("the coordinator tells a change of membership before a snapshot");
  }
  for (const std::string& mesh_id : page.removed_mesh_ids()) {
    meshes_.erase(mesh_id);
  }
  for (const std::string& identity : page.lost_workers()) {
    workers_.erase(identity);
  }
  for (const internal::v1::LiveWorker& worker : page.workers()) {
    LiveWorker& known = workers_[worker.identity()];
    known.incarnation = worker.incarnation();
    known.endpoints.clear();
    for (const v1::Endpoint& endpoint : worker.endpoints()) {
      known.endpoints.push_back(endpoint.address());
    }
  }
  for (const internal::v1::MeshMembership& mesh : page.meshes()) {
    SHARDMESH_RETURN_IF_ERROR(TakeMesh(mesh));
  }
  if (!page.last()) {
    return std::nullopt;
  }
  SHARDMESH_ASSIGN_OR_RETURN(MembershipView view, View(page.epoch(), page.term()));
  return view;
}

absl::Status MembershipBook::TakeMesh(const internal::v1::MeshMembership& page) {
  const auto known = meshes_.find(page.mesh_id());
  if (!page.has_mesh()) {
    if (known == meshes_.end()) {
      return absl::InternalError(StrCat("the coordinator tells a revision of mesh \"",
                                        page.mesh_id(), "\", of which it told nothing before"));
    }
    known->second.revision = page.mesh_revision();
    return absl::OkStatus();
  }
  if (page.first_rank() == 0) {
    SHARDMESH_ASSIGN_OR_RETURN(Mesh mesh, rpc::Decode(page.mesh()));
    meshes_.insert_or_assign(page.mesh_id(), ServedMesh{.revision = page.mesh_revision(),
                                                        .mesh = std::move(mesh),
                                                        .identities = {page.identities().begin(),
                                                                       page.identities().end()}});
    return absl::OkStatus();
  }
  const auto known_ranks =
      known == meshes_.end() ? 0 : static_cast<int64_t>(known->second.identities.size());
  if (known_ranks != page.first_rank()) {
    return absl::InternalError(StrCat("the coordinator tells the ranks of mesh \"", page.mesh_id(),
                                      "\" from ", page.first_rank(), " on after ", known_ranks));
  }
  known->second.identities.insert(known->second.identities.end(), page.identities().begin(),
                                  page.identities().end());
  return absl::OkStatus();
}

absl::StatusOr<MembershipView> MembershipBook::View(int64_t epoch, int64_t term) const {
  MembershipView view{.epoch = epoch, .term = term, .meshes = {}};
  view.meshes.reserve(meshes_.size());
  for (const auto& [mesh_id, mesh] : meshes_) {
    if (static_cast<int64_t>(mesh.identities.size()) != mesh.mesh.size()) {
      return absl::InternalError(StrCat("the coordinator tells ", mesh.identities.size(), " of ",
                                        mesh.mesh.size(), " ranks of mesh \"", mesh_id, "\""));
    }
    MeshMembers& members = view.meshes.emplace_back(MeshMembers{
        .mesh_id = mesh_id, .revision = mesh.revision, .mesh = mesh.mesh, .devices = {}});
    for (size_t rank = 0; rank < mesh.identities.size(); ++rank) {
      const auto worker = workers_.find(mesh.identities[rank]);
      if (worker == workers_.end()) continue;
      members.devices.push_back({.rank = static_cast<DeviceId>(rank),
                                 .identity = worker->first,
                                 .incarnation = worker->second.incarnation,
                                 .endpoints = worker->second.endpoints});
    }
  }
  return view;
}

}  // namespace shardmesh::worker
