// The tiles that a worker holds: staged, verified, committed, released.
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

// A complete tile. Immutable, hence safe to share between threads; whoever holds the pointer keeps
// the bytes, also after the store let go of the tile.
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
  // Whether the tile is on disk, synced.
  bool durable() const { return durable_; }

 private:
  friend class ShardStore;

  const TileDescription description_;
  const std::shared_ptr<Buffer> buffer_;  // who sends from it may hold it longer
  const uint32_t crc32c_;
  const bool durable_;
};

using StoredTilePtr = std::shared_ptr<const StoredTile>;

// Where a tile stands.
//
//   Receiving -> Staged -> Committed -> Released
//       |           |
//       +-----------+----> Aborted
//
// Receiving to Staged: StagedTile::Finish, when every byte is there and the checksum is right.
// Staged to Committed: ShardStore::Commit, all tiles of an array together. Committed to Released:
// ShardStore::Release. To Aborted: ShardStore::Abort, all tiles of an array together, or the
// destruction of an unfinished StagedTile, that tile alone. No other transition exists.
//
// Released tiles are forgotten at once, Aborted ones as soon as their receiver has left; the memory
// goes when the last reader lets go.
enum class TileState { kReceiving, kStaged, kCommitted, kAborted };

class ShardStore;

// A tile under way into the store. Its bytes come either in pieces through Append, or are written
// in place through mutable_bytes() by whoever computes them. Destroyed before Finish, it is
// aborted. For one thread at a time; the store may abort it meanwhile. Must not outlive the store.
class StagedTile {
 public:
  StagedTile(const StagedTile&) = delete;
  StagedTile& operator=(const StagedTile&) = delete;
  ~StagedTile();

  const TileDescription& description() const { return description_; }
  int64_t size_bytes() const { return size_bytes_; }
  // How far Append has come.
  int64_t received_bytes() const { return received_bytes_; }

  // The next piece. INVALID_ARGUMENT (BAD_TILE) if it does not start where the last one ended or
  // goes beyond the tile, DATA_LOSS (CHECKSUM_MISMATCH) if its bytes are not of that CRC-32C; the
  // tile is then as before. ABORTED once the array was aborted.
  absl::Status Append(int64_t offset_bytes, absl::Span<const char> piece, uint32_t piece_crc32c);

  // The same for a piece that lies in parts, to be joined in order, and whose bytes are known to be
  // of that CRC-32C: they are copied once, and not looked at again.
  absl::Status AppendParts(int64_t offset_bytes, absl::Span<const absl::Span<const char>> parts,
                           uint32_t piece_crc32c);

  // All bytes of the tile, for a producer in place, which calls no Append; and who keeps them, for
  // those that read them while and after the tile is made.
  absl::Span<char> mutable_bytes();
  std::shared_ptr<const void> memory() const { return buffer_; }

  // Makes the tile Staged and, if it is to be durable, writes and syncs its file first. To be
  // called once, at the end. FAILED_PRECONDITION (BAD_TILE) if bytes are missing, DATA_LOSS
  // (CHECKSUM_MISMATCH) if `crc32c` is given and not that of the bytes, ABORTED if the array was
  // aborted, the file system's error if the file cannot be written. After an error the tile is
  // aborted.
  absl::StatusOr<StoredTilePtr> Finish(std::optional<uint32_t> crc32c);

 private:
  friend class ShardStore;
  StagedTile(ShardStore* store, TileDescription description, std::shared_ptr<Buffer> buffer,
             bool durable);

  // Whether a piece of that many bytes may come there now.
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

// A tile that the store read back from its data folder, or could not.
struct RecoveryProblem {
  // The file or folder, as it was.
  std::string path;
  // Where it was moved, out of the way of the store; empty if it was left where it is.
  std::string moved_to;
  // DATA_LOSS: not what was written. FAILED_PRECONDITION (CLUSTER_MISMATCH): of another cluster.
  // RESOURCE_EXHAUSTED: no memory for it; left in place, for a start with a higher limit.
  absl::Status status;
};

// A tile that was moved aside: out of use, and not dropped.
struct QuarantinedTile {
  TileDescription description;
  uint32_t crc32c = 0;
  int64_t size_bytes = 0;
  StoredTilePtr stored;  // null: on disk
};

// The tiles of an array that were moved aside.
struct QuarantinedArray {
  std::string array_id;
  std::string reason;        // why, for people
  absl::Time since;          // when the first of them was
  bool committed = true;     // otherwise their put or step had not ended
  bool on_disk = false;      // otherwise they are in memory alone
  bool array_lives = false;  // or it is not known whether it does: no bound counts or drops it
  std::vector<QuarantinedTile> tiles;
  int64_t tiles_bytes = 0;   // of all tiles
  int64_t memory_bytes = 0;  // that the pool gave for those in memory

