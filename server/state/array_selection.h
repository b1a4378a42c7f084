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

// How a request identifies an array: by its name or, if the name is empty, by its id.
struct ArrayReference {
  std::string name = {};
  int64_t version = 0;  // version of the name; 0: the current version
  std::string array_id = {};
};

// An array, and the name by which the request selected it; `name.version` is 0 if the request used
// the id.
struct SelectedArray {
  ArrayPtr array;
  NameEntry name;
  // The companion with the second replicas of a degraded array; null: there is none.
  ArrayPtr companion = nullptr;
  // Names a degraded array that was selected by its id in errors (ArrayRegistry::LabelOf).
  std::string label = {};
};

// How often a call looks a name up whose array is replaced and released meanwhile.
inline constexpr int kMaxSelections = 10;

// Returns the array that a request identifies. NOT_FOUND: FindName or FindArray of ArrayRegistry
// does not find the array, or it is not committed.
absl::StatusOr<SelectedArray> Select(const ArrayRegistry& registry,
                                     const ArrayReference& reference);
// The same. UNAVAILABLE (RECOVERING): a session has taken the array over, and workers that may have
// its tiles have not reported since the coordinator's start.
absl::StatusOr<SelectedArray> Select(const ArrayRegistry& registry, const ArrayReference& reference,
                                     const Recovery& recovery);

// UNAVAILABLE (RECOVERING): a session has taken over the array of this id, and workers that may
// have its tiles have not reported since the coordinator's start. OK in all other cases.
absl::Status CheckNotAwaited(const ArrayRegistry& registry, const std::string& array_id,
                             const Recovery& recovery);

// Returns the companion of a degraded array, for SelectedArray; null for other arrays.
ArrayPtr CompanionOf(const ArrayRegistry& registry, const Array& array);

// Returns the error for an array that lacks tiles. The error names the array, the ranks whose tiles
// are missing, and their workers; it says if the second replica has these tiles. UNAVAILABLE
// (RECOVERING): those workers are expected back with the tiles, or the repair of all these tiles is
// about to begin. FAILED_PRECONDITION (ARRAY_DEGRADED), with advice: in all other cases; with a
// retry delay if a repair reads tiles of the array again. If `awaits_repair`, RECOVERING also while
// a repair reads all these tiles again: for calls that are repeated until their deadline, and that
// need nothing but the tiles. `missing`: the missing ranks whose tiles the call needs, rising; not
// empty.
absl::Status Degraded(const SelectedArray& selected, const std::vector<int64_t>& missing,
                      const MembershipView& membership, const Recovery& recovery,
                      bool awaits_repair = false);

// FAILED_PRECONDITION (NOT_AVAILABLE): the array is state, which steps update. For calls that read
// the tiles of an array one after the other, and would mix those of different steps.
absl::Status CheckNotState(const Array& array);

// INVALID_ARGUMENT (BAD_TILE), with have and need: the slice has another number of dimensions than
// the array, is empty, or reaches beyond the array's shape.
absl::Status CheckSlice(const Tile& slice, const ArrayDescriptor& array);

// Returns the tiles that form `part` of the array, row-major, each with its live holders. If a tile
// has no holder, returns the error of Degraded, with its `awaits_repair`. Requires that `part` lies
// within the array.
absl::StatusOr<std::vector<OwnedTile>> FindHolders(const SelectedArray& selected, const Tile& part,
                                                   const MembershipView& membership,
                                                   const Recovery& recovery,
                                                   bool awaits_repair = false);

// A tile, and the array with its live holders: the selected array, or its companion.
struct HeldTile {
  OwnedTile tile = {};       // `devices` are ranks of the mesh of `array`, at least one
  ArrayPtr array = nullptr;  // not null
};

// Returns the tiles as FindHolders. A tile without a live holder in the array has those of
// `selected.companion`. If it has none there either, returns the error of Degraded.
absl::StatusOr<std::vector<HeldTile>> FindHoldersInBoth(const SelectedArray& selected,
                                                        const Tile& part,
                                                        const MembershipView& membership,
                                                        const Recovery& recovery);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_ARRAY_SELECTION_H_
