// Runs reshards: one Run object for each call, which starts the moves and collects their ends.
#include "server/reshard/reshard_runner.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "process/failpoint.h"
#include "process/random_bytes.h"
#include "rpc/codec/field_check.h"
#include "server/reshard/array_fill.h"
#include "server/state/request_memory.h"
#include "server/state/session_pins.h"
#include "server/steps/committed_bytes.h"
#include "server/steps/pinned_array.h"
#include "server/steps/transfers.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

constexpr RequestMessages kReshardMessages = {
    .reused = "request_id \"$0\" was used for another reshard; draw a new one",
    .running = "the first request with request_id \"$0\" is still running; retry",
    .python_type = "ValueError"};
constexpr int64_t kMaxAnswers = 10'000;

size_t ByteCount(const SpecEntry& entry) {
  size_t bytes = sizeof(entry);
  for (const AxisName& axis : entry.axes()) bytes += sizeof(axis) + axis.value_or("").size();
  return bytes;
}

// Returns about the bytes that an answer takes in memory.
int64_t BytesOf(const ReshardOutline& outline, const std::vector<ReshardedArray>& arrays) {
  size_t bytes = sizeof(ReshardOutline) + outline.operation_id.size();
  for (const ReshardMemoryNeed& each : outline.memory) {
    bytes += sizeof(each) + each.mesh_id.size() + each.identity.size();
  }
  for (const ReshardedArray& each : arrays) {
    const ArrayDescriptor& array = each.descriptor;
    bytes += sizeof(each) + each.name.size() + each.source_array_id.size();
    bytes += array.array_id.size() + array.mesh_id.size() + array.shape.size() * sizeof(int64_t);
    for (const SpecEntry& entry : array.spec.entries()) bytes += ByteCount(entry);
    for (const CutPoints& points : array.cut_points) {
      bytes += sizeof(points) + points.size() * sizeof(int64_t);
    }
    for (const Correction& correction : each.corrections) {
      bytes += sizeof(correction) + ByteCount(correction.requested);
      for (const std::string& axis : correction.absent_axes) bytes += sizeof(axis) + axis.size();
    }
    if (!each.sums_spec.has_value()) continue;
    for (const SpecEntry& entry : each.sums_spec->entries()) bytes += ByteCount(entry);
  }
  return static_cast<int64_t>(bytes);
}

const std::string& SourceIdOf(const ReshardItem& item) {
  return item.source.array->definition.descriptor.array_id;
}

// Returns the cut points of the array as ReshardOp has them: without the ends of the dimensions.
std::vector<std::vector<int64_t>> PartStartsOf(const ArrayDescriptor& array) {
  std::vector<std::vector<int64_t>> starts;
  for (const CutPoints& points : WithoutEqualParts(array.cut_points)) {
    std::vector<int64_t>& inner = starts.emplace_back();
    if (points.size() > 2) inner.assign(points.begin() + 1, points.end() - 1);
  }
  return starts;
}

const std::string& NameOrIdOf(const ReshardItem& item) {
  const std::string& name = item.source.name.name;
  return name.empty() ? SourceIdOf(item) : name;
}

// Names the array in messages.
std::string SourceTitleOf(const ReshardItem& item) {
  const std::string& name = item.source.name.name;
  return name.empty() ? StrCat("array ", SourceIdOf(item)) : PythonRepr(name);
}

// Returns the bytes of the new array that count as done once the workers have received `received`
// bytes. Never more than all.
int64_t EstimateDone(const ReshardItem& item, int64_t received) {
  if (item.moved_bytes <= 0) return 0;
  const double part = static_cast<double>(std::min(received, item.moved_bytes)) /
                      static_cast<double>(item.moved_bytes);
  const double done = part * static_cast<double>(item.total_bytes);
  return done < static_cast<double>(item.total_bytes) ? static_cast<int64_t>(done)
                                                      : item.total_bytes;
}

// The name of the progress of an array that moves as a step. See OperationTable::SetPart.
std::string StepPart(size_t index) { return StrCat("step ", index); }

// Returns the answer to a call about one named array, as the store keeps it: one line each for the
// figures, and the name at the end, which has no line breaks.
std::string EncodeAnswer(const ReshardOutline& outline, const ReshardedArray& array) {
  return StrCat(outline.operation_id, "\n", outline.total_bytes, "\n", array.source_array_id, "\n",
                array.descriptor.array_id, "\n", array.moved_bytes, "\n", array.is_skipped ? 1 : 0,
                "\n", array.name_version, "\n", array.name);
}

