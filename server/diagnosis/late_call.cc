// LateCall: looks at the workers of a call while the call's time runs out.
#include "server/diagnosis/late_call.h"

#include <algorithm>
#include <utility>

namespace shardmesh::server {

LateCall::LateCall(Clock* clock, const StepWatch* watch, std::string what, WorkersCallback workers,
                   LateCallback late)
    : clock_(clock),
      watch_(watch),
      what_(std::move(what)),
      workers_(std::move(workers)),
      late_(std::move(late)),
      next_look_(clock, [this] { Look(); }) {}

void LateCall::Start(absl::Time give_up) {
  give_up_ = give_up;
  next_look_.SetNoLaterThan(give_up - StepWatch::kAskBefore);
}

void LateCall::Look() {
  const absl::Time now = clock_->Now();
  const OperationWorkers workers = workers_();
  if (now >= give_up_) {
    // The callback may destroy this object.
    const LateCallback late = std::move(late_);
    return late(watch_->ExplainLate(what_, workers));
  }
  watch_->Ask(workers);
  next_look_.SetNoLaterThan(std::min(now + kAskEvery, give_up_));
}

}  // namespace shardmesh::server
