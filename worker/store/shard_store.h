// The store of a worker's tiles: staged, verified, committed, released.
#ifndef SHARDMESH_WORKER_STORE_SHARD_STORE_H_
#define SHARDMESH_WORKER_STORE_SHARD_STORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "process/file.h"
#include "process/thread_pool.h"
#include "sharding/tile.h"
#include "tensor/buffer.h"
#include "tensor/view.h"
#include "worker/store/tile_file.h"

namespace shardmesh::worker {

// A complete tile. Immutable and thread-safe. A holder of the pointer keeps the bytes alive, also
// after the store has released the tile.
class StoredTile {
 public:
  StoredTile(TileDescription description, std::shared_ptr<Buffer> buffer, uint32_t crc32c,
             bool durable);

  const TileDescription& description() const { return description_; }
  absl::Span<const char> bytes() const { return buffer_->bytes(); }
  // The elements, in the tile's shape.
  TensorView view() const;
  // CRC-32C of bytes().
  uint32_t crc32c() const { return crc32c_; }
  // Returns whether the tile is on disk and synced.
  bool durable() const { return durable_; }

 private:
  friend class ShardStore;

  const TileDescription description_;
  const std::shared_ptr<Buffer> buffer_;  // a sender of its bytes may keep it longer
  const uint32_t crc32c_;
  const bool durable_;
};

using StoredTilePtr = std::shared_ptr<const StoredTile>;

// State of a tile:
//
// clang-format off
//   Receiving -> Staged -> Committed -> Released
//       |           |
//       +-----------+----> Aborted
// clang-format on
//
// - Receiving to Staged: StagedTile::Finish, when every byte is there and the checksum is right.
// - Staged to Committed: ShardStore::Commit, all tiles of an array together.
// - Committed to Released: ShardStore::Release.
// - To Aborted: ShardStore::Abort, all tiles of an array together; or the destruction of an
//   unfinished StagedTile, only that tile.
//
// No other transition exists. The store forgets Released tiles at once, and Aborted tiles as soon
// as their receiver is destroyed. The memory is freed when the last reader releases it.
enum class TileState { kReceiving, kStaged, kCommitted, kAborted };

class ShardStore;

// A tile being added to the store. Its bytes come in pieces through Append, or a producer writes
// them in place through mutable_bytes(). Destruction before Finish aborts the tile. For one thread
// at a time; the store may abort the tile concurrently. Must not outlive the store.
class StagedTile {
 public:
  StagedTile(const StagedTile&) = delete;
  StagedTile& operator=(const StagedTile&) = delete;
  ~StagedTile();

  const TileDescription& description() const { return description_; }
  int64_t size_bytes() const { return size_bytes_; }
  // Bytes appended so far.
  int64_t received_bytes() const { return received_bytes_; }

  // Appends the next piece. INVALID_ARGUMENT (BAD_TILE) if it does not start where the last piece
  // ended, or exceeds the tile. DATA_LOSS (CHECKSUM_MISMATCH) if its bytes do not have that
  // CRC-32C. After both errors the tile is as before. ABORTED once the array was aborted.
  absl::Status Append(int64_t offset_bytes, absl::Span<const char> piece, uint32_t piece_crc32c);

  // Like Append, for a piece in several parts, joined in order. The caller has verified the CRC-32C
  // of the bytes: they are copied once and not checked again.
  absl::Status AppendParts(int64_t offset_bytes, absl::Span<const absl::Span<const char>> parts,
                           uint32_t piece_crc32c);

  // All bytes of the tile, for a producer in place, which calls no Append. memory() returns their
  // owner, for readers that use the bytes while and after the tile is made.
  absl::Span<char> mutable_bytes();
  std::shared_ptr<const void> memory() const { return buffer_; }

  // Makes the tile Staged; a durable tile's file is written and synced first. Call it once, at the
  // end. FAILED_PRECONDITION (BAD_TILE) if bytes are missing. DATA_LOSS (CHECKSUM_MISMATCH) if
  // `crc32c` is given and the bytes have another one. ABORTED if the array was aborted. The file
  // system's error if the file cannot be written. After an error the tile is aborted.
  absl::StatusOr<StoredTilePtr> Finish(std::optional<uint32_t> crc32c);

