// Measures the processor time of each piece.
#include "worker/save/save_pace.h"

#include <algorithm>
#include <ctime>

#include "absl/time/clock.h"

namespace shardmesh::worker {
namespace {

// A cancelled save ends after the current nap.
constexpr absl::Duration kNap = absl::Milliseconds(10);

absl::Duration ThreadTime() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return absl::DurationFromTimespec(now);
}

}  // namespace

SavePace::SavePace(const Options& options, const std::atomic<bool>& is_cancelled)
    : options_(options), is_cancelled_(is_cancelled), worked_(ThreadTime()) {}

void SavePace::Pause() {
  absl::Duration left =
      steps_run() ? kPauses * options_.workers * (ThreadTime() - worked_) : absl::ZeroDuration();
  while (left > absl::ZeroDuration() && !is_cancelled_) {
    const absl::Duration nap = std::min(left, kNap);
    absl::SleepFor(nap);
    left -= nap;
  }
  worked_ = ThreadTime();
}

}  // namespace shardmesh::worker
