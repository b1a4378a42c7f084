// Opens and closes a session, renews it on a thread of the keeper, and moves arrays to the next
// one.
#include "client/remote/session_keeper.h"

#include <algorithm>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "client/remote/transfer_calls.h"
#include "process/steady_deadline.h"
#include "process/thread_pool.h"
#include "status/reason.h"
#include "status/status_macros.h"

namespace shardmesh::client {
namespace {

// Time limit of one renewal. The client's destructor waits at most this long for a renewal in
// progress.
constexpr absl::Duration kCallTimeout = absl::Seconds(1);
// The largest number of arrays that one call takes over or releases.
constexpr size_t kMaxOfCall = 10'000;
// Delay between attempts to renew while the coordinator does not answer.
constexpr absl::Duration kRetryDelay = absl::Milliseconds(500);

// An opened session.
struct OpenedSession {
  std::string session_id;
  absl::Duration ttl = absl::ZeroDuration();
};

absl::StatusOr<OpenedSession> OpenSession(const CoordinatorConnection& connection,
                                          absl::Duration ttl, const std::string& client_name,
                                          const CallLimit& limit) {
  v1::OpenSessionRequest request;
  request.set_request_id(NewRequestId());
  rpc::Encode(ttl, request.mutable_ttl());
  request.set_client_name(client_name);
  v1::OpenSessionResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.sessions, &v1::SessionService::Stub::OpenSession, request, limit, &response));
  OpenedSession session;
  session.session_id = response.session_id();
  SHARDMESH_ASSIGN_OR_RETURN(session.ttl, DecodeAnswer(response.ttl()));
  return session;
}

// A renewed session.
struct RenewedSession {
  absl::Duration ttl = absl::ZeroDuration();
  std::set<std::string> refused;  // arrays that it could not take over
};

// Renews the session, which takes over the arrays `held`.
absl::StatusOr<RenewedSession> RenewSession(const CoordinatorConnection& connection,
                                            const std::string& session_id,
                                            absl::Span<const std::string> held,
                                            const CallLimit& limit) {
  v1::RenewSessionRequest request;
  request.set_session_id(session_id);
  request.mutable_held_array_ids()->Add(held.begin(), held.end());
  v1::RenewSessionResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.sessions, &v1::SessionService::Stub::RenewSession, request, limit, &response));
  RenewedSession renewed;
  SHARDMESH_ASSIGN_OR_RETURN(renewed.ttl, DecodeAnswer(response.ttl()));
  renewed.refused.insert(response.refused_array_ids().begin(), response.refused_array_ids().end());
  return renewed;
}

absl::Status CloseSession(const CoordinatorConnection& connection, const std::string& session_id,
                          const CallLimit& limit) {
  v1::CloseSessionRequest request;
  request.set_session_id(session_id);
  v1::CloseSessionResponse response;
  return connection.Call(connection.sessions, &v1::SessionService::Stub::CloseSession, request,
                         limit, &response);
}

// Returns the arrays of the set that follow `last`, as many as one call takes.
std::vector<std::string> NextOf(const std::set<std::string>& array_ids, const std::string& last) {
  std::vector<std::string> next;
  for (auto each = array_ids.upper_bound(last); each != array_ids.end() && next.size() < kMaxOfCall;
       ++each) {
    next.push_back(*each);
  }
  return next;
}

// As NextOf, but goes on with the first arrays after the last ones, and sets `last` to the last one
// that it returns. Returns none only if the set is empty.
std::vector<std::string> NextInTurn(const std::set<std::string>& array_ids, std::string& last) {
  std::vector<std::string> next = NextOf(array_ids, last);
  if (next.empty()) next = NextOf(array_ids, "");
  if (!next.empty()) last = next.back();
  return next;
}

}  // namespace

SessionKeeper::~SessionKeeper() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.Signal();
  }
  Close();
  std::thread renewer;
  {
    absl::MutexLock lock(&mutex_);
    renewer = std::move(renewer_);
  }
  if (renewer.joinable()) {
    renewer.join();
  }
  Close();  // the renewer may have opened a session meanwhile
}

absl::Status SessionKeeper::AwaitOpening(const CallLimit& limit) {
  bool is_cancelled = false;
  // Register before locking `mutex_`. The callback locks `mutex_` while the lock of Cancellation is
  // held. Registering with `mutex_` held would take the two locks in the reverse order, and could
  // deadlock.
  std::optional<Cancellation::Registration> registration;
  if (limit.cancellation != nullptr) {
    registration.emplace(limit.cancellation, [this, &is_cancelled] {
      absl::MutexLock lock(&mutex_);
      is_cancelled = true;
    });
  }
  const auto deadline = SteadyDeadline::At(limit.deadline);
  absl::MutexLock lock(&mutex_);
  const auto is_over = [this, &is_cancelled] { return !is_opening_ || is_cancelled; };
  mutex_.AwaitWithTimeout(absl::Condition(&is_over), deadline.left());
  if (is_cancelled) return CancelledByCaller();
  return is_opening_
             ? connection_->StatusOf({grpc::StatusCode::DEADLINE_EXCEEDED,
                                      "another call is still opening the session of this client"})
             : absl::OkStatus();
}

