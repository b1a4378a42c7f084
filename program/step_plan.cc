// Chooses layouts for the values of a program and spells out what each device does.
#include "program/step_plan.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "program/collective_choice.h"
#include "sharding/device_group.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/view.h"

namespace shardmesh {
namespace {

using Axes = std::vector<std::string>;

// A spec in the form in which layouts are compared: one list of axes per dimension, axes of size 1
// left out, since they place nothing.
struct Layout {
  std::vector<Axes> dims;
  Axes unreduced = {};

  friend bool operator==(const Layout&, const Layout&) = default;
};

bool Contains(const Axes& axes, std::string_view name) {
  return std::find(axes.begin(), axes.end(), name) != axes.end();
}

PartitionSpec ToSpec(const Layout& layout) {
  std::vector<SpecEntry> entries;
  entries.reserve(layout.dims.size());
  for (const Axes& axes : layout.dims) {
    entries.push_back(SpecEntry::Axes(std::vector<AxisName>(axes.begin(), axes.end())));
  }
  return PartitionSpec(std::move(entries), {layout.unreduced.begin(), layout.unreduced.end()});
}

bool IsFloat(Dtype dtype) {
  return dtype == Dtype::kF16 || dtype == Dtype::kBF16 || dtype == Dtype::kF32 ||
         dtype == Dtype::kF64;
}

bool HasArithmetic(Dtype dtype) {
  return IsFloat(dtype) || dtype == Dtype::kI8 || dtype == Dtype::kU8 || dtype == Dtype::kI32 ||
         dtype == Dtype::kI64;
}

// The type in which sums of products travel.
Dtype PartialSumType(Dtype dtype) {
  return dtype == Dtype::kF16 || dtype == Dtype::kBF16 ? Dtype::kF32 : dtype;
}

bool HasRoot(CollectiveKind kind) {
  return kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce ||
         kind == CollectiveKind::kGather || kind == CollectiveKind::kScatter;
}

bool JoinsTiles(CollectiveKind kind) {
  return kind == CollectiveKind::kAllGather || kind == CollectiveKind::kGather ||
         kind == CollectiveKind::kAllToAll;
}

bool SplitsTiles(CollectiveKind kind) {
  return kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kScatter ||
         kind == CollectiveKind::kAllToAll;
}

// The dimension whose parts go apart.
int64_t SplitDimension(const CollectiveOp& op) {
  return op.kind == CollectiveKind::kAllToAll ? op.split_dimension : op.dimension;
}

// Cut off at the most that there is: plans from elsewhere may have any shapes.
int64_t ProductOf(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

void AddTo(int64_t& sum, int64_t amount) {
  if (__builtin_add_overflow(sum, amount, &sum)) sum = std::numeric_limits<int64_t>::max();
}

bool IsCut(const ValueDescriptor& value, size_t dim) {
  return !value.cut_points.empty() && !value.cut_points[dim].empty();
}

void SetCutPoints(size_t dim, CutPoints points, ValueDescriptor* value) {
  value->cut_points.resize(value->shape.size());
  value->cut_points[dim] = std::move(points);
  value->cut_points = WithoutEqualParts(std::move(value->cut_points));
}

absl::Status CheckCounts(const CollectiveOp& op, int64_t ranks) {
  if (op.counts.empty()) {
    return absl::OkStatus();
  }
  if (!SplitsTiles(op.kind)) {
    return InvalidArgument(Reason::kBadField,
                           StrCat("counts are given; reduce-scatter, all-to-all and scatter have "
                                  "them, not ",
                                  CollectiveKindName(op.kind)));
  }
  if (static_cast<int64_t>(op.counts.size()) != ranks) {
    return InvalidArgument(Reason::kBadField,
                           StrCat(op.counts.size(), " counts are given for groups of ", ranks,
                                  " devices; give one for each place"));
  }
  for (const int64_t count : op.counts) {
    if (count < 1) {
      return InvalidArgument(Reason::kBadField,
                             StrCat("counts ", StrJoin(op.counts, ","),
                                    ": every part has at least one index, not ", count));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPermutation(const CollectiveOp& op, int64_t ranks) {
  if (op.kind != CollectiveKind::kPermute) {
    if (op.permutation.empty()) {
      return absl::OkStatus();
    }
    return InvalidArgument(Reason::kBadField,
                           StrCat("pairs of places are given; only permute has them, not ",
                                  CollectiveKindName(op.kind)));
  }
  if (op.permutation.empty()) {
    return InvalidArgument(Reason::kMissingArgument,
                           "no pairs of places are given; name at least one source and target");
  }
  absl::flat_hash_set<int64_t> sources;
  absl::flat_hash_set<int64_t> targets;
  for (const PermutePair& pair : op.permutation) {
    for (const int64_t place : {pair.source, pair.target}) {
      if (place < 0 || place >= ranks) {
        return InvalidArgument(Reason::kBadField,
                               StrCat("the pair ", pair.source, ":", pair.target, " names place ",
                                      place, "; a group has the places 0 to ", ranks - 1));
      }
    }
    if (!sources.insert(pair.source).second) {
      return InvalidArgument(
          Reason::kBadField,
          StrCat("place ", pair.source, " is the source of two pairs; use broadcast to reach all"));
    }
    if (!targets.insert(pair.target).second) {
      return InvalidArgument(Reason::kBadField,
                             StrCat("place ", pair.target, " is the target of two pairs"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckDimension(std::string_view what, int64_t dimension, const Shape& shape) {
  const auto rank = static_cast<int64_t>(shape.size());
  if (dimension >= 0 && dimension < rank) {
    return absl::OkStatus();
  }
  return InvalidArgument(Reason::kInvalidDimension,
                         StrCat(what, " ", dimension, " is not one of the ", rank, " dimensions"));
}

// Of types whose elements share bytes: whether tiles, and the parts in which they are exchanged,
// begin and end at whole bytes. `tile` is cut into `ranks` parts along `dimension`.
absl::Status CheckWholeBytes(Dtype dtype, const Shape& tile, int64_t dimension, int64_t ranks) {
  if (BitsPerElement(dtype) % 8 == 0 || ranks == 1) {
    return absl::OkStatus();
  }
  Tile part = Tile::Whole(tile);
  auto& range = part.ranges[static_cast<size_t>(dimension)];
  const int64_t extent = tile[static_cast<size_t>(dimension)] / ranks;
  range = {extent, 2 * extent};  // the others lie at multiples of its distance
  if (const auto region = TileRegion::Create(dtype, tile, part); !region.ok()) {
    return InvalidArgument(
        Reason::kUnsupportedDtype,
        StrCat(DtypeName(dtype), " elements share bytes, and parts along dimension ", dimension,
               " of a tile of shape ", ShapeToString(tile), " would cut one"));
  }
  return absl::OkStatus();
}

// Whether a collective over groups of `ranks` devices is possible on tiles of this type and shape.
// The algorithm is not judged.
absl::Status CheckCollective(const CollectiveOp& op, int64_t ranks, Dtype dtype,
                             const Shape& tile) {
  const std::string_view kind = CollectiveKindName(op.kind);
  if (IsReduction(op.kind) && !HasArithmetic(dtype)) {
    return InvalidArgument(Reason::kUnsupportedDtype,
                           StrCat(DtypeName(dtype), " has no arithmetic; it cannot be reduced"));
  }
  if (IsReduction(op.kind) && op.reduction == Reduction::kMean && !IsFloat(dtype)) {
    return InvalidArgument(Reason::kUnsupportedDtype,
                           StrCat("the mean of ", DtypeName(dtype), " is not defined; use a sum"));
  }
  if (op.root < 0 || op.root >= (HasRoot(op.kind) ? ranks : 1)) {
    return InvalidArgument(
        Reason::kBadField,
        HasRoot(op.kind) ? StrCat("root ", op.root,
                                  " is no place of a group; it has the places 0 to ", ranks - 1)
                         : StrCat("root ", op.root, " is given; ", kind, " has no root"));
  }
  SHARDMESH_RETURN_IF_ERROR(CheckPermutation(op, ranks));
  SHARDMESH_RETURN_IF_ERROR(CheckCounts(op, ranks));
  if (JoinsTiles(op.kind) || SplitsTiles(op.kind)) {
    SHARDMESH_RETURN_IF_ERROR(CheckDimension("dimension", op.dimension, tile));
  }
  if (op.kind == CollectiveKind::kAllToAll) {
    SHARDMESH_RETURN_IF_ERROR(CheckDimension("split_dimension", op.split_dimension, tile));
    if (op.split_dimension == op.dimension) {
      return InvalidArgument(Reason::kInvalidDimension,
                             StrCat("dimension and split_dimension are both ", op.dimension,
                                    "; what is joined along one dimension is split along another"));
    }
  }
  if (SplitsTiles(op.kind) && op.counts.empty()) {
    const int64_t dimension = SplitDimension(op);
    const int64_t extent = tile[static_cast<size_t>(dimension)];
    if (extent % ranks != 0) {
      return InvalidArgument(
          Reason::kNotDivisible,
          StrCat("dimension ", dimension, " of a tile has ", extent, " elements; ",
                 StrJoin(op.axes, ","), "=", ranks, " does not divide it"));
    }
    SHARDMESH_RETURN_IF_ERROR(CheckWholeBytes(dtype, tile, dimension, ranks));
  }
  if (JoinsTiles(op.kind)) {
    Shape joined = tile;
    int64_t& extent = joined[static_cast<size_t>(op.dimension)];
    if (__builtin_mul_overflow(extent, ranks, &extent)) {
      return InvalidArgument(Reason::kShapeMismatch, "the joined dimension is beyond 64 bits");
    }
    SHARDMESH_RETURN_IF_ERROR(CheckWholeBytes(dtype, joined, op.dimension, ranks));
  }
  return absl::OkStatus();
}

// For labels: "all-gather of dimension 1 over tp".
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

// A product of two values, whichever op asks for it.
struct Product {
  ValueIndex lhs = 0;
  ValueIndex rhs = 0;
  std::optional<ValueIndex> bias = std::nullopt;
  bool transpose_lhs = false;
  bool transpose_rhs = false;
  float scale = 1;
  Activation activation = Activation::kNone;
};

// Grows a plan by one op after the other. Copyable, so that alternatives can be tried.
class PlanBuilder {
 public:
  PlanBuilder(const PlanTarget& target, absl::Span<const ValueDescriptor> operands) {
    plan_.mesh_id = target.mesh_id;
    plan_.mesh_revision = target.mesh_revision;
    plan_.mesh = target.mesh;
    links_ = target.links;
    preferred_ = target.preferred;
    plan_.operand_count = static_cast<uint32_t>(operands.size());
    plan_.values.assign(operands.begin(), operands.end());
    for (ValueDescriptor& operand : plan_.values) {
      operand.cut_points = WithoutEqualParts(std::move(operand.cut_points));
    }
  }

  // The op that messages and labels speak of from now on.
  void Name(std::string_view op) { op_ = op; }

  const ValueDescriptor& value(ValueIndex index) const { return plan_.values[index]; }
  PlanCost cost() const { return plan_.cost; }

  // Each returns the plan's value that holds the op's result, never one of the operands.
  absl::StatusOr<ValueIndex> AddProduct(const Product& product);
  absl::StatusOr<ValueIndex> AddCollective(const CollectiveOp& op, ValueIndex input);
  absl::StatusOr<ValueIndex> AddReshard(const PartitionSpec& spec, ValueIndex input);

  Plan Finish(std::vector<ValueIndex> outputs) && {
    plan_.outputs = std::move(outputs);
    return std::move(plan_);
  }

  absl::Status Error(Reason reason, std::string_view message) const {
    return InvalidArgument(reason, StrCat(op_, ": ", message));
  }

 private:
  Layout LayoutOf(ValueIndex index) const;
  int64_t AxesSize(const Axes& axes) const;
  int64_t TileBytes(const ValueDescriptor& value) const;
  int64_t TileElements(const ValueDescriptor& value) const;
  // With unequal tiles: the largest extent of each dimension.
  Shape TileShape(const ValueDescriptor& value) const;
  // How many parts a dimension has, and where each begins and ends.
  int64_t PartCount(const ValueDescriptor& value, size_t dim) const;
  CutPoints PointsOf(const ValueDescriptor& value, size_t dim) const;

  // Of a collective whose operand or result has unequal tiles, beyond CheckCollective.
  absl::Status CheckUnequal(const CollectiveOp& op, const Axes& axes,
                            const ValueDescriptor& operand) const;
  // Where the parts of a dimension begin and end once each was split among `ranks` places.
  absl::StatusOr<CutPoints> SplitPoints(const CollectiveOp& op, int64_t ranks,
                                        const ValueDescriptor& value, size_t dim) const;
  absl::Status CheckEqualTiles(ValueIndex input) const;

  template <typename Kind>
  ValueIndex Emit(Kind kind, ValueDescriptor output, std::string_view what);
  // With the algorithm chosen, and the costs added.
  ValueIndex EmitCollective(CollectiveOp op, ValueDescriptor output);

  ValueIndex AllReduce(ValueIndex input, const Axes& axes, Reduction reduction);
  ValueIndex AllGather(ValueIndex input, const Axes& axes, int64_t dimension);
  // The value with all its partial sums added up.
  ValueIndex Reduced(ValueIndex input);
  // The value laid out as `target`, which has no unreduced axes.
  ValueIndex LaidOut(ValueIndex input, const Layout& target);
  ValueIndex Copy(ValueIndex input);

  absl::Status CheckProduct(const Product& product) const;
  ValueIndex AddProduct(const Product& product, bool keep_rhs);

  Plan plan_;
  LinkCost links_;
  PreferredAlgorithms preferred_;
  std::string op_;
};

Layout PlanBuilder::LayoutOf(ValueIndex index) const {
  const ValueDescriptor& described = value(index);
  Layout layout;
  layout.dims.resize(described.shape.size());
  for (size_t dim = 0; dim < layout.dims.size(); ++dim) {
    for (const AxisName& axis : described.spec.entry(static_cast<int64_t>(dim)).axes()) {
      const std::optional<int64_t> index_in_mesh = plan_.mesh.FindAxis(*axis);
      if (plan_.mesh.axes()[static_cast<size_t>(*index_in_mesh)].size > 1) {
        layout.dims[dim].push_back(*axis);
      }
    }
  }
  for (const std::string& axis : described.spec.unreduced()) {
    if (AxesSize({axis}) > 1) {
      layout.unreduced.push_back(axis);
    }
  }
  return layout;
}

int64_t PlanBuilder::AxesSize(const Axes& axes) const {
  int64_t size = 1;
  for (const std::string& axis : axes) {
    size *= plan_.mesh.axes()[static_cast<size_t>(*plan_.mesh.FindAxis(axis))].size;
  }
  return size;
}

int64_t PlanBuilder::PartCount(const ValueDescriptor& described, size_t dim) const {
  Axes axes;
  for (const AxisName& axis : described.spec.entry(static_cast<int64_t>(dim)).axes()) {
    axes.push_back(*axis);
  }
  return AxesSize(axes);
}

Shape PlanBuilder::TileShape(const ValueDescriptor& described) const {
  Shape tile = described.shape;
  for (size_t dim = 0; dim < tile.size(); ++dim) {
    tile[dim] /= PartCount(described, dim);
    if (IsCut(described, dim)) {
      const CutPoints& points = described.cut_points[dim];
      for (size_t i = 1; i < points.size(); ++i) {
        tile[dim] = std::max(tile[dim], points[i] - points[i - 1]);
      }
    }
  }
  return tile;
}

CutPoints PlanBuilder::PointsOf(const ValueDescriptor& described, size_t dim) const {
  if (IsCut(described, dim)) {
    return described.cut_points[dim];
  }
  const int64_t parts = PartCount(described, dim);
  CutPoints points;
  for (int64_t part = 0; part <= parts; ++part) {
    points.push_back(described.shape[dim] / parts * part);
  }
  return points;
}

absl::Status PlanBuilder::CheckUnequal(const CollectiveOp& op, const Axes& axes,
                                       const ValueDescriptor& operand) const {
  if (operand.cut_points.empty() && op.counts.empty()) {
    return absl::OkStatus();
  }
  if (BitsPerElement(operand.dtype) % 8 != 0 && op.kind != CollectiveKind::kBarrier) {
    return Error(Reason::kUnsupportedDtype,
                 StrCat(DtypeName(operand.dtype),
                        " elements share bytes; only equal tiles of them are exchanged"));
  }
  for (size_t dim = 0; dim < operand.shape.size(); ++dim) {
    const bool is_joined = JoinsTiles(op.kind) && static_cast<int64_t>(dim) == op.dimension;
    if (!IsCut(operand, dim) || is_joined || op.kind == CollectiveKind::kBarrier) {
      continue;
    }
    for (const AxisName& axis : operand.spec.entry(static_cast<int64_t>(dim)).axes()) {
      if (Contains(axes, *axis)) {
        return Error(Reason::kShapeMismatch,
                     StrCat("dimension ", dim, " is cut at ", StrJoin(operand.cut_points[dim], ","),
                            " over ", operand.spec.ToString(), ": tiles along ", *axis,
                            " differ in size, and ", CollectiveKindName(op.kind),
                            " takes tiles of one size; all-gather the dimension first"));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<CutPoints> PlanBuilder::SplitPoints(const CollectiveOp& op, int64_t ranks,
                                                   const ValueDescriptor& described,
                                                   size_t dim) const {
  const CutPoints outer = PointsOf(described, dim);
  CutPoints points = {0};
  for (size_t part = 1; part < outer.size(); ++part) {
    const int64_t extent = outer[part] - outer[part - 1];
    if (op.counts.empty() && extent % ranks != 0) {
      return Error(
          Reason::kNotDivisible,
          StrCat("dimension ", dim, " of a tile has ", extent, " elements; ", StrJoin(op.axes, ","),
                 "=", ranks, " does not divide it; give counts to split it unequally"));
    }
    int64_t left = extent;
    for (int64_t place = 0; place < ranks; ++place) {
      const int64_t count =
          op.counts.empty() ? extent / ranks : op.counts[static_cast<size_t>(place)];
      left -= std::min(left, count - 1) + 1;  // below 0: there is less
      if (left < 0) {
        break;
      }
      points.push_back(outer[part] - left);
    }
    if (left != 0) {
      return Error(Reason::kShapeMismatch,
                   StrCat("counts ", StrJoin(op.counts, ","), " do not add up to the ", extent,
                          " elements that dimension ", dim, " of a tile has"));
    }
  }
  return points;
}

absl::Status PlanBuilder::CheckEqualTiles(ValueIndex input) const {
  const ValueDescriptor& described = value(input);
  for (size_t dim = 0; dim < described.shape.size(); ++dim) {
    if (IsCut(described, dim)) {
      return WithReason(absl::UnimplementedError(StrCat(
                            op_, ": dimension ", dim, " of a value is cut into unequal tiles, at ",
                            StrJoin(described.cut_points[dim], ","),
                            "; only collectives take such tiles: all-gather the dimension first")),
                        Reason::kNotAvailable);
    }
  }
  return absl::OkStatus();
}

int64_t PlanBuilder::TileElements(const ValueDescriptor& described) const {
  int64_t elements = 1;
  for (const int64_t extent : TileShape(described)) {
    elements = ProductOf(elements, extent);
  }
  return elements;
}

int64_t PlanBuilder::TileBytes(const ValueDescriptor& described) const {
  return ProductOf(TileElements(described), BitsPerElement(described.dtype)) / 8;
}

template <typename Kind>
ValueIndex PlanBuilder::Emit(Kind kind, ValueDescriptor output, std::string_view what) {
  const auto index = static_cast<ValueIndex>(plan_.values.size());
  AddTo(plan_.cost.memory_bytes, TileBytes(output));
  plan_.values.push_back(std::move(output));
  plan_.instructions.push_back(
      Instruction{.output = index, .kind = std::move(kind), .label = StrCat(op_, ": ", what)});
  return index;
}

ValueIndex PlanBuilder::EmitCollective(CollectiveOp op, ValueDescriptor output) {
  const ValueDescriptor& operand = value(op.input);
  const CollectiveLoad load = {
      .ranks = AxesSize(op.axes),
      .bytes = TileBytes(operand),
      .partial_bytes =
          ProductOf(TileElements(operand), BitsPerElement(PartialSumType(operand.dtype))) / 8};
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
  Layout layout = LayoutOf(input);
  std::erase_if(layout.unreduced, [&](const std::string& axis) { return Contains(axes, axis); });
  ValueDescriptor output = value(input);
  output.spec = ToSpec(layout);
  return EmitCollective(
      {.input = input, .kind = CollectiveKind::kAllReduce, .axes = axes, .reduction = reduction},
      std::move(output));
}

ValueIndex PlanBuilder::AllGather(ValueIndex input, const Axes& axes, int64_t dimension) {
  Layout layout = LayoutOf(input);
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

ValueIndex PlanBuilder::LaidOut(ValueIndex input, const Layout& target) {
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
                        "; only a matrix can be transposed"));
  }
  if (rhs.shape.size() != 2) {
    return Error(Reason::kShapeMismatch, StrCat("the right operand (weight) has shape ",
                                                ShapeToString(rhs.shape), "; it must be a matrix"));
  }
  const int64_t lhs_contracted = product.transpose_lhs ? lhs.shape[0] : lhs.shape.back();
  const int64_t rhs_contracted = rhs.shape[product.transpose_rhs ? 1 : 0];
  if (lhs_contracted != rhs_contracted) {
    return Error(
        Reason::kShapeMismatch,
        StrCat("shapes ", ShapeToString(lhs.shape), product.transpose_lhs ? " (transposed)" : "",
               " and ", ShapeToString(rhs.shape), product.transpose_rhs ? " (transposed)" : "",
               " do not multiply: ", lhs_contracted, " is contracted with ", rhs_contracted));
  }
  const bool supported = lhs.dtype == Dtype::kF32 || lhs.dtype == Dtype::kBF16;
  if (!supported || lhs.dtype != rhs.dtype) {
    return Error(Reason::kUnsupportedDtype,
                 StrCat("cannot multiply ", DtypeName(lhs.dtype), " by ", DtypeName(rhs.dtype),
                        "; both must be F32 or both BF16"));
  }
  if (product.bias.has_value()) {
    const ValueDescriptor& bias = value(*product.bias);
    const int64_t columns = rhs.shape[product.transpose_rhs ? 0 : 1];
    if (bias.shape != Shape{columns}) {
      return Error(Reason::kShapeMismatch, StrCat("the bias has shape ", ShapeToString(bias.shape),
                                                  "; it must be (", columns, ",)"));
    }
    if (bias.dtype != lhs.dtype) {
      return Error(Reason::kUnsupportedDtype,
                   StrCat("the bias is ", DtypeName(bias.dtype), "; it must be ",
                          DtypeName(lhs.dtype), " as the operands are"));
    }
  }
  return absl::OkStatus();
}

ValueIndex PlanBuilder::AddProduct(const Product& product, bool keep_rhs) {
  const ValueIndex lhs_value = Reduced(product.lhs);
  const ValueIndex rhs_value = Reduced(product.rhs);
  Layout lhs = LayoutOf(lhs_value);
  Layout rhs = LayoutOf(rhs_value);
  const size_t lhs_k = product.transpose_lhs ? 0 : lhs.dims.size() - 1;
  const size_t rhs_k = product.transpose_rhs ? 1 : 0;
  const size_t rhs_n = 1 - rhs_k;

  // The operand that moves takes over the contracted dimension's axes, and keeps of its others as
  // many as the operand at rest does not use.
  Layout& moving = keep_rhs ? lhs : rhs;
  const Layout& resting = keep_rhs ? rhs : lhs;
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

  Layout result;
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
    bias = LaidOut(*bias, Layout{.dims = {result.dims.back()}});
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
  const int64_t contracted = value(lhs_ready).shape[lhs_k] / AxesSize(partial_axes);
  AddTo(plan_.cost.flops, ProductOf(2, ProductOf(contracted, TileElements(output))));
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
  const ValueDescriptor described = value(input);
  if (op.axes.empty()) {
    return Error(Reason::kMissingArgument, "no mesh axes are given; name those to exchange along");
  }
  Axes axes;
  for (const std::string& axis : op.axes) {
    if (!plan_.mesh.HasAxis(axis)) {
      return Error(Reason::kAxisNotInMesh,
                   StrCat("axis '", axis, "' is not in the mesh ", plan_.mesh.ToString(),
                          plan_.mesh.DidYouMeanAxis(axis)));
    }
    if (std::count(op.axes.begin(), op.axes.end(), axis) > 1) {
      return Error(Reason::kDuplicateAxis, StrCat("axis '", axis, "' is given twice"));
    }
    if (AxesSize({axis}) > 1) {
      axes.push_back(axis);
    }
  }
  absl::Status fits = CheckCollective(op, AxesSize(axes), described.dtype, TileShape(described));
  if (op.algorithm != CollectiveAlgorithm::kAuto) {
    fits.Update(CheckAlgorithm(op.kind, op.algorithm, op.order));
  }
  if (!fits.ok()) {
    return Error(ReasonOf(fits), ToStd(fits.message()));
  }
  SHARDMESH_RETURN_IF_ERROR(CheckUnequal(op, axes, described));

  Layout layout = LayoutOf(input);
  const bool is_linear = op.reduction == Reduction::kSum || op.reduction == Reduction::kMean;
  if (IsReduction(op.kind) && !is_linear && !layout.unreduced.empty()) {
    return Error(
        Reason::kInvalidSpec,
        StrCat("the operand's tiles are partial sums along ", StrJoin(layout.unreduced, ","),
               ", of which products, minima and maxima mean nothing; sum over ",
               StrJoin(layout.unreduced, ","), " first"));
  }
  if (op.kind == CollectiveKind::kPermute) {
    for (const std::string& axis : axes) {
      const bool partitions =
          std::any_of(layout.dims.begin(), layout.dims.end(),
                      [&](const Axes& dimension) { return Contains(dimension, axis); });
      if (!partitions && !Contains(layout.unreduced, axis)) {
        return Error(
            Reason::kInvalidSpec,
            StrCat("the operand, laid out as ", described.spec.ToString(), ", is replicated along ",
                   axis, ", and its replicas would differ afterwards; partition it over ", axis,
                   " first, or use broadcast"));
      }
    }
  }
  const bool joins = JoinsTiles(op.kind);
  if (joins) {
    const Axes& have = layout.dims[static_cast<size_t>(op.dimension)];
    if (have.size() < axes.size() || !std::equal(axes.rbegin(), axes.rend(), have.rbegin())) {
      return Error(Reason::kInvalidSpec,
                   StrCat("dimension ", op.dimension, " of ", described.spec.ToString(),
                          " is not partitioned over ", StrJoin(axes, ","),
                          " as its minor axes; there is nothing to ",
                          op.kind == CollectiveKind::kAllToAll ? "exchange" : "gather"));
    }
  }
  if (axes.empty()) {  // every group is one device
    if (!op.counts.empty()) {
      SHARDMESH_RETURN_IF_ERROR(
          SplitPoints(op, 1, described, static_cast<size_t>(SplitDimension(op))).status());
    }
    return Copy(input);
  }

  // Whether tiles of several places become one that is the value of the whole group.
  const bool becomes_one = IsReduction(op.kind) || op.kind == CollectiveKind::kBroadcast ||
                           op.kind == CollectiveKind::kScatter;
  ValueDescriptor output = described;
  if (becomes_one) {
    // Tiles are taken as they are: a dimension that the group partitions shrinks by it.
    const auto of_group = [&](const std::string& axis) { return Contains(axes, axis); };
    for (size_t dim = 0; dim < layout.dims.size(); ++dim) {
      Axes gone;
      std::copy_if(layout.dims[dim].begin(), layout.dims[dim].end(), std::back_inserter(gone),
                   of_group);
      output.shape[dim] /= AxesSize(gone);
      std::erase_if(layout.dims[dim], of_group);
    }
    std::erase_if(layout.unreduced, of_group);
  }
  if (joins) {
    const auto dim = static_cast<size_t>(op.dimension);
    Axes& joined = layout.dims[dim];
    joined.resize(joined.size() - axes.size());
    if (IsCut(described, dim)) {
      const auto ranks = static_cast<size_t>(AxesSize(axes));
      CutPoints points;
      for (size_t i = 0; i < described.cut_points[dim].size(); i += ranks) {
        points.push_back(described.cut_points[dim][i]);
      }
      SetCutPoints(dim, std::move(points), &output);
    }
  }
  if (SplitsTiles(op.kind)) {
    const auto dim = static_cast<size_t>(SplitDimension(op));
    Axes& split = layout.dims[dim];
    output.spec = ToSpec(layout);
    if (IsCut(output, dim) || !op.counts.empty()) {
      SHARDMESH_ASSIGN_OR_RETURN(CutPoints points, SplitPoints(op, AxesSize(axes), output, dim));
      SetCutPoints(dim, std::move(points), &output);
    }
    split.insert(split.end(), axes.begin(), axes.end());
  }
  if (op.kind == CollectiveKind::kReduce || op.kind == CollectiveKind::kGather) {
    layout.unreduced.insert(layout.unreduced.end(), axes.begin(), axes.end());
  }
  output.spec = ToSpec(layout);
  CollectiveOp planned = op;
  planned.input = input;
  planned.axes = std::move(axes);
  return EmitCollective(std::move(planned), std::move(output));
}

absl::StatusOr<ValueIndex> PlanBuilder::AddReshard(const PartitionSpec& spec, ValueIndex input) {
  SHARDMESH_RETURN_IF_ERROR(CheckEqualTiles(input));
  ValueDescriptor wanted = value(input);
  wanted.spec = spec;
  if (!spec.unreduced().empty()) {
    return Error(Reason::kInvalidSpec,
                 StrCat("cannot lay out as ", spec.ToString(), ": partial sums cannot be made"));
  }
  if (const auto tiling = Tiling::Create(plan_.mesh, spec, wanted.shape); !tiling.ok()) {
    return Error(ReasonOf(tiling.status()), ToStd(tiling.status().message()));
  }
  if (!LayoutOf(input).unreduced.empty() && !HasArithmetic(wanted.dtype)) {
    return Error(Reason::kUnsupportedDtype,
                 StrCat(DtypeName(wanted.dtype), " has no arithmetic; its parts along ",
                        StrJoin(LayoutOf(input).unreduced, ","),
                        " cannot be summed, broadcast them from their root"));
  }
  // A value that is only described, to have its layout read.
  plan_.values.push_back(wanted);
  const Layout target = LayoutOf(static_cast<ValueIndex>(plan_.values.size() - 1));
  plan_.values.pop_back();
  const ValueIndex result = LaidOut(input, target);
  return result == input ? Copy(input) : result;
}

// Passes each op of a program to the builder, in terms of the plan's values.
class ProgramPlanner {
 public:
  ProgramPlanner(const Program& program, absl::Span<const ValueDescriptor> operands,
                 const PlanTarget& target)
      : program_(program), builder_(target, operands) {
    for (ValueIndex i = 0; i < operands.size(); ++i) {
      values_.push_back(i);
    }
  }

  absl::StatusOr<Plan> Run() && {
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      const ProgramOp& op = program_.ops[i];
      static constexpr std::string_view kNames[] = {"linear", "matmul", "collective", "reshard"};
      builder_.Name(StrCat("op ", i, " (", kNames[op.index()], ")"));
      SHARDMESH_ASSIGN_OR_RETURN(const ValueIndex result,
                                 std::visit([&](const auto& each) { return Add(each); }, op));
      values_.push_back(result);
    }
    std::vector<ValueIndex> outputs;
    builder_.Name("outputs");
    for (const ValueIndex output : program_.outputs) {
      SHARDMESH_ASSIGN_OR_RETURN(const ValueIndex planned, ValueOf(output));
      if (output < program_.operand_count) {
        return builder_.Error(Reason::kBadField, StrCat("value ", output, " is an operand"));
      }
      if (std::find(outputs.begin(), outputs.end(), planned) != outputs.end()) {
        return builder_.Error(Reason::kBadField, StrCat("value ", output, " is given twice"));
      }
      outputs.push_back(planned);
    }
    return std::move(builder_).Finish(std::move(outputs));
  }

 private:
  absl::StatusOr<ValueIndex> ValueOf(ValueIndex index) const {
    if (index >= values_.size()) {
      return builder_.Error(Reason::kBadField, StrCat("value ", index, " is not there yet; ",
                                                      values_.size(), " values precede"));
    }
    return values_[index];
  }

  absl::StatusOr<ValueIndex> Add(const LinearOp& op) {
    Product product{.transpose_rhs = op.weight_layout == WeightLayout::kOutIn,
                    .scale = op.scale,
                    .activation = op.activation};
    SHARDMESH_ASSIGN_OR_RETURN(product.lhs, ValueOf(op.input));
    SHARDMESH_ASSIGN_OR_RETURN(product.rhs, ValueOf(op.weight));
    if (op.bias.has_value()) {
      SHARDMESH_ASSIGN_OR_RETURN(product.bias, ValueOf(*op.bias));
    }
    return builder_.AddProduct(product);
  }
  absl::StatusOr<ValueIndex> Add(const MatmulOp& op) {
    Product product{.transpose_lhs = op.transpose_lhs, .transpose_rhs = op.transpose_rhs};
    SHARDMESH_ASSIGN_OR_RETURN(product.lhs, ValueOf(op.lhs));
    SHARDMESH_ASSIGN_OR_RETURN(product.rhs, ValueOf(op.rhs));
    if (const Shape& lhs = builder_.value(product.lhs).shape; lhs.size() != 2) {
      return builder_.Error(
          Reason::kShapeMismatch,
          StrCat("the left operand has shape ", ShapeToString(lhs), "; it must be a matrix"));
    }
    return builder_.AddProduct(product);
  }
  absl::StatusOr<ValueIndex> Add(const CollectiveOp& op) {
    SHARDMESH_ASSIGN_OR_RETURN(const ValueIndex input, ValueOf(op.input));
    return builder_.AddCollective(op, input);
  }
  absl::StatusOr<ValueIndex> Add(const ReshardOp& op) {
    SHARDMESH_ASSIGN_OR_RETURN(const ValueIndex input, ValueOf(op.input));
    return builder_.AddReshard(op.spec, input);
  }

  const Program& program_;
  PlanBuilder builder_;
  std::vector<ValueIndex> values_;  // plan value of each program value
};

// One instruction of a plan from elsewhere, judged by the shapes of tiles.
class InstructionChecker {
 public:
  InstructionChecker(const Plan& plan, absl::Span<const Tiling> tilings)
      : plan_(plan), tilings_(tilings) {}

  absl::Status Check(const Instruction& instruction) const {
    return std::visit([&](const auto& kind) { return CheckKind(kind, instruction.output); },
                      instruction.kind);
  }

 private:
  Shape TileShape(ValueIndex index) const { return tilings_[index].ShardShape(); }
  Dtype DtypeOf(ValueIndex index) const { return plan_.values[index].dtype; }

  absl::Status CheckKind(const LocalMatmul& matmul, ValueIndex output) const {
    SHARDMESH_RETURN_IF_ERROR(CheckEqualTiles({matmul.lhs, matmul.rhs, output}));
    const Shape lhs = TileShape(matmul.lhs);
    const Shape rhs = TileShape(matmul.rhs);
    const Shape out = TileShape(output);
    if (lhs.empty() || rhs.size() != 2 || (matmul.transpose_lhs && lhs.size() != 2)) {
      return Misfit("operands are not matrices");
    }
    Shape expected(lhs.begin(), lhs.end() - 1);
    if (matmul.transpose_lhs) {
      expected = {lhs[1]};
    }
    expected.push_back(rhs[matmul.transpose_rhs ? 0 : 1]);
    const int64_t lhs_k = matmul.transpose_lhs ? lhs[0] : lhs.back();
    if (lhs_k != rhs[matmul.transpose_rhs ? 1 : 0] || out != expected) {
      return Misfit("tiles do not multiply");
    }
    if (DtypeOf(matmul.lhs) != DtypeOf(matmul.rhs)) {
      return Misfit("element types differ");
    }
    return CheckBias(matmul.bias, out);
  }
  absl::Status CheckKind(const LocalEpilogue& epilogue, ValueIndex output) const {
    SHARDMESH_RETURN_IF_ERROR(CheckEqualTiles({epilogue.input, output}));
    const Shape out = TileShape(output);
    if (TileShape(epilogue.input) != out) {
      return Misfit("tiles of input and output differ");
    }
    return CheckBias(epilogue.bias, out);
  }
  absl::Status CheckKind(const LocalSlice& slice, ValueIndex output) const {
    if (plan_.values[slice.input].shape != plan_.values[output].shape ||
        DtypeOf(slice.input) != DtypeOf(output) ||
        (plan_.values[slice.input].cut_points != plan_.values[output].cut_points)) {
      return Misfit("input and output are not the same tensor");
    }
    return absl::OkStatus();
  }
  absl::Status CheckKind(const GroupCollective& collective, ValueIndex output) const {
    SHARDMESH_RETURN_IF_ERROR(
        CheckAlgorithm(collective.kind, collective.algorithm, collective.order));
    // Every place's tile has to fit: only what would be planned does.
    PlanBuilder builder({.mesh_id = plan_.mesh_id, .mesh = plan_.mesh},
                        {plan_.values[collective.input]});
    builder.Name(CollectiveKindName(collective.kind));
    SHARDMESH_ASSIGN_OR_RETURN(const ValueIndex planned, builder.AddCollective(collective, 0));
    return builder.value(planned) == plan_.values[output]
               ? absl::OkStatus()
               : Misfit("tiles of input and output do not fit the exchange");
  }
  absl::Status CheckBias(std::optional<ValueIndex> bias, const Shape& out) const {
    if (!bias.has_value()) {
      return absl::OkStatus();
    }
    SHARDMESH_RETURN_IF_ERROR(CheckEqualTiles({*bias}));
    if (out.empty() || TileShape(*bias) != Shape{out.back()}) {
      return Misfit("the bias does not fit the last dimension");
    }
    return absl::OkStatus();
  }
  absl::Status CheckEqualTiles(std::initializer_list<ValueIndex> values) const {
    for (const ValueIndex index : values) {
      if (!tilings_[index].has_equal_tiles()) {
        return Misfit("tiles are unequal, which only collectives take");
      }
    }
    return absl::OkStatus();
  }
  static absl::Status Misfit(std::string_view what) {
    return InvalidArgument(Reason::kShapeMismatch, what);
  }

  const Plan& plan_;
  absl::Span<const Tiling> tilings_;
};

}  // namespace

absl::StatusOr<Tiling> TilingOf(const Plan& plan, const ValueDescriptor& value) {
  return Tiling::Create(plan.mesh, value.spec, value.shape, value.cut_points);
}

std::vector<ValueIndex> InputsOf(const Instruction& instruction) {
  struct Visitor {
    std::vector<ValueIndex> operator()(const LocalMatmul& matmul) const {
      std::vector<ValueIndex> inputs = {matmul.lhs, matmul.rhs};
      if (matmul.bias.has_value()) {
        inputs.push_back(*matmul.bias);
      }
      return inputs;
    }
    std::vector<ValueIndex> operator()(const LocalEpilogue& epilogue) const {
      std::vector<ValueIndex> inputs = {epilogue.input};
      if (epilogue.bias.has_value()) {
        inputs.push_back(*epilogue.bias);
      }
      return inputs;
    }
    std::vector<ValueIndex> operator()(const LocalSlice& slice) const { return {slice.input}; }
    std::vector<ValueIndex> operator()(const GroupCollective& collective) const {
      return {collective.input};
    }
  };
  return std::visit(Visitor{}, instruction.kind);
}

std::optional<ValueIndex> ResultOverOperand(const Plan& plan, ValueIndex operand) {
  const Instruction* reader = nullptr;
  for (const Instruction& instruction : plan.instructions) {
    for (const ValueIndex input : InputsOf(instruction)) {
      if (input == operand && reader != nullptr) {
        return std::nullopt;
      }
      if (input == operand) {
        reader = &instruction;
      }
    }
  }
  const auto* collective =
      reader == nullptr ? nullptr : std::get_if<GroupCollective>(&reader->kind);
  if (collective == nullptr || !MayOverwriteOperand(collective->kind, collective->algorithm) ||
      std::count(plan.outputs.begin(), plan.outputs.end(), reader->output) != 1) {
    return std::nullopt;
  }
  const ValueDescriptor& before = plan.values[operand];
  const ValueDescriptor& after = plan.values[reader->output];
  const bool same_size =
      before.dtype == after.dtype && before.cut_points == after.cut_points &&
      TilingOf(plan, before)->ShardShape() == TilingOf(plan, after)->ShardShape();
  return same_size ? std::optional(reader->output) : std::nullopt;
}

absl::StatusOr<Plan> PlanProgram(const Program& program, absl::Span<const ValueDescriptor> operands,
                                 const PlanTarget& target) {
  if (program.operand_count != operands.size()) {
    return InvalidArgument(Reason::kBadField, StrCat("the program takes ", program.operand_count,
                                                     " operands; ", operands.size(), " are given"));
  }
  if (operands.size() > kMaxProgramSize || program.ops.size() > kMaxProgramSize ||
      program.outputs.size() > kMaxProgramSize) {
    return InvalidArgument(Reason::kLimitExceeded, StrCat("a program has at most ", kMaxProgramSize,
                                                          " operands, ops and outputs each"));
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    if (const auto tiling = Tiling::Create(target.mesh, operands[i].spec, operands[i].shape,
                                           operands[i].cut_points);
        !tiling.ok()) {
      return WithContext(tiling.status(), StrCat("operand ", i));
    }
  }
  return ProgramPlanner(program, operands, target).Run();
}

absl::Status CheckPlan(const Plan& plan) {
  if (plan.values.size() != plan.operand_count + plan.instructions.size()) {
    return InvalidArgument(Reason::kBadField, "a plan has one value per operand and instruction");
  }
  std::vector<Tiling> tilings;
  tilings.reserve(plan.values.size());
  for (size_t i = 0; i < plan.values.size(); ++i) {
    auto tiling = TilingOf(plan, plan.values[i]);
    if (!tiling.ok()) {
      return WithContext(tiling.status(), StrCat("value ", i));
    }
    tilings.push_back(*std::move(tiling));
  }
  const InstructionChecker checker(plan, tilings);
  for (size_t i = 0; i < plan.instructions.size(); ++i) {
    const Instruction& instruction = plan.instructions[i];
    const std::string where = StrCat("instruction ", i);
    if (instruction.output != plan.operand_count + i) {
      return InvalidArgument(Reason::kBadField, StrCat(where, " makes value ", instruction.output));
    }
    for (const ValueIndex input : InputsOf(instruction)) {
      if (input >= instruction.output) {
        return InvalidArgument(Reason::kBadField,
                               StrCat(where, " reads value ", input, " before it is made"));
      }
    }
    if (const absl::Status status = checker.Check(instruction); !status.ok()) {
      return WithContext(status, where);
    }
  }
  for (const ValueIndex output : plan.outputs) {
    if (output < plan.operand_count || output >= plan.values.size()) {
      return InvalidArgument(Reason::kBadField,
                             StrCat("output ", output, " is not the result of an instruction"));
    }
  }
  return absl::OkStatus();
}

}  // namespace shardmesh
