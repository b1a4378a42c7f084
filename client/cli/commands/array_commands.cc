// Commands load, put, ls, get, describe, rm: tensors on the workers.
#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/grammar.h"
#include "client/cli/interruption.h"
#include "client/cli/placement.h"
#include "client/cli/progress_bar.h"
#include "client/cli/shared_options.h"
#include "client/cli/stopwatch.h"
#include "client/cli/table.h"
#include "client/cli/tree_source.h"
#include "process/file.h"
#include "sharding/tile.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"
#include "tensor/npy.h"

namespace shardmesh::client {
namespace {

std::string_view StateName(ArrayState state) {
  switch (state) {
    case ArrayState::kAvailable:
      return "available";
    case ArrayState::kDegraded:
      return "degraded";
    case ArrayState::kUnknown:
      break;
  }
  return "unknown";
}

std::string_view DurabilityName(Durability durability) {
  switch (durability) {
    case Durability::kMemory:
      return "memory";
    case Durability::kDisk:
      return "disk";
    case Durability::kUnknown:
      break;
  }
  return "unknown";
}

Json ArrayJson(const Array& array) {
  return {{"name", array.name},
          {"version", array.name_version},
          {"array_id", array.descriptor.array_id},
          {"dtype", std::string(DtypeName(array.descriptor.dtype))},
          {"shape", ShapeJson(array.descriptor.shape)},
          {"spec", SpecJson(array.descriptor.spec)},
          {"requested_spec",
           array.requested_spec.has_value() ? SpecJson(*array.requested_spec) : Json(nullptr)},
          {"corrections", CorrectionsJson(array.corrections, array.descriptor.mesh)},
          {"mesh", array.descriptor.mesh_id},
          {"size_bytes", array.size_bytes},
          {"state", std::string(StateName(array.state))},
          {"missing_ranks", array.missing_ranks},
          {"durability", std::string(DurabilityName(array.durability))}};
}

constexpr char kArrayNameHelp[] =
    "name of the array, NAME@VERSION (default: the current one), or @ID as `ls --unnamed` shows it";

struct LoadFlags {
  std::string checkpoint;
  std::string rules;
  std::string mesh;
  bool strict = false;
};

// Returns a wrong-use error if `mesh` is not the name of a mesh, but the axes of a mesh or a file.
// The message lists the cluster's meshes.
absl::Status CheckMeshName(MeshClient* client, const std::string& mesh) {
  if (mesh.find_first_of("=/") == std::string::npos) {
    return absl::OkStatus();
  }
  SHARDMESH_ASSIGN_OR_RETURN(const ClusterStatus status, client->cluster().GetStatus());
  return WrongUse(StrCat(
      "--mesh ", mesh, ": tensors are loaded onto a mesh of the cluster, by its name; there is ",
      StrJoin(status.meshes, ", ",
              [](std::string* out, const MeshStatus& known) {
                StrAppend(out, "\"", known.mesh_id, "\" ", known.mesh.ToString());
              }),
      " (`plan` takes any mesh)"));
}

// Opens a checkpoint. A .json file may be the index of a checkpoint, or the description of a tree;
// only the content of the file shows which. If the file describes a tree, returns BAD_FILE.
absl::StatusOr<Checkpoint> OpenCheckpoint(const std::string& path) {
  absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(path);
  if (checkpoint.ok() || !(path.ends_with(".json") || path.ends_with(".jsonl"))) {
    return checkpoint;
  }
  const absl::StatusOr<std::vector<TreeTensor>> tree = ReadTree(path);
  if (!tree.ok()) {
    return checkpoint;
  }
  return InvalidArgument(
      Reason::kBadFile,
      StrCat(
          path, ": describes a tree, ", FormatCount(tree->size(), "tensor"),
          " by names and shapes, and holds no values to load; `shardmesh plan ", path,
          "` shows how it would lie; load takes a safetensors file, its index or a model folder"));
}

absl::Status RunLoad(const Invocation& invocation, const LoadFlags& flags) {
  SHARDMESH_ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenCheckpoint(flags.checkpoint));
  SHARDMESH_ASSIGN_OR_RETURN(const RuleSetSelector rules, SelectRules(flags.rules));
  // Declared before the interruption, whose destructor may still use the client.
  std::shared_ptr<MeshClient> client;
  Interruption interruption("nothing was loaded", invocation.output);
  SHARDMESH_ASSIGN_OR_RETURN(client, invocation.Connect());
  SHARDMESH_RETURN_IF_ERROR(CheckMeshName(client.get(), flags.mesh));

