// Waits for signals that all threads block.
#include "process/signal.h"

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "absl/time/clock.h"

namespace shardmesh {

StopSignal::StopSignal() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGTERM);
  sigaddset(&signals_, SIGINT);
  struct sigaction hangup = {};
  // sigwaitinfo() would return a blocked signal even if the process ignores it, so leave an ignored
  // SIGHUP out.
  if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN) {
    sigaddset(&signals_, SIGHUP);
  }
  pthread_sigmask(SIG_BLOCK, &signals_, &previous_mask_);
}

StopSignal::~StopSignal() { pthread_sigmask(SIG_SETMASK, &previous_mask_, nullptr); }

int StopSignal::Wait() {
  for (;;) {
    if (const int signal = sigwaitinfo(&signals_, nullptr); signal > 0) {
      return signal;
    }
  }
}

std::optional<int> StopSignal::WaitFor(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  for (;;) {
    const absl::Duration rest = std::max(deadline - absl::Now(), absl::ZeroDuration());
    const timespec wait = absl::ToTimespec(rest);
    if (const int signal = sigtimedwait(&signals_, nullptr, &wait); signal > 0) {
      return signal;
    }
    if (errno == EAGAIN) {
      return std::nullopt;
    }
  }
}

void IgnoreFileSizeSignal() { signal(SIGXFSZ, SIG_IGN); }

}  // namespace shardmesh
