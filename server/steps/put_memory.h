// Puts (uploads of arrays) that have begun. They are remembered by their requests, so that a
// repeated BeginPut gets the transfer of the first BeginPut.
#ifndef SHARDMESH_SERVER_STEPS_PUT_MEMORY_H_
#define SHARDMESH_SERVER_STEPS_PUT_MEMORY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "server/state/request_index.h"
#include "server/steps/mesh_endpoints.h"
#include "server/steps/transfers.h"
#include "sharding/correction.h"

namespace shardmesh::server {

// A transfer in the form that its client gets. The transfer holds a shared pointer to `items`,
// which keeps this whole object alive until the transfer has ended.
struct BegunPut {
  std::string transfer_id;  // empty: the put was only validated, and there is no transfer
  std::string session_id;
  absl::Time expire_time;  // when the put's transfer tokens expire
  std::vector<RankEndpoint> devices;
  std::vector<PutItem> items;
  std::vector<std::vector<Correction>> corrections;  // by item
};
using BegunPutPtr = std::shared_ptr<const BegunPut>;

// Calls for one request:
//   Find -> null: begin the put -> Began -> send the answer -> Delivered or NotDelivered
//        -> a put: send the answer        -> Delivered or NotDelivered
// A BeginPut call "holds" its transfer if the transfer is to end with that BeginPut call. After
// Delivered, a holding BeginPut call also reports its own end: by Release when its client leaves,
// or by Ended when the transfer ends. Some hundred bytes of an ended put are kept for kRememberFor.
// Nothing is kept across a restart of the process, which ends all transfers. Thread-safe.
class PutMemory {
 public:
  static constexpr absl::Duration kRememberFor = absl::Minutes(10);
  // Maximum number of requests that are remembered. Above this limit, ended puts are forgotten,
  // beginning with the put that ended first.
  static constexpr int64_t kMaxRequests = 50'000;

  // `clock` outlives this object.
  explicit PutMemory(Clock* clock);

  // Returns null if the request is the first with this key: the caller must then call Began. For a
  // later request, returns the put that the first request began, if that put is live.
  //   ABORTED, with a retry delay             the first request is still being processed.
  //   INVALID_ARGUMENT (REQUEST_ID_REUSED)    the first request had another fingerprint.
  //   FAILED_PRECONDITION (REQUEST_ID_REUSED) the put has ended.
  absl::StatusOr<BegunPutPtr> Find(std::string_view key, std::string_view fingerprint);
  // Records the result of the first request. A null `put` says that the request failed; the next
  // request with this key counts as the first.
  void Began(std::string_view key, const BegunPutPtr& put);

  // Records that the client has the complete answer. `holds`: the transfer ends with the call.
  void Delivered(std::string_view key, bool holds);
  // Records that the client did not get the answer. Returns true if no other call has the transfer
  // or may still get it. In that case the put is forgotten, and the caller must abort the transfer.
  bool NotDelivered(std::string_view key);
  // Records that the client of a holding call has gone. The result means the same as that of
  // NotDelivered.
  bool Release(std::string_view key);
  // Records that a holding call no longer holds its transfer: the transfer has ended, or no longer
  // needs that call.
  void Ended(std::string_view key);

 private:
  struct Begun {
    std::string transfer_id;
    std::weak_ptr<const BegunPut> put;  // expired: the put has ended
    int64_t being_sent = 0;             // calls that are sending the answer now
    int64_t holders = 0;                // holding calls that have sent the answer
    bool is_delivered = false;          // whether a call that does not hold has sent the answer
  };

  // Forgets the put and returns true if no call is sending the answer, no call holds the put, and
  // no call without a hold has delivered the answer.
  bool ForgetUnwanted(std::string_view key, const Begun& put) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Clock* const clock_;
  absl::Mutex mutex_;
  RequestIndex<Begun> index_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_PUT_MEMORY_H_
