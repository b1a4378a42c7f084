// Makes a tile from a tensor of a file that has other dimensions or another element type.
#ifndef SHARDMESH_WORKER_FILL_CONVERTED_TILE_H_
#define SHARDMESH_WORKER_FILL_CONVERTED_TILE_H_

#include <cstdint>
#include <functional>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "process/roots/read_root.h"
#include "sharding/shape.h"
#include "sharding/tile.h"
#include "tensor/dtype.h"
#include "tensor/source_conversion.h"
#include "worker/fill/checked_file.h"
#include "worker/fill/file_tile.h"

namespace shardmesh::worker {

// A tile of a tensor, and the place in a file of the tensor from which it is made.
struct ConvertedTile {
  Dtype dtype = Dtype::kF32;  // of the tile
  Shape shape = {};           // of the tile's tensor
  Tile tile = {};
  SourceConversion conversion = {};
  int64_t offset_bytes = 0;  // of the tensor in the file
};

// Elements of a tensor in a file.
struct SourceRegion {
  Dtype dtype = Dtype::kF32;  // of the tensor in the file
  Shape shape = {};           // of the tensor in the file
  Tile tile = {};             // the elements
  int64_t offset_bytes = 0;   // of the tensor in the file
};

// Returns the elements from which the tile is made. Errors of ShapeInFile.
absl::StatusOr<SourceRegion> SourceOf(const ConvertedTile& tile);

// Fills `out`, which has the size of the tile, and returns the CRC-32C of its bytes. Reads only the
// elements of the tile, in the order in which they lie in the file, a piece at a time, and converts
// each piece as ConvertedTensor does. Takes about 2 MiB beside the memory of `reader`. Calls
// `keep_going` before each read, and `progress` with the bytes of the tile that each piece made.
// Errors of FileTileReader::Read and of ShapeInFile.
absl::StatusOr<uint32_t> ReadConverted(const RootedFile& file, std::string_view path,
                                       const ConvertedTile& tile, FileTileReader& reader,
                                       absl::Span<char> out, const KeepGoing& keep_going,
                                       const std::function<void(int64_t bytes)>& progress);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_FILL_CONVERTED_TILE_H_
