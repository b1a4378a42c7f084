// Processor time of a test's thread, independent of other load on the machine.
#pragma once

#include <time.h>

namespace shardmesh::test {

// Returns the processor time of this thread in seconds; other processes' time does not count.
inline double ThreadCpuSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace shardmesh::test
