// ComputeClient: encodes steps and decodes their results.
#include "client/compute.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/client_core.h"
#include "client/remote/coordinator_connection.h"
#include "client/remote/step_stream_calls.h"
#include "client/remote/wire_enums.h"
#include "google/protobuf/repeated_field.h"
#include "process/steady_deadline.h"
#include "program/graph/symbolic_program.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/linear_codec.h"
#include "rpc/codec/plan_codec.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/time_codec.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/retry.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

void EncodeOperand(const Operand& from, v1::Operand* to) {
  if (const ArraySelector* array = std::get_if<ArraySelector>(&from.value)) {
    EncodeSelector(*array, to->mutable_array());
  } else {
    rpc::Encode(std::get<Literal>(from.value), to->mutable_literal());
  }
  to->set_donate(from.donate);
}

void EncodeOutput(const OutputOptions& from, v1::OutputOptions* to) {
  to->mutable_names()->Add(from.names.begin(), from.names.end());
  for (const Precondition& precondition : from.preconditions) {
    SetPrecondition(precondition, to->add_preconditions());
  }
  to->set_return_literals(from.return_literals);
  to->set_return_trace(from.return_trace);
  for (const std::optional<PartitionSpec>& spec : from.specs) {
    v1::OutputLayout* const layout = to->add_layouts();
    if (spec.has_value()) {
      rpc::Encode(*spec, layout->mutable_output_spec());
    }
  }
}

// How long the client waits for a step's answer after the step's time limit. The coordinator ends
// the step shortly before the time limit, and names in its answer the ranks that did not finish.
constexpr absl::Duration kVerdictTime = absl::Milliseconds(200);

// Encodes the fields that every request to run a step has; returns the limit for the call.
template <typename Request>
CallLimit EncodeStep(const std::string& session_id, const OutputOptions& output,
                     const CallLimit& limit, Request* to) {
  to->set_request_id(NewRequestId());
  to->set_session_id(session_id);
  EncodeOutput(output, to->mutable_output());
  CallLimit call = limit;
  if (limit.deadline != absl::InfiniteFuture()) {
    rpc::Encode(std::max(limit.deadline - absl::Now(), absl::ZeroDuration()),
                to->mutable_timeout());
    call.answer_time = kVerdictTime;
  }
  return call;
}

absl::StatusOr<StepOutput> DecodeOutput(const v1::StepOutput& from) {
  StepOutput output;
  SHARDMESH_ASSIGN_OR_RETURN(output.array, DecodeArray(from.array()));
  if (from.has_literal()) {
    SHARDMESH_ASSIGN_OR_RETURN(output.literal, DecodeAnswer(from.literal()));
  }
  return output;
}

absl::StatusOr<StepPrediction> DecodePrediction(const v1::StepPrediction& from) {
  StepPrediction prediction = {.kernel = std::nullopt,
                               .collective = std::nullopt,
                               .sent_bytes = std::nullopt,
                               .peak_bytes = from.peak_bytes(),
                               .overhead = std::nullopt};
  if (from.has_kernel()) {
    SHARDMESH_ASSIGN_OR_RETURN(prediction.kernel, DecodeAnswer(from.kernel()));
  }
  if (from.has_collective()) {
    SHARDMESH_ASSIGN_OR_RETURN(prediction.collective, DecodeAnswer(from.collective()));
  }
  if (from.has_overhead()) {
    SHARDMESH_ASSIGN_OR_RETURN(prediction.overhead, DecodeAnswer(from.overhead()));
  }
  if (from.has_sent_bytes()) prediction.sent_bytes = from.sent_bytes();
  return prediction;
}

// Decodes the fields that the answer to every request to run a step has.
template <typename Response>
absl::StatusOr<StepResult> DecodeStep(const Response& from) {
  StepResult result;
  result.sequence = from.sequence();
  const v1::StepTimings& timings = from.timings();
  SHARDMESH_ASSIGN_OR_RETURN(result.timings.total, DecodeAnswer(timings.total()));
  SHARDMESH_ASSIGN_OR_RETURN(result.timings.kernel, DecodeAnswer(timings.kernel()));
  SHARDMESH_ASSIGN_OR_RETURN(result.timings.collective, DecodeAnswer(timings.collective()));
  result.timings.sent_bytes = timings.sent_bytes();
  if (timings.has_predicted()) {
    SHARDMESH_ASSIGN_OR_RETURN(result.timings.predicted, DecodePrediction(timings.predicted()));
  }
  if (timings.has_trace()) {
    SHARDMESH_ASSIGN_OR_RETURN(result.timings.trace, DecodeAnswer(timings.trace()));
  }
  return result;
}

