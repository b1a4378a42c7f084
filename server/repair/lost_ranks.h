// Gives the ranks of workers that stay lost to spare workers, without an operator.
#ifndef SHARDMESH_SERVER_REPAIR_LOST_RANKS_H_
#define SHARDMESH_SERVER_REPAIR_LOST_RANKS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "server/state/membership.h"
#include "server/state/pause_watch.h"
#include "server/state/recovery.h"

namespace shardmesh::server {

// The objects that LostRanks uses. All of them outlive it.
struct LostRanksParts {
  using Done = absl::AnyInvocable<void(const absl::Status&) &&>;

  Clock* clock = nullptr;
  const Membership* membership = nullptr;
  const Recovery* recovery = nullptr;
  // Returns whether steps can run on the worker (WorkerStreams::IsReady).
  std::function<bool(std::string_view identity)> is_ready = {};
  // Gives all ranks of worker `identity` to worker `replacement`, and calls `done` once, on any
  // thread (WorkerCalls::ReplaceWorker). Must not block.
  std::function<void(const std::string& identity, const std::string& replacement, Done done)>
      replace = {};
};

// Replaces a worker that serves ranks and was lost for longer than Options::after. Each look does
// the following:
//
//   1. A worker that is expected back (Recovery::ComesBack) keeps its ranks. A worker that has not
//      attached since the start of the coordinator counts as lost since that start. Time in which
//      this process was stopped does not count.
//   2. A spare worker is attached, ready and not draining, and serves no rank of any mesh. If the
//      lost worker kept its tiles on disk, the spare must do so too. Exception: nothing is known of
//      a worker that has not attached since the start of the coordinator.
//   3. Among several spares, the first in this order gets the ranks: one on another host than the
//      workers with the other copies of the tiles (`replicas: 2`), one that keeps tiles on disk,
//      one with at least the memory of the lost worker, the least identity.
//   4. One worker is replaced at a time, first the one that was lost first.
//
// A lost worker that returns after its replacement serves no rank, so it is a spare itself.
//
// Thread-safe. No function blocks, except Stop and the destructor.
class LostRanks {
 public:
  struct Options {
    absl::Duration after = absl::InfiniteDuration();
    // Time between two looks while a worker waits for a spare, or is expected back.
    absl::Duration look_again = absl::Seconds(1);
    // Time until the next try if a replacement failed.
    absl::Duration retry = absl::Seconds(5);
  };
  struct Totals {
    int64_t replaced = 0;       // workers whose ranks went to spares, since the start
    int64_t without_spare = 0;  // lost workers that no spare can replace at present
  };

  LostRanks(LostRanksParts parts, Options options);
  ~LostRanks() { Stop(); }
  LostRanks(const LostRanks&) = delete;
  LostRanks& operator=(const LostRanks&) = delete;

  // Records that a worker may have been lost, or that ranks may have moved. Callable with any lock
  // held.
  void MembershipChanged();
  // Begins no replacement any more, and waits for the end of the one that runs.
  void Stop();

  // Returns whether the worker was to be replaced at the last look, and no spare could do that.
  bool LacksSpare(std::string_view identity) const;
  Totals totals() const;

 private:
  struct Choice {
    std::string identity;
    std::string replacement;
    absl::Time since;  // when `identity` was lost
  };
  // A replacement that failed.
  struct Refusal {
    std::string replacement;  // the worker that has some of the ranks already; empty: none
    std::string why;
    absl::Time next_try;
  };

  void Look();
  std::optional<Choice> Choose(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Ended(const Choice& choice, const absl::Status& status);

  const LostRanksParts parts_;
  const Options options_;
  const absl::Time started_;
  PauseWatch pauses_;

  mutable absl::Mutex mutex_;
  bool is_stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_running_ ABSL_GUARDED_BY(mutex_) = false;  // a replacement runs
  int64_t replaced_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<std::string, std::less<>> without_spare_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Refusal, std::less<>> refused_ ABSL_GUARDED_BY(mutex_);

  Alarm alarm_;  // last: its destructor waits for Look
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_REPAIR_LOST_RANKS_H_
