// Decodes linear layers with their checks, and encodes them.
#include "rpc/codec/layer_codec.h"

#include <utility>
#include <vector>

#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "sharding/mesh.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

// The wire's enum has the same directions in the same order; its 0 means "along neither".
static_assert(static_cast<int>(ParallelDirection::kColumn) ==
              compat::v1::PARALLEL_DIRECTION_COLUMN);

compat::v1::ParallelDirection Encode(ParallelDirection from) {
  return static_cast<compat::v1::ParallelDirection>(from);
}

absl::StatusOr<ParallelDirection> Decode(compat::v1::ParallelDirection from) {
  if (!compat::v1::ParallelDirection_IsValid(from)) {
    return BadField("direction", StrCat("direction ", static_cast<int>(from),
                                        " is not known; leave it unset, or use ROW or COLUMN"));
  }
  return static_cast<ParallelDirection>(from);
}

}  // namespace

void Encode(const ArrayLayout& from, compat::v1::OperandLayout* to) {
  to->set_rank(from.rank);
  switch (from.kind) {
    case ArrayLayout::Kind::kNone:
      to->set_kind(compat::v1::OperandLayout::KIND_NONE);
      return;
    case ArrayLayout::Kind::kSingleDevice:
      to->set_kind(compat::v1::OperandLayout::KIND_SINGLE_DEVICE);
      return;
    case ArrayLayout::Kind::kNamed:
      to->set_kind(compat::v1::OperandLayout::KIND_NAMED);
      Encode(from.spec, to->mutable_spec());
      return;
  }
}

absl::StatusOr<ArrayLayout> Decode(const compat::v1::OperandLayout& from) {
  ArrayLayout layout;
  layout.rank = from.rank();
  switch (from.kind()) {
    case compat::v1::OperandLayout::KIND_UNSPECIFIED:
    case compat::v1::OperandLayout::KIND_NAMED: {
      layout.kind = ArrayLayout::Kind::kNamed;
      auto spec = Decode(from.spec());
      if (!spec.ok()) {
        return WithField(std::move(spec).status(), "spec");
      }
      layout.spec = *std::move(spec);
      return layout;
    }
    case compat::v1::OperandLayout::KIND_NONE:
      layout.kind = ArrayLayout::Kind::kNone;
      break;
    case compat::v1::OperandLayout::KIND_SINGLE_DEVICE:
      layout.kind = ArrayLayout::Kind::kSingleDevice;
      break;
    default:
      return BadField("kind", StrCat("operand of unknown kind ", static_cast<int>(from.kind()),
                                     "; use NAMED, NONE or SINGLE_DEVICE"));
  }
  if (from.has_spec()) {
    return BadField("spec", "is set for an operand that lies on no mesh; leave it out");
  }
  return layout;
}

void Encode(const ParallelLinearOptions& from, compat::v1::DescribeLinearLayerRequest* to) {
  to->set_in_features(from.in_features);
  if (const auto* one = std::get_if<int64_t>(&from.out_features)) {
    to->add_out_features(*one);
  } else {
    const auto& several = std::get<std::vector<int64_t>>(from.out_features);
    to->mutable_out_features()->Add(several.begin(), several.end());
    to->set_merged(true);
  }
  to->set_use_bias(from.use_bias);
  if (const auto* factor = std::get_if<double>(&from.scale)) {
    to->set_factor(*factor);
  } else {
    to->set_rule(std::get<std::string>(from.scale));
  }
  to->set_direction(Encode(from.direction));
}

absl::StatusOr<ParallelLinearOptions> Decode(const compat::v1::DescribeLinearLayerRequest& from) {
  ParallelLinearOptions options;
  options.in_features = from.in_features();
  if (from.out_features_size() > kMaxMergedLayers) {
    return WithField(InvalidArgument(Reason::kLimitExceeded,
                                     StrCat(from.out_features_size(), " merged layers; ",
                                            "at most ", kMaxMergedLayers, " are allowed"),
                                     {{fact::kHave, from.out_features_size()},
                                      {fact::kLimit, kMaxMergedLayers}}),
                     "out_features");
  }
  if (from.merged() || from.out_features_size() != 1) {
    options.out_features =
        std::vector<int64_t>(from.out_features().begin(), from.out_features().end());
  } else {
    options.out_features = from.out_features(0);
  }
  options.use_bias = from.use_bias();
  switch (from.scale_case()) {
    case compat::v1::DescribeLinearLayerRequest::kFactor:
      options.scale = from.factor();
      break;
    case compat::v1::DescribeLinearLayerRequest::kRule:
      if (from.rule().size() > kMaxAxisNameBytes) {
        return WithField(
            InvalidArgument(
                Reason::kLimitExceeded,
                StrCat("a rule of ", from.rule().size(), " bytes; use fan_in or fan_out"),
                {{fact::kHave, from.rule().size()}, {fact::kLimit, kMaxAxisNameBytes}}),
            "rule");
      }
      options.scale = from.rule();
      break;
    case compat::v1::DescribeLinearLayerRequest::SCALE_NOT_SET:
      break;
  }
  SHARDMESH_ASSIGN_OR_RETURN(options.direction, Decode(from.direction()));
  return options;
}

void Encode(const ParallelLinear& from, compat::v1::DescribeLinearLayerResponse* to) {
  Encode(from.kernel_shape, to->mutable_kernel_shape());
  if (from.bias_shape.has_value()) {
    Encode(*from.bias_shape, to->mutable_bias_shape());
  }
  to->set_merged_layers(from.tp_merged);
  to->set_scale_factor(from.scale_factor);
  to->set_direction(Encode(from.direction));
}

absl::StatusOr<ParallelLinear> Decode(const compat::v1::DescribeLinearLayerResponse& from) {
  ParallelLinear layer;
  layer.tp_merged = from.merged_layers();
  auto kernel_shape = DecodeShape(from.kernel_shape());
  if (!kernel_shape.ok()) {
    return WithField(std::move(kernel_shape).status(), "kernel_shape");
  }
  layer.kernel_shape = *std::move(kernel_shape);
  if (!from.bias_shape().empty()) {
    auto bias_shape = DecodeShape(from.bias_shape());
    if (!bias_shape.ok()) {
      return WithField(std::move(bias_shape).status(), "bias_shape");
    }
    layer.bias_shape = *std::move(bias_shape);
  }
  layer.scale_factor = from.scale_factor();
  SHARDMESH_ASSIGN_OR_RETURN(layer.direction, Decode(from.direction()));
  return layer;
}

}  // namespace shardmesh::rpc
