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
#include "sharding/shape.h"
#include "sharding/spec.h"
#include "sharding/tile.h"
#include "tensor/array_descriptor.h"
#include "tensor/array_origin.h"
#include "tensor/dtype.h"
#include "tensor/source_conversion.h"
#include "tensor/source_file.h"

namespace shardmesh::server {

// Legal transitions:
//
// clang-format off
//   (none)     -> kStaging                 Stage
//   kStaging   -> kAvailable, kDegraded    Commit (degraded if a rank is lost by then)
//   kStaging   -> kReleased                Discard
//   kAvailable -> kDegraded                TilesLost, TileDamaged
//   kDegraded  -> kAvailable               an inventory brought the last missing tile
//   kAvailable, kDegraded -> kReleased     the last name and the last pin are gone
// clang-format on
//
// A released array is no longer in any list. An ArrayPtr to it keeps the array's last state. The
// same holds for a cached array (see ArrayRegistry), which can become available again.
enum class ArrayState { kStaging, kAvailable, kDegraded, kReleased };
std::string_view ArrayStateName(ArrayState state);  // "STAGING", ...

// The place where workers keep an array's tiles once the array's commit is acknowledged.
enum class Durability { kMemory, kDisk };

// The origin of an array's bytes, from which lost tiles can be read again.
struct ArraySource {
  // The file, as it was when the workers read it. Null: a client sent the array, or a step made it.
  // Arrays of one put share the object.
  std::shared_ptr<const SourceFile> file = nullptr;
  int64_t offset_bytes = 0;  // of the tensor in the file
  // How the workers made the elements from those in the file; nullopt: they are the bytes there.
  std::optional<SourceConversion> conversion = std::nullopt;
};

// The definition of an array, and its origin.
struct ArrayDefinition {
  ArrayDescriptor descriptor;  // array_id is a RandomId()
  // The spec of the request; nullopt if it is also the effective spec.
  std::optional<PartitionSpec> requested_spec = {};
  ArraySource source = {};
  // The same for elements that a client has made from a file and sent: workers cannot read these
  // again. Unset if `source` is set.
  ArrayOrigin sent_from = {};
  // The number of workers on which each tile is wanted: 1 or 2. With 2, a companion array has the
  // second copy of each tile; see server/repair/replicas.h.
  int64_t replicas = 1;
  // For a companion array: the id of the array whose tiles it copies. Both have the same shape,
  // spec and cut points, on meshes of the same shape. Empty: the array is no companion.
  std::string replica_of = {};
  // Whether steps update the array in place: see ArrayRegistry::MakeState. Such an array has no
  // origin, no checkpoint and no companion, is only in memory, and its checksums mean nothing.
  bool is_state = false;

  // The origin. A client or the workers have read the file.
  ArrayOrigin origin() const {
    if (source.file == nullptr) return sent_from;
    return {.file = source.file,
            .offset_bytes = source.offset_bytes,
            .conversion = ConversionText(source.conversion, descriptor.dtype, descriptor.shape)};
  }
  // Returns the OriginKey of the array.
  std::string origin_key() const { return OriginKey(origin(), descriptor.dtype, descriptor.shape); }
};

// An array in one state. Immutable: a change makes a new object.
struct Array {
  ArrayDefinition definition;
  ArrayState state = ArrayState::kStaging;
  Durability durability = Durability::kMemory;
  std::vector<int64_t> missing_ranks;  // rising; not empty if and only if degraded
  std::vector<uint32_t> tile_crc32c;   // by rank; set by the commit
  absl::Time created;                  // time of the commit
  // The array in the newest checkpoint that was saved of it; `file` is null if none is known.
  ArraySource checkpoint = {};
};
using ArrayPtr = std::shared_ptr<const Array>;

// A name at one version. The version is the store's revision at which the name was moved to this
// array. Versions never repeat, even if the name is deleted and created again.
struct NameEntry {
  std::string name;
  std::string array_id;
  int64_t version = 0;
};

// The data with which a staged array is committed.
struct ArrayCommit {
  std::string array_id;
  Durability durability = Durability::kMemory;
  std::vector<uint32_t> tile_crc32c;  // by rank: as many as the mesh has devices
  // WorkOutcome::epoch of the put or step. Losses of ranks up to this epoch do not count: the
  // workers have staged these tiles since.
  int64_t epoch = 0;
};

// Points `name` to an array, or deletes the name.
struct NameMove {
  std::string name;                         // 1 to 1,024 bytes of UTF-8 without control characters
  std::string array_id;                     // empty: delete the name
  std::optional<int64_t> expected_version;  // 0: the name must not exist; nullopt: any version
};

// Returns the names that move in the commit of a new array, beside the array's own name. Called
// once, at the commit, without a lock.
using OtherMoves = std::function<std::vector<NameMove>(const std::string& array_id)>;

// Arrays to commit and names to move. All changes of a request take effect, or none does.
struct CommitRequest {
  std::vector<ArrayCommit> arrays;
  std::vector<NameMove> moves;  // of distinct names
  // If not empty, the caller has begun this request in requests(). If the commit succeeds, Commit
  // finishes the request there and stores `answer` with it. If the commit fails, Commit abandons
  // the request.
  std::string request_id;
  std::string answer;
  // Ids of arrays that the caller gives up: the commit also records the release of each of them
  // that the moves leave without a name. Pins still hold the array until the end of this process.
  // After a restart it is released, and not kept for the grace period. Has no effect on an array
  // that has a name, that never had one, or whose release would move its tiles into quarantine.
  std::vector<std::string> superseded = {};
  // Arrays of MakeState that the step `step` has updated, and the number of this step. Ignored if
  // the commit fails. The caller pins these arrays.
  std::vector<std::string> updated = {};
  int64_t step = 0;
  // Arrays that the caller found by their origin or content. ABORTED if one of them has become
  // state since.
  std::vector<std::string> reused = {};
};

struct CommitResult {
  // The store's revision after the commit, which is also the new version of every moved name. 0 if
  // nothing durable changed.
  Revision revision = 0;
};

// Number of live arrays in each state.
struct ArrayCounts {
  int64_t staging = 0;
  int64_t available = 0;
  int64_t degraded = 0;

