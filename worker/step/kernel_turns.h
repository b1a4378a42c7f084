// Whose turn it is to compute: kernels of steps that run side by side.
#ifndef SHARDMESH_WORKER_STEP_KERNEL_TURNS_H_
#define SHARDMESH_WORKER_STEP_KERNEL_TURNS_H_

#include <cstdint>
#include <functional>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace shardmesh::worker {

// A kernel takes all threads that this worker has for them, so one computes at a time: in the order
// in which they asked, and a long one lets the others in between its blocks. Who has the turn waits
// for nothing else, so that it always comes to an end. Thread-safe.
class KernelTurns {
 public:
  // One kernel's turns. For one thread.
  class Turn {
   public:
    // `turns` outlives it. `abort_check` is asked now and then while it waits.
    Turn(KernelTurns* turns, std::function<absl::Status()> abort_check)
        : turns_(*turns), abort_check_(std::move(abort_check)) {}
    ~Turn() { GiveBack(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    // Waits for its turn; an error is the abort check's, and there is no turn.
    absl::Status Take();
    // Between two blocks: asks the abort check, and lets those who wait go first.
    absl::Status PauseForOthers();
    void GiveBack();

    // How long it waited, in all.
    absl::Duration waited() const { return waited_; }

   private:
    KernelTurns& turns_;
    const std::function<absl::Status()> abort_check_;
    bool has_turn_ = false;
    absl::Duration waited_ = absl::ZeroDuration();
  };

 private:
  absl::Mutex mutex_;
  bool is_taken_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<int64_t> waiting_ ABSL_GUARDED_BY(mutex_);  // tickets; the lowest is next
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STEP_KERNEL_TURNS_H_
