// Brings operands together, multiplies them, and derives the results of collectives.
#include "program/plan_builder.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>

#include "absl/hash/hash.h"
#include "program/collective_check.h"
#include "program/fuse/fuse_elementwise.h"
#include "program/fuse/fuse_exchanges.h"
#include "program/kernel_time.h"
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

size_t HashOfValue(const ValueDescriptor& value) {
  return absl::HashOf(value.dtype, value.shape, value.spec.ToString(), value.cut_points);
}

// Returns the points of equal parts; not of equal parts if `parts` does not divide the extent.
CutPoints EqualPoints(int64_t extent, size_t parts) {
  CutPoints points;
  for (size_t part = 0; part <= parts; ++part) {
    points.push_back(extent / static_cast<int64_t>(parts) * static_cast<int64_t>(part));
  }
  return points;
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

// Returns which operand of a product whose shapes do not multiply is to be transposed, or not to
// be, so that they do. Empty if neither helps.
std::string TransposeAdvice(const Shape& lhs, bool transpose_lhs, const Shape& rhs,
                            bool transpose_rhs) {
  if (lhs.size() < 2 || rhs.size() < 2) return "";
  const auto advice = [](bool is_transposed, std::string_view side, std::string_view flag) {
    return is_transposed
               ? StrCat("; they do without `", flag, "`")
               : StrCat("; they do with the ", side, " operand transposed (`", flag, "`)");
  };
  if (ProductDimsOf(lhs, transpose_lhs, rhs, !transpose_rhs).ok()) {
    return advice(transpose_rhs, "right", "--transpose-b");
  }
  if (ProductDimsOf(lhs, !transpose_lhs, rhs, transpose_rhs).ok()) {
    return advice(transpose_lhs, "left", "--transpose-a");
  }
  return "";
}

}  // namespace

PlanBuilder::PlanBuilder(const PlanTarget& target, absl::Span<const ValueDescriptor> operands)
    : links_(target.links), kernels_(target.kernels), preferred_(target.preferred) {
  plan_.mesh_id = target.mesh_id;
  plan_.mesh_revision = target.mesh_revision;
  plan_.mesh = target.mesh;
  plan_.operand_count = static_cast<uint32_t>(operands.size());
  plan_.values.assign(operands.begin(), operands.end());
  for (ValueDescriptor& operand : plan_.values) {
    operand.cut_points = WithoutEqualParts(std::move(operand.cut_points));
  }
}

