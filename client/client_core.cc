// Puts and gathers of ClientCore: begins, runs and ends transfers in the session.
#include "client/client_core.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "client/remote/operation_calls.h"
#include "client/types/cancellation.h"
#include "rpc/call_memory.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

// How long to wait for the coordinator's report on the cause of a broken transfer. The coordinator
// takes at most 5 s to notice that a worker is lost.
constexpr absl::Duration kVerdictTimeout = absl::Seconds(7);
// Time limit for the call that aborts a broken transfer. If that call fails, the transfer is
// aborted when the session ends.
constexpr absl::Duration kAbortTimeout = absl::Seconds(2);
// Like kAbortTimeout, but for an abort after the put's deadline: the caller expects the put to end
// at the deadline.
constexpr absl::Duration kLateAbortTimeout = absl::Milliseconds(500);
// Time limit for the release of an array that was read.
constexpr absl::Duration kReleaseTimeout = absl::Seconds(2);

// Whether a stream's error may be only a symptom. If so, the coordinator may know the cause: a
// worker is lost, or the transfer has ended.
bool IsSymptom(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kInternal:
      return ReasonOf(status) != Reason::kMemoryLimit;
    default:
      return false;
  }
}

// Whether a download's error may be due to a change after the coordinator's answer, so that a new
// answer may help. For example, a worker was lost, or a restarted coordinator signs tokens with
// another key.
bool MayHaveMoved(const absl::Status& status) {
  const Reason reason = ReasonOf(status);
  return reason == Reason::kArrayDegraded || reason == Reason::kBadToken ||
         reason == Reason::kStaleTerm || reason == Reason::kNotServing ||
         rpc::IsShortOfCallMemory(status) ||
         (absl::IsUnavailable(status) && reason == Reason::kUnspecified);
}

// The array as an argument of a command. A name that has an "@" is written with its version;
// without a known version, the array is written as @ID.
std::string CommandText(const ArraySelector& array, const std::string& array_id) {
  if (!array.name.empty() && array.version > 0) return StrCat(array.name, "@", array.version);
  const bool is_by_name = !array.name.empty() && array.name.find('@') == std::string::npos;
  return is_by_name ? array.name : StrCat("@", array_id);
}

// The error of a put whose commit got no answer because gRPC's memory for calls was exhausted.
absl::Status OutcomeUnknown(const absl::Status& status) {
  return WithReason(
      absl::DeadlineExceededError(StrCat(
          "the coordinator did not answer the put's commit in time (", ToStd(status.message()),
          "): the put may be committed; describe its names before you put again")),
      Reason::kDeadline);
}

// Cancels a transfer's streams as soon as the coordinator reports that the transfer failed. If no
// thread cancelled the streams, a stream to a worker that no longer reads would stay blocked.
class TransferWatch {
 public:
  TransferWatch(const CoordinatorConnection& connection, const std::string& transfer_id,
                const SteadyDeadline& deadline, const std::string& traceparent,
                Cancellation* streams)
      : thread_([this, &connection, transfer_id, deadline, traceparent, streams] {
          const absl::StatusOr<Operation> operation = WatchOperation(
              connection, transfer_id, [](const Operation&) { return true; },
              {.deadline = deadline.wall(), .cancellation = &stop_, .traceparent = traceparent});
          if (operation.ok() && (operation->state == OperationState::kFailed ||
                                 operation->state == OperationState::kCancelled)) {
            streams->Cancel();
          }
        }) {}
  ~TransferWatch() {
    stop_.Cancel();
    thread_.join();
  }

 private:
  Cancellation stop_;
  std::thread thread_;  // declared last: the thread uses the members above
};

// The limit of a call that cleans up after a call with `options`. The cancellation of `options` is
// left out, because the cleanup must also run after a cancellation.
CallLimit Aftermath(absl::Duration timeout, const CallOptions& options) {
  CallLimit limit = CallLimit::Within(timeout);
  limit.traceparent = options.traceparent;
  return limit;
}

std::vector<PutArray> ArraysOf(BegunPut* put) {
  std::vector<PutArray> arrays;
  arrays.reserve(put->assignments.size());
  for (BegunPut::Assignment& assignment : put->assignments) {
    arrays.push_back({std::move(assignment.array), std::move(assignment.corrections)});
  }
  return arrays;
}

}  // namespace

absl::StatusOr<PutResult> ClientCore::Put(absl::Span<const PutTensor> tensors,
                                          const PutOptions& put_options,
                                          const SteadyDeadline& deadline,
                                          const CallOptions& options, bool* is_taken_back) {
  *is_taken_back = false;
  std::string session;
  SHARDMESH_ASSIGN_OR_RETURN(
      BegunPut put,
      InSession(deadline, options, [&](const std::string& session_id, const CallLimit& limit) {
        session = session_id;
        return BeginPut(*connection_, session_id, tensors, put_options, limit);
      }));
  PutResult result;
  if (put_options.validate_only) {
    result.arrays = ArraysOf(&put);
    return result;
  }
  if (put_options.on_begun) {
    put_options.on_begun(put.transfer_id);
  }
  std::vector<UploadTensor> uploads;
  uploads.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    uploads.push_back({&put.assignments[i].array, put.assignments[i].token, tensors[i].view});
  }
  const absl::StatusOr<int64_t> sent = [&] {
    Cancellation streams;
    std::optional<Cancellation::Registration> registration;
    if (options.cancellation != nullptr) {
      registration.emplace(options.cancellation, [&streams] { streams.Cancel(); });
    }
    const TransferWatch watch(*connection_, put.transfer_id, deadline, options.traceparent,
                              &streams);
    return Upload(put.devices, uploads, &streams,
                  Transfer(deadline, put_options.progress, options));
  }();
  SHARDMESH_ASSIGN_OR_RETURN(
      CommittedPut committed,
      Conclude(session, put.transfer_id, sent.status(), deadline, options, is_taken_back));

  result.arrays = ArraysOf(&put);
  result.revision = committed.revision;
  result.durability = committed.durability;
  result.sent_bytes = sent.value_or(0);
  result.transfer_time = committed.transfer_time;
  return result;
}

