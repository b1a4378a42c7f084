// Second replicas of arrays: the option, the wait for the copies, and how they are shown.
#ifndef SHARDMESH_CLIENT_CLI_REPLICA_WAIT_H_
#define SHARDMESH_CLIENT_CLI_REPLICA_WAIT_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/cli/output_form.h"
#include "client/mesh_client.h"
#include "client/types/array.h"
#include "client/types/cluster_status.h"

namespace shardmesh::client {

// Adds --replicas, for PutOptions::replicas.
void AddReplicasOption(CLI::App* app, int64_t* replicas);

// Returns the state of the replicas for a table, such as `replicas 1 of 2`.
std::string FormatReplicaCount(const ArrayReplicas& replicas);
// The same with where the copies are, and what is done about a missing one.
std::string FormatReplicas(const ArrayReplicas& replicas);
// Returns why second replicas are not complete yet: `being copied`, and the lost workers for whose
// ranks of meshes the copies may wait. Names at most 8 workers.
std::string FormatWaitingReplicas(const ClusterStatus& status);
Json ReplicasJson(const std::optional<ArrayReplicas>& replicas);

// Waits for the second replicas of the arrays with a progress bar, if `replicas` is 2. Returns the
// arrays; none if there is nothing to wait for. An error says that the arrays themselves are there.
// A signal ends the program; its message, in the form `output`, says what goes on. Call this
// function after the Interruption of the put has ended.
absl::StatusOr<std::vector<Array>> AwaitSecondReplicas(MeshClient* client, int64_t replicas,
                                                       absl::Span<const std::string> names,
                                                       bool quiet, OutputForm output);

// Sums of the replicas of a list of arrays. Not thread-safe.
class ReplicaSums {
 public:
  // Counts an array that wants two replicas. An array whose spec alone gives it two has no second
  // replica, and is not counted.
  void Add(const Array& array);

  // The end of the line with the sum of the arrays: the bytes with the complete second copies, and
  // how many are not complete. Empty if there is nothing to say. Example, for arrays of 2 KiB:
  // `, 3.00 KiB with second replicas; 1 second replica is not complete`.
  std::string Clause(int64_t array_bytes) const;
  // A line about degraded arrays that get their tiles back from second replicas; empty for none.
  std::string Advice() const;

 private:
  int64_t copied_bytes_ = 0;  // of complete second copies
  int64_t incomplete_ = 0;
  int64_t recoverable_ = 0;  // degraded arrays whose missing tiles are in second replicas
};

// Prints one line about the replicas of these arrays; nothing for none.
void PrintSecondReplicas(absl::Span<const Array> arrays);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_REPLICA_WAIT_H_
