// Sends orders about quarantines (tiles that workers put aside) to the workers.
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

// Maximum number of arrays in one page of a list, and in one answer to an order.
inline constexpr int kMaxPage = 1'000;

using Action = internal::v1::QuarantineOrder;

// Sends orders one after the other. Each order is sent after the previous order was answered; a
// worker has kOrderTime to answer. The run ends with the first error, unless `failed` allows it to
// continue. The run also ends when the call is stopped. An order whose answer is no longer awaited
// is forgotten (QuarantineAccess::ForgetQuarantineOrder).
class Orders : public std::enable_shared_from_this<Orders> {
 public:
  struct Order {
    std::string identity;
    internal::v1::QuarantineOrder order;
  };
  // Called for each answer. Returns false to send no more orders. If an answer has an error, this
  // callback gets the answer's partial result before `failed` gets the error.
  using Answered =
      absl::AnyInvocable<bool(const std::string& identity, internal::v1::QuarantineAnswer)>;
  // Called for each order that ended with an error. Returns true to send the remaining orders
  // nevertheless.
  using Failed = absl::AnyInvocable<bool(const std::string& identity, const absl::Status&)>;

  // Sends the orders. If `stop` is null, the call cannot be stopped.
  static void Run(Clock* clock, QuarantineAccess* hub, std::deque<Order> orders,
                  const QuarantineStopPtr& stop, Answered answered, QuarantineDone done,
                  Failed failed = nullptr);

 private:
  void Next();

  // Returns OK, or CANCELLED if the call was stopped.
  absl::Status Stopped();

  void Stop();

  // Processes the answer to the order of this number, or the reason why the answer is no longer
  // awaited. No effect if the answer to this order is no longer awaited.
  void Take(uint64_t number, const std::string& identity,
            absl::StatusOr<internal::v1::QuarantineAnswer> answer);

  Clock* clock_ = nullptr;
  QuarantineAccess* hub_ = nullptr;
  QuarantineStopPtr stop_;  // knows the worker that the run waits for; may be null
  // No lock: only the thread that processes the current answer uses these callbacks, one thread
  // after the other.
  Answered answered_;
  Failed failed_;
  QuarantineDone done_;
  absl::Mutex mutex_;
  std::deque<Order> orders_ ABSL_GUARDED_BY(mutex_);
  bool is_stopped_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t waits_for_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: no answer is awaited
  // The number that QuarantineAccess gave the order whose answer is awaited; 0: not known yet.
  int64_t order_ ABSL_GUARDED_BY(mutex_) = 0;
  Clock::TimerId timer_ ABSL_GUARDED_BY(mutex_);
};

Orders::Order OrderOf(const std::string& identity, Action::Action action,
                      const std::vector<std::string>& array_ids);

}  // namespace shardmesh::server::quarantine

#endif  // SHARDMESH_SERVER_QUARANTINE_ORDER_QUEUE_H_
