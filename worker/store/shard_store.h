// The store of a worker's tiles. The store receives and verifies tiles, and commits or releases
// tiles as the coordinator orders.
#ifndef SHARDMESH_WORKER_STORE_SHARD_STORE_H_
#define SHARDMESH_WORKER_STORE_SHARD_STORE_H_

#include <atomic>
#include <cstdint>
#include <functional>
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
#include "absl/functional/function_ref.h"
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
#include "worker/store/tile_form.h"

namespace shardmesh::worker {

// A complete tile. Immutable and thread-safe. The bytes stay valid as long as anyone holds a
// pointer to the tile, even after the store has released the tile. An update of the tile makes a
// new object: see ShardStore::BeginUpdate.
class StoredTile {
 public:
  StoredTile(TileDescription description, std::shared_ptr<Buffer> buffer, uint32_t crc32c,
             bool durable);
  // A tile of state, with the content that this step committed. Requires state_step > 0.
  StoredTile(TileDescription description, std::shared_ptr<Buffer> buffer, int64_t state_step);
  // A durable tile whose bytes stay in its file: see ShardStore::Unload.
  explicit StoredTile(MappedTileFile file);
  // The tile of `plain` in another form: see ShardStore::HoldAs.
  StoredTile(const std::shared_ptr<const StoredTile>& plain, std::shared_ptr<const TileForm> form);
  // The tile of `held` with its bytes in `buffer`.
  StoredTile(const StoredTile& held, std::shared_ptr<Buffer> buffer);

  const TileDescription& description() const { return *description_; }
  int64_t size_bytes() const { return size_bytes_; }
  // Returns the form in which the store holds the tile instead of its bytes; null if it holds the
  // bytes. Null for tiles of Find, FindStaged, FindAll and FindAllStaged.
  const std::shared_ptr<const TileForm>& form() const { return form_; }
  // Requires that form() is null; so does view().
  absl::Span<const char> bytes() const {
    return file_.has_value() ? file_->bytes() : buffer_->bytes();
  }
  // Returns `size_bytes` bytes from `offset_bytes` on, or as many as there are. If form() is not
  // null, copies them to `scratch`; requires then that both are multiples of 64.
  absl::Span<const char> Piece(int64_t offset_bytes, int64_t size_bytes,
                               std::vector<char>* scratch) const;
  // Returns whether the bytes take no memory of the pool, because readers read the tile's file.
  bool is_unloaded() const { return file_.has_value(); }
  // Returns the elements, in the tile's shape.
  TensorView view() const;
  // Returns the CRC-32C of bytes(). Reads them for it at the first call, if the tile is state.
  uint32_t crc32c() const { return is_state() ? static_cast<uint32_t>(Crc32cOfState()) : crc32c_; }
  // Returns the step that made the content by an update; 0 if no step did. The content of a tile
  // of state changes under the same array id, so nobody may keep what is derived from it (such as
  // packed weights) beyond the life of this object.
  int64_t state_step() const { return state_step_; }
  bool is_state() const { return state_step_ != 0; }
  // Returns whether the tile is on disk and synced, so it survives a crash.
  bool durable() const { return durable_; }

 private:
  friend class ShardStore;

  int64_t Crc32cOfState() const;

  // Adds what holds the tile's memory in the pool.
  void AddMemory(std::vector<std::weak_ptr<const void>>* memory) const;

  // Shared by the objects for one tile whose bytes are in memory, in whatever form.
  const std::shared_ptr<const TileDescription> description_;
  // A sender of the bytes may hold the buffer longer than this object exists. Null if the tile is
  // unloaded, or if it is in another form.
  const std::shared_ptr<Buffer> buffer_;
  const std::shared_ptr<const TileForm> form_;
  const int64_t size_bytes_;
  const uint32_t crc32c_;
  const bool durable_;
  const int64_t state_step_ = 0;
  mutable std::atomic<int64_t> state_crc32c_ = -1;  // -1: not computed yet; only used for state
  const std::optional<MappedTileFile> file_;        // set if the tile is unloaded
  // If form_ is not null, the same tile with its bytes, while somebody reads them. The lock is held
  // while they are unpacked, and never under that of the store.
  mutable absl::Mutex unpacked_mutex_;
  mutable std::weak_ptr<const StoredTile> unpacked_ ABSL_GUARDED_BY(unpacked_mutex_);
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
// - Staged to Committed: ShardStore::Commit, for all tiles of an array together.
// - Committed to Released: ShardStore::Release or Drop, for all tiles of an array together; or
//   TakeMemory, for one tile.
// - Receiving or Staged to Aborted: ShardStore::Abort or Drop, for all tiles of an array together.
//   A StagedTile whose Finish fails, or that is destroyed before Finish, aborts only its own tile.
//
// ShardStore::Quarantine takes Staged and Committed tiles out of these states; RestoreQuarantined
// makes them Committed. No other transition exists. The store forgets a Released tile at once, and
// also an Aborted tile that was Staged. It forgets any other Aborted tile when its StagedTile is
// destroyed or its Finish fails. A tile's memory is freed when its last reader releases the tile.
enum class TileState { kReceiving, kStaged, kCommitted, kAborted };

class ShardStore;
class StateTile;
using StateTilePtr = std::unique_ptr<StateTile>;

// The longest time that a find waits for the end of an update of the tile: see ShardStore::Find.
inline constexpr absl::Duration kFindWait = absl::Milliseconds(100);
// The longest time that an update waits for the commit of the tile and for the end of the update
// before it.
inline constexpr absl::Duration kUpdateWait = absl::Seconds(1);

// UNAVAILABLE (OVERLOADED), with a retry delay: a step updates the tile.
absl::Status BeingUpdated(std::string_view array_id, const Tile& tile);

// A tile that is being added to the store. Its bytes come in pieces through Append, or a producer
// writes them in place through mutable_bytes(). Destruction before Finish aborts the tile. Used by
// one thread at a time, but the store may abort the tile concurrently. Must not outlive the store.
class StagedTile {
 public:
  StagedTile(const StagedTile&) = delete;
  StagedTile& operator=(const StagedTile&) = delete;
  ~StagedTile();

