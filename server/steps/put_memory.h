// Begun puts, by request: a repeated BeginPut gets the transfer of the first one.
#ifndef SHARDMESH_SERVER_STEPS_PUT_MEMORY_H_
#define SHARDMESH_SERVER_STEPS_PUT_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "server/steps/begun_put.h"

namespace shardmesh::server {

// A request goes
//   Find -> nothing: begin the put -> Began -> the answer is sent -> Delivered or NotDelivered
//        -> a put: the answer is sent       -> Delivered or NotDelivered
// A call that holds its transfer goes on from Delivered to Release, or to Ended with the transfer.
// Some hundred bytes of an ended put are kept, for kRememberFor. Nothing outlives the process, as
// no transfer does. Thread-safe.
class PutMemory {
 public:
  static constexpr absl::Duration kRememberFor = absl::Minutes(10);
  // How many requests are remembered at most. Ended puts are forgotten first, oldest first.
  static constexpr size_t kMaxRequests = 50'000;

  // `clock` outlives it.
  explicit PutMemory(rpc::Clock* clock) : clock_(clock) {}

  // Null: the request is the first with this key; Began follows. Otherwise its put, if it is live.
  //   ABORTED, with a retry delay            the first request is still being processed.
  //   INVALID_ARGUMENT (REQUEST_ID_REUSED)   the first had another fingerprint.
  //   FAILED_PRECONDITION (REQUEST_ID_REUSED) the put has ended.
  absl::StatusOr<BegunPutPtr> Find(const std::string& key, const std::string& fingerprint);
  // The result of the first request. Null: it failed, and the next request counts as the first.
  void Began(const std::string& key, const BegunPutPtr& put);

  // The client has the complete answer; `holds`: the transfer ends with the call.
  void Delivered(const std::string& key, bool holds);
  // The client does not have it. True if no other call has or may still get the transfer: the put
  // is then forgotten, and the caller must abort it.
  bool NotDelivered(const std::string& key);
  // The client of a call that holds has gone. Same result as NotDelivered.
  bool Release(const std::string& key);
  // The transfer of a call that holds has ended, or no longer needs that call.
  void Ended(const std::string& key);

 private:
  struct Entry {
    std::string fingerprint;
    std::string transfer_id;            // empty: being begun
    std::weak_ptr<const BegunPut> put;  // gone: the put has ended
    int64_t being_sent = 0;             // calls that are sending the answer now
    int64_t holders = 0;                // calls that have sent the answer and hold
    bool is_delivered = false;          // to a call that does not hold
    absl::Time began;
  };

  // Whether no call has the put any more. Then the put is forgotten.
  bool ForgetUnwanted(std::map<std::string, Entry>::iterator entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Examines a few of the oldest entries.
  void ForgetOld() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  rpc::Clock* const clock_;
  absl::Mutex mutex_;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  // Keys by arrival or last examination. Some are no longer in entries_, or were added again.
  std::deque<std::pair<absl::Time, std::string>> order_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_PUT_MEMORY_H_
