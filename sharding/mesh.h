// Named, ordered axes over numbered devices.
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

namespace shardmesh {

// Most axes a mesh may have, and most bytes an axis name may have.
inline constexpr int64_t kMaxMeshAxes = 16;
inline constexpr size_t kMaxAxisNameBytes = 255;
// Most devices a mesh may have. Every algorithm here is O(axes) for one device, so the bound serves
// only to keep products of a few such numbers within int64_t.
inline constexpr int64_t kMaxMeshDevices = int64_t{1} << 31;

// A device of one mesh: its position, numbered row-major over the axes (the last axis fastest),
// from 0.
using DeviceId = int64_t;

// One coordinate per axis, in axis order.
using MeshCoordinates = absl::InlinedVector<int64_t, 6>;

// Who decides how arrays lie along an axis, as JAX has it. Tiles, corrections and plans are the
// same for all three; ResolveShardValue (logical_rules.h) asks for it.
enum class AxisType {
  kAuto,      // the compiler
  kExplicit,  // each array's type says it
  kManual,    // the program's own communication
};

// `auto`, `explicit`, `manual`.
std::string_view AxisTypeName(AxisType type);
// The type of that name; nullopt for a name of none.
std::optional<AxisType> AxisTypeFromName(std::string_view name);

struct MeshAxis {
  std::string name;
  int64_t size = 0;
  AxisType type = AxisType::kAuto;

  friend bool operator==(const MeshAxis&, const MeshAxis&) = default;
};

struct MeshOptions {
  // How many devices there are. When set, one axis may have size -1, which is inferred, and the
  // sizes must multiply to this number.
  std::optional<int64_t> device_count;

  // The number that each position's device bears outside this mesh, in position order, so that two
  // meshes over the same devices can be told apart and compared. Empty: each device bears its
  // position. Distinct and not negative; one per position.
  std::vector<int64_t> global_ids;

  // Accept what JAX's Mesh accepts: no axes, empty names, size 0, and a name that occurs again (it
  // keeps its first place and takes the last size and type, as in a dict).
  bool allow_degenerate = false;
};

// Invariants (checked by Create; INVALID_ARGUMENT names the one that fails):
//   - 1 to kMaxMeshAxes axes; names distinct, of 1 to kMaxAxisNameBytes bytes;
//   - sizes positive, their product at most kMaxMeshDevices and what options say.
// Example: mesh dp=2,tp=4 has 8 devices; device 5 has the coordinates (1, 1).
// Immutable, hence safe to share between threads; a copy shares the representation and is cheap.
class Mesh {
 public:
  // The empty mesh: no axes, no devices. It stands for "no mesh is there".
  Mesh();
  // Copied where others are moved, so that no Mesh is ever left without a representation.
  Mesh(const Mesh&) = default;
  Mesh& operator=(const Mesh&) = default;

  // Errors are INVALID_ARGUMENT: DUPLICATE_AXIS for a repeated name, LIMIT_EXCEEDED,
  // MESH_SIZE_MISMATCH where the sizes or the ids do not fit the devices, else INVALID_MESH.
  static absl::StatusOr<Mesh> Create(std::vector<MeshAxis> axes, MeshOptions options = {});

  // Create(ParseMeshAxes(text, options.allow_degenerate), options).
  static absl::StatusOr<Mesh> Parse(std::string_view text, MeshOptions options = {});

  absl::Span<const MeshAxis> axes() const { return rep_->axes; }
  int64_t axis_count() const { return static_cast<int64_t>(rep_->axes.size()); }
  // Number of devices; 0 for a mesh without axes.
  int64_t size() const { return rep_->size; }
  bool empty() const { return rep_->size == 0; }

  // Index of the axis of this name.
  std::optional<int64_t> FindAxis(std::string_view name) const;
  bool HasAxis(std::string_view name) const { return FindAxis(name).has_value(); }
  // For the error of a name that is no axis: `; did you mean "tp"?` if one is near, else nothing.
  std::string DidYouMeanAxis(std::string_view name) const;
  // Whether every axis is of this type; false for a mesh without axes.
  bool AllAxesAre(AxisType type) const;
  // How far apart neighbours along this axis are in position order.
  int64_t stride(int64_t axis) const { return rep_->strides[static_cast<size_t>(axis)]; }

  // Requires 0 <= device < size().
  MeshCoordinates CoordinatesOf(DeviceId device) const;
  int64_t CoordinateOf(DeviceId device, int64_t axis) const {
    return device / stride(axis) % rep_->axes[static_cast<size_t>(axis)].size;
  }
  // Requires one coordinate per axis, each within its axis.
  DeviceId DeviceAt(absl::Span<const int64_t> coordinates) const;

  // See MeshOptions::global_ids. GlobalIdOf requires 0 <= device < size().
  int64_t GlobalIdOf(DeviceId device) const;
  std::optional<DeviceId> DeviceOfGlobalId(int64_t global_id) const;

  // `dp=2,tp=4`; `(empty)` without axes. An axis that is not of type kAuto shows its type,
  // `dp=2:explicit,tp=4`. Parse reads it back.
  std::string ToString() const;

  // Same axes in the same order, over the same devices. Types count, as in JAX: one spec asks for
  // different things on two meshes that differ in them.
  friend bool operator==(const Mesh& a, const Mesh& b);

 private:
  struct Rep {
    std::vector<MeshAxis> axes;
    std::vector<int64_t> strides;
    int64_t size = 0;
    std::vector<int64_t> global_ids;  // empty: identity
    absl::flat_hash_map<int64_t, DeviceId> device_of_global_id;
  };
  explicit Mesh(std::shared_ptr<const Rep> rep) : rep_(std::move(rep)) {}

  std::shared_ptr<const Rep> rep_;
};

// Reads `dp=2,tp=4` or `dp:2,tp:4`; blanks around names, sizes and types are ignored, a size is a
// decimal number or -1. A size may be followed by a colon and the axis's type: `dp=2:explicit`,
// `dp:2:explicit`. INVALID_ARGUMENT (INVALID_MESH) names the piece that does not read; an axis
// without a name, `=2`, is one, unless they are allowed.
absl::StatusOr<std::vector<MeshAxis>> ParseMeshAxes(std::string_view text,
                                                    bool allow_empty_names = false);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_MESH_H_
