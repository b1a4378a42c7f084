// Views of tensors in memory, and copies of tiles between them.
#ifndef SHARDMESH_TENSOR_VIEW_H_
#define SHARDMESH_TENSOR_VIEW_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/shape.h"
#include "sharding/tile.h"
#include "tensor/dtype.h"

namespace shardmesh {

// A tensor of `dtype` and `shape` whose elements are row-major, little-endian and without gaps in
// `bytes`. The view does not own `bytes`, which must outlive it. Byte is char or const char.
// Copying a view copies no element.
template <typename Byte>
class BasicTensorView {
 public:
  // INVALID_ARGUMENT for a bad shape, or if the size of `bytes` differs from the tensor's
  // (SHAPE_MISMATCH).
  static absl::StatusOr<BasicTensorView> Create(Dtype dtype, Shape shape, absl::Span<Byte> bytes);

  Dtype dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  absl::Span<Byte> bytes() const { return bytes_; }
  int64_t size_bytes() const { return static_cast<int64_t>(bytes_.size()); }

 private:
  BasicTensorView(Dtype dtype, Shape shape, absl::Span<Byte> bytes)
      : dtype_(dtype), shape_(std::move(shape)), bytes_(bytes) {}

  Dtype dtype_;
  Shape shape_;
  absl::Span<Byte> bytes_;
};

using TensorView = BasicTensorView<const char>;
using MutableTensorView = BasicTensorView<char>;

// Runs of equal length at regular distances, in bits or in bytes. Immutable once made, and safe to
// share between threads.
struct TileRuns {
  // A dimension along which runs repeat, or several such dimensions merged into one.
  struct Loop {
    int64_t count = 0;
    int64_t stride = 0;
  };

  // Calls visit(tensor_offset, size) for each stretch of the tensor that the units [begin, end) of
  // the tile occupy, in the tile's order. Requires that the range is within the tile.
  template <typename Visit>
  void ForEach(int64_t begin, int64_t end, Visit visit) const;

  int64_t offset = 0;                  // of the first run in the tensor
  int64_t run = 0;                     // length of each run
  std::array<Loop, kMaxRank> loops{};  // outermost first
  size_t loop_count = 0;
};

// The bytes of a tile within the bytes of a row-major tensor: runs of equal length at regular
// distances. The runs are as few and as long as possible.
//
// Example: rows [2,4) of an F32 tensor of shape (8, 16) are one run of 128 bytes at offset 128;
// columns [4,8) are eight runs of 16 bytes, 64 bytes apart.
// Immutable, and safe to share between threads. Construction takes O(rank).
class TileRegion {
 public:
  // INVALID_ARGUMENT for a shape that CheckShape refuses, or for a tensor of a sub-byte type that
  // does not fill whole bytes (INVALID_SHAPE). BAD_TILE for a tile whose rank differs from the
  // shape's, or which is not within the shape. BAD_TILE also for a tile of a sub-byte type whose
  // runs would start or end within a byte.
  static absl::StatusOr<TileRegion> Create(Dtype dtype, absl::Span<const int64_t> tensor_shape,
                                           const Tile& tile);

  // Return the size of the tile and the size of the tensor.
  int64_t size_bytes() const { return size_bytes_; }
  int64_t tensor_size_bytes() const { return tensor_size_bytes_; }
  // Returns whether the tile is one run, without gaps.
  bool contiguous() const { return runs_.loop_count == 0; }
  // Return the offset of the first run in the tensor, and the length of each run. Both are 0 for an
  // empty tile.
  int64_t offset_bytes() const { return runs_.offset; }
  int64_t run_bytes() const { return runs_.run; }

  // Calls visit(tensor_offset_bytes, size_bytes) for each stretch of the tensor that bytes
  // [begin, end) of the tile occupy, in the tile's order.
  // Requires 0 <= begin <= end <= size_bytes().
  template <typename Visit>
  void ForEachRun(int64_t begin, int64_t end, Visit visit) const {
    runs_.ForEach(begin, end, visit);
  }

 private:
  friend class TileBits;
  TileRegion() = default;

  int64_t size_bytes_ = 0;
  int64_t tensor_size_bytes_ = 0;
  TileRuns runs_;  // in bytes
};

// The bits of a tile within the bits of a row-major tensor, as TileRegion for bytes. Bit i of a
// tensor is bit i % 8 of its byte i / 8, the lowest bit first. The tile by itself is packed densely
// in row-major order from bit 0 on, and the rest of its last byte is zero.
//
// Example: columns [1,3) of an F4 tensor of shape (2, 4) are two runs of 8 bits, at bits 4 and 20.
// Immutable, and safe to share between threads. Construction takes O(rank).
class TileBits {
 public:
  // Errors of TileRegion::Create, but takes tiles and tensors that begin or end within a byte.
  static absl::StatusOr<TileBits> Create(Dtype dtype, absl::Span<const int64_t> tensor_shape,
                                         const Tile& tile);

