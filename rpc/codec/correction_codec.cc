// Attaches corrections to a status, and reads them back.
#include "rpc/codec/correction_codec.h"

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "shardmesh/v1/spec.pb.h"
#include "status/detail.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

absl::Status WithCorrectionFacts(absl::Status status, const Correction& correction) {
  switch (correction.reason) {
    case Reason::kNotDivisible:
      return WithFacts(std::move(status), {{fact::kDimension, correction.dim},
                                           {fact::kHave, correction.have},
                                           {fact::kNeed, correction.need},
                                           {fact::kAxis, correction.requested.AxisNames()}});
    case Reason::kAxisNotInMesh:
      return WithFacts(std::move(status), {{fact::kDimension, correction.dim},
                                           {fact::kHave, correction.have},
                                           {fact::kNeed, correction.need},
                                           {fact::kAxis, StrJoin(correction.absent_axes, ",")}});
    case Reason::kRankTruncated:
      return WithFacts(std::move(status), {{fact::kDimension, correction.dim},
                                           {fact::kHave, correction.have},
                                           {fact::kNeed, correction.need}});
    case Reason::kBelowMinSize:
      return WithFacts(std::move(status),
                       {{fact::kHave, correction.have}, {fact::kNeed, correction.need}});
    case Reason::kUnconstrained:
      return WithFacts(std::move(status), {{fact::kDimension, correction.dim}});
    default:
      return status;
  }
}

}  // namespace

absl::Status WithCorrections(absl::Status status, absl::Span<const Correction> corrections,
                             absl::Span<const Fix> fixes, const Mesh& mesh) {
  if (status.ok() || corrections.empty()) {
    return status;
  }
  v1::CorrectionFailure failure;
  for (const Correction& correction : corrections) {
    v1::Correction* const added = failure.add_corrections();
    Encode(correction, added);
    added->set_message(correction.ToString(mesh));
  }
  for (const Fix& fix : fixes) {
    Encode(fix, failure.mutable_corrections(static_cast<int>(fix.correction))->add_fixes());
  }
  status.SetPayload(kCorrectionFailureUrl, absl::Cord(failure.SerializeAsString()));
  return WithCorrectionFacts(std::move(status), corrections.front());
}

CorrectionFailure CorrectionsOf(const absl::Status& status) {
  CorrectionFailure result;
  const auto payload = status.GetPayload(kCorrectionFailureUrl);
  v1::CorrectionFailure failure;
  if (!payload.has_value() || !failure.ParseFromString(std::string(*payload))) {
    return result;
  }
  for (const v1::Correction& wire : failure.corrections()) {
    absl::StatusOr<Correction> correction = Decode(wire);
    if (!correction.ok()) return {};
    for (const v1::Fix& wire_fix : wire.fixes()) {
      absl::StatusOr<Fix> fix = Decode(wire_fix);
      if (!fix.ok()) return {};
      fix->correction = static_cast<int64_t>(result.corrections.size());
      result.fixes.push_back(*std::move(fix));
    }
    result.corrections.push_back(*std::move(correction));
  }
  result.omitted = failure.omitted();
  return result;
}

}  // namespace shardmesh::rpc
