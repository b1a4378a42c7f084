// Enumerates the members of a group.
#include "sharding/device_group.h"

#include "sharding/axis_value.h"
#include "status/fact_keys.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh {

absl::StatusOr<DeviceGroup> DeviceGroup::Create(const Mesh& mesh,
                                                absl::Span<const std::string> axes,
                                                DeviceId device) {
  std::vector<DeviceId> members = {device};
  int64_t place = 0;
  for (size_t i = 0; i < axes.size(); ++i) {
    const std::optional<int64_t> axis = mesh.FindAxis(axes[i]);
    if (!axis.has_value()) {
      return InvalidArgument(
          Reason::kAxisNotInMesh,
          StrCat("the group is along ", PythonRepr(axes[i]), ", which is no axis of the mesh ",
                 mesh.ToString(), mesh.DidYouMeanAxis(axes[i])),
          {{fact::kAxis, axes[i]},
           {fact::kMesh, mesh.ToString()},
           {fact::kNearest, mesh.NearestAxis(axes[i])}});
    }
    for (size_t j = 0; j < i; ++j) {
      if (axes[j] == axes[i]) {
        return InvalidArgument(
            Reason::kDuplicateAxis,
            StrCat("the group is along ", PythonRepr(axes[i]), " twice; name an axis once"),
            {{fact::kAxis, axes[i]}});
      }
    }
    // Replace each member by the devices that differ from it only along this axis, which is more
    // minor than the axes before.
    const int64_t size = mesh.axes()[static_cast<size_t>(*axis)].size;
    const int64_t own = mesh.CoordinateOf(device, *axis);
    std::vector<DeviceId> longer;
    longer.reserve(members.size() * static_cast<size_t>(size));
    for (const DeviceId member : members) {
      for (int64_t coordinate = 0; coordinate < size; ++coordinate) {
        longer.push_back(member + (coordinate - own) * mesh.stride(*axis));
      }
    }
    members = std::move(longer);
    place = place * size + own;
  }
  return DeviceGroup(std::move(members), place);
}

}  // namespace shardmesh
