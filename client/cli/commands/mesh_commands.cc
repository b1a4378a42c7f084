// Commands mesh show, mesh query, mesh resize, spec axes: meshes, some of their axes, and the axes
// that specs name.
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/cut_options.h"
#include "client/cli/grammar.h"
#include "client/cli/interruption.h"
#include "client/cli/local/cluster_record.h"
#include "client/cli/local/local_cluster.h"
#include "client/cli/progress_bar.h"
#include "client/cli/shared_options.h"
#include "client/cli/stopwatch.h"
#include "client/cli/table.h"
#include "sharding/layout/resize_advice.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

using Kind = MeshAxesQuestion::Kind;

struct ShowFlags {
  std::string mesh;
  std::optional<int64_t> devices;
  bool exact = false;
};

// Makes the question. Axes stay text that the coordinator parses, because only the coordinator can
// infer a size of -1.
absl::StatusOr<MeshQuestion> QuestionOf(const ShowFlags& flags) {
  MeshQuestion question;
  question.device_count = flags.devices;
  question.compatibility = flags.exact ? Compatibility::kExact : Compatibility::kDefault;
  if (!LooksLikePath(flags.mesh) && flags.mesh.find_first_of("=:") != std::string::npos) {
    question.mesh = MeshText{flags.mesh};
  } else {
    SHARDMESH_ASSIGN_OR_RETURN(question.mesh, SelectMesh(flags.mesh, flags.devices));
  }
  return question;
}

Json AxesJson(const Mesh& mesh) {
  Json axes = Json::array();
  for (const MeshAxis& axis : mesh.axes()) {
    axes.push_back(
        {{"name", axis.name}, {"size", axis.size}, {"type", std::string(AxisTypeName(axis.type))}});
  }
  return axes;
}

// Returns the ids of the devices; empty if each id equals the position of its device.
std::vector<int64_t> DeviceIds(const Mesh& mesh) {
  std::vector<int64_t> ids;
  bool are_positions = true;
  for (DeviceId device = 0; device < mesh.size(); ++device) {
    if (mesh.GlobalIdOf(device) != device) {
      are_positions = false;
      break;
    }
  }
  for (DeviceId device = 0; !are_positions && device < mesh.size(); ++device) {
    ids.push_back(mesh.GlobalIdOf(device));
  }
  return ids;
}

std::string JoinNumbers(const std::vector<int64_t>& numbers) {
  return StrJoin(numbers, ",", [](std::string* out, int64_t number) { StrAppend(out, number); });
}

void PrintMesh(const Mesh& mesh) {
  Table table({{"axis"}, {"size", Table::Align::kRight}, {"type"}});
  for (const MeshAxis& axis : mesh.axes()) {
    table.AddRow({axis.name, StrCat(axis.size), std::string(AxisTypeName(axis.type))});
  }
  table.Print();
  std::cout << "\n" << FormatCount(mesh.size(), "device") << "\n";
  if (const std::vector<int64_t> ids = DeviceIds(mesh); !ids.empty()) {
    std::cout << "device ids " << JoinNumbers(ids) << "\n";
  }
}

absl::Status RunShow(const Invocation& invocation, const ShowFlags& flags) {
  SHARDMESH_ASSIGN_OR_RETURN(const MeshQuestion question, QuestionOf(flags));
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.ConnectToAsk());
  const absl::StatusOr<MeshAnswer> asked = client->layouts().DescribeMesh(question);
  if (!asked.ok()) {
    return NameDevicesOption(asked.status());
  }
  const MeshAnswer& answer = *asked;
  if (invocation.json) {
    invocation.Print({{"axes", AxesJson(answer.mesh)},
                      {"size", answer.mesh.size()},
                      {"text", answer.mesh.ToString()},
                      {"device_ids", DeviceIds(answer.mesh)},
                      {"workers", answer.workers},
                      {"revision", answer.revision}});
    return absl::OkStatus();
  }
  PrintMesh(answer.mesh);
  if (!answer.workers.empty()) {
    std::cout << "workers " << StrJoin(answer.workers, ",") << "\n";
  }
  return absl::OkStatus();
}

