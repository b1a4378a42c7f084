// Commands load, put, ls, get, describe, rm: tensors on the workers.
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/cut_options.h"
#include "client/cli/grammar.h"
#include "client/cli/inputs/checkpoint_source.h"
#include "client/cli/inputs/single_tensor.h"
#include "client/cli/inputs/tree_source.h"
#include "client/cli/interruption.h"
#include "client/cli/piped_output.h"
#include "client/cli/placement.h"
#include "client/cli/progress_bar.h"
#include "client/cli/replica_wait.h"
#include "client/cli/shared_options.h"
#include "client/cli/spec_printing.h"
#include "client/cli/stopwatch.h"
#include "client/cli/table.h"
#include "client/types/zero_tensor.h"
#include "process/file.h"
#include "process/steady_deadline.h"
#include "sharding/tile.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_folder.h"
#include "tensor/dtype.h"
#include "tensor/npy.h"
#include "tensor/source_file.h"

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

Json RepairJson(const std::optional<ArrayRepair>& repair) {
  if (!repair.has_value()) return nullptr;
  return {{"operation_id", repair->operation_id},
          {"tiles", repair->tiles},
          {"size_bytes", repair->size_bytes},
          {"time_left_s",
           repair->time_left.has_value() ? Json(Seconds(*repair->time_left)) : Json(nullptr)},
          {"failure", repair->failure},
          {"next_try", repair->next_try.has_value()
                           ? Json(absl::FormatTime(*repair->next_try, absl::UTCTimeZone()))
                           : Json(nullptr)}};
}

// Says what the coordinator does about the tiles that an array lacks.
std::string FormatRepair(const ArrayRepair& repair) {
  std::string text;
  if (repair.tiles > 0) {
    text = StrCat(FormatCount(repair.tiles, "tile"), " (", FormatBytes(repair.size_bytes),
                  ") in repair");
    if (!repair.operation_id.empty()) text += StrCat(" by operation ", repair.operation_id);
    if (repair.time_left.has_value()) text += StrCat(", ", FormatTime(*repair.time_left), " left");
  }
  if (repair.failure.empty()) return text;
  text += StrCat(text.empty() ? "" : "; ", "repair failed: ", repair.failure);
  if (repair.next_try.has_value()) {
    const absl::Duration wait = *repair.next_try - absl::Now();
    text += wait > absl::ZeroDuration() ? StrCat("; next try in ", FormatTime(wait))
                                        : std::string("; next try now");
  }
  return text;
}

Json ArrayJson(const Array& array) {
  return {{"name", array.name},
          {"version", array.name_version},
          {"array_id", array.descriptor.array_id},
          {"dtype", std::string(DtypeName(array.descriptor.dtype))},
          {"shape", ShapeJson(array.descriptor.shape)},
          {"spec", SpecJson(array.descriptor.spec)},
          {"cut_points", CutPointsJson(array.descriptor.cut_points)},
          {"requested_spec",
           array.requested_spec.has_value() ? SpecJson(*array.requested_spec) : Json(nullptr)},
          {"corrections", CorrectionsJson(array.corrections, array.descriptor.mesh)},
          {"mesh", array.descriptor.mesh_id},
          {"size_bytes", array.size_bytes},
          {"state", std::string(StateName(array.state))},
          {"is_state", array.is_state},
          {"missing_ranks", array.missing_ranks},
          {"repair", RepairJson(array.repair)},
          {"replicas", ReplicasJson(array.replicas)},
          {"durability", std::string(DurabilityName(array.durability))}};
}

constexpr char kArrayNameHelp[] =
    "name of the array, NAME@VERSION (default: the current one), or @ID as `ls --unnamed` shows it";

// The names of PutReader as --source takes them.
std::string_view ReaderName(PutReader reader) {
  switch (reader) {
    case PutReader::kClient:
      return "client";
    case PutReader::kWorkers:
      return "workers";
    case PutReader::kAuto:
      break;
  }
  return "auto";
}

absl::StatusOr<PutReader> ParseReader(std::string_view text) {
  for (const PutReader reader : {PutReader::kAuto, PutReader::kClient, PutReader::kWorkers}) {
    if (text == ReaderName(reader)) return reader;
  }
  return absl::InvalidArgumentError(
      StrCat("'", text, "' is none of auto, client and workers: the process that reads the file"));
}

void AddSourceOption(CLI::App* app, std::optional<PutReader>* reader) {
  AddParsedOption(app, "--source", reader, ParseReader,
                  "who reads the file: workers, client, or auto, which is the workers if all of "
                  "them can read it (default: auto)");
}

// The names of Handover as --handover takes them.
absl::StatusOr<Handover> ParseHandover(std::string_view text) {
  if (text == "auto") return Handover::kAuto;
  if (text == "on") return Handover::kOn;
  if (text == "off") return Handover::kOff;
  return absl::InvalidArgumentError(
      StrCat("\"", text,
             "\" is none of auto, on and off: whether large tiles go to workers on this "
             "host as memory"));
}

void AddHandoverOption(CLI::App* app, std::optional<Handover>* handover) {
  AddParsedOption(app, "--handover", handover, ParseHandover,
                  "whether this client hands large tiles over as memory to workers on its host "
                  "instead of streaming them: on, off, or auto, which streams where a worker takes "
                  "no memory (default: auto)");
}

void AddReuseOption(CLI::App* app, bool* no_reuse) {
  app->add_flag("--no-reuse", *no_reuse,
                "read and send tensors again that the workers have already");
}

// Returns a name of the process that read the file of a put, as `read_by` has it.
std::string_view NameOfWhoRead(PutReader reader) {
  return reader == PutReader::kAuto ? "both" : ReaderName(reader);
}

// Returns a part of the summary of a put: who read the file.
std::string FormatReader(const PutResult& put) {
  if (put.reused_tensors == std::ssize(put.arrays)) {
    if (put.moved_bytes == 0) return "all on the workers already";
    return StrCat("copied from arrays on the workers, ", FormatBytes(put.moved_bytes),
                  " between workers");
  }
  if (put.reader == PutReader::kWorkers) return "read by the workers";
  std::string text = "read by this client";
  if (put.reader == PutReader::kAuto) {
    text = StrCat(FormatBytes(put.read_bytes), " read by the workers, ",
                  FormatBytes(put.sent_bytes), " sent by this client");
  }
  if (put.handed_over_bytes == 0) return text;
  return StrCat(text, ", ", FormatBytes(put.handed_over_bytes), " handed over as memory");
}

// Says how much of a put neither the client nor the workers had to read.
void PrintReuse(const PutResult& put) {
  if (put.reused_tensors == 0 && put.reused_bytes == 0) return;
  const std::string tiles = StrCat(FormatBytes(put.reused_bytes), " of tiles");
  // The bytes count also tiles of tensors that were there in part.
  if (put.reused_tensors > 0) {
    std::cout << FormatCount(static_cast<size_t>(put.reused_tensors), "tensor") << ", " << tiles
              << ",";
  } else {
    std::cout << tiles;
  }
  if (put.moved_bytes > 0) {
    std::cout << " were not read: the workers had their elements, some in another layout, and sent "
              << FormatBytes(put.moved_bytes) << " to one another";
  } else {
    std::cout << " were on the workers already";
  }
  std::cout << "; --no-reuse reads them again\n";
}

// Adds to the answer of a put who read the file, why it was not only the workers, and how much was
// there already.
void AddReader(const PutResult& put, Json* json) {
  (*json)["read_by"] = std::string(NameOfWhoRead(put.reader));
  (*json)["read_bytes"] = put.read_bytes;
  (*json)["reused_tensors"] = put.reused_tensors;
  (*json)["reused_bytes"] = put.reused_bytes;
  (*json)["moved_bytes"] = put.moved_bytes;
  (*json)["handed_over_bytes"] = put.handed_over_bytes;
  if (!put.handover_refused.ok()) {
    (*json)["handover_refused"] = ToStd(put.handover_refused.message());
  }
  if (!put.workers_refused.ok()) {
    (*json)["workers_refused"] = ToStd(put.workers_refused.message());
  }
}

// Says in the result of a put why no worker was asked to read tensors that the client sent. `why`:
// as WhyClientReads.
void NoteWhyClientRead(const std::string& why, PutResult* put) {
  if (put->reader != PutReader::kWorkers && put->workers_refused.ok() && !why.empty()) {
    put->workers_refused = absl::FailedPreconditionError(ToAbsl(why));
  }
}

// Says why tiles were streamed, to a user who asked for --handover.
void PrintStreamed(const PutResult& put, const std::optional<Handover>& asked) {
  if (asked.has_value() && !put.handover_refused.ok()) {
    std::cout << "Tiles were streamed: " << put.handover_refused.message() << "\n";
  }
}

// Says why the workers did not read the file, to a user who asked for --source. The client has read
// it then.
void PrintRefusal(const PutResult& put, const std::optional<PutReader>& asked) {
  if (asked.has_value() && !put.workers_refused.ok()) {
    std::cout << "The workers did not read "
              << (put.reader == PutReader::kAuto ? "all tensors" : "the file")
              << ", so this client did: " << put.workers_refused.message() << "\n";
  }
}

