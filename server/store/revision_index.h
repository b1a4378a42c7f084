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

// HasHistory returns whether keys like this one keep old values at all. KeepsHistory returns
// whether they keep them even after a compaction.
bool HasHistory(std::string_view key, const HistoryOptions& options);
bool KeepsHistory(std::string_view key, const HistoryOptions& options);

// The keys of a store with their history. Commits are added in order, and can be read at any
// retained revision. Thread-compatible: a write needs exclusive access.
class RevisionIndex {
 public:
  RevisionIndex() = default;
  // Starts at revision `newest`, with everything up to `compacted` removed. The caller then adds
  // the events of a journal.
  RevisionIndex(Revision compacted, Revision newest) : compacted_(compacted), newest_(newest) {}
  // Only moves: they keep the pointers into the maps valid, copies would not.
  RevisionIndex(RevisionIndex&&) = default;
  RevisionIndex& operator=(RevisionIndex&&) = default;

  Revision newest() const { return newest_; }
  Revision compacted() const { return compacted_; }
  // Return the approximate memory of keys and values: live_bytes of the current values,
  // history_bytes of all others.
  size_t live_bytes() const { return live_bytes_; }
  size_t history_bytes() const { return history_bytes_; }

  // Returns the commit that last wrote `key`; 0 if the key does not exist. O(log keys).
  Revision ModRevision(std::string_view key) const;

  absl::StatusOr<KeyValue> Get(std::string_view key, Revision at) const;
  absl::StatusOr<KeyValues> List(std::string_view prefix, const ListOptions& options) const;
  // See Store::History.
  absl::StatusOr<std::vector<KeptValue>> History(std::string_view key, Revision at,
                                                 const HistoryOptions& options) const;

  // Returns the events of all commits from `from` on, in order, for keys with one of the
  // `prefixes`.
  std::vector<WatchEvent> EventsFrom(absl::Span<const std::string> prefixes, Revision from) const;

  // Adds an event, whose position must follow all earlier ones. newest() becomes the event's
  // revision.
  void Add(Event event);
  // Advances newest() past commits that left no event.
  void RaiseNewest(Revision newest) { newest_ = std::max(newest_, newest); }
  // Returns the positions of a key's remaining values.
  std::vector<EventPosition> PositionsOf(std::string_view key) const;

  // Returns the events that Compact(revision) would forget: superseded values outside the kept
  // history, and deletions with the values that they deleted. Requires revision <= newest().
  std::vector<EventPosition> SupersededAt(Revision revision, const HistoryOptions& history) const;
  // Returns the newest revision after which there are more than `bytes` of superseded events.
  // Returns compacted() if there are fewer altogether.
  Revision RevisionBehind(size_t bytes) const;
  // Returns how many of the history_bytes() come from events up to `revision`.
  size_t HistoryBytesThrough(Revision revision) const;
  // Makes reads before `revision`, and watches from before it, fail from now on.
  void RaiseCompacted(Revision revision) { compacted_ = std::max(compacted_, revision); }
  // Removes the events at these positions, which must all exist.
  void Forget(absl::Span<const EventPosition> positions);

 private:
  struct Version {
    EventPosition position;
    std::shared_ptr<const std::string> value;  // null: deleted
  };
  using Versions = std::vector<Version>;  // rising
  using Keys = std::map<std::string, Versions, std::less<>>;

  static size_t CostOf(const std::string& key, const Version& version);
  // Returns the event's part of history_bytes(); 0 if it defines a current value.
  static size_t HistoryCostAt(EventPosition position, const Keys::value_type& entry);
  // Returns whether version `i` does not define the key's current value.
  static bool IsHistory(const Versions& versions, size_t i) {
    return i + 1 != versions.size() || versions[i].value == nullptr;
  }

  absl::Status CheckReadable(Revision at) const;
  // Returns the key's version at revision `at`; null if the key did not exist then.
  static const Version* VersionAt(const Versions& versions, Revision at);
  // Returns the oldest kept value of the history that ends with the value `newest`.
  static const Version* OldestKept(const Versions& versions, const Version* newest,
                                   const HistoryOptions& options);

  Keys keys_;
  // Events by position. The pointers stay valid because map nodes do not move.
  std::map<EventPosition, Keys::value_type*> history_;
  size_t live_bytes_ = 0;
  size_t history_bytes_ = 0;
  Revision compacted_ = 0;
  Revision newest_ = 0;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STORE_REVISION_INDEX_H_
