// Brings operands together, multiplies them, and derives the results of collectives.
#include "program/plan_builder.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "program/collective_check.h"
#include "program/plan_forecast.h"
#include "sharding/shape.h"
#include "sharding/tile.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"

namespace shardmesh {
namespace {

// Returns the text of a collective for labels, such as "all-gather of dimension 1 over tp".
std::string Describe(const CollectiveOp& op) {
  std::string text(CollectiveKindName(op.kind));
  if (JoinsTiles(op.kind) || SplitsTiles(op.kind)) {
    StrAppend(&text, " of dimension ", op.dimension);
  }
  if (op.kind == CollectiveKind::kAllToAll) {
    StrAppend(&text, " for ", op.split_dimension);
  }
  if (!op.counts.empty()) {
    StrAppend(&text, " in parts of ", StrJoin(op.counts, ","));
  }
  StrAppend(&text, " over ", StrJoin(op.axes, ","));
  return text;
}

// Returns whether the collective merges all tiles of a group into one tile of the same size.
// Reduce-scatter and scatter split the merged tile afterwards.
bool MergesTiles(CollectiveKind kind) {
  return IsReduction(kind) || kind == CollectiveKind::kBroadcast ||
         kind == CollectiveKind::kScatter;
}

// Derives the result's description from the operand's: Merge, Join, Split and KeepAtRoot each apply
// one effect of the collective. Requires an op and an operand that CheckCollective accepts.
struct CollectiveResult {
  const Mesh& mesh;
  const CollectiveOp& op;
  const Axes& axes;  // result of ExchangeAxes; not empty
  ValueDescriptor value;
  ValueLayout layout;  // layout of `value`; ResultOf sets value.spec from it at the end

  // Merges each group's tiles into one tile of the same size. The extent of a dimension that axes
  // of the group partition is therefore divided by the sizes of these axes.
  void Merge() {
    const auto of_group = [&](const std::string& axis) { return Contains(axes, axis); };
    for (size_t dim = 0; dim < layout.dims.size(); ++dim) {
      Axes gone;
      std::copy_if(layout.dims[dim].begin(), layout.dims[dim].end(), std::back_inserter(gone),
                   of_group);
      value.shape[dim] /= AxesSize(mesh, gone);
      std::erase_if(layout.dims[dim], of_group);
    }
    std::erase_if(layout.unreduced, of_group);
  }

  void Join() {
    const auto dim = static_cast<size_t>(op.dimension);
    Axes& joined = layout.dims[dim];
    joined.resize(joined.size() - axes.size());
    if (IsCut(value, dim)) {
      const auto ranks = static_cast<size_t>(AxesSize(mesh, axes));
      CutPoints points;
      for (size_t i = 0; i < value.cut_points[dim].size(); i += ranks) {
        points.push_back(value.cut_points[dim][i]);
      }
      SetCutPoints(dim, std::move(points), &value);
    }
  }

  // Splits each tile into one part for each place of its group. Errors of SplitPoints.
  absl::Status Split() {
    const auto dim = static_cast<size_t>(SplitDimension(op));
    value.spec = ToSpec(layout);
    if (IsCut(value, dim) || !op.counts.empty()) {
      SHARDMESH_ASSIGN_OR_RETURN(CutPoints points,
                                 SplitPoints(op, AxesSize(mesh, axes), value, dim, mesh));
      SetCutPoints(dim, std::move(points), &value);
    }
    Axes& split = layout.dims[dim];
    split.insert(split.end(), axes.begin(), axes.end());
    return absl::OkStatus();
  }

