// Checks collectives: their arguments, then types and shapes of tiles, then the layout.
#include "program/collective_check.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_set.h"
#include "program/collective_choice.h"
#include "sharding/shape.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/view.h"

namespace shardmesh {
namespace {

bool IsFloat(Dtype dtype) {
  return dtype == Dtype::kF16 || dtype == Dtype::kBF16 || dtype == Dtype::kF32 ||
         dtype == Dtype::kF64;
}

absl::Status CheckArithmetic(const CollectiveOp& op, Dtype dtype) {
  if (!IsReduction(op.kind)) {
    return absl::OkStatus();
  }
  if (!HasArithmetic(dtype)) {
    return InvalidArgument(
        Reason::kUnsupportedDtype,
        StrCat(DtypeName(dtype), " has no arithmetic; it cannot be reduced"),
        {{fact::kDtype, DtypeName(dtype)}, {fact::kOp, CollectiveKindName(op.kind)}});
  }
  if (op.reduction == Reduction::kMean && !IsFloat(dtype)) {
    return InvalidArgument(
        Reason::kUnsupportedDtype,
        StrCat("the mean of ", DtypeName(dtype), " is not defined; use a sum"),
        {{fact::kDtype, DtypeName(dtype)}, {fact::kOp, CollectiveKindName(op.kind)}});
  }
  return absl::OkStatus();
}

absl::Status CheckRoot(const CollectiveOp& op, int64_t ranks) {
  if (op.root >= 0 && op.root < (HasRoot(op.kind) ? ranks : 1)) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      Reason::kBadField,
      HasRoot(op.kind)
          ? StrCat("root ", op.root, " is no place of a group; it has the places 0 to ", ranks - 1)
          : StrCat("root ", op.root, " is given; ", CollectiveKindName(op.kind), " has no root"),
      {{fact::kField, "root"}, {fact::kValue, op.root}});
}

absl::Status CheckPermutation(const CollectiveOp& op, int64_t ranks) {
  if (op.kind != CollectiveKind::kPermute) {
    if (op.permutation.empty()) {
      return absl::OkStatus();
    }
    return InvalidArgument(Reason::kBadField,
                           StrCat("pairs of places are given; only permute has them, not ",
                                  CollectiveKindName(op.kind)),
                           {{fact::kField, "permutation"}});
  }
  if (op.permutation.empty()) {
    return InvalidArgument(Reason::kMissingArgument,
                           "no pairs of places are given; name at least one source and target",
                           {{fact::kField, "permutation"}});
  }
  absl::flat_hash_set<int64_t> sources;
  absl::flat_hash_set<int64_t> targets;
  for (const PermutePair& pair : op.permutation) {
    for (const int64_t place : {pair.source, pair.target}) {
      if (place < 0 || place >= ranks) {
        return InvalidArgument(Reason::kBadField,
                               StrCat("the pair ", pair.source, ":", pair.target, " names place ",
                                      place, "; a group has the places 0 to ", ranks - 1),
                               {{fact::kField, "permutation"}, {fact::kValue, place}});
      }
    }
    if (!sources.insert(pair.source).second) {
      return InvalidArgument(
          Reason::kBadField,
          StrCat("place ", pair.source, " is the source of two pairs; use broadcast to reach all"),
          {{fact::kField, "permutation"}, {fact::kValue, pair.source}});
    }
    if (!targets.insert(pair.target).second) {
      return InvalidArgument(Reason::kBadField,
                             StrCat("place ", pair.target, " is the target of two pairs"),
                             {{fact::kField, "permutation"}, {fact::kValue, pair.target}});
    }
  }
  return absl::OkStatus();
}

absl::Status CheckCounts(const CollectiveOp& op, int64_t ranks) {
  if (op.counts.empty()) {
    return absl::OkStatus();
  }
  if (!SplitsTiles(op.kind)) {
    return InvalidArgument(Reason::kBadField,
                           StrCat("counts are given; reduce-scatter, all-to-all and scatter have "
                                  "them, not ",
                                  CollectiveKindName(op.kind)),
                           {{fact::kField, "counts"}});
  }
  if (static_cast<int64_t>(op.counts.size()) != ranks) {
    return InvalidArgument(Reason::kBadField,
                           StrCat(op.counts.size(), " counts are given for groups of ", ranks,
                                  " devices; give one for each place"),
                           {{fact::kField, "counts"}, {fact::kValue, op.counts.size()}});
  }
  for (const int64_t count : op.counts) {
    if (count < 1) {
      return InvalidArgument(Reason::kBadField,
                             StrCat("counts ", StrJoin(op.counts, ","),
                                    ": every part has at least one index, not ", count),
                             {{fact::kField, "counts"}, {fact::kValue, count}});
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
                         StrCat(what, " ", dimension, " is not one of the ", rank, " dimensions"),
                         {{fact::kDimension, dimension}, {fact::kLimit, rank}});
}

absl::Status CheckDimensions(const CollectiveOp& op, const Shape& tile) {
  if (HasDimension(op.kind)) {
    SHARDMESH_RETURN_IF_ERROR(CheckDimension("dimension", op.dimension, tile));
  }
  if (op.kind == CollectiveKind::kAllToAll) {
    SHARDMESH_RETURN_IF_ERROR(CheckDimension("split_dimension", op.split_dimension, tile));
    if (op.split_dimension == op.dimension) {
      return InvalidArgument(
          Reason::kInvalidDimension,
          StrCat("dimension and split_dimension are both ", op.dimension,
                 "; all-to-all joins one dimension and splits another: give two different ones"),
          {{fact::kDimension, op.dimension}});
    }
  }
  return absl::OkStatus();
}

// For types with several elements in a byte: checks that each of `ranks` equal parts of `tile`, cut
// along `dimension`, begins and ends at a whole byte. Ranks exchange such parts.
absl::Status CheckWholeBytes(Dtype dtype, const Shape& tile, int64_t dimension, int64_t ranks) {
  if (BitsPerElement(dtype) % 8 == 0 || ranks == 1) {
    return absl::OkStatus();
  }
  Tile part = Tile::Whole(tile);
  auto& range = part.ranges[static_cast<size_t>(dimension)];
  const int64_t extent = tile[static_cast<size_t>(dimension)] / ranks;
  range = {extent, 2 * extent};  // the second part; the other parts begin at multiples of `extent`
  if (const auto region = TileRegion::Create(dtype, tile, part); !region.ok()) {
    return InvalidArgument(
        Reason::kUnsupportedDtype,
        StrCat(DtypeName(dtype), " elements share bytes, and parts along dimension ", dimension,
               " of a tile of shape ", ShapeToString(tile), " would cut one"),
        {{fact::kDtype, DtypeName(dtype)}});
  }
  return absl::OkStatus();
}

// Checks that the tile can be split into equal parts if the op splits tiles into such parts. Checks
// that the joined tile is not too large if the op joins tiles. Requires dimensions that
// CheckDimensions accepts.
absl::Status CheckParts(const CollectiveOp& op, int64_t ranks, Dtype dtype, const Shape& tile) {
  if (SplitsTiles(op.kind) && op.counts.empty()) {
    const int64_t dimension = SplitDimension(op);
    const int64_t extent = tile[static_cast<size_t>(dimension)];
    if (extent % ranks != 0) {
      return InvalidArgument(
          Reason::kNotDivisible,
          StrCat("dimension ", dimension, " of a tile has ", extent, " elements; ",
                 StrJoin(op.axes, ","), "=", ranks, " does not divide it"),
          {{fact::kDimension, dimension},
           {fact::kHave, extent},
           {fact::kNeed, ranks},
           {fact::kAxis, StrJoin(op.axes, ",")}});
    }
    SHARDMESH_RETURN_IF_ERROR(CheckWholeBytes(dtype, tile, dimension, ranks));
  }
  if (JoinsTiles(op.kind)) {
    Shape joined = tile;
    int64_t& extent = joined[static_cast<size_t>(op.dimension)];
    if (__builtin_mul_overflow(extent, ranks, &extent)) {
      return InvalidArgument(
          Reason::kShapeMismatch, "the joined dimension is beyond 64 bits",
          {{fact::kDimension, op.dimension}, {fact::kOp, CollectiveKindName(op.kind)}});
    }
    SHARDMESH_RETURN_IF_ERROR(CheckWholeBytes(dtype, joined, op.dimension, ranks));
  }
  return absl::OkStatus();
}

absl::Status CheckChosenAlgorithm(const CollectiveOp& op) {
  return op.algorithm == CollectiveAlgorithm::kAuto
             ? absl::OkStatus()
             : CheckAlgorithm(op.kind, op.algorithm, op.order);
}

// Checks a collective whose operand or result has unequal tiles. Returns OK for all other
// collectives.
absl::Status CheckUnequal(const CollectiveOp& op, const Axes& axes,
                          const ValueDescriptor& operand) {
  if (operand.cut_points.empty() && op.counts.empty()) {
    return absl::OkStatus();
  }
  if (BitsPerElement(operand.dtype) % 8 != 0 && op.kind != CollectiveKind::kBarrier) {
    return InvalidArgument(
        Reason::kUnsupportedDtype,
        StrCat(DtypeName(operand.dtype),
               " elements share bytes; only equal tiles of them are exchanged"),
        {{fact::kDtype, DtypeName(operand.dtype)}, {fact::kOp, CollectiveKindName(op.kind)}});
  }
  for (size_t dim = 0; dim < operand.shape.size(); ++dim) {
    const bool is_joined = JoinsTiles(op.kind) && static_cast<int64_t>(dim) == op.dimension;
    if (!IsCut(operand, dim) || is_joined || op.kind == CollectiveKind::kBarrier) {
      continue;
    }
    for (const AxisName& axis : operand.spec.entry(static_cast<int64_t>(dim)).axes()) {
      if (Contains(axes, *axis)) {
        return InvalidArgument(
            Reason::kShapeMismatch,
            StrCat("dimension ", dim, " is cut at ", StrJoin(operand.cut_points[dim], ","),
                   " over ", operand.spec.ToString(), ": tiles along ", *axis,
                   " differ in size, and ", CollectiveKindName(op.kind),
                   " takes tiles of one size; all-gather the dimension first"),
            {{fact::kDimension, dim}, {fact::kOp, CollectiveKindName(op.kind)}});
      }
    }
  }
  return absl::OkStatus();
}

// Refuses products, minima and maxima of partial sums, which have no meaning.
absl::Status CheckPartialSums(const CollectiveOp& op, const ValueLayout& layout) {
  const bool is_linear = op.reduction == Reduction::kSum || op.reduction == Reduction::kMean;
  if (!IsReduction(op.kind) || is_linear || layout.unreduced.empty()) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      Reason::kInvalidSpec,
      StrCat("the operand's tiles are partial sums along ", StrJoin(layout.unreduced, ","),
             ", and a product, minimum or maximum of partial sums means nothing; sum over ",
             StrJoin(layout.unreduced, ","), " first"),
      {{fact::kAxis, StrJoin(layout.unreduced, ",")}});
}

// Refuses a permutation along an axis of replicas: the replicas would differ afterwards.
absl::Status CheckReplicas(const CollectiveOp& op, const Axes& axes, const ValueDescriptor& value,
                           const ValueLayout& layout) {
  if (op.kind != CollectiveKind::kPermute) {
    return absl::OkStatus();
  }
  for (const std::string& axis : axes) {
    const bool partitions =
        std::any_of(layout.dims.begin(), layout.dims.end(),
                    [&](const Axes& dimension) { return Contains(dimension, axis); });
    if (!partitions && !Contains(layout.unreduced, axis)) {
      return InvalidArgument(
          Reason::kInvalidSpec,
          StrCat("the operand, laid out as ", value.spec.ToString(), ", is replicated along ", axis,
                 ", and its replicas would differ afterwards; partition it over ", axis,
                 " first, or use broadcast"),
          {{fact::kAxis, axis}, {fact::kValue, value.spec.ToString()}});
    }
  }
  return absl::OkStatus();
}

// Checks that `axes` are the minor axes of the dimension that the op joins.
absl::Status CheckJoinedAxes(const CollectiveOp& op, const Axes& axes, const ValueDescriptor& value,
                             const ValueLayout& layout) {
  if (!JoinsTiles(op.kind)) {
    return absl::OkStatus();
  }
  const Axes& have = layout.dims[static_cast<size_t>(op.dimension)];
  if (have.size() >= axes.size() && std::equal(axes.rbegin(), axes.rend(), have.rbegin())) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      Reason::kInvalidSpec,
      StrCat("dimension ", op.dimension, " of ", value.spec.ToString(), " is not partitioned over ",
             StrJoin(axes, ","), " as its minor axes; there is nothing to ",
             op.kind == CollectiveKind::kAllToAll ? "exchange" : "gather"),
      {{fact::kDimension, op.dimension},
       {fact::kAxis, StrJoin(axes, ",")},
       {fact::kValue, value.spec.ToString()}});
}

}  // namespace

