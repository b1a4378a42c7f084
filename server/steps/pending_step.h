// The step of a call, which may be cancelled before it has a ticket.
#ifndef SHARDMESH_SERVER_STEPS_PENDING_STEP_H_
#define SHARDMESH_SERVER_STEPS_PENDING_STEP_H_

#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/steps/sequencer.h"
#include "server/steps/step_runner.h"

namespace shardmesh::server {

// Cancels a step that another thread submits. Thread-safe.
class PendingStep {
 public:
  // Cancels the step, now or when it gets its ticket.
  void Cancel(StepRunner* runner) {
    absl::MutexLock lock(&mutex_);
    is_cancelled_ = true;
    if (ticket_.has_value()) runner->Cancel(*ticket_);
  }

  // Sets the ticket that StepRunner::Run returned. nullopt: there is no step to cancel.
  void Submitted(StepRunner* runner, std::optional<Sequencer::StepTicket> ticket) {
    absl::MutexLock lock(&mutex_);
    ticket_ = ticket;
    if (is_cancelled_ && ticket_.has_value()) runner->Cancel(*ticket_);
  }

  bool is_cancelled() const {
    absl::MutexLock lock(&mutex_);
    return is_cancelled_;
  }

 private:
  mutable absl::Mutex mutex_;
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<Sequencer::StepTicket> ticket_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_PENDING_STEP_H_
