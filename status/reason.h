// Reasons: stable codes that tell programs why a call failed or a layout was changed. A reason is
// attached to an absl::Status.
#ifndef SHARDMESH_STATUS_REASON_H_
#define SHARDMESH_STATUS_REASON_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "status/fact_keys.h"

namespace shardmesh {

// Names and meanings are part of the contract with clients: google.rpc.ErrorInfo and corrections
// carry them. A new version may add reasons, but must not rename or reuse one. The name of
// kNotDivisible is "NOT_DIVISIBLE", and so on.
enum class Reason : int {
  kUnspecified = 0,

  // Layouts. Each is the reason of an error or of a correction.
  kNotDivisible,      // the product of the axes does not divide the dimension
  kAxisNotInMesh,     // a spec names an axis that the mesh does not have
  kRankTruncated,     // a spec was longer than the tensor's rank and was cut
  kBelowMinSize,      // the tensor is smaller than the rule set's min_size and is replicated
  kUnconstrained,     // a dimension was left open and is not partitioned
  kDuplicateAxis,     // one axis occurs twice in a spec or a mesh
  kRankMismatch,      // a spec is longer than the tensor's rank, in a call that does not cut specs
  kMeshSizeMismatch,  // axis sizes do not multiply to the number of devices
  kNoMesh,            // the call needs a mesh and has none

  // Malformed values.
  kInvalidShape,
  kInvalidMesh,
  kInvalidSpec,
  kInvalidCutPoints,
  kLimitExceeded,  // a value is over a documented limit; the same request never succeeds

  // Resolution of logical axes.
  kUnknownAxis,       // not a logical axis
  kUnknownField,      // not a field of a profile
  kUnknownMode,       // not a mode
  kUnknownPreset,     // not a preset
  kUnresolvedField,   // a field of the profile has no value after resolution
  kInvalidAxisValue,  // an axis value has a kind (such as a list) that its position does not allow
  kCyclicAxis,        // user-defined axes refer to one another in a cycle
  kInvalidDimension,  // a number is not a dimension of the shape
  kMissingArgument,   // the call lacks an argument that it needs

  // Rules.
  kUnmatchedTensor,     // no rule matches the tensor's name
  kUnsupportedPattern,  // a pattern uses a feature that is not supported here
  kBadPattern,          // a pattern is not well formed

  // Requests.
  kBadField,         // a field is malformed; google.rpc.BadRequest names it
  kNotFound,         // a named thing does not exist
  kAlreadyExists,    // a named thing exists already
  kVersionMismatch,  // a version or revision is not the expected one
  kRequestIdReused,  // a request_id was used before with other contents
  kNotAvailable,     // the request is part of the contract, but this build does not implement it
  kCompacted,        // the history of a watched revision was compacted; the client must list again

  // Data.
  kShapeMismatch,     // the shapes, sizes or types of operands do not fit each other
  kUnknownDtype,      // an element type's name or number is not known
  kUnsupportedDtype,  // an operation does not support the element type
  kBadFile,           // a file violates its format
  kChecksumMismatch,  // bytes differ from their checksum
  kBadTile,           // a tile is not the tile that this worker holds of the array
  kBadToken,          // a transfer token is missing, wrong, expired or for another transfer
  kArrayDegraded,     // some tiles of an array are missing; the error names the ranks
  kMemoryLimit,       // no memory is left for shards; the error gives have and need
  kFileChanged,       // a file is not as the client found it; the error gives have and need
  kNoReadRoot,        // a file is not below a folder that the worker may read

  // Cluster.
  kWorkerLost,            // a worker is lost; the error names its rank, identity and activity
  kMeshIncomplete,        // a mesh has ranks without a live worker
  kIdentityInUse,         // another process holds the identity
  kClusterMismatch,       // a worker belongs to another cluster
  kProtocolMismatch,      // the two sides speak no common protocol version
  kStaleEpoch,            // a message belongs to an older epoch
  kStaleTerm,             // a message belongs to an older term
  kStepAborted,           // a step was aborted because another rank failed
  kSessionGone,           // a session is unknown, closed or expired
  kNotServing,            // the process is starting or draining
  kEndpointUnverified,    // an advertised endpoint does not lead back to its worker
  kStoreFailed,           // durable state cannot be read or written
  kCancelled,             // the owner of the operation cancelled it
  kDeadline,              // a deadline passed; the error names the awaited peers
  kCollectiveMismatch,    // ranks run different collectives; the error names both collectives
  kIdentityMismatch,      // a data folder belongs to another worker; the error names both workers
  kRecovering,            // the coordinator waits for the inventories of its workers; retry
  kStoreFull,             // the store's disk or quota is full; the error gives have and need
  kNotOwner,              // the session does not own the object of the call
  kSchemaMismatch,        // durable state has another schema; the error names both versions
  kSlowReader,            // the reader of a stream was too slow; the missed messages are gone
  kOverloaded,            // too many requests are under way; the same request may succeed later
  kMeshMismatch,          // operands lie on different meshes, or an array lies off the call's mesh
  kMeshInUse,             // arrays lie on the mesh; it can be neither changed nor deleted
  kWorkerAttached,        // a worker is attached, and the call is only for lost workers
  kWorkerServesRank,      // a worker serves ranks of meshes; the call requires that it serves none
  kRanksDefined,          // the mesh's definition names the workers; the call cannot change them
  kLast = kRanksDefined,  // not a reason: the end of loops over all reasons
};

// The stable name, such as "NOT_DIVISIBLE".
std::string_view ReasonName(Reason reason);
// Returns the reason of that name, or nullopt if no reason has that name.
std::optional<Reason> ReasonFromName(std::string_view name);

// Returns `status` with the reason attached, in place of an earlier reason. An OK status stays
// unchanged.
absl::Status WithReason(absl::Status status, Reason reason);
// Like WithReason above; also attaches the facts. FactKeysOf(reason) must contain their keys.
// Example: WithReason(absl::NotFoundError("no mesh \"a\""), Reason::kNotFound,
//                     {{fact::kKind, "mesh"}, {fact::kName, "a"}})
absl::Status WithReason(absl::Status status, Reason reason, Facts facts);
// Returns the reason of `status`. Returns kUnspecified if `status` has no reason, or a reason that
// this build does not know.
Reason ReasonOf(const absl::Status& status);

// Attaches the exact class of the exception that the Python library raises in the same case, such
// as "DuplicateSpecError".
absl::Status WithPythonType(absl::Status status, std::string_view python_type);
// Returns the class that WithPythonType attached; an empty string if there is none.
std::string PythonTypeOf(const absl::Status& status);

// Returns the same error with `context` and a colon before its message; `context` names the action
// or its object. Code, reason and all other payloads stay. An OK status stays unchanged.
absl::Status WithContext(const absl::Status& status, std::string_view context);

// Returns INVALID_ARGUMENT with a reason and a Python class. Nearly all errors of sharding/ have
// this form.
absl::Status InvalidArgument(Reason reason, std::string_view message,
                             std::string_view python_type = "ValueError");
// Like InvalidArgument above; also attaches facts.
absl::Status InvalidArgument(Reason reason, std::string_view message, Facts facts,
                             std::string_view python_type = "ValueError");

}  // namespace shardmesh

#endif  // SHARDMESH_STATUS_REASON_H_