// Says how many arrays of a load have other specs than were asked for.
void PrintCorrected(const std::vector<PutArray>& arrays) {
  const auto corrected = std::count_if(arrays.begin(), arrays.end(), [](const PutArray& array) {
    return !array.corrections.empty();
  });
  if (corrected == 0) return;
  std::cout << "The specs of " << corrected << " of " << FormatCount(arrays.size(), "tensor")
            << " were corrected to fit; `shardmesh plan` shows why, --strict refuses it\n";
}

// Names the command that finds axes in `rules` that a mesh lacks, if specs of `arrays` have such
// axes. `rules` is empty if the specs are not of rules.
void PrintRulesAdvice(const std::vector<PutArray>& arrays, const std::string& rules) {
  const auto lacks_axes = [](const Correction& correction) {
    return !correction.absent_axes.empty();
  };
  if (rules.empty() || std::none_of(arrays.begin(), arrays.end(), [&](const PutArray& array) {
        return std::any_of(array.corrections.begin(), array.corrections.end(), lacks_axes);
      })) {
    return;
  }
  std::cout << "`shardmesh rules lint " << rules << "` looks for such axes without a put\n";
}

// Prints a line for each axis that specs ask for and the mesh lacks, with the nearest axis of the
// mesh. `tensors`: those of `arrays`, in the same order. `rules`: see PrintRulesAdvice.
void PrintAbsentAxes(const std::vector<PutTensor>& tensors, const std::vector<PutArray>& arrays,
                     const std::string& rules) {
  struct AbsentAxis {
    size_t first = 0;  // index of an array
    Correction correction;
    int64_t arrays = 0;
  };
  std::map<std::string, AbsentAxis> absent;
  for (size_t i = 0; i < arrays.size(); ++i) {
    std::set<std::string_view> seen;
    for (const Correction& correction : arrays[i].corrections) {
      for (const std::string& axis : correction.absent_axes) {
        if (!seen.insert(axis).second) continue;
        AbsentAxis& entry = absent[axis];
        if (++entry.arrays > 1) continue;
        entry.first = i;
        entry.correction = correction;
        entry.correction.absent_axes = {axis};
      }
    }
  }
  for (const auto& [axis, entry] : absent) {
    std::cout << "corrected: " << FormatCount(entry.arrays, "tensor")
              << (entry.arrays > 1 ? ", first " : ", ") << tensors[entry.first].name << ", "
              << entry.correction.ToString(arrays[entry.first].descriptor.mesh) << "\n";
  }
  PrintRulesAdvice(arrays, rules);
}

// Time limit of the question that ExplainStrictPut asks. The error is known, and must not wait for
// long.
constexpr absl::Duration kExplainTime = absl::Seconds(3);

// Returns `error`, the error of a put. If --strict is the cause, adds the corrections of the
// other tensors, which the coordinator is asked for. `call`: the options of the put.
absl::Status ExplainStrictPut(MeshClient* client, const absl::Status& error,
                              const std::vector<PutTensor>& tensors, PutOptions options,
                              CallOptions call) {
  if (!options.strict || tensors.size() < 2 || !IsOfStrict(error)) return error;
  options.strict = false;
  options.validate_only = true;
  // Only the coordinator is needed for the corrections. A put that workers read asks the workers
  // about the files, even to validate it.
  options.reader = PutReader::kClient;
  options.reuse = false;
  options.progress = nullptr;
  options.on_begun = nullptr;
  call.timeout = std::min(call.timeout.value_or(kExplainTime), kExplainTime);
  const absl::StatusOr<PutResult> plan = client->arrays().PutTensors(tensors, options, call);
  if (!plan.ok()) return error;
  std::vector<CorrectedTensor> corrected;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const PutArray& array = plan->arrays[i];
    if (array.corrections.empty()) continue;
    corrected.push_back({.name = tensors[i].name,
                         .corrections = array.corrections,
                         .mesh = array.descriptor.mesh,
                         .effective = array.descriptor.spec,
                         .shape = array.descriptor.shape});
  }
  return WithAllCorrected(error, corrected);
}

// Returns the options of a put that ends at `end`; nullopt: the client's own limit applies.
CallOptions PutUntil(const std::optional<SteadyDeadline>& end) {
  CallOptions options;
  if (end.has_value()) options.timeout = end->left();
  return options;
}

struct LoadFlags {
  std::string checkpoint;
  std::optional<PutReader> reader;
  std::optional<Handover> handover;
  std::string rules;
  std::optional<PartitionSpec> spec;
  std::string tree;
  ModeOption mode;
  std::string profile;
  std::string mesh;
  std::optional<int64_t> step;
  int64_t replicas = 0;  // 0: as the names had it
  CutOptions cuts;
  bool strict = false;
  bool validate_only = false;
  bool no_reuse = false;
  MapFlags map;
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

// Opens and maps a checkpoint. A .json file may be the index of a checkpoint, or the description of
// a tree; only the content of the file shows which. If the file describes a tree, returns BAD_FILE.
absl::StatusOr<MappedCheckpoint> OpenCheckpoint(const std::string& path,
                                                std::optional<int64_t> step, const MapFlags& map,
                                                const std::function<absl::Status()>& keep_going) {
  absl::StatusOr<MappedCheckpoint> checkpoint = OpenMapped(path, map, step, keep_going);
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

// Gives each tensor the axes or the spec that the tree file `path` has under the tensor's name.
// Errors: a tensor of the tree is not in the checkpoint, or has another shape there; with
// `needs_all` also a tensor of the checkpoint without axes and without a spec.
absl::Status TakeLayouts(const std::string& path, bool needs_all,
                         std::vector<TreeTensor>* tensors) {
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<TreeTensor> tree, ReadTree(path));
  absl::flat_hash_map<std::string_view, TreeTensor*> known;
  for (TreeTensor& tensor : *tensors) known.emplace(tensor.name, &tensor);
  const auto refuse = [&path](std::string_view message) {
    return InvalidArgument(Reason::kBadFile, StrCat(path, ": ", message), {{fact::kFile, path}});
  };
  for (TreeTensor& layout : tree) {
    const auto found = known.find(layout.name);
    if (found == known.end()) {
      return refuse(StrCat("the checkpoint has no tensor \"", layout.name, "\""));
    }
    TreeTensor& tensor = *found->second;
    if (tensor.shape != layout.shape) {
      return refuse(StrCat("\"", layout.name, "\" has the shape ", FormatShape(layout.shape),
                           ", and ", FormatShape(tensor.shape), " in the checkpoint"));
    }
    tensor.axes = std::move(layout.axes);
    tensor.spec = std::move(layout.spec);
  }
  if (!needs_all) return absl::OkStatus();
  const auto lacks_layout = [](const TreeTensor& tensor) {
    return !tensor.axes.has_value() && !tensor.spec.has_value();
  };
  const auto first = std::find_if(tensors->begin(), tensors->end(), lacks_layout);
  if (first == tensors->end()) return absl::OkStatus();
  return refuse(
      StrCat(FormatCount(
                 static_cast<size_t>(std::count_if(tensors->begin(), tensors->end(), lacks_layout)),
                 "tensor"),
             " of the checkpoint, first \"", first->name,
             "\", have neither axes nor a spec there; add them, or give --rules for the others"));
}

absl::Status CheckLoadFlags(const LoadFlags& flags) {
  if (flags.rules.empty() && !flags.spec.has_value() && flags.tree.empty()) {
    return WrongUse("give --rules, --spec for all tensors, or --tree with axes for each");
  }
  if (flags.spec.has_value() && !(flags.rules.empty() && flags.tree.empty())) {
    return WrongUse("--spec is the layout of all tensors; give no --rules and no --tree with it");
  }
  if (flags.tree.empty() && (flags.mode.text.has_value() || !flags.profile.empty())) {
    return WrongUse("--mode and --profile are about the axes of a --tree");
  }
  return CheckCutOptions(flags.cuts);
}

Json LoadedJson(const PutArray& put, const std::string& name) {
  const ArrayDescriptor& array = put.descriptor;
  return {{"name", name},
          {"dtype", std::string(DtypeName(array.dtype))},
          {"shape", ShapeJson(array.shape)},
          {"effective", SpecJson(array.spec)},
          {"cut_points", CutPointsJson(array.cut_points)},
          {"empty_ranks", EmptyRanks(array)},
          {"corrections", CorrectionsJson(put.corrections, array.mesh)}};
}

// Says which ranks hold nothing of some of the loaded tensors.
void PrintEmptyRanksOfLoad(const std::vector<PutArray>& arrays) {
  std::map<std::vector<int64_t>, int64_t> tensors_by_ranks;
  for (const PutArray& array : arrays) ++tensors_by_ranks[EmptyRanks(array.descriptor)];
  for (const auto& [ranks, tensors] : tensors_by_ranks) {
    if (ranks.empty()) continue;
    std::cout << NoteOnEmptyRanks(ranks, FormatCount(tensors, "tensor")) << "\n";
  }
}

// Shows how the tensors of a load will lie whose parts a rule cuts.
absl::Status PrintCutPlacement(const std::vector<PutTensor>& tensors,
                               const std::vector<PutArray>& arrays) {
  Table table({{"tensor"},
               {"dtype"},
               {"shape"},
               {"effective"},
               {"cuts"},
               {"bytes/device", Table::Align::kRight},
               {"why it differs"}});
  std::vector<int64_t> by_device;
  int64_t size_bytes = 0;
  for (size_t i = 0; i < arrays.size(); ++i) {
    const ArrayDescriptor& array = arrays[i].descriptor;
    SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, array.Tiling());
    by_device.resize(static_cast<size_t>(array.mesh.size()));
    int64_t most = 0;
    for (DeviceId device = 0; device < array.mesh.size(); ++device) {
      SHARDMESH_ASSIGN_OR_RETURN(const int64_t bytes, array.TileSizeBytes(tiling.TileOf(device)));
      most = std::max(most, bytes);
      by_device[static_cast<size_t>(device)] += bytes;
    }
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t bytes, array.SizeBytes());
    size_bytes += bytes;
    table.AddRow({tensors[i].name, std::string(DtypeName(array.dtype)), FormatShape(array.shape),
                  FormatSpec(array.spec), FormatCutPoints(array.cut_points), FormatBytes(most),
                  FormatCorrections(arrays[i].corrections, array.mesh)});
  }
  table.Print();
  const auto [least, most] = std::minmax_element(by_device.begin(), by_device.end());
  std::cout << "\n" << FormatCount(arrays.size(), "tensor") << ", " << FormatBytes(size_bytes);
  if (least != by_device.end()) {
    std::cout << "; a device holds " << FormatBytes(*most) << " at most, " << FormatBytes(*least)
              << " at least";
  }
  std::cout << "\n";
  return absl::OkStatus();
}

