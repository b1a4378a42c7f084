// Finds questionable parts of a rule set, over the trees of tensors and the meshes that it is meant
// for.
#ifndef SHARDMESH_SHARDING_RULES_RULE_LINT_H_
#define SHARDMESH_SHARDING_RULES_RULE_LINT_H_

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/axis_value.h"
#include "sharding/compatibility.h"
#include "sharding/mesh.h"
#include "sharding/mode.h"
#include "sharding/partition_axis.h"
#include "sharding/rules/rule_set.h"
#include "sharding/shape.h"
#include "status/reason.h"

namespace shardmesh {

// A tensor of a tree.
struct LintTensor {
  std::string name;            // valid UTF-8
  std::optional<Shape> shape;  // nullopt for a leaf that is no array
  // The tensor's semantic axes, if any: one per dimension, in the form that
  // PartitionAxis::ResolveAxis takes. They decide instead of rules. Tensors may share them; they
  // must outlive the call.
  const std::vector<AxisValue>* axes = nullptr;
  // The number of its tree, from 0. Tensors of a tree are adjacent, in order of the trees.
  int64_t tree = 0;
};

struct LintMesh {
  std::string name;
  Mesh mesh;  // not empty
};

// One finding. Fields that do not apply are empty.
struct Finding {
  enum class Kind {
    // A pattern that cannot be used, in a rule set that defers such errors. rules: the rule;
    // reason.
    kBadPattern,
    // No tensor's name contains the pattern. rules: the rule.
    kDead,
    // Names contain the pattern, but earlier rules take all of them. rules: the rule, then at most
    // three that take most names; tensor: the first; count.
    kShadowed,
    // Two rules that overlap and depend on their order. The first rule takes some tensors that the
    // second matches too; each rule also takes others; and the specs for the common tensors differ.
    // (A rule that is a special case of a later one, or of an earlier one that shadows it, is no
    // conflict.) rules: the first, the second; tensor: the first; count.
    kConflicting,
    // No rule matches a tensor. One finding for each name. tensor; count.
    kUnmatched,
    // The axes of a tensor do not resolve. modes; tensor: the first; reason: of the error; count.
    kBadAxes,
    // A mesh axis occurs twice after correction. rules, or modes for axes; mesh (empty: the spec
    // itself has it twice, and no mesh was given); tensor: the first; count.
    kDuplicateAxis,
    // A requested spec is corrected. rules, or modes for axes; mesh (empty for RANK_TRUNCATED of a
    // rule, which applies to any mesh); reason: AXIS_NOT_IN_MESH, NOT_DIVISIBLE, RANK_TRUNCATED or
    // UNCONSTRAINED; tensor: the first among those with the most elements; count of tensors.
    kCorrected,
  };
  Kind kind = Kind::kDead;
  std::vector<int64_t> rules = {};
  std::string tensor = {};
  std::vector<RuntimeMode> modes = {};  // in their order; all modes with the same finding
  std::string mesh = {};
  Reason reason = Reason::kUnspecified;
  int64_t count = 0;  // number of tensors
  // The count for each tree, trees rising. Empty if the finding concerns no tensor, and therefore
  // all trees.
  struct InTree {
    int64_t tree = 0;
    int64_t tensors = 0;

    friend bool operator==(const InTree&, const InTree&) = default;
  };
  std::vector<InTree> trees = {};
  std::string text = {};  // a sentence for people

  friend bool operator==(const Finding&, const Finding&) = default;
};
inline constexpr int64_t kFindingKindCount = 8;

// "DEAD", "SHADOWED", ...: stable.
std::string_view FindingKindName(Finding::Kind kind);

struct LintOptions {
  // The names of the trees in texts, by number, such as `tree 'bert'`. Empty: there is one tree,
  // which needs no name.
  std::vector<std::string> trees = {};
  // Further findings of one kind are counted but not listed. Not negative.
  int64_t max_findings_per_kind = 100;
  Compatibility compatibility = Compatibility::kDefault;  // how axes resolve
  // Polled during the call; true ends the call with CANCELLED.
  std::function<bool()> is_cancelled = {};
};

// The report on one tree, independent of the others.
struct LintTreeReport {
  int64_t tensors = 0;
  int64_t dead_rules = 0;      // usable rules that match none of its tensors
  int64_t shadowed_rules = 0;  // rules that match some of its tensors, and decide none
  int64_t unmatched_tensors = 0;
  // Tensors that no rule decides: without axes, in a strict set, and scalars or leaves without
  // shape.
  int64_t scalars = 0;

  friend bool operator==(const LintTreeReport&, const LintTreeReport&) = default;
};

struct LintReport {
  // Findings by kind, then by rule, tensor in tree order, mesh as given, mode.
  std::vector<Finding> findings;
  // Number of findings by kind, listed or not.
  std::array<int64_t, kFindingKindCount> counts = {};
  // Reports by the tree's number; as many as LintOptions::trees, at least one.
  std::vector<LintTreeReport> trees;

  bool clean() const { return findings.empty(); }
};

// Checks every rule on every tensor and mesh, and every tensor's axes in every mode on every mesh.
// Several trees count as one: a rule is dead if it matches in none of them, and shadowed if it
// decides in none.
//
// As in matching, a strict rule set does not decide scalars and leaves without shape. Small tensors
// below min_size are neither corrected nor reported. Without meshes, corrections by a mesh are left
// out. Axes are checked only with a profile.
//
// Errors: INVALID_ARGUMENT (INVALID_SHAPE) with the tensor's name; CANCELLED.
// Takes O(tensors * (rules + meshes)), and distinguishes at most a million pairs of overlapping
// rules. The answer depends only on the arguments.
absl::StatusOr<LintReport> LintRules(const RuleSet& rule_set, absl::Span<const LintTensor> tree,
                                     const PartitionAxis* profile,
                                     absl::Span<const LintMesh> meshes,
                                     const LintOptions& options = {});

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_RULES_RULE_LINT_H_
