// ArrayClient: waits for second replicas.
#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/clock.h"
#include "client/arrays.h"
#include "client/client_core.h"
#include "client/remote/coordinator_connection.h"
#include "client/remote/operation_calls.h"
#include "process/steady_deadline.h"
#include "status/fact_keys.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(20);
constexpr absl::Duration kLongestPause = absl::Milliseconds(500);
// The last part of the time, in which the operation of the copies is watched. It is longer than two
// pauses, so that the watch begins before the deadline.
constexpr absl::Duration kLastWatch = absl::Milliseconds(1500);
// In this last part of kLastWatch, the watch is not interrupted, so that the coordinator has the
// time to name the workers that are late.
constexpr absl::Duration kUninterruptedWatch = absl::Milliseconds(400);
// How long the description after the end of the watch may take at least.
constexpr absl::Duration kLastDescription = absl::Milliseconds(200);

std::string CommonPrefix(absl::Span<const std::string> names) {
  const auto [first, last] = std::minmax_element(names.begin(), names.end());
  const auto end = std::mismatch(first->begin(), first->end(), last->begin(), last->end()).first;
  return {first->begin(), end};
}

absl::Status CheckOf(const std::string& name, const Array& array) {
  if (!array.replicas.has_value()) {
    return WithReason(
        absl::FailedPreconditionError(
            StrCat("the array ", PythonRepr(name),
                   " wants one replica only: another call has put it since, or the coordinator is "
                   "of a build without replicas")),
        Reason::kNotAvailable);
  }
  if (array.replicas->failure.empty()) return absl::OkStatus();
  return WithReason(absl::FailedPreconditionError(StrCat(
                        "the array ", PythonRepr(name), " has replicas ", array.replicas->complete,
                        " of ", array.replicas->wanted, ": ", array.replicas->failure,
                        "; the array itself is complete, and the coordinator tries again later")),
                    Reason::kArrayDegraded, {{fact::kName, name}});
}

// Returns the first operation that copies one of the arrays; empty if none does.
std::string CopyingOperation(absl::Span<const Array> arrays) {
  const auto copied = std::find_if(arrays.begin(), arrays.end(), [](const Array& array) {
    return array.replicas.has_value() && !array.replicas->operation_id.empty();
  });
  return copied == arrays.end() ? "" : copied->replicas->operation_id;
}

struct Bytes {
  int64_t done = 0;
  int64_t total = 0;
};

// Returns the progress of the operation that copies one of the arrays; zeros if none does, or if
// the coordinator does not answer.
Bytes ProgressOf(const CoordinatorConnection& connection, absl::Span<const Array> arrays,
                 const CallLimit& limit) {
  const std::string operation_id = CopyingOperation(arrays);
  if (operation_id.empty()) return {};
  v1::GetOperationRequest request;
  request.set_operation_id(operation_id);
  v1::GetOperationResponse response;
  const absl::Status asked = connection.Call(
      connection.operations, &v1::OperationService::Stub::GetOperation, request, limit, &response);
  if (!asked.ok()) return {};
  return {.done = response.operation().done_bytes(), .total = response.operation().total_bytes()};
}

// The arrays of the names, in their order, and the bytes of those that are complete.
struct Described {
  std::vector<Array> arrays;
  Bytes bytes;
  bool are_complete = true;
};

