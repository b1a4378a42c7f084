// Puts that were begun, by request: a repeated BeginPut gets the first one's transfer.
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
// Of a put that has ended some hundred bytes are kept, for kRememberFor. Nothing outlives the
// process, as no transfer does. Thread-safe.
class PutMemory {
 public:
  static constexpr absl::Duration kRememberFor = absl::Minutes(10);
  // How many requests are remembered at most; of those whose puts have ended the oldest go first.
  static constexpr int64_t kMaxRequests = 50'000;

  // `clock` outlives it.
  explicit PutMemory(rpc::Clock* clock);

  // Null: the request is the first with this key; Began follows. Otherwise its put, if that lives.
  //   ABORTED, with a retry delay            the first request is still being taken in.
  //   INVALID_ARGUMENT (REQUEST_ID_REUSED)   the first had another fingerprint.
  //   FAILED_PRECONDITION (REQUEST_ID_REUSED) the put has ended.
  absl::StatusOr<BegunPutPtr> Find(std::string_view key, std::string_view fingerprint);
  // What the first request came to; null: it failed, and the next one is the first again.
  void Began(std::string_view key, const BegunPutPtr& put);

  // The client has the whole answer; `holds`: the transfer is to go with the call.
  void Delivered(std::string_view key, bool holds);
  // It has not. True if no other call has or may still get the transfer: the put is then forgotten,
  // and is to be aborted.
  bool NotDelivered(std::string_view key);
  // The client of a call that holds has gone. As NotDelivered.
  bool Release(std::string_view key);
  // The transfer of a call that holds has ended, or needs that call no longer.
  void Ended(std::string_view key);

 private:
  struct Begun {
    std::string transfer_id;
    std::weak_ptr<const BegunPut> put;  // gone: the put has ended
    int64_t being_sent = 0;             // calls that are sent the answer now
    int64_t holders = 0;                // calls that have the answer and hold
    bool is_delivered = false;          // to a call that does not
  };

  // Whether no call has the put any more, which is then forgotten.
  bool ForgetUnwanted(std::string_view key, const Begun& put) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  rpc::Clock* const clock_;
  absl::Mutex mutex_;
  RequestIndex<Begun> index_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_PUT_MEMORY_H_
