// The arrays of the cluster, the names that point to them, and what of both is durable.
#ifndef SHARDMESH_SERVER_CATALOGUE_H_
#define SHARDMESH_SERVER_CATALOGUE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
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
#include "rpc/clock.h"
#include "server/event_queue.h"
#include "server/request_memory.h"
#include "server/store.h"
#include "sharding/spec.h"
#include "tensor/array_descriptor.h"

namespace shardmesh::server {

// Legal transitions:
//   (none)     -> kStaging                 Stage
//   kStaging   -> kAvailable, kDegraded    Commit (degraded if a rank was lost meanwhile)
//   kStaging   -> kReleased                Discard
//   kAvailable -> kDegraded                TilesLost
//   kDegraded  -> kAvailable               TilesFound brought the last missing rank
//   kAvailable, kDegraded -> kReleased     the last name and the last pin are gone
// A released array is in no list any more; holders of the value see how it was.
enum class ArrayState { kStaging, kAvailable, kDegraded, kReleased };
std::string_view ArrayStateName(ArrayState state);  // "STAGING", ...

// What acknowledged means for an array's tiles.
enum class Durability { kMemory, kDisk };

// Where an array's bytes came from, so that lost tiles can be read again.
struct ArraySource {
  std::string path;    // as workers read it; empty: from a client
  std::string tensor;  // its name in the file
};

// What an array is, and where it comes from.
struct ArrayDefinition {
  ArrayDescriptor descriptor;                        // array_id is a RandomId()
  std::optional<PartitionSpec> requested_spec = {};  // where it differs from the effective one
  ArraySource source = {};
};

// An array as it stands. Immutable: a change makes another.
struct Array {
  ArrayDefinition definition;
  ArrayState state = ArrayState::kStaging;
  Durability durability = Durability::kMemory;
  std::vector<int64_t> missing_ranks;  // rising; not empty exactly when degraded
  std::vector<uint32_t> tile_crc32c;   // by rank, once committed
  absl::Time created;                  // when committed
};
using ArrayPtr = std::shared_ptr<const Array>;

// A name at one version: the store's revision at which it was moved there, hence never the same
// again, not even after the name was deleted and made anew.
struct NameEntry {
  std::string name;
  std::string array_id;
  int64_t version = 0;
};

// What a staged array became.
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

// Everything in it happens, or nothing.
struct CommitRequest {
  std::vector<ArrayCommit> arrays;
  std::vector<NameMove> moves;  // of distinct names
  // Begun in requests(), if not empty; the commit finishes or abandons it.
  std::string request_id;
  std::string answer;
};

struct CommitResult {
  // Of the store; the version that every moved name has now. 0 if nothing durable changed.
  Revision revision = 0;
};

// Of the arrays that are there, how many are in each state.
struct ArrayCounts {
  int64_t staging = 0;
  int64_t available = 0;
  int64_t degraded = 0;

  int64_t total() const { return staging + available + degraded; }
};

// A tile that a worker has, by its inventory.
struct InventoryTile {
  std::string array_id;
  uint32_t crc32c = 0;
};

// What a worker is to do with its inventory: array ids in the order of the report.
struct InventoryVerdict {
  std::vector<std::string> keep;  // the catalogue's; commit those that are only staged there
  std::vector<std::string> drop;  // unknown or released, or their checksum is another
};

// Named arrays are durable: array and name are in the store before a commit is acknowledged, and
// are there again after a restart, degraded until the workers report their tiles. Unnamed arrays
// are known to this process alone.
//
// An array lives as long as something holds it: a name that points to it, or a pin (a session's, a
// running step's). Who pins must unpin.
//
// In the store:
//   cluster              cluster id and term
//   array/ID             an array that a name under `name/` points to
//   name/NAME            a name, or that it was deleted though a manifest has it
//   manifest/ID          says that the manifest's chunks count: its names and arrays as of here
//   manifest/ID/NNNNNN   a chunk of a manifest, at most 1 MiB
// A commit that does not fit one transaction is written as a manifest: first the chunks, which mean
// nothing yet, then the one key that makes them count, if it is not there. Where a name is in
// several places the newest revision holds. Every transaction asks that `cluster` is unchanged, so
// that a coordinator that was replaced cannot write.
//
// Thread-safe. Callbacks and the release listener are called without a lock, in the order of the
// events, on the caller's or the store's thread. Destroy it after the last call has called back;
// store and clock live longer.
class Catalogue {
 public:
  using CommitCallback = absl::AnyInvocable<void(absl::StatusOr<CommitResult>) &&>;
  // Arrays that nothing holds any more: workers may free their tiles.
  using ReleaseListener = std::function<void(const std::vector<std::string>& array_ids)>;

