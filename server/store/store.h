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

// What one transaction may hold; etcd's defaults, so that every store can keep the promise.
inline constexpr size_t kMaxTransactionOperations = 128;     // compares, puts and deletes together
inline constexpr size_t kMaxTransactionBytes = 1536 * 1024;  // keys and values together
inline constexpr size_t kMaxKeyBytes = 2048;

// One key as it stands at some revision.
struct KeyValue {
  std::string key;
  std::string value;
  Revision mod_revision = 0;  // the commit that wrote this value
};

// The condition that `key` was last written by the commit `mod_revision`; 0: that it is not there.
struct Compare {
  std::string key;
  Revision mod_revision = 0;
};

struct Put {
  std::string key;
  std::string value;
};

// Either all of it happens, at one revision, or nothing. A key is written at most once; deleting a
// key that is not there is no error, and by itself makes no revision.
struct Transaction {
  std::vector<Compare> compares = {};
  std::vector<Put> puts = {};
  std::vector<std::string> deletes = {};
  // May use the space that a full store keeps back: set it where the transaction makes room, or
  // where nothing else can go on without it. One without puts always may.
  bool urgent = false;
};

// What List found: the keys in bytewise order, all as of `revision`.
struct KeyValues {
  std::vector<KeyValue> items;
  Revision revision = 0;
  bool more = false;  // the limit was reached; go on with start_after = the last key
};

// What History found: a value that a key has or had.
struct KeptValue {
  std::shared_ptr<const std::string> value;
  Revision mod_revision = 0;  // the commit that wrote it
};

// Which keys keep what was overwritten, also behind Compact, until they are deleted.
struct HistoryOptions {
  std::vector<std::string> prefixes = {};  // the keys that start with one of them
  int64_t values = 32;     // so many of a key's newest values, the current among them
  size_t bytes = 4 << 20;  // and no more than so many bytes of values beside the current one
  // The other keys have no history at all: what is overwritten or deleted is gone with the commit.
  // Reads at an older revision and watches find of such keys what is current, or nothing.
  bool others_have_none = false;
};

struct ListOptions {
  Revision at = 0;               // 0: the newest
  std::string start_after = {};  // only keys behind this one
  int64_t limit = INT64_MAX;     // at most so many items
};

// One change that a watch saw.
struct WatchEvent {
  std::string key;
  std::shared_ptr<const std::string> value;  // shared by all watches; null: deleted
  Revision revision = 0;
};

// A watch lives as long as this handle, which goes before its store. Once the destructor has
// returned the callback is not running and will not run again, unless the handle is destroyed from
// within the callback.
class WatchHandle {
 public:
  virtual ~WatchHandle() = default;
};

// What a store holds and where its limits are.
struct StoreStats {
  int64_t live_bytes = 0;     // keys and current values in memory, with what each costs beside them
  int64_t history_bytes = 0;  // the same of what was overwritten or deleted and is still kept
  int64_t used_bytes = 0;     // on disk, without free pages; 0: in memory only
  int64_t file_bytes = 0;     // on disk, of the database
  int64_t quota_bytes = 0;    // what used_bytes may grow to; 0: no quota
  int64_t unreadable_records = 0;  // found when the store was opened, and left out
};

// Keys are paths (`name/NAME`, `array/ID`) of 1 to kMaxKeyBytes bytes without NUL, values opaque
// bytes. Each commit makes a revision; older ones stay readable and watchable until Compact.
//
// Reads see every commit whose callback has run, and never part of one. They come from memory and
// do not wait for the disk. Callbacks run one at a time on a thread of the store's own, in the
// order of revisions, without any lock: they may call the store, and must be short, for the next
// commit waits for them.
//
// Thread-safe. The destructor finishes the commits that were accepted, callbacks included.
class Store {
 public:
  using CommitCallback = absl::AnyInvocable<void(absl::StatusOr<Revision>) &&>;
  // The events of one commit, in the order of the transaction.
  using WatchCallback = std::function<void(const std::vector<WatchEvent>&)>;

  virtual ~Store() = default;

