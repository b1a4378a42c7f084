// One global order of steps for all workers, and exactly one end for each step: commit or abort.
#ifndef SHARDMESH_SERVER_STEPS_SEQUENCER_H_
#define SHARDMESH_SERVER_STEPS_SEQUENCER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "process/event_queue.h"
#include "server/steps/encoded_step.h"
#include "status/reason.h"

namespace shardmesh::server {

// A worker that takes part, in the rank that it serves there.
struct Participant {
  int64_t rank = 0;
  std::string identity;
  // The number of tiles that this rank must report staged. A report can also say that it is done.
  int64_t expected_tiles = 0;
};

// A tile that a rank has staged.
struct StagedTileReport {
  std::string array_id;
  uint32_t crc32c = 0;  // of its bytes, row-major little-endian
  int64_t size_bytes = 0;
  bool on_disk = false;  // synced
};

// A rank's account of a step that it has completed. The sequencer only passes it on.
struct RankReportDetail {
  absl::Duration kernel;
  absl::Duration collective;
  int64_t sent_bytes = 0;
  std::map<std::string, std::string, std::less<>> tile_bytes = {};  // by array, where asked for
};

// A rank's reported results so far.
struct RankResult {
  Participant participant;
  std::vector<StagedTileReport> tiles = {};  // each array once
  RankReportDetail detail = {};              // of the last report
};

// One report of one rank. Tiles of several reports add up.
struct RankReport {
  std::string identity;
  int64_t rank = 0;
  absl::Status status = {};  // an error fails the work
  std::vector<StagedTileReport> tiles = {};
  bool done = false;  // nothing more will come from this rank
  RankReportDetail detail = {};
  // With an error: the worker at fault; empty: this rank itself.
  std::string blamed_identity = {};
};

// The outcome of a finished or failed step or transfer. `sequence` is 0 if it ended before it got a
// number.
struct WorkOutcome {
  absl::Status status;
  int64_t sequence = 0;
  std::vector<RankResult> ranks;  // by participant; only reported ones are filled
};

// Makes an outcome durable before workers get it. Calls `decided` exactly once, from any thread: OK
// commits, an error aborts.
using CommitHook = absl::AnyInvocable<void(const WorkOutcome& outcome,
                                           absl::AnyInvocable<void(absl::Status) &&> decided) &&>;
using WorkCallback = absl::AnyInvocable<void(const WorkOutcome&) &&>;

// A run of a program, or of one op.
struct StepRequest {
  std::string op;       // for people and records: `linear of "x", "w"`
  std::string mesh_id;  // whose ranks the participants are
  std::vector<Participant> participants;
  std::vector<std::string> reads;   // ids of operands
  std::vector<std::string> writes;  // ids of arrays that it makes, and of donated operands
  EncodedStepPtr message;           // for the transport: the same bytes for everyone
  absl::Duration timeout;           // from admission to the last report
  CommitHook commit;                // optional: a step without one commits directly
};

// An upload or a load: workers stage tiles that come from elsewhere, then all commit together.
struct TransferRequest {
  std::string transfer_id;  // not one of a live transfer
  std::string op;           // "put", "load"
  std::string mesh_id;
  std::vector<Participant> participants;
  absl::Duration timeout;  // from Begin to the last report
  CommitHook commit;       // optional, as above
};

// A step or transfer in the form that the transport gets.
struct WorkRef {
  int64_t sequence = 0;          // always set for a step; for a transfer only at its commit, else 0
  std::string transfer_id = {};  // empty for a step
  std::string op = {};
  std::string mesh_id = {};
  int64_t epoch = 0;  // at admission; its messages carry this epoch to the end
  int64_t term = 0;
  absl::Time started = absl::InfinitePast();  // when it was admitted
  absl::Time deadline = absl::InfiniteFuture();
  std::vector<Participant> participants = {};
  std::vector<Participant> blamed = {};  // after a failure: the participants at fault, as far as
                                         // known
  // The participant that blames another one; nullopt if the coordinator does.
  std::optional<Participant> blamed_by = {};
};

// Why a step does not end, as far as it is known.
struct StepExplanation {
  // Which ranks wait for which others, and where; empty: not known.
  std::string text = {};
  // Which ranks wait where: `ranks 0 and 1 waited in "op 0 (...)"`; empty: none, or not known.
  std::string waiting = {};
  std::vector<Participant> blamed = {};
};

// Sends the decisions to the workers. Called in one order, one call at a time, without a lock.
// Sends to each participant in the order of the calls. It neither blocks nor fails: a participant
// that cannot be reached is lost, and gets nothing.
class StepTransport {
 public:
  virtual ~StepTransport() = default;
  virtual void Start(const WorkRef& work, const EncodedStepPtr& message) = 0;
  virtual void Commit(const WorkRef& work) = 0;
  virtual void Abort(const WorkRef& work, const absl::Status& reason) = 0;
};

// Admission: a step waits while an earlier live step shares an operand with it and at least one of
// the two writes it. Then the step gets the next sequence number and starts on all its workers. All
// workers therefore start their steps in one order, and independent steps run at the same time. A
// waiting step holds up later steps that share operands with it.
//
// States:
//
// clang-format off
//   step:      kWaiting -> kRunning -> kCommitting -> committed
//   transfer:  kRunning -> kCommitting -> committed
// clang-format on
//
// Each state except committed can also change to aborted. Work commits when every rank is done (a
// transfer also needs CommitTransfer) and the hook has agreed. It aborts once, with an error that
// names rank, identity, sequence number and op:
//
// clang-format off
//   the rank's own code          a rank reported an error
//   UNAVAILABLE (WORKER_LOST)    a participant was lost
//   DEADLINE_EXCEEDED (DEADLINE) not all reports came in time; names the ranks at fault or, if
//                                these are unknown, the ranks without a report
//   CANCELLED (CANCELLED)        Cancel, AbortTransfer
//   the hook's                   the hook refused
// clang-format on
//
// From kCommitting on only the hook decides.
//
// Thread-safe. Hooks, callbacks and transport calls run without a lock, on a caller's or the
// clock's thread. Each Submit or BeginTransfer that returned OK has its callback called exactly
// once, after the call of the transport. The destructor aborts live work. Destroy it before its
// clock and transport.
class Sequencer {
 public:
  struct Options {
    int64_t term = 1;
    // The last sequence number that may already be in use: new numbers start above it.
    int64_t last_sequence = 0;
    // Most live steps and transfers; further work is refused.
    int64_t max_live = 10'000;
    // Explains a step that is overdue or has lost a worker, and the participants that have not
    // reported. Called under the sequencer's lock. Null: the cause is not known.
    std::function<StepExplanation(const WorkRef& work, const std::vector<Participant>& waiting_for)>
        explain = nullptr;
  };
  // Names a submitted step until its end; never 0.
  using StepTicket = int64_t;