 private:
  friend class ShardStore;
  StagedTile(ShardStore* store, TileDescription description, std::shared_ptr<Buffer> buffer,
             bool durable);

  // Returns OK if a piece of that many bytes may come at this offset now.
  absl::Status CheckNext(int64_t offset_bytes, int64_t piece_bytes) const;
  absl::StatusOr<StoredTilePtr> FinishOnce(std::optional<uint32_t> crc32c);

  ShardStore* const store_;
  const TileDescription description_;
  const int64_t size_bytes_;
  const bool durable_;
  const std::shared_ptr<Buffer> buffer_;
  int64_t received_bytes_ = 0;
  uint32_t received_crc32c_ = 0;
  bool in_place_ = false;
  bool finished_ = false;
};

// A tile in the data folder that the store could not read back.
struct RecoveryProblem {
  // The original path of the file or folder.
  std::string path;
  // The new path, out of the store's way; empty if it was left in place.
  std::string moved_to;
  // DATA_LOSS: not the data that was written. FAILED_PRECONDITION (CLUSTER_MISMATCH): of another
  // cluster. RESOURCE_EXHAUSTED: no memory for it; left in place, for a start with a higher limit.
  absl::Status status;
};

// A tile in quarantine: out of use, but not dropped.
struct QuarantinedTile {
  TileDescription description;
  uint32_t crc32c = 0;
  int64_t size_bytes = 0;
  StoredTilePtr stored;  // null: on disk
};

// The tiles of one array that are in quarantine.
struct QuarantinedArray {
  std::string array_id;
  std::string reason;        // the cause, for people
  absl::Time since;          // when the first of them was moved there
  bool committed = true;     // otherwise their put or step had not ended
  bool on_disk = false;      // otherwise they are only in memory
  bool array_lives = false;  // or this is unknown: no limit counts or drops it
  std::vector<QuarantinedTile> tiles;
  int64_t tiles_bytes = 0;   // of all tiles
  int64_t memory_bytes = 0;  // of the pool, for tiles in memory

  int64_t size_bytes() const { return tiles_bytes; }
};

// Limits of the quarantine. Beyond them, tiles that were never committed are dropped first, then
// the oldest ones. Tiles of live arrays are neither counted nor dropped.
struct QuarantineLimits {
  // Includes the folder `corrupt`. Below 0: 64 GiB, and at most a quarter of the file system.
  int64_t disk_bytes = -1;
  int64_t memory_bytes = int64_t{512} << 20;
  // The age of tiles left by an earlier start counts from the first call with a time: the wall
  // clock may have been set in between.
  absl::Duration age = absl::Hours(24 * 7);
};

struct QuarantineTotals {
  int64_t arrays = 0;
  int64_t disk_bytes = 0;
  int64_t memory_bytes = 0;
  // Bytes on disk of the tiles that the limits count and drop.
  int64_t droppable_disk_bytes = 0;
  int64_t droppable_tiles_bytes = 0;   // in memory
  int64_t droppable_memory_bytes = 0;  // of the pool, freed when memory is needed
};

struct RecoveryReport {
  int64_t committed_tiles = 0;
  int64_t staged_tiles = 0;
  int64_t quarantined_tiles = 0;
  int64_t size_bytes = 0;
  std::vector<RecoveryProblem> problems;
};

// The tiles of one worker, by array and index range.
//
// With a data folder, durable tiles are also files, one per tile (docs/formats.md). A store
// reopened on the folder has them in their previous state. A folder belongs to one cluster, to one
// worker identity and to one open store.
//
// Commit, Abort, Release, Drop and Quarantine change the store's content before they return, and do
// no disk work. The store's own thread applies the changes to the files in the same order, with one
// sync for all waiting changes. The store logs files that it could not change; the next Open finds
// them as they lie. The verdict on the inventory then repairs them: it commits again a staged tile
// that the registry has as committed, and drops again a released one.
//
// Thread-safe. Reading takes a short lock and copies nothing.
class ShardStore {
 public:
  struct Options {
    // Allocates the tiles' memory; not null. Its budget is the store's limit. Any allocation from
    // the budget may free droppable quarantined tiles.
    std::shared_ptr<BufferPool> pool;
    // The data folder, created if missing; empty for a store only in memory.
    std::string data_dir;
    QuarantineLimits quarantine = {};
  };