  int64_t total() const { return staging + available + degraded; }
};

// An array that the registry keeps as a cache.
struct CachedArray {
  std::string array_id;
  std::string mesh_id;
  std::vector<int64_t> rank_bytes;  // size of the tile of each rank
  bool on_disk = false;             // whether the tiles are on disk too
};

// The arrays that the registry keeps as a cache.
struct CacheTotals {
  int64_t arrays = 0;
  int64_t bytes = 0;  // of all tiles on all ranks
  // Since Open: tensors of puts that used a cached array, tensors that found no array of their
  // origin, and arrays that were evicted.
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t evictions = 0;
};

// A tile in a worker's inventory.
struct InventoryTile {
  std::string array_id;
  Tile tile;
  uint32_t crc32c = 0;
  bool committed = true;
  bool on_disk = false;
  bool of_step = false;  // the result of a step, staged
  // The step that made the tile's content by an update; 0: none did. See StoredTile::state_step.
  int64_t state_step = 0;
  // The array's descriptor as stored with the tile; needed only for tiles that FindUnknown returns.
  std::optional<ArrayDescriptor> descriptor = {};
};

// A mesh at the time when an inventory is judged.
struct InventoryMesh {
  const Mesh* mesh = nullptr;
  std::optional<int64_t> rank = {};               // the worker's own rank; nullopt: it serves none
  absl::Span<const std::string> identities = {};  // each rank's worker; empty: none is assigned yet
  Revision revision = 0;                          // of the mesh's definition that has these ranks
};

// The complete list of a worker's tiles.
struct Inventory {
  std::string identity;
  uint64_t attachment = 0;                                   // Membership::Attach
  std::map<std::string, InventoryMesh, std::less<>> meshes;  // by id: the meshes that the worker
                                                             // serves
  std::vector<InventoryTile> tiles;
  std::vector<std::string> quarantined = {};  // arrays with tiles in the worker's quarantine
  // Returns a mesh that is not in `meshes`, for tiles that lie on that mesh. `mesh` of the result
  // is null if no such mesh is served. The registry calls this function under its lock.
  std::function<InventoryMesh(std::string_view mesh_id)> other_mesh = nullptr;
};

// An array that is kept without a name since ArrayRegistry::Open: see "Adoption" in the comment on
// ArrayRegistry.
struct UnnamedArray {
  ArrayDescriptor descriptor;
  Durability durability = Durability::kDisk;
  std::vector<int64_t> missing_ranks = {};  // rising; their tiles are not reported (yet)
  bool can_be_named = false;                // false: only some ranks have reported the array
  absl::Time until;                         // InfiniteFuture: as long as records are unreadable
};

// The registry's orders to a worker about its tiles. The worker leaves tiles without an order
// unchanged.
struct InventoryVerdict {
  struct Aside {
    std::string array_id;
    Tile tile;
    std::string reason;        // for people
    bool array_lives = false;  // true: the worker must never drop the tile for lack of space
  };
  // Arrays in the registry. The worker commits those of them that it has only staged.
  std::vector<std::string> commit = {};
  std::vector<std::string> drop = {};  // released or discarded; the worker deletes their tiles
  std::vector<Aside> quarantine = {};  // tiles that the registry does not count as this worker's
  // Arrays of Inventory::quarantined: those that are live, and those that certainly do not exist.
  // Arrays that may still be live are in neither list.
  std::vector<std::string> live = {};
  std::vector<std::string> unknown = {};
};

// How ArrayRegistry::TakeOver has pinned an array. kAwaited: the array gets the pin when all of its
// workers have reported it. kNoRoom: the pin would be kAwaited, and there are too many such pins.
enum class TakenOver { kPinned, kAwaited, kNoRoom };

// Named arrays are durable: a commit writes array and name to the store before it is acknowledged.
// After a restart of the coordinator, named arrays exist again. They are degraded until the workers
// report their tiles. Unnamed arrays are not in the store.
//
// An array lives as long as a name points to it, or a session or a running step pins it. The holder
// of a pin must remove the pin itself.
//
// Companions. An array whose definition has `replica_of` is held by the array of that id, from its
// commit until that array is released or becomes cached (see "Cache"), and is released then. Its
// record `array/ID` is written by its commit, although no name points to it. A commit whose array
// is gone by then releases the companion at once. Open finds the pairs by the records. It releases
// a companion without a name whose array is cached, wants one replica or has a recorded release.
// Any other companion without its array is treated as an array without a name.
//
// Releases. Workers delete committed tiles only of arrays whose release the registry has recorded.
// The registry remembers each release until every rank of the mesh has confirmed it. A rank
// confirms with a message, or with an inventory that lacks the array. Until all ranks have
// confirmed, the store keeps the releases of arrays that were named or on disk. If an array is
// neither known nor released, its workers move its tiles to quarantine. A worker does not serve
// quarantined tiles. It drops them only at a limit of its quarantine, for lack of space, or on an
// order of the coordinator.
//
// A commit may record a release in the transaction that takes the last name of the array: see
// CommitRequest::superseded. Pins keep such an array until the end of the process, but not beyond a
// restart, and it does not become cached. A new name takes the record back: Open ignores the record
// of an array that has a name, and the registry deletes the record after the commit of the name.
// Open ignores such records also in states that may have lost records or names, since the array may
// have got a name that is lost. The array is then unknown: see "Adoption".
//
// Adoption. For a grace period after Open, the registry does not send unknown committed arrays to
// quarantine. It adopts such an array once every rank has reported its tile. Unnamed arrays thus
// survive a restart of the coordinator. The staged result of a step counts as committed, because
// the former coordinator may have answered the caller before it could tell the worker; but only
// until every rank has brought its inventory: a rank without the tile shows that the step failed,
// unless another rank has the tile committed. At its adoption, only the grace period pins an array,
// unless TakeOver has pinned it: the session of a client that made the array before Open then takes
// the place of the grace period. When the last such pin goes, the array is released, and its tiles
// are deleted: its client says that the array has no name. If that pin went before all ranks had
// reported their tiles, the reported ones are deleted at the end of the grace period.
// If the array has no name and no other pin when the grace period ends, its tiles go into
// quarantine and are not deleted. If another pin holds the array at that time, its tiles go into
// quarantine when it loses its last pin. Exception: an array that got a name since Open is released
// as usual. The reason for quarantine: if an older store was restored, the array may have had a
// name before. If not every rank has reported its tile when the grace period ends, the reported
// tiles go into quarantine as well.
//
// Arrays with a record but no name in the store are kept for the grace period and then released.
// Such a record stays, for example, if a session held the array when its name was deleted. There
// are exceptions to the release:
// - In a state made from a snapshot, arrays with a record but no name go into quarantine: they may
//   have got a name after the snapshot. The same holds for a state from which records were set
//   aside.
// - In these states, and in a state with unreadable records, any array known at Open goes into
//   quarantine when its last known name is deleted. The array may have another, unknown name.
//
// Cache. If SetCaching has turned the cache on, an available array with a known origin is not
// released when nothing holds it any more: it becomes cached. Workers keep its tiles. No list,
// count or search has it, except FindByOrigin, ListAlike and FindCommitted, and no caller can pin
// or name it, except by PinFound. Evict releases cached arrays. The registry itself evicts a cached
// array that has lost a tile for good, and those on a mesh that changes. The store's record of a
// cached array says so: after a restart the array is cached again. An array gives up its companion
// when it becomes cached; the caller of PinFound says how many replicas it wants from then on.
//
// State. MakeState makes a committed array one that steps update in place. From then on nothing may
// bring back or reuse content that the array had before: MakeState forgets its origin and its
// checkpoint, durably, and no search by origin or content finds it. A lost tile is never repaired;
// the array stays degraded until it is released. State never becomes cached. The registry knows the
// last step that updated an array, and counts a tile of an inventory only if that step made the
// tile's content. After Open, the first tile that a worker reports says which step that was, unless
// the record says that there was a later one. Ranks that report others have missed the end of a
// step: their tiles go into quarantine, and the array is degraded. State is thus at the same step
// on all ranks, or lost.
//
// In the store:
//
// clang-format off
//   cluster              cluster id and term
//   restored             the snapshot of this state, or a mark that the state has lost records
//   array/ID             an array that a name under `name/` points to, or a cached array
//   name/NAME            a name; or its deletion, if a manifest still mentions the name
//   manifest/ID          makes the manifest's chunks (names with arrays) valid, at its revision
//   manifest/ID/NNNNNN   a chunk of a manifest, at most 1 MiB
//   released/ID          arrays that were released and that workers may still have; ID is random
//   state/ID             the array is state, at least of this step; also one without a name
//   released/ARRAY       the array of this id, which the commit that took its last name gave up
// clang-format on
//
// A commit too large for one transaction is written as a manifest. The chunks come first and are
// not yet valid. The key `manifest/ID` comes last and makes the chunks valid. The transaction that
// writes this key requires that the key does not exist yet. If a name occurs in several records,
// the newest version is valid. If fewer than half of a manifest's names are current, the registry
// writes a new manifest with only these names, and keeps their versions. Every transaction requires
// that `cluster` is unchanged, so that a replaced coordinator cannot write.
//
// Thread-safe. Callbacks and listeners run without a lock, in the order of the events, on the
// caller's, the store's or the clock's thread. Destroy the registry after the last call has called
// back. The store and the clock must outlive the registry.
class ArrayRegistry {
 public:
  using CommitCallback = absl::AnyInvocable<void(absl::StatusOr<CommitResult>) &&>;
  // Called with arrays of one mesh that nothing holds any more. The listener must make the mesh's
  // workers free the tiles and confirm the release.
  using ReleaseListener =
      std::function<void(const std::string& mesh_id, const std::vector<std::string>& array_ids)>;
  // Called with verdicts that were not yet known when TakeInventory judged the inventory.
  using VerdictListener =
      std::function<void(const std::string& identity, const InventoryVerdict& verdict)>;
  // Called when there is a new array that wants a second replica, and when one that wanted it has
  // become cached.
  using ReplicaListener = std::function<void()>;

