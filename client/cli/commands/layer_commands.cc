// Commands layer output, check, describe, promote: linear layers without their arrays.
#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/numbers.h"
#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/grammar.h"
#include "client/cli/table.h"
#include "sharding/python_value.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"

namespace shardmesh::client {
namespace {

struct OutputFlags {
  std::optional<OutputSpecQuestion::Kind> kind;
  std::optional<ArrayLayout> lhs;
  std::optional<ArrayLayout> rhs;
  std::optional<int64_t> rank;
  std::string axis_name = "tp";
};

// Parses an operand's layout: a spec, `unplaced` or `single-device`. The operand's rank is the
// number of the spec's entries.
absl::StatusOr<ArrayLayout> ParseOperand(std::string_view text) {
  ArrayLayout layout;
  if (text == "unplaced") {
    return layout;
  }
  if (text == "single-device") {
    layout.kind = ArrayLayout::Kind::kSingleDevice;
    return layout;
  }
  SHARDMESH_ASSIGN_OR_RETURN(layout.spec, ParseSpec(text));
  layout.kind = ArrayLayout::Kind::kNamed;
  layout.rank = layout.spec.size();
  return layout;
}

absl::Status RunOutput(const Invocation& invocation, const OutputFlags& flags) {
  OutputSpecQuestion question;
  question.kind = *flags.kind;
  question.lhs = *flags.lhs;
  if (flags.rank.has_value()) {
    question.lhs.rank = *flags.rank;
  }
  const bool takes_rhs = question.kind != OutputSpecQuestion::Kind::kOperand;
  if (takes_rhs != flags.rhs.has_value()) {
    return WrongUse(takes_rhs ? "--rhs is missing; give the right operand's spec"
                              : "--rhs is not for an operand, which is given by --lhs only");
  }
  if (takes_rhs) {
    question.rhs = *flags.rhs;
  }
  question.axis_name = flags.axis_name;
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.ConnectToAsk());
  SHARDMESH_ASSIGN_OR_RETURN(const std::optional<PartitionSpec> spec,
                             client->layouts().ResolveOutputSpec(question));
  if (invocation.json) {
    invocation.Print({{"spec", spec.has_value() ? SpecJson(*spec) : Json(nullptr)}});
  } else {
    std::cout << (spec.has_value() ? FormatSpec(*spec) : "unplaced") << "\n";
  }
  return absl::OkStatus();
}

struct CheckFlags {
  std::optional<std::string> mesh;
  std::optional<std::string> context_mesh;
  TensorParallelQuestion question;
};

absl::Status RunCheck(const Invocation& invocation, const CheckFlags& flags) {
  TensorParallelQuestion question = flags.question;
  if (flags.mesh.has_value()) {
    SHARDMESH_ASSIGN_OR_RETURN(question.mesh, SelectMesh(*flags.mesh));
  }
  if (flags.context_mesh.has_value()) {
    SHARDMESH_ASSIGN_OR_RETURN(question.context_mesh, SelectMesh(*flags.context_mesh));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.ConnectToAsk());
  SHARDMESH_ASSIGN_OR_RETURN(const TensorParallelConfig config,
                             client->layouts().CheckTensorParallel(question));
  const std::optional<std::string>& method = config.matmul_method;
  if (invocation.json) {
    invocation.Print({{"mesh", config.mesh.has_value() ? MeshJson(*config.mesh) : Json(nullptr)},
                      {"axis_name", config.axis_name},
                      {"matmul_method", method.has_value() ? Json(*method) : Json(nullptr)},
                      {"reduce_output", config.reduce_output},
                      {"reduce_scatter_output", config.reduce_scatter_output}});
    return absl::OkStatus();
  }
  std::cout << "mesh    " << (config.mesh.has_value() ? config.mesh->ToString() : "-") << "\n"
            << "axis    " << config.axis_name << "\n"
            << "method  " << method.value_or("- (nothing was checked)") << "\n";
  return absl::OkStatus();
}

struct DescribeFlags {
  LinearLayerQuestion question;
  std::vector<int64_t> out_features;
  bool merged = false;
  bool no_bias = false;
  bool exact = false;
};

// Parses the scale of a layer: a number, or a text such as `fan_in` (see
// ParallelLinearOptions::scale).
absl::StatusOr<std::variant<double, std::string>> ParseScale(std::string_view text) {
  double factor = 0;
  if (absl::SimpleAtod(ToAbsl(text), &factor)) {
    return factor;
  }
  return std::string(text);
}

absl::StatusOr<ParallelDirection> ParseDirection(std::string_view text) {
  if (text == "row") {
    return ParallelDirection::kRow;
  }
  if (text == "column") {
    return ParallelDirection::kColumn;
  }
  return WrongUse(StrCat("\"", text, "\" is neither row nor column"));
}

std::string_view DirectionName(ParallelDirection direction) {
  switch (direction) {
    case ParallelDirection::kNone:
      return "none";
    case ParallelDirection::kRow:
      return "row";
    case ParallelDirection::kColumn:
      return "column";
  }
  return "none";
}

absl::Status RunDescribe(const Invocation& invocation, const DescribeFlags& flags) {
  LinearLayerQuestion question = flags.question;
  if (flags.merged || flags.out_features.size() != 1) {
    question.options.out_features = flags.out_features;
  } else {
    question.options.out_features = flags.out_features.front();
  }
  question.options.use_bias = !flags.no_bias;
  question.compatibility = flags.exact ? Compatibility::kExact : Compatibility::kDefault;
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.ConnectToAsk());
  SHARDMESH_ASSIGN_OR_RETURN(const LinearLayer layer,
                             client->layouts().DescribeLinearLayer(question));
  const std::optional<Shape>& bias = layer.facts.bias_shape;
  const std::string_view direction = DirectionName(layer.facts.direction);
  if (invocation.json) {
    invocation.Print({{"kernel_shape", ShapeJson(layer.facts.kernel_shape)},
                      {"bias_shape", bias.has_value() ? ShapeJson(*bias) : Json(nullptr)},
                      {"merged_layers", layer.facts.tp_merged},
                      {"scale_factor", layer.facts.scale_factor},
                      {"dtype", std::string(DtypeName(layer.dtype))},
                      {"direction", std::string(direction)}});
    return absl::OkStatus();
  }
  std::cout << "kernel     " << DtypeName(layer.dtype) << " "
            << FormatShape(layer.facts.kernel_shape) << "\n"
            << "bias       " << (bias.has_value() ? FormatShape(*bias) : "-") << "\n"
            << "merged     " << FormatCount(layer.facts.tp_merged, "layer") << "\n"
            << "scale      " << PythonFloatRepr(layer.facts.scale_factor) << "\n"
            << "direction  " << direction << "\n";
  return absl::OkStatus();
}

