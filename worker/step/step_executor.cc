// StepExecutor: a queue of steps by sequence number, and the threads that run them.
#include "worker/step/step_executor.h"

#include <algorithm>
#include <exception>
#include <map>
#include <new>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "process/clock.h"
#include "process/failpoint.h"
#include "process/log.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "worker/step/kernel_turns.h"
#include "worker/step/plan_cache.h"
#include "worker/step/step_run.h"
#include "worker/step/tile_update.h"
#include "worker/step/weight_cache.h"

namespace shardmesh::worker {
namespace {

// Runs `body`. Converts an exception to an error, so an exception ends the step and not the
// process. RESOURCE_EXHAUSTED (MEMORY_LIMIT) for std::bad_alloc, INTERNAL for others.
absl::Status CatchErrors(absl::FunctionRef<absl::Status()> body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return WithReason(absl::ResourceExhaustedError("the host has no memory left for it; lower the "
                                                   "memory limit or free memory on the host"),
                      Reason::kMemoryLimit);
  } catch (const std::exception& error) {
    return absl::InternalError(StrCat("it ended with an exception: ", error.what()));
  }
}

// Returns the error `status`, which aborts the step, with the step's number as a fact.
absl::Status OfStep(const absl::Status& status, int64_t sequence) {
  return MayHave(ReasonOf(status), fact::kStep) ? WithFacts(status, {{fact::kStep, sequence}})
                                                : status;
}

class StepExecutorImpl final : public StepExecutor {
 public:
  explicit StepExecutorImpl(Options options)
      : options_(std::move(options)),
        plans_(kPlanCapacity),
        weights_(options_.kernel, options_.weight_budget, options_.store) {
    for (int i = 0; i < kRunners + 1; ++i) threads_.emplace_back([this] { Work(); });
  }

  ~StepExecutorImpl() override {
    std::map<int64_t, Waiting> waiting;
    std::vector<int64_t> running;
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
      waiting.swap(queue_);
      for (const auto& [sequence, step] : running_) running.push_back(sequence);
    }
    for (const int64_t sequence : running) {
      options_.links->AbortStep(sequence, Stopping(), options_.identity);
    }
    for (std::thread& thread : threads_) thread.join();
    for (auto& [sequence, step] : waiting) {
      options_.links->CloseStep(sequence);
      Refuse(*step.order, step.report, Stopping());
    }
  }

  void Run(StepOrder order, Report report) override {
    absl::StatusOr<PlanPtr> plan = plans_.Find(order.plan_hash);
    if (*plan == nullptr && !order.plan_bytes.empty()) {
      plan = plans_.Add(order.plan_hash, order.plan_bytes);
    }
    absl::Status refused = plan.ok() ? absl::OkStatus() : plan.status();
    StepResult need_plan{.sequence = order.sequence,
                         .epoch = order.epoch,
                         .term = order.term,
                         .outcome = StepOutcome::kNeedPlan};
    if (refused.ok()) {
      absl::MutexLock lock(&mutex_);
      refused = Enqueue(order, *plan, report);
    }
    if (!refused.ok()) {
      // This rank cannot run the step. Without the abort, the other ranks would wait for it.
      if (!plan.ok()) options_.links->AbortStep(order.sequence, refused, options_.identity);
      Refuse(order, report, refused);
    } else if (*plan == nullptr) {
      report(std::move(need_plan));
    }
  }

  absl::Status Commit(int64_t sequence) override {
    SHARDMESH_FAILPOINT("step.commit");
    Staged staged;
    {
      absl::MutexLock lock(&mutex_);
      const auto found = staged_.find(sequence);
      if (found == staged_.end()) {
        return WithReason(absl::NotFoundError(StrCat("step ", sequence, " has nothing staged on ",
                                                     options_.identity)),
                          Reason::kNotFound, {{fact::kKind, "step"}, {fact::kName, sequence}});
      }
      staged = std::move(found->second);
      staged_.erase(found);
    }
    if (absl::Status committed = options_.store->Commit(staged.array_ids); !committed.ok()) {
      absl::MutexLock lock(&mutex_);
      staged_.emplace(sequence, std::move(staged));
      return committed;
    }
    absl::Status status;
    for (const std::unique_ptr<TileUpdate>& update : staged.updates) {
      // What was packed of the array was packed before it became state.
      Forget({update->description().array_id});
      status.Update(update->Commit());
    }
    Forget(staged.donated_ids);
    status.Update(options_.store->Release(staged.donated_ids));
    return status;
  }

