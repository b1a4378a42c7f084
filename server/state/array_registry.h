// The arrays of the cluster, the names that point to them, and the durable state of both.
#ifndef SHARDMESH_SERVER_STATE_ARRAY_REGISTRY_H_
#define SHARDMESH_SERVER_STATE_ARRAY_REGISTRY_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "process/clock.h"
#include "process/event_queue.h"
#include "server/state/cluster_changes.h"
#include "server/state/request_memory.h"
#include "server/store/store.h"
#include "sharding/mesh.h"
#include "sharding/spec.h"
#include "sharding/tile.h"
#include "tensor/array_descriptor.h"

namespace shardmesh::server {

// Legal transitions:
//
// clang-format off
//   (none)     -> kStaging                 Stage
//   kStaging   -> kAvailable, kDegraded    Commit (degraded if a rank was lost meanwhile)
//   kStaging   -> kReleased                Discard
//   kAvailable -> kDegraded                TilesLost
//   kDegraded  -> kAvailable               TilesFound brought the last missing rank
//   kAvailable, kDegraded -> kReleased     the last name and the last pin are gone
// clang-format on
//
// A released array is no longer in any list; holders of the value keep its last state.
enum class ArrayState { kStaging, kAvailable, kDegraded, kReleased };
std::string_view ArrayStateName(ArrayState state);  // "STAGING", ...

// The guarantee for an array's tiles once a commit is acknowledged.
enum class Durability { kMemory, kDisk };

// Where an array's bytes came from, so that lost tiles can be read again.
struct ArraySource {
  std::string path;    // as workers read it; empty: from a client
  std::string tensor;  // its name in the file
};

// The definition of an array, and its origin.
struct ArrayDefinition {
  ArrayDescriptor descriptor;                        // array_id is a RandomId()
  std::optional<PartitionSpec> requested_spec = {};  // where it differs from the effective one
  ArraySource source = {};
};

// An array in one state. Immutable: a change makes a new object.
struct Array {
  ArrayDefinition definition;
  ArrayState state = ArrayState::kStaging;
  Durability durability = Durability::kMemory;
  std::vector<int64_t> missing_ranks;  // rising; not empty exactly when degraded
  std::vector<uint32_t> tile_crc32c;   // by rank, once committed
  absl::Time created;                  // when committed
};
using ArrayPtr = std::shared_ptr<const Array>;

// A name at one version. The version is the store's revision at which the name was moved there.
// Versions never repeat, even if the name is deleted and created again.
struct NameEntry {
  std::string name;
  std::string array_id;
  int64_t version = 0;
};

// The commit of a staged array.
struct ArrayCommit {
  std::string array_id;
  Durability durability = Durability::kMemory;
  std::vector<uint32_t> tile_crc32c;  // by rank: as many as the mesh has devices
};

// Points `name` to an array, or to nothing.
struct NameMove {
  std::string name;                         // 1 to 1,024 bytes of UTF-8 without control characters
  std::string array_id;                     // empty: delete the name
  std::optional<int64_t> expected_version;  // 0: there must be no such name
};

// It takes effect completely, or not at all.
struct CommitRequest {
  std::vector<ArrayCommit> arrays;
  std::vector<NameMove> moves;  // of distinct names
  // Begun in requests(), if not empty; the commit finishes or abandons it.
  std::string request_id;
  std::string answer;
};

struct CommitResult {
  // The store's revision, and the new version of every moved name. 0 if nothing durable changed.
  Revision revision = 0;
};

// Number of live arrays in each state.
struct ArrayCounts {
  int64_t staging = 0;
  int64_t available = 0;
  int64_t degraded = 0;

