// Cache of former versions of definitions that recent requests named, in decoded form.
#ifndef SHARDMESH_SERVER_STATE_DECODED_VERSIONS_H_
#define SHARDMESH_SERVER_STATE_DECODED_VERSIONS_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "status/lru_cache.h"

namespace shardmesh::server {

struct Definition;

// LRU cache of decoded definitions, so that repeated requests share one decoding. Identifies a
// version by the address of its record in the store. Thread-safe.
class DecodedVersions {
 public:
  using Record = std::shared_ptr<const std::string>;
  using DefinitionPtr = std::shared_ptr<const Definition>;

  // The maximum number of cached definitions. The limit is above the number of versions that recent
  // requests are expected to name. It bounds the memory: a decoded former version takes as much
  // memory as a current definition.
  static constexpr size_t kMaxVersions = 64;
  static constexpr size_t kMaxRecordBytes = size_t{8} << 20;  // of all cached records together

  // Returns null if the definition is not in the cache.
  DefinitionPtr Find(const Record& record);

  // Adds a definition and evicts the least recently used definitions beyond the limits. Returns the
  // definition that the cache now holds for the record. If two threads decoded the record at the
  // same time, that is the definition that was added first.
  DefinitionPtr Keep(const Record& record, DefinitionPtr definition);

 private:
  using Kept = LruCache<Record, DefinitionPtr>;

  absl::Mutex mutex_;
  Kept kept_ ABSL_GUARDED_BY(mutex_){{.entries = kMaxVersions, .weight = kMaxRecordBytes}};
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_DECODED_VERSIONS_H_
