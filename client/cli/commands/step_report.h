// What commands show of the steps that they ran: times, bytes and predictions.
#ifndef SHARDMESH_CLIENT_CLI_COMMANDS_STEP_REPORT_H_
#define SHARDMESH_CLIENT_CLI_COMMANDS_STEP_REPORT_H_

#include <string>

#include "client/cli/output_form.h"
#include "client/types/step.h"

namespace shardmesh::client {

// Returns the members `total_s`, `kernel_s`, `collective_s` and `sent_bytes`, and `predicted` if
// there is a prediction.
Json TimingsJson(const StepTimings& timings);

// Returns text such as `took 3.1 ms: kernels 2.0 ms, collectives 0.5 ms, 24.0 KiB between workers`.
std::string FormatTimings(const StepTimings& timings);
// Returns what is known of a prediction, such as `kernels 1.9 ms, peak 2.00 MiB on a device`.
std::string FormatPrediction(const StepPrediction& predicted);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_COMMANDS_STEP_REPORT_H_