bool HasDimension(CollectiveKind kind) { return JoinsTiles(kind) || SplitsTiles(kind); }

bool HasRoot(CollectiveKind kind) {
  return kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce ||
         kind == CollectiveKind::kGather || kind == CollectiveKind::kScatter;
}

bool HasArithmetic(Dtype dtype) {
  return IsFloat(dtype) || dtype == Dtype::kI8 || dtype == Dtype::kU8 || dtype == Dtype::kI32 ||
         dtype == Dtype::kI64;
}

bool JoinsTiles(CollectiveKind kind) {
  return kind == CollectiveKind::kAllGather || kind == CollectiveKind::kGather ||
         kind == CollectiveKind::kAllToAll;
}

bool SplitsTiles(CollectiveKind kind) {
  return kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kScatter ||
         kind == CollectiveKind::kAllToAll;
}

int64_t SplitDimension(const CollectiveOp& op) {
  return op.kind == CollectiveKind::kAllToAll ? op.split_dimension : op.dimension;
}

absl::StatusOr<Axes> ExchangeAxes(const CollectiveOp& op, const Mesh& mesh) {
  if (op.axes.empty()) {
    return InvalidArgument(Reason::kMissingArgument,
                           "no mesh axes are given; name those to exchange along",
                           {{fact::kField, "axes"}});
  }
  Axes axes;
  for (const std::string& axis : op.axes) {
    if (!mesh.HasAxis(axis)) {
      return InvalidArgument(Reason::kAxisNotInMesh,
                             StrCat("axis '", axis, "' is not in the mesh ", mesh.ToString(),
                                    mesh.DidYouMeanAxis(axis)),
                             {{fact::kAxis, axis},
                              {fact::kMesh, mesh.ToString()},
                              {fact::kNearest, mesh.NearestAxis(axis)}});
    }
    if (std::count(op.axes.begin(), op.axes.end(), axis) > 1) {
      return InvalidArgument(Reason::kDuplicateAxis, StrCat("axis '", axis, "' is given twice"),
                             {{fact::kAxis, axis}});
    }
    if (AxesSize(mesh, {axis}) > 1) {
      axes.push_back(axis);
    }
  }
  return axes;
}