// Sets the outline and the array, whose descriptor has only the id. Returns false for other bytes.
bool DecodeAnswer(std::string_view bytes, ReshardOutline* outline, ReshardedArray* array) {
  const std::vector<std::string> lines = absl::StrSplit(ToAbsl(bytes), absl::MaxSplits('\n', 7));
  int64_t skipped = 0;
  if (lines.size() != 8 || !absl::SimpleAtoi(lines[1], &outline->total_bytes) ||
      !absl::SimpleAtoi(lines[4], &array->moved_bytes) || !absl::SimpleAtoi(lines[5], &skipped) ||
      !absl::SimpleAtoi(lines[6], &array->name_version)) {
    return false;
  }
  outline->operation_id = lines[0];
  outline->array_count = 1;
  array->source_array_id = lines[2];
  array->descriptor.array_id = lines[3];
  array->is_skipped = skipped != 0;
  array->name = lines[7];
  return true;
}

}  // namespace

// One call. Moves at most `limit_` arrays at the same time.
class ReshardRunner::Run : public std::enable_shared_from_this<ReshardRunner::Run> {
 public:
  Run(ReshardRunner* runner, ReshardCall call, std::string key, ReshardEvents events)
      : runner_(runner),
        parts_(runner->parts_),
        key_(std::move(key)),
        call_(std::move(call)),
        events_(std::move(events)) {}

  // Plans the call and starts to move its arrays.
  void Begin() {
    stop_.Begin();
    absl::StatusOr<PlannedReshard> planned = Plan();
    if (planned.ok() && !call_.validate_only) {
      const absl::Status fits = CheckReshardMemory(*planned, call_, *parts_.plan.put.membership);
      if (fits.ok()) {
        MakeRoom(planned->outline.memory);
      } else {
        planned = fits;
      }
    }
    if (!planned.ok()) {
      // Another error says more than the time limit: what is wrong, or what the call waits for.
      const bool is_stopped = absl::IsCancelled(planned.status());
      Fail(is_stopped && IsLate() ? Late() : stop_.Explain(planned.status()));
      return End();
    }
    plan_ = *std::move(planned);
    limit_ = ReshardsAtOnce(plan_.items, call_.release_source, plan_.move_memory_bytes);
    if (const absl::Status begun = BeginOperation(); !begun.ok()) {
      Fail(begun);
      return End();
    }
    if (events_.planned) events_.planned(plan_.outline);
    call_.validate_only ? ShowPlan() : Pump();
  }

  // Evicts cached arrays in whose memory the reshard is to run.
  void MakeRoom(const std::vector<ReshardMemoryNeed>& memory) const {
    if (parts_.plan.put.cache == nullptr) return;
    // Bytes that puts are still sending are not in use yet.
    const int64_t coming_bytes = parts_.plan.put.transfers->LivePuts().bytes_per_rank;
    ArrayCache::Limits limits;
    for (const ReshardMemoryNeed& each : memory) {
      limits[each.identity] = each.have_bytes - each.need_bytes - coming_bytes;
    }
    parts_.plan.put.cache->Limit(limits);
  }

  void Fail(const absl::Status& why) {
    absl::MutexLock lock(&mutex_);
    status_.Update(why);
  }

  void Cancel(const absl::Status& reason) {
    std::vector<Sequencer::StepTicket> running;
    std::vector<std::string> transfers;
    {
      absl::MutexLock lock(&mutex_);
      status_.Update(reason);
      is_cancelled_ = true;
      for (const auto& [index, ticket] : steps_) running.push_back(ticket);
      for (const auto& [index, transfer] : transfers_) transfers.push_back(transfer);
    }
    for (const std::string& transfer : transfers) Abort(transfer, reason);
    for (const Sequencer::StepTicket ticket : running) parts_.steps->Cancel(ticket);
  }

  void End() {
    ReleasePin();
    absl::Status status;
    auto answer = std::make_shared<Answer>();
    {
      absl::MutexLock lock(&mutex_);
      status = status_;
      // A cancellation or a deadline that came during the last commit has stopped nothing.
      if (!plan_.items.empty() && moved_.size() == plan_.items.size()) status = absl::OkStatus();
      if (!status.ok() && !moved_.empty()) {
        status = WithContext(status, StrCat(moved_.size(), " of ", plan_.items.size(),
                                            " arrays lie as requested now, repeat the reshard for "
                                            "the others"));
      }
      answer->outline = plan_.outline;
      answer->arrays = std::move(moved_);
      answer->revision = revision_;
    }
    const Revision revision = answer->revision;
    if (!plan_.outline.operation_id.empty() && call_.operation_id.empty()) {
      parts_.operations->End(plan_.outline.operation_id, status);
    }
    const auto finish = [self = shared_from_this(), status, revision, answer] {
      self->runner_->Remember(self->key_, status, answer);
      std::move(self->events_.ended)(status.ok() ? absl::StatusOr<Revision>(revision) : status);
    };
    const bool is_kept = status.ok() && !call_.request_id.empty() && !key_.empty() &&
                         call_.array.has_value() && answer->arrays.size() == 1 &&
                         !answer->arrays.front().name.empty();
    if (!is_kept || !parts_.registry->requests().Begin(key_, call_.fingerprint).ok()) {
      return finish();
    }
    // The array has moved. An error only means that a repetition after a restart moves it again.
    CommitRequest keep;
    keep.request_id = key_;
    keep.answer = EncodeAnswer(answer->outline, answer->arrays.front());
    parts_.registry->Commit(std::move(keep),
                            [finish](const absl::StatusOr<CommitResult>&) { finish(); });
  }

