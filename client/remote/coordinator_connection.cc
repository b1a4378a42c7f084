// Connects to a coordinator, and repeats calls if that may help.
#include "client/remote/coordinator_connection.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/synchronization/notification.h"
#include "client/remote/wire_enums.h"
#include "process/random_bytes.h"
#include "process/steady_deadline.h"
#include "rpc/call_memory.h"
#include "rpc/connect.h"
#include "status/retry.h"
#include "status/status_macros.h"

namespace shardmesh::client {

void SleepUnlessCancelled(absl::Duration delay, Cancellation* cancellation) {
  if (cancellation == nullptr) {
    absl::SleepFor(delay);
    return;
  }
  absl::Notification cancelled;
  const Cancellation::Registration registration(cancellation, [&cancelled] { cancelled.Notify(); });
  cancelled.WaitForNotificationWithTimeout(delay);
}

std::string NewRequestId() { return absl::BytesToHexString(RandomBytes(16)); }

void EncodeSelector(const ArraySelector& from, v1::ArraySelector* to) {
  if (!from.name.empty()) {
    to->set_name(from.name);
  } else {
    to->set_array_id(from.array_id);
  }
  if (from.version != 0) to->set_version(from.version);
}

v1::CorrectionPolicy EncodePolicy(bool strict) {
  return strict ? v1::CORRECTION_POLICY_STRICT : v1::CORRECTION_POLICY_REPORT;
}

v1::Compatibility EncodeCompatibility(Compatibility compatibility) {
  return compatibility == Compatibility::kExact ? v1::COMPATIBILITY_EXACT
                                                : v1::COMPATIBILITY_UNSPECIFIED;
}

absl::Status BadAnswer(const absl::Status& status) {
  return absl::InternalError(
      StrCat("the coordinator's answer cannot be read: ", ToStd(status.message())));
}

absl::StatusOr<Array> DecodeArray(const v1::Array& from) {
  Array array;
  SHARDMESH_ASSIGN_OR_RETURN(array.descriptor, DecodeAnswer(from.array_descriptor()));
  array.state = StateOf(from.state());
  array.missing_ranks.assign(from.missing_ranks().begin(), from.missing_ranks().end());
  array.name = from.name();
  array.name_version = from.name_version();
  array.durability = DurabilityOf(from.durability());
  SHARDMESH_ASSIGN_OR_RETURN(array.create_time, DecodeAnswer(from.create_time()));
  array.size_bytes = from.size_bytes();
  array.is_state = from.is_state();
  if (from.has_requested_spec()) {
    SHARDMESH_ASSIGN_OR_RETURN(array.requested_spec, DecodeAnswer(from.requested_spec()));
  }
  SHARDMESH_RETURN_IF_ERROR(DecodeAnswers(from.corrections(), &array.corrections));
  if (from.has_source()) {
    SHARDMESH_ASSIGN_OR_RETURN(SourceFile file, DecodeAnswer(from.source().file()));
    array.source = {.file = std::make_shared<const SourceFile>(std::move(file)),
                    .offset_bytes = from.source().offset_bytes()};
    if (from.source().has_conversion()) {
      SHARDMESH_ASSIGN_OR_RETURN(array.source->conversion,
                                 DecodeAnswer(from.source().conversion()));
    }
  }
  if (from.has_replicas()) {
    array.replicas = {.wanted = from.replicas().wanted(),
                      .complete = from.replicas().complete(),
                      .by_spec = from.replicas().by_spec(),
                      .shares_host = from.replicas().shares_host(),
                      .operation_id = from.replicas().operation_id(),
                      .failure = from.replicas().failure()};
  }
  if (from.has_repair()) {
    ArrayRepair& repair = array.repair.emplace();
    repair.operation_id = from.repair().operation_id();
    repair.tiles = from.repair().tiles();
    repair.size_bytes = from.repair().size_bytes();
    repair.failure = from.repair().failure();
    if (from.repair().has_time_left()) {
      SHARDMESH_ASSIGN_OR_RETURN(repair.time_left, DecodeAnswer(from.repair().time_left()));
    }
    if (from.repair().has_next_try_time()) {
      SHARDMESH_ASSIGN_OR_RETURN(repair.next_try, DecodeAnswer(from.repair().next_try_time()));
    }
  }
  return array;
}

absl::Status CancelledByCaller() {
  return WithReason(absl::CancelledError("the caller cancelled the call"), Reason::kCancelled);
}

absl::StatusOr<std::unique_ptr<CoordinatorConnection>> CoordinatorConnection::Connect(
    const std::string& address, const rpc::Credentials& credentials, absl::Duration timeout,
    const RetryOptions& retries) {
  const rpc::ChannelOptions options{.credentials = credentials,
                                    .peer = rpc::ExpectedPeer::Coordinator()};
  SHARDMESH_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                             rpc::CreateChannel(address, options));
  SHARDMESH_RETURN_IF_ERROR(
      rpc::WaitForConnected(*channel, address,
                            rpc::ConnectOptions{.timeout = std::min(timeout, rpc::kConnectTimeout),
                                                .limit = timeout,
                                                .on_wait = retries.on_wait},
                            options));
  return std::make_unique<CoordinatorConnection>(address, channel, retries);
}

std::unique_ptr<CoordinatorConnection> CoordinatorConnection::InProcess(
    const std::shared_ptr<grpc::Channel>& channel, const RetryOptions& retries) {
  return std::make_unique<CoordinatorConnection>("", channel, retries);
}

absl::Status CoordinatorConnection::Repeat(
    const CallLimit& limit,
    const std::function<absl::Status(const CallLimit& attempt)>& call) const {
  rpc::Backoff backoff({.max_delay = absl::Milliseconds(500)});
  const auto deadline = SteadyDeadline::At(limit.deadline);
  absl::Status last;  // error of the last attempt: why the call is repeated
  int few = 0;        // attempts that ended with an error of SelfRetry::kFewTimes
  for (;;) {
    if (limit.is_cancelled()) return CancelledByCaller();
    absl::Status status =
        call({deadline.wall(), limit.cancellation, limit.traceparent, limit.answer_time});
    if (limit.is_cancelled() && !status.ok()) return CancelledByCaller();
    const Reason reason = ReasonOf(status);
    if (absl::IsDeadlineExceeded(status) && reason == Reason::kUnspecified && !last.ok()) {
      return last;
    }
    // If gRPC's memory for calls was exhausted, gRPC refused the call before the coordinator did
    // anything. Retry: the calls in progress end and free memory.
    const SelfRetry rule =
        rpc::IsShortOfCallMemory(status) ? SelfRetry::kUntilDeadline : SelfRetryOf(status);
    const bool is_away = absl::IsUnavailable(status) &&
                         (reason == Reason::kUnspecified || reason == Reason::kNotServing);
    const bool is_awaited = is_away && retries.await_coordinator;
    if (rule == SelfRetry::kNo ||
        (rule == SelfRetry::kFewTimes && !is_awaited && ++few == kFewAttempts)) {
      return status;
    }
    const absl::Duration delay = backoff.NextDelay(status);
    if (delay >= deadline.left()) {
      return status;
    }
    if (retries.on_wait) {
      retries.on_wait(status);
    }
    SleepUnlessCancelled(delay, limit.cancellation);
    last = std::move(status);
  }
}

}  // namespace shardmesh::client
