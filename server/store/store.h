// The interface of the coordinator's store: keys and values with revisions, atomic transactions,
// and watches.
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

// Number of a commit to the store. An empty store has revision 0; each commit that writes adds 1.
using Revision = int64_t;

// Limits of one transaction. They are etcd's defaults, so that etcd or another store could
// implement this interface.
inline constexpr size_t kMaxTransactionOperations = 128;     // compares, puts and deletes together
inline constexpr size_t kMaxTransactionBytes = 1536 * 1024;  // keys and values together
inline constexpr size_t kMaxKeyBytes = 2048;

// A key with its value at some revision.
struct KeyValue {
  std::string key;
  std::string value;
  Revision mod_revision = 0;  // the commit that wrote this value
};

// Condition of a transaction: `mod_revision` is the commit that last wrote `key`. With 0: the key
// does not exist.
struct Compare {
  std::string key;
  Revision mod_revision = 0;
};

struct Put {
  std::string key;
  std::string value;
};

// Takes effect completely, at one revision, or not at all. May write each key only once. Deleting a
// missing key is no error. A transaction that only deletes missing keys makes no revision.
struct Transaction {
  std::vector<Compare> compares = {};
  std::vector<Put> puts = {};
  std::vector<std::string> deletes = {};
  // If true, the transaction may use the reserved space of a full store. Set it if the transaction
  // frees space, or if nothing else can proceed without the transaction. A transaction without puts
  // is always urgent.
  bool urgent = false;
};

// The result of List: the keys in bytewise order, all as of `revision`.
struct KeyValues {
  std::vector<KeyValue> items;
  Revision revision = 0;
  bool more = false;  // the limit was reached: list again after the last key
};

// An item of History: a current or former value of a key.
struct KeptValue {
  std::shared_ptr<const std::string> value;
  Revision mod_revision = 0;  // the commit that wrote it
};

// Selects the keys that keep overwritten values, even after Compact, until the key is deleted.
struct HistoryOptions {
  std::vector<std::string> prefixes = {};  // keys that start with one of these
  int64_t values = 32;                     // maximum values of a key, with the current one
  size_t bytes = 4 << 20;                  // maximum bytes of a key's former values together
  // If true, all other keys have no history: a commit discards their old values at once. Reads at
  // an older revision, and watches, then find only the current values of such keys.
  bool others_have_none = false;
};

struct ListOptions {
  Revision at = 0;               // read as of this revision; 0: the newest
  std::string start_after = {};  // only keys after this key
  int64_t limit = INT64_MAX;     // maximum number of keys to return
};

// A change of one key, as reported by a watch.
struct WatchEvent {
  std::string key;
  std::shared_ptr<const std::string> value;  // shared by all watches; null: deleted
  Revision revision = 0;
};

// A watch lasts as long as its handle. Destroy the handle before its store. Once the destructor has
// returned, the callback does not run and will not run again. Exception: the callback itself may
// destroy the handle; only that run of the callback then continues.
class WatchHandle {
 public:
  virtual ~WatchHandle() = default;
};

// Sizes and limits of a store.
struct StoreStats {
  int64_t live_bytes = 0;     // memory of keys and current values, overhead included
  int64_t history_bytes = 0;  // memory of kept values that were overwritten or deleted, overhead
                              // included
  int64_t used_bytes = 0;     // bytes on disk without free pages; 0: in memory only
  int64_t file_bytes = 0;     // bytes on disk of the database's file
  int64_t quota_bytes = 0;    // limit of used_bytes; 0: no quota
  int64_t unreadable_records = 0;  // left out when the store was opened
};

