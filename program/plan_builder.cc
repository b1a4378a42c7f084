// Brings operands together, multiplies them, and derives the results of collectives.
#include "program/plan_builder.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "program/collective_check.h"
#include "program/memory_plan.h"
#include "program/move_plan.h"
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

// Returns the points of the parts that are left if each `parts` neighbouring parts become one.
CutPoints JoinedPoints(const CutPoints& points, int64_t parts) {
  CutPoints joined;
  for (size_t i = 0; i < points.size(); i += static_cast<size_t>(parts)) {
    joined.push_back(points[i]);
  }
  return joined;
}

// Returns the points of equal parts; not of equal parts if `parts` does not divide the extent.
CutPoints EqualPoints(int64_t extent, size_t parts) {
  CutPoints points;
  for (size_t part = 0; part <= parts; ++part) {
    points.push_back(extent / static_cast<int64_t>(parts) * static_cast<int64_t>(part));
  }
  return points;
}

// An operand or a result of a product, whose layout is under construction. `value.spec` follows
// from `layout` at the end.
struct Operand {
  ValueDescriptor value = {};
  ValueLayout layout = {};

  // Gives dimension `dim` the axes and the cut points of a dimension of another value.
  void SetParts(size_t dim, const Operand& from, size_t from_dim) {
    layout.dims[dim] = from.layout.dims[from_dim];
    SetCutPoints(dim, IsCut(from.value, from_dim) ? from.value.cut_points[from_dim] : CutPoints(),
                 &value);
  }
  // Appends a dimension with the extent, axes and cut points of a dimension of another value.
  void AddDimension(const Operand& from, size_t from_dim) {
    value.shape.push_back(from.value.shape[from_dim]);
    layout.dims.emplace_back();
    SetParts(layout.dims.size() - 1, from, from_dim);
  }
};

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
      SetCutPoints(dim, JoinedPoints(value.cut_points[dim], AxesSize(mesh, axes)), &value);
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

Plan PlanBuilder::Finish(std::vector<ValueIndex> outputs) && {
  plan_.outputs = std::move(outputs);
  plan_.cost.memory_bytes = PeakBytesOf(plan_);
  return std::move(plan_);
}

absl::Status PlanBuilder::Error(Reason reason, std::string_view message, Facts facts) const {
  absl::Status status = InvalidArgument(reason, StrCat(op_, ": ", message), facts);
  return MayHave(reason, fact::kOp) ? WithFacts(std::move(status), {{fact::kOp, op_}}) : status;
}

absl::Status PlanBuilder::Error(const absl::Status& refusal) const {
  return WithFactsOf(Error(ReasonOf(refusal), ToStd(refusal.message())), refusal);
}

