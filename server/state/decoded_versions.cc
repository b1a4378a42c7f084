// Decides which decoded versions are kept.
#include "server/state/decoded_versions.h"

#include <utility>

namespace shardmesh::server {

DecodedVersions::DefinitionPtr DecodedVersions::Find(const Record& record) {
  absl::MutexLock lock(&mutex_);
  const DefinitionPtr* found = kept_.Find(record);
  return found == nullptr ? nullptr : *found;
}

DecodedVersions::DefinitionPtr DecodedVersions::Keep(const Record& record,
                                                     DefinitionPtr definition) {
  Kept::Forgotten forgotten;  // destroyed without the lock
  absl::MutexLock lock(&mutex_);
  return kept_.Add(record, std::move(definition), &forgotten, record->size());
}

}  // namespace shardmesh::server
