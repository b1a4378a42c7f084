// Command reshard: moves arrays of the cluster to another layout, and shows what a move between two
// layouts takes.
#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/cut_options.h"
#include "client/cli/grammar.h"
#include "client/cli/interruption.h"
#include "client/cli/progress_bar.h"
#include "client/cli/shared_options.h"
#include "client/cli/spec_printing.h"
#include "client/cli/stopwatch.h"
#include "client/cli/table.h"
#include "client/types/reshard.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

struct ReshardFlags {
  // The flags of the question, which moves nothing.
  std::string from;
  std::string to;
  std::vector<std::string> partial;       // unreduced axes of the source layout
  std::vector<std::string> keep_partial;  // unreduced axes of the destination layout
  std::optional<Shape> shape;
  std::optional<Dtype> dtype;
  std::vector<int64_t> devices;
  std::vector<int64_t> sources;

  // The flags of the move.
  std::optional<ArraySelector> array;
  std::optional<std::string> tree;
  std::string mesh;
  std::string rules;
  std::optional<std::vector<AxisValue>> axes;
  std::string preset;
  ModeOption mode;
  std::string profile;
  CutOptions cuts;
  std::string name;
  std::optional<int64_t> expected_version;
  bool release_source = false;
  bool plan_only = false;
  bool strict = false;
  ExactOption exact;

  bool moves() const { return array.has_value() || tree.has_value(); }
};

// The parts of the text `MESH:SPEC`, or of a text that is only a spec. The last colon of the text
// ends the mesh: a mesh may have colons, but a spec has none.
struct LayoutText {
  std::optional<std::string> mesh;
  std::string spec;
};
LayoutText SplitLayout(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) {
    return {std::nullopt, text};
  }
  return {text.substr(0, colon), text.substr(colon + 1)};
}

// Explains the text if its mesh does not exist: perhaps all of it was meant as a spec.
absl::Status ExplainLayout(const absl::Status& status, std::string_view flag,
                           const std::string& text) {
  const LayoutText layout = SplitLayout(text);
  if (!layout.mesh.has_value() || ReasonOf(status) != Reason::kNotFound ||
      FactOf(status, fact::kKind) != "mesh" || FactOf(status, fact::kName) != layout.mesh) {
    return status;
  }
  std::string spec = text;
  std::replace(spec.begin(), spec.end(), ':', ',');
  return WithContext(status, StrCat(flag, " ", text, " asks for the spec ", layout.spec,
                                    " on a mesh named ", *layout.mesh,
                                    ", because a colon ends the mesh's name; a spec has one entry "
                                    "for each dimension, with commas between them, such as ",
                                    spec));
}

absl::StatusOr<PartitionSpec> ParseLayoutSpec(const std::string& text,
                                              const std::vector<std::string>& unreduced) {
  SHARDMESH_ASSIGN_OR_RETURN(const PartitionSpec spec, ParseSpec(text));
  return PartitionSpec({spec.entries().begin(), spec.entries().end()}, unreduced);
}

void PrintTransfers(const std::vector<ReshardTransfer>& transfers) {
  Table table({{"from", Table::Align::kRight},
               {"to", Table::Align::kRight},
               {"bytes", Table::Align::kRight},
               {"region"}});
  for (const ReshardTransfer& transfer : transfers) {
    table.AddRow({StrCat(transfer.source), StrCat(transfer.destination),
                  FormatBytes(transfer.bytes), transfer.tile.ToString()});
  }
  table.Print();
}

std::string StepText(const ReshardStep& step) {
  std::string text = StrCat(ReshardPatternName(step.pattern), " along ", StrJoin(step.axes, ", "),
                            " in groups of ", step.group_size);
  if (step.from_dim.has_value() && step.to_dim.has_value()) {
    StrAppend(&text, ", dimension ", *step.from_dim, " to ", *step.to_dim);
  } else if (step.from_dim.has_value()) {
    StrAppend(&text, ", dimension ", *step.from_dim);
  } else if (step.to_dim.has_value()) {
    StrAppend(&text, ", into dimension ", *step.to_dim);
  }
  return text;
}

