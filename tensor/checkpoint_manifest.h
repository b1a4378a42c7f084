// The manifest of a saved checkpoint: its files, and the checksums of all their bytes.
#ifndef SHARDMESH_TENSOR_CHECKPOINT_MANIFEST_H_
#define SHARDMESH_TENSOR_CHECKPOINT_MANIFEST_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "process/file.h"
#include "sharding/shape.h"
#include "sharding/tile.h"
#include "tensor/dtype.h"

namespace shardmesh {

// The bytes of a piece of a saved tile. Pieces of a tile follow one another in its row-major bytes;
// the last one may be shorter.
inline constexpr int64_t kSavedPieceBytes = int64_t{1} << 20;

// Returns the number of pieces of a tile of this size.
inline int64_t CountSavedPieces(int64_t tile_bytes) {
  return (tile_bytes + kSavedPieceBytes - 1) / kSavedPieceBytes;
}

// Returns checksums of pieces as the manifest has them: eight hexadecimal digits each.
std::string PieceText(absl::Span<const uint32_t> piece_crc32c);

// The largest manifest that is read.
inline constexpr int64_t kMaxCheckpointManifestBytes = int64_t{1} << 30;

// Returns the commit marker of a checkpoint with this manifest: it names the manifest's digest.
std::string CheckpointMarkerText(std::string_view manifest);

// Compares the marker of the checkpoint in `folder` with its manifest. INVALID_ARGUMENT (BAD_FILE)
// names the file that is damaged.
absl::Status CheckMarker(std::string_view folder, std::string_view manifest,
                         std::string_view marker);

// A part of a tensor, with the CRC-32C of its row-major bytes.
struct ManifestTile {
  Tile tile;
  uint32_t crc32c = 0;
  // The CRC-32C of each piece of the tile. Empty if the manifest does not list them, as for tiles
  // of one piece. The count is not checked against the size of the tile.
  std::vector<uint32_t> piece_crc32c = {};
};

// A tensor of a file.
struct ManifestTensor {
  std::string name = {};
  Dtype dtype = Dtype::kF32;
  Shape shape;
  int64_t offset_bytes = 0;  // in the file
  int64_t size_bytes = 0;
  std::vector<ManifestTile> tiles;
  std::string array_id = {};  // empty: not listed
};

// By these, saves find out whether a tensor has changed: its name, type and shape, together with
// the id of its array, or with the checksums of its bytes. Tensors with equal digests are equal but
// for rare collisions: compare the bytes.
struct TensorDigests {
  uint64_t array = 0;
  // Equal for the tensors that HaveEqualChecksums finds equal, wherever they are in their files.
  uint64_t content = 0;

  friend bool operator==(const TensorDigests&, const TensorDigests&) = default;
};

TensorDigests DigestsOf(const ManifestTensor& tensor);

// A file of a checkpoint, with checksums of all its bytes.
struct ManifestFile {
  std::string name;
  int64_t size_bytes = 0;
  std::string content_key = {};  // files with equal keys have equal bytes; empty: not listed
  // False if the manifest lists no checksums, or not all: then the members below mean nothing.
  bool has_checksums = true;
  int64_t header_bytes = 0;
  uint32_t header_crc32c = 0;
  std::vector<ManifestTensor> tensors;  // by rising offset
};

// Returns whether the files have equal sizes, equal tensors at equal places, and equal checksums of
// their headers and of all tensors. Such files almost always have equal bytes, but two checksums
// may be equal by chance or by intention: compare the bytes. Tensors whose tiles are cut in two
// ways are compared if all tiles are whole rows. Other cuts, and files without checksums, count as
// unequal.
bool HaveEqualChecksums(const ManifestFile& a, const ManifestFile& b);

// Whether a file of a checkpoint may have this name: no path, not hidden, at most 255 bytes.
bool IsCheckpointFileName(std::string_view name);

// Returns the files that a manifest lists, by name. `name` is for errors: INVALID_ARGUMENT
// (BAD_FILE) if the text is no manifest, or an entry has no size or no name of a file.
absl::StatusOr<std::vector<ManifestFile>> ParseManifest(std::string_view name,
                                                        std::string_view manifest);

// Returns DATA_LOSS (CHECKSUM_MISMATCH): the tile of a tensor in the file at `path` has the CRC-32C
// `have`, and the manifest says `need`.
absl::Status OtherTileBytes(std::string_view path, std::string_view tensor, const Tile& tile,
                            uint32_t have, uint32_t need);

// The same for bytes [begin_bytes, end_bytes) of the row-major tile.
absl::Status OtherPieceBytes(std::string_view path, std::string_view tensor, const Tile& tile,
                             int64_t begin_bytes, int64_t end_bytes, uint32_t have, uint32_t need);

// Reads the whole file, and compares it with the checksums. Takes a few MiB of memory. `path` is
// for errors. `keep_going` is called after each piece; its error ends the work. It may be null. If
// `is_wanted` is not null, reads and compares only the header and the tensors for which it returns
// true. If `piece_crc32c` is not null, appends to it the CRC-32C of each piece of each tile that
// was read, in the order of `listed.tensors`, and of the tiles of each.
//   DATA_LOSS  (CHECKSUM_MISMATCH) the file has other bytes, or the checksums do not cover it. For
//              a tile, the message names the tensor and both checksums.
//   others     as FileError, and those of TileRegion::Create.
absl::Status CheckChecksums(const InputFile& file, std::string_view path,
                            const ManifestFile& listed,
                            const std::function<absl::Status()>& keep_going,
                            const std::function<bool(const ManifestTensor&)>& is_wanted = nullptr,
                            std::vector<uint32_t>* piece_crc32c = nullptr);

// Returns for each tile whether the file has the bytes of its checksum. The tiles are in the order
// of `listed.tensors`, and of the tiles of each. The header is not compared. `piece_crc32c` as in
// CheckChecksums. Errors as CheckChecksums, but for tiles and a header with other bytes.
absl::StatusOr<std::vector<bool>> FindIntactTiles(const InputFile& file, std::string_view path,
                                                  const ManifestFile& listed,
                                                  const std::function<absl::Status()>& keep_going,
                                                  std::vector<uint32_t>* piece_crc32c = nullptr);

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_CHECKPOINT_MANIFEST_H_