// The checkpoint of a load as it was opened, and its tensors with the layouts that are asked for.
struct OpenedLoad {
  MappedCheckpoint checkpoint;
  std::string why_client;  // WhyClientReads
  std::vector<TreeTensor> layouts;
  std::vector<PutTensor> tensors;
};

absl::StatusOr<OpenedLoad> OpenLoad(const LoadFlags& flags,
                                    const std::function<absl::Status()>& keep_going) {
  SHARDMESH_ASSIGN_OR_RETURN(MappedCheckpoint checkpoint,
                             OpenCheckpoint(flags.checkpoint, flags.step, flags.map, keep_going));
  std::string why_client = WhyClientReads(checkpoint);
  if (flags.reader == PutReader::kWorkers && !why_client.empty()) {
    return WrongUse(StrCat("--source workers: ", why_client,
                           "; leave out --source, or what asks for the change"));
  }
  std::vector<TreeTensor> layouts = TensorsOf(checkpoint);
  for (TreeTensor& tensor : layouts) tensor.spec = flags.spec;
  if (!flags.tree.empty()) {
    SHARDMESH_RETURN_IF_ERROR(TakeLayouts(flags.tree, flags.rules.empty(), &layouts));
  }
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<PutTensor> tensors, PutTensorsOf(checkpoint));
  for (size_t i = 0; i < layouts.size(); ++i) {
    tensors[i].spec = layouts[i].spec;
    tensors[i].axes = layouts[i].axes;
  }
  return OpenedLoad{.checkpoint = std::move(checkpoint),
                    .why_client = std::move(why_client),
                    .layouts = std::move(layouts),
                    .tensors = std::move(tensors)};
}

// Asks how the tensors of a load will lie, and shows it. Nullopt: a rule cuts, and the put itself
// chooses the layouts.
absl::StatusOr<std::optional<Placement>> PlaceLoad(const Invocation& invocation, MeshClient* client,
                                                   const OpenedLoad& load,
                                                   const PutOptions& options,
                                                   const CallOptions& call) {
  const bool is_shown = !invocation.json && !invocation.quiet;
  // Questions know no workers, by which a rule may cut; with a rule, the put itself chooses the
  // layouts, and shows them before it begins.
  std::optional<Placement> placement;
  if (options.uneven == UnevenCuts::kEqualOnly) {
    TreeQuestion question;
    question.rules = options.rules;
    question.profile = options.profile;
    question.mode = options.mode;
    question.strict = options.strict;
    question.mesh = options.mesh.empty() ? "default" : options.mesh;
    SHARDMESH_ASSIGN_OR_RETURN(placement, AskPlacement(client, load.layouts, std::move(question)));
    SHARDMESH_RETURN_IF_ERROR(CheckAllMatched(*placement));
    if (is_shown) PrintPlacement(*placement);
  } else if (is_shown) {
    PutOptions planned = options;
    planned.validate_only = true;
    const absl::StatusOr<PutResult> plan = client->arrays().PutTensors(load.tensors, planned, call);
    if (!plan.ok()) {
      return ExplainStrictPut(client, plan.status(), load.tensors, planned, call);
    }
    SHARDMESH_RETURN_IF_ERROR(PrintCutPlacement(load.tensors, plan->arrays));
  }
  if (is_shown) std::cout << std::endl;
  return placement;
}

absl::Status RunLoad(const Invocation& invocation, const LoadFlags& flags) {
  SHARDMESH_RETURN_IF_ERROR(CheckLoadFlags(flags));
  // Opening the checkpoint, connecting and all attempts share this time.
  const std::optional<SteadyDeadline> end = invocation.BeginDeadline();
  SHARDMESH_ASSIGN_OR_RETURN(OpenedLoad load, OpenLoad(flags, Invocation::KeepOpening(end)));
  PutOptions options;
  options.mesh = flags.mesh;
  options.strict = flags.strict;
  options.validate_only = flags.validate_only;
  options.checkpoint = load.checkpoint.source().checkpoint_path();
  options.reader = flags.reader.value_or(PutReader::kAuto);
  options.reuse = !flags.no_reuse;
  options.replicas = flags.replicas;
  options.handover = flags.handover.value_or(Handover::kAuto);
  options.uneven = flags.cuts.rule();
  options.weights = flags.cuts.weights.value_or(std::vector<int64_t>());
  SHARDMESH_ASSIGN_OR_RETURN(options.rules, SelectRules(flags.rules));
  SHARDMESH_ASSIGN_OR_RETURN(options.profile, SelectProfile(flags.profile));
  SHARDMESH_ASSIGN_OR_RETURN(options.mode, SelectMode(flags.mode, Compatibility::kDefault));
  // Declared before the interruption, whose destructor may still use the client.
  std::shared_ptr<MeshClient> client;
  std::optional<Interruption> interruption;
  interruption.emplace("nothing was loaded", invocation.output);
  SHARDMESH_ASSIGN_OR_RETURN(client, invocation.Connect(end));
  SHARDMESH_RETURN_IF_ERROR(CheckMeshName(client.get(), flags.mesh));
  if (flags.spec.has_value()) {
    SHARDMESH_RETURN_IF_ERROR(CheckAxesOfSpec(client.get(), "--spec", flags.mesh, *flags.spec));
  }
  std::optional<Placement> placement;
  std::optional<Stopwatch> stopwatch;
  absl::StatusOr<PutResult> result;
  bool is_begun = false;  // a put, in the last attempt
  const auto put = [&](const CallOptions& call) -> absl::StatusOr<PutResult> {
    options.progress = nullptr;
    options.on_begun = nullptr;
    is_begun = false;
    SHARDMESH_ASSIGN_OR_RETURN(placement, PlaceLoad(invocation, client.get(), load, options, call));
    if (!stopwatch.has_value()) stopwatch.emplace();
    ProgressBar bar("loading", invocation.quiet);
    options.progress = ShowOn(&bar);
    options.on_begun = [&](const std::string& transfer_id) {
      interruption->Begun(client.get(), transfer_id);
    };
    options.may_begin_again = [&] { return interruption->MayBeginAgain(); };
    is_begun = true;
    return client->arrays().PutTensors(load.tensors, options, call);
  };
  PutAttempts attempts = client->arrays().BeginAttempts(PutUntil(end));
  for (;;) {
    result = put(attempts.Options());
    if (!attempts.MayOpenAgain(result.status()) || !load.checkpoint.source().WasReplaced()) break;
    absl::StatusOr<OpenedLoad> again = OpenLoad(flags, attempts.KeepOpening());
    // A save that replaces the checkpoint may have yet to end.
    if (!again.ok() || !attempts.HasTime()) break;
    load = *std::move(again);
    options.checkpoint = load.checkpoint.source().checkpoint_path();
    if (!invocation.quiet) {
      std::cerr << "The checkpoint " << options.checkpoint
                << " was replaced while it was loaded: it is read again\n";
    }
  }
  if (!is_begun) SHARDMESH_RETURN_IF_ERROR(result.status());
  SHARDMESH_RETURN_IF_ERROR(interruption->Outcome(
      ExplainStrictPut(client.get(), result.status(), load.tensors, options, attempts.Options())));
  const absl::Duration time = stopwatch->time();
  interruption.reset();  // from here on, a signal ends the wait, and the coordinator goes on
  const MappedCheckpoint& checkpoint = load.checkpoint;
  const std::vector<PutTensor>& tensors = load.tensors;
  std::vector<Array> replicated;
  if (!flags.validate_only) {
    std::vector<std::string> names;
    for (const PutTensor& tensor : tensors) names.push_back(tensor.name);
    SHARDMESH_ASSIGN_OR_RETURN(
        replicated, AwaitSecondReplicas(client.get(), flags.replicas, names, invocation.quiet,
                                        invocation.output));
  }
  if (options.reader == PutReader::kAuto) NoteWhyClientRead(load.why_client, &*result);

  if (invocation.json) {
    Json json = placement.has_value() ? PlacementJson(*placement) : Json::object();
    for (size_t i = 0; !placement.has_value() && i < tensors.size(); ++i) {
      json["tensors"].push_back(LoadedJson(result->arrays[i], tensors[i].name));
    }
    const std::optional<int64_t> step = StepOf(checkpoint);
    json["checkpoint"] = checkpoint.source().checkpoint_path();
    json["step"] = step.has_value() ? Json(*step) : Json(nullptr);
    if (!flags.validate_only) {
      json["revision"] = result->revision;
      json["tile_bytes"] = result->tile_bytes;
      json["sent_bytes"] = result->sent_bytes;
      AddReader(*result, &json);
      json["time_s"] = Seconds(time);
      json["transfer_time_s"] = Seconds(result->transfer_time);
      json["durability"] = std::string(DurabilityName(result->durability));
      if (flags.replicas > 0) json["replicas"] = flags.replicas;
    }
    if (flags.map.is_given()) json["mapping"] = MappingJson(checkpoint);
    invocation.Print(MarkIfValidated(std::move(json), flags.validate_only));
    return absl::OkStatus();
  }
  if (const std::string choice = ChoiceInFolder(checkpoint); !choice.empty()) {
    std::cout << choice << "\n";
  }
  if (flags.validate_only) {
    std::cout << "Would load " << FormatCount(result->arrays.size(), "tensor") << ", "
              << FormatBytes(checkpoint.size_bytes()) << ", of "
              << checkpoint.source().checkpoint_path() << "\n";
    if (flags.map.is_given()) PrintMapping(checkpoint);
    PrintEmptyRanksOfLoad(result->arrays);
    PrintCorrected(result->arrays);
    PrintAbsentAxes(tensors, result->arrays, flags.rules);
    return absl::OkStatus();
  }
  std::cout << "Loaded " << FormatCount(result->arrays.size(), "tensor") << ", "
            << FormatBytes(checkpoint.size_bytes()) << " as " << FormatBytes(result->tile_bytes)
            << " of tiles, in " << FormatTime(time) << ", " << FormatReader(*result) << "; "
            << FormatDurability(result->durability) << ", revision " << result->revision << "\n";
  PrintSecondReplicas(replicated);
  PrintReuse(*result);
  PrintRefusal(*result, flags.reader);
  PrintStreamed(*result, flags.handover);
  const auto uneven =
      std::count_if(result->arrays.begin(), result->arrays.end(),
                    [](const PutArray& array) { return !array.descriptor.cut_points.empty(); });
  if (uneven > 0) {
    std::cout
        << uneven << " of " << FormatCount(result->arrays.size(), "tensor")
        << " lie in parts of unequal sizes; `shardmesh ls -o wide` shows where they are cut\n";
  }
  PrintEmptyRanksOfLoad(result->arrays);
  if (flags.map.is_given()) PrintMapping(checkpoint);
  PrintCorrected(result->arrays);
  PrintAbsentAxes(tensors, result->arrays, flags.rules);
  return absl::OkStatus();
}

