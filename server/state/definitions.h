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

// In the order of DefinitionValue.
enum class DefinitionKind { kMesh, kProfile, kRuleSet, kLogicalRules, kTree };
inline constexpr size_t kDefinitionKindCount = 5;
std::string_view DefinitionKindName(DefinitionKind kind);  // "mesh", "rule_set", ...

using DefinitionValue = std::variant<MeshDefinition, PartitionAxis, RuleSetDefinition, LogicalRules,
                                     std::shared_ptr<const StoredTree>>;
DefinitionKind KindOf(const DefinitionValue& value);

// A version of a definition that was replaced, as it is in the store.
struct ReplacedDefinition {
  int64_t version = 0;
  Revision revision = 0;  // of the store, when it was made
  absl::Time updated;
  int64_t size_bytes = 0;  // of its wire value
  // DATA_LOSS (STORE_FAILED) if the record cannot be read; neither time nor size are known then.
  absl::Status readable;
  std::shared_ptr<const std::string> record;
};

// The workers assigned to the ranks of a mesh whose definition names none. Immutable.
struct MeshAssignment {
  std::vector<std::string> workers;  // identities by rank
  Revision revision = 0;             // of the store, when they were assigned
};

// A named, versioned definition.
struct Definition {
  std::string name;
  std::string uid;        // drawn when created, kept by updates
  int64_t version = 0;    // higher after each update; never used again for the name
  Revision revision = 0;  // of the store, at its last change
  absl::Time updated;
  DefinitionValue value;
  // The serialised EntryValue that it was made from, which clients get back; for trees only in
  // GetEntry.
  std::string wire_value;
  // The kept former versions, newest first. Only filled for current versions in a
  // Definitions.
  std::vector<ReplacedDefinition> replaced;
  // For a mesh: state beside the definition, without a version. Null: not assigned.
  std::shared_ptr<const MeshAssignment> assigned;
};

// Returns the identities of a mesh's workers by rank: those named in the definition, or those
// assigned. Empty if there are none yet.
const std::vector<std::string>& WorkersOf(const Definition& mesh);

// Returns the store's revision since which the ranks of a mesh have their workers: that of its
// definition, or of the assignment if that is later. Arrays that are partial sums have it as the
// revision of their mesh: their tiles do not say which rank had which.
Revision RanksRevisionOf(const Definition& mesh);

// Returns whether a reference names a version, `NAME@VERSION`. A former version may have to be
// decoded, which takes as long as at its creation.
bool NamesVersion(std::string_view reference);

// The history that the store of a DefinitionStore keeps of replaced definitions.
HistoryOptions DefinitionHistory();

// All definitions at one revision. Immutable and thread-safe.
class Definitions {
 public:
  using ByName = std::map<std::string, std::shared_ptr<const Definition>, std::less<>>;

  Definitions() {
    for (auto& definitions : definitions_) definitions = std::make_shared<const ByName>();
  }

  // The store's revision to which the answers belong.
  Revision revision() const { return revision_; }
  // The least size of sharded tensors, if a rule set does not set it.
  int64_t min_sharding_size() const { return min_sharding_size_; }
  // By name.
  const ByName& all(DefinitionKind kind) const { return *definitions_[static_cast<size_t>(kind)]; }

  // The current definition. NOT_FOUND names the kind and the nearest existing name. DATA_LOSS
  // (STORE_FAILED): the store has a record of it that cannot be read.
  absl::StatusOr<std::shared_ptr<const Definition>> Find(DefinitionKind kind,
                                                         std::string_view name) const;
  // The target of a reference, possibly not decoded yet: see FindReferred.
  struct Referred {
    std::shared_ptr<const Definition> current;
    const ReplacedDefinition* replaced = nullptr;  // a former version of `current`; null: `current`
                                                   // itself

