// Commands plan, shardings: costs of layouts, and the tiles of arrays.
#include <algorithm>
#include <array>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/grammar.h"
#include "client/cli/inputs/checkpoint_source.h"
#include "client/cli/inputs/tree_source.h"
#include "client/cli/interruption.h"
#include "client/cli/placement.h"
#include "client/cli/report/plan_report.h"
#include "client/cli/shared_options.h"
#include "client/cli/table.h"
#include "process/file.h"
#include "rpc/flags.h"
#include "sharding/layout/mesh_search.h"
#include "sharding/tile.h"
#include "status/nearest_name.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

// The memory of a device, and the text that the user gave for it.
struct Memory {
  int64_t bytes = 0;
  std::string text;
};

absl::StatusOr<Memory> ParseMemory(std::string_view text) {
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t bytes, ParseSize(text));
  return Memory{bytes, std::string(text)};
}

// Parses a list of criteria, such as `fit,wasted_bytes`.
absl::StatusOr<std::vector<MeshCriterion>> ParseRanking(std::string_view text) {
  std::vector<MeshCriterion> ranking;
  for (const absl::string_view piece : absl::StrSplit(ToAbsl(text), ',')) {
    const std::optional<MeshCriterion> criterion = MeshCriterionFromName(ToStd(piece));
    if (!criterion.has_value()) {
      constexpr std::array kKnown = {MeshCriterion::kFit, MeshCriterion::kDeviceBytes,
                                     MeshCriterion::kWastedBytes, MeshCriterion::kCorrections};
      std::vector<std::string_view> names;
      for (const MeshCriterion known : kKnown) {
        names.push_back(MeshCriterionName(known));
      }
      return WrongUse(StrCat("\"", ToStd(piece), "\" is none of ", StrJoin(names, ", "),
                             DidYouMean(ToStd(piece), names)));
    }
    ranking.push_back(*criterion);
  }
  return ranking;
}

struct PlanFlags {
  std::string file;  // positional
  std::string tree;  // like `file`, but from the option --tree
  std::string stored_tree;
  std::string rules;
  std::string profile;
  ModeOption mode;
  MeshOption mesh;
  std::vector<int64_t> devices;
  std::string html;
  bool summary = false;
  bool strict = false;
  MapFlags map;
  ExactOption exact;
  // Options of the search for meshes.
  std::optional<int64_t> search;
  std::optional<std::vector<SearchAxis>> axes;
  std::optional<Memory> memory;
  std::optional<int64_t> keep;
  std::optional<std::vector<MeshCriterion>> ranking;
};

// Parses an axis of the meshes to search, with its allowed sizes: `tp`, `tp=8`, `tp=2..8`, `tp=..8`
// or `tp=2..`.
absl::StatusOr<SearchAxis> ParseSearchAxis(std::string_view text) {
  const size_t equals = text.find('=');
  SearchAxis axis = {.name = std::string(text.substr(0, equals))};
  if (axis.name.empty()) {
    return WrongUse(StrCat("\"", text, "\" names no axis"));
  }
  if (equals == std::string_view::npos) {
    return axis;
  }
  const std::string_view bounds = text.substr(equals + 1);
  const size_t dots = bounds.find("..");
  const auto read = [&](std::string_view number, int64_t* to) -> absl::Status {
    if (!absl::SimpleAtoi(ToAbsl(number), to) || *to < 1) {
      return WrongUse(StrCat("\"", text, "\" is no axis to try; write NAME, NAME=8, NAME=2..8, ",
                             "NAME=..8 or NAME=2.. with sizes of at least 1"));
    }
    return absl::OkStatus();
  };
  const std::string_view low = bounds.substr(0, dots);
  const std::string_view high = dots == std::string_view::npos ? low : bounds.substr(dots + 2);
  if (low.empty() && high.empty()) {
    return read("", &axis.min_size);
  }
  if (!low.empty()) {
    SHARDMESH_RETURN_IF_ERROR(read(low, &axis.min_size));
  }
  if (!high.empty()) {
    int64_t size = 0;
    SHARDMESH_RETURN_IF_ERROR(read(high, &size));
    if (size < axis.min_size) {
      return WrongUse(StrCat("\"", text, "\" allows no size: ", size, " is below ", axis.min_size));
    }
    axis.max_size = size;
  }
  return axis;
}