  // Opens the store and reads back the data folder. Damaged files are moved into its folder
  // `corrupt` and reported, never served. FAILED_PRECONDITION if another process has the folder
  // open, or (CLUSTER_MISMATCH) if a sound tile belongs to another cluster than the folder.
  // DATA_LOSS if the file that names its cluster or worker is damaged. Otherwise the system's file
  // errors. After such an error no sound tile has been moved.
  static absl::StatusOr<std::unique_ptr<ShardStore>> Open(Options options);
  ~ShardStore();
  ShardStore(const ShardStore&) = delete;
  ShardStore& operator=(const ShardStore&) = delete;

  const RecoveryReport& recovery_report() const { return recovery_report_; }

  // Returns whether durable tiles are possible.
  bool has_data_dir() const { return !data_dir_.empty(); }

  // Returns the cluster whose tiles the store holds; empty before the first SetClusterId on the
  // folder.
  std::string cluster_id() const;
  // Binds the store to a cluster; with a data folder, permanently. FAILED_PRECONDITION
  // (CLUSTER_MISMATCH) if it is bound to another one.
  absl::Status SetClusterId(std::string_view cluster_id);

  // Returns the worker whose tiles the data folder holds; empty before the first SetIdentity on the
  // folder, and without a folder.
  std::string data_identity() const;
  // Binds the folder to a worker permanently. FAILED_PRECONDITION (IDENTITY_MISMATCH) if it is
  // bound to another one; the message names both.
  absl::Status SetIdentity(std::string_view identity);

  // Begins a tile, Receiving. `durable`: Finish writes it to disk. `memory`, if given, becomes the
  // tile's memory; it has the tile's size.
  //
  // INVALID_ARGUMENT for a bad description. ALREADY_EXISTS if the array has this tile, or is
  // committed. ABORTED while files of the array are being removed. RESOURCE_EXHAUSTED
  // (MEMORY_LIMIT) if there is no memory for it. FAILED_PRECONDITION if it is durable and there is
  // no data folder or no cluster id.
  absl::StatusOr<std::unique_ptr<StagedTile>> Stage(TileDescription description, bool durable,
                                                    std::shared_ptr<Buffer> memory = nullptr);

  // Makes all tiles of these arrays Committed, visible together. Ignores arrays that are already
  // committed, so the call can be repeated. NOT_FOUND if an array has no tile, FAILED_PRECONDITION
  // if a tile is still Receiving: neither changes anything.
  absl::Status Commit(absl::Span<const std::string> array_ids);

  // Drops the Receiving and Staged tiles of these arrays, and their files. Ignores unknown arrays.
  // FAILED_PRECONDITION if an array is committed; nothing is changed then.
  absl::Status Abort(absl::Span<const std::string> array_ids);

  // Releases committed arrays; readers keep the tiles that they hold. Ignores unknown arrays.
  // FAILED_PRECONDITION if an array is not committed; nothing is changed then.
  absl::Status Release(absl::Span<const std::string> array_ids);

  // Aborts or releases each of these arrays, depending on its state. Drops its quarantined tiles
  // too, because the registry released the array.
  //
  // There is one exception. Where the tiles dropped here are of a put and were never committed, the
  // registry may have given up only that put. Committed tiles then stay in quarantine.
  //
  // Calls `done` once, when no file of the dropped tiles is left and this is synced. If there was
  // no file, it runs on this thread, otherwise on the store's thread. After a failure it gets the
  // file system's error.
  using Done = absl::AnyInvocable<void(const absl::Status&) &&>;
  void Drop(absl::Span<const std::string> array_ids, Done done);

