// Computes the runs of bytes that a tile occupies in a tensor, and copies tiles.
#include "tensor/view.h"

#include <algorithm>
#include <string>

#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/copy.h"

namespace shardmesh {
namespace {

absl::Status BadTile(std::string message) { return InvalidArgument(Reason::kBadTile, message); }

absl::Status CheckPiece(const TileRegion& region, const Tile& tile, int64_t offset_bytes,
                        size_t size_bytes) {
  if (offset_bytes < 0 || offset_bytes > region.size_bytes() ||
      size_bytes > static_cast<size_t>(region.size_bytes() - offset_bytes)) {
    return BadTile(StrCat(size_bytes, " bytes at offset ", offset_bytes, " are not within the ",
                          region.size_bytes(), " bytes of tile ", tile.ToString()));
  }
  return absl::OkStatus();
}

// Returns `tile` relative to `frame`. BAD_TILE if `tile` is not within `frame`.
absl::StatusOr<Tile> Within(const Tile& tile, const Tile& frame, std::string_view which) {
  Tile local = tile;
  bool within = tile.ranges.size() == frame.ranges.size();
  for (size_t i = 0; within && i < frame.ranges.size(); ++i) {
    local.ranges[i].start -= frame.ranges[i].start;
    local.ranges[i].stop -= frame.ranges[i].start;
    within = local.ranges[i].start >= 0 && local.ranges[i].start <= local.ranges[i].stop &&
             local.ranges[i].stop <= frame.ranges[i].size();
  }
  if (!within) {
    return BadTile(StrCat("region ", tile.ToString(), " is not within the ", which, " tile ",
                          frame.ToString()));
  }
  return local;
}

// Returns whether `region` has no element, `rank` dimensions and no falling range.
bool IsEmptyRegion(const Tile& region, size_t rank) {
  return region.ranges.size() == rank && region.empty() &&
         std::all_of(region.ranges.begin(), region.ranges.end(),
                     [](const IndexRange& range) { return range.start <= range.stop; });
}

template <typename Byte>
absl::Status CheckHolds(const BasicTensorView<Byte>& view, const Tile& tile,
                        std::string_view which) {
  if (view.shape() != tile.shape()) {
    return InvalidArgument(
        Reason::kShapeMismatch,
        StrCat("the ", which, " view has shape ", ShapeToString(view.shape()), ", its tile ",
               tile.ToString(), " has ", ShapeToString(tile.shape())),
        {{fact::kHave, ShapeToString(view.shape())}, {fact::kNeed, ShapeToString(tile.shape())}});
  }
  return absl::OkStatus();
}

}  // namespace

template <typename Byte>
absl::StatusOr<BasicTensorView<Byte>> BasicTensorView<Byte>::Create(Dtype dtype, Shape shape,
                                                                    absl::Span<Byte> bytes) {
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(shape));
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t size_bytes, PackedSizeBytes(dtype, elements));
  if (static_cast<size_t>(size_bytes) != bytes.size()) {
    return InvalidArgument(Reason::kShapeMismatch,
                           StrCat(DtypeName(dtype), " of shape ", ShapeToString(shape), " takes ",
                                  size_bytes, " bytes, not ", bytes.size()),
                           {{fact::kHave, bytes.size()}, {fact::kNeed, size_bytes}});
  }
  return BasicTensorView(dtype, std::move(shape), bytes);
}

template class BasicTensorView<const char>;
template class BasicTensorView<char>;

absl::StatusOr<TileRegion> TileRegion::Create(Dtype dtype, absl::Span<const int64_t> tensor_shape,
                                              const Tile& tile) {
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t tensor_elements, ElementCount(tensor_shape));
  const size_t rank = tensor_shape.size();
  if (tile.ranges.size() != rank) {
    return BadTile(StrCat("tile ", tile.ToString(), " has ", tile.ranges.size(),
                          " dimensions, the tensor of shape ", ShapeToString(tensor_shape), " has ",
                          rank));
  }
  for (size_t i = 0; i < rank; ++i) {
    const IndexRange& range = tile.ranges[i];
    if (range.start < 0 || range.start > range.stop || range.stop > tensor_shape[i]) {
      return BadTile(StrCat("tile ", tile.ToString(), " is not within the shape ",
                            ShapeToString(tensor_shape), ": dimension ", i));
    }
  }
  TileRegion region;
  SHARDMESH_ASSIGN_OR_RETURN(region.tensor_size_bytes_, PackedSizeBytes(dtype, tensor_elements));
  const int64_t tile_elements = tile.element_count();
  if (tile_elements == 0) {
    return region;
  }
  // Compute runs and strides from the innermost dimension outwards, in bits. The numbers of bits
  // cannot overflow, because the number of bits of the whole tensor does not. If the tile covers a
  // dimension entirely, the next outer dimension extends the run.
  const int64_t element_bits = BitsPerElement(dtype);
  int64_t run_bits = element_bits;
  int64_t stride_bits = element_bits;
  int64_t offset_bits = 0;
  bool whole_bytes = true;
  for (size_t i = rank; i-- > 0;) {
    const IndexRange& range = tile.ranges[i];
    offset_bits += range.start * stride_bits;
    if (run_bits == stride_bits) {
      run_bits = range.size() * stride_bits;
    } else if (range.size() > 1) {
      whole_bytes = whole_bytes && stride_bits % 8 == 0;
      const int64_t stride_bytes = stride_bits / 8;
      Loop& inner = region.loops_[region.loop_count_ == 0 ? 0 : region.loop_count_ - 1];
      if (region.loop_count_ > 0 && inner.count * inner.stride_bytes == stride_bytes) {
        inner.count *= range.size();
      } else {
        region.loops_[region.loop_count_++] = {range.size(), stride_bytes};
      }
    }
    stride_bits *= tensor_shape[i];
  }
  std::reverse(region.loops_.begin(), region.loops_.begin() + region.loop_count_);
  if (!whole_bytes || run_bits % 8 != 0 || offset_bits % 8 != 0) {
    return BadTile(StrCat("tile ", tile.ToString(), " of a ", DtypeName(dtype), " tensor of shape ",
                          ShapeToString(tensor_shape), " does not start and end at whole bytes"));
  }
  region.size_bytes_ = tile_elements * element_bits / 8;
  region.run_bytes_ = run_bits / 8;
  region.offset_bytes_ = offset_bits / 8;
  return region;
}

