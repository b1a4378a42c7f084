// Takes the weights of devices from a request, or from the memory and the speed of the workers.
#include "server/resolve/cut_weights.h"

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "rpc/codec/status.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

absl::Status NoWorker(const CutQuestion& question, size_t rank) {
  return WithRetryDelay(
      WithReason(absl::FailedPreconditionError(
                     StrCat("rank ", rank, " of the mesh \"", question.mesh_id,
                            "\" has no worker by which to cut; the mesh changed meanwhile, repeat "
                            "the call")),
                 Reason::kMeshIncomplete, {{fact::kMesh, question.mesh_id}}),
      absl::Milliseconds(100));
}

// Returns the weight of a worker's device, such that the sum of many weights fits int64; 0: the
// worker has not measured its speed.
int64_t WeightOf(UnevenCuts rule, const WorkerInfo& worker) {
  // The units are KiB and MFLOP/s.
  return rule == UnevenCuts::kByMemory
             ? worker.capacity_bytes >> 10
             : static_cast<int64_t>(worker.kernels.f32_flops_per_second / 1e6);
}

absl::StatusOr<std::vector<int64_t>> WeighWorkers(const CutQuestion& question,
                                                  const MembershipView& view) {
  std::vector<int64_t> weights;
  weights.reserve(question.workers.size());
  for (size_t rank = 0; rank < static_cast<size_t>(question.mesh->size()); ++rank) {
    if (rank == question.workers.size()) return NoWorker(question, rank);
    const std::string& identity = question.workers[rank];
    const WorkerStatus* const worker = view.FindWorker(identity);
    if (worker == nullptr) return NoWorker(question, rank);
    weights.push_back(WeightOf(question.rule, worker->info));
    if (question.rule == UnevenCuts::kByMemory || weights.back() != 0) continue;
    return WithReason(absl::FailedPreconditionError(StrCat(
                          "rank ", rank, " (worker \"", identity,
                          "\") has not measured the speed of its kernels, by which the arrays are "
                          "to be cut; cut by memory or by weights")),
                      Reason::kNotAvailable);
  }
  return weights;
}

}  // namespace

bool WeighsWorkers(UnevenCuts rule) {
  return rule == UnevenCuts::kByMemory || rule == UnevenCuts::kBySpeed;
}

absl::StatusOr<std::vector<int64_t>> ChooseWeights(const CutQuestion& question,
                                                   const MembershipView& view) {
  if (question.rule != UnevenCuts::kByWeights && !WeighsWorkers(question.rule)) {
    return std::vector<int64_t>();
  }
  std::vector<int64_t> weights = question.weights;
  std::string_view field = "weights";
  if (WeighsWorkers(question.rule)) {
    field = "uneven";
    absl::StatusOr<std::vector<int64_t>> weighed = WeighWorkers(question, view);
    if (!weighed.ok()) return rpc::WithField(weighed.status(), StrCat(question.path, field));
    weights = *std::move(weighed);
  }
  SHARDMESH_RETURN_IF_ERROR(
      rpc::WithField(CheckWeights(weights, question.mesh->size()), StrCat(question.path, field)));
  return weights;
}

}  // namespace shardmesh::server