  TreeQuestion question;
  question.rules = rules;
  question.strict = flags.strict;
  question.mesh = flags.mesh.empty() ? "default" : flags.mesh;
  SHARDMESH_ASSIGN_OR_RETURN(
      const Placement placement,
      AskPlacement(client.get(), TensorsOf(checkpoint), std::move(question)));
  SHARDMESH_RETURN_IF_ERROR(CheckAllMatched(placement));
  if (!invocation.json && !invocation.quiet) {
    PrintPlacement(placement);
    std::cout << std::endl;
  }

  PutOptions options;
  options.mesh = flags.mesh;
  options.rules = rules;
  options.strict = flags.strict;
  const Stopwatch stopwatch;
  absl::StatusOr<PutResult> result;
  {
    ProgressBar bar("loading", invocation.quiet);
    options.progress = ShowOn(&bar);
    options.on_begun = [&](const std::string& transfer_id) {
      interruption.Begun(client.get(), transfer_id);
    };
    result = client->arrays().LoadCheckpoint(checkpoint, options);
  }
  SHARDMESH_RETURN_IF_ERROR(interruption.Outcome(result.status()));
  const absl::Duration time = stopwatch.time();

  if (invocation.json) {
    Json json = PlacementJson(placement);
    json["revision"] = result->revision;
    json["sent_bytes"] = result->sent_bytes;
    json["time_s"] = Seconds(time);
    json["transfer_time_s"] = Seconds(result->transfer_time);
    json["durability"] = std::string(DurabilityName(result->durability));
    invocation.Print(json);
    return absl::OkStatus();
  }
  std::cout << "Loaded " << FormatCount(result->arrays.size(), "tensor") << ", "
            << FormatBytes(checkpoint.size_bytes()) << " as " << FormatBytes(result->sent_bytes)
            << " of tiles, in " << FormatTime(time) << "; " << FormatDurability(result->durability)
            << ", revision " << result->revision << "\n";
  const auto corrected =
      std::count_if(result->arrays.begin(), result->arrays.end(),
                    [](const PutArray& array) { return !array.corrections.empty(); });
  if (corrected > 0) {
    std::cout << "The specs of " << corrected << " of "
              << FormatCount(result->arrays.size(), "tensor")
              << " were corrected to fit; `shardmesh plan` shows why, --strict refuses it\n";
  }
  return absl::OkStatus();
}

struct PutFlags {
  std::string path;
  std::string name;
  std::optional<PartitionSpec> spec;
  std::optional<std::vector<AxisValue>> axes;
  std::string preset;
  std::string rules;
  ModeOption mode;
  std::string profile;
  std::string mesh;
  bool strict = false;
  bool validate_only = false;
  ExactOption exact;
};

absl::Status RunPut(const Invocation& invocation, const PutFlags& flags) {
  const int layouts = (flags.spec.has_value() ? 1 : 0) + (flags.axes.has_value() ? 1 : 0) +
                      (flags.preset.empty() ? 0 : 1) + (flags.rules.empty() ? 0 : 1);
  if (layouts != 1) {
    return WrongUse("give one of --spec, --axes, --preset and --rules");
  }
  if (flags.mode.text.has_value() && !flags.axes.has_value()) {
    return WrongUse("--mode is about --axes; a preset has its own mode");
  }
  if (!flags.profile.empty() && !flags.axes.has_value() && flags.preset.empty()) {
    return WrongUse("--profile is about --axes and --preset; --spec and --rules need none");
  }
  SHARDMESH_ASSIGN_OR_RETURN(const NpyFile file, NpyFile::Open(flags.path));
  const Compatibility compatibility = flags.exact.compatibility();
  PutOptions options;
  options.mesh = flags.mesh;
  options.strict = flags.strict;
  options.validate_only = flags.validate_only;
  options.compatibility = compatibility;
  SHARDMESH_ASSIGN_OR_RETURN(options.rules, SelectRules(flags.rules, compatibility));
  SHARDMESH_ASSIGN_OR_RETURN(options.profile, SelectProfile(flags.profile));
  SHARDMESH_ASSIGN_OR_RETURN(options.mode, SelectMode(flags.mode, compatibility));
  const PutTensor tensor{.name = flags.name,
                         .view = file.View(),
                         .spec = flags.spec,
                         .axes = flags.axes,
                         .preset = flags.preset};
  // Declared before the interruption, whose destructor may still use the client.
  std::shared_ptr<MeshClient> client;
  Interruption interruption("nothing was put", invocation.output);
  SHARDMESH_ASSIGN_OR_RETURN(client, invocation.Connect());
  SHARDMESH_RETURN_IF_ERROR(CheckMeshName(client.get(), flags.mesh));
  options.on_begun = [&](const std::string& transfer_id) {
    interruption.Begun(client.get(), transfer_id);
  };
  absl::StatusOr<PutResult> result;
  {
    ProgressBar bar("putting", invocation.quiet);
    options.progress = ShowOn(&bar);
    result = client->arrays().PutTensors({&tensor, 1}, options);
  }
  SHARDMESH_RETURN_IF_ERROR(interruption.Outcome(result.status()));
  const PutArray& put = result->arrays.front();
  const ArrayDescriptor& array = put.descriptor;
  if (invocation.json) {
    Json json = {{"name", flags.name},
                 {"dtype", std::string(DtypeName(array.dtype))},
                 {"shape", ShapeJson(array.shape)},
                 {"spec", SpecJson(array.spec)},
                 {"corrections", CorrectionsJson(put.corrections, array.mesh)},
                 {"mesh", array.mesh_id}};
    if (!flags.validate_only) {
      json["array_id"] = array.array_id;
      json["revision"] = result->revision;
      json["sent_bytes"] = result->sent_bytes;
      json["durability"] = std::string(DurabilityName(result->durability));
    }
    invocation.Print(MarkIfValidated(std::move(json), flags.validate_only));
    return absl::OkStatus();
  }
  std::cout << (flags.validate_only ? "Would put " : "Put ") << flags.name << ": "
            << DtypeName(array.dtype) << " " << FormatShape(array.shape) << ", spec "
            << FormatSpec(array.spec);
  if (!flags.validate_only) {
    std::cout << "; " << FormatDurability(result->durability) << ", revision " << result->revision;
  }
  std::cout << "\n";
  for (const Correction& correction : put.corrections) {
    std::cout << "corrected: " << correction.ToString(array.mesh) << "\n";
  }
  return absl::OkStatus();
}

// Selects an array as other commands do: by its name, or by its id if it has no name.
ArraySelector SelectorOf(const Array& array) {
  return array.name.empty() ? ArraySelector::ById(array.descriptor.array_id)
                            : ArraySelector::ByName(array.name);
}

absl::Status RunLs(const Invocation& invocation, const std::string& prefix, bool include_unnamed) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<Array> arrays,
                             client->arrays().ListArrays(prefix, include_unnamed));
  if (invocation.json) {
    Json list = Json::array();
    for (const Array& array : arrays) {
      list.push_back(ArrayJson(array));
    }
    invocation.Print(list);
    return absl::OkStatus();
  }
  if (invocation.names()) {
    std::vector<std::string> names;
    for (const Array& array : arrays) {
      names.push_back(FormatArray(SelectorOf(array)));
    }
    PrintNames(names);
    return absl::OkStatus();
  }
  const auto wide = [](std::string title) {
    return Table::Column{std::move(title), Table::Align::kLeft, Table::Shown::kWide};
  };
  Table table({{"name"},
               {"version", Table::Align::kRight},
               {"dtype"},
               {"shape"},
               {"spec"},
               wide("requested"),
               {"size", Table::Align::kRight},
               {"mesh"},
               wide("where"),
               wide("array"),
               {"state"}});
  int64_t total_bytes = 0;
  for (const Array& array : arrays) {
    total_bytes += array.size_bytes;
    table.AddRow(
        {FormatArray(SelectorOf(array)), array.name.empty() ? "-" : StrCat(array.name_version),
         std::string(DtypeName(array.descriptor.dtype)), FormatShape(array.descriptor.shape),
         FormatSpec(array.descriptor.spec),
         FormatSpec(array.requested_spec.value_or(array.descriptor.spec)),
         FormatBytes(array.size_bytes), array.descriptor.mesh_id,
         std::string(DurabilityName(array.durability)), array.descriptor.array_id,
         array.missing_ranks.empty() ? std::string(StateName(array.state))
                                     : StrCat(StateName(array.state), ", rank",
                                              array.missing_ranks.size() == 1 ? " " : "s ",
                                              StrJoin(array.missing_ranks, ","), " missing")});
  }
  if (!arrays.empty()) {
    table.Print();
  }
  if (!invocation.headers) return absl::OkStatus();
  std::cout << (arrays.empty() ? "" : "\n") << FormatCount(arrays.size(), "array") << ", "
            << FormatBytes(total_bytes) << "\n";
  const bool has_degraded = std::any_of(arrays.begin(), arrays.end(), [](const Array& array) {
    return array.state == ArrayState::kDegraded;
  });
  if (has_degraded) {
    SHARDMESH_ASSIGN_OR_RETURN(const ClusterStatus status, client->cluster().GetStatus());
    if (status.state == CoordinatorState::kRecovering) {
      std::cout << "The coordinator is recovering: tiles are missing until their workers have "
                   "attached again\n";
    }
  }
  return absl::OkStatus();
}

