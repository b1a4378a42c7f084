// Commands linear, matmul, collective: computations on the workers' arrays.
#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/numbers.h"
#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/step_report.h"
#include "client/cli/grammar.h"
#include "client/cli/interruption.h"
#include "client/cli/progress_bar.h"
#include "client/cli/shared_options.h"
#include "client/cli/table.h"
#include "process/file.h"
#include "program/graph/layer_program.h"
#include "program/program.h"
#include "sharding/layout/parallel_linear.h"
#include "status/nearest_name.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"
#include "tensor/npy.h"

namespace shardmesh::client {
namespace {

// The flags that say what to do with the result.
struct ResultFlags {
  std::string path;  // .npy file that gets the result
  std::string name;  // name of the result in the cluster
  std::optional<PartitionSpec> spec;
  bool plan_only = false;  // show the plan, and run nothing
  // With plan_only, the number of compared plans to show; nullopt: only the plan that would run.
  std::optional<int32_t> candidates;
  InspectFlags inspect;
};

Json StepJson(const StepResult& result, const ResultFlags& flags) {
  const Array& array = result.outputs.front().array;
  Json json = {{"array_id", array.descriptor.array_id},
               {"dtype", std::string(DtypeName(array.descriptor.dtype))},
               {"shape", ShapeJson(array.descriptor.shape)},
               {"spec", SpecJson(array.descriptor.spec)},
               {"sequence", result.sequence}};
  json.update(TimingsJson(result.timings));
  if (!flags.name.empty()) {
    json["name"] = flags.name;
  }
  if (!flags.path.empty()) {
    json["path"] = flags.path;
  }
  return json;
}

// Saves and shows the result of the step. Requires that the step has exactly one result.
absl::Status Finish(const Invocation& invocation, MeshClient* client, const StepResult& result,
                    const ResultFlags& flags, const StepInspector& inspector) {
  const Array& array = result.outputs.front().array;
  if (!flags.path.empty()) {
    ProgressBar bar("gathering", invocation.quiet);
    SHARDMESH_RETURN_IF_ERROR(
        client->arrays()
            .GatherToNpy(ArraySelector::ById(array.descriptor.array_id), flags.path, ShowOn(&bar))
            .status());
  }
  if (invocation.json) {
    Json json = StepJson(result, flags);
    const absl::Status inspected = inspector.Inspect(result, &json);
    invocation.Print(json);
    return inspected;
  }
  std::cout << "Result: " << DtypeName(array.descriptor.dtype) << " "
            << FormatShape(array.descriptor.shape) << ", spec "
            << FormatSpec(array.descriptor.spec);
  if (!flags.name.empty()) {
    std::cout << ", named " << flags.name << " (" << FormatDurability(array.durability) << ")";
  }
  if (!flags.path.empty()) {
    std::cout << ", written to " << flags.path;
  }
  if (flags.name.empty() && flags.path.empty()) {
    std::cout << ", not kept (--out writes it, --as keeps it)";
  }
  std::cout << "\n";
  PrintTimings(result);
  return inspector.Inspect(result, nullptr);
}

// Names --result-spec in an error about the op that gives the result this spec. The commands have
// no other reshard.
absl::Status ExplainResultSpec(const absl::Status& status, const ResultFlags& flags) {
  constexpr std::string_view kOp = "op 1 (reshard): ";
  const std::string message(status.message());
  if (!flags.spec.has_value() || !message.starts_with(kOp)) return status;
  return WithMessage(status, StrCat("--result-spec: ", message.substr(kOp.size())));
}

// Runs a step, and saves and shows its result. A result without a name exists only in the workers'
// memory. Such a result may be lost before it is gathered, because a worker or the coordinator was
// replaced. In that case the step runs again, at most kMaxRuns times in all.
absl::Status RunAndFinish(const Invocation& invocation, MeshClient* client,
                          const ResultFlags& flags, const StepInspector& inspector,
                          const std::function<absl::StatusOr<StepResult>()>& run) {
  constexpr int kMaxRuns = 3;
  if (!flags.path.empty()) {
    // Before the step, which may take long, check that the file can be written.
    SHARDMESH_RETURN_IF_ERROR(AtomicFileWriter::Create(flags.path).status());
  }
  for (int runs = 1;; ++runs) {
    const absl::StatusOr<StepResult> result = run();
    if (!result.ok()) return ExplainResultSpec(result.status(), flags);
    absl::Status finished = Finish(invocation, client, *result, flags, inspector);
    const Reason reason = ReasonOf(finished);
    const bool is_lost = reason == Reason::kNotFound || reason == Reason::kArrayDegraded;
    if (!is_lost || !flags.name.empty() || runs == kMaxRuns) {
      return finished;
    }
  }
}

OutputOptions OutputOf(const ResultFlags& flags) {
  OutputOptions output;
  if (!flags.name.empty()) {
    output.names = {flags.name};
  }
  if (flags.spec.has_value()) {
    output.specs = {flags.spec};
  }
  output.return_trace = !flags.inspect.trace_path.empty();
  return output;
}

// Returns the program of one op, whose inputs are the operands.
Program ProgramOf(ProgramOp op, size_t operands) {
  const auto result = static_cast<ValueIndex>(operands);
  Program program{.operand_count = result, .ops = {}, .outputs = {result}};
  program.ops.push_back(std::move(op));
  return program;
}

// Shows a plan, with candidates if the flags ask for them.
absl::Status ShowCompiled(const Invocation& invocation, const CompiledProgram& plan,
                          const ResultFlags& flags) {
  if (flags.candidates.has_value() && plan.candidates.empty()) {
    return WithReason(
        absl::UnimplementedError("the coordinator runs an older build, which shows no "
                                 "candidates; leave out --candidates"),
        Reason::kNotAvailable);
  }
  if (invocation.json) {
    invocation.Print(PlanJson(plan));
  } else if (flags.candidates.has_value()) {
    PrintCandidates(plan);
  } else {
    PrintPlan(plan);
  }
  return absl::OkStatus();
}

// Shows the plan of one op on the given operands, without running the op.
absl::Status ShowPlan(const Invocation& invocation, MeshClient* client, ProgramOp op,
                      const std::vector<Operand>& operands, const ResultFlags& flags) {
  const auto result = static_cast<ValueIndex>(operands.size());
  Program program = ProgramOf(std::move(op), operands.size());
  if (flags.spec.has_value()) {
    program.ops.push_back(ReshardOp{.input = result, .spec = *flags.spec});
    program.outputs = {result + 1};
  }
  const absl::StatusOr<CompiledProgram> compiled =
      flags.candidates.has_value()
          ? client->compute().ComparePlans(program, operands, *flags.candidates)
          : client->compute().Compile(program, operands);
  if (!compiled.ok()) return ExplainResultSpec(compiled.status(), flags);
  return ShowCompiled(invocation, *compiled, flags);
}

struct LinearFlags {
  std::string input;
  std::vector<std::string> weights;
  std::vector<std::string> biases;
  std::vector<std::string> scales;
  WeightLayout layout = WeightLayout::kOutIn;
  Activation activation = Activation::kNone;
  std::variant<double, std::string> scale = 1.0;
  ResultFlags result;  // path and name: of a layer with one result
  std::vector<std::string> paths;
  std::vector<std::string> names;
  // Settings of a layer. If any is given, or several weights, the call is LinearLayer.
  std::vector<int64_t> out_features;
  int64_t shards = 1;
  std::string axis;
  std::optional<std::string> method;
  ParallelDirection direction = ParallelDirection::kNone;
  bool reduce_output = false;
  bool reduce_scatter_output = false;
  std::optional<Dtype> dtype;
  std::optional<Dtype> param_dtype;

