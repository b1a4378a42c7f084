// The table of reasons and retries. tests/errors_page_test.py compares it with docs/errors.md.
#include "status/retry.h"

#include "absl/strings/cord.h"
#include "status/detail.h"

namespace shardmesh {
namespace {

// Set only in this process: on the wire, the error has no RetryInfo.
constexpr absl::string_view kNoRetryPayload = "shardmesh/no_retry";

// Whether errors with this code may be worth a retry without a change.
bool MayPass(absl::StatusCode code) {
  return code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kResourceExhausted ||
         code == absl::StatusCode::kAborted;
}

}  // namespace

RetryRule RetryRuleOf(Reason reason) {
  switch (reason) {
    // Workers that are expected back attach within seconds of the coordinator.
    case Reason::kRecovering:
      return {absl::Milliseconds(200), SelfRetry::kUntilDeadline};
    // A process that starts serves soon. One that drains may be restarted, or be gone for good.
    case Reason::kNotServing:
      return {absl::Seconds(1), SelfRetry::kFewTimes};
    // The calls of others end. A caller may also wait for a place that its own calls occupy.
    case Reason::kOverloaded:
      return {absl::Seconds(1), SelfRetry::kFewTimes};
    // The server answers RECOVERING instead where the same request succeeds once the worker is
    // back. Otherwise a person has to start a worker, or operands may be gone.
    case Reason::kWorkerLost:
    case Reason::kMeshIncomplete:
    case Reason::kStepAborted:
      return {absl::Seconds(1), SelfRetry::kNo};
    // As above: a step that left its operands untouched is answered with RECOVERING.
    case Reason::kStaleEpoch:
      return {absl::Milliseconds(100), SelfRetry::kNo};
    default:
      return {};
  }
}

absl::Status WithoutRetry(absl::Status status) {
  if (!status.ok()) status.SetPayload(kNoRetryPayload, absl::Cord("1"));
  return status;
}

std::optional<absl::Duration> RetryInfoOf(const absl::Status& status) {
  if (status.ok() || status.GetPayload(kNoRetryPayload).has_value()) return std::nullopt;
  if (const auto own = RetryDelayOf(status); own.has_value()) return own;
  return RetryRuleOf(ReasonOf(status)).delay;
}

SelfRetry SelfRetryOf(const absl::Status& error) {
  if (!MayPass(error.code())) return SelfRetry::kNo;
  const Reason reason = ReasonOf(error);
  if (const RetryRule rule = RetryRuleOf(reason); rule.delay.has_value()) return rule.by_client;
  if (absl::IsUnavailable(error) && reason == Reason::kUnspecified) return SelfRetry::kFewTimes;
  return absl::IsAborted(error) && RetryDelayOf(error).has_value() ? SelfRetry::kUntilDeadline
                                                                   : SelfRetry::kNo;
}

}  // namespace shardmesh
