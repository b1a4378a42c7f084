// Arithmetic along some axes of a mesh.
#include "sharding/mesh_query.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "absl/numeric/int128.h"
#include "sharding/axis_value.h"
#include "status/fact_keys.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

constexpr std::string_view kAbsentInMesh = "KeyError";
constexpr std::string_view kAbsentInMapping = "NameError";

absl::StatusOr<int64_t> FindAxis(const Mesh& mesh, const std::string& name,
                                 std::string_view python_type) {
  if (const std::optional<int64_t> axis = mesh.FindAxis(name); axis.has_value()) return *axis;
  return InvalidArgument(Reason::kAxisNotInMesh,
                         StrCat(PythonRepr(name), " is no axis of the mesh ", mesh.ToString(),
                                mesh.DidYouMeanAxis(name)),
                         {{fact::kAxis, name},
                          {fact::kMesh, mesh.ToString()},
                          {fact::kNearest, mesh.NearestAxis(name)}},
                         python_type);
}

int64_t SizeOf(const Mesh& mesh, int64_t axis) {
  return mesh.axes()[static_cast<size_t>(axis)].size;
}

absl::Status TooLarge(const Mesh& mesh, absl::Span<const std::string> axes) {
  return InvalidArgument(
      Reason::kLimitExceeded,
      StrCat("the sizes of the axes ", StrJoin(axes, ", "), " of the mesh ", mesh.ToString(),
             " multiply to more than 64 bits hold; name each axis once"),
      {{fact::kLimit, std::numeric_limits<int64_t>::max()}}, "OverflowError");
}

absl::StatusOr<int64_t> ProductOfSizes(const Mesh& mesh, absl::Span<const std::string> axes,
                                       std::string_view python_type) {
  std::vector<int64_t> sizes;
  for (const std::string& name : axes) {
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t axis, FindAxis(mesh, name, python_type));
    sizes.push_back(SizeOf(mesh, axis));
  }
  // One size of 0 makes the product 0, even if the other sizes alone would overflow.
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return 0;
  int64_t product = 1;
  for (const int64_t size : sizes) {
    const absl::int128 longer = absl::int128(product) * size;
    if (longer > std::numeric_limits<int64_t>::max()) return TooLarge(mesh, axes);
    product = static_cast<int64_t>(longer);
  }
  return product;
}

}  // namespace

absl::StatusOr<Mesh> ContextMesh(absl::Span<const Mesh> entered, bool required) {
  const Mesh mesh = entered.empty() ? Mesh() : entered.back();
  if (required && mesh.empty()) {
    return WithPythonType(WithReason(absl::FailedPreconditionError(
                                         "no mesh is in force here; name one, or give its axes"),
                                     Reason::kNoMesh),
                          "AssertionError");
  }
  return mesh;
}

bool HasAxes(const Mesh& mesh, absl::Span<const std::string> names) {
  return std::all_of(names.begin(), names.end(),
                     [&](const std::string& name) { return mesh.HasAxis(name); });
}

std::vector<std::string> MeshAxisNames(const Mesh& mesh) {
  std::vector<std::string> names;
  for (const MeshAxis& axis : mesh.axes()) names.push_back(axis.name);
  return names;
}

std::vector<std::string> AxisNamesOf(absl::Span<const PartitionSpec> specs) {
  std::set<std::string> names;
  for (const PartitionSpec& spec : specs) {
    for (std::string& name : spec.AxisNames()) names.insert(std::move(name));
  }
  return {names.begin(), names.end()};
}

absl::StatusOr<int64_t> AxesSize(const Mesh& mesh, absl::Span<const std::string> axes) {
  return ProductOfSizes(mesh, axes, kAbsentInMesh);
}

absl::StatusOr<int64_t> MappedAxesSize(const Mesh& mesh, absl::Span<const std::string> axes) {
  return ProductOfSizes(mesh.empty() ? Mesh() : mesh, axes, kAbsentInMapping);
}

