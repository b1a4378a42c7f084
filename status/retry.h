// When a retry of a failed call may help, and which errors the client library retries by itself:
// one table for servers and clients.
//
// A server attaches google.rpc.RetryInfo to every error whose reason has a delay in the table
// (rpc/codec/status.h attaches it). RetryInfo says when the same request may succeed, perhaps only
// after a person has acted, for example has started a worker.
//
// The client library repeats a call by itself only if both of these conditions hold:
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
  kNo,             // returns the error: a person must act first, or the request must change
  kFewTimes,       // makes kFewAttempts attempts: the cause may pass soon, or may persist
  kUntilDeadline,  // repeats the call until its deadline: the cause passes by itself
};

// Number of attempts of a call under SelfRetry::kFewTimes, including the first.
inline constexpr int kFewAttempts = 5;

// The retries after errors of one reason: a row of the table.
struct RetryRule {
  // The delay in RetryInfo, for errors to which WithRetryDelay attached no delay. nullopt: such
  // errors get no RetryInfo, because the same request fails again.
  std::optional<absl::Duration> delay;
  SelfRetry by_client = SelfRetry::kNo;

  friend bool operator==(const RetryRule&, const RetryRule&) = default;
};
RetryRule RetryRuleOf(Reason reason);

// Marks an error whose request should not be repeated, although its reason has a delay in the
// table. An OK status stays unchanged.
absl::Status WithoutRetry(absl::Status status);

// Returns the delay of RetryInfo: the delay that WithRetryDelay attached to this error, or else the
// delay of the error's reason. Returns nullopt if the error gets no RetryInfo.
std::optional<absl::Duration> RetryInfoOf(const absl::Status& status);

// Returns the retries that the client library makes after an error of an idempotent call. The table
// decides by the reason, except in two cases:
//   - UNAVAILABLE without a reason gives kFewTimes: the connection failed.
//   - ABORTED gives kUntilDeadline if it has a retry delay, and a reason without a row in the
//     table: the first request with this request_id, or another call about the same object, still
//     runs.
SelfRetry SelfRetryOf(const absl::Status& error);

}  // namespace shardmesh

#endif  // SHARDMESH_STATUS_RETRY_H_
