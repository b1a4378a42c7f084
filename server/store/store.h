// The coordinator's memory: keys and values with revisions, atomic transactions, and watches.
#ifndef SHARDMESH_SERVER_STORE_STORE_H_
#define SHARDMESH_SERVER_STORE_STORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shardmesh::server {

// Counts the commits of a store: 0 is the empty store, each commit that writes adds one.
using Revision = int64_t;

// Limits of one transaction. They are etcd's defaults, so that any store could implement them.
inline constexpr size_t kMaxTransactionOperations = 128;     // compares, puts and deletes together
inline constexpr size_t kMaxTransactionBytes = 1536 * 1024;  // keys and values together
inline constexpr size_t kMaxKeyBytes = 2048;

// One key as it stands at some revision.
struct KeyValue {
  std::string key;
  std::string value;
  Revision mod_revision = 0;  // the commit that wrote this value
};

// The condition that the commit `mod_revision` last wrote `key`; 0: that the key does not exist.
struct Compare {
  std::string key;
  Revision mod_revision = 0;
};

struct Put {
  std::string key;
  std::string value;
};

// Takes effect completely, at one revision, or not at all. It may write a key only once. Deleting a
// missing key is no error, and alone makes no revision.
struct Transaction {
  std::vector<Compare> compares = {};
  std::vector<Put> puts = {};
  std::vector<std::string> deletes = {};
  // May use the reserved space of a full store. Set it if the transaction frees space, or if
  // nothing else can proceed without it. A transaction without puts always may.
  bool urgent = false;
};

// The result of List: the keys in bytewise order, all as of `revision`.
struct KeyValues {
  std::vector<KeyValue> items;
  Revision revision = 0;
  bool more = false;  // the limit was reached; go on with start_after = the last key
};

// An item of History: a current or former value of a key.
struct KeptValue {
  std::shared_ptr<const std::string> value;
  Revision mod_revision = 0;  // the commit that wrote it
};

// The keys whose overwritten values are kept until the key is deleted, even after Compact.
struct HistoryOptions {
  std::vector<std::string> prefixes = {};  // the keys that start with one of them
  int64_t values = 32;                     // most values of a key, the current one included
  size_t bytes = 4 << 20;  // most bytes of a key's values in addition to the current one
  // The other keys have no history: their old values are gone with the commit. Reads at an older
  // revision, and watches, find only the current values of such keys.
  bool others_have_none = false;
};

struct ListOptions {
  Revision at = 0;               // 0: the newest
  std::string start_after = {};  // only keys after this one
  int64_t limit = INT64_MAX;     // most items
};

// One change in a watch.
struct WatchEvent {
  std::string key;
  std::shared_ptr<const std::string> value;  // shared by all watches; null: deleted
  Revision revision = 0;
};

// A watch lasts as long as this handle. Destroy the handle before its store. Once the destructor
// has returned, the callback does not run and will not run again. An exception: the callback itself
// destroys the handle.
class WatchHandle {
 public:
  virtual ~WatchHandle() = default;
};

// The contents of a store, and its limits.
struct StoreStats {
  int64_t live_bytes = 0;     // memory of keys and current values, overhead included
  int64_t history_bytes = 0;  // memory of kept values that were overwritten or deleted, overhead
                              // included
  int64_t used_bytes = 0;     // on disk, without free pages; 0: in memory only
  int64_t file_bytes = 0;     // on disk, of the database
  int64_t quota_bytes = 0;    // limit of used_bytes; 0: no quota
  int64_t unreadable_records = 0;  // found when the store was opened, and left out
};

// Keys are paths (`name/NAME`, `array/ID`) of 1 to kMaxKeyBytes bytes without NUL; values are
// opaque bytes. Each commit makes a revision. Older revisions stay readable and watchable until
// Compact.
//
// Reads see every commit whose callback has run, and never part of a commit. They read from memory
// and do not wait for the disk. Callbacks run one at a time on the store's own thread, in the order
// of revisions, without any lock. They may call the store. They must be short, because the next
// commit waits for them.
//
// Thread-safe. The destructor finishes the accepted commits, callbacks included.
class Store {
 public:
  using CommitCallback = absl::AnyInvocable<void(absl::StatusOr<Revision>) &&>;
  // The events of one commit, in the order of the transaction.
  using WatchCallback = std::function<void(const std::vector<WatchEvent>&)>;