  // A tile to be moved to quarantine.
  struct Unknown {
    std::string array_id;
    Tile tile;
    std::string reason;        // the cause, for people
    bool array_lives = false;  // then the limits never drop it
  };
  // Moves complete tiles to quarantine; returns how many of them existed. Their files go to the
  // folder `quarantine`, with a bounded number of syncs for each call. A tile only in memory stays
  // there within the limits if it is committed. Otherwise it is dropped and logged. `now` must be
  // of one clock for all calls.
  int64_t Quarantine(absl::Span<const Unknown> tiles, absl::Time now);
  // Records whether the arrays are known to live; if not, the limits may drop their quarantined
  // tiles. The age of tiles that become droppable by this call counts from `now`.
  void SetLive(absl::Span<const std::string> array_ids, bool live, absl::Time now);
  // Returns at most `max_arrays` arrays after `start_after`, by rising id; only those in
  // `array_ids` unless that is empty.
  std::vector<QuarantinedArray> ListQuarantine(absl::Span<const std::string> array_ids,
                                               std::string_view start_after,
                                               int64_t max_arrays) const;
  // Takes an array back into use, committed, and returns its entry. Waits for the disk. NOT_FOUND
  // if it is not in quarantine. ALREADY_EXISTS if one of its tiles is in use. RESOURCE_EXHAUSTED
  // (MEMORY_LIMIT) if there is no memory for them. DATA_LOSS if a file is damaged or missing.
  // ABORTED if it was concurrently released, or more of it was moved to quarantine. After an error
  // all is as before.
  absl::StatusOr<QuarantinedArray> RestoreQuarantined(const std::string& array_id);
  // Deletes an array from the quarantine and returns its entry. Waits for the disk. NOT_FOUND;
  // ABORTED while it is being restored.
  absl::StatusOr<QuarantinedArray> DropQuarantined(const std::string& array_id);
  // Drops tiles older than the limit, in the folder `corrupt` too.
  void ExpireQuarantine(absl::Time now);
  QuarantineTotals quarantine_totals() const;

  // Waits until the files reflect all calls that returned: dropped files were moved out of their
  // folders, and this change is synced.
  void AwaitFiles();
  // Waits until the disk space of dropped files is free, too.
  void AwaitRemovals();

  // Takes a committed tile that is only in memory out of the store, to reuse its memory. Returns
  // null and changes nothing if the tile is missing, is on disk, or if the tile or its bytes have
  // another holder.
  std::shared_ptr<Buffer> TakeMemory(std::string_view array_id, const Tile& tile);

  // Returns the committed tile. NOT_FOUND if it is missing or not committed.
  absl::StatusOr<StoredTilePtr> Find(std::string_view array_id, const Tile& tile) const;
  // Returns all committed tiles of an array, by index range. NOT_FOUND if there are none.
  absl::StatusOr<std::vector<StoredTilePtr>> FindAll(std::string_view array_id) const;
  // Like FindAll, including staged tiles: for callers that know from elsewhere that the array is
  // committed.
  absl::StatusOr<std::vector<StoredTilePtr>> FindAllStaged(std::string_view array_id) const;
  // Like Find, including a tile that is only Staged: for the step that made it.
  absl::StatusOr<StoredTilePtr> FindStaged(std::string_view array_id, const Tile& tile) const;

  struct HeldTile {
    StoredTilePtr tile;
    TileState state = TileState::kStaged;  // or kCommitted
  };
  struct InventoryPage {
    std::vector<HeldTile> tiles;
    // First array id of the next page; empty after the last page.
    std::string next_array_id;
  };
  // Returns the complete tiles of the arrays from `first_array_id` on (empty: from the first). Adds
  // whole arrays until it has at least max_tiles >= 1 tiles.
  InventoryPage ListInventory(std::string_view first_array_id, int64_t max_tiles) const;

  // Memory in tiles and other allocations of the pool, and the limit of the pool's budget.
  int64_t used_bytes() const;
  int64_t limit_bytes() const;

 private:
  friend class StagedTile;

