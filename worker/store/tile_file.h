// A tile on disk: one safetensors file, whose metadata describe the tile.
#ifndef SHARDMESH_WORKER_STORE_TILE_FILE_H_
#define SHARDMESH_WORKER_STORE_TILE_FILE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "process/file.h"
#include "sharding/shape.h"
#include "sharding/tile.h"
#include "tensor/buffer.h"
#include "tensor/dtype.h"

namespace shardmesh::worker {

// The description of a tile: everything except its bytes and its checksum.
struct TileDescription {
  // 1 to 64 characters of [A-Za-z0-9_-]. Also the name of the array's folder on disk.
  std::string array_id;
  Dtype dtype = Dtype::kF32;
  // Shape of the whole array; `tile` is a part of it.
  Shape array_shape;
  Tile tile;
  // The array's descriptor, encoded by the caller. The store keeps and returns it, but never parses
  // it.
  std::string array_descriptor;
  // The id of the transfer or step that makes the tile. The store keeps and returns it.
  std::string transfer_id;

  friend bool operator==(const TileDescription&, const TileDescription&) = default;
};

// Returns INVALID_ARGUMENT for an array id that does not meet the condition above, or for a
// malformed shape. Returns INVALID_ARGUMENT (BAD_TILE) for a tile that is not a part of the shape.
absl::Status CheckTileDescription(const TileDescription& description);

// Returns the size of the tile's elements in bytes. Requires that CheckTileDescription returned OK.
int64_t TileSizeBytes(const TileDescription& description);

// The content of a tile file except the elements.
struct TileFileHeader {
  TileDescription description;
  std::string cluster_id;
  // CRC-32C of the elements.
  uint32_t crc32c = 0;
};

// Returns the name of a tile's file, such as "0-192x0-384.safetensors" or "scalar.safetensors".
std::string TileFileName(const Tile& tile);

// Returns the size in bytes of a tile file without its elements: its header, with the padding
// before the elements. Returns 0 if WriteTileFile refuses the header.
int64_t TileFileHeaderBytes(const TileFileHeader& header);

// Writes a tile file. After a crash, the file is either complete and synced, or does not exist.
// Requires that `bytes` has TileSizeBytes bytes.
absl::Status WriteTileFile(const std::string& path, const TileFileHeader& header,
                           absl::Span<const char> bytes);

struct TileFileContents {
  TileFileHeader header;
  Buffer bytes;
};

// Reads a tile file except its elements. DATA_LOSS (BAD_FILE) if the file is not a tile file.
absl::StatusOr<TileFileHeader> ReadTileFileHeader(const std::string& path);

// Reads a tile file and verifies its checksum. DATA_LOSS (CHECKSUM_MISMATCH or BAD_FILE) if the
// file is not exactly what WriteTileFile wrote. RESOURCE_EXHAUSTED if the pool has no room for the
// bytes.
absl::StatusOr<TileFileContents> ReadTileFile(const std::string& path, BufferPool& pool);

// A tile file that is mapped into memory. Its bytes may only be read. The kernel reads them from
// the disk when they are used, and may drop them from memory again at any time. A process that
// reads bytes that the disk does not deliver is killed (SIGBUS). The file may be renamed or removed
// while it is mapped.
class MappedTileFile {
 public:
  MappedTileFile(TileFileHeader header, MappedFile file, absl::Span<const char> bytes)
      : header_(std::move(header)), file_(std::move(file)), bytes_(bytes) {}

  const TileFileHeader& header() const { return header_; }
  // Returns the elements. They start at a multiple of Buffer::kAlignment bytes.
  absl::Span<const char> bytes() const { return bytes_; }

 private:
  TileFileHeader header_;
  MappedFile file_;
  absl::Span<const char> bytes_;  // a part of file_
};

// Maps a tile file and verifies its checksum, for which it reads the file from the disk once in
// pieces. Calls `read` after each piece with its size; an error of `read` ends the check. DATA_LOSS
// as ReadTileFile; other errors as FileError.
absl::StatusOr<MappedTileFile> MapTileFile(const std::string& path, int64_t piece_bytes,
                                           const std::function<absl::Status(int64_t bytes)>& read);

// Compares a tile file with the tile that it is to hold, and keeps one piece of at most
// `piece_bytes` in memory. Asks the kernel to read from the disk, and not from its cache. Calls
// `read` after each piece with its size; an error of `read` ends the comparison. DATA_LOSS
// (CHECKSUM_MISMATCH or BAD_FILE) if the file does not hold this tile. Other errors as FileError.
absl::Status CheckTileFile(const std::string& path, const TileFileHeader& expected,
                           int64_t piece_bytes,
                           const std::function<absl::Status(int64_t bytes)>& read);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STORE_TILE_FILE_H_
