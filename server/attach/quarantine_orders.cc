// Numbers the orders, and finds the order that an answer belongs to.
#include "server/attach/quarantine_orders.h"

#include <iterator>
#include <utility>

#include "rpc/codec/status.h"
#include "server/attach/attach_codec.h"
#include "shardmesh/internal/v1/attach_service.pb.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::server {

absl::StatusOr<int64_t> QuarantineOrders::Send(WorkerStream* stream,
                                               const internal::v1::QuarantineOrder& order,
                                               QuarantineAnswered* answered) {
  absl::MutexLock lock(&mutex_);
  if (orders_.size() >= kMaxOrders) {
    return WithRetryDelay(
        WithReason(absl::ResourceExhaustedError(StrCat(
                       orders_.size(), " questions about quarantines wait for workers, of at most ",
                       kMaxOrders, "; ask again later")),
                   Reason::kOverloaded,
                   {{fact::kHave, orders_.size()}, {fact::kLimit, kMaxOrders}}),
        absl::Seconds(1));
  }
  internal::v1::AttachResponse message;
  *message.mutable_quarantine_order() = order;
  message.mutable_quarantine_order()->set_order_id(++last_number_);
  orders_.emplace(last_number_, Unanswered{.stream = stream, .answered = std::move(*answered)});
  stream->Send(EncodeMessage(message));
  return last_number_;
}

void QuarantineOrders::Answer(WorkerStream* stream, const internal::v1::QuarantineAnswer& answer) {
  QuarantineAnswered answered;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = orders_.find(answer.order_id());
    if (found == orders_.end() || found->second.stream != stream) return;
    answered = std::move(found->second.answered);
    orders_.erase(found);
  }
  std::move(answered)(answer);
}

void QuarantineOrders::Forget(int64_t number) {
  // Declared before `lock`, so the callback is destroyed after the lock is released.
  decltype(orders_)::node_type forgotten;
  absl::MutexLock lock(&mutex_);
  forgotten = orders_.extract(number);
}

std::vector<QuarantineOrders::Unanswered> QuarantineOrders::TakeOrdersOf(WorkerStream* stream) {
  std::vector<Unanswered> taken;
  absl::MutexLock lock(&mutex_);
  for (auto order = orders_.begin(); order != orders_.end();) {
    const auto next = std::next(order);
    if (order->second.stream == stream) {
      taken.push_back(std::move(order->second));
      orders_.erase(order);
    }
    order = next;
  }
  return taken;
}

void QuarantineOrders::Fail(std::vector<Unanswered> orders, std::string_view identity) {
  for (Unanswered& order : orders) Fail(std::move(order.answered), NotAttached(identity));
}

void QuarantineOrders::Fail(QuarantineAnswered answered, absl::Status status) {
  std::move(answered)(std::move(status));
}

absl::Status NotAttached(std::string_view identity) {
  return WithRetryDelay(
      WithReason(absl::UnavailableError(StrCat("worker \"", identity, "\" is not attached")),
                 Reason::kWorkerLost, {{fact::kIdentity, identity}}),
      absl::Seconds(1));
}

}  // namespace shardmesh::server