absl::StatusOr<int64_t> SubmeshIndex(const Mesh& mesh, absl::Span<const std::string> axes,
                                     DeviceId device) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<int64_t> indices,
                             SubmeshIndices(mesh, axes, absl::MakeConstSpan(&device, 1)));
  return indices.front();
}

absl::StatusOr<std::vector<int64_t>> SubmeshIndices(const Mesh& mesh,
                                                    absl::Span<const std::string> axes,
                                                    absl::Span<const DeviceId> devices) {
  // Check that the mesh has every name, and that the largest index fits int64_t.
  SHARDMESH_RETURN_IF_ERROR(MappedAxesSize(mesh, axes).status());
  std::vector<int64_t> found;
  for (const std::string& name : axes) found.push_back(*mesh.FindAxis(name));
  std::vector<int64_t> indices;
  indices.reserve(devices.size());
  for (const DeviceId device : devices) {
    int64_t index = 0;
    for (const int64_t axis : found) {
      index = index * SizeOf(mesh, axis) + mesh.CoordinateOf(device, axis);
    }
    indices.push_back(index);
  }
  return indices;
}

absl::StatusOr<Mesh> SubmeshOf(const Mesh& mesh, absl::Span<const std::string> axes,
                               DeviceId device) {
  SHARDMESH_ASSIGN_OR_RETURN(const DeviceGroup group, DeviceGroup::Create(mesh, axes, device));
  std::vector<MeshAxis> sub_axes;
  for (const std::string& name : axes) {
    sub_axes.push_back(mesh.axes()[static_cast<size_t>(*mesh.FindAxis(name))]);
  }
  MeshOptions options;
  for (const DeviceId member : group.devices()) {
    options.global_ids.push_back(mesh.GlobalIdOf(member));
  }
  return Mesh::Create(std::move(sub_axes), std::move(options));
}

std::vector<std::string> ReplicaAxes(const Mesh& mesh, const PartitionSpec& spec) {
  const std::vector<std::string> cut = spec.AxisNames();
  std::vector<std::string> names;
  for (const MeshAxis& axis : mesh.axes()) {
    if (std::find(cut.begin(), cut.end(), axis.name) == cut.end()) names.push_back(axis.name);
  }
  return names;
}

absl::StatusOr<DeviceGroups> DeviceGroups::Create(const Mesh& mesh, std::vector<std::string> axes) {
  std::vector<bool> grouped(static_cast<size_t>(mesh.axis_count()));
  int64_t group_size = 1;
  for (const std::string& name : axes) {
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t axis, FindAxis(mesh, name, "ValueError"));
    if (grouped[static_cast<size_t>(axis)]) {
      return InvalidArgument(
          Reason::kDuplicateAxis,
          StrCat("the groups are along ", PythonRepr(name), " twice; name an axis once"),
          {{fact::kAxis, name}});
    }
    grouped[static_cast<size_t>(axis)] = true;
    group_size *= SizeOf(mesh, axis);
  }
  DeviceGroups groups(mesh, std::move(axes));
  for (int64_t axis = 0; axis < mesh.axis_count(); ++axis) {
    if (!grouped[static_cast<size_t>(axis)]) groups.other_axes_.push_back(axis);
  }
  groups.group_size_ = mesh.empty() ? 0 : group_size;
  return groups;
}

DeviceGroup DeviceGroups::GroupAt(int64_t group) const {
  // The group's number has the coordinates along the other axes as its digits. The least member
  // has these coordinates, and coordinate 0 along the axes of the group.
  DeviceId least = 0;
  for (size_t i = other_axes_.size(); i-- > 0;) {
    const int64_t size = SizeOf(mesh_, other_axes_[i]);
    least += group % size * mesh_.stride(other_axes_[i]);
    group /= size;
  }
  return *DeviceGroup::Create(mesh_, axes_, least);  // cannot fail: Create checked the axes
}

int64_t DeviceGroups::GroupOf(DeviceId device) const {
  int64_t group = 0;
  for (const int64_t axis : other_axes_) {
    group = group * SizeOf(mesh_, axis) + mesh_.CoordinateOf(device, axis);
  }
  return group;
}

}  // namespace shardmesh