  const TileDescription& description() const { return description_; }
  int64_t size_bytes() const { return size_bytes_; }
  // Returns the number of bytes appended so far.
  int64_t received_bytes() const { return received_bytes_; }

  // Appends the next piece. INVALID_ARGUMENT (BAD_TILE) if the piece does not start where the last
  // piece ended, or exceeds the tile. DATA_LOSS (CHECKSUM_MISMATCH) if the bytes do not have the
  // CRC-32C `piece_crc32c`. After these two errors the tile is unchanged. ABORTED if the array was
  // aborted. RESOURCE_EXHAUSTED (MEMORY_LIMIT) as Write.
  absl::Status Append(int64_t offset_bytes, absl::Span<const char> piece, uint32_t piece_crc32c);

  // Like Append, for a piece that comes in several parts, in order. The caller has verified the
  // CRC-32C of the bytes, so this function does not check the bytes again. It copies the bytes
  // once.
  absl::Status AppendParts(int64_t offset_bytes, absl::Span<const absl::Span<const char>> parts,
                           uint32_t piece_crc32c);

  // mutable_bytes() returns all bytes of the tile, for a producer that writes them in place and
  // does not call Append. Requires that is_unfilled() is false. memory() returns the owner of these
  // bytes, for readers that use the bytes before or after Finish.
  absl::Span<char> mutable_bytes();
  std::shared_ptr<const void> memory() const { return buffer_; }
  absl::Span<const char> bytes() const { return buffer_->bytes(); }

  // Whether bytes are missing in a tile of ShardStore::StageUnfilled. Append and Write bring them.
  bool is_unfilled() const { return buffer_->is_unfilled(); }
  // Makes the tile one of ShardStore::Stage. RESOURCE_EXHAUSTED as Write.
  absl::Status FaultIn();
  // Writes bytes of the tile in place, for a producer that calls FinishInPlace. Requires that all
  // bytes before offset_bytes are written, and that the tile has room for `bytes`.
  // RESOURCE_EXHAUSTED (MEMORY_LIMIT) if the host has no memory for them.
  absl::Status Write(int64_t offset_bytes, absl::Span<const char> bytes);

  // Makes the tile Staged. If the tile is durable, first writes its file and syncs the file. Call
  // Finish once, when all bytes are there. FAILED_PRECONDITION (BAD_TILE) if bytes are missing.
  // DATA_LOSS (CHECKSUM_MISMATCH) if `crc32c` is given and the bytes have a different one. ABORTED
  // if the array was aborted. The file system's error if the file cannot be written. After any
  // error the tile is aborted.
  absl::StatusOr<StoredTilePtr> Finish(std::optional<uint32_t> crc32c);
  // Like Finish, for a producer that has written all bytes in place and has computed their CRC-32C
  // `crc32c` itself. Does not read the bytes again.
  absl::StatusOr<StoredTilePtr> FinishInPlace(uint32_t crc32c);
  // Like Finish, for memory that had all bytes when the tile was begun. Reads the bytes and
  // compares them with `crc32c`.
  absl::StatusOr<StoredTilePtr> FinishFilled(uint32_t crc32c);

 private:
  friend class ShardStore;
  StagedTile(ShardStore* store, TileDescription description, std::shared_ptr<Buffer> buffer,
             bool durable);

  // Returns OK if the next piece may start at `offset_bytes` and have `piece_bytes` bytes.
  // Otherwise returns an error of Append, but not DATA_LOSS.
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
  std::optional<uint32_t> in_place_crc32c_;  // set by FinishInPlace
  bool finished_ = false;
};

// A tile in the data folder that the store could not read back.
struct RecoveryProblem {
  // The path at which the store found the file or folder.
  std::string path;
  // The path to which the store moved the file; empty if the store left it in place.
  std::string moved_to;
  // Why the store could not read the tile. DATA_LOSS: the content is damaged, or the disk reports
  // an error. RESOURCE_EXHAUSTED: memory was short; the next start may be able to read the tile.
  // Other codes: an error of the file system. The store moves only files whose content is wrong.
  absl::Status status;
};

// A tile in quarantine: the store does not serve it, but has not dropped it.
struct QuarantinedTile {
  TileDescription description;
  uint32_t crc32c = 0;
  int64_t size_bytes = 0;
  // Null if the tile is on disk, or if its bytes were damaged in memory and are freed.
  StoredTilePtr stored;
};

// The tiles of one array that are in quarantine.
struct QuarantinedArray {
  std::string array_id;
  std::string reason;     // the cause, for people
  absl::Time since;       // when the first of these tiles was moved to quarantine
  bool committed = true;  // if false, the put or step that made them had not ended
  bool on_disk = false;   // if false, the tiles are only in memory
  // True if the coordinator's registry has the array, or if this worker does not know whether the
  // registry has it. In this case QuarantineLimits do not apply to the array's tiles.
  bool array_lives = false;
  std::vector<QuarantinedTile> tiles;
  int64_t tiles_bytes = 0;   // of all tiles together, without those whose bytes are freed
  int64_t memory_bytes = 0;  // bytes of the pool that the tiles take; 0 if on disk