  bool IsLayer() const {
    return weights.size() > 1 || !out_features.empty() || shards != 1 || !axis.empty() ||
           dtype.has_value() || param_dtype.has_value() ||
           std::holds_alternative<std::string>(scale);
  }
  size_t results() const { return std::max(weights.size(), out_features.size()); }
};

absl::StatusOr<std::variant<double, std::string>> ParseLinearScale(std::string_view text) {
  using Scale = std::variant<double, std::string>;
  if (text == "fan_in" || text == "fan_out") return Scale(std::string(text));
  double factor = 0;
  // Steps compute with floats, where larger numbers are infinite.
  constexpr auto kLargest = static_cast<double>(std::numeric_limits<float>::max());
  if (absl::SimpleAtod(ToAbsl(text), &factor) && std::abs(factor) <= kLargest) return Scale(factor);
  return WrongUse(StrCat("\"", text, "\" is not a number, such as 0.125, and neither fan_in nor ",
                         "fan_out", DidYouMean(text, {"fan_in", "fan_out"})));
}

absl::StatusOr<std::string> ParseMethod(std::string_view text) {
  if (text == "all-gather") return std::string("ALL_GATHER");
  if (text == "reduce-scatter") return std::string("REDUCE_SCATTER");
  return WrongUse(StrCat("\"", text, "\" is none of all-gather, reduce-scatter",
                         DidYouMean(text, {"all-gather", "reduce-scatter"})));
}

absl::StatusOr<ParallelDirection> ParseLinearDirection(std::string_view text) {
  if (text == "row") return ParallelDirection::kRow;
  if (text == "column") return ParallelDirection::kColumn;
  return WrongUse(
      StrCat("\"", text, "\" is none of row, column", DidYouMean(text, {"row", "column"})));
}

// Checks that the numbers of biases, names and files fit those of weights and results.
absl::Status CheckLinearFlags(const LinearFlags& flags) {
  const auto check = [](std::string_view flag, size_t have, std::string_view of,
                        size_t need) -> absl::Status {
    if (have == 0 || have == need) return absl::OkStatus();
    return WrongUse(StrCat(flag, " is given ", FormatCount(static_cast<int64_t>(have), "time"),
                           "; the layer has ", FormatCount(static_cast<int64_t>(need), of),
                           ": give it once for each"));
  };
  SHARDMESH_RETURN_IF_ERROR(check("--bias", flags.biases.size(), "weight", flags.weights.size()));
  SHARDMESH_RETURN_IF_ERROR(check("--scales", flags.scales.size(), "weight", flags.weights.size()));
  SHARDMESH_RETURN_IF_ERROR(check("--as", flags.names.size(), "result", flags.results()));
  SHARDMESH_RETURN_IF_ERROR(check("--out", flags.paths.size(), "result", flags.results()));
  const auto check_distinct = [](std::string_view flag,
                                 const std::vector<std::string>& texts) -> absl::Status {
    std::set<std::string_view> seen;
    for (const std::string& text : texts) {
      if (seen.insert(text).second) continue;
      return WrongUse(
          StrCat(flag, ": \"", text, "\" is given twice; give each result another one"));
    }
    return absl::OkStatus();
  };
  SHARDMESH_RETURN_IF_ERROR(check_distinct("--as", flags.names));
  SHARDMESH_RETURN_IF_ERROR(check_distinct("--out", flags.paths));
  return absl::OkStatus();
}

LayerCall LayerOf(const LinearFlags& flags) {
  LayerCall layer;
  layer.out_features = flags.out_features;
  layer.shards = flags.shards;
  layer.param_dtype = flags.param_dtype;
  LinearLayerOptions& options = layer.options;
  options.layer.scale = flags.scale;
  options.layer.direction = flags.direction;
  options.dtype = flags.dtype;
  options.weight_layout = flags.layout;
  options.activation = flags.activation;
  if (!flags.axis.empty()) {
    options.parallel = TensorParallelConfig{.mesh = std::nullopt,
                                            .axis_name = flags.axis,
                                            .matmul_method = flags.method,
                                            .reduce_output = flags.reduce_output,
                                            .reduce_scatter_output = flags.reduce_scatter_output};
  }
  return layer;
}

// Saves and shows the results of a layer of several parts.
absl::Status FinishParts(const Invocation& invocation, MeshClient* client, const StepResult& result,
                         const LinearFlags& flags, const StepInspector& inspector) {
  const auto text_of = [](const std::vector<std::string>& texts, size_t part) {
    return part < texts.size() ? texts[part] : std::string();
  };
  Json parts = Json::array();
  Table table({{"part"}, {"type"}, {"shape"}, {"spec"}, {"name"}, {"file"}});
  for (size_t part = 0; part < result.outputs.size(); ++part) {
    const ArrayDescriptor& array = result.outputs[part].array.descriptor;
    const std::string name = text_of(flags.names, part);
    const std::string path = text_of(flags.paths, part);
    if (!path.empty()) {
      ProgressBar bar("gathering", invocation.quiet);
      SHARDMESH_RETURN_IF_ERROR(
          client->arrays()
              .GatherToNpy(ArraySelector::ById(array.array_id), path, ShowOn(&bar))
              .status());
    }
    Json json = {{"array_id", array.array_id},
                 {"dtype", std::string(DtypeName(array.dtype))},
                 {"shape", ShapeJson(array.shape)},
                 {"spec", SpecJson(array.spec)}};
    if (!name.empty()) json["name"] = name;
    if (!path.empty()) json["path"] = path;
    parts.push_back(std::move(json));
    table.AddRow({StrCat(part), std::string(DtypeName(array.dtype)), FormatShape(array.shape),
                  FormatSpec(array.spec), name.empty() ? "-" : name, path.empty() ? "-" : path});
  }
  if (invocation.json) {
    Json json = {{"parts", std::move(parts)}, {"sequence", result.sequence}};
    json.update(TimingsJson(result.timings));
    const absl::Status inspected = inspector.Inspect(result, &json);
    invocation.Print(json);
    return inspected;
  }
  table.Print();
  PrintTimings(result);
  return inspector.Inspect(result, nullptr);
}

absl::Status RunLayer(const Invocation& invocation, MeshClient* client, const LinearFlags& flags,
                      Operand input, std::vector<Operand> weights, std::vector<Operand> biases,
                      std::vector<Operand> scales) {
  LinearLayerCall call{
      .input = std::move(input),
      .weights = std::move(weights),
      .biases = std::move(biases),
      .scales = std::move(scales),
      .layer = LayerOf(flags),
      .output = {.names = flags.names,
                 .return_trace = !flags.result.inspect.trace_path.empty(),
                 .specs = std::vector<std::optional<PartitionSpec>>(
                     flags.result.spec.has_value() ? flags.results() : 0, flags.result.spec)}};
  if (flags.result.plan_only) {
    SHARDMESH_ASSIGN_OR_RETURN(
        const CompiledProgram plan,
        client->compute().CompileLayer(call, flags.result.candidates.value_or(0)));
    return ShowCompiled(invocation, plan, flags.result);
  }
  SHARDMESH_ASSIGN_OR_RETURN(const StepInspector inspector,
                             StepInspector::Create(flags.result.inspect, client, &call));
  if (flags.results() == 1) {
    return RunAndFinish(invocation, client, flags.result, inspector,
                        [&] { return client->compute().LinearLayer(call); });
  }
  for (const std::string& path : flags.paths) {
    // Before the step, which may take long, check that the file can be written.
    SHARDMESH_RETURN_IF_ERROR(AtomicFileWriter::Create(path).status());
  }
  SHARDMESH_ASSIGN_OR_RETURN(const StepResult result, client->compute().LinearLayer(call));
  return FinishParts(invocation, client, result, flags, inspector);
}

// Returns an Interruption that removes the temporary files of all paths; null if there are none.
std::unique_ptr<Interruption> GuardFiles(const std::vector<std::string>& paths, OutputForm output) {
  if (paths.empty()) return nullptr;
  return std::make_unique<Interruption>("no unfinished file is left", output, [paths] {
    for (const std::string& path : paths) RemoveTemporaryFilesOf(path);
  });
}

absl::Status RunLinear(const Invocation& invocation, LinearFlags flags) {
  SHARDMESH_RETURN_IF_ERROR(CheckLinearFlags(flags));
  if (flags.results() == 1) {
    if (!flags.paths.empty()) flags.result.path = flags.paths.front();
    if (!flags.names.empty()) flags.result.name = flags.names.front();
  }
  const auto interruption = GuardFiles(flags.paths, invocation.output);
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  const auto operands_of =
      [&](const std::vector<std::string>& texts) -> absl::StatusOr<std::vector<Operand>> {
    std::vector<Operand> operands;
    for (const std::string& text : texts) {
      SHARDMESH_ASSIGN_OR_RETURN(Operand operand, OperandOf(invocation, client.get(), text));
      operands.push_back(std::move(operand));
    }
    return operands;
  };
  SHARDMESH_ASSIGN_OR_RETURN(Operand input, OperandOf(invocation, client.get(), flags.input));
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<Operand> weights, operands_of(flags.weights));
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<Operand> biases, operands_of(flags.biases));
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<Operand> scales, operands_of(flags.scales));
  if (flags.IsLayer()) {
    return RunLayer(invocation, client.get(), flags, std::move(input), std::move(weights),
                    std::move(biases), std::move(scales));
  }
  LinearCall call{.input = std::move(input),
                  .weight = std::move(weights.front()),
                  .bias = std::nullopt,
                  .scales = std::nullopt,
                  .weight_layout = flags.layout,
                  .activation = flags.activation,
                  .scale = static_cast<float>(std::get<double>(flags.scale)),
                  .output = OutputOf(flags.result)};
  if (!biases.empty()) call.bias = std::move(biases.front());
  if (!scales.empty()) call.scales = std::move(scales.front());
  LinearOp op{.input = 0,
              .weight = 1,
              .weight_layout = call.weight_layout,
              .activation = call.activation,
              .scale = call.scale};
  std::vector<Operand> operands = {call.input, call.weight};
  if (call.bias.has_value()) {
    op.bias = 2;
    operands.push_back(*call.bias);
  }
  if (call.scales.has_value()) {
    op.scales = static_cast<ValueIndex>(operands.size());
    operands.push_back(*call.scales);
  }
  if (flags.result.plan_only) {
    return ShowPlan(invocation, client.get(), op, operands, flags.result);
  }
  SHARDMESH_ASSIGN_OR_RETURN(const StepInspector inspector,
                             StepInspector::Create(flags.result.inspect, client.get(),
                                                   ProgramOf(op, operands.size()), &operands));
  call.input = operands[0];
  call.weight = operands[1];
  if (call.bias.has_value()) call.bias = operands[2];
  if (call.scales.has_value()) call.scales = operands.back();
  return RunAndFinish(invocation, client.get(), flags.result, inspector,
                      [&] { return client->compute().Linear(call); });
}