  // Return the size of the tile and the size of the tensor. A size in bytes has the padding.
  int64_t size_bits() const { return size_bits_; }
  int64_t size_bytes() const { return size_bits_ / 8 + (size_bits_ % 8 != 0 ? 1 : 0); }
  int64_t tensor_size_bits() const { return tensor_size_bits_; }

  // Returns the same tile in bytes; nullopt if it or the tensor begins or ends within a byte.
  std::optional<TileRegion> InBytes() const;

  // Calls visit(tensor_offset_bits, size_bits) for each stretch of the tensor that bits [begin,
  // end) of the tile occupy, in the tile's order. Requires 0 <= begin <= end <= size_bits().
  template <typename Visit>
  void ForEachRun(int64_t begin, int64_t end, Visit visit) const {
    runs_.ForEach(begin, end, visit);
  }

 private:
  TileBits() = default;

  int64_t size_bits_ = 0;
  int64_t tensor_size_bits_ = 0;
  TileRuns runs_;  // in bits
};

// Returns the bytes of `tile` if they are contiguous, ready to be sent without a copy; else
// nullopt. A tile that begins or ends within a byte is not contiguous. Errors of TileBits::Create.
absl::StatusOr<std::optional<absl::Span<const char>>> ContiguousTileBytes(const TensorView& tensor,
                                                                          const Tile& tile);

// Copies bytes [offset_bytes, offset_bytes + out.size()) of the row-major `tile` out of `tensor`.
// The tile is packed as TileBits says. Errors of TileBits::Create; INVALID_ARGUMENT (BAD_TILE) if
// the range is not within the tile.
absl::Status CopyTileBytes(const TensorView& tensor, const Tile& tile, int64_t offset_bytes,
                           absl::Span<char> out);

// Writes `bytes` into `tensor`, as bytes [offset_bytes, offset_bytes + bytes.size()) of the
// row-major `tile`. Errors as CopyTileBytes. The bits of other elements stay as they are. The bits
// after the last element of `tensor` become zero with that element. Hence pieces and tiles may come
// in any order, and the memory may hold anything before.
//
// Threads may write disjoint tiles of one tensor at the same time, even if these share bytes: see
// CopyBits.
absl::Status PasteTileBytes(absl::Span<const char> bytes, const Tile& tile, int64_t offset_bytes,
                            const MutableTensorView& tensor);

// Copies `region` from one tile of a tensor to another: `from` contains the tile `from_tile`, `to`
// contains `to_tile`. The ranges of both tiles and of `region` are relative to the whole tensor.
// The memory of the two views must not overlap. Errors are INVALID_ARGUMENT: SHAPE_MISMATCH if the
// element types differ or a view does not have its tile's shape; BAD_TILE if `region` is not within
// both tiles. An empty region of their rank is within every tile, whatever its other ranges. Other
// bits of `to`, and threads: as with PasteTileBytes.
//
// Example: from_tile [0,4)x[0,16), to_tile [0,8)x[8,16), region [0,4)x[8,16): the right half of
// `from` becomes the upper half of `to`.
absl::Status CopyTile(const TensorView& from, const Tile& from_tile, const MutableTensorView& to,
                      const Tile& to_tile, const Tile& region);

template <typename Visit>
void TileRuns::ForEach(int64_t begin, int64_t end, Visit visit) const {
  if (begin >= end) {
    return;
  }
  // Find the run that contains `begin`: one index for each loop, the last loop fastest.
  std::array<int64_t, kMaxRank> index{};
  int64_t run_offset = offset;
  int64_t run_number = begin / run;
  for (size_t i = loop_count; i-- > 0;) {
    index[i] = run_number % loops[i].count;
    run_number /= loops[i].count;
    run_offset += index[i] * loops[i].stride;
  }
  int64_t skip = begin % run;
  for (int64_t left = end - begin;;) {
    const int64_t size = std::min(left, run - skip);
    visit(run_offset + skip, size);
    left -= size;
    if (left == 0) {
      return;
    }
    skip = 0;
    for (size_t i = loop_count; i-- > 0;) {
      run_offset += loops[i].stride;
      if (++index[i] < loops[i].count) {
        break;
      }
      run_offset -= loops[i].count * loops[i].stride;
      index[i] = 0;
    }
  }
}

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_VIEW_H_
