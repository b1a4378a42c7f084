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

// The known placement of an array.
struct ArrayLayout {
  enum class Kind {
    kNone,          // not placed, like an array in host memory
    kSingleDevice,  // on one device outside any mesh, without a spec
    kNamed,         // on a mesh, by `spec`
  };
  int64_t rank = 0;
  Kind kind = Kind::kNone;
  PartitionSpec spec;  // kNamed
};

// EasyDeL's get_sharding. Returns the array's spec; nullopt if the array is not placed.
// INVALID_ARGUMENT (INVALID_SPEC; Python: AttributeError) for an array on a single device.
absl::StatusOr<std::optional<PartitionSpec>> GetSharding(const ArrayLayout& array);

// EasyDeL's get_output_partition_spec. Returns the spec that a layer gives its output; nullopt if
// either array is not placed. For an `lhs` of rank 2, the result has the first two entries of the
// spec of `rhs`, swapped. For any other rank, the result is P(None, ..., axis_name), with one entry
// for each dimension of `lhs`, at least one.
//
// Errors are INVALID_ARGUMENT: errors of GetSharding, for the left side first; INVALID_SPEC
// (Python: IndexError) if the right spec has fewer than two entries to swap; INVALID_SHAPE for an
// impossible rank.
absl::StatusOr<std::optional<PartitionSpec>> GetOutputPartitionSpec(const ArrayLayout& lhs,
                                                                    const ArrayLayout& rhs,
                                                                    std::string_view axis_name);

// EasyDeL's get_matmul_output_sharding. Returns the spec of lhs @ rhs: all but the last entry of
// the left spec, then the last entry of the right spec, filled up with none to the left spec's
// length. Returns P() if either spec is nullopt.
//
// An axis that occurs in an earlier entry is dropped from later entries; repeats within one entry
// stay. A left spec with only one entry contributes nothing. Contracted and unreduced axes are
// ignored.
//
// Example: P('dp', 'tp') @ P('tp', ('dp', 'sp')) is P('dp', 'sp').
PartitionSpec GetMatmulOutputSharding(const std::optional<PartitionSpec>& lhs,
                                      const std::optional<PartitionSpec>& rhs);

// EasyDeL's TensorParallelConfig: the mesh, the axis and the method by which a layer's work is
// distributed.
struct TensorParallelConfig {
  // Nullopt stands for the mesh of the context; CheckTensorParallelConfig fills it in.
  std::optional<Mesh> mesh;
  std::string axis_name = "tp";
  // Nullopt stands for no collective multiplication. Any text, also an empty text, counts as given.
  std::optional<std::string> matmul_method;
  bool reduce_output = false;
  bool reduce_scatter_output = false;

  friend bool operator==(const TensorParallelConfig&, const TensorParallelConfig&) = default;
};

// Returns the config, with a missing mesh filled in from `context`. Returns a config without
// matmul_method unchanged and unchecked.
// Errors: FAILED_PRECONDITION (NO_MESH; Python: AssertionError) if the config needs the context's
// mesh and that mesh is empty; INVALID_ARGUMENT (AXIS_NOT_IN_MESH) if the mesh lacks the axis.
absl::StatusOr<TensorParallelConfig> CheckTensorParallelConfig(TensorParallelConfig config,
                                                               const Mesh& context);

// The classes ParallelLinear, RowParallelLinear and ColumnParallelLinear of EasyDeL, in this order.
enum class ParallelDirection { kNone, kRow, kColumn };

// The constructor arguments of a layer that determine its shapes and scale.
struct ParallelLinearOptions {
  int64_t in_features = 0;
  // One number, or the parts of a merged projection (such as q, k and v), which are adjacent in one
  // kernel.
  std::variant<int64_t, std::vector<int64_t>> out_features = int64_t{0};
  // A factor, or "fan_in" or "fan_out": 1 divided by the square root of the number of input
  // features (fan_in) or of output features (fan_out).
  std::variant<double, std::string> scale = 1.0;
  bool use_bias = true;
  ParallelDirection direction = ParallelDirection::kNone;
};

struct ParallelLinear {
  int64_t tp_merged = 1;            // number of parts of the kernel
  Shape kernel_shape;               // (in, sum of out)
  std::optional<Shape> bias_shape;  // (sum of out); nullopt without bias. A bias starts as zeros.
  double scale_factor = 1.0;        // scales the product before the bias is added
  ParallelDirection direction = ParallelDirection::kNone;

  friend bool operator==(const ParallelLinear&, const ParallelLinear&) = default;
};

// Returns the shapes and the scale of a layer. kDefault accepts any number of parts, including one
// part, also with a bias and with "fan_out". kExact refuses a list of one part, and parts with a
// bias or "fan_out", as the original does (Python: TypeError). But kExact accepts negative parts if
// their sum is positive.
//
// Errors are INVALID_ARGUMENT: INVALID_SHAPE for zero features (Python: ZeroDivisionError), for a
// negative number of features or no parts (Python: TypeError), and for a kernel of too many
// elements (Python: ValueError); BAD_FIELD (Python: TypeError) for an unknown name of a scale.
absl::StatusOr<ParallelLinear> MakeParallelLinear(
    const ParallelLinearOptions& options, Compatibility compatibility = Compatibility::kDefault);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_LAYOUT_PARALLEL_LINEAR_H_
