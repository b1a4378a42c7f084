// Idempotency cache of mutations: a repeated request gets the answer to the first request.
#ifndef SHARDMESH_SERVER_STATE_REQUEST_MEMORY_H_
#define SHARDMESH_SERVER_STATE_REQUEST_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "server/state/request_index.h"
#include "server/store/store.h"

namespace shardmesh::server {

// The stored answer to a request.
struct RememberedAnswer {
  std::string bytes;      // as passed to AddTo: a serialised response, opaque here
  Revision revision = 0;  // revision of the commit, e.g. for versions of names
};

// Limits of the memory. Beyond a limit, the oldest answers are dropped first. A caller over its own
// limit loses answers before other callers do. If the answer to a request was dropped, a repetition
// of that request runs again.
struct RequestMemoryLimits {
  int64_t max_answers_per_caller = 20'000;
  int64_t max_bytes_per_caller = int64_t{8} << 20;
  int64_t max_bytes = int64_t{64} << 20;
};

// Idempotency cache. The order of calls for a mutation with a request id:
//
// clang-format off
//   Begin -> its transaction, with AddTo -> Finish(revision), or Abandon if the mutation failed.
// clang-format on
//
// The answer is part of the mutation's transaction, so it is stored if and only if the mutation
// happened. An answer stays for kRememberFor, also across a restart, within RequestMemoryLimits.
// Keys in the store: `request/KEY`.
//
// A request id here is a key made by RequestKey. For an empty id nothing is remembered: Begin
// returns nullopt, and the other calls have no effect. Thread-safe. Destroy this object before its
// clock. The store must outlive both.
class RequestMemory {
 public:
  static constexpr absl::Duration kRememberFor = absl::Minutes(10);
  static constexpr size_t kMaxRequestIdBytes = 192;

  // Loads the answers from the store. Blocks.
  static absl::StatusOr<std::unique_ptr<RequestMemory>> Open(Store* store, Clock* clock);

  // Sets the limits for later answers.
  void SetLimits(const RequestMemoryLimits& limits);

  // Begins a request. Returns nullopt if the request is the first with this id; the request then
  // counts as running. If the first request was completed, returns its answer. `fingerprint` is a
  // digest of method and contents, and detects a different request with the same id.
  //
  // clang-format off
  //   ABORTED           the first request is still running; retry after the delay in the error.
  //   INVALID_ARGUMENT  (REQUEST_ID_REUSED) the id was used with another fingerprint; or it is
  //                     longer than kMaxRequestIdBytes.
  // clang-format on
  absl::StatusOr<std::optional<RememberedAnswer>> Begin(std::string_view request_id,
                                                        std::string_view fingerprint);
  // Returns the answer to a completed request; nullopt if none is stored.
  std::optional<RememberedAnswer> Find(std::string_view request_id) const;
  // Adds the answer to the mutation's transaction, as one put.
  void AddTo(Transaction* transaction, std::string_view request_id, std::string answer);
  // Records that the mutation's transaction was committed.
  void Finish(std::string_view request_id, Revision revision);
  // Records that the mutation failed: the next request with this id counts as the first.
  void Abandon(std::string_view request_id);

 private:
  using Index = RequestIndex<RememberedAnswer>;

  RequestMemory(Store* store, Clock* clock);
  void ForgetOld();
  // Keeps the answer to a running request.
  void Remember(std::string_view request_id, RememberedAnswer answer, absl::Time expires)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds the deletion of a forgotten answer to the transaction. Commits the transaction if it is
  // full.
  void Delete(std::string_view request_id, Transaction* deletes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Commit(Transaction* deletes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void KeepWithinLimits(std::string_view caller) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Store* const store_;
  Clock* const clock_;

  mutable absl::Mutex mutex_;
  RequestMemoryLimits limits_ ABSL_GUARDED_BY(mutex_);
  Index index_ ABSL_GUARDED_BY(mutex_);

  Alarm expiry_;  // last: its destructor waits for ForgetOld
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_REQUEST_MEMORY_H_
