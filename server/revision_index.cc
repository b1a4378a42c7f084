// Reading and compacting the history of a store.
#include "server/revision_index.h"

#include <algorithm>
#include <utility>

#include "sharding/reason.h"
#include "sharding/status_macros.h"
#include "sharding/str_cat.h"

namespace shardmesh::server {
namespace {

bool StartsWith(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

bool KeepsHistory(std::string_view key, const HistoryOptions& options) {
  return std::any_of(options.prefixes.begin(), options.prefixes.end(),
                     [key](const std::string& prefix) { return StartsWith(key, prefix); });
}

absl::Status NotThere(std::string_view key, Revision at) {
  return WithReason(absl::NotFoundError(StrCat("no key \"", key, "\" at revision ", at)),
                    Reason::kNotFound);
}

}  // namespace

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
        Reason::kCompacted);
  }
  return absl::OkStatus();
}

const RevisionIndex::Version* RevisionIndex::VersionAt(const Versions& versions, Revision at) {
  // The newest comes first in what is asked for, so the search starts from the end.
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
    if (before->value == nullptr) break;  // what a deletion ended was another thing
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

std::vector<WatchEvent> RevisionIndex::EventsFrom(std::string_view prefix, Revision from) const {
  std::vector<WatchEvent> events;
  for (auto at = history_.lower_bound({from, 0}); at != history_.end(); ++at) {
    const std::string& key = *at->second;
    if (!StartsWith(key, prefix)) continue;
    const Versions& versions = keys_.find(key)->second;
    const auto version = std::lower_bound(
        versions.begin(), versions.end(), at->first,
        [](const Version& v, const EventPosition& position) { return v.position < position; });
    events.push_back({key,
                      version->value == nullptr ? std::nullopt : std::optional(*version->value),
                      at->first.revision});
  }
  return events;
}

void RevisionIndex::Add(EventPosition position, std::string key, std::optional<std::string> value) {
  const auto entry = keys_.try_emplace(std::move(key)).first;
  entry->second.push_back({position, value.has_value()
                                         ? std::make_shared<const std::string>(*std::move(value))
                                         : nullptr});
  history_.emplace_hint(history_.end(), position, &entry->first);
  newest_ = std::max(newest_, position.revision);
}

std::vector<EventPosition> RevisionIndex::SupersededAt(Revision revision,
                                                       const HistoryOptions& history) const {
  const auto is_kept = [&history](const std::string& key, const Versions& versions,
                                  EventPosition position) {
    return versions.back().value != nullptr && KeepsHistory(key, history) &&
           OldestKept(versions, &versions.back(), history)->position <= position;
  };
  std::vector<EventPosition> superseded;
  for (auto at = history_.begin(); at != history_.end() && at->first.revision <= revision; ++at) {
    const Versions& versions = keys_.find(*at->second)->second;
    const auto next = std::upper_bound(
        versions.begin(), versions.end(), at->first,
        [](const EventPosition& position, const Version& v) { return position < v.position; });
    const bool replaced = next != versions.end() && next->position.revision <= revision;
    const bool deletion = std::prev(next)->value == nullptr;
    if (deletion || (replaced && !is_kept(*at->second, versions, at->first))) {
      superseded.push_back(at->first);
    }
  }
  return superseded;
}

void RevisionIndex::Compact(absl::Span<const EventPosition> superseded, Revision revision) {
  for (const EventPosition& position : superseded) {
    const auto event = history_.find(position);
    const auto entry = keys_.find(*event->second);
    history_.erase(event);
    Versions& versions = entry->second;
    versions.erase(std::find_if(versions.begin(), versions.end(), [&](const Version& version) {
      return version.position == position;
    }));
    if (versions.empty()) keys_.erase(entry);
  }
  compacted_ = std::max(compacted_, revision);
}

}  // namespace shardmesh::server
