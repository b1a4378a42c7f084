// Makes the program of a layer: conversions, moves of weights, products, parts of merged results.
#include "program/graph/layer_program.h"

#include <cstddef>
#include <string>
#include <utility>
#include <variant>

#include "program/graph/graph.h"
#include "program/tensor_op.h"
#include "program/value_layout.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype_promotion.h"

namespace shardmesh {
namespace {

// The operands of a layer by part.
struct LayerArrays {
  const ValueDescriptor& input;
  std::vector<ValueDescriptor> weights;
  std::vector<ValueDescriptor> biases;  // empty: the layer has no bias
  std::vector<ValueDescriptor> scales;  // empty: the weights have no scales
};

// Returns how many operands each part has.
size_t OperandsOfPart(const LayerCall& call) {
  return 1U + (call.options.layer.use_bias ? 1U : 0U) + (call.options.has_scales ? 1U : 0U);
}

absl::StatusOr<LayerArrays> ArraysOf(const LayerCall& call,
                                     absl::Span<const ValueDescriptor> operands) {
  const bool has_biases = call.options.layer.use_bias;
  const bool has_scales = call.options.has_scales;
  const size_t stride = OperandsOfPart(call);
  if (operands.size() < 1 + stride || (operands.size() - 1) % stride != 0) {
    return InvalidArgument(Reason::kBadField,
                           StrCat("a layer takes an input, and at least one weight",
                                  has_biases && has_scales ? " with its bias and its scales"
                                  : has_biases             ? " with its bias"
                                  : has_scales             ? " with its scales"
                                                           : "",
                                  "; ", operands.size(), " operands are given"),
                           {{fact::kField, "parts"}});
  }
  LayerArrays arrays{.input = operands[0], .weights = {}, .biases = {}, .scales = {}};
  for (size_t i = 1; i < operands.size(); i += stride) {
    arrays.weights.push_back(operands[i]);
    if (has_biases) arrays.biases.push_back(operands[i + 1]);
    if (has_scales) arrays.scales.push_back(operands[i + stride - 1]);
  }
  return arrays;
}

// Checks the weight with number `i` and its scales, for `features` output features.
absl::Status CheckScaled(const LayerArrays& arrays, size_t i, int64_t features) {
  const ValueDescriptor& weight = arrays.weights[i];
  const std::string which = StrCat("weight ", i);
  if (weight.dtype != Dtype::kI8) {
    return InvalidArgument(
        Reason::kUnsupportedDtype,
        StrCat(which, " is ", DtypeName(weight.dtype), "; only weights of I8 have scales"),
        {{fact::kDtype, DtypeName(weight.dtype)}});
  }
  const ValueDescriptor& scales = arrays.scales[i];
  return WithContext(CheckScales({.dtype = scales.dtype, .shape = scales.shape}, features), which);
}

// Returns the output features of each weight.
absl::StatusOr<std::vector<int64_t>> FeaturesOf(const LayerArrays& arrays, WeightLayout layout) {
  const size_t out_dim = layout == WeightLayout::kInOut ? 1 : 0;
  std::vector<int64_t> features;
  for (size_t i = 0; i < arrays.weights.size(); ++i) {
    const Shape& shape = arrays.weights[i].shape;
    const Shape& first = arrays.weights[0].shape;
    if (shape.size() != 2) {
      return InvalidArgument(
          Reason::kShapeMismatch,
          StrCat("weight ", i, " has shape ", ShapeToString(shape), "; it must be a matrix"),
          {{fact::kHave, ShapeToString(shape)}});
    }
    if (shape[1 - out_dim] != first[1 - out_dim]) {
      return InvalidArgument(
          Reason::kShapeMismatch,
          StrCat("weight ", i, " of shape ", ShapeToString(shape), " takes ", shape[1 - out_dim],
                 " input features, and weight 0 of shape ", ShapeToString(first), " takes ",
                 first[1 - out_dim]),
          {{fact::kHave, shape[1 - out_dim]}, {fact::kNeed, first[1 - out_dim]}});
    }
    features.push_back(shape[out_dim]);
    if (!arrays.scales.empty()) {
      SHARDMESH_RETURN_IF_ERROR(CheckScaled(arrays, i, shape[out_dim]));
    }
    const Shape bias = {shape[out_dim]};
    if (!arrays.biases.empty() && arrays.biases[i].shape != bias) {
      return InvalidArgument(
          Reason::kShapeMismatch,
          StrCat("bias ", i, " has shape ", ShapeToString(arrays.biases[i].shape),
                 "; its weight of shape ", ShapeToString(shape), " needs ", ShapeToString(bias)),
          {{fact::kHave, ShapeToString(arrays.biases[i].shape)},
           {fact::kNeed, ShapeToString(bias)}});
    }
  }
  return features;
}

// Checks the requested output features against those of the weights.
absl::Status CheckFeatureCounts(const std::vector<int64_t>& wanted,
                                const std::vector<int64_t>& have) {
  if (wanted.empty() || wanted == have) return absl::OkStatus();
  const std::string list = StrJoin(wanted, ",");
  if (have.size() == 1) {
    int64_t sum = 0;
    for (const int64_t features : wanted) AddTo(sum, features);
    if (sum == have[0]) return absl::OkStatus();
    return InvalidArgument(Reason::kShapeMismatch,
                           StrCat("out_features ", list, " sum to ", sum, "; the weight has ",
                                  have[0], " output features"),
                           {{fact::kHave, have[0]}, {fact::kNeed, sum}});
  }
  if (wanted.size() != have.size()) {
    return InvalidArgument(Reason::kBadField,
                           StrCat("out_features ", list, " has ", wanted.size(), " numbers for ",
                                  have.size(), " weights; give one for each"),
                           {{fact::kField, "out_features"}, {fact::kValue, list}});
  }
  return InvalidArgument(Reason::kShapeMismatch,
                         StrCat("out_features are ", list, "; the weights have ",
                                StrJoin(have, ","), " output features"),
                         {{fact::kHave, StrJoin(have, ",")}, {fact::kNeed, list}});
}

// Returns the type in which the layer computes.
absl::StatusOr<Dtype> LayerDtype(const LayerCall& call, const LayerArrays& arrays) {
  std::vector<Dtype> dtypes = {arrays.input.dtype};
  std::vector<ValueDescriptor> params = arrays.biases;
  if (arrays.scales.empty()) {
    params.insert(params.begin(), arrays.weights.begin(), arrays.weights.end());
  }
  for (const ValueDescriptor& param : params) {
    dtypes.push_back(call.param_dtype.value_or(param.dtype));
  }
  return PromoteDtype(dtypes, call.options.dtype);
}

// Adds ops to a program whose operands are known.
class LayerProgramBuilder {
 public:
  explicit LayerProgramBuilder(size_t operands) {
    program_.operand_count = static_cast<uint32_t>(operands);
  }

