// Lets kernels of concurrent steps take turns on the CPU.
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

// One kernel uses all kernel threads of this worker, so only one kernel computes at a time. Kernels
// take turns in the order of their requests; a long kernel yields between its blocks. The kernel
// that has the turn waits for nothing else, so its turn always ends. Thread-safe.
class KernelTurns {
 public:
  // The turns of one kernel. Used by one thread.
  class Turn {
   public:
    // `turns` outlives this object. This object calls `abort_check` regularly while it waits.
    Turn(KernelTurns* turns, std::function<absl::Status()> abort_check)
        : turns_(*turns), abort_check_(std::move(abort_check)) {}
    ~Turn() { GiveBack(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    // Waits until this kernel has the turn. Returns the error of `abort_check` if the check fails;
    // in this case the kernel does not have the turn.
    absl::Status Take();
    // Call it between two blocks, while this kernel has the turn. Calls `abort_check`. If other
    // kernels wait, gives the turn to them and waits for it again, as Take does. The only error is
    // that of `abort_check`.
    absl::Status PauseForOthers();
    void GiveBack();

    // Returns the total time that this kernel waited for turns.
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
  // The tickets of waiting kernels. The kernel with the lowest ticket has the next turn.
  std::set<int64_t> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STEP_KERNEL_TURNS_H_