  int64_t size_bytes() const { return tiles_bytes; }
};

// Limits of the quarantine. To keep within the limits, the store first drops tiles that were never
// committed, then the tiles that have been in quarantine longest. The limits do not apply to tiles
// of live arrays (see QuarantinedArray::array_lives): the store neither counts nor drops these
// tiles.
struct QuarantineLimits {
  // Limit for the bytes of the quarantine on disk. At each start, the store also removes files from
  // the folder `corrupt` until this folder and the quarantine together are within the limit. A
  // negative number stands for 64 GiB, or for a quarter of the file system's size if that is less.
  int64_t disk_bytes = -1;
  int64_t memory_bytes = int64_t{512} << 20;
  // The longest time that a tile stays in quarantine. For tiles that an earlier process left, the
  // time counts from this process's first call of Quarantine or ExpireQuarantine. The reason is
  // that the wall clock may have been changed between the two processes.
  absl::Duration age = absl::Hours(24 * 7);
};

struct QuarantineTotals {
  int64_t arrays = 0;
  int64_t disk_bytes = 0;
  int64_t memory_bytes = 0;
  // A tile is droppable if its array does not live and is not being restored. Bytes of the
  // droppable tiles on disk.
  int64_t droppable_disk_bytes = 0;
  int64_t droppable_tiles_bytes = 0;  // bytes of the droppable tiles in memory
  // Bytes of the pool that the droppable tiles in memory take. The store frees these bytes if
  // memory is needed.
  int64_t droppable_memory_bytes = 0;
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
// With a data folder, the store also writes each durable tile to a file (docs/formats.md). A store
// that is opened on the folder again has these tiles in their previous state. A folder belongs to
// one cluster, to one worker identity and to one open store.
//
// Commit, Abort, Release, Drop and Quarantine change the store's content before they return, and do
// no disk work. The store's own thread applies the changes to the files in the same order, with one
// sync for all waiting changes. If the store cannot change a file, it logs this, and the next Open
// finds the file unchanged. The coordinator's verdict on the inventory (the list of held tiles,
// sent at attach) then repairs the difference. If a staged tile's array is committed in the
// coordinator's registry, the coordinator orders the commit again. If a tile's array was released,
// the coordinator orders the drop again.
//
// Thread-safe. Reading takes a short lock and copies nothing, unless the store holds the tile in
// another form.
class ShardStore {
 public:
  struct Options {
    // Allocates the tiles' memory; not null. The pool's budget is the store's memory limit. If an
    // allocation finds too little room in the budget, the store frees droppable quarantined tiles.
    std::shared_ptr<BufferPool> pool;
    // The data folder, created if missing. If empty, the store keeps tiles only in memory.
    std::string data_dir;
    QuarantineLimits quarantine = {};
    // Called if the disk is full although no quarantined file is left to drop, on a thread that
    // writes a tile. `need_bytes` is about the size of the tile's file on disk. May block. Returns
    // whether arrays were dropped (Drop) for it, also if these take fewer bytes. The store calls it
    // again, one call at a time, until the tile fits or the function returns false. May be null.
    std::function<bool(int64_t need_bytes)> free_disk = nullptr;
  };

  // Opens the store and reads the data folder. Moves damaged files into the folder `corrupt` and
  // reports them; the store never serves them.
  //
  // FAILED_PRECONDITION if another process has the folder open, or if it is the data folder of a
  // coordinator. FAILED_PRECONDITION (CLUSTER_MISMATCH) if a sound tile belongs to another cluster
  // than the folder. DATA_LOSS if the file that names the folder's cluster or worker is damaged.
  // Otherwise the system's file errors. If Open fails, it has moved no sound tile.
  static absl::StatusOr<std::unique_ptr<ShardStore>> Open(Options options);
  ~ShardStore();
  ShardStore(const ShardStore&) = delete;
  ShardStore& operator=(const ShardStore&) = delete;

  const RecoveryReport& recovery_report() const { return recovery_report_; }

  // Returns whether the store has a data folder, so tiles can be durable.
  bool has_data_dir() const { return !data_dir_.empty(); }

  // Returns the id of the cluster to which the store is bound. Empty until SetClusterId binds the
  // store, unless Open found the id in the data folder.
  std::string cluster_id() const;
  // Binds the store to a cluster; with a data folder, permanently. FAILED_PRECONDITION
  // (CLUSTER_MISMATCH) if the store is bound to another cluster.
  absl::Status SetClusterId(std::string_view cluster_id);

  // Returns the identity of the worker to which the data folder is bound. Empty if there is no data
  // folder, or if SetIdentity was never called for this folder.
  std::string data_identity() const;
  // Binds the data folder to a worker permanently. FAILED_PRECONDITION (IDENTITY_MISMATCH) if the
  // folder is bound to another worker; the error message names both workers.
  absl::Status SetIdentity(std::string_view identity);

  // Begins a tile, in the state Receiving. If `durable`, StagedTile::Finish writes the tile to
  // disk. If `memory` is not null, this buffer becomes the tile's memory; requires that the buffer
  // has the tile's size.
  //
  // INVALID_ARGUMENT for a bad description. ALREADY_EXISTS if the array has this tile already, or
  // is committed. ABORTED while the store changes files of the array, or while the array's aborted
  // tiles are being dropped. RESOURCE_EXHAUSTED (MEMORY_LIMIT) if there is no memory for the tile.
  // FAILED_PRECONDITION if `durable` is true and there is no data folder or no cluster id.
  absl::StatusOr<std::unique_ptr<StagedTile>> Stage(TileDescription description, bool durable,
                                                    std::shared_ptr<Buffer> memory = nullptr);
  // Like Stage, for a tile whose bytes come in order, through Append or StagedTile::Write. The host
  // gives a large tile its memory as they come: see BufferPool::AllocateUnfilled.
  absl::StatusOr<std::unique_ptr<StagedTile>> StageUnfilled(TileDescription description,
                                                            bool durable);
  // Like Stage, for a tile whose bytes are all in `memory`: sealed memory of another process that
  // CheckSealed accepts for the tile's size. The memory becomes the tile's, or is copied: see
  // BufferPool::Adopt. StagedTile::FinishFilled makes the tile Staged.
  absl::StatusOr<std::unique_ptr<StagedTile>> StageSealed(TileDescription description, bool durable,
                                                          FileDescriptor memory);

  // Makes all tiles of these arrays Committed. Readers see all of them at the same time. Ignores
  // arrays that are already committed, so the call can be repeated. NOT_FOUND if an array has no
  // tile. FAILED_PRECONDITION if a tile is still Receiving. ABORTED if a tile is Aborted. After any
  // of these errors nothing has changed.
  absl::Status Commit(absl::Span<const std::string> array_ids);

