// Lowers linear layers to programs.
#include "program/graph/linear_layer.h"

#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "status/fact_keys.h"
#include "status/nearest_name.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype_promotion.h"
#include "tensor/float_convert.h"

namespace shardmesh {
namespace {

constexpr std::string_view kAllGatherMethod = "ALL_GATHER";
constexpr std::string_view kReduceScatterMethod = "REDUCE_SCATTER";

bool IsMethod(std::string_view text, std::string_view method) {
  return absl::EqualsIgnoreCase(absl::string_view(text.data(), text.size()),
                                absl::string_view(method.data(), method.size()));
}

// How a layer lies along the axis of its config. Without config, the axis is empty.
struct AxisUse {
  std::string axis;
  ParallelDirection direction = ParallelDirection::kNone;
  bool partitions_result = false;
};

absl::StatusOr<AxisUse> AxisUseOf(const LinearLayerOptions& options,
                                  const TensorParallelConfig& config) {
  AxisUse use{.axis = config.axis_name, .direction = options.layer.direction};
  if (config.reduce_output && config.reduce_scatter_output) {
    return InvalidArgument(
        Reason::kBadField,
        "reduce_output gives each device the whole result, and reduce_scatter_output a part of "
        "it; set only one of them",
        {{fact::kField, "reduce_output"}});
  }
  bool is_scattered = false;
  if (config.matmul_method.has_value()) {
    const std::string& method = *config.matmul_method;
    is_scattered = IsMethod(method, kReduceScatterMethod);
    if (!is_scattered && !IsMethod(method, kAllGatherMethod)) {
      return InvalidArgument(
          Reason::kBadField,
          StrCat("matmul_method ", PythonRepr(method), " is neither ", kAllGatherMethod, " nor ",
                 kReduceScatterMethod,
                 DidYouMean(method, {kAllGatherMethod, kReduceScatterMethod})),
          {{fact::kField, "matmul_method"},
           {fact::kValue, method},
           {fact::kNearest,
            NearestName(method, {kAllGatherMethod, kReduceScatterMethod}).value_or("")}});
    }
    if (use.direction == ParallelDirection::kNone) {
      use.direction = is_scattered ? ParallelDirection::kRow : ParallelDirection::kColumn;
    }
  }
  use.partitions_result = config.reduce_scatter_output || (is_scattered && !config.reduce_output);
  return use;
}

// Returns the type in which the program computes results of type `dtype`.
absl::StatusOr<Dtype> ProgramDtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
    case Dtype::kBF16:
      return dtype;
    case Dtype::kF16:
      return Dtype::kF32;
    default:
      return InvalidArgument(Reason::kUnsupportedDtype,
                             StrCat("a linear layer cannot compute in ", DtypeName(dtype),
                                    "; give F32, BF16 or F16 as its dtype"),
                             {{fact::kDtype, DtypeName(dtype)}});
  }
}

SpecEntry EntryOf(const std::string& axis, bool is_partitioned) {
  return is_partitioned ? SpecEntry::Axis(axis) : SpecEntry::None();
}

std::vector<int64_t> PartsOf(const ParallelLinearOptions& layer) {
  if (const auto* const parts = std::get_if<std::vector<int64_t>>(&layer.out_features)) {
    return *parts;
  }
  return {std::get<int64_t>(layer.out_features)};
}

absl::Status CheckFeatures(const ValueDescriptor& input, int64_t in_features) {
  if (!input.shape.empty() && input.shape.back() == in_features) return absl::OkStatus();
  const std::string_view problem =
      input.shape.empty() ? "is a scalar" : "has another number of features";
  return InvalidArgument(
      Reason::kShapeMismatch,
      StrCat("the input of shape ", ShapeToString(input.shape), " ", problem, "; the layer takes ",
             in_features, " features in the last dimension"),
      {{fact::kHave, ShapeToString(input.shape)}, {fact::kNeed, in_features}});
}