  int64_t total() const { return staging + available + degraded; }
};

// A tile that a worker has, by its inventory.
struct InventoryTile {
  std::string array_id;
  Tile tile;
  uint32_t crc32c = 0;
  bool committed = true;
  bool on_disk = false;
  // The array's descriptor in the tile; only needed for tiles of FindUnknown.
  std::optional<ArrayDescriptor> descriptor = {};
};

// A mesh at the time when an inventory is judged.
struct InventoryMesh {
  const Mesh* mesh = nullptr;
  std::optional<int64_t> rank = {};               // the one that the worker serves
  absl::Span<const std::string> identities = {};  // the worker of each rank
};

// A worker's tiles: exactly these.
struct Inventory {
  std::string identity;
  uint64_t attachment = 0;                                   // Membership::Attach
  std::map<std::string, InventoryMesh, std::less<>> meshes;  // by id: the meshes that the worker
                                                             // serves
  std::vector<InventoryTile> tiles;
  std::vector<std::string> quarantined = {};  // arrays with tiles there that are not in use
  // Returns any other mesh, for tiles on it; called under the registry's lock. Null: no such mesh
  // is served.
  std::function<InventoryMesh(std::string_view mesh_id)> other_mesh = nullptr;
};

// An array without a name that workers brought after ArrayRegistry::Open; see there.
struct UnnamedArray {
  ArrayDescriptor descriptor;
  Durability durability = Durability::kDisk;
  std::vector<int64_t> missing_ranks = {};  // rising: their tiles are not here (yet)
  bool can_be_named = false;                // all ranks are present
  absl::Time until;                         // InfiniteFuture: records cannot be read
};

// A worker's orders for its tiles. Tiles that are not named stay as they are.
struct InventoryVerdict {
  struct Aside {
    std::string array_id;
    Tile tile;
    std::string reason;        // for people
    bool array_lives = false;  // the tile is never dropped for lack of space
  };
  std::vector<std::string> commit;  // in the registry; commit those that are only staged on the
                                    // worker
  std::vector<std::string> drop;    // known to have been released
  std::vector<Aside> quarantine;    // not this worker's, to the registry's knowledge
  // Arrays of Inventory::quarantined, whether known or not.
  std::vector<std::string> live;
  std::vector<std::string> unknown;
};

// Named arrays are durable: a commit writes array and name to the store before it is acknowledged.
// After a restart they exist again, degraded until the workers report their tiles. Unnamed arrays
// are not in the store.
//
// An array lives as long as a name points to it, or a session or a running step pins it. Each pin
// must be undone by its holder.
//
// Releases. Workers delete tiles only after a release that the registry knows. The registry
// remembers each release until every rank of the mesh has confirmed it, or brought an inventory
// without the array. Releases of arrays that were named or on disk are kept in the store for that
// time. Tiles of arrays that are neither known nor released go into quarantine on their worker.
//
// Adoption. For a grace period after Open, unknown committed arrays are adopted instead, once every
// rank has reported its tile. Unnamed arrays thus outlive a coordinator. An adopted array has no
// pin. If it has no name and no pin when the grace period ends, or loses the last one later, it
// goes into quarantine and is not deleted. The reason: after a restore of an older store it may
// have had a name. Tiles of arrays still incomplete at that time go into quarantine as well.
//
// Arrays with a record but no name in the store, for example arrays that sessions held after their
// names were deleted, are kept for the grace period and then released. There are exceptions:
// - In a state made from a snapshot they go into quarantine, as they may have had a name later than
//   the snapshot. The same holds for a state of which records were set aside.
// - In such a state, and in one with unreadable records, any array known at Open goes into
//   quarantine when its last known name is deleted: it may have another, unknown name.
//
// In the store:
//
// clang-format off
//   cluster              cluster id and term
//   restored             the snapshot that this state was made from, or that it has lost records
//   array/ID             an array that a name under `name/` points to
//   name/NAME            a name, or that it was deleted though a manifest has it
//   manifest/ID          makes the manifest's chunks valid: its names and arrays as of here
//   manifest/ID/NNNNNN   a chunk of a manifest, at most 1 MiB
//   released/ID          arrays that were released and that workers may still have
// clang-format on
//
// A commit too large for one transaction is written as a manifest. The chunks come first and are
// not yet valid. The key that makes them valid comes last, and must not exist before. Where a name
// is in several places the newest version holds. A manifest with fewer than half of its names
// current is rewritten with these, at their versions. Every transaction requires that `cluster` is
// unchanged, so that a replaced coordinator cannot write.
//
// Thread-safe. Callbacks and the release listener run without a lock, in the order of the events,
// on the caller's or the store's thread. Destroy the registry after the last call has called back;
// store and clock outlive it.
class ArrayRegistry {
 public:
  using CommitCallback = absl::AnyInvocable<void(absl::StatusOr<CommitResult>) &&>;
  // Arrays of this mesh that nothing holds any more: its workers must free their tiles and confirm
  // that.
  using ReleaseListener =
      std::function<void(const std::string& mesh_id, const std::vector<std::string>& array_ids)>;
  // Called with later verdicts on tiles that an inventory's verdict left unchanged.
  using VerdictListener =
      std::function<void(const std::string& identity, const InventoryVerdict& verdict)>;

