// Arrays of the registry as clients and workers see them.
#ifndef SHARDMESH_SERVER_STATE_ARRAY_VIEW_CODEC_H_
#define SHARDMESH_SERVER_STATE_ARRAY_VIEW_CODEC_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "server/state/array_selection.h"
#include "server/state/arrays.h"
#include "shardmesh/v1/array.pb.h"

namespace shardmesh::server {

v1::Durability Encode(Durability durability);
// With the name that it was found by, if there is one.
void Encode(const Array& array, const NameEntry* name, v1::Array* to);

// INVALID_ARGUMENT for a selector that holds neither a name nor an id, or an empty one; names the
// field `array`.
absl::StatusOr<ArrayReference> Decode(const v1::ArraySelector& from);

// The contract's expected_version is 0 for any version and -1 for none. NameMove's is nullopt for
// any version and 0 for none.
std::optional<int64_t> DecodeExpectedVersion(int64_t version);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_ARRAY_VIEW_CODEC_H_
