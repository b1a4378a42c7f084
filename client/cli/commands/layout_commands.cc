// Commands resolve, match, presets: questions about layouts, which need no worker.
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/grammar.h"
#include "client/cli/inputs/tree_source.h"
#include "client/cli/placement.h"
#include "client/cli/shared_options.h"
#include "client/cli/spec_printing.h"
#include "client/cli/table.h"
#include "sharding/presets.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

struct ResolveFlags {
  std::optional<std::vector<AxisValue>> axes;
  std::string preset;
  std::optional<PartitionSpec> spec;
  ModeOption mode;
  std::optional<Shape> shape;
  std::string profile;
  MeshOption mesh;
  bool strict = false;
  bool explain = false;
  ExactOption exact;
};

// The answer, and the mesh that the texts of its corrections need (see MeshOfCorrections).
struct Resolved {
  SpecAnswer answer;
  std::optional<Mesh> mesh = std::nullopt;
};

absl::StatusOr<Resolved> AskResolve(const Invocation& invocation, const ResolveFlags& flags,
                                    const std::optional<Mode>& mode) {
  Resolved resolved;
  const int given = (flags.axes.has_value() ? 1 : 0) + (flags.preset.empty() ? 0 : 1) +
                    (flags.spec.has_value() ? 1 : 0);
  if (given != 1) {
    return WrongUse("give one of --axes, --preset and --spec");
  }
  SHARDMESH_ASSIGN_OR_RETURN(const MeshSelector mesh,
                             SelectMesh(flags.mesh, flags.exact.compatibility()));
  if (flags.spec.has_value()) {
    if (!flags.shape.has_value()) {
      return WrongUse("--spec is corrected against a shape: give --shape too");
    }
    if (mode.has_value() || !flags.profile.empty() || flags.explain) {
      return WrongUse("--mode, --profile and --explain are about logical axes, not about --spec");
    }
    SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.ConnectToAsk());
    SHARDMESH_ASSIGN_OR_RETURN(resolved.answer, client->layouts().CorrectSpec(
                                                    {.spec = *flags.spec,
                                                     .shape = *flags.shape,
                                                     .mesh = mesh,
                                                     .strict = flags.strict,
                                                     .compatibility = flags.exact.compatibility(),
                                                     .suggest_fixes = true}));
    resolved.mesh = MeshOfCorrections(client.get(), mesh, resolved.answer.corrections);
    return resolved;
  }
  SHARDMESH_ASSIGN_OR_RETURN(ProfileSelector profile, SelectProfile(flags.profile));
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.ConnectToAsk());
  SHARDMESH_ASSIGN_OR_RETURN(
      resolved.answer,
      client->layouts().ResolveSpec({.axes = flags.axes.value_or(std::vector<AxisValue>()),
                                     .preset = flags.preset,
                                     .mode = mode,
                                     .shape = flags.shape,
                                     .profile = std::move(profile),
                                     .mesh = mesh,
                                     .strict = flags.strict,
                                     .compatibility = flags.exact.compatibility(),
                                     .explain = flags.explain,
                                     .suggest_fixes = true}));
  resolved.mesh = MeshOfCorrections(client.get(), mesh, resolved.answer.corrections);
  return resolved;
}

absl::Status RunResolve(const Invocation& invocation, const ResolveFlags& flags) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::optional<Mode> mode,
                             SelectMode(flags.mode, flags.exact.compatibility()));
  SHARDMESH_ASSIGN_OR_RETURN(const Resolved resolved, AskResolve(invocation, flags, mode));
  const std::optional<RuntimeMode> read_as = ModeOf(mode, flags.preset, flags.shape);
  if (invocation.json) {
    invocation.Print(SpecAnswerJson(resolved.answer, resolved.mesh, read_as));
  } else {
    PrintSpecAnswer(resolved.answer, resolved.mesh, read_as);
  }
  return absl::OkStatus();
}

struct MatchFlags {
  std::string tree;
  std::string stored_tree;
  std::string rules;
  bool strict = false;
  ExactOption exact;
};

