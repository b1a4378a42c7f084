// Commands explain, constrain, compare, tiles, axes: questions about the spec of one tensor; they
// need no worker.
#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/cut_options.h"
#include "client/cli/grammar.h"
#include "client/cli/inputs/tree_source.h"
#include "client/cli/shared_options.h"
#include "client/cli/spec_printing.h"
#include "client/cli/table.h"
#include "client/types/reshard.h"
#include "status/nearest_name.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

constexpr char kAxesHelp[] =
    "logical axes, one a dimension, such as __BATCH__,__LENGTH__,__EMBED__; - for none";
constexpr char kSpecHelp[] =
    "mesh axes, one entry a dimension: fsdp,tp; fsdp+dp or (fsdp,dp) for several; - for none";

// The options of the commands in this file. Each command offers some of these options.
struct SpecFlags {
  std::string name;
  std::string rules;
  std::optional<std::vector<AxisValue>> axes;
  std::string preset;
  std::optional<PartitionSpec> spec;
  std::optional<PartitionSpec> other_spec;
  ModeOption mode;
  std::optional<Shape> shape;
  std::string tree;
  std::string profile;
  MeshOption mesh;
  std::optional<int64_t> rank;
  std::vector<int64_t> devices;
  std::vector<int64_t> groups_of;
  std::optional<Tile> range;
  bool auto_correct = false;
  bool strict = false;
  std::optional<ArraySelector> array;
  bool apply = false;
  CutOptions cuts;
  ExactOption exact;

  Compatibility compatibility() const { return exact.compatibility(); }
};

absl::StatusOr<Shape> Needed(const std::optional<Shape>& shape) {
  if (!shape.has_value()) {
    return WrongUse("give the tensor's shape: --shape 30522,384");
  }
  return *shape;
}

// Finds the tensor with that name in the tree at `path`.
absl::StatusOr<TreeTensor> FindTensor(const std::string& path, const std::string& name) {
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<TreeTensor> tensors, ReadTree(path));
  std::vector<std::string_view> names;
  for (TreeTensor& tensor : tensors) {
    if (tensor.name == name) {
      return std::move(tensor);
    }
    names.push_back(tensor.name);
  }
  return WithReason(
      absl::NotFoundError(StrCat(path, " has no tensor \"", name, "\"", DidYouMean(name, names))),
      Reason::kNotFound,
      {{fact::kKind, "tensor"},
       {fact::kName, name},
       {fact::kNearest, NearestName(name, names).value_or("")}});
}

absl::StatusOr<ExplainQuestion> QuestionOf(const SpecFlags& flags) {
  ExplainQuestion question;
  question.name = flags.name;
  question.axes = flags.axes;
  question.compatibility = flags.compatibility();
  if (flags.tree.empty()) {
    SHARDMESH_ASSIGN_OR_RETURN(question.shape, Needed(flags.shape));
  } else if (flags.shape.has_value()) {
    return WrongUse("the shape is given twice, by --shape and by --tree");
  } else {
    SHARDMESH_ASSIGN_OR_RETURN(TreeTensor tensor, FindTensor(flags.tree, flags.name));
    question.shape = std::move(tensor.shape);
    if (!question.axes.has_value() && flags.rules.empty()) {
      question.axes = std::move(tensor.axes);
    }
  }
  if (flags.rules.empty() == !question.axes.has_value()) {
    return WrongUse("give one of --rules and --axes");
  }
  SHARDMESH_ASSIGN_OR_RETURN(question.rules, SelectRules(flags.rules, flags.compatibility()));
  SHARDMESH_ASSIGN_OR_RETURN(question.profile, SelectProfile(flags.profile));
  SHARDMESH_ASSIGN_OR_RETURN(question.mesh, SelectMesh(flags.mesh, flags.compatibility()));
  SHARDMESH_ASSIGN_OR_RETURN(question.mode, SelectMode(flags.mode, flags.compatibility()));
  return question;
}