  // Drops the Receiving and Staged tiles of these arrays, and their files. Ignores unknown arrays.
  // FAILED_PRECONDITION if one of the arrays is committed; in this case nothing has changed.
  absl::Status Abort(absl::Span<const std::string> array_ids);

  // Releases committed arrays; readers keep the tiles that they hold. Ignores unknown arrays.
  // FAILED_PRECONDITION if one of the arrays is not committed; in this case nothing has changed.
  absl::Status Release(absl::Span<const std::string> array_ids);

  // Aborts or releases each of these arrays, depending on its state. Also drops the array's
  // quarantined tiles, because the coordinator's registry released the array.
  //
  // One kind of quarantined tiles is not dropped. If this call aborts tiles that were never
  // committed, the registry may have given up only the put that made them. Committed tiles of the
  // same array then stay in quarantine.
  //
  // Calls `done` once, when all files of the dropped tiles are in the folder `trash` and this
  // change is synced. If the tiles have no files, `done` runs on the calling thread, otherwise on
  // the store's thread. If files cannot be moved to `trash`, `done` gets the file system's error.
  using Done = absl::AnyInvocable<void(const absl::Status&) &&>;
  void Drop(absl::Span<const std::string> array_ids, Done done);

  // A tile to be moved to quarantine, because the coordinator's registry does not list it as a tile
  // of this worker.
  struct Unknown {
    std::string array_id;
    Tile tile;
    std::string reason;        // the cause, for people
    bool array_lives = false;  // as QuarantinedArray::array_lives
    // The tile's bytes in memory are wrong. If the tile has no file, nothing can bring it back:
    // only its description stays in quarantine, and its memory is free for a repair.
    bool is_damaged = false;
  };
  // Moves complete tiles to quarantine; returns how many of these tiles existed. Files of tiles go
  // to the folder `quarantine`; each call needs a bounded number of syncs. A committed tile that is
  // only in memory goes to quarantine in memory, within QuarantineLimits. An uncommitted tile that
  // is only in memory is dropped, and the drop is logged. All calls must take `now` from the same
  // clock.
  int64_t Quarantine(absl::Span<const Unknown> tiles, absl::Time now);
  // Sets QuarantinedArray::array_lives of these arrays. If array_lives changes to false,
  // QuarantineLimits apply to the array's tiles, whose time in quarantine then counts from `now`.
  void SetLive(absl::Span<const std::string> array_ids, bool live, absl::Time now);
  // Returns the quarantine entries of at most `max_arrays` arrays whose ids are above
  // `start_after`, in rising order of ids. If `array_ids` is not empty, returns only entries of
  // these arrays.
  std::vector<QuarantinedArray> ListQuarantine(absl::Span<const std::string> array_ids,
                                               std::string_view start_after,
                                               int64_t max_arrays) const;
  // Takes an array out of the quarantine and makes it a committed array again. Returns the array's
  // former quarantine entry. Waits for the disk.
  //
  // NOT_FOUND if the array is not in quarantine. ALREADY_EXISTS if the store also has one of these
  // tiles outside the quarantine, or has a tile of the array that is not Committed.
  // RESOURCE_EXHAUSTED (MEMORY_LIMIT) if there is no memory for the tiles. DATA_LOSS if a file is
  // damaged or missing. ABORTED if another call is restoring the array. ABORTED if the array was
  // released during the restore, or more of its tiles came to quarantine. After an error nothing
  // has changed.
  absl::StatusOr<QuarantinedArray> RestoreQuarantined(const std::string& array_id);
  // Deletes an array from the quarantine and returns the array's former quarantine entry. Waits for
  // the disk. NOT_FOUND if the array is not in quarantine. ABORTED while the array is being
  // restored.
  absl::StatusOr<QuarantinedArray> DropQuarantined(const std::string& array_id);
  // Drops quarantined tiles that are beyond QuarantineLimits. Also removes all files in the folder
  // `corrupt` when QuarantineLimits::age has passed since this process's first call of Quarantine
  // or ExpireQuarantine.
  void ExpireQuarantine(absl::Time now);
  QuarantineTotals quarantine_totals() const;

  // Waits until the files reflect all calls that have returned: the files of dropped tiles have
  // been moved to `trash`, and all changes are synced.
  void AwaitFiles();
  // Like AwaitFiles; also waits until the disk space of dropped files is free.
  void AwaitRemovals();
  // Waits until the store has tried to read back all arrays that calls that have returned want back
  // in memory: see Unload.
  void AwaitReloads();

  // Takes a committed tile that is only in memory out of the store, so that the caller can reuse
  // its memory. Returns null and changes nothing in five cases: the tile is missing, it is on disk,
  // it is in another form, anyone but the store holds the tile or its bytes, or its memory may only
  // be read.
  std::shared_ptr<Buffer> TakeMemory(std::string_view array_id, const Tile& tile);

  // Begins an update of a committed tile by a step (state_tile.h). An update is exclusive if nobody
  // but the store holds the tile or its bytes, and if these may be written.
  //
  // State is only in memory. If the tile has a file, removes the file first and waits for the disk:
  // from then on the tile is lost with its worker.
  //
  // Waits up to kUpdateWait for an earlier update and for finds that wait, since these come first.
  // NOT_FOUND if the store does not have the tile or has not committed it by then. UNAVAILABLE
  // (OVERLOADED) if another update goes on. RESOURCE_EXHAUSTED (MEMORY_LIMIT) if there is no memory
  // for a copy. ABORTED if the tile was dropped meanwhile. The file system's error if the file
  // cannot be removed. After an error the tile's content is as before. Requires step > 0.
  absl::StatusOr<StateTilePtr> BeginUpdate(std::string_view array_id, const Tile& tile,
                                           int64_t step);

