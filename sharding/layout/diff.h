// Differences between two layouts of one tree: specs, tiles and bytes per device.
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

// A tensor with its effective spec, which Tiling::Create must accept.
struct PlacedTensor {
  std::string name;
  Shape shape;
  int64_t bits_per_element = 8;  // with 0, all counts of bytes ignore the tensor
  PartitionSpec spec;
};

// A tree of tensors on a mesh. It holds only views: their targets must outlive the call.
struct Layout {
  const Mesh* mesh = nullptr;              // must be set, and not to an empty mesh
  absl::Span<const PlacedTensor> tensors;  // of distinct names
};

// Bounds on the bytes of a device and on their increase from layout A to B. An unset bound allows
// everything.
struct LayoutBudget {
  std::optional<int64_t> max_increase_bytes;
  // Upper bound on the increase, relative to the bytes of a device in A: 0.05 allows 5% more. An
  // increase from 0 exceeds any ratio.
  std::optional<double> max_increase_ratio;
  // Upper bound on the bytes of a device in B, even if A needs more.
  std::optional<int64_t> max_bytes_per_device;
};

// A tensor whose placement differs between layout A and layout B.
struct TensorDiff {
  std::string name;
  // nullopt if the layout lacks the tensor.
  std::optional<PartitionSpec> spec_a = std::nullopt;
  std::optional<PartitionSpec> spec_b = std::nullopt;
  // Bytes of the tensor on each device; 0 if the layout lacks the tensor.
  int64_t bytes_per_device_a = 0;
  int64_t bytes_per_device_b = 0;
  // Whether `spec_a` and `spec_b` have different entries. P() and P(None) have different entries.
  bool spec_differs = false;
  // Whether the device at some position of the mesh holds another tile in B than in A. Ignores
  // positions that only one mesh has. Also true if one layout lacks the tensor, or if the shapes
  // differ.
  bool tiles_differ = false;

  friend bool operator==(const TensorDiff&, const TensorDiff&) = default;
};

struct LayoutDiff {
  // Tensors with any difference: the tensors of A in the order of A, then the tensors that only B
  // has.
  std::vector<TensorDiff> changed;
  int64_t unchanged_count = 0;
  // Number of bytes of all tensors that one device holds. It is the same for every device.
  int64_t bytes_per_device_a = 0;
  int64_t bytes_per_device_b = 0;
  // Bytes of all tensors, each counted once.
  int64_t total_bytes_a = 0;
  int64_t total_bytes_b = 0;
  // Number of tensors that only one layout has.
  int64_t only_in_a = 0;
  int64_t only_in_b = 0;
  // Whether the increase of bytes_per_device is within the budget. If not, `budget_text` is a
  // sentence that says why.
  bool within_budget = true;
  std::string budget_text;
};

// Compares two layouts: two rule sets over one tree, or one rule set over two meshes.
//
// Elements of less than a byte are packed within a tile; a partly used last byte counts.
//
// Errors are INVALID_ARGUMENT: those of Tiling::Create, with the tensor and the layout; BAD_FIELD
// for a repeated name or a negative number of bits; LIMIT_EXCEEDED if a number of bytes exceeds 64
// bits. FAILED_PRECONDITION (NO_MESH) on an empty mesh.
// Takes O(tensors * rank), for any number of devices.
absl::StatusOr<LayoutDiff> DiffLayouts(const Layout& a, const Layout& b,
                                       const LayoutBudget& budget = {});

// Returns a sentence on the exceeded budget if a device holds `after` bytes in B and `before` bytes
// in A. Returns nullopt if the increase is within the budget. For callers that compare layouts
// piece by piece.
std::optional<std::string> OverBudget(int64_t before, int64_t after, const LayoutBudget& budget);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_LAYOUT_DIFF_H_
