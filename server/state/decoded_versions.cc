// Which decoded versions are kept.
#include "server/state/decoded_versions.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace shardmesh::server {

DecodedVersions::DefinitionPtr DecodedVersions::Find(const Record& record) {
  absl::MutexLock lock(&mutex_);
  return FindLocked(record);
}

DecodedVersions::DefinitionPtr DecodedVersions::Keep(const Record& record,
                                                     DefinitionPtr definition) {
  std::list<Kept> forgotten;  // freed when the lock is not held any more
  absl::MutexLock lock(&mutex_);
  if (DefinitionPtr known = FindLocked(record); known != nullptr) {
    return known;
  }
  kept_.push_front({record, definition});
  record_bytes_ += record->size();
  while (kept_.size() > 1 && (kept_.size() > kMaxVersions || record_bytes_ > kMaxRecordBytes)) {
    record_bytes_ -= kept_.back().record->size();
    forgotten.splice(forgotten.begin(), kept_, std::prev(kept_.end()));
  }
  return definition;
}

DecodedVersions::DefinitionPtr DecodedVersions::FindLocked(const Record& record) {
  const auto found = std::find_if(kept_.begin(), kept_.end(),
                                  [&](const Kept& kept) { return kept.record == record; });
  if (found == kept_.end()) {
    return nullptr;
  }
  kept_.splice(kept_.begin(), kept_, found);
  return found->definition;
}

}  // namespace shardmesh::server