struct QueryFlags {
  std::optional<Kind> kind;
  MeshOption mesh;
  std::vector<std::string> axes;
  std::vector<int64_t> devices;
  ExactOption exact;
};

absl::StatusOr<std::vector<std::string>> ParseNames(std::string_view text) {
  std::vector<std::string> names;
  if (absl::StripAsciiWhitespace(ToAbsl(text)).empty()) {
    return names;
  }
  for (const absl::string_view name : absl::StrSplit(ToAbsl(text), ',')) {
    names.emplace_back(absl::StripAsciiWhitespace(name));
  }
  return names;
}

// Returns the position of the device that the answer at index `i` is about.
std::string DeviceText(const QueryFlags& flags, size_t i) {
  return StrCat(flags.devices.empty() ? static_cast<int64_t>(i) : flags.devices[i]);
}

Json AnswerJson(const QueryFlags& flags, const MeshAxesAnswer& answer) {
  Json json = {{"axes", flags.axes}};
  switch (*flags.kind) {
    case Kind::kPresent:
      json["present"] = answer.present;
      json["absent_axes"] = answer.absent_axes;
      break;
    case Kind::kSize:
    case Kind::kMappedSize:
      json["size"] = answer.size;
      break;
    case Kind::kIndex:
      json["indexes"] = answer.indexes;
      break;
    case Kind::kGroups:
      json["groups"] = answer.groups;
      break;
    case Kind::kSubmesh:
      json["submesh"] = {{"axes", AxesJson(answer.submesh)},
                         {"size", answer.submesh.size()},
                         {"device_ids", DeviceIds(answer.submesh)}};
      break;
  }
  json["revision"] = answer.revision;
  return json;
}

void PrintAnswer(const QueryFlags& flags, const MeshAxesAnswer& answer) {
  switch (*flags.kind) {
    case Kind::kPresent:
      std::cout << (answer.present ? "all of them"
                                   : StrCat("no: ", StrJoin(answer.absent_axes, ", "), " missing"))
                << "\n";
      return;
    case Kind::kSize:
    case Kind::kMappedSize:
      std::cout << answer.size << "\n";
      return;
    case Kind::kIndex: {
      Table table({{"device", Table::Align::kRight}, {"index", Table::Align::kRight}});
      for (size_t i = 0; i < answer.indexes.size(); ++i) {
        table.AddRow({DeviceText(flags, i), StrCat(answer.indexes[i])});
      }
      table.Print();
      return;
    }
    case Kind::kGroups: {
      Table table(
          {{flags.devices.empty() ? "group" : "device", Table::Align::kRight}, {"devices"}});
      for (size_t i = 0; i < answer.groups.size(); ++i) {
        table.AddRow({DeviceText(flags, i), JoinNumbers(answer.groups[i])});
      }
      table.Print();
      return;
    }
    case Kind::kSubmesh:
      PrintMesh(answer.submesh);
      return;
  }
}

absl::Status RunQuery(const Invocation& invocation, const QueryFlags& flags) {
  MeshAxesQuestion question;
  question.kind = *flags.kind;
  SHARDMESH_ASSIGN_OR_RETURN(question.mesh, SelectMesh(flags.mesh, flags.exact.compatibility()));
  question.axes = flags.axes;
  question.devices = flags.devices;
  question.compatibility = flags.exact.compatibility();
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.ConnectToAsk());
  SHARDMESH_ASSIGN_OR_RETURN(const MeshAxesAnswer answer, client->layouts().QueryMesh(question));
  if (invocation.json) {
    invocation.Print(AnswerJson(flags, answer));
  } else {
    PrintAnswer(flags, answer);
  }
  return absl::OkStatus();
}

