// Gives all steps one global order across workers, and ends each step exactly once: by commit or
// abort.
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
#include "program/flight_record.h"
#include "server/state/operation_table.h"
#include "server/steps/encoded_step.h"
#include "status/reason.h"

namespace shardmesh::server {

// A worker that takes part in a step or transfer, and the rank that it serves there.
struct Participant {
  int64_t rank = 0;
  std::string identity;
  // The rank is done once it has reported this number of staged tiles, or once a report says that
  // it is done. 0: only such a report makes the rank done.
  int64_t expected_tiles = 0;
};

// A tile that a rank has staged.
struct StagedTileReport {
  std::string array_id;
  uint32_t crc32c = 0;  // CRC of the tile's bytes in row-major little-endian order
  int64_t size_bytes = 0;
  bool on_disk = false;  // the tile is on disk, and synced
};

// A rank's figures about its completed part of a step. The sequencer passes the figures on
// unchanged.
struct RankReportDetail {
  absl::Duration kernel;
  absl::Duration collective;
  int64_t sent_bytes = 0;
  absl::Duration queued =
      absl::ZeroDuration();  // how long the step waited for others on the worker
  // Bytes of the rank's tiles, by array id. Only if the step returns literals.
  std::map<std::string, std::string, std::less<>> tile_bytes = {};
  std::optional<RankTrace> trace = {};  // only if the step returns its timeline
};

// The results that a rank has reported so far.
struct RankResult {
  Participant participant;
  std::vector<StagedTileReport> tiles = {};  // at most one tile of each array
  RankReportDetail detail = {};              // from the rank's last report
};

// One report of one rank. A rank may send several reports; their tiles add up.
struct RankReport {
  std::string identity;
  int64_t rank = 0;
  absl::Status status = {};  // an error fails the step or transfer
  std::vector<StagedTileReport> tiles = {};
  bool done = false;  // the rank will report nothing more
  RankReportDetail detail = {};
  // Identity of the worker at fault for an error. Empty: the worker of the reporting rank.
  std::string blamed_identity = {};
};

// The outcome of a finished or failed step or transfer. `sequence` is 0 if the step or transfer
// ended before it got a number.
struct WorkOutcome {
  absl::Status status;
  int64_t sequence = 0;
  std::vector<RankResult> ranks;  // in the order of participants; ranks without a report are empty
  int64_t epoch = 0;              // WorkRef::epoch
  // When the sequencer let the work run, after the earlier steps that it had to wait for;
  // InfinitePast if it never did.
  absl::Time started = absl::InfinitePast();
};

// Makes the outcome of work durable before the workers get the outcome. Calls `decided` exactly
// once, from any thread. OK commits the work; an error aborts it.
using CommitHook = absl::AnyInvocable<void(const WorkOutcome& outcome,
                                           absl::AnyInvocable<void(absl::Status) &&> decided) &&>;
using WorkCallback = absl::AnyInvocable<void(const WorkOutcome&) &&>;

// Steps that depend on each other, in the order in which they are submitted. If one fails, the
// later ones that are not committing end with ABORTED (CANCELLED), and so do those that are
// submitted after it has failed.
class StepChain {
 private:
  friend class Sequencer;
  absl::Status failure_;  // of the first step that failed; used under the sequencer's lock
};

// A run of a program, or of one op.
struct StepRequest {
  std::string op;       // description in messages and records, such as `linear of "x", "w"`
  std::string mesh_id;  // the participants serve ranks of this mesh
  std::vector<Participant> participants;
  std::vector<std::string> reads;   // ids of operands
  std::vector<std::string> writes;  // ids of arrays that it makes or updates, and donated operands
  EncodedStepPtr message;           // the transport sends the same bytes to all participants
  absl::Duration timeout;           // from admission to the last report
  // From Submit to the last report, with the wait for earlier steps.
  absl::Duration total_timeout = absl::InfiniteDuration();
  CommitHook commit;  // null: the step commits without a hook
  // If set: called while the step runs with the bytes that a participant has received so far, by
  // its last heartbeat. A last call may come when the step has just ended.
  std::function<void(std::string_view identity, int64_t bytes)> received = nullptr;
  std::string operation_id = {};               // as WorkRef
  std::shared_ptr<StepChain> chain = nullptr;  // null: the step is of no chain
};

using IdentitiesPtr = std::shared_ptr<const std::vector<std::string>>;

// An upload or a load: workers stage tiles that do not come from a step, then all workers commit
// together.
struct TransferRequest {
  std::string transfer_id;  // differs from the ids of all live transfers
  std::string op;           // "put", "load"
  std::string mesh_id;
  std::vector<Participant> participants;
  absl::Duration timeout;           // from BeginTransfer to the last report
  CommitHook commit;                // null: the transfer commits without a hook
  std::string operation_id = {};    // as WorkRef; empty: the transfer is the operation
  IdentitiesPtr sources = nullptr;  // as WorkRef
};

// The data of a step or transfer that the transport gets.
struct WorkRef {
  int64_t sequence = 0;          // 0 for a transfer before its commit
  std::string transfer_id = {};  // empty for a step
  // The long operation that the work is a part of; empty: none. See WorkersOf.
  std::string operation_id = {};
  // For a transfer: the workers from which the participants fetch tiles. Null: none, or not known.
  IdentitiesPtr sources = nullptr;
  bool commit_asked = true;  // false: a transfer that waits for CommitTransfer
  std::string op = {};
  std::string mesh_id = {};
  int64_t epoch = 0;  // version of the membership at admission; in all messages of this work
  int64_t term = 0;
  absl::Time started = absl::InfinitePast();  // when the work was admitted
  absl::Time deadline = absl::InfiniteFuture();
  std::vector<Participant> participants = {};
  // After a failure: the participants at fault, if they are known.
  std::vector<Participant> blamed = {};
  // After a failure: the participant whose report blamed another worker. Nullopt if the blamed
  // participant reported the failure itself, or if the coordinator blames it.
  std::optional<Participant> blamed_by = {};
};

// The known reasons why a step or transfer does not end.
struct StepExplanation {
  // Which ranks wait for which other ranks, and in which instruction. For a transfer: which workers
  // have not answered, and since when. Empty: not known.
  std::string text = {};
  // Which ranks wait in which instruction: `ranks 0 and 1 waited in "op 0 (...)"`; empty: none, or
  // not known.
  std::string waiting = {};
  std::vector<Participant> blamed = {};
  // For a transfer: the late workers, of which some may only be its sources.
  std::vector<std::string> late = {};
};

// Sends the sequencer's decisions to the workers. The sequencer makes one call at a time, in the
// order of the decisions, without a lock. Implementations send to each participant in the order of
// the calls, and do not block. A participant that cannot be reached gets nothing.
class StepTransport {
 public:
  virtual ~StepTransport() = default;
  // Returns a participant that cannot be reached although it is attached: it has attached over
  // another stream, which gets no steps yet. The sequencer aborts the step. Nullopt: there is none.
  virtual std::optional<Participant> Start(const WorkRef& work, const EncodedStepPtr& message) = 0;
  virtual void Commit(const WorkRef& work) = 0;
  virtual void Abort(const WorkRef& work, const absl::Status& reason) = 0;
};

// Admission: a step waits while an earlier live step shares an operand with it and at least one of
// the two steps writes that operand. An admitted step gets the next sequence number and starts on
// all its workers. All workers therefore start their steps in the same order, and independent steps
// run at the same time. A waiting step holds up later steps that share operands with it.
//
// States:
//
// clang-format off
//   step:      kWaiting -> kRunning -> kCommitting -> committed
//   transfer:  kRunning -> kCommitting -> committed
// clang-format on
//
// Each state except committed can also change to aborted. Work commits when every rank is done (a
// transfer also needs CommitTransfer) and the hook has agreed. Work aborts at most once. The error
// names rank, identity, sequence number and op, as far as they apply:
//
// clang-format off
//   the rank's own code          a rank reported an error
//   UNAVAILABLE (WORKER_LOST)    a participant was lost, or attaches again
//   DEADLINE_EXCEEDED (DEADLINE) not all reports came in time; names the ranks at fault or, if
//                                these are unknown, the ranks without a report
//                                (without CommitTransfer: only lost or silent ones); for a step
//                                that was not admitted: those of the step that it waits for
//   CANCELLED (CANCELLED)        Cancel, AbortTransfer
//   the hook's                   the hook refused
// clang-format on
//
// From kCommitting on, only the hook decides whether the work commits.
//
// Thread-safe. Hooks, callbacks and transport calls run without a lock, on a caller's or the
// clock's thread. Each Submit or BeginTransfer that returned OK has its callback called exactly
// once, after the transport call that ends the work. The destructor aborts live work. Destroy the
// sequencer before its clock and transport.
class Sequencer {
 public:
  struct Options {
    int64_t term = 1;
    // The last sequence number that an earlier run of the coordinator may have used. New numbers
    // start above it.
    int64_t last_sequence = 0;
    // Maximum number of live steps and transfers. Above this limit, further work is refused.
    int64_t max_live = 10'000;
    // Explains a step that is overdue or has lost a worker, or a transfer that is overdue.
    // `waiting_for`: the participants that have not reported. Called under the sequencer's lock.
    // Null: no explanations.
    std::function<StepExplanation(const WorkRef& work, const std::vector<Participant>& waiting_for)>
        explain = nullptr;
    // Asks the workers that a step waits for what they do, so that `explain` knows it at the step's
    // deadline. Called without a lock, once for each step that lives that long: `ask_before` before
    // the deadline, or after half of the step's time if that is later. Null: nobody is asked.
    std::function<void(const std::set<std::string>& identities)> ask = nullptr;
    absl::Duration ask_before = absl::ZeroDuration();
  };
  // Identifies a submitted step until its end; never 0.
  using StepTicket = int64_t;