void PrintReshard(const ReshardAnswer& answer) {
  const ReshardTotals& totals = answer.totals;
  std::cout << "pattern      " << ReshardPatternName(answer.pattern) << "\n";
  for (const ReshardStep& step : answer.steps) {
    std::cout << "step         " << StepText(step) << "\n";
  }
  std::cout << "moves        " << FormatBytes(answer.total_needed_bytes)
            << ", the least possible; devices keep " << totals.kept << " elements and need "
            << totals.need << "\n"
            << "per device   " << FormatBytes(answer.max_needed_bytes) << " at most, received by "
            << FormatCount(totals.receivers, "device") << "; sent "
            << (answer.max_sent_bytes.has_value()
                    ? StrCat(FormatBytes(*answer.max_sent_bytes), " at most, ")
                    : std::string())
            << FormatBytes(static_cast<int64_t>(answer.mean_sent_bytes)) << " on average\n"
            << "per link     " << FormatBytes(answer.max_link_bytes) << " at most, on "
            << FormatCount(totals.links, "link") << "\n";
  for (const ReshardDevice& device : answer.devices) {
    std::cout << "\nDevice " << device.device << " turns "
              << (device.part.src.has_value() ? device.part.src->ToString() : "nothing") << " into "
              << device.part.dst.ToString() << ": keeps " << device.part.kept
              << " elements, receives " << FormatBytes(device.needed_bytes) << "\n";
    if (!device.regions.empty()) {
      PrintTransfers(device.regions);
    }
  }
  if (!answer.sent.empty()) {
    std::cout << "\nSent\n";
    PrintTransfers(answer.sent);
  }
}

Json TransfersJson(const std::vector<ReshardTransfer>& transfers) {
  Json list = Json::array();
  for (const ReshardTransfer& transfer : transfers) {
    list.push_back({{"source", transfer.source},
                    {"destination", transfer.destination},
                    {"bytes", transfer.bytes},
                    {"tile", TileJson(transfer.tile)}});
  }
  return list;
}

Json ReshardJson(const ReshardAnswer& answer) {
  Json steps = Json::array();
  const auto dimension = [](const std::optional<int64_t>& dim) {
    return dim.has_value() ? Json(*dim) : Json(nullptr);
  };
  for (const ReshardStep& step : answer.steps) {
    steps.push_back({{"pattern", std::string(ReshardPatternName(step.pattern))},
                     {"axes", step.axes},
                     {"from_dimension", dimension(step.from_dim)},
                     {"to_dimension", dimension(step.to_dim)}});
  }
  Json devices = Json::array();
  for (const ReshardDevice& device : answer.devices) {
    devices.push_back(
        {{"device", device.device},
         {"source_tile", device.part.src.has_value() ? TileJson(*device.part.src) : Json(nullptr)},
         {"destination_tile", TileJson(device.part.dst)},
         {"kept_elements", device.part.kept},
         {"needed_elements", device.part.need},
         {"needed_bytes", device.needed_bytes},
         {"regions", TransfersJson(device.regions)}});
  }
  return {{"pattern", std::string(ReshardPatternName(answer.pattern))},
          {"steps", std::move(steps)},
          {"noop", answer.totals.noop},
          {"elements", answer.elements},
          {"total_kept_elements", answer.totals.kept},
          {"total_needed_elements", answer.totals.need},
          {"total_needed_bytes", answer.total_needed_bytes},
          {"max_needed_bytes", answer.max_needed_bytes},
          {"receivers", answer.totals.receivers},
          {"links", answer.totals.links},
          {"max_link_bytes", answer.max_link_bytes},
          {"mean_sent_bytes", answer.mean_sent_bytes},
          {"max_sent_bytes", dimension(answer.max_sent_bytes)},
          {"devices", std::move(devices)},
          {"sent", TransfersJson(answer.sent)},
          {"revision", answer.revision}};
}

