// Keeps and drops answers of steps.
#include "server/state/step_memory.h"

#include <algorithm>
#include <utility>

#include "rpc/codec/status.h"
#include "server/state/request_memory.h"
#include "status/detail.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// Rough memory of an entry without its answer.
constexpr int64_t kEntryBytes = 512;
// Interval of the scan of all callers for old entries.
constexpr absl::Duration kLookInterval = absl::Seconds(10);

}  // namespace

absl::StatusOr<StepMemory::Answer> StepMemory::Begin(const std::string& caller,
                                                     const std::string& key,
                                                     std::string_view fingerprint, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  ForgetOld(now);
  const auto [found, is_new] = entries_.try_emplace(key);
  Entry& entry = found->second;
  if (is_new) {
    entry.caller = caller;
    entry.fingerprint = std::string(fingerprint);
    return Answer();
  }
  if (entry.fingerprint != fingerprint) {
    return InvalidArgument(Reason::kRequestIdReused,
                           "request_id was used for another request; draw a new one",
                           {{fact::kValue, RequestIdOf(key)}});
  }
  if (!entry.is_done) {
    return WithRetryDelay(
        absl::AbortedError("the first request with this request_id still runs; retry"),
        absl::Milliseconds(100));
  }
  if (entry.answer == nullptr) {
    return WithReason(
        absl::FailedPreconditionError(
            StrCat("this request was done ",
                   absl::FormatDuration(absl::Trunc(now - entry.finished, absl::Milliseconds(1))),
                   " ago and is not done again; its answer is no longer kept: at most ",
                   options_.max_bytes_per_caller,
                   " bytes of answers are kept for a caller. Describe the names of its results, or "
                   "run it with a new request_id")),
        Reason::kRequestIdReused, {{fact::kValue, RequestIdOf(key)}});
  }
  return entry.answer;
}

void StepMemory::Finish(const std::string& key, const v1::ExecuteResponse& answer, absl::Time now) {
  auto kept = std::make_shared<const v1::ExecuteResponse>(answer);
  const auto bytes = static_cast<int64_t>(answer.ByteSizeLong()) + kEntryBytes;
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  entry.is_done = true;
  entry.answer = std::move(kept);
  entry.bytes = bytes;
  entry.finished = now;
  OfCaller& caller = callers_[entry.caller];
  caller.done.push_back(key);
  caller.bytes += bytes;
  bytes_ += bytes;
  while (caller.bytes > options_.max_bytes_per_caller && DropAnswer(&caller)) {
  }
  while (std::ssize(caller.done) > options_.max_requests_per_caller) Forget(&caller);
  while (bytes_ > options_.max_bytes) {
    const auto most = std::max_element(
        callers_.begin(), callers_.end(),
        [](const auto& a, const auto& b) { return a.second.bytes < b.second.bytes; });
    if (!DropAnswer(&most->second)) break;
  }
}

void StepMemory::Abandon(const std::string& key) {
  absl::MutexLock lock(&mutex_);
  entries_.erase(key);
}

bool StepMemory::DropAnswer(OfCaller* caller) {
  if (caller->dropped == caller->done.size()) return false;
  Entry& entry = entries_.at(caller->done[caller->dropped++]);
  entry.answer = nullptr;
  caller->bytes -= entry.bytes;
  bytes_ -= entry.bytes;
  entry.bytes = 0;
  return true;
}

void StepMemory::Forget(OfCaller* caller) {
  if (caller->dropped == 0) DropAnswer(caller);
  entries_.erase(caller->done.front());
  caller->done.pop_front();
  --caller->dropped;
}

void StepMemory::ForgetOld(absl::Time now) {
  if (now < look_again_) return;
  look_again_ = now + kLookInterval;
  for (auto each = callers_.begin(); each != callers_.end();) {
    OfCaller& caller = each->second;
    while (!caller.done.empty() &&
           entries_.at(caller.done.front()).finished + options_.remember_for < now) {
      Forget(&caller);
    }
    each = caller.done.empty() ? callers_.erase(each) : std::next(each);
  }
}

int64_t StepMemory::size_bytes() const {
  absl::MutexLock lock(&mutex_);
  return bytes_;
}

}  // namespace shardmesh::server