  static constexpr size_t kMaxNameBytes = 1024;
  static constexpr int64_t kMaxNames = 1'000'000;
  static constexpr absl::Duration kAdoptionGrace = absl::Minutes(10);
  // Former versions of names that can be found, for each array: the last ones.
  static constexpr size_t kFormerVersions = 256;

  // Loads everything from the store, removes the remains of interrupted commits, and begins a new
  // term. Blocks. DATA_LOSS: the record `cluster` cannot be read, or is missing though the store is
  // not new.
  static absl::StatusOr<std::unique_ptr<ArrayRegistry>> Open(
      Store* store, Clock* clock, ReleaseListener listener,
      absl::Duration adoption_grace = kAdoptionGrace);
  ~ArrayRegistry();

  // Random, made with the first Open of the store: 32 hexadecimal digits.
  const std::string& cluster_id() const { return cluster_id_; }
  // One more than at the last Open of the store.
  int64_t term() const { return term_; }
  // Returns the keys of the records that Open left out: it could not decode them, or they point to
  // an unreadable record. Records that the store itself could not read are not included.
  const std::vector<std::string>& left_out() const { return left_out_; }
  RequestMemory& requests() { return *requests_; }

  // Sets the most names that may exist. Call it before the first commit.
  void SetMaxNames(int64_t max_names) { max_names_ = max_names; }
  // RESOURCE_EXHAUSTED (LIMIT_EXCEEDED): there is no room for this many additional names.
  absl::Status CheckRoomForNames(int64_t more) const;

  // Receives arrays and names that come and go; outlives this. Set it before the first commit.
  void SetChanges(ClusterChanges* changes) { changes_ = changes; }
  // Set it before workers attach.
  void SetVerdictListener(VerdictListener listener) { verdict_listener_ = std::move(listener); }

  // Registers an array whose tiles are about to arrive. ALREADY_EXISTS; INVALID_ARGUMENT from
  // Tiling::Create; ABORTED (VERSION_MISMATCH): its mesh is being changed, or was changed since the
  // revision in the definition.
  absl::Status Stage(ArrayDefinition definition);
  // Returns OK if the array's mesh lets Stage succeed now, or its error. Changes nothing.
  absl::Status CheckStage(const ArrayDescriptor& descriptor) const;

  // A mesh is about to be changed or deleted: until EndMeshChange no array is staged on it.
  // FAILED_PRECONDITION: an array is on it; names one. ABORTED: another change is running.
  absl::Status BeginMeshChange(const std::string& mesh_id);
  // Returns whether BeginMeshChange would succeed now, with its errors. Changes nothing.
  absl::Status CheckMeshChange(const std::string& mesh_id) const;
  // `revision`: that of the new definition, or of its deletion; nullopt: nothing
  // changed.
  void EndMeshChange(const std::string& mesh_id, std::optional<Revision> revision);
  // Forgets staged arrays whose transfer or step was aborted. Ignores other arrays.
  void Discard(const std::vector<std::string>& array_ids);

