// flax's logical axis rules, as in flax.core.spmd and flax.linen: they map the named dimensions of
// an array to mesh axes.
//
// Both modules read the same rule list with different semantics. In flax.core.spmd it is a dict:
// the last rule of a name wins, and two dimensions may name one mesh axis. In flax.linen it is an
// order of precedence: a mesh axis goes to the first rule that can take it. Later rules of the same
// name are that name's fallbacks.
//
// Example: names ('batch', 'length', 'heads', 'features') and the rules
//   ('batch', 'x'), ('features', 'x'), ('heads', 'y'), ('batch', 'z')
// give P('z', 'length', 'y', 'x') by ResolveLogicalSpec, and P('x', None, 'y', None) by linen's
// ResolveLogicalAxes: x is taken when `features` asks for it, and `length` has no rule.
//
// flax keeps the current rules in a variable of each thread. Here they are a value: `context`
// stands for the rules that flax finds there, and applies to one call.
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

// Upper bound on the rules of one list. All functions are O(rules x names) or better. A decoder of
// untrusted rules enforces this bound.
inline constexpr int64_t kMaxLogicalRules = 4096;

// Lays the dimension called `name` along `mesh_axes`: none, a name, a tuple of names, or
// unconstrained. Other values are accepted here and refused when a spec is made from them, as in
// flax.
struct LogicalRule {
  std::string name;
  AxisValue mesh_axes;

  friend bool operator==(const LogicalRule&, const LogicalRule&) = default;
};

using LogicalRules = std::vector<LogicalRule>;

// ---- flax.core.spmd -----------------------------------------------------------------------------

// Merges both lists (composite_rules). If either is empty, returns the other unchanged, repeats
// included. Else each name occurs once, at its first place, with its last value of `first`. A value
// in `second` must not differ from that value, nor from another one in `second`.
//
// INVALID_ARGUMENT (INVALID_AXIS_VALUE; ValueError) names the name with both its values. ('x',) and
// 'x' differ.
absl::StatusOr<LogicalRules> CompositeRules(absl::Span<const LogicalRule> first,
                                            absl::Span<const LogicalRule> second);

// Replaces each name by the value of the last rule for it, without recursion (from_sharding_rules).
// Names without a rule, none, "" and () stay. A tuple is looked up by its text, ToString().
// Repeated mesh axes are not detected.
std::vector<AxisValue> ApplyLogicalRules(absl::Span<const AxisValue> names,
                                         absl::Span<const LogicalRule> rules);

// Returns the spec of an array whose dimensions are called `names` (get_pspec): ApplyLogicalRules
// with CompositeRules(context, rules). A name without a rule counts as a mesh axis. Errors:
// CompositeRules', then PartitionSpec::Create's.
absl::StatusOr<PartitionSpec> ResolveLogicalSpec(absl::Span<const AxisValue> names,
                                                 absl::Span<const LogicalRule> rules,
                                                 absl::Span<const LogicalRule> context = {});

// The action of flax's shard_value on an array.
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

// Returns the action on an array whose dimensions are called `names`, on `mesh` (shard_value). Does
// not check that the spec fits the array's shape.
//
// Errors, all INVALID_ARGUMENT, in the order of the checks; none if `names` is empty:
// clang-format off
//   NO_MESH (ValueError)                 `mesh` is the mesh without axes;
//   those of ResolveLogicalSpec;
//   DUPLICATE_AXIS (DuplicateSpecError)  the spec names an axis twice;
//   AXIS_NOT_IN_MESH (ValueError)        the spec names an axis that the mesh lacks, or has none
//                                        within a tuple;
//   UNCONSTRAINED (ValueError)           the spec leaves a dimension open and no axis is kAuto;
//   INVALID_MESH (ValueError)            the axes are not all kAuto and not all kExplicit.
// clang-format on
absl::StatusOr<ShardValueDecision> ResolveShardValue(absl::Span<const AxisValue> names,
                                                     absl::Span<const LogicalRule> rules,
                                                     const Mesh& mesh,
                                                     absl::Span<const LogicalRule> context = {});

// ---- flax.linen ---------------------------------------------------------------------------------

// The policy for a name that got no mesh axes: no rule has the name, or each of its rules has a
// taken axis. A rule with none or () does assign a value: none.
enum class RulesFallback {
  kAxisIsUnsharded,  // the dimension is not partitioned
  kRaiseError,       // refuse
  kNoConstraint,     // leave the whole array unchanged
};

// `axis_is_unsharded`, `raise_error`, `no_constraint`.
std::string_view RulesFallbackName(RulesFallback fallback);
// Returns the policy of that name; nullopt if no policy has that name.
std::optional<RulesFallback> RulesFallbackFromName(std::string_view name);

// Returns the spec of an array whose dimensions are called `names` (logical_to_mesh_axes, which
// knows only kAxisIsUnsharded). Each entry is a name, or a value that stays unchanged: none,
// unconstrained or a tuple of mesh axes.
//
// Rules are tried in order. A rule applies if its name is among `names` and has no value yet, and
// none of its mesh axes is in the spec already. An axis therefore occurs in two dimensions only if
// `names` has it there; within one rule's tuple it may occur twice.
//
// Returns nullopt only under kNoConstraint, if some name got no mesh axes.
//
// Errors, all INVALID_ARGUMENT, in the order of the checks:
// clang-format off
//   INVALID_AXIS_VALUE (TypeError)   one of `names` is or contains a list;
//   DUPLICATE_AXIS (ValueError)      a name occurs twice (other values may);
//   UNKNOWN_AXIS (ValueError)        under kRaiseError, some name got no mesh axes: gives the name,
//                                    and that it has no rule or which name took the axes;
//   INVALID_SPEC (ValueError)        PartitionSpec::Create's.
// clang-format on
absl::StatusOr<std::optional<PartitionSpec>> ResolveLogicalAxes(
    absl::Span<const AxisValue> names, absl::Span<const LogicalRule> rules,
    RulesFallback fallback = RulesFallback::kAxisIsUnsharded);

// Returns the spec that constrains an array (with_logical_constraint). Like ResolveLogicalAxes, but
// always nullopt if there are no rules.
absl::StatusOr<std::optional<PartitionSpec>> ResolveLogicalConstraint(
    absl::Span<const AxisValue> names, absl::Span<const LogicalRule> rules,
    RulesFallback fallback = RulesFallback::kAxisIsUnsharded);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_RULES_LOGICAL_RULES_H_