bool HasMoveFlags(const ReshardFlags& flags) {
  return !flags.mesh.empty() || !flags.rules.empty() || flags.axes.has_value() ||
         !flags.preset.empty() || flags.mode.text.has_value() || !flags.profile.empty() ||
         !flags.name.empty() || flags.expected_version.has_value() || flags.release_source ||
         flags.plan_only || flags.strict || flags.exact.exact || flags.cuts.is_given();
}

absl::Status RunQuestion(const Invocation& invocation, const ReshardFlags& flags) {
  if (flags.from.empty() || flags.to.empty() || !flags.shape.has_value()) {
    return WrongUse(
        "name an array to move, or --tree with the prefix of several; or ask what would move, with "
        "--from, --to and --shape");
  }
  if (HasMoveFlags(flags)) {
    return WrongUse(
        "--mesh, --rules, --axes, --preset, --mode, --profile, --cuts, --uneven, --weights, --as, "
        "--if-version, --release-source, --plan-only, --strict and --exact go with the name of an "
        "array or --tree, and not with --from");
  }
  ReshardQuestion question = {.shape = *flags.shape,
                              .dtype = flags.dtype.value_or(Dtype::kBF16),
                              .devices = flags.devices,
                              .sources = flags.sources};
  const LayoutText from = SplitLayout(flags.from);
  const LayoutText to = SplitLayout(flags.to);
  SHARDMESH_ASSIGN_OR_RETURN(question.from, ParseLayoutSpec(from.spec, flags.partial));
  SHARDMESH_ASSIGN_OR_RETURN(question.to, ParseLayoutSpec(to.spec, flags.keep_partial));
  SHARDMESH_ASSIGN_OR_RETURN(question.from_mesh, SelectMesh(from.mesh.value_or("")));
  SHARDMESH_ASSIGN_OR_RETURN(question.to_mesh,
                             SelectMesh(to.mesh.value_or(from.mesh.value_or(""))));
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.ConnectToAsk());
  const absl::StatusOr<ReshardAnswer> planned = client->layouts().PlanReshard(question);
  if (!planned.ok()) {
    return ExplainLayout(ExplainLayout(planned.status(), "--to", flags.to), "--from", flags.from);
  }
  const ReshardAnswer& answer = *planned;
  if (invocation.json) {
    invocation.Print(ReshardJson(answer));
  } else {
    PrintReshard(answer);
  }
  return absl::OkStatus();
}

bool HasQuestionFlags(const ReshardFlags& flags) {
  return !flags.from.empty() || !flags.partial.empty() || !flags.keep_partial.empty() ||
         flags.shape.has_value() || flags.dtype.has_value() || !flags.devices.empty() ||
         !flags.sources.empty();
}

