// The calls of ArrayClient, over the transport and the session of ClientCore.
#include "client/arrays.h"

#include <iterator>
#include <utility>

#include "client/client_core.h"
#include "process/steady_deadline.h"
#include "rpc/call.h"
#include "rpc/call_memory.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/npy.h"

namespace shardmesh::client {
namespace {

// How often an array is asked for whose tiles are not where the coordinator says: workers that are
// lost meanwhile are known to it at once, or within its heartbeat limit of 5 s.
constexpr int kMaxGatherAttempts = 8;

// The error of an array whose workers live, by the coordinator, and are not reached from here.
absl::Status WithoutReach(const absl::Status& status) {
  if (ReasonOf(status) != Reason::kArrayDegraded) {
    return status;
  }
  return absl::UnavailableError(
      StrCat(ToStd(status.message()),
             "; the coordinator has those workers: elements go between this client and the workers "
             "directly, so run it where the workers' addresses are reached"));
}

}  // namespace

absl::StatusOr<PutResult> ArrayClient::PutTensors(absl::Span<const PutTensor> tensors,
                                                  const PutOptions& options) {
  const rpc::SteadyDeadline deadline = core_->TransferDeadline();
  rpc::Backoff backoff({.initial_delay = absl::Milliseconds(200), .max_delay = absl::Seconds(5)});
  for (;;) {
    bool is_taken_back = false;
    absl::StatusOr<PutResult> result = core_->Put(tensors, options, deadline, &is_taken_back);
    if (!is_taken_back || !rpc::IsShortOfCallMemory(result.status())) {
      return result;
    }
    const absl::Duration delay = backoff.NextDelay(result.status());
    if (delay >= deadline.left()) {
      return result;
    }
    core_->OnWait(result.status());
    absl::SleepFor(delay);
  }
}

absl::StatusOr<PutResult> ArrayClient::LoadCheckpoint(const Checkpoint& checkpoint,
                                                      const PutOptions& options) {
  std::vector<PutTensor> tensors;
  tensors.reserve(checkpoint.tensors().size());
  for (const Checkpoint::Entry& entry : checkpoint.tensors()) {
    tensors.push_back({.name = entry.tensor->name, .view = checkpoint.View(entry)});
  }
  return PutTensors(tensors, options);
}

absl::StatusOr<PutResult> ArrayClient::LoadCheckpoint(const std::string& path,
                                                      const PutOptions& options) {
  SHARDMESH_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(path));
  return LoadCheckpoint(checkpoint, options);
}

absl::StatusOr<GatheredTensor> ArrayClient::Gather(const ArraySelector& array,
                                                   const ProgressCallback& progress) {
  return GatherPart(array, std::nullopt, progress);
}

absl::StatusOr<GatheredTensor> ArrayClient::Gather(const ArraySelector& array,
                                                   const ArraySlice& slice,
                                                   const ProgressCallback& progress) {
  SHARDMESH_ASSIGN_OR_RETURN(const Array described, DescribeArray(array));
  SHARDMESH_ASSIGN_OR_RETURN(const Tile part, TileOf(slice, described.descriptor));
  return GatherPart(array, part, progress);
}

absl::StatusOr<GatheredTensor> ArrayClient::GatherPart(const ArraySelector& array,
                                                       const std::optional<Tile>& part,
                                                       const ProgressCallback& progress) {
  const rpc::SteadyDeadline deadline = core_->TransferDeadline();
  rpc::Backoff backoff({.max_delay = absl::Seconds(1)});
  for (int attempt = 1;; ++attempt) {
    GatherOutcome outcome = core_->Gather(array, part, progress, deadline);
    if (outcome.tensor.ok() || !outcome.may_have_moved) {
      return std::move(outcome.tensor);
    }
    // The tiles were not where the coordinator said: it knows by now, or soon, why.
    const absl::Duration delay = backoff.NextDelay(outcome.tensor.status());
    if (attempt == kMaxGatherAttempts || delay >= deadline.left()) {
      return WithoutReach(std::move(outcome.tensor).status());
    }
    core_->OnWait(outcome.tensor.status());
    absl::SleepFor(delay);
  }
}

absl::StatusOr<Array> ArrayClient::GatherToNpy(const ArraySelector& array, const std::string& path,
                                               const ProgressCallback& progress) {
  SHARDMESH_ASSIGN_OR_RETURN(const GatheredTensor tensor, Gather(array, progress));
  SHARDMESH_RETURN_IF_ERROR(WriteNpy(path, tensor.view()));
  return tensor.array();
}

absl::StatusOr<Array> ArrayClient::GatherToNpy(const ArraySelector& array, const ArraySlice& slice,
                                               const std::string& path,
                                               const ProgressCallback& progress) {
  SHARDMESH_ASSIGN_OR_RETURN(const GatheredTensor tensor, Gather(array, slice, progress));
  SHARDMESH_RETURN_IF_ERROR(WriteNpy(path, tensor.view()));
  return tensor.array();
}

absl::StatusOr<Array> ArrayClient::DescribeArray(const ArraySelector& array) {
  return core_->coordinator().DescribeArray(array, core_->CallDeadline());
}

absl::StatusOr<std::vector<Array>> ArrayClient::ListArrays(const std::string& prefix,
                                                           bool include_unnamed) {
  const rpc::SteadyDeadline deadline = core_->CallsDeadline();
  std::vector<Array> arrays;
  std::string page_token;
  do {
    SHARDMESH_ASSIGN_OR_RETURN(
        ArrayPage page,
        core_->coordinator().ListArrays(prefix, include_unnamed, page_token, Until(deadline)));
    std::move(page.arrays.begin(), page.arrays.end(), std::back_inserter(arrays));
    page_token = std::move(page.next_page_token);
  } while (!page_token.empty());
  return arrays;
}

absl::StatusOr<int64_t> ArrayClient::MoveName(const std::string& name, const std::string& array_id,
                                              int64_t expected_version) {
  return core_->coordinator().MoveName(name, array_id, expected_version, core_->CallDeadline());
}

absl::Status ArrayClient::DeleteName(const std::string& name, int64_t expected_version) {
  return core_->coordinator().DeleteName(name, expected_version, core_->CallDeadline());
}

absl::StatusOr<int64_t> ArrayClient::ReleaseArrays(absl::Span<const std::string> array_ids) {
  const rpc::SteadyDeadline deadline = core_->CallsDeadline();
  return core_->InSession(
      deadline, [&](const std::string& session_id, const rpc::CallOptions& options) {
        return core_->coordinator().ReleaseArrays(session_id, array_ids, options);
      });
}

}  // namespace shardmesh::client