absl::Status RunSpecAxes(const Invocation& invocation, const std::vector<std::string>& texts) {
  std::vector<PartitionSpec> specs;
  for (const std::string& text : texts) {
    SHARDMESH_ASSIGN_OR_RETURN(PartitionSpec spec, ParseSpec(text));
    specs.push_back(std::move(spec));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.ConnectToAsk());
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<std::string> axes,
                             client->layouts().ListSpecAxes(specs));
  if (invocation.json) {
    invocation.Print({{"axes", axes}});
    return absl::OkStatus();
  }
  for (const std::string& axis : axes) {
    std::cout << axis << "\n";
  }
  return absl::OkStatus();
}

struct ResizeFlags {
  std::string mesh;
  std::string shape;
  CutOptions cuts;
  bool validate_only = false;
};

Json ResizeJson(const ResizeResult& result) {
  Json ranks = Json::array();
  for (const ResizeRank& rank : result.ranks) {
    ranks.push_back({{"rank", rank.rank},
                     {"worker", rank.identity},
                     {"moved_bytes", rank.moved_bytes},
                     {"have_bytes", rank.have_bytes},
                     {"need_bytes", rank.need_bytes}});
  }
  Json refusals = Json::array();
  for (const ResizeRefusal& refusal : result.refusals) {
    refusals.push_back({{"name", refusal.name},
                        {"array_id", refusal.array_id},
                        {"error", ToStd(refusal.error.message())}});
  }
  return {{"arrays", result.array_count},
          {"moved_bytes", result.moved_bytes},
          {"ranks", std::move(ranks)},
          {"refusals", std::move(refusals)},
          {"refusal_count", result.refusal_count}};
}

void PrintResizePlan(const ResizeResult& result) {
  Table table({{"rank", Table::Align::kRight},
               {"worker"},
               {"receives", Table::Align::kRight},
               {"needs", Table::Align::kRight},
               {"has left", Table::Align::kRight},
               {""}});
  for (const ResizeRank& rank : result.ranks) {
    table.AddRow({StrCat(rank.rank), rank.identity, FormatBytes(rank.moved_bytes),
                  FormatBytes(rank.need_bytes), FormatBytes(rank.have_bytes),
                  rank.need_bytes > rank.have_bytes ? "too little memory" : ""});
  }
  table.Print();
  for (const ResizeRefusal& refusal : result.refusals) {
    std::cout << "refused: "
              << (refusal.name.empty() ? StrCat("@", refusal.array_id)
                                       : EscapeForTerminal(refusal.name))
              << ": " << EscapeForTerminal(ToStd(refusal.error.message())) << "\n";
  }
  const int64_t more = result.refusal_count - std::ssize(result.refusals);
  if (more > 0) std::cout << "and " << more << " more\n";
}

// Returns an error if the resize would be refused, although the question about it was answered: the
// program's exit code must show the refusal.
absl::Status ResizeVerdict(const ResizeResult& plan, const std::string& shape, UnevenCuts rule) {
  if (plan.refusal_count > 0) {
    std::vector<Reason> reasons;
    for (const ResizeRefusal& refusal : plan.refusals) reasons.push_back(ReasonOf(refusal.error));
    std::string message =
        StrCat("the resize would be refused: ", FormatCount(plan.refusal_count, "array"),
               " cannot move to ", shape, "; the lines `refused:` say why");
    for (const std::string& advice : AdviceOnResize(reasons, rule)) {
      StrAppend(&message, ". ", advice);
    }
    return absl::FailedPreconditionError(message);
  }
  const auto short_of =
      std::find_if(plan.ranks.begin(), plan.ranks.end(),
                   [](const ResizeRank& rank) { return rank.need_bytes > rank.have_bytes; });
  if (short_of == plan.ranks.end()) return absl::OkStatus();
  const auto [have, need] = FormatBytesApart(short_of->have_bytes, short_of->need_bytes);
  return absl::FailedPreconditionError(
      StrCat("the resize would be refused: rank ", short_of->rank, " (worker \"",
             short_of->identity, "\") has ", have, " left and needs ", need,
             ". Release arrays, start workers with more --memory, or choose more ranks"));
}

