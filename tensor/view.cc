// Computes the runs of bytes that a tile occupies in a tensor, and copies tiles.
#include "tensor/view.h"

#include <algorithm>
#include <string>

#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/bit_copy.h"
#include "tensor/copy.h"

namespace shardmesh {
namespace {

absl::Status BadTile(std::string message) { return InvalidArgument(Reason::kBadTile, message); }

absl::Status CheckPiece(const TileBits& region, const Tile& tile, int64_t offset_bytes,
                        size_t size_bytes) {
  if (offset_bytes < 0 || offset_bytes > region.size_bytes() ||
      size_bytes > static_cast<size_t>(region.size_bytes() - offset_bytes)) {
    return BadTile(StrCat(size_bytes, " bytes at offset ", offset_bytes, " are not within the ",
                          region.size_bytes(), " bytes of tile ", tile.ToString()));
  }
  return absl::OkStatus();
}

// Returns the bit at which byte `end_bytes` of the packed tile begins, or the tile's end if that is
// earlier: the last byte may have padding.
int64_t EndBit(const TileBits& bits, int64_t end_bytes) {
  return end_bytes == bits.size_bytes() ? bits.size_bits() : 8 * end_bytes;
}

struct BitPlace {
  const char* bytes;
  int64_t bit;
};

// Copies `bits` bits to bit `to_bit` of a tensor of `tensor_bits`. Clears the padding behind the
// tensor's last element with that element.
void WriteRun(const BitPlace& from, int64_t to_bit, int64_t bits, int64_t tensor_bits, char* to) {
  CopyBits(to, to_bit, from.bytes, from.bit, bits);
  if (to_bit + bits == tensor_bits) ClearBits(to, tensor_bits, (8 - tensor_bits % 8) % 8);
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
  SHARDMESH_ASSIGN_OR_RETURN(const TileBits bits, TileBits::Create(dtype, tensor_shape, tile));
  if (std::optional<TileRegion> region = bits.InBytes(); region.has_value()) return *region;
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t tensor_elements, ElementCount(tensor_shape));
  SHARDMESH_RETURN_IF_ERROR(WholeSizeBytes(dtype, tensor_elements).status());
  return BadTile(StrCat("tile ", tile.ToString(), " of a ", DtypeName(dtype), " tensor of shape ",
                        ShapeToString(tensor_shape), " does not start and end at whole bytes"));
}

absl::StatusOr<TileBits> TileBits::Create(Dtype dtype, absl::Span<const int64_t> tensor_shape,
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
  // The numbers of bits below cannot overflow, because that of the whole tensor does not.
  SHARDMESH_RETURN_IF_ERROR(PackedSizeBytes(dtype, tensor_elements).status());
  const int64_t element_bits = BitsPerElement(dtype);
  TileBits bits;
  bits.tensor_size_bits_ = tensor_elements * element_bits;
  const int64_t tile_elements = tile.element_count();
  if (tile_elements == 0) {
    return bits;
  }
  // Compute runs and strides from the innermost dimension outwards. If the tile covers a dimension
  // entirely, the next outer dimension extends the run.
  TileRuns& runs = bits.runs_;
  runs.run = element_bits;
  int64_t stride = element_bits;
  for (size_t i = rank; i-- > 0;) {
    const IndexRange& range = tile.ranges[i];
    runs.offset += range.start * stride;
    if (runs.run == stride) {
      runs.run = range.size() * stride;
    } else if (range.size() > 1) {
      TileRuns::Loop& inner = runs.loops[runs.loop_count == 0 ? 0 : runs.loop_count - 1];
      if (runs.loop_count > 0 && inner.count * inner.stride == stride) {
        inner.count *= range.size();
      } else {
        runs.loops[runs.loop_count++] = {range.size(), stride};
      }
    }
    stride *= tensor_shape[i];
  }
  std::reverse(runs.loops.begin(), runs.loops.begin() + runs.loop_count);
  bits.size_bits_ = tile_elements * element_bits;
  return bits;
}

std::optional<TileRegion> TileBits::InBytes() const {
  bool has_whole_bytes = tensor_size_bits_ % 8 == 0 && runs_.run % 8 == 0 && runs_.offset % 8 == 0;
  TileRegion region;
  region.size_bytes_ = size_bits_ / 8;
  region.tensor_size_bytes_ = tensor_size_bits_ / 8;
  region.runs_ = runs_;
  region.runs_.offset /= 8;
  region.runs_.run /= 8;
  for (size_t i = 0; i < runs_.loop_count; ++i) {
    has_whole_bytes = has_whole_bytes && runs_.loops[i].stride % 8 == 0;
    region.runs_.loops[i].stride /= 8;
  }
  return has_whole_bytes ? std::optional(region) : std::nullopt;
}

absl::StatusOr<std::optional<absl::Span<const char>>> ContiguousTileBytes(const TensorView& tensor,
                                                                          const Tile& tile) {
  SHARDMESH_ASSIGN_OR_RETURN(const TileBits bits,
                             TileBits::Create(tensor.dtype(), tensor.shape(), tile));
  const std::optional<TileRegion> region = bits.InBytes();
  std::optional<absl::Span<const char>> bytes;
  if (region.has_value() && region->contiguous()) {
    bytes = tensor.bytes().subspan(static_cast<size_t>(region->offset_bytes()),
                                   static_cast<size_t>(region->size_bytes()));
  }
  return bytes;
}

absl::Status CopyTileBytes(const TensorView& tensor, const Tile& tile, int64_t offset_bytes,
                           absl::Span<char> out) {
  SHARDMESH_ASSIGN_OR_RETURN(const TileBits bits,
                             TileBits::Create(tensor.dtype(), tensor.shape(), tile));
  SHARDMESH_RETURN_IF_ERROR(CheckPiece(bits, tile, offset_bytes, out.size()));
  if (out.empty()) return absl::OkStatus();
  const int64_t end_bytes = offset_bytes + static_cast<int64_t>(out.size());
  if (const std::optional<TileRegion> region = bits.InBytes(); region.has_value()) {
    char* to = out.data();
    region->ForEachRun(offset_bytes, end_bytes, [&](int64_t from, int64_t size) {
      CopyBytes(to, tensor.bytes().data() + from, static_cast<size_t>(size));
      to += size;
    });
    return absl::OkStatus();
  }
  out.back() = 0;  // the padding of the tile's last byte
  int64_t to_bit = 0;
  bits.ForEachRun(8 * offset_bytes, EndBit(bits, end_bytes), [&](int64_t from_bit, int64_t size) {
    CopyBits(out.data(), to_bit, tensor.bytes().data(), from_bit, size);
    to_bit += size;
  });
  return absl::OkStatus();
}

absl::Status PasteTileBytes(absl::Span<const char> bytes, const Tile& tile, int64_t offset_bytes,
                            const MutableTensorView& tensor) {
  SHARDMESH_ASSIGN_OR_RETURN(const TileBits bits,
                             TileBits::Create(tensor.dtype(), tensor.shape(), tile));
  SHARDMESH_RETURN_IF_ERROR(CheckPiece(bits, tile, offset_bytes, bytes.size()));
  if (bytes.empty()) return absl::OkStatus();
  const int64_t end_bytes = offset_bytes + static_cast<int64_t>(bytes.size());
  if (const std::optional<TileRegion> region = bits.InBytes(); region.has_value()) {
    const char* from = bytes.data();
    region->ForEachRun(offset_bytes, end_bytes, [&](int64_t to, int64_t size) {
      CopyBytes(tensor.bytes().data() + to, from, static_cast<size_t>(size));
      from += size;
    });
    return absl::OkStatus();
  }
  int64_t from_bit = 0;
  bits.ForEachRun(8 * offset_bytes, EndBit(bits, end_bytes), [&](int64_t to_bit, int64_t size) {
    WriteRun({bytes.data(), from_bit}, to_bit, size, bits.tensor_size_bits(),
             tensor.bytes().data());
    from_bit += size;
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
  SHARDMESH_ASSIGN_OR_RETURN(const TileBits read_bits,
                             TileBits::Create(from.dtype(), from.shape(), source));
  SHARDMESH_ASSIGN_OR_RETURN(const TileBits write_bits,
                             TileBits::Create(to.dtype(), to.shape(), destination));
  const std::optional<TileRegion> read = read_bits.InBytes();
  const std::optional<TileRegion> write = write_bits.InBytes();
  const char* source_bytes = from.bytes().data();
  char* destination_bytes = to.bytes().data();
  int64_t done = 0;
  if (!read.has_value() || !write.has_value()) {
    read_bits.ForEachRun(0, read_bits.size_bits(), [&](int64_t read_bit, int64_t size) {
      write_bits.ForEachRun(done, done + size, [&](int64_t write_bit, int64_t part) {
        WriteRun({source_bytes, read_bit}, write_bit, part, write_bits.tensor_size_bits(),
                 destination_bytes);
        read_bit += part;
      });
      done += size;
    });
    return absl::OkStatus();
  }
  // Iterate over the longer runs in the outer loop. The inner loop then locates its first run less
  // often.
  if (read->run_bytes() >= write->run_bytes()) {
    read->ForEachRun(0, read->size_bytes(), [&](int64_t read_offset, int64_t size) {
      write->ForEachRun(done, done + size, [&](int64_t write_offset, int64_t part) {
        CopyBytes(destination_bytes + write_offset, source_bytes + read_offset,
                  static_cast<size_t>(part));
        read_offset += part;
      });
      done += size;
    });
  } else {
    write->ForEachRun(0, write->size_bytes(), [&](int64_t write_offset, int64_t size) {
      read->ForEachRun(done, done + size, [&](int64_t read_offset, int64_t part) {
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
