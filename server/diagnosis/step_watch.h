// Watches running steps: combines the facts about their ranks, and gives the verdict.
#ifndef SHARDMESH_SERVER_DIAGNOSIS_STEP_WATCH_H_
#define SHARDMESH_SERVER_DIAGNOSIS_STEP_WATCH_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "server/diagnosis/diagnosis.h"
#include "server/diagnosis/flight_log.h"
#include "server/state/membership.h"
#include "server/state/operation_table.h"
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

  // A call with a deadline calls Ask this time before the deadline, or at its begin if that is
  // later.
  static constexpr absl::Duration kAskBefore = absl::Milliseconds(300);

  // Makes workers send heartbeats at once. Called without a lock.
  using AskCallback = std::function<void(const std::set<std::string>& identities)>;

  // `ask` may be null: Ask then has no effect.
  StepWatch(const Clock* clock, const Membership* membership, const FlightLog* log,
            AskCallback ask = nullptr)
      : clock_(clock), membership_(membership), log_(log), ask_(std::move(ask)) {}

  // A worker that is asked again sooner than this is not sent another question.
  static constexpr absl::Duration kAskInterval = kAskBefore;
  // A worker that was asked more recently than this may still be about to answer.
  static constexpr absl::Duration kTimeToAnswer = absl::Milliseconds(100);

  // Asks the workers of the operation for heartbeats, if they answer such questions
  // (WorkerInfo::answers_clock). ExplainLate and Explain then know which of them answer. Asks all
  // that take part, since the operation may wait for other workers when its time is over. Call it
  // again if the operation may have got other workers: no worker is asked too often.
  void Ask(const OperationWorkers& workers) const ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the explanation of a step or transfer, for Sequencer::Options::explain. Ranks that have
  // not answered Ask while others have count as at fault. For a transfer:
  // which of the participants that it waits for are late, as ExplainLate chooses them. For a
  // transfer that waits for its client: which of them are lost or silent, or do not answer Ask.
  StepExplanation Explain(const WorkRef& work, const std::vector<Participant>& waiting_for) const;

  // Returns the error of a call that waited for an operation until its deadline: DEADLINE_EXCEEDED
  // (DEADLINE). `what` names the operation, such as "the save".
  //
  // The suspects are the workers whose answers the operation waits for, and the sources. If the
  // operation waits for no known worker, they are the workers that take part. A suspect is mute if
  // it has not answered a question of Ask that is kTimeToAnswer old, while some worker that takes
  // part has answered. Workers that Ask does not ask are neither mute nor have they answered.
  //
  // The error names the suspects that are lost, silent or mute, or do not reach their peers. If
  // some are mute, it leaves out those that have answered. If there are no such suspects, it names
  // all workers whose answers the operation waits for, and the sources that have not answered Ask:
  // those whose heartbeats are overdue first, then those that have not answered Ask, of these the
  // sources last, and those with the oldest heartbeats first. If the heartbeats of some are
  // overdue, it leaves out the sources whose heartbeats came in time. The error never names other
  // workers.
  absl::Status ExplainLate(std::string_view what, const OperationWorkers& workers) const;

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
  // A worker that is late, and a sentence that says why it counts as late.
  struct LateWorker {
    std::string identity;
    std::string why;
  };

  // Returns one finding for each worker of a mesh that is lost or silent, or that does not reach
  // its peers. With `wanted`, returns the findings on these workers only.
  std::vector<Finding> FindWorkers(const MembershipView& view, const DiagnosisOptions& options,
                                   const std::set<std::string>* wanted = nullptr) const;
  // Returns the late workers of an operation, as ExplainLate describes them, the most suspect
  // first.
  std::vector<LateWorker> FindLate(const OperationWorkers& workers) const;
  // The last two questions that Ask sent to a worker; InfinitePast: none.
  struct Questions {
    absl::Time last = absl::InfinitePast();
    absl::Time before = absl::InfinitePast();
  };
  // Returns the questions of Ask to the worker; none if they are too old to matter.
  Questions QuestionsTo(const std::string& identity) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Tells whether a worker has answered Ask.
  enum class Answer {
    kNone,     // the worker was not asked, or not long enough ago
    kGiven,    // a heartbeat came since the question
    kMissing,  // no heartbeat came since a question that is kTimeToAnswer old
  };
  // `worker`: null if the worker is not known.
  Answer AnswerOf(const std::string& identity, const WorkerStatus* worker, absl::Time now) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Joins the first reasons, and says how many more there are. Empty if nothing is late.
  static std::string JoinReasons(const std::vector<LateWorker>& late);
  StepExplanation ExplainTransfer(const WorkRef& work,
                                  const std::vector<Participant>& waiting_for) const;
  ObservedRank Observe(const MembershipView& view, int64_t rank, const std::string& identity,
                       int64_t sequence) const;
  ObservedStep Observe(const WorkRef& work, const std::vector<Participant>& waiting_for) const;
  DiagnosisOptions OptionsNow() const;

  const Clock* const clock_;
  const Membership* const membership_;
  const FlightLog* const log_;
  const AskCallback ask_;

  mutable absl::Mutex mutex_;
  // The questions to each worker, without those that are too old to matter.
  mutable std::map<std::string, Questions> asked_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_DIAGNOSIS_STEP_WATCH_H_