// Adds to the error of a resize for which there are too few workers the command that starts one
// more. Of a cluster that `up` started, the command has the flags of the other workers.
absl::Status WithWorkerCommand(const Invocation& invocation, MeshClient* client,
                               const absl::Status& error) {
  if (ReasonOf(error) != Reason::kMeshIncomplete || !FactOf(error, fact::kNeed).has_value()) {
    return error;
  }
  const auto add = [&error](std::string_view more) {
    return WithFactsOf(
        WithReason(absl::Status(error.code(), StrCat(ToStd(error.message()), "\n", more)),
                   Reason::kMeshIncomplete),
        error);
  };
  std::optional<ClusterRecord> record;
  if (CheckClusterName(invocation.cluster_name).ok()) {
    record = RecordedCluster(invocation.cluster_name);
  }
  if (!record.has_value() || record->address != invocation.address) {
    return add(StrCat("The coordinator of this cluster is ", invocation.address));
  }
  std::set<std::string, std::less<>> attached;
  if (const auto status = client->cluster().GetStatus(); status.ok()) {
    for (const WorkerStatus& worker : status->workers) attached.insert(worker.identity);
  }
  return add(StrCat("The next one here: `", FurtherWorkerCommand(*record, attached), "`"));
}

absl::Status RunResize(const Invocation& invocation, const ResizeFlags& flags) {
  SHARDMESH_RETURN_IF_ERROR(CheckCutOptions(flags.cuts));
  if (flags.mesh.find('=') != std::string::npos && flags.shape.find('=') == std::string::npos) {
    return WrongUse(StrCat("the name of the mesh comes first: write `shardmesh mesh resize ",
                           flags.shape, " ", flags.mesh, "`"));
  }
  ResizeOptions options{.uneven = flags.cuts.rule(),
                        .weights = flags.cuts.weights.value_or(std::vector<int64_t>()),
                        .validate_only = flags.validate_only};
  // Declared before the interruption, whose destructor may still use the client.
  std::shared_ptr<MeshClient> client;
  Interruption interruption("the mesh is as it was", invocation.output);
  interruption.MayEndMidway();  // a resize whose arrays cannot go back
  SHARDMESH_ASSIGN_OR_RETURN(client, invocation.Connect());
  options.on_begun = [&](const std::string& operation_id) {
    interruption.Begun(client.get(), operation_id);
  };
  const Stopwatch stopwatch;
  absl::StatusOr<ResizeResult> result;
  {
    ProgressBar bar("resizing", invocation.quiet);
    options.progress = ShowOn(&bar);
    result = client->arrays().ResizeMesh(flags.mesh, flags.shape, options);
  }
  SHARDMESH_RETURN_IF_ERROR(
      interruption.Outcome(WithWorkerCommand(invocation, client.get(), result.status())));
  if (invocation.json) {
    Json json = ResizeJson(*result);
    if (!flags.validate_only) {
      json["operation_id"] = result->operation_id;
      json["time_s"] = Seconds(stopwatch.time());
    }
    invocation.Print(MarkIfValidated(std::move(json), flags.validate_only));
    return flags.validate_only ? ResizeVerdict(*result, flags.shape, options.uneven)
                               : absl::OkStatus();
  }
  if (flags.validate_only) {
    PrintResizePlan(*result);
    absl::Status verdict = ResizeVerdict(*result, flags.shape, options.uneven);
    std::cout << (verdict.ok() ? "Would move "
                               : "Would be refused; without the refused arrays, it would move ")
              << FormatCount(result->array_count, "array") << ", "
              << FormatBytes(result->moved_bytes) << " between workers\n";
    return verdict;
  }
  if (result->operation_id.empty()) {
    std::cout << "Mesh " << flags.mesh << " is " << flags.shape << " already\n";
  } else {
    std::cout << "Resized mesh " << flags.mesh << " to " << flags.shape << ": moved "
              << FormatCount(result->array_count, "array") << ", "
              << FormatBytes(result->moved_bytes) << " between workers, in "
              << FormatTime(stopwatch.time()) << "\n";
  }
  return absl::OkStatus();
}