  static constexpr size_t kMaxNameBytes = 1024;
  static constexpr int64_t kMaxNames = 1'000'000;
  static constexpr absl::Duration kAdoptionGrace = absl::Minutes(10);
  // The maximum number of former name versions that FindName can find, for each array; older
  // versions are forgotten.
  static constexpr size_t kFormerVersions = 256;
  // See AddOrigin.
  static constexpr size_t kOtherOrigins = 4;
  // The maximum number of pins of TakeOver on arrays that are not adopted yet, of all sessions,
  // apart from kMinAwaitedOfSession for each. The maximum number of arrays whose pins went before
  // their adoption, and that are released then, is the same.
  static constexpr int64_t kMaxAwaited = 100'000;
  // A session takes over one part in so many of the arrays for which the others leave room. However
  // many arrays some sessions have, the next one gets as large a part of the rest.
  static constexpr int64_t kAwaitedShares = 10;
  // The maximum number of arrays that one session takes over before their adoption, and the number
  // for which each session has room whatever the others take over.
  static constexpr int64_t kMaxAwaitedOfSession = kMaxAwaited / kAwaitedShares;
  static constexpr int64_t kMinAwaitedOfSession = 10;

  // Loads everything from the store, removes the remains of interrupted commits, and begins a new
  // term. Blocks. DATA_LOSS: the record `cluster` cannot be read, or is missing although the store
  // is not new.
  static absl::StatusOr<std::unique_ptr<ArrayRegistry>> Open(
      Store* store, Clock* clock, ReleaseListener listener,
      absl::Duration adoption_grace = kAdoptionGrace);
  ~ArrayRegistry();

  // A random id that the first Open of the store makes: 32 hexadecimal digits.
  const std::string& cluster_id() const { return cluster_id_; }
  // The number of this Open of the store: each Open adds 1 to the number of the previous Open.
  int64_t term() const { return term_; }
  // Returns the keys of the records that Open left out: records that Open could not decode, or that
  // point to an unreadable record. Records that the store itself could not read are not included.
  const std::vector<std::string>& left_out() const { return left_out_; }
  RequestMemory& requests() { return *requests_; }

  // Sets the maximum number of names. Call it before the first commit.
  void SetMaxNames(int64_t max_names) { max_names_ = max_names; }
  // RESOURCE_EXHAUSTED (LIMIT_EXCEEDED): there is no room for `more` additional names.
  absl::Status CheckRoomForNames(int64_t more) const;

  // `changes` receives each change of an array or a name; it must outlive this object. Set it
  // before the first commit.
  void SetChanges(ClusterChanges* changes) { changes_ = changes; }
  // Turns the cache on or off. Arrays that are cached already stay so until Evict. Off at first.
  void SetCaching(bool on);
  // `listener` is called after arrays have become cached. Set it before workers attach.
  void SetCacheListener(std::function<void()> listener) { cache_listener_ = std::move(listener); }
  // Set the listener before workers attach.
  void SetVerdictListener(VerdictListener listener) { verdict_listener_ = std::move(listener); }
  // Set the listener before the first commit.
  void SetReplicaListener(ReplicaListener listener) { replica_listener_ = std::move(listener); }

  // Registers an array whose tiles are about to arrive. ALREADY_EXISTS: the id exists.
  // INVALID_ARGUMENT: see Tiling::Create. ABORTED (VERSION_MISMATCH): a change of the array's mesh
  // is running, or the mesh was changed after the mesh revision in the array's definition.
  absl::Status Stage(ArrayDefinition definition);
  // Returns the error that Stage would return now. Changes nothing.
  absl::Status CheckStage(const ArrayDescriptor& descriptor) const;

  // Announces a change or deletion of a mesh: until EndMeshChange, Stage refuses arrays on this
  // mesh. Evicts the cached arrays on the mesh. FAILED_PRECONDITION: an array is on the mesh; the
  // message names one array. ABORTED: another change of the mesh is running.
  absl::Status BeginMeshChange(const std::string& mesh_id);
  // Returns the error that BeginMeshChange would return now. Changes nothing.
  absl::Status CheckMeshChange(const std::string& mesh_id) const;
  // Ends the change. `revision`: the revision of the mesh's new definition, or of its deletion;
  // nullopt: the mesh did not change.
  void EndMeshChange(const std::string& mesh_id, std::optional<Revision> revision);
  // Forgets staged arrays whose transfer or step was aborted. Ignores arrays that are not staged.
  void Discard(const std::vector<std::string>& array_ids);

