// The thread of the pump: lets streams write their items, and ends the streams of slow watchers.
#include "server/watch/watch_pump.h"

#include "absl/time/time.h"

namespace shardmesh::server {
namespace {

// Time in which a cut-off watcher can read the reason. The pump then cancels the stream.
constexpr absl::Duration kCutOffGrace = absl::Seconds(5);

}  // namespace

void WatchPump::Run() {
  const auto has_work = [this] {
    mutex_.AssertReaderHeld();
    return stopping_ || !due_.empty();
  };
  while (true) {
    std::deque<std::shared_ptr<WatchFeed>> due;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(&has_work), cut_off_.empty()
                                                              ? absl::InfiniteDuration()
                                                              : cut_off_.front().first.left());
      if (stopping_) {
        return;
      }
      due.swap(due_);
    }
    for (const std::shared_ptr<WatchFeed>& feed : due) {
      absl::MutexLock lock(&feed->mutex);
      if (feed->sink == nullptr || feed->knows_it_is_cut_off) {
        continue;
      }
      if (!feed->is_cut_off) {
        feed->sink->Pump();
        continue;
      }
      feed->sink->CutOff();
      feed->knows_it_is_cut_off = true;
      cut_off_.emplace_back(SteadyDeadline::After(kCutOffGrace), feed);
    }
    while (!cut_off_.empty() && cut_off_.front().first.is_over()) {
      const std::shared_ptr<WatchFeed> feed = std::move(cut_off_.front().second);
      cut_off_.pop_front();
      absl::MutexLock lock(&feed->mutex);
      if (feed->sink != nullptr) {
        feed->sink->Cancel();
      }
    }
  }
}

}  // namespace shardmesh::server
