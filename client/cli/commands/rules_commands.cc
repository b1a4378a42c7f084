// Commands rules lint, diff, test, rewrite, from-text: questions about rules, which need no worker.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/grammar.h"
#include "client/cli/inputs/tree_source.h"
#include "client/cli/placement.h"
#include "client/cli/shared_options.h"
#include "client/cli/table.h"
#include "rpc/config.h"
#include "rpc/flags.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

// Returns an error whose exit code is kExitFailed: the question was answered, but the verdict is
// negative.
absl::Status Verdict(std::string_view message) {
  return absl::FailedPreconditionError(ToAbsl(message));
}

Json RulesJson(absl::Span<const Rule> rules) {
  Json list = Json::array();
  for (const Rule& rule : rules) {
    list.push_back({{"pattern", rule.pattern}, {"spec", SpecJson(rule.spec)}});
  }
  return list;
}

struct LintFlags {
  std::string rules;
  std::vector<std::string> trees;
  std::vector<std::string> stored_trees;
  std::vector<std::string> meshes;
  std::optional<std::string> held_prefix;
  std::string profile;
  int64_t max_findings = 100;
  bool strict = false;
  bool exact = false;
};

// Reads the tensors of all tree files, one file after another. If there are several files, the
// question records which tensors belong to which file.
absl::StatusOr<std::vector<TreeTensor>> ReadTrees(const std::vector<std::string>& paths,
                                                  LintQuestion* question) {
  std::vector<TreeTensor> all;
  for (size_t i = 0; i < paths.size(); ++i) {
    if (std::find(paths.begin(), paths.begin() + static_cast<std::ptrdiff_t>(i), paths[i]) !=
        paths.begin() + static_cast<std::ptrdiff_t>(i)) {
      return WrongUse(StrCat("--tree ", paths[i], " is given twice"));
    }
    SHARDMESH_ASSIGN_OR_RETURN(std::vector<TreeTensor> tree, ReadTree(paths[i]));
    if (paths.size() > 1) {
      question->given_trees.push_back({paths[i], static_cast<int64_t>(tree.size())});
    }
    std::move(tree.begin(), tree.end(), std::back_inserter(all));
  }
  return all;
}

std::string_view SourceName(LintedTree::Source source) {
  switch (source) {
    case LintedTree::Source::kGiven:
      return "given";
    case LintedTree::Source::kCatalog:
      return "catalog";
    case LintedTree::Source::kHeld:
      return "held";
  }
  return "";
}

// Returns the number of tensors, in all trees, that were not matched against rules: scalars, and
// leaves without shape.
int64_t ScalarsOf(const LintAnswer& answer) {
  int64_t scalars = 0;
  for (const LintedTree& tree : answer.trees) {
    scalars += tree.report.scalars;
  }
  return scalars;
}

Json LintJson(const LintAnswer& answer) {
  Json findings = Json::array();
  for (const Finding& finding : answer.findings) {
    Json modes = Json::array();
    for (const RuntimeMode mode : finding.modes) {
      modes.push_back(std::string(RuntimeModeName(mode)));
    }
    Json trees = Json::array();
    for (const Finding::InTree& in : finding.trees) {
      trees.push_back({{"tree", in.tree}, {"tensors", in.tensors}});
    }
    findings.push_back({{"kind", std::string(FindingKindName(finding.kind))},
                        {"rules", finding.rules},
                        {"tensor", finding.tensor},
                        {"tensors", finding.count},
                        {"trees", std::move(trees)},
                        {"mesh", finding.mesh},
                        {"modes", std::move(modes)},
                        {"reason", finding.reason == Reason::kUnspecified
                                       ? Json(nullptr)
                                       : Json(std::string(ReasonName(finding.reason)))},
                        {"text", finding.text}});
  }
  Json trees = Json::array();
  for (const LintedTree& tree : answer.trees) {
    const bool of_catalog = tree.source == LintedTree::Source::kCatalog;
    trees.push_back({{"source", std::string(SourceName(tree.source))},
                     {"name", tree.name.empty() ? Json(nullptr) : Json(tree.name)},
                     {"version", of_catalog ? Json(tree.version) : Json(nullptr)},
                     {"tensors", tree.report.tensors},
                     {"scalars", tree.report.scalars},
                     {"own_specs", tree.own_specs},
                     {"dead_rules", tree.report.dead_rules},
                     {"shadowed_rules", tree.report.shadowed_rules},
                     {"unmatched_tensors", tree.report.unmatched_tensors}});
  }
  Json counts = Json::object();
  for (int64_t kind = 0; kind < kFindingKindCount; ++kind) {
    const auto named = static_cast<Finding::Kind>(kind);
    counts[std::string(FindingKindName(named))] = answer.count(named);
  }
  return {{"findings", std::move(findings)}, {"counts", std::move(counts)},
          {"trees", std::move(trees)},       {"tensors", answer.tensors},
          {"scalars", ScalarsOf(answer)},    {"meshes", answer.meshes},
          {"revision", answer.revision}};
}