  // Holds a committed tile in another form from now on, instead of its bytes. Reads the form once
  // to verify it. Readers keep the bytes that they hold, and share them with those who ask for the
  // bytes meanwhile; the memory is freed once nobody holds them. The tile's file stays as it is.
  //
  // NOT_FOUND: the tile is missing or not committed. FAILED_PRECONDITION: it is unloaded, state, or
  // in another form already. DATA_LOSS (CHECKSUM_MISMATCH): the bytes that the form gives are not
  // the tile's. After an error nothing has changed.
  absl::Status HoldAs(std::string_view array_id, const Tile& tile,
                      std::shared_ptr<const TileForm> form);
  // Like FindStaged. If the store holds the tile in another form, it holds the bytes instead from
  // now on.
  absl::StatusOr<StoredTilePtr> HoldPlain(std::string_view array_id, const Tile& tile);

  // All finds wait up to kFindWait for the end of an update of the tile that is exclusive, or whose
  // step has run and waits for its commit (StateTile::AwaitCommit). UNAVAILABLE (OVERLOADED) if it
  // goes on, with a retry delay. A find after the commit of a step thus never gets the old content.
  //
  // The following four functions return tiles with their bytes. If the store holds a tile in
  // another form, they unpack it into memory of the pool, which all readers of the tile share, and
  // which is free when the last of them is done. RESOURCE_EXHAUSTED (MEMORY_LIMIT) if there is no
  // memory for it.
  //
  // Returns the committed tile. NOT_FOUND if the store does not have it or has not committed it.
  absl::StatusOr<StoredTilePtr> Find(std::string_view array_id, const Tile& tile) const;
  // Returns all committed tiles of an array, in the order of their index ranges. NOT_FOUND if there
  // are none.
  absl::StatusOr<std::vector<StoredTilePtr>> FindAll(std::string_view array_id) const;
  // Like FindAll, but also returns staged tiles. For callers to which the coordinator has said that
  // the array is committed.
  absl::StatusOr<std::vector<StoredTilePtr>> FindAllStaged(std::string_view array_id) const;
  // Like Find, but also returns a staged tile. For the callers of FindAllStaged, and for steps.
  absl::StatusOr<StoredTilePtr> FindStaged(std::string_view array_id, const Tile& tile) const;

  // Like FindStaged, and like FindAllStaged or FindAll, but they return tiles as the store holds
  // them: see StoredTile::form. They take no memory.
  absl::StatusOr<StoredTilePtr> FindHeld(std::string_view array_id, const Tile& tile) const;
  absl::StatusOr<std::vector<StoredTilePtr>> FindAllHeld(std::string_view array_id,
                                                         bool staged_too) const;

  struct HeldTile {
    StoredTilePtr tile;                    // as the store holds it: see StoredTile::form
    TileState state = TileState::kStaged;  // kStaged or kCommitted
  };
  struct InventoryPage {
    std::vector<HeldTile> tiles;
    // The id of the first array on the next page; empty if this is the last page.
    std::string next_array_id;
  };
  // Also lists tiles of which an update goes on. The bytes of such a tile must not be read.
  //
  // Returns the complete tiles of the arrays from `first_array_id` on (if empty, from the first
  // array). Adds whole arrays until the page has at least max_tiles >= 1 tiles.
  InventoryPage ListInventory(std::string_view first_array_id, int64_t max_tiles) const;

  // Compares the file of a durable committed tile with the tile: see CheckTileFile. NOT_FOUND: the
  // file is missing although the store has the tile. Waits for file jobs if the file is not there.
  absl::Status CheckFile(const TileDescription& description, uint32_t crc32c, int64_t piece_bytes,
                         const std::function<absl::Status(int64_t bytes)>& read);
  // Writes the file of a durable committed tile again from memory. Writes the bytes on the caller's
  // thread, and then gives the file its name in turn with the other changes of files. Waits for the
  // disk. Requires that the tile's bytes have its checksum, unless the tile is unloaded: its bytes
  // are those of the old file that the kernel still has, and its readers then read the new file.
  //
  // NOT_FOUND: the store no longer has this tile, and keeps no file of it. DATA_LOSS (BAD_FILE or
  // CHECKSUM_MISMATCH): the tile is unloaded, and its bytes are damaged or cannot be read. Else the
  // file system's error if the file cannot be written.
  absl::Status RewriteFile(const StoredTilePtr& tile);

  // Unloads the durable committed tiles of these arrays: takes them out of memory, and serves their
  // readers from their files from now on. For arrays that `successor_id`, an array that is about to
  // be staged here, is to replace, and beside which they do not fit into memory. Reads each file
  // once to verify it. Then waits up to `wait_limit`, for all arrays together, for readers that
  // still use the tiles' memory, and for an earlier way back that still holds memory. Leaves tiles
  // that are only in memory, or unloaded already, as they are. The arrays stay unloaded in a store
  // that is opened on the folder again.
  //
  // If `successor_id` is aborted, dropped or moved to quarantine, or EndUnload is called for it,
  // the store reads the tiles back into memory, on its own thread, as far as the budget has room.
  // Quarantined tiles do not give way to them. If there is no room, it tries again after each array
  // that it drops, and at the next Open.
  //
  // Returns the bytes that left memory. `keep_going` is polled, and its error ends the call.
  // DATA_LOSS: a file is damaged; NOT_FOUND: a file is missing. Tiles that the call has reached
  // before an error stay unloaded.
  absl::StatusOr<int64_t> Unload(absl::Span<const std::string> array_ids,
                                 const std::string& successor_id, absl::Duration wait_limit,
                                 const std::function<absl::Status()>& keep_going);
  // Says that this array no longer comes, unless it is committed: see Unload.
  void EndUnload(const std::string& successor_id);
  // Returns the bytes of the tiles that are unloaded.
  int64_t unloaded_bytes() const;

  // used_bytes() returns the bytes in use in the pool, by tiles and by other allocations.
  // limit_bytes() returns the limit of the pool's budget.
  int64_t used_bytes() const;
  int64_t limit_bytes() const;

