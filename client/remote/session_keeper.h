// The session of one client: opened at its first use, renewed in the background, closed at the end.
// With it go the arrays without names that the client made and that the session pins.
#ifndef SHARDMESH_CLIENT_REMOTE_SESSION_KEEPER_H_
#define SHARDMESH_CLIENT_REMOTE_SESSION_KEEPER_H_

#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/remote/coordinator_connection.h"

namespace shardmesh::client {

// The time limits of the end of a session; see MeshClientOptions::session_release_time and
// session_close_time.
struct SessionEndLimits {
  absl::Duration release_time = absl::Seconds(5);
  absl::Duration close_time = absl::Seconds(2);
};

// Renews the client's session after a third of its time to live. If the server no longer knows a
// session (SESSION_GONE), the keeper drops that session, and the next Get opens another one. If a
// renewal fails with another error, the keeper retries the renewal.
//
// A session ends with the coordinator's process. The coordinator's next process keeps arrays
// without names for a while (--unnamed-grace), but does not know whose they are. Therefore the next
// session takes over the arrays of Keep before any call uses that session. While there are such
// arrays, the keeper opens the next session in the background too. Thread-safe.
class SessionKeeper {
 public:
  // `connection` must outlive the keeper.
  SessionKeeper(const CoordinatorConnection* connection, absl::Duration ttl,
                std::string client_name, SessionEndLimits end_limits = {})
      : connection_(connection),
        ttl_(ttl),
        client_name_(std::move(client_name)),
        end_limits_(end_limits) {}
  ~SessionKeeper();  // closes the session, see Close
  SessionKeeper(const SessionKeeper&) = delete;
  SessionKeeper& operator=(const SessionKeeper&) = delete;

  // Returns the session's id; opens a session if there is none. While another call opens the
  // session, waits for that call, until the deadline (DEADLINE_EXCEEDED) or the cancellation
  // (CANCELLED) of `limit`. Also returns errors of OpenSession.
  absl::StatusOr<std::string> Get(const CallLimit& limit);
  // Asks the server whether it knows the session. If not, opens another one, which takes over the
  // arrays of Keep. Returns whether the client has another session now. Errors: those of
  // RenewSession and Get.
  absl::StatusOr<bool> Replace(const std::string& session_id, const CallLimit& limit);
  // Drops a session that the server no longer knows. The next Get opens another session.
  void Forget(const std::string& session_id);
  // Closes the session, and waits at most SessionEndLimits::close_time for the answer. If there are
  // arrays of Keep, releases them first, under another session if the session is gone, which takes
  // at most SessionEndLimits::release_time. A later Get opens another session.
  void Close();

  // The session with this id pins, or may pin, these arrays, which the client made without names.
  void Keep(const std::string& session_id, absl::Span<const std::string> array_ids);
  // Ends Keep: the session no longer pins the arrays, or they have names.
  void Drop(absl::Span<const std::string> array_ids);
  // Ends Keep of arrays that a call has released in the current session. The release has no effect
  // on an array that this session could not take over yet: the keeper then does the same as Finish.
  void DropReleased(absl::Span<const std::string> array_ids);
  // Ends Keep of an array that the server does not find. No effect if the current session could not
  // take the array over yet, since the server may still find it.
  void DropGone(const std::string& array_id);
  // Returns whether the array is one of Keep.
  bool Keeps(const std::string& array_id);
  // Releases arrays of Keep in the background, until the server confirms.
  void Finish(absl::Span<const std::string> array_ids);

 private:
  // Waits while another call opens a session. Returns DEADLINE_EXCEEDED at the deadline of `limit`,
  // and CANCELLED if the cancellation of `limit` is cancelled.
  absl::Status AwaitOpening(const CallLimit& limit);
  // Opens a session if there is none, and lets it take over the arrays of `lost_`. Returns its id.
  // If the server has no room for some of them, sets `is_full_`, after it has sent each one.
  // Errors: those of OpenSession and RenewSession.
  absl::StatusOr<std::string> OpenAndTakeOver(const CallLimit& limit);
  // Releases arrays under the session, under another one if that is gone, and drops them.
  absl::Status Release(std::vector<std::string> array_ids, const CallLimit& limit);
  // Drops the session, whose arrays the next session must take over.
  void LoseSession() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Renew();

  const CoordinatorConnection* const connection_;
  const absl::Duration ttl_;
  const std::string client_name_;
  const SessionEndLimits end_limits_;

  // `mutex_` is not held during the calls that open, renew or close a session.
  absl::Mutex mutex_;
  bool is_opening_ ABSL_GUARDED_BY(mutex_) = false;  // a call of Get opens a session
  std::string session_id_ ABSL_GUARDED_BY(mutex_);   // empty: no session is open
  // The arrays of Keep; those of them that belong to sessions before the current one; and those of
  // Finish.
  std::set<std::string> kept_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> lost_ ABSL_GUARDED_BY(mutex_);
  // The last array of `lost_` that was sent, and whether the server has refused one since the first
  // array. The next call goes on after it; empty: begins anew.
  std::string last_sent_ ABSL_GUARDED_BY(mutex_);
  bool has_refused_ ABSL_GUARDED_BY(mutex_) = false;
  // The server has no room for the arrays of `lost_`. Get returns the session without them, until
  // the renewer or Close tries again.
  bool is_full_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<std::string> finished_ ABSL_GUARDED_BY(mutex_);
  absl::Duration renew_after_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteDuration();
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::CondVar changed_;
  std::thread renewer_ ABSL_GUARDED_BY(mutex_);  // started with the first session
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_REMOTE_SESSION_KEEPER_H_
