// Commands logical resolve, compose: questions about flax's logical names, which need no worker.
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/grammar.h"
#include "client/cli/shared_options.h"
#include "client/cli/table.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

std::string FormatValue(const AxisValue& value) {
  return value.is_name() ? value.name() : value.is_none() ? "-" : value.ToString();
}

// Returns null for a value that is none, a text for a name, and a list for a tuple or list. Returns
// other values as text in Python's notation.
Json ValueJson(const AxisValue& value) {
  if (value.is_none()) {
    return nullptr;
  }
  if (!value.is_tuple() && !value.is_list()) {
    return value.is_name() ? Json(value.name()) : Json(value.ToString());
  }
  Json entries = Json::array();
  for (const AxisValue& entry : value.entries()) {
    entries.push_back(ValueJson(entry));
  }
  return entries;
}

Json ValuesJson(const std::vector<AxisValue>& values) {
  Json list = Json::array();
  for (const AxisValue& value : values) {
    list.push_back(ValueJson(value));
  }
  return list;
}

std::string_view ActionText(ShardValueAction action) {
  switch (action) {
    case ShardValueAction::kNone:
      return "none";
    case ShardValueAction::kConstrain:
      return "constrain";
    case ShardValueAction::kReshard:
      return "reshard";
  }
  return "none";
}

absl::StatusOr<RulesFallback> ParseFallback(std::string_view text) {
  const std::optional<RulesFallback> fallback = RulesFallbackFromName(text);
  if (!fallback.has_value()) {
    return WrongUse(StrCat("\"", text, "\" is none of ",
                           RulesFallbackName(RulesFallback::kAxisIsUnsharded), ", ",
                           RulesFallbackName(RulesFallback::kRaiseError), ", ",
                           RulesFallbackName(RulesFallback::kNoConstraint)));
  }
  return *fallback;
}

struct ResolveFlags {
  std::vector<AxisValue> names;
  std::string rules;
  std::string context;
  MeshOption mesh;
  bool linen = false;
  std::optional<RulesFallback> fallback;
  bool constrain = false;
  bool values_only = false;
  ExactOption exact;
};

absl::Status RunLinen(const Invocation& invocation, const ResolveFlags& flags) {
  if (!flags.context.empty() || !flags.mesh.empty() || flags.values_only || flags.exact.exact) {
    return WrongUse(
        "--context-rules, --mesh, --values and --exact are about flax.core.spmd, not --linen");
  }
  LinenQuestion question{.names = flags.names,
                         .fallback = flags.fallback.value_or(RulesFallback::kAxisIsUnsharded),
                         .constrain = flags.constrain};
  SHARDMESH_ASSIGN_OR_RETURN(question.rules, SelectLogicalRules(flags.rules));
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.ConnectToAsk());
  SHARDMESH_ASSIGN_OR_RETURN(const std::optional<PartitionSpec> spec,
                             client->layouts().ResolveLinenAxes(question));
  if (invocation.json) {
    invocation.Print({{"spec", spec.has_value() ? SpecJson(*spec) : Json(nullptr)}});
  } else {
    std::cout << (spec.has_value() ? StrCat("spec    ", FormatSpec(*spec))
                                   : std::string("the array stays as it is"))
              << "\n";
  }
  return absl::OkStatus();
}

