// What is questionable about a rule set, over the trees of tensors and the meshes that it is meant
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
  // Its semantic axes, if it has any: one per dimension, as PartitionAxis::ResolveAxis takes them.
  // It goes by them, and not by rules. Tensors may share them; they outlive the call.
  const std::vector<AxisValue>* axes = nullptr;
  // Which tree it is of, from 0. The tensors of a tree stand together, the trees by their numbers.
  int64_t tree = 0;
};

struct LintMesh {
  std::string name;
  Mesh mesh;  // not empty
};

// One thing to look at. What a finding does not depend on is left empty.
struct Finding {
  enum class Kind {
    // A pattern that cannot be used (of a rule set that defers such errors). rules: it; reason.
    kBadPattern,
    // No tensor's name contains the pattern. rules: it.
    kDead,
    // Names contain the pattern, but earlier rules take every one. rules: it, then those that take
    // most of them, at most three; tensor: the first; count: how many.
    kShadowed,
    // Two rules that overlap by their order alone: the first takes some tensors that the second
    // matches as well, but takes others too, and so does the second; and the two give different
    // specs to the tensor. (A rule that is a special case of a later one, or of an earlier one that
    // shadows it, is no conflict.) rules: the first, the second; tensor: the first; count: how
    // many.
    kConflicting,
    // No rule matches a tensor. One finding for each name. tensor; count.
    kUnmatched,
    // The axes of a tensor do not resolve. modes; tensor: the first; reason: of the error; count.
    kBadAxes,
    // A mesh axis twice in what correction leaves. rules, or modes for axes; mesh (empty: the
    // spec itself has it twice, and no mesh was given); tensor: the first; count.
    kDuplicateAxis,
    // What is asked for is corrected. rules, or modes for axes; mesh (empty for RANK_TRUNCATED of a
    // rule, whatever the mesh); reason: AXIS_NOT_IN_MESH, NOT_DIVISIBLE, RANK_TRUNCATED or
    // UNCONSTRAINED; tensor: the worst, of the most elements, the first of equals; count: of
    // tensors.
    kCorrected,
  };
  Kind kind = Kind::kDead;
  std::vector<int64_t> rules = {};
  std::string tensor = {};
  std::vector<RuntimeMode> modes = {};  // in their order; all those that give the same finding
  std::string mesh = {};
  Reason reason = Reason::kUnspecified;
  int64_t count = 0;  // of tensors
  // How many of these are of which trees, trees rising. Empty where no tensor is meant, and hence
  // every tree.
  struct InTree {
    int64_t tree = 0;
    int64_t tensors = 0;

    friend bool operator==(const InTree&, const InTree&) = default;
  };
  std::vector<InTree> trees = {};
  std::string text = {};  // a sentence for a person

  friend bool operator==(const Finding&, const Finding&) = default;
};
inline constexpr int64_t kFindingKindCount = 8;

// "DEAD", "SHADOWED", ...: stable.
std::string_view FindingKindName(Finding::Kind kind);

struct LintOptions {
  // What texts call the trees, by number, such as `tree 'bert'`. Empty: there is one tree, which
  // needs no name.
  std::vector<std::string> trees = {};
  // Findings beyond this of one kind are counted and not listed. Not negative.
  int64_t max_findings_per_kind = 100;
  Compatibility compatibility = Compatibility::kDefault;  // how axes resolve
  // Asked now and then; true ends the call with CANCELLED.
  std::function<bool()> is_cancelled = {};
};

// What there is to say of one tree, whatever the others are.
struct LintTreeReport {
  int64_t tensors = 0;
  int64_t dead_rules = 0;      // usable ones that match none of its tensors
  int64_t shadowed_rules = 0;  // that match some of its tensors, and decide none
  int64_t unmatched_tensors = 0;
  // Of the tensors, those that no rule is asked about: without axes, of a strict set, and scalars
  // or leaves without shape.
  int64_t scalars = 0;

  friend bool operator==(const LintTreeReport&, const LintTreeReport&) = default;
};

struct LintReport {
  // By kind, then by rule, tensor in tree order, mesh as given, mode.
  std::vector<Finding> findings;
  // Of each kind, by its number, how many there are, listed or not.
  std::array<int64_t, kFindingKindCount> counts = {};
  // By number; as many as LintOptions::trees, at least one.
  std::vector<LintTreeReport> trees;

  bool clean() const { return findings.empty(); }
};

// Looks at every rule over every tensor, on every mesh, and at every tensor's axes in every mode on
// every mesh. Several trees are looked at as if they were one: a rule is dead if it matches in none
// of them, shadowed if it decides in none. As in matching, a strict rule set is not asked about
// scalars and leaves without shape; small tensors below min_size are neither corrected nor blamed.
// Without meshes, corrections by a mesh are left out; axes are looked at only with a profile.
//
// Errors: INVALID_ARGUMENT (INVALID_SHAPE) naming the tensor; CANCELLED.
// O(tensors * (rules + meshes)), and at most a million pairs of overlapping rules are told apart;
// the answer depends on the arguments alone.
absl::StatusOr<LintReport> LintRules(const RuleSet& rule_set, absl::Span<const LintTensor> tree,
                                     const PartitionAxis* profile,
                                     absl::Span<const LintMesh> meshes,
                                     const LintOptions& options = {});

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_RULES_RULE_LINT_H_
