// One thread that encodes changes as messages for all watchers of a service.
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

// Limits of the simultaneous watches of one service.
struct WatchLimits {
  int64_t max_watches = 1'000;
  int64_t max_watches_per_caller = 100;  // by rpc::Caller::name
};

// The maximum number of bytes of changes that may wait for one watcher. If more bytes wait, the
// watcher is cut off.
inline constexpr size_t kWatchWaitingBytes = size_t{16} << 20;

// The stream of a watcher, as the pump sees it. The pump holds the feed's mutex when it calls these
// methods.
class WatchSink {
 public:
  virtual ~WatchSink() = default;
  // Writes as many waiting items as the stream has room for.
  virtual void Pump() = 0;
  // Ends the stream with an error, because the watcher reads too slowly.
  virtual void CutOff() = 0;
  // Cancels a stream that is still open some time after CutOff.
  virtual void Cancel() = 0;
};

// The state of one watcher that the pump uses. ItemFeed adds the queue of waiting items.
struct WatchFeed {
  absl::Mutex mutex;
  // Null once the stream no longer exists.
  WatchSink* sink ABSL_GUARDED_BY(mutex) = nullptr;
  bool is_cut_off ABSL_GUARDED_BY(mutex) = false;
  bool knows_it_is_cut_off ABSL_GUARDED_BY(mutex) = false;
};

// Encodes changes as messages on a thread of its own, so that no commit waits for the encoding.
// Thread-safe.
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

  // Call it when the feed has new items, or when the stream of the feed has room for more messages.
  void Wake(std::shared_ptr<WatchFeed> feed) {
    absl::MutexLock lock(&mutex_);
    due_.push_back(std::move(feed));
  }

 private:
  void Run();

  absl::Mutex mutex_;
  std::deque<std::shared_ptr<WatchFeed>> due_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Cut-off streams, each with the time at which it is cancelled if still open. Only `thread_` uses
  // this queue.
  std::deque<std::pair<SteadyDeadline, std::shared_ptr<WatchFeed>>> cut_off_;
  std::thread thread_;  // last: it uses the members above
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_WATCH_WATCH_PUMP_H_
