// flax's logical axis rules, as in flax.core.spmd and flax.linen: they map the named dimensions of
// an array to mesh axes.
//
// Both modules read the same rule list with different semantics. In flax.core.spmd, the list is a
// dict: the last rule of a name wins, and two dimensions may get the same mesh axis. In flax.linen,
// the list is an order of precedence: a mesh axis goes to the first rule that can take it. Later
// rules of the same name are fallbacks for that name.
//
// Example: names ('batch', 'length', 'heads', 'features') and the rules
//   ('batch', 'x'), ('features', 'x'), ('heads', 'y'), ('batch', 'z')
// give P('z', 'length', 'y', 'x') by ResolveLogicalSpec, and P('x', None, 'y', None) by linen's
// ResolveLogicalAxes: x is taken when `features` asks for it, and `length` has no rule.
//
// flax keeps the current rules in a thread-local variable. Here, the argument `context` has the
// rules that flax would find in that variable, and applies to one call.
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

// A rule that lays the dimension called `name` along `mesh_axes`: none, a name, a tuple of names,
// or unconstrained. The struct also accepts other values, which are refused when a spec is made
// from them, as in flax.
struct LogicalRule {
  std::string name;
  AxisValue mesh_axes;

  friend bool operator==(const LogicalRule&, const LogicalRule&) = default;
};

using LogicalRules = std::vector<LogicalRule>;

// ---- flax.core.spmd -----------------------------------------------------------------------------

// Merges both lists (flax's composite_rules). If one list is empty, returns the other list
// unchanged, including repeated names. If neither is empty, each name occurs once in the result, at
// its first position. Its value is its last value in `first`, or its value in `second` if `first`
// lacks the name. A value in `second` must not differ from the value in `first`, nor from another
// value of the same name in `second`.
//
// INVALID_ARGUMENT (INVALID_AXIS_VALUE; Python: ValueError) for two values of one name that differ;
// the message gives the name and both values. ('x',) and 'x' differ.
absl::StatusOr<LogicalRules> CompositeRules(absl::Span<const LogicalRule> first,
                                            absl::Span<const LogicalRule> second);

// Replaces each name by the value of the last rule for that name, without recursion (flax's
// from_sharding_rules). Names without a rule, none, "" and () stay unchanged. To look up a tuple,
// compares its text (ToString()) with the names of the rules. Does not detect repeated mesh axes.
std::vector<AxisValue> ApplyLogicalRules(absl::Span<const AxisValue> names,
                                         absl::Span<const LogicalRule> rules);

// Returns the spec of an array whose dimensions are called `names` (flax's get_pspec):
// ApplyLogicalRules with CompositeRules(context, rules). A name without a rule counts as a mesh
// axis. Errors as CompositeRules, then as PartitionSpec::Create.
absl::StatusOr<PartitionSpec> ResolveLogicalSpec(absl::Span<const AxisValue> names,
                                                 absl::Span<const LogicalRule> rules,
                                                 absl::Span<const LogicalRule> context = {});

// The action of flax's shard_value on an array.
enum class ShardValueAction {
  kNone,       // no action: the array's dimensions have no names
  kConstrain,  // a sharding constraint: every axis of the mesh is kAuto
  kReshard,    // a reshard: every axis of the mesh is kExplicit
};

struct ShardValueDecision {
  ShardValueAction action = ShardValueAction::kNone;
  PartitionSpec spec;  // P() for kNone

  friend bool operator==(const ShardValueDecision&, const ShardValueDecision&) = default;
};

// Returns the action of flax's shard_value on an array on `mesh` whose dimensions are called
// `names`. Does not check that the spec fits the array's shape.
//
// Errors, all INVALID_ARGUMENT, in the order of the checks; no error if `names` is empty. In
// parentheses: the exception that Python raises.
// clang-format off
//   NO_MESH (ValueError)                 `mesh` is the mesh without axes;
//   those of ResolveLogicalSpec;
//   DUPLICATE_AXIS (DuplicateSpecError)  the spec names an axis twice;
//   AXIS_NOT_IN_MESH (ValueError)        the spec names an axis that the mesh lacks, or contains
//                                        None within a tuple;
//   UNCONSTRAINED (ValueError)           the spec leaves a dimension open and no axis is kAuto;
//   INVALID_MESH (ValueError)            the axes are not all kAuto and not all kExplicit.
// clang-format on
absl::StatusOr<ShardValueDecision> ResolveShardValue(absl::Span<const AxisValue> names,
                                                     absl::Span<const LogicalRule> rules,
                                                     const Mesh& mesh,
                                                     absl::Span<const LogicalRule> context = {});

// ---- flax.linen ---------------------------------------------------------------------------------

// The policy for a name that got no mesh axes: no rule has the name, or each of its rules has an
// axis that another dimension already has. A rule with none or () does assign a value: none.
enum class RulesFallback {
  kAxisIsUnsharded,  // the dimension is not partitioned
  kRaiseError,       // the call returns UNKNOWN_AXIS
  kNoConstraint,     // the whole array stays unchanged
};

// Returns `axis_is_unsharded`, `raise_error` or `no_constraint`.
std::string_view RulesFallbackName(RulesFallback fallback);
// Returns the policy of that name; nullopt if no policy has that name.
std::optional<RulesFallback> RulesFallbackFromName(std::string_view name);

// Returns the spec of an array whose dimensions are called `names`, as flax's logical_to_mesh_axes,
// which supports only kAxisIsUnsharded. Each entry of `names` is a name, or a value that stays
// unchanged: none, unconstrained or a tuple of mesh axes.
//
// Rules are tried in order. A rule applies if its name is among `names` and has no value yet, and
// none of its mesh axes is in the spec already. An axis therefore occurs in two dimensions only if
// `names` itself has the axis in both dimensions. Within one rule's tuple, an axis may occur twice.
//
// Returns nullopt only under kNoConstraint, if some name got no mesh axes.
//
// Errors, all INVALID_ARGUMENT, in the order of the checks. In parentheses: the exception that
// Python raises.
// clang-format off
//   INVALID_AXIS_VALUE (TypeError)   one of `names` is or contains a list;
//   DUPLICATE_AXIS (ValueError)      a name occurs twice (other values may);
//   UNKNOWN_AXIS (ValueError)        under kRaiseError, some name got no mesh axes. The message
//                                    has the name, and the reason: the name has no rule, or other
//                                    names took the axes of its rules;
//   INVALID_SPEC (ValueError)        PartitionSpec::Create refuses the spec.
// clang-format on
absl::StatusOr<std::optional<PartitionSpec>> ResolveLogicalAxes(
    absl::Span<const AxisValue> names, absl::Span<const LogicalRule> rules,
    RulesFallback fallback = RulesFallback::kAxisIsUnsharded);

// Returns the spec that constrains an array (flax's with_logical_constraint). Like
// ResolveLogicalAxes, but returns nullopt if there are no rules.
absl::StatusOr<std::optional<PartitionSpec>> ResolveLogicalConstraint(
    absl::Span<const AxisValue> names, absl::Span<const LogicalRule> rules,
    RulesFallback fallback = RulesFallback::kAxisIsUnsharded);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_RULES_LOGICAL_RULES_H_