  ValueIndex Add(ProgramOp op) {
    program_.ops.push_back(std::move(op));
    return static_cast<ValueIndex>(program_.operand_count + program_.ops.size() - 1);
  }
  ValueIndex Convert(ValueIndex value, Dtype from, Dtype to) {
    return from == to ? value : Add(TensorOp(ConvertOp{.input = value, .dtype = to}));
  }
  // Returns the columns that belong to a part of a merged result.
  ValueIndex Columns(ValueIndex merged, const Shape& shape, int64_t shards, IndexRange range) {
    Shape by_shard = shape;
    if (shards > 1) {
      by_shard.back() = shards;
      by_shard.push_back(shape.back() / shards);
      merged = Reshape(merged, by_shard);
    }
    SliceOp slice{.input = merged,
                  .starts = std::vector<int64_t>(by_shard.size(), 0),
                  .limits = std::vector<int64_t>(by_shard.begin(), by_shard.end())};
    slice.starts.back() = range.start;
    slice.limits.back() = range.stop;
    const ValueIndex columns = Add(TensorOp(std::move(slice)));
    if (shards == 1) return columns;
    Shape part = shape;
    part.back() = shards * range.size();
    return Reshape(columns, part);
  }
  void AddOutput(ValueIndex value) { program_.outputs.push_back(value); }

  Program Finish() && { return std::move(program_); }

 private:
  ValueIndex Reshape(ValueIndex value, Shape shape) {
    return Add(TensorOp(ReshapeOp{.input = value, .shape = std::move(shape)}));
  }

