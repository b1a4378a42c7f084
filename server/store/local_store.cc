// The writer thread: groups commits, writes them to the journal, publishes them and calls back.
#include "server/store/local_store.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/time/clock.h"
#include "process/failpoint.h"
#include "process/log.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// Limits of a group of commits that share one sync. The group is large enough to spread the cost of
// the sync over many waiting writers. It is small enough that its first commit does not wait long
// for the bytes of its last commit.
constexpr size_t kMaxGroupCommits = 256;
constexpr size_t kMaxGroupBytes = 4 << 20;

// Limits of the queue of commits that wait for the disk. When a limit is reached, the disk cannot
// keep up. In a longer queue, commits would miss their deadlines instead of being refused at once.
constexpr size_t kMaxQueuedCommits = 65'536;
constexpr size_t kMaxQueuedBytes = 64 << 20;
// Retry delay for callers whose commits the store refuses because its queue is full or it is
// closing. In this time the disk writes most of the queue.
constexpr absl::Duration kRetryDelay = absl::Seconds(1);

// The store notes its revision this many times in each retention time. Data outlives the retention
// time by at most 1/kMarks of that time.
constexpr int kMarks = 16;

// The maximum number of events that a compaction removes at a time. It releases the lock after
// them, so that readers can take the lock.
constexpr size_t kForgottenAtOnce = 4096;

// Delay before a failed compaction is tried again. Each attempt scans all data.
constexpr absl::Duration kCompactAgainAfter = absl::Seconds(10);

// Maximum age of the journal's figures in stats().
constexpr absl::Duration kStatsEvery = absl::Seconds(1);

StoreStats StatsOf(Journal& journal) {
  StoreStats stats;
  journal.AddStats(&stats);
  return stats;
}

size_t SizeOf(const Transaction& transaction) {
  size_t bytes = 0;
  for (const Put& put : transaction.puts) bytes += put.key.size() + put.value.size();
  for (const std::string& key : transaction.deletes) bytes += key.size();
  return bytes;
}

class NoJournal final : public Journal {
 public:
  absl::Status Append(const JournalWrite&) override { return absl::OkStatus(); }
  absl::Status Drop(absl::Span<const EventPosition>, Revision, Revision) override {
    return absl::OkStatus();
  }
  absl::Status Maintain() override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<JournalBackup>> BeginBackup(const std::string&) override {
    return WithReason(
        absl::FailedPreconditionError(
            "the state is kept in memory only, so there is nothing to copy; start the "
            "coordinator with --data-dir"),
        Reason::kStoreFailed);
  }
  void AddStats(StoreStats*) override {}
};

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
      settled_(index_.newest()),
      journal_stats_(StatsOf(*journal_)),
      writer_([this] { Run(); }) {}

LocalStore::~LocalStore() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
  }
  writer_.join();
}

