// Questions about rules and their answers, as a client asks and gets them.
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

// What do rules in one line of text say, and which spec do they give a name? See
// sharding/rules/pattern_rules.h.
struct PatternRulesQuestion {
  std::string text;  // at most 64 KiB
  // Nullopt: the rules alone are wanted.
  std::optional<std::string> name = std::nullopt;
  PartitionSpec default_spec = {};
  Compatibility compatibility = Compatibility::kDefault;
  // kExact: the mesh that the original insists on; nullopt does not ask for it.
  std::optional<MeshSelector> mesh = std::nullopt;
};

struct PatternRulesAnswer {
  std::vector<Rule> rules;
  // With a name: its spec, and the rule that it is from; nullopt if it is the default one.
  std::optional<PartitionSpec> spec;
  std::optional<int64_t> rule_index;
};

// How a pattern is matched.
struct PatternCheck {
  std::vector<bool> found;  // per name asked for, in their order
  std::string re2_pattern;  // empty where RE2 cannot express it
};

// Rules without exclusions; see sharding/rules/exclusion.h.
struct RewriteAnswer {
  rpc::RuleSetDefinition rules;
  std::vector<int64_t> origins;  // per rule the index of the given one whose spec it has
  bool changed = false;
};

// What is questionable about rules, over a tree, under every mode and mesh?
struct LintQuestion {
  // Required. Patterns that cannot be used are findings; so give rules that defer their errors.
  RuleSetSelector rules;
  // For tensors with semantic axes.
  ProfileSelector profile = {};
  // At most 256, none of them empty. None: every mesh of the catalog.
  std::vector<MeshSelector> meshes = {};
  // Also look at the named arrays that the cluster holds under this prefix.
  std::optional<std::string> held_prefix = std::nullopt;
  // Of a kind: 1 to 1,000. They come to at most 256 KiB of a kind in any case.
  int64_t max_findings = 100;
  Compatibility compatibility = Compatibility::kDefault;  // how axes resolve
  // Trees of the catalog: these, at most 1,000, each once; or every one. No tensors are given then,
  // and those of the trees that bring specs of their own are passed over.
  std::vector<std::string> stored_trees = {};
  bool all_stored_trees = false;
  // The trees that the tensors given are of, one after another, at most 1,000; names of 1 to 4,096
  // bytes, each once. None: all are of one tree without a name.
  struct GivenTree {
    std::string name;
    int64_t tensors = 0;  // at least 1
  };
  std::vector<GivenTree> given_trees = {};
};

// One of the trees that were looked at.
struct LintedTree {
  enum class Source { kGiven, kCatalog, kHeld };
  Source source = Source::kGiven;
  // Of the catalog, or the one given; may be empty then.
  std::string name;
  // Of the catalog: at which version, and how many tensors were passed over.
  int64_t version = 0;
  int64_t own_specs = 0;
  LintTreeReport report;
};

struct LintAnswer {
  std::vector<Finding> findings;  // by kind, then by rule and tensor
  // Of each kind, by its number, how many there are, listed or not.
  std::array<int64_t, kFindingKindCount> counts = {};
  // Findings name them by their places here.
  std::vector<LintedTree> trees;
  int64_t tensors = 0;  // looked at
  int64_t meshes = 0;   // looked at
  int64_t revision = 0;

  int64_t count(Finding::Kind kind) const { return counts[static_cast<size_t>(kind)]; }
};

// One of two layouts that are compared.
struct LayoutChoice {
  RuleSetSelector rules = {};
  ProfileSelector profile = {};
  std::optional<Mode> mode = std::nullopt;
  MeshSelector mesh = {};
};

// What changes from one layout of a tree to another?
struct DiffQuestion {
  LayoutChoice a;
  LayoutChoice b;
  LayoutBudget budget = {};
  Compatibility compatibility = Compatibility::kDefault;
  // The name of a tree of the catalog. No tensors are given then.
  std::string stored_tree = {};
};

struct DiffAnswer {
  std::vector<TensorDiff> changes;  // in the order of the tree; both specs are set
  TreeReport a;
  TreeReport b;
  bool within_budget = true;
  std::string budget_text;  // what is exceeded
  int64_t revision = 0;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_RULE_QUESTIONS_H_