struct PromoteFlags {
  std::vector<std::string> dtypes;
  std::optional<Dtype> dtype;
};

absl::Status RunPromote(const Invocation& invocation, const PromoteFlags& flags) {
  std::vector<Dtype> dtypes;
  for (const std::string& text : flags.dtypes) {
    const absl::StatusOr<Dtype> dtype = ParseElementType(text);
    if (!dtype.ok()) {
      return WrongUse(ToStd(dtype.status().message()));
    }
    dtypes.push_back(*dtype);
  }
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.ConnectToAsk());
  SHARDMESH_ASSIGN_OR_RETURN(const Dtype promoted,
                             client->layouts().PromoteDtypes(dtypes, flags.dtype));
  if (invocation.json) {
    invocation.Print({{"dtype", std::string(DtypeName(promoted))}});
  } else {
    std::cout << DtypeName(promoted) << "\n";
  }
  return absl::OkStatus();
}

void AddOutput(CommandLine* line, CLI::App* group) {
  auto flags = std::make_shared<OutputFlags>();
  CLI::App* const output = line->AddCommand(
      "output", "Show the spec of a result, given those of its operands",
      [flags](const Invocation& i) { return RunOutput(i, *flags); }, group);
  AddParsedOption(output, "kind", &flags->kind, ParseOutputKind, "matmul, linear or operand")
      ->required();
  AddParsedOption(output, "--lhs", &flags->lhs, ParseOperand,
                  "the left operand's spec, such as dp,tp; or unplaced, or single-device")
      ->required();
  AddParsedOption(output, "--rhs", &flags->rhs, ParseOperand, "the right operand's, likewise");
  output->add_option("--rank", flags->rank,
                     "the left operand's dimensions (default: as many as its spec has entries)");
  output->add_option("--axis-name", flags->axis_name,
                     "linear: the tensor-parallel axis (default: tp)");
}

