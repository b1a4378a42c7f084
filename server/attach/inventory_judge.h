// Makes the verdict on an inventory (the list of tiles that a worker holds): what the worker does
// with each tile.
#ifndef SHARDMESH_SERVER_ATTACH_INVENTORY_JUDGE_H_
#define SHARDMESH_SERVER_ATTACH_INVENTORY_JUDGE_H_

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/state/array_registry.h"
#include "server/state/definitions.h"
#include "server/state/membership.h"

namespace shardmesh::server {

struct JudgedInventory {
  InventoryVerdict verdict;
  // Meshes whose ranks have no workers yet. Tiles on these meshes got no verdict.
  std::set<std::string> undecided;
};

// Tells the registry which ranks of which meshes a worker's tiles belong to. Thread-safe.
class InventoryJudge {
 public:
  // All arguments outlive the judge.
  InventoryJudge(const Membership* membership, ArrayRegistry* registry,
                 const DefinitionStore* definition_store);

  // Judges all tiles that the worker holds. Blocks while the registry processes the tiles.
  JudgedInventory JudgeWhole(const std::string& identity, uint64_t attachment,
                             std::vector<InventoryTile> tiles,
                             std::vector<std::string> quarantined) const;
  // Judges tiles that the worker took back from its quarantine. `mesh_ids`: the meshes of the
  // tiles.
  JudgedInventory JudgeRestored(const std::string& identity, uint64_t attachment,
                                std::vector<InventoryTile> tiles,
                                const std::vector<std::string>& mesh_ids) const;

 private:
  const Membership* const membership_;
  ArrayRegistry* const registry_;
  const DefinitionStore* const definition_store_;
};

// Returns the estimated memory, in bytes, of these tiles and of the ids of `quarantined` further
// tiles.
int64_t InventoryBytes(const std::vector<InventoryTile>& tiles, int64_t quarantined);

// Logs the tiles that a verdict drops or quarantines. `tiles`: number of judged tiles.
void LogVerdict(std::string_view identity, int64_t tiles, const InventoryVerdict& verdict);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_ATTACH_INVENTORY_JUDGE_H_
