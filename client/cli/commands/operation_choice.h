// The operation that a user means by a number, an id, or the beginning of an id.
#ifndef SHARDMESH_CLIENT_CLI_COMMANDS_OPERATION_CHOICE_H_
#define SHARDMESH_CLIENT_CLI_COMMANDS_OPERATION_CHOICE_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/types/cluster_status.h"

namespace shardmesh::client {

// Minimum length of the beginning of an id.
inline constexpr size_t kMinIdPrefix = 4;

// Returns the operation of `operations` that `text` means. A whole id means its operation. The
// number of a running operation means that operation, also if an id begins with the same digits.
// Any other text means the one operation that has this number, or whose id begins so (with at least
// kMinIdPrefix characters). Numbers are written without leading zeros.
//
// Errors: NOT_FOUND: there is none; the error names the running operations and a similar id. Wrong
// use: there are several; the error names each with its id.
absl::StatusOr<Operation> ChooseOperation(const std::string& text,
                                          absl::Span<const Operation> operations);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_COMMANDS_OPERATION_CHOICE_H_