// Checks a weight that takes the place of the kernel. Returns its number of output features.
absl::StatusOr<int64_t> CheckWeight(const LinearLayerOptions& options,
                                    const ValueDescriptor& weight) {
  const ParallelLinearOptions& layer = options.layer;
  if (options.has_scales) {
    return InvalidArgument(Reason::kBadField,
                           "a weight is given for a layer with scales; give weights and scales as "
                           "the program's operands",
                           {{fact::kField, "weight"}});
  }
  if (std::holds_alternative<std::vector<int64_t>>(layer.out_features)) {
    return InvalidArgument(Reason::kBadField,
                           "a weight is given for a layer whose out_features are in parts; give "
                           "the weights of its parts as the program's operands",
                           {{fact::kField, "weight"}});
  }
  const bool is_in_out = options.weight_layout == WeightLayout::kInOut;
  const auto in_dim = static_cast<size_t>(is_in_out ? 0 : 1);
  if (weight.shape.size() != 2 || weight.shape[in_dim] != layer.in_features) {
    return InvalidArgument(
        Reason::kShapeMismatch,
        StrCat("the weight has shape ", ShapeToString(weight.shape), "; it must be a matrix with ",
               layer.in_features, is_in_out ? " rows, as (in, out)" : " columns, as (out, in)"),
        {{fact::kHave, ShapeToString(weight.shape)}, {fact::kNeed, layer.in_features}});
  }
  const int64_t out = weight.shape[1 - in_dim];
  if (const int64_t bias = std::get<int64_t>(layer.out_features); layer.use_bias && out != bias) {
    return InvalidArgument(
        Reason::kShapeMismatch,
        StrCat("the weight has ", out, " output features, and the layer's bias ", bias,
               "; give a weight with ", bias, " output features, or a layer without bias"),
        {{fact::kHave, out}, {fact::kNeed, bias}}, "TypeError");
  }
  return out;
}

// Returns the layout of the results: the rows lie as those of the input.
ReshardOp ResultLayout(const ValueDescriptor& input, const AxisUse& use) {
  ReshardOp reshard;
  std::vector<SpecEntry> entries;
  bool is_cut = false;
  for (size_t dim = 0; dim + 1 < input.shape.size(); ++dim) {
    std::vector<AxisName> axes;
    bool is_kept = true;
    if (static_cast<int64_t>(dim) < input.spec.size()) {
      for (const AxisName& axis : input.spec.entry(static_cast<int64_t>(dim)).axes()) {
        if (axis == use.axis) {
          is_kept = false;
        } else {
          axes.push_back(axis);
        }
      }
    }
    entries.push_back(SpecEntry::Axes(std::move(axes)));
    // The parts of a dimension that loses an axis become equal.
    std::vector<int64_t>& starts = reshard.part_starts.emplace_back();
    if (is_kept && dim < input.cut_points.size() && input.cut_points[dim].size() > 2) {
      starts.assign(input.cut_points[dim].begin() + 1, input.cut_points[dim].end() - 1);
      is_cut = true;
    }
  }
  entries.push_back(EntryOf(use.axis, use.partitions_result));
  reshard.spec = PartitionSpec(std::move(entries));
  if (!is_cut) reshard.part_starts.clear();
  return reshard;
}

// Returns the error that the planner would give for the layout of a result with `out` features.
absl::Status CheckResult(const Mesh& mesh, const ReshardOp& layout, Shape shape, int64_t out) {
  shape.back() = out;
  std::vector<CutPoints> cut_points(layout.part_starts.empty() ? 0 : shape.size());
  for (size_t dim = 0; dim < layout.part_starts.size(); ++dim) {
    const std::vector<int64_t>& starts = layout.part_starts[dim];
    if (starts.empty()) continue;
    cut_points[dim] = {0};
    cut_points[dim].insert(cut_points[dim].end(), starts.begin(), starts.end());
    cut_points[dim].push_back(shape[dim]);
  }
  return Tiling::Create(mesh, layout.spec, std::move(shape), std::move(cut_points)).status();
}

