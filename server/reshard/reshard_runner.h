// Moves arrays to other layouts: plans a call, moves its arrays, and remembers the answer.
#ifndef SHARDMESH_SERVER_RESHARD_RESHARD_RUNNER_H_
#define SHARDMESH_SERVER_RESHARD_RESHARD_RUNNER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "process/thread_pool.h"
#include "server/reshard/reshard_call.h"
#include "server/reshard/reshard_planning.h"
#include "server/resolve/background.h"
#include "server/state/array_registry.h"
#include "server/state/operation_table.h"
#include "server/state/request_index.h"
#include "server/state/session.h"
#include "server/steps/fill_transport.h"
#include "server/steps/step_runner.h"

namespace shardmesh::server {

// The objects that the runner uses. All of them outlive the runner.
struct ReshardParts {
  ReshardPlanParts plan = {};
  Clock* clock = nullptr;
  ArrayRegistry* registry = nullptr;
  SessionTable* sessions = nullptr;
  OperationTable* operations = nullptr;
  StepRunner* steps = nullptr;
  FillTransport* fill = nullptr;
  std::string token_key = {};  // see rpc/transfer_token.h
  int64_t term = 0;
  // Bytes of all remembered answers, about; the oldest answers are dropped first. The newest answer
  // stays, also if it alone has more.
  int64_t max_remembered_bytes = int64_t{32} << 20;
};

// Callbacks of a reshard to its caller. The runner calls `planned` first, `ended`
// once and last, on any threads. Calls of `moved` come one at a time, under a lock: they must not
// call Cancel.
struct ReshardEvents {
  std::function<void(const ReshardOutline& outline)> planned = nullptr;
  // `done_bytes`: bytes of all tiles of the new arrays that have been committed so far.
  std::function<void(const ReshardedArray& array, int64_t done_bytes)> moved = nullptr;
  // The store's revision after the last commit; 0 if nothing was committed.
  absl::AnyInvocable<void(absl::StatusOr<Revision>)&&> ended = nullptr;
};

// Moves arrays. The phases of a call:
//   checked -> planned, on a thread of the background -> each array moved -> ended
// After each commit a thread of the runner's own begins the next moves: planning a step takes long,
// and commits call back on the store's thread.
// An array on its own mesh moves as a step with one reshard (StepRunner). An array that goes to
// another mesh, or that is on disk and is to stay so, moves as a transfer whose tiles the workers
// fetch from one another (SendArrayFill). An array with partial sums that goes to another mesh does
// both: a step adds them up on its own mesh, and the sums move as a transfer. The sums have no
// name; a coordinator that ends between the two leaves them as an array without a name.
// Each array is moved by itself: its commit moves its name too. After the first failure no further
// array is begun, the arrays that are being moved end by themselves, and the call ends with that
// failure.
//
// A repeated request id in a session gets the answer of the first request, if that succeeded. The
// answers live as long as the process, for kRememberFor at most. Exception: the answer to a call
// about one array with a name is in the store too, without memory and corrections, for the session
// that has ended with the coordinator. A call about a tree needs no answer: a repetition skips what
// has moved.
//
// A call that moves arrays is an operation of OperationTable. Its pieces of work are arrays. Within
// an array that moves as a step, progress is an estimate: the part of its bytes by which the
// workers have received what the plan lets them receive, by their heartbeats. It counts as complete
// with its commit, and nothing counts of an array of which the workers receive nothing.
//
// Thread-safe. All calls must have ended before the sequencer or the runner is destroyed.
class ReshardRunner {
 public:
  static constexpr absl::Duration kRememberFor = absl::Minutes(10);

  // A call that runs.
  class Run;
  using RunPtr = std::shared_ptr<Run>;

  explicit ReshardRunner(const ReshardParts& parts);

  // Starts the call. Returns it for Cancel; null if it has ended already.
  RunPtr Start(ReshardCall call, ReshardEvents events);
  // Ends the call with `reason`, as soon as the arrays that are being moved have been committed or
  // aborted. No effect on a call that has ended.
  static void Cancel(const RunPtr& run, const absl::Status& reason);

 private:
  // The answer to a call, for its repetitions.
  struct Answer {
    ReshardOutline outline;
    std::vector<ReshardedArray> arrays;
    Revision revision = 0;
  };
  using AnswerPtr = std::shared_ptr<const Answer>;
  // The moves of an array that count on the pin of their session.
  struct SourcePin {
    int64_t moves = 0;     // that run
    bool is_new = false;   // one of the moves made the pin
    bool is_kept = false;  // one of the moves has succeeded: the session keeps the array
  };

  absl::StatusOr<AnswerPtr> Find(const ReshardCall& call, const std::string& key);
  // Answers a call of a session that is gone, if the store has the answer; returns whether it did.
  bool AnswerFromStore(const ReshardCall& call, ReshardEvents& events);
  void Remember(const std::string& key, const absl::Status& status, AnswerPtr answer);
  // Makes the session keep an array that is about to move. EndMove must follow if the result is OK.
  // Errors: those of PinForSession.
  absl::Status PinSource(const std::string& session_id, const std::string& array_id);
  // Removes the pin, unless the session had it before, a move has succeeded, or another one runs.
  void EndMove(const std::string& session_id, const std::string& array_id, bool has_moved);

  const ReshardParts parts_;
  absl::Mutex mutex_;
  RequestIndex<AnswerPtr> answers_ ABSL_GUARDED_BY(mutex_);
  // By session and array. Taken before the lock of the sessions.
  absl::Mutex pins_mutex_;
  std::map<std::pair<std::string, std::string>, SourcePin> source_pins_
      ABSL_GUARDED_BY(pins_mutex_);
  // Unbounded, since a refusal would strand a call. A call queues one task for each of its moves
  // that ends, and moves at most kReshardsAtOnce arrays at the same time.
  ThreadPool moves_{2};
  Background background_{2};  // last: its tasks use the members above
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_RESHARD_RESHARD_RUNNER_H_
