// One rank's part in one step: computes the staged tiles of the outputs from the tiles of the
// operands.
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
#include "worker/step/tile_update.h"
#include "worker/step/weight_cache.h"

namespace shardmesh::worker {

// The arguments of RunStep. All objects that it points to outlive the run.
struct StepRunContext {
  const StepExecutor::Options* options = nullptr;
  WeightCache* weights = nullptr;
  KernelTurns* turns = nullptr;
  StepLink* link = nullptr;  // opened for this step, on the plan's mesh
  PlanPtr plan;
  std::shared_ptr<const StepOrder> order;
  absl::Time deadline;
};

// Runs the plan's instructions one by one and stages the outputs. The values between operands and
// outputs share one block of memory, which is allocated at once (MemoryPlan, StepBlock). If there
// is no room for the block, each of these values gets memory of its own, while it is in use. The
// outputs are allocated one by one, each in the store.
//
// An operand that the plan updates is held for the step (TileUpdate) from the begin of the run. The
// run writes rows into its memory where the plan allows this (RankValue::over_state), and otherwise
// makes its new elements in memory of their own. `updates` gets the updates, to be committed with
// the outputs. After an error the caller destroys them, once it has aborted the step in the links:
// the operands are then as before.
//
// Sets the outputs, times and sent bytes of `result`. If a peer's data does not come in time, sets
// the identity of that peer in `result`, as the peer at fault. An error names the op. After an
// error, the caller aborts the step and drops its outputs from the store. Records each instruction
// in the flight recorder of the options.
absl::Status RunStep(const StepRunContext& context, StepResult* result, TileUpdates* updates);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STEP_STEP_RUN_H_