  Sequencer(Clock* clock, StepTransport* transport, Options options);
  ~Sequencer();
  Sequencer(const Sequencer&) = delete;
  Sequencer& operator=(const Sequencer&) = delete;

  // Queues a step. The step may start, and even end, before this function returns.
  //   UNAVAILABLE (WORKER_LOST)  a participant is not alive.
  //   RESOURCE_EXHAUSTED         max_live steps and transfers are live.
  //   INVALID_ARGUMENT           a participant is named twice, or there are none, or no timeout.
  //   ABORTED (CANCELLED)        an earlier step of the chain has failed.
  absl::StatusOr<StepTicket> Submit(StepRequest request, WorkCallback callback);
  // Aborts a step. No effect if the step has reached kCommitting or has ended.
  void Cancel(StepTicket ticket);

  // Starts a transfer: collects the reports of its participants. Errors: those of Submit.
  // ALREADY_EXISTS: a live transfer has this id.
  absl::Status BeginTransfer(TransferRequest request, WorkCallback callback);
  // Called when the client has sent everything. The transfer commits as soon as every rank is done.
  // A repeated call changes nothing. NOT_FOUND: no such live transfer.
  absl::Status CommitTransfer(std::string_view transfer_id);
  // Aborts the transfer. NOT_FOUND: no such live transfer. FAILED_PRECONDITION: the transfer is
  // committing.
  absl::Status AbortTransfer(std::string_view transfer_id, absl::Status reason);

