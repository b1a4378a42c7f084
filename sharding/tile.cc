// Maps a device's position to its ranges, and a range to its holders.
#include "sharding/tile.h"

#include <utility>

#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

absl::Status CheckCutPoints(const CutPoints& points, int64_t dim, int64_t extent, int64_t parts) {
  const auto refuse = [&, dim](std::string_view why) {
    return InvalidArgument(Reason::kInvalidCutPoints,
                           StrCat("cut points of dimension ", dim, ": ", why),
                           {{fact::kDimension, dim}, {fact::kValue, StrJoin(points, ",")}});
  };
  if (static_cast<int64_t>(points.size()) != parts + 1) {
    const int64_t made = std::max<int64_t>(std::ssize(points) - 1, 0);
    return refuse(StrCat("they make ", made, made == 1 ? " part" : " parts",
                         ", and the spec cuts the dimension into ", parts,
                         parts == 1 ? " part" : " parts"));
  }
  if (points.front() != 0 || points.back() != extent) {
    return refuse(StrCat("they run from ", points.front(), " to ", points.back(),
                         " and must run from 0 to the extent, ", extent));
  }
  for (size_t i = 1; i < points.size(); ++i) {
    if (points[i] < points[i - 1]) {
      return refuse(StrCat(points[i], " follows ", points[i - 1],
                           "; they must not fall (two equal ones make an empty part)"));
    }
  }
  return absl::OkStatus();
}

