// Compares a tile that was read from a file with a tile that a save wrote there. The two may be
// different parts of their tensor.
#ifndef SHARDMESH_WORKER_FILL_SAVED_TILE_H_
#define SHARDMESH_WORKER_FILL_SAVED_TILE_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "process/roots/read_root.h"
#include "sharding/tile.h"
#include "tensor/checkpoint_manifest.h"
#include "tensor/view.h"
#include "worker/fill/checked_file.h"
#include "worker/fill/file_tile.h"

namespace shardmesh::worker {

// The comparison with one saved tile. A checksum of the save covers a whole piece of its tile, or
// the whole tile if the manifest does not list pieces. The comparison takes the bytes that both
// tiles have from memory, so that the bytes that were read are the bytes that are compared. It
// reads the other bytes of the pieces from the file, 1 MiB at a time.
//
// Example: a save wrote rows [0,8) of a tensor as one tile, and rows [0,2) were read. With pieces
// of a row each, nothing more is read. Without pieces, rows [2,8) are. Not thread-safe.
class SavedTileCheck {
 public:
  // `tensor` and `saved`, which is one of its tiles, outlive the object. Requires that `read` and
  // the saved tile have elements in common. Errors of TileRegion::Create, for elements of less than
  // a byte of which the common ones do not begin and end with bytes.
  static absl::StatusOr<SavedTileCheck> Create(const ManifestTensor& tensor,
                                               const ManifestTile& saved, const Tile& read);

  // Compares the bytes of the tile `read`; nullopt: bytes that were not kept, which `reader` reads
  // once more. It also reads what else is needed from `file`. `path` is for errors.
  //   DATA_LOSS  (CHECKSUM_MISMATCH) names the file, the tensor, the tile and both checksums.
  //   others     as FileTileReader::ReadPart.
  absl::Status Run(const RootedFile& file, std::string_view path,
                   std::optional<absl::Span<const char>> bytes, FileTileReader& reader,
                   const KeepGoing& keep_going) const;

 private:
  SavedTileCheck(const ManifestTensor& tensor, const ManifestTile& saved, TileRegion in_file,
                 TileRegion in_saved, TileRegion in_read)
      : tensor_(&tensor),
        saved_(&saved),
        in_file_(in_file),
        in_saved_(in_saved),
        in_read_(in_read) {}

  bool has_pieces() const;
  // Returns the offset in the saved tile of the common bytes from `done_bytes` on.
  int64_t OffsetOf(int64_t done_bytes) const;
  // Returns how many of the common bytes from `done_bytes` on lie in the saved tile before
  // `end_bytes`, of at most one piece.
  int64_t CountCommon(int64_t done_bytes, int64_t end_bytes) const;
  // Calls visit(offset in the saved tile, offset in the read tile, size) for the stretches of the
  // common bytes [begin_bytes, end_bytes).
  template <typename Visit>
  void ForEachCommon(int64_t begin_bytes, int64_t end_bytes, Visit visit) const;

  const ManifestTensor* tensor_;
  const ManifestTile* saved_;
  TileRegion in_file_;   // the saved tile in the tensor
  TileRegion in_saved_;  // the common elements in the saved tile
  TileRegion in_read_;   // the common elements in the read tile
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_FILL_SAVED_TILE_H_
