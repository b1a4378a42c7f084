// Room for runs that have threads of their own: joins those that are over, and bounds the others.
#ifndef SHARDMESH_SERVER_STEPS_RUN_ROOM_H_
#define SHARDMESH_SERVER_STEPS_RUN_ROOM_H_

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::server {

// Takes the runs that are over out of `runs` and joins their threads (`Run::thread`).
// `mutex` guards `runs`. `is_over(run)`: whether the run's thread is about to end. The caller makes
// sure that only one thread at a time adds runs. RESOURCE_EXHAUSTED (OVERLOADED), with a
// retry delay: `max_runs` are not over. `what` names the runs in the message, such as `saves`.
template <typename Run, typename IsOver>
absl::Status MakeRoomForRun(absl::Mutex* mutex, std::map<std::string, std::unique_ptr<Run>>* runs,
                            const IsOver& is_over, size_t max_runs, std::string_view what)
    ABSL_LOCKS_EXCLUDED(*mutex) {
  std::vector<std::unique_ptr<Run>> over;  // joined without the lock
  size_t count = 0;
  {
    absl::MutexLock lock(mutex);
    for (auto each = runs->begin(); each != runs->end();) {
      const auto current = each++;
      if (!is_over(*current->second)) continue;
      over.push_back(std::move(current->second));
      runs->erase(current);
    }
    count = runs->size();
  }
  for (const std::unique_ptr<Run>& each : over) each->thread.join();
  if (count < max_runs) return absl::OkStatus();
  return WithRetryDelay(
      WithReason(absl::ResourceExhaustedError(StrCat(count, " ", what, " are running, of at most ",
                                                     max_runs, "; wait until one has ended")),
                 Reason::kOverloaded, {{fact::kHave, count}, {fact::kLimit, max_runs}}),
      absl::Seconds(1));
}

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_RUN_ROOM_H_
