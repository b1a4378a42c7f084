// Encodes the orders, and passes on the answers.
#include "server/attach/quarantine_orders.h"

#include <optional>
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
  const std::optional<int64_t> number =
      table_.Register(stream, answered, kMaxOrders, [&order](int64_t order_id) {
        internal::v1::AttachResponse message;
        *message.mutable_quarantine_order() = order;
        message.mutable_quarantine_order()->set_order_id(order_id);
        return EncodeMessage(message);
      });
  if (number.has_value()) return *number;
  return WithRetryDelay(
      WithReason(absl::ResourceExhaustedError(StrCat(
                     kMaxOrders, " questions about quarantines wait for workers, of at most ",
                     kMaxOrders, "; ask again later")),
                 Reason::kOverloaded, {{fact::kHave, kMaxOrders}, {fact::kLimit, kMaxOrders}}),
      absl::Seconds(1));
}

void QuarantineOrders::Answer(const WorkerStream* stream,
                              const internal::v1::QuarantineAnswer& answer) {
  std::optional<QuarantineAnswered> answered = table_.Take(stream, answer.order_id());
  if (answered.has_value()) (*std::move(answered))(answer);
}

std::vector<QuarantineAnswered> QuarantineOrders::TakeAllOf(const WorkerStream* stream) {
  return table_.TakeAllOf(stream);
}

absl::Status NotAttached(std::string_view identity) {
  return WithRetryDelay(
      WithReason(absl::UnavailableError(StrCat("worker \"", identity, "\" is not attached")),
                 Reason::kWorkerLost, {{fact::kIdentity, identity}}),
      absl::Seconds(1));
}

}  // namespace shardmesh::server