struct PutFlags {
  std::vector<std::string> sources;
  std::optional<Shape> zeros;  // in place of sources
  std::optional<Dtype> dtype;  // of zeros
  std::optional<PutReader> reader;
  std::optional<Handover> handover;
  std::string tensor;
  std::vector<std::string> names;
  std::optional<PartitionSpec> spec;
  std::optional<std::vector<AxisValue>> axes;
  std::string preset;
  std::string rules;
  ModeOption mode;
  std::string profile;
  std::string mesh;
  int64_t replicas = 0;  // 0: as the names had it
  CutOptions cuts;
  bool strict = false;
  bool validate_only = false;
  bool no_reuse = false;
  ExactOption exact;
};

// Returns a wrong-use error if the flags contradict one another.
absl::Status CheckPutFlags(const PutFlags& flags) {
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
  if (flags.zeros.has_value() != flags.sources.empty()) {
    return WrongUse(flags.sources.empty() ? "give a file, or --zeros and a shape"
                                          : "--zeros takes no file; leave one of them out");
  }
  if (flags.dtype.has_value() && !flags.zeros.has_value()) {
    return WrongUse("--dtype is about --zeros; the tensor of a file has a type");
  }
  if (!flags.zeros.has_value() && flags.names.size() != flags.sources.size()) {
    return WrongUse(StrCat("there are ", FormatCount(flags.sources.size(), "tensor"), " and ",
                           FormatCount(flags.names.size(), "name"),
                           "; give --as once for each tensor, in the same order"));
  }
  if (!flags.tensor.empty() && flags.sources.size() > 1) {
    return WrongUse("--tensor is about one checkpoint; of several, write CHECKPOINT:TENSOR");
  }
  if (std::count(flags.sources.begin(), flags.sources.end(), "-") > 1) {
    return WrongUse("standard input holds one tensor; give - once");
  }
  return CheckCutOptions(flags.cuts);
}

Json PutJson(const std::string& name, const PutArray& put, const PutResult& result,
             bool validate_only) {
  const ArrayDescriptor& array = put.descriptor;
  Json json = {{"name", name},
               {"dtype", std::string(DtypeName(array.dtype))},
               {"shape", ShapeJson(array.shape)},
               {"spec", SpecJson(array.spec)},
               {"cut_points", CutPointsJson(array.cut_points)},
               {"empty_ranks", EmptyRanks(array)},
               {"corrections", CorrectionsJson(put.corrections, array.mesh)},
               {"mesh", array.mesh_id}};
  if (!validate_only) {
    json["array_id"] = array.array_id;
    json["revision"] = result.revision;
    json["sent_bytes"] = result.sent_bytes;
    AddReader(result, &json);
    json["durability"] = std::string(DurabilityName(result.durability));
  }
  return json;
}

// `reader` says who read or made the elements.
void PrintPut(const std::string& name, const PutArray& put, const PutResult& result,
              std::string_view reader, bool validate_only) {
  const ArrayDescriptor& array = put.descriptor;
  std::cout << (validate_only ? "Would put " : "Put ") << name << ": " << DtypeName(array.dtype)
            << " " << FormatShape(array.shape) << ", spec " << FormatSpec(array.spec);
  if (!array.cut_points.empty()) {
    std::cout << ", cut at " << FormatCutPoints(array.cut_points);
  }
  if (!validate_only) {
    std::cout << ", " << reader << "; " << FormatDurability(result.durability) << ", revision "
              << result.revision;
  }
  std::cout << "\n";
  for (const Correction& correction : put.corrections) {
    std::cout << "corrected: " << correction.ToString(array.mesh) << "\n";
  }
  if (const std::vector<int64_t> ranks = EmptyRanks(array); !ranks.empty()) {
    std::cout << NoteOnEmptyRanks(ranks, EscapeForTerminal(name)) << "\n";
  }
}

// Says that `spec` has entries for more dimensions than the array has, if all of these entries are
// empty. The coordinator corrects such a spec only if one of them names an axis.
void PrintSurplusEntries(const PartitionSpec& spec, const ArrayDescriptor& array) {
  const int64_t rank = std::ssize(array.shape);
  if (spec.size() <= rank) return;
  for (int64_t dim = rank; dim < spec.size(); ++dim) {
    if (!spec.entry(dim).is_none()) return;
  }
  std::cout << "The spec has " << spec.size() << " entries and the tensor "
            << FormatCount(rank, "dimension") << ": the entries at the end, which are empty, have "
            << "no effect\n";
}

// Returns why only the client can read `source`, which has no place that workers can read.
std::string OnlyTheClientReads(const std::string& source) {
  return StrCat("only the client reads ",
                source == "-" ? std::string("standard input")
                              : StrCat(source, ", which has no path on this host any more"));
}

bool IsOneReplaced(const std::vector<SingleTensor>& sources) {
  return std::any_of(sources.begin(), sources.end(),
                     [](const SingleTensor& source) { return source.WasReplaced(); });
}

// Between two attempts to open all sources of a put.
constexpr absl::Duration kReopenPause = absl::Milliseconds(5);