// Builds the operands and ops of a layer, part by part.
class LayerLowering {
 public:
  LayerLowering(const LinearLayerOptions& options, AxisUse use, Dtype dtype, float scale)
      : options_(options), use_(std::move(use)), dtype_(dtype), scale_(scale) {}

  void AddInput(ValueDescriptor input) {
    input.dtype = dtype_;
    if (!use_.axis.empty()) result_layout_ = ResultLayout(input, use_);
    operands_.push_back(std::move(input));
  }

  void AddPart(int64_t out, const std::optional<ValueDescriptor>& weight) {
    LinearOp op{.input = 0,
                .weight = static_cast<ValueIndex>(operands_.size()),
                .weight_layout = options_.weight_layout,
                .activation = options_.activation,
                .scale = scale_};
    operands_.push_back(weight.has_value() ? *weight : OwnWeight(out));
    operands_.back().dtype = options_.has_scales ? Dtype::kI8 : dtype_;
    if (options_.layer.use_bias) op.bias = AddFeatures(dtype_, out);
    if (options_.has_scales) op.scales = AddFeatures(Dtype::kF32, out);
    ops_.push_back(std::move(op));
  }

  // How the result of every part lies; nullopt: as the planner chooses.
  const std::optional<ReshardOp>& result_layout() const { return result_layout_; }

  LinearLayerProgram Finish() && {
    LinearLayerProgram result;
    Program& program = result.program;
    program.operand_count = static_cast<uint32_t>(operands_.size());
    for (LinearOp& op : ops_) {
      auto value = static_cast<ValueIndex>(program.operand_count + program.ops.size());
      program.ops.push_back(std::move(op));
      if (result_layout_.has_value()) {
        ReshardOp reshard = *result_layout_;
        reshard.input = value++;
        program.ops.emplace_back(std::move(reshard));
      }
      program.outputs.push_back(value);
    }
    result.operands = std::move(operands_);
    return result;
  }

 private:
  // Adds an operand with an element for each output feature.
  ValueIndex AddFeatures(Dtype dtype, int64_t out) {
    const bool is_column = use_.direction == ParallelDirection::kColumn;
    operands_.push_back(
        {.dtype = dtype, .shape = {out}, .spec = PartitionSpec({EntryOf(use_.axis, is_column)})});
    return static_cast<ValueIndex>(operands_.size() - 1);
  }
  ValueDescriptor OwnWeight(int64_t out) const {
    Shape shape = {options_.layer.in_features, out};
    std::vector<SpecEntry> entries = {
        EntryOf(use_.axis, use_.direction == ParallelDirection::kRow),
        EntryOf(use_.axis, use_.direction == ParallelDirection::kColumn)};
    if (options_.weight_layout == WeightLayout::kOutIn) {
      std::swap(shape[0], shape[1]);
      std::swap(entries[0], entries[1]);
    }
    return {.shape = std::move(shape), .spec = PartitionSpec(std::move(entries))};
  }

  const LinearLayerOptions& options_;
  const AxisUse use_;
  const Dtype dtype_;
  const float scale_;
  std::optional<ReshardOp> result_layout_;
  std::vector<ValueDescriptor> operands_;
  std::vector<LinearOp> ops_;
};

}  // namespace