  int64_t size_bytes() const { return tiles_bytes; }
};

// How much is kept in quarantine. Beyond it, tiles that were never committed are dropped first,
// then the oldest. Those of arrays that live are neither counted nor dropped.
struct QuarantineLimits {
  // With what is in the folder `corrupt`. Below 0: 64 GiB, and at most a quarter of the file
  // system.
  int64_t disk_bytes = -1;
  int64_t memory_bytes = int64_t{512} << 20;
  // Of what an earlier start left there, counted from the first call with a time: the wall clock
  // may have been set meanwhile.
  absl::Duration age = absl::Hours(24 * 7);
};

struct QuarantineTotals {
  int64_t arrays = 0;
  int64_t disk_bytes = 0;
  int64_t memory_bytes = 0;
  // Of those that the limits count and drop.
  int64_t droppable_disk_bytes = 0;
  int64_t droppable_tiles_bytes = 0;   // in memory
  int64_t droppable_memory_bytes = 0;  // of the pool, that give way when memory is needed
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
// With a data folder, durable tiles are also files, one a tile (docs/formats.md), and a store
// opened again on the folder has them in the state in which they were. A folder belongs to one
// cluster, to one identity of a worker and to one open store.
//
// Commit, Abort, Release, Drop and Quarantine change what the store holds before they return, and
// do no disk work: files follow in the same order, on a thread of the store's own, with one sync
// for all that wait. Files that could not follow are logged, and are found by the next Open as they
// lie: a tile that is staged there and committed in the registry is committed again, one that was
// released is dropped again, by the verdict on the inventory.
//
// Thread-safe. Reading takes a short lock and copies nothing.
class ShardStore {
 public:
  struct Options {
    // Where tiles' memory comes from; its budget is the limit of the store, and gets from it what
    // may be dropped out of the quarantine, whatever asks for memory. Not null.
    std::shared_ptr<BufferPool> pool;
    // The data folder, made if it is not there; empty for a store in memory alone.
    std::string data_dir;
    QuarantineLimits quarantine = {};
  };

  // Opens the store and reads back what the data folder holds; damaged files are moved aside into
  // its folder `corrupt` and reported, never served. FAILED_PRECONDITION if another process has
  // the folder open, or (CLUSTER_MISMATCH) if a sound tile is of another cluster than the folder;
  // DATA_LOSS if the file that names its cluster or worker is damaged; file errors as the system
  // says. No sound tile is moved then.
  static absl::StatusOr<std::unique_ptr<ShardStore>> Open(Options options);
  ~ShardStore();
  ShardStore(const ShardStore&) = delete;
  ShardStore& operator=(const ShardStore&) = delete;

  const RecoveryReport& recovery_report() const { return recovery_report_; }

  // Whether durable tiles are possible.
  bool has_data_dir() const { return !data_dir_.empty(); }

  // The cluster whose tiles it holds; empty before SetClusterId was first called on the folder.
  std::string cluster_id() const;
  // Ties the store to a cluster, for good where there is a data folder.
  // FAILED_PRECONDITION (CLUSTER_MISMATCH) if it is tied to another one.
  absl::Status SetClusterId(std::string_view cluster_id);

  // The worker whose tiles the data folder holds; empty before SetIdentity was first called on the
  // folder, and without a folder.
  std::string data_identity() const;
  // Ties the folder to a worker, for good. FAILED_PRECONDITION (IDENTITY_MISMATCH) if it is tied to
  // another one; names both.
  absl::Status SetIdentity(std::string_view identity);

