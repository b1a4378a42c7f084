// SIGTERM and SIGINT as something that the main thread waits for.
#ifndef SHARDMESH_PROCESS_SIGNAL_H_
#define SHARDMESH_PROCESS_SIGNAL_H_

#include <signal.h>

#include <optional>

#include "absl/time/time.h"

namespace shardmesh::rpc {

// Blocks SIGTERM and SIGINT in the constructing thread and in all threads that it starts from then
// on: make it first thing in main, before anything starts threads. No code runs in a signal
// handler. For one thread.
class StopSignal {
 public:
  StopSignal();
  // Gives the signals back the effect that they had.
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // Waits for one of the signals and returns its number.
  int Wait();
  // The same, until `timeout` is over: nullopt then.
  std::optional<int> WaitFor(absl::Duration timeout);

 private:
  sigset_t signals_;
  sigset_t previous_mask_;
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_PROCESS_SIGNAL_H_