template <typename Kind>
ValueIndex PlanBuilder::Emit(Kind kind, ValueDescriptor output, std::string_view what) {
  const auto index = static_cast<ValueIndex>(plan_.values.size());
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

ValueIndex PlanBuilder::Reduced(ValueIndex input) {
  const Axes unreduced = LayoutOf(input).unreduced;
  return unreduced.empty() ? input : AllReduce(input, unreduced, Reduction::kSum);
}

bool PlanBuilder::LiesAs(ValueIndex input, const ValueDescriptor& wanted) const {
  return LayoutOf(input) == shardmesh::LayoutOf(plan_.mesh, wanted) &&
         value(input).cut_points == wanted.cut_points;
}

std::optional<ValueIndex> PlanBuilder::ReduceScatter(ValueIndex input, const Axes& axes, size_t dim,
                                                     const CutPoints& points) {
  const ValueDescriptor& operand = value(input);
  CollectiveOp op = {.input = input,
                     .kind = CollectiveKind::kReduceScatter,
                     .axes = axes,
                     .dimension = static_cast<int64_t>(dim)};
  const auto ranks = static_cast<size_t>(AxesSize(plan_.mesh, axes));
  const bool is_cut = !points.empty() && operand.shape[dim] > 0 &&
                      points != EqualPoints(operand.shape[dim], points.size() - 1);
  for (size_t i = 0; is_cut && i < ranks; ++i) {
    op.counts.push_back(points[i + 1] - points[i]);
  }
  if (!CheckCollective(op, axes, operand, plan_.mesh).ok()) return std::nullopt;
  absl::StatusOr<ValueDescriptor> result = ResultOf(op, axes, operand, plan_.mesh);
  if (!result.ok() || (!points.empty() && PointsOf(plan_.mesh, *result, dim) != points)) {
    return std::nullopt;
  }
  return EmitCollective(std::move(op), *std::move(result));
}

absl::StatusOr<ValueIndex> PlanBuilder::SummedFor(ValueIndex input, const ValueDescriptor& wanted) {
  const ValueLayout target = shardmesh::LayoutOf(plan_.mesh, wanted);
  ValueIndex current = input;
  // Appends axes of `wanted` to those of each dimension, for as long as `may_add` accepts them.
  // `add` gets the dimension, the axes to add, and the points of its parts with these axes.
  const auto for_each_dim = [&](const auto& may_add, const auto& add) {
    for (size_t dim = 0; dim < target.dims.size(); ++dim) {
      const Axes have = LayoutOf(current).dims[dim];
      const Axes& want = target.dims[dim];
      const auto differs = std::mismatch(have.begin(), have.end(), want.begin(), want.end());
      if (differs.first != have.end()) continue;
      const auto end = std::find_if_not(differs.second, want.end(), may_add);
      if (end == differs.second) continue;
      add(dim, Axes(differs.second, end),
          JoinedPoints(PointsOf(plan_.mesh, wanted, dim),
                       AxesSize(plan_.mesh, Axes(end, want.end()))));
    }
  };
  // 1. Cut off what other devices need: no data moves, and less is to be added.
  ValueLayout sliced = LayoutOf(input);
  ValueDescriptor slice = value(input);
  for_each_dim(
      [&](const std::string& axis) {
        return !Contains(sliced.unreduced, axis) &&
               std::none_of(sliced.dims.begin(), sliced.dims.end(),
                            [&](const Axes& axes) { return Contains(axes, axis); });
      },
      [&](size_t dim, const Axes& axes, const CutPoints& points) {
        sliced.dims[dim].insert(sliced.dims[dim].end(), axes.begin(), axes.end());
        SetCutPoints(dim, points, &slice);
      });
  slice.spec = ToSpec(sliced);
  if (!LiesAs(current, slice)) {
    SHARDMESH_ASSIGN_OR_RETURN(const ReshardPlan move, MovePlan(plan_.mesh, value(current), slice));
    if (MovesNothing(move)) {
      const std::string what = StrCat("slice to ", slice.spec.ToString());
      current = Emit(LocalSlice{.input = current}, std::move(slice), what);
    }
  }
  // 2. Scatter the sums along dimensions that get the axes anyway. If an axis cannot come to its
  // place in `wanted` at once, it comes to the dimension now, and to its place later.
  for_each_dim([&](const std::string& axis) { return Contains(LayoutOf(current).unreduced, axis); },
               [&](size_t dim, const Axes& axes, const CutPoints& points) {
                 current = ReduceScatter(current, axes, dim, points).value_or(current);
               });
  for (size_t dim = 0; dim < target.dims.size(); ++dim) {
    for (const std::string& axis : target.dims[dim]) {
      if (!Contains(LayoutOf(current).unreduced, axis)) continue;
      current = ReduceScatter(current, {axis}, dim, {}).value_or(current);
    }
  }
  return Reduced(current);
}

std::optional<ValueIndex> PlanBuilder::AllGather(ValueIndex input, const ValueDescriptor& wanted) {
  const ValueLayout have = LayoutOf(input);
  const ValueLayout want = shardmesh::LayoutOf(plan_.mesh, wanted);
  const auto dim = static_cast<size_t>(
      std::mismatch(have.dims.begin(), have.dims.end(), want.dims.begin()).first -
      have.dims.begin());
  if (dim == have.dims.size() || have.dims[dim].size() <= want.dims[dim].size()) {
    return std::nullopt;
  }
  const auto kept = static_cast<std::ptrdiff_t>(want.dims[dim].size());
  CollectiveOp op = {.input = input,
                     .kind = CollectiveKind::kAllGather,
                     .axes = Axes(have.dims[dim].begin() + kept, have.dims[dim].end()),
                     .dimension = static_cast<int64_t>(dim)};
  if (!CheckCollective(op, op.axes, value(input), plan_.mesh).ok()) return std::nullopt;
  absl::StatusOr<ValueDescriptor> result = ResultOf(op, op.axes, value(input), plan_.mesh);
  if (!result.ok() || shardmesh::LayoutOf(plan_.mesh, *result) != want ||
      result->cut_points != wanted.cut_points) {
    return std::nullopt;
  }
  op.algorithm = ChooseAlgorithm(op.kind, LoadOf(plan_.mesh, value(input), op.axes), op.order,
                                 links_, preferred_);
  // Doubling needs memory for the data of all ranks beside the result. A reshard has less.
  if (op.algorithm == CollectiveAlgorithm::kDoubling && !preferred_.contains(op.kind) &&
      TileBytes(plan_.mesh, *result) > MoveWindowBytes(plan_.mesh.size())) {
    op.algorithm = CollectiveAlgorithm::kRing;
  }
  return EmitCollective(std::move(op), *std::move(result));
}

absl::StatusOr<ValueIndex> PlanBuilder::LaidOut(ValueIndex input, const ValueDescriptor& wanted) {
  ValueIndex current = input;
  if (!LayoutOf(input).unreduced.empty()) {
    SHARDMESH_ASSIGN_OR_RETURN(current, SummedFor(input, wanted));
  }
  if (LiesAs(current, wanted)) return current;
  SHARDMESH_ASSIGN_OR_RETURN(const ReshardPlan move, MovePlan(plan_.mesh, value(current), wanted));
  ValueDescriptor output = wanted;
  output.spec = ToSpec(shardmesh::LayoutOf(plan_.mesh, wanted));
  const std::string to = output.spec.ToString();
  if (MovesNothing(move)) {
    return Emit(LocalSlice{.input = current}, std::move(output), StrCat("slice to ", to));
  }
  if (const auto gathered = AllGather(current, wanted); gathered.has_value()) {
    return *gathered;
  }
  const CollectiveCost cost = CostOfMove(move, output.dtype);
  AddTo(plan_.cost.sent_bytes, cost.sent_bytes);
  return Emit(MoveRegions{.input = current}, std::move(output),
              StrCat("move regions (", ReshardPatternName(move.pattern()), ") to ", to));
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

absl::StatusOr<ValueIndex> PlanBuilder::AddProduct(const Product& product, bool keep_rhs) {
  const ValueIndex lhs_value = Reduced(product.lhs);
  const ValueIndex rhs_value = Reduced(product.rhs);
  Operand lhs = {.value = value(lhs_value), .layout = LayoutOf(lhs_value)};
  Operand rhs = {.value = value(rhs_value), .layout = LayoutOf(rhs_value)};
  const size_t lhs_k = product.transpose_lhs ? 0 : lhs.layout.dims.size() - 1;
  const size_t rhs_k = product.transpose_rhs ? 1 : 0;
  const size_t rhs_n = 1 - rhs_k;

  // One operand rests, the other operand moves. Along the contracted dimension, the moving operand
  // gets the resting operand's parts. In its other dimensions, the moving operand keeps those of
  // its axes that the resting operand does not use.
  Operand& moving = keep_rhs ? lhs : rhs;
  const Operand& resting = keep_rhs ? rhs : lhs;
  const size_t moving_k = keep_rhs ? lhs_k : rhs_k;
  moving.SetParts(moving_k, resting, keep_rhs ? rhs_k : lhs_k);
  for (size_t dim = 0; dim < moving.layout.dims.size(); ++dim) {
    if (dim == moving_k) continue;
    Axes& axes = moving.layout.dims[dim];
    const auto used = std::find_if(axes.begin(), axes.end(), [&](const std::string& axis) {
      return std::any_of(resting.layout.dims.begin(), resting.layout.dims.end(),
                         [&](const Axes& others) { return Contains(others, axis); });
    });
    if (IsCut(moving.value, dim)) {
      SetCutPoints(
          dim,
          JoinedPoints(moving.value.cut_points[dim], AxesSize(plan_.mesh, Axes(used, axes.end()))),
          &moving.value);
    }
    axes.erase(used, axes.end());
  }
  moving.value.spec = ToSpec(moving.layout);
  SHARDMESH_ASSIGN_OR_RETURN(const ValueIndex lhs_ready, LaidOut(lhs_value, lhs.value));
  SHARDMESH_ASSIGN_OR_RETURN(const ValueIndex rhs_ready, LaidOut(rhs_value, rhs.value));

  Operand result;
  for (size_t dim = 0; dim < lhs.layout.dims.size(); ++dim) {
    if (dim != lhs_k) result.AddDimension(lhs, dim);
  }
  result.AddDimension(rhs, rhs_n);
  const Axes partial_axes = lhs.layout.dims[lhs_k];
  const bool partial = !partial_axes.empty();
  const Dtype dtype = lhs.value.dtype;

  std::optional<ValueIndex> bias = product.bias;
  if (bias.has_value()) {
    Operand wanted;
    wanted.AddDimension(rhs, rhs_n);
    wanted.value.dtype = value(*bias).dtype;
    wanted.value.spec = ToSpec(wanted.layout);
    SHARDMESH_ASSIGN_OR_RETURN(bias, LaidOut(*bias, wanted.value));
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
  result.layout.unreduced = partial_axes;
  ValueDescriptor output = std::move(result.value);
  output.dtype = partial ? PartialSumType(dtype) : dtype;
  output.spec = ToSpec(result.layout);
  const int64_t contracted = TileShape(plan_.mesh, value(lhs_ready))[lhs_k];
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
  const PlanBuilder before = *this;
  PlanBuilder keep_lhs = *this;
  const auto with_lhs_kept = keep_lhs.AddProduct(product, /*keep_rhs=*/false);
  const auto with_rhs_kept = AddProduct(product, /*keep_rhs=*/true);
  for (const auto* result : {&with_lhs_kept, &with_rhs_kept}) {
    if (result->ok()) continue;
    *this = before;
    return Error(result->status());
  }
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

absl::StatusOr<ValueIndex> PlanBuilder::AddReshard(const ReshardOp& op, ValueIndex input) {
  const PartitionSpec& spec = op.spec;
  ValueDescriptor wanted = value(input);
  if (!spec.unreduced().empty()) {
    return Error(Reason::kInvalidSpec,
                 StrCat("cannot lay out as ", spec.ToString(), ": partial sums cannot be made"),
                 {{fact::kAxis, StrJoin(spec.unreduced(), ",")}, {fact::kValue, spec.ToString()}});
  }
  const size_t rank = wanted.shape.size();
  if (op.part_starts.size() > rank) {
    return Error(Reason::kInvalidCutPoints,
                 StrCat("cut points of dimension ", op.part_starts.size() - 1, "; the value has ",
                        rank, " dimensions"),
                 {{fact::kDimension, op.part_starts.size() - 1},
                  {fact::kValue, StrJoin(op.part_starts.back(), ",")}});
  }
  std::vector<CutPoints> cut_points(op.part_starts.empty() ? 0 : rank);
  for (size_t dim = 0; dim < op.part_starts.size(); ++dim) {
    if (op.part_starts[dim].empty()) continue;
    cut_points[dim].push_back(0);
    cut_points[dim].insert(cut_points[dim].end(), op.part_starts[dim].begin(),
                           op.part_starts[dim].end());
    cut_points[dim].push_back(wanted.shape[dim]);
  }
  if (const auto tiling = Tiling::Create(plan_.mesh, spec, wanted.shape, cut_points);
      !tiling.ok()) {
    return Error(tiling.status());
  }
  if (!LayoutOf(input).unreduced.empty() && !HasArithmetic(wanted.dtype)) {
    return Error(Reason::kUnsupportedDtype,
                 StrCat(DtypeName(wanted.dtype), " has no arithmetic; its parts along ",
                        StrJoin(LayoutOf(input).unreduced, ","),
                        " cannot be summed, broadcast them from their root"));
  }
  wanted.spec = spec;
  wanted.cut_points = WithoutEqualParts(std::move(cut_points));
  const PlanBuilder before = *this;
  const absl::StatusOr<ValueIndex> result = LaidOut(input, wanted);
  if (!result.ok()) {
    *this = before;
    return Error(result.status());
  }
  return *result == input ? Copy(input) : *result;
}

}  // namespace shardmesh