absl::StatusOr<std::vector<SearchAxis>> ParseSearchAxes(std::string_view text) {
  std::vector<SearchAxis> axes;
  for (const absl::string_view piece : absl::StrSplit(ToAbsl(text), ',')) {
    SHARDMESH_ASSIGN_OR_RETURN(SearchAxis axis, ParseSearchAxis(ToStd(piece)));
    axes.push_back(std::move(axis));
  }
  return axes;
}

absl::Status CheckFlags(PlanFlags* flags) {
  const int given = (flags->file.empty() ? 0 : 1) + (flags->tree.empty() ? 0 : 1) +
                    (flags->stored_tree.empty() ? 0 : 1);
  if (given != 1) {
    return WrongUse(given == 0 ? "name a tree: a safetensors file, index or model folder, a .json "
                                 "file, - for JSON lines on standard input, or one of the catalog "
                                 "by --stored-tree"
                               : "more than one tree is given; FILE, --tree and --stored-tree "
                                 "exclude each other");
  }
  if (flags->file.empty()) {
    flags->file = flags->tree;
  }
  if (flags->map.is_given() && (flags->file.empty() || flags->file == "-")) {
    return WrongUse("--map and --dtype are for the tensors of a checkpoint; name one with FILE");
  }
  // Show each device once, even if the user names it twice.
  std::vector<int64_t> devices;
  for (const int64_t device : flags->devices) {
    if (std::find(devices.begin(), devices.end(), device) == devices.end()) {
      devices.push_back(device);
    }
  }
  flags->devices = std::move(devices);
  const bool of_search = flags->axes.has_value() || flags->memory.has_value() ||
                         flags->keep.has_value() || flags->ranking.has_value();
  if (!flags->search.has_value()) {
    return of_search ? WrongUse("--axes, --memory, --keep and --rank-by go with --search")
                     : absl::OkStatus();
  }
  std::vector<std::string> mends;
  if (!flags->axes.has_value()) mends.emplace_back("name them with --axes dp,fsdp,tp");
  if (!flags->mesh.empty() || flags->mesh.devices.has_value() || !flags->html.empty() ||
      !flags->devices.empty() || flags->strict || flags->summary || flags->exact.exact) {
    mends.emplace_back(
        "leave out --mesh, --devices, --html, --device, --strict, --summary and --exact, which "
        "apply to a given mesh");
  }
  if (mends.empty()) return absl::OkStatus();
  return WrongUse(StrCat("--search tries meshes of some axes: ", StrJoin(mends, ", and ")));
}

absl::Status CheckHasRules(const PlanFlags& flags, const std::vector<TreeTensor>& tensors) {
  if (!flags.rules.empty()) {
    return absl::OkStatus();
  }
  for (const TreeTensor& tensor : tensors) {
    if (!tensor.axes.has_value() && !tensor.spec.has_value()) {
      return WrongUse(StrCat("--rules is required: ", tensor.name,
                             " brings neither axes nor a spec of its own"));
    }
  }
  return absl::OkStatus();
}

// Returns the tensors of the file; empty if the question names a stored tree. With --map or
// --dtype, the file is a checkpoint, and `mapped` gets it.
absl::StatusOr<std::vector<TreeTensor>> ReadTreeOf(const PlanFlags& flags,
                                                   std::optional<MappedCheckpoint>* mapped) {
  if (!flags.stored_tree.empty()) {
    return std::vector<TreeTensor>();
  }
  absl::StatusOr<std::vector<TreeTensor>> tensors;
  if (flags.map.is_given()) {
    SHARDMESH_ASSIGN_OR_RETURN(MappedCheckpoint opened, OpenMapped(flags.file, flags.map));
    mapped->emplace(std::move(opened));
    tensors = TensorsOf(**mapped);
  } else {
    tensors = ReadTree(flags.file);
  }
  SHARDMESH_RETURN_IF_ERROR(tensors.status());
  SHARDMESH_RETURN_IF_ERROR(CheckHasRules(flags, *tensors));
  return tensors;
}

