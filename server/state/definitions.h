// The definitions that requests name, as one immutable snapshot, and who publishes the next one.
#ifndef SHARDMESH_SERVER_STATE_DEFINITIONS_H_
#define SHARDMESH_SERVER_STATE_DEFINITIONS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
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
#include "rpc/codec/definition.h"
#include "server/state/decoded_versions.h"
#include "server/state/request_memory.h"
#include "server/state/stored_tree.h"
#include "server/store/store.h"
#include "sharding/partition_axis.h"
#include "sharding/rules/logical_rules.h"

namespace shardmesh::server {

// In the order of DefinitionValue.
enum class DefinitionKind { kMesh, kProfile, kRuleSet, kLogicalRules, kTree };
inline constexpr size_t kDefinitionKindCount = 5;
std::string_view DefinitionKindName(DefinitionKind kind);  // "mesh", "rule_set", ...

using DefinitionValue = std::variant<rpc::MeshDefinition, PartitionAxis, rpc::RuleSetDefinition,
                                     LogicalRules, std::shared_ptr<const StoredTree>>;
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

// A named, versioned definition.
struct Definition {
  std::string name;
  int64_t version = 0;    // 1 when created, one more at each update
  Revision revision = 0;  // of the store, at its last change
  absl::Time updated;
  DefinitionValue value;
  // The wire's EntryValue that it was made from: what clients get back, trees in GetEntry alone.
  std::string wire_value;
  // Those before it that are kept, the newest first. Of current ones in a Definitions alone.
  std::vector<ReplacedDefinition> replaced;
};

// Whether a reference names a version, `NAME@VERSION`: one that was replaced may have to be
// decoded, which takes as long as it took when the definition came.
bool NamesVersion(std::string_view reference);

// What the store of a DefinitionStore keeps of the definitions that were replaced.
HistoryOptions DefinitionHistory();

// All definitions at one revision. Immutable, hence safe to share between threads.
class Definitions {
 public:
  using ByName = std::map<std::string, std::shared_ptr<const Definition>, std::less<>>;

  Definitions() {
    for (auto& definitions : definitions_) definitions = std::make_shared<const ByName>();
  }

  // The store's revision that the answers hold for.
  Revision revision() const { return revision_; }
  // The least size of tensors that are sharded, where a rule set leaves it open.
  int64_t min_sharding_size() const { return min_sharding_size_; }
  // By name.
  const ByName& all(DefinitionKind kind) const { return *definitions_[static_cast<size_t>(kind)]; }

  // As it is now. NOT_FOUND names the kind and the nearest name that there is. DATA_LOSS
  // (STORE_FAILED): the store has a record of it that cannot be read.
  absl::StatusOr<std::shared_ptr<const Definition>> Find(DefinitionKind kind,
                                                         std::string_view name) const;
  // What a reference names, which need not be decoded yet: see FindReferred.
  struct Referred {
    std::shared_ptr<const Definition> current;
    const ReplacedDefinition* replaced = nullptr;  // of `current`; null: it is itself what is named

    int64_t version() const { return replaced == nullptr ? current->version : replaced->version; }
  };
  // INVALID_ARGUMENT (BAD_FIELD) for what is no version; NOT_FOUND as for Find, and for a version
  // that is not kept; it says which are.
  absl::StatusOr<Referred> Locate(DefinitionKind kind, std::string_view reference) const;
  // The definition that was located. A version that was replaced is decoded, unless it was lately:
  // DATA_LOSS (STORE_FAILED) names one whose record cannot be read. `is_cancelled`, if given, is
  // asked meanwhile, and true ends it with CANCELLED.
  absl::StatusOr<std::shared_ptr<const Definition>> Load(
      const Referred& referred, const std::function<bool()>& is_cancelled = {}) const;
  // What questions name: `NAME`, as it is now, or `NAME@VERSION`, as it was at that version. Locate
  // and Load, and their errors.
  absl::StatusOr<std::shared_ptr<const Definition>> FindReferred(
      DefinitionKind kind, std::string_view reference,
      const std::function<bool()>& is_cancelled = {}) const;
  // The values of what is referred to.
  absl::StatusOr<std::shared_ptr<const rpc::MeshDefinition>> FindMesh(
      std::string_view reference) const;
  absl::StatusOr<std::shared_ptr<const PartitionAxis>> FindProfile(
      std::string_view reference) const;
  absl::StatusOr<std::shared_ptr<const rpc::RuleSetDefinition>> FindRuleSet(
      std::string_view reference, const std::function<bool()>& is_cancelled = {}) const;
  absl::StatusOr<std::shared_ptr<const LogicalRules>> FindLogicalRules(
      std::string_view reference) const;
  absl::StatusOr<std::shared_ptr<const StoredTree>> FindTree(std::string_view reference) const;

