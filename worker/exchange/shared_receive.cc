// SharedReceive: the loop in which a receiver polls shared memory and the mailbox.
#include "worker/exchange/shared_receive.h"

#include <sched.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "status/status_macros.h"

namespace shardmesh::worker {
namespace {

// Number of polls before a receiver begins to yield, if there are enough cores for all ranks that
// share memory.
constexpr int kSpins = 50;
// How long a receiver yields its core between polls before it sleeps.
constexpr absl::Duration kYielding = absl::Microseconds(500);
// If sched_yield took longer than kLongYield, the core is busy with a computing thread. For the
// next kNoYields, receivers sleep instead of yielding, because the scheduler prefers a woken thread
// to a yielding thread.
constexpr absl::Duration kLongYield = absl::Microseconds(200);
constexpr absl::Duration kNoYields = absl::Milliseconds(20);
// Longest sleep of a receiver. Only a safety limit: a message over any transport, and the failure
// of the step, wake the receiver earlier.
constexpr absl::Duration kLongestSleep = absl::Milliseconds(100);

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

int64_t Cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

int SpinsFor(int64_t ranks) {
  static const int64_t cores = Cores();
  return ranks <= cores ? kSpins : 0;
}

bool IsAwaited(const ShmChannel::Arrived& arrived, const SharedReceive::Awaited& awaited) {
  return arrived.step == awaited.tag.step() && arrived.epoch == awaited.epoch &&
         arrived.op == awaited.tag.op() && arrived.round == awaited.tag.round() &&
         (arrived.signature_hash == 0 || arrived.signature_hash == awaited.signature_hash) &&
         static_cast<int64_t>(arrived.message.bytes.size()) == awaited.message_bytes;
}

}  // namespace

SharedReceive::SharedReceive(Mailbox* mailbox, int64_t ranks)
    : mailbox_(*mailbox), spins_(SpinsFor(ranks)) {}

absl::StatusOr<OwnedBytes> SharedReceive::Receive(ShmChannel& channel, const Awaited& awaited,
                                                  const std::atomic<uint64_t>& checked_changes,
                                                  Owner& owner, absl::Time deadline) {
  const auto receive_streamed = [&] {
    return mailbox_.Receive(awaited.peer, awaited.tag, awaited.message_bytes, deadline);
  };
  // Read the mailbox's counter of changes before the mailbox's messages. If a message arrives after
  // the counter was read, the loop finds another counter later, and looks for messages again.
  uint32_t seen_changes = mailbox_.changes();
  bool has_looked = seen_changes == checked_changes.load(std::memory_order_relaxed) &&
                    mailbox_.held_pieces() == 0;
  ShmChannel::Arrived arrived;
  absl::Time yielded_since = absl::InfiniteFuture();
  for (int looks = 0;; ++looks) {
    if (const uint32_t changes = mailbox_.changes(); !has_looked || changes != seen_changes) {
      SHARDMESH_ASSIGN_OR_RETURN(
          std::optional<OwnedBytes> piece,
          mailbox_.TryReceive(awaited.peer, awaited.tag, awaited.message_bytes));
      if (piece.has_value()) return *std::move(piece);
      has_looked = true;
      seen_changes = changes;
    }
    const absl::StatusOr<bool> came = channel.TryReceive(awaited.signature_hash, &arrived);
    if (!came.ok()) {
      owner.Refuse(came.status());
      return receive_streamed();  // fails, because the step fails
    }
    if (*came) {
      if (IsAwaited(arrived, awaited)) {
        owner.CountReceived(awaited.message_bytes);
        return std::move(arrived.message);
      }
      if (absl::Status taken = owner.TakeOther(std::move(arrived)); !taken.ok()) {
        owner.Refuse(taken);
      }
      looks = 0;
      if (absl::Now() < deadline) continue;
    }
    if (looks < spins_) {
      Pause();
      continue;
    }
    const absl::Time now = absl::Now();
    if (now >= deadline || channel.closed()) return receive_streamed();
    yielded_since = std::min(yielded_since, now);
    if (now - yielded_since < kYielding &&
        now >= no_yields_until_.load(std::memory_order_relaxed)) {
      sched_yield();
      if (const absl::Time back = absl::Now(); back - now > kLongYield) {
        no_yields_until_.store(back + kNoYields, std::memory_order_relaxed);
      }
    } else {
      if (owner.has_exhausted_streams()) owner.Demand(awaited.tag, awaited.message_bytes);
      mailbox_.Sleep([&](const std::atomic<uint32_t>& changes) {
        channel.Sleep(changes, seen_changes, std::min(kLongestSleep, deadline - now));
      });
    }
  }
}

absl::StatusOr<std::optional<OwnedBytes>> SharedReceive::TryReceive(ShmChannel& channel,
                                                                    const Awaited& awaited,
                                                                    Owner& owner) {
  ShmChannel::Arrived arrived;
  while (true) {
    SHARDMESH_ASSIGN_OR_RETURN(
        std::optional<OwnedBytes> piece,
        mailbox_.TryReceive(awaited.peer, awaited.tag, awaited.message_bytes));
    if (piece.has_value()) return piece;
    const absl::StatusOr<bool> came = channel.TryReceive(awaited.signature_hash, &arrived);
    if (!came.ok()) {
      owner.Refuse(came.status());  // the step fails, and the next receive says so
      return std::nullopt;
    }
    if (!*came) return std::nullopt;
    if (IsAwaited(arrived, awaited)) {
      owner.CountReceived(awaited.message_bytes);
      return std::move(arrived.message);
    }
    if (const absl::Status taken = owner.TakeOther(std::move(arrived)); !taken.ok()) {
      owner.Refuse(taken);
      return std::nullopt;
    }
  }
}

}  // namespace shardmesh::worker