absl::Status CheckDevices(const std::vector<int64_t>& devices, const Mesh& mesh) {
  for (const int64_t device : devices) {
    if (device < 0 || device >= mesh.size()) {
      return WrongUse(StrCat("--device ", device, " is not one of the ", mesh.size(), " of ",
                             mesh.ToString(), "; they count from 0"));
    }
  }
  return absl::OkStatus();
}

// Calls `visit(tensor, tiling)` for each tensor, with the tiling of its effective spec on the mesh.
template <typename Visit>
absl::Status ForEachTiling(const Placement& placement, const Mesh& mesh, const Visit& visit) {
  for (size_t i = 0; i < placement.tensors.size(); ++i) {
    const TreeTensor& tensor = placement.tensors[i];
    const TreeSpec& spec = placement.answer.specs[placement.answer.placements[i].spec_index];
    SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling,
                               Tiling::Create(mesh, spec.effective, tensor.shape));
    visit(tensor, tiling);
  }
  return absl::OkStatus();
}

absl::Status PrintDevice(const Placement& placement, const Mesh& mesh, DeviceId device) {
  const MeshCoordinates coordinates = mesh.CoordinatesOf(device);
  std::cout << "\nDevice " << device << ", at ";
  for (int64_t axis = 0; axis < mesh.axis_count(); ++axis) {
    std::cout << (axis == 0 ? "" : ",") << mesh.axes()[static_cast<size_t>(axis)].name << "="
              << coordinates[static_cast<size_t>(axis)];
  }
  std::cout << "\n";
  Table table({{"tensor"}, {"tile"}, {"replica", Table::Align::kRight}});
  SHARDMESH_RETURN_IF_ERROR(
      ForEachTiling(placement, mesh, [&](const TreeTensor& tensor, const Tiling& tiling) {
        table.AddRow({tensor.name, tiling.TileOf(device).ToString(),
                      StrCat(tiling.ReplicaIdOf(device), " of ", tiling.replica_count())});
      }));
  table.Print();
  return absl::OkStatus();
}

absl::StatusOr<Json> DevicesJson(const Placement& placement, const Mesh& mesh,
                                 const std::vector<int64_t>& devices) {
  Json list = Json::array();
  for (const int64_t device : devices) {
    Json tiles = Json::array();
    SHARDMESH_RETURN_IF_ERROR(
        ForEachTiling(placement, mesh, [&](const TreeTensor& tensor, const Tiling& tiling) {
          tiles.push_back({{"name", tensor.name},
                           {"tile", TileJson(tiling.TileOf(device))},
                           {"replica", tiling.ReplicaIdOf(device)},
                           {"replicas", tiling.replica_count()}});
        }));
    list.push_back({{"device", device}, {"tiles", std::move(tiles)}});
  }
  return list;
}

absl::Status WriteHtml(const PlanFlags& flags, const Placement& placement, const Mesh& mesh) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::string html,
                             PlanHtml({.title = flags.file == "-"    ? "a tree"
                                                : flags.file.empty() ? flags.stored_tree
                                                                     : flags.file,
                                       .rules = flags.rules,
                                       .mesh = mesh,
                                       .placement = &placement,
                                       .devices = flags.devices}));
  SHARDMESH_ASSIGN_OR_RETURN(AtomicFileWriter file, AtomicFileWriter::Create(flags.html));
  SHARDMESH_RETURN_IF_ERROR(file.Append(html));
  SHARDMESH_RETURN_IF_ERROR(file.Finish());
  std::cerr << "The report is in " << flags.html << "\n";
  return absl::OkStatus();
}

Json CandidateJson(const MeshCandidate& candidate, const std::vector<SearchAxis>& axes) {
  Json mesh = Json::object();
  for (size_t i = 0; i < axes.size(); ++i) {
    mesh[axes[i].name] = candidate.sizes[i];
  }
  return {{"mesh", std::move(mesh)},
          {"fits", candidate.fits},
          {"bytes_per_device", candidate.device_bytes},
          {"wasted_bytes", candidate.wasted_bytes},
          {"sharded_bytes", candidate.sharded_bytes},
          {"corrected_tensors", candidate.corrected_tensors},
          {"unplaceable_tensors", candidate.unplaceable_tensors}};
}