  // Makes staged arrays available and moves names, together. Arrays that end without name and pin
  // are released at once.
  //   NOT_FOUND            an array that is not there, or was not staged; a name to delete.
  //   DATA_LOSS            (STORE_FAILED) a name whose record cannot be read is to be deleted, or
  //                        is expected to have a version, or not to be there.
  //   ABORTED              (VERSION_MISMATCH) a name has another version than expected; or another
  //                        commit is moving it at this moment: retry.
  //   INVALID_ARGUMENT     a malformed name, a name twice, a wrong number of checksums.
  //   FAILED_PRECONDITION  another coordinator has taken over this store.
  //   RESOURCE_EXHAUSTED   (LIMIT_EXCEEDED) there would be more names than there may.
  //   as Store::Commit     for the rest.
  // After an error staged arrays are still staged, names where they were.
  void Commit(CommitRequest request, CommitCallback callback);

  // NOT_FOUND names the array. Staged arrays are found too.
  absl::StatusOr<ArrayPtr> FindArray(std::string_view array_id) const;
  // Returns a name at a version; 0: the current one. An older version is found while its array
  // lives, if it is among the last kFormerVersions at which a name left that array. NOT_FOUND
  // suggests a similar name. DATA_LOSS (STORE_FAILED): the store's record of the name, or of its
  // array, cannot be read; an older entry in a manifest is not returned instead.
  absl::StatusOr<NameEntry> FindName(std::string_view name, int64_t version = 0) const;
  // The name's version; 0: the name does not exist.
  int64_t VersionOf(std::string_view name) const;
  // Returns whether an array could be committed under this new name; errors are those of Commit.
  absl::Status CheckNewName(const std::string& name) const;
  // Returns whether Commit of only this move would succeed now, with its errors. Changes nothing.
  absl::Status CheckNameMove(const NameMove& move) const;
  // Whether a name points to the array.
  bool HasName(std::string_view array_id) const;

  struct NamedArray {
    NameEntry name;
    ArrayPtr array;
  };
  // Names with this prefix after `start_after`, in bytewise order, at most `limit`.
  std::vector<NamedArray> ListNames(std::string_view prefix, std::string_view start_after,
                                    int64_t limit) const;
  struct Nameless {
    std::vector<ArrayPtr> arrays;  // by rising id
    // The name after which the next page starts; empty on the last page.
    std::string next_start_after;
  };
  // Committed arrays that no name points to, after the id `start_after`, at most `limit`. It
  // examines a bounded number of arrays: a page may have fewer, or none, although more follow.
  Nameless ListNameless(std::string_view start_after, int64_t limit) const;
  // All arrays after the id `start_after`, by rising id, at most `limit`.
  std::vector<ArrayPtr> ListArrays(std::string_view start_after, int64_t limit) const;
  // Arrays kept without a name since Open. ListUnnamed returns at most `limit` of them after
  // `start_after`, by rising id; FindUnnamed returns one; CountUnnamed counts them, in O(1).
  std::vector<UnnamedArray> ListUnnamed(std::string_view start_after, int64_t limit) const;
  std::optional<UnnamedArray> FindUnnamed(std::string_view array_id) const;
  int64_t CountUnnamed() const;
  // The time until which those are kept, except those without such a time.
  absl::Time unnamed_until() const { return grace_end_; }
  // O(1).
  ArrayCounts CountArrays() const;
  int64_t CountNames() const;
  // Committed arrays whose tile is on the worker of this rank. O(arrays on the mesh).
  int64_t CountTiles(std::string_view mesh_id, int64_t rank) const;