    int64_t version() const { return replaced == nullptr ? current->version : replaced->version; }
  };
  // Looks up a reference. INVALID_ARGUMENT (BAD_FIELD) for a malformed version. NOT_FOUND as for
  // Find, and for a version that is not kept; the message lists the kept ones.
  absl::StatusOr<Referred> Locate(DefinitionKind kind, std::string_view reference) const;
  // The definition that was located. Decodes a former version, unless it is in the cache. DATA_LOSS
  // (STORE_FAILED) names a version whose record cannot be read. `is_cancelled`, if given, is called
  // meanwhile; true ends it with CANCELLED.
  absl::StatusOr<std::shared_ptr<const Definition>> Load(
      const Referred& referred, const std::function<bool()>& is_cancelled = {}) const;
  // Returns the target of a reference: `NAME` for the current version, or `NAME@VERSION`. Equals
  // Locate and Load, with their errors.
  absl::StatusOr<std::shared_ptr<const Definition>> FindReferred(
      DefinitionKind kind, std::string_view reference,
      const std::function<bool()>& is_cancelled = {}) const;
  // Return the value of the referenced definition.
  absl::StatusOr<std::shared_ptr<const MeshDefinition>> FindMesh(std::string_view reference) const;
  absl::StatusOr<std::shared_ptr<const PartitionAxis>> FindProfile(
      std::string_view reference) const;
  absl::StatusOr<std::shared_ptr<const RuleSetDefinition>> FindRuleSet(
      std::string_view reference, const std::function<bool()>& is_cancelled = {}) const;
  absl::StatusOr<std::shared_ptr<const LogicalRules>> FindLogicalRules(
      std::string_view reference) const;
  absl::StatusOr<std::shared_ptr<const StoredTree>> FindTree(std::string_view reference) const;

  // Returns the current and the kept former versions of a definition, newest first, without their
  // values. INVALID_ARGUMENT (BAD_FIELD) for a reference with a version: only a name has several.
  // NOT_FOUND as for Find. DATA_LOSS (STORE_FAILED) names the version whose record cannot be read.
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
  // Successive snapshots share the kinds that did not change.
  std::shared_ptr<const ByName> definitions_[kDefinitionKindCount];
  // Returns whether the store has an unreadable record of this key. Empty: it has none. Shared by
  // all snapshots of a definition store, which must not outlive its store.
  std::shared_ptr<const std::function<bool(const std::string& key)>> is_unreadable_;
  // Likewise.
  std::shared_ptr<DecodedVersions> decoded_ = std::make_shared<DecodedVersions>();
};

// Keeps the definitions in the store and publishes them as snapshots. Replaced versions are kept as
// long as the store keeps them: open it with DefinitionHistory().
//
// Thread-safe. Callbacks run on the store's thread, without a lock. The destructor waits for the
// callbacks of all changes; store, clock and request memory outlive this object.
class DefinitionStore {
 public:
  using Callback = absl::AnyInvocable<void(absl::StatusOr<std::shared_ptr<const Definition>>) &&>;

  // Loads every definition. Blocks. An unreadable one is logged and left out. Its name cannot be
  // used again, and questions about it get DATA_LOSS. `min_sharding_size`: see Definitions.
  static absl::StatusOr<std::unique_ptr<DefinitionStore>> Open(
      Store* store, Clock* clock, RequestMemory* requests,
      int64_t min_sharding_size = kDefaultMinSize);
  ~DefinitionStore();

  // Most definitions. Existing definitions beyond a limit stay.
  struct Limits {
    int64_t max_meshes = 10'000;
    int64_t max_definitions = 100'000;  // of all kinds
  };
  // Call it before the first change.
  void SetLimits(const Limits& limits) { limits_ = limits; }

  // Returns the keys of the definitions that this build could not decode. Records that the store
  // itself could not read are not included.
  const std::set<std::string, std::less<>>& undecoded() const { return undecoded_; }

  // The newest snapshot: one atomic read when nothing changed since this thread asked last. Valid
  // until this thread's next call.
  const Definitions& state() const;
  // Like state(), for callers that keep the snapshot.
  std::shared_ptr<const Definitions> shared_state() const;

