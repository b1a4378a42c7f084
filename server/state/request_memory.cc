// Stores and forgets answers.
#include "server/state/request_memory.h"

#include <algorithm>
#include <utility>

#include "process/log.h"
#include "server/state/array_record.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

constexpr std::string_view kPrefix = "request/";

constexpr RequestMessages kMessages = {
    .reused = "request id \"$0\" was used for another request; draw a new one",
    .running = "the first request with id \"$0\" is still running; retry for its answer"};

// The maximum number of deletes of one transaction, within the store's limit.
constexpr size_t kDeletesAtOnce = 100;

// When a limit is exceeded, the oldest answers are deleted until usage is at this fraction of the
// limit. With 1.0, every further answer would cause another delete.
constexpr double kKept = 0.9;

// Approximate memory of one answer in all indexes, without its strings.
constexpr int64_t kEntryBytes = 256;

int64_t SizeOf(std::string_view id, const std::string& fingerprint, const std::string& answer) {
  return kEntryBytes + 3 * static_cast<int64_t>(id.size()) +
         static_cast<int64_t>(fingerprint.size() + answer.size());
}

std::string_view CallerOf(std::string_view key) { return key.substr(0, key.find('/')); }

}  // namespace

RequestMemory::RequestMemory(Store* store, Clock* clock)
    : store_(store), clock_(clock), index_(kMessages), expiry_(clock, [this] { ForgetOld(); }) {}

absl::StatusOr<std::unique_ptr<RequestMemory>> RequestMemory::Open(Store* store, Clock* clock) {
  std::unique_ptr<RequestMemory> memory(new RequestMemory(store, clock));
  SHARDMESH_ASSIGN_OR_RETURN(KeyValues stored, store->List(kPrefix));
  std::sort(stored.items.begin(), stored.items.end(),
            [](const KeyValue& a, const KeyValue& b) { return a.mod_revision < b.mod_revision; });
  // Do not trust the stored times: the wall clock may have been changed since. Each answer stays
  // for kRememberFor from now on. The answers are added oldest first, so that the oldest answer is
  // also dropped first.
  absl::Time expires = clock->Now() + kRememberFor;
  absl::MutexLock lock(&memory->mutex_);
  for (const KeyValue& item : stored.items) {
    const absl::StatusOr<RequestRecord> record = DecodeRequest(item.key, item.value);
    if (!record.ok()) {
      LogError("a remembered answer in the store cannot be read and is forgotten",
               {{"key", item.key}, {"error", record.status()}});
      store->Commit({.deletes = {item.key}}, [](const absl::StatusOr<Revision>&) {});
      continue;
    }
    const std::string id = item.key.substr(kPrefix.size());
    memory->index_.Begin(CallerOf(id), id, record->fingerprint).status().IgnoreError();  // is new
    memory->Remember(id, {record->answer, item.mod_revision}, expires);
    expires += absl::Nanoseconds(1);
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
  SHARDMESH_ASSIGN_OR_RETURN(const Index::Request* const first,
                             index_.Begin(CallerOf(request_id), request_id, fingerprint));
  if (first == nullptr) return std::nullopt;
  return first->answer;
}

std::optional<RememberedAnswer> RequestMemory::Find(std::string_view request_id) const {
  absl::MutexLock lock(&mutex_);
  const Index::Request* const found = index_.Find(request_id);
  if (found == nullptr) return std::nullopt;
  return found->answer;
}

void RequestMemory::AddTo(Transaction* transaction, std::string_view request_id,
                          std::string answer) {
  absl::MutexLock lock(&mutex_);
  Index::Request* const request = index_.FindRunning(request_id);
  if (request == nullptr) return;
  request->answer.bytes = std::move(answer);
  request->expires = clock_->Now() + kRememberFor;
  transaction->puts.push_back(
      {StrCat(kPrefix, request_id),
       EncodeRequest({request->fingerprint, request->answer.bytes, request->expires})});
}

void RequestMemory::Finish(std::string_view request_id, Revision revision) {
  absl::MutexLock lock(&mutex_);
  Index::Request* const request = index_.FindRunning(request_id);
  if (request == nullptr) return;
  Remember(request_id, {std::move(request->answer.bytes), revision}, request->expires);
  KeepWithinLimits(CallerOf(request_id));
}

void RequestMemory::Remember(std::string_view request_id, RememberedAnswer answer,
                             absl::Time expires) {
  const int64_t bytes =
      SizeOf(request_id, index_.FindRunning(request_id)->fingerprint, answer.bytes);
  index_.Finish(request_id, std::move(answer), expires, bytes);
  expiry_.SetNoLaterThan(expires);
}

void RequestMemory::Delete(std::string_view request_id, Transaction* deletes) {
  deletes->deletes.push_back(StrCat(kPrefix, request_id));
  if (deletes->deletes.size() == kDeletesAtOnce) Commit(deletes);
}

// Called under the lock: a later write of the same id must come after this delete. If the delete
// fails, the next Open loads the record again, and the record expires later.
void RequestMemory::Commit(Transaction* deletes) {
  if (!deletes->deletes.empty()) {
    store_->Commit(std::exchange(*deletes, {}), [](auto) {});
  }
}

void RequestMemory::KeepWithinLimits(std::string_view caller) {
  Transaction deletes;
  const auto share = [](int64_t limit) { return static_cast<int64_t>(kKept * limit); };
  const auto is_over = [](const Index::Usage& usage, int64_t answers, int64_t bytes) {
    return usage.answers > answers || usage.bytes > bytes;
  };
  if (is_over(index_.UsageOf(caller), limits_.max_answers_per_caller,
              limits_.max_bytes_per_caller)) {
    // Keep the newest answer, even if it alone exceeds a limit.
    for (Index::Usage usage = index_.UsageOf(caller);
         usage.answers > 1 &&
         is_over(usage, share(limits_.max_answers_per_caller), share(limits_.max_bytes_per_caller));
         usage = index_.UsageOf(caller)) {
      Delete(index_.ForgetOldestOf(caller), &deletes);
    }
  }
  if (index_.bytes() > limits_.max_bytes) {
    while (index_.answers() > 1 && index_.bytes() > share(limits_.max_bytes)) {
      Delete(index_.ForgetOldest(), &deletes);
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
  index_.Forget(request_id);
}

void RequestMemory::ForgetOld() {
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mutex_);
  Transaction deletes;
  while (index_.next_expiry() <= now) Delete(index_.ForgetOldest(), &deletes);
  Commit(&deletes);
  expiry_.SetNoLaterThan(index_.next_expiry());
}

}  // namespace shardmesh::server