  void Abort(int64_t sequence, const absl::Status& status) override {
    SHARDMESH_PASSES("step.abort");
    Staged staged;
    std::optional<Waiting> waiting;
    {
      absl::MutexLock lock(&mutex_);
      if (const auto found = queue_.find(sequence); found != queue_.end()) {
        waiting = std::move(found->second);
        queue_.erase(found);
      } else if (const auto done = staged_.find(sequence); done != staged_.end()) {
        staged = std::move(done->second);
        staged_.erase(done);
      } else if (const auto runs = running_.find(sequence); runs != running_.end()) {
        runs->second.abort = status;
      }
    }
    // Abort the step in the links even if it does not run here. Peers may have sent data of the
    // step, or may wait for this rank.
    options_.links->AbortStep(sequence, status, "");
    if (waiting.has_value()) {
      options_.links->CloseStep(sequence);
      Refuse(*waiting->order, waiting->report, status);
    }
    staged.updates.clear();
    Discard(staged.array_ids);
  }

  void AbortUnfinished(const absl::Status& status) override {
    std::map<int64_t, Waiting> waiting;
    std::vector<int64_t> running;
    {
      absl::MutexLock lock(&mutex_);
      waiting.swap(queue_);
      for (auto& [sequence, step] : running_) {
        running.push_back(sequence);
        step.abort = OfStep(status, sequence);
      }
    }
    for (const int64_t sequence : running) {
      options_.links->AbortStep(sequence, OfStep(status, sequence), "");
    }
    for (const auto& [sequence, step] : waiting) {
      options_.links->AbortStep(sequence, OfStep(status, sequence), "");
      options_.links->CloseStep(sequence);
      Refuse(*step.order, step.report, status);
    }
  }

  void KeepStaged() override {
    std::map<int64_t, Staged> forgotten;  // destroyed after the unlock
    absl::MutexLock lock(&mutex_);
    forgotten.swap(staged_);
  }

  void Forget(absl::Span<const std::string> array_ids) override { weights_.Forget(array_ids); }

  bool runs_steps() const override {
    absl::MutexLock lock(&mutex_);
    return !running_.empty();
  }

  std::vector<StepProgress> progress() const override {
    std::vector<StepProgress> running;
    {
      absl::MutexLock lock(&mutex_);
      for (const auto& [sequence, step] : running_) {
        running.push_back({.step = sequence, .started = step.since});
      }
    }
    for (StepProgress& step : running) {
      step.instruction = options_.recorder->Running(step.step);
    }
    return running;
  }

 private:
  struct Waiting {
    std::shared_ptr<const StepOrder> order;
    PlanPtr plan;  // null if the plan's bytes have not come
    // Empty until the plan is known, because the first call of Run has already reported kNeedPlan.
    Report report = nullptr;
    absl::Time deadline = absl::InfiniteFuture();
    // Since when the step waits for a thread. InfiniteFuture: one was free when the plan came.
    absl::Time queued_since = absl::InfiniteFuture();
  };
  struct Running {
    absl::Time since;
    absl::Status abort = absl::OkStatus();
  };
  // The arrays of a finished step that wait in the store for the step's commit or abort: its
  // outputs, the operands that it donated, and those that it updates.
  struct Staged {
    std::vector<std::string> array_ids = {};
    std::vector<std::string> donated_ids = {};
    TileUpdates updates = {};
  };

  absl::Status Stopping() const {
    return WithReason(absl::CancelledError(StrCat(options_.identity, " is shutting down")),
                      Reason::kNotServing, {{fact::kIdentity, options_.identity}});
  }