// Opens the sources of a put, and those again that were replaced since they were opened. Several
// sources are all in place at one moment at the end: tensors of one checkpoint are opened one by
// one, and must not come from two.
absl::Status OpenSources(const PutFlags& flags, const std::function<absl::Status()>& keep_going,
                         std::vector<SingleTensor>* sources) {
  const SteadyDeadline deadline = ReplaceDeadline();
  OpenCheckpoints opened;
  for (int attempt = 1;; ++attempt) {
    for (size_t i = 0; i < flags.sources.size(); ++i) {
      const bool is_opened = i < sources->size();
      if (is_opened && !(*sources)[i].WasReplaced()) continue;
      SHARDMESH_ASSIGN_OR_RETURN(
          SingleTensor source,
          SingleTensor::Open(flags.sources[i], flags.tensor, &opened, keep_going));
      if (is_opened) {
        (*sources)[i] = std::move(source);
      } else {
        sources->push_back(std::move(source));
      }
    }
    if (sources->size() == 1 || !IsOneReplaced(*sources)) return absl::OkStatus();
    if (deadline.is_over() && attempt >= kMaxFolderAttempts) break;
    if (keep_going) SHARDMESH_RETURN_IF_ERROR(keep_going());
    absl::SleepFor(kReopenPause);
  }
  return WithReason(
      absl::FailedPreconditionError("files of the tensors were replaced each time before all of "
                                    "them were open; put the tensors when nobody writes the files"),
      Reason::kFileChanged, {{fact::kFile, StrJoin(flags.sources, ", ")}});
}

// Returns the tensors of a put, with views of the sources. Wrong use: the workers are to read a
// source that only the client reads.
// Returns tensors of zeros, one for each name.
absl::StatusOr<std::vector<PutTensor>> ZerosToPut(const PutFlags& flags) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<CutPoints> cut_points,
                             CutPointsFor(flags.cuts, *flags.zeros));
  const std::shared_ptr<const TileProducer> zeros =
      std::make_shared<ZeroTensor>(flags.dtype.value_or(Dtype::kF32), *flags.zeros);
  std::vector<PutTensor> tensors;
  for (const std::string& name : flags.names) {
    tensors.push_back({.name = name,
                       .view = zeros,
                       .spec = flags.spec,
                       .axes = flags.axes,
                       .preset = flags.preset,
                       .cut_points = cut_points,
                       .is_zeros = true});
  }
  return tensors;
}

absl::StatusOr<std::vector<PutTensor>> TensorsToPut(const PutFlags& flags,
                                                    const std::vector<SingleTensor>& sources) {
  if (flags.zeros.has_value()) return ZerosToPut(flags);
  std::vector<PutTensor> tensors;
  for (size_t i = 0; i < sources.size(); ++i) {
    const TensorView view = sources[i].view();
    SHARDMESH_ASSIGN_OR_RETURN(
        std::vector<CutPoints> cut_points,
        CutPointsFor(flags.cuts, Shape(view.shape().begin(), view.shape().end())));
    tensors.push_back({.name = flags.names[i],
                       .view = view,
                       .spec = flags.spec,
                       .axes = flags.axes,
                       .preset = flags.preset,
                       .cut_points = std::move(cut_points),
                       .source = sources[i].source(),
                       .saved = sources[i].saved()});
    // A file that was replaced has no place either: the put says so, and is tried again.
    if (flags.reader == PutReader::kWorkers && !tensors.back().source.has_value() &&
        !sources[i].WasReplaced()) {
      return WrongUse(StrCat("--source workers: ", OnlyTheClientReads(flags.sources[i])));
    }
  }
  return tensors;
}

absl::Status RunPut(const Invocation& invocation, const PutFlags& flags) {
  SHARDMESH_RETURN_IF_ERROR(CheckPutFlags(flags));
  std::vector<SingleTensor> sources;
  // Opening the files, connecting and all attempts share this time.
  const std::optional<SteadyDeadline> end = invocation.BeginDeadline();
  SHARDMESH_RETURN_IF_ERROR(OpenSources(flags, Invocation::KeepOpening(end), &sources));
  const Compatibility compatibility = flags.exact.compatibility();
  PutOptions options;
  options.mesh = flags.mesh;
  options.strict = flags.strict;
  options.validate_only = flags.validate_only;
  options.compatibility = compatibility;
  options.uneven = flags.cuts.rule();
  options.weights = flags.cuts.weights.value_or(std::vector<int64_t>());
  SHARDMESH_ASSIGN_OR_RETURN(options.rules, SelectRules(flags.rules, compatibility));
  SHARDMESH_ASSIGN_OR_RETURN(options.profile, SelectProfile(flags.profile));
  SHARDMESH_ASSIGN_OR_RETURN(options.mode, SelectMode(flags.mode, compatibility));
  options.reader = flags.reader.value_or(PutReader::kAuto);
  options.reuse = !flags.no_reuse;
  options.replicas = flags.replicas;
  options.handover = flags.handover.value_or(Handover::kAuto);
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<PutTensor> tensors, TensorsToPut(flags, sources));
  // Declared before the interruption, whose destructor may still use the client.
  std::shared_ptr<MeshClient> client;
  std::optional<Interruption> interruption;
  interruption.emplace("nothing was put", invocation.output);
  SHARDMESH_ASSIGN_OR_RETURN(client, invocation.Connect(end));
  SHARDMESH_RETURN_IF_ERROR(CheckMeshName(client.get(), flags.mesh));
  // With --strict the coordinator refuses the spec, and its error has the fixes.
  if (flags.spec.has_value() && !flags.strict && !flags.exact.exact) {
    SHARDMESH_RETURN_IF_ERROR(
        CheckAxesOfSpec(client.get(), "--spec", flags.mesh, *flags.spec, "--exact"));
  }
  options.on_begun = [&](const std::string& transfer_id) {
    interruption->Begun(client.get(), transfer_id);
  };
  options.may_begin_again = [&] { return interruption->MayBeginAgain(); };
  absl::StatusOr<PutResult> result;
  PutAttempts attempts = client->arrays().BeginAttempts(PutUntil(end));
  for (;;) {
    {
      ProgressBar bar("putting", invocation.quiet);
      options.progress = ShowOn(&bar);
      result = client->arrays().PutTensors(tensors, options, attempts.Options());
    }
    if (!attempts.MayOpenAgain(result.status()) || !IsOneReplaced(sources)) break;
    if (!OpenSources(flags, attempts.KeepOpening(), &sources).ok()) break;
    absl::StatusOr<std::vector<PutTensor>> again = TensorsToPut(flags, sources);
    if (!again.ok() || !attempts.HasTime()) break;
    tensors = *std::move(again);
    if (!invocation.quiet) {
      std::cerr << "A file was replaced while its tensor was put: it is read again\n";
    }
  }
  SHARDMESH_RETURN_IF_ERROR(interruption->Outcome(
      ExplainStrictPut(client.get(), result.status(), tensors, options, attempts.Options())));
  interruption.reset();  // from here on, a signal ends the wait, and the coordinator goes on
  std::vector<Array> replicated;
  if (!flags.validate_only) {
    SHARDMESH_ASSIGN_OR_RETURN(
        replicated, AwaitSecondReplicas(client.get(), flags.replicas, flags.names, invocation.quiet,
                                        invocation.output));
  }
  for (size_t i = 0; options.reader == PutReader::kAuto && i < flags.sources.size(); ++i) {
    if (!tensors[i].source.has_value()) {
      NoteWhyClientRead(OnlyTheClientReads(flags.sources[i]), &*result);
    }
  }
  if (!invocation.json) {
    const bool are_made = flags.zeros.has_value() && result->sent_bytes == 0;
    const std::string reader = are_made ? "made by the workers" : FormatReader(*result);
    for (size_t i = 0; i < tensors.size(); ++i) {
      PrintPut(flags.names[i], result->arrays[i], *result, reader, flags.validate_only);
      if (flags.spec.has_value()) {
        PrintSurplusEntries(*flags.spec, result->arrays[i].descriptor);
      }
    }
    PrintRulesAdvice(result->arrays, flags.rules);
    if (!flags.validate_only) {
      PrintSecondReplicas(replicated);
      PrintReuse(*result);
      PrintRefusal(*result, flags.reader);
      PrintStreamed(*result, flags.handover);
    }
    return absl::OkStatus();
  }
  // One tensor is an object of its own; several are a list. `sent_bytes` is that of the whole put.
  Json list = Json::array();
  for (size_t i = 0; i < tensors.size(); ++i) {
    Json json = PutJson(flags.names[i], result->arrays[i], *result, flags.validate_only);
    if (!replicated.empty()) json["replicas"] = ReplicasJson(replicated[i].replicas);
    list.push_back(MarkIfValidated(std::move(json), flags.validate_only));
  }
  invocation.Print(list.size() == 1 ? list.front() : list);
  return absl::OkStatus();
}

// Selects an array as other commands do: by its name, or by its id if it has no name.
ArraySelector SelectorOf(const Array& array) {
  return array.name.empty() ? ArraySelector::ById(array.descriptor.array_id)
                            : ArraySelector::ByName(array.name);
}