Plan PlanBuilder::Finish(std::vector<ValueIndex> outputs, std::vector<StateUpdate> updates) && {
  plan_.outputs = std::move(outputs);
  plan_.updates = std::move(updates);
  if (kernels_.may_overlap) plan_ = FuseExchanges(std::move(plan_), links_, kernels_);
  if (kernels_.may_fuse_ops) plan_ = FuseElementwise(std::move(plan_));
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

PlanBuilder::Mark PlanBuilder::Here() const {
  return {.values = plan_.values.size(),
          .instructions = plan_.instructions.size(),
          .cost = plan_.cost,
          .seconds = seconds_};
}

ProductPlan PlanBuilder::CutOff(const Mark& mark) {
  const auto values = plan_.values.begin() + static_cast<std::ptrdiff_t>(mark.values);
  const auto instructions =
      plan_.instructions.begin() + static_cast<std::ptrdiff_t>(mark.instructions);
  ProductPlan cut;
  cut.values.assign(std::make_move_iterator(values), std::make_move_iterator(plan_.values.end()));
  cut.instructions.assign(std::make_move_iterator(instructions),
                          std::make_move_iterator(plan_.instructions.end()));
  cut.cost = plan_.cost;
  cut.seconds = seconds_ - mark.seconds;
  plan_.values.erase(values, plan_.values.end());
  plan_.instructions.erase(instructions, plan_.instructions.end());
  plan_.cost = mark.cost;
  seconds_ = mark.seconds;
  return cut;
}

ValueIndex PlanBuilder::Append(ProductPlan product) {
  std::move(product.values.begin(), product.values.end(), std::back_inserter(plan_.values));
  std::move(product.instructions.begin(), product.instructions.end(),
            std::back_inserter(plan_.instructions));
  plan_.cost = product.cost;
  seconds_ += product.seconds;
  return product.result;
}

template <typename Kind>
ValueIndex PlanBuilder::Emit(Kind kind, ValueDescriptor output, std::string_view what,
                             double exchange_seconds) {
  const auto index = static_cast<ValueIndex>(plan_.values.size());
  plan_.values.push_back(std::move(output));
  plan_.instructions.push_back(
      Instruction{.output = index, .kind = std::move(kind), .label = StrCat(op_, ": ", what)});
  seconds_ += exchange_seconds + KernelSeconds(plan_, plan_.instructions.back(), kernels_);
  return index;
}

ValueIndex PlanBuilder::EmitCompute(TensorOp op, ValueDescriptor output) {
  const ValueIndex result = Emit(LocalCompute{.op = std::move(op)}, std::move(output), "compute");
  const auto& compute = std::get<LocalCompute>(plan_.instructions.back().kind);
  AddTo(plan_.cost.flops, FlopsOf(plan_, compute, result));
  return result;
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
  return Emit(std::move(op), std::move(output), what, PredictedSeconds(cost, links_));
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

CollectiveCost PlanBuilder::MoveCost(const ReshardPlan& move, ValueIndex from,
                                     const ValueDescriptor& to) {
  std::vector<KnownMove>& known = moves_[absl::HashOf(HashOfValue(value(from)), HashOfValue(to))];
  const auto found = std::find_if(known.begin(), known.end(), [&](const KnownMove& each) {
    return each.from == value(from) && each.to == to;
  });
  if (found != known.end()) return found->cost;
  const CollectiveCost cost = CostOfMove(move, to.dtype);
  known.push_back({.from = value(from), .to = to, .cost = cost});
  return cost;
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
  const CollectiveCost cost = MoveCost(move, current, output);
  AddTo(plan_.cost.sent_bytes, cost.sent_bytes);
  return Emit(MoveRegions{.input = current}, std::move(output),
              StrCat("move regions (", ReshardPatternName(move.pattern()), ") to ", to),
              PredictedSeconds(cost, links_));
}

ValueIndex PlanBuilder::Copy(ValueIndex input) {
  return Emit(LocalSlice{.input = input}, value(input), "copy");
}

absl::StatusOr<ProductDims> PlanBuilder::CheckProduct(const Product& product) const {
  const ValueDescriptor& lhs = value(product.lhs);
  const ValueDescriptor& rhs = value(product.rhs);
  if (product.rhs_is_weight && rhs.shape.size() != 2) {
    return Error(Reason::kShapeMismatch,
                 StrCat("the right operand (weight) has shape ", ShapeToString(rhs.shape),
                        "; it must be a matrix"),
                 {{fact::kHave, ShapeToString(rhs.shape)}});
  }
  if (!product.rhs_is_weight && lhs.shape.size() == 1) {
    return Error(Reason::kShapeMismatch,
                 StrCat("the left operand has shape ", ShapeToString(lhs.shape),
                        "; it must be a matrix, or a batch of matrices"),
                 {{fact::kHave, ShapeToString(lhs.shape)}});
  }
  absl::StatusOr<ProductDims> dims =
      ProductDimsOf(lhs.shape, product.transpose_lhs, rhs.shape, product.transpose_rhs);
  if (!dims.ok()) {
    const bool fits_otherwise = product.rhs_is_weight && !lhs.shape.empty() &&
                                lhs.shape.back() == rhs.shape[product.transpose_rhs ? 0 : 1];
    if (!fits_otherwise) {
      const std::string advice =
          product.rhs_is_weight
              ? std::string()
              : TransposeAdvice(lhs.shape, product.transpose_lhs, rhs.shape, product.transpose_rhs);
      return WithFactsOf(
          Error(ReasonOf(dims.status()), StrCat(ToStd(dims.status().message()), advice)),
          dims.status());
    }
    const std::string_view advice =
        product.transpose_rhs
            ? "; the weight is read as (out, in): WEIGHT_LAYOUT_IN_OUT (`--layout in-out`) "
              "reads it as (in, out), which fits"
            : "; the weight is read as (in, out): WEIGHT_LAYOUT_OUT_IN (`--layout out-in`) "
              "reads it as (out, in), which fits";
    return Error(Reason::kShapeMismatch, StrCat(ToStd(dims.status().message()), advice));
  }
  // Operands without elements can have a product of more elements than fit.
  if (const absl::Status fits = CheckShape(OutputShapeOf(*dims)); !fits.ok()) return Error(fits);
  const absl::Status types =
      CheckProductTypes(lhs.dtype, rhs.dtype, product.scales.has_value(), product.rhs_is_weight);
  if (!types.ok()) return Error(types);
  if (product.scales.has_value()) {
    const ValueDescriptor& scales = value(*product.scales);
    const absl::Status fits =
        CheckScales({.dtype = scales.dtype, .shape = scales.shape}, OutputShapeOf(*dims).back());
    if (!fits.ok()) return Error(fits);
  }
  if (product.bias.has_value()) {
    const ValueDescriptor& bias = value(*product.bias);
    const int64_t columns = OutputShapeOf(*dims).back();
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
  return dims;
}

absl::StatusOr<ValueIndex> PlanBuilder::Multiply(const Product& product, const ProductDims& dims,
                                                 const ProductLayout& layout,
                                                 const std::optional<ValueDescriptor>& wanted) {
  SHARDMESH_ASSIGN_OR_RETURN(
      const ValueIndex lhs,
      LaidOut(product.lhs, WithParts(value(product.lhs), dims, layout, ProductSide::kLhs)));
  SHARDMESH_ASSIGN_OR_RETURN(
      const ValueIndex rhs,
      LaidOut(product.rhs, WithParts(value(product.rhs), dims, layout, ProductSide::kRhs)));
  const Axes& partial_axes = layout.back().axes;
  const bool is_partial = !partial_axes.empty();
  const Dtype dtype = value(lhs).dtype;
  const ValueDescriptor result =
      WithParts({.dtype = dtype, .shape = OutputShapeOf(dims), .spec = PartitionSpec()}, dims,
                layout, ProductSide::kOut);

  LocalMatmul matmul{.lhs = lhs,
                     .rhs = rhs,
                     .transpose_lhs = product.transpose_lhs,
                     .transpose_rhs = product.transpose_rhs,
                     .scale = product.scale};
  SHARDMESH_ASSIGN_OR_RETURN(matmul.scales, ByColumns(product.scales, result));
  ValueDescriptor output = result;
  if (is_partial) {
    ValueLayout partial = shardmesh::LayoutOf(plan_.mesh, result);
    partial.unreduced = partial_axes;
    output.spec = ToSpec(partial);
    output.dtype = PartialSumType(dtype);
  } else {
    SHARDMESH_ASSIGN_OR_RETURN(matmul.bias, ByColumns(product.bias, result));
    matmul.activation = product.activation;
  }
  const Shape lhs_tile = TileShape(plan_.mesh, value(lhs));
  AddTo(plan_.cost.flops,
        ProductOf(2, ProductOf(lhs_tile[*dims.back().lhs], TileElements(plan_.mesh, output))));
  ValueIndex current = Emit(matmul, std::move(output), "multiply");
  if (is_partial) {
    SHARDMESH_ASSIGN_OR_RETURN(current, wanted.has_value()
                                            ? SummedFor(current, *wanted)
                                            : AllReduce(current, partial_axes, Reduction::kSum));
    ValueDescriptor finished = value(current);
    const bool is_rounded = finished.dtype != dtype;
    finished.dtype = dtype;
    SHARDMESH_ASSIGN_OR_RETURN(const std::optional<ValueIndex> bias,
                               ByColumns(product.bias, finished));
    if (bias.has_value() || product.activation != Activation::kNone || is_rounded) {
      current =
          Emit(LocalEpilogue{.input = current, .bias = bias, .activation = product.activation},
               std::move(finished), "bias and activation");
    }
  }
  return wanted.has_value() ? LaidOut(current, *wanted) : current;
}

absl::StatusOr<std::optional<ValueIndex>> PlanBuilder::ByColumns(std::optional<ValueIndex> vector,
                                                                 const ValueDescriptor& result) {
  if (!vector.has_value()) return std::nullopt;
  const size_t columns = result.shape.size() - 1;
  ValueDescriptor wanted = value(*vector);
  wanted.cut_points.clear();
  if (IsCut(result, columns)) SetCutPoints(0, result.cut_points[columns], &wanted);
  wanted.spec =
      ToSpec(ValueLayout{.dims = {shardmesh::LayoutOf(plan_.mesh, result).dims[columns]}});
  SHARDMESH_ASSIGN_OR_RETURN(const ValueIndex laid_out, LaidOut(*vector, wanted));
  return laid_out;
}

// Prices layouts of one product, and keeps the best plans.
class PlanBuilder::LayoutSearch {
 public:
  LayoutSearch(PlanBuilder* builder, const Product& product, const ProductDims& dims,
               const ProductResult& result, size_t most)
      : builder_(*builder), product_(product), dims_(dims), result_(result), most_(most) {
    const Mesh& mesh = builder_.plan_.mesh;
    const ValueDescriptor& lhs = builder_.value(product.lhs);
    const ValueDescriptor& rhs = builder_.value(product.rhs);
    sources_ = {PartsOf(mesh, dims, rhs, ProductSide::kRhs),
                PartsOf(mesh, dims, lhs, ProductSide::kLhs)};
    if (result.is_requested) {
      sources_.push_back(PartsOf(mesh, dims, result.value, ProductSide::kOut));
    }
    axes_ = RolesOf(mesh, dims, sources_, /*may_have_any=*/result.is_requested);
  }

  // Prices the layouts in which one of the operands keeps its layout and, if there are at most
  // `most` together, those in which a requested result does. Returns their number.
  size_t PriceKeptLayouts(size_t most) {
    const Mesh& mesh = builder_.plan_.mesh;
    Price(LayoutThatKeeps(mesh, dims_, sources_[0], ProductSide::kRhs, sources_[1]));
    Price(LayoutThatKeeps(mesh, dims_, sources_[1], ProductSide::kLhs, sources_[0]));
    if (!result_.is_requested || most < kMostKeptLayouts) return kMostKeptLayouts / 2;
    Price(LayoutThatKeeps(mesh, dims_, sources_[2], ProductSide::kOut, sources_[0]));
    Price(LayoutThatKeeps(mesh, dims_, sources_[2], ProductSide::kOut, sources_[1]));
    return kMostKeptLayouts;
  }

  // Prices layouts by the roles of the mesh axes: all of them if there are at most `most`.
  // Otherwise changes the role of one axis of the best layout at a time, for as long as the plan
  // becomes better. Returns the number of layouts that it has considered.
  size_t SearchRoles(size_t most) {
    size_t combinations = 1;
    for (const AxisRoles& axis : axes_) {
      combinations *= axis.roles.size();
      if (combinations > most) break;
    }
    if (combinations <= most) {
      PriceAllRoles();
    } else {
      Descend(most);
    }
    return considered_;
  }

  // Returns the best plans. If no layout has a plan, returns the first layout's error.
  absl::StatusOr<std::vector<ProductPlan>> Finish() && {
    if (found_.empty()) return failure_;
    return std::move(found_);
  }

 private:
  using Roles = std::vector<std::optional<size_t>>;
  static constexpr size_t kMostKeptLayouts = 4;

  // Returns the figures by which plans are compared. Differences below a nanosecond come from the
  // order of additions.
  static std::pair<double, int64_t> PriceOf(const ProductPlan& plan) {
    return {std::round(plan.seconds * 1e9), plan.cost.sent_bytes};
  }

  void Price(const ProductLayout& layout) {
    if (std::find(seen_.begin(), seen_.end(), layout) != seen_.end()) return;
    seen_.push_back(layout);
    const Mark before = builder_.Here();
    const absl::StatusOr<ValueIndex> result =
        builder_.Multiply(product_, dims_, layout, result_.value);
    if (builder_.kernels_.may_overlap && result.ok()) {
      builder_.seconds_ -= SecondsSavedByFusing(builder_.plan_, before.instructions,
                                                builder_.links_, builder_.kernels_);
    }
    ProductPlan plan = builder_.CutOff(before);
    if (!result.ok()) {
      failure_.Update(result.status());
      return;
    }
    plan.layout = layout;
    plan.result = *result;
    const auto place = std::upper_bound(
        found_.begin(), found_.end(), plan,
        [](const ProductPlan& a, const ProductPlan& b) { return PriceOf(a) < PriceOf(b); });
    found_.insert(place, std::move(plan));
    if (found_.size() > most_) found_.pop_back();
  }

  void PriceRoles(const Roles& roles) {
    ++considered_;
    const auto layout = LayoutOfRoles(builder_.plan_.mesh, dims_, axes_, roles, sources_);
    if (layout.has_value()) Price(*layout);
  }

  void PriceAllRoles() {
    std::vector<size_t> digits(axes_.size(), 0);
    for (bool is_done = false; !is_done;) {
      Roles roles;
      for (size_t i = 0; i < axes_.size(); ++i) roles.push_back(axes_[i].roles[digits[i]]);
      PriceRoles(roles);
      is_done = true;
      for (size_t i = 0; i < axes_.size() && is_done; ++i) {
        is_done = ++digits[i] == axes_[i].roles.size();
        if (is_done) digits[i] = 0;
      }
    }
  }

  Roles RolesIn(const ProductLayout& layout) const {
    Roles roles(axes_.size());
    for (size_t i = 0; i < axes_.size(); ++i) {
      for (size_t dim = 0; dim < layout.size(); ++dim) {
        if (Contains(layout[dim].axes, axes_[i].axis)) roles[i] = dim;
      }
    }
    return roles;
  }

  void Descend(size_t most) {
    ProductLayout best;
    while (!found_.empty() && best != found_.front().layout) {
      best = found_.front().layout;
      const Roles roles = RolesIn(best);
      for (size_t i = 0; i < axes_.size(); ++i) {
        for (const std::optional<size_t>& role : axes_[i].roles) {
          if (considered_ >= most) return;
          if (role == roles[i]) continue;
          Roles changed = roles;
          changed[i] = role;
          PriceRoles(changed);
        }
      }
    }
  }

  PlanBuilder& builder_;
  const Product& product_;
  const ProductDims& dims_;
  const ProductResult& result_;
  const size_t most_;                   // number of plans to keep
  std::vector<ProductLayout> sources_;  // the parts of rhs, of lhs, and of a requested result
  std::vector<AxisRoles> axes_;
  std::vector<ProductLayout> seen_;
  size_t considered_ = 0;
  std::vector<ProductPlan> found_;  // best first
  absl::Status failure_;
};

absl::StatusOr<PlanBuilder::ProductResult> PlanBuilder::ResultFor(
    const Product& product, const ProductDims& dims, const std::optional<ValueDescriptor>& wanted) {
  if (wanted.has_value()) return ProductResult{.value = *wanted, .is_requested = true};
  const ProductLayout rhs = PartsOf(plan_.mesh, dims, value(product.rhs), ProductSide::kRhs);
  const ProductLayout lhs = PartsOf(plan_.mesh, dims, value(product.lhs), ProductSide::kLhs);
  // The rates decide which algorithms run, and so how many bytes are sent.
  const LinkCost measured = std::exchange(links_, LinkCost());
  std::optional<ValueDescriptor> best;
  int64_t least_bytes = 0;
  absl::Status failure;
  for (const ProductLayout& layout :
       {LayoutThatKeeps(plan_.mesh, dims, rhs, ProductSide::kRhs, lhs),
        LayoutThatKeeps(plan_.mesh, dims, lhs, ProductSide::kLhs, rhs)}) {
    const Mark before = Here();
    const absl::StatusOr<ValueIndex> result = Multiply(product, dims, layout, std::nullopt);
    const int64_t sent_bytes = plan_.cost.sent_bytes;
    failure.Update(result.status());
    if (result.ok() && (!best.has_value() || sent_bytes < least_bytes)) {
      best = value(*result);
      least_bytes = sent_bytes;
    }
    CutOff(before);
  }
  links_ = measured;
  if (!best.has_value()) return failure;
  return ProductResult{.value = *std::move(best)};
}

absl::StatusOr<std::vector<ProductPlan>> PlanBuilder::Search(const Product& product,
                                                             const ProductDims& dims,
                                                             const ProductResult& result,
                                                             size_t most) {
  constexpr int64_t kDevicesAtFullSearch = 64;
  const auto devices = static_cast<size_t>(std::max(plan_.mesh.size(), kDevicesAtFullSearch));
  const size_t of_product = kMostProductLayouts * kDevicesAtFullSearch / devices;
  const size_t of_program = kMostLayouts * kDevicesAtFullSearch / devices;
  const auto left = [&] { return of_program - std::min(of_program, layouts_considered_); };
  LayoutSearch search(this, product, dims, result, most);
  layouts_considered_ += search.PriceKeptLayouts(left());
  layouts_considered_ += search.SearchRoles(std::min(of_product, left()));
  return std::move(search).Finish();
}

std::vector<ValueDescriptor> PlanBuilder::OperandsOf(const Product& product) const {
  std::vector<ValueDescriptor> operands = {value(product.lhs), value(product.rhs)};
  if (product.bias.has_value()) operands.push_back(value(*product.bias));
  if (product.scales.has_value()) operands.push_back(value(*product.scales));
  return operands;
}

std::vector<PlanBuilder::Choice>& PlanBuilder::ChoicesLike(
    const Product& product, const std::optional<ValueDescriptor>& wanted) {
  size_t hash = wanted.has_value() ? HashOfValue(*wanted) : 0;
  for (const ValueDescriptor& operand : OperandsOf(product)) {
    hash = absl::HashOf(hash, HashOfValue(operand));
  }
  return choices_[hash];
}

const PlanBuilder::Choice* PlanBuilder::FindChoice(const Product& product,
                                                   const std::optional<ValueDescriptor>& wanted) {
  const std::vector<ValueDescriptor> operands = OperandsOf(product);
  const std::vector<Choice>& choices = ChoicesLike(product, wanted);
  const auto found = std::find_if(choices.begin(), choices.end(), [&](const Choice& choice) {
    return choice.product.transpose_lhs == product.transpose_lhs &&
           choice.product.transpose_rhs == product.transpose_rhs &&
           choice.product.activation == product.activation && choice.operands == operands &&
           choice.wanted == wanted;
  });
  return found == choices.end() ? nullptr : &*found;
}

absl::StatusOr<std::optional<ValueDescriptor>> PlanBuilder::WantedOf(const Product& product,
                                                                     const ProductDims& dims) {
  if (!product.reshard.has_value()) return std::nullopt;
  const std::string op = std::exchange(op_, product.reshard_name);
  const absl::StatusOr<ValueDescriptor> wanted = Resharded(
      *product.reshard,
      {.dtype = value(product.lhs).dtype, .shape = OutputShapeOf(dims), .spec = PartitionSpec()});
  op_ = op;
  SHARDMESH_RETURN_IF_ERROR(wanted.status());
  return *wanted;
}

absl::StatusOr<std::vector<ProductPlan>> PlanBuilder::ProductPlansOf(const Product& product,
                                                                     size_t most) {
  SHARDMESH_ASSIGN_OR_RETURN(const ProductDims dims, CheckProduct(product));
  SHARDMESH_ASSIGN_OR_RETURN(const std::optional<ValueDescriptor> wanted, WantedOf(product, dims));
  const absl::StatusOr<ProductResult> result = ResultFor(product, dims, wanted);
  if (!result.ok()) return Error(result.status());
  absl::StatusOr<std::vector<ProductPlan>> plans = Search(product, dims, *result, most);
  if (!plans.ok()) return Error(plans.status());
  for (ProductPlan& plan : *plans) plan.roles = RolesText(plan_.mesh, dims, plan.layout);
  return plans;
}

absl::StatusOr<ValueIndex> PlanBuilder::AddProduct(const Product& product) {
  SHARDMESH_ASSIGN_OR_RETURN(const ProductDims dims, CheckProduct(product));
  SHARDMESH_ASSIGN_OR_RETURN(const std::optional<ValueDescriptor> wanted, WantedOf(product, dims));
  if (const Choice* const choice = FindChoice(product, wanted); choice != nullptr) {
    // The same layout was planned without error before.
    return Multiply(product, dims, choice->layout, choice->result);
  }
  const absl::StatusOr<ProductResult> result = ResultFor(product, dims, wanted);
  if (!result.ok()) return Error(result.status());
  absl::StatusOr<std::vector<ProductPlan>> plans = Search(product, dims, *result, 1);
  if (!plans.ok()) return Error(plans.status());
  ChoicesLike(product, wanted)
      .push_back({.product = product,
                  .operands = OperandsOf(product),
                  .wanted = wanted,
                  .layout = plans->front().layout,
                  .result = result->value});
  return Append(std::move(plans->front()));
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

absl::StatusOr<ValueDescriptor> PlanBuilder::Resharded(const ReshardOp& op,
                                                       ValueDescriptor tensor) const {
  const PartitionSpec& spec = op.spec;
  if (!spec.unreduced().empty()) {
    return Error(Reason::kInvalidSpec,
                 StrCat("cannot lay out as ", spec.ToString(), ": partial sums cannot be made"),
                 {{fact::kAxis, StrJoin(spec.unreduced(), ",")}, {fact::kValue, spec.ToString()}});
  }
  const size_t rank = tensor.shape.size();
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
    cut_points[dim].push_back(tensor.shape[dim]);
  }
  if (const auto tiling = Tiling::Create(plan_.mesh, spec, tensor.shape, cut_points);
      !tiling.ok()) {
    return Error(tiling.status());
  }
  tensor.spec = spec;
  tensor.cut_points = WithoutEqualParts(std::move(cut_points));
  return tensor;
}

absl::Status PlanBuilder::CheckSums(ValueIndex input) const {
  const Dtype dtype = value(input).dtype;
  const Axes unreduced = LayoutOf(input).unreduced;
  if (unreduced.empty() || HasArithmetic(dtype)) return absl::OkStatus();
  return Error(
      Reason::kUnsupportedDtype,
      StrCat(DtypeName(dtype), " has no arithmetic; its parts along ", StrJoin(unreduced, ","),
             " cannot be summed, broadcast them from their "
             "root"));
}

absl::StatusOr<ValueIndex> PlanBuilder::LaidOutAsOperand(ValueIndex value, ValueIndex operand) {
  const ValueDescriptor wanted = this->value(operand);
  if (LiesAs(value, wanted)) return value;
  if (!wanted.spec.unreduced().empty()) {
    return Error(
        Reason::kInvalidSpec,
        StrCat("the operand lies as ", wanted.spec.ToString(), "; partial sums cannot be made"),
        {{fact::kAxis, StrJoin(wanted.spec.unreduced(), ",")},
         {fact::kValue, wanted.spec.ToString()}});
  }
  SHARDMESH_RETURN_IF_ERROR(CheckSums(value));
  const Mark before = Here();
  const absl::StatusOr<ValueIndex> result = LaidOut(value, wanted);
  if (!result.ok()) {
    CutOff(before);
    return Error(result.status());
  }
  return *result;
}

absl::StatusOr<ValueIndex> PlanBuilder::AddReshard(const ReshardOp& op, ValueIndex input,
                                                   bool may_return_input) {
  SHARDMESH_ASSIGN_OR_RETURN(const ValueDescriptor wanted, Resharded(op, value(input)));
  SHARDMESH_RETURN_IF_ERROR(CheckSums(input));
  const Mark before = Here();
  const absl::StatusOr<ValueIndex> result = LaidOut(input, wanted);
  if (!result.ok()) {
    CutOff(before);
    return Error(result.status());
  }
  return *result == input && !may_return_input ? Copy(input) : *result;
}

}  // namespace shardmesh