// Prints counts for each tree. Prints nothing if the only tree is a tree of the request.
void PrintTrees(const std::vector<LintedTree>& trees) {
  if (trees.empty() || (trees.size() == 1 && trees[0].source == LintedTree::Source::kGiven)) {
    return;
  }
  Table table({{"tree"},
               {"version", Table::Align::kRight},
               {"tensors", Table::Align::kRight},
               {"dead rules", Table::Align::kRight},
               {"shadowed rules", Table::Align::kRight},
               {"unmatched", Table::Align::kRight},
               {"scalars", Table::Align::kRight},
               {"own specs", Table::Align::kRight}});
  for (const LintedTree& tree : trees) {
    const bool of_catalog = tree.source == LintedTree::Source::kCatalog;
    table.AddRow({!tree.name.empty()                         ? tree.name
                  : tree.source == LintedTree::Source::kHeld ? "(the cluster's arrays)"
                                                             : "(given)",
                  of_catalog ? StrCat(tree.version) : "-", StrCat(tree.report.tensors),
                  StrCat(tree.report.dead_rules), StrCat(tree.report.shadowed_rules),
                  StrCat(tree.report.unmatched_tensors), StrCat(tree.report.scalars),
                  StrCat(tree.own_specs)});
  }
  table.Print();
  std::cout << "\n";
}

absl::Status RunLint(const Invocation& invocation, const LintFlags& flags) {
  if (!flags.trees.empty() && !flags.stored_trees.empty()) {
    return WrongUse("--tree and --stored-tree exclude each other; store the file's tree too");
  }
  const bool looks_at_all =
      flags.trees.empty() && flags.stored_trees.empty() && !flags.held_prefix.has_value();
  LintQuestion question;
  question.stored_trees = flags.stored_trees;
  question.all_stored_trees = looks_at_all;
  SHARDMESH_ASSIGN_OR_RETURN(question.rules, SelectRules(flags.rules, Compatibility::kExact));
  SHARDMESH_ASSIGN_OR_RETURN(question.profile, SelectProfile(flags.profile));
  for (const std::string& mesh : flags.meshes) {
    SHARDMESH_ASSIGN_OR_RETURN(MeshSelector selector, SelectMesh(mesh));
    question.meshes.push_back(std::move(selector));
  }
  question.held_prefix = looks_at_all ? std::optional<std::string>("") : flags.held_prefix;
  question.max_findings = flags.max_findings;
  question.compatibility = flags.exact ? Compatibility::kExact : Compatibility::kDefault;
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<TreeTensor> tree, ReadTrees(flags.trees, &question));
  // A question about the cluster's arrays needs a cluster. This process may answer other questions.
  std::shared_ptr<MeshClient> client;
  if (question.held_prefix.has_value()) {
    SHARDMESH_ASSIGN_OR_RETURN(client, invocation.Connect());
  } else {
    SHARDMESH_ASSIGN_OR_RETURN(client, invocation.ConnectToAsk());
  }
  SHARDMESH_ASSIGN_OR_RETURN(const LintAnswer answer, client->layouts().LintRules(question, tree));

  if (looks_at_all && answer.tensors == 0) {
    return Verdict(
        "there is nothing to look at: the cluster holds no arrays, and the catalog has no trees "
        "with tensors for rules; give --tree FILE, or store one by catalog put tree NAME FILE");
  }
  if (answer.meshes == 0) {
    // With --strict, a command in a CI pipeline must not succeed if it checked nothing.
    constexpr char kNoMesh[] = "no mesh was checked: give --mesh, such as --mesh fsdp=2,tp=2";
    if (flags.strict) {
      return WrongUse(kNoMesh);
    }
    std::cerr << kNoMesh << "\n";
  }
  int64_t all = 0;
  for (const int64_t count : answer.counts) {
    all += count;
  }
  const int64_t corrections = answer.count(Finding::Kind::kCorrected);
  if (invocation.json) {
    invocation.Print(LintJson(answer));
  } else {
    if (!answer.findings.empty()) {
      Table table({{"kind"}, {"what"}});
      for (const Finding& finding : answer.findings) {
        table.AddRow({std::string(FindingKindName(finding.kind)), finding.text});
      }
      table.Print();
      std::cout << "\n";
    }
    PrintTrees(answer.trees);
    std::cout << FormatCount(answer.tensors, "tensor")
              << (answer.trees.size() > 1 ? StrCat(" of ", answer.trees.size(), " trees") : "")
              << " on " << (answer.meshes == 1 ? "1 mesh" : StrCat(answer.meshes, " meshes"))
              << ": " << FormatCount(all - corrections, "finding") << ", "
              << FormatCount(corrections, "correction")
              << (flags.strict || corrections == 0 ? "" : " (not counted without --strict)");
    if (static_cast<int64_t>(answer.findings.size()) < all) {
      std::cout << "; " << all - static_cast<int64_t>(answer.findings.size()) << " not listed";
    }
    std::cout << "\n";
    if (const int64_t scalars = ScalarsOf(answer); scalars > 0) {
      std::cout << FormatCount(scalars, "scalar")
                << " of these left out: a strict rule set is not asked about scalars\n";
    }
  }
  const int64_t faults = flags.strict ? all : all - corrections;
  return faults == 0 ? absl::OkStatus()
                     : Verdict(StrCat("the rules have ", FormatCount(faults, "finding"),
                                      flags.strict ? "" : " beside corrections"));
}