absl::Status RunMatch(const Invocation& invocation, const MatchFlags& flags) {
  TreeQuestion question;
  question.match_only = true;
  question.strict = flags.strict;
  question.compatibility = flags.exact.compatibility();
  if (flags.tree.empty() == flags.stored_tree.empty()) {
    return WrongUse("name one tree: a file of tensors, or one of the catalog by --stored-tree");
  }
  std::vector<TreeTensor> tensors;
  if (flags.stored_tree.empty()) {
    SHARDMESH_ASSIGN_OR_RETURN(tensors, ReadTree(flags.tree));
  }
  SHARDMESH_ASSIGN_OR_RETURN(question.rules, SelectRules(flags.rules, question.compatibility));
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.ConnectToAsk());
  if (!flags.stored_tree.empty()) {
    SHARDMESH_ASSIGN_OR_RETURN(tensors, FetchTree(client.get(), flags.stored_tree));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const Placement placement,
                             AskPlacement(client.get(), std::move(tensors), std::move(question)));
  if (invocation.json) {
    invocation.Print(PlacementJson(placement));
  } else {
    PrintPlacement(placement);
  }
  return CheckAllMatched(placement);
}

std::string FormatAxes(const std::vector<AxisValue>& axes) {
  return StrJoin(axes, ",", [](std::string* out, const AxisValue& axis) {
    out->append(axis.is_name() ? axis.name() : axis.ToString());
  });
}

absl::Status RunPresets(const Invocation& invocation) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.ConnectToAsk());
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<NamedPreset> presets,
                             client->layouts().ListPresets());
  if (invocation.json) {
    Json list = Json::array();
    for (const NamedPreset& preset : presets) {
      list.push_back({{"name", preset.name},
                      {"axes", FormatAxes(preset.axes)},
                      {"mode", preset.mode.ToString()}});
    }
    invocation.Print(list);
    return absl::OkStatus();
  }
  if (invocation.names()) {
    std::vector<std::string> names;
    for (const NamedPreset& preset : presets) names.push_back(preset.name);
    PrintNames(names);
    return absl::OkStatus();
  }
  Table table({{"preset"}, {"axes"}, {"mode"}});
  for (const NamedPreset& preset : presets) {
    table.AddRow({preset.name, FormatAxes(preset.axes), preset.mode.ToString()});
  }
  table.Print();
  return absl::OkStatus();
}

void AddResolve(CommandLine* line) {
  auto flags = std::make_shared<ResolveFlags>();
  CLI::App* const resolve = line->AddCommand(
      "resolve", "Resolve logical axes to a partition spec, or correct a spec for a shape",
      [flags](const Invocation& i) { return RunResolve(i, *flags); });
  AddParsedOption(resolve, "--axes", &flags->axes, ParseAxes,
                  "logical axes, one a dimension, such as __BATCH__,__LENGTH__,__EMBED__; - for "
                  "none");
  resolve->add_option("--preset", flags->preset, "name of a preset, which brings axes and mode");
  AddParsedOption(resolve, "--spec", &flags->spec, ParseSpec,
                  "mesh axes, one entry a dimension: fsdp,tp; fsdp+dp or (fsdp,dp) for several; - "
                  "for none");
  AddModeOption(resolve, &flags->mode);
  AddParsedOption(resolve, "--shape", &flags->shape, ParseShape,
                  "the tensor's extents, such as 30522,384: the spec is corrected for them");
  resolve->add_option("--profile", flags->profile, "a profile: YAML file, or name in the catalog");
  AddMeshOptions(resolve, &flags->mesh);
  resolve->add_flag("--strict", flags->strict,
                    "fail if anything is corrected, and show all corrections");
  resolve->add_flag("--explain", flags->explain, "show the steps that led to each dimension");
  AddExactOption(resolve, &flags->exact);
}

void AddMatch(CommandLine* line) {
  auto flags = std::make_shared<MatchFlags>();
  CLI::App* const match =
      line->AddCommand("match", "Show which rule gives each tensor of a model its spec",
                       [flags](const Invocation& i) { return RunMatch(i, *flags); });
  match->add_option("checkpoint", flags->tree, kTreeHelp);
  match->add_option("--stored-tree", flags->stored_tree, kStoredTreeHelp);
  match->add_option("--rules", flags->rules, "rules: YAML file, or name in the catalog")
      ->required();
  match->add_flag("--strict", flags->strict,
                  "make the first spec that is cut off or dropped an error");
  AddExactOption(match, &flags->exact);
}

}  // namespace

void AddLayoutCommands(CommandLine* line) {
  AddResolve(line);
  AddMatch(line);
  line->PrintsNames(line->AddCommand("presets",
                                     "List the named axes of a transformer's usual tensors",
                                     [](const Invocation& i) { return RunPresets(i); }));
}

}  // namespace shardmesh::client
