// Chooses the tiles to restore, and refuses to restore arrays that would lack tiles.
#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "rpc/codec/array_codec.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "server/quarantine/quarantine_restore.h"
#include "server/state/definitions.h"
#include "server/state/recovery.h"
#include "sharding/mesh_definition.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/retry.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server::quarantine {

namespace {

// Returns the rank that this worker serves in the array's mesh. The tile in the worker's quarantine
// belongs to that rank.
absl::StatusOr<int64_t> RankIn(const Restore& restore, const std::string& mesh_id,
                               const std::string& identity) {
  const MeshRanks* ranks = restore.view->FindMesh(mesh_id);
  const std::optional<int64_t> rank = ranks == nullptr ? std::nullopt : ranks->RankOf(identity);
  if (rank.has_value()) return *rank;
  return absl::FailedPreconditionError(StrCat(
      "worker \"", identity, "\" has the array ", restore.request->array_id(),
      ", but serves no rank of its mesh \"", mesh_id, "\"; give the mesh the workers that it had"));
}

absl::StatusOr<std::vector<std::pair<Tile, uint32_t>>> TilesOf(const v1::QuarantinedArray& held) {
  std::vector<std::pair<Tile, uint32_t>> tiles;
  for (const v1::QuarantinedTile& tile : held.tiles()) {
    SHARDMESH_ASSIGN_OR_RETURN(Tile decoded, rpc::Decode(tile.tile()));
    tiles.emplace_back(std::move(decoded), tile.crc32c());
  }
  return tiles;
}

// Returns the name that the array will get. Checks the name before any tile moves.
absl::StatusOr<std::string> NewName(const Restore& restore) {
  const std::string& asked = restore.request->name();
  std::string name = asked.empty() ? StrCat("restored/", restore.request->array_id()) : asked;
  SHARDMESH_RETURN_IF_ERROR(restore.context.registry->CheckNewName(name));
  return name;
}

}  // namespace

absl::Status ChooseMissing(const ArrayPtr& array, Restore* restore) {
  const std::string& mesh_id = array->definition.descriptor.mesh_id;
  absl::Status why;
  for (const auto& [identity, held] : restore->held) {
    const absl::StatusOr<int64_t> rank = RankIn(*restore, mesh_id, identity);
    absl::Status fits = rank.status();
    if (rank.ok()) {
      SHARDMESH_ASSIGN_OR_RETURN(const auto tiles, TilesOf(held));
      for (const auto& [tile, crc32c] : tiles) {
        fits.Update(
            restore->context.registry->CheckTile(held.array().array_id(), *rank, tile, crc32c));
      }
    }
    if (fits.ok()) {
      restore->ranks.emplace(*rank, identity);
    } else {
      why.Update(fits);
    }
  }
  return restore->ranks.empty() ? why : absl::OkStatus();
}

absl::Status InProgress(const std::string& array_id) {
  return WithRetryDelay(
      WithReason(absl::AbortedError(
                     StrCat("array ", array_id, " is being restored by another call; try again")),
                 Reason::kAlreadyExists, {{fact::kKind, "restore"}, {fact::kName, array_id}}),
      absl::Milliseconds(200));
}

absl::Status CheckAllThere(const Restore& restore, const ArrayDescriptor& array) {
  const MembershipView& view = *restore.view;
  const MeshRanks* const mesh = view.FindMesh(array.mesh_id);
  const std::optional<UnnamedArray> unnamed = restore.context.registry->FindUnnamed(array.array_id);
  std::vector<std::string> missing;
  std::vector<int64_t> missing_ranks;
  std::vector<std::string> in_use;
  bool is_away = false;
  for (int64_t rank = 0; rank < array.mesh.size(); ++rank) {
    const bool is_given = mesh != nullptr && rank < std::ssize(mesh->identities);
    const std::string identity = is_given ? mesh->identities[static_cast<size_t>(rank)] : "";
    if (is_given && restore.held.count(identity) > 0) continue;
    if (unnamed.has_value() &&
        std::find(unnamed->missing_ranks.begin(), unnamed->missing_ranks.end(), rank) ==
            unnamed->missing_ranks.end()) {
      in_use.push_back(StrCat(rank));
      continue;
    }
    is_away = is_away || !is_given || !view.IsAlive(identity);
    missing_ranks.push_back(rank);
    missing.push_back(is_given ? view.DescribeRank(*mesh, rank) : StrCat("rank ", rank));
  }
  const std::string what = StrCat("array ", array.array_id, " on mesh \"", array.mesh_id, "\"");
  if (is_away) {
    const AwayWorkers away = FindAway(restore.context, view, {array.mesh_id});
    if (!away.empty() && AllComeBack(away)) {
      return Recovering(
          StrCat(what, " waits for the tiles of ", FirstOf(missing), ", expected back; try again"),
          {{fact::kIdentity, IdentitiesOf(away)}});
    }
    return WithReason(
        absl::FailedPreconditionError(StrCat(what, " lacks the tiles of ", FirstOf(missing),
                                             "; start those workers, and restore it again")),
        Reason::kMeshIncomplete,
        {{fact::kMesh, array.mesh_id}, {fact::kRank, StrJoin(missing_ranks, ",")}});
  }
  if (!missing.empty()) {
    return WithoutRetry(
        WithReason(absl::FailedPreconditionError(StrCat(
                       what, " lacks the tiles of ", FirstOf(missing),
                       ", whose workers are attached without them; it cannot be whole again")),
                   Reason::kMeshIncomplete,
                   {{fact::kMesh, array.mesh_id}, {fact::kRank, StrJoin(missing_ranks, ",")}}));
  }
  if (in_use.empty()) return absl::OkStatus();
  return WithReason(
      absl::FailedPreconditionError(StrCat(
          what, " is in quarantine in part: ranks ", FirstOf(in_use),
          " have their tiles in use without a name, held ", HeldFor(restore.context, *unnamed),
          "; after that all of it is in quarantine: restore it then")),
      Reason::kMeshIncomplete, {{fact::kMesh, array.mesh_id}, {fact::kRank, StrJoin(in_use, ",")}});
}

