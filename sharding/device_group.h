// The devices of one collective: all devices whose coordinates differ only along given mesh axes.
#ifndef SHARDMESH_SHARDING_DEVICE_GROUP_H_
#define SHARDMESH_SHARDING_DEVICE_GROUP_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/mesh.h"

namespace shardmesh {

// The group along `axes` through `device`: every device that equals `device` in all other
// coordinates. Members are ordered by the coordinates along `axes`, the first axis major. All
// members see the same group in the same order.
//
// Example: mesh dp=2,tp=4, axes (tp), device 5: devices() are 4, 5, 6, 7, and place() is 1.
// Immutable, and safe to share between threads.
class DeviceGroup {
 public:
  // Without axes, the group has only the device itself. INVALID_ARGUMENT for an axis that the mesh
  // lacks (AXIS_NOT_IN_MESH) or that is named twice (DUPLICATE_AXIS). Requires
  // 0 <= device < mesh.size().
  static absl::StatusOr<DeviceGroup> Create(const Mesh& mesh, absl::Span<const std::string> axes,
                                            DeviceId device);

  absl::Span<const DeviceId> devices() const { return devices_; }
  int64_t size() const { return static_cast<int64_t>(devices_.size()); }
  // Returns the index in devices() of the device that was given to Create.
  int64_t place() const { return place_; }
  DeviceId device_at(int64_t place) const { return devices_[static_cast<size_t>(place)]; }

 private:
  DeviceGroup(std::vector<DeviceId> devices, int64_t place)
      : devices_(std::move(devices)), place_(place) {}

  std::vector<DeviceId> devices_;
  int64_t place_;
};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_DEVICE_GROUP_H_
