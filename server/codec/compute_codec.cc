// Decodes the requests of ComputeService, and encodes its plans.
#include "server/codec/compute_codec.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "google/protobuf/repeated_field.h"
#include "program/fuse/fuse_exchanges.h"
#include "program/kernel_time.h"
#include "program/move_plan.h"
#include "program/plan_forecast.h"
#include "program/step_plan.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/linear_codec.h"
#include "rpc/codec/plan_codec.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "server/state/array_view_codec.h"
#include "sharding/digest.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// Returns an Execute with a program of one op. The caller fills in the op and its operands.
template <typename Request>
v1::ExecuteRequest SingleOp(const Request& request) {
  v1::ExecuteRequest step;
  step.set_request_id(request.request_id());
  step.set_session_id(request.session_id());
  *step.mutable_output() = request.output();
  if (request.has_timeout()) {
    *step.mutable_timeout() = request.timeout();
  }
  step.mutable_program()->add_ops();
  return step;
}
// Call Finished once all operands are added. Makes the op's result the program's output. The value
// index of the result follows the indexes of the operands.
v1::ExecuteRequest Finished(v1::ExecuteRequest step) {
  const auto operands = static_cast<uint32_t>(step.operands_size());
  step.mutable_program()->set_operand_count(operands);
  step.mutable_program()->add_outputs(operands);
  return step;
}

absl::StatusOr<StepOperand> Decode(const v1::Operand& from) {
  StepOperand operand{.donate = from.donate()};
  switch (from.operand_case()) {
    case v1::Operand::kArray: {
      SHARDMESH_ASSIGN_OR_RETURN(operand.value, server::Decode(from.array()));
      return operand;
    }
    case v1::Operand::kLiteral: {
      auto literal = rpc::Decode(from.literal());
      if (!literal.ok()) {
        return rpc::WithField(literal.status(), "literal");
      }
      operand.value = *std::move(literal);
      return operand;
    }
    case v1::Operand::OPERAND_NOT_SET:
      break;
  }
  return rpc::BadField("operand", "is neither an array nor a literal");
}

absl::StatusOr<StepOperands> DecodeOperands(
    const google::protobuf::RepeatedPtrField<v1::Operand>& from, const std::string& mesh_id) {
  StepOperands operands{.mesh_id = mesh_id};
  for (int i = 0; i < from.size(); ++i) {
    auto operand = Decode(from.Get(i));
    if (!operand.ok()) {
      return rpc::WithField(operand.status(), "operands", static_cast<size_t>(i));
    }
    operands.operands.push_back(*std::move(operand));
  }
  return operands;
}

absl::StatusOr<StepOutputs> Decode(const v1::OutputOptions& from) {
  StepOutputs outputs{.names = {from.names().begin(), from.names().end()},
                      .return_literals = from.return_literals(),
                      .return_trace = from.return_trace()};
  for (int i = 0; i < from.preconditions_size(); ++i) {
    SHARDMESH_ASSIGN_OR_RETURN(const std::optional<int64_t> expected,
                               server::Decode(from.preconditions(i), /*must_exist=*/false,
                                              StrCat("output.preconditions[", i, "]")));
    outputs.expected_versions.push_back(expected);
  }
  for (int i = 0; i < from.layouts_size(); ++i) {
    std::optional<PartitionSpec>& spec = outputs.specs.emplace_back();
    if (!from.layouts(i).has_output_spec()) continue;
    auto decoded = rpc::Decode(from.layouts(i).output_spec());
    if (!decoded.ok()) {
      return rpc::WithField(rpc::WithField(decoded.status(), "output_spec"), "output.layouts",
                            static_cast<size_t>(i));
    }
    spec = *std::move(decoded);
  }
  return outputs;
}

