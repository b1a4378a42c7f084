// Replaced versions of definitions that questions named lately, decoded.
#ifndef SHARDMESH_SERVER_STATE_DECODED_VERSIONS_H_
#define SHARDMESH_SERVER_STATE_DECODED_VERSIONS_H_

#include <cstddef>
#include <list>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace shardmesh::server {

struct Definition;

// LRU cache of decoded definitions, so that repeated requests share one decoding. Identifies a
// version by the address of its record in the store. Thread-safe.
class DecodedVersions {
 public:
  using Record = std::shared_ptr<const std::string>;
  using DefinitionPtr = std::shared_ptr<const Definition>;

  // More than the questions of a while name; decoded, a version is as large as a current one is.
  static constexpr size_t kMaxVersions = 64;
  static constexpr size_t kMaxRecordBytes = size_t{8} << 20;  // of their records together

  // Null if it is not kept.
  DefinitionPtr Find(const Record& record);

  // Adds a definition and evicts the least recently used ones beyond the limit. Returns the cached
  // one: of two decoded at the same time, the first.
  DefinitionPtr Keep(const Record& record, DefinitionPtr definition);

 private:
  struct Kept {
    Record record;
    DefinitionPtr definition;
  };

  // Moves it to the front.
  DefinitionPtr FindLocked(const Record& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  std::list<Kept> kept_ ABSL_GUARDED_BY(mutex_);  // most recently used first
  size_t record_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_DECODED_VERSIONS_H_
