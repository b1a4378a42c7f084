// Looks up logical names by the two methods of flax, and decides how to constrain an array.
#include "sharding/rules/logical_rules.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "status/fact_keys.h"
#include "status/nearest_name.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

constexpr std::string_view kFallbackNames[] = {"axis_is_unsharded", "raise_error", "no_constraint"};

// Returns whether Python treats the value as false. flax never looks up such a value.
bool IsFalse(const AxisValue& value) {
  return value.is_none() || (value.is_name() && value.name().empty()) ||
         ((value.is_tuple() || value.is_list()) && value.entries().empty());
}

bool HoldsList(const AxisValue& value) {
  return value.is_list() || std::any_of(value.entries().begin(), value.entries().end(), HoldsList);
}

// A mesh axis and the dimension that it partitions.
struct TakenAxis {
  std::string_view name;
  size_t dim;
};
using TakenAxes = absl::InlinedVector<TakenAxis, 16>;

// Visits the mesh axes of `value`, at any depth. The empty name counts as an axis, as in flax.
template <typename Visit>
void ForEachMeshAxis(const AxisValue& value, const Visit& visit) {
  if (value.is_name()) {
    visit(std::string_view(value.name()));
  }
  for (const AxisValue& entry : value.entries()) {
    ForEachMeshAxis(entry, visit);
  }
}

void Take(const AxisValue& value, size_t dim, TakenAxes& taken) {
  ForEachMeshAxis(value, [&](std::string_view axis) { taken.push_back({axis, dim}); });
}

// Returns the first mesh axis of `value` that already partitions a dimension; null if all are free.
const TakenAxis* FindTaken(const AxisValue& value, const TakenAxes& taken) {
  const TakenAxis* found = nullptr;
  ForEachMeshAxis(value, [&](std::string_view axis) {
    const auto it = std::find_if(taken.begin(), taken.end(),
                                 [axis](const TakenAxis& other) { return other.name == axis; });
    if (found == nullptr && it != taken.end()) {
      found = &*it;
    }
  });
  return found;
}

absl::Status CheckNames(absl::Span<const AxisValue> names) {
  for (size_t dim = 0; dim < names.size(); ++dim) {
    if (HoldsList(names[dim])) {
      return InvalidArgument(Reason::kInvalidAxisValue,
                             StrCat("dimension ", dim, " is called ", names[dim].ToString(),
                                    ", and names are never lists; write a tuple"),
                             {{fact::kDimension, dim}, {fact::kValue, names[dim].ToString()}},
                             "TypeError");
    }
  }
  for (size_t dim = 0; dim < names.size(); ++dim) {
    const auto first =
        std::find(names.begin(), names.begin() + static_cast<ptrdiff_t>(dim), names[dim]);
    if (names[dim].is_name() && first != names.begin() + static_cast<ptrdiff_t>(dim)) {
      return InvalidArgument(
          Reason::kDuplicateAxis,
          StrCat("dimensions ", first - names.begin(), " and ", dim, " are both called ",
                 names[dim].ToString(), "; rules need a name of its own for each dimension"),
          {{fact::kAxis, names[dim].name()}});
    }
  }
  return absl::OkStatus();
}

// Returns the error for dimension `dim`, which got no axes from `rules`.
absl::Status NameWithoutAxes(absl::Span<const AxisValue> names, size_t dim,
                             absl::Span<const LogicalRule> rules, const TakenAxes& taken) {
  const std::string& name = names[dim].name();
  std::vector<std::string> reasons;
  for (const LogicalRule& rule : rules) {
    // Not null for a rule of this name: with all its axes free, the rule would have applied.
    const TakenAxis* axis = rule.name == name ? FindTaken(rule.mesh_axes, taken) : nullptr;
    if (axis != nullptr) {
      reasons.push_back(StrCat(rule.mesh_axes.ToString(), ", but ", PythonRepr(axis->name),
                               " went to dimension ", axis->dim, ", ",
                               names[axis->dim].ToString()));
    }
  }
  if (reasons.empty()) {
    std::vector<std::string_view> known;
    for (const LogicalRule& rule : rules) {
      known.push_back(rule.name);
    }
    return InvalidArgument(
        Reason::kUnknownAxis,
        StrCat("dimension ", dim, " is called ", PythonRepr(name),
               ", and no rule is for that name; add one, even one that gives none",
               DidYouMean(name, known)),
        {{fact::kName, name},
         {fact::kNearest, NearestName(name, known).value_or("")},
         {fact::kDimension, dim}});
  }
  return InvalidArgument(
      Reason::kUnknownAxis,
      StrCat("dimension ", dim, ", ", PythonRepr(name), ", got no mesh axes: its rules say ",
             StrJoin(reasons, "; "), "; add a rule for it with other axes, or with none"),
      {{fact::kName, name}, {fact::kDimension, dim}});
}