// Decodes the answer of a step with one output.
template <typename Response>
absl::StatusOr<StepResult> DecodeOneOutput(const Response& from) {
  SHARDMESH_ASSIGN_OR_RETURN(StepResult result, DecodeStep(from));
  SHARDMESH_ASSIGN_OR_RETURN(result.outputs.emplace_back(), DecodeOutput(from.output()));
  return result;
}

// Encodes the work and its operands.
void EncodeCall(const ExecuteCall& call, v1::ExecuteRequest* to) {
  if (const Program* program = std::get_if<Program>(&call.work)) {
    rpc::Encode(*program, to->mutable_program());
  } else {
    to->set_plan_hash(std::get<std::string>(call.work));
  }
  for (const Operand& operand : call.operands) {
    EncodeOperand(operand, to->add_operands());
  }
  to->set_mesh_id(call.mesh_id);
}

// Decodes the answer of a step with any number of outputs.
absl::StatusOr<StepResult> DecodeOutputs(const v1::ExecuteResponse& from) {
  SHARDMESH_ASSIGN_OR_RETURN(StepResult result, DecodeStep(from));
  for (const v1::StepOutput& output : from.outputs()) {
    SHARDMESH_ASSIGN_OR_RETURN(result.outputs.emplace_back(), DecodeOutput(output));
  }
  return result;
}

// Returns whether the error says that the coordinator has no plan of the call's hash.
bool LacksPlan(const absl::Status& error) {
  return ReasonOf(error) == Reason::kNotFound && FactOf(error, fact::kKind) == "plan";
}

// Returns the call with the program instead of the hash; nullopt: the program is not known.
std::optional<ExecuteCall> CallWithProgram(const ExecuteCall& call,
                                           const CompiledPrograms& programs) {
  std::shared_ptr<const Program> program = call.program;
  if (program == nullptr) program = programs.Find(std::get<std::string>(call.work));
  if (program == nullptr) return std::nullopt;
  ExecuteCall again = call;
  again.work = *program;
  return again;
}

absl::Status LacksSymbols(std::string_view advice) {
  return WithReason(
      absl::UnimplementedError(StrCat("the coordinator runs an older build, which plans no "
                                      "programs with a symbolic dimension; ",
                                      advice)),
      Reason::kNotAvailable);
}

// Returns OK if the coordinator runs the program for the length of its operands. An older build
// ignores symbolic numbers, and could compute something else without an error.
absl::Status CheckTakesLengths(const CoordinatorConnection& connection, const Program& program,
                               const CallLimit& limit) {
  if (std::none_of(program.ops.begin(), program.ops.end(), IsSymbolic)) return absl::OkStatus();
  v1::GetVersionResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.cluster,
                                            &v1::ClusterService::Stub::GetVersion,
                                            v1::GetVersionRequest(), limit, &response));
  for (const std::string& feature : response.features()) {
    if (feature == "symbolic_dimensions") return absl::OkStatus();
  }
  return LacksSymbols("run the program of one length");
}

absl::StatusOr<StepResult> RunProgram(const CoordinatorConnection& connection,
                                      const std::string& session_id, const ExecuteCall& call,
                                      const CallLimit& limit) {
  if (const auto* const program = std::get_if<Program>(&call.work); program != nullptr) {
    SHARDMESH_RETURN_IF_ERROR(CheckTakesLengths(connection, *program, limit));
  }
  v1::ExecuteRequest request;
  const CallLimit call_limit = EncodeStep(session_id, call.output, limit, &request);
  EncodeCall(call, &request);
  v1::ExecuteResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.compute, &v1::ComputeService::Stub::Execute,
                                            request, call_limit, &response));
  return DecodeOutputs(response);
}

