// Questions about a mesh: its names and sizes, where a device stands along some axes, and the
// smaller meshes and groups that those axes cut out of it.
#ifndef SHARDMESH_SHARDING_MESH_QUERY_H_
#define SHARDMESH_SHARDING_MESH_QUERY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/device_group.h"
#include "sharding/mesh.h"
#include "sharding/spec.h"

namespace shardmesh {

// The mesh in force within nested contexts, given outermost first: the innermost one, or the empty
// mesh if there are none. With `required` an empty mesh is FAILED_PRECONDITION (NO_MESH;
// AssertionError).
absl::StatusOr<Mesh> ContextMesh(absl::Span<const Mesh> entered, bool required = true);

// Whether all names are axes of the mesh. No names are always there, in the empty mesh too.
bool HasAxes(const Mesh& mesh, absl::Span<const std::string> names);

// The names of the mesh's axes, in order.
std::vector<std::string> MeshAxisNames(const Mesh& mesh);

// The axes that partition a dimension in any of the specs: sorted, each once.
std::vector<std::string> AxisNamesOf(absl::Span<const PartitionSpec> specs);

// The product of the sizes of the axes; 1 without any. An axis counts as often as it is named.
// INVALID_ARGUMENT (AXIS_NOT_IN_MESH; KeyError) names one that the mesh lacks; (LIMIT_EXCEEDED;
// OverflowError) for a product beyond int64_t.
absl::StatusOr<int64_t> AxesSize(const Mesh& mesh, absl::Span<const std::string> axes);

// The same number as a mapped computation on the mesh sees it: an absent axis has class NameError.
// On the empty mesh, which stands for code outside of any such computation, every axis is absent.
absl::StatusOr<int64_t> MappedAxesSize(const Mesh& mesh, absl::Span<const std::string> axes);

// The number of a device among those that differ along `axes`, the first axis major; 0 without
// any. An axis that is named twice counts twice: with axes (tp, tp), of size 4, coordinate 3 gives
// 15. Errors as MappedAxesSize. Requires 0 <= device < mesh.size() unless `axes` is empty or the
// mesh is.
//
// Example: mesh sp=4,tp=2, axes (tp, sp): device 3, at (1, 1), has index 5.
absl::StatusOr<int64_t> SubmeshIndex(const Mesh& mesh, absl::Span<const std::string> axes,
                                     DeviceId device);

// The same for many devices, in the order given: the axes are looked up once. Errors do not depend
// on the devices, of which there may be none.
absl::StatusOr<std::vector<int64_t>> SubmeshIndices(const Mesh& mesh,
                                                    absl::Span<const std::string> axes,
                                                    absl::Span<const DeviceId> devices);

// The mesh over `axes`, in the order given, whose devices are those of `mesh` that differ from
// `device` along these axes alone. Each bears the global id that it has in `mesh`. Looks at no
// other device. Errors as DeviceGroup::Create; INVALID_MESH without axes.
//
// Example: mesh dp=2,tp=4, axes (tp), device 5: the mesh tp=4 over the devices 4, 5, 6, 7.
absl::StatusOr<Mesh> SubmeshOf(const Mesh& mesh, absl::Span<const std::string> axes,
                               DeviceId device);

// The mesh's axes that cut no dimension of `spec`, in mesh order: devices that differ along these
// alone hold the same tile, or partial sums of it along the spec's unreduced axes. Those devices
// are a replica group.
std::vector<std::string> ReplicaAxes(const Mesh& mesh, const PartitionSpec& spec);

// How the devices of a mesh fall into groups along `axes`: every device is in exactly one. Groups
// are numbered by their least member. Immutable, hence safe to share between threads; a group is
// made when it is asked for, in O(its members).
//
// Example: mesh dp=2,tp=4, axes (dp): four groups; group 1 is the devices 1, 5.
class DeviceGroups {
 public:
  // Errors as DeviceGroup::Create.
  static absl::StatusOr<DeviceGroups> Create(const Mesh& mesh, std::vector<std::string> axes);

  // How many groups there are; 0 on the empty mesh.
  int64_t count() const { return group_size_ == 0 ? 0 : mesh_.size() / group_size_; }
  // Devices of each group.
  int64_t group_size() const { return group_size_; }
  // Requires 0 <= group < count(). The place of the result is that of the group's least member.
  DeviceGroup GroupAt(int64_t group) const;
  // The number of the group that holds a device. Requires 0 <= device < mesh.size().
  int64_t GroupOf(DeviceId device) const;

 private:
  DeviceGroups(Mesh mesh, std::vector<std::string> axes)
      : mesh_(std::move(mesh)), axes_(std::move(axes)) {}

  Mesh mesh_;
  std::vector<std::string> axes_;
  std::vector<int64_t> other_axes_;  // indices of the axes not grouped along, in mesh order
  int64_t group_size_ = 0;
};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_MESH_QUERY_H_
