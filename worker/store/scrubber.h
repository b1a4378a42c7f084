// Reads the tiles of a worker again in the background, to find damage before a reader does.
#ifndef SHARDMESH_WORKER_STORE_SCRUBBER_H_
#define SHARDMESH_WORKER_STORE_SCRUBBER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "sharding/tile.h"
#include "worker/store/shard_store.h"

namespace shardmesh::worker {

// Compares the committed tiles of a store with their checksums, in memory and on disk, one tile
// after the other. A pass is one visit of all tiles.
// - A tile that is damaged in memory goes into quarantine, so that nobody reads it. If its file is
//   sound, the tile is read back at once. Otherwise it is reported. The memory of a tile without a
//   file is freed.
// - A file that is damaged or missing is written again from the memory, which was checked before.
//   If that fails, the next pass tries again.
// Thread-safe.
class Scrubber {
 public:
  struct Options {
    ShardStore* store = nullptr;  // outlives the scrubber
    Clock* clock = nullptr;       // for ShardStore::Quarantine; outlives the scrubber
    // Rate at which a pass reads memory and files together; at least 1.
    int64_t bytes_per_second = int64_t{16} << 20;
    // Shortest time from the beginning of one pass to that of the next.
    absl::Duration interval = absl::Hours(1);
    // Called for each tile that stays in quarantine, without a lock.
    std::function<void(const std::string& array_id, const std::string& reason)> damaged;
    // Called for each tile that was read back, without a lock: an inventory that was sent while the
    // file was read has the tile in quarantine.
    std::function<void(const std::string& array_id)> reread;
  };

  explicit Scrubber(Options options);
  // Ends the thread, in the middle of a pass if need be.
  ~Scrubber();
  Scrubber(const Scrubber&) = delete;
  Scrubber& operator=(const Scrubber&) = delete;

  // Starts a thread that begins a pass after each interval.
  void Start();
  // Makes one pass on the calling thread. Must not run at the same time as another pass.
  void RunPass();

  struct Counters {
    int64_t passes = 0;         // complete ones
    int64_t bytes = 0;          // that were compared, in memory and on disk
    int64_t damaged_tiles = 0;  // in memory
    int64_t damaged_files = 0;
    int64_t reread_tiles = 0;     // damaged tiles that were read back from their files
    int64_t rewritten_files = 0;  // damaged files that were written again
  };
  Counters counters() const;

 private:
  void Run();
  // Waits so long, or until the scrubber stops. Returns whether it goes on.
  bool Wait(absl::Duration time);
  // Counts bytes that were read, and waits until they keep to the rate. CANCELLED: it stops.
  absl::Status Pace(int64_t bytes);
  // The result of one comparison.
  struct Found {
    bool is_gone = false;  // the tile was dropped, or the scrubber stops
    absl::Status status;   // DATA_LOSS, or an error of the disk: the tile or file is damaged
  };
  // Compares one tile, and treats what it finds.
  void Check(const std::string& array_id, const Tile& tile);
  // Between two pieces, it holds nothing that would keep the memory of a released tile.
  Found CheckMemory(const std::string& array_id, const Tile& tile);
  Found CheckFile(const TileDescription& description, uint32_t crc32c);
  // Puts the tile into quarantine. Brings it back if its file is sound, otherwise reports it.
  void PutAside(const TileDescription& description, const std::string& reason, bool has_sound_file);

  const Options options_;
  std::atomic<int64_t> passes_{0};
  std::atomic<int64_t> bytes_{0};
  std::atomic<int64_t> damaged_tiles_{0};
  std::atomic<int64_t> damaged_files_{0};
  std::atomic<int64_t> reread_tiles_{0};
  std::atomic<int64_t> rewritten_files_{0};

  absl::Mutex mutex_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: the thread uses the members above
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STORE_SCRUBBER_H_