  Sequencer(Clock* clock, StepTransport* transport, Options options);
  ~Sequencer();
  Sequencer(const Sequencer&) = delete;
  Sequencer& operator=(const Sequencer&) = delete;

  // Queues a step; it may be started, and even end, before this returns.
  //   UNAVAILABLE (WORKER_LOST)  a participant is not alive.
  //   RESOURCE_EXHAUSTED         max_live pieces of work are live.
  //   INVALID_ARGUMENT           no participants, one twice, or no timeout.
  absl::StatusOr<StepTicket> Submit(StepRequest request, WorkCallback callback);
  // Aborts a step that has not reached kCommitting; otherwise no effect.
  void Cancel(StepTicket ticket);

  // Begins to collect the reports of a transfer. Same errors, and ALREADY_EXISTS.
  absl::Status BeginTransfer(TransferRequest request, WorkCallback callback);
  // The client has sent everything: commit as soon as every rank is done. A repeated call changes
  // nothing. NOT_FOUND: no such live transfer.
  absl::Status CommitTransfer(std::string_view transfer_id);
  // NOT_FOUND. FAILED_PRECONDITION: it is committing.
  absl::Status AbortTransfer(std::string_view transfer_id, absl::Status reason);

  // Takes a rank's report on a step or transfer. NOT_FOUND: it has ended or never existed, which a
  // late reporter can ignore. ABORTED (STALE_EPOCH, STALE_TERM): the report is of another run.
  // PERMISSION_DENIED: the reporter is not this work's participant in that rank.
  absl::Status ReportStep(int64_t sequence, int64_t epoch, int64_t term, RankReport report);
  absl::Status ReportTransfer(std::string_view transfer_id, int64_t term, RankReport report);