 private:
  absl::Status status() const {
    absl::MutexLock lock(&mutex_);
    return status_;
  }

  // Plans the call. A named array by itself is pinned until its move ends: another call may replace
  // the name, and thereby release the array, while it is planned or waits. If that happens before
  // the pin, plans again with the new array.
  absl::StatusOr<PlannedReshard> Plan() {
    const bool is_named = call_.array.has_value() && !call_.array->name.empty();
    for (int attempt = 1;; ++attempt) {
      absl::StatusOr<PlannedReshard> planned = PlanReshards(
          parts_.plan, call_, [this] { return !status().ok() || IsLate() || stop_.is_due(); });
      if (!is_named || call_.validate_only) return planned;
      if (!planned.ok()) {
        const bool is_replaced = ReasonOf(planned.status()) == Reason::kVersionMismatch &&
                                 !call_.expected_version.has_value();
        if (!is_replaced || attempt == kMaxSelections) return planned;
        continue;
      }
      const ReshardItem& item = planned->items.front();
      std::shared_ptr<const PinnedArray> pin =
          PinnedArray::PinLive(parts_.registry, item.source.array);
      if (pin == nullptr && attempt == kMaxSelections) return Replaced(item);
      if (pin == nullptr) continue;
      absl::MutexLock lock(&mutex_);
      pin_ = std::move(pin);
      return planned;
    }
  }
  // Releases the pin of Plan.
  void ReleasePin() {
    std::shared_ptr<const PinnedArray> released;  // without the lock
    absl::MutexLock lock(&mutex_);
    released = std::move(pin_);
  }
  // Error for an array that was released since it was planned.
  static absl::Status Replaced(const ReshardItem& item) {
    return WithRetryDelay(
        WithReason(absl::AbortedError(StrCat(SourceTitleOf(item),
                                             " was replaced or released since the reshard was "
                                             "planned; repeat the reshard")),
                   Reason::kVersionMismatch,
                   {{fact::kKind, "array"}, {fact::kName, NameOrIdOf(item)}}),
        absl::Milliseconds(100));
  }
  bool IsLate() const { return parts_.clock->Now() >= call_.deadline; }
  absl::Status Late() const {
    return WithReason(absl::DeadlineExceededError(
                          call_.validate_only
                              ? "the time limit has passed before the reshard was planned; allow "
                                "more time"
                              : "the time limit of the reshard has passed; repeat it, and it goes "
                                "on where it stopped"),
                      Reason::kDeadline);
  }

  absl::Status BeginOperation() {
    if (call_.validate_only) return absl::OkStatus();
    if (!call_.operation_id.empty()) {
      plan_.outline.operation_id = call_.operation_id;
      return absl::OkStatus();
    }
    SHARDMESH_ASSIGN_OR_RETURN(const Session session, parts_.sessions->Get(call_.session_id));
    const std::string what = call_.array.has_value() ? SourceTitleOf(plan_.items.front())
                                                     : StrCat(plan_.items.size(), " arrays below ",
                                                              PythonRepr(call_.prefix));
    const std::string where =
        call_.mesh_id.empty() ? std::string() : StrCat(" onto mesh \"", call_.mesh_id, "\"");
    SHARDMESH_ASSIGN_OR_RETURN(
        plan_.outline.operation_id,
        parts_.operations->Begin(OperationKind::kReshard, StrCat("reshard of ", what, where),
                                 call_.session_id, session.number,
                                 [self = shared_from_this()](const absl::Status& reason) {
                                   self->Cancel(reason);
                                   return absl::OkStatus();
                                 }));
    parts_.operations->SetTotal(plan_.outline.operation_id, plan_.outline.array_count,
                                plan_.outline.total_bytes);
    return absl::OkStatus();
  }

  void Abort(const std::string& transfer_id, const absl::Status& reason) const {
    // An error means that the transfer is being committed, or has ended.
    parts_.plan.put.transfers->Abort(transfer_id, reason).IgnoreError();
  }

  ReshardedArray ResultOf(const ReshardItem& item) const {
    return {.name = item.name,
            .source_array_id = SourceIdOf(item),
            .descriptor =
                item.is_skipped ? item.source.array->definition.descriptor : item.target.descriptor,
            .corrections = item.corrections,
            .moved_bytes = item.moved_bytes,
            .summed_bytes = item.summed_bytes,
            .sums_spec = item.sums.has_value() ? std::optional(item.sums->spec) : std::nullopt,
            .is_skipped = item.is_skipped};
  }

  void ShowPlan() {
    for (const ReshardItem& item : plan_.items) {
      if (events_.moved) events_.moved(ResultOf(item), 0);
    }
    End();
  }