 private:
  friend class StagedTile;
  friend class StateTile;

  struct TileOrder {
    bool operator()(const Tile& a, const Tile& b) const;
  };
  struct TileEntry {
    TileState state = TileState::kReceiving;
    // Null if `state` is kReceiving or kAborted.
    StoredTilePtr stored = nullptr;
    int64_t update = 0;         // number of the update that goes on; 0: none
    bool is_exclusive = false;  // `stored` may not be read until the update ends
    // The step that updates the tile has run. `stored` may have been replaced by the time at which
    // somebody who finds the tile uses it, so that finds wait for the end of the update.
    bool is_ending = false;
  };
  struct ArrayEntry {
    // Either all tiles are Committed, or no tile is Committed.
    absl::btree_map<Tile, TileEntry, TileOrder> tiles;
    int64_t waiting_finds = 0;  // finds that wait for the end of an update
  };
  using ArrayMap = absl::btree_map<std::string, ArrayEntry>;
  // The changes of a batch of file jobs on disk. FileJob::work adds the folders whose entries it
  // changed, and the paths to remove. After the batch, the store syncs these folders, and then
  // removes these paths and the files in `unloaded` of the arrays that are gone.
  struct FileEffects {
    absl::btree_set<std::string> changed_folders;
    std::vector<std::string> to_remove;
    std::vector<std::string> gone_ids;  // arrays whose folders of committed tiles have moved away
  };
  struct FileJob {
    std::vector<std::string> array_ids;  // these arrays are busy until the job is done
    absl::AnyInvocable<absl::Status(FileEffects*) &&> work;
    Done done;  // gets the status of the job; may be null
  };

  ShardStore(Options options, FileDescriptor lock);

  // Makes the checks of Stage, and enters the tile as Receiving.
  absl::Status BeginReceiving(const TileDescription& description, bool durable);
  // Returns a tile that BeginReceiving has begun, with its memory. If there is none, forgets the
  // tile and returns the error of `buffer`.
  absl::StatusOr<std::unique_ptr<StagedTile>> StageOver(TileDescription description, bool durable,
                                                        absl::StatusOr<Buffer> buffer);