std::string StateOf(const Array& array) {
  std::string text(StateName(array.state));
  if (!array.missing_ranks.empty()) {
    StrAppend(&text, ", rank", array.missing_ranks.size() == 1 ? " " : "s ",
              StrJoin(array.missing_ranks, ","), " missing");
  }
  if (array.replicas.has_value() && !array.replicas->by_spec &&
      array.replicas->complete < array.replicas->wanted) {
    StrAppend(&text, ", ", FormatReplicaCount(*array.replicas));
  }
  if (array.is_state) StrAppend(&text, ", steps update it");
  return text;
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
               wide("cuts"),
               wide("requested"),
               {"size", Table::Align::kRight},
               {"mesh"},
               wide("where"),
               wide("array"),
               {"state"}});
  int64_t total_bytes = 0;
  ReplicaSums replicas;
  for (const Array& array : arrays) {
    total_bytes += array.size_bytes;
    table.AddRow(
        {FormatArray(SelectorOf(array)), array.name.empty() ? "-" : StrCat(array.name_version),
         std::string(DtypeName(array.descriptor.dtype)), FormatShape(array.descriptor.shape),
         FormatSpec(array.descriptor.spec), FormatCutPoints(array.descriptor.cut_points),
         FormatSpec(array.requested_spec.value_or(array.descriptor.spec)),
         FormatBytes(array.size_bytes), array.descriptor.mesh_id,
         std::string(DurabilityName(array.durability)), array.descriptor.array_id, StateOf(array)});
    if (array.replicas.has_value()) replicas.Add(array);
  }
  if (!arrays.empty()) {
    table.Print();
  }
  if (!invocation.headers) return absl::OkStatus();
  std::cout << (arrays.empty() ? "" : "\n") << FormatCount(arrays.size(), "array") << ", "
            << FormatBytes(total_bytes) << replicas.Clause(total_bytes) << "\n";
  constexpr int kMostRepairs = 8;
  int repairs = 0;
  for (const Array& array : arrays) {
    if (!array.repair.has_value() || repairs++ >= kMostRepairs) continue;
    std::cout << FormatArray(SelectorOf(array)) << ": " << FormatRepair(*array.repair) << "\n";
  }
  if (repairs > kMostRepairs) {
    std::cout << "... and repairs of " << FormatCount(repairs - kMostRepairs, "array") << " more\n";
  }
  std::cout << replicas.Advice();
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

// The form in which `get` writes.
enum class FileForm { kNpy, kSafetensors, kFolder, kStandardOutput };

struct GetFlags {
  std::vector<std::string> arrays;
  std::optional<std::string> tree;  // the prefix
  std::string path;
  std::optional<ArraySlice> slice;
  std::optional<int64_t> max_file_bytes;
};

// Maximum size of a file of a folder if --max-shard-size is not given, as in the transformers
// package.
constexpr int64_t kMaxFileBytes = int64_t{5} << 30;

absl::StatusOr<FileForm> FormOf(const Invocation& invocation, const GetFlags& flags) {
  if (flags.arrays.empty() == !flags.tree.has_value()) {
    return WrongUse("give the names of arrays, or --tree PREFIX for all names with a prefix");
  }
  FileForm form = FileForm::kFolder;
  if (flags.path.ends_with(".safetensors")) {
    form = FileForm::kSafetensors;
  } else if (flags.path == "-") {
    form = FileForm::kStandardOutput;
  } else if (flags.tree.has_value() &&
             (flags.path.ends_with(".npy") || flags.path.ends_with(".npz"))) {
    return WrongUse(StrCat(flags.path, ": --tree writes a .safetensors file or a folder; name it ",
                           flags.path.substr(0, flags.path.size() - 4), ".safetensors or ",
                           flags.path.substr(0, flags.path.size() - 4)));
  } else if (!flags.tree.has_value()) {
    SHARDMESH_RETURN_IF_ERROR(ParseNpyPath(flags.path, "get", /*or_output=*/true).status());
    form = FileForm::kNpy;
  }
  const bool has_one_tensor = form == FileForm::kNpy || form == FileForm::kStandardOutput;
  if (has_one_tensor && (flags.arrays.size() != 1 || flags.tree.has_value())) {
    return WrongUse(
        "a .npy file and standard output hold one tensor; name a .safetensors file for several, or "
        "a folder with --tree");
  }
  if (flags.tree.has_value() && flags.slice.has_value()) {
    return WrongUse("--slice is about the arrays that are named; --tree takes whole arrays");
  }
  if (flags.max_file_bytes.has_value() && form != FileForm::kFolder) {
    return WrongUse("--max-shard-size is about a folder, such as --tree PREFIX --out DIR");
  }
  if (form == FileForm::kStandardOutput && invocation.json) {
    return WrongUse(
        "--out - and --output json or yaml both write to standard output; give one of them");
  }
  return form;
}

// The name of a tensor in a file: that of the array, or the id of an array without a name.
std::string FileName(const ArraySelector& array) {
  return array.name.empty() ? array.array_id : array.name;
}

// Returns the arrays of all names that begin with `prefix`. NOT_FOUND: there is none.
absl::StatusOr<std::vector<Array>> ListTree(MeshClient* client, const std::string& prefix) {
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<Array> arrays, client->arrays().ListArrays(prefix));
  if (!arrays.empty()) return arrays;
  return WithReason(absl::NotFoundError(StrCat("no array has a name that begins with \"", prefix,
                                               "\"; `shardmesh ls` lists the names")),
                    Reason::kNotFound, {{fact::kKind, "name"}, {fact::kName, prefix}});
}

absl::StatusOr<std::vector<FileTensor>> FileTensorsOf(MeshClient* client, const GetFlags& flags) {
  std::vector<FileTensor> tensors;
  if (!flags.tree.has_value()) {
    for (const std::string& text : flags.arrays) {
      SHARDMESH_ASSIGN_OR_RETURN(ArraySelector array, ParseArrayName(text));
      tensors.push_back({.name = FileName(array), .array = std::move(array), .slice = flags.slice});
    }
    return tensors;
  }
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<Array> arrays, ListTree(client, *flags.tree));
  // With the version: a name that is moved from now on stays at this array.
  for (const Array& array : arrays) {
    tensors.push_back(
        {.name = array.name, .array = ArraySelector::ByName(array.name, array.name_version)});
  }
  return tensors;
}

// Writes one array to standard output, as a .npy file.
absl::Status GetToOutput(MeshClient* client, const FileTensor& tensor, absl::Duration timeout,
                         const ProgressCallback& progress) {
  // Bytes that the reader has not taken keep the get from its end, so that others can cancel it.
  std::cout.flush();
  PipedOutput output(STDOUT_FILENO, SteadyDeadline::After(timeout));
  const TensorSink sink{.begin = [&](const Array& array, const Tile& part) -> absl::Status {
                          SHARDMESH_ASSIGN_OR_RETURN(
                              const std::string header,
                              EncodeNpyHeader(array.descriptor.dtype, part.shape()));
                          return output.Write(header);
                        },
                        .append = [&](absl::Span<const char> bytes) { return output.Write(bytes); },
                        .cancelled = [&] { output.Stop(); }};
  return client->arrays()
      .GatherTo(tensor.array, sink, {.slice = tensor.slice, .progress = progress})
      .status();
}

absl::StatusOr<std::vector<Array>> GetToFile(MeshClient* client, FileForm form,
                                             const GetFlags& flags,
                                             const std::vector<FileTensor>& tensors,
                                             const ProgressCallback& progress) {
  switch (form) {
    case FileForm::kSafetensors:
      return client->arrays().GatherToSafetensors(tensors, flags.path, progress);
    case FileForm::kFolder:
      return client->arrays().GatherToFolder(
          tensors, flags.path,
          flags.max_file_bytes.value_or(0) == 0 ? kMaxFileBytes : *flags.max_file_bytes, progress);
    case FileForm::kNpy:
    case FileForm::kStandardOutput:
      break;
  }
  absl::StatusOr<Array> array = client->arrays().GatherToNpy(
      tensors.front().array, flags.path, {.slice = tensors.front().slice, .progress = progress});
  if (ReasonOf(array.status()) == Reason::kUnsupportedDtype) {
    const std::filesystem::path other =
        std::filesystem::path(flags.path).replace_extension(".safetensors");
    return WithMessage(array.status(),
                       StrCat(ToStd(array.status().message()), ": --out ", other.string()));
  }
  SHARDMESH_RETURN_IF_ERROR(array.status());
  return std::vector<Array>{*std::move(array)};
}

