// Answers about linear layers: specs of results, settings, parameters, element types.
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rpc/codec/array_codec.h"
#include "rpc/codec/layer_codec.h"
#include "server/resolve/resolve_answers.h"
#include "sharding/layout/parallel_linear.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype_promotion.h"

namespace shardmesh::server {
namespace {

constexpr int64_t kMaxPromotedDtypes = 10'000;

absl::Status CheckName(std::string_view name, std::string_view field) {
  return CheckCount(static_cast<int64_t>(name.size()), static_cast<int64_t>(kMaxAxisNameBytes),
                    "bytes", field);
}

// Decodes an optional field `dtype`; nullopt if the field is unset.
absl::StatusOr<std::optional<Dtype>> DecodeOptional(v1::Dtype from) {
  if (from == v1::DTYPE_UNSPECIFIED) {
    return std::nullopt;
  }
  return rpc::Decode(from);
}

}  // namespace

absl::Status Answer(const AnswerContext&, const compat::v1::ResolveOutputSpecRequest& request,
                    compat::v1::ResolveOutputSpecResponse* response) {
  SHARDMESH_RETURN_IF_ERROR(CheckName(request.axis_name(), "axis_name"));
  SHARDMESH_DECODE(lhs, "lhs", rpc::Decode(request.lhs()));
  SHARDMESH_DECODE(rhs, "rhs", rpc::Decode(request.rhs()));
  std::optional<PartitionSpec> spec;
  switch (request.kind()) {
    case compat::v1::ResolveOutputSpecRequest::KIND_MATMUL: {
      SHARDMESH_DECODE(lhs_spec, "lhs", GetSharding(lhs));
      SHARDMESH_DECODE(rhs_spec, "rhs", GetSharding(rhs));
      spec = GetMatmulOutputSharding(lhs_spec, rhs_spec);
      break;
    }
    case compat::v1::ResolveOutputSpecRequest::KIND_LINEAR: {
      SHARDMESH_RETURN_IF_ERROR(rpc::WithField(GetSharding(lhs).status(), "lhs"));
      SHARDMESH_RETURN_IF_ERROR(rpc::WithField(GetSharding(rhs).status(), "rhs"));
      auto output = GetOutputPartitionSpec(lhs, rhs, request.axis_name());
      if (!output.ok()) {
        const bool is_rank = ReasonOf(output.status()) == Reason::kInvalidShape;
        return rpc::WithField(std::move(output).status(), is_rank ? "lhs.rank" : "rhs");
      }
      spec = *std::move(output);
      break;
    }
    case compat::v1::ResolveOutputSpecRequest::KIND_OPERAND: {
      if (request.has_rhs()) {
        return rpc::BadField("rhs", "is given, and the question is about one operand, lhs");
      }
      SHARDMESH_DECODE(lhs_spec, "lhs", GetSharding(lhs));
      spec = std::move(lhs_spec);
      break;
    }
    default:
      return rpc::BadField("kind",
                           StrCat("result of unknown kind ", static_cast<int>(request.kind()),
                                  "; use MATMUL, LINEAR or OPERAND"));
  }
  if (spec.has_value()) {
    rpc::Encode(*spec, response->mutable_spec());
  }
  return absl::OkStatus();
}

absl::Status Answer(const AnswerContext& context,
                    const compat::v1::CheckTensorParallelRequest& request,
                    compat::v1::CheckTensorParallelResponse* response) {
  SHARDMESH_DECODE(compatibility, "compatibility", rpc::Decode(request.compatibility()));
  const compat::v1::TensorParallelConfig& given = request.config();
  SHARDMESH_RETURN_IF_ERROR(CheckName(given.axis_name(), "config.axis_name"));
  SHARDMESH_RETURN_IF_ERROR(CheckName(given.matmul_method(), "config.matmul_method"));
  TensorParallelConfig config;
  if (given.has_mesh()) {
    SHARDMESH_DECODE(mesh, "config.mesh", SelectMesh(context.state, given.mesh(), compatibility));
    config.mesh = std::move(mesh);
  }
  if (given.has_axis_name()) {
    config.axis_name = given.axis_name();
  }
  if (given.has_matmul_method()) {
    config.matmul_method = given.matmul_method();
  }
  config.reduce_output = given.reduce_output();
  config.reduce_scatter_output = given.reduce_scatter_output();
  Mesh context_mesh;
  if (request.has_context_mesh()) {
    SHARDMESH_DECODE(mesh, "context_mesh",
                     SelectMesh(context.state, request.context_mesh(), compatibility));
    context_mesh = std::move(mesh);
  }
  SHARDMESH_DECODE(checked, "config", CheckTensorParallelConfig(std::move(config), context_mesh));

  compat::v1::TensorParallelConfig* const complete = response->mutable_config();
  complete->set_axis_name(checked.axis_name);
  if (checked.matmul_method.has_value()) {
    complete->set_matmul_method(*checked.matmul_method);
  }
  complete->set_reduce_output(checked.reduce_output);
  complete->set_reduce_scatter_output(checked.reduce_scatter_output);
  if (checked.mesh.has_value()) {
    rpc::Encode(*checked.mesh, response->mutable_mesh());
  }
  return absl::OkStatus();
}

absl::Status Answer(const AnswerContext&, const compat::v1::DescribeLinearLayerRequest& request,
                    compat::v1::DescribeLinearLayerResponse* response) {
  SHARDMESH_DECODE(compatibility, "compatibility", rpc::Decode(request.compatibility()));
  SHARDMESH_ASSIGN_OR_RETURN(const ParallelLinearOptions options, rpc::Decode(request));
  SHARDMESH_DECODE(given, "dtype", DecodeOptional(request.dtype()));
  const absl::StatusOr<ParallelLinear> layer = MakeParallelLinear(options, compatibility);
  if (!layer.ok()) {
    const bool is_scale = ReasonOf(layer.status()) == Reason::kBadField;
    return rpc::WithField(layer.status(), is_scale                     ? "rule"
                                          : request.in_features() <= 0 ? "in_features"
                                                                       : "out_features");
  }
  SHARDMESH_DECODE(dtype, "dtype", ParameterDtype(given.value_or(Dtype::kF32)));
  rpc::Encode(*layer, response);
  response->set_dtype(rpc::Encode(dtype));
  return absl::OkStatus();
}

absl::Status Answer(const AnswerContext&, const compat::v1::PromoteDtypesRequest& request,
                    compat::v1::PromoteDtypesResponse* response) {
  SHARDMESH_RETURN_IF_ERROR(
      CheckCount(request.dtypes_size(), kMaxPromotedDtypes, "element types", "dtypes"));
  std::vector<Dtype> dtypes;
  for (int i = 0; i < request.dtypes_size(); ++i) {
    const auto dtype = rpc::Decode(request.dtypes(i));
    if (!dtype.ok()) {
      return rpc::WithField(dtype.status(), "dtypes", static_cast<size_t>(i));
    }
    dtypes.push_back(*dtype);
  }
  SHARDMESH_DECODE(given, "dtype", DecodeOptional(request.dtype()));
  SHARDMESH_DECODE(promoted, given.has_value() ? "dtype" : "dtypes", PromoteDtype(dtypes, given));
  response->set_dtype(rpc::Encode(promoted));
  return absl::OkStatus();
}

}  // namespace shardmesh::server
