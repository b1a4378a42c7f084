// The checks that Abseil's mutexes make at each lock.
#ifndef SHARDMESH_PROCESS_MUTEX_CHECKS_H_
#define SHARDMESH_PROCESS_MUTEX_CHECKS_H_

namespace shardmesh::rpc {

// Stops looking for cycles in the order in which mutexes are taken, which Abseil does at each lock
// where its library was built with assertions, as Debian's is: 40 ns a lock instead of 12, under a
// lock of the whole process. First thing in the main of a program; tests keep the search.
void SkipMutexChecks();

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_PROCESS_MUTEX_CHECKS_H_
