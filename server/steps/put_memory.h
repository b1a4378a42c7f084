// Begun puts, by request: a repeated BeginPut gets the transfer of the first one.
#ifndef SHARDMESH_SERVER_STEPS_PUT_MEMORY_H_
#define SHARDMESH_SERVER_STEPS_PUT_MEMORY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "server/state/request_index.h"
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
  static constexpr int64_t kMaxRequests = 50'000;

  // `clock` outlives it.
  explicit PutMemory(Clock* clock);

  // Null: the request is the first with this key; Began follows. Otherwise its put, if it is live.
  //   ABORTED, with a retry delay            the first request is still being processed.
  //   INVALID_ARGUMENT (REQUEST_ID_REUSED)   the first had another fingerprint.
  //   FAILED_PRECONDITION (REQUEST_ID_REUSED) the put has ended.
  absl::StatusOr<BegunPutPtr> Find(std::string_view key, std::string_view fingerprint);
  // The result of the first request. Null: it failed, and the next request counts as the first.
  void Began(std::string_view key, const BegunPutPtr& put);

  // The client has the complete answer; `holds`: the transfer ends with the call.
  void Delivered(std::string_view key, bool holds);
  // The client does not have it. True if no other call has or may still get the transfer: the put
  // is then forgotten, and the caller must abort it.
  bool NotDelivered(std::string_view key);
  // The client of a call that holds has gone. Same result as NotDelivered.
  bool Release(std::string_view key);
  // The transfer of a call that holds has ended, or no longer needs that call.
  void Ended(std::string_view key);

 private:
  struct Begun {
    std::string transfer_id;
    std::weak_ptr<const BegunPut> put;  // gone: the put has ended
    int64_t being_sent = 0;             // calls that are sending the answer now
    int64_t holders = 0;                // calls that have sent the answer and hold
    bool is_delivered = false;          // to a call that does not hold
  };

  // Whether no call has the put any more. Then the put is forgotten.
  bool ForgetUnwanted(std::string_view key, const Begun& put) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Clock* const clock_;
  absl::Mutex mutex_;
  RequestIndex<Begun> index_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_PUT_MEMORY_H_
