// Questions about a mesh: its names and sizes, the place of a device along some axes, and the
// smaller meshes and groups along those axes.
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

// Returns the mesh in force within nested `with mesh:` contexts: the innermost mesh, or the empty
// mesh without contexts. `entered` has the meshes of the contexts, outermost first. If `required`,
// an empty mesh is FAILED_PRECONDITION (NO_MESH; Python: AssertionError).
absl::StatusOr<Mesh> ContextMesh(absl::Span<const Mesh> entered, bool required = true);

// Returns whether all names are axes of the mesh. An empty list gives true, also for the empty
// mesh.
bool HasAxes(const Mesh& mesh, absl::Span<const std::string> names);

// Returns the names of the mesh's axes, in order.
std::vector<std::string> MeshAxisNames(const Mesh& mesh);

// Returns the axes that partition a dimension in any of the specs, sorted and each once.
std::vector<std::string> AxisNamesOf(absl::Span<const PartitionSpec> specs);

// Returns the product of the sizes of the axes; 1 without axes. An axis counts as often as it is
// named. INVALID_ARGUMENT (AXIS_NOT_IN_MESH; Python: KeyError) for an axis that the mesh lacks;
// (LIMIT_EXCEEDED; Python: OverflowError) for a product beyond int64_t.
absl::StatusOr<int64_t> AxesSize(const Mesh& mesh, absl::Span<const std::string> axes);

// Returns AxesSize as a mapped computation (shard_map) on the mesh sees it: the error for an absent
// axis has the Python class NameError. The empty mesh stands for code outside any mapped
// computation, where every axis is absent.
absl::StatusOr<int64_t> MappedAxesSize(const Mesh& mesh, absl::Span<const std::string> axes);

// Returns the index of a device in its group along `axes`, the first axis major; 0 without axes. An
// axis that is named twice counts twice: with axes (tp, tp), where tp has size 4, coordinate 3
// gives 15. Errors as MappedAxesSize. Requires 0 <= device < mesh.size(), unless `axes` or the mesh
// is empty.
//
// Example: mesh sp=4,tp=2, axes (tp, sp): device 3, at (1, 1), has index 5.
absl::StatusOr<int64_t> SubmeshIndex(const Mesh& mesh, absl::Span<const std::string> axes,
                                     DeviceId device);

// Returns SubmeshIndex of many devices, in the order given, with one lookup of the axes. Errors do
// not depend on the devices; the list may be empty.
absl::StatusOr<std::vector<int64_t>> SubmeshIndices(const Mesh& mesh,
                                                    absl::Span<const std::string> axes,
                                                    absl::Span<const DeviceId> devices);

// Returns the mesh over `axes`, in the order given, through `device`. Its devices are those of
// `mesh` that differ from `device` only along these axes; they keep their global ids. Takes time
// only for these devices. Errors as DeviceGroup::Create; INVALID_MESH without axes.
//
// Example: mesh dp=2,tp=4, axes (tp), device 5: the mesh tp=4 over the devices 4, 5, 6, 7.
absl::StatusOr<Mesh> SubmeshOf(const Mesh& mesh, absl::Span<const std::string> axes,
                               DeviceId device);

// Returns the mesh's axes that cut no dimension of `spec`, in mesh order. Devices that differ only
// along these axes are a replica group. They hold the same tile, or partial sums of that tile along
// the spec's unreduced axes.
std::vector<std::string> ReplicaAxes(const Mesh& mesh, const PartitionSpec& spec);

// The groups of a mesh's devices along `axes`. Every device is in exactly one group. Groups are
// numbered in the order of their least members.
// Immutable, and safe to share between threads. GroupAt takes O(members).
//
// Example: mesh dp=2,tp=4, axes (dp): four groups; group 1 is the devices 1, 5.
class DeviceGroups {
 public:
  // Errors as DeviceGroup::Create.
  static absl::StatusOr<DeviceGroups> Create(const Mesh& mesh, std::vector<std::string> axes);

  // Returns the number of groups; 0 on the empty mesh.
  int64_t count() const { return group_size_ == 0 ? 0 : mesh_.size() / group_size_; }
  // Returns the number of devices of each group.
  int64_t group_size() const { return group_size_; }
  // Returns a group, as seen from its least member: place() is 0. Requires 0 <= group < count().
  DeviceGroup GroupAt(int64_t group) const;
  // Returns the number of the group that contains a device. Requires 0 <= device < mesh.size().
  int64_t GroupOf(DeviceId device) const;

 private:
  DeviceGroups(Mesh mesh, std::vector<std::string> axes)
      : mesh_(std::move(mesh)), axes_(std::move(axes)) {}

  Mesh mesh_;
  std::vector<std::string> axes_;
  std::vector<int64_t> other_axes_;  // indices of the axes that are not in axes_, in mesh order
  int64_t group_size_ = 0;
};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_MESH_QUERY_H_