struct MatmulFlags {
  std::string lhs;
  std::string rhs;
  bool transpose_lhs = false;
  bool transpose_rhs = false;
  ResultFlags result;
};

absl::Status RunMatmul(const Invocation& invocation, const MatmulFlags& flags) {
  const auto interruption = GuardOutputFile(flags.result.path, invocation.output);
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  SHARDMESH_ASSIGN_OR_RETURN(Operand lhs, OperandOf(invocation, client.get(), flags.lhs));
  SHARDMESH_ASSIGN_OR_RETURN(Operand rhs, OperandOf(invocation, client.get(), flags.rhs));
  const MatmulOp op{.lhs = 0,
                    .rhs = 1,
                    .transpose_lhs = flags.transpose_lhs,
                    .transpose_rhs = flags.transpose_rhs};
  std::vector<Operand> operands = {std::move(lhs), std::move(rhs)};
  if (flags.result.plan_only) {
    return ShowPlan(invocation, client.get(), op, operands, flags.result);
  }
  SHARDMESH_ASSIGN_OR_RETURN(const StepInspector inspector,
                             StepInspector::Create(flags.result.inspect, client.get(),
                                                   ProgramOf(op, operands.size()), &operands));
  const MatmulCall call{.lhs = operands[0],
                        .rhs = operands[1],
                        .transpose_lhs = flags.transpose_lhs,
                        .transpose_rhs = flags.transpose_rhs,
                        .output = OutputOf(flags.result)};
  return RunAndFinish(invocation, client.get(), flags.result, inspector,
                      [&] { return client->compute().Matmul(call); });
}