  // Makes staged arrays available and moves names, in one atomic change. Arrays that have neither
  // name nor pin after the change are released at once.
  //   NOT_FOUND            an array to commit is not staged; the array for a name does not exist;
  //                        or a name to delete does not exist.
  //   DATA_LOSS            (STORE_FAILED) the record of a name cannot be read, and the request
  //                        deletes the name, or expects a version or absence of the name.
  //   ABORTED              (VERSION_MISMATCH) a name has another version than expected, or another
  //                        commit is moving the name: retry. Without this reason: another commit is
  //                        committing one of the arrays, or the request lists an array twice; or
  //                        the array of a companion is gone, has a companion already, or wants
  //                        none any more.
  //   INVALID_ARGUMENT     a malformed name; two moves of one name; a wrong number of checksums; or
  //                        (LIMIT_EXCEEDED) more than 100 names to delete, where a superseded array
  //                        counts as two names.
  //   FAILED_PRECONDITION  another coordinator has taken over this store.
  //   RESOURCE_EXHAUSTED   (LIMIT_EXCEEDED) there would be more names than SetMaxNames allows.
  //   other errors         as for Store::Commit.
  // After an error, staged arrays are still staged and names are unchanged.
  void Commit(CommitRequest request, CommitCallback callback);

  // Makes committed arrays state: see "State" in the comment on this class. No effect on those that
  // are state already. Call it before a step that updates them is submitted, with the arrays
  // pinned. `callback` runs once this is durable, or at once if all of the arrays are state.
  //   NOT_FOUND            there is no such committed array.
  //   FAILED_PRECONDITION  (NOT_AVAILABLE) an array wants a second replica or is a companion.
  //   other errors         as for Store::Commit.
  // After an error, the arrays are as before.
  void MakeState(absl::Span<const std::string> array_ids,
                 absl::AnyInvocable<void(absl::Status) &&> callback);
  // Returns the last step whose commit updated the array; 0: none did. Nullopt: it is not known,
  // because no worker has reported the array since Open, or there is no such array of state.
  std::optional<int64_t> StateStepOf(std::string_view array_id) const;

  // Returns the array, even if it is only staged. NOT_FOUND names the array.
  absl::StatusOr<ArrayPtr> FindArray(std::string_view array_id) const;
  // Returns the mesh of an array, cached or not; nullopt if there is no such array.
  std::optional<std::string> MeshOf(std::string_view array_id) const;
  // Returns a name at version `version`; 0: at its current version. A former version is found while
  // the array that it pointed to lives. It must be among the last kFormerVersions versions that
  // left that array. NOT_FOUND: there is no such name or version; for a missing name, the message
  // suggests a similar name. DATA_LOSS (STORE_FAILED): the store's record of the name, or of its
  // array, cannot be read. In that case, FindName does not return an older entry from a manifest.
  absl::StatusOr<NameEntry> FindName(std::string_view name, int64_t version = 0) const;
  // Returns the name's current version; 0: the name does not exist.
  int64_t VersionOf(std::string_view name) const;
  // Returns the error that Commit would return now if it gave this new name to an array.
  absl::Status CheckNewName(const std::string& name) const;
  // Returns the error that Commit of only this move would return now. Changes nothing.
  absl::Status CheckNameMove(const NameMove& move) const;
  // Returns whether a name points to the array.
  bool HasName(std::string_view array_id) const;
  // Returns `array "NAME" (ID)` for an error message; `array ID` if no name points to the array, or
  // if its name is not among the first 1,000. For a companion, names the array that it copies.
  std::string LabelOf(std::string_view array_id) const;
  // The numbers of names and pins that keep an array alive.
  struct Holds {
    int64_t names = 0;
    int64_t pins = 0;
  };
  // Returns the holds of the array; none if there is no such array.
  Holds HoldsOf(std::string_view array_id) const;

  struct NamedArray {
    NameEntry name;
    ArrayPtr array;
  };
  // Returns the names with this prefix after `start_after`, in bytewise order, at most `limit`.
  std::vector<NamedArray> ListNames(std::string_view prefix, std::string_view start_after,
                                    int64_t limit) const;
  struct Nameless {
    std::vector<ArrayPtr> arrays;  // by rising id
    // The name after which the next page starts; empty on the last page.
    std::string next_start_after;
  };
  // Returns committed arrays that no name points to, after the id `start_after`, at most `limit`.
  // Companions are left out: they belong to other arrays.
  // Each call examines a bounded number of arrays. A page may therefore have fewer arrays than
  // `limit`, or none, although more arrays follow.
  Nameless ListNameless(std::string_view start_after, int64_t limit) const;
  // Returns the arrays after the id `start_after`, by rising id, at most `limit`.
  std::vector<ArrayPtr> ListArrays(std::string_view start_after, int64_t limit) const;
  // Like ListArrays, without the arrays that Give gave to a step.
  std::vector<ArrayPtr> ListKept(std::string_view start_after, int64_t limit) const;
  // Returns committed arrays whose origin_key(), or a key of AddOrigin, is `key`, by rising id, at
  // most `limit`; none for an empty key. Cached arrays come after the others. A search without a
  // result is a miss of the cache if the cache is on and the key is not empty. If `is_use` is
  // false, no miss is counted.
  std::vector<ArrayPtr> FindByOrigin(const std::string& key, int64_t limit,
                                     bool is_use = true) const;
  // Lets FindByOrigin find the array by another key too: an OriginKey of a place whose elements
  // were found to be those of the array. At most kOtherOrigins such keys are kept, the newest, and
  // none after Open. No effect if there is no such array, or `key` is empty.
  void AddOrigin(std::string_view array_id, const std::string& key);
  // Returns committed arrays of this type and shape, cached or not, after the id `start_after`, by
  // rising id, at most `limit`. Companions are left out.
  std::vector<ArrayPtr> ListAlike(Dtype dtype, const Shape& shape, std::string_view start_after,
                                  int64_t limit) const;
  // Returns a committed array, cached or not; null if there is none, or if it is state.
  ArrayPtr FindCommitted(std::string_view array_id) const;
  // Returns committed arrays with names that want a second replica and have no companion, after the
  // id `start_after`, by rising id, at most `limit`.
  std::vector<ArrayPtr> ListUnreplicated(std::string_view start_after, int64_t limit) const;
  // Returns the companion of an array; for a companion, the array that it copies. Null: there is
  // none.
  ArrayPtr FindTwin(std::string_view array_id) const;
  // Returns ArrayDefinition::replicas of the array that the name points to; 1 if there is none.
  int64_t ReplicasOf(std::string_view name) const;
  // Like Pin, for an array of FindByOrigin or FindCommitted. A cached array becomes available
  // again: this is a hit of the cache. If `is_use` is false, it counts as no hit, and the array
  // takes its former place among the cached arrays when it is released, unless it was used
  // meanwhile. If this is a hit, `replicas` becomes the number of replicas that the array wants
  // (ArrayDefinition::replicas), unless it has a companion; nullopt: as many as before.
  absl::Status PinFound(std::string_view array_id, bool is_use = true,
                        std::optional<int64_t> replicas = std::nullopt);
  // Returns whether PinFound with `is_use` would be a hit of the cache now: the array is cached, or
  // was so when a validation pinned it, and nothing has used it since.
  bool IsCached(std::string_view array_id) const;
  // Returns the cached arrays; first those that were used, or became cached, longest ago.
  std::vector<CachedArray> ListCached() const;
  // Returns the bytes of cached tiles of each rank, by mesh. Meshes without such tiles are left
  // out.
  using BytesByMesh = std::map<std::string, std::vector<int64_t>, std::less<>>;
  BytesByMesh CachedBytes() const;
  CacheTotals cache_totals() const;
  // Releases those of these arrays that are cached, and returns their ids. The listener may be told
  // of the release later, on another thread.
  std::vector<std::string> Evict(absl::Span<const std::string> array_ids);
  // List, find and count the arrays that are kept without a name since Open. ListUnnamed returns at
  // most `limit` of these arrays after `start_after`, by rising id. CountUnnamed takes O(1).
  std::vector<UnnamedArray> ListUnnamed(std::string_view start_after, int64_t limit) const;
  std::optional<UnnamedArray> FindUnnamed(std::string_view array_id) const;
  int64_t CountUnnamed() const;
  // The time until which unnamed arrays are kept. If records cannot be read, they are kept longer:
  // see UnnamedArray::until.
  absl::Time unnamed_until() const { return grace_end_; }
  // Return the numbers of arrays that are no companions, and of companions. O(1).
  ArrayCounts CountArrays() const;
  ArrayCounts CountCompanions() const;
  int64_t CountNames() const;
  // Returns the number of committed arrays with a tile on this rank's worker. O(arrays on the
  // mesh).
  int64_t CountTiles(std::string_view mesh_id, int64_t rank) const;