absl::StatusOr<std::string> SessionKeeper::Get(const CallLimit& limit) {
  for (bool is_opener = false; !is_opener;) {
    SHARDMESH_RETURN_IF_ERROR(AwaitOpening(limit));
    absl::MutexLock lock(&mutex_);
    if (!session_id_.empty() && (lost_.empty() || is_full_)) {
      return session_id_;
    }
    is_opener = !is_opening_;
    is_opening_ = true;
  }
  absl::StatusOr<std::string> opened = OpenAndTakeOver(limit);
  absl::MutexLock lock(&mutex_);
  is_opening_ = false;
  return opened;
}

absl::StatusOr<std::string> SessionKeeper::OpenAndTakeOver(const CallLimit& limit) {
  while (true) {
    std::string session_id;
    std::vector<std::string> lost;
    {
      absl::MutexLock lock(&mutex_);
      session_id = session_id_;
      lost = NextOf(lost_, last_sent_);
      if (lost.empty() && !session_id.empty()) {
        // Those arrays are left that were refused, or that Keep added meanwhile.
        last_sent_.clear();
        is_full_ = std::exchange(has_refused_, false);
        if (is_full_ || lost_.empty()) return session_id;
        continue;
      }
    }
    if (session_id.empty()) {
      SHARDMESH_ASSIGN_OR_RETURN(const OpenedSession session,
                                 OpenSession(*connection_, ttl_, client_name_, limit));
      absl::MutexLock lock(&mutex_);
      renew_after_ = session.ttl / 3;
      if (!renewer_.joinable() && !stopping_) {
        // A session that nothing renews would end in the middle of a put. This one expires.
        SHARDMESH_ASSIGN_OR_RETURN(renewer_, StartThread([this] { Renew(); }));
      }
      session_id_ = session.session_id;
      changed_.Signal();
      continue;
    }
    const absl::StatusOr<RenewedSession> taken =
        RenewSession(*connection_, session_id, lost, limit);
    if (ReasonOf(taken.status()) == Reason::kSessionGone) {
      Forget(session_id);
      continue;
    }
    if (ReasonOf(taken.status()) == Reason::kLimitExceeded) {
      // A coordinator of an older build has no room for all of them. The calls go on without.
      absl::MutexLock lock(&mutex_);
      is_full_ = true;
      return session_id;
    }
    SHARDMESH_RETURN_IF_ERROR(taken.status());
    absl::MutexLock lock(&mutex_);
    if (session_id_ != session_id) continue;
    for (const std::string& array_id : lost) {
      if (!taken->refused.contains(array_id)) lost_.erase(array_id);
    }
    last_sent_ = lost.back();
    has_refused_ = has_refused_ || !taken->refused.empty();
  }
}

void SessionKeeper::Keep(const std::string& session_id, absl::Span<const std::string> array_ids) {
  absl::MutexLock lock(&mutex_);
  kept_.insert(array_ids.begin(), array_ids.end());
  if (session_id == session_id_ || array_ids.empty()) return;
  // The session ended since it pinned the arrays.
  lost_.insert(array_ids.begin(), array_ids.end());
  changed_.Signal();
}

void SessionKeeper::Drop(absl::Span<const std::string> array_ids) {
  absl::MutexLock lock(&mutex_);
  for (const std::string& array_id : array_ids) {
    kept_.erase(array_id);
    lost_.erase(array_id);
    finished_.erase(array_id);
  }
}

void SessionKeeper::DropReleased(absl::Span<const std::string> array_ids) {
  absl::MutexLock lock(&mutex_);
  for (const std::string& array_id : array_ids) {
    if (lost_.contains(array_id)) {
      finished_.insert(array_id);
      continue;
    }
    kept_.erase(array_id);
    finished_.erase(array_id);
  }
  changed_.Signal();
}

void SessionKeeper::DropGone(const std::string& array_id) {
  absl::MutexLock lock(&mutex_);
  if (lost_.contains(array_id)) return;
  kept_.erase(array_id);
  finished_.erase(array_id);
}

bool SessionKeeper::Keeps(const std::string& array_id) {
  absl::MutexLock lock(&mutex_);
  return kept_.contains(array_id);
}

void SessionKeeper::Finish(absl::Span<const std::string> array_ids) {
  absl::MutexLock lock(&mutex_);
  for (const std::string& array_id : array_ids) {
    if (kept_.contains(array_id)) finished_.insert(array_id);
  }
  changed_.Signal();
}

