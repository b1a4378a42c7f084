// Long operations, from their beginning until they are forgotten.
#include "server/state/operation_table.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_split.h"
#include "process/random_bytes.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "status/utf8.h"

namespace shardmesh::server {
namespace {

// Maximum number of operations that List examines for one page, because it examines them under the
// lock.
constexpr int64_t kMostExamined = 2'000;

int64_t SaturatingAdd(int64_t one, int64_t other) {
  int64_t sum = 0;
  return __builtin_add_overflow(one, other, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}

int64_t PerSecond(int64_t bytes, absl::Duration time) {
  const double seconds = absl::ToDoubleSeconds(time);
  if (seconds <= 0 || bytes <= 0) return 0;
  const double rate = static_cast<double>(bytes) / seconds;
  constexpr double kMost = 9e18;
  return static_cast<int64_t>(std::min(rate, kMost));
}

// Returns `text` as a description: valid UTF-8 of at most kMaxDescription bytes.
std::string Description(std::string text) {
  if (!DecodeUtf8(text).has_value()) text = absl::CHexEscape(text);
  if (text.size() <= OperationTable::kMaxDescription) return text;
  text.resize(OperationTable::kMaxDescription);
  while (!DecodeUtf8(text).has_value()) text.pop_back();  // at most three bytes of a character
  return text;
}

}  // namespace

absl::Status NoOperation(std::string_view id) {
  return WithReason(
      absl::NotFoundError(StrCat("there is no operation \"", id,
                                 "\"; `shardmesh ops ls` lists those that run, and those that "
                                 "ended in the last ten minutes")),
      Reason::kNotFound, {{fact::kKind, "operation"}, {fact::kName, id}});
}

std::set<std::string> WorkersNamedBy(const absl::Status& error) {
  const std::string named = FactOf(error, fact::kIdentity).value_or("");
  std::set<std::string> workers;
  for (const absl::string_view each : absl::StrSplit(named, ',', absl::SkipEmpty())) {
    workers.emplace(each);
  }
  return workers;
}

void ProgressRate::Add(absl::Time now, int64_t bytes) {
  const int64_t index = (now - absl::UnixEpoch()) / kBucket;
  Bucket& bucket = buckets_[static_cast<size_t>(index) % kBuckets];
  if (bucket.index != index) bucket = {.index = index, .bytes = 0};
  bucket.bytes = SaturatingAdd(bucket.bytes, bytes);
}

int64_t ProgressRate::BytesPerSecond(absl::Time now, absl::Time started) const {
  const int64_t index = (now - absl::UnixEpoch()) / kBucket;
  int64_t bytes = 0;
  for (const Bucket& bucket : buckets_) {
    if (bucket.index > index - static_cast<int64_t>(kBuckets) && bucket.index <= index) {
      bytes = SaturatingAdd(bytes, bucket.bytes);
    }
  }
  const absl::Time since = absl::UnixEpoch() + (index + 1 - int64_t{kBuckets}) * kBucket;
  return PerSecond(bytes, std::max(now - std::max(since, started), kBucket));
}

std::optional<absl::Duration> OperationProgress::TimeLeft() const {
  if (ended || total_bytes <= 0 || bytes_per_second <= 0) return std::nullopt;
  const double left = static_cast<double>(std::max<int64_t>(total_bytes - done_bytes, 0));
  return absl::Seconds(left / static_cast<double>(bytes_per_second));
}

void SetRate(const ProgressRate& rate, absl::Time now, OperationProgress& progress) {
  progress.bytes_per_second =
      progress.ended ? PerSecond(progress.done_bytes, progress.finished - progress.started)
                     : rate.BytesPerSecond(now, progress.started);
}

absl::StatusOr<std::string> OperationTable::Begin(OperationKind kind, std::string description,
                                                  const std::string& session_id,
                                                  int64_t session_number, CancelCallback cancel,
                                                  bool is_detached) {
  auto operation = std::make_shared<Operation>();
  OperationProgress& progress = operation->progress;
  progress.id = RandomId();
  progress.kind = kind;
  progress.session_id = session_id;
  progress.session_number = session_id.empty() ? 0 : session_number;
  progress.is_detached = is_detached;
  progress.description = Description(std::move(description));
  progress.started = clock_->Now();
  operation->cancel = std::move(cancel);
  const std::string id = progress.id;
  {
    absl::MutexLock lock(&mutex_);
    Forget();
    progress.number = NextNumber();
    operations_.emplace(id, operation);
    by_number_.emplace(progress.number, operation);
  }
  // The session gets the operation after the table: a session that ends from now on finds it here.
  if (!session_id.empty() && !is_detached) {
    const absl::Status added = sessions_->AddTransfer(session_id, id);
    if (!added.ok()) {
      absl::MutexLock lock(&mutex_);
      by_number_.erase(progress.number);
      operations_.erase(id);
      return added;
    }
  }
  return id;
}

void OperationTable::SetTotal(std::string_view id, int64_t pieces, int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  const OperationPtr operation = Find(id);
  if (operation == nullptr || operation->progress.ended) return;
  OperationProgress& progress = operation->progress;
  progress.total = std::max(pieces, progress.done);
  progress.total_bytes = std::max(bytes, progress.done_bytes);
}

void OperationTable::SetDescription(std::string_view id, std::string description) {
  std::string text = Description(std::move(description));
  absl::MutexLock lock(&mutex_);
  const OperationPtr operation = Find(id);
  if (operation == nullptr || operation->progress.ended) return;
  operation->progress.description.swap(text);
}

void OperationTable::SetWorkers(std::string_view id, WorkersCallback workers) {
  absl::MutexLock lock(&mutex_);
  const OperationPtr operation = Find(id);
  if (operation == nullptr || operation->progress.ended) return;
  operation->workers.swap(workers);  // the former one is destroyed after the lock is released
}

void OperationTable::SetPart(std::string_view id, const std::string& part, int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  const OperationPtr operation = Find(id);
  if (operation == nullptr || operation->progress.ended) return;
  int64_t& known = operation->parts[part];
  if (bytes <= known) return;
  operation->rate.Add(clock_->Now(), bytes - known);
  known = bytes;
}

void OperationTable::Add(std::string_view id, int64_t pieces, int64_t bytes,
                         std::string_view part) {
  absl::MutexLock lock(&mutex_);
  const OperationPtr operation = Find(id);
  if (operation == nullptr || operation->progress.ended) return;
  int64_t counted = 0;
  if (const auto found = operation->parts.find(part); found != operation->parts.end()) {
    counted = found->second;
    operation->parts.erase(found);
  }
  OperationProgress& progress = operation->progress;
  progress.done = SaturatingAdd(progress.done, pieces);
  progress.done_bytes = SaturatingAdd(progress.done_bytes, bytes);
  // A total below what is done would show more than all of the work.
  if (progress.total > 0) progress.total = std::max(progress.total, progress.done);
  if (progress.total_bytes > 0) {
    progress.total_bytes = std::max(progress.total_bytes, progress.done_bytes);
  }
  operation->rate.Add(clock_->Now(), std::max<int64_t>(bytes - counted, 0));
}

void OperationTable::End(std::string_view id, const absl::Status& status) {
  std::map<int64_t, absl::AnyInvocable<void() &&>> on_end;
  CancelCallback cancel;  // destroyed after the lock is released
  WorkersCallback workers;
  std::string session_id;
  {
    absl::MutexLock lock(&mutex_);
    const OperationPtr operation = Find(id);
    if (operation == nullptr || operation->progress.ended) return;
    OperationProgress& progress = operation->progress;
    progress.ended = true;
    progress.status = status;
    progress.finished = clock_->Now();
    if (!progress.is_detached) session_id = progress.session_id;
    on_end = std::exchange(operation->on_end, {});
    cancel = std::exchange(operation->cancel, nullptr);
    workers = std::exchange(operation->workers, nullptr);
    ended_.push_back(operation);
  }
  if (!session_id.empty()) sessions_->RemoveTransfer(session_id, id);
  for (auto& [number, ended] : on_end) std::move(ended)();
}

int64_t OperationTable::OnEnd(std::string_view id, absl::AnyInvocable<void() &&> ended) {
  {
    absl::MutexLock lock(&mutex_);
    if (const OperationPtr operation = Find(id);
        operation != nullptr && !operation->progress.ended) {
      operation->on_end.emplace(++operation->last_on_end, std::move(ended));
      return operation->last_on_end;
    }
  }
  std::move(ended)();
  return 0;
}

void OperationTable::DropOnEnd(std::string_view id, int64_t number) {
  absl::AnyInvocable<void() &&> dropped;  // destroyed after the lock is released
  absl::MutexLock lock(&mutex_);
  const OperationPtr operation = Find(id);
  if (operation == nullptr) return;
  const auto found = operation->on_end.find(number);
  if (found == operation->on_end.end()) return;
  dropped = std::move(found->second);
  operation->on_end.erase(found);
}

absl::Status OperationTable::Cancel(std::string_view id, std::string_view session_id) {
  {
    absl::MutexLock lock(&mutex_);
    const OperationPtr operation = Find(id);
    if (operation == nullptr || IsForgotten(operation->progress)) return NoOperation(id);
    const OperationProgress& progress = operation->progress;
    if (progress.session_id != session_id) {
      const std::string owner =
          progress.session_id.empty()
              ? std::string("the coordinator itself began it")
              : StrCat("session number ", progress.session_number, " began it");
      return WithReason(
          absl::PermissionDeniedError(
              StrCat("operation ", id, " is not of session \"", session_id, "\": ", owner,
                     "; an administrator can cancel it with `shardmesh ops cancel --force`")),
          Reason::kNotOwner, {{fact::kKind, "operation"}, {fact::kName, id}});
    }
  }
  return CancelFor(
      id, WithReason(absl::CancelledError("the operation was cancelled"), Reason::kCancelled));
}

absl::Status OperationTable::CancelFor(std::string_view id, const absl::Status& reason) {
  CancelCallback cancel;
  {
    absl::MutexLock lock(&mutex_);
    const OperationPtr operation = Find(id);
    if (operation == nullptr || IsForgotten(operation->progress)) return NoOperation(id);
    if (operation->progress.ended) return absl::OkStatus();
    cancel = operation->cancel;
  }
  if (cancel == nullptr) {
    return absl::FailedPreconditionError(StrCat(
        "operation ", id, " cannot be cancelled; `shardmesh ops watch` shows how far it is"));
  }
  return cancel(reason);
}

absl::StatusOr<OperationProgress> OperationTable::Progress(std::string_view id) const {
  absl::MutexLock lock(&mutex_);
  const OperationPtr operation = Find(id);
  if (operation == nullptr || IsForgotten(operation->progress)) return NoOperation(id);
  return ProgressOf(*operation);
}

OperationWorkers OperationTable::WorkersOf(std::string_view id) const {
  WorkersCallback workers;
  {
    absl::MutexLock lock(&mutex_);
    const OperationPtr operation = Find(id);
    if (operation != nullptr) workers = operation->workers;
  }
  return workers == nullptr ? OperationWorkers() : workers();
}

OperationTable::Listed OperationTable::List(
    int64_t after, int64_t limit,
    const std::function<bool(const OperationProgress&)>& is_wanted) const {
  Listed listed;
  absl::MutexLock lock(&mutex_);
  int64_t left = kMostExamined;
  for (auto each = by_number_.upper_bound(after); each != by_number_.end(); ++each) {
    if (std::ssize(listed.operations) >= limit || left-- == 0) {
      listed.next_after = std::prev(each)->first;
      break;
    }
    const OperationProgress& progress = each->second->progress;
    // A forgotten operation can still be in the map: only the next Begin removes it.
    if (!IsForgotten(progress) && is_wanted(progress)) {
      listed.operations.push_back(ProgressOf(*each->second));
    }
  }
  return listed;
}

int64_t OperationTable::CountRunning() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(operations_.size() - ended_.size());
}

OperationTable::OperationPtr OperationTable::Find(std::string_view id) const {
  const auto found = operations_.find(id);
  return found == operations_.end() ? nullptr : found->second;
}

OperationProgress OperationTable::ProgressOf(const Operation& operation) const {
  OperationProgress progress = operation.progress;
  if (!progress.ended) {
    for (const auto& [part, bytes] : operation.parts) {
      progress.done_bytes = SaturatingAdd(progress.done_bytes, bytes);
    }
    if (progress.total_bytes > 0) {
      progress.done_bytes = std::min(progress.done_bytes, progress.total_bytes);
    }
  }
  SetRate(operation.rate, clock_->Now(), progress);
  return progress;
}

bool OperationTable::IsForgotten(const OperationProgress& progress) const {
  return progress.ended && progress.finished + kRememberFor < clock_->Now();
}

void OperationTable::Forget() {
  while (!ended_.empty() && (ended_.size() > kMaxEnded || IsForgotten(ended_.front()->progress))) {
    by_number_.erase(ended_.front()->progress.number);
    operations_.erase(ended_.front()->progress.id);
    ended_.pop_front();
  }
}

}  // namespace shardmesh::server
