// Stores and forgets answers.
#include "server/state/request_memory.h"

#include <algorithm>
#include <vector>

#include "absl/strings/escaping.h"
#include "process/log.h"
#include "rpc/codec/status.h"
#include "server/state/array_record.h"
#include "sharding/digest.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

constexpr std::string_view kPrefix = "request/";

// Most deletes of one transaction, within the store's limit.
constexpr size_t kDeletesAtOnce = 100;

// Beyond a limit the memory shrinks to this fraction of it, so that not every answer causes a
// delete.
constexpr double kKept = 0.9;

// Memory of an entry without its strings, in all indexes.
constexpr int64_t kEntryBytes = 256;

int64_t SizeOf(const std::string& id, const std::string& fingerprint, const std::string& answer) {
  return kEntryBytes + 3 * static_cast<int64_t>(id.size()) +
         static_cast<int64_t>(fingerprint.size() + answer.size());
}

std::string_view CallerOf(std::string_view key) { return key.substr(0, key.find('/')); }

}  // namespace

std::string_view RequestIdOf(std::string_view key) {
  const size_t method = key.find('/');
  const size_t id = method == std::string_view::npos ? method : key.find('/', method + 1);
  return id == std::string_view::npos ? key : key.substr(id + 1);
}

std::string RequestKey(std::string_view caller, std::string_view method,
                       std::string_view request_id) {
  if (request_id.empty()) return "";
  // Callers' names can have any length, and contain slashes.
  return StrCat(absl::BytesToHexString(Sha256(caller).substr(0, 8)), "/", method, "/", request_id);
}

RequestMemory::RequestMemory(Store* store, rpc::Clock* clock)
    : store_(store), clock_(clock), expiry_(clock, [this] { ForgetOld(); }) {}

absl::StatusOr<std::unique_ptr<RequestMemory>> RequestMemory::Open(Store* store,
                                                                   rpc::Clock* clock) {
  std::unique_ptr<RequestMemory> memory(new RequestMemory(store, clock));
  SHARDMESH_ASSIGN_OR_RETURN(KeyValues stored, store->List(kPrefix));
  std::sort(stored.items.begin(), stored.items.end(),
            [](const KeyValue& a, const KeyValue& b) { return a.mod_revision < b.mod_revision; });
  // The wall clock may have been changed since they were written, so their own times are not
  // reliable. Each stays for the whole time, in order, so that the oldest is dropped first.
  absl::Time expires = clock->Now() + kRememberFor;
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
    Entry& entry = memory->entries_[id];
    entry = {record->fingerprint, record->answer, item.mod_revision, expires};
    expires += absl::Nanoseconds(1);
    memory->Remember(id, entry);
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
                      Reason::kBadField,
                      {{fact::kField, "request_id"}, {fact::kValue, request_id}});
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
        absl::InvalidArgumentError(StrCat("request id \"", RequestIdOf(request_id),
                                          "\" was used for another request; draw a new one")),
        Reason::kRequestIdReused, {{fact::kValue, RequestIdOf(request_id)}});
  }
  if (entry.revision == 0) {
    return WithRetryDelay(
        absl::AbortedError(StrCat("the first request with id \"", RequestIdOf(request_id),
                                  "\" is still running; retry for its answer")),
        absl::Milliseconds(100));
  }
  return RememberedAnswer{entry.answer, entry.revision};
}

std::optional<RememberedAnswer> RequestMemory::Find(std::string_view request_id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(ToAbsl(request_id));
  if (found == entries_.end() || found->second.revision == 0) return std::nullopt;
  return RememberedAnswer{found->second.answer, found->second.revision};
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
  Remember(found->first, found->second);
  KeepWithinLimits(CallerOf(request_id));
}

void RequestMemory::Remember(const std::string& id, const Entry& entry) {
  by_expiry_.emplace(entry.expires, id);
  OfCaller& caller = callers_[std::string(CallerOf(id))];
  caller.answers.emplace(entry.expires, id);
  const int64_t bytes = SizeOf(id, entry.fingerprint, entry.answer);
  caller.bytes += bytes;
  bytes_ += bytes;
  expiry_.SetNoLaterThan(entry.expires);
}

void RequestMemory::Forget(const std::pair<absl::Time, std::string>& answer, Transaction* deletes) {
  const std::pair<absl::Time, std::string> kept = answer;  // a copy: Forget erases the original
  const std::string& id = kept.second;
  const auto entry = entries_.find(id);
  const int64_t bytes = SizeOf(id, entry->second.fingerprint, entry->second.answer);
  entries_.erase(entry);
  by_expiry_.erase(kept);
  const auto caller = callers_.find(CallerOf(id));
  caller->second.answers.erase(kept);
  caller->second.bytes -= bytes;
  if (caller->second.answers.empty()) callers_.erase(caller);
  bytes_ -= bytes;
  deletes->deletes.push_back(StrCat(kPrefix, id));
  if (deletes->deletes.size() == kDeletesAtOnce) Commit(deletes);
}

// Called under the lock, so that a later write of the same id comes after it. If it fails, the next
// Open finds the expired record and tries again.
void RequestMemory::Commit(Transaction* deletes) {
  if (!deletes->deletes.empty()) {
    store_->Commit(std::exchange(*deletes, {}), [](auto) {});
  }
}

void RequestMemory::KeepWithinLimits(std::string_view caller) {
  Transaction deletes;
  const auto share = [](int64_t limit) { return static_cast<int64_t>(kKept * limit); };
  const auto is_over = [&](const OfCaller& of, int64_t answers, int64_t bytes) {
    return std::ssize(of.answers) > answers || of.bytes > bytes;
  };
  if (const auto found = callers_.find(caller);
      found != callers_.end() &&
      is_over(found->second, limits_.max_answers_per_caller, limits_.max_bytes_per_caller)) {
    // The newest answer stays, so the caller's entry does too.
    while (found->second.answers.size() > 1 &&
           is_over(found->second, share(limits_.max_answers_per_caller),
                   share(limits_.max_bytes_per_caller))) {
      Forget(*found->second.answers.begin(), &deletes);
    }
  }
  if (bytes_ > limits_.max_bytes) {
    while (by_expiry_.size() > 1 && bytes_ > share(limits_.max_bytes)) {
      Forget(*by_expiry_.begin(), &deletes);
    }
  }
  Commit(&deletes);
}

void RequestMemory::SetLimits(const RequestMemoryLimits& limits) {
  absl::MutexLock lock(&mutex_);
  limits_ = limits;
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
  while (!by_expiry_.empty() && by_expiry_.begin()->first <= now) {
    Forget(*by_expiry_.begin(), &deletes);
  }
  Commit(&deletes);
  if (!by_expiry_.empty()) expiry_.SetNoLaterThan(by_expiry_.begin()->first);
}

}  // namespace shardmesh::server
