// The checks that Abseil's mutexes make at each lock.
#ifndef SHARDMESH_PROCESS_MUTEX_CHECKS_H_
#define SHARDMESH_PROCESS_MUTEX_CHECKS_H_

namespace shardmesh {

// Turns off the search for lock-order cycles that Abseil makes at each lock if its library was
// built with assertions, as Debian's is. With the search, each lock takes 40 ns instead of 12 ns,
// and all threads contend for one process-wide lock. Call this function first in the main of a
// program; tests keep the search.
void SkipMutexChecks();

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_MUTEX_CHECKS_H_