struct CollectiveFlags {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::string input;
  std::vector<std::string> axes;
  int64_t dimension = 0;
  int64_t split_dimension = 0;
  Reduction reduction = Reduction::kSum;
  int64_t root = 0;
  std::vector<std::string> pairs;
  std::optional<int64_t> from;
  std::optional<int64_t> to;
  std::vector<int64_t> counts;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kAuto;
  CollectiveOrder order = CollectiveOrder::kReproducible;
  ResultFlags result;
};

absl::StatusOr<std::vector<PermutePair>> PermutationOf(const CollectiveFlags& flags) {
  std::vector<PermutePair> permutation;
  for (const std::string& pair : flags.pairs) {
    SHARDMESH_ASSIGN_OR_RETURN(permutation.emplace_back(), ParsePermutePair(pair));
  }
  if (flags.from.has_value()) {
    permutation.push_back({.source = *flags.from, .target = *flags.to});
  }
  return permutation;
}

absl::Status RunCollective(const Invocation& invocation, const CollectiveFlags& flags) {
  if (flags.kind == CollectiveKind::kAllToAll && flags.dimension == flags.split_dimension) {
    return WrongUse(StrCat("--dimension and --split-dimension are both ", flags.dimension,
                           "; all-to-all joins one dimension and partitions another: give another "
                           "--split-dimension"));
  }
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<PermutePair> permutation, PermutationOf(flags));
  const auto interruption = GuardOutputFile(flags.result.path, invocation.output);
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  SHARDMESH_ASSIGN_OR_RETURN(Operand input, OperandOf(invocation, client.get(), flags.input));
  CollectiveCall call{.input = std::move(input),
                      .kind = flags.kind,
                      .axes = flags.axes,
                      .dimension = flags.dimension,
                      .reduction = flags.reduction,
                      .root = flags.root,
                      .split_dimension = flags.split_dimension,
                      .permutation = std::move(permutation),
                      .counts = flags.counts,
                      .algorithm = flags.algorithm,
                      .order = flags.order,
                      .output = OutputOf(flags.result)};
  const CollectiveOp op{.input = 0,
                        .kind = call.kind,
                        .axes = call.axes,
                        .dimension = call.dimension,
                        .reduction = call.reduction,
                        .root = call.root,
                        .split_dimension = call.split_dimension,
                        .permutation = call.permutation,
                        .counts = call.counts,
                        .algorithm = call.algorithm,
                        .order = call.order};
  std::vector<Operand> operands = {call.input};
  if (flags.result.plan_only) {
    return ShowPlan(invocation, client.get(), op, operands, flags.result);
  }
  SHARDMESH_ASSIGN_OR_RETURN(const StepInspector inspector,
                             StepInspector::Create(flags.result.inspect, client.get(),
                                                   ProgramOf(op, operands.size()), &operands));
  call.input = operands.front();
  return RunAndFinish(invocation, client.get(), flags.result, inspector,
                      [&] { return client->compute().Collective(call); });
}