  // Adds `order` to the queue, or `plan` to the order of the same step in the queue. Keeps `report`
  // only if the plan is known. If the plan is unknown, Run reports kNeedPlan at once.
  absl::Status Enqueue(StepOrder& order, const PlanPtr& plan, Report& report)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (stopping_) return Stopping();
    if (order.term < term_) {
      return WithReason(absl::AbortedError(StrCat("step ", order.sequence, " is of term ",
                                                  order.term, "; the coordinator's is ", term_)),
                        Reason::kStaleTerm, {{fact::kHave, order.term}, {fact::kNeed, term_}});
    }
    const auto known = queue_.find(order.sequence);
    if (known == queue_.end()) {
      if (order.sequence <= last_ordered_) {
        return absl::FailedPreconditionError(StrCat("step ", order.sequence, " comes after step ",
                                                    last_ordered_,
                                                    ", which was ordered before it"));
      }
      SHARDMESH_RETURN_IF_ERROR(options_.links->ExpectStep(order.sequence, order.epoch));
      last_ordered_ = order.sequence;
    }
    term_ = order.term;
    Waiting waiting{.order = std::make_shared<const StepOrder>(order),
                    .plan = plan,
                    .deadline = options_.clock->Now() + order.timeout + kVerdictGrace};
    if (plan != nullptr) waiting.report = report;
    if (running_.size() >= kRunners) waiting.queued_since = options_.clock->Now();
    const auto [it, is_new] = queue_.try_emplace(order.sequence, waiting);
    if (is_new) return absl::OkStatus();
    if (it->second.plan != nullptr) {
      return absl::FailedPreconditionError(StrCat("step ", order.sequence, " was ordered before"));
    }
    it->second.plan = plan;
    it->second.report = std::move(waiting.report);
    it->second.queued_since = waiting.queued_since;
    return absl::OkStatus();
  }

  // Returns the step to begin next: the step with the lowest number among those whose plan is known
  // or whose deadline has passed. Returns queue_.end() if there is no such step, or no free thread
  // for it (see the header).
  std::map<int64_t, Waiting>::iterator FindNext(absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto next = queue_.begin();
    while (next != queue_.end() && next->second.plan == nullptr && next->second.deadline > now) {
      ++next;
    }
    const bool is_lowest =
        next == queue_.begin() &&
        (running_.empty() || queue_.empty() || queue_.begin()->first < running_.begin()->first);
    const size_t limit = kRunners + (is_lowest ? 1 : 0);
    return running_.size() < limit ? next : queue_.end();
  }

  // Returns the earliest deadline of the steps that wait for their plan, and may begin without it
  // when the deadline has passed (FindNext).
  absl::Time PlanDeadline() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    absl::Time deadline = absl::InfiniteFuture();
    if (running_.size() >= kRunners) {
      const bool is_lowest = !queue_.empty() && queue_.begin()->first < running_.begin()->first;
      const bool may_begin = is_lowest && queue_.begin()->second.plan == nullptr;
      return may_begin ? queue_.begin()->second.deadline : deadline;
    }
    for (const auto& [sequence, step] : queue_) {
      if (step.plan == nullptr) deadline = std::min(deadline, step.deadline);
    }
    return deadline;
  }

  // Waits until a step can begin, and returns it; nullopt at shutdown.
  std::optional<Waiting> Next() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    while (true) {
      const absl::Time deadline = PlanDeadline();
      // Only the thread that takes the step wakes up, and not all threads for each step: those that
      // wake up for nothing take the processors from the step.
      const auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || PlanDeadline() < deadline ||
               FindNext(absl::InfinitePast()) != queue_.end();
      };
      const bool is_ready =
          mutex_.AwaitWithDeadline(absl::Condition(&ready), WallTime(*options_.clock, deadline));
      if (stopping_) return std::nullopt;
      const auto next = FindNext(is_ready ? absl::InfinitePast() : options_.clock->Now());
      if (next == queue_.end()) continue;
      Waiting step = std::move(next->second);
      running_[next->first] = {.since = options_.clock->Now()};
      queue_.erase(next);
      return step;
    }
  }

  void Work() {
    while (std::optional<Waiting> step = Next()) {
      const StepOrder& order = *step->order;
      const absl::Time started = options_.clock->Now();
      StepResult result{.sequence = order.sequence, .epoch = order.epoch, .term = order.term};
      result.queue_time = std::max(started - step->queued_since, absl::ZeroDuration());
      Staged staged;
      result.status = RunOne(*step, &result, &staged.updates);
      weights_.ForgetGone();
      for (const StepOutput& output : order.outputs) {
        staged.array_ids.push_back(output.array.array_id);
      }
      for (const StepOperand& operand : order.operands) {
        const auto* array_id = std::get_if<std::string>(&operand.value);
        if (array_id != nullptr && operand.donate) staged.donated_ids.push_back(*array_id);
      }
      {
        absl::MutexLock lock(&mutex_);
        const auto running = running_.find(order.sequence);
        if (result.status.ok()) result.status = running->second.abort;
        running_.erase(running);
        if (result.status.ok()) staged_.emplace(order.sequence, std::exchange(staged, {}));
      }
      if (!result.status.ok()) {
        result.outcome = StepOutcome::kFailed;
        result.outputs.clear();
        staged.updates.clear();
        Discard(staged.array_ids);
      }
      if (options_.observer.step) {
        options_.observer.step(result.outcome, options_.clock->Now() - started);
      }
      if (step->report) step->report(std::move(result));
      weights_.PutInStore();
    }
  }

  // Runs a step. If the step fails, aborts it on its peers before it returns the error.
  absl::Status RunOne(const Waiting& step, StepResult* result, TileUpdates* updates) {
    const StepOrder& order = *step.order;
    std::unique_ptr<StepLink> link;
    absl::Status status = CatchErrors([&]() -> absl::Status {
      SHARDMESH_RETURN_IF_ERROR(Open(step, &link));
      result->rank = link->rank();
      return RunStep({.options = &options_,
                      .weights = &weights_,
                      .turns = &turns_,
                      .link = link.get(),
                      .plan = step.plan,
                      .order = step.order,
                      .deadline = step.deadline},
                     result, updates);
    });
    if (link != nullptr) result->sent_bytes = link->sent_bytes();
    if (status.ok()) return status;
    const std::string rank = link == nullptr ? "" : StrCat("rank ", link->rank(), " ");
    status = WithContext(status, StrCat(rank, "(", options_.identity, "), step ", order.sequence));
    std::string blamed = options_.links->BlamedFor(order.sequence);
    if (blamed.empty()) blamed = result->blamed_identity;
    if (blamed.empty()) blamed = options_.identity;
    result->blamed_identity = blamed == options_.identity ? "" : blamed;
    options_.links->AbortStep(order.sequence, status, blamed);
    if (link == nullptr) options_.links->CloseStep(order.sequence);
    LogWarning("step failed",
               {{"identity", options_.identity}, {"step", order.sequence}, {"error", status}});
    return status;
  }

  absl::Status Open(const Waiting& step, std::unique_ptr<StepLink>* link) {
    const StepOrder& order = *step.order;
    if (step.plan == nullptr) {
      return WithReason(
          absl::DeadlineExceededError(
              StrCat("the plan's bytes did not come within the step's timeout of ",
                     FormatRounded(order.timeout))),
          Reason::kDeadline,
          {{fact::kStep, order.sequence}, {fact::kLimit, absl::ToDoubleSeconds(order.timeout)}});
    }
    const Plan& plan = step.plan->plan();
    auto opened = options_.links->OpenLink(plan.mesh_id, order.sequence, order.epoch,
                                           WallTime(*options_.clock, step.deadline));
    if (!opened.ok()) return opened.status();
    *link = *std::move(opened);
    const MembershipView view = options_.links->membership();
    const MeshMembers* mesh = view.Find(plan.mesh_id);
    if (mesh != nullptr && mesh->revision != plan.mesh_revision) {
      return WithReason(absl::FailedPreconditionError(
                            StrCat("the plan is for revision ", plan.mesh_revision, " of mesh \"",
                                   plan.mesh_id, "\"; it is now at ", mesh->revision)),
                        Reason::kVersionMismatch,
                        {{fact::kKind, "mesh"},
                         {fact::kName, plan.mesh_id},
                         {fact::kHave, plan.mesh_revision},
                         {fact::kNeed, mesh->revision}});
    }
    return absl::OkStatus();
  }

  void Refuse(const StepOrder& order, const Report& report, const absl::Status& status) {
    if (!report) return;
    StepResult result{.sequence = order.sequence,
                      .epoch = order.epoch,
                      .term = order.term,
                      .outcome = StepOutcome::kFailed};
    result.status = WithContext(status, StrCat("(", options_.identity, "), step ", order.sequence));
    report(std::move(result));
  }

  void Discard(absl::Span<const std::string> array_ids) {
    if (absl::Status aborted = options_.store->Abort(array_ids); !aborted.ok()) {
      LogError("cannot discard a step's outputs",
               {{"identity", options_.identity}, {"error", aborted}});
    }
  }

  const Options options_;
  PlanCache plans_;
  WeightCache weights_;
  KernelTurns turns_;

  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<int64_t, Waiting> queue_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, Staged> staged_ ABSL_GUARDED_BY(mutex_);
  int64_t term_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t last_ordered_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, Running> running_ ABSL_GUARDED_BY(mutex_);  // by sequence number
  std::vector<std::thread> threads_;  // last member: the threads start when all other members exist
};

}  // namespace

std::unique_ptr<StepExecutor> StepExecutor::Start(Options options) {
  return std::make_unique<StepExecutorImpl>(std::move(options));
}

}  // namespace shardmesh::worker
