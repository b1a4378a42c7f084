// Operands of steps, and the reports of plans and steps.
#include "client/cli/commands/step_report.h"

#include <cstddef>
#include <cstdint>
#include <iostream>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/cli/grammar.h"
#include "client/cli/progress_bar.h"
#include "client/cli/table.h"
#include "client/inspect/trace_events.h"
#include "process/file.h"
#include "program/flight_record.h"
#include "program/graph/symbolic_program.h"
#include "program/program.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/literal.h"
#include "tensor/npy.h"

namespace shardmesh::client {
namespace {

Json PredictionJson(const StepPrediction& predicted) {
  Json json = {{"peak_bytes", predicted.peak_bytes}};
  if (predicted.kernel.has_value()) json["kernel_s"] = Seconds(*predicted.kernel);
  if (predicted.collective.has_value()) json["collective_s"] = Seconds(*predicted.collective);
  if (predicted.overhead.has_value()) json["overhead_s"] = Seconds(*predicted.overhead);
  if (predicted.sent_bytes.has_value()) json["sent_bytes"] = *predicted.sent_bytes;
  return json;
}

Json TimeJson(const std::optional<absl::Duration>& time) {
  return time.has_value() ? Json(Seconds(*time)) : Json();
}

std::string TimeText(const std::optional<absl::Duration>& time) {
  return time.has_value() ? FormatTime(*time) : std::string("not measured yet");
}

Json OutputsJson(const std::vector<PlannedOutput>& outputs) {
  Json json = Json::array();
  for (const PlannedOutput& output : outputs) {
    json.push_back({{"dtype", std::string(DtypeName(output.type.dtype))},
                    {"shape", ShapeJson(output.type.shape)},
                    {"spec", SpecJson(output.spec)}});
  }
  return json;
}

// Returns why a candidate takes longer than the fastest one; empty for the fastest.
std::string SlownessOf(const CandidatePlan& candidate, const CandidatePlan& fastest) {
  std::vector<std::string> reasons;
  if (candidate.kernel_time > fastest.kernel_time) {
    reasons.push_back(StrCat("kernels +", FormatTime(candidate.kernel_time - fastest.kernel_time)));
  }
  if (candidate.exchange_time > fastest.exchange_time) {
    reasons.push_back(
        StrCat("exchanges +", FormatTime(candidate.exchange_time - fastest.exchange_time)));
  }
  return StrJoin(reasons, ", ");
}

}  // namespace

absl::StatusOr<Operand> OperandOf(const Invocation& invocation, MeshClient* client,
                                  const std::string& text, const std::string& mesh_id) {
  if (!text.ends_with(".npy")) {
    SHARDMESH_ASSIGN_OR_RETURN(ArraySelector array, ParseArrayName(text));
    return Operand(std::move(array));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const NpyFile file, NpyFile::Open(text));
  const TensorView view = file.View();
  if (view.size_bytes() <= kMaxLiteralBytes) {
    return Operand(
        Literal{view.dtype(), view.shape(), std::string(view.bytes().data(), view.bytes().size())});
  }
  PutTensor tensor{.name = {}, .view = view, .spec = PartitionSpec(), .cut_points = {}};
  ProgressBar bar("putting", invocation.quiet);
  PutOptions options;
  options.mesh = mesh_id;
  options.progress = ShowOn(&bar);
  SHARDMESH_ASSIGN_OR_RETURN(const PutResult put,
                             client->arrays().PutTensors({&tensor, 1}, options));
  return Operand(ArraySelector::ById(put.arrays.front().descriptor.array_id));
}

void AddTraceOption(CLI::App* command, InspectFlags* flags, CLI::Option* plan_only) {
  command
      ->add_option("--trace", flags->trace_path,
                   "write what each rank did, and when, to this file, which ui.perfetto.dev opens")
      ->excludes(plan_only);
}

CLI::Option* AddVerifyOption(CLI::App* command, InspectFlags* flags, CLI::Option* plan_only) {
  CLI::Option* const verify = command->add_flag(
      "--verify", flags->verify,
      "compare the results with a recomputation in F64, and fail if an error exceeds its bound");
  if (plan_only != nullptr) verify->excludes(plan_only);
  return verify;
}

void AddVerifyOptions(CLI::App* command, InspectFlags* flags, CLI::Option* plan_only) {
  CLI::Option* const verify = AddVerifyOption(command, flags, plan_only);
  command
      ->add_option("--verify-samples", flags->verify_options.samples,
                   "with --verify, how many elements of a product are recomputed (default: 64); "
                   "other programs are recomputed as a whole")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->needs(verify);
}

absl::StatusOr<StepInspector> StepInspector::Create(const InspectFlags& flags) {
  if (!flags.trace_path.empty()) {
    SHARDMESH_RETURN_IF_ERROR(AtomicFileWriter::Create(flags.trace_path).status());
  }
  return StepInspector(flags);
}

absl::StatusOr<StepInspector> StepInspector::Create(const InspectFlags& flags, MeshClient* client,
                                                    const Program& program,
                                                    std::vector<Operand>* operands) {
  SHARDMESH_ASSIGN_OR_RETURN(StepInspector inspector, Create(flags));
  if (!flags.verify) return inspector;
  SHARDMESH_ASSIGN_OR_RETURN(
      inspector.verifier_, StepVerifier::Create(client, program, *operands, flags.verify_options));
  *operands = inspector.verifier_->operands();
  return inspector;
}

absl::StatusOr<StepInspector> StepInspector::Create(const InspectFlags& flags, MeshClient* client,
                                                    LinearLayerCall* call) {
  SHARDMESH_ASSIGN_OR_RETURN(StepInspector inspector, Create(flags));
  if (!flags.verify) return inspector;
  SHARDMESH_ASSIGN_OR_RETURN(inspector.verifier_,
                             StepVerifier::CreateForLayer(client, *call, flags.verify_options));
  const std::vector<Operand>& operands = inspector.verifier_->operands();
  // As LinearLayerCall::operands orders them.
  auto next = operands.begin();
  call->input = *next++;
  for (size_t i = 0; i < call->weights.size(); ++i) {
    call->weights[i] = *next++;
    if (!call->biases.empty()) call->biases[i] = *next++;
    if (!call->scales.empty()) call->scales[i] = *next++;
  }
  return inspector;
}

absl::Status StepInspector::Inspect(const StepResult& result, Json* json) const {
  const absl::Status traced =
      flags_.trace_path.empty() ? absl::OkStatus() : WriteTrace(result, json);
  // Without a timeline, the results can be verified all the same. That they are wrong matters more.
  absl::Status status = verifier_.has_value() ? Verify(result, json) : absl::OkStatus();
  status.Update(traced);
  return status;
}

absl::Status StepInspector::Verify(const StepResult& result, Json* json) const {
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<VerifiedResult> verified, verifier_->Verify(result));
  ReportVerified(verified, json);
  return CheckVerified(verified);
}