  // Starts moves until enough are running, or until all are done. Ends the call after the last one.
  void Pump() {
    for (;;) {
      size_t index = 0;
      {
        absl::MutexLock lock(&mutex_);
        const bool may_begin = status_.ok() && next_ < plan_.items.size();
        if (may_begin && running_ >= limit_) return;
        if (!may_begin) {
          if (running_ > 0 || std::exchange(has_ended_, true)) return;
          break;
        }
        index = next_++;
        ++running_;
      }
      const ReshardItem& item = plan_.items[index];
      // An array that stays as it is needs no callback, and a tree may have very many of them.
      if (item.is_skipped && item.name == item.source.name.name) {
        absl::MutexLock lock(&mutex_);
        --running_;
        Record(item, ResultOf(item), 0, "");
        continue;
      }
      if (IsLate()) {
        Moved(index, Late());
      } else if (item.is_skipped) {
        Rename(index);
      } else if (item.sums.has_value()) {
        AddUp(index);
      } else {
        item.moves_as_step() ? Step(index) : Transfer(index);
      }
    }
    End();
  }

  // Records a finished array, and reports it.
  // `part`: the part of the operation's progress that the array was; empty: none.
  void Record(const ReshardItem& item, ReshardedArray result, Revision revision,
              const std::string& part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (item.is_skipped) result.name_version = item.source.name.version;
    if (revision != 0) result.name_version = item.name.empty() ? 0 : revision;
    revision_ = std::max(revision_, revision);
    done_bytes_ += item.total_bytes;
    parts_.operations->Add(plan_.outline.operation_id, 1, item.total_bytes, part);
    if (events_.moved) events_.moved(result, done_bytes_);
    moved_.push_back(std::move(result));
  }

  // Ends the move of one array. `revision`: that of its commit. Begins nothing on this thread,
  // which may be that on which the store commits.
  void Moved(size_t index, const absl::Status& status, ReshardedArray result = {},
             Revision revision = 0) {
    ReleasePin();
    {
      absl::MutexLock lock(&mutex_);
      --running_;
      steps_.erase(index);
      std::string transfer;
      if (const auto found = transfers_.find(index); found != transfers_.end()) {
        transfer = std::move(found->second);
        transfers_.erase(found);
      }
      const std::string part = received_.erase(index) > 0 ? StepPart(index) : std::move(transfer);
      status_.Update(status);
      if (status.ok()) {
        Record(plan_.items[index], std::move(result), revision, part);
      } else {
        parts_.operations->Add(plan_.outline.operation_id, 0, 0, part);
      }
    }
    runner_->moves_.Run(call_.caller.name, [self = shared_from_this()] { self->Pump(); });
  }

  // Gives the array, which already lies as requested, the requested name.
  void Rename(size_t index) {
    const ReshardItem& item = plan_.items[index];
    CommitRequest commit;
    if (!item.name.empty()) {
      commit.moves.push_back({.name = item.name,
                              .array_id = SourceIdOf(item),
                              .expected_version = item.expected_version});
    }
    AddRelease(item, &commit.moves);
    parts_.registry->Commit(std::move(commit), [self = shared_from_this(), index](
                                                   const absl::StatusOr<CommitResult>& committed) {
      self->Moved(index, committed.status(), self->ResultOf(self->plan_.items[index]),
                  committed.ok() ? committed->revision : 0);
    });
  }

  // With release_source, lets the old array lose its name if the new array has another one. Called
  // at the commit: another call may have moved the name while the array moved.
  void AddRelease(const ReshardItem& item, std::vector<NameMove>* moves) const {
    const NameEntry& own = item.source.name;
    if (!call_.release_source || own.name.empty() || own.name == item.name) return;
    if (parts_.registry->VersionOf(own.name) != own.version) return;
    moves->push_back({.name = own.name, .array_id = "", .expected_version = own.version});
  }

  // Returns the names that move in the commit of the new array, beside its own.
  OtherMoves OtherMovesOf(size_t index) {
    if (!call_.release_source && plan_.items[index].aliases.empty()) return nullptr;
    return [self = shared_from_this(), index](const std::string& array_id) {
      const ReshardItem& item = self->plan_.items[index];
      std::vector<NameMove> moves;
      self->AddRelease(item, &moves);
      for (const NameEntry& alias : item.aliases) {
        // As in AddRelease: another call may have moved the name.
        if (self->parts_.registry->VersionOf(alias.name) != alias.version) continue;
        moves.push_back(
            {.name = alias.name, .array_id = array_id, .expected_version = alias.version});
      }
      return moves;
    };
  }

  // Records how many bytes a worker has received so far for the step that moves the array.
  void Received(size_t index, std::string_view identity, int64_t bytes) {
    absl::MutexLock lock(&mutex_);
    const auto step = received_.find(index);
    if (step == received_.end()) return;  // it has ended
    int64_t& of_worker = step->second.by_worker[std::string(identity)];
    if (bytes <= of_worker) return;  // an older heartbeat
    step->second.total = AddCapped(step->second.total, bytes - of_worker);
    of_worker = bytes;
    // Under the lock, so that no part comes after the Add for the whole array.
    parts_.operations->SetPart(plan_.outline.operation_id, StepPart(index),
                               EstimateDone(plan_.items[index], step->second.total));
  }

