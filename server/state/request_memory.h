// Answers to recent mutations, so that a repeated request gets the first one's answer.
#ifndef SHARDMESH_SERVER_STATE_REQUEST_MEMORY_H_
#define SHARDMESH_SERVER_STATE_REQUEST_MEMORY_H_

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "server/store/store.h"

namespace shardmesh::server {

// The answer to the first request.
struct RememberedAnswer {
  std::string bytes;      // as given to AddTo: a serialised response, opaque here
  Revision revision = 0;  // of its commit: versions of names, ...
};

// Limits of the memory. Beyond a limit the oldest answers are dropped first. A caller over its own
// limit loses answers before others do. A repeated request whose answer was dropped runs again.
struct RequestMemoryLimits {
  int64_t max_answers_per_caller = 20'000;
  int64_t max_bytes_per_caller = int64_t{8} << 20;
  int64_t max_bytes = int64_t{64} << 20;
};

// Returns the key of a request: ids are scoped by caller (an identity, a host, a session) and
// method. Empty for an empty id.
std::string RequestKey(std::string_view caller, std::string_view method,
                       std::string_view request_id);
// The request id of a key, as the client gave it.
std::string_view RequestIdOf(std::string_view key);

// Idempotency cache. The order of calls for a mutation with a request id:
//
// clang-format off
//   Begin -> its transaction, with AddTo -> Finish(revision), or Abandon if it failed.
// clang-format on
//
// The answer is part of the transaction: it is remembered if and only if the mutation happened, for
// kRememberFor, across a restart, within RequestMemoryLimits. Keys in the store: `request/KEY`.
//
// Ids are RequestKey's. An empty id is not remembered: Begin always returns nothing, and the other
// calls have no effect. Thread-safe. Destroy it before its clock; the store outlives both.
class RequestMemory {
 public:
  static constexpr absl::Duration kRememberFor = absl::Minutes(10);
  static constexpr size_t kMaxRequestIdBytes = 192;

  // Loads the answers from the store. Blocks.
  static absl::StatusOr<std::unique_ptr<RequestMemory>> Open(Store* store, rpc::Clock* clock);

  // The limits apply from now on.
  void SetLimits(const RequestMemoryLimits& limits);

  // Begins a request. Nullopt: it is the first with this id, and now runs. Otherwise the answer of
  // the first. `fingerprint` distinguishes requests (a digest of method and contents).
  //
  // clang-format off
  //   ABORTED           the first one is still running; retry after the delay in the error.
  //   INVALID_ARGUMENT  (REQUEST_ID_REUSED) the id was used with another fingerprint; or it is
  //                     longer than kMaxRequestIdBytes.
  // clang-format on
  absl::StatusOr<std::optional<RememberedAnswer>> Begin(std::string_view request_id,
                                                        std::string_view fingerprint);
  // The answer to a completed request; nullopt: none is stored.
  std::optional<RememberedAnswer> Find(std::string_view request_id) const;
  // Adds the answer to the mutation's transaction: one put.
  void AddTo(Transaction* transaction, std::string_view request_id, std::string answer);
  // The transaction was committed.
  void Finish(std::string_view request_id, Revision revision);
  // The mutation failed: the next request with this id counts as the first.
  void Abandon(std::string_view request_id);

 private:
  struct Entry {
    std::string fingerprint;
    std::string answer;
    Revision revision = 0;  // 0: running
    absl::Time expires;     // set with the answer
  };
  using ByExpiry = std::set<std::pair<absl::Time, std::string>>;  // of answers, with their ids
  struct OfCaller {
    int64_t bytes = 0;
    ByExpiry answers;
  };

  RequestMemory(Store* store, rpc::Clock* clock);
  void ForgetOld();
  void Remember(const std::string& id, const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forgets an answer and adds its delete to the transaction; commits the transaction if it is
  // full.
  void Forget(const std::pair<absl::Time, std::string>& answer, Transaction* deletes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Commit(Transaction* deletes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void KeepWithinLimits(std::string_view caller) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Store* const store_;
  rpc::Clock* const clock_;

  mutable absl::Mutex mutex_;
  RequestMemoryLimits limits_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  ByExpiry by_expiry_ ABSL_GUARDED_BY(mutex_);  // done ones
  // callers with answers
  std::map<std::string, OfCaller, std::less<>> callers_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;

  rpc::Alarm expiry_;  // last: its destructor waits for ForgetOld
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_REQUEST_MEMORY_H_
