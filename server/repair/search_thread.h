// SearchThread: a thread of its own for an object that searches for work now and then.
#ifndef SHARDMESH_SERVER_REPAIR_SEARCH_THREAD_H_
#define SHARDMESH_SERVER_REPAIR_SEARCH_THREAD_H_

#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "process/thread_pool.h"

namespace shardmesh::server {

// Runs a search whenever it is due, and other tasks, one after the other on one thread. The search
// and the tasks may call all functions except Stop. Make it the last member of its object.
//
// Thread-safe. No function blocks, except Stop and the destructor. All functions may be called with
// a lock held, except Stop and the destructor: not with a lock that the search or a task takes.
class SearchThread {
 public:
  // `clock` outlives this object.
  SearchThread(Clock* clock, std::function<void()> search);
  ~SearchThread();
  SearchThread(const SearchThread&) = delete;
  SearchThread& operator=(const SearchThread&) = delete;

  // Lets the search run at `when`, or at an earlier time that is set already. The search sets its
  // next time itself. InfiniteFuture sets nothing.
  void SearchAt(absl::Time when);
  // Later calls of SearchAt set no time before `when`.
  void NoSearchBefore(absl::Time when);
  // Runs the task on the thread, unless Stop was called.
  void Run(ThreadPool::Task task);
  // Runs the searches and tasks that wait, and ends the thread. Later calls of Run and SearchAt
  // have no effect. Returns false, without waiting, if Stop was called before.
  bool Stop();
  bool is_stopped() const;

 private:
  const std::function<void()> search_;

  mutable absl::Mutex mutex_;
  absl::Time no_search_before_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::unique_ptr<Alarm> alarm_ ABSL_GUARDED_BY(mutex_);      // null after Stop
  std::unique_ptr<ThreadPool> pool_ ABSL_GUARDED_BY(mutex_);  // one thread; null after Stop
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_REPAIR_SEARCH_THREAD_H_
