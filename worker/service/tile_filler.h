// The coordinator's orders to fill tiles, and the part of the worker that carries them out.
#ifndef SHARDMESH_WORKER_SERVICE_TILE_FILLER_H_
#define SHARDMESH_WORKER_SERVICE_TILE_FILLER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "sharding/mesh.h"
#include "tensor/source_file.h"

namespace shardmesh::worker {

// A committed array from which tiles are filled.
struct FillFromArray {
  std::string array_descriptor;  // the bytes of the array's descriptor
  std::string token;             // for gets of the array from its holders
  // The companion, with the same tiles: for regions that no live worker of the array has. Empty:
  // there is none.
  std::string second_array_id = {};
  std::string second_token = {};
};

// Elements that are all zero.
struct FillZeros {};

// A tile for this worker to fill.
struct FillTile {
  std::string array_descriptor;  // the bytes of the tile's array, which are stored with the tile
  DeviceId rank = 0;             // this worker's rank in the array's mesh
  std::variant<FileRange, FillFromArray, FillZeros> source;
};

// A live worker that serves a rank of the mesh from which arrays come.
struct FillSource {
  DeviceId rank = 0;
  std::string identity;
  std::vector<std::string> endpoints;  // addresses of its TileService, best first
};

// The workers of the meshes between which arrays move.
struct FillDevices {
  std::vector<FillSource> sources;  // by rising rank; ranks without a live worker are left out
  // A number for the worker of each rank of the source's and of the destination's mesh. The same
  // worker has the same number.
  std::vector<int64_t> source_ids;
  std::vector<int64_t> destination_ids;
  // Live workers of the mesh of the companions, by rising rank: those of tiles that none of
  // `sources` has. Rank by rank, arrays and companions have the same tiles.
  std::vector<FillSource> second_sources = {};
};

// Tiles of one transfer to fill.
struct FillOrder {
  std::string transfer_id;
  int64_t term = 0;               // the coordinator's, when the transfer began
  std::vector<SourceFile> files;  // FileRange::file is an index into this list
  std::vector<FillTile> tiles;
  std::optional<FillDevices> devices;  // set if a tile comes from an array
  // Arrays that the first tile's array is to replace, and whose tiles leave the memory of this
  // worker before: see ShardStore::Unload.
  std::vector<std::string> unloaded_array_ids = {};
  // The most bytes that may have come from other workers without being in their tiles; 0: 64 MiB.
  int64_t move_memory_bytes = 0;
};

// A tile that could not be filled.
struct FillFailure {
  std::string transfer_id;
  int64_t term = 0;
  std::string array_id;
  DeviceId rank = 0;
  absl::Status status;
};

// Fills tiles on threads of its own. A filled tile is staged in the store and reported as a tile
// that a client put. Thread-safe.
class TileFiller {
 public:
  virtual ~TileFiller() = default;

  using Failed = std::function<void(const FillFailure& failure)>;
  // Fills the tiles of an order. Does not wait. A tile that is here already, or on its way, is left
  // alone, so the same order may come again. The first failure of a transfer ends its other tiles
  // and is passed to `failed`, once for each transfer. ALREADY_EXISTS: a tile's array is committed
  // here. After EndTransfer, Suspend or Stop, nothing of the earlier orders is reported.
  virtual void Fill(FillOrder order, Failed failed) = 0;

  // `file` is the index of the first file that this worker cannot use; 0 if `status` is OK.
  using Checked = std::function<void(const absl::Status& status, size_t file)>;
  // Checks whether this worker can read the files, and finds each in the state that it describes.
  // Does not wait. Calls `checked` once, unless Suspend or Stop comes before. DEADLINE_EXCEEDED
  // (DEADLINE): the files of this and of earlier questions take too long; one read that the disk
  // does not answer is not interrupted.
  virtual void Check(std::vector<SourceFile> files, Checked checked) = 0;

  // Ends the work on a transfer's tiles. Does not wait for it: a thread notices within a second,
  // unless the host does not answer a read.
  virtual void EndTransfer(const std::string& transfer_id) = 0;
  // Ends the work on all transfers and questions, as the stream to the coordinator is lost.
  virtual void Suspend() = 0;
  // Like Suspend; then waits for the threads. Later orders are dropped.
  virtual void Stop() = 0;

  // Bytes since the start.
  struct Counters {
    int64_t file_bytes = 0;      // of tiles, read from files
    int64_t kept_bytes = 0;      // copied from tiles of this worker
    int64_t received_bytes = 0;  // received from other workers
  };
  virtual Counters counters() const = 0;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_TILE_FILLER_H_