// An increase in bytes: `5%` or a number of bytes.
struct Increase {
  std::optional<int64_t> bytes;
  std::optional<double> ratio;
};

absl::StatusOr<Increase> ParseIncrease(std::string_view text) {
  Increase increase;
  if (text.ends_with('%')) {
    double percent = 0;
    if (!absl::SimpleAtod(ToAbsl(text.substr(0, text.size() - 1)), &percent) ||
        !std::isfinite(percent) || percent < 0) {
      return WrongUse(StrCat("\"", text, "\" is no increase; write 5% or 512MiB"));
    }
    increase.ratio = percent / 100;
    return increase;
  }
  if (!text.empty() && text.find_first_not_of("0123456789.") == std::string_view::npos) {
    return WrongUse(StrCat("\"", text, "\" has no unit; write ", text, "% or ", text, "B"));
  }
  SHARDMESH_ASSIGN_OR_RETURN(increase.bytes, ParseSize(text));
  return increase;
}

struct DiffFlags {
  std::string a;
  std::string b;
  std::string tree;
  std::string stored_tree;
  MeshOption mesh;
  std::string mesh_b;
  std::string profile;
  ModeOption mode;
  Increase max_increase;
  std::optional<int64_t> max_bytes;
  ExactOption exact;
};

Json DiffJson(const DiffAnswer& answer) {
  Json changes = Json::array();
  for (const TensorDiff& change : answer.changes) {
    changes.push_back({{"name", change.name},
                       {"a", SpecJson(*change.spec_a)},
                       {"b", SpecJson(*change.spec_b)},
                       {"a_bytes_per_device", change.bytes_per_device_a},
                       {"b_bytes_per_device", change.bytes_per_device_b},
                       {"spec_changed", change.spec_differs},
                       {"tiles_changed", change.tiles_differ}});
  }
  return {{"changes", std::move(changes)}, {"a", ReportJson(answer.a)},
          {"b", ReportJson(answer.b)},     {"within_budget", answer.within_budget},
          {"budget", answer.budget_text},  {"revision", answer.revision}};
}

// Tensors of a diff that have the same change, and whose names differ only in numbers.
struct ChangeGroup {
  const TensorDiff* first = nullptr;
  int64_t tensors = 0;
};

std::vector<ChangeGroup> GroupChanges(const std::vector<TensorDiff>& changes) {
  std::vector<ChangeGroup> groups;
  std::map<std::string, size_t> known;
  for (const TensorDiff& change : changes) {
    const std::string key = StrCat(NamePattern(change.name), "\n", FormatSpec(*change.spec_a), "\n",
                                   FormatSpec(*change.spec_b), "\n", change.bytes_per_device_a, " ",
                                   change.bytes_per_device_b, " ", change.tiles_differ ? 1 : 0);
    const auto [place, is_new] = known.try_emplace(key, groups.size());
    if (is_new) {
      groups.push_back({&change});
    }
    ++groups[place->second].tensors;
  }
  return groups;
}