// The destination of a move as the options give it.
absl::StatusOr<ReshardOptions> OptionsOf(const ReshardFlags& flags) {
  if (flags.array.has_value() && flags.tree.has_value()) {
    return WrongUse("give the name of one array, or --tree, and not both");
  }
  if (HasQuestionFlags(flags)) {
    return WrongUse(
        "--from, --shape, --dtype, --partial, --keep-partial, --device and --source ask what would "
        "move between two layouts; for an array of the cluster use --plan-only");
  }
  const int layouts = (flags.to.empty() ? 0 : 1) + (flags.rules.empty() ? 0 : 1) +
                      (flags.axes.has_value() ? 1 : 0) + (flags.preset.empty() ? 0 : 1);
  if (layouts > 1) return WrongUse("give one of --to, --rules, --axes and --preset");
  SHARDMESH_RETURN_IF_ERROR(CheckCutOptions(flags.cuts));
  // A rule cuts anew what has a layout.
  const bool has_rule = flags.cuts.rule() != UnevenCuts::kEqualOnly;
  if (layouts == 0 && flags.mesh.empty() && !has_rule) {
    return WrongUse(
        "say where to. --to, --rules, --axes or --preset gives another layout; --cuts needs one of "
        "them. --mesh gives another mesh. --weights, or --uneven other than equal, gives other "
        "cuts");
  }
  if (flags.mode.text.has_value() && !flags.axes.has_value()) {
    return WrongUse("--mode is about --axes; a preset has its own mode");
  }
  if (!flags.profile.empty() && !flags.axes.has_value() && flags.preset.empty()) {
    return WrongUse("--profile is about --axes and --preset");
  }
  if (flags.tree.has_value() && (!flags.name.empty() || flags.expected_version.has_value())) {
    return WrongUse(
        "--as and --if-version are about one array; each array of --tree keeps its name");
  }
  ReshardOptions options{.mesh = flags.mesh,
                         .axes = flags.axes,
                         .preset = flags.preset,
                         .uneven = flags.cuts.rule(),
                         .weights = flags.cuts.weights.value_or(std::vector<int64_t>()),
                         .compatibility = flags.exact.compatibility(),
                         .strict = flags.strict,
                         .name = flags.name,
                         .release_source = flags.release_source,
                         .validate_only = flags.plan_only};
  if (!flags.to.empty()) {
    const LayoutText to = SplitLayout(flags.to);
    if (to.mesh.has_value() && !flags.mesh.empty()) {
      return WrongUse(StrCat("--to ", flags.to, " names a mesh, and --mesh does too; give one"));
    }
    if (to.mesh.has_value()) options.mesh = *to.mesh;
    SHARDMESH_ASSIGN_OR_RETURN(options.spec, ParseSpec(to.spec));
  }
  if (options.mesh.find_first_of("=/") != std::string::npos) {
    return WrongUse(StrCat("--mesh ", options.mesh,
                           ": arrays move onto a mesh of the cluster, by its name; `shardmesh "
                           "status` lists the meshes"));
  }
  if (flags.tree.has_value()) {
    SHARDMESH_ASSIGN_OR_RETURN(options.cut_points, CutPointsForAll(flags.cuts));
  }
  if (flags.expected_version.has_value()) options.precondition = *flags.expected_version;
  SHARDMESH_ASSIGN_OR_RETURN(options.rules, SelectRules(flags.rules, options.compatibility));
  SHARDMESH_ASSIGN_OR_RETURN(options.mode, SelectMode(flags.mode, options.compatibility));
  SHARDMESH_ASSIGN_OR_RETURN(options.profile, SelectProfile(flags.profile));
  return options;
}

Json MoveJson(const ReshardResult& result, bool plan_only) {
  Json arrays = Json::array();
  for (const ReshardedArray& array : result.arrays) {
    arrays.push_back(
        {{"name", array.name},
         {"version", array.name_version},
         {"source_array_id", array.source_array_id},
         {"array_id", array.descriptor.array_id},
         {"spec", SpecJson(array.descriptor.spec)},
         {"cut_points", CutPointsJson(array.descriptor.cut_points)},
         {"empty_ranks", EmptyRanks(array.descriptor)},
         {"mesh", array.descriptor.mesh_id},
         {"corrections", CorrectionsJson(array.corrections, array.descriptor.mesh)},
         {"moved_bytes", array.moved_bytes},
         {"summed_bytes", array.summed_bytes},
         {"sums_spec", array.sums_spec.has_value() ? SpecJson(*array.sums_spec) : Json(nullptr)},
         {"skipped", array.is_skipped}});
  }
  Json memory = Json::array();
  for (const ReshardMemory& each : result.memory) {
    memory.push_back({{"mesh", each.mesh_id},
                      {"rank", each.rank},
                      {"worker", each.identity},
                      {"have_bytes", each.have_bytes},
                      {"need_bytes", each.need_bytes}});
  }
  return MarkIfValidated({{"operation_id", result.operation_id},
                          {"arrays", std::move(arrays)},
                          {"memory", std::move(memory)},
                          {"moved_bytes", result.moved_bytes()},
                          {"total_bytes", result.total_bytes},
                          {"revision", result.revision}},
                         plan_only);
}

