// Commands catalog ls, get, history, put, rm: named definitions of meshes, profiles, rules and
// trees.
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/grammar.h"
#include "client/cli/inputs/tree_source.h"
#include "client/cli/shared_options.h"
#include "client/cli/table.h"
#include "rpc/config.h"
#include "sharding/axis_value.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"

namespace shardmesh::client {
namespace {

std::string_view KindName(EntryKind kind) {
  switch (kind) {
    case EntryKind::kMesh:
      return "mesh";
    case EntryKind::kProfile:
      return "profile";
    case EntryKind::kRuleSet:
      return "rules";
    case EntryKind::kLogicalRules:
      return "logical";
    case EntryKind::kTree:
      return "tree";
  }
  return "entry";
}

// Returns one line about a definition.
std::string Summary(const EntryValue& value) {
  struct Visitor {
    std::string operator()(const MeshDefinition& mesh) const {
      return StrCat(mesh.mesh.ToString(), mesh.workers.empty()
                                              ? std::string()
                                              : StrCat(" over ", StrJoin(mesh.workers, ",")));
    }
    std::string operator()(const PartitionAxis& profile) const {
      return StrCat("batch on ", profile.field(AxisField::kBatch).ToString(), ", heads on ",
                    profile.field(AxisField::kHead).ToString());
    }
    std::string operator()(const RuleSetDefinition& rules) const {
      return FormatCount(rules.rules.rules().size(), "rule");
    }
    std::string operator()(const LogicalRules& rules) const {
      return FormatCount(rules.size(), "logical rule");
    }
    std::string operator()(const StoredTree& tree) const {
      return StrCat(FormatCount(tree.tensor_count, "tensor"), ", ",
                    FormatCount(tree.parameters, "parameter"), ", ", FormatBytes(tree.bytes));
    }
  };
  return std::visit(Visitor(), value);
}

Json ValueJson(const EntryValue& value) {
  struct Visitor {
    Json operator()(const MeshDefinition& mesh) const {
      return {{"axes", MeshJson(mesh.mesh)}, {"workers", mesh.workers}};
    }
    Json operator()(const PartitionAxis& profile) const {
      Json fields = Json::object();
      for (size_t i = 0; i < AxisFieldNames().size(); ++i) {
        fields[std::string(AxisFieldNames()[i])] =
            profile.field(static_cast<AxisField>(i)).ToString();
      }
      Json axes = Json::object();
      for (const SemanticAxis& axis : profile.semantic_axes()) {
        axes[axis.name] = axis.value.ToString();
      }
      return {{"fields", std::move(fields)}, {"axes", std::move(axes)}};
    }
    Json operator()(const RuleSetDefinition& definition) const {
      Json rules = Json::array();
      for (const Rule& rule : definition.rules.rules()) {
        rules.push_back({{"pattern", rule.pattern}, {"spec", SpecJson(rule.spec)}});
      }
      return {{"rules", std::move(rules)},
              {"min_size", definition.rules.min_size()},
              {"strict", definition.rules.strict()},
              {"separator", definition.slashes ? "/" : "."}};
    }
    Json operator()(const LogicalRules& rules) const {
      Json list = Json::array();
      for (const LogicalRule& rule : rules) {
        list.push_back({{"name", rule.name}, {"axes", rule.mesh_axes.ToString()}});
      }
      return {{"rules", std::move(list)}};
    }
    Json operator()(const StoredTree& tree) const {
      return {
          {"tensors", tree.tensor_count}, {"parameters", tree.parameters}, {"bytes", tree.bytes}};
    }
  };
  return std::visit(Visitor(), value);
}

// Returns the Summary of the entry's value; for a mesh, also with the workers that are assigned to
// the mesh.
std::string Summary(const Entry& entry) {
  const auto* const mesh = std::get_if<MeshDefinition>(&entry.value);
  if (mesh == nullptr || !mesh->workers.empty() || entry.workers.empty()) {
    return Summary(entry.value);
  }
  return StrCat(Summary(entry.value), " over ", StrJoin(entry.workers, ","));
}

Json EntryJson(const Entry& entry) {
  Json json = {{"kind", std::string(KindName(KindOf(entry.value)))},
               {"name", entry.name},
               {"uid", entry.uid},
               {"version", entry.version},
               {"revision", entry.revision},
               {"value", ValueJson(entry.value)}};
  if (std::holds_alternative<MeshDefinition>(entry.value)) json["workers"] = entry.workers;
  return json;
}

Json AxisJson(const AxisValue& axis) {
  if (axis.is_name()) {
    return axis.name();
  }
  if (axis.is_none()) {
    return nullptr;
  }
  Json list = Json::array();
  for (const AxisValue& item : axis.entries()) {
    list.push_back(AxisJson(item));
  }
  return list;
}

// Returns the tensors in the form of a tree file.
Json TreeJson(const std::vector<TreeTensor>& tensors) {
  Json::object_t tree;
  tree.reserve(tensors.size());
  for (const TreeTensor& tensor : tensors) {
    Json json = {{"shape", ShapeJson(tensor.shape)}};
    if (tensor.dtype.has_value()) {
      json["dtype"] = std::string(DtypeName(*tensor.dtype));
    }
    if (tensor.axes.has_value()) {
      Json& axes = json["axes"] = Json::array();
      for (const AxisValue& axis : *tensor.axes) {
        axes.push_back(AxisJson(axis));
      }
    }
    if (tensor.spec.has_value()) {
      json["spec"] = SpecJson(*tensor.spec);
    }
    tree.emplace_back(tensor.name, std::move(json));  // names are unique, so no lookup is needed
  }
  return Json(std::move(tree));
}

// Returns the layout that a tensor requests itself, by a spec or axes; empty if the tensor has
// neither, so that rules decide.
std::string OwnLayout(const TreeTensor& tensor) {
  if (tensor.spec.has_value()) {
    return StrCat("spec ", FormatSpec(*tensor.spec));
  }
  return tensor.axes.has_value()
             ? StrCat("axes ",
                      StrJoin(*tensor.axes, ",",
                              [](std::string* out, const AxisValue& axis) {
                                out->append(axis.is_name() ? axis.name() : axis.ToString());
                              }))
             : std::string();
}

void PrintValue(const Entry& entry) {
  struct Visitor {
    const Entry& entry;
    void operator()(const MeshDefinition&) const { std::cout << Summary(entry) << "\n"; }
    void operator()(const PartitionAxis& profile) const {
      Table table({{"field"}, {"mesh axes"}});
      for (size_t i = 0; i < AxisFieldNames().size(); ++i) {
        table.AddRow({std::string(AxisFieldNames()[i]),
                      profile.field(static_cast<AxisField>(i)).ToString()});
      }
      for (const SemanticAxis& axis : profile.semantic_axes()) {
        table.AddRow({axis.name, axis.value.ToString()});
      }
      table.Print();
    }
    void operator()(const RuleSetDefinition& definition) const {
      Table table({{"rule", Table::Align::kRight}, {"pattern"}, {"spec"}});
      for (size_t i = 0; i < definition.rules.rules().size(); ++i) {
        const Rule& rule = definition.rules.rules()[i];
        table.AddRow({StrCat(i), rule.pattern, FormatSpec(rule.spec)});
      }
      table.Print();
    }
    void operator()(const LogicalRules& rules) const {
      Table table({{"name"}, {"mesh axes"}});
      for (const LogicalRule& rule : rules) {
        table.AddRow({rule.name, rule.mesh_axes.ToString()});
      }
      table.Print();
    }
    void operator()(const StoredTree& tree) const {
      Table table({{"tensor"}, {"dtype"}, {"shape"}, {"asks for"}});
      for (const TreeTensor& tensor : tree.tensors) {
        table.AddRow({tensor.name,
                      tensor.dtype.has_value() ? std::string(DtypeName(*tensor.dtype)) : "-",
                      FormatShape(tensor.shape), OwnLayout(tensor)});
      }
      table.Print();
      std::cout << "\n" << Summary(tree) << "\n";
    }
  };
  std::visit(Visitor{entry}, entry.value);
}

absl::StatusOr<EntryValue> LoadValue(EntryKind kind, const std::string& path) {
  switch (kind) {
    case EntryKind::kMesh: {
      absl::StatusOr<MeshDefinition> loaded = rpc::LoadMesh(path);
      if (loaded.status().code() == absl::StatusCode::kNotFound && absl::StrContains(path, '=')) {
        return absl::NotFoundError(
            StrCat("there is no file ", path,
                   "; FILE is YAML, such as axes: [{name: dp, size: 2}, {name: tp, size: 2}]"));
      }
      SHARDMESH_ASSIGN_OR_RETURN(MeshDefinition mesh, std::move(loaded));
      return EntryValue(std::move(mesh));
    }
    case EntryKind::kProfile: {
      SHARDMESH_ASSIGN_OR_RETURN(PartitionAxis profile, rpc::LoadProfile(path));
      return EntryValue(std::move(profile));
    }
    case EntryKind::kRuleSet: {
      SHARDMESH_ASSIGN_OR_RETURN(RuleSetDefinition rules, rpc::LoadRules(path));
      return EntryValue(std::move(rules));
    }
    case EntryKind::kLogicalRules: {
      SHARDMESH_ASSIGN_OR_RETURN(LogicalRules rules, rpc::LoadLogicalRules(path));
      return EntryValue(std::move(rules));
    }
    case EntryKind::kTree: {
      SHARDMESH_ASSIGN_OR_RETURN(std::vector<TreeTensor> tensors, ReadTree(path));
      return EntryValue(StoredTree{.tensors = std::move(tensors)});
    }
  }
  return WrongUse("an entry is a mesh, a profile, rules, logical rules or a tree");
}

struct EntryFlags {
  EntryKind kind = EntryKind::kMesh;
  std::string name;
  std::string path;
  std::optional<int64_t> version;
  bool validate_only = false;
};

struct ListFlags {
  std::vector<EntryKind> kinds = {EntryKind::kMesh, EntryKind::kProfile, EntryKind::kRuleSet,
                                  EntryKind::kLogicalRules, EntryKind::kTree};
  std::string prefix;
};

absl::Status RunList(const Invocation& invocation, const ListFlags& flags) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  Json list = Json::array();
  std::vector<std::string> names;
  Table table({{"kind"},
               {"name"},
               {"version", Table::Align::kRight},
               {"revision", Table::Align::kRight, Table::Shown::kWide},
               {"what"}});
  for (const EntryKind kind : flags.kinds) {
    SHARDMESH_ASSIGN_OR_RETURN(const std::vector<Entry> entries,
                               client->catalog().ListEntries(kind, flags.prefix));
    for (const Entry& entry : entries) {
      list.push_back(EntryJson(entry));
      names.push_back(entry.name);
      table.AddRow({std::string(KindName(kind)), entry.name, StrCat(entry.version),
                    StrCat(entry.revision), Summary(entry)});
    }
  }
  if (invocation.json) {
    invocation.Print(list);
  } else if (invocation.names()) {
    PrintNames(names);
  } else {
    table.Print();
  }
  return absl::OkStatus();
}

absl::Status RunGetEntry(const Invocation& invocation, const EntryFlags& flags) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  SHARDMESH_ASSIGN_OR_RETURN(const Entry entry, client->catalog().GetEntry(flags.kind, flags.name));
  const auto* const tree = std::get_if<StoredTree>(&entry.value);
  if (invocation.json) {
    // A stored tree is printed as a tree file. A tree file has no version; `catalog ls` shows the
    // version.
    invocation.Print(tree == nullptr ? EntryJson(entry) : TreeJson(tree->tensors));
  } else {
    std::cout << KindName(flags.kind) << " " << entry.name << ", version " << entry.version
              << "\n\n";
    PrintValue(entry);
  }
  return absl::OkStatus();
}

