// Keeps, drops and forgets the answers of steps.
#include "server/state/step_memory.h"

#include <string>
#include <utility>

#include "status/byte_text.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// Approximate memory of a request in the index, without its answer.
constexpr int64_t kEntryBytes = 512;

constexpr RequestMessages kMessages = {
    .reused = "request_id was used for another request; draw a new one",
    .running = "the first request with this request_id still runs; retry",
    .python_type = "ValueError"};

}  // namespace

StepMemory::StepMemory(StepMemoryOptions options) : options_(options), index_(kMessages) {}

absl::StatusOr<StepMemory::Answer> StepMemory::Begin(std::string_view caller, std::string_view key,
                                                     std::string_view fingerprint, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  while (index_.next_expiry() <= now) index_.ForgetOldest();
  SHARDMESH_ASSIGN_OR_RETURN(const RequestIndex<Answer>::Request* const first,
                             index_.Begin(caller, key, fingerprint));
  if (first == nullptr) return Answer();
  if (first->answer == nullptr) {
    const absl::Duration ago = now - (first->expires - options_.remember_for);
    return WithReason(
        absl::FailedPreconditionError(StrCat(
            "this request was done ", absl::FormatDuration(absl::Trunc(ago, absl::Milliseconds(1))),
            " ago and is not done again; its answer is no longer kept: at most ",
            FormatBytes(options_.max_bytes_per_caller),
            " of answers are kept for a caller. Describe the names of its results, or "
            "run it with a new request_id")),
        Reason::kRequestIdReused, {{fact::kValue, RequestIdOf(key)}});
  }
  return first->answer;
}

void StepMemory::Finish(std::string_view key, const v1::ExecuteResponse& answer, absl::Time now) {
  auto kept = std::make_shared<const v1::ExecuteResponse>(answer);
  const auto bytes = static_cast<int64_t>(answer.ByteSizeLong()) + kEntryBytes;
  absl::MutexLock lock(&mutex_);
  const auto* const done = index_.Finish(key, std::move(kept), now + options_.remember_for, bytes);
  if (done == nullptr) return;
  const std::string caller(done->caller);
  while (index_.UsageOf(caller).bytes > options_.max_bytes_per_caller &&
         index_.DropOldestOf(caller)) {
  }
  while (index_.UsageOf(caller).answers > options_.max_requests_per_caller) {
    index_.ForgetOldestOf(caller);
  }
  while (index_.bytes() > options_.max_bytes && index_.DropOldestOf(index_.HeaviestCaller())) {
  }
}

void StepMemory::Abandon(std::string_view key) {
  absl::MutexLock lock(&mutex_);
  index_.Forget(key);
}

int64_t StepMemory::size_bytes() const {
  absl::MutexLock lock(&mutex_);
  return index_.bytes();
}

}  // namespace shardmesh::server