// `named_mesh` describes the mesh of a diff without --mesh, such as ` on mesh default fsdp=2`; else
// it is empty.
void PrintDiff(const DiffAnswer& answer, const std::string& named_mesh) {
  if (!answer.changes.empty()) {
    Table table({{"tensor"},
                 {"how many", Table::Align::kRight},
                 {"before"},
                 {"after"},
                 {"bytes/device", Table::Align::kRight},
                 {"after", Table::Align::kRight},
                 {"tiles"}});
    for (const ChangeGroup& group : GroupChanges(answer.changes)) {
      const TensorDiff& change = *group.first;
      table.AddRow({group.tensors == 1 ? change.name : NamePattern(change.name),
                    StrCat(group.tensors), FormatSpec(*change.spec_a), FormatSpec(*change.spec_b),
                    FormatBytes(change.bytes_per_device_a), FormatBytes(change.bytes_per_device_b),
                    change.tiles_differ ? "others" : "the same"});
    }
    table.Print();
    std::cout << "\n";
  }
  std::cout << answer.changes.size() << " of " << FormatCount(answer.a.layout.tensors, "tensor")
            << " differ" << named_mesh << "; the most loaded device holds "
            << FormatBytes(answer.a.layout.most_device_bytes) << " before, "
            << FormatBytes(answer.b.layout.most_device_bytes) << " after\n";
}

absl::Status RunDiff(const Invocation& invocation, const DiffFlags& flags) {
  if (flags.tree.empty() == flags.stored_tree.empty()) {
    return WrongUse("give one tree to compare the layouts of: --tree FILE or --stored-tree NAME");
  }
  DiffQuestion question;
  question.stored_tree = flags.stored_tree;
  question.compatibility = flags.exact.compatibility();
  SHARDMESH_ASSIGN_OR_RETURN(question.a.rules, SelectRules(flags.a, question.compatibility));
  SHARDMESH_ASSIGN_OR_RETURN(question.b.rules, SelectRules(flags.b, question.compatibility));
  SHARDMESH_ASSIGN_OR_RETURN(question.a.mesh, SelectMesh(flags.mesh, question.compatibility));
  question.b.mesh = question.a.mesh;
  if (!flags.mesh_b.empty()) {
    SHARDMESH_ASSIGN_OR_RETURN(question.b.mesh,
                               SelectMesh(flags.mesh_b, std::nullopt, question.compatibility));
  }
  SHARDMESH_ASSIGN_OR_RETURN(question.a.profile, SelectProfile(flags.profile));
  question.b.profile = question.a.profile;
  SHARDMESH_ASSIGN_OR_RETURN(question.a.mode, SelectMode(flags.mode, question.compatibility));
  question.b.mode = question.a.mode;
  question.budget = {.max_increase_bytes = flags.max_increase.bytes,
                     .max_increase_ratio = flags.max_increase.ratio,
                     .max_bytes_per_device = flags.max_bytes};
  std::vector<TreeTensor> tree;
  if (flags.stored_tree.empty()) {
    SHARDMESH_ASSIGN_OR_RETURN(tree, ReadTree(flags.tree));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.ConnectToAsk());
  SHARDMESH_ASSIGN_OR_RETURN(const DiffAnswer answer,
                             client->layouts().DiffLayouts(question, tree));
  if (invocation.json) {
    invocation.Print(DiffJson(answer));
  } else {
    std::string named_mesh;
    if (flags.mesh.empty() && flags.mesh_b.empty()) {
      const absl::StatusOr<Mesh> mesh = FetchMesh(client.get(), question.a.mesh);
      named_mesh = mesh.ok() ? StrCat(" on mesh default ", mesh->ToString()) : " on mesh default";
    }
    PrintDiff(answer, named_mesh);
  }
  return answer.within_budget ? absl::OkStatus()
                              : Verdict(StrCat("over budget: ", answer.budget_text));
}

struct TestFlags {
  std::string pattern;
  std::vector<std::string> names;
};

