// EasyDeL's linear layer without its arrays: shapes, scale and layouts.
#ifndef SHARDMESH_SHARDING_LAYOUT_PARALLEL_LINEAR_H_
#define SHARDMESH_SHARDING_LAYOUT_PARALLEL_LINEAR_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "sharding/compatibility.h"
#include "sharding/mesh.h"
#include "sharding/shape.h"
#include "sharding/spec.h"

namespace shardmesh {

// What is known of where an array lies.
struct ArrayLayout {
  enum class Kind {
    kNone,          // not placed at all, as an array in a host's memory
    kSingleDevice,  // on one device that belongs to no mesh, hence without a spec
    kNamed,         // on a mesh, by `spec`
  };
  int64_t rank = 0;
  Kind kind = Kind::kNone;
  PartitionSpec spec;  // kNamed
};

// get_sharding: the array's spec; nullopt if it is not placed. INVALID_ARGUMENT (INVALID_SPEC;
// AttributeError) for an array on a single device.
absl::StatusOr<std::optional<PartitionSpec>> GetSharding(const ArrayLayout& array);

// get_output_partition_spec: the spec that a layer gives its output. Nullopt if either array is not
// placed. For a left side of rank 2 the right spec's first two entries, swapped; for any other rank
// P(None, ..., axis_name), as many entries as dimensions, at least one.
// Errors are INVALID_ARGUMENT: GetSharding's, of the left side first; INVALID_SPEC (IndexError) for
// a right spec of fewer than two entries that would be swapped; INVALID_SHAPE for a rank that no
// tensor has.
absl::StatusOr<std::optional<PartitionSpec>> GetOutputPartitionSpec(const ArrayLayout& lhs,
                                                                    const ArrayLayout& rhs,
                                                                    std::string_view axis_name);

// get_matmul_output_sharding: the spec of lhs @ rhs: the left spec's entries but the last, then the
// right spec's last, filled up with none to the left spec's length. An axis that an earlier entry
// has is dropped from later ones; repeats within one entry stay. A left spec of one entry
// contributes nothing. Contracted axes and unreduced ones play no part. P() if either is nullopt.
//
// Example: P('dp', 'tp') @ P('tp', ('dp', 'sp')) is P('dp', 'sp').
PartitionSpec GetMatmulOutputSharding(const std::optional<PartitionSpec>& lhs,
                                      const std::optional<PartitionSpec>& rhs);

// TensorParallelConfig: how a layer's work is spread.
struct TensorParallelConfig {
  // Nullopt: the context's, taken when the config is checked.
  std::optional<Mesh> mesh;
  std::string axis_name = "tp";
  // Nullopt: no collective multiplication. Any text counts as given, the empty one too.
  std::optional<std::string> matmul_method;
  bool reduce_output = false;
  bool reduce_scatter_output = false;

  friend bool operator==(const TensorParallelConfig&, const TensorParallelConfig&) = default;
};

// The config with its mesh filled in from `context` where it has a method and no mesh. One without
// a method is returned as it is, unchecked. Errors: FAILED_PRECONDITION (NO_MESH; AssertionError)
// if the context's mesh is needed and empty; INVALID_ARGUMENT (AXIS_NOT_IN_MESH) if the mesh lacks
// the axis.
absl::StatusOr<TensorParallelConfig> CheckTensorParallelConfig(TensorParallelConfig config,
                                                               const Mesh& context);

// ParallelLinear, RowParallelLinear, ColumnParallelLinear.
enum class ParallelDirection { kNone, kRow, kColumn };

// The arguments of a layer's construction that its shapes and scale follow from.
struct ParallelLinearOptions {
  int64_t in_features = 0;
  // One number, or the parts of a merged projection (such as q, k and v), which lie side by side in
  // one kernel.
  std::variant<int64_t, std::vector<int64_t>> out_features = int64_t{0};
  // A factor, or "fan_in" or "fan_out": 1 divided by the square root of the features in or out.
  std::variant<double, std::string> scale = 1.0;
  bool use_bias = true;
  ParallelDirection direction = ParallelDirection::kNone;
};

struct ParallelLinear {
  int64_t tp_merged = 1;            // parts of the kernel
  Shape kernel_shape;               // (in, sum of out)
  std::optional<Shape> bias_shape;  // (sum of out); nullopt without bias. A bias starts as zeros.
  double scale_factor = 1.0;        // the product is multiplied by it before the bias is added
  ParallelDirection direction = ParallelDirection::kNone;

  friend bool operator==(const ParallelLinear&, const ParallelLinear&) = default;
};

// The facts of a layer. kDefault takes any number of parts with a bias and with "fan_out", one part
// included; kExact refuses these as the original does (TypeError), and accepts negative parts whose
// sum is positive.
// Errors are INVALID_ARGUMENT: INVALID_SHAPE for no features (ZeroDivisionError), a negative number
// of them, or no parts (TypeError), and for a kernel of too many elements (ValueError); BAD_FIELD
// (TypeError) for another name of a scale.
absl::StatusOr<ParallelLinear> MakeParallelLinear(
    const ParallelLinearOptions& options, Compatibility compatibility = Compatibility::kDefault);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_LAYOUT_PARALLEL_LINEAR_H_