// Checks which fields a request with a layer has.
absl::Status CheckLayerFields(const v1::LinearRequest& request) {
  if (request.has_weight() || request.has_bias()) {
    return rpc::BadField(request.has_weight() ? "weight" : "bias",
                         "is set beside `layer`; use `weights` and `biases`");
  }
  if (request.weight_layout() != v1::WEIGHT_LAYOUT_UNSPECIFIED ||
      request.activation() != v1::ACTIVATION_UNSPECIFIED || request.has_scale()) {
    return rpc::BadField(
        "layer", "is set beside weight_layout, activation or scale; set those of the layer");
  }
  const int biases = request.layer().use_bias() ? request.weights_size() : 0;
  if (request.biases_size() != biases) {
    return rpc::BadField("biases", StrCat("has ", request.biases_size(),
                                          " operands; the layer has ", biases, " biases"));
  }
  const int scales = request.layer().use_scales() ? request.weights_size() : 0;
  const int have_scales = request.further_scales_size() + (request.has_scales() ? 1 : 0);
  if (have_scales != scales || (scales > 0 && !request.has_scales())) {
    return rpc::BadField(
        request.has_scales() ? "further_scales" : "scales",
        StrCat("`scales` and `further_scales` have ", have_scales, " operands; the layer has ",
               scales, " weights with scales: the first ones in `scales`, the others in ",
               "`further_scales`"));
  }
  return absl::OkStatus();
}

void EncodeInstructions(const Plan& plan,
                        google::protobuf::RepeatedPtrField<v1::PlannedInstruction>* to) {
  for (const Instruction& instruction : plan.instructions) {
    v1::PlannedInstruction* const planned = to->Add();
    planned->set_label(instruction.label);
    if (const auto exchange = ExchangeOf(plan, instruction); exchange.has_value()) {
      const GroupCollective& collective = *exchange->op;
      planned->set_collective(rpc::Encode(collective.kind));
      planned->set_algorithm(rpc::Encode(collective.algorithm));
      planned->mutable_axes()->Assign(collective.axes.begin(), collective.axes.end());
    }
    if (const auto* move = std::get_if<MoveRegions>(&instruction.kind)) {
      const auto regions =
          MovePlan(plan.mesh, plan.values[move->input], plan.values[instruction.output]);
      if (!regions.ok()) continue;  // not reached: the planner made the same plan
      for (std::string& axis : MoveAxes(*regions)) planned->add_axes(std::move(axis));
    }
  }
}

}  // namespace

v1::ExecuteRequest AsExecute(const v1::LinearRequest& request) {
  v1::ExecuteRequest step = SingleOp(request);
  *step.add_operands() = request.input();
  *step.add_operands() = request.weight();
  v1::LinearOp* op = step.mutable_program()->mutable_ops(0)->mutable_linear();
  op->set_input(0);
  op->set_weight(1);
  if (request.has_bias()) {
    *step.add_operands() = request.bias();
    op->set_bias(2);
  }
  if (request.has_scales()) {
    op->set_scales(static_cast<uint32_t>(step.operands_size()));
    *step.add_operands() = request.scales();
  }
  op->set_weight_layout(request.weight_layout());
  op->set_activation(request.activation());
  if (request.has_scale()) {
    op->set_scale(request.scale());
  }
  return Finished(std::move(step));
}

v1::ExecuteRequest AsExecute(const v1::MatmulRequest& request) {
  v1::ExecuteRequest step = SingleOp(request);
  *step.add_operands() = request.lhs();
  *step.add_operands() = request.rhs();
  v1::MatmulOp* op = step.mutable_program()->mutable_ops(0)->mutable_matmul();
  op->set_lhs(0);
  op->set_rhs(1);
  op->set_transpose_lhs(request.transpose_lhs());
  op->set_transpose_rhs(request.transpose_rhs());
  return Finished(std::move(step));
}

v1::ExecuteRequest AsExecute(const v1::CollectiveRequest& request) {
  v1::ExecuteRequest step = SingleOp(request);
  *step.add_operands() = request.input();
  v1::CollectiveOp* op = step.mutable_program()->mutable_ops(0)->mutable_collective();
  op->set_input(0);
  op->set_kind(request.kind());
  *op->mutable_axes() = request.axes();
  if (request.has_dimension()) op->set_dimension(request.dimension());
  op->set_reduction(request.reduction());
  if (request.has_root()) op->set_root(request.root());
  if (request.has_split_dimension()) op->set_split_dimension(request.split_dimension());
  *op->mutable_permutation() = request.permutation();
  op->set_algorithm(request.algorithm());
  op->set_order(request.order());
  *op->mutable_counts() = request.counts();
  return Finished(std::move(step));
}