// Adds the options of results beside --out and --as.
void AddPlanOptions(CLI::App* command, ResultFlags* flags, bool is_product, CLI::Option* out,
                    CLI::Option* as) {
  AddParsedOption(command, "--result-spec", &flags->spec, ParseSpec,
                  "spec of the result, such as dp,-; it must fit (default: the cheapest one)");
  CLI::Option* const plan_only =
      command
          ->add_flag(
              "--plan-only", flags->plan_only,
              "run nothing; show the instructions, and the bytes that devices would send, by "
              "mesh axes and by links")
          ->excludes(out)
          ->excludes(as);
  AddTraceOption(command, &flags->inspect, plan_only);
  if (!is_product) {
    AddVerifyOption(command, &flags->inspect, plan_only);
    return;
  }
  AddVerifyOptions(command, &flags->inspect, plan_only);
  command
      ->add_option("--candidates", flags->candidates,
                   "with --plan-only, show that many of the plans that were compared, the fastest "
                   "first, with their predicted times, bytes and memory")
      ->check(CLI::Range(int32_t{1}, int32_t{64}))
      ->needs(plan_only);
}

void AddResultOptions(CLI::App* command, ResultFlags* flags, bool is_product) {
  const std::string name = command->get_name();
  CLI::Option* const out = AddParsedOption(
      command, "--out", &flags->path,
      [name](std::string_view text) { return ParseNpyPath(text, name); },
      "write the result to this .npy file");
  CLI::Option* const as =
      command->add_option("--as", flags->name, "keep the result in the cluster under this name")
          ->check(RefuseNameWithAt);
  AddPlanOptions(command, flags, is_product, out, as);
}

