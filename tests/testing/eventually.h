// Polls for a condition that becomes true without a notification.
#ifndef SHARDMESH_TESTS_TESTING_EVENTUALLY_H_
#define SHARDMESH_TESTS_TESTING_EVENTUALLY_H_

#include <algorithm>
#include <functional>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace shardmesh::test {

// Asks again and again, until it is so or the time is over; a minute is enough for a slow machine
// too. Whether it was so.
inline bool Eventually(const std::function<bool()>& is_so,
                       absl::Duration within = absl::Seconds(60)) {
  const absl::Time deadline = absl::Now() + within;
  // Short at first, for fast conditions; then long enough to leave the processor to others.
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
