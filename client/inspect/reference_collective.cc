// Reference results of collectives: the tiles of each device, from those of its group.
#include "client/inspect/reference_collective.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "client/inspect/reference_program.h"
#include "client/types/array.h"
#include "program/collective_check.h"
#include "program/plan_builder.h"
#include "program/value_layout.h"
#include "sharding/device_group.h"
#include "sharding/tile.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/elementwise.h"

namespace shardmesh::client {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

size_t SizeOf(const Tile& tile) { return static_cast<size_t>(tile.element_count()); }

// Calls `visit(i, j)` for each element of the tile, in row-major order: its number in the tile, and
// in a tensor of this shape that has the tile. Stops at the tile's end.
template <typename Visit>
void ForEachElement(const Tile& tile, const Shape& shape, const Visit& visit) {
  const size_t size = SizeOf(tile);
  if (size == 0) return;
  const size_t rank = shape.size();
  std::vector<int64_t> strides(rank, 1);
  for (size_t dim = rank; dim-- > 1;) strides[dim - 1] = strides[dim] * shape[dim];
  std::vector<int64_t> index(rank);
  int64_t place = 0;
  for (size_t dim = 0; dim < rank; ++dim) {
    index[dim] = tile.ranges[dim].start;
    place += index[dim] * strides[dim];
  }
  for (size_t i = 0; i < size; ++i) {
    visit(i, static_cast<size_t>(place));
    for (size_t dim = rank; dim-- > 0;) {
      place += strides[dim];
      if (++index[dim] < tile.ranges[dim].stop) break;
      place -= tile.ranges[dim].size() * strides[dim];
      index[dim] = tile.ranges[dim].start;
    }
  }
}

BoundedTensor ZerosOf(Dtype dtype, Shape shape) {
  const size_t size = SizeOf(Tile::Whole(shape));
  return {.dtype = dtype,
          .shape = std::move(shape),
          .values = std::vector<double>(size),
          .bounds = std::vector<double>(size)};
}

// Returns the elements of the tile.
BoundedTensor Cut(const BoundedTensor& tensor, const Tile& tile) {
  BoundedTensor part = ZerosOf(tensor.dtype, tile.shape());
  ForEachElement(tile, tensor.shape, [&](size_t i, size_t place) {
    part.values[i] = tensor.values[place];
    part.bounds[i] = tensor.bound(place);
  });
  return part;
}

// Puts `part` into the tile of the tensor.
void Paste(const BoundedTensor& part, const Tile& tile, BoundedTensor* tensor) {
  ForEachElement(tile, tensor->shape, [&](size_t i, size_t place) {
    tensor->values[place] = part.values[i];
    tensor->bounds[place] = part.bounds[i];
  });
}

// Joins tensors that differ in the extent of this dimension at most.
BoundedTensor Concatenate(const std::vector<BoundedTensor>& parts, size_t dimension) {
  Shape shape = parts.front().shape;
  shape[dimension] = 0;
  for (const BoundedTensor& part : parts) shape[dimension] += part.shape[dimension];
  BoundedTensor joined = ZerosOf(parts.front().dtype, shape);
  Tile tile = Tile::Whole(shape);
  int64_t start = 0;
  for (const BoundedTensor& part : parts) {
    tile.ranges[dimension] = {start, start + part.shape[dimension]};
    Paste(part, tile, &joined);
    start += part.shape[dimension];
  }
  return joined;
}

// Returns the integer of a type with these bits, whose lowest bits are those of `bits`.
BoundedNumber IntegerOf(Dtype dtype, uint64_t bits) {
  const int64_t width = BitsPerElement(dtype);
  if (width < 64) {
    return {WrapInteger(dtype, static_cast<double>(bits & ((uint64_t{1} << width) - 1))), 0};
  }
  const auto value = static_cast<double>(static_cast<int64_t>(bits));
  return {value, RoundedBound(dtype, value, 0)};
}

// Sums and products of integers wrap, so that their order does not matter.
BoundedNumber CombinedIntegers(Dtype dtype, Reduction reduction,
                               const std::vector<BoundedNumber>& terms) {
  uint64_t bits = reduction == Reduction::kProduct ? 1 : 0;
  for (const BoundedNumber& term : terms) {
    if (term.bound != 0) return {term.value, kInfinity};
    const auto factor = static_cast<uint64_t>(static_cast<int64_t>(term.value));
    bits = reduction == Reduction::kProduct ? bits * factor : bits + factor;
  }
  return IntegerOf(dtype, bits);
}

BoundedNumber ExtremeOf(Reduction reduction, const std::vector<BoundedNumber>& terms) {
  BoundedNumber extreme = terms.front();
  for (const BoundedNumber& term : terms) {
    extreme.value = reduction == Reduction::kMin ? std::min(extreme.value, term.value)
                                                 : std::max(extreme.value, term.value);
    extreme.bound = std::max(extreme.bound, std::isnan(term.value) ? kInfinity : term.bound);
  }
  return extreme;
}

BoundedNumber ProductOfAll(Dtype dtype, const std::vector<BoundedNumber>& terms) {
  const Precision computed = ComputedPrecisionOf(dtype);
  BoundedNumber product{.value = 1};
  // The product of the factors above 1, and that of those below. Products of some factors lie
  // between the two.
  double largest = 1;
  double least = 1;
  for (const BoundedNumber& term : terms) {
    if (term.bound != 0) return {term.value, kInfinity};
    const double magnitude = std::abs(term.value);
    product.value *= term.value;
    largest *= std::max(magnitude, 1.0);
    if (magnitude != 0) least *= std::min(magnitude, 1.0);
  }
  const double count = static_cast<double>(terms.size());
  // Beyond the normal numbers, the order decides what is lost.
  const bool is_normal = largest < computed.largest && least > computed.tiny;
  product.bound =
      is_normal ? SumError(count, computed.roundoff) * std::abs(product.value) : kInfinity;
  return product;
}

BoundedNumber SumOfAll(Dtype dtype, Reduction reduction, const std::vector<BoundedNumber>& terms) {
  const Precision computed = ComputedPrecisionOf(dtype);
  const auto count = static_cast<double>(terms.size());
  BoundedNumber sum;
  double magnitudes = 0;
  for (const BoundedNumber& term : terms) {
    sum.value += term.value;
    sum.bound += term.bound;
    magnitudes += std::abs(term.value) + term.bound;
  }
  if (!(magnitudes < computed.largest)) return {sum.value, kInfinity};
  sum.bound += SumError(count, computed.roundoff) * magnitudes + count * computed.tiny;
  if (reduction == Reduction::kMean) {
    sum.value /= count;
    sum.bound = sum.bound / count + 3 * computed.roundoff * std::abs(sum.value) + computed.tiny;
  }
  return sum;
}

// Returns what a reduction makes of the elements of all places.
BoundedNumber Combined(Dtype dtype, Reduction reduction, const std::vector<BoundedNumber>& terms) {
  if (terms.size() == 1) return terms.front();
  if (reduction == Reduction::kMin || reduction == Reduction::kMax) {
    return ExtremeOf(reduction, terms);
  }
  if (!IsFloat(dtype)) return CombinedIntegers(dtype, reduction, terms);
  const BoundedNumber exact = reduction == Reduction::kProduct ? ProductOfAll(dtype, terms)
                                                               : SumOfAll(dtype, reduction, terms);
  return {exact.value, RoundedBound(dtype, exact.value, exact.bound)};
}

// Combines tensors of one shape, element by element.
template <typename TensorOf>
BoundedTensor CombinedTensors(Reduction reduction, size_t count, const TensorOf& tensor) {
  BoundedTensor result = ZerosOf(tensor(0).dtype, tensor(0).shape);
  std::vector<BoundedNumber> terms(count);
  for (size_t i = 0; i < result.size(); ++i) {
    for (size_t place = 0; place < count; ++place) {
      terms[place] = {tensor(place).values[i], tensor(place).bound(i)};
    }
    const BoundedNumber combined = Combined(result.dtype, reduction, terms);
    result.values[i] = combined.value;
    result.bounds[i] = combined.bound;
  }
  return result;
}

// Computes the tile of one device from those of its group.
class GroupTile {
 public:
  GroupTile(const CollectiveOp& op, const DeviceGroup& group, const Tiling& tiling,
            const ArrayDescriptor& array, absl::Span<const BoundedTensorPtr> sums)
      : op_(op), group_(group), tiling_(tiling), array_(array), sums_(sums) {}

