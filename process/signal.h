// SIGTERM, SIGINT and SIGHUP as events that the main thread waits for.
#ifndef SHARDMESH_PROCESS_SIGNAL_H_
#define SHARDMESH_PROCESS_SIGNAL_H_

#include <signal.h>

#include <optional>

#include "absl/time/time.h"

namespace shardmesh {

// Blocks SIGTERM, SIGINT and SIGHUP in the constructing thread and in all threads that it starts
// afterwards. SIGHUP, which reports a closed terminal, stays ignored if the process ignored it
// before (nohup). Construct a StopSignal first in main, before any thread starts. No code runs in a
// signal handler. For use by one thread.
class StopSignal {
 public:
  StopSignal();
  // Restores the signal mask that the constructing thread had before.
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // Waits for one of the signals and returns its number.
  int Wait();
  // Like Wait, but returns nullopt after `timeout`.
  std::optional<int> WaitFor(absl::Duration timeout);

 private:
  sigset_t signals_;
  sigset_t previous_mask_;
};

// Ignores SIGXFSZ: a write beyond the limit on the size of files (ulimit -f) then fails with EFBIG
// and does not end the process. Call this function first in main. Child processes inherit the
// setting.
void IgnoreFileSizeSignal();

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_SIGNAL_H_
