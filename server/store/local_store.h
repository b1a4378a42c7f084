// A store that keeps all data in this process's memory. A journal makes its commits durable.
#ifndef SHARDMESH_SERVER_STORE_LOCAL_STORE_H_
#define SHARDMESH_SERVER_STORE_LOCAL_STORE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
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
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/store/revision_index.h"
#include "server/store/store.h"

namespace shardmesh::server {

// The changes that a group of commits makes in the journal.
struct JournalWrite {
  absl::Span<const Event> events;           // the events of whole commits, by rising position
  absl::Span<const EventPosition> dropped;  // superseded events to remove, even of `events`
  Revision newest = 0;                      // the store's revision after this write
  bool urgent = false;                      // may use the space reserved for urgent writes
};

// A copy of a journal in progress. Destroying an unfinished copy removes its file.
class JournalBackup {
 public:
  virtual ~JournalBackup() = default;
  // Copies one more piece. Returns true once everything is copied and synced. After an error the
  // copy cannot continue.
  virtual absl::StatusOr<bool> Step() = 0;
};

// A LocalStore writes commits to its journal before it acknowledges them. One thread at a time
// calls the journal.
//
// If a call returns RESOURCE_EXHAUSTED, it has written nothing. After any other error the state on
// disk is unknown, and the store must not call the journal again.
class Journal {
 public:
  virtual ~Journal() = default;

  // Returns OK if data written now will be found by the next process that opens the journal. The
  // store calls Check before each write. After an error the store refuses the write, but still
  // serves reads and backups.
  virtual absl::Status Check() { return absl::OkStatus(); }

  // Makes all changes durable, or none of them.
  virtual absl::Status Append(const JournalWrite& write) = 0;

  // Removes the superseded events. `compacted` is the new oldest readable revision. `newest` is the
  // store's newest revision; all its events may have been removed. Drop may use the reserved part
  // of the quota. It may not use the reserved disk space, which only urgent writes may use.
  virtual absl::Status Drop(absl::Span<const EventPosition> superseded, Revision compacted,
                            Revision newest) = 0;

  // The store calls Maintain between writes, for work that must not delay a write.
  virtual absl::Status Maintain() = 0;
  // Returns the time until Maintain next has work, provided that nothing is written during that
  // time.
  virtual absl::Duration MaintainIn() const { return absl::InfiniteDuration(); }

  virtual absl::StatusOr<std::unique_ptr<JournalBackup>> BeginBackup(const std::string& path) = 0;

  // Adds the journal's figures to `stats`: bytes on disk, and the quota.
  virtual void AddStats(StoreStats* stats) = 0;

  // Like Store::UnreadableRevision, for records that were unreadable when the journal was opened.
  // Any thread may call it.
  virtual Revision UnreadableRevision(std::string_view) const { return 0; }
  // Like Store::UnreadableKeys. Any thread may call it.
  virtual std::vector<std::string> UnreadableKeys() const { return {}; }
};

// Bounds on the history. Overwritten or deleted data stays readable and watchable within both
// bounds. When opened, and whenever a bound is exceeded, the store compacts older revisions. It
// also compacts them if a commit would otherwise have no room.
struct RetentionOptions {
  size_t bytes = size_t{64} << 20;
  absl::Duration time = absl::Hours(1);
};
// Keeps all history, until Compact or a full disk removes it.
inline constexpr RetentionOptions kRetainAll = {.bytes = SIZE_MAX,
                                                .time = absl::InfiniteDuration()};

struct LocalStoreOptions {
  RetentionOptions retention = {};
  // Selects the keys that keep old values beyond the retention, and says whether all other keys
  // keep no old values.
  HistoryOptions history = {};
  // Called on the writer thread with the error of a write whose outcome is unknown. The data may or
  // may not be on disk, so no caller may get an answer: no commit callback runs afterwards. The
  // function should end the process. If no function is set, or it returns, the store logs the error
  // and exits with code 1.
  std::function<void(const absl::Status&)> on_failure = {};
  // Called on the writer thread with the duration of a commit, from Commit to its callback. May be
  // empty.
  std::function<void(absl::Duration)> on_committed = {};
};

// A store that reads only from memory. One thread writes: it takes the queued commits in groups,
// journals each group, makes it visible and calls back. Many writers thus share the cost of one
// sync. The state of the whole control plane is a few dozen MiB, so it fits into memory.
class LocalStore final : public Store {
 public:
  // `index` must hold the journal's content. Starts the writer thread.
  LocalStore(RevisionIndex index, std::unique_ptr<Journal> journal, LocalStoreOptions options = {});
  ~LocalStore() override;
  LocalStore(const LocalStore&) = delete;
  LocalStore& operator=(const LocalStore&) = delete;

