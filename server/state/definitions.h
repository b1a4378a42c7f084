// The named definitions as one immutable snapshot, and the store that publishes new snapshots.
#ifndef SHARDMESH_SERVER_STATE_DEFINITIONS_H_
#define SHARDMESH_SERVER_STATE_DEFINITIONS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "server/state/decoded_versions.h"
#include "server/state/request_memory.h"
#include "server/state/stored_tree.h"
#include "server/store/store.h"
#include "sharding/mesh_definition.h"
#include "sharding/partition_axis.h"
#include "sharding/rules/logical_rules.h"
#include "sharding/rules/rule_set_definition.h"

namespace shardmesh::server {

// The kinds of definitions, in the order of the alternatives of DefinitionValue.
enum class DefinitionKind { kMesh, kProfile, kRuleSet, kLogicalRules, kTree };
inline constexpr size_t kDefinitionKindCount = 5;
std::string_view DefinitionKindName(DefinitionKind kind);  // "mesh", "rule_set", ...

using DefinitionValue = std::variant<MeshDefinition, PartitionAxis, RuleSetDefinition, LogicalRules,
                                     std::shared_ptr<const StoredTree>>;
DefinitionKind KindOf(const DefinitionValue& value);

// A former version of a definition, in stored form.
struct ReplacedDefinition {
  int64_t version = 0;
  Revision revision = 0;  // the store's revision at which this version was written
  absl::Time updated;
  int64_t size_bytes = 0;  // of its wire value
  // OK, or DATA_LOSS (STORE_FAILED) if the record cannot be read. In the latter case `updated` and
  // `size_bytes` are unknown.
  absl::Status readable;
  std::shared_ptr<const std::string> record;
};

// The workers assigned to the ranks of a mesh whose definition names no workers. Immutable.
struct MeshAssignment {
  std::vector<std::string> workers;  // identities by rank
  Revision revision = 0;             // the store's revision at the assignment
};

// A named, versioned definition.
struct Definition {
  std::string name;
  std::string uid;        // random, made at creation; updates keep it
  int64_t version = 0;    // rises with each update; never reused for this name
  Revision revision = 0;  // the store's revision at the last change
  absl::Time updated;
  DefinitionValue value;
  // The serialised EntryValue from which `value` was decoded, as clients get it. Clients get the
  // tensors of a tree only from GetEntry.
  std::string wire_value;
  // The kept former versions, newest first. Set only in the current versions that a Definitions
  // holds.
  std::vector<ReplacedDefinition> replaced;
  // For a mesh: its assigned workers, which are stored beside the definition and have no version.
  // Null: no workers are assigned.
  std::shared_ptr<const MeshAssignment> assigned;
};

// Returns the identities of a mesh's workers by rank: the workers that the definition names, or the
// assigned workers. Empty if the mesh has no workers yet.
const std::vector<std::string>& WorkersOf(const Definition& mesh);

// Returns the store's revision at which the ranks of a mesh got their present workers: that of the
// mesh's definition, or of a later assignment. Arrays of partial sums record this revision as the
// revision of their mesh. The reason: their tiles do not say which rank held which tile.
Revision RanksRevisionOf(const Definition& mesh);

// Returns whether a reference names a version, as in `NAME@VERSION`. Decoding a former version may
// take as long as creating that version took.
bool NamesVersion(std::string_view reference);

// Returns the options for a Store that keeps replaced definitions for a DefinitionStore.
HistoryOptions DefinitionHistory();

// All definitions at one revision. Immutable and thread-safe.
class Definitions {
 public:
  using ByName = std::map<std::string, std::shared_ptr<const Definition>, std::less<>>;

  Definitions() {
    for (auto& definitions : definitions_) definitions = std::make_shared<const ByName>();
  }

  // The store's revision of this snapshot.
  Revision revision() const { return revision_; }
  // Tensors with fewer elements are not sharded, unless the rule set sets another minimum.
  int64_t min_sharding_size() const { return min_sharding_size_; }
  // Returns all definitions of a kind, by name.
  const ByName& all(DefinitionKind kind) const { return *definitions_[static_cast<size_t>(kind)]; }

  // Returns the current definition. NOT_FOUND names the kind and the nearest existing name.
  // DATA_LOSS (STORE_FAILED): the store has a record of this name that cannot be read.
  absl::StatusOr<std::shared_ptr<const Definition>> Find(DefinitionKind kind,
                                                         std::string_view name) const;
  // The target of a reference: a current definition, or a former version. A former version is
  // decoded only by Load.
  struct Referred {
    std::shared_ptr<const Definition> current;
    const ReplacedDefinition* replaced = nullptr;  // a former version of `current`; null: `current`
                                                   // itself