// Call this after a question failed because the resolved spec has no effective spec, for example
// because the spec uses an axis twice. Repeats the question without a shape, and prints the
// resolution steps of the spec. Prints nothing if the repeated question fails too.
void PrintWayToError(const Invocation& invocation, MeshClient* client,
                     const ExplainQuestion& question) {
  SpecAnswer answer;
  std::optional<RuntimeMode> mode;
  if (question.axes.has_value()) {
    mode = ModeOf(question.mode, "", question.shape);
    absl::StatusOr<SpecAnswer> resolved =
        client->layouts().ResolveSpec({.axes = *question.axes,
                                       .mode = mode,
                                       .profile = question.profile,
                                       .compatibility = question.compatibility,
                                       .explain = true});
    if (!resolved.ok()) {
      return;
    }
    answer = *std::move(resolved);
  } else {
    const std::vector<TreeTensor> tree = {{.name = question.name, .shape = question.shape}};
    const absl::StatusOr<TreeAnswer> matched = client->layouts().ResolveTree(
        {.rules = question.rules, .compatibility = question.compatibility, .match_only = true},
        tree);
    if (!matched.ok()) {
      return;
    }
    answer.requested = matched->specs[0].requested;
    if (const std::optional<int64_t> rule = matched->placements[0].rule_index; rule.has_value()) {
      answer.explanation.push_back({ExplanationStep::Kind::kRule, -1, question.name,
                                    StrCat("rule ", *rule, ": ", FormatSpec(answer.requested))});
    }
  }
  if (invocation.json) {
    invocation.Print({{"requested", SpecJson(answer.requested)},
                      {"effective", nullptr},
                      {"explanation", ExplanationJson(answer.explanation)}});
    return;
  }
  std::cout << "requested  " << FormatSpec(answer.requested) << "\n";
  if (!answer.explanation.empty()) {
    std::cout << "\n";
    PrintExplanation(answer, std::nullopt, mode);
  }
}

absl::Status RunExplain(const Invocation& invocation, const SpecFlags& flags) {
  SHARDMESH_ASSIGN_OR_RETURN(const ExplainQuestion question, QuestionOf(flags));
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.ConnectToAsk());
  const absl::StatusOr<TensorExplanation> explained = client->layouts().ExplainTensor(question);
  if (ReasonOf(explained.status()) == Reason::kDuplicateAxis) {
    PrintWayToError(invocation, client.get(), question);
  }
  SHARDMESH_RETURN_IF_ERROR(explained.status());
  const TensorExplanation& answer = *explained;
  const std::optional<Mesh> mesh =
      MeshOfCorrections(client.get(), question.mesh, answer.spec.corrections);
  std::optional<RuntimeMode> mode;
  if (question.axes.has_value()) {
    mode = ModeOf(question.mode, "", question.shape);
  }
  if (invocation.json) {
    Json json = SpecAnswerJson(answer.spec, mesh, mode);
    json["rule"] = answer.rule_index.has_value() ? Json(*answer.rule_index) : Json(nullptr);
    invocation.Print(json);
  } else {
    if (answer.rule_index.has_value()) {
      std::cout << "rule       " << *answer.rule_index << " (the first is 0)\n";
    }
    PrintSpecAnswer(answer.spec, mesh, mode);
  }
  if (flags.strict && !answer.spec.corrections.empty()) {
    return InvalidArgument(answer.spec.corrections.front().reason,
                           FormatCorrections(answer.spec.corrections, mesh));
  }
  return absl::OkStatus();
}

// Moves the array to its constraint. Returns the result; nullopt if nothing constrains the array.
absl::StatusOr<std::optional<ReshardResult>> Apply(MeshClient* client, const SpecFlags& flags,
                                                   const ConstraintAnswer& answer) {
  if (!flags.apply || !answer.constraint.has_value()) return std::nullopt;
  ReshardOptions options{.spec = answer.constraint, .strict = flags.strict};
  SHARDMESH_ASSIGN_OR_RETURN(ReshardResult result, client->arrays().Reshard(*flags.array, options));
  return result;
}

