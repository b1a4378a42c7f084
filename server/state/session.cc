// Opening, renewing and ending sessions.
#include "server/state/session.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "process/random_bytes.h"
#include "rpc/codec/status.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// A pause of this process up to this length is ignored: it extends no lease.
constexpr absl::Duration kLongestPause = absl::Seconds(1);

absl::Status Gone(std::string_view id) {
  return WithReason(
      absl::NotFoundError(StrCat("session \"", id,
                                 "\" is unknown, closed or expired; open another and begin anew")),
      Reason::kSessionGone, {{fact::kName, id}});
}

absl::Status TooMany(std::string_view have, int64_t limit) {
  return WithRetryDelay(WithReason(absl::ResourceExhaustedError(StrCat(
                                       have, "; close some, or retry when some have expired")),
                                   Reason::kOverloaded, {{fact::kLimit, limit}}),
                        absl::Seconds(1));
}

}  // namespace

std::string DescribeSessions(const std::vector<SessionInfo>& sessions) {
  return StrJoin(sessions, ", ", [](std::string* out, const SessionInfo& each) {
    StrAppend(out, "session ", each.number, " of ", each.caller);
    if (!each.client.empty()) StrAppend(out, " (client \"", each.client, "\")");
  });
}

SessionTable::SessionTable(Clock* clock, Listener listener, SessionOptions options)
    : clock_(clock),
      listener_(std::move(listener)),
      options_(options),
      pauses_(clock, kLongestPause, "sessions"),
      expiry_(clock, [this] { ExpireOld(); }) {}

Session SessionTable::Describe(const std::string& id, const Entry& entry) {
  return {id,
          entry.number,
          entry.client,
          entry.ttl,
          entry.expires,
          static_cast<int64_t>(entry.arrays.size()),
          static_cast<int64_t>(entry.transfers.size())};
}

SessionInfo SessionTable::InfoOf(const std::string& id, const Entry& entry) {
  return {.number = entry.number,
          .id_prefix = id.substr(0, kShownIdCharacters),
          .caller = entry.caller.name,
          .client = entry.client,
          .opened = entry.opened,
          .renewed = entry.renewed,
          .expires = entry.expires,
          .pinned_arrays = std::ssize(entry.arrays),
          .transfers = std::ssize(entry.transfers),
          .steps = entry.steps};
}

absl::StatusOr<Session> SessionTable::Open(const rpc::Caller& caller, std::string client,
                                           absl::Duration ttl) {
  if (ttl < kMinSessionTtl || ttl > kMaxSessionTtl) {
    return rpc::BadField("ttl", StrCat("is ", absl::FormatDuration(ttl), "; it must be ",
                                       absl::FormatDuration(kMinSessionTtl), " to ",
                                       absl::FormatDuration(kMaxSessionTtl)));
  }
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mutex_);
  if (static_cast<int64_t>(sessions_.size()) >= options_.max_sessions) {
    return TooMany(StrCat("all ", options_.max_sessions, " sessions are open"),
                   options_.max_sessions);
  }
  int64_t& of_caller = by_caller_[caller.name];
  if (of_caller >= options_.max_sessions_per_caller) {
    return TooMany(StrCat(caller.name, " has ", of_caller, " sessions open, and may have ",
                          options_.max_sessions_per_caller),
                   options_.max_sessions_per_caller);
  }
  ++of_caller;
  Entry entry;
  entry.number = ++last_number_;
  entry.caller = caller;
  entry.client = std::move(client);
  entry.ttl = ttl;
  entry.opened = now;
  entry.renewed = now;
  entry.expires = now + entry.ttl;
  expiry_.SetNoLaterThan(entry.expires);
  const auto opened = sessions_.emplace(RandomId(), std::move(entry)).first;
  by_number_[opened->second.number] = opened->first;
  return Describe(opened->first, opened->second);
}

