// Sees the steps of code that runs many, such as a token loop.
#ifndef SHARDMESH_CLIENT_TYPES_STEP_OBSERVER_H_
#define SHARDMESH_CLIENT_TYPES_STEP_OBSERVER_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/types/call_options.h"
#include "client/types/step.h"
#include "program/program.h"

namespace shardmesh::client {

// Code that takes an observer runs one step at a time: BeforeStep, the step, AfterStep. It ends
// with the error of either. Not thread-safe.
class StepObserver {
 public:
  virtual ~StepObserver() = default;

  // Called before the step is sent. State is as the steps before have left it.
  virtual absl::Status BeforeStep(const Program& program, absl::Span<const Operand> operands,
                                  const CallOptions& options) = 0;
  // Called when the step has committed, while its results exist.
  virtual absl::Status AfterStep(const StepResult& result, const CallOptions& options) = 0;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_STEP_OBSERVER_H_
