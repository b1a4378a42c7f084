// Questions about EasyDeL's linear layer, and whoever answers them.
#ifndef SHARDMESH_TESTS_CONFORMANCE_LINEAR_SUBJECT_H_
#define SHARDMESH_TESTS_CONFORMANCE_LINEAR_SUBJECT_H_

#include <memory>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/mesh_client.h"
#include "sharding/layout/parallel_linear.h"
#include "sharding/mesh.h"
#include "sharding/spec.h"
#include "tensor/dtype.h"
#include "tests/conformance/question.h"

namespace shardmesh::conformance {

class LinearSubject {
 public:
  virtual ~LinearSubject() = default;
  virtual absl::StatusOr<std::optional<PartitionSpec>> Sharding(const ArrayLayout& array) const = 0;
  virtual absl::StatusOr<std::optional<PartitionSpec>> OutputPartitionSpec(
      const ArrayLayout& lhs, const ArrayLayout& rhs, std::string_view axis_name) const = 0;
  virtual absl::StatusOr<PartitionSpec> MatmulOutputSharding(
      const std::optional<PartitionSpec>& lhs, const std::optional<PartitionSpec>& rhs) const = 0;
  virtual absl::StatusOr<TensorParallelConfig> CheckConfig(const TensorParallelConfig& config,
                                                           const Mesh& context) const = 0;

  struct Layer {
    ParallelLinear facts;
    Dtype kernel_dtype;
  };
  virtual absl::StatusOr<Layer> MakeLayer(const ParallelLinearOptions& options,
                                          Dtype param_dtype) const = 0;

  virtual absl::StatusOr<Dtype> PromoteDtype(absl::Span<const Dtype> arrays,
                                             std::optional<Dtype> dtype) const = 0;
};

std::shared_ptr<const LinearSubject> LibraryLinear();
// `client` outlives the subject.
std::shared_ptr<const LinearSubject> WireLinear(client::MeshClient& client);

// get_sharding, get_output_partition_spec, get_matmul_output_sharding, tensor_parallel_config,
// parallel_linear, promote_dtype.
void AddLinearQuestions(std::shared_ptr<const LinearSubject> subject, Questions* questions);

}  // namespace shardmesh::conformance

#endif  // SHARDMESH_TESTS_CONFORMANCE_LINEAR_SUBJECT_H_
