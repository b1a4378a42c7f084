// Checks of the names, ids and numbers in requests. Each error is INVALID_ARGUMENT and names
// `field`. The reason is LIMIT_EXCEEDED for a value that is too long, otherwise BAD_FIELD.
#ifndef SHARDMESH_RPC_CODEC_FIELD_CHECK_H_
#define SHARDMESH_RPC_CODEC_FIELD_CHECK_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shardmesh::rpc {

// Requires a catalog entry's name: 1 to 255 characters of [A-Za-z0-9._-].
absl::Status CheckEntryName(std::string_view name, std::string_view field);
// Requires an array's name as users give it: 1 to 1,024 bytes of UTF-8 without control characters.
absl::Status CheckArrayName(std::string_view name, std::string_view field);
// Requires 1 to 64 characters of [A-Za-z0-9_-].
absl::Status CheckArrayId(std::string_view id, std::string_view field);
// Requires 1 to 64 bytes of UTF-8.
absl::Status CheckRequestId(std::string_view id, std::string_view field);
// Requires a worker's identity: 1 to 255 bytes of UTF-8 without control characters.
absl::Status CheckIdentity(std::string_view identity, std::string_view field);
// Requires a dimension from 0 to kMaxRank - 1. Planning later checks that the tensor has it.
absl::StatusOr<int64_t> CheckDimension(int32_t dimension, std::string_view field);
// Requires a number other than infinity and NaN.
absl::Status CheckFinite(float value, std::string_view field);
// Returns the page size to use: 100 for 0, at most 1,000. A negative size is an error.
absl::StatusOr<int64_t> CheckPageSize(int64_t page_size, std::string_view field);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_FIELD_CHECK_H_