// Returns why the text is no path of a .npy file; empty if it is one.
std::string RefuseOtherFile(const std::string& text) {
  const auto path = ParseNpyPath(text, "linear");
  return path.ok() ? "" : std::string(path.status().message());
}

constexpr char kOperandHelp[] = "name of an array, NAME@VERSION, @ID, or a .npy file";

}  // namespace

void AddComputeCommands(CommandLine* line) {
  auto linear_flags = std::make_shared<LinearFlags>();
  CLI::App* const linear = line->AddCommand(
      "linear", "Compute activation(scale * (input * weight) * scales + bias) on the workers",
      [linear_flags](const Invocation& i) { return RunLinear(i, *linear_flags); });
  linear->add_option("--input", linear_flags->input, kOperandHelp)->required();
  linear
      ->add_option("--weight", linear_flags->weights,
                   StrCat(kOperandHelp, "; several give one result each"))
      ->required()
      ->allow_extra_args(false);
  linear->add_option("--bias", linear_flags->biases, StrCat(kOperandHelp, "; one for each weight"))
      ->allow_extra_args(false);
  linear
      ->add_option(
          "--scales", linear_flags->scales,
          StrCat(kOperandHelp, "; factors of the output features of an I8 weight, one for each"))
      ->allow_extra_args(false);
  AddParsedOption(linear, "--activation", &linear_flags->activation, ParseActivation,
                  "none, relu, gelu, gelu-tanh or silu (default: none)")
      ->type_name("{none,relu,gelu,gelu-tanh,silu}");
  AddParsedOption(linear, "--layout", &linear_flags->layout, ParseWeightLayout,
                  "of the weight: out-in as in PyTorch, or in-out as in flax (default: out-in)")
      ->type_name("{out-in,in-out}");
  AddParsedOption(linear, "--scale", &linear_flags->scale, ParseLinearScale,
                  "factor of the product; or fan_in or fan_out: 1 / sqrt(features) (default: 1)");
  CLI::Option* const linear_out =
      linear
          ->add_option("--out", linear_flags->paths,
                       "write the result to this .npy file; once for each result")
          ->allow_extra_args(false)
          ->check(RefuseOtherFile);
  CLI::Option* const linear_as =
      linear
          ->add_option("--as", linear_flags->names,
                       "keep the result in the cluster under this name; once for each result")
          ->allow_extra_args(false)
          ->check(RefuseNameWithAt);
  AddPlanOptions(linear, &linear_flags->result, /*is_product=*/true, linear_out, linear_as);
  linear
      ->add_option("--out-features", linear_flags->out_features,
                   "the output features of each result, as 4096,1024,1024; with one weight, it is "
                   "merged of these parts")
      ->delimiter(',')
      ->check(WholeNumberFrom(1));
  linear
      ->add_option("--shards", linear_flags->shards,
                   "of a merged weight: it has the columns of all parts of the first shard, then "
                   "those of the second, and so on (default: 1)")
      ->check(WholeNumberFrom(1));
  CLI::Option* const axis = linear->add_option(
      "--axis", linear_flags->axis, "mesh axis along which the layer is parallel, such as tp");
  AddParsedOption(linear, "--method", &linear_flags->method, ParseMethod,
                  "all-gather: each device computes some output features, and gets the whole "
                  "result; reduce-scatter: some input features, and gets a part of the result")
      ->type_name("{all-gather,reduce-scatter}")
      ->needs(axis);
  AddParsedOption(linear, "--direction", &linear_flags->direction, ParseLinearDirection,
                  "the axis partitions the weight's input features (row) or output features "
                  "(column) (default: as the method has it)")
      ->type_name("{row,column}")
      ->needs(axis);
  linear
      ->add_flag("--reduce-output", linear_flags->reduce_output,
                 "each device gets the whole result, also with reduce-scatter")
      ->needs(axis);
  linear
      ->add_flag("--reduce-scatter-output", linear_flags->reduce_scatter_output,
                 "the axis partitions the last dimension of the result")
      ->needs(axis);
  AddParsedOption(linear, "--dtype", &linear_flags->dtype, ParseElementType,
                  "element type of the computation: F32, BF16 or F16 (default: the type to which "
                  "the operands promote)");
  AddParsedOption(linear, "--param-dtype", &linear_flags->param_dtype, ParseElementType,
                  "element type to which weights and biases are converted first");

  auto matmul_flags = std::make_shared<MatmulFlags>();
  CLI::App* const matmul =
      line->AddCommand("matmul", "Multiply two matrices, or batches of matrices, on the workers",
                       [matmul_flags](const Invocation& i) { return RunMatmul(i, *matmul_flags); });
  matmul->add_option("a", matmul_flags->lhs, kOperandHelp)->required();
  matmul->add_option("b", matmul_flags->rhs, kOperandHelp)->required();
  matmul->add_flag("--transpose-a", matmul_flags->transpose_lhs, "A is given as its transpose");
  matmul->add_flag("--transpose-b", matmul_flags->transpose_rhs, "B is given as its transpose");
  AddResultOptions(matmul, &matmul_flags->result, /*is_product=*/true);

  auto collective_flags = std::make_shared<CollectiveFlags>();
  CLI::App* const collective = line->AddCommand(
      "collective", "Exchange an array's tiles along mesh axes, in all groups of devices at once",
      [collective_flags](const Invocation& i) { return RunCollective(i, *collective_flags); });
  AddParsedOption(collective, "kind", &collective_flags->kind, ParseCollectiveKind,
                  "all-reduce, all-gather, reduce-scatter, all-to-all, broadcast, reduce, gather, "
                  "scatter, permute, send (a permute of one pair) or barrier")
      ->type_name(
          "{all-reduce,all-gather,reduce-scatter,all-to-all,broadcast,reduce,gather,scatter,"
          "permute,send,barrier}")
      ->required();
  collective->add_option("tensor", collective_flags->input, kOperandHelp)->required();
  collective->add_option("--axes", collective_flags->axes, "mesh axes, major to minor, as fsdp,tp")
      ->delimiter(',')
      ->required();
  collective
      ->add_option("--dimension", collective_flags->dimension,
                   "of all-gather, reduce-scatter, all-to-all (to be joined), gather and scatter "
                   "(default: 0)")
      ->check(WholeNumberFrom(0));
  collective
      ->add_option("--split-dimension", collective_flags->split_dimension,
                   "of all-to-all: the dimension to be partitioned instead (default: 0)")
      ->check(WholeNumberFrom(0));
  AddParsedOption(collective, "--reduction", &collective_flags->reduction, ParseReduction,
                  "sum, product, min, max or mean (default: sum)")
      ->type_name("{sum,product,min,max,mean}");
  collective
      ->add_option("--root", collective_flags->root,
                   "of broadcast, reduce, gather and scatter: a place within each group, along the "
                   "axes (default: 0)")
      ->check(WholeNumberFrom(0));
  CLI::Option* const pairs = collective
                                 ->add_option("--pairs", collective_flags->pairs,
                                              "of permute: source and target places, as 0:1,1:2; a "
                                              "place that is no target gets zeros")
                                 ->delimiter(',');
  CLI::Option* const from =
      collective->add_option("--from", collective_flags->from, "of send: the place that sends")
          ->check(WholeNumberFrom(0))
          ->excludes(pairs);
  CLI::Option* const to =
      collective->add_option("--to", collective_flags->to, "of send: the place that receives")
          ->check(WholeNumberFrom(0))
          ->excludes(pairs)
          ->needs(from);
  from->needs(to);
  collective
      ->add_option("--counts", collective_flags->counts,
                   "of reduce-scatter, all-to-all and scatter: how many indices each place gets, "
                   "as 3,2,2 (default: equal parts)")
      ->delimiter(',');
  AddParsedOption(collective, "--algorithm", &collective_flags->algorithm, ParseCollectiveAlgorithm,
                  "auto, pairwise, direct, doubling, halving, ring, binomial or chain, if the kind "
                  "has it (default: auto)")
      ->type_name("{auto,pairwise,direct,doubling,halving,ring,binomial,chain}");
  AddParsedOption(collective, "--order", &collective_flags->order, ParseCollectiveOrder,
                  "of sums: reproducible, or fastest, which allows a ring (default: reproducible)")
      ->type_name("{reproducible,fastest}");
  AddResultOptions(collective, &collective_flags->result, /*is_product=*/false);
}

}  // namespace shardmesh::client