absl::Status RunConstrain(const Invocation& invocation, const SpecFlags& flags) {
  const int given = (flags.axes.has_value() ? 1 : 0) + (flags.preset.empty() ? 0 : 1) +
                    (flags.spec.has_value() ? 1 : 0);
  if (given != 1) {
    return WrongUse("give one of --axes, --preset and --spec");
  }
  if (flags.apply && !flags.array.has_value()) {
    return WrongUse("--apply moves an array of the cluster; name the array");
  }
  if (flags.array.has_value() && (flags.shape.has_value() || !flags.mesh.empty())) {
    return WrongUse(
        "an array of the cluster has its own shape and mesh; leave out --shape and "
        "--mesh (`reshard` moves it to another mesh)");
  }
  ConstrainQuestion question;
  if (flags.spec.has_value()) {
    if (flags.mode.text.has_value() || !flags.profile.empty() || flags.auto_correct) {
      return WrongUse(
          "--mode, --profile and --auto-correct are about logical axes, not about --spec");
    }
    question.layout = *flags.spec;
  } else if (flags.axes.has_value()) {
    question.layout = *flags.axes;
  } else {
    question.layout = flags.preset;
  }
  SHARDMESH_ASSIGN_OR_RETURN(question.mode, SelectMode(flags.mode, flags.compatibility()));
  SHARDMESH_ASSIGN_OR_RETURN(question.profile, SelectProfile(flags.profile));
  if (!flags.array.has_value()) {
    SHARDMESH_ASSIGN_OR_RETURN(question.shape, Needed(flags.shape));
    SHARDMESH_ASSIGN_OR_RETURN(question.mesh, SelectMesh(flags.mesh, flags.compatibility()));
  }
  question.auto_correct = flags.auto_correct;
  question.strict = flags.strict;
  question.compatibility = flags.compatibility();
  std::shared_ptr<MeshClient> client;
  if (flags.array.has_value()) {
    SHARDMESH_ASSIGN_OR_RETURN(client, invocation.Connect());
    SHARDMESH_ASSIGN_OR_RETURN(const Array array, client->arrays().DescribeArray(*flags.array));
    question.shape = array.descriptor.shape;
    question.mesh = array.descriptor.mesh;
    // With --strict the coordinator refuses the spec, and its error has the fixes.
    if (flags.apply && flags.spec.has_value() && !flags.strict && !flags.exact.exact) {
      SHARDMESH_RETURN_IF_ERROR(
          CheckAxesOfSpec("--spec", *flags.spec, array.descriptor.mesh, "--exact"));
    }
  } else {
    SHARDMESH_ASSIGN_OR_RETURN(client, invocation.ConnectToAsk());
  }
  SHARDMESH_ASSIGN_OR_RETURN(const ConstraintAnswer answer,
                             client->layouts().ConstrainArray(question));
  // Fixes: changed requests that need no correction.
  std::vector<Fix> fixes;
  if (!answer.corrections.empty()) {
    SHARDMESH_ASSIGN_OR_RETURN(SpecAnswer corrected, client->layouts().CorrectSpec(
                                                         {.spec = answer.requested,
                                                          .shape = question.shape,
                                                          .mesh = question.mesh,
                                                          .compatibility = question.compatibility,
                                                          .suggest_fixes = true}));
    fixes = std::move(corrected.fixes);
  }
  const std::optional<Mesh> mesh =
      MeshOfCorrections(client.get(), question.mesh, answer.corrections);
  SHARDMESH_ASSIGN_OR_RETURN(const std::optional<ReshardResult> applied,
                             Apply(client.get(), flags, answer));
  if (invocation.json) {
    Json json = {{"requested", SpecJson(answer.requested)},
                 {"constraint",
                  answer.constraint.has_value() ? SpecJson(*answer.constraint) : Json(nullptr)},
                 {"corrections", CorrectionsJson(answer.corrections, mesh)},
                 {"fixes", FixesJson(fixes)},
                 {"revision", answer.revision}};
    if (flags.apply) {
      json["moved"] = applied.has_value() && !applied->arrays.front().is_skipped;
      json["moved_bytes"] = applied.has_value() ? applied->moved_bytes() : 0;
    }
    invocation.Print(json);
    return absl::OkStatus();
  }
  std::cout << "requested  " << FormatSpec(answer.requested) << "\n"
            << "constraint "
            << (answer.constraint.has_value() ? FormatSpec(*answer.constraint)
                                              : "none: the array stays as it is")
            << "\n";
  PrintCorrections(answer.corrections, fixes, mesh);
  if (applied.has_value()) {
    const ReshardedArray& array = applied->arrays.front();
    std::cout << (array.is_skipped ? std::string("The array lies so already.")
                                   : StrCat("Moved the array: ", FormatBytes(array.moved_bytes),
                                            " between workers, version ", array.name_version, "."))
              << "\n";
  }
  return absl::OkStatus();
}

