// Puts and gathers of ClientCore: transfers in the session, and their ends.
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

// How long to wait for the coordinator's report on a broken transfer: it takes 5 s at most to
// notice that a worker is lost.
constexpr absl::Duration kVerdictTimeout = absl::Seconds(7);
// Time limit for the abort of a broken transfer. The end of the session aborts it anyway.
constexpr absl::Duration kAbortTimeout = absl::Seconds(2);
// The same after the put's deadline, on which the caller relies.
constexpr absl::Duration kLateAbortTimeout = absl::Milliseconds(500);
// The same for the release of an array that was read.
constexpr absl::Duration kReleaseTimeout = absl::Seconds(2);

// Whether the coordinator may know the cause of a stream's error: a worker is lost, or the transfer
// has ended.
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

// Whether a download's error may be due to a change since the coordinator's answer: a worker was
// lost, or another coordinator signs the tokens.
bool MayHaveMoved(const absl::Status& status) {
  const Reason reason = ReasonOf(status);
  return reason == Reason::kArrayDegraded || reason == Reason::kBadToken ||
         reason == Reason::kStaleTerm || reason == Reason::kNotServing ||
         rpc::IsShortOfCallMemory(status) ||
         (absl::IsUnavailable(status) && reason == Reason::kUnspecified);
}

// The error of a put whose commit got no answer because the memory for calls was exhausted.
absl::Status OutcomeUnknown(const absl::Status& status) {
  return WithReason(
      absl::DeadlineExceededError(StrCat(
          "the coordinator did not answer the put's commit in time (", ToStd(status.message()),
          "): the put may be committed; describe its names before you put again")),
      Reason::kDeadline);
}

// Cancels a transfer's streams as soon as the coordinator reports that it failed. Otherwise they
// would keep sending to a worker that no longer reads.
class TransferWatch {
 public:
  TransferWatch(const CoordinatorConnection& connection, const std::string& transfer_id,
                const rpc::SteadyDeadline& deadline, Cancellation* streams)
      : thread_([this, &connection, transfer_id, deadline, streams] {
          const absl::StatusOr<Operation> operation =
              WatchOperation(connection, transfer_id, [](const Operation&) { return true; },
                             {.deadline = deadline.wall(), .cancellation = &stop_});
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
  std::thread thread_;  // last: uses the members above
};

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
                                          const rpc::SteadyDeadline& deadline,
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
    const TransferWatch watch(*connection_, put.transfer_id, deadline, &streams);
    return Upload(put.devices, uploads, &streams, Transfer(deadline, put_options.progress));
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
                                 const ProgressCallback& progress,
                                 const rpc::SteadyDeadline& deadline, const CallOptions& options) {
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
      ReleaseArrays(*connection_, session, idle, CallLimit::Within(kReleaseTimeout)).IgnoreError();
      read_pins_.EndLettingGo();
    }
  };
  absl::StatusOr<GatheredTensor> tensor = GatheredTensor::Allocate(std::move(get.array), part);
  if (!tensor.ok()) return {std::move(tensor)};
  const absl::Status downloaded =
      Download(tensor->array().descriptor, tensor->part(), get.token, get.devices,
               tensor->mutable_view(), options.cancellation, Transfer(deadline, progress));
  if (downloaded.ok()) return {std::move(tensor)};
  if (LimitAt(deadline, options).is_cancelled()) return {CancelledByCaller()};
  return {downloaded, MayHaveMoved(downloaded)};
}

absl::StatusOr<CommittedPut> ClientCore::Conclude(const std::string& session_id,
                                                  const std::string& transfer_id,
                                                  const absl::Status& sent,
                                                  const rpc::SteadyDeadline& deadline,
                                                  const CallOptions& options, bool* is_taken_back) {
  *is_taken_back = false;
  const bool is_cancelled = LimitAt(deadline, options).is_cancelled();
  if (sent.ok()) {
    absl::StatusOr<CommittedPut> committed =
        CommitTransfer(*connection_, session_id, transfer_id, LimitAt(deadline, options));
    // It was asked until the time limit, and may have committed after the first request.
    return rpc::IsShortOfCallMemory(committed.status()) ? OutcomeUnknown(committed.status())
                                                        : std::move(committed);
  }
  const bool may_know_better = IsSymptom(sent) && !is_cancelled;
  if (may_know_better) {
    // The coordinator answers as soon as it knows the cause, or that all tiles are there.
    absl::StatusOr<CommittedPut> verdict =
        CommitTransfer(*connection_, session_id, transfer_id,
                       CallLimit::Within(std::min(deadline.left(), kVerdictTimeout)));
    if (verdict.ok() || ReasonOf(verdict.status()) == Reason::kWorkerLost) {
      return verdict;
    }
    if (absl::IsCancelled(sent) && !absl::IsDeadlineExceeded(verdict.status())) {
      return rpc::IsShortOfCallMemory(verdict.status()) ? OutcomeUnknown(verdict.status())
                                                        : std::move(verdict);
    }
  }
  const absl::Status aborted =
      AbortTransfer(*connection_, session_id, transfer_id,
                    is_cancelled ? "the client cancelled it" : ToStd(sent.message()),
                    CallLimit::Within(deadline.is_over() ? kLateAbortTimeout : kAbortTimeout));
  if (is_cancelled) return CancelledByCaller();
  *is_taken_back = aborted.ok() && !may_know_better;
  return sent;
}

}  // namespace shardmesh::client