  // The current version of a definition and those before that are kept, the newest first; without
  // their values. INVALID_ARGUMENT (BAD_FIELD) for a reference that names a version: it is a name
  // alone that has several. NOT_FOUND as for Find; DATA_LOSS (STORE_FAILED) names the
  // version whose record cannot be read.
  struct Version {
    int64_t version = 0;
    Revision revision = 0;
    absl::Time updated;
    int64_t size_bytes = 0;  // of its wire value
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
  // One snapshot shares with the next those of the kinds that did not change.
  std::shared_ptr<const ByName> definitions_[kDefinitionKindCount];
  // Whether the store has a record of this key that cannot be read. Empty: it has none. Of all
  // snapshots of a definition_store, whose store they do not outlive.
  std::shared_ptr<const std::function<bool(const std::string& key)>> is_unreadable_;
  // Likewise.
  std::shared_ptr<DecodedVersions> decoded_ = std::make_shared<DecodedVersions>();
};

// Keeps the definitions in the store and publishes them as snapshots. What was replaced is kept as
// far as the store does: it is opened with DefinitionHistory().
//
// Thread-safe. Callbacks run on the store's thread, without a lock. The destructor waits for those
// of all changes; store, clock and request memory live longer.
class DefinitionStore {
 public:
  using Callback = absl::AnyInvocable<void(absl::StatusOr<std::shared_ptr<const Definition>>) &&>;

  // Loads every definition. Blocks. One that cannot be read is logged and left out; its name is not
  // given to another, and a question for it gets DATA_LOSS. `min_sharding_size`: see Definitions.
  static absl::StatusOr<std::unique_ptr<DefinitionStore>> Open(
      Store* store, rpc::Clock* clock, RequestMemory* requests,
      int64_t min_sharding_size = kDefaultMinSize);
  ~DefinitionStore();

  // How many definitions there may be. More that are there already stay.
  struct Limits {
    int64_t max_meshes = 10'000;
    int64_t max_definitions = 100'000;  // of all kinds
  };
  // Before the first change.
  void SetLimits(const Limits& limits) { limits_ = limits; }

  // The keys of the definitions that this build could not decode. What the store itself could not
  // read is not among them.
  const std::set<std::string, std::less<>>& undecoded() const { return undecoded_; }

  // The newest snapshot: one atomic read when nothing changed since this thread asked last. Valid
  // until this thread's next call.
  const Definitions& state() const;
  // The same, to be kept.
  std::shared_ptr<const Definitions> shared_state() const;

  // All changes up to this revision are in what state() and shared_state() return afterwards. A
  // watch can be begun behind it.
  Revision settled_revision() const { return store_->settled_revision(); }

  // Whether the answer to a change with this id is known: Update and Delete repeat it.
  bool Remembers(const std::string& request_id) const {
    return requests_->Find(request_id).has_value();
  }

  // A change, and its answer's fate: see RequestMemory. `expected_version` 0 means any, and so does
  // `expected_revision`, which tells one that was deleted and made anew from the one before.
  struct Change {
    std::string request_id;
    std::string name;
    int64_t expected_version = 0;
    Revision expected_revision = 0;
  };
  // The callback gets what is defined now. After Delete it gets what was; if that was a repeated
  // request, without its value. Errors:
  //   INVALID_ARGUMENT  a malformed name or value, REQUEST_ID_REUSED.
  //   ALREADY_EXISTS    Create of a name that there is.
  //   DATA_LOSS         what the store has of that name cannot be read.
  //   RESOURCE_EXHAUSTED  Create beyond the limits.
  //   NOT_FOUND         Update, Delete of one that there is not.
  //   ABORTED           VERSION_MISMATCH; or another change is under way: retry. Where neither a
  //                     version nor a revision is expected that is done here, some times.
  //   as Store::Commit  for the rest.
  // `wire_value` is a serialised v1::EntryValue; it is decoded and checked here, before the call
  // returns. `is_cancelled`, if given, is asked meanwhile, and true ends it with CANCELLED.
  void Create(Change change, std::string wire_value, Callback callback,
              const std::function<bool()>& is_cancelled = {});
  void Update(Change change, std::string wire_value, Callback callback,
              const std::function<bool()>& is_cancelled = {});
  void Delete(Change change, DefinitionKind kind, Callback callback);

