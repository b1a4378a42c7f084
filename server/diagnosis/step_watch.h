// Watches running steps: combines the facts about their ranks, and gives the verdict.
#ifndef SHARDMESH_SERVER_DIAGNOSIS_STEP_WATCH_H_
#define SHARDMESH_SERVER_DIAGNOSIS_STEP_WATCH_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "process/clock.h"
#include "server/diagnosis/diagnosis.h"
#include "server/diagnosis/flight_log.h"
#include "server/state/membership.h"
#include "server/steps/sequencer.h"

namespace shardmesh::server {

// Judges running and failed steps. Thread-safe. Membership, log and clock outlive this object.
class StepWatch {
 public:
  // A step whose ranks have waited for less than this time is in progress, not stuck.
  static constexpr absl::Duration kStuckAfter = absl::Seconds(1);
  // Diagnose reports a step that failed longer ago than this only if the caller gives the step's
  // number.
  static constexpr absl::Duration kFailedWithin = absl::Minutes(5);

  StepWatch(const Clock* clock, const Membership* membership, const FlightLog* log)
      : clock_(clock), membership_(membership), log_(log) {}

  // Returns the explanation of a step, for Sequencer::Options::explain.
  StepExplanation Explain(const WorkRef& work, const std::vector<Participant>& waiting_for) const;

  // Returns the error of a call that waited for an operation until its deadline: DEADLINE_EXCEEDED
  // (DEADLINE). The error names the workers that serve a rank and are lost or silent, or do not
  // reach their peers. `waiting_for` lists the workers whose answers the operation waits for; empty
  // if that is not known. If it is known, the error names no other workers: those of the list that
  // are silent, or else all. `what` names the operation, such as "the save".
  absl::Status ExplainLate(std::string_view what,
                           absl::Span<const std::string> waiting_for = {}) const;

  struct Verdict {
    // The whole verdict in one sentence.
    std::string sentence;
    // In this order: stuck steps, failed steps from the last to the first, workers, arrays,
    // unreadable records.
    std::vector<Finding> findings;
  };
  // Returns the verdict on one step, or on all steps if `sequence` is 0. The verdict is derived
  // from the live work, the workers, the arrays and the unreadable records.
  Verdict Diagnose(int64_t sequence, const std::vector<Sequencer::LiveWork>& live,
                   int64_t degraded_arrays = 0, const UnreadableRecords& unreadable = {}) const;

 private:
  // Returns one finding for each worker of a mesh that is lost or silent, or that does not reach
  // its peers.
  std::vector<Finding> FindWorkers(const MembershipView& view,
                                   const DiagnosisOptions& options) const;
  ObservedRank Observe(const MembershipView& view, int64_t rank, const std::string& identity,
                       int64_t sequence) const;
  ObservedStep Observe(const WorkRef& work, const std::vector<Participant>& waiting_for) const;
  DiagnosisOptions OptionsNow() const;

  const Clock* const clock_;
  const Membership* const membership_;
  const FlightLog* const log_;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_DIAGNOSIS_STEP_WATCH_H_
