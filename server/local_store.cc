// The writer thread: groups, journals, publishes, calls back.
#include "server/local_store.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "sharding/reason.h"
#include "sharding/str_cat.h"

namespace shardmesh::server {
namespace {

// A group is synced at once: large enough to share the cost among all writers that wait, small
// enough that the first of them does not wait long for the bytes of the last.
constexpr size_t kMaxGroupCommits = 256;
constexpr size_t kMaxGroupBytes = 4 << 20;

// What may wait for the disk. More means that the disk cannot follow, and that waiting longer would
// only move the failure to the callers' deadlines.
constexpr size_t kMaxQueuedCommits = 65'536;
constexpr size_t kMaxQueuedBytes = 64 << 20;

size_t SizeOf(const Transaction& transaction) {
  size_t bytes = 0;
  for (const Put& put : transaction.puts) bytes += put.key.size() + put.value.size();
  for (const std::string& key : transaction.deletes) bytes += key.size();
  return bytes;
}

class NoJournal final : public Journal {
 public:
  absl::Status Append(absl::Span<const WatchEvent>) override { return absl::OkStatus(); }
  absl::Status Drop(absl::Span<const EventPosition>, Revision, Revision) override {
    return absl::OkStatus();
  }
};

bool IsFatal(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDataLoss(status) || absl::IsInternal(status);
}

}  // namespace

class LocalStore::Handle final : public WatchHandle {
 public:
  Handle(LocalStore* store, std::shared_ptr<Watcher> watcher)
      : store_(store), watcher_(std::move(watcher)) {}

  ~Handle() override {
    absl::MutexLock lock(&store_->mutex_);
    watcher_->cancelled = true;
    store_->watchers_.remove(watcher_);
    if (std::this_thread::get_id() == store_->writer_.get_id()) return;
    auto idle = [this] {
      store_->mutex_.AssertReaderHeld();
      return !watcher_->running;
    };
    store_->mutex_.Await(absl::Condition(&idle));
  }

 private:
  LocalStore* const store_;
  const std::shared_ptr<Watcher> watcher_;
};

LocalStore::LocalStore(RevisionIndex index, std::unique_ptr<Journal> journal,
                       LocalStoreOptions options)
    : journal_(std::move(journal)),
      options_(std::move(options)),
      index_(std::move(index)),
      writer_([this] { Run(); }) {}

LocalStore::~LocalStore() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
  }
  writer_.join();
}

void LocalStore::Commit(Transaction transaction, CommitCallback callback) {
  QueuedCommit commit;
  commit.refusal = CheckTransaction(transaction);
  commit.size_bytes = SizeOf(transaction);
  commit.transaction = std::move(transaction);
  commit.callback = std::move(callback);
  absl::MutexLock lock(&mutex_);
  if (commit.refusal.ok()) {
    if (closing_) {
      commit.refusal = absl::UnavailableError("the store is closing");
    } else if (!failure_.ok()) {
      commit.refusal = failure_;
    } else if (queue_.size() >= kMaxQueuedCommits ||
               queued_bytes_ + commit.size_bytes > kMaxQueuedBytes) {
      commit.refusal = WithReason(absl::ResourceExhaustedError(StrCat(
                                      "the store is behind: ", queue_.size(), " commits of ",
                                      queued_bytes_, " bytes wait for the disk; retry later")),
                                  Reason::kStoreFailed);
    }
  }
  if (!commit.refusal.ok()) {
    commit.transaction = {};
    commit.size_bytes = 0;
  }
  queued_bytes_ += commit.size_bytes;
  queue_.push_back(std::move(commit));
}

absl::StatusOr<KeyValue> LocalStore::Get(std::string_view key, Revision at) const {
  absl::ReaderMutexLock lock(&mutex_);
  return index_.Get(key, at);
}

absl::StatusOr<std::vector<KeptValue>> LocalStore::History(std::string_view key,
                                                           Revision at) const {
  absl::ReaderMutexLock lock(&mutex_);
  return index_.History(key, at, options_.history);
}

absl::StatusOr<KeyValues> LocalStore::List(std::string_view prefix, ListOptions options) const {
  absl::ReaderMutexLock lock(&mutex_);
  return index_.List(prefix, options);
}

