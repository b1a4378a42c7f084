// The table of reasons, and the payloads that attach them to a status.
#include "status/reason.h"

#include <algorithm>
#include <array>
#include <cassert>

#include "absl/strings/cord.h"
#include "status/detail.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

constexpr absl::string_view kReasonPayload = "shardmesh/reason";
constexpr absl::string_view kPythonTypePayload = "shardmesh/python_type";

struct Row {
  Reason reason;
  std::string_view name;
};

constexpr std::array kRows = {
    Row{Reason::kUnspecified, "UNSPECIFIED"},
    Row{Reason::kNotDivisible, "NOT_DIVISIBLE"},
    Row{Reason::kAxisNotInMesh, "AXIS_NOT_IN_MESH"},
    Row{Reason::kRankTruncated, "RANK_TRUNCATED"},
    Row{Reason::kBelowMinSize, "BELOW_MIN_SIZE"},
    Row{Reason::kUnconstrained, "UNCONSTRAINED"},
    Row{Reason::kDuplicateAxis, "DUPLICATE_AXIS"},
    Row{Reason::kRankMismatch, "RANK_MISMATCH"},
    Row{Reason::kMeshSizeMismatch, "MESH_SIZE_MISMATCH"},
    Row{Reason::kNoMesh, "NO_MESH"},
    Row{Reason::kInvalidShape, "INVALID_SHAPE"},
    Row{Reason::kInvalidMesh, "INVALID_MESH"},
    Row{Reason::kInvalidSpec, "INVALID_SPEC"},
    Row{Reason::kInvalidCutPoints, "INVALID_CUT_POINTS"},
    Row{Reason::kLimitExceeded, "LIMIT_EXCEEDED"},
    Row{Reason::kUnknownAxis, "UNKNOWN_AXIS"},
    Row{Reason::kUnknownField, "UNKNOWN_FIELD"},
    Row{Reason::kUnknownMode, "UNKNOWN_MODE"},
    Row{Reason::kUnknownPreset, "UNKNOWN_PRESET"},
    Row{Reason::kUnresolvedField, "UNRESOLVED_FIELD"},
    Row{Reason::kInvalidAxisValue, "INVALID_AXIS_VALUE"},
    Row{Reason::kCyclicAxis, "CYCLIC_AXIS"},
    Row{Reason::kInvalidDimension, "INVALID_DIMENSION"},
    Row{Reason::kMissingArgument, "MISSING_ARGUMENT"},
    Row{Reason::kUnmatchedTensor, "UNMATCHED_TENSOR"},
    Row{Reason::kUnsupportedPattern, "UNSUPPORTED_PATTERN"},
    Row{Reason::kBadPattern, "BAD_PATTERN"},
    Row{Reason::kBadField, "BAD_FIELD"},
    Row{Reason::kNotFound, "NOT_FOUND"},
    Row{Reason::kAlreadyExists, "ALREADY_EXISTS"},
    Row{Reason::kVersionMismatch, "VERSION_MISMATCH"},
    Row{Reason::kRequestIdReused, "REQUEST_ID_REUSED"},
    Row{Reason::kNotAvailable, "NOT_AVAILABLE"},
    Row{Reason::kCompacted, "COMPACTED"},
    Row{Reason::kShapeMismatch, "SHAPE_MISMATCH"},
    Row{Reason::kUnknownDtype, "UNKNOWN_DTYPE"},
    Row{Reason::kUnsupportedDtype, "UNSUPPORTED_DTYPE"},
    Row{Reason::kBadFile, "BAD_FILE"},
    Row{Reason::kChecksumMismatch, "CHECKSUM_MISMATCH"},
    Row{Reason::kBadTile, "BAD_TILE"},
    Row{Reason::kBadToken, "BAD_TOKEN"},
    Row{Reason::kArrayDegraded, "ARRAY_DEGRADED"},
    Row{Reason::kMemoryLimit, "MEMORY_LIMIT"},
    Row{Reason::kWorkerLost, "WORKER_LOST"},
    Row{Reason::kMeshIncomplete, "MESH_INCOMPLETE"},
    Row{Reason::kIdentityInUse, "IDENTITY_IN_USE"},
    Row{Reason::kClusterMismatch, "CLUSTER_MISMATCH"},
    Row{Reason::kProtocolMismatch, "PROTOCOL_MISMATCH"},
    Row{Reason::kStaleEpoch, "STALE_EPOCH"},
    Row{Reason::kStaleTerm, "STALE_TERM"},
    Row{Reason::kStepAborted, "STEP_ABORTED"},
    Row{Reason::kSessionGone, "SESSION_GONE"},
    Row{Reason::kNotServing, "NOT_SERVING"},
    Row{Reason::kEndpointUnverified, "ENDPOINT_UNVERIFIED"},
    Row{Reason::kStoreFailed, "STORE_FAILED"},
    Row{Reason::kCancelled, "CANCELLED"},
    Row{Reason::kDeadline, "DEADLINE"},
    Row{Reason::kCollectiveMismatch, "COLLECTIVE_MISMATCH"},
    Row{Reason::kIdentityMismatch, "IDENTITY_MISMATCH"},
    Row{Reason::kRecovering, "RECOVERING"},
    Row{Reason::kStoreFull, "STORE_FULL"},
    Row{Reason::kNotOwner, "NOT_OWNER"},
    Row{Reason::kSchemaMismatch, "SCHEMA_MISMATCH"},
    Row{Reason::kSlowReader, "SLOW_READER"},
    Row{Reason::kOverloaded, "OVERLOADED"},
    Row{Reason::kMeshMismatch, "MESH_MISMATCH"},
    Row{Reason::kMeshInUse, "MESH_IN_USE"},
    Row{Reason::kWorkerAttached, "WORKER_ATTACHED"},
    Row{Reason::kWorkerServesRank, "WORKER_SERVES_RANK"},
    Row{Reason::kRanksDefined, "RANKS_DEFINED"},
    Row{Reason::kFileChanged, "FILE_CHANGED"},
    Row{Reason::kNoReadRoot, "NO_READ_ROOT"},
};

}  // namespace