  // Takes a rank's report on a step or transfer. NOT_FOUND: the work has ended or never existed; a
  // late reporter can ignore this error. ABORTED (STALE_TERM): the report belongs to another run of
  // the coordinator. ABORTED (STALE_EPOCH): the step has another epoch. PERMISSION_DENIED: the
  // reporter does not serve that rank in this work.
  absl::Status ReportStep(int64_t sequence, int64_t epoch, int64_t term, RankReport report);
  absl::Status ReportTransfer(std::string_view transfer_id, int64_t term, RankReport report);

  // Passes on how many bytes other workers have sent to this participant for a change of layout by
  // the step. No effect if the step does not run, or if the worker takes no part in it.
  void StepReceived(int64_t sequence, std::string_view identity, int64_t bytes);

  // Membership events. The caller passes them in the order in which they happened. The loss of a
  // worker aborts the work that the worker takes part in. A new incarnation of the worker does the
  // same, because the new process does not know the work.
  void WorkerAttached(std::string_view identity, int64_t epoch);
  void WorkerLost(std::string_view identity, int64_t epoch, std::string_view reason);

  // Drains a worker: accepts no further work for the worker until it attaches again. Calls `idle`
  // once, when no live work needs the worker; at once if the worker is not attached. If the worker
  // is lost first, `idle` is never called.
  void WorkerLeaves(std::string_view identity, absl::AnyInvocable<void() &&> idle);

  // Refuses new work: Submit and BeginTransfer return UNAVAILABLE (NOT_SERVING) from now on. Waits
  // until all live work has ended, waiting steps included. At `deadline` aborts the remaining work
  // with UNAVAILABLE (NOT_SERVING), except committing work. Returns how many steps and transfers it
  // aborted.
  int64_t Drain(absl::Time deadline);

  // One live step or transfer, for status pages and `shardmesh doctor`.
  struct LiveWork {
    WorkRef work;
    std::string state;  // "WAITING", "RUNNING", "COMMITTING"
    std::vector<Participant> waiting_for;
  };
  std::vector<LiveWork> Live() const;