absl::Status RunTest(const Invocation& invocation, const TestFlags& flags) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.ConnectToAsk());
  SHARDMESH_ASSIGN_OR_RETURN(const PatternCheck check,
                             client->layouts().CheckPattern(flags.pattern, flags.names));
  if (invocation.json) {
    Json names = Json::array();
    for (size_t i = 0; i < flags.names.size(); ++i) {
      names.push_back({{"name", flags.names[i]}, {"found", static_cast<bool>(check.found[i])}});
    }
    invocation.Print(
        {{"pattern", flags.pattern},
         {"re2_pattern", check.re2_pattern.empty() ? Json(nullptr) : Json(check.re2_pattern)},
         {"names", std::move(names)}});
    return absl::OkStatus();
  }
  std::cout << "as RE2  "
            << (check.re2_pattern.empty() ? "(cannot be written; an automaton matches it)"
                                          : check.re2_pattern)
            << "\n";
  if (!flags.names.empty()) {
    Table table({{"name"}, {"found"}});
    for (size_t i = 0; i < flags.names.size(); ++i) {
      table.AddRow({flags.names[i], check.found[i] ? "yes" : "no"});
    }
    std::cout << "\n";
    table.Print();
  }
  return absl::OkStatus();
}

absl::Status RunRewrite(const Invocation& invocation, const std::string& path) {
  SHARDMESH_ASSIGN_OR_RETURN(const RuleSetDefinition rules,
                             rpc::LoadRules(path, Compatibility::kExact));
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.ConnectToAsk());
  SHARDMESH_ASSIGN_OR_RETURN(const RewriteAnswer answer, client->layouts().RewriteRules(rules));
  if (invocation.json) {
    invocation.Print({{"changed", answer.changed},
                      {"rules", RulesJson(answer.rules.rules.rules())},
                      {"origins", answer.origins}});
    return absl::OkStatus();
  }
  std::cout << rpc::FormatRules(answer.rules);
  if (!answer.changed) {
    std::cerr << "No rule excludes names; these are the rules as they were.\n";
  }
  return absl::OkStatus();
}

struct FromTextFlags {
  std::string text;
  std::optional<std::string> tensor;
  PartitionSpec default_spec;
};

// Returns a rules file that gives every name the same spec as the parsed text does. The file has a
// last rule with the default spec, because every name must match a rule. With `strict: false`,
// shapes do not matter, as in the parsed text.
absl::StatusOr<std::string> FileOf(const PatternRulesAnswer& answer,
                                   const PartitionSpec& default_spec) {
  std::vector<Rule> rules = answer.rules;
  rules.push_back({".*", default_spec});
  SHARDMESH_ASSIGN_OR_RETURN(RuleSet rule_set,
                             RuleSet::Create(std::move(rules), {.strict = false}));
  return rpc::FormatRules({.rules = std::move(rule_set)});
}

absl::Status RunFromText(const Invocation& invocation, const FromTextFlags& flags) {
  // As in eformer, text without `->` makes no rules. Warn: a user may expect a spec for every
  // tensor.
  if (flags.text.find("->") == std::string::npos && !invocation.json) {
    std::cerr << "No rule in \"" << flags.text << "\": a rule is written PATTERN->AXES\n";
  } else {
    for (const absl::string_view piece : absl::StrSplit(ToAbsl(flags.text), ',')) {
      if (!piece.empty() && piece.find("->") == absl::string_view::npos) {
        std::cerr << "Passed over \"" << piece << "\": it has no `->`\n";
      }
    }
  }
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.ConnectToAsk());
  SHARDMESH_ASSIGN_OR_RETURN(
      const PatternRulesAnswer answer,
      client->layouts().ParsePatternRules(
          {.text = flags.text, .name = flags.tensor, .default_spec = flags.default_spec}));
  if (invocation.json) {
    Json json = {{"rules", RulesJson(answer.rules)}};
    if (answer.spec.has_value()) {
      json["spec"] = SpecJson(*answer.spec);
      json["rule"] = answer.rule_index.has_value() ? Json(*answer.rule_index) : Json(nullptr);
    }
    invocation.Print(json);
    return absl::OkStatus();
  }
  if (answer.spec.has_value()) {
    std::cout << FormatSpec(*answer.spec) << "\n";
    return absl::OkStatus();
  }
  SHARDMESH_ASSIGN_OR_RETURN(const std::string file, FileOf(answer, flags.default_spec));
  std::cout << file;
  return absl::OkStatus();
}

constexpr char kRulesHelp[] = "rules: YAML file, or name in the catalog";
constexpr char kMeshHelp[] =
    "a mesh: axes as dp=4,tp=8, YAML file, or name in the catalog (default: ";
constexpr char kProfileHelp[] = "for tensors with logical axes: YAML file, or name in the catalog";