std::string_view ReasonName(Reason reason) {
  for (const Row& row : kRows) {
    if (row.reason == reason) {
      return row.name;
    }
  }
  return kRows[0].name;
}

std::optional<Reason> ReasonFromName(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) {
      return row.reason;
    }
  }
  return std::nullopt;
}

absl::Status WithReason(absl::Status status, Reason reason) {
  status.SetPayload(kReasonPayload, absl::Cord(ToAbsl(ReasonName(reason))));
  return status;
}

absl::Status WithReason(absl::Status status, Reason reason, Facts facts) {
  assert(std::all_of(facts.begin(), facts.end(),
                     [reason](const Fact& each) { return MayHave(reason, each.key); }));
  return WithFacts(WithReason(std::move(status), reason), facts);
}

Reason ReasonOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kReasonPayload);
  if (!payload.has_value()) {
    return Reason::kUnspecified;
  }
  return ReasonFromName(std::string(*payload)).value_or(Reason::kUnspecified);
}

absl::Status WithPythonType(absl::Status status, std::string_view python_type) {
  status.SetPayload(kPythonTypePayload, absl::Cord(ToAbsl(python_type)));
  return status;
}

std::string PythonTypeOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kPythonTypePayload);
  return payload.has_value() ? std::string(*payload) : std::string();
}

absl::Status WithContext(const absl::Status& status, std::string_view context) {
  if (status.ok()) {
    return status;
  }
  absl::Status result(status.code(), ToAbsl(StrCat(context, ": ", ToStd(status.message()))));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { result.SetPayload(url, payload); });
  return result;
}

absl::Status InvalidArgument(Reason reason, std::string_view message,
                             std::string_view python_type) {
  return WithPythonType(WithReason(absl::InvalidArgumentError(ToAbsl(message)), reason),
                        python_type);
}

absl::Status InvalidArgument(Reason reason, std::string_view message, Facts facts,
                             std::string_view python_type) {
  return WithPythonType(WithReason(absl::InvalidArgumentError(ToAbsl(message)), reason, facts),
                        python_type);
}

}  // namespace shardmesh