    int64_t version() const { return replaced == nullptr ? current->version : replaced->version; }
  };
  // Looks up a reference. INVALID_ARGUMENT (BAD_FIELD): the version is malformed. NOT_FOUND and
  // DATA_LOSS: as for Find. NOT_FOUND also for a version that is not kept; the message lists the
  // kept versions.
  absl::StatusOr<Referred> Locate(DefinitionKind kind, std::string_view reference) const;
  // Returns the located definition. Decodes a former version, unless it is in the cache. DATA_LOSS
  // (STORE_FAILED) names a version whose record cannot be read. Load polls `is_cancelled`, if
  // given. If `is_cancelled` returns true, Load returns CANCELLED.
  absl::StatusOr<std::shared_ptr<const Definition>> Load(
      const Referred& referred, const std::function<bool()>& is_cancelled = {}) const;
  // Returns the target of a reference: `NAME` for the current version, or `NAME@VERSION`. Combines
  // Locate and Load, and has their errors.
  absl::StatusOr<std::shared_ptr<const Definition>> FindReferred(
      DefinitionKind kind, std::string_view reference,
      const std::function<bool()>& is_cancelled = {}) const;
  // Return the value of the referenced definition. Errors as for FindReferred.
  absl::StatusOr<std::shared_ptr<const MeshDefinition>> FindMesh(std::string_view reference) const;
  absl::StatusOr<std::shared_ptr<const PartitionAxis>> FindProfile(
      std::string_view reference) const;
  absl::StatusOr<std::shared_ptr<const RuleSetDefinition>> FindRuleSet(
      std::string_view reference, const std::function<bool()>& is_cancelled = {}) const;
  absl::StatusOr<std::shared_ptr<const LogicalRules>> FindLogicalRules(
      std::string_view reference) const;
  absl::StatusOr<std::shared_ptr<const StoredTree>> FindTree(std::string_view reference) const;

  // Returns the current and the kept former versions of a definition, newest first, without their
  // values. INVALID_ARGUMENT (BAD_FIELD): `name` contains a version; pass only a name. NOT_FOUND:
  // as for Find. DATA_LOSS (STORE_FAILED) names the version whose record cannot be read.
  struct Version {
    int64_t version = 0;
    Revision revision = 0;
    absl::Time updated;
    int64_t size_bytes = 0;  // of its wire value
    std::string uid;         // of the definition
  };
  absl::StatusOr<std::vector<Version>> Versions(DefinitionKind kind, std::string_view name) const;

 private:
  friend class DefinitionStore;

  template <typename T>
  absl::StatusOr<std::shared_ptr<const T>> FindValue(
      DefinitionKind kind, std::string_view reference,
      const std::function<bool()>& is_cancelled = {}) const;

  Revision revision_ = 0;
  int64_t min_sharding_size_ = kDefaultMinSize;
  // Successive snapshots share the maps of the kinds that did not change.
  std::shared_ptr<const ByName> definitions_[kDefinitionKindCount];
  // Returns whether the store has an unreadable record of this key. The pointer is null if the
  // store has no unreadable record. All snapshots of a DefinitionStore share this function, so no
  // snapshot may outlive the Store that the function asks.
  std::shared_ptr<const std::function<bool(const std::string& key)>> is_unreadable_;
  // All snapshots of a DefinitionStore share this cache.
  std::shared_ptr<DecodedVersions> decoded_ = std::make_shared<DecodedVersions>();
};

// Writes the definitions to the store and publishes them as snapshots. The store keeps replaced
// versions: open it with DefinitionHistory().
//
// Thread-safe. Callbacks run without a lock, on the caller's thread or on the store's thread. The
// destructor waits for the callbacks of all changes. Store, clock and request memory must outlive
// this object.
class DefinitionStore {
 public:
  using Callback = absl::AnyInvocable<void(absl::StatusOr<std::shared_ptr<const Definition>>) &&>;

  // Loads every definition. Blocks. Logs and leaves out an unreadable definition. The name of that
  // definition cannot be used again, and reads of the name get DATA_LOSS. `min_sharding_size`: see
  // Definitions.
  static absl::StatusOr<std::unique_ptr<DefinitionStore>> Open(
      Store* store, Clock* clock, RequestMemory* requests,
      int64_t min_sharding_size = kDefaultMinSize);
  ~DefinitionStore();

  // The maximum number of definitions that may exist. Existing definitions beyond a new limit stay.
  struct Limits {
    int64_t max_meshes = 10'000;
    int64_t max_definitions = 100'000;  // of all kinds
  };
  // Call SetLimits before the first change.
  void SetLimits(const Limits& limits) { limits_ = limits; }