  // Returns the tile's entry; null if there is none.
  const TileEntry* EntryOf(std::string_view array_id, const Tile& tile) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the entry of the tile of which the update with this number goes on; null if the tile
  // was dropped or put aside since.
  TileEntry* EntryOfUpdate(const TileDescription& description, int64_t update)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits until no update of this tile goes on that is exclusive or ending (null: of any tile of
  // the array). False: one still goes on after kFindWait.
  bool AwaitReadable(std::string_view array_id, const Tile* tile) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The parts of BeginUpdate and of the end of an update. ReserveUpdate returns the update's
  // number, and makes finds wait. MakeVolatile makes the tile one that is only in memory.
  // HoldPlainForUpdate gives it its bytes if it is in another form.
  // RemoveTileFile removes its file and waits for the disk. EndUpdate sets the content, unless
  // `updated` is null; false: EntryOfUpdate is null.
  absl::StatusOr<int64_t> ReserveUpdate(std::string_view array_id, const Tile& tile);
  absl::Status RemoveTileFile(const TileDescription& description);
  absl::Status HoldPlainForUpdate(const TileDescription& description, int64_t update);
  absl::Status MakeVolatile(const TileDescription& description, int64_t update);
  bool EndUpdate(const TileDescription& description, int64_t update, StoredTilePtr updated);
  // Called by StateTile::AwaitCommit.
  void AwaitEndOfUpdate(const TileDescription& description, int64_t update);

  absl::StatusOr<StoredTilePtr> FindIn(std::string_view array_id, const Tile& tile,
                                       bool staged_too) const;
  // Returns the tile with its bytes.
  absl::StatusOr<StoredTilePtr> Unpacked(const StoredTilePtr& held) const;
  // Returns another object for a tile of Unpacked, for the store to hold. The held tile knows the
  // object of Unpacked, and may give it to a reader at any time. If the store held that object, its
  // use counts would not say that nobody reads the bytes.
  static StoredTilePtr OwnObjectFor(const StoredTile& unpacked);
  absl::StatusOr<std::vector<StoredTilePtr>> AllUnpacked(
      absl::StatusOr<std::vector<StoredTilePtr>> held) const;

  // Called by StagedTile. CheckReceiving returns ABORTED unless the tile is Receiving. Publish
  // makes a Receiving tile Staged. Forget removes a tile that is not finished.
  absl::Status CheckReceiving(const TileDescription& description) const;
  absl::Status Publish(StoredTilePtr tile);
  void Forget(const TileDescription& description);
  absl::Status WriteStagedFile(const StoredTile& tile);
  void RemoveStagedFile(const TileDescription& description);
  // NOT_FOUND unless the store has exactly this tile as a committed one, in whatever form.
  absl::Status CheckCommitted(const StoredTilePtr& tile) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the file at `from` that of a committed tile. Runs on the thread of files_.
  absl::Status MoveToCommitted(const std::string& from, const TileDescription& description,
                               FileEffects* effects) const;

  // Called by Open to read the data folder.
  absl::Status Recover();
  absl::Status RecoverArrays(const std::string& folder, TileState state);
  absl::Status RecoverArray(const std::string& folder, TileState state);
  absl::Status RecoverTile(const std::string& path, TileState state);
  // Reads the folder `unloaded`: which arrays are to stay out of memory, each with its successor.
  void RecoverUnloaded();
  // Forgets unloaded arrays that the store does not have, and reads those back whose successors it
  // does not have.
  void SettleUnloaded();
  absl::Status RecoverQuarantine();
  void RecoverQuarantined(const std::string& array_id);
  // Adds a file that cannot be read to the recovery report. If the file's content is wrong, also
  // moves the file to the folder `corrupt`. Returns whether the file was moved.
  bool SetAside(const std::string& path, absl::Status why);
  // Removes files from the folder `corrupt`, the oldest first, until this folder and the quarantine
  // together are within QuarantineLimits::disk_bytes. Keeps files that this start moved to
  // `corrupt`.
  void BoundCorrupt();
  // Removes all files in the folder `corrupt`. Runs on the thread of files_.
  void ExpireCorrupt();

  // Calls QueueReloads for those of the arrays that are not committed here. Called once the memory
  // of their tiles is free.
  void QueueReloadsAfter(absl::Span<const std::string> ended_ids);
  // Queues that the arrays are read back into memory whose successor this array was, and also those
  // for which there was no room before.
  void QueueReloads(const std::string& ended_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Reads an unloaded array back into memory. Leaves it unloaded if memory is short or a tile is
  // damaged. Runs on the thread of reloads_.
  void Reload(const std::string& array_id);
  // Replaces a committed tile by another object for the same tile. NOT_FOUND as CheckCommitted.
  absl::Status Exchange(const StoredTilePtr& old_tile, StoredTilePtr new_tile)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Unloads one of the arrays of Unload, and adds its tiles' memory to `in_use`.
  absl::StatusOr<int64_t> UnloadArray(const std::string& array_id, const std::string& successor_id,
                                      const std::function<absl::Status()>& keep_going,
                                      std::vector<std::weak_ptr<const void>>* in_use);
  // Forgets that an array is unloaded, and removes its file in the folder `unloaded`.
  void ForgetUnloaded(const std::string& array_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes the files in the folder `unloaded` of those of these arrays that the store no longer
  // has. Runs on the thread of files_.
  void RemoveMarkers(const std::vector<std::string>& gone_ids);
  // Forgets an array whose last tile has left the map.
  void EraseIfEmpty(ArrayMap::iterator array) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Takes the tiles of an array out of use. Moves its Staged or Committed tiles to `dropped`, and
  // sets `state` to their state. Marks its Receiving tiles as Aborted. Returns true if some of the
  // moved tiles have files; the files are in the folder for tiles of this state.
  bool TakeOut(ArrayMap::iterator array, std::vector<StoredTilePtr>* dropped, TileState* state)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes all of these arrays that exist, and their files. FAILED_PRECONDITION, with nothing
  // changed, if one of them is not in the state that `committed` says: committed if true, not
  // committed if false.
  absl::Status TakeOutAll(absl::Span<const std::string> array_ids, bool committed);
  // Arrays whose files are to be removed, and the folder in the data folder that has them.
  struct ArrayFolders {
    const char* folder;
    std::vector<std::string> array_ids;
  };
  // Queues the removal of the arrays' files, after which `done` is called. If `folders` names no
  // array, does nothing and does not call `done`.
  void RemoveFiles(std::vector<ArrayFolders> folders, Done done)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The keys of droppable quarantine entries: (committed, since, array id). The entry with the
  // first key is dropped first.
  using DropOrder = absl::btree_set<std::tuple<bool, absl::Time, std::string>>;
  using QuarantineMap = absl::btree_map<std::string, QuarantinedArray>;
  // Returns whether QuarantineLimits apply to an entry. They do not apply if its array lives, if it
  // is not known whether the array lives, or while the array is being restored.
  bool IsDroppable(const QuarantinedArray& array) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // CountIn adds an entry to the totals of the quarantine, and CountOut subtracts it. To change an
  // entry, call CountOut before the change and CountIn after it.
  void CountIn(const QuarantinedArray& array) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountOut(const QuarantinedArray& array) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the entry of the array. NOT_FOUND: it is not in the quarantine. ABORTED: it is being
  // restored.
  absl::StatusOr<QuarantineMap::iterator> FindQuarantined(const std::string& array_id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  QuarantinedArray TakeOutOfQuarantine(QuarantineMap::iterator entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Drops a quarantine entry and its files, and logs the drop.
  void DropFromQuarantine(QuarantineMap::iterator entry, std::string_view why,
                          std::vector<QuarantinedArray>* dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Moves quarantine entries to `dropped` until the other entries are within QuarantineLimits. The
  // caller destroys the dropped entries after it has released the lock.
  void EnforceQuarantine(absl::Time now, std::vector<QuarantinedArray>* dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Drops quarantined tiles in memory until the budget has room for `need_bytes`. Returns whether
  // it dropped any tile. Does nothing if the budget has room already, or if dropping all droppable
  // tiles would not give enough room.
  bool DropQuarantinedMemory(int64_t need_bytes);
  // Like DropQuarantinedMemory, but also gives idle buffers of the pool back to the budget. Returns
  // true if it freed tiles or buffers.
  bool GiveUpMemory(int64_t need_bytes);
  // Writes the tile's file with `write`. While the disk is full, makes room and writes again, as
  // long as files leave the disk: first those of tiles that were dropped earlier, then quarantined
  // ones, uncommitted ones first, then those of Options::free_disk. Ends when `is_wanted` returns
  // false. Returns the status of the last `write`. Blocks.
  absl::Status MakeRoom(const StoredTile& tile, absl::FunctionRef<absl::Status()> write,
                        absl::FunctionRef<bool()> is_wanted);
  // Called when the disk is full. Drops quarantined files until the dropped files add up to
  // `need_bytes`, or until no droppable file is left. Waits until the dropped files are removed.
  // Returns whether it dropped any file.
  bool DropQuarantinedFiles(int64_t need_bytes);
  // Called when the disk is full and DropQuarantinedFiles has dropped nothing. Calls
  // Options::free_disk, unless another thread calls it meanwhile, and waits until the files of
  // dropped arrays are removed. Returns the result of that call.
  bool FreeDisk(int64_t need_bytes);
  // Returns ALREADY_EXISTS if the store also has one of these tiles outside the quarantine, or has
  // a tile of the array that is not Committed.
  absl::Status CheckRestorable(const QuarantinedArray& array) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Reads a quarantined array's tiles and makes them Committed.
  absl::StatusOr<QuarantinedArray> Restore(const QuarantinedArray& array);
  // Moves the files of a quarantined array back to the folder of committed arrays, and makes the
  // tiles in `stored` Committed. After an error the files are where they were before.
  absl::Status PutBack(const QuarantinedArray& array, std::vector<StoredTilePtr> stored,
                       FileEffects* effects);

  void PushFiles(FileJob job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndBusy(const std::string& array_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunFiles();
  // Moves the array's folder from the folder `folder` to the folder `trash`, from which the store
  // removes it later. No effect if `folder` has no folder of the array.
  absl::Status DiscardFiles(const char* folder, const std::string& array_id, FileEffects* effects);
  // Returns the names of the entry's files that no tile outside the quarantine has now.
  std::vector<std::string> QuarantinedNames(const QuarantinedArray& array) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Discards the files of an array that left the quarantine. Removes those of `file_names` that
  // never got there, because they could not be moved.
  absl::Status DiscardQuarantined(const std::string& array_id,
                                  const std::vector<std::string>& file_names, FileEffects* effects);
  // Returns whether one of the arrays has a staged tile.
  bool HasStaged(const absl::btree_set<std::string>& array_ids) const;
  // Moves the array's folder from the staged arrays to the committed arrays.
  absl::Status CommitFiles(const std::string& array_id, FileEffects* effects);
  // Tiles of one array whose files are to be moved from one folder of the data folder to the
  // quarantine.
  struct MovedAside {
    const char* folder;
    QuarantinedArray array;  // without its tiles
    std::vector<std::string> file_names;
  };
  // Takes a tile out of use, and moves it to quarantine or drops it, as Quarantine describes.
  // Returns whether the tile existed. Adds the tile's pointer to `dropped`, and the files to be
  // moved to `moved`.
  bool PutAside(const Unknown& unknown, absl::Time now, std::vector<StoredTilePtr>* dropped,
                std::vector<MovedAside>* moved) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns a copy of an entry with only the fields that the file `about` keeps.
  static QuarantinedArray WithoutTiles(const QuarantinedArray& array);
  // Writes the file `about` of each array, and after that moves the files of its tiles to the
  // folder `quarantine`.
  absl::Status QuarantineFiles(absl::Span<const MovedAside> moved, FileEffects* effects);
  // Syncs the whole file system of the data folder, which includes all earlier writes to the
  // folder.
  absl::Status SyncAll();

  const std::shared_ptr<BufferPool> pool_;
  const std::string data_dir_;
  const FileDescriptor lock_;
  const QuarantineLimits quarantine_limits_;
  const std::function<bool(int64_t need_bytes)> free_disk_;
  RecoveryReport recovery_report_;
  // Number in the name of the next folder in the trash. Used only by the thread of files_.
  int64_t next_discard_ = 0;
  // Paths of files of quarantined tiles that could not be moved. Used only by the thread of files_.
  absl::btree_set<std::string> unmoved_;
  std::atomic<int64_t> next_rewrite_ = 0;   // number in the name of the next file of RewriteFile
  std::atomic<int64_t> removals_done_ = 0;  // paths that removals_ has removed
  std::atomic<int64_t> disk_requests_ = 0;  // calls of free_disk_; written under free_disk_mutex_
  absl::Mutex free_disk_mutex_;             // held while free_disk_ runs; never under mutex_
  // The result of the last call of free_disk_.
  bool was_disk_freed_ ABSL_GUARDED_BY(free_disk_mutex_) = false;

  // Held while the file with the cluster id or the worker's identity is written.
  absl::Mutex owner_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  mutable absl::Mutex mutex_;
  std::string cluster_id_ ABSL_GUARDED_BY(mutex_);
  std::string data_identity_ ABSL_GUARDED_BY(mutex_);
  // Mutable because finds count themselves while they wait.
  mutable ArrayMap arrays_ ABSL_GUARDED_BY(mutex_);
  int64_t next_update_ ABSL_GUARDED_BY(mutex_) = 1;
  QuarantineMap quarantine_ ABSL_GUARDED_BY(mutex_);
  // Arrays in quarantine that are being restored.
  absl::btree_set<std::string> restoring_ ABSL_GUARDED_BY(mutex_);
  DropOrder droppable_on_disk_ ABSL_GUARDED_BY(mutex_);
  DropOrder droppable_in_memory_ ABSL_GUARDED_BY(mutex_);
  QuarantineTotals quarantine_totals_ ABSL_GUARDED_BY(mutex_);
  // The argument `now` of the first call of Quarantine or ExpireQuarantine.
  std::optional<absl::Time> first_now_ ABSL_GUARDED_BY(mutex_);
  bool corrupt_expired_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<FileJob> jobs_ ABSL_GUARDED_BY(mutex_);  // in the order in which they run
  // Arrays with unfinished file jobs, and the number of these jobs. Stage refuses tiles of such an
  // array.
  absl::btree_map<std::string, int64_t> busy_ ABSL_GUARDED_BY(mutex_);
  bool files_run_ ABSL_GUARDED_BY(mutex_) = false;
  struct UnloadedArray {
    std::string successor_id;
    bool is_wanted_back = false;  // its successor has ended
    bool is_queued = false;       // a task of reloads_ is going to read it back
    bool is_reported = false;     // the log says that it finds no way back
  };
  absl::btree_map<std::string, UnloadedArray> unloaded_ ABSL_GUARDED_BY(mutex_);  // see Unload
  // Arrays that left the store while they were unloaded, and whose files in `unloaded` are still
  // there, because their tiles' files may be too.
  absl::btree_set<std::string> stale_markers_ ABSL_GUARDED_BY(mutex_);
  // The array that is being read back into memory; empty if there is none.
  std::string reloading_id_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> is_closing_ = false;  // no array is read back into memory any more

  ThreadPool removals_{1};  // removes files from the trash, which may take long
  ThreadPool reloads_{1};   // reads unloaded tiles back, for which no removal must wait
  ThreadPool files_{1};     // last member, because its thread uses the other members
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STORE_SHARD_STORE_H_