absl::StatusOr<StepCall> Decode(const v1::ExecuteRequest& request) {
  StepCall call{.request_id = request.request_id(),
                .session_id = request.session_id(),
                .fingerprint = request.request_id().empty() ? std::string()
                                                            : Sha256(request.SerializeAsString())};
  SHARDMESH_ASSIGN_OR_RETURN(call.outputs, Decode(request.output()));
  SHARDMESH_ASSIGN_OR_RETURN(call.operands, DecodeOperands(request.operands(), request.mesh_id()));
  switch (request.work_case()) {
    case v1::ExecuteRequest::kProgram: {
      auto program = rpc::Decode(request.program());
      if (!program.ok()) {
        return rpc::WithField(program.status(), "program");
      }
      call.work = *std::move(program);
      break;
    }
    case v1::ExecuteRequest::kPlanHash:
      call.work = PlanHash{request.plan_hash()};
      break;
    case v1::ExecuteRequest::WORK_NOT_SET:
      return rpc::BadField("work", "is neither a program nor a plan's hash");
  }
  if (request.has_timeout()) {
    auto timeout = rpc::Decode(request.timeout());
    if (!timeout.ok()) {
      return rpc::WithField(timeout.status(), "timeout");
    }
    call.timeout = *timeout;
  }
  return call;
}

absl::StatusOr<StepCall> Decode(const v1::LinearRequest& request) {
  if (!request.has_layer()) {
    if (request.weights_size() > 0 || request.biases_size() > 0 ||
        request.further_scales_size() > 0) {
      return rpc::BadField("weights", "are given without `layer`; set `weight` and `bias`");
    }
    return Decode(AsExecute(request));
  }
  SHARDMESH_RETURN_IF_ERROR(CheckLayerFields(request));
  v1::ExecuteRequest step = SingleOp(request);
  step.mutable_program()->Clear();  // the program is made when the operands are known
  *step.add_operands() = request.input();
  for (int i = 0; i < request.weights_size(); ++i) {
    *step.add_operands() = request.weights(i);
    if (request.layer().use_bias()) *step.add_operands() = request.biases(i);
    if (request.layer().use_scales()) {
      *step.add_operands() = i == 0 ? request.scales() : request.further_scales(i - 1);
    }
  }
  SHARDMESH_ASSIGN_OR_RETURN(StepCall call, Decode(step));
  if (!call.fingerprint.empty()) call.fingerprint = Sha256(request.SerializeAsString());
  auto layer = rpc::Decode(request.layer());
  if (!layer.ok()) return rpc::WithField(std::move(layer).status(), "layer");
  call.layer = *std::move(layer);
  return call;
}

absl::StatusOr<StepOperands> DecodeOperands(const v1::CompileRequest& request) {
  return DecodeOperands(request.operands(), request.mesh_id());
}

absl::StatusOr<std::optional<LayerCall>> DecodeLayer(const v1::CompileRequest& request) {
  if (!request.has_layer()) return std::nullopt;
  if (request.has_program()) {
    return rpc::BadField("program", "is set beside `layer`; set one of them");
  }
  auto layer = rpc::Decode(request.layer());
  if (!layer.ok()) return rpc::WithField(std::move(layer).status(), "layer");
  return std::optional<LayerCall>(*std::move(layer));
}

absl::StatusOr<size_t> DecodeCandidates(const v1::CompileRequest& request) {
  const int32_t candidates = request.candidates();
  if (candidates < 0) {
    return rpc::BadField("candidates",
                         StrCat("is ", candidates, "; it must be 0 to ", kMostPlanCandidates));
  }
  if (candidates > kMostPlanCandidates) {
    return rpc::WithField(
        InvalidArgument(
            Reason::kLimitExceeded,
            StrCat(candidates, " candidates; at most ", kMostPlanCandidates, " are returned"),
            {{fact::kHave, candidates}, {fact::kLimit, kMostPlanCandidates}}),
        "candidates");
  }
  return static_cast<size_t>(candidates);
}

void EncodeParts(v1::ExecuteResponse answer, v1::LinearResponse* to) {
  to->mutable_outputs()->Swap(answer.mutable_outputs());
  to->set_sequence(answer.sequence());
  *to->mutable_timings() = std::move(*answer.mutable_timings());
}

namespace {

void EncodeOutputs(const Plan& plan, google::protobuf::RepeatedPtrField<v1::PlannedOutput>* to) {
  for (const ValueIndex output : plan.outputs) {
    const ValueDescriptor& value = plan.values[output];
    v1::PlannedOutput* const added = to->Add();
    added->set_dtype(rpc::Encode(value.dtype));
    added->mutable_shape()->Add(value.shape.begin(), value.shape.end());
    rpc::Encode(value.spec, added->mutable_spec());
  }
}

}  // namespace