  void Commit(Transaction transaction, CommitCallback callback) override;
  absl::StatusOr<KeyValue> Get(std::string_view key, Revision at) const override;
  absl::StatusOr<std::vector<KeptValue>> History(std::string_view key, Revision at) const override;
  absl::StatusOr<KeyValues> List(std::string_view prefix, ListOptions options) const override;
  absl::StatusOr<std::unique_ptr<WatchHandle>> Watch(std::vector<std::string> prefixes,
                                                     Revision from_revision,
                                                     WatchCallback callback) override;
  void Compact(Revision revision, absl::AnyInvocable<void(absl::Status) &&> callback) override;
  void Backup(std::string path, CommitCallback callback) override;
  Revision revision() const override;
  Revision settled_revision() const override;
  Revision compacted_revision() const override;
  StoreStats stats() const override;
  Revision UnreadableRevision(std::string_view key) const override;
  std::vector<std::string> UnreadableKeys() const override { return journal_->UnreadableKeys(); }

 private:
  class Handle;
  struct Watcher {
    std::vector<std::string> prefixes;
    Revision next = 0;  // the first revision not yet delivered
    WatchCallback callback;
    bool cancelled = false;
    bool running = false;
  };
  struct QueuedCommit {
    std::vector<Compare> compares;
    std::vector<Event> writes;  // without positions yet
    bool urgent = false;
    CommitCallback callback;
    size_t size_bytes = 0;
    absl::Status refusal;  // why the queue refused the commit, if it did
    std::chrono::steady_clock::time_point began;
  };
  struct QueuedCompaction {
    Revision revision = 0;
    absl::AnyInvocable<void(absl::Status) &&> callback;
  };
  struct QueuedBackup {
    std::string path;
    CommitCallback callback;
    std::unique_ptr<JournalBackup> backup;  // null: not begun
  };
  struct WakeUp {};  // wakes up the writer after a watch was added
  using Work = std::variant<QueuedCommit, QueuedCompaction, QueuedBackup, WakeUp>;
  // The time at which the store was at a revision.
  struct Mark {
    Revision revision = 0;
    std::chrono::steady_clock::time_point time;
  };
  // A group of commits, ready for the journal.
  struct Prepared {
    std::vector<absl::StatusOr<Revision>> results;  // one for each commit of the group
    std::vector<Event> events;
    std::vector<EventPosition> dropped;
    Revision newest = 0;
    bool urgent = true;
  };

  void Run();
  // Returns the time at which the writer has work to do, even if the queue stays empty.
  absl::Time NextDue() const;
  std::vector<QueuedCommit> TakeGroup() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CommitGroup(absl::Span<QueuedCommit> group);
  Prepared Prepare(absl::Span<const QueuedCommit> group) const;
  // Returns OK once the events are journaled and in the index. Returns an error if nothing changed.
  // Ends the process if the outcome is unknown.
  absl::Status Write(Prepared* prepared);
  void ContinueBackup(QueuedBackup backup);
  absl::Status CompactNow(Revision revision);
  void CompactIfDue();
  void DeliverToWatchers();
  void RefreshStats();
  [[noreturn]] void Fail(const absl::Status& status);

  const std::unique_ptr<Journal> journal_;
  const LocalStoreOptions options_;

  mutable absl::Mutex mutex_;
  // Only the writer thread changes the index, under the mutex. It may read the index without the
  // mutex.
  RevisionIndex index_;
  Revision settled_ ABSL_GUARDED_BY(mutex_) = 0;
  StoreStats journal_stats_ ABSL_GUARDED_BY(mutex_);
  std::deque<Work> queue_ ABSL_GUARDED_BY(mutex_);
  size_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::list<std::shared_ptr<Watcher>> watchers_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;

  // The members from here to `stats_time_` are used only by the writer thread.
  std::deque<Mark> marks_;  // by rising revision
  size_t kept_bytes_ = 0;   // history bytes that the last compaction had to keep
  // True after the first compaction since the store was opened. This compaction also removes former
  // values of keys that have no history. An older release may have left such values.
  bool is_cleared_ = false;
  std::chrono::steady_clock::time_point compact_after_;  // earliest retry of a failed compaction
  bool stats_are_old_ = true;
  std::chrono::steady_clock::time_point stats_time_;

  std::thread writer_;  // last: starts once all members above exist
};

// Creates a store that loses everything when the process ends, for a coordinator without
// --data-dir.
std::unique_ptr<Store> CreateMemoryStore(LocalStoreOptions options = {});

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STORE_LOCAL_STORE_H_