void PrintArrayCorrections(const std::vector<ReshardedArray>& arrays) {
  if (arrays.size() == 1) {
    for (const Correction& correction : arrays.front().corrections) {
      std::cout << "corrected: " << correction.ToString(arrays.front().descriptor.mesh) << "\n";
    }
    if (!arrays.front().corrections.empty()) {
      std::cout << "--strict refuses it and says what to ask for instead\n";
    }
    return;
  }
  // Axes that the mesh lacks are often misspelt: each of them is shown.
  std::set<std::string> absent;
  for (const ReshardedArray& array : arrays) {
    for (const Correction& correction : array.corrections) {
      if (!correction.absent_axes.empty()) {
        absent.insert(correction.ToString(array.descriptor.mesh));
      }
    }
  }
  for (const std::string& text : absent) std::cout << "corrected: " << text << "\n";
  const auto corrected =
      std::count_if(arrays.begin(), arrays.end(),
                    [](const ReshardedArray& array) { return !array.corrections.empty(); });
  if (corrected > 0) {
    std::cout << "The specs of " << corrected << " of " << FormatCount(arrays.size(), "array")
              << " were corrected to fit; --output json shows why, --strict refuses it\n";
  }
}

// Says which ranks hold nothing of some of the arrays.
void PrintEmptyRanks(const std::vector<ReshardedArray>& arrays) {
  std::map<std::vector<int64_t>, std::vector<std::string>> names_by_ranks;
  for (const ReshardedArray& array : arrays) {
    names_by_ranks[EmptyRanks(array.descriptor)].push_back(
        array.name.empty() ? StrCat("@", array.descriptor.array_id) : array.name);
  }
  for (const auto& [ranks, names] : names_by_ranks) {
    if (ranks.empty()) continue;
    std::cout << NoteOnEmptyRanks(ranks, names.size() == 1 ? EscapeForTerminal(names.front())
                                                           : FormatCount(names.size(), "array"))
              << "\n";
  }
}

// `all`: also the arrays that stay where they are.
void PrintMove(const ReshardResult& result, bool plan_only, bool all) {
  const bool is_cut =
      std::any_of(result.arrays.begin(), result.arrays.end(),
                  [](const ReshardedArray& array) { return !array.descriptor.cut_points.empty(); });
  std::vector<Table::Column> columns = {{"array"}, {"spec"}};
  if (is_cut) columns.push_back({"cuts"});
  const bool has_sums =
      std::any_of(result.arrays.begin(), result.arrays.end(),
                  [](const ReshardedArray& array) { return array.sums_spec.has_value(); });
  if (has_sums) {
    columns.insert(columns.end(), {{"sums as"}, {"adding moves", Table::Align::kRight}});
  }
  columns.insert(columns.end(), {{"mesh"}, {"moves", Table::Align::kRight}, {"version"}});
  Table table(std::move(columns));
  bool is_empty = true;
  for (const ReshardedArray& array : result.arrays) {
    if (array.is_skipped && !all) continue;
    is_empty = false;
    std::vector<std::string> cells = {
        array.name.empty() ? StrCat("@", array.descriptor.array_id) : array.name,
        FormatSpec(array.descriptor.spec)};
    if (is_cut) cells.push_back(FormatCutPoints(array.descriptor.cut_points));
    if (has_sums && array.sums_spec.has_value()) {
      cells.insert(cells.end(), {FormatSpec(*array.sums_spec), FormatBytes(array.summed_bytes)});
    } else if (has_sums) {
      cells.insert(cells.end(), {"-", "-"});
    }
    const int64_t then_bytes = array.moved_bytes - array.summed_bytes;
    cells.insert(cells.end(),
                 {array.descriptor.mesh_id, array.is_skipped ? "stays" : FormatBytes(then_bytes),
                  plan_only || array.name_version == 0 ? "-" : StrCat(array.name_version)});
    table.AddRow(std::move(cells));
  }
  if (!is_empty) {
    table.Print();
    std::cout << "\n";
  }
  if (!plan_only || result.memory.empty()) return;
  Table memory({{"mesh"},
                {"rank", Table::Align::kRight},
                {"worker"},
                {"free", Table::Align::kRight},
                {"needs", Table::Align::kRight},
                {"fits"}});
  for (const ReshardMemory& each : result.memory) {
    memory.AddRow({each.mesh_id, StrCat(each.rank), each.identity, FormatBytes(each.have_bytes),
                   FormatBytes(each.need_bytes),
                   each.need_bytes <= each.have_bytes ? "yes" : "no"});
  }
  memory.Print();
  std::cout << "\n";
}

