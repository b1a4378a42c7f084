// What a test cost this thread, whatever else runs on the machine.
#pragma once

#include <time.h>

namespace shardmesh::test {

// Processor time of this thread, in seconds: what other processes take does not count.
inline double ThreadCpuSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace shardmesh::test
