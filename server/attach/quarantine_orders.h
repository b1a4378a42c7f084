// Orders to workers about their quarantines (tiles that a worker put aside), and the answers.
#ifndef SHARDMESH_SERVER_ATTACH_QUARANTINE_ORDERS_H_
#define SHARDMESH_SERVER_ATTACH_QUARANTINE_ORDERS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/attach/order_table.h"
#include "server/attach/worker_stream.h"
#include "server/state/array_registry.h"

namespace shardmesh::internal::v1 {
class QuarantineAnswer;
class QuarantineOrder;
}  // namespace shardmesh::internal::v1

namespace shardmesh::server {

using QuarantineAnswered =
    absl::AnyInvocable<void(absl::StatusOr<internal::v1::QuarantineAnswer>) &&>;

// Reaches the quarantines of attached workers. Thread-safe.
class QuarantineAccess {
 public:
  virtual ~QuarantineAccess() = default;

  // Sends the worker an order about its quarantine. Calls `answered` once, without a lock, perhaps
  // before this function returns. Returns the order's number.
  //
  // UNAVAILABLE (WORKER_LOST): the worker is not attached, or its stream ended before the answer.
  // RESOURCE_EXHAUSTED (OVERLOADED), with a retry delay: too many orders wait for answers.
  virtual int64_t OrderQuarantine(const std::string& identity,
                                  const internal::v1::QuarantineOrder& order,
                                  QuarantineAnswered answered) = 0;
  // Frees the memory of an order whose answer the caller no longer wants. No effect if the answer
  // has come. The worker may still execute the order.
  virtual void ForgetQuarantineOrder(int64_t number) = 0;
  // Sends a worker a verdict on some of its tiles, after the verdict on its whole inventory. No
  // effect if the worker is not attached.
  virtual void SendVerdict(const std::string& identity, const InventoryVerdict& verdict) = 0;
};

// The orders about quarantines that wait for the answers of workers. Thread-safe.
class QuarantineOrders {
 public:
  static constexpr size_t kMaxOrders = 1'000;

  // Sends the order and moves from `*answered`. Returns the order's number. RESOURCE_EXHAUSTED
  // (OVERLOADED), with a retry delay: kMaxOrders orders wait for answers. In that case `*answered`
  // is unchanged.
  absl::StatusOr<int64_t> Send(WorkerStream* stream, const internal::v1::QuarantineOrder& order,
                               QuarantineAnswered* answered);
  // Calls the order's `answered`, if the order went over this stream and still waits for its
  // answer.
  void Answer(const WorkerStream* stream, const internal::v1::QuarantineAnswer& answer);
  void Forget(int64_t number) { table_.Forget(number); }
  // Removes and returns the callbacks of the orders that went over this stream. Afterwards the
  // caller calls each with the error NotAttached, without holding its own lock.
  std::vector<QuarantineAnswered> TakeAllOf(const WorkerStream* stream);

 private:
  OrderTable<QuarantineAnswered> table_;
};

// The error for a worker that is not attached: UNAVAILABLE (WORKER_LOST), with a retry delay.
absl::Status NotAttached(std::string_view identity);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_ATTACH_QUARANTINE_ORDERS_H_