std::string MeshText(const MeshCandidate& candidate, const std::vector<SearchAxis>& axes) {
  std::vector<std::string> pieces;
  for (size_t i = 0; i < axes.size(); ++i) {
    pieces.push_back(StrCat(axes[i].name, "=", candidate.sizes[i]));
  }
  return StrJoin(pieces, ",");
}

// Returns an error if no mesh fits, although the search itself succeeded: the program's exit code
// must show that no mesh fits.
absl::Status SearchVerdict(const MeshSearchResult& result) {
  return result.fitting > 0
             ? absl::OkStatus()
             : absl::FailedPreconditionError(StrCat("none of ", result.evaluated,
                                                    " meshes fits; the first of the table comes "
                                                    "nearest"));
}

absl::Status RunSearch(const Invocation& invocation, const PlanFlags& flags) {
  SearchQuestion question = {.devices = *flags.search,
                             .axes = *flags.axes,
                             .keep = flags.keep.value_or(20),
                             .ranking = flags.ranking.value_or(std::vector<MeshCriterion>()),
                             .stored_tree = flags.stored_tree};
  if (flags.memory.has_value()) {
    question.device_memory_bytes = flags.memory->bytes;
  }
  SHARDMESH_ASSIGN_OR_RETURN(question.mode, SelectMode(flags.mode, Compatibility::kDefault));
  std::optional<MappedCheckpoint> mapped;
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<TreeTensor> tensors, ReadTreeOf(flags, &mapped));
  SHARDMESH_ASSIGN_OR_RETURN(question.rules, SelectRules(flags.rules));
  SHARDMESH_ASSIGN_OR_RETURN(question.profile, SelectProfile(flags.profile));
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.ConnectToAsk());
  SHARDMESH_ASSIGN_OR_RETURN(const SearchAnswer answer,
                             client->layouts().SearchMeshes(question, tensors));
  const MeshSearchResult& result = answer.result;
  if (invocation.json) {
    Json meshes = Json::array();
    for (const MeshCandidate& candidate : result.best) {
      meshes.push_back(CandidateJson(candidate, question.axes));
    }
    invocation.Print({{"devices", question.devices},
                      {"evaluated", result.evaluated},
                      {"fitting", result.fitting},
                      {"meshes", std::move(meshes)},
                      {"revision", answer.revision}});
    return SearchVerdict(result);
  }
  Table table({{"mesh"},
               {"bytes/device", Table::Align::kRight},
               {"in copies", Table::Align::kRight},
               {"sharded", Table::Align::kRight},
               {"corrected", Table::Align::kRight},
               {"fits"}});
  for (const MeshCandidate& candidate : result.best) {
    table.AddRow({MeshText(candidate, question.axes), FormatBytes(candidate.device_bytes),
                  FormatBytes(candidate.wasted_bytes), FormatBytes(candidate.sharded_bytes),
                  StrCat(candidate.corrected_tensors),
                  candidate.fits ? (flags.memory.has_value() ? "yes" : "-")
                  : candidate.unplaceable_tensors > 0
                      ? StrCat("no, ", FormatCount(candidate.unplaceable_tensors, "tensor"),
                               " cannot be placed")
                      : "no"});
  }
  table.Print();
  const std::string all =
      StrCat(result.evaluated, " meshes of ", FormatCount(question.devices, "device"));
  if (flags.memory.has_value()) {
    std::cout << "\n"
              << result.fitting << " of " << all << " fit in " << flags.memory->text
              << " per device\n";
  } else {
    std::cout << "\nbest " << result.best.size() << " of " << all
              << "; no --memory was given, so none was excluded for its bytes\n";
  }
  return SearchVerdict(result);
}

