// Writes a part of a tile into the file that has the whole tensor.
#ifndef SHARDMESH_WORKER_SAVE_REGION_WRITER_H_
#define SHARDMESH_WORKER_SAVE_REGION_WRITER_H_

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "process/file.h"
#include "sharding/shape.h"
#include "sharding/tile.h"
#include "tensor/dtype.h"
#include "tensor/view.h"

namespace shardmesh::worker {

// The place of a region: bytes [begin_bytes, end_bytes) of a row-major tile, in a file that has the
// whole row-major tensor from offset_bytes on.
struct RegionPlace {
  Dtype dtype = Dtype::kF32;
  Shape tensor_shape;
  Tile tile;
  int64_t begin_bytes = 0;
  int64_t end_bytes = 0;
  int64_t offset_bytes = 0;
};

// Returns the tile's place in its tensor. `tile_bytes`: the size of the tile. INVALID_ARGUMENT
// (BAD_TILE) if the region is not within the tile. Other errors: those of TileRegion::Create.
absl::StatusOr<TileRegion> RegionOf(const RegionPlace& place, int64_t tile_bytes);

struct RegionWriterOptions {
  // Whether range locks (F_OFD_SETLK) keep all writers of the file apart. They do if all writers
  // are on one host. If true, runs with short gaps between them are written together: read the
  // range, change it, write it. If false, each run is written by a call of its own.
  bool locks_work = false;
  // Called with the number of bytes written since the last call, after at most some MiB, and with 0
  // every few milliseconds while another writer holds the lock of a range. False: stop, and return
  // CANCELLED.
  std::function<bool(int64_t bytes)> progress;
};

// The shortest gap between two runs that are written by two calls, if locks work.
inline constexpr int64_t kShortGapBytes = 4096;
// The length of a run from which it is written by a call of its own.
inline constexpr int64_t kLongRunBytes = 16 << 10;
// The largest range that is read, changed and written together.
inline constexpr int64_t kMaxSpanBytes = 1 << 20;

// Writes the region, and returns the CRC-32C of its bytes. `tile_bytes`: all bytes of the tile. The
// file is open for reading and writing. `path` is for errors, which are as FileError, and those of
// RegionOf. Long runs are written past the page cache, if the file system can do that; the file's
// O_DIRECT flag is off before and after the call. If `piece_crc32c` is not null, appends to it the
// CRC-32C of each kSavedPieceBytes of the region; the last of them may be fewer bytes. Failpoint:
// save.write.
absl::StatusOr<uint32_t> WriteRegion(const FileDescriptor& file, std::string_view path,
                                     absl::Span<const char> tile_bytes, const RegionPlace& place,
                                     const RegionWriterOptions& options,
                                     std::vector<uint32_t>* piece_crc32c = nullptr);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SAVE_REGION_WRITER_H_
