// Encodes arrays of the registry for clients and workers.
#ifndef SHARDMESH_SERVER_STATE_ARRAY_VIEW_CODEC_H_
#define SHARDMESH_SERVER_STATE_ARRAY_VIEW_CODEC_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/state/array_registry.h"
#include "server/state/array_selection.h"
#include "shardmesh/v1/array.pb.h"
#include "shardmesh/v1/precondition.pb.h"

namespace shardmesh::server {

v1::Durability Encode(Durability durability);
// Encodes the array. If `name` is not null, also encodes the name by which the request found the
// array.
void Encode(const Array& array, const NameEntry* name, v1::Array* to);

// INVALID_ARGUMENT: the selector has neither a name nor an id, or an empty one. The message names
// the field `array`.
absl::StatusOr<ArrayReference> Decode(const v1::ArraySelector& from);

// Returns the version of a name that a change expects: nullopt for any, 0 if the name must not
// exist. INVALID_ARGUMENT (BAD_FIELD) names the field below `path`, the place of the precondition
// in the request. If `must_exist` is set, a precondition that the name does not exist also gets
// this error.
absl::StatusOr<std::optional<int64_t>> Decode(const v1::Precondition& from, bool must_exist,
                                              std::string_view path = "precondition");

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_ARRAY_VIEW_CODEC_H_