void AddCheck(CommandLine* line, CLI::App* group) {
  auto flags = std::make_shared<CheckFlags>();
  CLI::App* const check = line->AddCommand(
      "check", "Check a tensor-parallel layer's settings against a mesh",
      [flags](const Invocation& i) { return RunCheck(i, *flags); }, group);
  check->add_option("--mesh", flags->mesh,
                    "the layer's mesh: axes as dp=4,tp=8, YAML file, or name in the catalog");
  check->add_option("--context-mesh", flags->context_mesh,
                    "the mesh around the layer, which stands in for --mesh");
  check->add_option("--axis-name", flags->question.axis_name,
                    "the tensor-parallel axis (default: tp)");
  check->add_option("--method", flags->question.matmul_method,
                    "how products are spread, such as all_gather; without it nothing is checked");
  check->add_flag("--reduce-output", flags->question.reduce_output, "sum the output over the axis");
  check->add_flag("--reduce-scatter-output", flags->question.reduce_scatter_output,
                  "leave the sum scattered");
}

void AddDescribe(CommandLine* line, CLI::App* group) {
  auto flags = std::make_shared<DescribeFlags>();
  ParallelLinearOptions* const options = &flags->question.options;
  CLI::App* const describe = line->AddCommand(
      "describe", "Show a linear layer's parameters",
      [flags](const Invocation& i) { return RunDescribe(i, *flags); }, group);
  describe->add_option("--in", options->in_features, "inputs")->required();
  describe
      ->add_option("--out", flags->out_features,
                   "outputs; several, as 64,16,16, are layers merged into one")
      ->required()
      ->delimiter(',');
  describe->add_flag("--merged", flags->merged, "take one number of outputs for a sequence of one");
  describe->add_flag("--no-bias", flags->no_bias, "the layer has no bias");
  AddParsedOption(describe, "--scale", &options->scale, ParseScale,
                  "a factor, fan_in or fan_out (default: 1)");
  AddParsedOption(describe, "--dtype", &flags->question.dtype, ParseElementType,
                  "the parameters' element type (default: F32)");
  AddParsedOption(describe, "--direction", &options->direction, ParseDirection, "row or column");
  describe->add_flag("--exact", flags->exact, "answer as the Python originals do to the letter");
}

void AddPromote(CommandLine* line, CLI::App* group) {
  auto flags = std::make_shared<PromoteFlags>();
  CLI::App* const promote = line->AddCommand(
      "promote", "Tell the element type in which operands of several types are computed",
      [flags](const Invocation& i) { return RunPromote(i, *flags); }, group);
  promote->add_option("types", flags->dtypes, "the operands' types, such as BF16 I32")->required();
  AddParsedOption(promote, "--dtype", &flags->dtype, ParseElementType, "the type to compute in");
}

}  // namespace

void AddLayerCommands(CommandLine* line) {
  CLI::App* const layer = line->AddGroup("layer", "Ask about linear layers");
  AddOutput(line, layer);
  AddCheck(line, layer);
  AddDescribe(line, layer);
  AddPromote(line, layer);
}

}  // namespace shardmesh::client