absl::StatusOr<std::unique_ptr<WatchHandle>> LocalStore::Watch(std::string prefix,
                                                               Revision from_revision,
                                                               WatchCallback callback) {
  auto watcher = std::make_shared<Watcher>();
  watcher->prefix = std::move(prefix);
  watcher->next = from_revision;
  watcher->callback = std::move(callback);
  absl::MutexLock lock(&mutex_);
  if (from_revision <= index_.compacted()) {
    return WithReason(
        absl::OutOfRangeError(StrCat("the changes from revision ", from_revision,
                                     " on are compacted up to ", index_.compacted(),
                                     "; list, and watch from the revision of the list plus 1")),
        Reason::kCompacted);
  }
  watchers_.push_back(watcher);
  queue_.push_back(WakeUp());
  return std::make_unique<Handle>(this, std::move(watcher));
}

void LocalStore::Compact(Revision revision, absl::AnyInvocable<void(absl::Status) &&> callback) {
  absl::MutexLock lock(&mutex_);
  queue_.push_back(QueuedCompaction{revision, std::move(callback)});
}

Revision LocalStore::revision() const {
  absl::ReaderMutexLock lock(&mutex_);
  return index_.newest();
}

Revision LocalStore::compacted_revision() const {
  absl::ReaderMutexLock lock(&mutex_);
  return index_.compacted();
}

void LocalStore::Run() {
  auto has_work = [this] {
    mutex_.AssertReaderHeld();
    return closing_ || !queue_.empty();
  };
  while (true) {
    std::vector<QueuedCommit> group;
    std::optional<QueuedCompaction> compaction;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&has_work));
      if (queue_.empty()) return;
      if (auto* first = std::get_if<QueuedCompaction>(&queue_.front())) {
        compaction.emplace(std::move(*first));
        queue_.pop_front();
      } else {
        group = TakeGroup();
      }
    }
    if (compaction.has_value()) {
      std::move(compaction->callback)(CompactNow(compaction->revision));
      continue;
    }
    if (!group.empty()) CommitGroup(std::move(group));
    DeliverToWatchers();
    const Revision retained = index_.newest() - index_.compacted();
    if (options_.retained_revisions > 0 && retained > 2 * options_.retained_revisions) {
      // Should it fail, the history stays longer; the next commit tries again or reports why.
      CompactNow(index_.newest() - options_.retained_revisions).IgnoreError();
    }
  }
}

std::vector<LocalStore::QueuedCommit> LocalStore::TakeGroup() {
  std::vector<QueuedCommit> group;
  size_t bytes = 0;
  while (!queue_.empty() && group.size() < kMaxGroupCommits) {
    if (std::holds_alternative<WakeUp>(queue_.front())) {
      queue_.pop_front();
      continue;
    }
    auto* commit = std::get_if<QueuedCommit>(&queue_.front());
    if (commit == nullptr) break;
    bytes += commit->size_bytes;
    if (!group.empty() && bytes > kMaxGroupBytes) break;
    queued_bytes_ -= commit->size_bytes;
    group.push_back(std::move(*commit));
    queue_.pop_front();
  }
  return group;
}

