// A mesh: named, ordered axes over numbered devices.
#ifndef SHARDMESH_SHARDING_MESH_H_
#define SHARDMESH_SHARDING_MESH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "status/fact_keys.h"

namespace shardmesh {

// Upper bounds on the axes of a mesh and on the bytes of an axis name.
inline constexpr int64_t kMaxMeshAxes = 16;
inline constexpr size_t kMaxAxisNameBytes = 255;
// Upper bound on the devices of a mesh. The bound keeps the product of two such numbers within
// int64_t. Speed needs no bound: every function of Mesh takes O(axes) for one device.
inline constexpr int64_t kMaxMeshDevices = int64_t{1} << 31;

// A device of one mesh: its position in the mesh, counted from 0 in row-major order (the last axis
// varies fastest).
using DeviceId = int64_t;

// One coordinate per axis, in axis order.
using MeshCoordinates = absl::InlinedVector<int64_t, 6>;

// The party that decides how arrays lie along an axis, as in JAX. Tiles, corrections and plans are
// the same for all three types. Only ResolveShardValue (logical_rules.h) distinguishes the types.
enum class AxisType {
  kAuto,      // the compiler decides
  kExplicit,  // each array's type decides
  kManual,    // the program decides, by its own communication
};

// Returns `auto`, `explicit` or `manual`.
std::string_view AxisTypeName(AxisType type);
// Returns the type of that name; nullopt if no type has that name.
std::optional<AxisType> AxisTypeFromName(std::string_view name);

struct MeshAxis {
  std::string name;
  int64_t size = 0;
  AxisType type = AxisType::kAuto;

  friend bool operator==(const MeshAxis&, const MeshAxis&) = default;
};

struct MeshOptions {
  // The number of devices. If set, the sizes must multiply to this number, and one axis may have
  // size -1, which is inferred.
  std::optional<int64_t> device_count;

  // The global number of the device at each position, in position order. Global numbers tell which
  // devices two meshes have in common. The list has one number per position, distinct and not
  // negative. If the list is empty, each device's number is its position.
  std::vector<int64_t> global_ids;

  // Whether to accept all that JAX's Mesh accepts: no axes, empty names, size 0, and repeated
  // names. An axis with a repeated name keeps its first position and takes the last size and type,
  // as in a Python dict.
  bool allow_degenerate = false;
};

// Invariants (checked by Create; INVALID_ARGUMENT names the one that fails):
//   - 1 to kMaxMeshAxes axes; names distinct, of 1 to kMaxAxisNameBytes bytes;
//   - sizes positive; their product at most kMaxMeshDevices, and as the options require.
// Example: mesh dp=2,tp=4 has 8 devices; device 5 has the coordinates (1, 1).
// Immutable, and safe to share between threads. A copy shares the representation and is cheap.
class Mesh {
 public:
  // The empty mesh: no axes, no devices. It means "no mesh is given".
  Mesh();
  // Only copies, no moves: a moved-from Mesh would have no representation.
  Mesh(const Mesh&) = default;
  Mesh& operator=(const Mesh&) = default;

  // Errors are INVALID_ARGUMENT: DUPLICATE_AXIS for a repeated name; LIMIT_EXCEEDED for more than
  // kMaxMeshAxes, kMaxAxisNameBytes or kMaxMeshDevices; MESH_SIZE_MISMATCH if the sizes do not fit
  // `device_count`, or the number of global ids is not the number of devices; INVALID_MESH for
  // every other violation.
  static absl::StatusOr<Mesh> Create(std::vector<MeshAxis> axes, MeshOptions options = {});

  // Returns Create(ParseMeshAxes(text, options.allow_degenerate), options).
  static absl::StatusOr<Mesh> Parse(std::string_view text, MeshOptions options = {});

  absl::Span<const MeshAxis> axes() const { return rep_->axes; }
  int64_t axis_count() const { return static_cast<int64_t>(rep_->axes.size()); }
  // Returns the number of devices; 0 for a mesh without axes.
  int64_t size() const { return rep_->size; }
  bool empty() const { return rep_->size == 0; }

  // Returns the index of the axis of this name; nullopt if there is none.
  std::optional<int64_t> FindAxis(std::string_view name) const;
  bool HasAxis(std::string_view name) const { return FindAxis(name).has_value(); }
  // Returns `; did you mean "tp"?` for an axis with a similar name, else an empty string. For error
  // messages.
  std::string DidYouMeanAxis(std::string_view name) const;
  // Returns the axis with a similar name, or an empty string. For the facts of errors.
  std::string NearestAxis(std::string_view name) const;
  // Returns whether every axis is of this type; false for a mesh without axes.
  bool AllAxesAre(AxisType type) const;
  // Returns the difference between the positions of two neighbours along this axis.
  int64_t stride(int64_t axis) const { return rep_->strides[static_cast<size_t>(axis)]; }

  // Requires 0 <= device < size().
  MeshCoordinates CoordinatesOf(DeviceId device) const;
  int64_t CoordinateOf(DeviceId device, int64_t axis) const {
    return device / stride(axis) % rep_->axes[static_cast<size_t>(axis)].size;
  }
  // Requires one coordinate per axis, each within its axis.
  DeviceId DeviceAt(absl::Span<const int64_t> coordinates) const;

  // Return the global number of a device (see MeshOptions::global_ids), and the device with a
  // global number; nullopt if the mesh lacks that device. GlobalIdOf requires 0 <= device < size().
  int64_t GlobalIdOf(DeviceId device) const;
  std::optional<DeviceId> DeviceOfGlobalId(int64_t global_id) const;

  // Returns `dp=2,tp=4`, or `(empty)` without axes. An axis whose type is not kAuto shows its type:
  // `dp=2:explicit,tp=4`. Parse reads the text back.
  std::string ToString() const;

  // Equal meshes have the same axes in the same order over the same devices. Axes of different
  // types are different, as in JAX, because a spec has another meaning on axes of another type.
  friend bool operator==(const Mesh& a, const Mesh& b);

 private:
  struct Rep {
    std::vector<MeshAxis> axes;
    std::vector<int64_t> strides;
    int64_t size = 0;
    std::vector<int64_t> global_ids;  // empty: each device's number is its position
    absl::flat_hash_map<int64_t, DeviceId> device_of_global_id;
  };
  explicit Mesh(std::shared_ptr<const Rep> rep) : rep_(std::move(rep)) {}

  std::shared_ptr<const Rep> rep_;
};

// Parses `dp=2,tp=4` or `dp:2,tp:4`. Ignores blanks around names, sizes and types. A size is a
// decimal number or -1. A colon and the axis's type may follow a size: `dp=2:explicit`,
// `dp:2:explicit`. INVALID_ARGUMENT (INVALID_MESH) names the malformed piece. An axis without a
// name, `=2`, is malformed unless empty names are allowed.
absl::StatusOr<std::vector<MeshAxis>> ParseMeshAxes(std::string_view text,
                                                    bool allow_empty_names = false);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_MESH_H_