struct GetFlags {
  ArraySelector array;
  std::string path;
  std::optional<ArraySlice> slice;
};

absl::StatusOr<GatheredTensor> Gather(MeshClient* client, const GetFlags& flags,
                                      const ProgressCallback& progress) {
  return flags.slice.has_value() ? client->arrays().Gather(flags.array, *flags.slice, progress)
                                 : client->arrays().Gather(flags.array, progress);
}

absl::Status RunGet(const Invocation& invocation, const GetFlags& flags) {
  const std::string& path = flags.path;
  const auto interruption = GuardOutputFile(path, invocation.output);
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  const Stopwatch stopwatch;
  if (path == "-") {
    if (invocation.json) {
      return WrongUse(
          "--out - and --output json or yaml both write to standard output; give one of them");
    }
    absl::StatusOr<GatheredTensor> gathered;
    {
      ProgressBar bar("gathering", invocation.quiet);
      gathered = Gather(client.get(), flags, ShowOn(&bar));
    }
    SHARDMESH_ASSIGN_OR_RETURN(const GatheredTensor tensor, std::move(gathered));
    return WriteNpy(std::cout, tensor.view());
  }
  // Before the gather, which may take long, check that the file can be written.
  SHARDMESH_RETURN_IF_ERROR(AtomicFileWriter::Create(path).status());
  absl::StatusOr<GatheredTensor> gathered;
  {
    ProgressBar bar("gathering", invocation.quiet);
    gathered = Gather(client.get(), flags, ShowOn(&bar));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const GatheredTensor tensor, std::move(gathered));
  const TensorView view = tensor.view();
  SHARDMESH_RETURN_IF_ERROR(WriteNpy(path, view));
  const Array& array = tensor.array();
  const absl::Duration time = stopwatch.time();
  if (invocation.json) {
    Json json = ArrayJson(array);
    json["path"] = path;
    if (flags.slice.has_value()) {
      json["slice"] = tensor.part().ToString();
    }
    json["time_s"] = Seconds(time);
    invocation.Print(json);
    return absl::OkStatus();
  }
  std::cout << "Wrote " << path << ": " << FormatArray(flags.array)
            << (flags.slice.has_value() ? StrCat(" ", tensor.part().ToString()) : "") << ", "
            << DtypeName(view.dtype()) << " "
            << FormatShape(Shape(view.shape().begin(), view.shape().end())) << ", "
            << FormatBytes(view.size_bytes()) << " in " << FormatTime(time) << "\n";
  return absl::OkStatus();
}

