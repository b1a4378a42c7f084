// When a retry of a failed call may help, and which errors the client library retries by itself:
// one table for servers and clients.
//
// A server attaches google.rpc.RetryInfo to every error whose reason has a delay in the table
// (rpc/codec/status.h does it for all of them). RetryInfo says when the same request may succeed,
// perhaps only after somebody has acted, for example has started a worker.
//
// The client library repeats a call by itself only if both hold:
//   - the call is idempotent: it changes nothing, or it has a request_id;
//   - the error passes by itself within seconds: SelfRetryOf(error) is not kNo.
// RetryInfo alone is no reason to repeat a call.
#ifndef SHARDMESH_STATUS_RETRY_H_
#define SHARDMESH_STATUS_RETRY_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "status/reason.h"

namespace shardmesh {

// The retries that the client library makes by itself after an error of an idempotent call.
enum class SelfRetry {
  kNo,             // it returns the error: somebody must act first, or the request must change
  kFewTimes,       // it makes kFewAttempts attempts: the state may last, or pass soon
  kUntilDeadline,  // it repeats the call until the deadline: the state passes by itself
};

// All attempts of a call under SelfRetry::kFewTimes, the first included.
inline constexpr int kFewAttempts = 5;

// A row of the table.
struct RetryRule {
  // RetryInfo of errors of the reason, unless an error has a delay of its own. nullopt: none,
  // because the same request fails again.
  std::optional<absl::Duration> delay;
  SelfRetry by_client = SelfRetry::kNo;

  friend bool operator==(const RetryRule&, const RetryRule&) = default;
};
RetryRule RetryRuleOf(Reason reason);

// Says that the same request should not be repeated, although the reason has a delay in the table.
// An OK status stays as it is.
absl::Status WithoutRetry(absl::Status status);

// Returns the delay of RetryInfo: the error's own (WithRetryDelay), or the one of its reason.
// nullopt: the error gets no RetryInfo.
std::optional<absl::Duration> RetryInfoOf(const absl::Status& status);

// Returns what the client library does about an error of an idempotent call. Two cases are no
// matter of the reason:
//   - UNAVAILABLE without a reason: the connection failed. kFewTimes.
//   - ABORTED with a retry delay, and a reason without a row: the first request with this
//     request_id, or another call about the same object, still runs. kUntilDeadline.
SelfRetry SelfRetryOf(const absl::Status& error);

}  // namespace shardmesh

#endif  // SHARDMESH_STATUS_RETRY_H_
