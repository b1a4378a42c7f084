// Converts steps to messages: the message to the workers, and the answer to the client.
#ifndef SHARDMESH_SERVER_STEPS_STEP_CODEC_H_
#define SHARDMESH_SERVER_STEPS_STEP_CODEC_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "server/steps/encoded_step.h"
#include "server/steps/planner.h"
#include "server/steps/step_call.h"
#include "shardmesh/v1/compute_service.pb.h"
#include "tensor/array_descriptor.h"
#include "tensor/literal.h"

namespace shardmesh::server {

// The data of a step for its workers. All workers of the step get the same data. The objects that a
// StepMessage points to outlive it.
struct StepMessage {
  struct Operand {
    std::string array_id = {};         // empty: the operand is `literal`
    const Literal* literal = nullptr;  // null: the operand is the array
    bool donate = false;
  };
  std::shared_ptr<const PreparedPlan> plan = nullptr;
  std::vector<Operand> operands = {};
  const std::vector<ArrayDescriptor>* outputs = nullptr;
  absl::Duration timeout = {};
  bool return_literals = false;
  int64_t max_trace_spans = 0;  // of each rank; 0: no timeline
};
EncodedStep Encode(const StepMessage& message);

// Returns the size, in bytes, that a literal takes within a message.
int64_t EncodedSizeBytes(const Literal& literal);
int64_t EncodedSizeBytes(const ArrayDescriptor& descriptor);

// Encodes the answer to the client. If the answer would exceed the limit of a message, omits later
// spans of the timeline, and if that does not suffice, the lists of ranks that lack tiles.
v1::ExecuteResponse Encode(StepResult result);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_STEP_CODEC_H_