absl::Status RunCompare(const Invocation& invocation, const SpecFlags& flags) {
  CompareQuestion question;
  question.a = *flags.spec;
  question.b = *flags.other_spec;
  const int64_t longer = std::max(question.a.size(), question.b.size());
  question.rank = flags.rank.value_or(longer);
  if (question.rank >= 0 && question.rank < longer) {
    return WrongUse(StrCat("--rank ", question.rank, " is below the ",
                           FormatCount(longer, "dimension"), " of the longer spec"));
  }
  question.compatibility = flags.compatibility();
  SHARDMESH_ASSIGN_OR_RETURN(question.mesh, SelectMesh(flags.mesh, flags.compatibility()));
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.ConnectToAsk());
  SHARDMESH_ASSIGN_OR_RETURN(const Comparison answer, client->layouts().CompareSpecs(question));
  if (invocation.json) {
    invocation.Print({{"equal", answer.equal},
                      {"equivalent", answer.equivalent},
                      {"a_fully_replicated", answer.a_fully_replicated},
                      {"b_fully_replicated", answer.b_fully_replicated}});
    return absl::OkStatus();
  }
  const auto replicated = [](bool is) { return is ? ", every device holds everything" : ""; };
  std::cout << FormatSpec(question.a) << " and " << FormatSpec(question.b)
            << (answer.equal        ? " are the same spec\n"
                : answer.equivalent ? " are two specs that place every tensor alike\n"
                                    : " place tensors differently\n")
            << "a  " << FormatSpec(question.a) << replicated(answer.a_fully_replicated) << "\n"
            << "b  " << FormatSpec(question.b) << replicated(answer.b_fully_replicated) << "\n";
  return absl::OkStatus();
}

std::string FormatDevices(const std::vector<DeviceId>& devices) { return StrJoin(devices, ","); }