bool AreEqualParts(const CutPoints& points) {
  for (size_t i = 1; i < points.size(); ++i) {
    if (points[i] - points[i - 1] != points[1] - points[0]) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::vector<CutPoints> WithoutEqualParts(std::vector<CutPoints> cut_points) {
  bool has_points = false;
  for (CutPoints& points : cut_points) {
    if (AreEqualParts(points)) {
      points.clear();
    }
    has_points = has_points || !points.empty();
  }
  return has_points ? cut_points : std::vector<CutPoints>();
}

Tile Tile::Whole(absl::Span<const int64_t> shape) {
  Tile tile;
  for (const int64_t extent : shape) {
    tile.ranges.push_back({0, extent});
  }
  return tile;
}

Shape Tile::shape() const {
  Shape shape;
  for (const IndexRange& range : ranges) {
    shape.push_back(range.size());
  }
  return shape;
}

int64_t Tile::element_count() const {
  // Return before the product if a range is empty: the other extents alone may overflow int64_t.
  if (std::any_of(ranges.begin(), ranges.end(),
                  [](const IndexRange& range) { return range.size() == 0; })) {
    return 0;
  }
  int64_t count = 1;
  for (const IndexRange& range : ranges) {
    count *= range.size();
  }
  return count;
}

std::string Tile::ToString() const {
  if (ranges.empty()) {
    return "()";
  }
  return StrJoin(ranges, "x", [](std::string* out, const IndexRange& range) {
    StrAppend(out, "[", range.start, ",", range.stop, ")");
  });
}

std::optional<Tile> Intersect(const Tile& a, const Tile& b) {
  Tile common;
  for (size_t dim = 0; dim < a.ranges.size(); ++dim) {
    const IndexRange range = {std::max(a.ranges[dim].start, b.ranges[dim].start),
                              std::min(a.ranges[dim].stop, b.ranges[dim].stop)};
    if (range.start >= range.stop) {
      return std::nullopt;
    }
    common.ranges.push_back(range);
  }
  return common;
}

Tiling::Tiling(const Mesh& mesh, const PartitionSpec& spec, Shape shape)
    : mesh_(mesh), spec_(spec), shape_(std::move(shape)), dimensions_(shape_.size()) {
  absl::InlinedVector<bool, 6> cuts(static_cast<size_t>(mesh.axis_count()), false);
  for (size_t dim = 0; dim < dimensions_.size(); ++dim) {
    if (shape_[dim] == 0) {
      continue;  // its axes cut nothing: the dimension is one empty part, held by every device
    }
    Dimension& dimension = dimensions_[dim];
    for (const AxisName& name : spec_.entry(static_cast<int64_t>(dim)).axes()) {
      const int64_t axis = *mesh.FindAxis(*name);
      cuts[static_cast<size_t>(axis)] = true;
      dimension.digits.push_back(
          {mesh.stride(axis), mesh.axes()[static_cast<size_t>(axis)].size, 1});
    }
    for (auto digit = dimension.digits.rbegin(); digit != dimension.digits.rend(); ++digit) {
      digit->weight = dimension.part_count;
      dimension.part_count *= digit->size;
    }
  }
  for (int64_t axis = mesh.axis_count() - 1; axis >= 0; --axis) {
    if (!cuts[static_cast<size_t>(axis)]) {
      const int64_t size = mesh.axes()[static_cast<size_t>(axis)].size;
      replica_digits_.push_back({mesh.stride(axis), size, replica_count_});
      replica_count_ *= size;
    }
  }
}

absl::StatusOr<Tiling> Tiling::Create(const Mesh& mesh, const PartitionSpec& spec, Shape shape,
                                      std::vector<CutPoints> cut_points) {
  if (mesh.empty()) {
    return WithReason(
        absl::FailedPreconditionError("a tensor cannot be placed on a mesh without devices"),
        Reason::kNoMesh);
  }
  SHARDMESH_RETURN_IF_ERROR(CheckShape(shape));
  SHARDMESH_RETURN_IF_ERROR(CheckDistinctAxes(spec));
  SHARDMESH_RETURN_IF_ERROR(CheckAxesInMesh(spec, mesh));
  const auto rank = static_cast<int64_t>(shape.size());
  if (spec.size() > rank) {
    return InvalidArgument(Reason::kRankMismatch,
                           StrCat("the spec ", spec.ToString(), " is for ", spec.size(),
                                  " dimensions or more and the shape ", ShapeToString(shape),
                                  " has ", rank, "; shorten the spec"),
                           {{fact::kHave, spec.size()}, {fact::kNeed, rank}});
  }
  if (!cut_points.empty() && static_cast<int64_t>(cut_points.size()) != rank) {
    return InvalidArgument(
        Reason::kInvalidCutPoints,
        StrCat("there are cut points for ", cut_points.size(), " dimensions and the shape ",
               ShapeToString(shape), " has ", rank),
        {{fact::kHave, cut_points.size()}, {fact::kNeed, rank}});
  }

  Tiling tiling(mesh, spec, std::move(shape));
  tiling.fully_replicated_ = shardmesh::FullyReplicated(spec, mesh);
  for (int64_t dim = 0; dim < rank; ++dim) {
    Dimension& dimension = tiling.dimensions_[static_cast<size_t>(dim)];
    const int64_t extent = tiling.shape_[static_cast<size_t>(dim)];
    if (!cut_points.empty() && !cut_points[static_cast<size_t>(dim)].empty()) {
      CutPoints& points = cut_points[static_cast<size_t>(dim)];
      SHARDMESH_RETURN_IF_ERROR(CheckCutPoints(points, dim, extent, dimension.part_count));
      if (!AreEqualParts(points)) {
        dimension.cut_points = std::move(points);
        tiling.equal_tiles_ = false;
      }
    } else if (extent % dimension.part_count != 0) {
      return InvalidArgument(
          Reason::kNotDivisible,
          StrCat("dimension ", dim, " of the shape ", ShapeToString(tiling.shape_), " is ", extent,
                 ", which its ", dimension.part_count, " parts over ", spec.entry(dim).ToString(),
                 " of the mesh ", mesh.ToString(),
                 " do not divide; pad it, or drop axes from the spec"),
          {{fact::kDimension, dim},
           {fact::kHave, extent},
           {fact::kNeed, dimension.part_count},
           {fact::kAxis, spec.entry(dim).AxisNames()}});
    }
  }
  return tiling;
}

int64_t Tiling::PartOf(DeviceId device, int64_t dim) const {
  int64_t part = 0;
  for (const Digit& digit : dimensions_[static_cast<size_t>(dim)].digits) {
    part += device / digit.stride % digit.size * digit.weight;
  }
  return part;
}

Tile Tiling::TileOf(DeviceId device) const {
  Tile tile;
  for (int64_t dim = 0; dim < rank(); ++dim) {
    tile.ranges.push_back(PartRange(dim, PartOf(device, dim)));
  }
  return tile;
}

int64_t Tiling::ReplicaIdOf(DeviceId device) const {
  int64_t replica = 0;
  for (const Digit& digit : replica_digits_) {
    replica += device / digit.stride % digit.size * digit.weight;
  }
  return replica;
}

int64_t Tiling::PartCount(int64_t dim) const {
  return dimensions_[static_cast<size_t>(dim)].part_count;
}

const CutPoints& Tiling::cut_points(int64_t dim) const {
  return dimensions_[static_cast<size_t>(dim)].cut_points;
}

IndexRange Tiling::PartRange(int64_t dim, int64_t part) const {
  const Dimension& dimension = dimensions_[static_cast<size_t>(dim)];
  if (!dimension.cut_points.empty()) {
    return {dimension.cut_points[static_cast<size_t>(part)],
            dimension.cut_points[static_cast<size_t>(part) + 1]};
  }
  const int64_t extent = shape_[static_cast<size_t>(dim)] / dimension.part_count;
  return {part * extent, (part + 1) * extent};
}

int64_t Tiling::PartHolding(int64_t dim, int64_t index) const {
  const Dimension& dimension = dimensions_[static_cast<size_t>(dim)];
  if (dimension.cut_points.empty()) {
    return index / (shape_[static_cast<size_t>(dim)] / dimension.part_count);
  }
  // The last of several equal points begins the part that is not empty.
  const auto above =
      std::upper_bound(dimension.cut_points.begin(), dimension.cut_points.end(), index);
  return above - dimension.cut_points.begin() - 1;
}

Shape Tiling::ShardShape() const {
  Shape shape;
  for (int64_t dim = 0; dim < rank(); ++dim) {
    int64_t largest = PartRange(dim, 0).size();
    const CutPoints& points = dimensions_[static_cast<size_t>(dim)].cut_points;
    for (size_t i = 1; i < points.size(); ++i) {
      largest = std::max(largest, points[i] - points[i - 1]);
    }
    shape.push_back(largest);
  }
  return shape;
}

std::vector<DeviceId> Tiling::Holders(DeviceId base) const {
  std::vector<DeviceId> devices;
  devices.reserve(static_cast<size_t>(replica_count_));
  for (int64_t replica = 0; replica < replica_count_; ++replica) {
    DeviceId device = base;
    for (const Digit& digit : replica_digits_) {
      device += replica / digit.weight % digit.size * digit.stride;
    }
    devices.push_back(device);
  }
  return devices;
}

OwnedTile Tiling::ReplicaGroup(int64_t tile) const {
  OwnedTile group;
  group.tile.ranges.resize(shape_.size());
  DeviceId base = 0;
  for (size_t dim = dimensions_.size(); dim-- > 0;) {
    const int64_t part = tile % dimensions_[dim].part_count;
    tile /= dimensions_[dim].part_count;
    group.tile.ranges[dim] = PartRange(static_cast<int64_t>(dim), part);
    for (const Digit& digit : dimensions_[dim].digits) {
      base += part / digit.weight % digit.size * digit.stride;
    }
  }
  group.devices = Holders(base);
  return group;
}

int64_t Tiling::TileNumberOf(DeviceId device) const {
  int64_t number = 0;
  for (int64_t dim = 0; dim < rank(); ++dim) {
    number = number * PartCount(dim) + PartOf(device, dim);
  }
  return number;
}

std::vector<OwnedTile> Tiling::OwnersOf(const Tile& range) const {
  std::vector<OwnedTile> owned;
  if (range.empty()) {
    return owned;
  }
  struct Parts {
    int64_t first;
    int64_t last;
    int64_t current;
  };
  absl::InlinedVector<Parts, 6> parts;
  for (int64_t dim = 0; dim < rank(); ++dim) {
    const IndexRange& wanted = range.ranges[static_cast<size_t>(dim)];
    const int64_t first = PartHolding(dim, wanted.start);
    parts.push_back({first, PartHolding(dim, wanted.stop - 1), first});
  }
  // Visit every combination of parts, with the last dimension fastest.
  while (true) {
    OwnedTile piece;
    DeviceId base = 0;
    for (int64_t dim = 0; dim < rank(); ++dim) {
      const int64_t part = parts[static_cast<size_t>(dim)].current;
      const IndexRange& wanted = range.ranges[static_cast<size_t>(dim)];
      const IndexRange held = PartRange(dim, part);
      piece.tile.ranges.push_back(
          {std::max(held.start, wanted.start), std::min(held.stop, wanted.stop)});
      for (const Digit& digit : dimensions_[static_cast<size_t>(dim)].digits) {
        base += part / digit.weight % digit.size * digit.stride;
      }
    }
    piece.devices = Holders(base);
    owned.push_back(std::move(piece));

    int64_t dim = rank() - 1;
    while (dim >= 0 &&
           parts[static_cast<size_t>(dim)].current == parts[static_cast<size_t>(dim)].last) {
      parts[static_cast<size_t>(dim)].current = parts[static_cast<size_t>(dim)].first;
      --dim;
    }
    if (dim < 0) {
      return owned;
    }
    // The first and the last part are not empty; parts between them may be.
    int64_t& current = parts[static_cast<size_t>(dim)].current;
    do {
      ++current;
    } while (PartRange(dim, current).size() == 0);
  }
}

}  // namespace shardmesh