void ReportVerified(absl::Span<const VerifiedResult> verified, Json* json) {
  for (const VerifiedResult& one : verified) {
    if (json != nullptr) {
      (*json)["verified"].push_back({{"what", one.what},
                                     {"checked", one.checked},
                                     {"undetermined", one.undetermined},
                                     {"outside", one.outside},
                                     {"largest_error", one.largest_error},
                                     {"bound", one.bound}});
      continue;
    }
    std::cout << "Verified " << FormatCount(one.checked, "element") << " of " << one.what
              << ": the largest error is " << one.largest_error << ", its bound " << one.bound
              << "\n";
    if (one.undetermined > 0) {
      std::cout << "No bound is known for " << FormatCount(one.undetermined, "other element")
                << " of " << one.what << "\n";
    }
  }
}

absl::Status StepInspector::WriteTrace(const StepResult& result, Json* json) const {
  const std::string& path = flags_.trace_path;
  const std::optional<StepTrace>& trace = result.timings.trace;
  if (!trace.has_value()) {
    return WithReason(
        absl::UnimplementedError("the step has run, but the coordinator runs an older build, which "
                                 "records no timelines; leave out --trace"),
        Reason::kNotAvailable);
  }
  SHARDMESH_ASSIGN_OR_RETURN(AtomicFileWriter writer, AtomicFileWriter::Create(path));
  SHARDMESH_RETURN_IF_ERROR(writer.Append(TraceEventsOf(*trace, result.sequence)));
  SHARDMESH_RETURN_IF_ERROR(writer.Finish());
  int64_t spans = 0;
  int64_t omitted = 0;
  for (const RankTrace& rank : trace->ranks) {
    spans += std::ssize(rank.spans);
    omitted += rank.omitted_spans;
  }
  const int64_t missing =
      result.outputs.empty()
          ? 0
          : result.outputs.front().array.descriptor.mesh.size() - std::ssize(trace->ranks);
  if (json != nullptr) {
    (*json)["trace"] = {
        {"path", path}, {"spans", spans}, {"omitted_spans", omitted}, {"missing_ranks", missing}};
    return absl::OkStatus();
  }
  std::cout << "Timeline of " << FormatCount(std::ssize(trace->ranks), "rank") << ": "
            << FormatCount(spans, "span") << ", written to " << path
            << "; ui.perfetto.dev opens it\n";
  if (omitted > 0) {
    std::cout << FormatCount(omitted, "later span") << " " << (omitted == 1 ? "is" : "are")
              << " left out\n";
  }
  if (missing > 0) {
    std::cout << FormatCount(missing, "other rank")
              << " recorded nothing: " << (missing == 1 ? "its worker runs" : "their workers run")
              << " an older build\n";
  }
  return absl::OkStatus();
}