  // Adds one pin, a reason to keep the array. NOT_FOUND, also for an array after Give.
  absl::Status Pin(std::string_view array_id);
  // Removes one pin from each array. Ignores missing arrays. Releases together all arrays that
  // nothing holds any more.
  void Unpin(absl::Span<const std::string> array_ids);
  void Unpin(const std::string& array_id) { Unpin(absl::MakeConstSpan(&array_id, 1)); }
  // Gives the array to a step that may make its result in the array's memory. Requires that no name
  // points to it and at most `pins` pins hold it; otherwise returns false and does nothing. Until
  // TakeBack the array can no longer be pinned or named, as if it were gone.
  bool Give(std::string_view array_id, int64_t pins);
  void TakeBack(std::string_view array_id);

  // The worker of this rank and its tiles are lost. No effect if a later attachment of the rank's
  // worker has brought its inventory.
  void TilesLost(std::string_view mesh_id, int64_t rank, uint64_t attachment);
  // Returns the tiles of arrays that are neither in the registry nor known to have been released.
  std::vector<size_t> FindUnknown(const std::vector<InventoryTile>& tiles) const;
  // Takes the inventory of an attached worker, which holds exactly these tiles: other tiles on its
  // ranks are missing. The verdict is empty if the attachment was lost meanwhile, or replaced by
  // another one.
  //
  // O(its tiles, and the arrays and unconfirmed releases on its meshes), with the lock for a few
  // thousand of these at a time. A worker may bring millions: do not call it on a gRPC thread.
  InventoryVerdict TakeInventory(const Inventory& inventory);
  // The worker also has these tiles, taken from its quarantine since its inventory. They are judged
  // like those of an inventory.
  InventoryVerdict TakeRestored(const Inventory& restored);
  // Confirms that a worker has dropped tiles as ordered; `rank_of` returns its rank in a mesh.
  using RankOf = std::function<std::optional<int64_t>(std::string_view mesh_id)>;
  void TilesDropped(absl::Span<const std::string> array_ids, const RankOf& rank_of);
  // Whether a tile in a worker's quarantine belongs to the rank. FAILED_PRECONDITION: it is not
  // this array's tile of the rank, or has another checksum. NOT_FOUND.
  absl::Status CheckTile(std::string_view array_id, int64_t rank, const Tile& tile,
                         uint32_t crc32c) const;

  // Releases that ranks have not confirmed yet.
  int64_t CountUnconfirmed() const;

