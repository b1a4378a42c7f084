// Answers to recent steps, so that a repeated request does not run its step again.
#ifndef SHARDMESH_SERVER_STATE_STEP_MEMORY_H_
#define SHARDMESH_SERVER_STATE_STEP_MEMORY_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "shardmesh/v1/compute_service.pb.h"

namespace shardmesh::server {

struct StepMemoryOptions {
  absl::Duration remember_for = absl::Minutes(10);
  // Most bytes of answers and their overhead. Beyond it answers are dropped, oldest first: those of
  // the caller over its own limit, or otherwise of the caller with most bytes. The memory still
  // records that they were given.
  int64_t max_bytes = int64_t{64} << 20;
  int64_t max_bytes_per_caller = int64_t{16} << 20;
  // Requests, with or without an answer. Beyond it the oldest are forgotten.
  int64_t max_requests_per_caller = 20'000;
};

// Idempotency cache of steps. It lives as long as the process; so do results without a name, which
// most are. The order of calls for a request:
//
// clang-format off
//   Begin -> Finish, or Abandon if it failed.
// clang-format on
//
// Thread-safe.
class StepMemory {
 public:
  using Answer = std::shared_ptr<const v1::ExecuteResponse>;

  explicit StepMemory(StepMemoryOptions options) : options_(options) {}

  // Null: the request is the first with this key (see RequestKey). Otherwise its answer.
  //   INVALID_ARGUMENT (REQUEST_ID_REUSED)   the first had another fingerprint.
  //   ABORTED, with a retry delay            it still runs.
  //   FAILED_PRECONDITION (REQUEST_ID_REUSED) it was done, and its answer is no longer kept.
  absl::StatusOr<Answer> Begin(const std::string& caller, const std::string& key,
                               std::string_view fingerprint, absl::Time now);
  void Finish(const std::string& key, const v1::ExecuteResponse& answer, absl::Time now);
  void Abandon(const std::string& key);

  int64_t size_bytes() const;

 private:
  struct Entry {
    std::string caller;
    std::string fingerprint;
    bool is_done = false;
    Answer answer;  // null: it runs, or its answer was dropped
    int64_t bytes = 0;
    absl::Time finished;
  };
  struct OfCaller {
    // Keys of finished requests, oldest first; the first `dropped` no longer have an answer.
    std::deque<std::string> done;
    size_t dropped = 0;
    int64_t bytes = 0;
  };
  using Callers = std::map<std::string, OfCaller, std::less<>>;

  // Drops the caller's oldest answer. False: it has none.
  bool DropAnswer(OfCaller* caller) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forgets the caller's oldest request.
  void Forget(OfCaller* caller) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetOld(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const StepMemoryOptions options_;
  mutable absl::Mutex mutex_;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  Callers callers_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time look_again_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_STEP_MEMORY_H_