  // Adds one pin, which keeps the array alive. NOT_FOUND: no such array, or it was given away by
  // Give.
  absl::Status Pin(std::string_view array_id);
  // Removes one pin from each array. Ignores missing arrays. Releases all arrays that now have
  // neither name nor pin, as one batch.
  void Unpin(absl::Span<const std::string> array_ids);
  void Unpin(const std::string& array_id) { Unpin(absl::MakeConstSpan(&array_id, 1)); }
  // Adds one pin for a client that made the array without a name, and held it, before Open. If the
  // grace period holds the array, the pin takes its place. An array that not all ranks have
  // reported yet gets the pin at its adoption (kAwaited); if the pin was removed by then, the array
  // is released at its adoption. Any other array is pinned as by Pin. Adds no pin for kNoRoom.
  // `awaited_of_session`: how many pins of the session have been kAwaited since its start, from
  // which its share of the room follows. NOT_FOUND: there is no such array, and none can be adopted
  // any more.
  absl::StatusOr<TakenOver> TakeOver(const std::string& array_id, int64_t awaited_of_session = 0);
  // Ends the grace period of an array that a session pins already, as TakeOver does. No effect on
  // any other array.
  void ReplaceGrace(const std::string& array_id);
  // Returns whether a pin of TakeOver awaits the adoption of the array.
  bool IsAwaited(std::string_view array_id) const;
  // Ends the grace period of an array of ListUnnamed, and deletes its tiles, also those that would
  // go into quarantine. Returns false and changes nothing if there is no such array, if a pin or a
  // name holds it, or if UnnamedArray::until is InfiniteFuture.
  bool ReleaseUnnamed(std::string_view array_id);
  // Returns whether ReleaseUnnamed would release the array now.
  bool CanReleaseUnnamed(std::string_view array_id) const;
  // Gives the array to a step that may reuse its memory for a result. Requires that no name points
  // to the array and at most `pins` pins hold it; otherwise returns false and changes nothing.
  // Until TakeBack the array can be neither pinned nor named, as if it did not exist.
  bool Give(std::string_view array_id, int64_t pins);
  void TakeBack(std::string_view array_id);

  // Records that the worker of this rank is lost, with its tiles. No effect if a later attachment
  // of the rank's worker has already brought its inventory. `epoch`: the epoch of the loss, see
  // ArrayCommit::epoch; nullopt: the rank has moved to another worker, and the tiles of staged
  // arrays are lost too, whenever they arrive.
  void TilesLost(std::string_view mesh_id, int64_t rank, uint64_t attachment,
                 std::optional<int64_t> epoch = std::nullopt);
  // Records that the rank's tile of a committed array is damaged and no longer served. No effect on
  // other arrays.
  void TileDamaged(std::string_view array_id, int64_t rank);
  // Returns the indexes of the tiles whose array is neither in the registry nor known as released.
  // Returns none once the grace period is over.
  std::vector<size_t> FindUnknown(const std::vector<InventoryTile>& tiles) const;
  // Processes the inventory of an attached worker. The inventory is complete: tiles of the worker's
  // ranks that it does not list count as missing. If the attachment has ended by now, or another
  // attachment has replaced it, or the mesh has changed since InventoryMesh::revision, the
  // inventory does not change which tiles count as missing.
  //
  // Takes time linear in the worker's tiles and in the arrays and unconfirmed releases on its
  // meshes. Holds the lock for a few thousand of these objects at a time. A worker may bring
  // millions of tiles: do not call TakeInventory on a gRPC thread.
  InventoryVerdict TakeInventory(const Inventory& inventory);
  // Processes tiles that the worker has restored from its quarantine since its inventory. These
  // tiles are judged like tiles of an inventory.
  InventoryVerdict TakeRestored(const Inventory& restored);
  // Records that a worker has dropped its tiles of these arrays, as the registry ordered. `rank_of`
  // returns the worker's rank in a mesh.
  using RankOf = std::function<std::optional<int64_t>(std::string_view mesh_id)>;
  void TilesDropped(absl::Span<const std::string> array_ids, const RankOf& rank_of);
  // Checks that a tile in a worker's quarantine is the rank's tile of the array.
  // FAILED_PRECONDITION: the array is only staged; the tile is not the rank's tile; or
  // (CHECKSUM_MISMATCH) the tile's checksum differs. NOT_FOUND: no such array.
  absl::Status CheckTile(std::string_view array_id, int64_t rank, const Tile& tile,
                         uint32_t crc32c) const;

  // Records in memory that a checkpoint has the array; server/save/saved_places.h keeps this for
  // the next start. Ignored if there is no such array.
  void SetCheckpoint(std::string_view array_id, ArraySource checkpoint);

  // Returns the number of releases that some ranks have not confirmed yet.
  int64_t CountUnconfirmed() const;
  // Returns the ranks of the mesh, in rising order, that have not confirmed all releases of arrays
  // on the mesh. Takes time linear in these releases and their ranks.
  std::vector<int64_t> RanksYetToDrop(std::string_view mesh_id) const;

