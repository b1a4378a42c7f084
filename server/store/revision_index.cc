// Reading and compacting the history of a store.
#include "server/store/revision_index.h"

#include <algorithm>
#include <utility>

#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

bool StartsWith(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

// Memory of an event besides its key and value: nodes of two maps, a version and a shared pointer.
constexpr size_t kEventOverheadBytes = 192;

bool StartsWithAny(std::string_view text, absl::Span<const std::string> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [text](const std::string& prefix) { return StartsWith(text, prefix); });
}

absl::Status NotThere(std::string_view key, Revision at) {
  return WithReason(absl::NotFoundError(StrCat("no key \"", key, "\" at revision ", at)),
                    Reason::kNotFound, {{fact::kKind, "record"}, {fact::kName, key}});
}

}  // namespace

bool KeepsHistory(std::string_view key, const HistoryOptions& options) {
  return StartsWithAny(key, options.prefixes);
}

bool HasHistory(std::string_view key, const HistoryOptions& options) {
  return !options.others_have_none || KeepsHistory(key, options);
}

Revision RevisionIndex::ModRevision(std::string_view key) const {
  const auto found = keys_.find(key);
  if (found == keys_.end() || found->second.empty()) return 0;
  const Version& last = found->second.back();
  return last.value == nullptr ? 0 : last.position.revision;
}

absl::Status RevisionIndex::CheckReadable(Revision at) const {
  if (at > newest_) {
    return absl::OutOfRangeError(
        StrCat("revision ", at, " is still to come; the newest is ", newest_));
  }
  if (at < compacted_) {
    return WithReason(
        absl::OutOfRangeError(
            StrCat("revision ", at, " is compacted; the oldest that can be read is ", compacted_)),
        Reason::kCompacted, {{fact::kHave, at}, {fact::kNeed, compacted_}});
  }
  return absl::OkStatus();
}

const RevisionIndex::Version* RevisionIndex::VersionAt(const Versions& versions, Revision at) {
  // Search from the newest version, because most queries ask for the newest revision.
  const auto found = std::find_if(versions.rbegin(), versions.rend(), [at](const Version& version) {
    return version.position.revision <= at;
  });
  return found == versions.rend() || found->value == nullptr ? nullptr : &*found;
}

absl::StatusOr<KeyValue> RevisionIndex::Get(std::string_view key, Revision at) const {
  if (at == 0) at = newest_;
  SHARDMESH_RETURN_IF_ERROR(CheckReadable(at));
  const auto found = keys_.find(key);
  const Version* version = found == keys_.end() ? nullptr : VersionAt(found->second, at);
  if (version == nullptr) return NotThere(key, at);
  return KeyValue{std::string(key), *version->value, version->position.revision};
}

const RevisionIndex::Version* RevisionIndex::OldestKept(const Versions& versions,
                                                        const Version* newest,
                                                        const HistoryOptions& options) {
  const Version* oldest = newest;
  size_t bytes = 0;
  while (oldest != versions.data() && newest - oldest + 1 < options.values) {
    const Version* const before = oldest - 1;
    if (before->value == nullptr) break;  // the older values belong to a deleted key
    bytes += before->value->size();
    if (bytes > options.bytes) break;
    oldest = before;
  }
  return oldest;
}

absl::StatusOr<std::vector<KeptValue>> RevisionIndex::History(std::string_view key, Revision at,
                                                              const HistoryOptions& options) const {
  if (at == 0) at = newest_;
  SHARDMESH_RETURN_IF_ERROR(CheckReadable(at));
  const auto found = keys_.find(key);
  const Version* const newest = found == keys_.end() ? nullptr : VersionAt(found->second, at);
  if (newest == nullptr) return NotThere(key, at);
  const Version* const oldest =
      KeepsHistory(key, options) ? OldestKept(found->second, newest, options) : newest;
  std::vector<KeptValue> values;
  for (const Version* after = newest + 1; after != oldest; --after) {
    const Version& version = *(after - 1);
    values.push_back({version.value, version.position.revision});
  }
  return values;
}

absl::StatusOr<KeyValues> RevisionIndex::List(std::string_view prefix,
                                              const ListOptions& options) const {
  KeyValues result;
  result.revision = options.at == 0 ? newest_ : options.at;
  SHARDMESH_RETURN_IF_ERROR(CheckReadable(result.revision));
  auto at = options.start_after < prefix ? keys_.lower_bound(prefix)
                                         : keys_.upper_bound(options.start_after);
  for (; at != keys_.end() && StartsWith(at->first, prefix); ++at) {
    const Version* version = VersionAt(at->second, result.revision);
    if (version == nullptr) continue;
    if (static_cast<int64_t>(result.items.size()) >= options.limit) {
      result.more = true;
      break;
    }
    result.items.push_back({at->first, *version->value, version->position.revision});
  }
  return result;
}