// Returns a wrong-use error if --to has an axis that a mesh lacks on which an array would lie.
absl::Status CheckAxesOfMove(MeshClient* client, const ReshardFlags& flags,
                             const ReshardOptions& options) {
  // With --strict the coordinator refuses the spec, and its error has the fixes.
  if (!options.spec.has_value() || flags.strict || flags.exact.exact) return absl::OkStatus();
  if (!options.mesh.empty()) {
    return CheckAxesOfSpec(client, "--to", options.mesh, *options.spec, "--exact");
  }
  // Each array stays on its own mesh. Errors are those of the move, which explains them.
  std::vector<Array> arrays;
  if (flags.tree.has_value()) {
    absl::StatusOr<std::vector<Array>> listed = client->arrays().ListArrays(*flags.tree);
    if (listed.ok()) arrays = *std::move(listed);
  } else if (absl::StatusOr<Array> array = client->arrays().DescribeArray(*flags.array);
             array.ok()) {
    arrays.push_back(*std::move(array));
  }
  for (const Array& array : arrays) {
    SHARDMESH_RETURN_IF_ERROR(
        CheckAxesOfSpec("--to", *options.spec, array.descriptor.mesh, "--exact"));
  }
  return absl::OkStatus();
}

// Says which name holds the array after a move with --as, and whether the old name is gone. Prints
// nothing if --as was the old name.
void PrintNewName(MeshClient* client, const ReshardedArray& array, const ArraySelector& asked) {
  if (asked.name == array.name) return;
  std::cout << "The name " << array.name << " (version " << array.name_version
            << ") now holds the array";
  if (!asked.name.empty()) {
    // The old name stays if another call has moved it meanwhile.
    const absl::Status old =
        client->arrays().DescribeArray(ArraySelector::ByName(asked.name)).status();
    if (old.ok()) {
      std::cout << "; the name " << asked.name << " stays";
    } else if (ReasonOf(old) == Reason::kNotFound) {
      std::cout << "; the name " << asked.name << " is gone";
    }
  }
  std::cout << "\n";
}

// Says on standard error to which dimension the only entry of --to belongs, if the array has
// several dimensions: the entry may be meant for another one. Prints nothing in all other cases.
void PrintNoteOnOneEntry(const std::optional<PartitionSpec>& spec, const ArrayDescriptor& array) {
  const size_t dimensions = array.shape.size();
  if (!spec.has_value() || spec->entries().size() != 1 || dimensions < 2) return;
  const SpecEntry& entry = spec->entries().front();
  if (entry.axes().empty()) return;
  std::vector<SpecEntry> last(dimensions);
  last.back() = entry;
  std::cerr << "The only entry of " << FormatSpec(*spec) << " is that of dimension 0; write "
            << FormatSpec(PartitionSpec(last, {spec->unreduced().begin(), spec->unreduced().end()}))
            << " for the last dimension\n";
}