absl::Status CheckCollective(const CollectiveOp& op, const Axes& axes, const ValueDescriptor& value,
                             const Mesh& mesh) {
  const int64_t ranks = AxesSize(mesh, axes);
  const Shape tile = TileShape(mesh, value);
  SHARDMESH_RETURN_IF_ERROR(CheckArithmetic(op, value.dtype));
  SHARDMESH_RETURN_IF_ERROR(CheckRoot(op, ranks));
  SHARDMESH_RETURN_IF_ERROR(CheckPermutation(op, ranks));
  SHARDMESH_RETURN_IF_ERROR(CheckCounts(op, ranks));
  SHARDMESH_RETURN_IF_ERROR(CheckDimensions(op, tile));
  SHARDMESH_RETURN_IF_ERROR(CheckParts(op, ranks, value.dtype, tile));
  SHARDMESH_RETURN_IF_ERROR(CheckChosenAlgorithm(op));
  SHARDMESH_RETURN_IF_ERROR(CheckUnequal(op, axes, value));
  const ValueLayout layout = LayoutOf(mesh, value);
  SHARDMESH_RETURN_IF_ERROR(CheckPartialSums(op, layout));
  SHARDMESH_RETURN_IF_ERROR(CheckReplicas(op, axes, value, layout));
  return CheckJoinedAxes(op, axes, value, layout);
}

