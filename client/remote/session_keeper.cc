// Opens and closes a session, and renews it on a thread of the keeper.
#include "client/remote/session_keeper.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "process/steady_deadline.h"
#include "process/thread_pool.h"
#include "status/reason.h"
#include "status/status_macros.h"

namespace shardmesh::client {
namespace {

// Time limit of one renewal. The client's destructor waits at most this long for a renewal in
// progress.
constexpr absl::Duration kCallTimeout = absl::Seconds(1);
// Longest time that the client waits for the coordinator's answer to CloseSession. If no answer
// comes by then, nothing is lost: no transfer is in progress, and the session expires.
constexpr absl::Duration kCloseTimeout = absl::Seconds(2);
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

// Renews the session; returns its remaining time to live.
absl::StatusOr<absl::Duration> RenewSession(const CoordinatorConnection& connection,
                                            const std::string& session_id, const CallLimit& limit) {
  v1::RenewSessionRequest request;
  request.set_session_id(session_id);
  v1::RenewSessionResponse response;
  SHARDMESH_RETURN_IF_ERROR(connection.Call(
      connection.sessions, &v1::SessionService::Stub::RenewSession, request, limit, &response));
  return DecodeAnswer(response.ttl());
}

absl::Status CloseSession(const CoordinatorConnection& connection, const std::string& session_id,
                          const CallLimit& limit) {
  v1::CloseSessionRequest request;
  request.set_session_id(session_id);
  v1::CloseSessionResponse response;
  return connection.Call(connection.sessions, &v1::SessionService::Stub::CloseSession, request,
                         limit, &response);
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
    if (!session_id_.empty()) {
      return session_id_;
    }
    is_opener = !is_opening_;
    is_opening_ = true;
  }
  const absl::StatusOr<OpenedSession> session =
      OpenSession(*connection_, ttl_, client_name_, limit);
  absl::MutexLock lock(&mutex_);
  is_opening_ = false;
  SHARDMESH_RETURN_IF_ERROR(session.status());
  renew_after_ = session->ttl / 3;
  if (!renewer_.joinable()) {
    // A session that nothing renews would end in the middle of a put. This one expires.
    SHARDMESH_ASSIGN_OR_RETURN(renewer_, StartThread([this] { Renew(); }));
  }
  session_id_ = session->session_id;
  changed_.Signal();
  return session_id_;
}

void SessionKeeper::Close() {
  std::string session_id;
  {
    absl::MutexLock lock(&mutex_);
    session_id = std::exchange(session_id_, {});
    changed_.Signal();
  }
  if (!session_id.empty()) {
    // Best effort: if the call fails, the session expires at the coordinator.
    CloseSession(*connection_, session_id, CallLimit::Within(kCloseTimeout)).IgnoreError();
  }
}

void SessionKeeper::Forget(const std::string& session_id) {
  absl::MutexLock lock(&mutex_);
  if (session_id_ == session_id) {
    session_id_.clear();
    changed_.Signal();
  }
}

void SessionKeeper::Renew() {
  absl::MutexLock lock(&mutex_);
  auto next = SteadyDeadline::After(renew_after_);
  std::string renewed = session_id_;
  while (!stopping_) {
    if (session_id_.empty() || session_id_ != renewed) {
      // Since the last check, the session was replaced or dropped: restart the timer.
      renewed = session_id_;
      next = SteadyDeadline::After(session_id_.empty() ? absl::InfiniteDuration() : renew_after_);
    }
    if (!changed_.WaitWithTimeout(&mutex_, next.left()) || stopping_ || session_id_ != renewed) {
      continue;
    }
    const absl::Duration timeout = std::min(kCallTimeout, renew_after_);
    mutex_.Unlock();
    const absl::StatusOr<absl::Duration> ttl =
        RenewSession(*connection_, renewed, CallLimit::Within(timeout));
    mutex_.Lock();
    if (ttl.ok()) {
      renew_after_ = *ttl / 3;
      next = SteadyDeadline::After(renew_after_);
    } else if (ReasonOf(ttl.status()) == Reason::kSessionGone) {
      if (session_id_ == renewed) {
        session_id_.clear();
      }
    } else {
      next = SteadyDeadline::After(std::min(kRetryDelay, renew_after_));
    }
  }
}

}  // namespace shardmesh::client
