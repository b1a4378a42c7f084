// The live streams of a service, so that somebody can end them.
#ifndef SHARDMESH_SERVER_WATCH_STREAM_SET_H_
#define SHARDMESH_SERVER_WATCH_STREAM_SET_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"

namespace shardmesh::server {

// The live streams of a service. `Stream` has End(), which may be called at any time until it has
// left, and more than once. Thread-safe.
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
  // The last thing that a stream does: once it returned, End is not called any more.
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