  struct TileOrder {
    bool operator()(const Tile& a, const Tile& b) const;
  };
  struct TileEntry {
    TileState state = TileState::kReceiving;
    StoredTilePtr stored;  // null while Receiving, and while Aborted until its receiver is
                           // destroyed
  };
  struct ArrayEntry {
    // All tiles are Committed, or none is.
    absl::btree_map<Tile, TileEntry, TileOrder> tiles;
  };
  using ArrayMap = absl::btree_map<std::string, ArrayEntry>;
  // A pending change on disk. `work` adds the folders whose entries it changed, which are synced
  // afterwards, and the paths to remove after the sync.
  struct FileEffects {
    absl::btree_set<std::string> changed_folders;
    std::vector<std::string> to_remove;
  };
  struct FileJob {
    std::vector<std::string> array_ids;  // busy until the change is done
    absl::AnyInvocable<absl::Status(FileEffects*) &&> work;
    Done done;  // if null, an error is logged
  };

  ShardStore(Options options, FileDescriptor lock);

  absl::StatusOr<StoredTilePtr> FindIn(std::string_view array_id, const Tile& tile,
                                       bool staged_too) const;
  absl::StatusOr<std::vector<StoredTilePtr>> FindAllIn(std::string_view array_id,
                                                       bool staged_too) const;

  // For StagedTile: ABORTED unless the tile is Receiving; the change from Receiving to Staged; the
  // end of a tile that is not finished.
  absl::Status CheckReceiving(const TileDescription& description) const;
  absl::Status Publish(StoredTilePtr tile);
  void Forget(const TileDescription& description);
  absl::Status WriteStagedFile(const StoredTile& tile);
  void RemoveStagedFile(const TileDescription& description);

  // Called by Open.
  absl::Status Recover();
  absl::Status RecoverArrays(const std::string& folder, TileState state);
  absl::Status RecoverArray(const std::string& folder, TileState state);
  absl::Status RecoverTile(const std::string& path, TileState state);
  absl::Status RecoverQuarantine();
  void RecoverQuarantined(const std::string& array_id);
  // Reports a file that cannot be read. Returns true if it never will be readable: it is moved to
  // the folder `corrupt` then.
  bool SetAside(const std::string& path, absl::Status why);
  // Removes files from the folder `corrupt` until it and the quarantine are within the limit.
  void BoundCorrupt();
  // Empties the folder `corrupt`. Runs on the files' thread.
  void ExpireCorrupt();

