// Encodes arrays of the registry for clients and workers.
#ifndef SHARDMESH_SERVER_STATE_ARRAY_VIEW_CODEC_H_
#define SHARDMESH_SERVER_STATE_ARRAY_VIEW_CODEC_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/state/array_registry.h"
#include "server/state/array_selection.h"
#include "server/state/recovery.h"
#include "shardmesh/v1/array.pb.h"
#include "shardmesh/v1/precondition.pb.h"

namespace shardmesh::server {

v1::Durability Encode(Durability durability);
// Encodes the array. If `name` is not null, also encodes the name by which the request found the
// array.
void Encode(const Array& array, const NameEntry* name, v1::Array* to);

// Encodes the replicas of the array, and its repair unless that is only about to begin
// (ArrayRepair::is_due).
void EncodeRepair(const Array& array, const Recovery& recovery, v1::Array* to);

// INVALID_ARGUMENT: the selector has neither a name nor an id (the message names the field
// `array`), or its version is below 1 (`array.version`).
absl::StatusOr<ArrayReference> Decode(const v1::ArraySelector& from);

// Returns the version of a name that a change expects: nullopt for any, 0 if the name must not
// exist. INVALID_ARGUMENT (BAD_FIELD): `must_not_exist` is false, the version is below 1, or the
// name must not exist although `must_exist` is set. The error names the field below `path`, the
// path of the precondition in the request.
absl::StatusOr<std::optional<int64_t>> Decode(const v1::Precondition& from, bool must_exist,
                                              std::string_view path = "precondition");

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_ARRAY_VIEW_CODEC_H_
