// Reads the bytes of a tile out of a file that contains the whole tensor.
#ifndef SHARDMESH_WORKER_FILL_FILE_TILE_H_
#define SHARDMESH_WORKER_FILL_FILE_TILE_H_

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "process/roots/read_root.h"
#include "tensor/view.h"
#include "worker/fill/checked_file.h"

namespace shardmesh::worker {

// Reads tiles. Long runs of a tile go straight from the file into the tile. Short runs that lie
// close together, such as those of a cut by columns, are read with the gaps between them into a
// buffer, and copied from there: one read of many runs costs less than many reads.
//
// Not thread-safe: one reader for each thread.
class FileTileReader {
 public:
  // The buffer's size, and the most bytes that one read asks for.
  static constexpr int64_t kSpanBytes = int64_t{4} << 20;
  // Runs with a larger gap between them are read one by one: reading the gap would take longer than
  // another system call.
  static constexpr int64_t kMaxGapBytes = int64_t{8} << 10;

  // Fills `out` with the tile `region` of the tensor at `offset_bytes` of the file, and returns the
  // CRC-32C of the bytes. Computes it piece by piece, while the bytes are in the cache. Calls
  // `keep_going` before each read, and `progress` with the number of bytes of the tile after each
  // piece. `out` has region.size_bytes() bytes. `path` is for errors.
  // - INVALID_ARGUMENT (BAD_FILE): the tensor is not within the file.
  // - FAILED_PRECONDITION (FILE_CHANGED): the file ends before the tensor's end, or it changed
  //   since it was opened.
  // - DATA_LOSS: the disk reports an error. Other errors of the file system, as FileError.
  absl::StatusOr<uint32_t> Read(const RootedFile& file, std::string_view path, int64_t offset_bytes,
                                const TileRegion& region, absl::Span<char> out,
                                const KeepGoing& keep_going,
                                const std::function<void(int64_t bytes)>& progress = nullptr);

  // Receives the bytes of the tile from begin_bytes on. They are valid only during the call.
  using PieceSink = std::function<absl::Status(int64_t begin_bytes, absl::Span<const char> bytes)>;
  // Like Read, but passes the bytes to `sink` piece by piece, in order. Returns its error too.
  absl::StatusOr<uint32_t> ReadPieces(const RootedFile& file, std::string_view path,
                                      int64_t offset_bytes, const TileRegion& region,
                                      const PieceSink& sink, const KeepGoing& keep_going);

  // Fills `out` with the bytes of the tile from `begin_bytes` on. Calls `keep_going` before each
  // read. `out` ends within the tile. Errors as Read, but the caller compares the state of the file
  // after the last read (CheckUnchanged).
  absl::Status ReadPart(const RootedFile& file, std::string_view path, int64_t offset_bytes,
                        const TileRegion& region, int64_t begin_bytes, absl::Span<char> out,
                        const KeepGoing& keep_going);

 private:
  std::vector<char> span_;   // empty until a tile has short runs
  std::vector<char> piece_;  // empty until ReadPieces
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_FILL_FILE_TILE_H_