  BoundedTensor Result() const {
    const bool is_root = group_.place() == op_.root;
    switch (op_.kind) {
      case CollectiveKind::kAllReduce:
        return Reduced();
      case CollectiveKind::kReduceScatter:
        return PartOf(Reduced(), SplitDimension(op_), group_.place());
      case CollectiveKind::kReduce:
        return is_root ? Reduced() : Zeros(Reduced());
      case CollectiveKind::kAllGather:
        return Joined();
      case CollectiveKind::kGather:
        return is_root ? Joined() : Zeros(Joined());
      case CollectiveKind::kAllToAll:
        return Exchanged();
      case CollectiveKind::kBroadcast:
        return TileAt(op_.root);
      case CollectiveKind::kScatter:
        return PartOf(TileAt(op_.root), SplitDimension(op_), group_.place());
      case CollectiveKind::kPermute:
        return Permuted();
      case CollectiveKind::kBarrier:
        break;
    }
    return TileAt(group_.place());
  }

 private:
  static BoundedTensor Zeros(const BoundedTensor& like) { return ZerosOf(like.dtype, like.shape); }

  // Returns what the device at this place of the group has.
  BoundedTensor TileAt(int64_t place) const {
    const DeviceId device = group_.device_at(place);
    return Cut(*sums_[static_cast<size_t>(PartialSumOf(array_, device))], tiling_.TileOf(device));
  }