Json SymbolJson(const SymbolicDimension& symbol) {
  return {{"name", symbol.name},
          {"min", symbol.min},
          {"max", symbol.max},
          {"multiple", symbol.multiple}};
}

Json PlanJson(const CompiledProgram& plan) {
  Json instructions = Json::array();
  for (const PlannedInstruction& planned : plan.instructions) {
    Json instruction = {{"label", planned.label},
                        {"collective", Json()},
                        {"algorithm", Json()},
                        {"axes", planned.axes}};
    if (planned.collective.has_value()) {
      instruction["collective"] = std::string(CollectiveKindName(*planned.collective));
      instruction["algorithm"] = std::string(CollectiveAlgorithmName(planned.algorithm));
    }
    instructions.push_back(std::move(instruction));
  }
  Json traffic = Json::array();
  for (const PlannedTraffic& along : plan.traffic) {
    traffic.push_back({{"axes", along.axes},
                       {"collectives", along.collectives},
                       {"sent_bytes", along.sent_bytes},
                       {"exchange_s", TimeJson(along.exchange_time)}});
  }
  Json links;
  if (plan.links.has_value()) {
    Json busiest = Json::array();
    for (const PlannedLink& link : plan.links->busiest) {
      busiest.push_back({{"sender_rank", link.sender_rank},
                         {"receiver_rank", link.receiver_rank},
                         {"sent_bytes", link.sent_bytes}});
    }
    links = {{"busiest", std::move(busiest)},
             {"link_count", plan.links->link_count},
             {"sent_bytes", plan.links->sent_bytes}};
  }
  Json json = {{"plan_hash", absl::BytesToHexString(plan.plan_hash)},
               {"instructions", std::move(instructions)},
               {"traffic", std::move(traffic)},
               {"links", std::move(links)},
               {"peak_bytes", plan.peak_bytes},
               {"rank_peak_bytes", plan.rank_peak_bytes},
               {"outputs", OutputsJson(plan.outputs)},
               {"exchange_s", TimeJson(plan.exchange_time)},
               {"kernel_s", TimeJson(plan.kernel_time)}};
  if (plan.shortest.has_value()) {
    json["symbol"] = SymbolJson(*plan.program->symbol);
    json["shortest"] = {{"length", plan.shortest->length},
                        {"peak_bytes", plan.shortest->peak_bytes},
                        {"outputs", OutputsJson(plan.shortest->outputs)},
                        {"exchange_s", TimeJson(plan.shortest->exchange_time)},
                        {"kernel_s", TimeJson(plan.shortest->kernel_time)}};
  }
  for (const CandidatePlan& candidate : plan.candidates) {
    std::vector<std::string> labels;
    for (const PlannedInstruction& planned : candidate.instructions) {
      labels.push_back(planned.label);
    }
    json["candidates"].push_back({{"roles", candidate.roles},
                                  {"time_s", Seconds(candidate.time)},
                                  {"kernel_s", Seconds(candidate.kernel_time)},
                                  {"exchange_s", Seconds(candidate.exchange_time)},
                                  {"sent_bytes", candidate.cost.sent_bytes},
                                  {"flops", candidate.cost.flops},
                                  {"peak_bytes", candidate.peak_bytes},
                                  {"instructions", std::move(labels)}});
  }
  return json;
}

void PrintCandidates(const CompiledProgram& plan) {
  using Align = Table::Align;
  Table table({{"axes"},
               {"time", Align::kRight},
               {"kernels", Align::kRight},
               {"exchanges", Align::kRight},
               {"sends", Align::kRight},
               {"peak", Align::kRight},
               {"slower by"}});
  for (const CandidatePlan& candidate : plan.candidates) {
    table.AddRow({candidate.roles, FormatTime(candidate.time), FormatTime(candidate.kernel_time),
                  FormatTime(candidate.exchange_time), FormatBytes(candidate.cost.sent_bytes),
                  FormatBytes(candidate.peak_bytes),
                  SlownessOf(candidate, plan.candidates.front())});
  }
  table.Print();
  for (const CandidatePlan& candidate : plan.candidates) {
    std::cout << "\n" << candidate.roles << "\n";
    for (const PlannedInstruction& planned : candidate.instructions) {
      std::cout << "  " << planned.label << "\n";
    }
  }
  if (!plan.exchange_time.has_value() || !plan.kernel_time.has_value()) {
    std::cout << "\nTimes are of default rates for "
              << (plan.kernel_time.has_value()     ? "links"
                  : plan.exchange_time.has_value() ? "kernels"
                                                   : "kernels and links")
              << ", which no worker has measured yet\n";
  }
}