// Checks that the axes of the spec are distinct and in the mesh, and that only a mesh with a kAuto
// axis gets a spec with an open dimension. Errors and their order are those of JAX.
absl::Status CheckSpecOnMesh(const PartitionSpec& spec, const Mesh& mesh) {
  SHARDMESH_RETURN_IF_ERROR(CheckDistinctAxes(spec));
  bool is_open = false;
  int64_t open_dimension = 0;
  for (const SpecEntry& entry : spec.entries()) {
    is_open = is_open || entry.is_unconstrained();
    open_dimension += is_open ? 0 : 1;
    for (const AxisName& axis : entry.axes()) {
      if (!axis.has_value()) {
        return InvalidArgument(Reason::kAxisNotInMesh,
                               StrCat("the spec ", spec.ToString(),
                                      " holds None among the axes of a dimension; drop it"),
                               {{fact::kAxis, "None"}, {fact::kMesh, mesh.ToString()}});
      }
      if (!mesh.HasAxis(*axis)) {
        return InvalidArgument(
            Reason::kAxisNotInMesh,
            StrCat("the spec ", spec.ToString(), " names ", PythonRepr(*axis),
                   ", which is no axis of the mesh ", mesh.ToString(), mesh.DidYouMeanAxis(*axis),
                   "; if it is a logical name, a rule for it is missing"),
            {{fact::kAxis, *axis},
             {fact::kMesh, mesh.ToString()},
             {fact::kNearest, mesh.NearestAxis(*axis)}});
      }
    }
  }
  const bool any_auto = std::any_of(mesh.axes().begin(), mesh.axes().end(),
                                    [](const auto& axis) { return axis.type == AxisType::kAuto; });
  if (is_open && !any_auto) {
    return InvalidArgument(
        Reason::kUnconstrained,
        StrCat("the spec ", spec.ToString(), " leaves a dimension open, and no axis of the mesh ",
               mesh.ToString(), " is auto; say none, or axes"),
        {{fact::kDimension, open_dimension}});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LogicalRules> CompositeRules(absl::Span<const LogicalRule> first,
                                            absl::Span<const LogicalRule> second) {
  if (first.empty() || second.empty()) {
    const absl::Span<const LogicalRule> only = first.empty() ? second : first;
    return LogicalRules(only.begin(), only.end());
  }
  LogicalRules rules;
  // The index of each name's rule in `rules`. Keys are views into the arguments.
  absl::flat_hash_map<std::string_view, size_t> places;
  for (const LogicalRule& rule : first) {
    const auto [it, inserted] = places.emplace(rule.name, rules.size());
    if (inserted) {
      rules.push_back(rule);
    } else {
      rules[it->second].mesh_axes = rule.mesh_axes;
    }
  }
  for (const LogicalRule& rule : second) {
    const auto [it, inserted] = places.emplace(rule.name, rules.size());
    if (inserted) {
      rules.push_back(rule);
    } else if (const AxisValue& before = rules[it->second].mesh_axes; before != rule.mesh_axes) {
      return InvalidArgument(
          Reason::kInvalidAxisValue,
          StrCat("the logical axis ", PythonRepr(rule.name), " has two rules that disagree, ",
                 before.ToString(), " and ", rule.mesh_axes.ToString(), "; keep one of them"),
          {{fact::kName, rule.name}, {fact::kValue, rule.mesh_axes.ToString()}});
    }
  }
  return rules;
}

std::vector<AxisValue> ApplyLogicalRules(absl::Span<const AxisValue> names,
                                         absl::Span<const LogicalRule> rules) {
  std::vector<AxisValue> values;
  values.reserve(names.size());
  for (const AxisValue& name : names) {
    const std::string key = name.is_name() ? name.name() : name.ToString();
    const auto rule =
        IsFalse(name) ? rules.rend()
                      : std::find_if(rules.rbegin(), rules.rend(),
                                     [&key](const LogicalRule& each) { return each.name == key; });
    values.push_back(rule == rules.rend() ? name : rule->mesh_axes);
  }
  return values;
}

absl::StatusOr<PartitionSpec> ResolveLogicalSpec(absl::Span<const AxisValue> names,
                                                 absl::Span<const LogicalRule> rules,
                                                 absl::Span<const LogicalRule> context) {
  SHARDMESH_ASSIGN_OR_RETURN(const LogicalRules all, CompositeRules(context, rules));
  return PartitionSpec::Create(ApplyLogicalRules(names, all));
}

absl::StatusOr<ShardValueDecision> ResolveShardValue(absl::Span<const AxisValue> names,
                                                     absl::Span<const LogicalRule> rules,
                                                     const Mesh& mesh,
                                                     absl::Span<const LogicalRule> context) {
  if (names.empty()) {
    return ShardValueDecision{};
  }
  if (mesh.axes().empty()) {
    return InvalidArgument(Reason::kNoMesh,
                           "an array whose dimensions have names needs a mesh; give one, or leave "
                           "the names out");
  }
  SHARDMESH_ASSIGN_OR_RETURN(PartitionSpec spec, ResolveLogicalSpec(names, rules, context));
  SHARDMESH_RETURN_IF_ERROR(CheckSpecOnMesh(spec, mesh));
  if (mesh.AllAxesAre(AxisType::kExplicit)) {
    return ShardValueDecision{ShardValueAction::kReshard, std::move(spec)};
  }
  if (mesh.AllAxesAre(AxisType::kAuto)) {
    return ShardValueDecision{ShardValueAction::kConstrain, std::move(spec)};
  }
  return InvalidArgument(Reason::kInvalidMesh,
                         StrCat("the axes of the mesh ", mesh.ToString(),
                                " are neither all auto nor all explicit; give them one type"),
                         {{fact::kValue, mesh.ToString()}});
}

std::string_view RulesFallbackName(RulesFallback fallback) {
  return kFallbackNames[static_cast<size_t>(fallback)];
}

std::optional<RulesFallback> RulesFallbackFromName(std::string_view name) {
  for (size_t i = 0; i < std::size(kFallbackNames); ++i) {
    if (kFallbackNames[i] == name) {
      return static_cast<RulesFallback>(i);
    }
  }
  return std::nullopt;
}

absl::StatusOr<std::optional<PartitionSpec>> ResolveLogicalAxes(absl::Span<const AxisValue> names,
                                                                absl::Span<const LogicalRule> rules,
                                                                RulesFallback fallback) {
  SHARDMESH_RETURN_IF_ERROR(CheckNames(names));
  std::vector<AxisValue> values(names.begin(), names.end());
  std::vector<bool> is_assigned;
  TakenAxes taken;
  for (size_t dim = 0; dim < names.size(); ++dim) {
    is_assigned.push_back(!names[dim].is_name());
    if (is_assigned[dim]) {
      Take(names[dim], dim, taken);
    }
  }
  for (const LogicalRule& rule : rules) {
    const auto name = std::find_if(names.begin(), names.end(), [&rule](const AxisValue& value) {
      return value.is_name() && value.name() == rule.name;
    });
    const auto dim = static_cast<size_t>(name - names.begin());
    if (name == names.end() || is_assigned[dim] || FindTaken(rule.mesh_axes, taken) != nullptr) {
      continue;
    }
    values[dim] = rule.mesh_axes;
    is_assigned[dim] = true;
    Take(rule.mesh_axes, dim, taken);
  }
  for (size_t dim = 0; dim < names.size(); ++dim) {
    if (is_assigned[dim]) {
      continue;
    }
    switch (fallback) {
      case RulesFallback::kAxisIsUnsharded:
        values[dim] = AxisValue::None();
        break;
      case RulesFallback::kRaiseError:
        return NameWithoutAxes(names, dim, rules, taken);
      case RulesFallback::kNoConstraint:
        return std::nullopt;
    }
  }
  return PartitionSpec::Create(values);
}

absl::StatusOr<std::optional<PartitionSpec>> ResolveLogicalConstraint(
    absl::Span<const AxisValue> names, absl::Span<const LogicalRule> rules,
    RulesFallback fallback) {
  if (rules.empty()) {
    return std::nullopt;
  }
  return ResolveLogicalAxes(names, rules, fallback);
}

}  // namespace shardmesh
