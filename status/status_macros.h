// Two macros that pass an error on to the caller; Abseil 20220623 has none.
#ifndef SHARDMESH_STATUS_STATUS_MACROS_H_
#define SHARDMESH_STATUS_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Evaluates an absl::Status expression once. If the status is an error, returns it from the
// function.
#define SHARDMESH_RETURN_IF_ERROR(expr)                                     \
  do {                                                                      \
    if (::absl::Status shardmesh_status = (expr); !shardmesh_status.ok()) { \
      return shardmesh_status;                                              \
    }                                                                       \
  } while (false)

// SHARDMESH_ASSIGN_OR_RETURN(auto mesh, Mesh::Create(...)); assigns the value, or returns the error
// from the function.
#define SHARDMESH_ASSIGN_OR_RETURN(lhs, expr) \
  SHARDMESH_ASSIGN_OR_RETURN_IMPL_(SHARDMESH_CONCAT_(shardmesh_result_, __LINE__), lhs, expr)

#define SHARDMESH_ASSIGN_OR_RETURN_IMPL_(result, lhs, expr) \
  auto result = (expr);                                     \
  if (!result.ok()) {                                       \
    return std::move(result).status();                      \
  }                                                         \
  lhs = *std::move(result)

#define SHARDMESH_CONCAT_(a, b) SHARDMESH_CONCAT_IMPL_(a, b)
#define SHARDMESH_CONCAT_IMPL_(a, b) a##b

#endif  // SHARDMESH_STATUS_STATUS_MACROS_H_