  static constexpr size_t kMaxNameBytes = 1024;

  // Loads everything from the store, removes what an interrupted commit left, and begins a new
  // term. Blocks. DATA_LOSS: a record cannot be read; names its key.
  static absl::StatusOr<std::unique_ptr<Catalogue>> Open(Store* store, rpc::Clock* clock,
                                                         ReleaseListener listener);
  ~Catalogue();

  // Random, made with the first Open of the store: 32 hexadecimal digits.
  const std::string& cluster_id() const { return cluster_id_; }
  // One more than at the last Open of the store.
  int64_t term() const { return term_; }
  RequestMemory& requests() { return *requests_; }

  // Registers an array whose tiles are about to arrive. ALREADY_EXISTS; INVALID_ARGUMENT from
  // Tiling::Create.
  absl::Status Stage(ArrayDefinition definition);
  // Forgets staged arrays: their transfer or step was aborted. Others are left alone.
  void Discard(const std::vector<std::string>& array_ids);

  // Makes staged arrays available and moves names, together. Arrays that end without name and pin
  // are released at once.
  //   NOT_FOUND            an array that is not there, or was not staged; a name to delete.
  //   ABORTED              (VERSION_MISMATCH) a name has another version than expected; or another
  //                        commit is moving it at this moment: retry.
  //   INVALID_ARGUMENT     a malformed name, a name twice, a wrong number of checksums.
  //   FAILED_PRECONDITION  another coordinator has taken over this store.
  //   as Store::Commit     for the rest.
  // After an error staged arrays are still staged, names where they were.
  void Commit(CommitRequest request, CommitCallback callback);

  // NOT_FOUND names the array. Staged arrays are found too.
  absl::StatusOr<ArrayPtr> FindArray(std::string_view array_id) const;
  // `version` 0: the current one. An older version is found as long as its array lives.
  // NOT_FOUND suggests a name that is like this one.
  absl::StatusOr<NameEntry> FindName(std::string_view name, int64_t version = 0) const;
  // The name's version; 0: there is no such name.
  int64_t VersionOf(std::string_view name) const;
  // Whether a name points to the array.
  bool HasName(std::string_view array_id) const;

  struct NamedArray {
    NameEntry name;
    ArrayPtr array;
  };
  // Names with this prefix behind `start_after`, in bytewise order, at most `limit`.
  std::vector<NamedArray> ListNames(std::string_view prefix, std::string_view start_after,
                                    int64_t limit) const;
  // All arrays behind the id `start_after`, by rising id, at most `limit`.
  std::vector<ArrayPtr> ListArrays(std::string_view start_after, int64_t limit) const;
  // O(1).
  ArrayCounts CountArrays() const;
  int64_t CountNames() const;

  // One more, or one fewer, reason to keep the array. NOT_FOUND, also of one that was given away.
  absl::Status Pin(std::string_view array_id);
  // Nothing if the array is not there.
  void Unpin(std::string_view array_id);
  // Gives the array to a step that may make its result in the array's memory, if no name points to
  // it and at most so many pins hold it; false, and nothing done, otherwise. From then on it can be
  // pinned and named no more, as if it were gone, until TakeBack.
  bool Give(std::string_view array_id, int64_t pins);
  void TakeBack(std::string_view array_id);