  std::vector<BoundedTensor> Tiles() const {
    std::vector<BoundedTensor> tiles;
    for (int64_t place = 0; place < group_.size(); ++place) tiles.push_back(TileAt(place));
    return tiles;
  }

  BoundedTensor Reduced() const {
    const std::vector<BoundedTensor> tiles = Tiles();
    return CombinedTensors(op_.reduction, tiles.size(),
                           [&](size_t place) -> const BoundedTensor& { return tiles[place]; });
  }

  BoundedTensor Joined() const { return Concatenate(Tiles(), static_cast<size_t>(op_.dimension)); }

  BoundedTensor Exchanged() const {
    std::vector<BoundedTensor> parts;
    for (const BoundedTensor& tile : Tiles()) {
      parts.push_back(PartOf(tile, SplitDimension(op_), group_.place()));
    }
    return Concatenate(parts, static_cast<size_t>(op_.dimension));
  }

  BoundedTensor Permuted() const {
    for (const PermutePair& pair : op_.permutation) {
      if (pair.target == group_.place()) return TileAt(pair.source);
    }
    return Zeros(TileAt(group_.place()));
  }

  // Returns the part of the place along the dimension.
  BoundedTensor PartOf(const BoundedTensor& tile, int64_t dimension, int64_t place) const {
    Tile part = Tile::Whole(tile.shape);
    IndexRange& range = part.ranges[static_cast<size_t>(dimension)];
    const int64_t equal = range.stop / group_.size();
    int64_t start = equal * place;
    int64_t size = equal;
    if (!op_.counts.empty()) {
      start = 0;
      for (int64_t before = 0; before < place; ++before) {
        start += op_.counts[static_cast<size_t>(before)];
      }
      size = op_.counts[static_cast<size_t>(place)];
    }
    range = {start, start + size};
    return Cut(tile, part);
  }

  const CollectiveOp& op_;
  const DeviceGroup& group_;
  const Tiling& tiling_;
  const ArrayDescriptor& array_;
  const absl::Span<const BoundedTensorPtr> sums_;
};

absl::StatusOr<ValueDescriptor> LayoutAfter(const CollectiveOp& op, const Mesh& mesh,
                                            const ValueDescriptor& input) {
  PlanTarget target;
  target.mesh = mesh;
  PlanBuilder builder(target, {&input, 1});
  builder.Name(CollectiveKindName(op.kind));
  SHARDMESH_ASSIGN_OR_RETURN(const ValueIndex result, builder.AddCollective(op, 0));
  return builder.value(result);
}

}  // namespace

ArrayDescriptor DescriptorOf(const Mesh& mesh, const ValueDescriptor& layout) {
  ArrayDescriptor array;
  array.dtype = layout.dtype;
  array.shape = layout.shape;
  array.spec = layout.spec;
  array.mesh = mesh;
  array.cut_points = layout.cut_points;
  return array;
}