  // Begins a tile, Receiving. `durable`: Finish writes it to disk. INVALID_ARGUMENT for a bad
  // description; ALREADY_EXISTS if the array has this tile, or is committed; ABORTED while files of
  // the array are on their way out; RESOURCE_EXHAUSTED (MEMORY_LIMIT) if there is no memory for it;
  // FAILED_PRECONDITION if it is to be durable and there is no data folder or no cluster id.
  // `memory`, if given, is what the tile is made in; it has the tile's size.
  absl::StatusOr<std::unique_ptr<StagedTile>> Stage(TileDescription description, bool durable,
                                                    std::shared_ptr<Buffer> memory = nullptr);

  // Makes all tiles of these arrays Committed, visible together. Arrays that are already committed
  // are left as they are, so that the call can be repeated. NOT_FOUND if an array has no tile,
  // FAILED_PRECONDITION if a tile is still Receiving: nothing is then changed.
  absl::Status Commit(absl::Span<const std::string> array_ids);

  // Drops the tiles of these arrays that are Receiving or Staged; files too. Arrays that are
  // unknown are passed over; a committed one is FAILED_PRECONDITION, and nothing is then changed.
  absl::Status Abort(absl::Span<const std::string> array_ids);

  // Lets go of committed arrays; readers keep what they hold. Unknown arrays are passed over; one
  // that is not committed is FAILED_PRECONDITION, and nothing is then changed.
  absl::Status Release(absl::Span<const std::string> array_ids);

  // Aborts or releases each of these arrays, whichever its state asks for, and what was moved aside
  // of it: the registry knows that it was released. Where a put's tiles are dropped that were
  // never committed, that put may be all that the registry gave up: then committed tiles stay
  // aside. `done` is called once, when no file of what goes is left, synced: on this thread where
  // there was none, else on the store's; with the file system's error where that failed.
  using Done = absl::AnyInvocable<void(const absl::Status&) &&>;
  void Drop(absl::Span<const std::string> array_ids, Done done);

  // A tile that is to be moved aside.
  struct Unknown {
    std::string array_id;
    Tile tile;
    std::string reason;        // why, for people
    bool array_lives = false;  // then it is never dropped for the bounds
  };
  // Moves complete tiles aside; how many of them were there. Their files go to the folder
  // `quarantine`, all of a call with a bounded number of syncs. A tile in memory alone stays there
  // within the limits if it is committed; otherwise it is dropped, and the log says so. `now`: by a
  // clock that all calls share.
  int64_t Quarantine(absl::Span<const Unknown> tiles, absl::Time now);
  // It is known now that the arrays live, or that this is not known: whether what is in quarantine
  // of them may be dropped for the limits. Where it may from now on, its age counts from `now`.
  void SetLive(absl::Span<const std::string> array_ids, bool live, absl::Time now);
  // By rising id, behind `start_after`, at most `max_arrays`; of these ids alone if there are any.
  std::vector<QuarantinedArray> ListQuarantine(absl::Span<const std::string> array_ids,
                                               std::string_view start_after,
                                               int64_t max_arrays) const;
  // Takes an array back into use, committed: what it was. Waits for the disk. NOT_FOUND if it is
  // not in quarantine; ALREADY_EXISTS if one of the tiles is here; RESOURCE_EXHAUSTED
  // (MEMORY_LIMIT) if there is no memory for them; DATA_LOSS if a file is damaged or missing;
  // ABORTED if it was released, or more of it was moved aside, meanwhile. After an error all is as
  // before.
  absl::StatusOr<QuarantinedArray> RestoreQuarantined(const std::string& array_id);
  // Deletes an array from the quarantine: what it was. Waits for the disk. NOT_FOUND; ABORTED while
  // it is being restored.
  absl::StatusOr<QuarantinedArray> DropQuarantined(const std::string& array_id);
  // Drops what is older than the limit, in the folder `corrupt` too.
  void ExpireQuarantine(absl::Time now);
  QuarantineTotals quarantine_totals() const;

  // Waits until the files have followed all calls that returned: what was dropped is out of its
  // place, and that is synced.
  void AwaitFiles();
  // Waits until the disk space of what was dropped is free as well.
  void AwaitRemovals();