  // All changes up to this revision are in later results of state() and shared_state(). A watch can
  // begin after it.
  Revision settled_revision() const { return store_->settled_revision(); }

  // Whether the answer to a change with this id is stored: Update and Delete then return it.
  bool Remembers(const std::string& request_id) const {
    return requests_->Find(request_id).has_value();
  }

  // A change, with the request id of its answer: see RequestMemory.
  struct Change {
    std::string request_id;
    std::string name;
    std::optional<int64_t> expected_version = std::nullopt;  // none: any
    // Checks the change without making it; requires an empty request id. The callback gets the
    // resulting definition, without revision, and without uid if it would be created.
    bool validate_only = false;
  };
  // Change a definition. The callback gets the new definition; after Delete, the former one,
  // without its value if the request was a repeated one. Errors:
  //
  // clang-format off
  //   INVALID_ARGUMENT  a malformed name or value, REQUEST_ID_REUSED.
  //   ALREADY_EXISTS    Create of a name that exists.
  //   DATA_LOSS         the store's record of that name cannot be read.
  //   RESOURCE_EXHAUSTED  Create beyond the limits.
  //   NOT_FOUND         Update, Delete of a missing name.
  //   ABORTED           VERSION_MISMATCH; or another change is running: retry. Unless the version
  //                     is not the expected one, the store itself retries some times first.
  //   as Store::Commit  otherwise.
  // clang-format on
  //
  // `wire_value` is a serialised v1::EntryValue; it is decoded and checked before the call returns.
  // `is_cancelled`, if given, is called meanwhile; true ends the call with CANCELLED.
  void Create(Change change, std::string wire_value, Callback callback,
              const std::function<bool()>& is_cancelled = {});
  void Update(Change change, std::string wire_value, Callback callback,
              const std::function<bool()>& is_cancelled = {});
  void Delete(Change change, DefinitionKind kind, Callback callback);

  // Stores the workers that were assigned to the ranks of a mesh; the mesh gets no new version. The
  // callback gets the mesh with them. If the mesh already has workers, or another number of ranks,
  // nothing is written and it is returned unchanged. NOT_FOUND. ABORTED (VERSION_MISMATCH): the
  // mesh changed meanwhile.
  void Assign(const std::string& mesh_id, std::vector<std::string> workers, Callback callback);

  // Moves a rank of a mesh from worker `from` to worker `to`; the mesh gets no new version. If
  // `from` serves no rank of it, nothing is written and the mesh is returned unchanged. NOT_FOUND.
  // FAILED_PRECONDITION: the definition names the workers (RANKS_DEFINED), or `to` serves a rank of
  // the mesh (WORKER_SERVES_RANK). ABORTED (VERSION_MISMATCH): the mesh or its ranks changed
  // meanwhile. CheckReassign returns these errors except the last.
  static absl::Status CheckReassign(const Definitions& state, const std::string& mesh_id,
                                    const std::string& from, const std::string& to);
  void Reassign(const std::string& mesh_id, const std::string& from, const std::string& to,
                Callback callback);

  // A change of a definition, or of the workers assigned to a mesh.
  struct Event {
    DefinitionKind kind = DefinitionKind::kMesh;
    std::string name;
    // The stored record; null: deleted. For an assignment: the record of the workers.
    std::shared_ptr<const std::string> record;
    // Null if it was deleted or has changed since. In the second case, Read decodes the record.
    std::shared_ptr<const Definition> definition;
    Revision revision = 0;
  };
  using WatchCallback = std::function<void(const std::vector<Event>&)>;
  // Calls back with each change of a definition of these kinds (none: of all) from `from_revision`
  // on; see Store::Watch. Each commit waits for the callback: decode elsewhere.
  absl::StatusOr<std::unique_ptr<WatchHandle>> Watch(const std::vector<DefinitionKind>& kinds,
                                                     Revision from_revision,
                                                     WatchCallback callback);
  // The definition of an event that is no deletion, with the assigned workers if the event has the
  // definition. If the event has none, takes as long as at the definition's creation. DATA_LOSS,
  // INVALID_ARGUMENT: this build cannot read it.
  absl::StatusOr<std::shared_ptr<const Definition>> Read(const Event& event) const;
  // Like Read, without the value except for a tree. It is the form for clients, and does not
  // compile rules.
  absl::StatusOr<std::shared_ptr<const Definition>> Describe(const Event& event) const;