// Limit on the number of devices whose tiles are listed.
constexpr int64_t kMaxShownDevices = 64;

// Returns one entry for each name that points to the array. If the caller selected the array by
// name, `array` has that name, and the result has only `array`. If the caller selected the array by
// id, looks up all names of the array in a list of the cluster's arrays.
absl::StatusOr<std::vector<Array>> UnderEachName(MeshClient* client, const Array& array) {
  if (!array.name.empty()) return std::vector<Array>{array};
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<Array> named, client->arrays().ListArrays());
  std::erase_if(named, [&array](const Array& each) {
    return each.descriptor.array_id != array.descriptor.array_id;
  });
  return named;
}

absl::Status RunDescribe(const Invocation& invocation, const ArraySelector& selector) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  SHARDMESH_ASSIGN_OR_RETURN(const Array array, client->arrays().DescribeArray(selector));
  // If the names cannot be listed, describe the array without its names.
  const absl::StatusOr<std::vector<Array>> named = UnderEachName(client.get(), array);
  if (!named.ok()) {
    std::cerr << "The array's names are not shown: " << named.status().message() << "\n";
  }
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, array.descriptor.Tiling());
  const int64_t devices = std::min(tiling.mesh().size(), kMaxShownDevices);
  const auto is_missing = [&array](DeviceId device) {
    return std::find(array.missing_ranks.begin(), array.missing_ranks.end(), device) !=
           array.missing_ranks.end();
  };
  if (invocation.json) {
    Json json = ArrayJson(array);
    Json tiles = Json::array();
    for (DeviceId device = 0; device < devices; ++device) {
      tiles.push_back({{"rank", device},
                       {"tile", tiling.TileOf(device).ToString()},
                       {"replica", tiling.ReplicaIdOf(device)},
                       {"present", !is_missing(device)}});
    }
    json["tiles"] = std::move(tiles);
    if (array.name.empty() && named.ok()) {
      json["names"] = Json::array();
      for (const Array& each : *named) json["names"].push_back(each.name);
    }
    invocation.Print(json);
    return absl::OkStatus();
  }
  std::vector<std::string> names;
  if (named.ok()) {
    for (const Array& each : *named) {
      names.push_back(StrCat(each.name, " version ", each.name_version));
    }
  }
  std::cout << "name        " << (names.empty() ? std::string("-") : StrJoin(names, ", ")) << "\n"
            << "array       " << array.descriptor.array_id << "\n"
            << "tensor      " << DtypeName(array.descriptor.dtype) << " "
            << FormatShape(array.descriptor.shape) << ", " << FormatBytes(array.size_bytes) << "\n"
            << "mesh        " << array.descriptor.mesh_id << " " << array.descriptor.mesh.ToString()
            << ", revision " << array.descriptor.mesh_revision << "\n";
  if (array.requested_spec.has_value()) {
    std::cout << "requested   " << FormatSpec(*array.requested_spec) << "\n";
  }
  std::cout << "effective   " << FormatSpec(array.descriptor.spec) << "\n";
  for (const Correction& correction : array.corrections) {
    std::cout << "corrected   " << correction.ToString(array.descriptor.mesh) << "\n";
  }
  std::cout << "state       " << StateName(array.state) << ", "
            << FormatDurability(array.durability) << "\n\n";
  Table table({{"rank", Table::Align::kRight},
               {"tile"},
               {"replica", Table::Align::kRight},
               {"size", Table::Align::kRight},
               {"state"}});
  for (DeviceId device = 0; device < devices; ++device) {
    const Tile tile = tiling.TileOf(device);
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t size, array.descriptor.TileSizeBytes(tile));
    table.AddRow({StrCat(device), tile.ToString(), StrCat(tiling.ReplicaIdOf(device)),
                  FormatBytes(size), is_missing(device) ? "missing" : "present"});
  }
  table.Print();
  if (devices < tiling.mesh().size()) {
    std::cout << "and " << FormatCount(tiling.mesh().size() - devices, "more device") << "\n";
  }
  return absl::OkStatus();
}