 private:
  struct ArrayEntry {
    // Up to date except for the missing ranks and the state derived from them: see Current.
    // Thousands of workers may come or go before the next query.
    mutable ArrayPtr array = nullptr;
    mutable bool is_outdated = false;
    std::vector<bool> missing = {};  // by rank
    int64_t missing_count = 0;
    int64_t names = 0;
    int64_t pins = 0;
    bool is_given = false;
    // Not empty: the array was found on workers, or belongs to a state that may lack names. Unless
    // it gets a name, it goes into quarantine and is not deleted. By rank: the worker that has its
    // tile.
    std::vector<std::string> adopted_from = {};
    // The array finally goes into quarantine although it had a name, because another name may be
    // lost.
    bool may_lack_names = false;
    // One pin is that of the grace period: the store had a record of the array and no name.
    bool is_kept_for_grace = false;
    bool was_named = false;              // since Open
    bool has_record = false;             // under `array/` in the store, without a name at Open
    std::vector<NameEntry> former = {};  // names that pointed here, the last kFormerVersions
    // Attached workers that have tiles and wait for the outcome of the commit.
    struct Waiting {
      std::string identity;
      int64_t rank = 0;
      Tile tile;
      uint32_t crc32c = 0;
      bool committed = false;  // e.g. one from quarantine
    };
    std::vector<Waiting> waiting = {};
  };
  // An unknown committed array that some ranks have reported.
  struct Orphan {
    ArrayDescriptor descriptor;
    Durability durability = Durability::kDisk;
    std::vector<std::string> identities;  // by rank; empty: not reported yet
    std::vector<uint32_t> tile_crc32c;
    int64_t reported = 0;
  };
  // Arrays that were released together.
  struct ReleasedBatch {
    std::string key;  // in the store; empty: not there
    int64_t arrays = 0;
  };
  struct Tombstone {
    std::shared_ptr<ReleasedBatch> batch;
    std::string mesh_id;
    std::vector<bool> confirmed;  // by rank
    int64_t unconfirmed = 0;
  };
  struct Released {
    std::string array_id;
    std::string mesh_id;
    int64_t ranks = 0;
    bool durable = false;
  };
  // The last known state of a rank's worker.
  struct Presence {
    uint64_t attachment = 0;
    bool is_lost = false;
  };
  struct Name {
    NameEntry entry;
    std::string manifest_id;  // empty: stored as `name/NAME`
  };
  using Names = std::map<std::string, Name, std::less<>>;
  using Arrays = std::map<std::string, ArrayEntry, std::less<>>;
  // Objects that lie on meshes: by mesh, then by id.
  using ArraysByMesh = std::map<std::string, std::map<std::string_view, ArrayEntry*>, std::less<>>;
  using IdsByMesh = std::map<std::string, std::set<std::string, std::less<>>, std::less<>>;
  struct Manifest {
    int64_t chunks = 0;
    int64_t current_names = 0;       // number of its names for which it still has the current entry
    std::vector<std::string> names;  // all of them
  };
  // A commit between its checks and the store's answer.
  struct Pending;
  // A manifest that is being rewritten.
  struct Rewrite;

  ArrayRegistry(Store* store, Clock* clock, ReleaseListener listener,
                absl::Duration adoption_grace);

  absl::Status BeginTerm();
  void DiscardStaged(const std::vector<std::string>& array_ids) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Load() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckMeshStays(const ArrayDescriptor& descriptor) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status CheckMeshChangeLocked(const std::string& mesh_id) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes names from the store that point to nothing. If it fails, the next Open tries again.
  void GiveUp(const std::vector<std::string>& names) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // A missing name, and the names next to it.
  struct MissingName {
    std::string name;
    std::vector<std::string> neighbours;
  };

