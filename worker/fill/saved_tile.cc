// Goes through the saved tile piece by piece, and joins bytes from memory with bytes from the file.
#include "worker/fill/saved_tile.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <vector>

#include "process/crc32c.h"
#include "status/status_macros.h"

namespace shardmesh::worker {
namespace {

// Returns `region` relative to the start of `frame`, which contains it.
Tile RelativeTo(const Tile& frame, Tile region) {
  for (size_t i = 0; i < region.ranges.size(); ++i) {
    region.ranges[i].start -= frame.ranges[i].start;
    region.ranges[i].stop -= frame.ranges[i].start;
  }
  return region;
}

}  // namespace

absl::StatusOr<SavedTileCheck> SavedTileCheck::Create(const ManifestTensor& tensor,
                                                      const ManifestTile& saved, const Tile& read) {
  const std::optional<Tile> common = Intersect(saved.tile, read);
  if (!common.has_value()) return absl::InternalError("the tiles have no common elements");
  SHARDMESH_ASSIGN_OR_RETURN(const TileRegion in_file,
                             TileRegion::Create(tensor.dtype, tensor.shape, saved.tile));
  SHARDMESH_ASSIGN_OR_RETURN(
      const TileRegion in_saved,
      TileRegion::Create(tensor.dtype, saved.tile.shape(), RelativeTo(saved.tile, *common)));
  SHARDMESH_ASSIGN_OR_RETURN(
      const TileRegion in_read,
      TileRegion::Create(tensor.dtype, read.shape(), RelativeTo(read, *common)));
  return SavedTileCheck(tensor, saved, in_file, in_saved, in_read);
}

bool SavedTileCheck::has_pieces() const {
  return static_cast<int64_t>(saved_->piece_crc32c.size()) ==
         CountSavedPieces(in_file_.size_bytes());
}

int64_t SavedTileCheck::OffsetOf(int64_t done_bytes) const {
  int64_t offset = 0;
  in_saved_.ForEachRun(done_bytes, done_bytes + 1, [&offset](int64_t at, int64_t) { offset = at; });
  return offset;
}

int64_t SavedTileCheck::CountCommon(int64_t done_bytes, int64_t end_bytes) const {
  // The runs lie in the saved tile by rising offset.
  const int64_t limit = std::min(in_saved_.size_bytes(), done_bytes + kSavedPieceBytes);
  int64_t count = 0;
  in_saved_.ForEachRun(done_bytes, limit, [&](int64_t to, int64_t size_bytes) {
    if (to < end_bytes) count += std::min(size_bytes, end_bytes - to);
  });
  return count;
}

template <typename Visit>
void SavedTileCheck::ForEachCommon(int64_t begin_bytes, int64_t end_bytes, Visit visit) const {
  int64_t at = begin_bytes;
  in_saved_.ForEachRun(begin_bytes, end_bytes, [&](int64_t to, int64_t size_bytes) {
    const int64_t stop = at + size_bytes;
    in_read_.ForEachRun(at, stop, [&](int64_t from, int64_t run_bytes) {
      visit(to, from, run_bytes);
      to += run_bytes;
    });
    at = stop;
  });
}

absl::Status SavedTileCheck::Run(const RootedFile& file, std::string_view path,
                                 std::optional<absl::Span<const char>> bytes,
                                 FileTileReader& reader, const KeepGoing& keep_going) const {
  const int64_t saved_bytes = in_file_.size_bytes();
  const bool by_piece = has_pieces();
  int64_t done_bytes = 0;  // of the common bytes
  uint32_t whole_crc32c = 0;
  std::vector<char> buffer;
  for (int64_t begin = 0; begin < saved_bytes;) {
    if (by_piece) {
      if (done_bytes == in_saved_.size_bytes()) return absl::OkStatus();
      begin = OffsetOf(done_bytes) / kSavedPieceBytes * kSavedPieceBytes;
    }
    const int64_t end = std::min(saved_bytes, begin + kSavedPieceBytes);
    const int64_t common_bytes = CountCommon(done_bytes, end);
    uint32_t crc32c = 0;
    if (bytes.has_value() && common_bytes == end - begin) {
      SHARDMESH_RETURN_IF_ERROR(keep_going());
      ForEachCommon(
          done_bytes, done_bytes + common_bytes, [&](int64_t, int64_t from, int64_t size_bytes) {
            crc32c = ExtendCrc32c(
                crc32c, bytes->subspan(static_cast<size_t>(from), static_cast<size_t>(size_bytes)));
          });
    } else {
      buffer.resize(static_cast<size_t>(end - begin));
      SHARDMESH_RETURN_IF_ERROR(reader.ReadPart(file, path, tensor_->offset_bytes, in_file_, begin,
                                                absl::MakeSpan(buffer), keep_going));
      if (bytes.has_value()) {
        ForEachCommon(done_bytes, done_bytes + common_bytes,
                      [&](int64_t to, int64_t from, int64_t size_bytes) {
                        std::memcpy(buffer.data() + (to - begin), bytes->data() + from,
                                    static_cast<size_t>(size_bytes));
                      });
      }
      crc32c = Crc32c(buffer);
    }
    if (by_piece) {
      const uint32_t need = saved_->piece_crc32c[static_cast<size_t>(begin / kSavedPieceBytes)];
      if (crc32c != need) {
        return OtherPieceBytes(path, tensor_->name, saved_->tile, begin, end, crc32c, need);
      }
    } else {
      whole_crc32c = ConcatCrc32c(whole_crc32c, crc32c, end - begin);
    }
    done_bytes += common_bytes;
    begin = end;
  }
  if (by_piece || whole_crc32c == saved_->crc32c) return absl::OkStatus();
  return OtherTileBytes(path, tensor_->name, saved_->tile, whole_crc32c, saved_->crc32c);
}

}  // namespace shardmesh::worker