absl::StatusOr<StepResult> RunLinear(const CoordinatorConnection& connection,
                                     const std::string& session_id, const LinearCall& call,
                                     const CallLimit& limit) {
  v1::LinearRequest request;
  const CallLimit call_limit = EncodeStep(session_id, call.output, limit, &request);
  EncodeOperand(call.input, request.mutable_input());
  EncodeOperand(call.weight, request.mutable_weight());
  if (call.bias.has_value()) {
    EncodeOperand(*call.bias, request.mutable_bias());
  }
  if (call.scales.has_value()) EncodeOperand(*call.scales, request.mutable_scales());
  request.set_weight_layout(rpc::Encode(call.weight_layout));
  request.set_activation(rpc::Encode(call.activation));
  request.set_scale(call.scale);
  v1::LinearResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.compute, &v1::ComputeService::Stub::Linear,
                                            request, call_limit, &response));
  return DecodeOneOutput(response);
}

// Checks the numbers of biases and scales.
absl::Status CheckParams(const LinearLayerCall& call) {
  const auto check = [&](std::string_view field, const std::vector<Operand>& params,
                         std::string_view each) -> absl::Status {
    if (params.empty() || params.size() == call.weights.size()) return absl::OkStatus();
    return InvalidArgument(
        Reason::kBadField,
        StrCat("the layer has ", call.weights.size(), " weights and ", params.size(), " ", field,
               "; give ", each, " for each weight, or none"),
        {{fact::kField, field}});
  };
  SHARDMESH_RETURN_IF_ERROR(check("biases", call.biases, "one bias"));
  return check("scales", call.scales, "one tensor of scales");
}

absl::Status EncodeLayer(const LinearLayerCall& call, v1::LinearLayer* to) {
  SHARDMESH_RETURN_IF_ERROR(CheckParams(call));
  SHARDMESH_RETURN_IF_ERROR(rpc::Encode(call.layer, to));
  to->set_use_bias(!call.biases.empty());
  to->set_use_scales(!call.scales.empty());
  return absl::OkStatus();
}

absl::StatusOr<StepResult> RunLayer(const CoordinatorConnection& connection,
                                    const std::string& session_id, const LinearLayerCall& call,
                                    const CallLimit& limit) {
  v1::LinearRequest request;
  SHARDMESH_RETURN_IF_ERROR(EncodeLayer(call, request.mutable_layer()));
  const CallLimit call_limit = EncodeStep(session_id, call.output, limit, &request);
  EncodeOperand(call.input, request.mutable_input());
  for (const Operand& weight : call.weights) EncodeOperand(weight, request.add_weights());
  for (const Operand& bias : call.biases) EncodeOperand(bias, request.add_biases());
  for (const Operand& scales : call.scales) {
    EncodeOperand(scales,
                  request.has_scales() ? request.add_further_scales() : request.mutable_scales());
  }
  v1::LinearResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.compute, &v1::ComputeService::Stub::Linear,
                                            request, call_limit, &response));
  SHARDMESH_ASSIGN_OR_RETURN(StepResult result, DecodeStep(response));
  for (const v1::StepOutput& output : response.outputs()) {
    SHARDMESH_ASSIGN_OR_RETURN(result.outputs.emplace_back(), DecodeOutput(output));
  }
  return result;
}

absl::StatusOr<StepResult> RunMatmul(const CoordinatorConnection& connection,
                                     const std::string& session_id, const MatmulCall& call,
                                     const CallLimit& limit) {
  v1::MatmulRequest request;
  const CallLimit call_limit = EncodeStep(session_id, call.output, limit, &request);
  EncodeOperand(call.lhs, request.mutable_lhs());
  EncodeOperand(call.rhs, request.mutable_rhs());
  request.set_transpose_lhs(call.transpose_lhs);
  request.set_transpose_rhs(call.transpose_rhs);
  v1::MatmulResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.compute, &v1::ComputeService::Stub::Matmul,
                                            request, call_limit, &response));
  return DecodeOneOutput(response);
}

absl::StatusOr<StepResult> RunCollective(const CoordinatorConnection& connection,
                                         const std::string& session_id, const CollectiveCall& call,
                                         const CallLimit& limit) {
  v1::CollectiveRequest request;
  const CallLimit call_limit = EncodeStep(session_id, call.output, limit, &request);
  EncodeOperand(call.input, request.mutable_input());
  request.set_kind(rpc::Encode(call.kind));
  request.mutable_axes()->Add(call.axes.begin(), call.axes.end());
  request.set_reduction(rpc::Encode(call.reduction));
  rpc::EncodePlaces(call, &request);
  for (const PermutePair& pair : call.permutation) {
    rpc::Encode(pair, request.add_permutation());
  }
  request.set_algorithm(rpc::Encode(call.algorithm));
  request.set_order(rpc::Encode(call.order));
  request.mutable_counts()->Add(call.counts.begin(), call.counts.end());
  v1::CollectiveResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.compute, &v1::ComputeService::Stub::Collective, request, call_limit, &response));
  return DecodeOneOutput(response);
}