void Encode(const PreparedPlan& prepared, v1::CompileResponse* to) {
  to->set_plan_hash(prepared.symbolic != nullptr ? prepared.symbolic->hash : prepared.hash);
  EncodeInstructions(prepared.plan, to->mutable_instructions());
  rpc::Encode(prepared.plan.cost, to->mutable_cost());
  EncodeOutputs(prepared.plan, to->mutable_outputs());
}

void EncodeRange(const StepRunner::CompiledPlan& compiled, v1::CompileResponse* to) {
  to->mutable_rank_peak_bytes()->Add(compiled.rank_peak_bytes.begin(),
                                     compiled.rank_peak_bytes.end());
  if (!compiled.lengths.has_value()) return;
  to->set_length(compiled.lengths->longest);
  const PreparedPlan& prepared = *compiled.lengths->at_shortest;
  v1::LengthPlan* const shortest = to->mutable_shortest();
  shortest->set_length(compiled.lengths->shortest);
  shortest->set_peak_bytes(prepared.plan.cost.memory_bytes);
  if (prepared.links.is_measured) {
    rpc::Encode(absl::Seconds(prepared.forecast.exchange_seconds),
                shortest->mutable_exchange_time());
  }
  if (prepared.kernels.is_measured) {
    rpc::Encode(absl::Seconds(prepared.forecast.kernel_seconds), shortest->mutable_kernel_time());
  }
  EncodeOutputs(prepared.plan, shortest->mutable_outputs());
}

namespace {

// Rounds as the planner does when it orders candidates (PlanCandidates). If times were cut off, a
// candidate could be shown as faster than one before it.
absl::Duration InNanoseconds(double seconds) {
  return absl::Nanoseconds(std::round(seconds * 1e9));
}

}  // namespace

void Encode(const PlanCandidate& candidate, const KernelRates& kernels, v1::PlanCandidate* to) {
  double kernel_seconds = 0;
  for (const Instruction& instruction : candidate.plan.instructions) {
    kernel_seconds += KernelSeconds(candidate.plan, instruction, kernels);
  }
  const double exchange_seconds = std::max(candidate.seconds - kernel_seconds, 0.0);
  to->set_roles(candidate.roles);
  rpc::Encode(InNanoseconds(candidate.seconds), to->mutable_time());
  rpc::Encode(InNanoseconds(kernel_seconds), to->mutable_kernel_time());
  rpc::Encode(InNanoseconds(exchange_seconds), to->mutable_exchange_time());
  rpc::Encode(candidate.plan.cost, to->mutable_cost());
  to->set_peak_bytes(candidate.plan.cost.memory_bytes);
  EncodeInstructions(candidate.plan, to->mutable_instructions());
}

void Encode(const PlanForecast& forecast, const MeasuredRates& measured, v1::CompileResponse* to) {
  for (const AxisTraffic& from : forecast.traffic) {
    v1::AxisTraffic* const traffic = to->add_traffic();
    traffic->mutable_axes()->Assign(from.axes.begin(), from.axes.end());
    traffic->set_collectives(from.collectives);
    traffic->set_sent_bytes(from.sent_bytes);
    if (measured.links) {
      rpc::Encode(absl::Seconds(from.seconds), traffic->mutable_exchange_time());
    }
  }
  if (forecast.link_traffic.has_value()) {
    v1::LinkTrafficSummary* const summary = to->mutable_link_traffic();
    for (const LinkTraffic& from : forecast.link_traffic->busiest) {
      v1::LinkTraffic* const link = summary->add_busiest_links();
      link->set_sender_rank(from.sender);
      link->set_receiver_rank(from.receiver);
      link->set_sent_bytes(from.sent_bytes);
    }
    summary->set_link_count(forecast.link_traffic->link_count);
    summary->set_sent_bytes(forecast.link_traffic->sent_bytes);
  }
  to->set_peak_bytes(forecast.peak_bytes);
  if (measured.links) {
    rpc::Encode(absl::Seconds(forecast.exchange_seconds), to->mutable_exchange_time());
  }
  if (measured.kernels) {
    rpc::Encode(absl::Seconds(forecast.kernel_seconds), to->mutable_kernel_time());
  }
}

}  // namespace shardmesh::server
