// Finds questionable rules of a rule set, given the trees of tensors and the meshes that the rule
// set is meant for.
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
  // PartitionAxis::ResolveAxis takes. They decide the tensor's spec instead of rules. Several
  // tensors may point to the same axes, which must outlive the call.
  const std::vector<AxisValue>* axes = nullptr;
  // The number of the tensor's tree, from 0. Tensors of a tree are adjacent, in order of the trees.
  int64_t tree = 0;
};

struct LintMesh {
  std::string name;
  Mesh mesh;  // not empty
};

// One finding. The comment of a kind names the fields that the kind sets, besides `text` and
// `trees`. All other fields are empty.
struct Finding {
  enum class Kind {
    // A faulty pattern, in a rule set that defers pattern errors. rules: the rule; reason. Or a
    // pattern that backtracks, and whose search in some names takes too many steps. rules: the
    // rule; reason: LIMIT_EXCEEDED; tensor: the first; count. For the other findings, the rule does
    // not match these names; but it is neither dead nor shadowed, and the tensors are not
    // unmatched.
    kBadPattern,
    // No tensor's name contains the pattern. rules: the rule.
    kDead,
    // Names contain the pattern, but earlier rules decide all of these names. rules: the rule, then
    // at most three earlier rules that decide most of the names; tensor: the first; count.
    kShadowed,
    // Two rules that overlap and depend on their order. The first rule decides some tensors that
    // the second matches too; each rule also decides other tensors; and the specs for the common
    // tensors differ. (It is no conflict if a rule is a special case of a later rule, or of an
    // earlier rule that shadows it.) rules: the first, the second; tensor: the first; count.
    kConflicting,
    // No rule matches a tensor. One finding for each name. tensor; count.
    kUnmatched,
    // The axes of a tensor do not resolve. modes; tensor: the first; reason: of the error; count.
    kBadAxes,
    // A mesh axis occurs twice after correction. rules, or modes for axes; mesh (empty if no mesh
    // was given: the spec itself has the axis twice); tensor: the first; count.
    kDuplicateAxis,
    // Correction changes a requested spec. rules, or modes for axes; mesh (empty for RANK_TRUNCATED
    // of a rule, which applies to any mesh); reason: AXIS_NOT_IN_MESH, NOT_DIVISIBLE,
    // RANK_TRUNCATED or UNCONSTRAINED; tensor: the first of the tensors with the most elements;
    // count of tensors.
    kCorrected,
    // A rule's axis that none of the given meshes has, and that resembles an axis of one of them,
    // or a spelling of null or of several axes, such as `none` or `fsdp+tp`. The same rule also has
    // a kCorrected finding on each mesh. rules: the rule; reason: AXIS_NOT_IN_MESH; tensor: the
    // first; count.
    kMisspeltAxis,
  };
  Kind kind = Kind::kDead;
  std::vector<int64_t> rules = {};
  std::string tensor = {};
  std::vector<RuntimeMode> modes = {};  // all modes in which the finding holds, in the enum's order
  std::string mesh = {};
  Reason reason = Reason::kUnspecified;
  int64_t count = 0;  // number of tensors
  // The trees with tensors that the finding concerns, in rising order, and the number of these
  // tensors in each tree. Empty if the finding concerns no tensor; such a finding applies to all
  // trees.
  struct InTree {
    int64_t tree = 0;
    int64_t tensors = 0;

    friend bool operator==(const InTree&, const InTree&) = default;
  };
  std::vector<InTree> trees = {};
  std::string text = {};  // a sentence for people

  friend bool operator==(const Finding&, const Finding&) = default;
};
inline constexpr int64_t kFindingKindCount = 9;

// Returns the name of a kind: "DEAD", "SHADOWED", ... Names do not change between versions.
std::string_view FindingKindName(Finding::Kind kind);

struct LintOptions {
  // The names of the trees, indexed by LintTensor::tree. Texts show them, such as `tree 'bert'`.
  // Empty if there is only one tree, which needs no name.
  std::vector<std::string> trees = {};
  // Upper bound on the listed findings of each kind; the lint only counts further findings. Not
  // negative.
  int64_t max_findings_per_kind = 100;
  Compatibility compatibility = Compatibility::kDefault;  // how axes resolve
  // LintRules calls this now and then. If it returns true, LintRules returns CANCELLED.
  std::function<bool()> is_cancelled = {};
};

// The report on one tree, independent of the other trees.
struct LintTreeReport {
  int64_t tensors = 0;
  int64_t dead_rules = 0;      // rules without kBadPattern that match none of its tensors
  int64_t shadowed_rules = 0;  // rules that match some of its tensors and decide none of them
  int64_t unmatched_tensors = 0;
  // Tensors without axes that a strict rule set replicates without a search: scalars, and leaves
  // without shape.
  int64_t scalars = 0;

  friend bool operator==(const LintTreeReport&, const LintTreeReport&) = default;
};

struct LintReport {
  // Findings, sorted by kind, then by rule, by tensor in tree order, by mesh in the given order,
  // and by mode.
  std::vector<Finding> findings;
  // Number of findings of each kind, listed or not.
  std::array<int64_t, kFindingKindCount> counts = {};
  // Reports by the tree's number; as many as LintOptions::trees, at least one.
  std::vector<LintTreeReport> trees;

  bool clean() const { return findings.empty(); }
};

// Checks every rule on every tensor and mesh, and every tensor's axes in every mode on every mesh.
// Several trees count as one: a rule is dead if it matches no tensor of any tree. A rule is
// shadowed if it matches tensors, but decides no tensor of any tree.
//
// As in matching, the rules of a strict set do not decide scalars and leaves without shape. The
// lint neither corrects nor reports tensors smaller than min_size. Without meshes, it makes no
// corrections that need a mesh. Without a profile, it does not check axes.
//
// Errors: INVALID_ARGUMENT (INVALID_SHAPE) with the tensor's name; CANCELLED.
// Takes O(tensors * (rules + meshes)), and distinguishes at most a million pairs of overlapping
// rules. All searches share a SearchBudget. The answer depends only on the arguments.
absl::StatusOr<LintReport> LintRules(const RuleSet& rule_set, absl::Span<const LintTensor> tree,
                                     const PartitionAxis* profile,
                                     absl::Span<const LintMesh> meshes,
                                     const LintOptions& options = {});

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_RULES_RULE_LINT_H_
