// The table of reasons and facts. tests/errors_page_test.py compares it with error.proto and
// docs/errors.md.
#include "status/fact_keys.h"

#include <algorithm>

#include "status/reason.h"

namespace shardmesh {
namespace {

constexpr FactKey kNotDivisibleFacts[] = {fact::kDimension, fact::kHave, fact::kNeed, fact::kAxis};
constexpr FactKey kAxisNotInMeshFacts[] = {fact::kAxis,      fact::kMesh, fact::kNearest,
                                           fact::kDimension, fact::kHave, fact::kNeed};
constexpr FactKey kRankTruncatedFacts[] = {fact::kDimension, fact::kHave, fact::kNeed};
constexpr FactKey kBelowMinSizeFacts[] = {fact::kHave, fact::kNeed};
constexpr FactKey kUnconstrainedFacts[] = {fact::kDimension};
constexpr FactKey kDuplicateAxisFacts[] = {fact::kAxis};
constexpr FactKey kRankMismatchFacts[] = {fact::kHave, fact::kNeed};
constexpr FactKey kMeshSizeMismatchFacts[] = {fact::kHave, fact::kNeed, fact::kMesh};
constexpr FactKey kInvalidShapeFacts[] = {fact::kDimension, fact::kValue, fact::kLimit};
constexpr FactKey kInvalidMeshFacts[] = {fact::kAxis, fact::kValue, fact::kIdentity};
constexpr FactKey kInvalidSpecFacts[] = {fact::kDimension, fact::kAxis, fact::kValue};
constexpr FactKey kInvalidCutPointsFacts[] = {fact::kDimension, fact::kValue, fact::kHave,
                                              fact::kNeed};
constexpr FactKey kLimitExceededFacts[] = {fact::kField, fact::kHave, fact::kLimit};
constexpr FactKey kUnknownAxisFacts[] = {fact::kName, fact::kNearest, fact::kDimension};
constexpr FactKey kUnknownFieldFacts[] = {fact::kName, fact::kNearest};
constexpr FactKey kUnknownModeFacts[] = {fact::kName, fact::kNearest};
constexpr FactKey kUnknownPresetFacts[] = {fact::kName, fact::kNearest};
constexpr FactKey kUnresolvedFieldFacts[] = {fact::kName};
constexpr FactKey kInvalidAxisValueFacts[] = {fact::kName, fact::kValue, fact::kDimension};
constexpr FactKey kCyclicAxisFacts[] = {fact::kName};
constexpr FactKey kInvalidDimensionFacts[] = {fact::kDimension, fact::kLimit};
constexpr FactKey kMissingArgumentFacts[] = {fact::kField};
constexpr FactKey kUnmatchedTensorFacts[] = {fact::kTensor, fact::kNearest};
constexpr FactKey kUnsupportedPatternFacts[] = {fact::kValue, fact::kPosition};
constexpr FactKey kBadPatternFacts[] = {fact::kValue, fact::kPosition};
constexpr FactKey kBadFieldFacts[] = {fact::kField, fact::kValue, fact::kNearest};
constexpr FactKey kNotFoundFacts[] = {fact::kKind, fact::kName, fact::kNearest};
constexpr FactKey kAlreadyExistsFacts[] = {fact::kKind, fact::kName};
constexpr FactKey kVersionMismatchFacts[] = {fact::kKind, fact::kName, fact::kHave, fact::kNeed};
constexpr FactKey kRequestIdReusedFacts[] = {fact::kValue};
constexpr FactKey kNotAvailableFacts[] = {fact::kField};
constexpr FactKey kCompactedFacts[] = {fact::kHave, fact::kNeed};
constexpr FactKey kShapeMismatchFacts[] = {fact::kDimension, fact::kHave, fact::kNeed, fact::kOp};
constexpr FactKey kUnknownDtypeFacts[] = {fact::kDtype, fact::kNearest, fact::kTensor};
constexpr FactKey kUnsupportedDtypeFacts[] = {fact::kDtype, fact::kOp};
constexpr FactKey kBadFileFacts[] = {fact::kFile, fact::kPosition, fact::kTensor, fact::kIdentity};
constexpr FactKey kChecksumMismatchFacts[] = {fact::kHave, fact::kNeed, fact::kFile, fact::kArray};
constexpr FactKey kBadTileFacts[] = {fact::kArray, fact::kHave, fact::kNeed};
constexpr FactKey kBadTokenFacts[] = {fact::kArray};
constexpr FactKey kArrayDegradedFacts[] = {fact::kArray, fact::kName, fact::kRank, fact::kIdentity};
constexpr FactKey kMemoryLimitFacts[] = {fact::kHave, fact::kNeed, fact::kRank, fact::kIdentity};
constexpr FactKey kWorkerLostFacts[] = {fact::kRank, fact::kIdentity, fact::kStep, fact::kOp};
constexpr FactKey kMeshIncompleteFacts[] = {fact::kMesh, fact::kRank, fact::kIdentity, fact::kHave,
                                            fact::kNeed};
constexpr FactKey kIdentityInUseFacts[] = {fact::kIdentity};
constexpr FactKey kClusterMismatchFacts[] = {fact::kIdentity, fact::kHave, fact::kNeed};
constexpr FactKey kProtocolMismatchFacts[] = {fact::kIdentity, fact::kHave, fact::kNeed};
constexpr FactKey kStaleEpochFacts[] = {fact::kHave, fact::kNeed};
constexpr FactKey kStaleTermFacts[] = {fact::kHave, fact::kNeed};
constexpr FactKey kStepAbortedFacts[] = {fact::kStep, fact::kOp};
constexpr FactKey kSessionGoneFacts[] = {fact::kName};
constexpr FactKey kNotServingFacts[] = {fact::kIdentity};
constexpr FactKey kEndpointUnverifiedFacts[] = {fact::kIdentity, fact::kValue};
constexpr FactKey kStoreFailedFacts[] = {fact::kFile};
constexpr FactKey kCancelledFacts[] = {fact::kStep, fact::kOp};
constexpr FactKey kDeadlineFacts[] = {fact::kRank, fact::kIdentity, fact::kStep, fact::kOp,
                                      fact::kLimit};
constexpr FactKey kCollectiveMismatchFacts[] = {fact::kRank, fact::kIdentity, fact::kStep,
                                                fact::kOp,   fact::kHave,     fact::kNeed};
constexpr FactKey kIdentityMismatchFacts[] = {fact::kHave, fact::kNeed, fact::kFile};
constexpr FactKey kRecoveringFacts[] = {fact::kRank, fact::kIdentity, fact::kStep, fact::kOp};
constexpr FactKey kStoreFullFacts[] = {fact::kHave, fact::kNeed, fact::kFile};
constexpr FactKey kNotOwnerFacts[] = {fact::kKind, fact::kName};
constexpr FactKey kSchemaMismatchFacts[] = {fact::kHave, fact::kNeed, fact::kFile};
constexpr FactKey kSlowReaderFacts[] = {fact::kLimit};
constexpr FactKey kOverloadedFacts[] = {fact::kHave, fact::kLimit};
constexpr FactKey kMeshMismatchFacts[] = {fact::kArray, fact::kHave, fact::kNeed};
constexpr FactKey kMeshInUseFacts[] = {fact::kMesh, fact::kArray, fact::kHave};
constexpr FactKey kWorkerAttachedFacts[] = {fact::kIdentity};
constexpr FactKey kWorkerServesRankFacts[] = {fact::kIdentity, fact::kMesh, fact::kRank,
                                              fact::kHave};
constexpr FactKey kRanksDefinedFacts[] = {fact::kMesh, fact::kIdentity};
constexpr FactKey kFileChangedFacts[] = {fact::kFile, fact::kHave, fact::kNeed, fact::kIdentity};
constexpr FactKey kNoReadRootFacts[] = {fact::kFile, fact::kHave, fact::kIdentity};

}  // namespace

absl::Span<const FactKey> FactKeysOf(Reason reason) {
  switch (reason) {
    case Reason::kNotDivisible:
      return kNotDivisibleFacts;
    case Reason::kAxisNotInMesh:
      return kAxisNotInMeshFacts;
    case Reason::kRankTruncated:
      return kRankTruncatedFacts;
    case Reason::kBelowMinSize:
      return kBelowMinSizeFacts;
    case Reason::kUnconstrained:
      return kUnconstrainedFacts;
    case Reason::kDuplicateAxis:
      return kDuplicateAxisFacts;
    case Reason::kRankMismatch:
      return kRankMismatchFacts;
    case Reason::kMeshSizeMismatch:
      return kMeshSizeMismatchFacts;
    case Reason::kInvalidShape:
      return kInvalidShapeFacts;
    case Reason::kInvalidMesh:
      return kInvalidMeshFacts;
    case Reason::kInvalidSpec:
      return kInvalidSpecFacts;
    case Reason::kInvalidCutPoints:
      return kInvalidCutPointsFacts;
    case Reason::kLimitExceeded:
      return kLimitExceededFacts;
    case Reason::kUnknownAxis:
      return kUnknownAxisFacts;
    case Reason::kUnknownField:
      return kUnknownFieldFacts;
    case Reason::kUnknownMode:
      return kUnknownModeFacts;
    case Reason::kUnknownPreset:
      return kUnknownPresetFacts;
    case Reason::kUnresolvedField:
      return kUnresolvedFieldFacts;
    case Reason::kInvalidAxisValue:
      return kInvalidAxisValueFacts;
    case Reason::kCyclicAxis:
      return kCyclicAxisFacts;
    case Reason::kInvalidDimension:
      return kInvalidDimensionFacts;
    case Reason::kMissingArgument:
      return kMissingArgumentFacts;
    case Reason::kUnmatchedTensor:
      return kUnmatchedTensorFacts;
    case Reason::kUnsupportedPattern:
      return kUnsupportedPatternFacts;
    case Reason::kBadPattern:
      return kBadPatternFacts;
    case Reason::kBadField:
      return kBadFieldFacts;
    case Reason::kNotFound:
      return kNotFoundFacts;
    case Reason::kAlreadyExists:
      return kAlreadyExistsFacts;
    case Reason::kVersionMismatch:
      return kVersionMismatchFacts;
    case Reason::kRequestIdReused:
      return kRequestIdReusedFacts;
    case Reason::kNotAvailable:
      return kNotAvailableFacts;
    case Reason::kCompacted:
      return kCompactedFacts;
    case Reason::kShapeMismatch:
      return kShapeMismatchFacts;
    case Reason::kUnknownDtype:
      return kUnknownDtypeFacts;
    case Reason::kUnsupportedDtype:
      return kUnsupportedDtypeFacts;
    case Reason::kBadFile:
      return kBadFileFacts;
    case Reason::kChecksumMismatch:
      return kChecksumMismatchFacts;
    case Reason::kBadTile:
      return kBadTileFacts;
    case Reason::kBadToken:
      return kBadTokenFacts;
    case Reason::kArrayDegraded:
      return kArrayDegradedFacts;
    case Reason::kMemoryLimit:
      return kMemoryLimitFacts;
    case Reason::kWorkerLost:
      return kWorkerLostFacts;
    case Reason::kMeshIncomplete:
      return kMeshIncompleteFacts;
    case Reason::kIdentityInUse:
      return kIdentityInUseFacts;
    case Reason::kClusterMismatch:
      return kClusterMismatchFacts;
    case Reason::kProtocolMismatch:
      return kProtocolMismatchFacts;
    case Reason::kStaleEpoch:
      return kStaleEpochFacts;
    case Reason::kStaleTerm:
      return kStaleTermFacts;
    case Reason::kStepAborted:
      return kStepAbortedFacts;
    case Reason::kSessionGone:
      return kSessionGoneFacts;
    case Reason::kNotServing:
      return kNotServingFacts;
    case Reason::kEndpointUnverified:
      return kEndpointUnverifiedFacts;
    case Reason::kStoreFailed:
      return kStoreFailedFacts;
    case Reason::kCancelled:
      return kCancelledFacts;
    case Reason::kDeadline:
      return kDeadlineFacts;
    case Reason::kCollectiveMismatch:
      return kCollectiveMismatchFacts;
    case Reason::kIdentityMismatch:
      return kIdentityMismatchFacts;
    case Reason::kRecovering:
      return kRecoveringFacts;
    case Reason::kStoreFull:
      return kStoreFullFacts;
    case Reason::kNotOwner:
      return kNotOwnerFacts;
    case Reason::kSchemaMismatch:
      return kSchemaMismatchFacts;
    case Reason::kSlowReader:
      return kSlowReaderFacts;
    case Reason::kOverloaded:
      return kOverloadedFacts;
    case Reason::kMeshMismatch:
      return kMeshMismatchFacts;
    case Reason::kMeshInUse:
      return kMeshInUseFacts;
    case Reason::kWorkerAttached:
      return kWorkerAttachedFacts;
    case Reason::kWorkerServesRank:
      return kWorkerServesRankFacts;
    case Reason::kRanksDefined:
      return kRanksDefinedFacts;
    case Reason::kFileChanged:
      return kFileChangedFacts;
    case Reason::kNoReadRoot:
      return kNoReadRootFacts;
    default:
      return {};
  }
}

bool MayHave(Reason reason, FactKey key) {
  const absl::Span<const FactKey> keys = FactKeysOf(reason);
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

}  // namespace shardmesh
