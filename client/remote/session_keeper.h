// The session of one client: opened at its first use, renewed in the background, closed at the end.
#ifndef SHARDMESH_CLIENT_REMOTE_SESSION_KEEPER_H_
#define SHARDMESH_CLIENT_REMOTE_SESSION_KEEPER_H_

#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/remote/coordinator_connection.h"

namespace shardmesh::client {

// Renews the client's session after a third of its time to live. If the server no longer knows a
// session (SESSION_GONE), the keeper drops that session, and the next Get opens another one. If a
// renewal fails with another error, the keeper retries the renewal. Thread-safe.
class SessionKeeper {
 public:
  // `connection` must outlive the keeper.
  SessionKeeper(const CoordinatorConnection* connection, absl::Duration ttl,
                std::string client_name)
      : connection_(connection), ttl_(ttl), client_name_(std::move(client_name)) {}
  ~SessionKeeper();  // closes the session, see Close
  SessionKeeper(const SessionKeeper&) = delete;
  SessionKeeper& operator=(const SessionKeeper&) = delete;

  // Returns the session's id; opens a session if there is none. While another call opens the
  // session, waits for that call, until the deadline (DEADLINE_EXCEEDED) or the cancellation
  // (CANCELLED) of `limit`. Also returns errors of OpenSession.
  absl::StatusOr<std::string> Get(const CallLimit& limit);
  // Drops a session that the server no longer knows. The next Get opens another session.
  void Forget(const std::string& session_id);
  // Closes the session, and waits at most two seconds for the answer. A later Get opens another
  // session.
  void Close();

 private:
  // Waits while another call opens a session. Returns DEADLINE_EXCEEDED at the deadline of `limit`,
  // and CANCELLED if the cancellation of `limit` is cancelled.
  absl::Status AwaitOpening(const CallLimit& limit);
  void Renew();

  const CoordinatorConnection* const connection_;
  const absl::Duration ttl_;
  const std::string client_name_;

  // `mutex_` is not held during the calls that open, renew or close a session.
  absl::Mutex mutex_;
  bool is_opening_ ABSL_GUARDED_BY(mutex_) = false;  // a call of Get opens a session
  std::string session_id_ ABSL_GUARDED_BY(mutex_);   // empty: no session is open
  absl::Duration renew_after_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteDuration();
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::CondVar changed_;
  std::thread renewer_ ABSL_GUARDED_BY(mutex_);  // started with the first session
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_REMOTE_SESSION_KEEPER_H_