  // Returns the step that lays the old array out as `target` on its own mesh.
  StepCall StepTo(const ReshardItem& item, const ArrayDescriptor& target) const {
    StepCall step{.request_id = RandomId(),
                  .session_id = call_.session_id,
                  .method = "Reshard",
                  .caller = call_.caller,
                  .time_left = call_.deadline - parts_.clock->Now(),
                  .operation_id = plan_.outline.operation_id};
    step.work = Program{
        .operand_count = 1,
        .ops = {ReshardOp{.input = 0, .spec = target.spec, .part_starts = PartStartsOf(target)}},
        .outputs = {1}};
    step.operands.operands.push_back({.value = ArrayReference{.array_id = SourceIdOf(item)}});
    return step;
  }

  // Runs a step of the item. `made` gets the result, which the session pins; MoveFailed is called
  // if there is none.
  void RunStep(size_t index, StepCall step,
               std::function<void(const std::string& array_id, Revision revision)> made) {
    const std::optional<Sequencer::StepTicket> ticket = parts_.steps->Run(
        std::move(step),
        [self = shared_from_this(), index, made = std::move(made)](const StepAnswer& answer) {
          if (!answer.ok()) {
            const absl::Status& failed = answer.status();
            const ReshardItem& moved = self->plan_.items[index];
            return self->MoveFailed(index,
                                    !self->IsHere(moved) && ReasonOf(failed) == Reason::kNotFound
                                        ? Replaced(moved)
                                        : failed);
          }
          const auto& array = answer->outputs(0).array();
          made(array.array_descriptor().array_id(), array.name_version());
        });
    if (!ticket.has_value()) return;
    {
      absl::MutexLock lock(&mutex_);
      steps_.insert_or_assign(index, *ticket);
      if (!is_cancelled_) return;
    }
    parts_.steps->Cancel(*ticket);
  }

  // Moves the array on its own mesh. The new array is in memory only.
  void Step(size_t index) {
    const ReshardItem& item = plan_.items[index];
    if (const absl::Status pinned = PinSource(item); !pinned.ok()) return Moved(index, pinned);
    StepCall step = StepTo(item, item.target.descriptor);
    step.outputs.names = {item.name};
    step.outputs.expected_versions = {item.expected_version};
    step.outputs.definitions = {item.target};
    step.outputs.other_moves = OtherMovesOf(index);
    if (call_.release_source) step.outputs.superseded = {SourceIdOf(item)};
    // The sequencer keeps this callback, and must not be the one that destroys the call.
    step.received = [call = weak_from_this(), index](std::string_view identity, int64_t bytes) {
      if (const auto self = call.lock(); self != nullptr) self->Received(index, identity, bytes);
    };
    {
      absl::MutexLock lock(&mutex_);
      received_[index];
    }
    RunStep(index, std::move(step),
            [self = shared_from_this(), index](const std::string& array_id, Revision revision) {
              self->MoveEnded(index, array_id, revision);
            });
  }

  // Adds up the partial sums of the old array on its own mesh, and then moves the sums. They have
  // no name: readers see the old array until the new one is complete. The step does not count as
  // progress, because the array has not come nearer to its place.
  void AddUp(size_t index) {
    const ReshardItem& item = plan_.items[index];
    // The step would be in vain if the workers of the new mesh were not ready.
    const absl::Status ready =
        parts_.plan.put.endpoints->CheckReady(item.target.descriptor.mesh_id);
    if (!ready.ok()) return Moved(index, ready);
    if (const absl::Status pinned = PinSource(item); !pinned.ok()) return Moved(index, pinned);
    RunStep(index, StepTo(item, *item.sums),
            [self = shared_from_this(), index](const std::string& sums_id, Revision) {
              self->AddedUp(index, sums_id);
            });
  }

  // Begins to move the sums, on another thread: the store may commit on this one.
  void AddedUp(size_t index, const std::string& sums_id) {
    // The pin of the transfer takes the place of that of the session, which may end at any time.
    const absl::StatusOr<ArrayPtr> sums = parts_.registry->FindArray(sums_id);
    const absl::Status kept = sums.ok() ? parts_.registry->Pin(sums_id) : sums.status();
    Unpin(sums_id);
    if (!kept.ok()) {
      return MoveFailed(index,
                        WithContext(kept, StrCat("the sums of ", SourceTitleOf(plan_.items[index]),
                                                 " were released before they had moved")));
    }
    runner_->moves_.Run(call_.caller.name, [self = shared_from_this(), index, sums = *sums] {
      SHARDMESH_PASSES("reshard.added_up");
      self->Fetch(index, sums);
    });
  }

