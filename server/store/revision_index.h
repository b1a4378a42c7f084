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

// The position of an event in a store's history: its commit, and its index there from 0.
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

// Whether keys like this one have a history at all, and whether it outlives compaction.
bool HasHistory(std::string_view key, const HistoryOptions& options);
bool KeepsHistory(std::string_view key, const HistoryOptions& options);

// The history of a store as a value: apply commits in order, read at any retained revision.
// Thread-compatible: writing needs exclusion.
class RevisionIndex {
 public:
  RevisionIndex() = default;
  // Starts at `newest` with everything up to `compacted` removed: the state into which a journal's
  // events are restored.
  RevisionIndex(Revision compacted, Revision newest) : compacted_(compacted), newest_(newest) {}
  // Moves keep the pointers into the maps valid; copies would not.
  RevisionIndex(RevisionIndex&&) = default;
  RevisionIndex& operator=(RevisionIndex&&) = default;

  Revision newest() const { return newest_; }
  Revision compacted() const { return compacted_; }
  // Return the rough memory of keys and values: the current ones, and all others.
  size_t live_bytes() const { return live_bytes_; }
  size_t history_bytes() const { return history_bytes_; }

  // The commit that last wrote `key`; 0 if the key does not exist. O(log keys).
  Revision ModRevision(std::string_view key) const;

  absl::StatusOr<KeyValue> Get(std::string_view key, Revision at) const;
  absl::StatusOr<KeyValues> List(std::string_view prefix, const ListOptions& options) const;
  // See Store::History.
  absl::StatusOr<std::vector<KeptValue>> History(std::string_view key, Revision at,
                                                 const HistoryOptions& options) const;

  // The events of all commits from `from` on, for keys that start with one of `prefixes`, in order.
  std::vector<WatchEvent> EventsFrom(absl::Span<const std::string> prefixes, Revision from) const;

  // Adds an event. Its position must follow all earlier ones; newest() becomes its revision.
  void Add(Event event);
  // Advances past commits that left no event.
  void RaiseNewest(Revision newest) { newest_ = std::max(newest_, newest); }
  // Returns the positions of a key's remaining values.
  std::vector<EventPosition> PositionsOf(std::string_view key) const;

  // Returns the events that Compact(revision) would forget: superseded values outside the kept
  // history, and deletions with the values that they deleted. Requires revision <= newest().
  std::vector<EventPosition> SupersededAt(Revision revision, const HistoryOptions& history) const;
  // The newest revision after which the superseded events exceed `bytes`; compacted() if they are
  // fewer.
  Revision RevisionBehind(size_t bytes) const;
  // Returns the part of history_bytes() from events up to `revision`.
  size_t HistoryBytesThrough(Revision revision) const;
  // Reads and watches before `revision` fail from now on.
  void RaiseCompacted(Revision revision) { compacted_ = std::max(compacted_, revision); }
  // Forgets these positions. Requires that each exists.
  void Forget(absl::Span<const EventPosition> positions);

 private:
  struct Version {
    EventPosition position;
    std::shared_ptr<const std::string> value;  // null: deleted
  };
  using Versions = std::vector<Version>;  // rising
  using Keys = std::map<std::string, Versions, std::less<>>;

  static size_t CostOf(const std::string& key, const Version& version);
  // Returns 0 for an event that defines a current value.
  static size_t HistoryCostAt(EventPosition position, const Keys::value_type& entry);
  // Returns whether the event defines no current value.
  static bool IsHistory(const Versions& versions, size_t i) {
    return i + 1 != versions.size() || versions[i].value == nullptr;
  }

  absl::Status CheckReadable(Revision at) const;
  // Returns the version current at revision `at`; null if the key did not exist.
  static const Version* VersionAt(const Versions& versions, Revision at);
  // The oldest value of the history whose newest value is `newest`.
  static const Version* OldestKept(const Versions& versions, const Version* newest,
                                   const HistoryOptions& options);

  Keys keys_;
  // By position; the nodes of `keys_` stay where they are.
  std::map<EventPosition, Keys::value_type*> history_;
  size_t live_bytes_ = 0;
  size_t history_bytes_ = 0;
  Revision compacted_ = 0;
  Revision newest_ = 0;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STORE_REVISION_INDEX_H_