absl::Status RunGet(const Invocation& invocation, const GetFlags& flags) {
  const std::string& path = flags.path;
  SHARDMESH_ASSIGN_OR_RETURN(const FileForm form, FormOf(invocation, flags));
  const auto interruption = GuardOutputFile(path, invocation.output);
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  const Stopwatch stopwatch;
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<FileTensor> tensors,
                             FileTensorsOf(client.get(), flags));
  if (form == FileForm::kStandardOutput) {
    ProgressBar bar("gathering", invocation.quiet);
    const absl::Duration timeout = invocation.DeadlineOr(MeshClientOptions().transfer_timeout);
    return AdviseTree(client.get(),
                      GetToOutput(client.get(), tensors.front(), timeout, ShowOn(&bar)),
                      tensors.front().array.name);
  }
  if (form != FileForm::kFolder) {
    // Before the gather, which may take long, check that the file can be written.
    SHARDMESH_RETURN_IF_ERROR(AtomicFileWriter::Create(path).status());
  }
  absl::StatusOr<std::vector<Array>> gathered;
  {
    ProgressBar bar("gathering", invocation.quiet);
    gathered = GetToFile(client.get(), form, flags, tensors, ShowOn(&bar));
  }
  if (!gathered.ok()) {
    return flags.arrays.size() == 1 && tensors.front().array.version == 0
               ? AdviseTree(client.get(), gathered.status(), tensors.front().array.name)
               : gathered.status();
  }
  const absl::Duration time = stopwatch.time();
  int64_t size_bytes = 0;
  std::vector<Tile> parts;
  for (size_t i = 0; i < gathered->size(); ++i) {
    const ArrayDescriptor& array = (*gathered)[i].descriptor;
    Tile part = Tile::Whole(array.shape);
    if (flags.slice.has_value()) {
      SHARDMESH_ASSIGN_OR_RETURN(part, TileOf(*flags.slice, array));
    }
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t bytes, array.TileSizeBytes(part));
    size_bytes += bytes;
    parts.push_back(std::move(part));
  }
  const bool is_one = flags.arrays.size() == 1;
  if (invocation.json) {
    Json json = is_one ? ArrayJson(gathered->front()) : Json::object();
    json["path"] = path;
    if (is_one && flags.slice.has_value()) json["slice"] = parts.front().ToString();
    if (!is_one) {
      json["size_bytes"] = size_bytes;
      json["arrays"] = Json::array();
      for (size_t i = 0; i < gathered->size(); ++i) {
        Json array = ArrayJson((*gathered)[i]);
        if (flags.slice.has_value()) array["slice"] = parts[i].ToString();
        json["arrays"].push_back(std::move(array));
      }
    }
    json["time_s"] = Seconds(time);
    invocation.Print(json);
    return absl::OkStatus();
  }
  std::cout << "Wrote " << path << ": ";
  if (is_one) {
    std::cout << FormatArray(tensors.front().array)
              << (flags.slice.has_value() ? StrCat(" ", parts.front().ToString()) : "") << ", "
              << DtypeName(gathered->front().descriptor.dtype) << " "
              << FormatShape(parts.front().shape());
  } else {
    std::cout << FormatCount(std::ssize(*gathered), "tensor");
  }
  std::cout << ", " << FormatBytes(size_bytes) << " in " << FormatTime(time) << "\n";
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

Json SourceJson(const std::optional<FileSource>& source) {
  if (!source.has_value()) return nullptr;
  const SourceFile& file = *source->file;
  Json json = {
      {"path", file.path},
      {"offset_bytes", source->offset_bytes},
      {"size_bytes", file.size_bytes},
      {"modify_time", absl::FormatTime(absl::RFC3339_full, file.modify_time, absl::UTCTimeZone())},
      {"head_bytes", file.head_bytes},
      {"head_sha256", absl::BytesToHexString(file.head_sha256)}};
  if (const auto& conversion = source->conversion; conversion.has_value()) {
    json["dtype_in_file"] = DtypeName(conversion->dtype);
    json["permutation"] = conversion->permutation;
  }
  return json;
}

// How the workers made the elements from those in the file, for people; empty if they are the same.
std::string ConversionNote(const std::optional<SourceConversion>& conversion) {
  if (!conversion.has_value()) return "";
  return StrCat(", ", DtypeName(conversion->dtype), " there",
                conversion->permutation.empty()
                    ? std::string()
                    : StrCat(", dimensions ", StrJoin(conversion->permutation, ",")));
}

// Returns the holder of the rank; null if it is not known.
const TileHolder* FindHolder(const std::vector<TileHolder>& holders, int64_t rank) {
  const auto found = std::find_if(holders.begin(), holders.end(),
                                  [rank](const TileHolder& each) { return each.rank == rank; });
  return found == holders.end() ? nullptr : &*found;
}

// Returns the worker as tables show it.
std::string WorkerOf(const TileHolder* holder) {
  return holder == nullptr || holder->identity.empty() ? "-" : holder->identity;
}

Json HolderJson(const std::vector<TileHolder>& holders, int64_t rank) {
  const TileHolder* const holder = FindHolder(holders, rank);
  if (holder == nullptr) return nullptr;
  return {{"worker", holder->identity}, {"present", holder->present}};
}

absl::Status RunDescribe(const Invocation& invocation, const ArraySelector& selector) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  ArrayHolders holders;
  SHARDMESH_ASSIGN_OR_RETURN(const Array array,
                             client->arrays().DescribeWithHolders(selector, &holders));
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
    json["source"] = SourceJson(array.source);
    Json tiles = Json::array();
    for (DeviceId device = 0; device < devices; ++device) {
      tiles.push_back({{"rank", device},
                       {"tile", tiling.TileOf(device).ToString()},
                       {"replica", tiling.ReplicaIdOf(device)},
                       {"worker", HolderJson(holders.first, device)["worker"]},
                       {"present", !is_missing(device)},
                       {"second_replica", HolderJson(holders.second, device)}});
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
  if (!array.descriptor.cut_points.empty()) {
    std::cout << "cuts        " << FormatCutPoints(array.descriptor.cut_points) << "\n";
  }
  for (const Correction& correction : array.corrections) {
    std::cout << "corrected   " << correction.ToString(array.descriptor.mesh) << "\n";
  }
  std::cout << "state       " << StateName(array.state) << ", "
            << FormatDurability(array.durability)
            << (array.is_state ? "; steps update it, and save, reshard and repair leave it out"
                               : "")
            << "\n";
  if (array.replicas.has_value()) {
    std::cout << "replicas    " << FormatReplicas(*array.replicas) << "\n";
  }
  if (array.repair.has_value()) {
    std::cout << "repair      " << FormatRepair(*array.repair) << "\n";
  }
  if (array.source.has_value()) {
    std::cout << "source      " << array.source->file->path << ", offset "
              << array.source->offset_bytes << ConversionNote(array.source->conversion)
              << "; the file had " << FormatBytes(array.source->file->size_bytes) << ", changed "
              << absl::FormatTime(absl::RFC3339_sec, array.source->file->modify_time,
                                  absl::UTCTimeZone())
              << "\n";
  }
  std::cout << "\n";
  std::vector<Table::Column> columns = {{"rank", Table::Align::kRight},    {"tile"},
                                        {"replica", Table::Align::kRight}, {"worker"},
                                        {"size", Table::Align::kRight},    {"state"}};
  if (!holders.second.empty()) columns.push_back({"second replica"});
  Table table(std::move(columns));
  for (DeviceId device = 0; device < devices; ++device) {
    const Tile tile = tiling.TileOf(device);
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t size, array.descriptor.TileSizeBytes(tile));
    std::vector<std::string> row = {StrCat(device),
                                    tile.ToString(),
                                    StrCat(tiling.ReplicaIdOf(device)),
                                    WorkerOf(FindHolder(holders.first, device)),
                                    FormatBytes(size),
                                    is_missing(device) ? "missing" : "present"};
    if (!holders.second.empty()) {
      const TileHolder* const second = FindHolder(holders.second, device);
      row.push_back(
          StrCat(WorkerOf(second), second != nullptr && !second->present ? ", missing" : ""));
    }
    table.AddRow(std::move(row));
  }
  table.Print();
  if (devices < tiling.mesh().size()) {
    std::cout << "and " << FormatCount(tiling.mesh().size() - devices, "more device") << "\n";
  }
  return absl::OkStatus();
}

struct RmFlags {
  std::vector<std::string> names;
  std::optional<std::string> tree;  // the prefix
  bool validate_only = false;
};

// Returns `not_found`, the error of a name that does not exist, with a hint if it is the prefix of
// names.
absl::Status NoNameToRemove(MeshClient* client, const std::string& name,
                            const absl::Status& not_found) {
  const auto arrays = client->arrays().ListArrays(name);
  if (!arrays.ok() || arrays->empty()) return not_found;
  return WithContext(
      not_found, StrCat("`shardmesh rm --tree ", name, "` removes all names that begin with this (",
                        FormatCount(std::ssize(*arrays), "name"), ")"));
}

absl::Status RunRm(const Invocation& invocation, const RmFlags& flags) {
  if (flags.names.empty() == !flags.tree.has_value()) {
    return WrongUse("give the names of arrays, or --tree PREFIX for all names with a prefix");
  }
  const bool validate_only = flags.validate_only;
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  // A name that is given several times is removed once.
  std::vector<std::string> names;
  std::set<std::string_view> seen;
  for (const std::string& name : flags.names) {
    if (seen.insert(name).second) names.push_back(name);
  }
  if (flags.tree.has_value()) {
    SHARDMESH_ASSIGN_OR_RETURN(const std::vector<Array> arrays,
                               ListTree(client.get(), *flags.tree));
    for (const Array& array : arrays) names.push_back(array.name);
  }
  // Check first that all names exist, so that the command removes either all names or none. Between
  // the check and the removal, another client may still remove a name.
  for (const std::string& name : flags.names) {
    const absl::Status there = client->arrays().DescribeArray(ArraySelector::ByName(name)).status();
    if (absl::IsNotFound(there) && IsArrayId(name)) {
      return WithContext(there,
                         "rm takes names; an array without a name goes when the session that "
                         "holds it ends (`shardmesh admin sessions`)");
    }
    if (absl::IsNotFound(there)) return NoNameToRemove(client.get(), name, there);
    SHARDMESH_RETURN_IF_ERROR(there);
  }
  for (const std::string& name : names) {
    SHARDMESH_RETURN_IF_ERROR(client->arrays().DeleteName(name, std::nullopt, validate_only));
    if (!invocation.json && !flags.tree.has_value()) {
      std::cout << (validate_only ? "Would remove " : "Removed ") << name << "\n";
    }
  }
  if (!invocation.json && flags.tree.has_value()) {
    std::cout << (validate_only ? "Would remove " : "Removed ") << FormatCount(names.size(), "name")
              << ", " << names.front()
              << (names.size() > 1 ? StrCat(" to ", names.back()) : std::string()) << "\n";
  }
  if (invocation.json) {
    invocation.Print(MarkIfValidated({{"removed", names}}, validate_only));
  }
  return absl::OkStatus();
}

