// Questions about rules and their answers, in the client's form.
#ifndef SHARDMESH_CLIENT_TYPES_RULE_QUESTIONS_H_
#define SHARDMESH_CLIENT_TYPES_RULE_QUESTIONS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/types/layout_questions.h"
#include "rpc/codec/definition.h"
#include "sharding/compatibility.h"
#include "sharding/layout/diff.h"
#include "sharding/rules/rule_lint.h"
#include "sharding/rules/rule_set.h"
#include "sharding/spec.h"

namespace shardmesh::client {

// Asks for the rules in one line of text, and optionally for the spec that they give a name. See
// sharding/rules/pattern_rules.h.
struct PatternRulesQuestion {
  std::string text;  // at most 64 KiB
  // Nullopt: returns only the rules.
  std::optional<std::string> name = std::nullopt;
  PartitionSpec default_spec = {};
  Compatibility compatibility = Compatibility::kDefault;
  // kExact: the mesh that the original requires; nullopt skips its check.
  std::optional<MeshSelector> mesh = std::nullopt;
};

struct PatternRulesAnswer {
  std::vector<Rule> rules;
  // With a name: its spec, and the rule that gave it; rule_index is nullopt for the default spec.
  std::optional<PartitionSpec> spec;
  std::optional<int64_t> rule_index;
};

// The result of matching a pattern.
struct PatternCheck {
  std::vector<bool> found;  // per requested name, in their order
  std::string re2_pattern;  // empty if RE2 cannot express it
};

// Rules without exclusions; see sharding/rules/exclusion.h.
struct RewriteAnswer {
  rpc::RuleSetDefinition rules;
  std::vector<int64_t> origins;  // per rule, the index of the given rule that its spec comes from
  bool changed = false;
};

// Asks for questionable parts of rules, over a tree, in every mode and on every mesh.
struct LintQuestion {
  // Required. Unusable patterns are findings, so pass rules that defer their errors.
  RuleSetSelector rules;
  // For tensors with semantic axes.
  ProfileSelector profile = {};
  // At most 256 nonempty meshes. Empty: every mesh of the catalog.
  std::vector<MeshSelector> meshes = {};
  // Also checks the cluster's named arrays with this prefix.
  std::optional<std::string> held_prefix = std::nullopt;
  // For each kind: 1 to 1,000. The findings of a kind never exceed 256 KiB.
  int64_t max_findings = 100;
  Compatibility compatibility = Compatibility::kDefault;  // how axes resolve
  // Trees of the catalog: the listed ones, at most 1,000, each once; or all. They exclude tensors
  // in the request. Their tensors with own specs are skipped.
  std::vector<std::string> stored_trees = {};
  bool all_stored_trees = false;
  // The trees that the given tensors belong to, in order, at most 1,000, with distinct names of 1
  // to 4,096 bytes. Empty: all belong to one tree without a name.
  struct GivenTree {
    std::string name;
    int64_t tensors = 0;  // at least 1
  };
  std::vector<GivenTree> given_trees = {};
};

// One of the checked trees.
struct LintedTree {
  enum class Source { kGiven, kCatalog, kHeld };
  Source source = Source::kGiven;
  // Name of the tree in the catalog or in the request; may be empty in the latter case.
  std::string name;
  // For a tree of the catalog: its version, and the number of skipped tensors.
  int64_t version = 0;
  int64_t own_specs = 0;
  LintTreeReport report;
};

struct LintAnswer {
  std::vector<Finding> findings;  // by kind, then by rule and tensor
  // Number of findings by kind, listed or not.
  std::array<int64_t, kFindingKindCount> counts = {};
  // Findings refer to them by index.
  std::vector<LintedTree> trees;
  int64_t tensors = 0;  // checked
  int64_t meshes = 0;   // checked
  int64_t revision = 0;

  int64_t count(Finding::Kind kind) const { return counts[static_cast<size_t>(kind)]; }
};

// One of two compared layouts.
struct LayoutChoice {
  RuleSetSelector rules = {};
  ProfileSelector profile = {};
  std::optional<Mode> mode = std::nullopt;
  MeshSelector mesh = {};
};

// Asks for the changes from one layout of a tree to another.
struct DiffQuestion {
  LayoutChoice a;
  LayoutChoice b;
  LayoutBudget budget = {};
  Compatibility compatibility = Compatibility::kDefault;
  // The name of a tree of the catalog; excludes tensors in the request.
  std::string stored_tree = {};
};

struct DiffAnswer {
  std::vector<TensorDiff> changes;  // in the order of the tree; both specs are set
  TreeReport a;
  TreeReport b;
  bool within_budget = true;
  std::string budget_text;  // a sentence on the exceeded budget
  int64_t revision = 0;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_RULE_QUESTIONS_H_