absl::Status RunRm(const Invocation& invocation, const std::vector<std::string>& names,
                   bool validate_only) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  // Check first that all names exist, so that the command removes either all names or none. Between
  // the check and the removal, another client may still remove a name.
  for (const std::string& name : names) {
    const absl::Status there = client->arrays().DescribeArray(ArraySelector::ByName(name)).status();
    if (absl::IsNotFound(there) && IsArrayId(name)) {
      return WithContext(there,
                         "rm takes names; an array without a name goes when the session that "
                         "holds it ends (`shardmesh admin sessions`)");
    }
    SHARDMESH_RETURN_IF_ERROR(there);
  }
  for (const std::string& name : names) {
    SHARDMESH_RETURN_IF_ERROR(client->arrays().DeleteName(name, std::nullopt, validate_only));
    if (!invocation.json) {
      std::cout << (validate_only ? "Would remove " : "Removed ") << name << "\n";
    }
  }
  if (invocation.json) {
    invocation.Print(MarkIfValidated({{"removed", names}}, validate_only));
  }
  return absl::OkStatus();
}

void AddLoad(CommandLine* line) {
  auto flags = std::make_shared<LoadFlags>();
  CLI::App* const load =
      line->AddCommand("load", "Load a checkpoint onto the workers, each tensor under its name",
                       [flags](const Invocation& i) { return RunLoad(i, *flags); });
  load->add_option("checkpoint", flags->checkpoint, "safetensors file, index, or model folder")
      ->required();
  load->add_option("--rules", flags->rules, "rules: YAML file, or name in the catalog")->required();
  load->add_option("--mesh", flags->mesh, "name of the mesh (default: default)");
  load->add_flag("--strict", flags->strict, "make the first correction an error");
  load->footer("With --quiet the placement is not shown either.");
}

