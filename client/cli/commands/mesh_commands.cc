// Commands mesh show, mesh query, spec axes: meshes, some of their axes, and the axes that specs
// name.
#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/grammar.h"
#include "client/cli/shared_options.h"
#include "client/cli/table.h"
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
  CLI::App* const mesh = line->AddGroup("mesh", "Show meshes, and ask about their axes");
  AddShow(line, mesh);
  AddQuery(line, mesh);

  CLI::App* const spec = line->AddGroup("spec", "Ask about specs");
  auto texts = std::make_shared<std::vector<std::string>>();
  CLI::App* const axes = line->AddCommand(
      "axes", "List the mesh axes that specs name",
      [texts](const Invocation& i) { return RunSpecAxes(i, *texts); }, spec);
  line->TakeSpecOperands(axes);
  axes->add_option("spec", *texts, "specs, such as (fsdp,dp),-,tp")->required();
}

}  // namespace shardmesh::client