// Returns the error of a step that had `time` at its begin. While a step may be repeated, the
// client waits for workers that are away. At the end of the step's time, these workers are late.
// The last attempt may end before: the client makes none for which no time would be left. A first
// attempt that is refused at once has waited for nobody, however short the step's time is.
absl::Status ErrorOfStep(absl::Status error, absl::Duration time, const SteadyDeadline& deadline) {
  constexpr double kMostOfTheTime = 0.9;
  const Reason reason = ReasonOf(error);
  const absl::Duration delay = RetryInfoOf(error).value_or(absl::ZeroDuration());
  const absl::Duration left = deadline.left();
  const bool is_late =
      reason == Reason::kRecovering || (reason == Reason::kNotServing && left <= delay &&
                                        time - left >= std::min(delay, kMostOfTheTime * time));
  if (!is_late || !absl::IsUnavailable(error)) return error;
  absl::Status late = absl::DeadlineExceededError(
      StrCat("the step has not ended within the time of the call: ", ToStd(error.message())));
  const std::optional<std::string> identity = FactOf(error, fact::kIdentity);
  return identity.has_value()
             ? WithReason(std::move(late), Reason::kDeadline, {{fact::kIdentity, *identity}})
             : WithReason(std::move(late), Reason::kDeadline);
}

// Returns the ids of the results that get no name.
std::vector<std::string> NamelessResultsOf(const StepResult& result,
                                           const std::vector<std::string>& names) {
  std::vector<std::string> kept;
  for (size_t i = 0; i < result.outputs.size(); ++i) {
    const bool is_named = i < names.size() && !names[i].empty();
    if (!is_named) kept.push_back(result.outputs[i].array.descriptor.array_id);
  }
  return kept;
}

// Adds the id of an operand that a step which succeeds consumes.
void AddConsumed(const Operand& operand, std::vector<std::string>* to) {
  const auto* const array = std::get_if<ArraySelector>(&operand.value);
  if (operand.donate && array != nullptr && array->name.empty()) to->push_back(array->array_id);
}

// Runs a step in the session by `run`. Keeps its results without names, and drops the operands that
// it may have consumed.
absl::StatusOr<StepResult> RunStep(
    ClientCore* core, const SteadyDeadline& deadline, const CallOptions& options,
    absl::Span<const Operand* const> operands, const OutputOptions& output,
    const std::function<absl::StatusOr<StepResult>(const std::string& session_id,
                                                   const CallLimit& limit)>& run) {
  std::string session;
  const absl::Duration time = deadline.left();
  absl::StatusOr<StepResult> result = core->InSession(
      deadline, options, [&](const std::string& session_id, const CallLimit& limit) {
        session = session_id;
        return run(session_id, limit);
      });
  if (!result.ok()) return ErrorOfStep(std::move(result).status(), time, deadline);
  const std::vector<std::string> kept = NamelessResultsOf(*result, output.names);
  std::vector<std::string> consumed;
  for (const Operand* const operand : operands) AddConsumed(*operand, &consumed);
  core->Keep(session, kept);
  core->Drop(consumed);
  return result;
}

absl::StatusOr<std::vector<PlannedInstruction>> DecodeInstructions(
    const google::protobuf::RepeatedPtrField<v1::PlannedInstruction>& from) {
  std::vector<PlannedInstruction> instructions;
  for (const v1::PlannedInstruction& planned : from) {
    PlannedInstruction& to = instructions.emplace_back();
    to.label = planned.label();
    to.axes.assign(planned.axes().begin(), planned.axes().end());
    if (planned.collective() == v1::COLLECTIVE_KIND_UNSPECIFIED) continue;
    SHARDMESH_ASSIGN_OR_RETURN(to.collective, DecodeAnswer(planned.collective()));
    SHARDMESH_ASSIGN_OR_RETURN(to.algorithm, DecodeAnswer(planned.algorithm()));
  }
  return instructions;
}

