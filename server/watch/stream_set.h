// The live streams of a service, so that the service can end them when it stops.
#ifndef SHARDMESH_SERVER_WATCH_STREAM_SET_H_
#define SHARDMESH_SERVER_WATCH_STREAM_SET_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"

namespace shardmesh::server {

// The live streams of a service. `Stream` must have a method End(), which EndAll may call at any
// time until Remove, and more than once. Thread-safe.
template <typename Stream>
class StreamSet {
 public:
  void Add(Stream* stream) {
    bool ended = false;
    {
      absl::MutexLock lock(&mutex_);
      streams_.insert(stream);
      ended = ended_;
    }
    if (ended) {
      stream->End();
    }
  }
  // A stream calls Remove after all other work. Once Remove has returned, the set does not call End
  // again.
  void Remove(Stream* stream) {
    absl::MutexLock lock(&mutex_);
    streams_.erase(stream);
  }
  int64_t size() const {
    absl::MutexLock lock(&mutex_);
    return static_cast<int64_t>(streams_.size());
  }
  void EndAll() {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
    for (Stream* stream : streams_) {
      stream->End();
    }
  }

 private:
  mutable absl::Mutex mutex_;
  absl::flat_hash_set<Stream*> streams_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_WATCH_STREAM_SET_H_