GatherOutcome ClientCore::Gather(const ArraySelector& array, const std::optional<Tile>& part,
                                 const std::string& expected_id, const ProgressCallback& progress,
                                 const SteadyDeadline& deadline, const CallOptions& options) {
  std::string session;
  read_pins_.BeginAsking();
  absl::StatusOr<BegunGet> begun =
      InSession(deadline, options, [&](const std::string& session_id, const CallLimit& limit) {
        session = session_id;
        return BeginGet(*connection_, session_id, array, part, limit);
      });
  read_pins_.EndAsking(begun);
  if (!begun.ok()) return {std::move(begun).status()};
  BegunGet get = *std::move(begun);
  const absl::Cleanup let_go = [&, array_id = get.array.descriptor.array_id] {
    if (const std::vector<std::string> idle = read_pins_.EndReading(array_id); !idle.empty()) {
      ReleaseArrays(*connection_, session, idle, Aftermath(kReleaseTimeout, options)).IgnoreError();
      read_pins_.EndLettingGo();
    }
  };
  // BeginGet may return an answer after the time limit or the cancellation: check both.
  if (LimitAt(deadline, options).is_cancelled()) return {CancelledByCaller()};
  if (deadline.is_over()) {
    return {connection_->StatusOf({grpc::StatusCode::DEADLINE_EXCEEDED, "Deadline Exceeded"})};
  }
  if (!expected_id.empty() && get.array.descriptor.array_id != expected_id) {
    return {absl::AbortedError(StrCat("'", array.name, "' no longer means the array ", expected_id,
                                      ", of which the slice is, but ",
                                      get.array.descriptor.array_id, "; ask again")),
            /*may_have_moved=*/true};
  }
  absl::StatusOr<GatheredTensor> tensor = GatheredTensor::Allocate(std::move(get.array), part);
  if (!tensor.ok()) return {std::move(tensor)};
  TransferOptions transfer = Transfer(deadline, progress, options);
  transfer.array = CommandText(array, tensor->array().descriptor.array_id);
  const absl::Status downloaded =
      Download(tensor->array().descriptor, tensor->part(), get.token, get.devices,
               tensor->mutable_view(), options.cancellation, transfer);
  if (downloaded.ok()) return {std::move(tensor)};
  if (LimitAt(deadline, options).is_cancelled()) return {CancelledByCaller()};
  return {downloaded, MayHaveMoved(downloaded)};
}

absl::StatusOr<CommittedPut> ClientCore::Conclude(const std::string& session_id,
                                                  const std::string& transfer_id,
                                                  const absl::Status& sent,
                                                  const SteadyDeadline& deadline,
                                                  const CallOptions& options, bool* is_taken_back) {
  *is_taken_back = false;
  bool is_cancelled = LimitAt(deadline, options).is_cancelled();
  if (sent.ok()) {
    absl::StatusOr<CommittedPut> committed =
        CommitTransfer(*connection_, session_id, transfer_id, LimitAt(deadline, options));
    // If gRPC's memory for calls was exhausted, the client repeated the commit until the time
    // limit. The coordinator may have committed the put on an earlier request.
    return rpc::IsShortOfCallMemory(committed.status()) ? OutcomeUnknown(committed.status())
                                                        : std::move(committed);
  }
  const bool may_know_better = IsSymptom(sent) && !is_cancelled;
  if (may_know_better) {
    // Ask the coordinator to commit although sending failed. The coordinator answers as soon as it
    // knows the cause of the failure, or as soon as all tiles have arrived.
    CallLimit limit = Aftermath(std::min(deadline.left(), kVerdictTimeout), options);
    limit.cancellation = options.cancellation;
    absl::StatusOr<CommittedPut> verdict =
        CommitTransfer(*connection_, session_id, transfer_id, limit);
    is_cancelled = limit.is_cancelled();
    if (verdict.ok() || ReasonOf(verdict.status()) == Reason::kWorkerLost) {
      return verdict;
    }
    if (!is_cancelled && absl::IsCancelled(sent) && !absl::IsDeadlineExceeded(verdict.status())) {
      return rpc::IsShortOfCallMemory(verdict.status()) ? OutcomeUnknown(verdict.status())
                                                        : std::move(verdict);
    }
  }
  const absl::Status aborted =
      AbortTransfer(*connection_, session_id, transfer_id,
                    is_cancelled ? "the client cancelled it" : ToStd(sent.message()),
                    Aftermath(deadline.is_over() ? kLateAbortTimeout : kAbortTimeout, options));
  if (is_cancelled) return CancelledByCaller();
  *is_taken_back = aborted.ok() && !may_know_better;
  return sent;
}

}  // namespace shardmesh::client