absl::StatusOr<std::optional<absl::Span<const char>>> ContiguousTileBytes(const TensorView& tensor,
                                                                          const Tile& tile) {
  SHARDMESH_ASSIGN_OR_RETURN(const TileRegion region,
                             TileRegion::Create(tensor.dtype(), tensor.shape(), tile));
  std::optional<absl::Span<const char>> bytes;
  if (region.contiguous()) {
    bytes = tensor.bytes().subspan(static_cast<size_t>(region.offset_bytes()),
                                   static_cast<size_t>(region.size_bytes()));
  }
  return bytes;
}

absl::Status CopyTileBytes(const TensorView& tensor, const Tile& tile, int64_t offset_bytes,
                           absl::Span<char> out) {
  SHARDMESH_ASSIGN_OR_RETURN(const TileRegion region,
                             TileRegion::Create(tensor.dtype(), tensor.shape(), tile));
  SHARDMESH_RETURN_IF_ERROR(CheckPiece(region, tile, offset_bytes, out.size()));
  char* to = out.data();
  region.ForEachRun(offset_bytes, offset_bytes + static_cast<int64_t>(out.size()),
                    [&](int64_t from, int64_t size) {
                      CopyBytes(to, tensor.bytes().data() + from, static_cast<size_t>(size));
                      to += size;
                    });
  return absl::OkStatus();
}

absl::Status PasteTileBytes(absl::Span<const char> bytes, const Tile& tile, int64_t offset_bytes,
                            const MutableTensorView& tensor) {
  SHARDMESH_ASSIGN_OR_RETURN(const TileRegion region,
                             TileRegion::Create(tensor.dtype(), tensor.shape(), tile));
  SHARDMESH_RETURN_IF_ERROR(CheckPiece(region, tile, offset_bytes, bytes.size()));
  const char* from = bytes.data();
  region.ForEachRun(offset_bytes, offset_bytes + static_cast<int64_t>(bytes.size()),
                    [&](int64_t to, int64_t size) {
                      CopyBytes(tensor.bytes().data() + to, from, static_cast<size_t>(size));
                      from += size;
                    });
  return absl::OkStatus();
}

absl::Status CopyTile(const TensorView& from, const Tile& from_tile, const MutableTensorView& to,
                      const Tile& to_tile, const Tile& region) {
  if (from.dtype() != to.dtype()) {
    return InvalidArgument(
        Reason::kShapeMismatch,
        StrCat("cannot copy a tile of ", DtypeName(from.dtype()), " into one of ",
               DtypeName(to.dtype())),
        {{fact::kHave, DtypeName(from.dtype())}, {fact::kNeed, DtypeName(to.dtype())}});
  }
  SHARDMESH_RETURN_IF_ERROR(CheckHolds(from, from_tile, "source"));
  SHARDMESH_RETURN_IF_ERROR(CheckHolds(to, to_tile, "destination"));
  // The ranges of an empty part of uneven cuts may lie outside both tiles: it is within every tile.
  if (from_tile.ranges.size() == to_tile.ranges.size() &&
      IsEmptyRegion(region, from_tile.ranges.size())) {
    return absl::OkStatus();
  }
  SHARDMESH_ASSIGN_OR_RETURN(const Tile source, Within(region, from_tile, "source"));
  SHARDMESH_ASSIGN_OR_RETURN(const Tile destination, Within(region, to_tile, "destination"));
  SHARDMESH_ASSIGN_OR_RETURN(const TileRegion read,
                             TileRegion::Create(from.dtype(), from.shape(), source));
  SHARDMESH_ASSIGN_OR_RETURN(const TileRegion write,
                             TileRegion::Create(to.dtype(), to.shape(), destination));
  // Iterate over the longer runs in the outer loop. The inner loop then locates its first run less
  // often.
  const char* source_bytes = from.bytes().data();
  char* destination_bytes = to.bytes().data();
  int64_t done = 0;
  if (read.run_bytes() >= write.run_bytes()) {
    read.ForEachRun(0, read.size_bytes(), [&](int64_t read_offset, int64_t size) {
      write.ForEachRun(done, done + size, [&](int64_t write_offset, int64_t part) {
        CopyBytes(destination_bytes + write_offset, source_bytes + read_offset,
                  static_cast<size_t>(part));
        read_offset += part;
      });
      done += size;
    });
  } else {
    write.ForEachRun(0, write.size_bytes(), [&](int64_t write_offset, int64_t size) {
      read.ForEachRun(done, done + size, [&](int64_t read_offset, int64_t part) {
        CopyBytes(destination_bytes + write_offset, source_bytes + read_offset,
                  static_cast<size_t>(part));
        write_offset += part;
      });
      done += size;
    });
  }
  return absl::OkStatus();
}

}  // namespace shardmesh