  // Moves the array to any mesh. The new array is on disk if its workers have data folders.
  void Transfer(size_t index) {
    const ReshardItem& item = plan_.items[index];
    if (const absl::Status pinned = PinSource(item); !pinned.ok()) return Moved(index, pinned);
    // The transfer's own pin keeps the old array until all tiles are fetched.
    if (const absl::Status kept = parts_.registry->Pin(SourceIdOf(item)); !kept.ok()) {
      return MoveFailed(index, ReasonOf(kept) == Reason::kNotFound ? Replaced(item) : kept);
    }
    Fetch(index, item.source.array);
  }

  // Lets the workers fetch the tiles of the new array from `from`: the old array, or its sums.
  // Takes over a pin of `from`, which goes at the end.
  void Fetch(size_t index, const ArrayPtr& from) {
    const ReshardItem& item = plan_.items[index];
    const absl::StatusOr<std::string> transfer_id = BeginTransfer(item, *from, OtherMovesOf(index));
    if (!transfer_id.ok()) {
      parts_.registry->Unpin(from->definition.descriptor.array_id);
      return MoveFailed(index, transfer_id.status());
    }
    absl::Status cancelled;
    {
      absl::MutexLock lock(&mutex_);
      transfers_.emplace(index, *transfer_id);
      if (is_cancelled_) cancelled = status_;
    }
    if (!cancelled.ok()) Abort(*transfer_id, cancelled);
    parts_.plan.put.transfers->Commit(
        *transfer_id, /*request_key=*/"", call_.deadline,
        [self = shared_from_this(), index, from](const absl::StatusOr<TransferResult>& result) {
          self->parts_.registry->Unpin(from->definition.descriptor.array_id);
          if (!result.ok()) return self->MoveFailed(index, result.status());
          self->MoveEnded(index, result->array_ids.front(), result->revision);
        });
  }

  // Begins the transfer and orders the workers to fill its tiles with those of `source`.
  absl::StatusOr<std::string> BeginTransfer(const ReshardItem& item, const Array& source,
                                            OtherMoves other_moves) const {
    const PutPlanParts& put = parts_.plan.put;
    const ArrayDescriptor& from = source.definition.descriptor;
    const ArrayDescriptor& to = item.target.descriptor;
    ArrayFill fill{.session_id = call_.session_id,
                   .term = parts_.term,
                   .token_key = parts_.token_key,
                   .expire_time = parts_.clock->Now() + Transfers::kTimeout,
                   .source = &from,
                   .target = &to,
                   .move_memory_bytes = plan_.move_memory_bytes};
    SHARDMESH_RETURN_IF_ERROR(put.endpoints->CheckReady(to.mesh_id));
    SHARDMESH_ASSIGN_OR_RETURN(fill.sources, HoldersOf(source));
    fill.second = parts_.registry->FindTwin(from.array_id);
    if (fill.second != nullptr) {
      // Without the mesh, the companion is going.
      const auto second = HoldersOf(*fill.second);
      if (second.ok()) {
        SHARDMESH_ASSIGN_OR_RETURN(fill.second_sources,
                                   SourcesOfMissing(from, fill.sources, *second));
      }
    }
    SHARDMESH_ASSIGN_OR_RETURN(fill.source_workers, RanksOf(from));
    SHARDMESH_ASSIGN_OR_RETURN(fill.target_workers, RanksOf(to));
    SHARDMESH_RETURN_IF_ERROR(CheckCanFill(*parts_.fill, fill.target_workers));
    if (item.unloads_source) {
      fill.unloaded_array_ids.push_back(from.array_id);
      if (item.source_companion != nullptr) {
        fill.unloaded_array_ids.push_back(item.source_companion->definition.descriptor.array_id);
      }
    }
    auto items = std::make_shared<const std::vector<PutItem>>(
        std::vector<PutItem>{{.definition = item.target,
                              .name = item.name,
                              .expected_version = item.expected_version,
                              .other_moves = std::move(other_moves),
                              .superseded = call_.release_source ? SourceIdOf(item) : ""}});
    SHARDMESH_ASSIGN_OR_RETURN(
        fill.transfer_id, put.transfers->Begin(call_.session_id, to.mesh_id, fill.target_workers,
                                               std::move(items), plan_.outline.operation_id,
                                               std::make_shared<const std::vector<std::string>>(
                                                   fill.source_workers)));
    // The end of the transfer, for which the caller waits, has the error.
    if (const absl::Status sent = SendArrayFill(fill, parts_.fill); !sent.ok()) {
      Abort(fill.transfer_id, sent);
    }
    return fill.transfer_id;
  }

  // Returns the live workers with tiles of the array, by rank.
  absl::StatusOr<std::vector<RankEndpoint>> HoldersOf(const Array& array) const {
    SHARDMESH_ASSIGN_OR_RETURN(
        std::vector<RankEndpoint> holders,
        parts_.plan.put.endpoints->Endpoints(array.definition.descriptor.mesh_id));
    std::erase_if(holders, [&array](const RankEndpoint& worker) {
      return std::binary_search(array.missing_ranks.begin(), array.missing_ranks.end(),
                                worker.rank);
    });
    return holders;
  }