absl::StatusOr<LaidOutTensor> ReferenceCollective(const CollectiveOp& op,
                                                  const LaidOutTensor& input) {
  const Mesh& mesh = input.mesh;
  SHARDMESH_ASSIGN_OR_RETURN(ValueDescriptor layout, LayoutAfter(op, mesh, input.layout));
  SHARDMESH_ASSIGN_OR_RETURN(const Axes axes, ExchangeAxes(op, mesh));
  if (axes.empty()) return input;  // every group is one device
  LaidOutTensor result{.mesh = mesh, .layout = std::move(layout), .sums = {}};
  const ArrayDescriptor before = DescriptorOf(mesh, input.layout);
  const ArrayDescriptor after = DescriptorOf(mesh, result.layout);
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling_before, before.Tiling());
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling_after, after.Tiling());
  std::vector<BoundedTensor> sums(static_cast<size_t>(PartialSumCount(after)),
                                  ZerosOf(result.layout.dtype, result.layout.shape));
  std::set<std::pair<int64_t, int64_t>> made;  // partial sum and number of the tile
  for (DeviceId device = 0; device < mesh.size(); ++device) {
    const int64_t sum = PartialSumOf(after, device);
    if (!made.emplace(sum, tiling_after.TileNumberOf(device)).second) continue;
    SHARDMESH_ASSIGN_OR_RETURN(const DeviceGroup group, DeviceGroup::Create(mesh, axes, device));
    const BoundedTensor own = GroupTile(op, group, tiling_before, before, input.sums).Result();
    const Tile tile = tiling_after.TileOf(device);
    if (own.shape != tile.shape()) {
      return absl::InternalError(StrCat("device ", device, " should have a tile of shape ",
                                        ShapeToString(tile.shape()), ", and gets one of ",
                                        ShapeToString(own.shape)));
    }
    Paste(own, tile, &sums[static_cast<size_t>(sum)]);
  }
  for (BoundedTensor& sum : sums) {
    result.sums.push_back(std::make_shared<const BoundedTensor>(std::move(sum)));
  }
  return result;
}

absl::Status CheckCollectiveSize(const CollectiveOp& op, const Mesh& mesh,
                                 const ValueDescriptor& input) {
  SHARDMESH_ASSIGN_OR_RETURN(const ValueDescriptor output, LayoutAfter(op, mesh, input));
  SHARDMESH_ASSIGN_OR_RETURN(const Axes axes, ExchangeAxes(op, mesh));
  const auto elements = [&](const ValueDescriptor& value) {
    double count = static_cast<double>(PartialSumCount(DescriptorOf(mesh, value)));
    for (const int64_t extent : value.shape) count *= static_cast<double>(extent);
    return count;
  };
  SHARDMESH_RETURN_IF_ERROR(CheckReferenceLimit(elements(input) + elements(output),
                                                kMaxReferenceElements,
                                                "elements in all values, partial sums included"));
  // Each distinct tile of the result is made from the tiles of a group.
  return CheckReferenceLimit(
      (elements(input) + elements(output)) * static_cast<double>(AxesSize(mesh, axes)),
      kMaxReferenceWork, "additions and copies of elements");
}

BoundedTensorPtr SumOf(absl::Span<const BoundedTensorPtr> sums) {
  if (sums.size() == 1) return sums.front();
  return std::make_shared<const BoundedTensor>(
      CombinedTensors(Reduction::kSum, sums.size(),
                      [&](size_t place) -> const BoundedTensor& { return *sums[place]; }));
}

BoundedTensorPtr RoundedSumOf(absl::Span<const BoundedTensorPtr> sums) {
  if (sums.size() == 1) return sums.front();
  const Dtype dtype = sums.front()->dtype;
  if (!IsFloat(dtype)) return SumOf(sums);
  const Precision precision = PrecisionOf(dtype);
  BoundedTensor result = ZerosOf(dtype, sums.front()->shape);
  for (size_t i = 0; i < result.size(); ++i) {
    for (const BoundedTensorPtr& sum : sums) {
      result.values[i] += sum->values[i];
      // A number that was rounded may have been larger by this factor than it is now.
      result.bounds[i] +=
          sum->bound(i) + 1.01 * precision.roundoff * std::abs(sum->values[i]) + precision.tiny;
    }
  }
  return std::make_shared<const BoundedTensor>(std::move(result));
}

}  // namespace shardmesh::client