 private:
  struct ArrayEntry {
    // Up to date, except for the missing ranks and the state derived from them. Current() updates
    // these only when the array is read, because thousands of workers may come or go between two
    // reads.
    mutable ArrayPtr array = nullptr;
    mutable bool is_outdated = false;
    std::vector<bool> missing = {};  // by rank
    int64_t missing_count = 0;
    int64_t names = 0;
    int64_t names_to_come = 0;  // moves of running commits that point names to the array
    int64_t pins = 0;
    bool is_given = false;
    int64_t cached_as = 0;  // key in cached_; 0: the array is not cached
    // Its key in cached_ before a validation pinned it, which is no use; 0: none, or used since.
    int64_t checked_as = 0;
    // Whether it lost its last name when another array with the same origin got one.
    bool is_superseded = false;
    // Keys of AddOrigin, the oldest first.
    std::vector<std::string> other_origins = {};
    // By rank: the worker that reported the tile; empty text if no worker has reported it. The list
    // is empty unless the array was found on workers, or Open loaded it from a state that may lack
    // names. If no name has pointed to an array with this list since Open, its release moves its
    // tiles into quarantine and does not delete them.
    std::vector<std::string> adopted_from = {};
    // Another name of the array may be lost. The release of the array therefore moves its tiles
    // into quarantine and does not delete them.
    bool may_lack_names = false;
    // One of the pins belongs to the grace period. Either the store had a record of the array at
    // Open, but no name of it, or the array was adopted.
    bool is_kept_for_grace = false;
    // TakeOver has pinned the adopted array, in a state that lacks no names: its release deletes
    // the tiles.
    bool is_taken_over = false;
    // A name has pointed to the array since Open, or the array is or was a companion. The store has
    // its record in both cases.
    bool was_named = false;
    bool has_record = false;  // at Open, the store had its record but no name of it
    // The key of the record of its release, which the commit that took its last name wrote; empty:
    // there is no such record.
    std::string release_key = {};
    // The id of the array's companion, one of whose pins belongs to this array; empty: none.
    std::string companion = {};
    // It came from the cache for a use that wants one replica. A copy that began before it was
    // cached becomes no companion.
    bool wants_no_companion = false;
    // For state: the last step that updated it; 0: none did; nullopt: not known since Open.
    std::optional<int64_t> state_step = 0;
    // A commit that updates the array is being written. Ranks whose tiles inventories have brought
    // since it began: their workers have attached anew, and miss the commit.
    bool is_committing_update = false;
    std::vector<int64_t> recounted_ranks = {};
    // The last kFormerVersions versions of names that pointed to the array and no longer do.
    std::vector<NameEntry> former = {};
    // Attached workers that have tiles of this staged array and await the outcome of its commit.
    struct Waiting {
      std::string identity;
      int64_t rank = 0;
      Tile tile;
      uint32_t crc32c = 0;
      bool committed = false;  // the worker's tile is committed, e.g. from quarantine
    };
    std::vector<Waiting> waiting = {};
  };
  // An array that the registry does not know and that only some ranks have reported so far: a
  // committed one, or the result of a step.
  struct Orphan {
    ArrayDescriptor descriptor;
    Durability durability = Durability::kDisk;
    std::vector<std::string> identities;  // workers by rank; empty text: not reported yet
    std::vector<uint32_t> tile_crc32c;
    int64_t reported = 0;
    bool has_committed = false;  // a rank reported its tile as committed
    bool has_staged = false;     // a rank reported its tile as the staged result of a step
    int64_t state_step = 0;      // InventoryTile::state_step, the same of all ranks
  };
  // Arrays that were released together and share one record.
  struct ReleasedBatch {
    std::string key;  // key of the record in the store; empty: no record
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
    std::string key = {};  // of the record, if the store has it already
  };
  // The last known state of a rank's worker.
  struct Presence {
    uint64_t attachment = 0;
    bool is_lost = false;
    bool has_listed = false;  // its whole inventory is judged
    // Epoch of the last loss, also of an earlier attachment. Nullopt: there was none, or the last
    // one was a move of the rank.
    std::optional<int64_t> lost_epoch = {};
  };
  struct Name {
    NameEntry entry;
    std::string manifest_id;  // empty: stored as `name/NAME`
  };
  using Names = std::map<std::string, Name, std::less<>>;
  using Arrays = std::map<std::string, ArrayEntry, std::less<>>;
  // Arrays, and ids of arrays, by the mesh that the arrays lie on; or by another text.
  using ArraysByMesh = std::map<std::string, std::map<std::string_view, ArrayEntry*>, std::less<>>;
  using IdsByMesh = std::map<std::string, std::set<std::string, std::less<>>, std::less<>>;
  // Ids of arrays, by OriginKey.
  using IdsByOrigin = absl::flat_hash_map<std::string, std::set<std::string>>;
  struct Manifest {
    int64_t chunks = 0;
    int64_t current_names = 0;       // names whose current entry is in this manifest
    std::vector<std::string> names;  // all names in the manifest
  };
  // A commit that has passed its checks and awaits the store's answer.
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
  // Whether the mesh was changed after this revision of its definition.
  bool HasMeshChanged(std::string_view mesh_id, Revision revision) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status CheckMeshChangeLocked(const std::string& mesh_id) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Deletes from the store those names whose array has no record there. If a deletion fails, the
  // next Open tries again.
  void GiveUp(const std::vector<std::string>& names) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // A name that does not exist, and the existing names next to it.
  struct MissingName {
    std::string name;
    std::vector<std::string> neighbours;
  };