absl::Status RunSpmd(const Invocation& invocation, const ResolveFlags& flags) {
  if (flags.fallback.has_value() || flags.constrain) {
    return WrongUse("--fallback and --constrain go with --linen");
  }
  if (flags.values_only && !flags.mesh.empty()) {
    return WrongUse("--values shows no spec, but --mesh is only used for a spec; leave one out");
  }
  SpmdQuestion question{.names = flags.names,
                        .values_only = flags.values_only,
                        .compatibility = flags.exact.compatibility()};
  SHARDMESH_ASSIGN_OR_RETURN(question.rules, SelectLogicalRules(flags.rules));
  SHARDMESH_ASSIGN_OR_RETURN(question.context_rules, SelectLogicalRules(flags.context));
  if (!flags.mesh.empty()) {
    SHARDMESH_ASSIGN_OR_RETURN(question.mesh, SelectMesh(flags.mesh, question.compatibility));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.ConnectToAsk());
  SHARDMESH_ASSIGN_OR_RETURN(const SpmdAnswer answer, client->layouts().ResolveSpmdAxes(question));
  if (invocation.json) {
    invocation.Print(
        {{"values", ValuesJson(answer.values)},
         {"spec", answer.spec.has_value() ? SpecJson(*answer.spec) : Json(nullptr)},
         {"action", answer.action.has_value() ? Json(std::string(ActionText(*answer.action)))
                                              : Json(nullptr)},
         {"revision", answer.revision}});
    return absl::OkStatus();
  }
  std::cout << "values  "
            << StrJoin(answer.values, ",",
                       [](std::string* out, const AxisValue& value) {
                         out->append(FormatValue(value));
                       })
            << "\n";
  if (answer.spec.has_value()) {
    std::cout << "spec    " << FormatSpec(*answer.spec) << "\n";
  }
  if (answer.action.has_value()) {
    std::cout << "action  " << ActionText(*answer.action) << "\n";
  }
  return absl::OkStatus();
}

struct ComposeFlags {
  std::string first;
  std::string second;
};

absl::Status RunCompose(const Invocation& invocation, const ComposeFlags& flags) {
  SHARDMESH_ASSIGN_OR_RETURN(const LogicalRulesSelector first, SelectLogicalRules(flags.first));
  SHARDMESH_ASSIGN_OR_RETURN(const LogicalRulesSelector second, SelectLogicalRules(flags.second));
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.ConnectToAsk());
  SHARDMESH_ASSIGN_OR_RETURN(const LogicalRules rules,
                             client->layouts().ComposeLogicalRules(first, second));
  Json list = Json::array();
  Table table({{"name"}, {"mesh axes"}});
  for (const LogicalRule& rule : rules) {
    list.push_back({{"name", rule.name}, {"axes", ValueJson(rule.mesh_axes)}});
    table.AddRow({rule.name, FormatValue(rule.mesh_axes)});
  }
  if (invocation.json) {
    invocation.Print({{"rules", std::move(list)}});
  } else {
    table.Print();
  }
  return absl::OkStatus();
}

constexpr char kRulesHelp[] = "logical rules: YAML file, or name in the catalog";

}  // namespace

void AddLogicalCommands(CommandLine* line) {
  CLI::App* const logical =
      line->AddGroup("logical", "Questions about logical names of flax: resolve, compose");

  auto flags = std::make_shared<ResolveFlags>();
  CLI::App* const resolve = line->AddCommand(
      "resolve", "Resolve logical names to a spec, as flax.core.spmd or flax.linen do",
      [flags](const Invocation& i) {
        return flags->linen ? RunLinen(i, *flags) : RunSpmd(i, *flags);
      },
      logical);
  AddParsedOption(resolve, "--names", &flags->names, ParseAxes,
                  "logical names, one a dimension, such as batch,embed; - for none")
      ->required();
  resolve->add_option("--rules", flags->rules, kRulesHelp);
  resolve->add_option("--context-rules", flags->context,
                      StrCat("those that hold around the array; ", kRulesHelp));
  AddMeshOptions(resolve, &flags->mesh,
                 "show the layout of an array on this mesh: axes as dp=4,tp=8:explicit, YAML file, "
                 "or name in the catalog");
  resolve->add_flag("--linen", flags->linen, "by flax.linen: rules in order, an axis used once");
  AddParsedOption(resolve, "--fallback", &flags->fallback, ParseFallback,
                  "linen, for names that get nothing: axis_is_unsharded (default), raise_error, "
                  "no_constraint");
  resolve->add_flag("--constrain", flags->constrain,
                    "linen: without any rules the array stays as it is");
  resolve->add_flag("--values", flags->values_only, "only the values, without a spec");
  AddExactOption(resolve, &flags->exact);

  auto composed = std::make_shared<ComposeFlags>();
  CLI::App* const compose = line->AddCommand(
      "compose", "Join two lists of logical rules, which may not disagree",
      [composed](const Invocation& i) { return RunCompose(i, *composed); }, logical);
  compose->add_option("first", composed->first, kRulesHelp)->required();
  compose->add_option("second", composed->second, kRulesHelp)->required();
}

}  // namespace shardmesh::client