// Describes the arrays. `prefix`: the common prefix of the names. Returns the error of the first
// array that cannot become complete.
absl::StatusOr<Described> DescribeAll(ArrayClient& client, absl::Span<const std::string> names,
                                      const std::string& prefix, const CallOptions& call) {
  // One list instead of a call for each name.
  std::map<std::string, Array, std::less<>> found;
  if (names.size() > 1) {
    SHARDMESH_ASSIGN_OR_RETURN(std::vector<Array> listed, client.ListArrays(prefix, false, call));
    for (Array& array : listed) {
      std::string name = array.name;
      found.insert_or_assign(std::move(name), std::move(array));
    }
  }
  Described described;
  for (const std::string& name : names) {
    const auto there = found.find(name);
    if (there == found.end()) {
      SHARDMESH_ASSIGN_OR_RETURN(described.arrays.emplace_back(),
                                 client.DescribeArray(ArraySelector::ByName(name), call));
    } else {
      described.arrays.push_back(there->second);
    }
    const Array& array = described.arrays.back();
    SHARDMESH_RETURN_IF_ERROR(CheckOf(name, array));
    const bool is_complete = array.replicas->complete >= array.replicas->wanted;
    described.bytes.total += array.size_bytes;
    if (is_complete) described.bytes.done += array.size_bytes;
    described.are_complete = described.are_complete && is_complete;
  }
  return described;
}

// Returns the error of a wait whose deadline has passed. Requires that an array is incomplete.
absl::Status NotCopiedInTime(absl::Span<const Array> arrays) {
  const auto incomplete = std::find_if(arrays.begin(), arrays.end(), [](const Array& array) {
    return array.replicas->complete < array.replicas->wanted;
  });
  return WithReason(absl::DeadlineExceededError(
                        StrCat("the array ", PythonRepr(incomplete->name), " has replicas ",
                               incomplete->replicas->complete, " of ", incomplete->replicas->wanted,
                               " at the deadline; the array itself is complete, and the "
                               "coordinator goes on to copy it")),
                    Reason::kDeadline);
}

}  // namespace

absl::StatusOr<std::vector<Array>> ArrayClient::AwaitReplicas(absl::Span<const std::string> names,
                                                              const ProgressCallback& progress,
                                                              const CallOptions& options) {
  if (names.empty()) return std::vector<Array>();
  const SteadyDeadline deadline = core_->TransferDeadline(options);
  const std::string prefix = CommonPrefix(names);
  absl::Duration pause = kFirstPause;
  absl::Status late;  // the error of the watch, once the time is over
  for (;;) {
    CallOptions call = options;
    call.timeout = std::max(deadline.left(), late.ok() ? absl::Milliseconds(1) : kLastDescription);
    const absl::StatusOr<Described> described = DescribeAll(*this, names, prefix, call);
    if (!described.ok()) {
      return late.ok() || !absl::IsDeadlineExceeded(described.status()) ? described.status() : late;
    }
    const std::vector<Array>& arrays = described->arrays;
    if (progress) {
      const Bytes bytes = late.ok()
                              ? ProgressOf(core_->connection(), arrays,
                                           ClientCore::LimitAt(core_->Deadline(options), options))
                              : Bytes();
      bytes.total > 0 ? progress(bytes.done, bytes.total)
                      : progress(described->bytes.done, described->bytes.total);
    }
    if (described->are_complete) return arrays;
    if (!late.ok()) return late;
    if (deadline.is_over()) return NotCopiedInTime(arrays);
    // Shortly before the deadline, the watched operation ends with an error that names the workers
    // that are late. The operation may copy other arrays too, and go on when these are complete.
    if (const std::string copying = CopyingOperation(arrays);
        !copying.empty() && deadline.left() <= kLastWatch) {
      const SteadyDeadline next_description = SteadyDeadline::After(pause);
      const absl::StatusOr<Operation> watched = WatchOperation(
          core_->connection(), copying,
          [&](const Operation&) {
            return !next_description.is_over() || deadline.left() <= kUninterruptedWatch;
          },
          ClientCore::LimitAt(deadline, options));
      if (absl::IsDeadlineExceeded(watched.status())) late = watched.status();
      // The copies may have become complete since the last description.
      if (!late.ok() || (watched.ok() && next_description.is_over())) continue;
    }
    absl::SleepFor(std::min(pause, std::max(deadline.left(), absl::ZeroDuration())));
    pause = std::min(2 * pause, kLongestPause);
  }
}

}  // namespace shardmesh::client
