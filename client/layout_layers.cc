// LayoutClient: questions about linear layers.
#include "client/layouts.h"

#include <utility>

#include "client/client_core.h"
#include "client/remote/coordinator_connection.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/layer_codec.h"
#include "rpc/codec/spec_codec.h"
#include "status/status_macros.h"

namespace shardmesh::client {
namespace {

// The wire enum has the same kinds in the same order, after 0 for "not set".
static_assert(static_cast<int>(OutputSpecQuestion::Kind::kOperand) + 1 ==
              compat::v1::ResolveOutputSpecRequest::KIND_OPERAND);

}  // namespace

absl::StatusOr<std::optional<PartitionSpec>> LayoutClient::ResolveOutputSpec(
    const OutputSpecQuestion& question, const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  compat::v1::ResolveOutputSpecRequest request;
  request.set_kind(
      static_cast<compat::v1::ResolveOutputSpecRequest::Kind>(static_cast<int>(question.kind) + 1));
  rpc::Encode(question.lhs, request.mutable_lhs());
  if (question.kind != OutputSpecQuestion::Kind::kOperand) {
    rpc::Encode(question.rhs, request.mutable_rhs());
  }
  request.set_axis_name(question.axis_name);
  compat::v1::ResolveOutputSpecResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.compat,
                                            &compat::v1::CompatService::Stub::ResolveOutputSpec,
                                            request, limit, &response));
  std::optional<PartitionSpec> spec;
  if (response.has_spec()) {
    SHARDMESH_ASSIGN_OR_RETURN(spec, DecodeAnswer(response.spec()));
  }
  return spec;
}

absl::StatusOr<TensorParallelConfig> LayoutClient::CheckTensorParallel(
    const TensorParallelQuestion& question, const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  compat::v1::CheckTensorParallelRequest request;
  compat::v1::TensorParallelConfig* const config = request.mutable_config();
  if (question.mesh.has_value()) {
    EncodeSelector(*question.mesh, config->mutable_mesh());
  }
  config->set_axis_name(question.axis_name);
  if (question.matmul_method.has_value()) {
    config->set_matmul_method(*question.matmul_method);
  }
  config->set_reduce_output(question.reduce_output);
  config->set_reduce_scatter_output(question.reduce_scatter_output);
  if (question.context_mesh.has_value()) {
    EncodeSelector(*question.context_mesh, request.mutable_context_mesh());
  }
  request.set_compatibility(EncodeCompatibility(question.compatibility));
  compat::v1::CheckTensorParallelResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.compat,
                                            &compat::v1::CompatService::Stub::CheckTensorParallel,
                                            request, limit, &response));
  TensorParallelConfig checked;
  if (response.has_mesh()) {
    // With kExact, the mesh may be one that only JAX accepts.
    absl::StatusOr<Mesh> mesh = rpc::Decode(response.mesh(), std::nullopt, question.compatibility);
    if (!mesh.ok()) {
      return BadAnswer(mesh.status());
    }
    checked.mesh = *std::move(mesh);
  }
  checked.axis_name = response.config().axis_name();
  if (response.config().has_matmul_method()) {
    checked.matmul_method = response.config().matmul_method();
  }
  checked.reduce_output = response.config().reduce_output();
  checked.reduce_scatter_output = response.config().reduce_scatter_output();
  return checked;
}

absl::StatusOr<LinearLayer> LayoutClient::DescribeLinearLayer(const LinearLayerQuestion& question,
                                                              const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  compat::v1::DescribeLinearLayerRequest request;
  rpc::Encode(question.options, &request);
  request.set_dtype(rpc::Encode(question.dtype));
  request.set_compatibility(EncodeCompatibility(question.compatibility));
  compat::v1::DescribeLinearLayerResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.compat,
                                            &compat::v1::CompatService::Stub::DescribeLinearLayer,
                                            request, limit, &response));
  LinearLayer layer;
  absl::StatusOr<ParallelLinear> facts = rpc::Decode(response);
  if (!facts.ok()) {
    return BadAnswer(facts.status());
  }
  layer.facts = *std::move(facts);
  SHARDMESH_ASSIGN_OR_RETURN(layer.dtype, DecodeAnswer(response.dtype()));
  return layer;
}

absl::StatusOr<Dtype> LayoutClient::PromoteDtypes(absl::Span<const Dtype> dtypes,
                                                  std::optional<Dtype> dtype,
                                                  const CallOptions& options) {
  const CallLimit limit = core_->LimitOf(options);
  const CoordinatorConnection& connection = core_->connection();
  compat::v1::PromoteDtypesRequest request;
  for (const Dtype each : dtypes) {
    request.add_dtypes(rpc::Encode(each));
  }
  if (dtype.has_value()) {
    request.set_dtype(rpc::Encode(*dtype));
  }
  compat::v1::PromoteDtypesResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(connection.compat,
                                            &compat::v1::CompatService::Stub::PromoteDtypes,
                                            request, limit, &response));
  return DecodeAnswer(response.dtype());
}

}  // namespace shardmesh::client