  // A change of a definition.
  struct Event {
    DefinitionKind kind = DefinitionKind::kMesh;
    std::string name;
    std::shared_ptr<const std::string> record;  // as it is in the store; null: deleted
    // Null if it was deleted, or has changed again since: then Read makes it of the record.
    std::shared_ptr<const Definition> definition;
    Revision revision = 0;
  };
  using WatchCallback = std::function<void(const std::vector<Event>&)>;
  // Calls back with each change of a definition of these kinds (none: of all) from `from_revision`
  // on; see Store::Watch. Each commit waits for the callback: decode elsewhere.
  absl::StatusOr<std::unique_ptr<WatchHandle>> Watch(const std::vector<DefinitionKind>& kinds,
                                                     Revision from_revision,
                                                     WatchCallback callback);
  // The definition of an event that is no deletion. Takes as long as it took when the definition
  // came, if the event has none. DATA_LOSS, INVALID_ARGUMENT: this build cannot read it.
  absl::StatusOr<std::shared_ptr<const Definition>> Read(const Event& event) const;
  // The same without its value, but for a tree: what a client is shown, without compiling rules.
  absl::StatusOr<std::shared_ptr<const Definition>> Describe(const Event& event) const;

  // The definition in a serialised v1::EntryValue. INVALID_ARGUMENT names the field.
  // `is_cancelled`, if given, is asked while rules are compiled, and true ends it with CANCELLED.
  static absl::StatusOr<DefinitionValue> DecodeValue(
      std::string_view wire_value, int64_t min_sharding_size,
      const std::function<bool()>& is_cancelled = {});

 private:
  enum class Verb { kCreate, kUpdate, kDelete };

  DefinitionStore(Store* store, rpc::Clock* clock, RequestMemory* requests,
                  int64_t min_sharding_size);

  absl::Status Load();
  // What the store keeps of the versions before that of `definition`, as of revision `at`. What
  // `previous`, the one before it, knows of them is not read again; it may be null.
  std::vector<ReplacedDefinition> ReplacedBy(const Definition& definition, DefinitionKind kind,
                                             Revision at, const Definition* previous) const;
  // Counts one more of the kind as about to be created. RESOURCE_EXHAUSTED (LIMIT_EXCEEDED): there
  // is no room for it beside those that there are and those that are being created.
  absl::Status ReserveRoom(DefinitionKind kind);
  // `tries`: how often somebody else was first.
  void Write(Verb verb, Change change, DefinitionKind kind, std::string wire_value,
             DefinitionValue value, Callback callback, int tries = 0);
  // Store::Commit, counted in in_flight_ until after its callback.
  void CommitToStore(Transaction transaction, Store::CommitCallback callback);
  void Publish(std::shared_ptr<const Definition> definition, DefinitionKind kind, bool deleted);

  Store* const store_;
  rpc::Clock* const clock_;
  RequestMemory* const requests_;
  const int64_t min_sharding_size_;
  Limits limits_;
  std::set<std::string, std::less<>> undecoded_;  // constant after Open
  const uint64_t id_;                             // tells stores apart in threads' caches

  std::atomic<uint64_t> generation_ = 1;  // rises with each snapshot
  mutable absl::Mutex mutex_;
  std::shared_ptr<const Definitions> state_ ABSL_GUARDED_BY(mutex_);
  int64_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t to_come_[kDefinitionKindCount] ABSL_GUARDED_BY(mutex_) = {};  // being created
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_DEFINITIONS_H_