absl::Status SessionKeeper::Release(std::vector<std::string> array_ids, const CallLimit& limit) {
  while (true) {
    SHARDMESH_ASSIGN_OR_RETURN(const std::string session_id, Get(limit));
    const absl::Status released =
        ReleaseArrays(*connection_, session_id, array_ids, limit).status();
    if (released.ok()) DropReleased(array_ids);
    if (ReasonOf(released) != Reason::kSessionGone) return released;
    Forget(session_id);
  }
}

void SessionKeeper::Close() {
  std::string session_id;
  std::string last;  // array of the last call
  const auto deadline = SteadyDeadline::After(end_limits_.release_time);
  while (!deadline.is_over()) {
    std::vector<std::string> kept;
    {
      absl::MutexLock lock(&mutex_);
      kept = NextInTurn(kept_, last);
      is_full_ = false;  // so that Release takes over what is left
    }
    if (kept.empty()) break;
    const absl::Status released = Release(kept, CallLimit::Within(deadline.left()));
    if (!released.ok() && !absl::IsUnavailable(released)) break;
    const bool is_done = released.ok() && !Keeps(kept.back());
    if (!is_done) absl::SleepFor(std::min(kRetryDelay, deadline.left()));
  }
  {
    absl::MutexLock lock(&mutex_);
    session_id = std::exchange(session_id_, {});
    kept_.clear();
    lost_.clear();
    last_sent_.clear();
    has_refused_ = false;
    finished_.clear();
    is_full_ = false;
    changed_.Signal();
  }
  if (!session_id.empty()) {
    // Best effort: if the call fails, nothing is lost. No transfer is in progress, and the session
    // expires at the coordinator.
    CloseSession(*connection_, session_id, CallLimit::Within(end_limits_.close_time)).IgnoreError();
  }
}

absl::StatusOr<bool> SessionKeeper::Replace(const std::string& session_id, const CallLimit& limit) {
  const absl::Status known = RenewSession(*connection_, session_id, /*held=*/{}, limit).status();
  if (ReasonOf(known) == Reason::kSessionGone) {
    Forget(session_id);
  } else {
    SHARDMESH_RETURN_IF_ERROR(known);
  }
  SHARDMESH_ASSIGN_OR_RETURN(const std::string current, Get(limit));
  return current != session_id;
}

void SessionKeeper::Forget(const std::string& session_id) {
  absl::MutexLock lock(&mutex_);
  if (session_id_ == session_id) LoseSession();
}

void SessionKeeper::LoseSession() {
  session_id_.clear();
  lost_ = kept_;
  last_sent_.clear();
  has_refused_ = false;
  is_full_ = false;
  changed_.Signal();
}

void SessionKeeper::Renew() {
  absl::MutexLock lock(&mutex_);
  auto next = SteadyDeadline::After(renew_after_);
  auto next_move = SteadyDeadline::After(absl::ZeroDuration());  // of arrays
  std::string renewed = session_id_;
  std::string last_finished;  // array of the last release
  while (!stopping_) {
    if (session_id_.empty() || session_id_ != renewed) {
      // Since the last check, the session was replaced or dropped: restart the timer.
      renewed = session_id_;
      next = SteadyDeadline::After(session_id_.empty() ? absl::InfiniteDuration() : renew_after_);
    }
    const bool has_arrays = !lost_.empty() || !finished_.empty();
    const absl::Duration left = has_arrays ? std::min(next.left(), next_move.left()) : next.left();
    if (left > absl::ZeroDuration()) {
      changed_.WaitWithTimeout(&mutex_, left);
      continue;
    }
    const absl::Duration timeout = std::min(kCallTimeout, renew_after_);
    if (has_arrays && next_move.is_over()) {
      std::vector<std::string> finished = NextInTurn(finished_, last_finished);
      is_full_ = false;
      mutex_.Unlock();
      // With no array to release, this opens the session and takes arrays over.
      const CallLimit limit = CallLimit::Within(kCallTimeout);
      const absl::Status moved =
          finished.empty() ? Get(limit).status() : Release(std::move(finished), limit);
      mutex_.Lock();
      const bool is_done = moved.ok() && lost_.empty();
      next_move = SteadyDeadline::After(is_done ? absl::ZeroDuration() : kRetryDelay);
      continue;
    }
    mutex_.Unlock();
    const absl::StatusOr<RenewedSession> renewal =
        RenewSession(*connection_, renewed, /*held=*/{}, CallLimit::Within(timeout));
    mutex_.Lock();
    if (renewal.ok()) {
      renew_after_ = renewal->ttl / 3;
      next = SteadyDeadline::After(renew_after_);
    } else if (ReasonOf(renewal.status()) == Reason::kSessionGone) {
      if (session_id_ == renewed) LoseSession();
    } else {
      next = SteadyDeadline::After(std::min(kRetryDelay, renew_after_));
    }
  }
}

}  // namespace shardmesh::client
