// The runs of the model: random calls, kills, failpoints, sizes.
#ifndef SHARDMESH_TESTS_MODEL_RUNS_H_
#define SHARDMESH_TESTS_MODEL_RUNS_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace shardmesh::model {

struct RunOptions {
  uint64_t seed = 1;
  std::string binary_folder;
  // Random calls: for how long, and by how many clients.
  absl::Duration time = absl::Seconds(20);
  int64_t clients = 3;
  // Shows this recorded sequence again instead.
  std::string replay;
  // How long to look for a shorter sequence that fails too.
  absl::Duration minimise = absl::Seconds(90);
  // Kills, of faults half of them of the coordinator, of replicas all of workers.
  int64_t kills = 10;
  // For failpoints: the part of all that runs, as "0/4"; empty: all.
  std::string only;
  bool is_long = false;
  // For one verb, which another run kills: the verb's name, the coordinator's address, and the
  // folder of files (Cluster::files).
  std::string verb;
  std::string address;
  std::string files;
};

// Each returns the exit code: 0, or 1 after it has printed the failure and how to reproduce it.
int RunRandom(const RunOptions& options);
int RunFaults(const RunOptions& options);
int RunNetwork(const RunOptions& options);
int RunFailpoints(const RunOptions& options);
int RunSweep(const RunOptions& options);
int RunReplicas(const RunOptions& options);
int RunVerbs(const RunOptions& options);
int RunVerb(const RunOptions& options);

}  // namespace shardmesh::model

#endif  // SHARDMESH_TESTS_MODEL_RUNS_H_
