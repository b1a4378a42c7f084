// Threads of a process whose host may allow no more of them.
#ifndef SHARDMESH_PROCESS_START_THREAD_H_
#define SHARDMESH_PROCESS_START_THREAD_H_

#include <cstddef>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace shardmesh {

// Starts a thread, which the caller joins. RESOURCE_EXHAUSTED: the host allows no more threads
// (ulimit -u, or the limit of a container). The constructor of std::thread throws there. Failpoint:
// thread.start.
absl::StatusOr<std::thread> StartThread(absl::AnyInvocable<void() &&> run);

// Calls `body(i)` for each i in [0, count), on at most `max_threads` >= 1 threads, one of which is
// the calling one. Returns after the last call. If the host allows no more threads, those that
// there are make all calls: a call must not wait for another one.
void RunOnThreads(size_t count, size_t max_threads, absl::FunctionRef<void(size_t i)> body);

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_START_THREAD_H_