  // Takes a committed tile that is in memory alone out of the store, for its memory to be used
  // anew. Null, and nothing changed, if it is not there, is on disk, or anybody else has the tile
  // or its bytes.
  std::shared_ptr<Buffer> TakeMemory(std::string_view array_id, const Tile& tile);

  // The committed tile. NOT_FOUND if it is not there, or not committed.
  absl::StatusOr<StoredTilePtr> Find(std::string_view array_id, const Tile& tile) const;
  // All committed tiles of an array, by index range. NOT_FOUND if there are none.
  absl::StatusOr<std::vector<StoredTilePtr>> FindAll(std::string_view array_id) const;
  // The same, with those that are staged: for who knows that the array is committed, whether or not
  // this worker has heard of it.
  absl::StatusOr<std::vector<StoredTilePtr>> FindAllStaged(std::string_view array_id) const;
  // As Find, also for a tile that is only Staged: for the step that made it.
  absl::StatusOr<StoredTilePtr> FindStaged(std::string_view array_id, const Tile& tile) const;

  struct HeldTile {
    StoredTilePtr tile;
    TileState state = TileState::kStaged;  // or kCommitted
  };
  struct InventoryPage {
    std::vector<HeldTile> tiles;
    // Where the next page starts; empty after the last.
    std::string next_array_id;
  };
  // The complete tiles of the arrays from `first_array_id` on (empty: from the first), whole arrays
  // until at least max_tiles >= 1 are there.
  InventoryPage ListInventory(std::string_view first_array_id, int64_t max_tiles) const;

  // Memory in tiles (and in whatever else draws on the pool), and the limit of the pool's budget.
  int64_t used_bytes() const;
  int64_t limit_bytes() const;

 private:
  friend class StagedTile;

  struct TileOrder {
    bool operator()(const Tile& a, const Tile& b) const;
  };
  struct TileEntry {
    TileState state = TileState::kReceiving;
    StoredTilePtr stored;  // null while Receiving, or Aborted and not yet left by its receiver
  };
  struct ArrayEntry {
    // All are Committed, or none is.
    absl::btree_map<Tile, TileEntry, TileOrder> tiles;
  };
  using ArrayMap = absl::btree_map<std::string, ArrayEntry>;
  // What is to happen on disk. `work` adds the folders whose entries it changed, to be synced, and
  // paths that are to be removed when that is done.
  struct FileEffects {
    absl::btree_set<std::string> changed_folders;
    std::vector<std::string> to_remove;
  };
  struct FileJob {
    std::vector<std::string> array_ids;  // busy until it is done
    absl::AnyInvocable<absl::Status(FileEffects*) &&> work;
    Done done;  // may be null: an error is logged
  };

  ShardStore(Options options, FileDescriptor lock);

  absl::StatusOr<StoredTilePtr> FindIn(std::string_view array_id, const Tile& tile,
                                       bool staged_too) const;
  absl::StatusOr<std::vector<StoredTilePtr>> FindAllIn(std::string_view array_id,
                                                       bool staged_too) const;

  // Called by StagedTile: ABORTED unless the tile is Receiving; Receiving to Staged; the end of a
  // tile that does not get that far.
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
  // Reports a file that cannot be read. True if it never will be: it is moved to the folder
  // `corrupt`.
  bool SetAside(const std::string& path, absl::Status why);
  // Removes from the folder `corrupt` what is too much together with the quarantine.
  void BoundCorrupt();
  // Empties the folder `corrupt`. On the files' thread.
  void ExpireCorrupt();

