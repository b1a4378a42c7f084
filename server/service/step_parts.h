// The parts of the coordinator that plan puts and run steps.
#ifndef SHARDMESH_SERVER_SERVICE_STEP_PARTS_H_
#define SHARDMESH_SERVER_SERVICE_STEP_PARTS_H_

#include "rpc/metrics/metrics.h"
#include "server/attach/coordinator_parts.h"
#include "server/steps/planner.h"
#include "server/steps/put_plan.h"
#include "server/steps/sequencer.h"
#include "server/steps/step_runner.h"

namespace shardmesh::server {

// Returns the parts that plan a put.
inline PutPlanParts PutPartsOf(const CoordinatorParts& context) {
  return {.clock = context.clock,
          .definition_store = context.definition_store,
          .membership = context.membership,
          .registry = context.registry,
          .endpoints = context.hub,
          .sessions = context.sessions,
          .transfers = context.transfers,
          .fill = context.fill,
          .cache = context.cache,
          .term = context.term,
          .token_key = context.token_key};
}

// Returns the parts of a StepRunner of this coordinator.
inline StepRunnerParts StepPartsOf(const CoordinatorParts& context, Planner* planner,
                                   Sequencer* sequencer, rpc::Metrics* metrics) {
  return {.clock = context.clock,
          .definition_store = context.definition_store,
          .membership = context.membership,
          .endpoints = context.hub,
          .registry = context.registry,
          .sessions = context.sessions,
          .links = context.links,
          .recovery = context.recovery,
          .planner = planner,
          .sequencer = sequencer,
          .metrics = metrics,
          .preferred_algorithms = context.preferred_algorithms,
          .memory = context.step_memory};
}

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_STEP_PARTS_H_
