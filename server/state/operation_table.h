// Long operations that are not puts, such as reshards, saves and repairs: progress, end and owner.
#ifndef SHARDMESH_SERVER_STATE_OPERATION_TABLE_H_
#define SHARDMESH_SERVER_STATE_OPERATION_TABLE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "server/state/session.h"

namespace shardmesh::server {

enum class OperationKind { kPut, kLoad, kSave, kReshard, kRepair, kResize, kReplicate, kGet };

// The bytes that an operation completed in its last seconds. Takes constant memory. Not
// thread-safe.
class ProgressRate {
 public:
  // The time over which a rate is measured.
  static constexpr absl::Duration kWindow = absl::Seconds(5);

  // Records that the operation completed `bytes` at `now`.
  void Add(absl::Time now, int64_t bytes);
  // Returns the rate over the last kWindow, or since `started` if that is later; 0 if nothing was
  // completed in that time.
  int64_t BytesPerSecond(absl::Time now, absl::Time started) const;

 private:
  static constexpr absl::Duration kBucket = absl::Milliseconds(250);
  // kWindow, and the bucket that is not yet over.
  static constexpr size_t kBuckets = 21;
  struct Bucket {
    int64_t index = -1;  // number of kBucket since the epoch
    int64_t bytes = 0;
  };
  std::array<Bucket, kBuckets> buckets_;
};

// The progress of an operation.
struct OperationProgress {
  std::string id;      // 32 hexadecimal digits
  int64_t number = 0;  // see OperationTable::NextNumber
  OperationKind kind = OperationKind::kPut;
  std::string session_id;      // the owner; empty if the coordinator began the operation by itself
  int64_t session_number = 0;  // SessionInfo::number; 0 if there is no owner
  bool is_detached = false;    // the operation goes on when the owner ends
  std::string description;     // for people
  // Whether the operation has ended; if so, `status` is its result. CANCELLED: it was cancelled.
  bool ended = false;
  absl::Status status;
  int64_t done = 0;  // pieces of work; for a put, tiles
  int64_t total = 0;
  int64_t done_bytes = 0;
  int64_t total_bytes = 0;
  absl::Time started;
  absl::Time finished = absl::InfiniteFuture();
  // While the operation runs: over the last ProgressRate::kWindow. Afterwards: over its whole time.
  int64_t bytes_per_second = 0;

  // Returns how long the remaining bytes take at bytes_per_second. Nullopt if that cannot be
  // estimated: the operation has ended, has no total yet, or completed nothing in the last seconds.
  std::optional<absl::Duration> TimeLeft() const;
};

// The workers of an operation, by identity.
struct OperationWorkers {
  std::set<std::string> waiting_for = {};  // whose answers it waits for now
  std::set<std::string> sources = {};      // that send tiles to those, as far as they are known
  std::set<std::string> taking_part = {};  // all that take part now, as far as they are known

  void Add(OperationWorkers others) {
    waiting_for.merge(others.waiting_for);
    sources.merge(others.sources);
    taking_part.merge(others.taking_part);
  }
};

// Returns the workers in the fact `identity` of an error, such as of MeshEndpoints::CheckReady.
std::set<std::string> WorkersNamedBy(const absl::Status& error);

// Sets `progress.bytes_per_second` for the time `now`. `rate`: of the operation's done_bytes.
void SetRate(const ProgressRate& rate, absl::Time now, OperationProgress& progress);

// States of an operation: Begin -> running -> End -> remembered -> forgotten.
//
// The code that carries out an operation calls Begin, SetTotal, Add and End. A cancellation only
// asks that code to stop: it calls the operation's CancelCallback, and the operation runs until its
// End. The end of the owning session cancels the operation, unless the operation is detached.
//
// Thread-safe. Callbacks run without a lock. Methods that take an id and return nothing ignore an
// id that is unknown or of an ended operation.
class OperationTable {
 public:
  // Asks the operation to end with `reason`, and returns at once. FAILED_PRECONDITION: the
  // operation is being committed and can no longer be cancelled. Runs on any thread, perhaps before
  // Begin has returned, perhaps several times at once, and, for a call that raced with End, after
  // End; so it owns what it uses, or that outlives all calls of the table. May call End.
  using CancelCallback = std::function<absl::Status(const absl::Status& reason)>;

  // Time for which an ended operation is remembered.
  static constexpr absl::Duration kRememberFor = absl::Minutes(10);
  // Maximum number of ended operations that are remembered; the oldest are dropped first.
  static constexpr size_t kMaxEnded = 10'000;
  // Returns the workers of an operation. Runs on any thread, without a lock, perhaps several times
  // at once, and, for a call that raced with End, after End; so it owns what it uses, or that
  // outlives all calls of the table.
  using WorkersCallback = std::function<OperationWorkers()>;
  // Maximum length of a description in bytes; the rest is cut off.
  static constexpr size_t kMaxDescription = 1'000;

  // Both outlive the table.
  OperationTable(Clock* clock, SessionTable* sessions) : clock_(clock), sessions_(sessions) {}