  Program program_;
};

// Returns the operands as the lowered ops take them: of the right type, and with the weights where
// the config wants them. Weights with scales, and these, have the right type already.
std::vector<ValueIndex> PrepareOperands(const LayerCall& call, const LinearLayerProgram& lowered,
                                        absl::Span<const ValueDescriptor> operands,
                                        LayerProgramBuilder& builder) {
  const bool has_biases = call.options.layer.use_bias;
  const bool has_scales = call.options.has_scales;
  const size_t stride = OperandsOfPart(call);
  std::vector<ValueIndex> values;
  for (size_t i = 0; i < operands.size(); ++i) {
    const ValueDescriptor& have = operands[i];
    const ValueDescriptor& wanted = lowered.operands[i];
    const bool is_param = i > 0;
    auto value = static_cast<ValueIndex>(i);
    Dtype dtype = have.dtype;
    const bool is_bias = is_param && has_biases && (i - 1) % stride == 1;
    if (is_param && call.param_dtype.has_value() && (!has_scales || is_bias)) {
      value = builder.Convert(value, dtype, *call.param_dtype);
      dtype = *call.param_dtype;
    }
    value = builder.Convert(value, dtype, wanted.dtype);
    const auto rank = static_cast<int64_t>(have.shape.size());
    const bool lies_so = have.cut_points.empty() && have.spec.unreduced().empty() &&
                         Equivalent(have.spec, wanted.spec, lowered.mesh, rank);
    if (is_param && call.options.parallel.has_value() && !lies_so) {
      value = builder.Add(ReshardOp{.input = value, .spec = wanted.spec});
    }
    values.push_back(value);
  }
  return values;
}

// Adds the lowered ops. Returns the values of the program's results.
std::vector<ValueIndex> AddLoweredOps(const Program& lowered, std::vector<ValueIndex> values,
                                      LayerProgramBuilder& builder) {
  for (const ProgramOp& op : lowered.ops) {
    std::vector<ValueIndex> inputs = InputsOfOp(op);
    for (ValueIndex& input : inputs) input = values[input];
    values.push_back(builder.Add(WithProgramOpInputs(op, inputs)));
  }
  std::vector<ValueIndex> results;
  for (const ValueIndex output : lowered.outputs) results.push_back(values[output]);
  return results;
}

}  // namespace

absl::StatusOr<Program> ProgramOfLayer(const LayerCall& call,
                                       absl::Span<const ValueDescriptor> operands,
                                       const Mesh& mesh) {
  SHARDMESH_ASSIGN_OR_RETURN(const LayerArrays arrays, ArraysOf(call, operands));
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<int64_t> features,
                             FeaturesOf(arrays, call.options.weight_layout));
  SHARDMESH_RETURN_IF_ERROR(CheckFeatureCounts(call.out_features, features));
  const bool is_merged = features.size() == 1 && call.out_features.size() > 1;
  // Checks the shards also if the weight is not merged.
  SHARDMESH_RETURN_IF_ERROR(
      MergedColumns(is_merged ? call.out_features : features, call.shards, 0).status());

  LinearLayerOptions options = call.options;
  options.layer.in_features =
      arrays.weights[0].shape[options.weight_layout == WeightLayout::kInOut ? 0 : 1];
  if (features.size() == 1) {
    options.layer.out_features = features[0];
  } else {
    options.layer.out_features = features;
  }
  options.param_dtype = call.param_dtype.value_or(Dtype::kF32);
  SHARDMESH_ASSIGN_OR_RETURN(options.dtype, LayerDtype(call, arrays));
  SHARDMESH_ASSIGN_OR_RETURN(const LinearLayerProgram lowered,
                             LowerLinearLayer(options, arrays.input, std::nullopt, mesh));

  LayerProgramBuilder builder(operands.size());
  std::vector<ValueIndex> results =
      AddLoweredOps(lowered.program, PrepareOperands(call, lowered, operands, builder), builder);
  if (is_merged) {
    Shape shape = arrays.input.shape;
    shape.back() = features[0];
    const auto* const layout = std::get_if<ReshardOp>(&lowered.program.ops.back());
    const ValueIndex merged = results[0];
    results.clear();
    for (size_t part = 0; part < call.out_features.size(); ++part) {
      SHARDMESH_ASSIGN_OR_RETURN(const std::vector<IndexRange> columns,
                                 MergedColumns(call.out_features, call.shards, part));
      ValueIndex value = builder.Columns(merged, shape, call.shards, columns[0]);
      if (layout != nullptr) {
        ReshardOp reshard = *layout;
        reshard.input = value;
        value = builder.Add(std::move(reshard));
      }
      results.push_back(value);
    }
  }
  const Dtype computed = lowered.operands[0].dtype;
  for (const ValueIndex result : results) {
    builder.AddOutput(builder.Convert(result, computed, lowered.dtype));
  }
  Program program = std::move(builder).Finish();
  if (program.ops.size() > kMaxProgramSize) {
    return InvalidArgument(Reason::kLimitExceeded,
                           StrCat("the layer takes ", program.ops.size(),
                                  " ops; a program has at "
                                  "most ",
                                  kMaxProgramSize, "; give fewer parts"),
                           {{fact::kHave, program.ops.size()}, {fact::kLimit, kMaxProgramSize}});
  }
  return program;
}

}  // namespace shardmesh
