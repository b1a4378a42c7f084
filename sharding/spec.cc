// Normalises, prints and compares partition specs.
#include "sharding/spec.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "status/fact_keys.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

absl::Status InvalidSpec(std::string_view message, const AxisValue& value) {
  return InvalidArgument(Reason::kInvalidSpec, message, {{fact::kValue, value.ToString()}});
}

// Calls `visit` with each axis name of the entries, in order, including repeats.
template <typename Visit>
void ForEachAxisName(absl::Span<const SpecEntry> entries, Visit visit) {
  for (const SpecEntry& entry : entries) {
    for (const AxisName& axis : entry.axes()) {
      if (axis.has_value()) {
        visit(*axis);
      }
    }
  }
}

// Returns the size of an axis; 1 if the mesh lacks it.
int64_t SizeOf(const Mesh& mesh, std::string_view name) {
  const std::optional<int64_t> axis = mesh.FindAxis(name);
  return axis.has_value() ? mesh.axes()[static_cast<size_t>(*axis)].size : 1;
}

// Returns the axes of an entry that have another size than 1, and therefore split the dimension.
std::vector<std::string_view> SplittingAxes(const SpecEntry& entry, const Mesh& mesh) {
  std::vector<std::string_view> names;
  for (const AxisName& axis : entry.axes()) {
    if (axis.has_value() && SizeOf(mesh, *axis) != 1) {
      names.push_back(*axis);
    }
  }
  return names;
}

std::vector<std::string_view> SplittingUnreduced(const PartitionSpec& spec, const Mesh& mesh) {
  std::vector<std::string_view> names;
  for (const std::string& axis : spec.unreduced()) {
    if (SizeOf(mesh, axis) != 1) {
      names.push_back(axis);
    }
  }
  return names;
}

}  // namespace

SpecEntry SpecEntry::Unconstrained() {
  SpecEntry entry;
  entry.unconstrained_ = true;
  return entry;
}

SpecEntry SpecEntry::Axes(std::vector<AxisName> axes) {
  SpecEntry entry;
  if (axes.size() == 1 && !axes[0].has_value()) {
    return entry;
  }
  entry.axes_.assign(std::make_move_iterator(axes.begin()), std::make_move_iterator(axes.end()));
  return entry;
}

SpecEntry SpecEntry::Axis(std::string name) {
  SpecEntry entry;
  entry.axes_.emplace_back(std::move(name));
  return entry;
}

absl::StatusOr<SpecEntry> SpecEntry::Create(const AxisValue& value) {
  switch (value.kind()) {
    case AxisValue::Kind::kNone:
      return None();
    case AxisValue::Kind::kUnconstrained:
      return Unconstrained();
    case AxisValue::Kind::kName:
      return value.name().empty() ? None() : Axis(value.name());
    case AxisValue::Kind::kNotGiven:
      return InvalidSpec("a value that is not given cannot partition a dimension", value);
    case AxisValue::Kind::kTuple:
    case AxisValue::Kind::kList:
      break;
  }
  if (value.entries().size() == 1 && value.entries()[0].is_unconstrained()) {
    return Unconstrained();
  }
  std::vector<AxisName> axes;
  axes.reserve(value.entries().size());
  for (const AxisValue& entry : value.entries()) {
    if (entry.is_none()) {
      axes.push_back(std::nullopt);
    } else if (entry.is_name()) {
      axes.push_back(entry.name());
    } else {
      return InvalidSpec(StrCat("the axes ", value.ToString(), " hold ", entry.ToString(),
                                "; a tuple of axes holds only names, and no tuple"),
                         value);
    }
  }
  return Axes(std::move(axes));
}

std::string SpecEntry::AxisNames() const {
  return StrJoin(axes_, ",", [](std::string* out, const AxisName& axis) {
    StrAppend(out, axis.has_value() ? std::string_view(*axis) : "None");
  });
}

AxisValue SpecEntry::ToAxisValue() const {
  if (unconstrained_) {
    return AxisValue::Unconstrained();
  }
  std::vector<AxisValue> entries;
  entries.reserve(axes_.size());
  for (const AxisName& axis : axes_) {
    entries.push_back(axis.has_value() ? AxisValue::Name(*axis) : AxisValue::None());
  }
  if (entries.empty()) {
    return AxisValue::None();
  }
  return entries.size() == 1 ? entries[0] : AxisValue::Tuple(std::move(entries));
}

PartitionSpec::PartitionSpec(std::vector<SpecEntry> entries, std::vector<std::string> unreduced) {
  if (entries.empty() && unreduced.empty()) {
    return;
  }
  std::sort(unreduced.begin(), unreduced.end());
  unreduced.erase(std::unique(unreduced.begin(), unreduced.end()), unreduced.end());
  rep_ = std::make_shared<const Rep>(Rep{std::move(entries), std::move(unreduced)});
}

absl::StatusOr<PartitionSpec> PartitionSpec::Create(absl::Span<const AxisValue> entries,
                                                    std::vector<std::string> unreduced) {
  std::vector<SpecEntry> normalised;
  normalised.reserve(entries.size());
  for (size_t dim = 0; dim < entries.size(); ++dim) {
    absl::StatusOr<SpecEntry> entry = SpecEntry::Create(entries[dim]);
    if (!entry.ok()) {
      return WithContext(entry.status(), StrCat("dimension ", dim));
    }
    normalised.push_back(*std::move(entry));
  }
  return PartitionSpec(std::move(normalised), std::move(unreduced));
}