  // Sets `missing` where a name is missing. The caller then makes the error NoName after it has
  // released the lock.
  absl::Status CheckCommit(const CommitRequest& request, std::optional<MissingName>* missing) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status CheckMove(const NameMove& move, std::optional<MissingName>* missing) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // The number of names that the committed request would add; 0 if there would be fewer.
  int64_t MoreNames(const CommitRequest& request) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status CheckRoom(int64_t more_names) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  MissingName Missing(std::string_view name) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Returns OK, or DATA_LOSS (STORE_FAILED): the name is unknown, but the store has an unreadable
  // record of it or of its array.
  absl::Status CheckReadable(std::string_view name) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // NOT_FOUND, with the nearest existing name. Takes up to some milliseconds.
  static absl::Status NoName(const MissingName& missing);
  // Fills in the transaction of a commit; if one does not suffice, everything except the manifest's
  // chunks.
  void Write(Pending* pending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes long if there are many names, so it runs without the lock.
  static void MakeChunks(Pending* pending);
  void WriteChunk(std::shared_ptr<Pending> pending, size_t next)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Finish(const std::shared_ptr<Pending>& pending, absl::StatusOr<Revision> revision);
  void Apply(const Pending& pending, Revision revision) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Return or create the entry of an id with this array; change an entry's array; erase an entry.
  // They maintain the counts and the index.
  ArrayEntry& AddArray(const std::string& array_id, ArrayPtr array)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetArray(ArrayEntry& entry, ArrayPtr array) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The rank has no tile, or has it again; O(1). No effect for ranks that the array does not have.
  void SetMissing(ArrayEntry& entry, int64_t rank, bool is_missing)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The array in its current state.
  const ArrayPtr& Current(const ArrayEntry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static ArrayState StateOf(const ArrayEntry& entry);
  // Calls watchers after the lock is released.
  void Tell(ClusterChange::Value change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EraseArray(Arrays::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddName(NameEntry entry, std::string manifest_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes a name from its target; `key_stays`: its own key was written again.
  void DropName(Names::iterator name, bool key_stays) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A name has left an array: FindName finds that version.
  void AddFormer(NameEntry former) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropManifest(std::map<std::string, Manifest>::iterator manifest)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds the manifest to the list if fewer than half of its names are current.
  void NoteIfSparse(const std::string& manifest_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Begins to rewrite the next sparse manifest, unless one is being rewritten.
  void RewriteSparse() ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<Rewrite> BeginRewrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteAnew(std::shared_ptr<Rewrite> rewrite, size_t next_chunk)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndRewrite(const Rewrite& rewrite, const absl::Status& written) ABSL_LOCKS_EXCLUDED(mutex_);
  void ReleaseIfUnheld(std::string_view array_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Passes released arrays to the listener, and deletable records to the store.
  void FlushReleased() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Remembers released arrays; in the store if that must outlive this process.
  void AddTombstones(const std::vector<Released>& released) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddTombstone(std::string array_id, const std::string& mesh_id, int64_t ranks,
                    const std::shared_ptr<ReleasedBatch>& batch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  using Tombstones = absl::flat_hash_map<std::string, Tombstone>;
  void Confirm(Tombstones::iterator tombstone, int64_t rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(Tombstones::iterator tombstone) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // An inventory that is being processed.
  struct Taking {
    const Inventory& inventory;
    InventoryVerdict verdict = {};
    // The worker's ranks by mesh, for which its tiles count.
    std::map<std::string_view, int64_t> ranks = {};
    // The arrays that it lists, and whether its tile of each is in its place.
    absl::flat_hash_map<std::string_view, bool> listed = {};

    bool Holds(std::string_view array_id) const {
      const auto found = listed.find(array_id);
      return found != listed.end() && found->second;
    }
  };
  // Removes the ranks whose worker was lost meanwhile, or is back over another stream.
  void CheckRanks(Taking* taking) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Classifies one tile of an inventory; returns whether the tile is in its place.
  bool Classify(const InventoryTile& tile, Taking* taking) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Handles the next few objects after `*last`, on a mesh of the worker, that the worker does not
  // hold. Returns true after the last ones.
  bool MissArrays(std::string_view mesh_id, int64_t rank, const Taking& taking, std::string* last)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MissOrphans(std::string_view mesh_id, int64_t rank, const Taking& taking, std::string* last)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool ConfirmUnlisted(std::string_view mesh_id, int64_t rank, const Taking& taking,
                       std::string* last) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EraseOrphan(std::map<std::string, Orphan, std::less<>>::iterator orphan)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Judges arrays in a worker's quarantine: released ones are to be dropped, live ones are
  // reported.
  void JudgeQuarantined(absl::Span<const std::string> array_ids, InventoryVerdict* verdict) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Whether the tile may be a part of an array to adopt. If so, records it.
  bool MayBeAdoptedLater(const Inventory& inventory, const InventoryTile& tile) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Adopt(const Inventory& inventory, const InventoryTile& tile)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PutAside(const ArrayDescriptor& descriptor, const std::vector<std::string>& identities,
                std::string_view reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  UnnamedArray UnnamedOf(const ArrayEntry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  UnnamedArray UnnamedOf(const Orphan& orphan) const;
  void EndGrace();
  void AddVerdict(const std::string& identity, InventoryVerdict verdict)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Transaction Fenced() const;
  // Store::Commit, counted in in_flight_ until after its callback.
  void CommitToStore(Transaction transaction, Store::CommitCallback callback)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Store* const store_;
  Clock* const clock_;
  const ReleaseListener listener_;
  int64_t max_names_ = kMaxNames;  // constant from the first commit on
  const absl::Duration adoption_grace_;
  ClusterChanges* changes_ = nullptr;  // constant from the first commit on; may stay null
  VerdictListener verdict_listener_;   // constant once workers attach
  // Constant after Open.
  std::string cluster_id_;
  int64_t term_ = 0;
  Revision cluster_revision_ = 0;
  absl::Time grace_end_ = absl::InfinitePast();
  std::string restored_from_;    // RestoredRecord::digest; empty: this state has no such record
  bool has_unreadable_ = false;  // the store has records that cannot be read
  bool is_damaged_ = false;      // the content of some records is unknown
  std::vector<std::string> left_out_;
  std::unique_ptr<RequestMemory> requests_;

  EventQueue events_;

  mutable absl::Mutex mutex_;
  // Only AddArray, SetArray, SetMissing and EraseArray change it.
  Arrays arrays_ ABSL_GUARDED_BY(mutex_);
  ArrayCounts counts_ ABSL_GUARDED_BY(mutex_);           // of arrays_
  ArraysByMesh arrays_by_mesh_ ABSL_GUARDED_BY(mutex_);  // the same arrays
  Names names_ ABSL_GUARDED_BY(mutex_);
  // The array of each version that a name had, of arrays that live: ArrayEntry::former.
  std::map<std::pair<std::string, int64_t>, std::string> former_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Manifest> manifests_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> sparse_manifests_ ABSL_GUARDED_BY(mutex_);
  bool is_rewriting_ ABSL_GUARDED_BY(mutex_) = false;
  // In how many manifests a name occurs.
  absl::flat_hash_map<std::string, int64_t> manifest_mentions_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<std::string> moving_names_ ABSL_GUARDED_BY(mutex_);
  // Names with an unknown target, and the key of the record that would give it. The store knows the
  // names whose own record is unreadable.
  absl::flat_hash_map<std::string, std::string> unreadable_names_ ABSL_GUARDED_BY(mutex_);
  // Number of names that running commits add to names_.
  int64_t names_to_come_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_set<std::string> committing_arrays_ ABSL_GUARDED_BY(mutex_);
  std::vector<Released> released_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> dead_keys_ ABSL_GUARDED_BY(mutex_);
  Tombstones tombstones_ ABSL_GUARDED_BY(mutex_);
  IdsByMesh tombstones_by_mesh_ ABSL_GUARDED_BY(mutex_);
  // Recently discarded staged arrays, whose tiles are dropped when reported. The oldest are
  // forgotten first; tiles of forgotten arrays go into quarantine.
  absl::flat_hash_set<std::string> discarded_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> discarded_order_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Orphan, std::less<>> orphans_ ABSL_GUARDED_BY(mutex_);
  IdsByMesh orphans_by_mesh_ ABSL_GUARDED_BY(mutex_);
  // Arrays in arrays_ that had no name at Open, have got none since, and may have had one before.
  std::set<std::string, std::less<>> unnamed_ ABSL_GUARDED_BY(mutex_);
  bool grace_is_over_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::pair<std::string, int64_t>, Presence> presence_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<std::string> changing_meshes_ ABSL_GUARDED_BY(mutex_);
  // Whether arrays without a name may have, or have had, one: RestoredRecord.
  bool may_lack_names_ ABSL_GUARDED_BY(mutex_) = false;
  // The lowest valid revision for arrays on each changed mesh. The oldest entries are removed once
  // there are many: by then every put resolved before them has ended.
  std::map<std::string, Revision, std::less<>> mesh_floors_ ABSL_GUARDED_BY(mutex_);
  int64_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;

  std::unique_ptr<Alarm> grace_alarm_;  // last: its destructor waits for EndGrace
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_ARRAY_REGISTRY_H_
