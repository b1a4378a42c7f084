// Polls for a condition that becomes true without a notification.
#ifndef SHARDMESH_TESTS_TESTING_EVENTUALLY_H_
#define SHARDMESH_TESTS_TESTING_EVENTUALLY_H_

#include <algorithm>
#include <functional>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace shardmesh::test {

// Calls `is_so` repeatedly until it returns true or the time is over. Returns whether it returned
// true. A minute is enough even on a slow machine.
inline bool Eventually(const std::function<bool()>& is_so,
                       absl::Duration within = absl::Seconds(60)) {
  const absl::Time deadline = absl::Now() + within;
  // The pause is short at first, for conditions that become true fast, and then long enough to
  // leave the processor to other threads.
  absl::Duration pause = absl::Milliseconds(1);
  while (!is_so()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(pause);
    pause = std::min(2 * pause, absl::Milliseconds(20));
  }
  return true;
}

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_TESTING_EVENTUALLY_H_
