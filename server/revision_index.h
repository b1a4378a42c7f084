// Every key of a store with its values over the retained revisions, in memory.
#ifndef SHARDMESH_SERVER_REVISION_INDEX_H_
#define SHARDMESH_SERVER_REVISION_INDEX_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/store.h"

namespace shardmesh::server {

// Where an event stands in a store's history: its commit, and its place within it from 0.
struct EventPosition {
  Revision revision = 0;
  int32_t place = 0;

  friend auto operator<=>(const EventPosition&, const EventPosition&) = default;
};

// The history of a store as a value: apply commits in order, read at any retained revision.
// Thread-compatible: writing needs exclusion.
class RevisionIndex {
 public:
  RevisionIndex() = default;
  // Starts at `newest` with everything up to `compacted` forgotten: the frame in which a journal's
  // events are restored.
  RevisionIndex(Revision compacted, Revision newest) : compacted_(compacted), newest_(newest) {}

  Revision newest() const { return newest_; }
  Revision compacted() const { return compacted_; }

  // The commit that last wrote `key`; 0 if it is not there. O(log keys).
  Revision ModRevision(std::string_view key) const;

  absl::StatusOr<KeyValue> Get(std::string_view key, Revision at) const;
  absl::StatusOr<KeyValues> List(std::string_view prefix, const ListOptions& options) const;
  // See Store::History.
  absl::StatusOr<std::vector<KeptValue>> History(std::string_view key, Revision at,
                                                 const HistoryOptions& options) const;

  // The events of all commits from `from` on whose keys start with `prefix`, in order.
  std::vector<WatchEvent> EventsFrom(std::string_view prefix, Revision from) const;

  // Adds an event. Its position is behind every one added before; newest() follows it.
  void Add(EventPosition position, std::string key, std::optional<std::string> value);

  // What Compact(revision) would forget: superseded values that are no kept history, and deletions
  // with what they deleted. Requires revision <= newest().
  std::vector<EventPosition> SupersededAt(Revision revision, const HistoryOptions& history) const;
  // Forgets these positions, and raises compacted() to `revision`.
  void Compact(absl::Span<const EventPosition> superseded, Revision revision);

 private:
  struct Version {
    EventPosition position;
    std::shared_ptr<const std::string> value;  // null: deleted
  };
  using Versions = std::vector<Version>;  // rising

  absl::Status CheckReadable(Revision at) const;
  // What `versions` was at revision `at`; null: not there.
  static const Version* VersionAt(const Versions& versions, Revision at);
  // The oldest value of the history whose newest value is `newest`.
  static const Version* OldestKept(const Versions& versions, const Version* newest,
                                   const HistoryOptions& options);

  std::map<std::string, Versions, std::less<>> keys_;
  // By position; the pointers are to keys of `keys_`, whose nodes stay where they are.
  std::map<EventPosition, const std::string*> history_;
  Revision compacted_ = 0;
  Revision newest_ = 0;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_REVISION_INDEX_H_