absl::Status RunTiles(const Invocation& invocation, const SpecFlags& flags) {
  TilingQuestion question;
  SHARDMESH_ASSIGN_OR_RETURN(question.shape, Needed(flags.shape));
  SHARDMESH_ASSIGN_OR_RETURN(question.mesh, SelectMesh(flags.mesh, flags.compatibility()));
  question.spec = *flags.spec;
  question.devices = flags.devices;
  question.replica_groups_of = flags.groups_of;
  question.range = flags.range;
  question.compatibility = flags.compatibility();
  SHARDMESH_RETURN_IF_ERROR(CheckCutOptions(flags.cuts));
  question.uneven = flags.cuts.rule();
  question.weights = flags.cuts.weights.value_or(std::vector<int64_t>());
  SHARDMESH_ASSIGN_OR_RETURN(question.cut_points, CutPointsFor(flags.cuts, question.shape));
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.ConnectToAsk());
  SHARDMESH_ASSIGN_OR_RETURN(const TilingAnswer answer, client->layouts().DescribeTiling(question));
  if (invocation.json) {
    Json tiles = Json::array();
    for (const DeviceTile& tile : answer.tiles) {
      tiles.push_back(
          {{"device", tile.device}, {"tile", TileJson(tile.tile)}, {"replica", tile.replica_id}});
    }
    Json owners = Json::array();
    for (const OwnedTile& owned : answer.owners) {
      owners.push_back({{"tile", TileJson(owned.tile)}, {"devices", owned.devices}});
    }
    invocation.Print({{"shard_shape", ShapeJson(answer.shard_shape)},
                      {"cut_points", CutPointsJson(answer.cut_points)},
                      {"distinct_tiles", answer.distinct_tiles},
                      {"fully_replicated", answer.fully_replicated},
                      {"tiles", std::move(tiles)},
                      {"owners", std::move(owners)},
                      {"replica_groups", answer.replica_groups},
                      {"revision", answer.revision}});
    return absl::OkStatus();
  }
  std::cout << "tile            " << FormatShape(answer.shard_shape) << "\n"
            << "distinct tiles  " << answer.distinct_tiles
            << (answer.fully_replicated ? ", every device holds everything" : "") << "\n";
  if (!answer.cut_points.empty()) {
    std::cout << "cuts            " << FormatCutPoints(answer.cut_points) << "\n";
  }
  if (!answer.tiles.empty()) {
    Table table({{"device", Table::Align::kRight}, {"tile"}, {"replica", Table::Align::kRight}});
    for (const DeviceTile& tile : answer.tiles) {
      table.AddRow({StrCat(tile.device), tile.tile.ToString(), StrCat(tile.replica_id)});
    }
    std::cout << "\n";
    table.Print();
  }
  if (!answer.owners.empty()) {
    Table table({{"piece"}, {"devices that hold it"}});
    for (const OwnedTile& owned : answer.owners) {
      table.AddRow({owned.tile.ToString(), FormatDevices(owned.devices)});
    }
    std::cout << "\n";
    table.Print();
  }
  if (!answer.replica_groups.empty()) {
    Table table({{"device", Table::Align::kRight}, {"holders of its tile"}});
    for (size_t i = 0; i < answer.replica_groups.size(); ++i) {
      table.AddRow({StrCat(flags.groups_of[i]), FormatDevices(answer.replica_groups[i])});
    }
    std::cout << "\n";
    table.Print();
  }
  return absl::OkStatus();
}

absl::Status RunAxes(const Invocation& invocation, const SpecFlags& flags) {
  ResolveAxesQuestion question;
  question.axes = *flags.axes;
  SHARDMESH_ASSIGN_OR_RETURN(question.mode, SelectMode(flags.mode, flags.compatibility()));
  SHARDMESH_ASSIGN_OR_RETURN(question.profile, SelectProfile(flags.profile));
  question.compatibility = flags.compatibility();
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.ConnectToAsk());
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<AxisValue> values,
                             client->layouts().ResolveAxes(question));
  if (invocation.json) {
    Json list = Json::array();
    for (const AxisValue& value : values) {
      list.push_back(value.ToString());
    }
    invocation.Print(list);
    return absl::OkStatus();
  }
  Table table({{"dimension", Table::Align::kRight}, {"axis"}, {"mesh axes"}});
  for (size_t i = 0; i < values.size(); ++i) {
    const AxisValue& axis = (*flags.axes)[i];
    table.AddRow({StrCat(i), axis.is_name() ? axis.name() : axis.ToString(), values[i].ToString()});
  }
  table.Print();
  return absl::OkStatus();
}

void AddLogicalOptions(CLI::App* command, SpecFlags* flags) {
  AddParsedOption(command, "--axes", &flags->axes, ParseAxes, kAxesHelp);
  AddModeOption(command, &flags->mode);
  command->add_option("--profile", flags->profile, "a profile: YAML file, or name in the catalog");
}

void AddShapeAndMesh(CLI::App* command, SpecFlags* flags) {
  AddParsedOption(command, "--shape", &flags->shape, ParseShape,
                  "the tensor's extents, such as 30522,384");
  AddMeshOptions(command, &flags->mesh);
}

}  // namespace