  // Returns the keys of the definitions that this build could not decode. Records that the store
  // itself could not read are not included.
  const std::set<std::string, std::less<>>& undecoded() const { return undecoded_; }

  // Returns the newest snapshot. Costs one atomic read if nothing changed since this thread's last
  // call. Valid until this thread's next call.
  const Definitions& state() const;
  // Like state(), for callers that keep the snapshot.
  std::shared_ptr<const Definitions> shared_state() const;

  // Later results of state() and shared_state() include all changes up to this revision. A watch
  // may therefore begin right after this revision.
  Revision settled_revision() const { return store_->settled_revision(); }

  // Returns whether the answer to a change with this request id is stored. A repeated change with
  // this id gets that answer.
  bool Remembers(const std::string& request_id) const {
    return requests_->Find(request_id).has_value();
  }

  // A change of a definition. RequestMemory stores the answer to the change under `request_id`.
  struct Change {
    std::string request_id;
    std::string name;
    std::optional<int64_t> expected_version = std::nullopt;  // nullopt: any version
    // Only for Create and Update of a mesh, to a definition that names no workers: the workers
    // assigned to its ranks, in their order, in the same change. Empty: assigned workers stay if
    // their number does.
    std::vector<std::string> assign = {};
    // If true, the change is checked and not made; requires an empty request id. The callback gets
    // the resulting definition without a revision, and for a creation without a uid.
    bool validate_only = false;
  };
  // Change a definition. The callback gets the new definition. After Delete, the callback gets the
  // deleted definition; if the Delete was a repeated request, without the definition's value.
  // Errors:
  //
  // clang-format off
  //   INVALID_ARGUMENT  the name or the value is malformed; or (REQUEST_ID_REUSED) the request id
  //                     was used for another change.
  //   ALREADY_EXISTS    Create of a name that exists.
  //   DATA_LOSS         the store's record of that name cannot be read.
  //   RESOURCE_EXHAUSTED  Create would exceed the limits.
  //   NOT_FOUND         Update or Delete of a missing name.
  //   ABORTED           (VERSION_MISMATCH) the definition has another version than expected, or
  //                     other changes came first in all attempts. Without this reason: the first
  //                     request with this id still runs. Retry.
  //   other errors      as for Store::Commit.
  // clang-format on
  //
  // `wire_value` is a serialised v1::EntryValue. The call decodes and checks it before it returns.
  // While decoding, it polls `is_cancelled`, if given. If `is_cancelled` returns true, the call
  // ends with CANCELLED.
  void Create(Change change, std::string wire_value, Callback callback,
              const std::function<bool()>& is_cancelled = {});
  void Update(Change change, std::string wire_value, Callback callback,
              const std::function<bool()>& is_cancelled = {});
  void Delete(Change change, DefinitionKind kind, Callback callback);

  // Stores the workers assigned to the ranks of a mesh, without a new version of the mesh. The
  // callback gets the mesh with its workers. If the mesh already has workers, or the number of
  // ranks differs, Assign writes nothing and passes the unchanged mesh to the callback. NOT_FOUND:
  // no such mesh. ABORTED (VERSION_MISMATCH): the mesh was changed before the workers were stored.
  void Assign(const std::string& mesh_id, std::vector<std::string> workers, Callback callback);

  // Moves a rank of a mesh from worker `from` to worker `to`, without a new version of the mesh. If
  // `from` serves no rank of the mesh, Reassign writes nothing and passes the unchanged mesh to the
  // callback. NOT_FOUND: no such mesh. FAILED_PRECONDITION: the definition names the workers
  // (RANKS_DEFINED), or `to` already serves a rank of the mesh (WORKER_SERVES_RANK). ABORTED
  // (VERSION_MISMATCH): the mesh or its ranks were changed before the move was stored.
  // CheckReassign returns these errors except ABORTED.
  static absl::Status CheckReassign(const Definitions& state, const std::string& mesh_id,
                                    const std::string& from, const std::string& to);
  void Reassign(const std::string& mesh_id, const std::string& from, const std::string& to,
                Callback callback);

