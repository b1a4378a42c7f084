// Encodes and decodes the settings of linear layers.
#include "rpc/codec/linear_codec.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/field_check.h"
#include "rpc/codec/plan_codec.h"
#include "rpc/codec/status.h"
#include "sharding/layout/parallel_linear.h"
#include "status/fact_keys.h"
#include "status/nearest_name.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

constexpr std::string_view kAllGather = "ALL_GATHER";
constexpr std::string_view kReduceScatter = "REDUCE_SCATTER";
constexpr int kMaxLayerParts = 511;
// A weight without elements can have any number of output features, so that these are no limit.
constexpr int64_t kMaxLayerShards = 65'536;

absl::Status EncodeScale(const std::variant<double, std::string>& from, v1::LinearLayer* to) {
  if (const auto* const factor = std::get_if<double>(&from)) {
    to->set_factor(*factor);
    return absl::OkStatus();
  }
  const std::string& rule = std::get<std::string>(from);
  if (rule == "fan_in") {
    to->set_rule(v1::LINEAR_SCALE_FAN_IN);
  } else if (rule == "fan_out") {
    to->set_rule(v1::LINEAR_SCALE_FAN_OUT);
  } else {
    return BadField("scale", StrCat("\"", rule, "\" is neither a number nor fan_in or fan_out",
                                    DidYouMean(rule, {"fan_in", "fan_out"})));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::variant<double, std::string>> DecodeScale(const v1::LinearLayer& from) {
  using Scale = std::variant<double, std::string>;
  switch (from.scale_case()) {
    case v1::LinearLayer::SCALE_NOT_SET:
      return Scale(1.0);
    case v1::LinearLayer::kFactor:
      if (!std::isfinite(from.factor())) {
        return BadField("factor", StrCat("is ", from.factor(), "; it must be finite"));
      }
      return Scale(from.factor());
    case v1::LinearLayer::kRule:
      if (from.rule() == v1::LINEAR_SCALE_FAN_IN) return Scale("fan_in");
      if (from.rule() == v1::LINEAR_SCALE_FAN_OUT) return Scale("fan_out");
      break;
  }
  return BadField("rule", StrCat("is ", static_cast<int>(from.rule()),
                                 "; it must be LINEAR_SCALE_FAN_IN or LINEAR_SCALE_FAN_OUT"));
}

absl::StatusOr<v1::TensorParallelMethod> EncodeMethod(const std::string& method) {
  const auto is = [&](std::string_view name) {
    return absl::EqualsIgnoreCase(method, ToAbsl(name));
  };
  if (is(kAllGather)) return v1::TENSOR_PARALLEL_METHOD_ALL_GATHER;
  if (is(kReduceScatter)) return v1::TENSOR_PARALLEL_METHOD_REDUCE_SCATTER;
  return BadField("matmul_method",
                  StrCat("\"", method, "\" is neither ", kAllGather, " nor ", kReduceScatter,
                         DidYouMean(method, {kAllGather, kReduceScatter})));
}

absl::StatusOr<TensorParallelConfig> DecodeParallel(const v1::TensorParallel& from) {
  TensorParallelConfig config;
  if (from.axis_name().size() > 255) return BadField("axis_name", "is longer than 255 bytes");
  if (!from.axis_name().empty()) config.axis_name = from.axis_name();
  switch (from.method()) {
    case v1::TENSOR_PARALLEL_METHOD_UNSPECIFIED:
      break;
    case v1::TENSOR_PARALLEL_METHOD_ALL_GATHER:
      config.matmul_method = std::string(kAllGather);
      break;
    case v1::TENSOR_PARALLEL_METHOD_REDUCE_SCATTER:
      config.matmul_method = std::string(kReduceScatter);
      break;
    default:
      return BadField("method", StrCat("is ", static_cast<int>(from.method()),
                                       ", which this build does not know"));
  }
  config.reduce_output = from.reduce_output();
  config.reduce_scatter_output = from.reduce_scatter_output();
  return config;
}

absl::StatusOr<ParallelDirection> DecodeDirection(v1::LinearDirection from) {
  switch (from) {
    case v1::LINEAR_DIRECTION_UNSPECIFIED:
      return ParallelDirection::kNone;
    case v1::LINEAR_DIRECTION_ROW:
      return ParallelDirection::kRow;
    case v1::LINEAR_DIRECTION_COLUMN:
      return ParallelDirection::kColumn;
    default:
      return BadField("direction",
                      StrCat("is ", static_cast<int>(from), ", which this build does not know"));
  }
}

v1::LinearDirection EncodeDirection(ParallelDirection from) {
  return from == ParallelDirection::kRow      ? v1::LINEAR_DIRECTION_ROW
         : from == ParallelDirection::kColumn ? v1::LINEAR_DIRECTION_COLUMN
                                              : v1::LINEAR_DIRECTION_UNSPECIFIED;
}

// Returns the type of an optional field.
absl::StatusOr<std::optional<Dtype>> DecodeOptional(v1::Dtype from, std::string_view field) {
  if (from == v1::DTYPE_UNSPECIFIED) return std::nullopt;
  absl::StatusOr<Dtype> dtype = Decode(from);
  if (!dtype.ok()) return WithField(std::move(dtype).status(), field);
  return *dtype;
}

}  // namespace

absl::Status Encode(const LayerCall& from, v1::LinearLayer* to) {
  const LinearLayerOptions& options = from.options;
  to->mutable_out_features()->Add(from.out_features.begin(), from.out_features.end());
  to->set_shards(from.shards);
  SHARDMESH_RETURN_IF_ERROR(EncodeScale(options.layer.scale, to));
  to->set_direction(EncodeDirection(options.layer.direction));
  if (options.parallel.has_value()) {
    v1::TensorParallel* const parallel = to->mutable_parallel();
    parallel->set_axis_name(options.parallel->axis_name);
    if (options.parallel->matmul_method.has_value()) {
      SHARDMESH_ASSIGN_OR_RETURN(const v1::TensorParallelMethod method,
                                 EncodeMethod(*options.parallel->matmul_method));
      parallel->set_method(method);
    }
    parallel->set_reduce_output(options.parallel->reduce_output);
    parallel->set_reduce_scatter_output(options.parallel->reduce_scatter_output);
  }
  if (options.dtype.has_value()) to->set_dtype(Encode(*options.dtype));
  if (from.param_dtype.has_value()) to->set_param_dtype(Encode(*from.param_dtype));
  to->set_weight_layout(Encode(options.weight_layout));
  to->set_activation(Encode(options.activation));
  to->set_use_bias(options.layer.use_bias);
  to->set_use_scales(options.has_scales);
  return absl::OkStatus();
}

absl::StatusOr<LayerCall> Decode(const v1::LinearLayer& from) {
  LayerCall call;
  if (from.out_features_size() > kMaxLayerParts) {
    return WithField(
        InvalidArgument(Reason::kLimitExceeded,
                        StrCat("has ", from.out_features_size(), " numbers; a layer has at most ",
                               kMaxLayerParts, " parts"),
                        {{fact::kHave, from.out_features_size()}, {fact::kLimit, kMaxLayerParts}}),
        "out_features");
  }
  for (const int64_t features : from.out_features()) {
    if (features < 1) {
      return BadField("out_features", StrCat("has ", features, "; each must be at least 1"));
    }
    call.out_features.push_back(features);
  }
  if (from.shards() < 0) {
    return BadField("shards", StrCat("is ", from.shards(), "; it must be at least 1"));
  }
  if (from.shards() > kMaxLayerShards) {
    return WithField(
        InvalidArgument(Reason::kLimitExceeded,
                        StrCat("is ", from.shards(), "; it must be at most ", kMaxLayerShards),
                        {{fact::kHave, from.shards()}, {fact::kLimit, kMaxLayerShards}}),
        "shards");
  }
  call.shards = from.shards() == 0 ? 1 : from.shards();
  LinearLayerOptions& options = call.options;
  SHARDMESH_ASSIGN_OR_RETURN(options.layer.scale, DecodeScale(from));
  SHARDMESH_ASSIGN_OR_RETURN(options.layer.direction, DecodeDirection(from.direction()));
  if (from.has_parallel()) {
    auto parallel = DecodeParallel(from.parallel());
    if (!parallel.ok()) return WithField(std::move(parallel).status(), "parallel");
    options.parallel = *std::move(parallel);
  }
  SHARDMESH_ASSIGN_OR_RETURN(options.dtype, DecodeOptional(from.dtype(), "dtype"));
  SHARDMESH_ASSIGN_OR_RETURN(call.param_dtype, DecodeOptional(from.param_dtype(), "param_dtype"));
  SHARDMESH_ASSIGN_OR_RETURN(options.weight_layout, Decode(from.weight_layout()));
  SHARDMESH_ASSIGN_OR_RETURN(options.activation, Decode(from.activation()));
  options.layer.use_bias = from.use_bias();
  options.has_scales = from.use_scales();
  return call;
}

}  // namespace shardmesh::rpc