absl::Status RunPlan(const Invocation& invocation, PlanFlags flags) {
  SHARDMESH_RETURN_IF_ERROR(CheckFlags(&flags));
  if (flags.search.has_value()) {
    return RunSearch(invocation, flags);
  }
  const auto interruption = GuardOutputFile(flags.html, invocation.output);
  TreeQuestion question;
  question.strict = flags.strict;
  question.suggest_fixes = true;
  question.compatibility = flags.exact.compatibility();
  SHARDMESH_ASSIGN_OR_RETURN(question.mode, SelectMode(flags.mode, question.compatibility));
  SHARDMESH_ASSIGN_OR_RETURN(question.mesh, SelectMesh(flags.mesh, question.compatibility));
  std::optional<MappedCheckpoint> mapped;
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<TreeTensor> tensors, ReadTreeOf(flags, &mapped));
  SHARDMESH_ASSIGN_OR_RETURN(question.rules, SelectRules(flags.rules, question.compatibility));
  SHARDMESH_ASSIGN_OR_RETURN(question.profile, SelectProfile(flags.profile));
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.ConnectToAsk());
  Mesh mesh;
  if (!flags.html.empty() || !flags.devices.empty()) {
    SHARDMESH_ASSIGN_OR_RETURN(mesh, FetchMesh(client.get(), question.mesh));
    SHARDMESH_RETURN_IF_ERROR(CheckDevices(flags.devices, mesh));
    question.mesh = mesh;
  }
  if (!flags.stored_tree.empty()) {
    // The output lists the tensors, so fetch them. The question has the fetched tensors instead of
    // the tree's name, so that output and question use the same version of the tree.
    SHARDMESH_ASSIGN_OR_RETURN(tensors, FetchTree(client.get(), flags.stored_tree));
    SHARDMESH_RETURN_IF_ERROR(CheckHasRules(flags, tensors));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const Placement placement,
                             AskPlacement(client.get(), std::move(tensors), std::move(question)));
  SHARDMESH_RETURN_IF_ERROR(CheckAllMatched(placement));
  if (!flags.html.empty()) {
    SHARDMESH_RETURN_IF_ERROR(WriteHtml(flags, placement, mesh));
  }
  if (invocation.json) {
    Json json = PlacementJson(placement);
    if (flags.summary) {
      json.erase("tensors");
    }
    if (!flags.devices.empty()) {
      SHARDMESH_ASSIGN_OR_RETURN(json["devices"], DevicesJson(placement, mesh, flags.devices));
    }
    if (mapped.has_value()) json["mapping"] = MappingJson(*mapped);
    invocation.Print(json);
    return absl::OkStatus();
  }
  PrintPlacement(placement, /*with_tensors=*/!flags.summary);
  if (mapped.has_value()) PrintMapping(*mapped);
  PrintReport(placement);
  for (const int64_t device : flags.devices) {
    SHARDMESH_RETURN_IF_ERROR(PrintDevice(placement, mesh, device));
  }
  return absl::OkStatus();
}

struct ShardingsFlags {
  std::string prefix;
  bool specs = false;
  MeshOption mesh;
  ExactOption exact;
};

absl::Status RunShardings(const Invocation& invocation, const ShardingsFlags& flags) {
  ShardingsQuestion question;
  question.kind = flags.specs ? ShardingsQuestion::Kind::kSpecs : ShardingsQuestion::Kind::kLayouts;
  question.compatibility = flags.exact.compatibility();
  if (!flags.mesh.empty()) {
    question.kind = ShardingsQuestion::Kind::kLayoutsOnMesh;
    SHARDMESH_ASSIGN_OR_RETURN(question.mesh, SelectMesh(flags.mesh, question.compatibility));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  question.prefix = flags.prefix;
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<ShardingsEntry> entries,
                             client->layouts().ListShardings(question));
  if (invocation.json) {
    Json list = Json::array();
    for (const ShardingsEntry& entry : entries) {
      Json each = {{"name", entry.name},
                   {"spec", entry.spec.has_value() ? SpecJson(*entry.spec) : Json(nullptr)}};
      if (!flags.specs) {
        each["mesh"] = entry.mesh.has_value() ? MeshJson(*entry.mesh) : Json(nullptr);
      }
      list.push_back(std::move(each));
    }
    invocation.Print(list);
    return absl::OkStatus();
  }
  if (invocation.names()) {
    std::vector<std::string> names;
    for (const ShardingsEntry& entry : entries) names.push_back(entry.name);
    PrintNames(names);
    return absl::OkStatus();
  }
  std::vector<Table::Column> columns = {{"array"}, {"spec"}};
  if (!flags.specs) {
    columns.push_back({"mesh"});
  }
  if (entries.empty()) {
    std::cerr << "No array's name begins with \"" << flags.prefix << "\".\n";
    return absl::OkStatus();
  }
  Table table(std::move(columns));
  for (const ShardingsEntry& entry : entries) {
    std::vector<std::string> row = {entry.name,
                                    entry.spec.has_value() ? FormatSpec(*entry.spec) : "none"};
    if (!flags.specs) {
      row.push_back(entry.mesh.has_value() ? entry.mesh->ToString() : "none");
    }
    table.AddRow(std::move(row));
  }
  table.Print();
  return absl::OkStatus();
}

