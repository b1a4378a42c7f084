// Clients' leases, and the objects that each lease keeps alive.
#ifndef SHARDMESH_SERVER_STATE_SESSION_H_
#define SHARDMESH_SERVER_STATE_SESSION_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "process/event_queue.h"
#include "rpc/caller.h"
#include "server/state/pause_watch.h"

namespace shardmesh::server {

// Limits of a session's time to live. session_service.proto documents them too.
inline constexpr absl::Duration kMinSessionTtl = absl::Seconds(1);
inline constexpr absl::Duration kMaxSessionTtl = absl::Hours(1);
inline constexpr absl::Duration kDefaultSessionTtl = absl::Seconds(30);

struct SessionOptions {
  // The maximum number of open sessions. Bounds the number of sessions whose clients never close
  // them.
  int64_t max_sessions = 10'000;
  // The maximum number of open sessions of one caller (rpc::Caller::name).
  int64_t max_sessions_per_caller = 1'000;
  // The maximum number of running transfers and steps of one session.
  int64_t max_work_per_session = 1'000;
};

struct Session {
  std::string id;      // 32 hexadecimal digits, unguessable
  int64_t number = 0;  // see SessionInfo
  std::string client;  // chosen by the client; for people
  absl::Duration ttl;
  absl::Time expires;
  int64_t pinned_arrays = 0;
  int64_t transfers = 0;
};

// An open session as platform engineers see it: without its id, which would give access.
struct SessionInfo {
  int64_t number = 0;     // rises by one with each session that the table opens, from 1
  std::string id_prefix;  // the first kShownIdCharacters of the id
  std::string caller;     // rpc::Caller::name
  std::string client;
  absl::Time opened;
  absl::Time renewed;  // `opened` if the lease was never renewed
  absl::Time expires;
  int64_t pinned_arrays = 0;
  int64_t transfers = 0;
  int64_t steps = 0;  // running
};

// Number of leading characters of a session's id that others may see. 96 bits remain secret.
inline constexpr size_t kShownIdCharacters = 8;

// Describes the sessions in an error message: `session 3 of host-1 (client "shardmesh")`. Requires
// at least one.
std::string DescribeSessions(const std::vector<SessionInfo>& sessions);

enum class SessionEnd { kClosed, kExpired };

// The objects that an ended session held, each id once, in bytewise order.
struct EndedSession {
  std::string id;
  SessionEnd end = SessionEnd::kClosed;
  std::vector<std::string> arrays;
  std::vector<std::string> transfers;
};

// A session is a lease. It ends when it is closed, or when its TTL has passed without a lease
// renewal. After a pause of this process, the TTL counts from the end of the pause, because a
// renewal may have arrived during the pause. Until it ends, the session pins arrays (each at most
// once) and owns transfers. Sessions do not survive a restart of the coordinator: a client whose
// session is gone must open another.
//
// Methods that take a session id and return a status return NOT_FOUND (SESSION_GONE) if the session
// is unknown, closed or expired. Thread-safe. The listener is called in the order in which sessions
// end, without a lock held. It runs on the thread that ended the session, or on the clock's thread.
// Destroy the table before its clock and before the objects that the listener uses.
class SessionTable {
 public:
  using Listener = std::function<void(const EndedSession&)>;

  // Calls `listener` once for each session that ends. `clock` must outlive the table.
  SessionTable(Clock* clock, Listener listener, SessionOptions options = {});

  // Opens a session. If the caller's name is authenticated, only that name may use the session.
  // INVALID_ARGUMENT (BAD_FIELD): `ttl` is outside kMinSessionTtl to kMaxSessionTtl.
  // RESOURCE_EXHAUSTED, with a retry delay: max_sessions or max_sessions_per_caller sessions are
  // open.
  absl::StatusOr<Session> Open(const rpc::Caller& caller, std::string client, absl::Duration ttl);
  // Renews the lease for its whole TTL.
  absl::StatusOr<Session> Renew(std::string_view id);
  absl::Status Close(std::string_view id);
  absl::StatusOr<Session> Get(std::string_view id) const;
  // Returns OK if the session exists and the caller may use it. PERMISSION_DENIED (NOT_OWNER): the
  // session is bound to another caller's name.
  absl::Status Check(std::string_view id, const rpc::Caller& caller) const;
  // Returns at most `limit` open sessions by rising number, after number `after`.
  std::vector<SessionInfo> List(int64_t after, int64_t limit) const;
  // Returns the open sessions that pin the array, by rising number, at most `limit`. O(sessions).
  std::vector<SessionInfo> ListHolders(std::string_view array_id, size_t limit) const;
  int64_t size() const;

  // Returns true if the session did not pin the array before. In that case, the registry must hold
  // one pin for the session: see PinForSession. `is_awaited`: the pin is TakenOver::kAwaited.
  absl::StatusOr<bool> PinArray(std::string_view id, std::string array_id, bool is_awaited = false);
  // Returns true if the session had pinned the array. In that case, the caller must remove one pin
  // in the registry.
  absl::StatusOr<bool> UnpinArray(std::string_view id, std::string_view array_id);
  // Returns whether the session pins the array.
  absl::StatusOr<bool> PinsArray(std::string_view id, std::string_view array_id) const;
  // Returns the number of arrays that the session has pinned as `is_awaited` since it was opened.
  // An unpinned array still counts.
  absl::StatusOr<int64_t> CountAwaited(std::string_view id) const;

  // AddTransfer and BeginStep also return RESOURCE_EXHAUSTED, with a retry delay, if
  // max_work_per_session transfers and steps are running. EndStep ignores a session that is gone.
  // The operations of OperationTable count as transfers.
  absl::Status AddTransfer(std::string_view id, std::string transfer_id);
  // Returns the error that AddTransfer and BeginStep would return now. Changes nothing.
  absl::Status CheckWork(std::string_view id) const;
  absl::Status BeginStep(std::string_view id);
  void EndStep(std::string_view id);
  // Removes a transfer that ended. No effect if the session is gone or does not own the transfer.
  void RemoveTransfer(std::string_view id, std::string_view transfer_id);

 private:
  struct Entry {
    int64_t number = 0;
    rpc::Caller caller;
    std::string client;
    absl::Duration ttl;
    absl::Time opened;
    absl::Time renewed;
    absl::Time expires;
    absl::flat_hash_set<std::string> arrays;
    int64_t awaited_arrays = 0;  // see CountAwaited
    absl::flat_hash_set<std::string> transfers;
    int64_t steps = 0;  // running
  };
  absl::Status CheckWork(std::string_view id, const Entry& entry) const;
  static Session Describe(const std::string& id, const Entry& entry);
  static SessionInfo InfoOf(const std::string& id, const Entry& entry);
  void ExpireOld();
  // Returns null if the session is gone.
  Entry* Find(std::string_view id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  const Entry* Find(std::string_view id) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void End(const std::string& id, SessionEnd end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Clock* const clock_;
  const Listener listener_;
  const SessionOptions options_;

  EventQueue events_;

  mutable absl::Mutex mutex_;
  absl::flat_hash_map<std::string, Entry> sessions_ ABSL_GUARDED_BY(mutex_);
  int64_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, std::string> by_number_ ABSL_GUARDED_BY(mutex_);  // session ids
  // Number of open sessions of each caller; never 0.
  absl::flat_hash_map<std::string, int64_t> by_caller_ ABSL_GUARDED_BY(mutex_);

  PauseWatch pauses_;
  Alarm expiry_;  // last: its destructor waits for ExpireOld
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STATE_SESSION_H_