void AddPut(CommandLine* line) {
  auto flags = std::make_shared<PutFlags>();
  CLI::App* const put =
      line->AddCommand("put", "Put the tensor of a .npy file onto the workers, under a name",
                       [flags](const Invocation& i) { return RunPut(i, *flags); });
  put->add_option("file", flags->path, "a .npy file")->required();
  put->add_option("--as", flags->name, "name of the array")
      ->required()
      ->check([](const std::string& name) {
        return name.empty() ? "the name is empty, and nothing would hold the array"
                            : RefuseIdAsName(name);
      });
  AddParsedOption(put, "--spec", &flags->spec, ParseSpec,
                  "mesh axes, one entry a dimension: fsdp,tp; - for none");
  AddParsedOption(put, "--axes", &flags->axes, ParseAxes,
                  "logical axes, one a dimension, such as __BATCH__,__EMBED__; - for none");
  put->add_option("--preset", flags->preset, "name of a preset, which brings axes and mode");
  put->add_option("--rules", flags->rules, "rules: YAML file, or name in the catalog");
  AddModeOption(put, &flags->mode, "with --axes: ");
  put->add_option("--profile", flags->profile, "a profile: YAML file, or name in the catalog");
  put->add_option("--mesh", flags->mesh, "name of the mesh (default: default)");
  put->add_flag("--strict", flags->strict, "make the first correction an error");
  put->add_flag("--validate-only", flags->validate_only, "check everything, and put nothing");
  AddExactOption(put, &flags->exact);
}

void AddGet(CommandLine* line) {
  auto flags = std::make_shared<GetFlags>();
  CLI::App* const get =
      line->AddCommand("get", "Gather a tensor from the workers into a .npy file",
                       [flags](const Invocation& i) { return RunGet(i, *flags); });
  AddParsedOption(get, "tensor", &flags->array, ParseArrayName, kArrayNameHelp)->required();
  AddParsedOption(
      get, "--out", &flags->path,
      [](std::string_view text) { return ParseNpyPath(text, "get", /*or_output=*/true); },
      "file to write, complete or not at all; - for standard output")
      ->required();
  AddParsedOption(get, "--slice", &flags->slice, ParseSlice,
                  "only these indexes of each dimension, as 0:16,: (default: all)");
}

}  // namespace

void AddArrayCommands(CommandLine* line) {
  AddLoad(line);
  AddPut(line);

  struct LsFlags {
    std::string prefix;
    bool include_unnamed = false;
  };
  auto ls_flags = std::make_shared<LsFlags>();
  CLI::App* const ls =
      line->AddCommand("ls", "List the named arrays", [ls_flags](const Invocation& i) {
        return RunLs(i, ls_flags->prefix, ls_flags->include_unnamed);
      });
  line->PrintsNames(ls);
  line->CanBeWatched(ls);
  CLI::Option* const prefix =
      ls->add_option("prefix", ls_flags->prefix, "only names with this prefix");
  ls->add_flag("--unnamed", ls_flags->include_unnamed, "also arrays that no name points to")
      ->excludes(prefix);

  AddGet(line);

  auto described = std::make_shared<ArraySelector>();
  CLI::App* const describe =
      line->AddCommand("describe", "Show how an array lies, device by device",
                       [described](const Invocation& i) { return RunDescribe(i, *described); });
  AddParsedOption(describe, "tensor", described.get(), ParseArrayName, kArrayNameHelp)->required();

  auto removed = std::make_shared<std::vector<std::string>>();
  auto validate_only = std::make_shared<bool>(false);
  CLI::App* const rm =
      line->AddCommand("rm", "Remove names; arrays go when nothing else holds them",
                       [=](const Invocation& i) { return RunRm(i, *removed, *validate_only); });
  rm->add_option("tensor", *removed, "names of arrays")->required();
  rm->add_flag("--validate-only", *validate_only, "check everything, and remove nothing");
}

}  // namespace shardmesh::client