absl::StatusOr<Session> SessionTable::Renew(std::string_view id) {
  const absl::Time now = clock_->Now();
  absl::MutexLock lock(&mutex_);
  Entry* entry = Find(id);
  if (entry == nullptr) return Gone(id);
  entry->renewed = now;
  entry->expires = now + entry->ttl;
  return Describe(std::string(id), *entry);
}

absl::Status SessionTable::Close(std::string_view id) {
  {
    absl::MutexLock lock(&mutex_);
    if (Find(id) == nullptr) return Gone(id);
    End(std::string(id), SessionEnd::kClosed);
  }
  events_.MakeCalls();
  return absl::OkStatus();
}

absl::StatusOr<Session> SessionTable::Get(std::string_view id) const {
  absl::MutexLock lock(&mutex_);
  const Entry* entry = Find(id);
  if (entry == nullptr) return Gone(id);
  return Describe(std::string(id), *entry);
}

absl::Status SessionTable::Check(std::string_view id, const rpc::Caller& caller) const {
  absl::MutexLock lock(&mutex_);
  const Entry* entry = Find(id);
  if (entry == nullptr) return Gone(id);
  if (!entry->caller.is_proven || entry->caller == caller) return absl::OkStatus();
  return WithReason(
      absl::PermissionDeniedError(StrCat("session \"", id, "\" was opened by ", entry->caller.name,
                                         ", not by ", caller.name, "; open a session of your own")),
      Reason::kNotOwner, {{fact::kKind, "session"}, {fact::kName, id}});
}

std::vector<SessionInfo> SessionTable::List(int64_t after, int64_t limit) const {
  std::vector<SessionInfo> sessions;
  absl::MutexLock lock(&mutex_);
  for (auto each = by_number_.upper_bound(after);
       each != by_number_.end() && std::ssize(sessions) < limit; ++each) {
    sessions.push_back(InfoOf(each->second, *Find(each->second)));
  }
  return sessions;
}

std::vector<SessionInfo> SessionTable::ListHolders(std::string_view array_id, size_t limit) const {
  std::vector<SessionInfo> holders;
  absl::MutexLock lock(&mutex_);
  for (const auto& [number, id] : by_number_) {
    if (holders.size() == limit) break;
    const Entry& entry = *Find(id);
    if (entry.arrays.contains(ToAbsl(array_id))) holders.push_back(InfoOf(id, entry));
  }
  return holders;
}

int64_t SessionTable::size() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(sessions_.size());
}

absl::StatusOr<bool> SessionTable::PinArray(std::string_view id, std::string array_id,
                                            bool is_awaited) {
  absl::MutexLock lock(&mutex_);
  Entry* entry = Find(id);
  if (entry == nullptr) return Gone(id);
  const bool is_new = entry->arrays.insert(std::move(array_id)).second;
  if (is_new && is_awaited) ++entry->awaited_arrays;
  return is_new;
}

absl::StatusOr<int64_t> SessionTable::CountAwaited(std::string_view id) const {
  absl::MutexLock lock(&mutex_);
  const Entry* entry = Find(id);
  if (entry == nullptr) return Gone(id);
  return entry->awaited_arrays;
}

absl::StatusOr<bool> SessionTable::UnpinArray(std::string_view id, std::string_view array_id) {
  absl::MutexLock lock(&mutex_);
  Entry* entry = Find(id);
  if (entry == nullptr) return Gone(id);
  return entry->arrays.erase(ToAbsl(array_id)) > 0;
}

absl::StatusOr<bool> SessionTable::PinsArray(std::string_view id, std::string_view array_id) const {
  absl::MutexLock lock(&mutex_);
  const Entry* entry = Find(id);
  if (entry == nullptr) return Gone(id);
  return entry->arrays.contains(ToAbsl(array_id));
}

absl::Status SessionTable::CheckWork(std::string_view id) const {
  absl::MutexLock lock(&mutex_);
  const Entry* entry = Find(id);
  return entry == nullptr ? Gone(id) : CheckWork(id, *entry);
}