// Keys are paths (`name/NAME`, `array/ID`) of 1 to kMaxKeyBytes bytes without NUL; values are
// opaque bytes. Each commit makes a revision. Older revisions stay readable and watchable until
// Compact.
//
// Reads see every commit whose callback has run. They never see a part of a commit. They read from
// memory and do not wait for the disk. Callbacks run one at a time on the store's own thread, in
// the order of revisions, while the thread holds no lock. Callbacks may call the store. They must
// be short, because the next commit waits for them.
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
  // OK means that the transaction is visible at the revision in the result. If the store is on
  // disk, the transaction is also durable. A transaction without changes gets the current revision.
  // Transactions take effect in the order of the calls. With any other status, the transaction
  // changed nothing:
  //
  // clang-format off
  //   ABORTED (VERSION_MISMATCH)  a compare failed; names key, revision and expected revision.
  //   INVALID_ARGUMENT            a limit above is exceeded, a key is malformed or written twice.
  //   RESOURCE_EXHAUSTED          (STORE_FULL) disk or quota is full; (OVERLOADED) queue is full.
  //   UNAVAILABLE                 (NOT_SERVING) the store is closing.
  // clang-format on
  //
  // OVERLOADED and NOT_SERVING carry a retry delay. After a write whose outcome is unknown, no
  // callback runs: see LocalStoreOptions::on_failure.
  virtual void Commit(Transaction transaction, CommitCallback callback) = 0;

  // Returns the value of a key at revision `at` (0: the newest). NOT_FOUND: the key did not exist
  // at that revision. OUT_OF_RANGE: the revision is compacted, or in the future.
  virtual absl::StatusOr<KeyValue> Get(std::string_view key, Revision at = 0) const = 0;

  // Returns the values of `key`, newest first. The first value is that at revision `at`. If the key
  // keeps its history (HistoryOptions), the kept earlier values since its creation follow. Errors
  // as for Get.
  virtual absl::StatusOr<std::vector<KeptValue>> History(std::string_view key,
                                                         Revision at = 0) const = 0;

  // Returns the keys that start with `prefix`; all keys if `prefix` is empty. OUT_OF_RANGE: as for
  // Get.
  virtual absl::StatusOr<KeyValues> List(std::string_view prefix,
                                         ListOptions options = {}) const = 0;

  // Calls back for each commit from `from_revision` on, including that revision, that changed a key
  // with one of these prefixes. Past commits come first, then new commits as they happen, without
  // gap or repetition. To follow everything, call List and then Watch from the list's revision + 1.
  // A future revision is allowed. OUT_OF_RANGE (COMPACTED): some changes from `from_revision` on
  // were discarded; call List again.
  virtual absl::StatusOr<std::unique_ptr<WatchHandle>> Watch(std::vector<std::string> prefixes,
                                                             Revision from_revision,
                                                             WatchCallback callback) = 0;

  // Discards values that were overwritten or deleted at or before `revision`, except those that
  // History keeps. From then on, reads at revisions before `revision` fail, and also watches from
  // `revision` or earlier. Compactions and commits take effect in the order of the calls.
  // OUT_OF_RANGE: the revision is in the future.
  virtual void Compact(Revision revision, absl::AnyInvocable<void(absl::Status) &&> callback) = 0;

  // Writes a copy of all durable data to a new file at `path`, a little at a time between commits.
  // The copy has the state of one revision, which `callback` gets once the copy is synced. A store
  // on disk can be opened from such a copy. FAILED_PRECONDITION: the store is in memory only.
  // ALREADY_EXISTS: the file exists. RESOURCE_EXHAUSTED: there is no room for the copy.
  virtual void Backup(std::string path, CommitCallback callback) = 0;

  // Returns the newest revision that reads can see.
  virtual Revision revision() const = 0;
  // Returns the newest revision whose callbacks, and those of all earlier revisions, have run.
  // State that callbacks maintain includes all commits up to this revision. The result is never
  // less than compacted_revision().
  virtual Revision settled_revision() const = 0;
  // Returns the oldest revision that can be read.
  virtual Revision compacted_revision() const = 0;
  virtual StoreStats stats() const = 0;

  // Returns the last commit that wrote `key`, if the record of that commit was unreadable when the
  // store was opened. The value of the key is then unknown. Returns 0 if reads of the key are
  // correct, even if they find no value.
  virtual Revision UnreadableRevision(std::string_view) const { return 0; }
  // Returns the keys of records that were unreadable at opening, in bytewise order, at most
  // kNamedUnreadable. If a key itself is damaged, returns its stored bytes.
  static constexpr size_t kNamedUnreadable = 8;
  virtual std::vector<std::string> UnreadableKeys() const { return {}; }
};

// Commits and waits for the result. For start-up and tests; never call it on a gRPC thread or the
// store's thread.
absl::StatusOr<Revision> CommitAndWait(Store& store, Transaction transaction);

// Returns INVALID_ARGUMENT if the transaction breaks a rule that holds for all stores: see Commit.
// Otherwise returns OK.
absl::Status CheckTransaction(const Transaction& transaction);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STORE_STORE_H_
