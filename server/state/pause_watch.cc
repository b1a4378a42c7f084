// PauseWatch: an alarm that fires several times within the limit.
#include "server/state/pause_watch.h"

#include <algorithm>

#include "process/log.h"

namespace shardmesh::server {
namespace {

constexpr int kLooksPerLimit = 4;

}  // namespace

PauseWatch::PauseWatch(rpc::Clock* clock, absl::Duration limit, std::string_view whose)
    : clock_(clock), limit_(limit), whose_(whose), last_look_(clock->Now()), alarm_(clock, [this] {
        Look();
      }) {
  Look();
}

absl::Time PauseWatch::RunsSince(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  if (now - last_look_ > limit_) {
    rpc::LogWarning("this process was paused for a while; silence counts from now on",
                    {{"for", rpc::FormatRounded(now - last_look_)}, {"silence_of", whose_}});
    runs_since_ = now;
  }
  last_look_ = std::max(last_look_, now);
  return runs_since_;
}

void PauseWatch::Look() {
  const absl::Time now = clock_->Now();
  RunsSince(now);
  alarm_.SetNoLaterThan(now + std::max(limit_ / kLooksPerLimit, absl::Milliseconds(1)));
}

}  // namespace shardmesh::server