  // Queues the transaction and returns at once; `callback` runs exactly once, later. OK means that
  // it is durable (as far as this store is) and visible, at the revision given; a transaction that
  // changes nothing gets the current one. Transactions take effect in the order of the calls.
  // Otherwise nothing of it happened:
  //   ABORTED (VERSION_MISMATCH)  a compare failed; names the key, its revision and the one asked.
  //   INVALID_ARGUMENT            over a limit above, a malformed key, or one written twice.
  //   RESOURCE_EXHAUSTED          (STORE_FULL) disk or quota are full; (LIMIT_EXCEEDED) queue full.
  //   UNAVAILABLE                 (NOT_SERVING) closing. With a retry delay, as LIMIT_EXCEEDED.
  // After a write whose outcome is not known no callback runs any more: see
  // LocalStoreOptions::on_failure.
  virtual void Commit(Transaction transaction, CommitCallback callback) = 0;

  // NOT_FOUND: not there at that revision (0: the newest). OUT_OF_RANGE: the revision is compacted,
  // or still to come.
  virtual absl::StatusOr<KeyValue> Get(std::string_view key, Revision at = 0) const = 0;

  // What `key` was and is, the newest first: its value at that revision and, if it keeps its
  // history (HistoryOptions), those before since it was made, as many as are kept. Errors as for
  // Get.
  virtual absl::StatusOr<std::vector<KeptValue>> History(std::string_view key,
                                                         Revision at = 0) const = 0;

  // The keys that start with `prefix` (all for an empty one). OUT_OF_RANGE as for Get.
  virtual absl::StatusOr<KeyValues> List(std::string_view prefix,
                                         ListOptions options = {}) const = 0;

  // Calls back for each commit from `from_revision` on (that one included) that changed a key with
  // one of these prefixes, without gap or repetition: first those that are past, then as they
  // happen.
  // List, then Watch from its revision + 1, follows everything; a revision to come is none too
  // early. OUT_OF_RANGE (COMPACTED): the
  // changes from there on are not all there any more; list anew.
  virtual absl::StatusOr<std::unique_ptr<WatchHandle>> Watch(std::vector<std::string> prefixes,
                                                             Revision from_revision,
                                                             WatchCallback callback) = 0;

  // Forgets what was overwritten or deleted at or before `revision`, but for what History keeps;
  // reads at and watches from earlier revisions then fail. Ordered like Commit. OUT_OF_RANGE: still
  // to come.
  virtual void Compact(Revision revision, absl::AnyInvocable<void(absl::Status) &&> callback) = 0;

  // Writes a copy of all that is durable to a new file at `path`, a little at a time between the
  // commits; it is of one revision, of which `callback` is told when the copy is synced. Each store
  // on disk can be opened from such a copy. FAILED_PRECONDITION: the store is in memory only.
  // ALREADY_EXISTS: there is such a file. RESOURCE_EXHAUSTED: no room for it.
  virtual void Backup(std::string path, CommitCallback callback) = 0;

  // The newest revision that reads see.
  virtual Revision revision() const = 0;
  // The newest revision of which, and of all before it, the callbacks have run. What is derived
  // from them is at least as new. Never less than compacted_revision().
  virtual Revision settled_revision() const = 0;
  // The oldest revision that reads may ask for.
  virtual Revision compacted_revision() const = 0;
  virtual StoreStats stats() const = 0;

  // The commit that wrote `key` last, if what it wrote could not be read when the store was opened:
  // then nobody knows what the key stands for. 0: what reads find of it, or do not find, holds.
  virtual Revision UnreadableRevision(std::string_view) const { return 0; }
  // The keys of what could not be read when the store was opened, in their order; of a record whose
  // key is damaged, what stands there. At most kNamedUnreadable.
  static constexpr size_t kNamedUnreadable = 8;
  virtual std::vector<std::string> UnreadableKeys() const { return {}; }
};

// Commit, and wait for its end. For start-up and tests: never on a gRPC or store thread.
absl::StatusOr<Revision> CommitAndWait(Store& store, Transaction transaction);

// The errors that every store shares: INVALID_ARGUMENT as Commit says, else OK.
absl::Status CheckTransaction(const Transaction& transaction);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STORE_STORE_H_