absl::StatusOr<CandidatePlan> DecodeCandidate(const v1::PlanCandidate& from) {
  CandidatePlan candidate = {.roles = from.roles()};
  SHARDMESH_ASSIGN_OR_RETURN(candidate.time, DecodeAnswer(from.time()));
  SHARDMESH_ASSIGN_OR_RETURN(candidate.kernel_time, DecodeAnswer(from.kernel_time()));
  SHARDMESH_ASSIGN_OR_RETURN(candidate.exchange_time, DecodeAnswer(from.exchange_time()));
  candidate.cost = rpc::Decode(from.cost());
  candidate.peak_bytes = from.peak_bytes();
  SHARDMESH_ASSIGN_OR_RETURN(candidate.instructions, DecodeInstructions(from.instructions()));
  return candidate;
}

absl::StatusOr<std::vector<PlannedOutput>> DecodePlannedOutputs(
    const google::protobuf::RepeatedPtrField<v1::PlannedOutput>& from) {
  std::vector<PlannedOutput> outputs;
  for (const v1::PlannedOutput& output : from) {
    PlannedOutput& to = outputs.emplace_back();
    SHARDMESH_ASSIGN_OR_RETURN(to.type.dtype, DecodeAnswer(output.dtype()));
    to.type.shape.assign(output.shape().begin(), output.shape().end());
    SHARDMESH_ASSIGN_OR_RETURN(to.spec, DecodeAnswer(output.spec()));
  }
  return outputs;
}

absl::StatusOr<LengthPlan> DecodeLengthPlan(const v1::LengthPlan& from) {
  LengthPlan plan = {.length = from.length(),
                     .peak_bytes = from.peak_bytes(),
                     .exchange_time = std::nullopt,
                     .kernel_time = std::nullopt};
  if (from.has_exchange_time()) {
    SHARDMESH_ASSIGN_OR_RETURN(plan.exchange_time, DecodeAnswer(from.exchange_time()));
  }
  if (from.has_kernel_time()) {
    SHARDMESH_ASSIGN_OR_RETURN(plan.kernel_time, DecodeAnswer(from.kernel_time()));
  }
  SHARDMESH_ASSIGN_OR_RETURN(plan.outputs, DecodePlannedOutputs(from.outputs()));
  return plan;
}

// Sends the request, and decodes the plan.
absl::StatusOr<CompiledProgram> Ask(const CoordinatorConnection& connection,
                                    const v1::CompileRequest& request, const CallLimit& limit) {
  v1::CompileResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.compute, &v1::ComputeService::Stub::Compile,
                                            request, limit, &response));
  CompiledProgram compiled;
  compiled.plan_hash = response.plan_hash();
  SHARDMESH_ASSIGN_OR_RETURN(compiled.instructions, DecodeInstructions(response.instructions()));
  compiled.cost = rpc::Decode(response.cost());
  for (const v1::AxisTraffic& from : response.traffic()) {
    PlannedTraffic& to = compiled.traffic.emplace_back();
    to.axes.assign(from.axes().begin(), from.axes().end());
    to.collectives = from.collectives();
    to.sent_bytes = from.sent_bytes();
    if (from.has_exchange_time()) {
      SHARDMESH_ASSIGN_OR_RETURN(to.exchange_time, DecodeAnswer(from.exchange_time()));
    }
  }
  if (response.has_link_traffic()) {
    PlannedLinks& to = compiled.links.emplace();
    for (const v1::LinkTraffic& from : response.link_traffic().busiest_links()) {
      to.busiest.push_back({.sender_rank = from.sender_rank(),
                            .receiver_rank = from.receiver_rank(),
                            .sent_bytes = from.sent_bytes()});
    }
    to.link_count = response.link_traffic().link_count();
    to.sent_bytes = response.link_traffic().sent_bytes();
  }
  compiled.peak_bytes = response.peak_bytes();
  if (response.has_exchange_time()) {
    SHARDMESH_ASSIGN_OR_RETURN(compiled.exchange_time, DecodeAnswer(response.exchange_time()));
  }
  if (response.has_kernel_time()) {
    SHARDMESH_ASSIGN_OR_RETURN(compiled.kernel_time, DecodeAnswer(response.kernel_time()));
  }
  for (const v1::PlanCandidate& from : response.candidates()) {
    SHARDMESH_ASSIGN_OR_RETURN(compiled.candidates.emplace_back(), DecodeCandidate(from));
  }
  SHARDMESH_ASSIGN_OR_RETURN(compiled.outputs, DecodePlannedOutputs(response.outputs()));
  compiled.rank_peak_bytes.assign(response.rank_peak_bytes().begin(),
                                  response.rank_peak_bytes().end());
  if (response.has_length()) {
    SHARDMESH_ASSIGN_OR_RETURN(compiled.shortest, DecodeLengthPlan(response.shortest()));
  }
  return compiled;
}

}  // namespace

