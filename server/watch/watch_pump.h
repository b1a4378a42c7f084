// One thread that makes messages of changes for all watchers of a service.
#ifndef SHARDMESH_SERVER_WATCH_WATCH_PUMP_H_
#define SHARDMESH_SERVER_WATCH_WATCH_PUMP_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "process/steady_deadline.h"

namespace shardmesh::server {

// Watches of one service at a time.
struct WatchLimits {
  int64_t max_watches = 1'000;
  int64_t max_watches_per_caller = 100;  // rpc::Caller::name
};

// The most bytes of changes that may wait for one watcher before it is cut off.
inline constexpr size_t kWatchWaitingBytes = size_t{16} << 20;

// The stream of a watcher. The pump calls it, and holds the feed's mutex meanwhile.
class WatchSink {
 public:
  virtual ~WatchSink() = default;
  // Writes as many waiting items as there is room for.
  virtual void Pump() = 0;
  // The watcher reads too slowly: ends the stream, with the reason.
  virtual void CutOff() = 0;
  // The stream is still open after it was cut off.
  virtual void Cancel() = 0;
};

// Waiting items of one watcher: see ItemFeed.
struct WatchFeed {
  absl::Mutex mutex;
  // Null once the stream is gone.
  WatchSink* sink ABSL_GUARDED_BY(mutex) = nullptr;
  bool is_cut_off ABSL_GUARDED_BY(mutex) = false;
  bool knows_it_is_cut_off ABSL_GUARDED_BY(mutex) = false;
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

  // There are items in the feed, or there is room for them in the stream.
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

#endif  // SHARDMESH_SERVER_WATCH_WATCH_PUMP_H_