  // A change of a definition, or of the workers assigned to a mesh.
  struct Event {
    DefinitionKind kind = DefinitionKind::kMesh;
    std::string name;
    // The stored record; null for a deletion. For an assignment, the record of the workers.
    std::shared_ptr<const std::string> record;
    // Null for a deletion, or if the definition has changed since the event. In the second case,
    // Read decodes `record`.
    std::shared_ptr<const Definition> definition;
    Revision revision = 0;
  };
  using WatchCallback = std::function<void(const std::vector<Event>&)>;
  // Calls back with each change of a definition of these kinds from `from_revision` on; all kinds
  // if `kinds` is empty. See Store::Watch. Each commit waits for the callback, so decode records on
  // another thread.
  absl::StatusOr<std::unique_ptr<WatchHandle>> Watch(const std::vector<DefinitionKind>& kinds,
                                                     Revision from_revision,
                                                     WatchCallback callback);
  // Returns the definition of an event, which must not be a deletion. If `event.definition` is
  // null, decodes the record, which takes as long as at the definition's creation. A definition
  // decoded from the record has no assigned workers. DATA_LOSS, INVALID_ARGUMENT: this build cannot
  // read the record.
  absl::StatusOr<std::shared_ptr<const Definition>> Read(const Event& event) const;
  // Like Read, but if the record must be decoded, the result has a value only for a tree. This
  // suffices for answers to clients, and compiles no rules.
  absl::StatusOr<std::shared_ptr<const Definition>> Describe(const Event& event) const;

  // Decodes a serialised v1::EntryValue. INVALID_ARGUMENT names the field. While it compiles rules,
  // it polls `is_cancelled`, if given. If `is_cancelled` returns true, DecodeValue returns
  // CANCELLED.
  static absl::StatusOr<DefinitionValue> DecodeValue(
      std::string_view wire_value, int64_t min_sharding_size,
      const std::function<bool()>& is_cancelled = {});

 private:
  enum class Verb { kCreate, kUpdate, kDelete };

  DefinitionStore(Store* store, Clock* clock, RequestMemory* requests, int64_t min_sharding_size);

  absl::Status Load();
  // Returns the former versions of `definition` that the store keeps as of revision `at`.
  // `previous` is the definition before its last change, or null. Former versions that `previous`
  // already lists are not decoded again.
  std::vector<ReplacedDefinition> ReplacedBy(const Definition& definition, DefinitionKind kind,
                                             Revision at, const Definition* previous) const;
  // Reads the workers assigned to a mesh into `*mesh`.
  absl::Status LoadAssignment(Definition* mesh) const;
  // Reads the watermark of the kind: the highest version of a deleted definition. If the state may
  // have lost records, including deletions, uses a watermark above every version that was ever
  // given.
  absl::Status LoadWatermark(DefinitionKind kind, const Definitions::ByName& definitions);
  // Returns OK if one more definition of the kind is within the limits, in addition to those that
  // exist or are being created. RESOURCE_EXHAUSTED (LIMIT_EXCEEDED): one more would exceed a limit.
  absl::Status CheckRoom(DefinitionKind kind) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `tries`: number of attempts that failed because another change came first.
  void Write(Verb verb, Change change, DefinitionKind kind, std::string wire_value,
             DefinitionValue value, Callback callback, int tries = 0);
  // Writes and publishes workers for the ranks of a mesh, unless the mesh or its ranks have changed
  // since `mesh` was read.
  void WriteRanks(const std::shared_ptr<const Definition>& mesh, std::vector<std::string> workers,
                  Callback callback);
  // Calls Store::Commit. The commit counts in in_flight_ until its callback has returned.
  void CommitToStore(Transaction transaction, Store::CommitCallback callback);
  // Publishes a snapshot with the change that was committed at `revision`.
  void Publish(std::shared_ptr<const Definition> definition, DefinitionKind kind, Revision revision,
               bool deleted);

  Store* const store_;
  Clock* const clock_;
  RequestMemory* const requests_;
  const int64_t min_sharding_size_;
  Limits limits_;
  std::set<std::string, std::less<>> undecoded_;  // constant after Open
  // The revision at which the state was restored or lost records; 0: neither happened. In a state
  // that no longer exists, other values may have got versions up to this revision. Constant after
  // Open.
  Revision restored_at_ = 0;
  const uint64_t id_;  // identifies this object in the threads' caches

  std::atomic<uint64_t> generation_ = 1;  // rises with each snapshot
  mutable absl::Mutex mutex_;
  std::shared_ptr<const Definitions> state_ ABSL_GUARDED_BY(mutex_);
  int64_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t to_come_[kDefinitionKindCount] ABSL_GUARDED_BY(mutex_) = {};  // being created now

  // Held while a creation reads the watermark, or a deletion raises it, until the transaction is in
  // the store's queue. A later deletion therefore never writes a lower watermark. A creation never
  // gets a version that a deletion before it in the queue has retired. Lock it before mutex_.
  absl::Mutex watermark_mutex_;
  // The highest version of a deleted definition, by kind. A new definition of the kind gets a
  // higher version.
  int64_t watermarks_[kDefinitionKindCount] ABSL_GUARDED_BY(watermark_mutex_) = {};
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_DEFINITIONS_H_