const SpecEntry& PartitionSpec::entry(int64_t dim) const {
  static const SpecEntry& kNone = *new SpecEntry();
  return dim < size() ? rep_->entries[static_cast<size_t>(dim)] : kNone;
}

std::vector<std::string> PartitionSpec::AxisNames() const {
  std::vector<std::string> names;
  absl::flat_hash_set<std::string> seen;
  ForEachAxisName(entries(), [&](const std::string& name) {
    if (seen.insert(name).second) {
      names.push_back(name);
    }
  });
  return names;
}

std::vector<std::string> PartitionSpec::DuplicateAxes() const {
  absl::flat_hash_map<std::string, int64_t> counts;
  ForEachAxisName(entries(), [&counts](const std::string& name) { ++counts[name]; });
  for (const std::string& name : unreduced()) {
    ++counts[name];
  }
  std::vector<std::string> names = AxisNames();
  names.erase(std::remove_if(names.begin(), names.end(),
                             [&counts](const std::string& name) { return counts[name] < 2; }),
              names.end());
  return names;
}

std::string PartitionSpec::ToString() const {
  std::vector<std::string> parts;
  for (const SpecEntry& entry : entries()) {
    parts.push_back(entry.ToString());
  }
  if (!unreduced().empty()) {
    parts.push_back(StrCat("unreduced={",
                           StrJoin(unreduced(), ", ",
                                   [](std::string* out, const std::string& name) {
                                     StrAppend(out, PythonRepr(name));
                                   }),
                           "}"));
  }
  return StrCat("P(", StrJoin(parts, ", "), ")");
}

absl::Status CheckDistinctAxes(const PartitionSpec& spec) {
  // This runs for every tensor, nearly always with a handful of distinct names. Compare each name
  // with the names before it: for a handful of names, that is fast and allocates nothing.
  absl::InlinedVector<std::string_view, 16> names(spec.unreduced().begin(), spec.unreduced().end());
  bool distinct = true;
  int nones = 0;
  for (const SpecEntry& entry : spec.entries()) {
    for (const AxisName& name : entry.axes()) {
      if (!name.has_value()) {
        ++nones;
        continue;
      }
      distinct = distinct && std::find(names.begin(), names.end(), *name) == names.end();
      names.push_back(*name);
    }
  }
  if (distinct && nones < 2) {
    return absl::OkStatus();
  }
  if (distinct) {
    return InvalidArgument(
        Reason::kDuplicateAxis,
        StrCat("the spec ", spec.ToString(),
               " holds None among the axes of a dimension, and more than once; drop it"),
        {{fact::kAxis, "None"}}, "DuplicateSpecError");
  }
  const std::vector<std::string> duplicates = spec.DuplicateAxes();
  return InvalidArgument(
      Reason::kDuplicateAxis,
      StrCat("the spec ", spec.ToString(), " uses the mesh axis ", PythonRepr(duplicates[0]),
             " more than once; an axis may partition one dimension, once"),
      {{fact::kAxis, duplicates[0]}}, "DuplicateSpecError");
}

absl::Status CheckAxesInMesh(const PartitionSpec& spec, const Mesh& mesh) {
  const auto refuse = [&](const AxisName& axis) {
    const std::string_view name = axis.has_value() ? std::string_view(*axis) : "None";
    return InvalidArgument(
        Reason::kAxisNotInMesh,
        StrCat("the spec ", spec.ToString(), " uses ",
               axis.has_value() ? PythonRepr(name) : std::string("None within a tuple"),
               ", which is no axis of the mesh ", mesh.ToString(),
               axis.has_value() ? mesh.DidYouMeanAxis(name) : std::string()),
        {{fact::kAxis, name},
         {fact::kMesh, mesh.ToString()},
         {fact::kNearest, axis.has_value() ? mesh.NearestAxis(name) : std::string()}});
  };
  for (const SpecEntry& entry : spec.entries()) {
    for (const AxisName& name : entry.axes()) {
      if (!name.has_value() || !mesh.HasAxis(*name)) {
        return refuse(name);
      }
    }
  }
  for (const std::string& name : spec.unreduced()) {
    if (!mesh.HasAxis(name)) {
      return refuse(name);
    }
  }
  return absl::OkStatus();
}

bool Equivalent(const PartitionSpec& a, const PartitionSpec& b, const Mesh& mesh, int64_t rank) {
  for (int64_t dim = 0; dim < rank; ++dim) {
    if (SplittingAxes(a.entry(dim), mesh) != SplittingAxes(b.entry(dim), mesh)) {
      return false;
    }
  }
  return SplittingUnreduced(a, mesh) == SplittingUnreduced(b, mesh);
}

bool FullyReplicated(const PartitionSpec& spec, const Mesh& mesh) {
  return std::all_of(spec.entries().begin(), spec.entries().end(),
                     [&](const SpecEntry& entry) { return SplittingAxes(entry, mesh).empty(); }) &&
         SplittingUnreduced(spec, mesh).empty();
}

}  // namespace shardmesh
