// One thread that makes messages of the catalog's changes for all watchers.
#ifndef SHARDMESH_SERVER_SERVICE_WATCH_PUMP_H_
#define SHARDMESH_SERVER_SERVICE_WATCH_PUMP_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "process/steady_deadline.h"
#include "server/state/definitions.h"

namespace shardmesh::server {

struct WatchFeed;

// The stream of a watcher. The pump calls it, and holds the feed's mutex meanwhile.
class WatchSink {
 public:
  virtual ~WatchSink() = default;
  // Writes what there is room for.
  virtual void Pump(WatchFeed& feed) = 0;
  // The watcher reads too slowly: ends the stream, and says so.
  virtual void CutOff() = 0;
  // The stream has not ended though it was cut off.
  virtual void Cancel() = 0;
};

// Changes that wait for one watcher. The store's thread adds them, the pump takes them.
struct WatchFeed {
  absl::Mutex mutex;
  // Null once the stream is gone.
  WatchSink* sink ABSL_GUARDED_BY(mutex) = nullptr;
  std::deque<std::vector<DefinitionStore::Event>> waiting ABSL_GUARDED_BY(mutex);
  Revision counted_from ABSL_GUARDED_BY(mutex) = 0;
  size_t waiting_bytes ABSL_GUARDED_BY(mutex) = 0;  // of records behind counted_from
  bool is_cut_off ABSL_GUARDED_BY(mutex) = false;
  bool knows_it_is_cut_off ABSL_GUARDED_BY(mutex) = false;

  size_t CountedBytes(const std::vector<DefinitionStore::Event>& events) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    size_t bytes = 0;
    for (const DefinitionStore::Event& event : events) {
      if (event.revision > counted_from && event.record != nullptr) {
        bytes += event.record->size();
      }
    }
    return bytes;
  }
};

// One thread that makes messages of changes, so that no commit waits for it. Thread-safe.
class WatchPump {
 public:
  WatchPump() : thread_([this] { Run(); }) {}
  ~WatchPump() {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    thread_.join();
  }

  // Something waits in the feed, or there is room for it in the stream.
  void Wake(std::shared_ptr<WatchFeed> feed) {
    absl::MutexLock lock(&mutex_);
    due_.push_back(std::move(feed));
  }

 private:
  void Run();

  absl::Mutex mutex_;
  std::deque<std::shared_ptr<WatchFeed>> due_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Streams to cancel at these times if they are still open. Only the thread uses them.
  std::deque<std::pair<rpc::SteadyDeadline, std::shared_ptr<WatchFeed>>> cut_off_;
  std::thread thread_;  // last
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_WATCH_PUMP_H_
