// A tile on disk: one safetensors file, and the meaning of its metadata.
#ifndef SHARDMESH_WORKER_STORE_TILE_FILE_H_
#define SHARDMESH_WORKER_STORE_TILE_FILE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/shape.h"
#include "sharding/tile.h"
#include "tensor/buffer.h"
#include "tensor/dtype.h"

namespace shardmesh::worker {

// Describes a tile, without its bytes.
struct TileDescription {
  // 1 to 64 characters of [A-Za-z0-9_-]; also the name of a folder on disk.
  std::string array_id;
  Dtype dtype = Dtype::kF32;
  // Shape of the whole array, of which `tile` is a part.
  Shape array_shape;
  Tile tile;
  // The array's descriptor in the caller's encoding: kept and returned, never parsed.
  std::string array_descriptor;
  // The transfer or step that stages it. Kept and returned.
  std::string transfer_id;

  friend bool operator==(const TileDescription&, const TileDescription&) = default;
};

// Returns INVALID_ARGUMENT for an array id or a shape that does not meet the conditions above, or
// (BAD_TILE) a tile that is not a part of the shape.
absl::Status CheckTileDescription(const TileDescription& description);

// Returns the bytes of the tile's elements. Requires a checked description.
int64_t TileSizeBytes(const TileDescription& description);

// The content of a tile file besides the elements.
struct TileFileHeader {
  TileDescription description;
  std::string cluster_id;
  // CRC-32C of the elements.
  uint32_t crc32c = 0;
};

// The file name for a tile, e.g. "0-192x0-384.safetensors", "scalar.safetensors".
std::string TileFileName(const Tile& tile);

// Writes a file that appears complete and synced, or not at all. Requires that `bytes` has
// TileSizeBytes bytes.
absl::Status WriteTileFile(const std::string& path, const TileFileHeader& header,
                           absl::Span<const char> bytes);

struct TileFileContents {
  TileFileHeader header;
  Buffer bytes;
};

// Reads a file's content besides the elements. DATA_LOSS (BAD_FILE) if it is not a tile file.
absl::StatusOr<TileFileHeader> ReadTileFileHeader(const std::string& path);

// Reads a file and verifies its checksum. DATA_LOSS (CHECKSUM_MISMATCH or BAD_FILE) if it is not
// exactly the file that was written; RESOURCE_EXHAUSTED if the pool has no room for it.
absl::StatusOr<TileFileContents> ReadTileFile(const std::string& path, BufferPool& pool);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STORE_TILE_FILE_H_