  // Sets `missing` if a requested name does not exist. In that case, the caller makes the error
  // with NoName after it has released the lock.
  absl::Status CheckCommit(const CommitRequest& request, std::optional<MissingName>* missing) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status CheckMove(const NameMove& move, std::optional<MissingName>* missing) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Returns how many names the request would add; 0 if it would reduce their number.
  int64_t MoreNames(const CommitRequest& request) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status CheckRoom(int64_t more_names) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  MissingName Missing(std::string_view name) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Returns DATA_LOSS (STORE_FAILED) if the name is unknown, but the store has an unreadable record
  // of the name or of its array. Otherwise OK.
  absl::Status CheckReadable(std::string_view name) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Returns NOT_FOUND with the nearest existing name. Takes up to some milliseconds.
  static absl::Status NoName(const MissingName& missing);
  // Fills in the transaction of a commit. If one transaction does not suffice, fills in all except
  // the manifest's chunks.
  void Write(Pending* pending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds the releases of superseded arrays to the last transaction of a commit. Must be called
  // right before this transaction is passed to the store: a commit that was passed earlier may name
  // these arrays.
  void WriteReleases(Pending* pending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Encodes the manifest's chunks. Runs without the lock, because it takes long with many names.
  static void MakeChunks(Pending* pending);
  void WriteChunk(std::shared_ptr<Pending> pending, size_t next)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Finish(const std::shared_ptr<Pending>& pending, absl::StatusOr<Revision> revision);
  void Apply(const Pending& pending, Revision revision) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // AddArray sets the array of the entry for an id, and returns the entry, which it creates if
  // needed. SetArray changes the array of an entry. EraseArray erases an entry. All three maintain
  // counts_, arrays_by_mesh_, arrays_by_form_ and ids_by_origin_.
  ArrayEntry& AddArray(const std::string& array_id, ArrayPtr array)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetArray(ArrayEntry& entry, ArrayPtr array) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Records that the rank lacks its tile, or has it again; O(1). No effect for ranks that the array
  // does not have.
  void SetMissing(ArrayEntry& entry, int64_t rank, bool is_missing)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Counts the tiles of a staged array as there whose ranks were last lost up to this epoch.
  void ForgetLosses(ArrayEntry& entry, int64_t epoch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the array in its current state.
  const ArrayPtr& Current(const ArrayEntry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static ArrayState StateOf(const ArrayEntry& entry);
  // Queues a change for watchers, who are called after the lock is released.
  void Tell(ClusterChange::Value change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EraseOrigin(const std::string& key, const std::string& array_id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EraseArray(Arrays::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives the companion to its array, which holds it from now on. No effect if the array is gone or
  // has another companion. `has_pin`: one of the companion's pins becomes that of the array.
  void AddCompanion(const std::string& companion_id, bool has_pin)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns whether another array holds this one as its companion.
  bool IsCompanion(std::string_view array_id, const ArrayEntry& entry) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Adds the array to unreplicated_ if it wants a companion and has none.
  void NoteIfUnreplicated(std::string_view array_id, const ArrayEntry& entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddName(NameEntry entry, std::string manifest_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes a name from its array. `key_stays`: the commit has written the key `name/NAME` again,
  // so the key is not deleted.
  void DropName(Names::iterator name, bool key_stays) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Remembers a version of a name that no longer points to its array, so that FindName finds it.
  void AddFormer(NameEntry former) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropManifest(std::map<std::string, Manifest>::iterator manifest)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds the manifest to sparse_manifests_ if fewer than half of its names are current.
  void NoteIfSparse(const std::string& manifest_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Begins to rewrite the next sparse manifest, unless a rewrite is running.
  void RewriteSparse() ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<Rewrite> BeginRewrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteAnew(std::shared_ptr<Rewrite> rewrite, size_t next_chunk)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndRewrite(const Rewrite& rewrite, const absl::Status& written) ABSL_LOCKS_EXCLUDED(mutex_);
  void ReleaseIfUnheld(std::string_view array_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReleaseNow(Arrays::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // ReleaseNow, which first tells watches that an array is deleted. They do not hear of companions.
  void TellAndRelease(Arrays::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes the array's pin from its companion. No effect if there is no array of this id.
  void GiveUpCompanion(const std::string& companion_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the entry's array state, and forgets the keys of its origin.
  void SetState(Arrays::iterator found) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns why the array cannot become state; OK if it can.
  absl::Status CheckMayBeState(std::string_view array_id) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Returns the least step of which a tile of the array is sound after Open; 0: any is.
  int64_t LeastStateStepOf(const std::string& array_id) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Ends the updates of a commit that has been written, or has failed.
  void EndUpdates(const CommitRequest& request, bool is_committed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Judges a tile of an array of state whose place is right; the reason to put it aside, or none.
  std::optional<std::string> JudgeState(ArrayEntry& entry, int64_t state_step)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sets ArrayDefinition::replicas of a committed array without names. No effect if it has a
  // companion.
  void SetReplicas(ArrayEntry& entry, int64_t replicas) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayCache(const ArrayEntry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Marks the arrays that lose names by these moves while others with their origins get names: they
  // do not become cached.
  void NoteSuperseded(absl::Span<const NameMove> moves) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // AddToCache makes an array cached that nothing holds. TakeFromCache makes it a live array that
  // nothing holds. EvictNow releases a cached array. AddToCache and EvictNow need FlushReleased.
  void AddToCache(Arrays::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeFromCache(Arrays::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EvictNow(Arrays::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds the array's tiles to cached_bytes_ (`sign` 1), or subtracts them (-1).
  void CountCached(const Array& array, int64_t sign) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds `change` to the count of arrays, or of companions, in the entry's state, unless the entry
  // is cached.
  void Count(const ArrayEntry& entry, int64_t change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the array's entry; arrays_.end() if there is none or it is cached.
  Arrays::const_iterator FindLive(std::string_view array_id) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  Arrays::iterator FindLive(std::string_view array_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Passes released arrays to the release listener, writes the records of arrays that became
  // cached, and deletes the records with the keys dead_keys_ from the store.
  void FlushReleased() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Remembers released arrays until their ranks confirm the release. For releases that must survive
  // this process, also writes a record to the store, unless it has one already.
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
    // By mesh: the worker's rank, as long as this attachment is valid. Only tiles of these ranks
    // count.
    std::map<std::string_view, int64_t> ranks = {};
    // The listed arrays, and whether the worker holds its rank's tile of each.
    absl::flat_hash_map<std::string_view, bool> listed = {};

    bool Holds(std::string_view array_id) const {
      const auto found = listed.find(array_id);
      return found != listed.end() && found->second;
    }
  };
  // Removes the ranks whose worker has been lost, or has attached again over another stream.
  void CheckRanks(Taking* taking) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Judges one tile of an inventory. Returns false if the tile is not the tile of the worker's
  // rank, or cannot be judged yet.
  bool Classify(const InventoryTile& tile, Taking* taking) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // MissArrays marks tiles of arrays as missing, MissOrphans removes the rank from orphans,
  // GiveUpOrphans puts aside the results of steps that failed, and ConfirmUnlisted confirms
  // releases. Each handles the next few arrays, orphans or releases of the mesh, after the array id
  // `*last`. It changes those whose array the worker does not hold; GiveUpOrphans those that a rank
  // does not hold. Each returns true once the mesh has no more of them. MissArrays leaves out
  // arrays whose tiles are still being staged.
  bool MissArrays(std::string_view mesh_id, int64_t rank, const Taking& taking, std::string* last)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MissOrphans(std::string_view mesh_id, int64_t rank, const Taking& taking, std::string* last)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool GiveUpOrphans(std::string_view mesh_id, int64_t rank, std::string* last)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool ConfirmUnlisted(std::string_view mesh_id, int64_t rank, const Taking& taking,
                       std::string* last) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EraseOrphan(std::map<std::string, Orphan, std::less<>>::iterator orphan)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Judges arrays in a worker's quarantine: the worker must drop released arrays. The verdict also
  // lists the live arrays and those that certainly do not exist.
  void JudgeQuarantined(absl::Span<const std::string> array_ids, InventoryVerdict* verdict) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Returns whether the tile's mesh has no ranks yet, so that the tile's array may be adopted
  // later.
  bool MayBeAdoptedLater(const Inventory& inventory, const InventoryTile& tile) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Adopt(const Inventory& inventory, const InventoryTile& tile)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PutAside(const ArrayDescriptor& descriptor, const std::vector<std::string>& identities,
                std::string_view reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns whether a session with so many pins that were kAwaited gets another one.
  bool HasRoomToAwait(int64_t awaited_of_session) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Gives an array that is being adopted to the grace period, or to the pins of TakeOver.
  void PinAdopted(const std::string& array_id, ArrayEntry& entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends the grace period of an array, whose pin is then the caller's. Returns false if the grace
  // period does not hold the array.
  bool TakeGrace(const std::string& array_id, ArrayEntry& entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes and returns the pins of TakeOver on an array that is adopted or restored now; nullopt:
  // no session has taken it over.
  std::optional<int64_t> TakeAwaited(const std::string& array_id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Deletes the tiles of an orphan. The caller removes it from orphans_.
  void DeleteOrphan(const std::string& array_id, const Orphan& orphan)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether no holder but the grace period has the array.
  bool IsOnlyKeptForGrace(std::string_view array_id) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  UnnamedArray UnnamedOf(const ArrayEntry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  UnnamedArray UnnamedOf(const Orphan& orphan) const;
  void EndGrace();
  void AddVerdict(const std::string& identity, InventoryVerdict verdict)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Transaction Fenced() const;
  // Calls Store::Commit. The commit counts in in_flight_ until its callback has returned.
  void CommitToStore(Transaction transaction, Store::CommitCallback callback)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Store* const store_;
  Clock* const clock_;
  const ReleaseListener listener_;
  int64_t max_names_ = kMaxNames;  // constant from the first commit on
  const absl::Duration adoption_grace_;
  ClusterChanges* changes_ = nullptr;     // constant from the first commit on; may stay null
  VerdictListener verdict_listener_;      // constant once workers attach
  ReplicaListener replica_listener_;      // constant from the first commit on; may be null
  std::function<void()> cache_listener_;  // constant once workers attach
  // The members from here to `requests_` are constant after Open.
  std::string cluster_id_;
  int64_t term_ = 0;
  Revision cluster_revision_ = 0;
  absl::Time grace_end_ = absl::InfinitePast();
  std::string restored_from_;    // RestoredRecord::digest; empty: this state has no such record
  bool has_unreadable_ = false;  // the store reported unreadable records at Open
  bool is_damaged_ = false;      // some records are unreadable, or Open could not decode them
  std::vector<std::string> left_out_;
  std::unique_ptr<RequestMemory> requests_;

  EventQueue events_;

  mutable absl::Mutex mutex_;
  // Only AddArray, SetArray, SetMissing and EraseArray change this map.
  Arrays arrays_ ABSL_GUARDED_BY(mutex_);
  ArrayCounts counts_ ABSL_GUARDED_BY(mutex_);  // of arrays_ without companions
  ArrayCounts companion_counts_ ABSL_GUARDED_BY(mutex_);
  ArraysByMesh arrays_by_mesh_ ABSL_GUARDED_BY(mutex_);  // arrays_ by mesh
  ArraysByMesh arrays_by_form_ ABSL_GUARDED_BY(mutex_);  // arrays_ by type and shape
  IdsByOrigin ids_by_origin_ ABSL_GUARDED_BY(mutex_);    // of arrays_ with known origins
  // Ids of committed arrays that want a companion and have none.
  std::set<std::string, std::less<>> unreplicated_ ABSL_GUARDED_BY(mutex_);
  Names names_ ABSL_GUARDED_BY(mutex_);
  // The id of the live array that each former version of a name pointed to: see ArrayEntry::former.
  std::map<std::pair<std::string, int64_t>, std::string> former_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Manifest> manifests_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> sparse_manifests_ ABSL_GUARDED_BY(mutex_);
  bool is_rewriting_ ABSL_GUARDED_BY(mutex_) = false;
  // The number of manifests in which each name occurs.
  absl::flat_hash_map<std::string, int64_t> manifest_mentions_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<std::string> moving_names_ ABSL_GUARDED_BY(mutex_);
  // Names whose array is unknown, each with the key of the unreadable record of its array. Names
  // whose own record is unreadable are not in this map: the store reports them.
  absl::flat_hash_map<std::string, std::string> unreadable_names_ ABSL_GUARDED_BY(mutex_);
  // Number of names that running commits will add to names_.
  int64_t names_to_come_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_set<std::string> committing_arrays_ ABSL_GUARDED_BY(mutex_);
  // The arrays of the records state/ID, also of those that are being written. Some may wait for
  // their adoption.
  absl::flat_hash_set<std::string> state_ids_ ABSL_GUARDED_BY(mutex_);
  // By array: StateRecord::step at Open.
  absl::flat_hash_map<std::string, int64_t> least_state_steps_ ABSL_GUARDED_BY(mutex_);
  std::vector<Released> released_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> dead_keys_ ABSL_GUARDED_BY(mutex_);
  bool is_caching_ ABSL_GUARDED_BY(mutex_) = false;
  // The ids of the cached arrays, which are in arrays_, in the order of their last use.
  std::map<int64_t, std::string> cached_ ABSL_GUARDED_BY(mutex_);
  int64_t next_cached_ ABSL_GUARDED_BY(mutex_) = 1;
  BytesByMesh cached_bytes_ ABSL_GUARDED_BY(mutex_);  // of cached_
  // Arrays that became cached since the last FlushReleased.
  std::vector<std::string> newly_cached_ ABSL_GUARDED_BY(mutex_);
  mutable CacheTotals cache_totals_ ABSL_GUARDED_BY(mutex_);
  Tombstones tombstones_ ABSL_GUARDED_BY(mutex_);
  IdsByMesh tombstones_by_mesh_ ABSL_GUARDED_BY(mutex_);
  // Ids of staged arrays that were discarded recently. A worker that reports tiles of these arrays
  // must drop the tiles. The oldest ids are forgotten first; tiles of forgotten arrays go into
  // quarantine.
  absl::flat_hash_set<std::string> discarded_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> discarded_order_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Orphan, std::less<>> orphans_ ABSL_GUARDED_BY(mutex_);
  IdsByMesh orphans_by_mesh_ ABSL_GUARDED_BY(mutex_);
  // Arrays in arrays_ to which no name has pointed since Open, although one may have before Open.
  // ListUnnamed lists these arrays.
  std::set<std::string, std::less<>> unnamed_ ABSL_GUARDED_BY(mutex_);
  bool grace_is_over_ ABSL_GUARDED_BY(mutex_) = false;
  // The pins of TakeOver on arrays that are not adopted yet, by the array's id; never 0. No array
  // that is adopted or committed is in this map.
  std::map<std::string, int64_t, std::less<>> awaited_ ABSL_GUARDED_BY(mutex_);
  int64_t awaited_pins_ ABSL_GUARDED_BY(mutex_) = 0;  // the sum of awaited_
  // Arrays that lost the last of these pins before their adoption, and are released at it.
  absl::flat_hash_set<std::string> given_up_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<std::string, int64_t>, Presence> presence_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<std::string> changing_meshes_ ABSL_GUARDED_BY(mutex_);
  // RestoredRecord::may_lack_names: a lost record may name arrays that seem to have no name.
  bool may_lack_names_ ABSL_GUARDED_BY(mutex_) = false;
  // By changed mesh: the lowest revision of the mesh that arrays may be staged for. Beyond a limit,
  // the entries of the oldest changes are removed: every put that began before these changes has
  // ended by then.
  std::map<std::string, Revision, std::less<>> mesh_floors_ ABSL_GUARDED_BY(mutex_);
  int64_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;

  std::unique_ptr<Alarm> grace_alarm_;  // last: its destructor waits for EndGrace
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_ARRAY_REGISTRY_H_
