// Bands of tiles.
#include "client/remote/row_bands.h"

#include <algorithm>
#include <utility>

namespace shardmesh::client {

RowBands::RowBands(Dtype dtype, Tile tile, int64_t max_bytes)
    : tile_(std::move(tile)), is_over_(tile_.element_count() == 0), band_(tile_) {
  if (is_over_ || tile_.ranges.empty()) return;
  const int64_t bits = BitsPerElement(dtype);
  // The size of one index of dimension `cut_` in bits. It fits, because the whole tile's does.
  int64_t index_bits = bits;
  cut_ = tile_.ranges.size() - 1;
  while (cut_ > 0) {
    const IndexRange& inner = tile_.ranges[cut_];
    const int64_t outer_bits = index_bits * (inner.stop - inner.start);
    if (outer_bits / 8 > max_bytes) break;
    index_bits = outer_bits;
    --cut_;
  }
  // The elements may have less than 8 bits. If a band is a part of a row, it must end with a whole
  // byte.
  while (cut_ > 0) {
    const IndexRange& inner = tile_.ranges[cut_];
    const int64_t outer_bits = index_bits * (inner.stop - inner.start);
    if (outer_bits % 8 == 0) break;
    index_bits = outer_bits;
    --cut_;
  }
  indexes_ = std::max<int64_t>(max_bytes / std::max<int64_t>(index_bits / 8, 1), 1);
  if (index_bits % 8 != 0) indexes_ = std::max<int64_t>(indexes_ / 8 * 8, 8);
  for (size_t dim = 0; dim < cut_; ++dim) band_.ranges[dim].stop = band_.ranges[dim].start + 1;
  IndexRange& range = band_.ranges[cut_];
  range.stop = std::min(range.stop, range.start + std::min(indexes_, range.stop - range.start));
}

std::optional<Tile> RowBands::Next() {
  if (is_over_) return std::nullopt;
  Tile next = band_;
  // Counts up, as the digits of a number.
  is_over_ = true;
  for (size_t dim = tile_.ranges.empty() ? 0 : cut_ + 1; dim-- > 0;) {
    const IndexRange& all = tile_.ranges[dim];
    IndexRange& range = band_.ranges[dim];
    const int64_t step = dim == cut_ ? indexes_ : 1;
    if (range.stop < all.stop) {
      range.start = range.stop;
      range.stop = range.start + std::min(step, all.stop - range.start);
      is_over_ = false;
      break;
    }
    range.start = all.start;
    range.stop = all.start + std::min(step, all.stop - all.start);
  }
  return next;
}

}  // namespace shardmesh::client