  // Only the root of each group gets the value; the other places get zeros. Along `axes`, the tiles
  // are therefore partial sums.
  void KeepAtRoot() { layout.unreduced.insert(layout.unreduced.end(), axes.begin(), axes.end()); }
};

// Returns the description of the collective's result. Errors of SplitPoints.
absl::StatusOr<ValueDescriptor> ResultOf(const CollectiveOp& op, const Axes& axes,
                                         const ValueDescriptor& operand, const Mesh& mesh) {
  CollectiveResult result = {
      .mesh = mesh, .op = op, .axes = axes, .value = operand, .layout = LayoutOf(mesh, operand)};
  if (MergesTiles(op.kind)) result.Merge();
  if (JoinsTiles(op.kind)) result.Join();
  if (SplitsTiles(op.kind)) {
    SHARDMESH_RETURN_IF_ERROR(result.Split());
  }
  if (op.kind == CollectiveKind::kReduce || op.kind == CollectiveKind::kGather) result.KeepAtRoot();
  result.value.spec = ToSpec(result.layout);
  return std::move(result.value);
}

}  // namespace

PlanBuilder::PlanBuilder(const PlanTarget& target, absl::Span<const ValueDescriptor> operands)
    : links_(target.links), preferred_(target.preferred) {
  plan_.mesh_id = target.mesh_id;
  plan_.mesh_revision = target.mesh_revision;
  plan_.mesh = target.mesh;
  plan_.operand_count = static_cast<uint32_t>(operands.size());
  plan_.values.assign(operands.begin(), operands.end());
  for (ValueDescriptor& operand : plan_.values) {
    operand.cut_points = WithoutEqualParts(std::move(operand.cut_points));
  }
}

absl::Status PlanBuilder::Error(Reason reason, std::string_view message, Facts facts) const {
  absl::Status status = InvalidArgument(reason, StrCat(op_, ": ", message), facts);
  return MayHave(reason, fact::kOp) ? WithFacts(std::move(status), {{fact::kOp, op_}}) : status;
}

absl::Status PlanBuilder::Error(const absl::Status& refusal) const {
  return WithFactsOf(Error(ReasonOf(refusal), ToStd(refusal.message())), refusal);
}

absl::Status PlanBuilder::CheckEqualTiles(ValueIndex input) const {
  const ValueDescriptor& described = value(input);
  for (size_t dim = 0; dim < described.shape.size(); ++dim) {
    if (IsCut(described, dim)) {
      return WithReason(absl::UnimplementedError(StrCat(
                            op_, ": dimension ", dim, " of a value is cut into unequal tiles, at ",
                            StrJoin(described.cut_points[dim], ","),
                            "; only collectives take such tiles: all-gather the dimension first")),
                        Reason::kNotAvailable, {{fact::kOp, op_}});
    }
  }
  return absl::OkStatus();
}

template <typename Kind>
ValueIndex PlanBuilder::Emit(Kind kind, ValueDescriptor output, std::string_view what) {
  const auto index = static_cast<ValueIndex>(plan_.values.size());
  AddTo(plan_.cost.memory_bytes, TileBytes(plan_.mesh, output));
  plan_.values.push_back(std::move(output));
  plan_.instructions.push_back(
      Instruction{.output = index, .kind = std::move(kind), .label = StrCat(op_, ": ", what)});
  return index;
}

ValueIndex PlanBuilder::EmitCollective(CollectiveOp op, ValueDescriptor output) {
  const ValueDescriptor& operand = value(op.input);
  const CollectiveLoad load = LoadOf(plan_.mesh, operand, op.axes);
  if (op.algorithm == CollectiveAlgorithm::kAuto) {
    op.algorithm = ChooseAlgorithm(op.kind, load, op.order, links_, preferred_);
  }
  const CollectiveCost cost = CostOf(op.kind, op.algorithm, load);
  AddTo(plan_.cost.sent_bytes, cost.sent_bytes);
  if (IsReduction(op.kind)) {
    AddTo(plan_.cost.flops, cost.combined_bytes / (BitsPerElement(operand.dtype) / 8));
  }
  const std::string what = Describe(op);
  return Emit(std::move(op), std::move(output), what);
}

ValueIndex PlanBuilder::AllReduce(ValueIndex input, const Axes& axes, Reduction reduction) {
  ValueLayout layout = LayoutOf(input);
  std::erase_if(layout.unreduced, [&](const std::string& axis) { return Contains(axes, axis); });
  ValueDescriptor output = value(input);
  output.spec = ToSpec(layout);
  return EmitCollective(
      {.input = input, .kind = CollectiveKind::kAllReduce, .axes = axes, .reduction = reduction},
      std::move(output));
}

ValueIndex PlanBuilder::AllGather(ValueIndex input, const Axes& axes, int64_t dimension) {
  ValueLayout layout = LayoutOf(input);
  Axes& gathered = layout.dims[static_cast<size_t>(dimension)];
  gathered.resize(gathered.size() - axes.size());
  ValueDescriptor output = value(input);
  output.spec = ToSpec(layout);
  return EmitCollective(
      {.input = input, .kind = CollectiveKind::kAllGather, .axes = axes, .dimension = dimension},
      std::move(output));
}

ValueIndex PlanBuilder::Reduced(ValueIndex input) {
  const Axes unreduced = LayoutOf(input).unreduced;
  return unreduced.empty() ? input : AllReduce(input, unreduced, Reduction::kSum);
}

ValueIndex PlanBuilder::LaidOut(ValueIndex input, const ValueLayout& target) {
  ValueIndex current = Reduced(input);
  for (size_t dim = 0; dim < target.dims.size(); ++dim) {
    const Axes have = LayoutOf(current).dims[dim];
    const Axes& want = target.dims[dim];
    const auto differs = std::mismatch(have.begin(), have.end(), want.begin(), want.end()).first;
    if (differs != have.end()) {
      current = AllGather(current, Axes(differs, have.end()), static_cast<int64_t>(dim));
    }
  }
  if (LayoutOf(current) == target) {
    return current;
  }
  ValueDescriptor output = value(current);
  output.spec = ToSpec(target);
  return Emit(LocalSlice{.input = current}, output, StrCat("slice to ", output.spec.ToString()));
}

ValueIndex PlanBuilder::Copy(ValueIndex input) {
  return Emit(LocalSlice{.input = input}, value(input), "copy");
}

absl::Status PlanBuilder::CheckProduct(const Product& product) const {
  const ValueDescriptor& lhs = value(product.lhs);
  const ValueDescriptor& rhs = value(product.rhs);
  if (lhs.shape.empty()) {
    return Error(Reason::kShapeMismatch,
                 "the left operand is a scalar; it needs a dimension to contract");
  }
  if (product.transpose_lhs && lhs.shape.size() != 2) {
    return Error(Reason::kShapeMismatch,
                 StrCat("the left operand has shape ", ShapeToString(lhs.shape),
                        "; only a matrix can be transposed"),
                 {{fact::kHave, ShapeToString(lhs.shape)}});
  }
  if (rhs.shape.size() != 2) {
    return Error(Reason::kShapeMismatch,
                 StrCat("the right operand (weight) has shape ", ShapeToString(rhs.shape),
                        "; it must be a matrix"),
                 {{fact::kHave, ShapeToString(rhs.shape)}});
  }
  const int64_t lhs_contracted = product.transpose_lhs ? lhs.shape[0] : lhs.shape.back();
  const int64_t rhs_contracted = rhs.shape[product.transpose_rhs ? 1 : 0];
  if (lhs_contracted != rhs_contracted) {
    std::string advice;
    if (product.rhs_is_weight && lhs_contracted == rhs.shape[product.transpose_rhs ? 0 : 1]) {
      advice = product.transpose_rhs
                   ? "; the weight is read as (out, in): WEIGHT_LAYOUT_IN_OUT (`--layout in-out`) "
                     "reads it as (in, out), which fits"
                   : "; the weight is read as (in, out): WEIGHT_LAYOUT_OUT_IN (`--layout out-in`) "
                     "reads it as (out, in), which fits";
    }
    return Error(
        Reason::kShapeMismatch,
        StrCat("shapes ", ShapeToString(lhs.shape), product.transpose_lhs ? " (transposed)" : "",
               " and ", ShapeToString(rhs.shape), product.transpose_rhs ? " (transposed)" : "",
               " do not multiply: ", lhs_contracted, " is contracted with ", rhs_contracted,
               advice));
  }
  const bool supported = lhs.dtype == Dtype::kF32 || lhs.dtype == Dtype::kBF16;
  if (!supported || lhs.dtype != rhs.dtype) {
    return Error(Reason::kUnsupportedDtype,
                 StrCat("cannot multiply ", DtypeName(lhs.dtype), " by ", DtypeName(rhs.dtype),
                        "; both must be F32 or both BF16"),
                 {{fact::kDtype, DtypeName(supported ? rhs.dtype : lhs.dtype)}});
  }
  if (product.bias.has_value()) {
    const ValueDescriptor& bias = value(*product.bias);
    const int64_t columns = rhs.shape[product.transpose_rhs ? 0 : 1];
    if (bias.shape != Shape{columns}) {
      return Error(
          Reason::kShapeMismatch,
          StrCat("the bias has shape ", ShapeToString(bias.shape), "; it must be (", columns, ",)"),
          {{fact::kHave, ShapeToString(bias.shape)}, {fact::kNeed, ShapeToString(Shape{columns})}});
    }
    if (bias.dtype != lhs.dtype) {
      return Error(Reason::kUnsupportedDtype,
                   StrCat("the bias is ", DtypeName(bias.dtype), "; it must be ",
                          DtypeName(lhs.dtype), " as the operands are"),
                   {{fact::kDtype, DtypeName(bias.dtype)}});
    }
  }
  return absl::OkStatus();
}

ValueIndex PlanBuilder::AddProduct(const Product& product, bool keep_rhs) {
  const ValueIndex lhs_value = Reduced(product.lhs);
  const ValueIndex rhs_value = Reduced(product.rhs);
  ValueLayout lhs = LayoutOf(lhs_value);
  ValueLayout rhs = LayoutOf(rhs_value);
  const size_t lhs_k = product.transpose_lhs ? 0 : lhs.dims.size() - 1;
  const size_t rhs_k = product.transpose_rhs ? 1 : 0;
  const size_t rhs_n = 1 - rhs_k;

  // One operand rests, the other operand moves. Along the contracted dimension, the moving operand
  // gets the resting operand's axes. In its other dimensions, the moving operand keeps those of its
  // axes that the resting operand does not use.
  ValueLayout& moving = keep_rhs ? lhs : rhs;
  const ValueLayout& resting = keep_rhs ? rhs : lhs;
  moving.dims[keep_rhs ? lhs_k : rhs_k] = resting.dims[keep_rhs ? rhs_k : lhs_k];
  for (size_t dim = 0; dim < moving.dims.size(); ++dim) {
    if (dim == (keep_rhs ? lhs_k : rhs_k)) {
      continue;
    }
    Axes& axes = moving.dims[dim];
    axes.erase(std::find_if(axes.begin(), axes.end(),
                            [&](const std::string& axis) {
                              return std::any_of(
                                  resting.dims.begin(), resting.dims.end(),
                                  [&](const Axes& used) { return Contains(used, axis); });
                            }),
               axes.end());
  }
  const ValueIndex lhs_ready = LaidOut(lhs_value, lhs);
  const ValueIndex rhs_ready = LaidOut(rhs_value, rhs);

  ValueLayout result;
  ValueDescriptor output;
  for (size_t dim = 0; dim < lhs.dims.size(); ++dim) {
    if (dim != lhs_k) {
      result.dims.push_back(lhs.dims[dim]);
      output.shape.push_back(value(lhs_ready).shape[dim]);
    }
  }
  result.dims.push_back(rhs.dims[rhs_n]);
  output.shape.push_back(value(rhs_ready).shape[rhs_n]);
  const Axes partial_axes = lhs.dims[lhs_k];
  const bool partial = !partial_axes.empty();
  const Dtype dtype = value(lhs_ready).dtype;

  std::optional<ValueIndex> bias = product.bias;
  if (bias.has_value()) {
    bias = LaidOut(*bias, ValueLayout{.dims = {result.dims.back()}});
  }

  LocalMatmul matmul{.lhs = lhs_ready,
                     .rhs = rhs_ready,
                     .transpose_lhs = product.transpose_lhs,
                     .transpose_rhs = product.transpose_rhs,
                     .scale = product.scale};
  if (!partial) {
    matmul.bias = bias;
    matmul.activation = product.activation;
  }
  result.unreduced = partial_axes;
  output.dtype = partial ? PartialSumType(dtype) : dtype;
  output.spec = ToSpec(result);
  const int64_t contracted = value(lhs_ready).shape[lhs_k] / AxesSize(plan_.mesh, partial_axes);
  AddTo(plan_.cost.flops, ProductOf(2, ProductOf(contracted, TileElements(plan_.mesh, output))));
  ValueIndex sum = Emit(matmul, output, "multiply");
  if (!partial) {
    return sum;
  }
  sum = AllReduce(sum, partial_axes, Reduction::kSum);
  if (!bias.has_value() && product.activation == Activation::kNone && output.dtype == dtype) {
    return sum;
  }
  ValueDescriptor finished = value(sum);
  finished.dtype = dtype;
  return Emit(LocalEpilogue{.input = sum, .bias = bias, .activation = product.activation},
              std::move(finished), "bias and activation");
}

absl::StatusOr<ValueIndex> PlanBuilder::AddProduct(const Product& product) {
  SHARDMESH_RETURN_IF_ERROR(CheckProduct(product));
  SHARDMESH_RETURN_IF_ERROR(CheckEqualTiles(product.lhs));
  SHARDMESH_RETURN_IF_ERROR(CheckEqualTiles(product.rhs));
  if (product.bias.has_value()) {
    SHARDMESH_RETURN_IF_ERROR(CheckEqualTiles(*product.bias));
  }
  PlanBuilder keep_lhs = *this;
  const ValueIndex with_lhs_kept = keep_lhs.AddProduct(product, /*keep_rhs=*/false);
  const ValueIndex with_rhs_kept = AddProduct(product, /*keep_rhs=*/true);
  if (keep_lhs.cost().sent_bytes < cost().sent_bytes) {
    *this = std::move(keep_lhs);
    return with_lhs_kept;
  }
  return with_rhs_kept;
}

absl::StatusOr<ValueIndex> PlanBuilder::AddCollective(const CollectiveOp& op, ValueIndex input) {
  const ValueDescriptor operand = value(input);
  absl::StatusOr<Axes> axes = ExchangeAxes(op, plan_.mesh);
  if (!axes.ok()) {
    return Error(axes.status());
  }
  if (const absl::Status fits = CheckCollective(op, *axes, operand, plan_.mesh); !fits.ok()) {
    return Error(fits);
  }
  if (axes->empty()) {  // every group is one device
    if (!op.counts.empty()) {
      const auto dim = static_cast<size_t>(SplitDimension(op));
      if (const auto points = SplitPoints(op, 1, operand, dim, plan_.mesh); !points.ok()) {
        return Error(points.status());
      }
    }
    return Copy(input);
  }
  absl::StatusOr<ValueDescriptor> output = ResultOf(op, *axes, operand, plan_.mesh);
  if (!output.ok()) {
    return Error(output.status());
  }
  CollectiveOp planned = op;
  planned.input = input;
  planned.axes = *std::move(axes);
  return EmitCollective(std::move(planned), *std::move(output));
}

absl::StatusOr<ValueIndex> PlanBuilder::AddReshard(const PartitionSpec& spec, ValueIndex input) {
  SHARDMESH_RETURN_IF_ERROR(CheckEqualTiles(input));
  ValueDescriptor wanted = value(input);
  wanted.spec = spec;
  if (!spec.unreduced().empty()) {
    return Error(Reason::kInvalidSpec,
                 StrCat("cannot lay out as ", spec.ToString(), ": partial sums cannot be made"),
                 {{fact::kAxis, StrJoin(spec.unreduced(), ",")}, {fact::kValue, spec.ToString()}});
  }
  if (const auto tiling = Tiling::Create(plan_.mesh, spec, wanted.shape); !tiling.ok()) {
    return Error(tiling.status());
  }
  if (!LayoutOf(input).unreduced.empty() && !HasArithmetic(wanted.dtype)) {
    return Error(Reason::kUnsupportedDtype,
                 StrCat(DtypeName(wanted.dtype), " has no arithmetic; its parts along ",
                        StrJoin(LayoutOf(input).unreduced, ","),
                        " cannot be summed, broadcast them from their root"));
  }
  const ValueIndex result = LaidOut(input, shardmesh::LayoutOf(plan_.mesh, wanted));
  return result == input ? Copy(input) : result;
}

}  // namespace shardmesh