  // Forgets the Staged and Committed tiles of an array, and marks its Receiving tiles to end.
  // Returns true if some tiles have files, in the folder of `*state`.
  bool TakeOut(ArrayMap::iterator array, std::vector<StoredTilePtr>* dropped, TileState* state)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes out all of these arrays that exist, and their files. FAILED_PRECONDITION, with nothing
  // changed, if one of them does not match `committed`.
  absl::Status TakeOutAll(absl::Span<const std::string> array_ids, bool committed);
  // Arrays whose files are to be removed from one folder of the data folder.
  struct ArrayFolders {
    const char* folder;
    std::vector<std::string> array_ids;
  };
  // Without folders, does nothing and does not call `done`.
  void RemoveFiles(std::vector<ArrayFolders> folders, Done done)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Droppable quarantine entries; the first is dropped first.
  using DropOrder = absl::btree_set<std::tuple<bool, absl::Time, std::string>>;
  using QuarantineMap = absl::btree_map<std::string, QuarantinedArray>;
  // Returns whether the limits may drop an entry: its array is not known to live, and it is not
  // being restored.
  bool IsDroppable(const QuarantinedArray& array) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // CountIn adds an entry to the totals, CountOut removes it. Call CountOut before a change of the
  // entry and CountIn after it.
  void CountIn(const QuarantinedArray& array) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountOut(const QuarantinedArray& array) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  QuarantinedArray TakeOutOfQuarantine(QuarantineMap::iterator entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Drops an entry and its files, and logs it.
  void DropFromQuarantine(QuarantineMap::iterator entry, std::string_view why,
                          std::vector<QuarantinedArray>* dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Drops the entries that exceed the limits. The caller frees them under no lock.
  void EnforceQuarantine(absl::Time now, std::vector<QuarantinedArray>* dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Frees so many bytes of memory, if the droppable tiles suffice; returns whether it dropped any.
  bool DropQuarantinedMemory(int64_t need_bytes);
  // Like DropQuarantinedMemory; also returns idle buffers to the budget.
  bool GiveUpMemory(int64_t need_bytes);
  // Like DropQuarantinedMemory, on a full disk whose free space is unknown. Waits for the removal.
  bool DropQuarantinedFiles(int64_t need_bytes);
  // Returns an error if a quarantined tile of the array is also in use.
  absl::Status CheckRestorable(const QuarantinedArray& array) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Reads an array's tiles and puts them in use.
  absl::StatusOr<QuarantinedArray> Restore(const QuarantinedArray& array);
  // Moves the files of an array being restored back, and puts `stored` in use. After an error the
  // files are where they were.
  absl::Status PutBack(const QuarantinedArray& array, std::vector<StoredTilePtr> stored,
                       FileEffects* effects);

  void PushFiles(FileJob job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndBusy(const std::string& array_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunFiles();
  // Moves the array's folder out of `folder`, to be removed.
  absl::Status DiscardFiles(const char* folder, const std::string& array_id, FileEffects* effects);
  // Moves the staged folder to the committed ones.
  absl::Status CommitFiles(const std::string& array_id, FileEffects* effects);
  // Tiles of an array whose files are to be moved out of one folder of the data folder.
  struct MovedAside {
    const char* folder;
    QuarantinedArray array;  // without its tiles
    std::vector<std::string> file_names;
  };
  // Takes a tile out of use and moves it to quarantine if it is kept; returns whether the tile
  // existed.
  bool PutAside(const Unknown& unknown, absl::Time now, std::vector<StoredTilePtr>* dropped,
                std::vector<MovedAside>* moved) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the persistent part of an entry.
  static QuarantinedArray WithoutTiles(const QuarantinedArray& array);
  // Moves files to quarantine, after writing down the reason.
  absl::Status QuarantineFiles(absl::Span<const MovedAside> moved, FileEffects* effects);
  // Syncs all writes to the data folder so far.
  absl::Status SyncAll();

  const std::shared_ptr<BufferPool> pool_;
  const std::string data_dir_;
  const FileDescriptor lock_;
  const QuarantineLimits quarantine_limits_;
  RecoveryReport recovery_report_;
  int64_t next_discard_ = 0;  // used only by the files' thread

  absl::Mutex owner_mutex_
      ABSL_ACQUIRED_BEFORE(mutex_);  // held while the folder's owner is written
  mutable absl::Mutex mutex_;
  std::string cluster_id_ ABSL_GUARDED_BY(mutex_);
  std::string data_identity_ ABSL_GUARDED_BY(mutex_);
  ArrayMap arrays_ ABSL_GUARDED_BY(mutex_);
  QuarantineMap quarantine_ ABSL_GUARDED_BY(mutex_);
  absl::btree_set<std::string> restoring_ ABSL_GUARDED_BY(mutex_);  // arrays of the quarantine
  DropOrder droppable_on_disk_ ABSL_GUARDED_BY(mutex_);
  DropOrder droppable_in_memory_ ABSL_GUARDED_BY(mutex_);
  QuarantineTotals quarantine_totals_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Time> first_now_ ABSL_GUARDED_BY(mutex_);  // the first time passed by a
                                                                 // caller
  bool corrupt_expired_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<FileJob> jobs_ ABSL_GUARDED_BY(mutex_);  // in order
  // Arrays with unfinished jobs, and the number of these jobs: no tile of them may begin meanwhile.
  absl::btree_map<std::string, int64_t> busy_ ABSL_GUARDED_BY(mutex_);
  bool files_run_ ABSL_GUARDED_BY(mutex_) = false;

  ThreadPool removals_{1};  // of what is in the trash, which may take long
  ThreadPool files_{1};     // last: its thread uses the above
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STORE_SHARD_STORE_H_