void LocalStore::Commit(Transaction transaction, CommitCallback callback) {
  SHARDMESH_PASSES("store.queue");
  QueuedCommit commit;
  commit.refusal = CheckTransaction(transaction);
  commit.size_bytes = SizeOf(transaction);
  commit.began = std::chrono::steady_clock::now();
  commit.urgent = transaction.urgent || transaction.puts.empty();
  commit.compares = std::move(transaction.compares);
  for (Put& put : transaction.puts) {
    commit.writes.push_back(
        {{}, std::move(put.key), std::make_shared<const std::string>(std::move(put.value))});
  }
  for (std::string& key : transaction.deletes) {
    commit.writes.push_back({{}, std::move(key), nullptr});
  }
  commit.callback = std::move(callback);
  absl::MutexLock lock(&mutex_);
  if (commit.refusal.ok()) {
    if (closing_) {
      commit.refusal = WithRetryDelay(
          WithReason(absl::UnavailableError("the store is closing; retry"), Reason::kNotServing),
          kRetryDelay);
    } else if (queue_.size() >= kMaxQueuedCommits ||
               queued_bytes_ + commit.size_bytes > kMaxQueuedBytes) {
      commit.refusal = WithRetryDelay(
          WithReason(absl::ResourceExhaustedError(StrCat(
                         "the store is behind: ", queue_.size(), " commits of ", queued_bytes_,
                         " bytes wait for the disk; at most ", kMaxQueuedCommits, " of ",
                         kMaxQueuedBytes, " bytes may; retry later")),
                     Reason::kOverloaded,
                     {{fact::kHave, queue_.size()}, {fact::kLimit, kMaxQueuedCommits}}),
          kRetryDelay);
    }
  }
  if (!commit.refusal.ok()) {
    commit.compares.clear();
    commit.writes.clear();
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

absl::StatusOr<std::unique_ptr<WatchHandle>> LocalStore::Watch(std::vector<std::string> prefixes,
                                                               Revision from_revision,
                                                               WatchCallback callback) {
  auto watcher = std::make_shared<Watcher>();
  watcher->prefixes = std::move(prefixes);
  watcher->next = from_revision;
  watcher->callback = std::move(callback);
  absl::MutexLock lock(&mutex_);
  if (from_revision <= index_.compacted()) {
    return WithReason(
        absl::OutOfRangeError(StrCat("the changes from revision ", from_revision,
                                     " on are compacted up to ", index_.compacted(),
                                     "; list, and watch from the revision of the list plus 1")),
        Reason::kCompacted, {{fact::kHave, from_revision}, {fact::kNeed, index_.compacted() + 1}});
  }
  watchers_.push_back(watcher);
  queue_.push_back(WakeUp());
  return std::make_unique<Handle>(this, std::move(watcher));
}

void LocalStore::Compact(Revision revision, absl::AnyInvocable<void(absl::Status) &&> callback) {
  absl::MutexLock lock(&mutex_);
  queue_.push_back(QueuedCompaction{revision, std::move(callback)});
}

void LocalStore::Backup(std::string path, CommitCallback callback) {
  absl::MutexLock lock(&mutex_);
  queue_.push_back(QueuedBackup{std::move(path), std::move(callback), nullptr});
}

Revision LocalStore::revision() const {
  absl::ReaderMutexLock lock(&mutex_);
  return index_.newest();
}

Revision LocalStore::settled_revision() const {
  absl::ReaderMutexLock lock(&mutex_);
  return settled_;
}

Revision LocalStore::compacted_revision() const {
  absl::ReaderMutexLock lock(&mutex_);
  return index_.compacted();
}

StoreStats LocalStore::stats() const {
  absl::ReaderMutexLock lock(&mutex_);
  StoreStats stats = journal_stats_;
  stats.live_bytes = static_cast<int64_t>(index_.live_bytes());
  stats.history_bytes = static_cast<int64_t>(index_.history_bytes());
  return stats;
}

Revision LocalStore::UnreadableRevision(std::string_view key) const {
  const Revision revision = journal_->UnreadableRevision(key);
  if (revision == 0) return 0;
  absl::ReaderMutexLock lock(&mutex_);
  return index_.ModRevision(key) > revision ? 0 : revision;
}

void LocalStore::Fail(const absl::Status& status) {
  if (options_.on_failure) options_.on_failure(status);
  LogError(
      "a write to the store failed, and it is not known whether it is on disk; the process ends "
      "without an answer to the caller; after a restart the content of the store counts",
      {{"error", status}});
  // Use _exit, not exit: other threads still run, and no output that depends on the failed write
  // may be flushed.
  _exit(1);
}

void LocalStore::Run() {
  CompactIfDue();
  auto has_work = [this] {
    mutex_.AssertReaderHeld();
    return closing_ || !queue_.empty();
  };
  while (true) {
    std::vector<QueuedCommit> group;
    std::optional<QueuedCompaction> compaction;
    std::optional<QueuedBackup> backup;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithDeadline(absl::Condition(&has_work), NextDue());
      if (queue_.empty()) {
        if (closing_) return;
      } else if (auto* first = std::get_if<QueuedCompaction>(&queue_.front())) {
        compaction.emplace(std::move(*first));
        queue_.pop_front();
      } else if (auto* copy = std::get_if<QueuedBackup>(&queue_.front())) {
        backup.emplace(std::move(*copy));
        queue_.pop_front();
      } else {
        group = TakeGroup();
      }
    }
    if (compaction.has_value()) std::move(compaction->callback)(CompactNow(compaction->revision));
    if (backup.has_value()) ContinueBackup(*std::move(backup));
    if (!group.empty()) CommitGroup(absl::MakeSpan(group));
    DeliverToWatchers();
    if (const absl::Status maintained = journal_->Maintain();
        !maintained.ok() && !absl::IsResourceExhausted(maintained)) {
      Fail(maintained);
    }
    CompactIfDue();
    if (stats_are_old_ && std::chrono::steady_clock::now() >= stats_time_) RefreshStats();
  }
}

absl::Time LocalStore::NextDue() const {
  absl::Duration wait = journal_->MaintainIn();
  const auto now = std::chrono::steady_clock::now();
  if (stats_are_old_) wait = std::min(wait, absl::FromChrono(stats_time_ - now));
  if (!marks_.empty()) {
    wait = std::min(wait, options_.retention.time - absl::FromChrono(now - marks_.front().time));
  }
  if (compact_after_ > now) wait = std::max(wait, absl::Milliseconds(1));
  return absl::Now() + wait;
}

void LocalStore::RefreshStats() {
  const StoreStats stats = StatsOf(*journal_);
  stats_are_old_ = false;
  stats_time_ = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(kStatsEvery);
  absl::MutexLock lock(&mutex_);
  journal_stats_ = stats;
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

LocalStore::Prepared LocalStore::Prepare(absl::Span<const QueuedCommit> group) const {
  Prepared prepared;
  prepared.newest = index_.newest();
  // Keys that earlier commits of this group will write, for the compares of its later commits.
  // Revision 0 means that the key will be deleted.
  absl::flat_hash_map<std::string, EventPosition> changed;
  const auto mod_revision = [&](const std::string& key) {
    const auto found = changed.find(key);
    return found != changed.end() ? found->second.revision : index_.ModRevision(key);
  };
  for (const QueuedCommit& commit : group) {
    absl::Status status = commit.refusal;
    for (const Compare& compare : commit.compares) {
      const Revision have = mod_revision(compare.key);
      if (!status.ok() || have == compare.mod_revision) continue;
      status = WithReason(
          absl::AbortedError(StrCat("\"", compare.key, "\" is at revision ", have, ", expected ",
                                    compare.mod_revision, "; read it again and retry")),
          Reason::kVersionMismatch,
          {{fact::kKind, "record"},
           {fact::kName, compare.key},
           {fact::kHave, have},
           {fact::kNeed, compare.mod_revision}});
    }
    if (!status.ok()) {
      prepared.results.push_back(std::move(status));
      continue;
    }
    EventPosition position{.revision = prepared.newest + 1, .place = 0};
    bool changes = false;
    for (const Event& write : commit.writes) {
      const bool deletes = write.value == nullptr;
      if (deletes && mod_revision(write.key) == 0) continue;
      const bool has_history = HasHistory(write.key, options_.history);
      const auto before = changed.find(write.key);
      if (!has_history) {
        if (before == changed.end()) {
          const std::vector<EventPosition> old = index_.PositionsOf(write.key);
          prepared.dropped.insert(prepared.dropped.end(), old.begin(), old.end());
        } else if (before->second.revision != 0) {
          prepared.dropped.push_back(before->second);
        }
      }
      if (!deletes || has_history) {
        prepared.events.push_back({position, write.key, write.value});
      }
      changed[write.key] = deletes ? EventPosition() : position;
      ++position.place;
      changes = true;
    }
    if (changes) {
      ++prepared.newest;
      prepared.urgent = prepared.urgent && commit.urgent;
    }
    prepared.results.push_back(prepared.newest);
  }
  return prepared;
}

absl::Status LocalStore::Write(Prepared* prepared) {
  if (prepared->newest == index_.newest()) return absl::OkStatus();
  SHARDMESH_RETURN_IF_ERROR(journal_->Check());
  const absl::Status written = journal_->Append({.events = prepared->events,
                                                 .dropped = prepared->dropped,
                                                 .newest = prepared->newest,
                                                 .urgent = prepared->urgent});
  if (absl::IsResourceExhausted(written)) return written;
  if (!written.ok()) Fail(written);
  stats_are_old_ = true;
  absl::MutexLock lock(&mutex_);
  for (Event& event : prepared->events) index_.Add(std::move(event));
  index_.Forget(prepared->dropped);
  index_.RaiseNewest(prepared->newest);
  return absl::OkStatus();
}

void LocalStore::CommitGroup(absl::Span<QueuedCommit> group) {
  SHARDMESH_PASSES("store.commit_group");
  Prepared prepared = Prepare(group);
  absl::Status written = Write(&prepared);
  if (!written.ok() && group.size() > 1) {
    // Try each commit alone. A commit that fits, or that frees space, need not fail because another
    // commit of the group does not fit.
    for (QueuedCommit& commit : group) CommitGroup(absl::MakeSpan(&commit, 1));
    return;
  }
  if (!written.ok() && index_.history_bytes() > kept_bytes_ && CompactNow(index_.newest()).ok()) {
    prepared = Prepare(group);
    written = Write(&prepared);
  }
  const auto now = std::chrono::steady_clock::now();
  for (size_t i = 0; i < group.size(); ++i) {
    absl::StatusOr<Revision> result = std::move(prepared.results[i]);
    if (result.ok() && !written.ok()) result = written;
    if (result.ok() && options_.on_committed) {
      options_.on_committed(absl::FromChrono(now - group[i].began));
    }
    std::move(group[i].callback)(std::move(result));
  }
  absl::MutexLock lock(&mutex_);
  settled_ = index_.newest();
}

void LocalStore::ContinueBackup(QueuedBackup work) {
  if (work.backup == nullptr) {
    auto begun = journal_->BeginBackup(work.path);
    if (!begun.ok()) return std::move(work.callback)(begun.status());
    work.backup = *std::move(begun);
  }
  const absl::StatusOr<bool> done = work.backup->Step();
  if (!done.ok()) return std::move(work.callback)(done.status());
  if (*done) return std::move(work.callback)(index_.newest());
  {
    absl::MutexLock lock(&mutex_);
    if (!closing_) {
      queue_.push_back(std::move(work));
      return;
    }
  }
  std::move(work.callback)(absl::UnavailableError("the store is closing"));
}

void LocalStore::CompactIfDue() {
  const auto now = std::chrono::steady_clock::now();
  const auto& [bytes, time] = options_.retention;
  const size_t droppable = index_.history_bytes() - std::min(index_.history_bytes(), kept_bytes_);
  if (droppable > 0 && time < absl::InfiniteDuration() &&
      (marks_.empty() || absl::FromChrono(now - marks_.back().time) > time / kMarks)) {
    marks_.push_back({.revision = index_.newest(), .time = now});
  }
  if (now < compact_after_) return;
  Revision target = 0;
  // Compact to half of the bound on bytes, so that the next commit does not exceed the bound again.
  if (droppable > bytes) target = index_.RevisionBehind(bytes / 2);
  while (!marks_.empty() && absl::FromChrono(now - marks_.front().time) >= time) {
    target = std::max(target, marks_.front().revision);
    marks_.pop_front();
  }
  const bool clears = !is_cleared_ && options_.history.others_have_none;
  if (clears) target = std::max(target, index_.compacted());
  if (target <= index_.compacted() && !clears) return;
  if (const absl::Status compacted = CompactNow(target); !compacted.ok()) {
    compact_after_ = now + absl::ToChronoNanoseconds(kCompactAgainAfter);
    LogWarning("the store's history could not be compacted; it is tried again later",
               {{"error", compacted}});
  }
}

absl::Status LocalStore::CompactNow(Revision revision) {
  SHARDMESH_PASSES("store.compact");
  if (revision > index_.newest()) {
    return absl::OutOfRangeError(
        StrCat("revision ", revision, " is still to come; the newest is ", index_.newest()));
  }
  if (revision < index_.compacted() || (revision == index_.compacted() && is_cleared_)) {
    return absl::OkStatus();
  }
  const std::vector<EventPosition> superseded = index_.SupersededAt(revision, options_.history);
  if (superseded.empty() && revision == index_.compacted()) {
    is_cleared_ = true;
    return absl::OkStatus();
  }
  SHARDMESH_RETURN_IF_ERROR(journal_->Check());
  const absl::Status dropped = journal_->Drop(superseded, revision, index_.newest());
  if (absl::IsResourceExhausted(dropped)) return dropped;
  if (!dropped.ok()) Fail(dropped);
  is_cleared_ = true;
  stats_are_old_ = true;
  // First deliver the changes up to `revision` to every watch that has not received them yet.
  while (true) {
    DeliverToWatchers();
    absl::MutexLock lock(&mutex_);
    if (std::none_of(watchers_.begin(), watchers_.end(),
                     [&](const auto& watcher) { return watcher->next <= revision; })) {
      index_.RaiseCompacted(revision);
      break;
    }
  }
  // Forget the events in pieces, so that other threads get the lock between two pieces.
  for (size_t begin = 0; begin < superseded.size(); begin += kForgottenAtOnce) {
    absl::MutexLock lock(&mutex_);
    index_.Forget(absl::MakeConstSpan(superseded).subspan(begin, kForgottenAtOnce));
  }
  kept_bytes_ = index_.HistoryBytesThrough(revision);
  return absl::OkStatus();
}

void LocalStore::DeliverToWatchers() {
  SHARDMESH_PASSES("store.deliver");
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
    std::vector<WatchEvent> events = index_.EventsFrom(watcher->prefixes, watcher->next);
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