absl::StatusOr<CompiledProgram> ComputeClient::Compile(const Program& program,
                                                       absl::Span<const Operand> operands,
                                                       const std::string& mesh_id,
                                                       const CallOptions& options) {
  return ComparePlans(program, operands, /*candidates=*/0, mesh_id, options);
}

absl::StatusOr<CompiledProgram> ComputeClient::ComparePlans(const Program& program,
                                                            absl::Span<const Operand> operands,
                                                            int32_t candidates,
                                                            const std::string& mesh_id,
                                                            const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  v1::CompileRequest request;
  rpc::Encode(program, request.mutable_program());
  for (const Operand& operand : operands) {
    EncodeOperand(operand, request.add_operands());
  }
  request.set_mesh_id(mesh_id);
  request.set_candidates(candidates);
  SHARDMESH_ASSIGN_OR_RETURN(CompiledProgram compiled, Ask(connection, request, limit));
  if (program.symbol.has_value() && !compiled.shortest.has_value()) {
    return LacksSymbols("compile the program of one length");
  }
  compiled.program = std::make_shared<const Program>(program);
  compiled.mesh_id = mesh_id;
  core_->programs().Add(compiled.plan_hash, compiled.program);
  return compiled;
}

absl::StatusOr<StepResult> ComputeClient::Execute(const ExecuteCall& call,
                                                  const CallOptions& options) {
  const SteadyDeadline deadline = core_->Deadline(options);
  std::vector<const Operand*> operands;
  for (const Operand& operand : call.operands) operands.push_back(&operand);
  return RunStep(core_, deadline, options, operands, call.output,
                 [&](const std::string& session_id, const CallLimit& limit) {
                   absl::StatusOr<StepResult> result =
                       RunProgram(core_->connection(), session_id, call, limit);
                   const bool has_hash = std::holds_alternative<std::string>(call.work);
                   if (!has_hash || !LacksPlan(result.status())) return result;
                   // The coordinator no longer has the plan, for example because the coordinator
                   // was restarted. Send the program itself, if it is known.
                   std::optional<ExecuteCall> again = CallWithProgram(call, core_->programs());
                   if (!again.has_value()) return result;
                   return RunProgram(core_->connection(), session_id, *again,
                                     ClientCore::LimitAt(deadline, options));
                 });
}

namespace {

// The most steps that are sent before the first one has ended, if they may have to be sent again.
// The coordinator reads so many steps that are not answered.
constexpr int64_t kMostKeptSteps = 64;

}  // namespace

StepStream::StepStream(ClientCore* core, std::string session_id, OpenCall open,
                       CheckProgram check_program, bool continue_after_errors)
    : core_(core),
      session_id_(std::move(session_id)),
      open_(std::move(open)),
      check_program_(std::move(check_program)),
      continue_after_errors_(continue_after_errors),
      stream_(open_()) {}

StepStream::~StepStream() = default;

std::shared_ptr<StepCallStream> StepStream::stream() const {
  absl::MutexLock lock(&mutex_);
  return stream_;
}

void StepStream::Begin(const ExecuteCall& first) {
  const auto* const hash = std::get_if<std::string>(&first.work);
  // If steps go on after errors, later ones may have run.
  if (hash == nullptr || continue_after_errors_) return;
  first_program_ = first.program != nullptr ? first.program : core_->programs().Find(*hash);
}

bool StepStream::MaySend() const { return first_program_ == nullptr || sent_ < kMostKeptSteps; }

void StepStream::Settle() {
  absl::MutexLock lock(&mutex_);
  if (first_program_ == nullptr) return;
  first_program_ = nullptr;
  for (auto& [number, step] : sent_steps_) step.call = nullptr;
}

