// Remembering and forgetting answers.
#include "server/request_memory.h"

#include <algorithm>
#include <vector>

#include "rpc/log.h"
#include "server/catalogue_record.h"
#include "sharding/reason.h"
#include "sharding/status_macros.h"
#include "sharding/str_cat.h"

namespace shardmesh::server {
namespace {

constexpr std::string_view kPrefix = "request/";

// Deletes of one transaction, within what a store takes at once.
constexpr size_t kDeletesAtOnce = 100;

}  // namespace

RequestMemory::RequestMemory(Store* store, rpc::Clock* clock)
    : store_(store), clock_(clock), expiry_(clock, [this] { ForgetOld(); }) {}

absl::StatusOr<std::unique_ptr<RequestMemory>> RequestMemory::Open(Store* store,
                                                                   rpc::Clock* clock) {
  std::unique_ptr<RequestMemory> memory(new RequestMemory(store, clock));
  SHARDMESH_ASSIGN_OR_RETURN(const KeyValues stored, store->List(kPrefix));
  absl::MutexLock lock(&memory->mutex_);
  for (const KeyValue& item : stored.items) {
    const absl::StatusOr<RequestRecord> record = DecodeRequest(item.key, item.value);
    if (!record.ok()) {
      rpc::LogError("a remembered answer in the store cannot be read and is forgotten",
                    {{"key", item.key}, {"error", record.status()}});
      store->Commit({.deletes = {item.key}}, [](const absl::StatusOr<Revision>&) {});
      continue;
    }
    const std::string id = item.key.substr(kPrefix.size());
    memory->entries_[id] = {record->fingerprint, record->answer, item.mod_revision,
                            record->expires};
    memory->by_expiry_.emplace(record->expires, id);
    memory->expiry_.SetNoLaterThan(record->expires);
  }
  return memory;
}

absl::StatusOr<std::optional<RememberedAnswer>> RequestMemory::Begin(std::string_view request_id,
                                                                     std::string_view fingerprint) {
  if (request_id.empty()) return std::nullopt;
  if (request_id.size() > kMaxRequestIdBytes || request_id.find('\0') != std::string_view::npos) {
    return WithReason(absl::InvalidArgumentError(StrCat("a request id of ", request_id.size(),
                                                        " bytes; it must have at most ",
                                                        kMaxRequestIdBytes, ", none of them NUL")),
                      Reason::kBadField);
  }
  absl::MutexLock lock(&mutex_);
  const auto [found, is_new] = entries_.try_emplace(std::string(request_id));
  Entry& entry = found->second;
  if (is_new) {
    entry.fingerprint = std::string(fingerprint);
    return std::nullopt;
  }
  if (entry.fingerprint != fingerprint) {
    return WithReason(
        absl::InvalidArgumentError(
            StrCat("request id \"", request_id, "\" was used for another request; draw a new one")),
        Reason::kRequestIdReused);
  }
  if (entry.revision == 0) {
    return absl::AbortedError(StrCat("the first request with id \"", request_id,
                                     "\" is still running; retry for its answer"));
  }
  return RememberedAnswer{entry.answer, entry.revision};
}

void RequestMemory::AddTo(Transaction* transaction, std::string_view request_id,
                          std::string answer) {
  if (request_id.empty()) return;
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(ToAbsl(request_id));
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  entry.answer = std::move(answer);
  entry.expires = clock_->Now() + kRememberFor;
  transaction->puts.push_back({StrCat(kPrefix, request_id),
                               EncodeRequest({entry.fingerprint, entry.answer, entry.expires})});
}

void RequestMemory::Finish(std::string_view request_id, Revision revision) {
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(ToAbsl(request_id));
  if (found == entries_.end()) return;
  found->second.revision = revision;
  by_expiry_.emplace(found->second.expires, std::string(request_id));
  expiry_.SetNoLaterThan(found->second.expires);
}

void RequestMemory::Abandon(std::string_view request_id) {
  absl::MutexLock lock(&mutex_);
  if (const auto found = entries_.find(ToAbsl(request_id)); found != entries_.end()) {
    entries_.erase(found);
  }
}

void RequestMemory::ForgetOld() {
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mutex_);
  Transaction deletes;
  // The store is told under the lock, so that an id that is used anew is written after it. Should
  // it fail, the next Open finds the record expired and tries again.
  const auto flush = [&] {
    if (!deletes.deletes.empty()) store_->Commit(std::move(deletes), [](auto) {});
    deletes = {};
  };
  while (!by_expiry_.empty() && by_expiry_.begin()->first <= now) {
    const std::string& id = by_expiry_.begin()->second;
    entries_.erase(id);
    deletes.deletes.push_back(StrCat(kPrefix, id));
    by_expiry_.erase(by_expiry_.begin());
    if (deletes.deletes.size() == kDeletesAtOnce) flush();
  }
  flush();
  if (!by_expiry_.empty()) expiry_.SetNoLaterThan(by_expiry_.begin()->first);
}

}  // namespace shardmesh::server