void AddLoad(CommandLine* line, CLI::App* parent) {
  auto flags = std::make_shared<LoadFlags>();
  CLI::App* const load = line->AddCommand(
      "load", "Load a checkpoint onto the workers, each tensor under its name",
      [flags](const Invocation& i) { return RunLoad(i, *flags); }, parent);
  load->add_option("checkpoint", flags->checkpoint, kCheckpointHelp)->required();
  load->add_option("--rules", flags->rules, "rules: YAML file, or name in the catalog");
  AddParsedOption(load, "--spec", &flags->spec, ParseSpec,
                  "one spec for all tensors: fsdp,tp; - for none; (fsdp,tp) cuts one dimension by "
                  "both");
  load->add_option("--tree", flags->tree,
                   "axes or specs of the tensors, by name: .json or .jsonl file; --rules may serve "
                   "the others");
  AddModeOption(load, &flags->mode, "with --tree: ");
  load->add_option("--profile", flags->profile,
                   "with --tree: a profile: YAML file, or name in the catalog");
  load->add_option("--mesh", flags->mesh, "name of the mesh (default: default)");
  AddUnevenOptions(load, &flags->cuts, kUnevenRules);
  load->add_option("--step", flags->step,
                   "of a folder of saved steps: load this one (default: the latest complete one)")
      ->check(CLI::Range(int64_t{0}, kMaxCheckpointStep));
  AddSourceOption(load, &flags->reader);
  AddHandoverOption(load, &flags->handover);
  AddReuseOption(load, &flags->no_reuse);
  AddReplicasOption(load, &flags->replicas);
  load->add_flag("--strict", flags->strict,
                 "fail if anything is corrected, and show all corrections");
  load->add_flag("--validate-only", flags->validate_only, "check everything, and load nothing");
  AddMapOptions(load, &flags->map);
  load->footer("With --quiet the placement is not shown either.");
}

void AddPut(CommandLine* line, CLI::App* parent) {
  auto flags = std::make_shared<PutFlags>();
  CLI::App* const put = line->AddCommand(
      "put", "Put tensors of files or of standard input onto the workers, under names",
      [flags](const Invocation& i) { return RunPut(i, *flags); }, parent);
  put->add_option("file", flags->sources,
                  "a .npy file; CHECKPOINT:TENSOR of a safetensors file, index or model folder; or "
                  "- for .npy on standard input; several may be put at once");
  CLI::Option* const tensor =
      put->add_option("--tensor", flags->tensor, "name of the tensor, if the file is a checkpoint");
  AddParsedOption(put, "--zeros", &flags->zeros, ParseShape,
                  "in place of a file: zeros of this shape, such as 4,128, for each name")
      ->excludes(tensor);
  AddParsedOption(put, "--dtype", &flags->dtype, ParseElementType,
                  "of zeros: their element type (default: F32)");
  put->add_option("--as", flags->names, "name of the array; once for each tensor")
      ->required()
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false)  // else it would take a file that follows for a second name
      ->check([](const std::string& name) {
        if (name.empty()) return std::string("the name is empty, and nothing would hold the array");
        if (name.ends_with(".npy")) {
          return StrCat("\"", name,
                        "\" ends in .npy: `linear`, `matmul` and `collective` would take "
                        "it for a file; name the array ",
                        name.substr(0, name.size() - 4));
        }
        return RefuseNameWithAt(name);
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
  AddSourceOption(put, &flags->reader);
  AddHandoverOption(put, &flags->handover);
  AddReuseOption(put, &flags->no_reuse);
  AddReplicasOption(put, &flags->replicas);
  AddCutsOption(put, &flags->cuts);
  AddUnevenOptions(put, &flags->cuts, kUnevenRules);
  put->add_flag("--strict", flags->strict,
                "fail if anything is corrected, and show all corrections");
  put->add_flag("--validate-only", flags->validate_only, "check everything, and put nothing");
  AddExactOption(put, &flags->exact);
}

void AddGet(CommandLine* line, CLI::App* parent) {
  auto flags = std::make_shared<GetFlags>();
  CLI::App* const get = line->AddCommand(
      "get", "Gather tensors from the workers into a file or a folder",
      [flags](const Invocation& i) { return RunGet(i, *flags); }, parent);
  CLI::Option* const arrays =
      get->add_option("tensor", flags->arrays, StrCat(kArrayNameHelp, "; several for safetensors"))
          ->check([](const std::string& text) {
            const absl::Status parsed = ParseArrayName(text).status();
            return parsed.ok() ? std::string() : std::string(parsed.message());
          });
  get->add_option_function<std::string>(
         "--tree", [flags](const std::string& prefix) { flags->tree = prefix; },
         "all arrays whose names begin so; '' for all")
      ->excludes(arrays);
  get->add_option("--out", flags->path,
                  "a .npy or .safetensors file, with --tree also a folder; complete or not at all; "
                  "- for .npy on standard output")
      ->required()
      ->check([](const std::string& path) {
        return path.empty() ? "the path is empty; name a file or a folder" : std::string();
      });
  AddParsedOption(get, "--slice", &flags->slice, ParseSlice,
                  "a range of indexes for each dimension, from 0: START:STOP, START:, :STOP, or : "
                  "for all, as in 0:16,: (default: all)");
  AddParsedOption(get, "--max-shard-size", &flags->max_file_bytes, ParseSize,
                  "of a folder: largest size of a file, such as 2GiB (default, and 0: 5GiB)");
  get->footer(
      "Elements leave as they are. NumPy has no bfloat16: a .npy file holds BF16 as raw <V2, "
      "which\n"
      "numpy.load(f).view(ml_dtypes.bfloat16) reads; types of 8 bits and fewer, such as F8_E4M3,\n"
      "go to .safetensors only. Files are written in bounded memory, whatever their size.");
}

void AddLs(CommandLine* line, CLI::App* parent) {
  struct LsFlags {
    std::string prefix;
    bool include_unnamed = false;
  };
  auto flags = std::make_shared<LsFlags>();
  CLI::App* const ls = line->AddCommand(
      "ls", "List the named arrays",
      [flags](const Invocation& i) { return RunLs(i, flags->prefix, flags->include_unnamed); },
      parent);
  line->PrintsNames(ls);
  line->CanBeWatched(ls);
  CLI::Option* const prefix =
      ls->add_option("prefix", flags->prefix, "only names with this prefix");
  ls->add_flag("--unnamed", flags->include_unnamed, "also arrays that no name points to")
      ->excludes(prefix);
}

void AddDescribeArray(CommandLine* line, CLI::App* parent) {
  auto described = std::make_shared<ArraySelector>();
  CLI::App* const describe = line->AddCommand(
      "describe", "Show how an array lies, device by device",
      [described](const Invocation& i) { return RunDescribe(i, *described); }, parent);
  AddParsedOption(describe, "tensor", described.get(), ParseArrayName, kArrayNameHelp)->required();
}

void AddRm(CommandLine* line, CLI::App* parent) {
  auto flags = std::make_shared<RmFlags>();
  CLI::App* const rm = line->AddCommand(
      "rm", "Remove names; arrays go when nothing else holds them",
      [flags](const Invocation& i) { return RunRm(i, *flags); }, parent);
  CLI::Option* const names = rm->add_option("tensor", flags->names, "names of arrays");
  rm->add_option_function<std::string>(
        "--tree", [flags](const std::string& prefix) { flags->tree = prefix; },
        "all names that begin so; '' for all")
      ->excludes(names);
  rm->add_flag("--validate-only", flags->validate_only, "check everything, and remove nothing");
}

}  // namespace

void AddArrayCommands(CommandLine* line) {
  // Users may write each command with or without the word `array` before it.
  CLI::App* const group =
      line->AddGroup("array", "The commands on arrays, such as `array put`, which means `put`");
  for (CLI::App* const parent : {static_cast<CLI::App*>(nullptr), group}) {
    AddLoad(line, parent);
    AddPut(line, parent);
    AddLs(line, parent);
    AddGet(line, parent);
    AddDescribeArray(line, parent);
    AddRm(line, parent);
  }
}

}  // namespace shardmesh::client