void AddResize(CommandLine* line, CLI::App* group) {
  auto flags = std::make_shared<ResizeFlags>();
  CLI::App* const resize = line->AddCommand(
      "resize", "Give a mesh another shape, and move all arrays that lie on it",
      [flags](const Invocation& i) { return RunResize(i, *flags); }, group);
  resize->add_option("mesh", flags->mesh, "name of the mesh in the catalog")->required();
  resize->add_option("shape", flags->shape, "the new axes, such as dp=3 or dp=2,tp=4")->required();
  AddUnevenOptions(resize, &flags->cuts,
                   "equal (refuse arrays that the shape does not divide), ceil, memory or speed");
  resize->add_flag("--validate-only", flags->validate_only,
                   "only ask: show what would move and what would be refused, and change nothing; "
                   "exits with 1 if the resize would be refused");
  resize->footer(
      "The ranks that remain keep their workers; a larger mesh gets further attached workers.\n"
      "Arrays can be read all the time. Ctrl-C goes back to the old shape. If a resize stops\n"
      "midway, repeat it to go on. A refused resize moves nothing; --validate-only asks before,\n"
      "and lists all arrays that would be refused.\n\nExamples:\n"
      "  shardmesh mesh resize default dp=3 --validate-only\n"
      "  shardmesh mesh resize default dp=3 --uneven ceil");
}

void AddShow(CommandLine* line, CLI::App* group) {
  auto flags = std::make_shared<ShowFlags>();
  CLI::App* const show = line->AddCommand(
      "show", "Show a mesh's axes and devices",
      [flags](const Invocation& i) { return RunShow(i, *flags); }, group);
  show->add_option("mesh", flags->mesh,
                   "a mesh: axes as dp=-1,tp=8 or dp:-1,tp:8, YAML file, or name in the catalog "
                   "(default: default)");
  show->add_option("--devices", flags->devices,
                   "how many devices there are; a size of -1 is inferred");
  show->add_flag("--exact", flags->exact, "take what JAX takes: repeated axes, a size of 0");
}

void AddQuery(CommandLine* line, CLI::App* group) {
  auto flags = std::make_shared<QueryFlags>();
  CLI::App* const query = line->AddCommand(
      "query", "Ask about some axes of a mesh",
      [flags](const Invocation& i) { return RunQuery(i, *flags); }, group);
  AddParsedOption(query, "question", &flags->kind, ParseMeshAxesKind,
                  "present, size, mapped-size, index, groups or submesh")
      ->required();
  AddMeshOptions(query, &flags->mesh);
  AddParsedOption(query, "--axes", &flags->axes, ParseNames, "axes of the mesh, such as dp,tp")
      ->required();
  query->add_option("--device", flags->devices,
                    "a position in the mesh, for index, groups and submesh; may be repeated");
  AddExactOption(query, &flags->exact);
}

}  // namespace

void AddMeshCommands(CommandLine* line) {
  CLI::App* const mesh = line->AddGroup("mesh", "Show and resize meshes, and ask about their axes");
  AddShow(line, mesh);
  AddQuery(line, mesh);
  AddResize(line, mesh);

  CLI::App* const spec = line->AddGroup("spec", "Ask about specs");
  auto texts = std::make_shared<std::vector<std::string>>();
  CLI::App* const axes = line->AddCommand(
      "axes", "List the mesh axes that specs name",
      [texts](const Invocation& i) { return RunSpecAxes(i, *texts); }, spec);
  line->TakeSpecOperands(axes);
  axes->add_option("spec", *texts, "specs, such as (fsdp,dp),-,tp")->required();
}

}  // namespace shardmesh::client