void AddLint(CommandLine* line, CLI::App* rules) {
  auto flags = std::make_shared<LintFlags>();
  CLI::App* const lint = line->AddCommand(
      "lint", "Look for rules that match nothing, are never reached or contradict one another",
      [flags](const Invocation& i) { return RunLint(i, *flags); }, rules);
  lint->add_option("rules", flags->rules, kRulesHelp)->required();
  lint->add_option("--tree", flags->trees,
                   StrCat("the tensors: ", kTreeHelp,
                          " (default: every tree of the catalog, and "
                          "the cluster's arrays)"))
      ->expected(1)
      ->take_all();
  lint->add_option("--stored-tree", flags->stored_trees, kStoredTreeHelp)->expected(1)->take_all();
  lint->add_option("--held", flags->held_prefix,
                   "also the cluster's arrays whose names have this prefix; \"\" for all");
  lint->add_option("--mesh", flags->meshes, StrCat(kMeshHelp, "every one of the catalog)"))
      ->expected(1)
      ->take_all();
  lint->add_option("--profile", flags->profile, kProfileHelp);
  lint->add_option("--max-findings", flags->max_findings,
                   "most findings to list of each kind (default: 100)")
      ->check(CLI::Range(1, 1000));
  lint->add_flag("--strict", flags->strict, "fail for corrections too");
  lint->add_flag("--exact", flags->exact, "resolve logical axes as the Python originals do");
}

void AddDiff(CommandLine* line, CLI::App* rules) {
  auto flags = std::make_shared<DiffFlags>();
  CLI::App* const diff = line->AddCommand(
      "diff", "Compare a model's layouts under two rule sets, or on two meshes",
      [flags](const Invocation& i) { return RunDiff(i, *flags); }, rules);
  diff->add_option("a", flags->a, "rules before: YAML file, or name in the catalog")->required();
  diff->add_option("b", flags->b, "rules after: YAML file, or name in the catalog")->required();
  diff->add_option("--tree", flags->tree, StrCat("the tensors: ", kTreeHelp));
  diff->add_option("--stored-tree", flags->stored_tree, kStoredTreeHelp);
  AddMeshOptions(diff, &flags->mesh);
  diff->add_option("--mesh-b", flags->mesh_b, "the mesh after, if it is another");
  diff->add_option("--profile", flags->profile, kProfileHelp);
  AddModeOption(diff, &flags->mode, "for tensors with logical axes: ");
  AddParsedOption(diff, "--max-increase", &flags->max_increase, ParseIncrease,
                  "fail if the most loaded device gains more: 5% or 512MiB");
  AddParsedOption(diff, "--max-bytes", &flags->max_bytes, ParseSize,
                  "fail if the most loaded device holds more: 80GiB");
  AddExactOption(diff, &flags->exact);
}

void AddTest(CommandLine* line, CLI::App* rules) {
  auto flags = std::make_shared<TestFlags>();
  CLI::App* const test = line->AddCommand(
      "test", "Show in which names a pattern is found, and how it is matched",
      [flags](const Invocation& i) { return RunTest(i, *flags); }, rules);
  test->add_option("pattern", flags->pattern, "a regular expression, as Python's re reads it")
      ->required();
  test->add_option("names", flags->names, "names to search");
}

void AddRewrite(CommandLine* line, CLI::App* rules) {
  auto path = std::make_shared<std::string>();
  line->AddCommand(
          "rewrite", "Write rules with exclusions such as ^(?!.*bias) without them",
          [path](const Invocation& i) { return RunRewrite(i, *path); }, rules)
      ->add_option("file", *path, "YAML file of rules")
      ->required();
}

void AddFromText(CommandLine* line, CLI::App* rules) {
  auto flags = std::make_shared<FromTextFlags>();
  CLI::App* const from_text = line->AddCommand(
      "from-text", "Write rules given in one line as a file, or show the spec of one tensor",
      [flags](const Invocation& i) { return RunFromText(i, *flags); }, rules);
  from_text->add_option("text", flags->text, "such as 'attention|mlp->fsdp.tp,norm->'")->required();
  from_text->add_option("--tensor", flags->tensor, "show the spec of the tensor of this name");
  AddParsedOption(from_text, "--default", &flags->default_spec, ParseSpec,
                  "spec of names that no rule matches (default: ())");
}

}  // namespace

void AddRulesCommands(CommandLine* line) {
  CLI::App* const rules =
      line->AddGroup("rules", "Questions about rules: lint, diff, test, rewrite, from-text");
  AddLint(line, rules);
  AddDiff(line, rules);
  AddTest(line, rules);
  AddRewrite(line, rules);
  AddFromText(line, rules);
}

}  // namespace shardmesh::client
