// Reads boxes of the tensor in the file, converts them, and pastes them into the tile.
#include "worker/fill/converted_tile.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "process/crc32c.h"
#include "status/status_macros.h"
#include "tensor/checkpoint/converted_tensor.h"
#include "tensor/view.h"

namespace shardmesh::worker {
namespace {

// The most bytes of one box, in the file and in the tile.
constexpr int64_t kBoxBytes = int64_t{1} << 20;
// A box has runs of so many elements in the file, and as many rows of it as make runs of so many
// elements in the tile, before it grows in other dimensions: the reads are then long enough, and
// the runs that are pasted fill cache lines.
constexpr int64_t kRunElements = 4'096;
constexpr int64_t kRunRows = 64;
// The bytes of which the checksum is computed between two calls of keep_going.
constexpr size_t kSumBytes = size_t{4} << 20;

// The indexes of the tile in the dimensions of the tensor in the file.
Tile InFile(const ConvertedTile& tile) {
  const std::vector<size_t>& permutation = tile.conversion.permutation;
  if (permutation.empty()) return tile.tile;
  Tile region = tile.tile;
  for (size_t dim = 0; dim < permutation.size(); ++dim) {
    region.ranges[permutation[dim]] = tile.tile.ranges[dim];
  }
  return region;
}

// Returns the extents of the boxes in which `region` of the tensor in the file is read, each with
// at most `max_elements` elements. `last`: the dimension in the file of the tile's last one.
Shape BoxExtents(const Tile& region, size_t last, int64_t max_elements) {
  const size_t rank = region.ranges.size();
  Shape extents(rank, 1);
  int64_t elements = 1;
  const auto grow = [&](size_t dim, int64_t most) {
    const int64_t rest = elements / extents[dim];
    const int64_t extent = std::min({region.ranges[dim].size(), most, max_elements / rest});
    if (extent <= extents[dim]) return;
    extents[dim] = extent;
    elements = rest * extent;
  };
  if (rank > 0) grow(rank - 1, kRunElements);
  if (last + 1 < rank) grow(last, kRunRows);
  for (size_t dim = rank; dim-- > 0;) grow(dim, region.ranges[dim].size());
  return extents;
}

// Calls visit(box) for boxes of these extents, smaller at the ends, that together are `region`, in
// row-major order. Ends with the first error. Requires a region that is not empty.
template <typename Visit>
absl::Status ForEachBox(const Tile& region, const Shape& extents, Visit visit) {
  Tile box = region;
  const auto set = [&](size_t dim, int64_t start) {
    box.ranges[dim] = {start, std::min(region.ranges[dim].stop, start + extents[dim])};
  };
  const size_t rank = region.ranges.size();
  for (size_t dim = 0; dim < rank; ++dim) set(dim, region.ranges[dim].start);
  for (;;) {
    SHARDMESH_RETURN_IF_ERROR(visit(box));
    size_t dim = rank;
    while (dim > 0 && box.ranges[dim - 1].stop == region.ranges[dim - 1].stop) {
      --dim;
      set(dim, region.ranges[dim].start);
    }
    if (dim == 0) return absl::OkStatus();
    set(dim - 1, box.ranges[dim - 1].stop);
  }
}

// The box in the dimensions of the tile's tensor, relative to the tile.
Tile InTile(const ConvertedTile& tile, const Tile& box) {
  const std::vector<size_t>& permutation = tile.conversion.permutation;
  Tile part = box;
  for (size_t dim = 0; dim < part.ranges.size(); ++dim) {
    const IndexRange& range = box.ranges[permutation.empty() ? dim : permutation[dim]];
    const int64_t start = tile.tile.ranges[dim].start;
    part.ranges[dim] = {range.start - start, range.stop - start};
  }
  return part;
}

int64_t BytesOf(Dtype dtype) { return std::max(1, BitsPerElement(dtype) / 8); }

}  // namespace

absl::StatusOr<SourceRegion> SourceOf(const ConvertedTile& tile) {
  SHARDMESH_ASSIGN_OR_RETURN(Shape shape, ShapeInFile(tile.conversion, tile.dtype, tile.shape));
  return SourceRegion{.dtype = tile.conversion.dtype,
                      .shape = std::move(shape),
                      .tile = InFile(tile),
                      .offset_bytes = tile.offset_bytes};
}

absl::StatusOr<uint32_t> ReadConverted(const RootedFile& file, std::string_view path,
                                       const ConvertedTile& tile, FileTileReader& reader,
                                       absl::Span<char> out, const KeepGoing& keep_going,
                                       const std::function<void(int64_t bytes)>& progress) {
  const Dtype from = tile.conversion.dtype;
  SHARDMESH_ASSIGN_OR_RETURN(const Shape shape,
                             ShapeInFile(tile.conversion, tile.dtype, tile.shape));
  SHARDMESH_ASSIGN_OR_RETURN(const MutableTensorView made,
                             MutableTensorView::Create(tile.dtype, tile.tile.shape(), out));
  const Conversion conversion{.permutation = tile.conversion.permutation, .dtype = tile.dtype};
  std::vector<char> read;
  std::vector<char> converted;
  const auto convert = [&](const Tile& box) -> absl::Status {
    SHARDMESH_ASSIGN_OR_RETURN(const TileRegion region, TileRegion::Create(from, shape, box));
    read.resize(static_cast<size_t>(region.size_bytes()));
    SHARDMESH_RETURN_IF_ERROR(reader.ReadPart(file, path, tile.offset_bytes, region,
                                              /*begin_bytes=*/0, absl::MakeSpan(read), keep_going));
    SHARDMESH_ASSIGN_OR_RETURN(const TensorView source,
                               TensorView::Create(from, box.shape(), absl::MakeConstSpan(read)));
    SHARDMESH_ASSIGN_OR_RETURN(const std::shared_ptr<const ConvertedTensor> tensor,
                               ConvertedTensor::Create(source, conversion));
    const Tile part = InTile(tile, box);
    SHARDMESH_ASSIGN_OR_RETURN(const TileRegion place,
                               TileRegion::Create(tile.dtype, made.shape(), part));
    const auto size = static_cast<size_t>(place.size_bytes());
    if (place.contiguous()) {
      SHARDMESH_RETURN_IF_ERROR(
          tensor->Fill(Tile::Whole(tensor->shape()), 0,
                       out.subspan(static_cast<size_t>(place.offset_bytes()), size)));
    } else {
      converted.resize(size);
      SHARDMESH_RETURN_IF_ERROR(
          tensor->Fill(Tile::Whole(tensor->shape()), 0, absl::MakeSpan(converted)));
      SHARDMESH_RETURN_IF_ERROR(PasteTileBytes(converted, part, 0, made));
    }
    if (progress) progress(place.size_bytes());
    return absl::OkStatus();
  };
  const int64_t max_elements = kBoxBytes / std::max(BytesOf(from), BytesOf(tile.dtype));
  if (out.empty()) {
    // Refuses a tensor beyond the end of the file all the same.
    SHARDMESH_ASSIGN_OR_RETURN(const TileRegion region,
                               TileRegion::Create(from, shape, InFile(tile)));
    SHARDMESH_RETURN_IF_ERROR(
        reader.ReadPart(file, path, tile.offset_bytes, region, 0, {}, keep_going));
  } else {
    const Tile region = InFile(tile);
    const size_t rank = shape.size();
    const std::vector<size_t>& permutation = tile.conversion.permutation;
    const size_t last = permutation.empty() ? rank : permutation[rank - 1];
    SHARDMESH_RETURN_IF_ERROR(ForEachBox(region, BoxExtents(region, last, max_elements), convert));
  }
  uint32_t crc = 0;
  for (absl::Span<const char> left = out; !left.empty();) {
    const absl::Span<const char> piece = left.subspan(0, kSumBytes);
    SHARDMESH_RETURN_IF_ERROR(keep_going());
    crc = ExtendCrc32c(crc, piece);
    left.remove_prefix(piece.size());
  }
  SHARDMESH_RETURN_IF_ERROR(CheckUnchanged(file, path));
  return crc;
}

}  // namespace shardmesh::worker