bool StepStream::Write(int64_t number, const ExecuteCall& call, StepCallStream* stream) const {
  v1::ExecuteStreamRequest request;
  request.set_continue_after_errors(number == 1 && continue_after_errors_);
  v1::ExecuteRequest& step = *request.mutable_step();
  step.set_session_id(session_id_);
  EncodeOutput(call.output, step.mutable_output());
  EncodeCall(call, &step);
  if (step.has_plan_hash() && step.plan_hash().empty()) step.clear_work();
  return stream->Write(request);
}

void StepStream::AwaitSend() {
  {
    absl::MutexLock lock(&mutex_);
    if (MaySend()) return;
  }
  // Perhaps no other thread reads: this one reads the first answer, and keeps it for Next.
  absl::MutexLock read_lock(&read_mutex_);
  {
    absl::MutexLock lock(&mutex_);
    if (MaySend()) return;
  }
  early_ = ReadStep();
}

absl::Status StepStream::Send(const ExecuteCall& call) {
  if (const auto* const program = std::get_if<Program>(&call.work); program != nullptr) {
    SHARDMESH_RETURN_IF_ERROR(check_program_(*program));
  }
  AwaitSend();
  absl::MutexLock send_lock(&send_mutex_);
  std::shared_ptr<StepCallStream> stream;
  int64_t number = 0;
  {
    absl::MutexLock lock(&mutex_);
    number = ++sent_;
    if (number == 1) Begin(call);
    SentStep& sent = sent_steps_[number];
    sent.names = call.output.names;
    for (const Operand& operand : call.operands) AddConsumed(operand, &sent.consumed);
    if (first_program_ != nullptr) sent.call = std::make_shared<const ExecuteCall>(call);
    stream = stream_;
  }
  if (Write(number, call, stream.get())) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  if (is_sending_again_) return absl::OkStatus();  // SendAgain sends this step too
  return absl::UnavailableError("the stream of steps has ended; read its end for the reason");
}

void StepStream::EndSends() {
  absl::MutexLock send_lock(&send_mutex_);
  std::shared_ptr<StepCallStream> stream;
  {
    absl::MutexLock lock(&mutex_);
    has_ended_sends_ = true;
    stream = stream_;
  }
  stream->EndWrites();
}

bool StepStream::SendAgain(int64_t number, const absl::Status& error) {
  if (number != 1 || !LacksPlan(error)) return false;
  std::shared_ptr<const Program> program;
  {
    absl::MutexLock lock(&mutex_);
    program = first_program_;
  }
  if (program == nullptr || !check_program_(*program).ok()) return false;
  std::shared_ptr<StepCallStream> failed;
  {
    absl::MutexLock lock(&mutex_);
    is_sending_again_ = true;
    failed = stream_;
  }
  failed->Cancel();  // ends the wait of Send, which holds send_mutex_
  absl::MutexLock send_lock(&send_mutex_);
  const std::shared_ptr<StepCallStream> opened = open_();
  std::vector<std::shared_ptr<const ExecuteCall>> calls;  // of all steps so far: none has ended
  ExecuteCall first;
  bool has_ended_sends = false;
  {
    absl::MutexLock lock(&mutex_);
    for (auto& [each, step] : sent_steps_) calls.push_back(std::move(step.call));
    first = *calls.front();
    first.work = *first_program_;
    first_program_ = nullptr;
    is_sending_again_ = false;
    has_ended_sends = has_ended_sends_;
    stream_ = opened;
  }
  // If a write fails, the call has ended, and the next read says so.
  for (size_t i = 0; i < calls.size(); ++i) {
    Write(static_cast<int64_t>(i) + 1, i == 0 ? first : *calls[i], opened.get());
  }
  if (has_ended_sends) opened->EndWrites();
  return true;
}

absl::StatusOr<StreamedStep> StepStream::Next() {
  absl::MutexLock read_lock(&read_mutex_);
  if (early_.has_value()) {
    absl::StatusOr<StreamedStep> step = *std::move(early_);
    early_ = std::nullopt;
    return step;
  }
  return ReadStep();
}