  // The definition in a serialised v1::EntryValue. INVALID_ARGUMENT names the field.
  // `is_cancelled`, if given, is called while rules are compiled; true ends it with CANCELLED.
  static absl::StatusOr<DefinitionValue> DecodeValue(
      std::string_view wire_value, int64_t min_sharding_size,
      const std::function<bool()>& is_cancelled = {});

 private:
  enum class Verb { kCreate, kUpdate, kDelete };

  DefinitionStore(Store* store, Clock* clock, RequestMemory* requests, int64_t min_sharding_size);

  absl::Status Load();
  // Returns the store's former versions before that of `definition`, as of revision `at`. Versions
  // that `previous` (the version before, may be null) knows are not read again.
  std::vector<ReplacedDefinition> ReplacedBy(const Definition& definition, DefinitionKind kind,
                                             Revision at, const Definition* previous) const;
  // Reads the workers assigned to a mesh into `*mesh`.
  absl::Status LoadAssignment(Definition* mesh) const;
  // Reads the watermark of the kind. A state that may have lost records, including deletions, gets
  // one above every version that it gave.
  absl::Status LoadWatermark(DefinitionKind kind, const Definitions::ByName& definitions);
  // Returns whether one more definition of the kind has room beside the existing ones and those
  // that are being created. RESOURCE_EXHAUSTED (LIMIT_EXCEEDED).
  absl::Status CheckRoom(DefinitionKind kind) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `tries`: how many attempts lost to another change.
  void Write(Verb verb, Change change, DefinitionKind kind, std::string wire_value,
             DefinitionValue value, Callback callback, int tries = 0);
  // Writes and publishes the ranks of a mesh, unless it has changed since `mesh`.
  void WriteRanks(const std::shared_ptr<const Definition>& mesh, std::vector<std::string> workers,
                  Callback callback);
  // Store::Commit, counted in in_flight_ until after its callback.
  void CommitToStore(Transaction transaction, Store::CommitCallback callback);
  // Publishes a change that revision `revision` made.
  void Publish(std::shared_ptr<const Definition> definition, DefinitionKind kind, Revision revision,
               bool deleted);

  Store* const store_;
  Clock* const clock_;
  RequestMemory* const requests_;
  const int64_t min_sharding_size_;
  Limits limits_;
  std::set<std::string, std::less<>> undecoded_;  // constant after Open
  // The revision of the restoration of the state, or of the loss of records: versions up to it may
  // have been given in a state that is gone. 0: neither. Constant after Open.
  Revision restored_at_ = 0;
  const uint64_t id_;  // identifies the store in threads' caches

  std::atomic<uint64_t> generation_ = 1;  // rises with each snapshot
  mutable absl::Mutex mutex_;
  std::shared_ptr<const Definitions> state_ ABSL_GUARDED_BY(mutex_);
  int64_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t to_come_[kDefinitionKindCount] ABSL_GUARDED_BY(mutex_) = {};  // being created

  // Held while a creation or a deletion reads or raises the watermark and takes its place in the
  // store's queue: later deletions write no lower one, and no version is given that an earlier one
  // in the queue has deleted. Taken before mutex_.
  absl::Mutex watermark_mutex_;
  // The highest version of a deleted definition, by kind. A new definition of the kind begins above
  // it.
  int64_t watermarks_[kDefinitionKindCount] ABSL_GUARDED_BY(watermark_mutex_) = {};
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_DEFINITIONS_H_
