// ArrayClient: transfers in the session of ClientCore, and calls about names.
#include "client/arrays.h"

#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "client/client_core.h"
#include "client/remote/coordinator_connection.h"
#include "client/remote/transfer_calls.h"
#include "client/remote/wire_enums.h"
#include "process/steady_deadline.h"
#include "rpc/call.h"
#include "rpc/call_memory.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/npy.h"

namespace shardmesh::client {
namespace {

// Limit on the number of attempts of a gather. If tiles are not on the workers that the coordinator
// named, the client asks the coordinator again. The coordinator learns of lost workers at once, or
// within its heartbeat limit of 5 s.
constexpr int kMaxGatherAttempts = 8;

// Returns the error for an array whose workers this client cannot reach, although the coordinator
// counts them as attached. Returns `status` unchanged if it is not ARRAY_DEGRADED.
absl::Status WithoutReach(const absl::Status& status) {
  if (ReasonOf(status) != Reason::kArrayDegraded) {
    return status;
  }
  return absl::UnavailableError(
      StrCat(ToStd(status.message()),
             "; those workers are attached to the coordinator, but this client exchanges elements "
             "with them directly: run it where it can reach the workers' addresses"));
}

absl::StatusOr<Array> Describe(const CoordinatorConnection& connection, const ArraySelector& array,
                               const CallLimit& limit) {
  v1::DescribeArrayRequest request;
  EncodeSelector(array, request.mutable_array());
  v1::DescribeArrayResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.arrays, &v1::ArrayService::Stub::DescribeArray, request, limit, &response));
  return DecodeArray(response.array());
}

// Gathers the array, or only `slice` of it if `slice` is not null.
absl::StatusOr<GatheredTensor> GatherPart(ClientCore& core, const ArraySelector& array,
                                          const ArraySlice* slice, const ProgressCallback& progress,
                                          const CallOptions& options) {
  const SteadyDeadline deadline = core.TransferDeadline(options);
  const auto describe = [&] {
    return Describe(core.connection(), array, ClientCore::LimitAt(deadline, options));
  };
  rpc::Backoff backoff({.max_delay = absl::Seconds(1)});
  for (int attempt = 1;; ++attempt) {
    // Resolve the slice anew for each attempt: the name may now refer to an array of another shape.
    std::optional<Tile> part;
    std::string array_id;
    if (slice != nullptr) {
      SHARDMESH_ASSIGN_OR_RETURN(const Array described, describe());
      SHARDMESH_ASSIGN_OR_RETURN(part, TileOf(*slice, described.descriptor));
      array_id = described.descriptor.array_id;
    }
    GatherOutcome outcome = core.Gather(array, part, array_id, progress, deadline, options);
    if (slice != nullptr && absl::IsInvalidArgument(outcome.tensor.status())) {
      // The part fits the described array. An error therefore suggests that the name now refers to
      // another array.
      const absl::StatusOr<Array> now = describe();
      outcome.may_have_moved = now.ok() && now->descriptor.array_id != array_id;
    }
    if (outcome.tensor.ok() || !outcome.may_have_moved) {
      return std::move(outcome.tensor);
    }
    // The coordinator's answer was out of date: the coordinator did not know yet that tiles had
    // moved or were lost. Wait, so that the coordinator can learn of the change, and ask again.
    const absl::Duration delay = backoff.NextDelay(outcome.tensor.status());
    if (attempt == kMaxGatherAttempts || delay >= deadline.left()) {
      return WithoutReach(std::move(outcome.tensor).status());
    }
    core.OnWait(outcome.tensor.status());
    SleepUnlessCancelled(delay, options.cancellation);
  }
}

}  // namespace

absl::StatusOr<PutResult> ArrayClient::PutTensors(absl::Span<const PutTensor> tensors,
                                                  const PutOptions& put_options,
                                                  const CallOptions& options) {
  const SteadyDeadline deadline = core_->TransferDeadline(options);
  rpc::Backoff backoff({.initial_delay = absl::Milliseconds(200), .max_delay = absl::Seconds(5)});
  for (;;) {
    bool is_taken_back = false;
    absl::StatusOr<PutResult> result =
        core_->Put(tensors, put_options, deadline, options, &is_taken_back);
    if (!is_taken_back || !rpc::IsShortOfCallMemory(result.status())) {
      return result;
    }
    const absl::Duration delay = backoff.NextDelay(result.status());
    if (delay >= deadline.left()) {
      return result;
    }
    core_->OnWait(result.status());
    SleepUnlessCancelled(delay, options.cancellation);
  }
}