absl::StatusOr<CutPoints> SplitPoints(const CollectiveOp& op, int64_t ranks,
                                      const ValueDescriptor& value, size_t dim, const Mesh& mesh) {
  const CutPoints outer = PointsOf(mesh, value, dim);
  CutPoints points = {0};
  for (size_t part = 1; part < outer.size(); ++part) {
    const int64_t extent = outer[part] - outer[part - 1];
    if (op.counts.empty() && extent % ranks != 0) {
      return InvalidArgument(
          Reason::kNotDivisible,
          StrCat("dimension ", dim, " of a tile has ", extent, " elements; ", StrJoin(op.axes, ","),
                 "=", ranks, " does not divide it; give counts to split it unequally"),
          {{fact::kDimension, dim},
           {fact::kHave, extent},
           {fact::kNeed, ranks},
           {fact::kAxis, StrJoin(op.axes, ",")}});
    }
    int64_t left = extent;
    for (int64_t place = 0; place < ranks; ++place) {
      const int64_t count =
          op.counts.empty() ? extent / ranks : op.counts[static_cast<size_t>(place)];
      left -= std::min(left, count - 1) + 1;  // below 0 if fewer than `count` indices are left
      if (left < 0) {
        break;
      }
      points.push_back(outer[part] - left);
    }
    if (left != 0) {
      return InvalidArgument(
          Reason::kShapeMismatch,
          StrCat("counts ", StrJoin(op.counts, ","), " do not add up to the ", extent,
                 " elements that dimension ", dim, " of a tile has"),
          {{fact::kDimension, dim}, {fact::kHave, StrJoin(op.counts, ",")}, {fact::kNeed, extent}});
    }
  }
  return points;
}

}  // namespace shardmesh
