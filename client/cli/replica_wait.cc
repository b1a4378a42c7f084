// Waits for second replicas, and prints them.
#include "client/cli/replica_wait.h"

#include <algorithm>
#include <iostream>
#include <iterator>
#include <optional>
#include <string_view>

#include "client/cli/interruption.h"
#include "client/cli/progress_bar.h"
#include "client/cli/stopwatch.h"
#include "client/cli/table.h"
#include "status/detail.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

constexpr int64_t kMostReplicas = 2;

}  // namespace

void AddReplicasOption(CLI::App* app, int64_t* replicas) {
  app->add_option("--replicas", *replicas,
                  "how many workers keep each tile, 1 or 2; with 2, waits for the second copies "
                  "(default: as the name had it, else 1)")
      ->check(CLI::Range(int64_t{1}, kMostReplicas));
}

std::string FormatReplicaCount(const ArrayReplicas& replicas) {
  return StrCat("replicas ", replicas.complete, " of ", replicas.wanted);
}

std::string FormatWaitingReplicas(const ClusterStatus& status) {
  constexpr size_t kMostLost = 8;
  std::vector<std::string> lost;
  for (const WorkerStatus& worker : status.workers) {
    const bool serves =
        std::any_of(status.meshes.begin(), status.meshes.end(), [&worker](const MeshStatus& mesh) {
          return std::find(mesh.workers.begin(), mesh.workers.end(), worker.identity) !=
                 mesh.workers.end();
        });
    if (worker.state == WorkerState::kLost && serves) lost.push_back(worker.identity);
  }
  if (lost.empty()) return "being copied";
  return StrCat("being copied or waiting for ", StrJoinFirst(kMostLost, lost, ", "),
                lost.size() == 1 ? ", which is lost" : ", which are lost");
}

std::string FormatReplicas(const ArrayReplicas& replicas) {
  std::string text = StrCat(replicas.complete, " of ", replicas.wanted);
  const bool is_complete = replicas.complete == replicas.wanted;
  if (is_complete) {
    StrAppend(&text, ", each tile on two ", replicas.shares_host ? "workers" : "hosts");
  }
  if (replicas.by_spec) StrAppend(&text, " by the spec alone, without a second copy");
  if (is_complete && replicas.shares_host) {
    StrAppend(&text, "; both replicas of some tiles are on one host");
  }
  if (!replicas.operation_id.empty()) {
    StrAppend(&text, ", copied by operation ", replicas.operation_id);
  }
  if (!replicas.failure.empty()) {
    StrAppend(&text, "; the copy failed, and is tried again later: ", replicas.failure);
  }
  return text;
}

void ReplicaSums::Add(const Array& array) {
  // The spec alone replicates the tiles: there is no second replica, whatever the ranks lack.
  if (array.replicas->by_spec) return;
  const bool is_complete = array.replicas->complete == array.replicas->wanted;
  if (!is_complete) ++incomplete_;
  if (is_complete) copied_bytes_ += array.size_bytes;
  if (array.state == ArrayState::kDegraded && array.replicas->complete > 0) ++recoverable_;
}

std::string ReplicaSums::Clause(int64_t array_bytes) const {
  std::string text;
  if (copied_bytes_ > 0) {
    text = StrCat(", ", FormatBytes(array_bytes + copied_bytes_), " with second replicas");
  }
  if (incomplete_ > 0) {
    StrAppend(&text, "; ", FormatCount(incomplete_, "second replica"),
              incomplete_ == 1 ? " is not complete" : " are not complete");
  }
  return text;
}

std::string ReplicaSums::Advice() const {
  if (recoverable_ == 0) return "";
  return StrCat(
      FormatCount(recoverable_, "degraded array"),
      recoverable_ == 1 ? " has its missing tiles" : " have their missing tiles",
      " in second replicas: `get` reads them there, and they come back once workers serve "
      "the missing ranks (`shardmesh status`)\n");
}

Json ReplicasJson(const std::optional<ArrayReplicas>& replicas) {
  if (!replicas.has_value()) return nullptr;
  return {{"wanted", replicas->wanted},
          {"complete", replicas->complete},
          {"by_spec", replicas->by_spec},
          {"shares_host", replicas->shares_host},
          {"operation_id", replicas->operation_id},
          {"failure", replicas->failure}};
}

absl::StatusOr<std::vector<Array>> AwaitSecondReplicas(MeshClient* client, int64_t replicas,
                                                       absl::Span<const std::string> names,
                                                       bool quiet, OutputForm output) {
  if (replicas < 2) return std::vector<Array>();
  const Interruption interruption(
      "the arrays are there, and the workers go on with the second copies: `shardmesh ls` shows "
      "which are not complete",
      output);
  ProgressBar bar("copying second replicas", quiet);
  absl::StatusOr<std::vector<Array>> arrays = client->arrays().AwaitReplicas(names, ShowOn(&bar));
  if (arrays.ok()) return arrays;
  return WithContext(arrays.status(), "the arrays are there, but the second replicas are not yet");
}

void PrintSecondReplicas(absl::Span<const Array> arrays) {
  if (arrays.empty()) return;
  const auto with = [&](const auto& is_so) {
    return std::count_if(arrays.begin(), arrays.end(), [&](const Array& array) {
      return array.replicas.has_value() && is_so(*array.replicas);
    });
  };
  const auto by_spec = with([](const ArrayReplicas& each) { return each.by_spec; });
  const auto shared = with([](const ArrayReplicas& each) { return each.shares_host; });
  const int64_t copied = std::ssize(arrays) - by_spec;
  std::cout << "Second replicas: " << FormatCount(copied, "array")
            << (copied == 1 ? " has a second copy" : " have second copies");
  if (by_spec > 0) {
    std::cout << ", " << by_spec << (by_spec == 1 ? " needs" : " need")
              << " none, since the spec alone puts each tile on two "
              << (shared > 0 ? "workers" : "hosts");
  }
  if (shared > 0) {
    std::cout << "; both replicas of some tiles of " << FormatCount(shared, "array")
              << " are on one host";
  }
  std::cout << "\n";
}

}  // namespace shardmesh::client
