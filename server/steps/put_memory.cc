// Finds and forgets puts by their requests.
#include "server/steps/put_memory.h"

#include "rpc/codec/status.h"
#include "server/state/request_memory.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// Old entries that one request examines: more than arrive, so that each is examined in time.
constexpr int kLooks = 4;

}  // namespace

absl::StatusOr<BegunPutPtr> PutMemory::Find(const std::string& key,
                                            const std::string& fingerprint) {
  absl::MutexLock lock(&mutex_);
  ForgetOld();
  const auto [found, is_new] = entries_.try_emplace(key);
  Entry& entry = found->second;
  if (is_new) {
    entry.fingerprint = fingerprint;
    entry.began = clock_->Now();
    order_.emplace_back(entry.began, key);
    return BegunPutPtr();
  }
  if (entry.fingerprint != fingerprint) {
    return InvalidArgument(Reason::kRequestIdReused,
                           "header.request_id was used for a put of other tensors; draw a new one",
                           {{fact::kValue, RequestIdOf(key)}});
  }
  if (entry.transfer_id.empty()) {
    return WithRetryDelay(
        absl::AbortedError("the first request with this request_id is still being taken in; retry"),
        absl::Milliseconds(100));
  }
  BegunPutPtr put = entry.put.lock();
  if (put == nullptr) {
    return WithReason(
        absl::FailedPreconditionError(StrCat("this request began transfer ", entry.transfer_id,
                                             ", which has ended; ask for the operation of that id, "
                                             "or put again with a new request_id")),
        Reason::kRequestIdReused, {{fact::kValue, RequestIdOf(key)}});
  }
  ++entry.being_sent;
  return put;
}

void PutMemory::Began(const std::string& key, const BegunPutPtr& put) {
  absl::MutexLock lock(&mutex_);
  if (put == nullptr) {
    entries_.erase(key);
    return;
  }
  Entry& entry = entries_[key];
  entry.transfer_id = put->transfer_id;
  entry.put = put;
  entry.being_sent = 1;
}

void PutMemory::Delivered(const std::string& key, bool holds) {
  absl::MutexLock lock(&mutex_);
  if (const auto found = entries_.find(key); found != entries_.end()) {
    --found->second.being_sent;
    holds ? void(++found->second.holders) : void(found->second.is_delivered = true);
  }
}

bool PutMemory::NotDelivered(const std::string& key) {
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return false;
  --found->second.being_sent;
  return ForgetUnwanted(found);
}

bool PutMemory::Release(const std::string& key) {
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return false;
  --found->second.holders;
  return ForgetUnwanted(found);
}

void PutMemory::Ended(const std::string& key) {
  absl::MutexLock lock(&mutex_);
  if (const auto found = entries_.find(key); found != entries_.end()) --found->second.holders;
}

bool PutMemory::ForgetUnwanted(std::map<std::string, Entry>::iterator entry) {
  const Entry& put = entry->second;
  if (put.being_sent > 0 || put.holders > 0 || put.is_delivered) return false;
  entries_.erase(entry);
  return true;
}

void PutMemory::ForgetOld() {
  const absl::Time now = clock_->Now();
  for (int i = 0; i < kLooks && !order_.empty(); ++i) {
    if (order_.size() <= kMaxRequests && order_.front().first + kRememberFor > now) return;
    const std::string key = std::move(order_.front().second);
    order_.pop_front();
    const auto found = entries_.find(key);
    if (found == entries_.end()) continue;
    const bool lives = found->second.transfer_id.empty() || !found->second.put.expired();
    if (lives) {
      order_.emplace_back(now, key);
    } else {
      entries_.erase(found);
    }
  }
}

}  // namespace shardmesh::server