  // Returns the workers of the array's mesh, by rank.
  absl::StatusOr<std::vector<std::string>> RanksOf(const ArrayDescriptor& array) const {
    const std::shared_ptr<const MembershipView> view = parts_.plan.put.membership->view();
    const MeshRanks* const ranks = view->FindMesh(array.mesh_id);
    if (ranks != nullptr && std::ssize(ranks->identities) == array.mesh.size()) {
      return ranks->identities;
    }
    return WithReason(
        absl::FailedPreconditionError(
            StrCat("the mesh \"", array.mesh_id, "\" changed meanwhile; repeat the reshard")),
        Reason::kMeshMismatch, {{fact::kArray, array.array_id}});
  }

  // Makes the session keep the old array when its name leaves it. MoveFailed or MoveEnded must
  // follow if the result is OK. ABORTED (VERSION_MISMATCH), with a retry delay: the array is gone.
  absl::Status PinSource(const ReshardItem& item) const {
    if (call_.release_source) return absl::OkStatus();
    absl::Status pinned = runner_->PinSource(call_.session_id, SourceIdOf(item));
    if (ReasonOf(pinned) == Reason::kNotFound) return Replaced(item);
    return pinned;
  }

  bool IsHere(const ReshardItem& item) const {
    return parts_.registry->FindArray(SourceIdOf(item)).ok();
  }

  void MoveFailed(size_t index, const absl::Status& status) {
    if (!call_.release_source) {
      runner_->EndMove(call_.session_id, SourceIdOf(plan_.items[index]), /*has_moved=*/false);
    }
    Moved(index, status);
  }

  void MoveEnded(size_t index, const std::string& array_id, Revision revision) {
    const ReshardItem& item = plan_.items[index];
    ReleasePin();
    ReshardedArray result = ResultOf(item);
    if (const auto array = parts_.registry->FindArray(array_id); array.ok()) {
      result.descriptor = (*array)->definition.descriptor;
    } else {
      result.descriptor.array_id = array_id;
    }
    // The name holds the new array from now on, and not the pin that a step gave it.
    if (!item.name.empty()) Unpin(array_id);
    if (!call_.release_source) {
      runner_->EndMove(call_.session_id, SourceIdOf(item), /*has_moved=*/true);
      if (!item.sums.has_value()) {
        return Moved(index, absl::OkStatus(), std::move(result), revision);
      }
    } else if (item.source.name.name.empty()) {
      Unpin(SourceIdOf(item));
    }
    // First lets the registry tell the workers to drop the old array, or its sums: the next array
    // may need that memory. The registry makes its calls in order, and the call of an empty commit
    // comes after that of the release.
    parts_.registry->Commit(CommitRequest(),
                            [self = shared_from_this(), index, result = std::move(result),
                             revision](const absl::StatusOr<CommitResult>&) mutable {
                              self->Moved(index, absl::OkStatus(), std::move(result), revision);
                            });
  }

  void Unpin(const std::string& array_id) const {
    UnpinForSession(*parts_.registry, *parts_.sessions, call_.session_id, {array_id});
  }

  ReshardRunner* const runner_;
  const ReshardParts parts_;
  const std::string key_;
  const ReshardCall call_;
  ReshardEvents events_;
  PlannedReshard plan_;  // constant once Begin has planned, as is limit_
  size_t limit_ = 1;     // how many arrays move at the same time
  BackgroundStop stop_;  // of the planning

  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // the first failure
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<const PinnedArray> pin_ ABSL_GUARDED_BY(mutex_);  // see Plan; null: none
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;  // index of the next item to begin
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<size_t, Sequencer::StepTicket> steps_ ABSL_GUARDED_BY(mutex_);  // by item
  std::map<size_t, std::string> transfers_ ABSL_GUARDED_BY(mutex_);        // by item
  // Bytes that workers have received from other workers.
  struct ReceivedBytes {
    std::map<std::string, int64_t> by_worker = {};
    int64_t total = 0;
  };
  std::map<size_t, ReceivedBytes> received_ ABSL_GUARDED_BY(mutex_);  // by item that is a step
  std::vector<ReshardedArray> moved_ ABSL_GUARDED_BY(mutex_);
  int64_t done_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  Revision revision_ ABSL_GUARDED_BY(mutex_) = 0;
};

ReshardRunner::ReshardRunner(const ReshardParts& parts)
    : parts_(parts), answers_(kReshardMessages) {}

absl::StatusOr<ReshardRunner::AnswerPtr> ReshardRunner::Find(const ReshardCall& call,
                                                             const std::string& key) {
  absl::MutexLock lock(&mutex_);
  const absl::Time now = parts_.clock->Now();
  answers_.ForgetEnded(now, kMaxAnswers, now, [](const AnswerPtr&) { return false; });
  SHARDMESH_ASSIGN_OR_RETURN(RequestIndex<AnswerPtr>::Request* const first,
                             answers_.Begin(call.caller.name, key, call.fingerprint));
  return first == nullptr ? nullptr : first->answer;
}