void AddPlan(CommandLine* line) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* const plan = line->AddCommand(
      "plan", "Show how a model would lie on a mesh, from its header alone, or search for a mesh",
      [flags](const Invocation& i) { return RunPlan(i, *flags); });
  plan->add_option("file", flags->file, kTreeHelp);
  plan->add_option("--tree", flags->tree, "the same as FILE");
  plan->add_option("--stored-tree", flags->stored_tree, kStoredTreeHelp);
  plan->add_option("--rules", flags->rules,
                   "rules: YAML file, or name in the catalog; not needed where every tensor brings "
                   "axes or a spec");
  plan->add_option("--profile", flags->profile,
                   "for tensors that bring axes, a profile: YAML file, or name in the catalog");
  AddModeOption(plan, &flags->mode, "for tensors that bring axes: ");
  AddMeshOptions(plan, &flags->mesh);
  plan->add_flag("--strict", flags->strict,
                 "fail if anything is corrected, and show all corrections");
  AddMapOptions(plan, &flags->map);
  plan->add_flag("--summary", flags->summary, "leave out the table of tensors");
  AddExactOption(plan, &flags->exact);
  plan->add_option("--device", flags->devices,
                   "show the tiles of this device of the mesh; may be given again");
  plan->add_option("--html", flags->html, "also write a report with pictures to this file")
      ->check(RefuseStandardOutput);
  plan->add_option("--search", flags->search,
                   "rank all meshes of that many devices over --axes, instead of a mesh")
      ->check(WholeNumberFrom(1));
  AddParsedOption(plan, "--axes", &flags->axes, ParseSearchAxes,
                  "with --search, the axes: dp,fsdp,tp; tp=8 is fixed, tp=2..8 is bounded");
  AddParsedOption(plan, "--memory", &flags->memory, ParseMemory,
                  "with --search, the memory of a device, such as 80GiB");
  plan->add_option("--keep", flags->keep, "with --search, how many meshes to show (default: 20)");
  AddParsedOption(plan, "--rank-by", &flags->ranking, ParseRanking,
                  "with --search, the criteria that rank meshes; the first that differs decides "
                  "(default: fit,device_bytes,wasted_bytes,corrections)");
}

void AddShardings(CommandLine* line) {
  auto flags = std::make_shared<ShardingsFlags>();
  CLI::App* const shardings =
      line->AddCommand("shardings", "Show the layouts of the cluster's named arrays",
                       [flags](const Invocation& i) { return RunShardings(i, *flags); });
  line->PrintsNames(shardings);
  shardings->add_option("prefix", flags->prefix, "only names with this prefix");
  CLI::Option* const specs = shardings->add_flag("--specs", flags->specs, "show the specs alone");
  AddMeshOptions(
      shardings, &flags->mesh,
      "the mesh of arrays that have a spec and no mesh: axes as dp=4,tp=8, YAML file, or "
      "name in the catalog");
  shardings->get_option("--mesh")->excludes(specs);
  AddExactOption(shardings, &flags->exact);
}

}  // namespace

void AddPlanCommands(CommandLine* line) {
  AddPlan(line);
  AddShardings(line);
}

}  // namespace shardmesh::client
