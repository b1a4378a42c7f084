// One rank's part in one step: from its tiles of the operands to its staged tiles of the outputs.
#ifndef SHARDMESH_WORKER_STEP_STEP_RUN_H_
#define SHARDMESH_WORKER_STEP_STEP_RUN_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/exchange/peer_links.h"
#include "worker/step/kernel_turns.h"
#include "worker/step/plan_cache.h"
#include "worker/step/step_executor.h"
#include "worker/step/weight_cache.h"

namespace shardmesh::worker {

// What a step is run with. Pointers outlive the run.
struct StepRunContext {
  const StepExecutor::Options* options = nullptr;
  WeightCache* weights = nullptr;
  KernelTurns* turns = nullptr;
  StepLink* link = nullptr;  // opened for the step on the plan's mesh
  PlanPtr plan;
  std::shared_ptr<const StepOrder> order;
  absl::Time deadline;
};

// Runs the plan's instructions one by one and stages the outputs; each value's memory is given back
// after its last use. Fills in outputs, times and bytes sent of `result`, and if a peer's data did
// not come in time, that peer as the one to blame. An error names the op; the caller aborts the
// outputs in the store, and the step. The options' recorder has a record of each instruction.
absl::Status RunStep(const StepRunContext& context, StepResult* result);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STEP_STEP_RUN_H_