void AddSpecCommands(CommandLine* line) {
  {
    auto flags = std::make_shared<SpecFlags>();
    CLI::App* const command = line->AddCommand(
        "explain",
        "Show the way from a tensor's name or logical axes to its spec, and how to mend it",
        [flags](const Invocation& i) { return RunExplain(i, *flags); });
    command->add_option("tensor", flags->name, "the tensor's name")->required();
    command->add_option("--rules", flags->rules, "rules: YAML file, or name in the catalog");
    AddLogicalOptions(command, flags.get());
    AddShapeAndMesh(command, flags.get());
    command->add_option("--tree", flags->tree,
                        "source of the tensor's shape, and of its axes if it brings any: "
                        "safetensors file, index, model folder, .json or .jsonl file");
    command->add_flag("--strict", flags->strict, "fail if anything is corrected");
    AddExactOption(command, &flags->exact);
  }
  {
    auto flags = std::make_shared<SpecFlags>();
    CLI::App* const command =
        line->AddCommand("constrain", "Show which layout an existing array is constrained to",
                         [flags](const Invocation& i) { return RunConstrain(i, *flags); });
    AddParsedOption(command, "array", &flags->array, ParseArrayName,
                    "an array of the cluster, whose shape and mesh count");
    AddLogicalOptions(command, flags.get());
    command->add_option("--preset", flags->preset, "name of a preset, which brings axes and mode");
    AddParsedOption(command, "--spec", &flags->spec, ParseSpec, kSpecHelp);
    AddShapeAndMesh(command, flags.get());
    command->add_flag("--apply", flags->apply, "move the array to what it is constrained to");
    command->add_flag("--auto-correct", flags->auto_correct,
                      "correct before constraining: what is left as () constrains nothing");
    command->add_flag("--strict", flags->strict,
                      "fail if anything is corrected, and show all corrections");
    AddExactOption(command, &flags->exact);
  }
  {
    auto flags = std::make_shared<SpecFlags>();
    CLI::App* const command =
        line->AddCommand("compare", "Tell whether two specs place tensors alike",
                         [flags](const Invocation& i) { return RunCompare(i, *flags); });
    line->TakeSpecOperands(command);
    AddParsedOption(command, "a", &flags->spec, ParseSpec, kSpecHelp)->required();
    AddParsedOption(command, "b", &flags->other_spec, ParseSpec, "the other spec")->required();
    command->add_option("--rank", flags->rank,
                        "dimensions of the tensors (default: as many as the longer spec has)");
    AddMeshOptions(command, &flags->mesh);
    AddExactOption(command, &flags->exact);
  }
  {
    auto flags = std::make_shared<SpecFlags>();
    CLI::App* const command = line->AddCommand(
        "tiles", "Show how a tensor lies on a mesh, and which device holds which part",
        [flags](const Invocation& i) { return RunTiles(i, *flags); });
    AddParsedOption(command, "--spec", &flags->spec, ParseSpec, kSpecHelp)->required();
    AddShapeAndMesh(command, flags.get());
    command->add_option("--device", flags->devices,
                        "show the tile of this device; may be repeated");
    command->add_option("--group-of", flags->groups_of,
                        "show all devices that hold the tile of this device; may be repeated");
    AddParsedOption(command, "--range", &flags->range, ParseTile,
                    "show the devices that hold this range of the tensor, such as 0:16,0:384");
    AddCutsOption(command, &flags->cuts);
    AddUnevenOptions(command, &flags->cuts, "ceil (parts of ceil(extent/parts))");
    AddExactOption(command, &flags->exact);
  }
  {
    auto flags = std::make_shared<SpecFlags>();
    CLI::App* const command =
        line->AddCommand("axes", "Show which mesh axes each logical axis stands for",
                         [flags](const Invocation& i) { return RunAxes(i, *flags); });
    line->TakeSpecOperands(command);
    AddParsedOption(command, "axes", &flags->axes, ParseAxes, kAxesHelp)->required();
    AddModeOption(command, &flags->mode);
    command->add_option("--profile", flags->profile,
                        "a profile: YAML file, or name in the catalog");
    AddExactOption(command, &flags->exact);
  }
}

}  // namespace shardmesh::client