// Returns the time in UTC, to the second.
std::string FormatDate(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", time, absl::UTCTimeZone());
}

absl::Status RunHistory(const Invocation& invocation, const EntryFlags& flags) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<EntryVersion> versions,
                             client->catalog().ListEntryVersions(flags.kind, flags.name));
  Json list = Json::array();
  std::vector<std::string> names;
  Table table({{"version", Table::Align::kRight},
               {"made"},
               {"revision", Table::Align::kRight},
               {"size", Table::Align::kRight}});
  for (const EntryVersion& version : versions) {
    list.push_back({{"version", version.version},
                    {"update_time", FormatDate(version.update_time)},
                    {"revision", version.revision},
                    {"size_bytes", version.size_bytes}});
    names.push_back(StrCat(flags.name, "@", version.version));
    table.AddRow({StrCat(version.version), FormatDate(version.update_time),
                  StrCat(version.revision), FormatBytes(version.size_bytes)});
  }
  if (invocation.json) {
    invocation.Print(list);
  } else if (invocation.names()) {
    PrintNames(names);
  } else {
    table.Print();
  }
  return absl::OkStatus();
}

absl::Status RunPut(const Invocation& invocation, const EntryFlags& flags) {
  absl::StatusOr<EntryValue> loaded = LoadValue(flags.kind, flags.path);
  if (absl::IsNotFound(loaded.status()) &&
      (absl::EndsWith(flags.name, ".yaml") || absl::EndsWith(flags.name, ".yml"))) {
    return WithMessage(loaded.status(),
                       StrCat(ToStd(loaded.status().message()),
                              "; the name comes first: write `shardmesh catalog put ",
                              KindName(flags.kind), " ", flags.path, " ", flags.name, "`"));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const EntryValue value, std::move(loaded));
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  absl::StatusOr<Entry> entry = absl::AlreadyExistsError("");
  if (!flags.version.has_value()) {
    entry = client->catalog().CreateEntry(flags.name, value, flags.validate_only);
  }
  if (absl::IsAlreadyExists(entry.status())) {
    entry = client->catalog().UpdateEntry(flags.name, value, flags.version, flags.validate_only);
  }
  SHARDMESH_RETURN_IF_ERROR(entry.status());
  if (invocation.json) {
    invocation.Print(MarkIfValidated(EntryJson(*entry), flags.validate_only));
  } else {
    std::cout << (flags.validate_only ? "Would put " : "Put ") << KindName(flags.kind) << " "
              << entry->name << ", version " << entry->version << "\n";
  }
  return absl::OkStatus();
}

