// A coordinator's answers about linear layers.
#include "status/status_macros.h"
#include "tests/conformance/linear_subject.h"

namespace shardmesh::conformance {
namespace {

using Kind = client::OutputSpecQuestion::Kind;

// An operand of a product whose spec alone matters.
ArrayLayout LayoutOf(const std::optional<PartitionSpec>& spec) {
  ArrayLayout layout;
  if (spec.has_value()) {
    layout.rank = spec->size();
    layout.kind = ArrayLayout::Kind::kNamed;
    layout.spec = *spec;
  }
  return layout;
}

class Linear final : public LinearSubject {
 public:
  explicit Linear(client::MeshClient& client) : client_(client) {}

  absl::StatusOr<std::optional<PartitionSpec>> Sharding(const ArrayLayout& array) const override {
    return client_.layouts().ResolveOutputSpec({.kind = Kind::kOperand, .lhs = array});
  }

  absl::StatusOr<std::optional<PartitionSpec>> OutputPartitionSpec(
      const ArrayLayout& lhs, const ArrayLayout& rhs, std::string_view axis_name) const override {
    return client_.layouts().ResolveOutputSpec(
        {.kind = Kind::kLinear, .lhs = lhs, .rhs = rhs, .axis_name = std::string(axis_name)});
  }

  absl::StatusOr<PartitionSpec> MatmulOutputSharding(
      const std::optional<PartitionSpec>& lhs,
      const std::optional<PartitionSpec>& rhs) const override {
    SHARDMESH_ASSIGN_OR_RETURN(
        std::optional<PartitionSpec> spec,
        client_.layouts().ResolveOutputSpec(
            {.kind = Kind::kMatmul, .lhs = LayoutOf(lhs), .rhs = LayoutOf(rhs)}));
    if (!spec.has_value()) {
      return absl::InternalError("a product always has a spec");
    }
    return *std::move(spec);
  }

  absl::StatusOr<TensorParallelConfig> CheckConfig(const TensorParallelConfig& config,
                                                   const Mesh& context) const override {
    client::TensorParallelQuestion question;
    if (config.mesh.has_value()) question.mesh = *config.mesh;
    question.axis_name = config.axis_name;
    question.matmul_method = config.matmul_method;
    question.reduce_output = config.reduce_output;
    question.reduce_scatter_output = config.reduce_scatter_output;
    question.context_mesh = context;
    question.compatibility = Compatibility::kExact;
    return client_.layouts().CheckTensorParallel(question);
  }

  absl::StatusOr<Layer> MakeLayer(const ParallelLinearOptions& options,
                                  Dtype param_dtype) const override {
    SHARDMESH_ASSIGN_OR_RETURN(
        client::LinearLayer layer,
        client_.layouts().DescribeLinearLayer(
            {.options = options, .dtype = param_dtype, .compatibility = Compatibility::kExact}));
    return Layer{.facts = std::move(layer.facts), .kernel_dtype = layer.dtype};
  }

  absl::StatusOr<Dtype> PromoteDtype(absl::Span<const Dtype> arrays,
                                     std::optional<Dtype> dtype) const override {
    return client_.layouts().PromoteDtypes(arrays, dtype);
  }

 private:
  client::MeshClient& client_;
};

}  // namespace

std::shared_ptr<const LinearSubject> WireLinear(client::MeshClient& client) {
  return std::make_shared<Linear>(client);
}

}  // namespace shardmesh::conformance
