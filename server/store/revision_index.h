// All keys of a store with their values over the retained revisions, in memory.
#ifndef SHARDMESH_SERVER_STORE_REVISION_INDEX_H_
#define SHARDMESH_SERVER_STORE_REVISION_INDEX_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/store/store.h"

namespace shardmesh::server {

// The position of an event in a store's history: its revision, and its index within the commit,
// from 0.
struct EventPosition {
  Revision revision = 0;
  int32_t place = 0;

  friend auto operator<=>(const EventPosition&, const EventPosition&) = default;
};

// One write of a key.
struct Event {
  EventPosition position;
  std::string key;
  std::shared_ptr<const std::string> value;  // null: deleted
};

// HasHistory returns whether the store keeps old values of `key` at all. KeepsHistory returns
// whether the store keeps old values of `key` even after a compaction.
bool HasHistory(std::string_view key, const HistoryOptions& options);
bool KeepsHistory(std::string_view key, const HistoryOptions& options);

// The keys of a store with their history. Commits are added by rising revision. The keys can be
// read as of any retained revision. Thread-compatible: a write needs exclusive access.
class RevisionIndex {
 public:
  RevisionIndex() = default;
  // Starts at revision `newest`, with everything up to `compacted` removed. The caller then adds
  // the events of a journal.
  RevisionIndex(Revision compacted, Revision newest) : compacted_(compacted), newest_(newest) {}
  // Movable, not copyable: a move keeps the pointers into the maps valid, a copy would not.
  RevisionIndex(RevisionIndex&&) = default;
  RevisionIndex& operator=(RevisionIndex&&) = default;

  Revision newest() const { return newest_; }
  Revision compacted() const { return compacted_; }
  // Return the approximate memory of keys and values: live_bytes of the current values,
  // history_bytes of all other values.
  size_t live_bytes() const { return live_bytes_; }
  size_t history_bytes() const { return history_bytes_; }

  // Returns the commit that last wrote `key`; 0 if the key does not exist. O(log keys).
  Revision ModRevision(std::string_view key) const;

  absl::StatusOr<KeyValue> Get(std::string_view key, Revision at) const;
  absl::StatusOr<KeyValues> List(std::string_view prefix, const ListOptions& options) const;
  // See Store::History.
  absl::StatusOr<std::vector<KeptValue>> History(std::string_view key, Revision at,
                                                 const HistoryOptions& options) const;

  // Returns the events of all commits from `from` on, by rising position, for keys with one of the
  // `prefixes`.
  std::vector<WatchEvent> EventsFrom(absl::Span<const std::string> prefixes, Revision from) const;

  // Adds an event. Its position must follow the positions of all earlier events. newest() becomes
  // the event's revision.
  void Add(Event event);
  // Advances newest() to `newest`, for commits whose events were all removed at once.
  void RaiseNewest(Revision newest) { newest_ = std::max(newest_, newest); }
  // Returns the positions of all events of `key` that were not removed.
  std::vector<EventPosition> PositionsOf(std::string_view key) const;

  // Returns the events that Compact(revision) would forget: superseded values outside the kept
  // history, and deletions with the values that they deleted. Requires revision <= newest().
  std::vector<EventPosition> SupersededAt(Revision revision, const HistoryOptions& history) const;
  // Returns the newest revision from which on superseded events have more than `bytes` together.
  // Returns compacted() if all superseded events have at most `bytes`.
  Revision RevisionBehind(size_t bytes) const;
  // Returns how many of the history_bytes() come from events up to and including `revision`.
  size_t HistoryBytesThrough(Revision revision) const;
  // Makes reads at revisions before `revision` fail from now on, and also watches from `revision`
  // or earlier.
  void RaiseCompacted(Revision revision) { compacted_ = std::max(compacted_, revision); }
  // Removes the events at these positions, which must all exist.
  void Forget(absl::Span<const EventPosition> positions);

 private:
  struct Version {
    EventPosition position;
    std::shared_ptr<const std::string> value;  // null: deleted
  };
  using Versions = std::vector<Version>;  // by rising position
  using Keys = std::map<std::string, Versions, std::less<>>;

  static size_t CostOf(const std::string& key, const Version& version);
  // Returns the event's part of history_bytes(); 0 if the event defines the key's current value.
  static size_t HistoryCostAt(EventPosition position, const Keys::value_type& entry);
  // Returns whether version `i` does not define the key's current value.
  static bool IsHistory(const Versions& versions, size_t i) {
    return i + 1 != versions.size() || versions[i].value == nullptr;
  }

  absl::Status CheckReadable(Revision at) const;
  // Returns the key's version at revision `at`; null if the key did not exist then.
  static const Version* VersionAt(const Versions& versions, Revision at);
  // Returns the oldest value that `options` keep if `newest` is the key's current value.
  static const Version* OldestKept(const Versions& versions, const Version* newest,
                                   const HistoryOptions& options);

  Keys keys_;
  // The key of each event, by position. The pointers stay valid because nodes of `keys_` do not
  // move.
  std::map<EventPosition, Keys::value_type*> history_;
  size_t live_bytes_ = 0;
  size_t history_bytes_ = 0;
  Revision compacted_ = 0;
  Revision newest_ = 0;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STORE_REVISION_INDEX_H_
