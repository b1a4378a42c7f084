// UndoLog: copies of regions, in the order in which they were kept.
#include "worker/step/undo_log.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "sharding/tile.h"
#include "tensor/dtype.h"

namespace shardmesh::worker {
namespace {

// Adds a region, which begins at the end of the last one or behind it.
void AddRegion(const ByteRegion& region, std::vector<ByteRegion>* to) {
  if (!to->empty() && to->back().offset_bytes + to->back().size_bytes == region.offset_bytes) {
    to->back().size_bytes += region.size_bytes;
  } else {
    to->push_back(region);
  }
}

// Returns the rows of the tile at the positions of one sequence: rising, each once, counted from
// the tile's first row. `first` is the number of the sequence's first position.
std::vector<int64_t> RowsAt(const OpInput& positions, int64_t first, int64_t count,
                            const IndexRange& rows) {
  std::vector<int64_t> found;
  for (int64_t i = first; i < first + count; ++i) {
    int32_t position = 0;
    std::memcpy(&position, positions.bytes.data() + i * static_cast<int64_t>(sizeof(position)),
                sizeof(position));
    if (position >= rows.start && position < rows.stop) found.push_back(position - rows.start);
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

}  // namespace

int64_t TotalBytes(absl::Span<const ByteRegion> regions) {
  int64_t total = 0;
  for (const ByteRegion& region : regions) total += region.size_bytes;
  return total;
}

std::vector<ByteRegion> RegionsOfUpdate(const OpOutput& tile, const OpInput& positions) {
  if (tile.bytes.empty()) return {};
  const IndexRange& sequences = tile.tile.ranges[0];
  const IndexRange& rows = tile.tile.ranges[1];
  const int64_t row_count = rows.stop - rows.start;
  int64_t row_elements = 1;
  for (size_t dim = 2; dim < tile.shape.size(); ++dim) row_elements *= tile.shape[dim];
  const absl::StatusOr<int64_t> row_bytes = WholeSizeBytes(tile.dtype, row_elements);
  if (!row_bytes.ok()) return {{0, static_cast<int64_t>(tile.bytes.size())}};
  const bool is_by_sequence = positions.shape.size() == 2;
  const int64_t count = positions.shape.back();
  std::vector<ByteRegion> regions;
  std::vector<int64_t> found;
  for (int64_t sequence = sequences.start; sequence < sequences.stop; ++sequence) {
    if (is_by_sequence) {
      found = RowsAt(positions, (sequence - positions.tile.ranges[0].start) * count, count, rows);
    } else if (sequence == sequences.start) {
      found = RowsAt(positions, 0, count, rows);
    }
    for (const int64_t row : found) {
      AddRegion({((sequence - sequences.start) * row_count + row) * *row_bytes, *row_bytes},
                &regions);
    }
  }
  return regions;
}

void UndoLog::Keep(absl::Span<char> memory, std::vector<ByteRegion> regions, Buffer copy) {
  char* to = copy.data();
  for (const ByteRegion& region : regions) {
    std::memcpy(to, memory.data() + region.offset_bytes, static_cast<size_t>(region.size_bytes));
    to += region.size_bytes;
  }
  entries_.push_back({memory, std::move(regions), std::move(copy)});
}

void UndoLog::Undo() {
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
    const char* from = entry->copy.data();
    for (const ByteRegion& region : entry->regions) {
      std::memcpy(entry->memory.data() + region.offset_bytes, from,
                  static_cast<size_t>(region.size_bytes));
      from += region.size_bytes;
    }
  }
  entries_.clear();
}

}  // namespace shardmesh::worker