  // Membership events, in their order. The loss of a worker aborts the work that it takes part in.
  // So does a new incarnation, because it does not know that work.
  void WorkerAttached(std::string_view identity, int64_t epoch);
  void WorkerLost(std::string_view identity, int64_t epoch, std::string_view reason);

  // Drains a worker: accepts no further work for it until it attaches again. Calls `idle` once,
  // when no live work needs the worker; at once if it is not attached. Never calls it if the worker
  // is lost first.
  void WorkerLeaves(std::string_view identity, absl::AnyInvocable<void() &&> idle);

  // Refuses new work: Submit and BeginTransfer return UNAVAILABLE (NOT_SERVING) from now on. Waits
  // until all live work has ended, waiting steps included. At `deadline` aborts the rest with
  // UNAVAILABLE (NOT_SERVING), except committing work. Returns how many it aborted.
  int64_t Drain(absl::Time deadline);

  // One item of live work, for status and doctor.
  struct LiveWork {
    WorkRef work;
    std::string state;  // "WAITING", "RUNNING", "COMMITTING"
    std::vector<Participant> waiting_for;
  };
  std::vector<LiveWork> Live() const;

  // How much is live, by state.
  struct LiveCounts {
    int64_t waiting = 0;
    int64_t running = 0;
    int64_t committing = 0;
  };
  LiveCounts CountSteps() const;
  LiveCounts CountTransfers() const;

  // The last sequence number given.
  int64_t last_sequence() const;

 private:
  enum class State { kWaiting, kRunning, kCommitting };
  struct Work;
  struct Operand {
    std::set<StepTicket> users;
    std::set<StepTicket> writers;
  };
  using WorkPtr = std::shared_ptr<Work>;

  LiveCounts Count(bool transfers) const ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckParticipants(std::string_view op, const std::vector<Participant>& participants,
                                 absl::Duration timeout) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status CheckTerm(int64_t term) const;
  absl::StatusOr<WorkPtr> FindTransfer(std::string_view transfer_id) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  StepTicket Add(WorkPtr work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes ended work from operands_. Steps that may have waited for it become admissible_.
  void RemoveOperands(const Work& work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether no earlier live step shares an operand with it such that one of the two writes it.
  bool MayRun(const Work& work) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void Run(Work* work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AdmitWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Report(const WorkPtr& work, RankReport report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CommitIfDone(const WorkPtr& work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Decide(const WorkPtr& work, absl::Status status);
  // Aborts all live work that is not committing, with `code` and the reason after its name; returns
  // the number.
  int64_t AbortLive(absl::StatusCode code, Reason reason, std::string_view why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Calls `idle` of draining workers that no live work needs.
  void TellDrained() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The only end of a piece of work.
  void End(const WorkPtr& work, absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FailIfInvolved(std::string_view identity, std::string_view what)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns nothing once `left` explanations have been given: most steps wait for earlier steps.
  StepExplanation Explain(const Work& work, int64_t* left) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void AbortOverdue();

  Clock* const clock_;
  StepTransport* const transport_;
  const Options options_;

  EventQueue events_;

  mutable absl::Mutex mutex_;
  std::map<StepTicket, WorkPtr> live_ ABSL_GUARDED_BY(mutex_);  // in order of arrival
  std::map<int64_t, WorkPtr> steps_ ABSL_GUARDED_BY(mutex_);    // admitted, by sequence number
  absl::flat_hash_map<std::string, WorkPtr> transfers_ ABSL_GUARDED_BY(mutex_);
  // By array id: the live steps that use the array, and those that write it.
  absl::flat_hash_map<std::string, Operand> operands_ ABSL_GUARDED_BY(mutex_);
  // Waiting steps that may be able to run: new ones, and those for which an earlier step ended.
  std::set<StepTicket> admissible_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string, std::less<>> alive_ ABSL_GUARDED_BY(mutex_);
  // Workers draining, with the callback to run once they are idle (null after it ran).
  std::map<std::string, absl::AnyInvocable<void() &&>, std::less<>> leaving_
      ABSL_GUARDED_BY(mutex_);
  int64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t last_sequence_ ABSL_GUARDED_BY(mutex_) = 0;
  StepTicket next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  int64_t deciding_ ABSL_GUARDED_BY(mutex_) = 0;   // hooks that have not decided
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;  // new work is refused
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;   // waiting steps are not admitted either

  Alarm deadline_;  // last: its destructor waits for AbortOverdue
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_SEQUENCER_H_