absl::StatusOr<StreamedStep> StepStream::ReadStep() {
  v1::ExecuteStreamResponse response;
  while (true) {
    const std::shared_ptr<StepCallStream> stream = this->stream();
    if (!stream->Read(&response)) {
      Settle();
      SHARDMESH_RETURN_IF_ERROR(stream->Finish());
      return absl::OutOfRangeError("all steps of the stream have ended");
    }
    const bool is_sent_again =
        response.has_error() && SendAgain(response.number(), rpc::Decode(response.error()));
    if (!is_sent_again) break;
  }
  Settle();
  StreamedStep step{.number = response.number()};
  SentStep sent;
  {
    absl::MutexLock lock(&mutex_);
    if (const auto found = sent_steps_.find(step.number); found != sent_steps_.end()) {
      sent = std::move(found->second);
      sent_steps_.erase(found);
    }
  }
  if (response.has_error()) {
    step.result = rpc::Decode(response.error());
  } else {
    step.result = DecodeOutputs(response.response());
  }
  if (step.result.ok()) {
    core_->Keep(session_id_, NamelessResultsOf(*step.result, sent.names));
    core_->Drop(sent.consumed);
  }
  return step;
}

absl::StatusOr<std::unique_ptr<StepStream>> ComputeClient::OpenStream(bool continue_after_errors,
                                                                      const CallOptions& options) {
  const SteadyDeadline deadline =
      SteadyDeadline::After(options.timeout.value_or(absl::InfiniteDuration()));
  return core_->InSession(
      core_->Deadline(options), options,
      [&](const std::string& session_id,
          const CallLimit&) -> absl::StatusOr<std::unique_ptr<StepStream>> {
        auto open = [core = core_, deadline, options] {
          return std::make_shared<StepCallStream>(&core->connection(),
                                                  ClientCore::LimitAt(deadline, options));
        };
        auto check = [core = core_, deadline, options](const Program& program) {
          return CheckTakesLengths(core->connection(), program,
                                   ClientCore::LimitAt(deadline, options));
        };
        return std::unique_ptr<StepStream>(new StepStream(core_, session_id, std::move(open),
                                                          std::move(check), continue_after_errors));
      });
}

absl::StatusOr<StepResult> ComputeClient::Linear(const LinearCall& call,
                                                 const CallOptions& options) {
  std::vector<const Operand*> operands = {&call.input, &call.weight};
  if (call.bias.has_value()) operands.push_back(&*call.bias);
  if (call.scales.has_value()) operands.push_back(&*call.scales);
  return RunStep(core_, core_->Deadline(options), options, operands, call.output,
                 [&](const std::string& session_id, const CallLimit& limit) {
                   return RunLinear(core_->connection(), session_id, call, limit);
                 });
}

absl::StatusOr<StepResult> ComputeClient::LinearLayer(const LinearLayerCall& call,
                                                      const CallOptions& options) {
  SHARDMESH_RETURN_IF_ERROR(CheckParams(call));
  return RunStep(core_, core_->Deadline(options), options, call.operands(), call.output,
                 [&](const std::string& session_id, const CallLimit& limit) {
                   return RunLayer(core_->connection(), session_id, call, limit);
                 });
}

absl::StatusOr<CompiledProgram> ComputeClient::CompileLayer(const LinearLayerCall& call,
                                                            int32_t candidates,
                                                            const CallOptions& options) {
  v1::CompileRequest request;
  request.set_candidates(candidates);
  SHARDMESH_RETURN_IF_ERROR(EncodeLayer(call, request.mutable_layer()));
  for (const Operand* const operand : call.operands()) {
    EncodeOperand(*operand, request.add_operands());
  }
  return Ask(core_->connection(), request, core_->LimitOf(options));
}

absl::StatusOr<StepResult> ComputeClient::Matmul(const MatmulCall& call,
                                                 const CallOptions& options) {
  return RunStep(core_, core_->Deadline(options), options, {&call.lhs, &call.rhs}, call.output,
                 [&](const std::string& session_id, const CallLimit& limit) {
                   return RunMatmul(core_->connection(), session_id, call, limit);
                 });
}

absl::StatusOr<StepResult> ComputeClient::Collective(const CollectiveCall& call,
                                                     const CallOptions& options) {
  return RunStep(core_, core_->Deadline(options), options, {&call.input}, call.output,
                 [&](const std::string& session_id, const CallLimit& limit) {
                   return RunCollective(core_->connection(), session_id, call, limit);
                 });
}

}  // namespace shardmesh::client
