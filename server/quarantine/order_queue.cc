// Sends orders one after the other, and processes their answers.
#include "server/quarantine/order_queue.h"

#include <utility>

#include "rpc/codec/time_codec.h"
#include "rpc/codec/worker_error_codec.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::server::quarantine {

namespace {

// Time limit for a worker's answer. A worker may have to read or remove files of many gigabytes.
// But a disk that hangs must not block a call without a deadline for ever.
constexpr absl::Duration kOrderTime = absl::Minutes(5);

}  // namespace

void Orders::Run(Clock* clock, QuarantineAccess* hub, std::deque<Order> orders,
                 const QuarantineStopPtr& stop, Answered answered, QuarantineDone done,
                 Failed failed) {
  auto run = std::make_shared<Orders>();
  run->clock_ = clock;
  run->hub_ = hub;
  run->stop_ = stop;
  {
    absl::MutexLock lock(&run->mutex_);
    run->orders_ = std::move(orders);
  }
  run->answered_ = std::move(answered);
  run->failed_ = std::move(failed);
  run->done_ = std::move(done);
  if (stop != nullptr) {
    stop->Set([weak = std::weak_ptr<Orders>(run)] {
      if (const auto self = weak.lock(); self != nullptr) self->Stop();
    });
  }
  run->Next();
}

void Orders::Next() {
  Order next;
  uint64_t number = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (!is_stopped_ && !orders_.empty()) {
      next = std::move(orders_.front());
      orders_.pop_front();
      number = waits_for_ = ++last_;
      order_ = 0;
      timer_ = clock_->CallAt(
          clock_->Now() + kOrderTime, [run = weak_from_this(), number, identity = next.identity] {
            const auto self = run.lock();
            if (self == nullptr) return;
            self->Take(number, identity,
                       WithReason(absl::DeadlineExceededError(StrCat(
                                      "worker \"", identity,
                                      "\" has not answered a request about its quarantine within ",
                                      FormatRounded(kOrderTime), "; look whether its disk hangs")),
                                  Reason::kDeadline,
                                  {{fact::kIdentity, identity},
                                   {fact::kLimit, absl::ToDoubleSeconds(kOrderTime)}}));
          });
    }
  }
  if (number == 0) return std::move(done_)(Stopped());
  if (stop_ != nullptr) stop_->SetAwaited(next.identity);
  const int64_t order =
      hub_->OrderQuarantine(next.identity, std::move(next.order),
                            [self = shared_from_this(), number, identity = next.identity](
                                absl::StatusOr<internal::v1::QuarantineAnswer> answer) {
                              self->Take(number, identity, std::move(answer));
                            });
  {
    absl::MutexLock lock(&mutex_);
    if (waits_for_ == number) {
      order_ = order;
      return;
    }
  }
  hub_->ForgetQuarantineOrder(order);  // the answer or Stop came first
}

absl::Status Orders::Stopped() {
  absl::MutexLock lock(&mutex_);
  return is_stopped_ ? absl::CancelledError("the client has gone") : absl::OkStatus();
}

void Orders::Stop() {
  uint64_t number = 0;
  {
    absl::MutexLock lock(&mutex_);
    is_stopped_ = true;
    number = waits_for_;
  }
  // If no answer is awaited (number 0), a call of Next follows, sees is_stopped_ and ends the call.
  if (number != 0) Take(number, "", Stopped());
}

void Orders::Take(uint64_t number, const std::string& identity,
                  absl::StatusOr<internal::v1::QuarantineAnswer> answer) {
  int64_t order = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (waits_for_ != number) return;
    waits_for_ = 0;
    clock_->Cancel(timer_);
    order = std::exchange(order_, 0);
  }
  if (stop_ != nullptr) stop_->SetAwaited("");
  if (order != 0) hub_->ForgetQuarantineOrder(order);  // no effect if the worker has answered
  absl::Status status = answer.status();
  bool goes_on = true;
  if (answer.ok()) {
    if (answer->has_error()) {
      status = WithContext(rpc::Decode(answer->error()), StrCat("worker \"", identity, "\""));
    }
    goes_on = answered_(identity, *std::move(answer));
  }
  // An empty identity means that Stop made this call. In that case `failed_` is not asked.
  if (!status.ok() && (identity.empty() || !failed_ || !failed_(identity, status))) {
    return std::move(done_)(status);
  }
  if (!goes_on) {
    absl::MutexLock lock(&mutex_);
    orders_.clear();
  }
  Next();
}

Orders::Order OrderOf(const std::string& identity, Action::Action action,
                      const std::vector<std::string>& array_ids) {
  Orders::Order order{.identity = identity, .order = {}};
  order.order.set_action(action);
  for (const std::string& id : array_ids) order.order.add_array_ids(id);
  order.order.set_max_arrays(kMaxPage);
  return order;
}

}  // namespace shardmesh::server::quarantine
