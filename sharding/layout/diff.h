// What differs between two layouts of one tree: specs, tiles and bytes per device.
#ifndef SHARDMESH_SHARDING_LAYOUT_DIFF_H_
#define SHARDMESH_SHARDING_LAYOUT_DIFF_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/mesh.h"
#include "sharding/shape.h"
#include "sharding/spec.h"

namespace shardmesh {

// A tensor with its effective spec: one that Tiling::Create accepts.
struct PlacedTensor {
  std::string name;
  Shape shape;
  int64_t bits_per_element = 8;  // 0: its bytes are not counted
  PartitionSpec spec;
};

// A tree on a mesh. Views only: what they point to must outlive the call.
struct Layout {
  const Mesh* mesh = nullptr;              // not null, not empty
  absl::Span<const PlacedTensor> tensors;  // of distinct names
};

// What a device may hold, and how much more. Unset: no bound.
struct LayoutBudget {
  std::optional<int64_t> max_increase_bytes;
  // Of what a device holds in A: 0.05 allows 5% more. An increase from 0 exceeds any ratio.
  std::optional<double> max_increase_ratio;
  // What a device may hold in B at all, even if it is less than in A.
  std::optional<int64_t> max_bytes_per_device;
};

// A tensor that is not placed alike.
struct TensorDiff {
  std::string name;
  // nullopt where the layout does not have the tensor.
  std::optional<PartitionSpec> spec_a = std::nullopt;
  std::optional<PartitionSpec> spec_b = std::nullopt;
  // What each device holds of it; 0 where the layout does not have the tensor.
  int64_t bytes_per_device_a = 0;
  int64_t bytes_per_device_b = 0;
  // Whether `spec_a` and `spec_b` differ as specs. P() and P(None) do.
  bool spec_differs = false;
  // Whether some device, taken by its position in the mesh, holds another tile in B than in A. A
  // position that only one of the meshes has holds no other tile. True where one layout does not
  // have the tensor, or it has another shape.
  bool tiles_differ = false;

  friend bool operator==(const TensorDiff&, const TensorDiff&) = default;
};

struct LayoutDiff {
  // Tensors of which anything differs: those of A in its order, then those that only B has.
  std::vector<TensorDiff> changed;
  int64_t unchanged_count = 0;
  // What each device holds of all tensors together; all hold the same.
  int64_t bytes_per_device_a = 0;
  int64_t bytes_per_device_b = 0;
  // All tensors, once each.
  int64_t total_bytes_a = 0;
  int64_t total_bytes_b = 0;
  // How many tensors only one of the two has.
  int64_t only_in_a = 0;
  int64_t only_in_b = 0;
  // Whether the increase of bytes_per_device keeps to the budget, and if not, a sentence on it.
  bool within_budget = true;
  std::string budget_text;
};

// Compares two layouts: two rule sets over one tree, or one over two meshes.
//
// Elements of less than a byte are packed within a tile, whose last byte is filled up.
//
// Errors are INVALID_ARGUMENT: Tiling::Create's, naming the tensor and the layout; BAD_FIELD for a
// name that occurs twice or a negative number of bits; LIMIT_EXCEEDED where bytes are beyond 64
// bits; FAILED_PRECONDITION (NO_MESH) on an empty mesh.
// O(tensors * rank), whatever the number of devices.
absl::StatusOr<LayoutDiff> DiffLayouts(const Layout& a, const Layout& b,
                                       const LayoutBudget& budget = {});

// What exceeds the budget where a device holds `after` bytes instead of `before`, as a sentence;
// nullopt if nothing does. For layouts that are compared piece by piece.
std::optional<std::string> OverBudget(int64_t before, int64_t after, const LayoutBudget& budget);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_LAYOUT_DIFF_H_