std::vector<WatchEvent> RevisionIndex::EventsFrom(absl::Span<const std::string> prefixes,
                                                  Revision from) const {
  std::vector<WatchEvent> events;
  for (auto at = history_.lower_bound({from, 0}); at != history_.end(); ++at) {
    const auto& [key, versions] = *at->second;
    if (!StartsWithAny(key, prefixes)) continue;
    const auto version = std::lower_bound(
        versions.begin(), versions.end(), at->first,
        [](const Version& v, const EventPosition& position) { return v.position < position; });
    events.push_back({key, version->value, at->first.revision});
  }
  return events;
}

size_t RevisionIndex::CostOf(const std::string& key, const Version& version) {
  return key.size() + (version.value == nullptr ? 0 : version.value->size()) + kEventOverheadBytes;
}

void RevisionIndex::Add(Event event) {
  const auto entry = keys_.try_emplace(std::move(event.key)).first;
  auto& [key, versions] = *entry;
  if (!versions.empty() && !IsHistory(versions, versions.size() - 1)) {
    const size_t cost = CostOf(key, versions.back());
    live_bytes_ -= cost;
    history_bytes_ += cost;
  }
  versions.push_back({event.position, std::move(event.value)});
  (versions.back().value == nullptr ? history_bytes_ : live_bytes_) += CostOf(key, versions.back());
  history_.emplace_hint(history_.end(), event.position, &*entry);
  newest_ = std::max(newest_, event.position.revision);
}

std::vector<EventPosition> RevisionIndex::PositionsOf(std::string_view key) const {
  std::vector<EventPosition> positions;
  if (const auto found = keys_.find(key); found != keys_.end()) {
    for (const Version& version : found->second) positions.push_back(version.position);
  }
  return positions;
}

std::vector<EventPosition> RevisionIndex::SupersededAt(Revision revision,
                                                       const HistoryOptions& history) const {
  std::vector<EventPosition> superseded;
  for (const auto& [position, entry] : history_) {
    const auto& [key, versions] = *entry;
    const bool has_history = HasHistory(key, history);
    if (position.revision > revision && has_history) continue;
    const auto next =
        std::upper_bound(versions.begin(), versions.end(), position,
                         [](const EventPosition& p, const Version& v) { return p < v.position; });
    const bool replaced =
        next != versions.end() && (next->position.revision <= revision || !has_history);
    const bool deletion = std::prev(next)->value == nullptr;
    const bool is_kept = versions.back().value != nullptr && KeepsHistory(key, history) &&
                         OldestKept(versions, &versions.back(), history)->position <= position;
    if (deletion || (replaced && !is_kept)) superseded.push_back(position);
  }
  return superseded;
}

size_t RevisionIndex::HistoryCostAt(EventPosition position, const Keys::value_type& entry) {
  const auto& [key, versions] = entry;
  const auto version =
      std::lower_bound(versions.begin(), versions.end(), position,
                       [](const Version& v, const EventPosition& p) { return v.position < p; });
  return IsHistory(versions, static_cast<size_t>(version - versions.begin()))
             ? CostOf(key, *version)
             : 0;
}

Revision RevisionIndex::RevisionBehind(size_t bytes) const {
  size_t behind = 0;
  for (auto at = history_.rbegin(); at != history_.rend(); ++at) {
    behind += HistoryCostAt(at->first, *at->second);
    if (behind > bytes) return at->first.revision;
  }
  return compacted_;
}

size_t RevisionIndex::HistoryBytesThrough(Revision revision) const {
  size_t bytes = 0;
  for (auto at = history_.begin(); at != history_.end() && at->first.revision <= revision; ++at) {
    bytes += HistoryCostAt(at->first, *at->second);
  }
  return bytes;
}

void RevisionIndex::Forget(absl::Span<const EventPosition> positions) {
  // Group the positions by key. Each key's versions are then cleared in one pass, however many are
  // removed.
  std::map<Keys::value_type*, std::vector<EventPosition>> by_key;
  for (const EventPosition& position : positions) {
    const auto event = history_.find(position);
    by_key[event->second].push_back(position);
    history_.erase(event);
  }
  for (auto& [entry, gone] : by_key) {
    auto& [key, versions] = *entry;
    std::sort(gone.begin(), gone.end());
    for (size_t i = 0; i < versions.size(); ++i) {
      (IsHistory(versions, i) ? history_bytes_ : live_bytes_) -= CostOf(key, versions[i]);
    }
    versions.erase(std::remove_if(versions.begin(), versions.end(),
                                  [&gone = gone](const Version& version) {
                                    return std::binary_search(gone.begin(), gone.end(),
                                                              version.position);
                                  }),
                   versions.end());
    for (size_t i = 0; i < versions.size(); ++i) {
      (IsHistory(versions, i) ? history_bytes_ : live_bytes_) += CostOf(key, versions[i]);
    }
    if (versions.empty()) keys_.erase(keys_.find(key));
  }
}

}  // namespace shardmesh::server
