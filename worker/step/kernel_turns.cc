// KernelTurns: orders waiting kernels by ticket numbers.
#include "worker/step/kernel_turns.h"

#include "absl/cleanup/cleanup.h"
#include "absl/time/clock.h"
#include "status/status_macros.h"

namespace shardmesh::worker {
namespace {

// A waiting kernel checks for an abort in this interval.
constexpr absl::Duration kAbortInterval = absl::Milliseconds(20);

}  // namespace

absl::Status KernelTurns::Turn::Take() {
  absl::MutexLock lock(&turns_.mutex_);
  if (!turns_.is_taken_ && turns_.waiting_.empty()) {
    turns_.is_taken_ = has_turn_ = true;
    return absl::OkStatus();
  }
  const absl::Time since = absl::Now();
  const int64_t ticket = turns_.next_ticket_++;
  turns_.waiting_.insert(ticket);
  // `leave` runs while the lock is held, because it is declared after the lock. It runs even if the
  // abort check throws.
  const absl::Cleanup leave = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(turns_.mutex_) {
    turns_.waiting_.erase(ticket);
    waited_ += absl::Now() - since;
  };
  const auto is_next = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(turns_.mutex_) {
    return !turns_.is_taken_ && *turns_.waiting_.begin() == ticket;
  };
  while (!turns_.mutex_.AwaitWithTimeout(absl::Condition(&is_next), kAbortInterval)) {
    turns_.mutex_.Unlock();
    const absl::Cleanup relock = [&]() ABSL_EXCLUSIVE_LOCK_FUNCTION(turns_.mutex_) {
      turns_.mutex_.Lock();
    };
    SHARDMESH_RETURN_IF_ERROR(abort_check_());
  }
  turns_.is_taken_ = has_turn_ = true;
  return absl::OkStatus();
}

absl::Status KernelTurns::Turn::PauseForOthers() {
  SHARDMESH_RETURN_IF_ERROR(abort_check_());
  {
    absl::MutexLock lock(&turns_.mutex_);
    if (turns_.waiting_.empty()) return absl::OkStatus();
  }
  GiveBack();
  return Take();
}

void KernelTurns::Turn::GiveBack() {
  if (!has_turn_) return;
  has_turn_ = false;
  absl::MutexLock lock(&turns_.mutex_);
  turns_.is_taken_ = false;
}

}  // namespace shardmesh::worker