void ReshardRunner::Remember(const std::string& key, const absl::Status& status, AnswerPtr answer) {
  if (key.empty()) return;
  absl::MutexLock lock(&mutex_);
  if (!status.ok()) return answers_.Forget(key);
  const int64_t bytes = BytesOf(answer->outline, answer->arrays);
  answers_.Finish(key, std::move(answer), parts_.clock->Now() + kRememberFor, bytes);
  while (answers_.bytes() > parts_.max_remembered_bytes && answers_.answers() > 1) {
    answers_.ForgetOldest();
  }
}

absl::Status ReshardRunner::PinSource(const std::string& session_id, const std::string& array_id) {
  SHARDMESH_RETURN_IF_ERROR(parts_.registry->Pin(array_id));
  absl::StatusOr<bool> is_new;
  {
    absl::MutexLock lock(&pins_mutex_);
    is_new = parts_.sessions->PinArray(session_id, array_id);
    if (is_new.ok()) {
      SourcePin& pin = source_pins_[{session_id, array_id}];
      ++pin.moves;
      pin.is_new |= *is_new;
    }
  }
  // The session needs one pin in the registry.
  if (!is_new.ok() || !*is_new) parts_.registry->Unpin(array_id);
  return is_new.status();
}

void ReshardRunner::EndMove(const std::string& session_id, const std::string& array_id,
                            bool has_moved) {
  {
    absl::MutexLock lock(&pins_mutex_);
    const auto found = source_pins_.find({session_id, array_id});
    SourcePin& pin = found->second;
    pin.is_kept |= has_moved;
    if (--pin.moves > 0) return;
    const bool is_removed = pin.is_new && !pin.is_kept;
    source_pins_.erase(found);
    // A session that is gone has already unpinned its arrays.
    if (!is_removed || !parts_.sessions->UnpinArray(session_id, array_id).value_or(false)) return;
  }
  parts_.registry->Unpin(array_id);
}

bool ReshardRunner::AnswerFromStore(const ReshardCall& call, ReshardEvents& events) {
  if (!call.array.has_value() || call.request_id.empty() || call.validate_only) return false;
  const std::string key = RequestKey(call.session_id, "Reshard", call.request_id);
  RequestMemory& requests = parts_.registry->requests();
  if (!requests.Find(key).has_value()) return false;
  const auto remembered = requests.Begin(key, call.fingerprint);
  if (!remembered.ok()) {
    std::move(events.ended)(remembered.status());
    return true;
  }
  if (!remembered->has_value()) {
    requests.Abandon(key);  // it was forgotten just now
    return false;
  }
  ReshardOutline outline;
  ReshardedArray array;
  if (!DecodeAnswer((*remembered)->bytes, &outline, &array)) return false;
  const auto found = parts_.registry->FindArray(array.descriptor.array_id);
  if (!found.ok()) {
    std::move(events.ended)(found.status());
    return true;
  }
  array.descriptor = (*found)->definition.descriptor;
  if (events.planned) events.planned(outline);
  if (events.moved) events.moved(array, outline.total_bytes);
  std::move(events.ended)(array.name_version);
  return true;
}

ReshardRunner::RunPtr ReshardRunner::Start(ReshardCall call, ReshardEvents events) {
  absl::Status checked;
  // Nobody repeats a reshard that is a part of another operation, so it needs no id.
  if (call.operation_id.empty()) checked = rpc::CheckRequestId(call.request_id, "request_id");
  if (checked.ok()) checked = parts_.sessions->Check(call.session_id, call.caller);
  // Sessions do not survive a restart of the coordinator, but a client may repeat the request that
  // it sent before.
  if (absl::IsNotFound(checked) && AnswerFromStore(call, events)) return nullptr;
  if (!checked.ok()) {
    std::move(events.ended)(checked);
    return nullptr;
  }
  std::string key;
  if (!call.validate_only && !call.request_id.empty())
    key = RequestKey(call.session_id, "Reshard", call.request_id);
  if (!key.empty()) {
    const absl::StatusOr<AnswerPtr> remembered = Find(call, key);
    if (!remembered.ok()) {
      std::move(events.ended)(remembered.status());
      return nullptr;
    }
    if (const AnswerPtr& answer = *remembered; answer != nullptr) {
      if (events.planned) events.planned(answer->outline);
      for (const ReshardedArray& array : answer->arrays) {
        if (events.moved) events.moved(array, answer->outline.total_bytes);
      }
      std::move(events.ended)(answer->revision);
      return nullptr;
    }
  }
  const std::string caller = call.caller.name;
  auto run = std::make_shared<Run>(this, std::move(call), std::move(key), std::move(events));
  if (!background_.Run(caller, [run] { run->Begin(); })) {
    run->Fail(TooManyWait());
    run->End();
    return nullptr;
  }
  return run;
}

void ReshardRunner::Cancel(const RunPtr& run, const absl::Status& reason) { run->Cancel(reason); }

}  // namespace shardmesh::server