  // The worker of this rank is lost, and what it held with it.
  void TilesLost(std::string_view mesh_id, int64_t rank);
  // The worker of this rank is here and holds exactly these tiles. Those of arrays on other meshes
  // are passed over; of this mesh's arrays, the tiles that are not among them are missing.
  InventoryVerdict TilesFound(std::string_view mesh_id, int64_t rank,
                              const std::vector<InventoryTile>& tiles);

 private:
  struct ArrayEntry {
    ArrayPtr array;
    int64_t names = 0;
    int64_t pins = 0;
    bool is_given = false;
    std::vector<NameEntry> versions;  // every name and version that pointed here
  };
  struct Name {
    NameEntry entry;
    std::string manifest_id;  // where it is durable; empty: `name/NAME`
  };
  using Names = std::map<std::string, Name, std::less<>>;
  using Arrays = std::map<std::string, ArrayEntry, std::less<>>;
  struct Manifest {
    int64_t chunks = 0;
    int64_t current_names = 0;       // of its names, those that it still holds for
    std::vector<std::string> names;  // all of them
  };
  // A commit between its checks and the store's answer.
  struct Pending;

  Catalogue(Store* store, rpc::Clock* clock, ReleaseListener listener);

  absl::Status BeginTerm();
  absl::Status Load() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // A name that is not there, and those beside it.
  struct MissingName {
    std::string name;
    std::vector<std::string> neighbours;
  };

  // `missing`: the error is NoName of it, which is not made under the lock.
  absl::Status CheckCommit(const CommitRequest& request, std::optional<MissingName>* missing) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status CheckMove(const NameMove& move, std::optional<MissingName>* missing) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  MissingName Missing(std::string_view name) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // NOT_FOUND, with the nearest name that there is. Takes up to some milliseconds.
  static absl::Status NoName(const MissingName& missing);
  // Fills in the transaction of a commit, and the manifest if one transaction is not enough.
  void Write(Pending* pending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteChunk(std::shared_ptr<Pending> pending, size_t next)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Finish(const std::shared_ptr<Pending>& pending, absl::StatusOr<Revision> revision);
  void Apply(const Pending& pending, Revision revision) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What an entry holds from now on; and the end of one. Both keep the counts.
  void SetArray(ArrayEntry& entry, ArrayPtr array) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EraseArray(Arrays::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddName(NameEntry entry, std::string manifest_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes a name away from where it points; `key_stays`: its own key was written again.
  void DropName(Names::iterator name, bool key_stays) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropManifest(std::map<std::string, Manifest>::iterator manifest)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReleaseIfUnheld(std::string_view array_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Tells the listener what was released, and the store what it may forget.
  void FlushReleased() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Transaction Fenced() const;
  // Store::Commit, counted in in_flight_ until after its callback.
  void CommitToStore(Transaction transaction, Store::CommitCallback callback)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Store* const store_;
  rpc::Clock* const clock_;
  const ReleaseListener listener_;
  // Constant after Open.
  std::string cluster_id_;
  int64_t term_ = 0;
  Revision cluster_revision_ = 0;
  std::unique_ptr<RequestMemory> requests_;

  EventQueue events_;

  mutable absl::Mutex mutex_;
  Arrays arrays_ ABSL_GUARDED_BY(mutex_);       // changed by SetArray and EraseArray alone
  ArrayCounts counts_ ABSL_GUARDED_BY(mutex_);  // of arrays_
  Names names_ ABSL_GUARDED_BY(mutex_);
  // The array of each name and version whose array lives.
  std::map<std::pair<std::string, int64_t>, std::string> versions_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Manifest> manifests_ ABSL_GUARDED_BY(mutex_);
  // In how many manifests a name occurs.
  absl::flat_hash_map<std::string, int64_t> manifest_mentions_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<std::string> moving_names_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<std::string> committing_arrays_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> released_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> dead_keys_ ABSL_GUARDED_BY(mutex_);
  int64_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_CATALOGUE_H_