absl::StatusOr<LinearLayerProgram> LowerLinearLayer(const LinearLayerOptions& options,
                                                    const ValueDescriptor& input,
                                                    const std::optional<ValueDescriptor>& weight,
                                                    const Mesh& context) {
  SHARDMESH_ASSIGN_OR_RETURN(const ParallelLinear facts, MakeParallelLinear(options.layer));
  Mesh mesh = context;
  AxisUse use;
  if (options.parallel.has_value()) {
    // The mesh must have the axis also if the config has no method.
    TensorParallelConfig config = *options.parallel;
    if (!config.matmul_method.has_value()) config.matmul_method = std::string(kAllGatherMethod);
    SHARDMESH_ASSIGN_OR_RETURN(config, CheckTensorParallelConfig(std::move(config), context));
    config.matmul_method = options.parallel->matmul_method;
    mesh = *config.mesh;
    SHARDMESH_ASSIGN_OR_RETURN(use, AxisUseOf(options, config));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const Dtype param_dtype, ParameterDtype(options.param_dtype));
  std::vector<Dtype> dtypes = {input.dtype};
  if (!options.has_scales) dtypes.push_back(weight.has_value() ? weight->dtype : param_dtype);
  if (options.layer.use_bias) dtypes.push_back(param_dtype);
  SHARDMESH_ASSIGN_OR_RETURN(const Dtype dtype, PromoteDtype(dtypes, options.dtype));
  SHARDMESH_ASSIGN_OR_RETURN(const Dtype program_dtype, ProgramDtype(dtype));

  SHARDMESH_RETURN_IF_ERROR(CheckFeatures(input, options.layer.in_features));
  std::vector<int64_t> parts = PartsOf(options.layer);
  if (weight.has_value()) {
    SHARDMESH_ASSIGN_OR_RETURN(parts.front(), CheckWeight(options, *weight));
  }
  // A program has up to three operands and two ops for each part.
  const uint32_t size_of_part = options.layer.use_bias && options.has_scales ? 3 : 2;
  if (const uint32_t most = (kMaxProgramSize - 1) / size_of_part; parts.size() > most) {
    return InvalidArgument(
        Reason::kLimitExceeded,
        StrCat("out_features has ", parts.size(), " parts; a layer has at most ", most, " parts"),
        {{fact::kHave, parts.size()}, {fact::kLimit, most}});
  }
  LayerLowering lowering(options, std::move(use), program_dtype, F64ToF32(facts.scale_factor));
  lowering.AddInput(input);
  for (const int64_t out : parts) lowering.AddPart(out, weight);
  const std::optional<ReshardOp> layout = lowering.result_layout();
  LinearLayerProgram result = std::move(lowering).Finish();
  for (const ValueDescriptor& operand : result.operands) {
    SHARDMESH_RETURN_IF_ERROR(
        Tiling::Create(mesh, operand.spec, operand.shape, operand.cut_points).status());
  }
  for (const int64_t out : parts) {
    if (!layout.has_value()) break;
    SHARDMESH_RETURN_IF_ERROR(CheckResult(mesh, *layout, input.shape, out));
  }
  result.mesh = std::move(mesh);
  result.dtype = dtype;
  return result;
}

absl::StatusOr<std::vector<IndexRange>> MergedColumns(absl::Span<const int64_t> parts,
                                                      int64_t shards, size_t part) {
  if (shards < 1) {
    return InvalidArgument(
        Reason::kBadField,
        StrCat("a merged kernel has ", shards, " shards; it must have at least 1"),
        {{fact::kField, "shards"}, {fact::kValue, shards}});
  }
  int64_t shard_columns = 0;  // of all parts
  int64_t start = 0;          // of the part, in the first shard
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] % shards != 0) {
      return InvalidArgument(
          Reason::kNotDivisible,
          StrCat("part ", i, " of out_features has ", parts[i], " features, which ", shards,
                 " shards do not divide; give parts that are multiples of ", shards),
          {{fact::kHave, parts[i]}, {fact::kNeed, shards}});
    }
    if (i == part) start = shard_columns;
    shard_columns += parts[i] / shards;
  }
  std::vector<IndexRange> columns;
  for (int64_t shard = 0; shard < shards; ++shard) {
    const int64_t first = shard * shard_columns + start;
    columns.push_back({.start = first, .stop = first + parts[part] / shards});
  }
  return columns;
}

}  // namespace shardmesh
