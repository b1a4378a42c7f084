// Questions about rules and their answers, as types of the client library.
#ifndef SHARDMESH_CLIENT_TYPES_RULE_QUESTIONS_H_
#define SHARDMESH_CLIENT_TYPES_RULE_QUESTIONS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/types/layout_questions.h"
#include "sharding/compatibility.h"
#include "sharding/layout/diff.h"
#include "sharding/rules/rule_lint.h"
#include "sharding/rules/rule_set.h"
#include "sharding/rules/rule_set_definition.h"
#include "sharding/spec.h"

namespace shardmesh::client {

// Asks to parse the rules in one line of text. If `name` is set, also asks which spec these rules
// give to that name. See sharding/rules/pattern_rules.h.
struct PatternRulesQuestion {
  std::string text;  // at most 64 KiB
  // The name for which to return a spec. Nullopt: the answer has only the rules.
  std::optional<std::string> name = std::nullopt;
  PartitionSpec default_spec = {};
  Compatibility compatibility = Compatibility::kDefault;
  // With kExact, the mesh that the Python original requires. With nullopt, the coordinator skips
  // the check of the mesh that the original makes.
  std::optional<MeshSelector> mesh = std::nullopt;
};

struct PatternRulesAnswer {
  std::vector<Rule> rules;
  // If the question has a name: the name's spec, and the index of the rule that gave it.
  // `rule_index` is nullopt if `spec` is the default spec.
  std::optional<PartitionSpec> spec;
  std::optional<int64_t> rule_index;
};

// The names in which a pattern is found, and the pattern in RE2's syntax.
struct PatternCheck {
  std::vector<bool> found;  // whether the pattern is found, for each requested name in order
  std::string re2_pattern;  // equivalent pattern for RE2; empty if RE2 cannot express the pattern
};

// Equivalent rules without exclusions (negative lookaheads); see sharding/rules/exclusion.h.
struct RewriteAnswer {
  RuleSetDefinition rules;
  std::vector<int64_t> origins;  // for each new rule, the index of the given rule whose spec it has
  bool changed = false;
};

// Asks for questionable parts of rules, applied to the tensors of a tree in every mode and on every
// mesh.
struct LintQuestion {
  // The rules to check; required. Unusable patterns become findings only if the rules defer pattern
  // errors.
  RuleSetSelector rules;
  // The profile with which semantic axes of tensors are resolved.
  ProfileSelector profile = {};
  // The meshes to check, at most 256, none of them empty. An empty list means every mesh of the
  // catalog.
  std::vector<MeshSelector> meshes = {};
  // If set, also checks the cluster's named arrays whose names have this prefix.
  std::optional<std::string> held_prefix = std::nullopt;
  // Limit on the number of findings that the answer lists for each kind, 1 to 1,000. The listed
  // findings of one kind never take more than 256 KiB.
  int64_t max_findings = 100;
  Compatibility compatibility = Compatibility::kDefault;  // how axes resolve
  // Trees of the catalog to check: at most 1,000 distinct names, or all trees. If the question
  // names any of these trees, the request must have no tensors. In these trees, tensors that have
  // their own spec are skipped.
  std::vector<std::string> stored_trees = {};
  bool all_stored_trees = false;
  // The trees to which the request's tensors belong, in the order of the tensors. At most 1,000
  // trees, with distinct names of 1 to 4,096 bytes. An empty list means one tree without a name.
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
  // The tree's name in the catalog or in the request. May be empty for a tree of the request.
  std::string name;
  // For a tree of the catalog: its version, and the number of skipped tensors.
  int64_t version = 0;
  int64_t own_specs = 0;
  LintTreeReport report;
};

struct LintAnswer {
  std::vector<Finding> findings;  // sorted by kind, then by rule and tensor
  // The number of findings of each kind, including those that are not listed.
  std::array<int64_t, kFindingKindCount> counts = {};
  // The checked trees, to which findings refer by index.
  std::vector<LintedTree> trees;
  int64_t tensors = 0;  // number of checked tensors
  int64_t meshes = 0;   // number of checked meshes
  int64_t revision = 0;

  int64_t count(Finding::Kind kind) const { return counts[static_cast<size_t>(kind)]; }
};

// The rules, profile, mode and mesh that give one of two compared layouts.
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
  // The name of a tree of the catalog. If this name is set, the request must have no tensors.
  std::string stored_tree = {};
};

struct DiffAnswer {
  std::vector<TensorDiff> changes;  // in the tree's order; each has `spec_a` and `spec_b`
  TreeReport a;
  TreeReport b;
  bool within_budget = true;
  std::string budget_text;  // a sentence about the exceeded budget
  int64_t revision = 0;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_RULE_QUESTIONS_H_
