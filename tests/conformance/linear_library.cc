// The library's answers about linear layers.
#include "status/status_macros.h"
#include "tensor/dtype_promotion.h"
#include "tests/conformance/linear_subject.h"

namespace shardmesh::conformance {
namespace {

class LinearLibrary final : public LinearSubject {
 public:
  absl::StatusOr<std::optional<PartitionSpec>> Sharding(const ArrayLayout& array) const override {
    return GetSharding(array);
  }
  absl::StatusOr<std::optional<PartitionSpec>> OutputPartitionSpec(
      const ArrayLayout& lhs, const ArrayLayout& rhs, std::string_view axis_name) const override {
    return GetOutputPartitionSpec(lhs, rhs, axis_name);
  }
  absl::StatusOr<PartitionSpec> MatmulOutputSharding(
      const std::optional<PartitionSpec>& lhs,
      const std::optional<PartitionSpec>& rhs) const override {
    return GetMatmulOutputSharding(lhs, rhs);
  }
  absl::StatusOr<TensorParallelConfig> CheckConfig(const TensorParallelConfig& config,
                                                   const Mesh& context) const override {
    return CheckTensorParallelConfig(config, context);
  }
  absl::StatusOr<Layer> MakeLayer(const ParallelLinearOptions& options,
                                  Dtype param_dtype) const override {
    Layer layer;
    SHARDMESH_ASSIGN_OR_RETURN(layer.facts, MakeParallelLinear(options, Compatibility::kExact));
    SHARDMESH_ASSIGN_OR_RETURN(layer.kernel_dtype, ParameterDtype(param_dtype));
    return layer;
  }
  absl::StatusOr<Dtype> PromoteDtype(absl::Span<const Dtype> arrays,
                                     std::optional<Dtype> dtype) const override {
    return shardmesh::PromoteDtype(arrays, dtype);
  }
};

}  // namespace

std::shared_ptr<const LinearSubject> LibraryLinear() { return std::make_shared<LinearLibrary>(); }

}  // namespace shardmesh::conformance
