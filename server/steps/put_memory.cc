// Finds and forgets puts by their requests.
#include "server/steps/put_memory.h"

#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

constexpr RequestMessages kMessages = {
    .reused = "header.request_id was used for a put of other tensors; draw a new one",
    .running = "the first request with this request_id is still being taken in; retry",
    .python_type = "ValueError"};

}  // namespace

PutMemory::PutMemory(Clock* clock) : clock_(clock), index_(kMessages) {}

absl::StatusOr<BegunPutPtr> PutMemory::Find(std::string_view key, std::string_view fingerprint) {
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mutex_);
  index_.ForgetEnded(now, kMaxRequests, now + kRememberFor,
                     [](const Begun& begun) { return !begun.put.expired(); });
  SHARDMESH_ASSIGN_OR_RETURN(RequestIndex<Begun>::Request* const first,
                             index_.Begin("", key, fingerprint));
  if (first == nullptr) return BegunPutPtr();
  Begun& begun = first->answer;
  BegunPutPtr put = begun.put.lock();
  if (put == nullptr) {
    return WithReason(
        absl::FailedPreconditionError(StrCat("this request began transfer ", begun.transfer_id,
                                             ", which has ended; ask for the operation of that id, "
                                             "or put again with a new request_id")),
        Reason::kRequestIdReused, {{fact::kValue, RequestIdOf(key)}});
  }
  ++begun.being_sent;
  return put;
}

void PutMemory::Began(std::string_view key, const BegunPutPtr& put) {
  absl::MutexLock lock(&mutex_);
  if (put == nullptr) return index_.Forget(key);
  index_.Finish(key, {.transfer_id = put->transfer_id, .put = put, .being_sent = 1},
                clock_->Now() + kRememberFor, 0);
}

void PutMemory::Delivered(std::string_view key, bool holds) {
  absl::MutexLock lock(&mutex_);
  if (auto* const found = index_.Find(key); found != nullptr) {
    --found->answer.being_sent;
    holds ? void(++found->answer.holders) : void(found->answer.is_delivered = true);
  }
}

bool PutMemory::NotDelivered(std::string_view key) {
  absl::MutexLock lock(&mutex_);
  auto* const found = index_.Find(key);
  if (found == nullptr) return false;
  --found->answer.being_sent;
  return ForgetUnwanted(key, found->answer);
}

bool PutMemory::Release(std::string_view key) {
  absl::MutexLock lock(&mutex_);
  auto* const found = index_.Find(key);
  if (found == nullptr) return false;
  --found->answer.holders;
  return ForgetUnwanted(key, found->answer);
}

void PutMemory::Ended(std::string_view key) {
  absl::MutexLock lock(&mutex_);
  if (auto* const found = index_.Find(key); found != nullptr) --found->answer.holders;
}

bool PutMemory::ForgetUnwanted(std::string_view key, const Begun& put) {
  if (put.being_sent > 0 || put.holders > 0 || put.is_delivered) return false;
  index_.Forget(key);
  return true;
}

}  // namespace shardmesh::server
