// The retry rule of each reason. tests/errors_page_test.py compares the table with docs/errors.md.
#include "status/retry.h"

#include "absl/strings/cord.h"
#include "status/detail.h"

namespace shardmesh {
namespace {

// Marks an error that gets no RetryInfo. The payload exists only in this process; it is not sent.
constexpr absl::string_view kNoRetryPayload = "shardmesh/no_retry";

// Returns whether a repeated call may succeed after an error with this code.
bool MayPass(absl::StatusCode code) {
  return code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kResourceExhausted ||
         code == absl::StatusCode::kAborted;
}

}  // namespace

RetryRule RetryRuleOf(Reason reason) {
  switch (reason) {
    // The error passes once the expected workers have attached, within seconds after the
    // coordinator's start.
    case Reason::kRecovering:
      return {absl::Milliseconds(200), SelfRetry::kUntilDeadline};
    // A process that starts will serve soon. A draining process may be restarted, or never return.
    case Reason::kNotServing:
      return {absl::Seconds(1), SelfRetry::kFewTimes};
    // The error passes when running calls end. But the caller itself may have started all these
    // calls, so do not retry until the deadline.
    case Reason::kOverloaded:
      return {absl::Seconds(1), SelfRetry::kFewTimes};
    // For a request that can succeed once the worker is back, the server answers RECOVERING instead
    // of these reasons. With one of these reasons, a person has to start a worker, or operands may
    // be lost.
    case Reason::kWorkerLost:
    case Reason::kMeshIncomplete:
    case Reason::kStepAborted:
      return {absl::Seconds(1), SelfRetry::kNo};
    // If the step left its operands untouched, the server answers RECOVERING instead of
    // STALE_EPOCH.
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
