// Threads for answers that take too long for a reaction.
#ifndef SHARDMESH_SERVER_BACKGROUND_H_
#define SHARDMESH_SERVER_BACKGROUND_H_

#include <cstddef>
#include <deque>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace shardmesh::server {

// Runs tasks in the order in which they come, some at a time. Thread-safe.
class Background {
 public:
  using Task = absl::AnyInvocable<void() &&>;

  // Most tasks that wait: each is a call that somebody waits for, and more would only wait longer.
  static constexpr size_t kMaxWaiting = 64;

  explicit Background(int threads);
  // Runs the tasks that wait, and waits for those that run.
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // False, and the task is dropped, if kMaxWaiting tasks wait already.
  bool Run(Task task);

 private:
  void Work();

  absl::Mutex mutex_;
  std::deque<Task> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // constant after construction
};

// What a call ends with whose task was not taken: RESOURCE_EXHAUSTED (LIMIT_EXCEEDED).
absl::Status TooManyWait();

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_BACKGROUND_H_
