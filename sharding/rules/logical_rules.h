// flax's logical axis rules: which mesh axes partition the dimensions of an array whose dimensions
// have names, as flax.core.spmd and flax.linen answer it.
//
// Both read one kind of rule list and differ in what a list means. To flax.core.spmd it is a dict:
// the last rule of a name wins, and nothing keeps two dimensions from naming one mesh axis. To
// flax.linen it is an order of precedence: a mesh axis goes to the first rule that can have it, and
// a later rule of the same name is what that name falls back on.
//
// Example: names ('batch', 'length', 'heads', 'features') and the rules
//   ('batch', 'x'), ('features', 'x'), ('heads', 'y'), ('batch', 'z')
// give P('z', 'length', 'y', 'x') by ResolveLogicalSpec, which linen's ResolveLogicalAxes makes
// P('x', None, 'y', None): x is taken when `features` asks for it, and `length` has no rule.
//
// flax keeps the rules in force in a variable of each thread. Here they are a value: `context`
// stands for the rules that flax finds there, and holds for one call.
#ifndef SHARDMESH_SHARDING_RULES_LOGICAL_RULES_H_
#define SHARDMESH_SHARDING_RULES_LOGICAL_RULES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/axis_value.h"
#include "sharding/mesh.h"
#include "sharding/spec.h"

namespace shardmesh {

// Most rules of one list. Nothing here is worse than O(rules x names); whoever decodes rules from
// outside holds them to this bound.
inline constexpr int64_t kMaxLogicalRules = 4096;

// Lay the dimension called `name` along `mesh_axes`: none, a name, a tuple of names, or
// unconstrained. Other values are accepted and refused where a spec is made of them, as in flax.
struct LogicalRule {
  std::string name;
  AxisValue mesh_axes;

  friend bool operator==(const LogicalRule&, const LogicalRule&) = default;
};

using LogicalRules = std::vector<LogicalRule>;

// ---- flax.core.spmd -----------------------------------------------------------------------------

// Both lists as one (composite_rules). If either is empty the other comes back untouched, repeats
// included. Else each name stands once, at its first place, with its last value of `first`; and
// `second` may agree with that but not differ from it, nor from itself.
//
// INVALID_ARGUMENT (INVALID_AXIS_VALUE; ValueError) names the name with both its values. ('x',) and
// 'x' differ.
absl::StatusOr<LogicalRules> CompositeRules(absl::Span<const LogicalRule> first,
                                            absl::Span<const LogicalRule> second);

// Each name replaced by the value of the last rule for it, once (from_sharding_rules). Names
// without a rule, none, "" and () stay; a tuple is looked up by its text, ToString(). Repeated mesh
// axes are not noticed.
std::vector<AxisValue> ApplyLogicalRules(absl::Span<const AxisValue> names,
                                         absl::Span<const LogicalRule> rules);

// The spec of an array whose dimensions are called `names` (get_pspec): ApplyLogicalRules under
// CompositeRules(context, rules). What has no rule is taken for a mesh axis.
// Errors: CompositeRules', then PartitionSpec::Create's.
absl::StatusOr<PartitionSpec> ResolveLogicalSpec(absl::Span<const AxisValue> names,
                                                 absl::Span<const LogicalRule> rules,
                                                 absl::Span<const LogicalRule> context = {});

// What flax's shard_value does to an array.
enum class ShardValueAction {
  kNone,       // nothing: the array has no names
  kConstrain,  // a sharding constraint: the compiler owns every axis of the mesh
  kReshard,    // a reshard: array types own every axis of the mesh
};

struct ShardValueDecision {
  ShardValueAction action = ShardValueAction::kNone;
  PartitionSpec spec;  // P() for kNone

  friend bool operator==(const ShardValueDecision&, const ShardValueDecision&) = default;
};

// What becomes of an array whose dimensions are called `names` on `mesh` (shard_value). Whether the
// spec fits the array's shape is not asked.
//
// Errors, all INVALID_ARGUMENT, in the order of the checks; none of them if `names` is empty:
//   NO_MESH (ValueError)          `mesh` is the mesh without axes;
//   those of ResolveLogicalSpec;
//   DUPLICATE_AXIS (DuplicateSpecError)  the spec names an axis twice;
//   AXIS_NOT_IN_MESH (ValueError)        the spec names an axis that the mesh does not have, or
//                                        holds none within a tuple;
//   UNCONSTRAINED (ValueError)    the spec leaves a dimension open and no axis is kAuto;
//   INVALID_MESH (ValueError)     the axes are not all kAuto and not all kExplicit.
absl::StatusOr<ShardValueDecision> ResolveShardValue(absl::Span<const AxisValue> names,
                                                     absl::Span<const LogicalRule> rules,
                                                     const Mesh& mesh,
                                                     absl::Span<const LogicalRule> context = {});

// ---- flax.linen ---------------------------------------------------------------------------------

// What to do about a name that got no mesh axes: no rule is for it, or an axis of each of its rules
// was taken. A rule that says none, or (), does give the name something: none.
enum class RulesFallback {
  kAxisIsUnsharded,  // the dimension is not partitioned
  kRaiseError,       // refuse
  kNoConstraint,     // leave the whole array as it is
};

// `axis_is_unsharded`, `raise_error`, `no_constraint`.
std::string_view RulesFallbackName(RulesFallback fallback);
// The policy of that name; nullopt for a name of none.
std::optional<RulesFallback> RulesFallbackFromName(std::string_view name);

// The spec of an array whose dimensions are called `names`, each a name, or none, unconstrained or
// a tuple of mesh axes, which stay as they are (logical_to_mesh_axes, which knows kAxisIsUnsharded
// alone). Rules are tried in order; one applies if its name is among `names`, has nothing yet, and
// none of its mesh axes stands in the spec so far. So no axis stands in two dimensions, unless
// `names` has it there; within one rule's tuple it may stand twice.
//
// Nullopt only under kNoConstraint: some name got no mesh axes.
//
// Errors, all INVALID_ARGUMENT, in the order of the checks:
//   INVALID_AXIS_VALUE (TypeError)   one of `names` is a list or holds one;
//   DUPLICATE_AXIS (ValueError)      a name stands twice (other values may);
//   UNKNOWN_AXIS (ValueError)        under kRaiseError, some name got no mesh axes: says which, and
//                                    whether it has no rule or who took the axes;
//   INVALID_SPEC (ValueError)        PartitionSpec::Create's.
absl::StatusOr<std::optional<PartitionSpec>> ResolveLogicalAxes(
    absl::Span<const AxisValue> names, absl::Span<const LogicalRule> rules,
    RulesFallback fallback = RulesFallback::kAxisIsUnsharded);

// The spec that an array is constrained to (with_logical_constraint): ResolveLogicalAxes, but
// nullopt, whatever the names and the policy, where there are no rules.
absl::StatusOr<std::optional<PartitionSpec>> ResolveLogicalConstraint(
    absl::Span<const AxisValue> names, absl::Span<const LogicalRule> rules,
    RulesFallback fallback = RulesFallback::kAxisIsUnsharded);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_RULES_LOGICAL_RULES_H_