void LocalStore::CommitGroup(std::vector<QueuedCommit> group) {
  // What the commits of this group will have changed, for the compares of those behind them.
  absl::flat_hash_map<std::string, Revision> changed;
  const auto mod_revision = [&](const std::string& key) {
    const auto found = changed.find(key);
    return found != changed.end() ? found->second : index_.ModRevision(key);
  };
  std::vector<absl::StatusOr<Revision>> results;
  std::vector<WatchEvent> events;
  Revision newest = index_.newest();
  absl::Status failure;
  {
    absl::ReaderMutexLock lock(&mutex_);
    failure = failure_;
  }
  for (QueuedCommit& commit : group) {
    absl::Status status = commit.refusal.ok() ? failure : commit.refusal;
    for (const Compare& compare : commit.transaction.compares) {
      const Revision have = mod_revision(compare.key);
      if (!status.ok() || have == compare.mod_revision) continue;
      status = WithReason(
          absl::AbortedError(StrCat("\"", compare.key, "\" is at revision ", have, ", expected ",
                                    compare.mod_revision, "; read it again and retry")),
          Reason::kVersionMismatch);
    }
    if (!status.ok()) {
      results.push_back(std::move(status));
      continue;
    }
    const size_t events_before = events.size();
    for (Put& put : commit.transaction.puts) {
      changed[put.key] = newest + 1;
      events.push_back({std::move(put.key), std::move(put.value), newest + 1});
    }
    for (std::string& key : commit.transaction.deletes) {
      if (mod_revision(key) == 0) continue;
      changed[key] = 0;
      events.push_back({std::move(key), std::nullopt, newest + 1});
    }
    if (events.size() > events_before) ++newest;
    results.push_back(newest);
  }

  if (!events.empty()) {
    const absl::Status written = journal_->Append(events);
    absl::MutexLock lock(&mutex_);
    if (written.ok()) {
      EventPosition position;
      for (WatchEvent& event : events) {
        position.place = event.revision == position.revision ? position.place + 1 : 0;
        position.revision = event.revision;
        index_.Add(position, std::move(event.key), std::move(event.value));
      }
    } else {
      for (absl::StatusOr<Revision>& result : results) {
        if (result.ok()) result = written;
      }
      if (IsFatal(written)) {
        failure_ = WithReason(
            absl::UnavailableError(StrCat("the store takes no more writes since one failed (",
                                          ToStd(written.message()), "); restart the coordinator")),
            Reason::kStoreFailed);
      }
    }
  }
  for (size_t i = 0; i < group.size(); ++i) std::move(group[i].callback)(std::move(results[i]));
}

absl::Status LocalStore::CompactNow(Revision revision) {
  if (revision > index_.newest()) {
    return absl::OutOfRangeError(
        StrCat("revision ", revision, " is still to come; the newest is ", index_.newest()));
  }
  if (revision <= index_.compacted()) return absl::OkStatus();
  {
    absl::ReaderMutexLock lock(&mutex_);
    if (!failure_.ok()) return failure_;
  }
  const std::vector<EventPosition> superseded = index_.SupersededAt(revision, options_.history);
  const absl::Status dropped = journal_->Drop(superseded, revision, index_.newest());
  if (!dropped.ok()) return dropped;
  // A watch that was promised these changes gets them first.
  while (true) {
    DeliverToWatchers();
    absl::MutexLock lock(&mutex_);
    if (std::any_of(watchers_.begin(), watchers_.end(),
                    [&](const auto& watcher) { return watcher->next <= revision; })) {
      continue;
    }
    index_.Compact(superseded, revision);
    return absl::OkStatus();
  }
}

void LocalStore::DeliverToWatchers() {
  std::vector<std::shared_ptr<Watcher>> watchers;
  {
    absl::ReaderMutexLock lock(&mutex_);
    watchers.assign(watchers_.begin(), watchers_.end());
  }
  for (const std::shared_ptr<Watcher>& watcher : watchers) {
    if (watcher->next > index_.newest()) continue;
    {
      absl::MutexLock lock(&mutex_);
      if (watcher->cancelled) continue;
      watcher->running = true;
    }
    std::vector<WatchEvent> events = index_.EventsFrom(watcher->prefix, watcher->next);
    bool cancelled = false;
    for (size_t begin = 0; begin < events.size() && !cancelled;) {
      size_t end = begin + 1;
      while (end < events.size() && events[end].revision == events[begin].revision) ++end;
      watcher->callback({std::make_move_iterator(events.begin() + begin),
                         std::make_move_iterator(events.begin() + end)});
      begin = end;
      absl::ReaderMutexLock lock(&mutex_);
      cancelled = watcher->cancelled;
    }
    absl::MutexLock lock(&mutex_);
    watcher->next = index_.newest() + 1;
    watcher->running = false;
  }
}

std::unique_ptr<Store> CreateMemoryStore(LocalStoreOptions options) {
  return std::make_unique<LocalStore>(RevisionIndex(), std::make_unique<NoJournal>(),
                                      std::move(options));
}

}  // namespace shardmesh::server