absl::Status RunDelete(const Invocation& invocation, const EntryFlags& flags) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  SHARDMESH_ASSIGN_OR_RETURN(
      const int64_t revision,
      client->catalog().DeleteEntry(flags.kind, flags.name, flags.version, flags.validate_only));
  if (invocation.json) {
    invocation.Print(MarkIfValidated(
        {{"kind", std::string(KindName(flags.kind))}, {"name", flags.name}, {"revision", revision}},
        flags.validate_only));
  } else {
    std::cout << (flags.validate_only ? "Would remove " : "Removed ") << KindName(flags.kind) << " "
              << flags.name << "\n";
  }
  return absl::OkStatus();
}

// Defines a command about one entry. The command calls `run` with the entry's kind and name.
CLI::App* AddEntryCommand(CommandLine* line, CLI::App* catalog, const std::string& name,
                          const std::string& help, EntryFlags* flags, Handler handler) {
  CLI::App* const command = line->AddCommand(name, help, std::move(handler), catalog);
  AddParsedOption(command, "kind", &flags->kind, ParseEntryKind,
                  "mesh, profile, rules, logical or tree")
      ->type_name("{mesh,profile,rules,logical,tree}")
      ->required();
  command->add_option("entry", flags->name, "name of the entry")->required();
  return command;
}