absl::StatusOr<PutResult> ArrayClient::LoadCheckpoint(const Checkpoint& checkpoint,
                                                      const PutOptions& put_options,
                                                      const CallOptions& options) {
  std::vector<PutTensor> tensors;
  tensors.reserve(checkpoint.tensors().size());
  for (const Checkpoint::Entry& entry : checkpoint.tensors()) {
    tensors.push_back({.name = entry.tensor->name, .view = checkpoint.View(entry)});
  }
  return PutTensors(tensors, put_options, options);
}

absl::StatusOr<PutResult> ArrayClient::LoadCheckpoint(const std::string& path,
                                                      const PutOptions& put_options,
                                                      const CallOptions& options) {
  SHARDMESH_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(path));
  return LoadCheckpoint(checkpoint, put_options, options);
}

absl::StatusOr<GatheredTensor> ArrayClient::Gather(const ArraySelector& array,
                                                   const ProgressCallback& progress,
                                                   const CallOptions& options) {
  return GatherPart(*core_, array, nullptr, progress, options);
}

absl::StatusOr<GatheredTensor> ArrayClient::Gather(const ArraySelector& array,
                                                   const ArraySlice& slice,
                                                   const ProgressCallback& progress,
                                                   const CallOptions& options) {
  return GatherPart(*core_, array, &slice, progress, options);
}

absl::StatusOr<Array> ArrayClient::GatherToNpy(const ArraySelector& array, const std::string& path,
                                               const ProgressCallback& progress,
                                               const CallOptions& options) {
  SHARDMESH_ASSIGN_OR_RETURN(const GatheredTensor tensor, Gather(array, progress, options));
  SHARDMESH_RETURN_IF_ERROR(WriteNpy(path, tensor.view()));
  return tensor.array();
}

absl::StatusOr<Array> ArrayClient::GatherToNpy(const ArraySelector& array, const ArraySlice& slice,
                                               const std::string& path,
                                               const ProgressCallback& progress,
                                               const CallOptions& options) {
  SHARDMESH_ASSIGN_OR_RETURN(const GatheredTensor tensor, Gather(array, slice, progress, options));
  SHARDMESH_RETURN_IF_ERROR(WriteNpy(path, tensor.view()));
  return tensor.array();
}

absl::StatusOr<Array> ArrayClient::DescribeArray(const ArraySelector& array,
                                                 const CallOptions& options) {
  return Describe(core_->connection(), array, core_->LimitOf(options));
}

absl::StatusOr<int64_t> ArrayClient::MoveName(const std::string& name, const std::string& array_id,
                                              const Precondition& precondition, bool validate_only,
                                              const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::MoveNameRequest request;
  request.set_request_id(NewRequestId());
  request.set_name(name);
  request.set_array_id(array_id);
  SetPrecondition(precondition, request.mutable_precondition());
  request.set_validate_only(validate_only);
  v1::MoveNameResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.arrays, &v1::ArrayService::Stub::MoveName,
                                            request, limit, &response));
  return response.version();
}

absl::Status ArrayClient::DeleteName(const std::string& name,
                                     std::optional<int64_t> expected_version, bool validate_only,
                                     const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::DeleteNameRequest request;
  request.set_request_id(NewRequestId());
  request.set_name(name);
  SetPrecondition(expected_version, request.mutable_precondition());
  request.set_validate_only(validate_only);
  v1::DeleteNameResponse response;
  return connection.Call(connection.arrays, &v1::ArrayService::Stub::DeleteName, request, limit,
                         &response);
}

absl::StatusOr<std::vector<Array>> ArrayClient::ListArrays(const std::string& prefix,
                                                           bool include_unnamed,
                                                           const CallOptions& options) {
  const SteadyDeadline deadline = core_->Deadline(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::ListArraysRequest request;
  request.set_prefix(prefix);
  request.set_include_unnamed(include_unnamed);
  request.set_page_size(1'000);  // the coordinator returns no larger pages
  std::vector<Array> arrays;
  do {
    v1::ListArraysResponse response;
    SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.arrays,
                                              &v1::ArrayService::Stub::ListArrays, request,
                                              ClientCore::LimitAt(deadline, options), &response));
    for (const v1::Array& array : response.arrays()) {
      SHARDMESH_ASSIGN_OR_RETURN(arrays.emplace_back(), DecodeArray(array));
    }
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return arrays;
}

absl::StatusOr<int64_t> ArrayClient::ReleaseArrays(absl::Span<const std::string> array_ids,
                                                   const CallOptions& options) {
  return core_->InSession(core_->Deadline(options), options,
                          [&](const std::string& session_id, const CallLimit& limit) {
                            return client::ReleaseArrays(core_->connection(), session_id, array_ids,
                                                         limit);
                          });
}

}  // namespace shardmesh::client