// Returns `error`, the error of a move of a tree. If --strict is the cause, adds the corrections of
// the other arrays, which the coordinator is asked for.
absl::Status ExplainStrictMove(MeshClient* client, const absl::Status& error,
                               const std::string& tree, ReshardOptions options) {
  if (!options.strict || !IsOfStrict(error)) return error;
  options.strict = false;
  options.validate_only = true;
  options.progress = nullptr;
  options.on_begun = nullptr;
  const absl::StatusOr<ReshardResult> plan = client->arrays().ReshardTree(tree, options);
  if (!plan.ok()) return error;
  std::vector<CorrectedTensor> corrected;
  for (const ReshardedArray& array : plan->arrays) {
    if (array.corrections.empty()) continue;
    corrected.push_back({.name = array.name,
                         .corrections = array.corrections,
                         .mesh = array.descriptor.mesh,
                         .effective = array.descriptor.spec,
                         .shape = array.descriptor.shape});
  }
  return WithAllCorrected(error, corrected);
}

absl::Status RunMove(const Invocation& invocation, const ReshardFlags& flags) {
  SHARDMESH_ASSIGN_OR_RETURN(ReshardOptions options, OptionsOf(flags));
  // Declared before the interruption, whose destructor may still use the client.
  std::shared_ptr<MeshClient> client;
  Interruption interruption(flags.tree.has_value()
                                ? "the arrays that had not moved stay as they were; repeat the "
                                  "command to go on"
                                : "nothing was moved",
                            invocation.output);
  SHARDMESH_ASSIGN_OR_RETURN(client, invocation.Connect());
  SHARDMESH_RETURN_IF_ERROR(CheckAxesOfMove(client.get(), flags, options));
  if (flags.array.has_value() && !flags.cuts.cuts.empty()) {
    SHARDMESH_ASSIGN_OR_RETURN(const Array array, client->arrays().DescribeArray(*flags.array));
    SHARDMESH_ASSIGN_OR_RETURN(options.cut_points,
                               CutPointsFor(flags.cuts, array.descriptor.shape));
  }
  const Stopwatch stopwatch;
  absl::StatusOr<ReshardResult> result;
  {
    ProgressBar bar("resharding", invocation.quiet);
    options.progress = ShowOn(&bar);
    options.on_begun = [&](const std::string& operation_id) {
      interruption.Begun(client.get(), operation_id);
    };
    result = flags.tree.has_value() ? client->arrays().ReshardTree(*flags.tree, options)
                                    : client->arrays().Reshard(*flags.array, options);
  }
  absl::Status status_of_move = result.status();
  if (flags.tree.has_value()) {
    status_of_move = ExplainStrictMove(client.get(), status_of_move, *flags.tree, options);
  }
  if (const absl::Status outcome = interruption.Outcome(status_of_move); !outcome.ok()) {
    const absl::Status explained = ExplainLayout(outcome, "--to", flags.to);
    return flags.array.has_value() ? AdviseTree(client.get(), explained, flags.array->name)
                                   : explained;
  }
  const absl::Duration time = stopwatch.time();
  if (invocation.json) {
    Json json = MoveJson(*result, flags.plan_only);
    json["time_s"] = Seconds(time);
    invocation.Print(json);
    return absl::OkStatus();
  }
  if (!invocation.quiet || flags.plan_only) {
    PrintMove(*result, flags.plan_only, invocation.output == OutputForm::kWide);
  }
  PrintArrayCorrections(result->arrays);
  PrintEmptyRanks(result->arrays);
  if (flags.array.has_value() && result->arrays.size() == 1 && !invocation.quiet) {
    PrintNoteOnOneEntry(options.spec, result->arrays.front().descriptor);
  }
  const auto skipped = std::count_if(result->arrays.begin(), result->arrays.end(),
                                     [](const ReshardedArray& array) { return array.is_skipped; });
  const auto moved = std::ssize(result->arrays) - skipped;
  std::cout << (flags.plan_only ? "Would move " : "Moved ") << FormatCount(moved, "array") << ", "
            << FormatBytes(result->moved_bytes()) << " between workers";
  if (!flags.plan_only) std::cout << ", in " << FormatTime(time);
  if (skipped > 0) {
    std::cout << "; " << FormatCount(skipped, "array") << (skipped == 1 ? " lies" : " lie")
              << " so already";
  }
  if (result->revision != 0) std::cout << "; revision " << result->revision;
  std::cout << "\n";
  if (!flags.name.empty() && !flags.plan_only && result->arrays.size() == 1) {
    PrintNewName(client.get(), result->arrays.front(), *flags.array);
  }
  return absl::OkStatus();
}

}  // namespace

