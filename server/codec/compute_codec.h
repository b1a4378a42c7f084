// Converts the calls that run steps between wire and domain types.
#ifndef SHARDMESH_SERVER_CODEC_COMPUTE_CODEC_H_
#define SHARDMESH_SERVER_CODEC_COMPUTE_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "program/graph/layer_program.h"
#include "program/plan_forecast.h"
#include "server/steps/planner.h"
#include "server/steps/step_call.h"
#include "server/steps/step_runner.h"
#include "shardmesh/v1/compute_service.pb.h"

namespace shardmesh::server {

// Return the equivalent Execute request: a program of one op, whose result is the program's result.
v1::ExecuteRequest AsExecute(const v1::LinearRequest& request);
v1::ExecuteRequest AsExecute(const v1::MatmulRequest& request);
v1::ExecuteRequest AsExecute(const v1::CollectiveRequest& request);

// Decodes the request. The service fills in the caller, the method and the deadline of the result.
// INVALID_ARGUMENT names the field.
absl::StatusOr<StepCall> Decode(const v1::ExecuteRequest& request);

// Decodes the request as that of AsExecute; with `layer`, sets StepCall::layer.
absl::StatusOr<StepCall> Decode(const v1::LinearRequest& request);

absl::StatusOr<StepOperands> DecodeOperands(const v1::CompileRequest& request);

// Returns the request's layer; nullopt: it has a program. INVALID_ARGUMENT names the field.
absl::StatusOr<std::optional<LayerCall>> DecodeLayer(const v1::CompileRequest& request);

// The most candidates that one Compile returns.
inline constexpr int32_t kMostPlanCandidates = 64;
// Returns the number of candidates to return. INVALID_ARGUMENT (LIMIT_EXCEEDED): more than
// kMostPlanCandidates; (BAD_FIELD): a negative number.
absl::StatusOr<size_t> DecodeCandidates(const v1::CompileRequest& request);

// Converts the answer of a step to that of a layer.
void EncodeParts(v1::ExecuteResponse answer, v1::LinearResponse* to);

void Encode(const PreparedPlan& prepared, v1::CompileResponse* to);
// Encodes the peaks of the ranks, and the range of a symbolic dimension.
void EncodeRange(const StepRunner::CompiledPlan& compiled, v1::CompileResponse* to);
// Which times of a forecast come from measured rates. The response gets no other times.
struct MeasuredRates {
  bool links = false;
  bool kernels = false;
};
void Encode(const PlanForecast& forecast, const MeasuredRates& measured, v1::CompileResponse* to);
// `kernels`: the rates by which the candidate was planned.
void Encode(const PlanCandidate& candidate, const KernelRates& kernels, v1::PlanCandidate* to);

// Converts a step's answer for an RPC whose program has one result.
template <typename Response>
void EncodeSingle(v1::ExecuteResponse answer, Response* response) {
  *response->mutable_output() = std::move(*answer.mutable_outputs(0));
  response->set_sequence(answer.sequence());
  *response->mutable_timings() = std::move(*answer.mutable_timings());
}

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_CODEC_COMPUTE_CODEC_H_