absl::Status SessionTable::AddTransfer(std::string_view id, std::string transfer_id) {
  absl::MutexLock lock(&mutex_);
  Entry* entry = Find(id);
  if (entry == nullptr) return Gone(id);
  SHARDMESH_RETURN_IF_ERROR(CheckWork(id, *entry));
  entry->transfers.insert(std::move(transfer_id));
  return absl::OkStatus();
}

absl::Status SessionTable::BeginStep(std::string_view id) {
  absl::MutexLock lock(&mutex_);
  Entry* entry = Find(id);
  if (entry == nullptr) return Gone(id);
  SHARDMESH_RETURN_IF_ERROR(CheckWork(id, *entry));
  ++entry->steps;
  return absl::OkStatus();
}

void SessionTable::EndStep(std::string_view id) {
  absl::MutexLock lock(&mutex_);
  if (Entry* entry = Find(id); entry != nullptr) --entry->steps;
}

absl::Status SessionTable::CheckWork(std::string_view id, const Entry& entry) const {
  const int64_t work = static_cast<int64_t>(entry.transfers.size()) + entry.steps;
  if (work < options_.max_work_per_session) return absl::OkStatus();
  return WithRetryDelay(
      WithReason(
          absl::ResourceExhaustedError(StrCat(
              "session \"", id, "\" has ", work, " transfers and steps under way, and may have ",
              options_.max_work_per_session, "; wait until some have ended")),
          Reason::kOverloaded,
          {{fact::kHave, work}, {fact::kLimit, options_.max_work_per_session}}),
      absl::Milliseconds(100));
}

void SessionTable::RemoveTransfer(std::string_view id, std::string_view transfer_id) {
  absl::MutexLock lock(&mutex_);
  if (Entry* entry = Find(id); entry != nullptr) entry->transfers.erase(ToAbsl(transfer_id));
}

SessionTable::Entry* SessionTable::Find(std::string_view id) {
  const auto found = sessions_.find(ToAbsl(id));
  return found == sessions_.end() ? nullptr : &found->second;
}

const SessionTable::Entry* SessionTable::Find(std::string_view id) const {
  const auto found = sessions_.find(ToAbsl(id));
  return found == sessions_.end() ? nullptr : &found->second;
}

void SessionTable::End(const std::string& id, SessionEnd end) {
  const auto node = sessions_.extract(id);
  by_number_.erase(node.mapped().number);
  if (const auto count = by_caller_.find(node.mapped().caller.name); --count->second == 0) {
    by_caller_.erase(count);
  }
  EndedSession ended;
  ended.id = id;
  ended.end = end;
  ended.arrays.assign(node.mapped().arrays.begin(), node.mapped().arrays.end());
  ended.transfers.assign(node.mapped().transfers.begin(), node.mapped().transfers.end());
  std::sort(ended.arrays.begin(), ended.arrays.end());
  std::sort(ended.transfers.begin(), ended.transfers.end());
  events_.Add([this, ended = std::move(ended)] { listener_(ended); });
}

void SessionTable::ExpireOld() {
  const absl::Time now = clock_->Now();
  const absl::Time runs_since = pauses_.RunsSince(now);
  {
    absl::MutexLock lock(&mutex_);
    absl::Time next = absl::InfiniteFuture();
    std::vector<std::string> expired;
    for (auto& [id, entry] : sessions_) {
      // A lease renewal that arrived during a pause is read only after the pause, so extend the
      // lease.
      entry.expires = std::max(entry.expires, runs_since + entry.ttl);
      if (entry.expires <= now) {
        expired.push_back(id);
      } else {
        next = std::min(next, entry.expires);
      }
    }
    std::sort(expired.begin(), expired.end());
    for (const std::string& id : expired) End(id, SessionEnd::kExpired);
    expiry_.SetNoLaterThan(next);
  }
  events_.MakeCalls();
}

}  // namespace shardmesh::server
