// Idempotency cache of steps: a repeated request does not run its step again.
#ifndef SHARDMESH_SERVER_STATE_STEP_MEMORY_H_
#define SHARDMESH_SERVER_STATE_STEP_MEMORY_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/state/request_index.h"
#include "shardmesh/v1/compute_service.pb.h"

namespace shardmesh::server {

struct StepMemoryOptions {
  absl::Duration remember_for = absl::Minutes(10);
  // The maximum number of bytes of answers, including their overhead. Beyond a limit, the oldest
  // answers are dropped. If one caller exceeds its limit, answers of that caller are dropped. If
  // all callers together exceed `max_bytes`, answers of the caller with the most bytes are dropped.
  // The memory still knows that requests with dropped answers were answered.
  int64_t max_bytes = int64_t{64} << 20;
  int64_t max_bytes_per_caller = int64_t{16} << 20;
  // The maximum number of requests of one caller, with or without an answer. Beyond the limit, the
  // caller's oldest requests are forgotten.
  int64_t max_requests_per_caller = 20'000;
};

// Idempotency cache of steps. The cache lives only as long as the process. That suffices: most
// results of steps have no name, and also live only as long as the process. The order of calls for
// a request:
//
// clang-format off
//   Begin -> Finish, or Abandon if the step failed.
// clang-format on
//
// Thread-safe.
class StepMemory {
 public:
  using Answer = std::shared_ptr<const v1::ExecuteResponse>;

  explicit StepMemory(StepMemoryOptions options);

  // Returns null if the request is the first with this key (see RequestKey). If the first request
  // has an answer, returns that answer. Errors:
  //   INVALID_ARGUMENT (REQUEST_ID_REUSED)   the first request had another fingerprint.
  //   ABORTED, with a retry delay            the first request is still running.
  //   FAILED_PRECONDITION (REQUEST_ID_REUSED) the step was done, but its answer is no longer kept.
  absl::StatusOr<Answer> Begin(std::string_view caller, std::string_view key,
                               std::string_view fingerprint, absl::Time now);
  void Finish(std::string_view key, const v1::ExecuteResponse& answer, absl::Time now);
  void Abandon(std::string_view key);

  int64_t size_bytes() const;

 private:
  const StepMemoryOptions options_;
  mutable absl::Mutex mutex_;
  RequestIndex<Answer> index_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_STEP_MEMORY_H_