  // Returns the workers of the live work of an operation; none if it has no live work. A transfer
  // for which CommitTransfer was not called waits for its client, and not for its workers. A step
  // that was not admitted yet waits for other steps, and not for its workers.
  OperationWorkers WorkersOf(std::string_view operation_id) const;
  // Returns the workers of all these operations together.
  OperationWorkers WorkersOfAll(const std::set<std::string, std::less<>>& operation_ids) const;

  // Numbers of live steps and transfers, by state.
  struct LiveCounts {
    int64_t waiting = 0;
    int64_t running = 0;
    int64_t committing = 0;
  };
  LiveCounts CountSteps() const;
  LiveCounts CountTransfers() const;

  // The coordinator's term, which is in all reports.
  int64_t term() const { return options_.term; }

  // The last sequence number that a step or transfer got.
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
  // Removes ended work from operands_. Adds the steps that may have waited for this work to
  // admissible_.
  void RemoveOperands(const Work& work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether a waiting step may run now: no earlier live step shares an operand with it that one of
  // the two steps writes.
  bool MayRun(const Work& work) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Returns the live work that a waiting step waits for and that does not wait itself; null if
  // there is none. The step may wait for that work through other waiting steps.
  const Work* FindBlocker(const Work& step) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void Run(Work* work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the time at which Options::ask is to be called for a step; InfiniteFuture: never, or it
  // was called.
  absl::Time AskTimeOf(const Work& work) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Makes the alarm ring for the next event of the work: its question or its deadline.
  void SetAlarmFor(const Work& work) ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void AdmitWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Report(const WorkPtr& work, RankReport report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CommitIfDone(const WorkPtr& work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Decide(const WorkPtr& work, absl::Status status);
  // Aborts all live work that is not committing. The error has `code`, `reason` and a text of the
  // work's name and `why`. Returns the number of aborted steps and transfers.
  int64_t AbortLive(absl::StatusCode code, Reason reason, std::string_view why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Calls `idle` of each draining worker that no live work needs.
  void TellDrained() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends the later steps of the chain of a step that has failed, except those that are committing.
  void FailChain(const Work& failed, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends a step or transfer. All ends go through this function. No effect if it has ended already.
  void End(const WorkPtr& work, absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FailIfInvolved(std::string_view identity, std::string_view what)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Aborts work because a participant has gone. `what` happened to the participant. `waiting` says
  // which ranks waited where; empty: not known.
  void FailFor(const WorkPtr& work, const Participant& participant, std::string_view what,
               std::string_view waiting) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Passes an admitted step to the transport.
  void Start(const WorkPtr& work, const WorkRef& ref, const EncodedStepPtr& message)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Explains a step or transfer. Each explanation of one call lowers `*left` by one; at 0 the
  // result is empty. A few explanations suffice, because most steps only wait for earlier steps.
  StepExplanation Explain(const Work& work, int64_t* left) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Returns the error of work whose time is over, and sets whom it blames. `left`: as for Explain.
  absl::Status OverdueError(Work& work, int64_t* left) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Aborts the work whose time is over, and asks the workers of steps whose time is over soon.
  void HandleDeadlines();

  Clock* const clock_;
  StepTransport* const transport_;
  const Options options_;

  EventQueue events_;

  mutable absl::Mutex mutex_;
  // Live steps and transfers, in order of arrival.
  std::map<StepTicket, WorkPtr> live_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, WorkPtr> steps_ ABSL_GUARDED_BY(mutex_);  // admitted steps, by sequence number
  absl::flat_hash_map<std::string, WorkPtr> transfers_ ABSL_GUARDED_BY(mutex_);
  // By array id: the live steps that use the array, and the live steps that write it.
  absl::flat_hash_map<std::string, Operand> operands_ ABSL_GUARDED_BY(mutex_);
  // Waiting steps to examine: new steps, and steps that waited for a step that has ended.
  std::set<StepTicket> admissible_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string, std::less<>> alive_ ABSL_GUARDED_BY(mutex_);
  // Draining workers, each with the callback to run once it is idle (null after it ran).
  std::map<std::string, absl::AnyInvocable<void() &&>, std::less<>> leaving_
      ABSL_GUARDED_BY(mutex_);
  int64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t last_sequence_ ABSL_GUARDED_BY(mutex_) = 0;
  StepTicket next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  int64_t deciding_ ABSL_GUARDED_BY(mutex_) = 0;   // commit hooks that have not decided
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;  // new work is refused
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;   // waiting steps are no longer admitted

  Alarm deadline_;  // last: its destructor waits for HandleDeadlines
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_SEQUENCER_H_
