// Reads runs with short gaps between them together, as the writer of regions does.
#include "worker/save/region_comparer.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "process/crc32c.h"
#include "status/status_macros.h"
#include "tensor/checkpoint_manifest.h"
#include "tensor/view.h"

namespace shardmesh::worker {
namespace {

// A run of the tile that the file must have at an offset.
struct ExpectedRun {
  int64_t offset_bytes = 0;
  absl::Span<const char> bytes;

  int64_t end_bytes() const { return offset_bytes + static_cast<int64_t>(bytes.size()); }
};

// Takes runs by rising offset, each of at most kMaxSpanBytes.
class RunComparer {
 public:
  RunComparer(const InputFile& file, std::string_view path) : file_(file), path_(path) {}

  // Adds a run. Compares the runs before it, if it is not near them.
  absl::Status Add(const ExpectedRun& run) {
    if (!runs_.empty() && (run.offset_bytes - runs_.back().end_bytes() >= kShortGapBytes ||
                           run.end_bytes() - runs_.front().offset_bytes > kMaxSpanBytes)) {
      SHARDMESH_RETURN_IF_ERROR(Compare());
    }
    runs_.push_back(run);
    return absl::OkStatus();
  }

  // Compares the runs that were added since the last comparison.
  absl::Status Compare() {
    const std::vector<ExpectedRun> runs = std::exchange(runs_, {});
    if (runs.empty() || !is_equal_) return absl::OkStatus();
    const int64_t begin_bytes = runs.front().offset_bytes;
    buffer_.resize(static_cast<size_t>(runs.back().end_bytes() - begin_bytes));
    SHARDMESH_RETURN_IF_ERROR(ReadExactly(file_, path_, begin_bytes, absl::MakeSpan(buffer_)));
    for (const ExpectedRun& run : runs) {
      const char* const read = buffer_.data() + (run.offset_bytes - begin_bytes);
      is_equal_ = is_equal_ && std::memcmp(read, run.bytes.data(), run.bytes.size()) == 0;
    }
    return absl::OkStatus();
  }

  // Whether all compared runs are equal.
  bool is_equal() const { return is_equal_; }

 private:
  const InputFile& file_;
  const std::string_view path_;
  bool is_equal_ = true;
  std::vector<ExpectedRun> runs_;
  std::string buffer_;
};

}  // namespace

absl::StatusOr<std::optional<uint32_t>> CompareRegion(
    const InputFile& file, std::string_view path, absl::Span<const char> tile_bytes,
    const RegionPlace& place, const std::function<absl::Status()>& keep_going,
    std::vector<uint32_t>* piece_crc32c) {
  SHARDMESH_ASSIGN_OR_RETURN(const TileRegion region,
                             RegionOf(place, static_cast<int64_t>(tile_bytes.size())));
  static_assert(kSavedPieceBytes <= kMaxSpanBytes);
  RunComparer comparer(file, path);
  uint32_t crc32c = 0;
  for (int64_t begin = place.begin_bytes; begin < place.end_bytes;) {
    const int64_t end = std::min(place.end_bytes, begin + kSavedPieceBytes);
    const absl::Span<const char> piece =
        tile_bytes.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    absl::Span<const char> left = piece;
    absl::Status compared;
    region.ForEachRun(begin, end, [&](int64_t tensor_offset, int64_t size) {
      if (!compared.ok()) return;
      compared = comparer.Add({.offset_bytes = place.offset_bytes + tensor_offset,
                               .bytes = left.subspan(0, static_cast<size_t>(size))});
      left.remove_prefix(static_cast<size_t>(size));
    });
    SHARDMESH_RETURN_IF_ERROR(compared);
    SHARDMESH_RETURN_IF_ERROR(comparer.Compare());
    if (!comparer.is_equal()) return std::nullopt;
    const uint32_t sum = Crc32c(piece);
    crc32c = ConcatCrc32c(crc32c, sum, end - begin);
    piece_crc32c->push_back(sum);
    if (keep_going) SHARDMESH_RETURN_IF_ERROR(keep_going());
    begin = end;
  }
  return crc32c;
}

}  // namespace shardmesh::worker
