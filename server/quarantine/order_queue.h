// Orders to the workers' quarantines.
#ifndef SHARDMESH_SERVER_QUARANTINE_ORDER_QUEUE_H_
#define SHARDMESH_SERVER_QUARANTINE_ORDER_QUEUE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "process/clock.h"
#include "server/attach/quarantine_orders.h"
#include "server/quarantine/quarantine_calls.h"
#include "shardmesh/internal/v1/attach_service.pb.h"

namespace shardmesh::server::quarantine {

// Most arrays in a page of a list, and in an answer to an order.
inline constexpr int kMaxPage = 1'000;

using Action = internal::v1::QuarantineOrder;

// Sends one order after the other: each is answered within kOrderTime before the next is sent. Ends
// with the first error, unless `failed` says to go on, or when it is stopped. An order whose answer
// is no longer wanted is forgotten.
class Orders : public std::enable_shared_from_this<Orders> {
 public:
  struct Order {
    std::string identity;
    internal::v1::QuarantineOrder order;
  };
  // False: sends no more orders. An answer with an error passes its partial result here first.
  using Answered =
      absl::AnyInvocable<bool(const std::string& identity, internal::v1::QuarantineAnswer)>;
  // True: the next orders are sent nevertheless.
  using Failed = absl::AnyInvocable<bool(const std::string& identity, const absl::Status&)>;

  // `stop` may be null: then only an error ends it.
  static void Run(rpc::Clock* clock, QuarantineAccess* hub, std::deque<Order> orders,
                  const QuarantineStopPtr& stop, Answered answered, QuarantineDone done,
                  Failed failed = nullptr);

 private:
  void Next();

  // OK unless the call was stopped.
  absl::Status Stopped();

  void Stop();

  // The answer to the order of this number, or the reason why nothing waits for it any longer. A
  // late answer is ignored.
  void Take(uint64_t number, const std::string& identity,
            absl::StatusOr<internal::v1::QuarantineAnswer> answer);

  rpc::Clock* clock_ = nullptr;
  QuarantineAccess* hub_ = nullptr;
  // Touched only by the thread that has taken the awaited answer: one thread after the other.
  Answered answered_;
  Failed failed_;
  QuarantineDone done_;
  absl::Mutex mutex_;
  std::deque<Order> orders_ ABSL_GUARDED_BY(mutex_);
  bool is_stopped_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t waits_for_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: waits for no answer
  int64_t order_ ABSL_GUARDED_BY(mutex_) = 0;  // the hub's number of that order; 0: not known yet
  rpc::Clock::TimerId timer_ ABSL_GUARDED_BY(mutex_);
};

Orders::Order OrderOf(const std::string& identity, Action::Action action,
                      const std::vector<std::string>& array_ids);

}  // namespace shardmesh::server::quarantine

#endif  // SHARDMESH_SERVER_QUARANTINE_ORDER_QUEUE_H_
