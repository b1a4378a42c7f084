// A store in this process's memory, with a journal behind it that makes its commits durable.
#ifndef SHARDMESH_SERVER_LOCAL_STORE_H_
#define SHARDMESH_SERVER_LOCAL_STORE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "server/revision_index.h"
#include "server/store.h"

namespace shardmesh::server {

// Where a LocalStore writes what it is about to acknowledge. Called by one thread at a time.
class Journal {
 public:
  virtual ~Journal() = default;

  // Makes all events durable, or none; they are of whole commits, in the order of revisions. After
  // UNAVAILABLE, DATA_LOSS or INTERNAL the state on disk is not known and the store takes no more
  // writes.
  virtual absl::Status Append(absl::Span<const WatchEvent> events) = 0;

  // Drops the superseded events; `compacted` is the new oldest readable revision and `newest` the
  // store's revision, which may have no event left.
  virtual absl::Status Drop(absl::Span<const EventPosition> superseded, Revision compacted,
                            Revision newest) = 0;
};

struct LocalStoreOptions {
  // So many revisions stay readable at least: when there are twice as many, the older half is
  // compacted. 0: only Compact does it.
  int64_t retained_revisions = 20'000;
  // Which keys keep older values than that.
  HistoryOptions history = {};
};

// All reads come from memory. Writes go through one thread, which takes whatever has queued up
// meanwhile, journals it as one group, makes it visible and calls back: so that many writers share
// the cost of one sync. State for the whole control plane is a few dozen MiB, hence in memory
// whole.
class LocalStore final : public Store {
 public:
  // `index` is what the journal held when it was opened. Starts the writer thread.
  LocalStore(RevisionIndex index, std::unique_ptr<Journal> journal, LocalStoreOptions options = {});
  ~LocalStore() override;
  LocalStore(const LocalStore&) = delete;
  LocalStore& operator=(const LocalStore&) = delete;

  void Commit(Transaction transaction, CommitCallback callback) override;
  absl::StatusOr<KeyValue> Get(std::string_view key, Revision at) const override;
  absl::StatusOr<std::vector<KeptValue>> History(std::string_view key, Revision at) const override;
  absl::StatusOr<KeyValues> List(std::string_view prefix, ListOptions options) const override;
  absl::StatusOr<std::unique_ptr<WatchHandle>> Watch(std::string prefix, Revision from_revision,
                                                     WatchCallback callback) override;
  void Compact(Revision revision, absl::AnyInvocable<void(absl::Status) &&> callback) override;
  Revision revision() const override;
  Revision compacted_revision() const override;

 private:
  class Handle;
  struct Watcher {
    std::string prefix;
    Revision next = 0;  // the first revision not yet delivered
    WatchCallback callback;
    bool cancelled = false;
    bool running = false;
  };
  struct QueuedCommit {
    Transaction transaction;
    CommitCallback callback;
    size_t size_bytes = 0;
    absl::Status refusal;  // what it is answered with, if it was refused at the door
  };
  struct QueuedCompaction {
    Revision revision = 0;
    absl::AnyInvocable<void(absl::Status) &&> callback;
  };
  struct WakeUp {};  // a watch was added
  using Work = std::variant<QueuedCommit, QueuedCompaction, WakeUp>;

  void Run();
  std::vector<QueuedCommit> TakeGroup() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CommitGroup(std::vector<QueuedCommit> group);
  absl::Status CompactNow(Revision revision);
  void DeliverToWatchers();

  const std::unique_ptr<Journal> journal_;
  const LocalStoreOptions options_;

  mutable absl::Mutex mutex_;
  // Written by the writer thread alone, under the mutex; which may hence read it without.
  RevisionIndex index_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // once set, writes are refused with it
  std::deque<Work> queue_ ABSL_GUARDED_BY(mutex_);
  size_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::list<std::shared_ptr<Watcher>> watchers_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread writer_;  // last: starts when everything above is there
};

// A store that forgets everything when the process ends: for a coordinator without --data-dir.
std::unique_ptr<Store> CreateMemoryStore(LocalStoreOptions options = {});

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_LOCAL_STORE_H_