void AddReshardCommands(CommandLine* line) {
  auto flags = std::make_shared<ReshardFlags>();
  CLI::App* const reshard = line->AddCommand(
      "reshard", "Move an array or a tree to another layout or mesh, or show what would move",
      [flags](const Invocation& i) {
        return flags->moves() ? RunMove(i, *flags) : RunQuestion(i, *flags);
      });
  AddParsedOption(reshard, "array", &flags->array, ParseArrayName,
                  "the array to move: NAME, or @ID as `ls --unnamed` shows it");
  reshard->add_option("--tree", flags->tree, "move all arrays whose names begin with this prefix");
  reshard->add_option("--to", flags->to,
                      "the new spec: mesh axes, one entry a dimension, as fsdp,tp; or MESH:SPEC");
  reshard->add_option("--mesh", flags->mesh,
                      "name of the new mesh (default: each array stays on its own)");
  reshard->add_option("--rules", flags->rules,
                      "rules that give the new specs by name: YAML file, or name in the catalog");
  AddParsedOption(reshard, "--axes", &flags->axes, ParseAxes,
                  "logical axes, one a dimension, such as __BATCH__,__EMBED__; - for none");
  reshard->add_option("--preset", flags->preset, "name of a preset, which brings axes and mode");
  AddModeOption(reshard, &flags->mode, "with --axes: ");
  reshard->add_option("--profile", flags->profile, "a profile: YAML file, or name in the catalog");
  AddCutsOption(reshard, &flags->cuts);
  AddUnevenOptions(reshard, &flags->cuts, kUnevenRules);
  reshard->add_option("--as", flags->name, "name of the result (default: that of the array)")
      ->check(RefuseNameWithAt);
  reshard
      ->add_option("--if-version", flags->expected_version,
                   "move only if the name of the result is at this version")
      ->check(WholeNumberFrom(1));
  reshard->add_flag("--release-source", flags->release_source,
                    "release each old array at once, so that memory for one more array is enough; "
                    "with --as the old name goes too");
  reshard->add_flag("--plan-only", flags->plan_only,
                    "show what would move and the memory that it needs, and move nothing");
  reshard->add_flag("--strict", flags->strict,
                    "fail if anything is corrected, and show all corrections");
  AddExactOption(reshard, &flags->exact);
  reshard->add_option(
      "--from", flags->from,
      "ask, without an array: mesh and spec, such as fsdp=4,tp=8:fsdp,tp; without a mesh: the "
      "default one; --to is the same, without a mesh: that of --from");
  AddParsedOption(reshard, "--shape", &flags->shape, ParseShape,
                  "with --from: the array's extents, 4096,4096");
  AddParsedOption(reshard, "--dtype", &flags->dtype, ParseElementType,
                  "with --from: its element type (default: BF16)");
  reshard
      ->add_option("--partial", flags->partial,
                   "with --from: axes along which the array is a partial sum before")
      ->delimiter(',');
  reshard
      ->add_option("--keep-partial", flags->keep_partial,
                   "with --from: those along which it still is after")
      ->delimiter(',');
  reshard->add_option("--device", flags->devices,
                      "with --from: a device of the destination: show what it receives; may be "
                      "given again");
  reshard->add_option(
      "--source", flags->sources,
      "with --from: a device of the source: show what it sends; may be given again");
}

}  // namespace shardmesh::client
