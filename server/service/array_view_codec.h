// Arrays of the registry as clients and workers see them.
#ifndef SHARDMESH_SERVER_SERVICE_ARRAY_VIEW_CODEC_H_
#define SHARDMESH_SERVER_SERVICE_ARRAY_VIEW_CODEC_H_

#include "absl/status/statusor.h"
#include "server/state/arrays.h"
#include "server/state/membership.h"
#include "server/state/recovery.h"
#include "shardmesh/v1/array.pb.h"

namespace shardmesh::server {

v1::Durability Encode(Durability durability);
// With the name that it was found by, if there is one.
void Encode(const Array& array, const NameEntry* name, v1::Array* to);

// An array and the name that it was selected by; `name.version` 0 where it was selected by id.
struct SelectedArray {
  ArrayPtr array;
  NameEntry name;
};

// NOT_FOUND as ArrayRegistry says, also for arrays that are not committed; INVALID_ARGUMENT for a
// selector that holds neither a name nor an id, or an empty one.
absl::StatusOr<SelectedArray> Select(const ArrayRegistry& registry,
                                     const v1::ArraySelector& selector);

// What to tell about an array that lacks tiles; names it, the ranks whose tiles are missing, and
// their workers. UNAVAILABLE (RECOVERING) while those workers are expected back with the tiles;
// FAILED_PRECONDITION (ARRAY_DEGRADED) otherwise, with what helps.
absl::Status Degraded(const SelectedArray& selected, const MembershipView& membership,
                      const Recovery& recovery);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_ARRAY_VIEW_CODEC_H_
