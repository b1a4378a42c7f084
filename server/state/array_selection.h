// Finds an array by the name or the id in a request.
#ifndef SHARDMESH_SERVER_STATE_ARRAY_SELECTION_H_
#define SHARDMESH_SERVER_STATE_ARRAY_SELECTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/state/array_registry.h"
#include "server/state/membership.h"
#include "server/state/recovery.h"
#include "sharding/tile.h"

namespace shardmesh::server {

// The array in a request: by its name, or if that is empty by its id.
struct ArrayReference {
  std::string name = {};
  int64_t version = 0;  // of the name; 0: the current one
  std::string array_id = {};
};

// An array and the name by which it was selected; `name.version` 0: selected by id.
struct SelectedArray {
  ArrayPtr array;
  NameEntry name;
};

// NOT_FOUND as ArrayRegistry says, also for arrays that are not committed.
absl::StatusOr<SelectedArray> Select(const ArrayRegistry& registry,
                                     const ArrayReference& reference);

// The error about an array that lacks tiles. It names the array, the ranks whose tiles are missing,
// and their workers. UNAVAILABLE (RECOVERING) while those workers are expected back with the tiles;
// FAILED_PRECONDITION (ARRAY_DEGRADED) otherwise, with advice. `missing`: the missing ranks of the
// array whose tiles the call needs, in order; not empty.
absl::Status Degraded(const SelectedArray& selected, const std::vector<int64_t>& missing,
                      const MembershipView& membership, const Recovery& recovery);

// INVALID_ARGUMENT (BAD_TILE), with have and need: the slice has another number of dimensions than
// the shape, is empty, or reaches beyond it.
absl::Status CheckSlice(const Tile& slice, const ArrayDescriptor& array);

// The tiles that form a part of the array, row-major, each with its live holders. Otherwise
// Degraded: a tile has no holder. Requires a part within the array.
absl::StatusOr<std::vector<OwnedTile>> FindHolders(const SelectedArray& selected, const Tile& part,
                                                   const MembershipView& membership,
                                                   const Recovery& recovery);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_ARRAY_SELECTION_H_