constexpr char kVersionHelp[] = "fail unless this is the entry's version now";

}  // namespace

void AddCatalogCommands(CommandLine* line) {
  CLI::App* const catalog = line->AddGroup(
      "catalog",
      "Named definitions of meshes, profiles, rules and trees: ls, get, history, put, rm");

  auto listed = std::make_shared<ListFlags>();
  CLI::App* const ls = line->AddCommand(
      "ls", "List the entries", [listed](const Invocation& i) { return RunList(i, *listed); },
      catalog);
  line->PrintsNames(ls);
  line->CanBeWatched(ls);
  AddParsedOption(
      ls, "kind", &listed->kinds,
      [](std::string_view text) -> absl::StatusOr<std::vector<EntryKind>> {
        SHARDMESH_ASSIGN_OR_RETURN(const EntryKind kind, ParseEntryKind(text));
        return std::vector<EntryKind>{kind};
      },
      "mesh, profile, rules, logical or tree (default: all)")
      ->type_name("{mesh,profile,rules,logical,tree}");
  ls->add_option("--prefix", listed->prefix, "only entries whose name has this prefix");

  auto got = std::make_shared<EntryFlags>();
  AddEntryCommand(line, catalog, "get", "Show an entry, or with NAME@VERSION an older one",
                  got.get(), [got](const Invocation& i) { return RunGetEntry(i, *got); });

  auto looked_up = std::make_shared<EntryFlags>();
  CLI::App* const history = AddEntryCommand(
      line, catalog, "history", "List the versions of an entry that are kept", looked_up.get(),
      [looked_up](const Invocation& i) { return RunHistory(i, *looked_up); });
  line->PrintsNames(history);
  line->CanBeWatched(history);

  auto put = std::make_shared<EntryFlags>();
  CLI::App* const put_command =
      AddEntryCommand(line, catalog, "put", "Create an entry from a file, or replace it", put.get(),
                      [put](const Invocation& i) { return RunPut(i, *put); });
  put_command->add_option("file", put->path, StrCat("YAML file; for a tree: ", kTreeHelp))
      ->required();
  put_command->add_option("--if-version", put->version, kVersionHelp)->check(WholeNumberFrom(1));
  put_command->add_flag("--validate-only", put->validate_only,
                        "check everything, and change nothing");

  auto removed = std::make_shared<EntryFlags>();
  CLI::App* const rm =
      AddEntryCommand(line, catalog, "rm", "Remove an entry", removed.get(),
                      [removed](const Invocation& i) { return RunDelete(i, *removed); });
  rm->add_option("--if-version", removed->version, kVersionHelp)->check(WholeNumberFrom(1));
  rm->add_flag("--validate-only", removed->validate_only, "check everything, and remove nothing");
}

}  // namespace shardmesh::client