absl::Status ChooseAll(Restore* restore) {
  const Restore& from = *restore;
  const v1::QuarantinedArray& first = from.held.begin()->second;
  SHARDMESH_ASSIGN_OR_RETURN(ArrayDescriptor descriptor, rpc::Decode(first.array()));
  SHARDMESH_ASSIGN_OR_RETURN(std::string name, NewName(from));
  const std::shared_ptr<const Definitions> state = from.context.definition_store->shared_state();
  const auto definition = state->Find(DefinitionKind::kMesh, descriptor.mesh_id);
  if (!definition.ok()) return definition.status();
  const Mesh& mesh = std::get<MeshDefinition>((*definition)->value).mesh;
  if (!(mesh == descriptor.mesh)) {
    return absl::FailedPreconditionError(StrCat(
        "the array lies on the mesh \"", descriptor.mesh_id, "\" as ", descriptor.mesh.ToString(),
        ", which is ", mesh.ToString(), " now; define the mesh as it was"));
  }
  const Revision ranks_revision = RanksRevisionOf(**definition);
  if (!descriptor.spec.unreduced().empty() && descriptor.mesh_revision != ranks_revision) {
    // Tiles of a partial sum can cover the same elements, so the elements do not tell which rank a
    // tile belongs to.
    return absl::FailedPreconditionError(StrCat(
        "the array is a partial sum on revision ", descriptor.mesh_revision, " of the mesh \"",
        descriptor.mesh_id, "\", which has its ranks since revision ", ranks_revision,
        ": which rank had which part is not certain any more; compute it again"));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, descriptor.Tiling());
  ArrayCommit commit{.array_id = descriptor.array_id,
                     .durability = Durability::kDisk,
                     .tile_crc32c = std::vector<uint32_t>(static_cast<size_t>(mesh.size()))};
  for (const auto& [identity, held] : from.held) {
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t rank, RankIn(from, descriptor.mesh_id, identity));
    SHARDMESH_ASSIGN_OR_RETURN(const auto tiles, TilesOf(held));
    SHARDMESH_ASSIGN_OR_RETURN(const ArrayDescriptor each, rpc::Decode(held.array()));
    const bool fits = each == descriptor && tiles.size() == 1 && rank < mesh.size() &&
                      tiling.TileOf(rank) == tiles.front().first;
    if (!fits) {
      return absl::FailedPreconditionError(
          StrCat("worker \"", identity, "\" has another part of the array than that of rank ", rank,
                 ", which it serves; give the mesh the workers that it had"));
    }
    commit.tile_crc32c[static_cast<size_t>(rank)] = tiles.front().second;
    if (held.durability() != v1::DURABILITY_DISK) commit.durability = Durability::kMemory;
    restore->ranks.emplace(rank, identity);
  }
  SHARDMESH_RETURN_IF_ERROR(CheckAllThere(from, descriptor));
  restore->commit.arrays.push_back(std::move(commit));
  restore->commit.moves.push_back(
      {.name = name, .array_id = descriptor.array_id, .expected_version = 0});
  restore->response->set_name(std::move(name));
  // The array gets the mesh's current revision. The revision in the array's descriptor differs from
  // it only if the mesh was defined again.
  descriptor.mesh_revision = (*definition)->revision;
  if (from.request->validate_only()) return absl::OkStatus();
  const absl::Status staged = from.context.registry->Stage({.descriptor = descriptor});
  if (absl::IsAlreadyExists(staged)) return InProgress(descriptor.array_id);
  SHARDMESH_RETURN_IF_ERROR(staged);
  restore->staged = std::move(descriptor);
  return absl::OkStatus();
}

absl::Status ChooseName(const Array& array, Restore* restore) {
  SHARDMESH_ASSIGN_OR_RETURN(std::string name, NewName(*restore));
  const ArrayDescriptor& descriptor = array.definition.descriptor;
  if (const MeshRanks* const mesh = restore->view->FindMesh(descriptor.mesh_id); mesh != nullptr) {
    for (int64_t rank = 0; rank < std::ssize(mesh->identities); ++rank) {
      if (std::binary_search(array.missing_ranks.begin(), array.missing_ranks.end(), rank))
        continue;
      restore->response->add_identities(mesh->identities[static_cast<size_t>(rank)]);
    }
  }
  restore->commit.moves.push_back(
      {.name = name, .array_id = descriptor.array_id, .expected_version = 0});
  restore->response->set_name(std::move(name));
  return absl::OkStatus();
}

}  // namespace shardmesh::server::quarantine
