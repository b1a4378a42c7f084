// Keeps a save from slowing down the steps that run beside it.
#ifndef SHARDMESH_WORKER_SAVE_SAVE_PACE_H_
#define SHARDMESH_WORKER_SAVE_SAVE_PACE_H_

#include <atomic>
#include <functional>

namespace shardmesh::worker {

// Makes a thread of a save pause while steps run. A low priority is not enough: the disk's writes
// take processor time in the kernel too, and memory bandwidth. Used by one thread, the one that
// creates it.
class SavePace {
 public:
  // The pause after a piece is the processor time that the piece took, times this number and the
  // number of workers on this host. A step ends when its last rank does, so the delays of the ranks
  // add up.
  static constexpr int kPauses = 12;

  struct Options {
    // Says whether a step runs now. Called after each piece, twice. Without a target: never.
    std::function<bool()> steps_run = nullptr;
    int workers = 1;  // on this host, with this one
  };

  // Both outlive this object.
  SavePace(const Options& options, const std::atomic<bool>& is_cancelled);

  bool steps_run() const { return options_.steps_run != nullptr && options_.steps_run(); }

  // Call it after each piece. If a step runs, sleeps for the pause; returns early if the save is
  // cancelled, but not if the step ends: mostly the next one begins at once.
  void Pause();

 private:
  const Options& options_;
  const std::atomic<bool>& is_cancelled_;
  double worked_seconds_;  // processor time of this thread at the end of the last call
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SAVE_SAVE_PACE_H_
