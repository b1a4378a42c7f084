// Finds the mesh of each tile of an inventory, and asks the registry for the verdict.
#include "server/attach/inventory_judge.h"

#include <map>
#include <memory>
#include <utility>
#include <variant>

#include "process/log.h"

namespace shardmesh::server {
namespace {

// Removes the descriptors of doubtful partial sums, so that the registry does not adopt these
// arrays. A partial sum is doubtful if its mesh, or the workers of the mesh's ranks, changed after
// the array's revision. Ranks can hold different values for the same elements of a partial sum, so
// the tile must come from the rank of that revision. In other arrays, all ranks hold the same
// values for the same elements.
void LeaveDoubtfulSums(const Definitions& state, std::vector<InventoryTile>* tiles) {
  std::map<std::string, Revision> revisions;  // 0: no mesh of this name exists
  for (InventoryTile& tile : *tiles) {
    if (!tile.descriptor.has_value() || tile.descriptor->spec.unreduced().empty()) continue;
    const auto [found, is_new] = revisions.try_emplace(tile.descriptor->mesh_id, 0);
    if (is_new) {
      const auto mesh = state.Find(DefinitionKind::kMesh, tile.descriptor->mesh_id);
      if (mesh.ok()) found->second = RanksRevisionOf(**mesh);
    }
    if (found->second != tile.descriptor->mesh_revision) tile.descriptor.reset();
  }
}

// Returns a mesh without ranks if the membership has yet to hear of its new definition. `state` is
// newer than `view`.
InventoryMesh MeshOf(const MembershipView& view, const Definitions& state,
                     std::string_view identity, std::string_view mesh_id) {
  InventoryMesh mesh;
  if (const MeshRanks* const ranks = view.FindMesh(mesh_id); ranks != nullptr) {
    mesh.rank = ranks->RankOf(identity);
    mesh.identities = ranks->identities;
  }
  const auto definition = state.Find(DefinitionKind::kMesh, mesh_id);
  if (!definition.ok()) return mesh;
  mesh.mesh = &std::get<MeshDefinition>((*definition)->value).mesh;
  mesh.revision = (*definition)->revision;
  // Only the worker's own rank is compared: thousands of workers may attach at once.
  const std::vector<std::string>& workers = WorkersOf(**definition);
  const bool is_outdated = std::ssize(mesh.identities) != mesh.mesh->size() ||
                           (mesh.rank.has_value() && !workers.empty() &&
                            workers[static_cast<size_t>(*mesh.rank)] != identity);
  return is_outdated ? InventoryMesh{.mesh = mesh.mesh} : mesh;
}

}  // namespace

InventoryJudge::InventoryJudge(const Membership* membership, ArrayRegistry* registry,
                               const DefinitionStore* definition_store)
    : membership_(membership), registry_(registry), definition_store_(definition_store) {}

JudgedInventory InventoryJudge::JudgeWhole(const std::string& identity, uint64_t attachment,
                                           std::vector<InventoryTile> tiles,
                                           std::vector<std::string> quarantined) const {
  // The worker's ranks are read before the membership view, so the view contains the meshes of all
  // these ranks.
  const std::vector<ServedRank> serves = membership_->RanksOf(identity);
  const std::shared_ptr<const MembershipView> view = membership_->view();
  const std::shared_ptr<const Definitions> state = definition_store_->shared_state();
  JudgedInventory judged;
  std::map<std::string, InventoryMesh, std::less<>> others;
  Inventory inventory{.identity = identity,
                      .attachment = attachment,
                      .meshes = {},
                      .tiles = std::move(tiles),
                      .quarantined = std::move(quarantined),
                      // The registry calls this for each tile, under its lock.
                      .other_mesh = [&](std::string_view mesh_id) {
                        auto found = others.find(mesh_id);
                        if (found == others.end()) {
                          InventoryMesh mesh = MeshOf(*view, *state, identity, mesh_id);
                          // The mesh got its ranks after `serves` was read: judge the tile without
                          // a rank.
                          if (mesh.rank.has_value()) mesh = {.mesh = mesh.mesh};
                          if (mesh.identities.empty()) judged.undecided.emplace(mesh_id);
                          found = others.emplace(mesh_id, mesh).first;
                        }
                        return found->second;
                      }};
  // The inventory lists every mesh that the worker serves, also one without tiles. The registry can
  // then find arrays of the mesh whose tiles the worker lacks.
  for (const ServedRank& served : serves) {
    const InventoryMesh mesh = MeshOf(*view, *state, identity, served.mesh_id);
    if (!mesh.identities.empty()) inventory.meshes.emplace(served.mesh_id, mesh);
  }
  LeaveDoubtfulSums(*state, &inventory.tiles);
  judged.verdict = registry_->TakeInventory(inventory);
  LogVerdict(identity, std::ssize(inventory.tiles), judged.verdict);
  return judged;
}

JudgedInventory InventoryJudge::JudgeRestored(const std::string& identity, uint64_t attachment,
                                              std::vector<InventoryTile> tiles,
                                              const std::vector<std::string>& mesh_ids) const {
  const std::shared_ptr<const MembershipView> view = membership_->view();
  const std::shared_ptr<const Definitions> state = definition_store_->shared_state();
  Inventory restored{
      .identity = identity, .attachment = attachment, .meshes = {}, .tiles = std::move(tiles)};
  LeaveDoubtfulSums(*state, &restored.tiles);
  JudgedInventory judged;
  for (const std::string& mesh_id : mesh_ids) {
    if (restored.meshes.contains(mesh_id)) continue;
    const InventoryMesh mesh = MeshOf(*view, *state, identity, mesh_id);
    if (mesh.identities.empty()) {
      judged.undecided.insert(mesh_id);
    } else {
      restored.meshes.emplace(mesh_id, mesh);
    }
  }
  judged.verdict = registry_->TakeRestored(restored);
  LogVerdict(identity, std::ssize(restored.tiles), judged.verdict);
  return judged;
}

int64_t InventoryBytes(const std::vector<InventoryTile>& tiles, int64_t quarantined) {
  constexpr int64_t kBlockBytes = 64;  // size of one heap block, such as a long string
  int64_t bytes = 0;
  for (const InventoryTile& tile : tiles) {
    bytes +=
        static_cast<int64_t>(sizeof(tile)) + (tile.descriptor.has_value() ? 6 : 2) * kBlockBytes;
  }
  return bytes + quarantined * static_cast<int64_t>(sizeof(std::string) + kBlockBytes);
}

void LogVerdict(std::string_view identity, int64_t tiles, const InventoryVerdict& verdict) {
  if (!verdict.drop.empty()) {
    LogInfo(
        "a worker drops arrays that were released while it was away",
        {{"identity", identity}, {"arrays", verdict.drop.size()}, {"first", verdict.drop.front()}});
  }
  if (!verdict.quarantine.empty()) {
    const InventoryVerdict::Aside& first = verdict.quarantine.front();
    LogWarning("a worker puts tiles into quarantine; `shardmesh admin quarantine list` shows them",
               {{"identity", identity},
                {"tiles", verdict.quarantine.size()},
                {"of", tiles},
                {"first_array", first.array_id},
                {"reason", first.reason}});
  }
}

}  // namespace shardmesh::server
