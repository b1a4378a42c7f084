// The message of a step to its workers, encoded once for all of them.
#ifndef SHARDMESH_SERVER_STEPS_ENCODED_STEP_H_
#define SHARDMESH_SERVER_STEPS_ENCODED_STEP_H_

#include <cstdint>
#include <memory>
#include <string>

namespace shardmesh::server {

// The parts of an encoded internal::v1::RunStep. The transport puts a WorkNumber before these
// parts, and omits the plan if every worker has it. A protobuf message is the concatenation of its
// fields, so the transport neither parses nor serialises these parts.
struct EncodedStep {
  std::string plan_hash;
  std::shared_ptr<const std::string>
      plan;          // the bytes of an internal::v1::Plan, shared with the planner
  std::string rest;  // the bytes of an internal::v1::RunStep without plan, sequence, epoch and term
};
using EncodedStepPtr = std::shared_ptr<const EncodedStep>;

// `sequence`: the step's position in the cluster's single order of steps. `epoch`: version of the
// membership when the step was admitted. `term`: number of the coordinator's start.
struct WorkNumber {
  int64_t sequence = 0;
  int64_t epoch = 0;
  int64_t term = 0;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_ENCODED_STEP_H_