  // Returns a new number: they rise by one, from 1. Puts draw their numbers here too, so the
  // numbers order the operations of all kinds by their beginning.
  int64_t NextNumber() { return last_number_.fetch_add(1, std::memory_order_relaxed) + 1; }

  // Begins an operation and returns its id. `session_id`: the owner; empty if the coordinator
  // begins the operation by itself. `session_number`: Session::number of the owner. `cancel` may be
  // null: the operation cannot be cancelled. Errors, with an owner, and not detached: those of
  // SessionTable::AddTransfer.
  absl::StatusOr<std::string> Begin(OperationKind kind, std::string description,
                                    const std::string& session_id, int64_t session_number,
                                    CancelCallback cancel, bool is_detached = false);
  // Sets what the operation has to do in all: pieces of work, and their bytes. At least what is
  // done already.
  void SetTotal(std::string_view id, int64_t pieces, int64_t bytes);
  // Replaces the description.
  void SetDescription(std::string_view id, std::string description);
  // Says how to find the workers of the operation beside those of its steps and transfers, which
  // the sequencer knows.
  void SetWorkers(std::string_view id, WorkersCallback workers);
  // Adds completed work. If `part` is not empty, the work is that of SetPart, or the rest of it.
  void Add(std::string_view id, int64_t pieces, int64_t bytes, std::string_view part = {});
  // Sets the completed bytes of a piece of work that is not complete, so that the progress moves
  // within large pieces. `part` names the piece until Add. The bytes of a part never fall.
  void SetPart(std::string_view id, const std::string& part, int64_t bytes);
  // Ends the operation, and then calls its OnEnd callbacks.
  void End(std::string_view id, const absl::Status& status);

  // Calls `ended` when the operation has ended; at once if it has ended or never existed. Returns a
  // number for DropOnEnd; 0 if `ended` was called at once.
  int64_t OnEnd(std::string_view id, absl::AnyInvocable<void() &&> ended);
  // Destroys a callback that is no longer wanted. No effect once End has taken the callback: it
  // then still runs.
  void DropOnEnd(std::string_view id, int64_t number);

  // Cancels an operation. Has no effect if the operation has ended. NOT_FOUND: no such operation,
  // or it ended more than kRememberFor ago. PERMISSION_DENIED (NOT_OWNER): another session began
  // the operation, or the coordinator did. FAILED_PRECONDITION: the operation cannot be cancelled,
  // or no longer.
  absl::Status Cancel(std::string_view id, std::string_view session_id);
  // The same for any operation, with a reason of the caller's. The coordinator itself calls it, for
  // an administrator or because the operation's session has ended.
  absl::Status CancelFor(std::string_view id, const absl::Status& reason);

  // Returns the progress of an operation. NOT_FOUND: as Cancel.
  absl::StatusOr<OperationProgress> Progress(std::string_view id) const;

  // Returns the workers of a running operation by its SetWorkers. None if the operation has ended
  // or is unknown, or if SetWorkers was not called.
  OperationWorkers WorkersOf(std::string_view id) const;

  // A page of the operations that run or are remembered.
  struct Listed {
    std::vector<OperationProgress> operations;  // by rising number
    // The number of the last operation that was examined, after which the next page starts; 0 on
    // the last page.
    int64_t next_after = 0;
  };
  // Returns the operations with numbers above `after` for which `is_wanted` is true, at most
  // `limit`. Examines a bounded number of operations, so a page may have fewer operations, or none,
  // although more follow. `is_wanted` runs under the lock.
  Listed List(int64_t after, int64_t limit,
              const std::function<bool(const OperationProgress&)>& is_wanted) const;
  // Returns the number of running operations.
  int64_t CountRunning() const;

 private:
  struct Operation {
    OperationProgress progress;
    ProgressRate rate;
    CancelCallback cancel;                                   // null once the operation has ended
    WorkersCallback workers;                                 // likewise
    std::map<std::string, int64_t, std::less<>> parts = {};  // bytes by SetPart
    std::map<int64_t, absl::AnyInvocable<void() &&>> on_end;
    int64_t last_on_end = 0;  // the last key in on_end
  };
  using OperationPtr = std::shared_ptr<Operation>;

  // Returns null if there is no such operation.
  OperationPtr Find(std::string_view id) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  OperationProgress ProgressOf(const Operation& operation) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool IsForgotten(const OperationProgress& progress) const;
  void Forget() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Clock* const clock_;
  SessionTable* const sessions_;
  std::atomic<int64_t> last_number_ = 0;

  mutable absl::Mutex mutex_;
  // The mutex also guards the objects that these maps point to.
  std::map<std::string, OperationPtr, std::less<>> operations_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, OperationPtr> by_number_ ABSL_GUARDED_BY(mutex_);
  std::deque<OperationPtr> ended_ ABSL_GUARDED_BY(mutex_);  // oldest first
};

// The error of a call about an operation that is unknown or forgotten: NOT_FOUND (NOT_FOUND).
absl::Status NoOperation(std::string_view id);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_OPERATION_TABLE_H_
