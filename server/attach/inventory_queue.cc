// Admits streams according to the size of recent inventories.
#include "server/attach/inventory_queue.h"

#include <algorithm>
#include <iterator>

#include "rpc/codec/status.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// If no stream has had a turn for this time, the queue forgets the size of the largest recent
// inventory. A refused worker attaches again before that time is over, so the queue then still
// knows the size.
constexpr absl::Duration kSizeForgottenAfter = absl::Seconds(30);

}  // namespace

InventoryQueue::InventoryQueue(const Clock* clock, Limits limits)
    : clock_(clock), limits_(limits), taker_([this] { TakeInventories(); }) {}

InventoryQueue::~InventoryQueue() {
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  taker_.join();
}

void InventoryQueue::AwaitTurn(WorkerStream* stream, Admit admit) {
  const absl::Time now = clock_->Now();
  {
    absl::MutexLock lock(&mutex_);
    if (bringing_.empty() && now - last_end_ >= kSizeForgottenAfter) largest_bytes_ = 0;
    if (!HasTurn()) {
      waiting_.emplace_back(stream, std::move(admit));
      return;
    }
    bringing_.try_emplace(stream);
  }
  std::move(admit)();
}

absl::Status InventoryQueue::Keep(WorkerStream* stream, int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  const auto found = bringing_.find(stream);
  if (found == bringing_.end()) return absl::OkStatus();
  if (kept_bytes_ + bytes > limits_.bytes && beyond_ != stream) {
    if (beyond_ != nullptr) {
      return WithRetryDelay(
          WithReason(
              absl::ResourceExhaustedError(StrCat("inventories of ", kept_bytes_,
                                                  " bytes wait to be processed, the limit is ",
                                                  limits_.bytes, "; attach again later")),
              Reason::kOverloaded, {{fact::kHave, kept_bytes_}, {fact::kLimit, limits_.bytes}}),
          absl::Seconds(1));
    }
    beyond_ = stream;
  }
  found->second.bytes += bytes;
  kept_bytes_ += bytes;
  largest_bytes_ = std::max(largest_bytes_, found->second.bytes);
  return absl::OkStatus();
}

void InventoryQueue::TakeIn(WorkerStream* stream) {
  absl::MutexLock lock(&mutex_);
  if (const auto found = bringing_.find(stream); found != bringing_.end()) {
    found->second.is_whole = true;
  }
  whole_.push_back(stream);
}

void InventoryQueue::EndTurn(WorkerStream* stream) {
  const absl::Time now = clock_->Now();
  std::vector<Admit> admitted;
  {
    absl::MutexLock lock(&mutex_);
    const auto ended = bringing_.find(stream);
    if (ended == bringing_.end()) return;
    kept_bytes_ -= ended->second.bytes;
    bringing_.erase(ended);
    last_end_ = now;
    if (beyond_ == stream) beyond_ = nullptr;
    while (!waiting_.empty() && HasTurn()) {
      auto [next, admit] = std::move(waiting_.front());
      waiting_.pop_front();
      bringing_.try_emplace(next);
      admitted.push_back(std::move(admit));
    }
  }
  for (Admit& admit : admitted) std::move(admit)();
}

// Whether one more stream may bring its inventory now. Assumes that an unfinished inventory will
// become as large as the largest recent one.
bool InventoryQueue::HasTurn() const {
  if (bringing_.empty()) return true;
  if (std::ssize(bringing_) >= limits_.streams) return false;
  int64_t expected = largest_bytes_;
  for (const auto& [stream, brought] : bringing_) {
    expected += brought.is_whole ? brought.bytes : std::max(brought.bytes, largest_bytes_);
  }
  return expected <= limits_.bytes;
}

void InventoryQueue::TakeInventories() {
  const auto is_due = [this]()
                          ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !whole_.empty() || ending_; };
  for (;;) {
    WorkerStream* stream = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&is_due));
      if (whole_.empty()) return;
      stream = whole_.front();
      whole_.pop_front();
    }
    stream->TakeWholeInventory();
  }
}

}  // namespace shardmesh::server
