// Why a call failed or a layout was changed, in a form that programs can compare: stable reasons,
// and how they ride on an absl::Status.
#ifndef SHARDMESH_STATUS_REASON_H_
#define SHARDMESH_STATUS_REASON_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace shardmesh {

// Names and meanings are part of the contract: they travel in google.rpc.ErrorInfo and in
// corrections. Add at will; never rename or reuse. ReasonName(kNotDivisible) is "NOT_DIVISIBLE",
// and so on.
enum class Reason {
  kUnspecified = 0,

  // Layouts: as errors, or as the reason of a correction.
  kNotDivisible,      // the product of the axes does not divide the dimension
  kAxisNotInMesh,     // a spec names an axis that the mesh does not have
  kRankTruncated,     // a spec is longer than the tensor's rank, and was cut
  kBelowMinSize,      // the tensor is smaller than the rule set's min_size, hence replicated
  kUnconstrained,     // a dimension was left open and is not partitioned
  kDuplicateAxis,     // one axis occurs twice in a spec or a mesh
  kRankMismatch,      // a spec is longer than the rank, where that is an error
  kMeshSizeMismatch,  // axis sizes do not multiply to the number of devices
  kNoMesh,            // a mesh is needed and none is there

  // Malformed values.
  kInvalidShape,
  kInvalidMesh,
  kInvalidSpec,
  kInvalidCutPoints,
  kLimitExceeded,  // a value is well formed but over a documented limit

  // Resolution of logical axes.
  kUnknownAxis,       // not a logical axis
  kUnknownField,      // not a field of a profile
  kUnknownMode,       // not a mode
  kUnknownPreset,     // not a preset
  kUnresolvedField,   // a field of the profile is still not given after resolution
  kInvalidAxisValue,  // a value of the wrong kind for where it stands
  kCyclicAxis,        // registered axes that resolve to one another
  kInvalidDimension,  // an integer mode that is not a dimension of the shape
  kMissingArgument,   // the call needs an argument that was left out

  // Rules.
  kUnmatchedTensor,     // no rule matches the tensor's name
  kUnsupportedPattern,  // a pattern uses what cannot be matched in bounded time
  kBadPattern,          // a pattern is not well formed

  // Requests.
  kBadField,         // a field is malformed; google.rpc.BadRequest names it
  kNotFound,         // a named thing does not exist
  kAlreadyExists,    // a named thing exists already
  kVersionMismatch,  // a version or revision is not the expected one
  kRequestIdReused,  // a request_id was used before with other contents
  kNotAvailable,     // the contract has room for it, this build does not do it
  kCompacted,        // a watched revision was compacted; list anew

  // Data.
  kShapeMismatch,     // operands do not fit each other
  kUnknownDtype,      // an element type's name or number is not known
  kUnsupportedDtype,  // an operation does not support the element type
  kBadFile,           // a file is not what its format demands
  kChecksumMismatch,  // bytes differ from their checksum
  kBadTile,           // a tile is not the one that this worker holds of the array
  kBadToken,          // a transfer token is missing, wrong, expired or for something else
  kArrayDegraded,     // some tiles of an array are not there; the ranks are named
  kMemoryLimit,       // memory for shards is used up; have and need are named

  // Cluster.
  kWorkerLost,          // a worker is lost; rank, identity and what it was doing are named
  kMeshIncomplete,      // a mesh has ranks without a live worker
  kIdentityInUse,       // an identity is held by another process
  kClusterMismatch,     // a worker belongs to another cluster
  kProtocolMismatch,    // the two sides speak no common protocol version
  kStaleEpoch,          // a message is of an older epoch
  kStaleTerm,           // a message is of an older term
  kStepAborted,         // a step was aborted because of another rank
  kSessionGone,         // a session is unknown, closed or expired
  kNotServing,          // the process is starting or draining
  kEndpointUnverified,  // an advertised endpoint does not lead back to its worker
  kStoreFailed,         // durable state cannot be read or written
  kCancelled,           // the operation was cancelled by its owner
  kDeadline,            // a deadline passed; who was waited for is named
  kCollectiveMismatch,  // ranks do not run the same collective; both are shown
  kIdentityMismatch,    // a data folder holds tiles of another worker; both are named
  kRecovering,          // the coordinator waits for its workers' inventories; retry
  kStoreFull,           // the store's disk or quota is full; have and need are named
  kNotOwner,            // the session does not own what the call would change
  kSchemaMismatch,      // durable state of another schema; both versions are named
  kSlowReader,          // a stream's reader is too slow; what it missed is gone
  kLast = kSlowReader,  // not a reason: where loops over all of them end
};

// The stable name, such as "NOT_DIVISIBLE".
std::string_view ReasonName(Reason reason);
// The reason of that name; nullopt for a name of none.
std::optional<Reason> ReasonFromName(std::string_view name);

// Returns `status` with the reason attached; an earlier one is replaced. An OK status stays as it
// is.
absl::Status WithReason(absl::Status status, Reason reason);
// kUnspecified where none is attached, or one this build does not know.
Reason ReasonOf(const absl::Status& status);

// Attaches the exact class of the exception that the Python library raises in the same case, such
// as "DuplicateSpecError".
absl::Status WithPythonType(absl::Status status, std::string_view python_type);
// Empty where none is attached.
std::string PythonTypeOf(const absl::Status& status);

// The same error with `context` and a colon before its message: what was being done, or to what.
// Code, reason and all else that is attached stay. An OK status stays as it is.
absl::Status WithContext(const absl::Status& status, std::string_view context);

// INVALID_ARGUMENT with a reason and a Python class, the shape of nearly every error of the
// algebra.
absl::Status InvalidArgument(Reason reason, std::string_view message,
                             std::string_view python_type = "ValueError");

}  // namespace shardmesh

#endif  // SHARDMESH_STATUS_REASON_H_
