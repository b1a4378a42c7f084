// Measures the processor time of each piece.
#include "worker/save/save_pace.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "process/cpu_time.h"

namespace shardmesh::worker {
namespace {

// A cancelled save ends after the current nap.
constexpr absl::Duration kNap = absl::Milliseconds(10);

}  // namespace

SavePace::SavePace(const Options& options, const std::atomic<bool>& is_cancelled)
    : options_(options), is_cancelled_(is_cancelled), worked_seconds_(ThreadCpuSeconds()) {}

void SavePace::Pause() {
  absl::Duration left =
      steps_run()
          ? absl::Seconds(kPauses * options_.workers * (ThreadCpuSeconds() - worked_seconds_))
          : absl::ZeroDuration();
  while (left > absl::ZeroDuration() && !is_cancelled_) {
    const absl::Duration nap = std::min(left, kNap);
    absl::SleepFor(nap);
    left -= nap;
  }
  worked_seconds_ = ThreadCpuSeconds();
}

}  // namespace shardmesh::worker
