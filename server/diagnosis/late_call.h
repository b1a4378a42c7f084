// LateCall: ends a call that waits for workers shortly before its deadline, and names them.
#ifndef SHARDMESH_SERVER_DIAGNOSIS_LATE_CALL_H_
#define SHARDMESH_SERVER_DIAGNOSIS_LATE_CALL_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "server/diagnosis/step_watch.h"
#include "server/state/operation_table.h"

namespace shardmesh::server {

// Asks the workers of a call whether they answer, from StepWatch::kAskBefore before the call gives
// up, and again every kAskEvery: the call may have come to wait for other workers. When the call
// gives up, explains for which workers it waits.
//
// After the destructor returns, no callback runs. Do not destroy it under a lock that a callback
// takes; a callback may destroy it. Thread-safe.
class LateCall {
 public:
  static constexpr absl::Duration kAskEvery = StepWatch::kTimeToAnswer;

  // Returns the workers of the call, at any time. Runs on the clock's thread, without a lock.
  using WorkersCallback = std::function<OperationWorkers()>;
  // Gets the error of StepWatch::ExplainLate, at most once. Runs as WorkersCallback.
  using LateCallback = std::function<void(const absl::Status& late)>;

  // `what` names the call in the error, such as "the save". Clock and watch outlive this object.
  LateCall(Clock* clock, const StepWatch* watch, std::string what, WorkersCallback workers,
           LateCallback late);
  LateCall(const LateCall&) = delete;
  LateCall& operator=(const LateCall&) = delete;

  // Makes the call give up at that time; InfiniteFuture: never. Call it at most once.
  void Start(absl::Time give_up);

 private:
  void Look();

  Clock* const clock_;
  const StepWatch* const watch_;
  const std::string what_;
  const WorkersCallback workers_;
  LateCallback late_;   // only Look uses it, once
  absl::Time give_up_;  // constant after Start
  Alarm next_look_;     // last: its destructor waits for Look
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_DIAGNOSIS_LATE_CALL_H_