void PrintPlan(const CompiledProgram& plan) {
  using Align = Table::Align;
  Table instructions({{"instruction"}, {"algorithm"}});
  for (const PlannedInstruction& planned : plan.instructions) {
    instructions.AddRow(
        {planned.label, planned.collective.has_value()
                            ? std::string(CollectiveAlgorithmName(planned.algorithm))
                            : "-"});
  }
  instructions.Print();
  std::cout << "Values take at most " << FormatBytes(plan.peak_bytes)
            << " of each device at once\n";
  if (plan.traffic.empty()) {
    std::cout << "Devices send nothing to each other\n";
    return;
  }
  std::cout << "\n";
  Table traffic({{"axes"},
                 {"collectives", Align::kRight},
                 {"busiest device sends", Align::kRight},
                 {"time", Align::kRight}});
  for (const PlannedTraffic& along : plan.traffic) {
    traffic.AddRow({StrJoin(along.axes, ","), StrCat(along.collectives),
                    FormatBytes(along.sent_bytes),
                    along.exchange_time.has_value() ? FormatTime(*along.exchange_time)
                                                    : "links are not measured yet"});
  }
  traffic.Print();
  std::cout << "\n";
  if (!plan.links.has_value()) {
    std::cout << "Bytes by link are not known: too many pairs of ranks exchange data, or the "
                 "coordinator is an older build\n";
    return;
  }
  if (plan.links->link_count == 0) {
    std::cout << "Devices send nothing to each other\n";
    return;
  }
  Table links({{"sender", Align::kRight}, {"receiver", Align::kRight}, {"sent", Align::kRight}});
  for (const PlannedLink& link : plan.links->busiest) {
    links.AddRow(
        {StrCat(link.sender_rank), StrCat(link.receiver_rank), FormatBytes(link.sent_bytes)});
  }
  links.Print();
  std::cout << plan.links->busiest.size() << " of " << FormatCount(plan.links->link_count, "link")
            << ", which carry " << FormatBytes(plan.links->sent_bytes) << " together\n";
}

void PrintPlanTimes(const CompiledProgram& plan) {
  std::cout << "Predicted: kernels " << TimeText(plan.kernel_time) << ", exchanges "
            << TimeText(plan.exchange_time) << "\n";
}

void PrintRange(const CompiledProgram& plan) {
  if (!plan.shortest.has_value()) return;
  const SymbolicDimension& symbol = *plan.program->symbol;
  std::cout << "One plan for each length, " << SymbolicDimensionText(symbol) << "; above for "
            << symbol.max << "\n";
  std::cout << "For " << plan.shortest->length << ": values take at most "
            << FormatBytes(plan.shortest->peak_bytes) << ", kernels "
            << TimeText(plan.shortest->kernel_time) << ", exchanges "
            << TimeText(plan.shortest->exchange_time) << "\n";
}

Json TimingsJson(const StepTimings& timings) {
  Json json = {{"total_s", Seconds(timings.total)},
               {"kernel_s", Seconds(timings.kernel)},
               {"collective_s", Seconds(timings.collective)},
               {"sent_bytes", timings.sent_bytes}};
  if (timings.predicted.has_value()) json["predicted"] = PredictionJson(*timings.predicted);
  return json;
}

std::string FormatTimings(const StepTimings& timings) {
  return StrCat("took ", FormatTime(timings.total), ": kernels ", FormatTime(timings.kernel),
                ", collectives ", FormatTime(timings.collective), ", ",
                FormatBytes(timings.sent_bytes), " between workers");
}

std::string FormatPrediction(const StepPrediction& predicted) {
  std::vector<std::string> parts;
  if (predicted.kernel.has_value()) {
    parts.push_back(StrCat("kernels ", FormatTime(*predicted.kernel)));
  }
  if (predicted.collective.has_value()) {
    parts.push_back(StrCat("collectives ", FormatTime(*predicted.collective)));
  }
  if (predicted.overhead.has_value()) {
    parts.push_back(StrCat("the rest ", FormatTime(*predicted.overhead)));
  }
  if (predicted.sent_bytes.has_value()) {
    parts.push_back(StrCat(FormatBytes(*predicted.sent_bytes), " between workers"));
  }
  parts.push_back(StrCat("peak ", FormatBytes(predicted.peak_bytes), " on a device"));
  return StrJoin(parts, ", ");
}

void PrintTimings(const StepResult& result) {
  std::cout << "Step " << result.sequence << " " << FormatTimings(result.timings) << "\n";
  if (result.timings.predicted.has_value()) {
    std::cout << "Predicted: " << FormatPrediction(*result.timings.predicted) << "\n";
  }
}

}  // namespace shardmesh::client