  virtual ~Store() = default;

  // Queues the transaction and returns at once; `callback` runs exactly once, later.
  //
  // OK means that the transaction is durable (as far as this store is) and visible, at the revision
  // given. A transaction without changes gets the current revision. Transactions take effect in the
  // order of the calls. With any other status nothing of it happened:
  //
  // clang-format off
  //   ABORTED (VERSION_MISMATCH)  a compare failed; names the key, its revision and the expected.
  //   INVALID_ARGUMENT            over a limit above, a malformed key, or one written twice.
  //   RESOURCE_EXHAUSTED          (STORE_FULL) disk or quota are full; (OVERLOADED) queue full.
  //   UNAVAILABLE                 (NOT_SERVING) closing. With a retry delay, as OVERLOADED.
  // clang-format on
  //
  // After a write whose outcome is unknown no callback runs any more: see
  // LocalStoreOptions::on_failure.
  virtual void Commit(Transaction transaction, CommitCallback callback) = 0;

  // NOT_FOUND: the key did not exist at that revision (0: the newest). OUT_OF_RANGE: the revision
  // is compacted, or in the future.
  virtual absl::StatusOr<KeyValue> Get(std::string_view key, Revision at = 0) const = 0;

  // Returns the values of `key`, newest first: the value at that revision and, if the key keeps its
  // history (HistoryOptions), the earlier ones since its creation that are kept. Errors as for Get.
  virtual absl::StatusOr<std::vector<KeptValue>> History(std::string_view key,
                                                         Revision at = 0) const = 0;

  // The keys that start with `prefix` (all for an empty one). OUT_OF_RANGE as for Get.
  virtual absl::StatusOr<KeyValues> List(std::string_view prefix,
                                         ListOptions options = {}) const = 0;

  // Calls back for each commit from `from_revision` on (that one included) that changed a key with
  // one of these prefixes. It has no gap and no repetition: past commits first, then new ones as
  // they happen. List, then Watch from its revision + 1, follows everything. A future revision is
  // allowed. OUT_OF_RANGE (COMPACTED): some changes from there on are gone; list again.
  virtual absl::StatusOr<std::unique_ptr<WatchHandle>> Watch(std::vector<std::string> prefixes,
                                                             Revision from_revision,
                                                             WatchCallback callback) = 0;

  // Forgets values overwritten or deleted at or before `revision`, except those that History keeps.
  // Reads at earlier revisions, and watches from them, then fail. Ordered like Commit.
  // OUT_OF_RANGE: the revision is in the future.
  virtual void Compact(Revision revision, absl::AnyInvocable<void(absl::Status) &&> callback) = 0;

  // Writes a copy of all durable data to a new file at `path`, a little at a time between commits.
  // The copy is of one revision. `callback` gets the revision when the copy is synced. Each store
  // on disk can be opened from such a copy. FAILED_PRECONDITION: the store is in memory only.
  // ALREADY_EXISTS: the file exists. RESOURCE_EXHAUSTED: no room for it.
  virtual void Backup(std::string path, CommitCallback callback) = 0;

  // The newest revision that is visible to reads.
  virtual Revision revision() const = 0;
  // Returns the newest revision for which all callbacks, and those of earlier revisions, have run.
  // State derived from callbacks is at least as new. Never less than compacted_revision().
  virtual Revision settled_revision() const = 0;
  // The oldest revision that can be read.
  virtual Revision compacted_revision() const = 0;
  virtual StoreStats stats() const = 0;

  // Returns the last commit that wrote `key` if its record was unreadable at opening: the value of
  // the key is then unknown. Returns 0 if the result of reads, found or not, is correct.
  virtual Revision UnreadableRevision(std::string_view) const { return 0; }
  // Returns the keys of records that were unreadable at opening, in order; for a damaged key, the
  // bytes stored in its place. At most kNamedUnreadable.
  static constexpr size_t kNamedUnreadable = 8;
  virtual std::vector<std::string> UnreadableKeys() const { return {}; }
};

// Commits, and waits for the result. For start-up and tests: never on a gRPC or store thread.
absl::StatusOr<Revision> CommitAndWait(Store& store, Transaction transaction);

// Returns the errors that all stores share: INVALID_ARGUMENT as Commit says, else OK.
absl::Status CheckTransaction(const Transaction& transaction);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STORE_STORE_H_
