// Chooses where the axes of partial sums go when the sums are scattered.
#include "server/reshard/partial_sums.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "program/collective_check.h"
#include "sharding/mesh.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"

namespace shardmesh::server {
namespace {

int64_t SizeOfAxis(const Mesh& mesh, const std::string& name) {
  const std::optional<int64_t> axis = mesh.FindAxis(name);
  return axis.has_value() ? mesh.axes()[static_cast<size_t>(*axis)].size : 1;
}

bool IsCut(const ArrayDescriptor& array, size_t dim) {
  return dim < array.cut_points.size() && !array.cut_points[dim].empty();
}

}  // namespace

bool HasPartialSums(const ArrayDescriptor& array) { return !array.spec.unreduced().empty(); }

PartitionSpec WithoutUnreduced(const PartitionSpec& spec) {
  if (spec.unreduced().empty()) return spec;
  return PartitionSpec({spec.entries().begin(), spec.entries().end()});
}

ArrayDefinition WithoutSums(const ArrayDefinition& array) {
  ArrayDefinition without = array;
  without.descriptor.spec = WithoutUnreduced(array.descriptor.spec);
  if (!array.requested_spec.has_value()) return without;
  without.requested_spec = WithoutUnreduced(*array.requested_spec);
  const std::vector<std::string> requested = without.requested_spec->AxisNames();
  std::vector<SpecEntry> entries;
  bool is_scattered = false;
  for (const SpecEntry& entry : without.descriptor.spec.entries()) {
    std::vector<AxisName> axes(entry.axes().begin(), entry.axes().end());
    const size_t lost = std::erase_if(axes, [&requested](const AxisName& axis) {
      return axis.has_value() &&
             std::find(requested.begin(), requested.end(), *axis) == requested.end();
    });
    is_scattered |= lost > 0;
    entries.push_back(lost > 0 ? SpecEntry::Axes(std::move(axes)) : entry);
  }
  if (is_scattered) without.descriptor.spec = PartitionSpec(std::move(entries));
  if (*without.requested_spec == without.descriptor.spec) without.requested_spec.reset();
  return without;
}

std::optional<PartitionSpec> RequestedOfSums(const ArrayDefinition& partial,
                                             const PartitionSpec& sums) {
  const PartitionSpec& own = partial.descriptor.spec;
  const bool is_scattered = sums.AxisNames().size() > own.AxisNames().size();
  if (!partial.requested_spec.has_value() && !is_scattered) return std::nullopt;
  return WithoutUnreduced(partial.requested_spec.value_or(own));
}

absl::StatusOr<ArrayDescriptor> SumsOf(const ArrayDescriptor& partial) {
  if (!HasArithmetic(partial.dtype)) {
    return InvalidArgument(
        Reason::kUnsupportedDtype,
        StrCat("it holds partial sums along ", StrJoin(partial.spec.unreduced(), ", "), ", and ",
               DtypeName(partial.dtype),
               " has no arithmetic that adds them up; broadcast the array from its root on its own "
               "mesh \"",
               partial.mesh_id, "\" first (`shardmesh collective broadcast`)"),
        {{fact::kDtype, DtypeName(partial.dtype)}});
  }
  std::vector<std::vector<AxisName>> dims(partial.shape.size());
  std::vector<int64_t> parts(dims.size(), 1);
  for (size_t dim = 0; dim < dims.size(); ++dim) {
    const auto axes = partial.spec.entry(static_cast<int64_t>(dim)).axes();
    dims[dim].assign(axes.begin(), axes.end());
    for (const AxisName& axis : axes) {
      parts[dim] *= axis.has_value() ? SizeOfAxis(partial.mesh, *axis) : 1;
    }
  }
  for (const std::string& axis : partial.spec.unreduced()) {
    const int64_t size = SizeOfAxis(partial.mesh, axis);
    for (size_t dim = 0; size > 1 && dim < dims.size(); ++dim) {
      const int64_t extent = partial.shape[dim];
      if (extent == 0 || IsCut(partial, dim) || extent % (parts[dim] * size) != 0) continue;
      dims[dim].emplace_back(axis);
      parts[dim] *= size;
      break;
    }
  }
  std::vector<SpecEntry> entries;
  for (std::vector<AxisName>& axes : dims) entries.push_back(SpecEntry::Axes(std::move(axes)));
  ArrayDescriptor sums = partial;
  sums.spec = PartitionSpec(std::move(entries));
  return sums;
}

}  // namespace shardmesh::server
