// Processor time of a thread, independent of other load on the machine.
#ifndef SHARDMESH_PROCESS_CPU_TIME_H_
#define SHARDMESH_PROCESS_CPU_TIME_H_

#include <time.h>

namespace shardmesh {

// Returns the processor time that this thread has used, in seconds.
inline double ThreadCpuSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_CPU_TIME_H_