  // Forgets the tiles of an array that are Staged or Committed, and lets those on their way end.
  // True if some of them have files, in `*state`'s folder.
  bool TakeOut(ArrayMap::iterator array, std::vector<StoredTilePtr>* dropped, TileState* state)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // All of the arrays that are there, and their files; nothing if one of them is not as `committed`
  // says: FAILED_PRECONDITION.
  absl::Status TakeOutAll(absl::Span<const std::string> array_ids, bool committed);
  // Arrays whose files in one of the data folder's folders are to go.
  struct ArrayFolders {
    const char* folder;
    std::vector<std::string> array_ids;
  };
  // Nothing, and no call of `done`, where there are none.
  void RemoveFiles(std::vector<ArrayFolders> folders, Done done)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What may be dropped for the bounds, the first to go first.
  using DropOrder = absl::btree_set<std::tuple<bool, absl::Time, std::string>>;
  using QuarantineMap = absl::btree_map<std::string, QuarantinedArray>;
  // Whether an entry may be dropped for the bounds: its array is not known to live, and nobody is
  // restoring it.
  bool IsDroppable(const QuarantinedArray& array) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Counts an entry in, and out again: around whatever changes it.
  void CountIn(const QuarantinedArray& array) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountOut(const QuarantinedArray& array) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  QuarantinedArray TakeOutOfQuarantine(QuarantineMap::iterator entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Drops an entry, its file too, and says so.
  void DropFromQuarantine(QuarantineMap::iterator entry, std::string_view why,
                          std::vector<QuarantinedArray>* dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Drops what the limits have no room for. The entries are freed under no lock.
  void EnforceQuarantine(absl::Time now, std::vector<QuarantinedArray>* dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes room in memory for so many bytes, if what may be dropped suffices; whether anything was
  // dropped.
  bool DropQuarantinedMemory(int64_t need_bytes);
  // The same, and gives buffers that wait for reuse back to the budget.
  bool GiveUpMemory(int64_t need_bytes);
  // The same on a disk that is full, of which it is not known how much is free. Waits for it.
  bool DropQuarantinedFiles(int64_t need_bytes);
  // FAILED if tiles that an array in quarantine has are in use too.
  absl::Status CheckRestorable(const QuarantinedArray& array) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Reads an array's tiles, and puts them in use.
  absl::StatusOr<QuarantinedArray> Restore(const QuarantinedArray& array);
  // Moves the files of an array that is being restored back, and puts `stored` in use; on an error
  // the files are where they were.
  absl::Status PutBack(const QuarantinedArray& array, std::vector<StoredTilePtr> stored,
                       FileEffects* effects);

  void PushFiles(FileJob job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndBusy(const std::string& array_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunFiles();
  // Moves the array's folder out of `folder`, to be removed.
  absl::Status DiscardFiles(const char* folder, const std::string& array_id, FileEffects* effects);
  // Moves the staged folder to the committed ones.
  absl::Status CommitFiles(const std::string& array_id, FileEffects* effects);
  // Tiles of an array whose files are to be moved aside out of one of the data folder's folders.
  struct MovedAside {
    const char* folder;
    QuarantinedArray array;  // without its tiles
    std::vector<std::string> file_names;
  };
  // Takes a tile out of use and, if it is kept, into the quarantine; whether it was there.
  bool PutAside(const Unknown& unknown, absl::Time now, std::vector<StoredTilePtr>* dropped,
                std::vector<MovedAside>* moved) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What is written down of an entry.
  static QuarantinedArray WithoutTiles(const QuarantinedArray& array);
  // Moves files aside, and writes down why before.
  absl::Status QuarantineFiles(absl::Span<const MovedAside> moved, FileEffects* effects);
  // Makes all that was written to the data folder so far durable.
  absl::Status SyncAll();

  const std::shared_ptr<BufferPool> pool_;
  const std::string data_dir_;
  const FileDescriptor lock_;
  const QuarantineLimits quarantine_limits_;
  RecoveryReport recovery_report_;
  int64_t next_discard_ = 0;  // of the files' thread

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
  std::optional<absl::Time> first_now_ ABSL_GUARDED_BY(mutex_);  // that a call brought
  bool corrupt_expired_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<FileJob> jobs_ ABSL_GUARDED_BY(mutex_);  // in order
  // Arrays with jobs that are not done, and how many: no tile of them begins meanwhile.
  absl::btree_map<std::string, int64_t> busy_ ABSL_GUARDED_BY(mutex_);
  bool files_run_ ABSL_GUARDED_BY(mutex_) = false;

  ThreadPool removals_{1};  // of what is in the trash, which may take long
  ThreadPool files_{1};     // last: its thread uses the above
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STORE_SHARD_STORE_H_
