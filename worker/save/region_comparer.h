// Compares a part of a tile with the file that has the whole tensor.
#ifndef SHARDMESH_WORKER_SAVE_REGION_COMPARER_H_
#define SHARDMESH_WORKER_SAVE_REGION_COMPARER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "process/file.h"
#include "worker/save/region_writer.h"

namespace shardmesh::worker {

// Compares the region with the bytes that the file has at its place, and stops at the first
// difference. Takes up to 1 MiB of memory, and 24 bytes for each run in it. Returns the CRC-32C of
// the region's bytes; nullopt if the file has other bytes. `tile_bytes`: all bytes of the tile.
// `path` is for errors.
//
// `keep_going` is called after each MiB; its error ends the work. It may be null. If the bytes are
// equal, appends to `*piece_crc32c` the CRC-32C of each kSavedPieceBytes of the region; the last of
// them may be fewer bytes. Otherwise some of them may have been appended.
//
// Errors: those of RegionOf, of `keep_going`, and of ReadExactly, also for a file that is too
// short. Thread-safe.
absl::StatusOr<std::optional<uint32_t>> CompareRegion(
    const InputFile& file, std::string_view path, absl::Span<const char> tile_bytes,
    const RegionPlace& place, const std::function<absl::Status()>& keep_going,
    std::vector<uint32_t>* piece_crc32c);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SAVE_REGION_COMPARER_H_
