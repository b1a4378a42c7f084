// Mailbox: accepts pieces in order for each worker and tag, and wakes only the receiver of a
// message.
#include "worker/collective/mailbox.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::worker {
namespace {

// Bytes that each held piece counts in the limit of bytes held from a worker, in addition to the
// bytes of its content. This overhead also bounds the number of held pieces, so a flood of tiny
// messages cannot exhaust memory.
constexpr int64_t kPieceOverheadBytes = 256;
// The maximum number of signatures of peers that a step holds for ops that this worker has not
// begun.
constexpr int64_t kMaxEarlySignatures = 16'384;

// Returns `failure` with the text `waited_for` appended to its message. Keeps the machine-readable
// details.
absl::Status Annotate(const absl::Status& failure, std::string_view waited_for) {
  absl::Status annotated(failure.code(), StrCat(ToStd(failure.message()), "; ", waited_for));
  failure.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    annotated.SetPayload(url, payload);
  });
  return annotated;
}

std::string RankName(DeviceId rank, std::string_view worker) {
  return StrCat("rank ", rank, " (", worker, ")");
}

std::string WaitedFor(DeviceId rank, std::string_view worker, const Tag& tag) {
  return StrCat("waited for ", RankName(rank, worker), ", ", tag.ToString());
}

absl::Status Gone(DeviceId rank, std::string_view worker, std::string_view reason) {
  return WithReason(absl::UnavailableError(StrCat(RankName(rank, worker), " is gone: ", reason)),
                    Reason::kWorkerLost, {{fact::kRank, rank}, {fact::kIdentity, worker}});
}

}  // namespace

int64_t Mailbox::ChargeOf(const Held& piece) {
  return (piece.is_lent ? 0 : static_cast<int64_t>(piece.content.bytes.size())) +
         kPieceOverheadBytes;
}

int64_t Mailbox::ChargeOf(const std::string& early_signature) {
  return static_cast<int64_t>(early_signature.size()) + kPieceOverheadBytes;
}

absl::Status Mailbox::ExpectStep(int64_t step) {
  std::vector<OwnedBytes> dropped;
  absl::MutexLock lock(&mutex_);
  return Expect(step, dropped);
}

absl::Status Mailbox::Expect(int64_t step, std::vector<OwnedBytes>& dropped) {
  if (step <= last_expected_) {
    return absl::FailedPreconditionError(StrCat("step ", step, " comes after step ", last_expected_,
                                                ", which was expected before it"));
  }
  last_expected_ = step;
  for (auto it = steps_.begin(); it != steps_.end() && it->first < step;) {
    if (it->second.expected) {
      ++it;
    } else {
      DropAll(it->second, dropped);
      it = steps_.erase(it);
    }
  }
  steps_[step].expected = true;
  return absl::OkStatus();
}

absl::Status Mailbox::OpenStep(int64_t step, std::vector<std::string> members) {
  std::vector<OwnedBytes> dropped;
  absl::MutexLock lock(&mutex_);
  for (size_t rank = 0; rank < members.size(); ++rank) {
    if (auto gone = gone_.find(members[rank]); gone != gone_.end()) {
      return Annotate(Gone(static_cast<DeviceId>(rank), members[rank], gone->second),
                      StrCat("step ", step, " cannot begin"));
    }
  }
  const auto found = steps_.find(step);
  if (found == steps_.end() || !found->second.expected || found->second.open) {
    SHARDMESH_RETURN_IF_ERROR(Expect(step, dropped));
  }
  Step& opened = steps_[step];
  opened.open = true;
  opened.members = std::move(members);
  return absl::OkStatus();
}

void Mailbox::CloseStep(int64_t step) {
  std::vector<OwnedBytes> dropped;
  absl::MutexLock lock(&mutex_);
  auto it = steps_.find(step);
  if (it == steps_.end() || !it->second.expected) return;
  DropAll(it->second, dropped);
  steps_.erase(it);
}

void Mailbox::Abort(int64_t step, absl::Status error) {
  std::vector<OwnedBytes> dropped;
  absl::MutexLock lock(&mutex_);
  if (Step* found = FindOrHold(step); found != nullptr) Fail(*found, std::move(error), dropped);
}

absl::Status Mailbox::FailureOf(int64_t step) const {
  absl::MutexLock lock(&mutex_);
  auto found = steps_.find(step);
  return found == steps_.end() ? absl::OkStatus() : found->second.failure;
}

void Mailbox::FailWorker(const std::string& worker, std::string_view reason) {
  std::vector<OwnedBytes> dropped;
  absl::MutexLock lock(&mutex_);
  gone_[worker] = std::string(reason);
  for (auto& [number, step] : steps_) {
    for (size_t rank = 0; rank < step.members.size(); ++rank) {
      if (step.members[rank] != worker) continue;
      Fail(step, Gone(static_cast<DeviceId>(rank), worker, reason), dropped);
      break;
    }
    if (step.open) continue;
    for (auto it = step.messages.begin(); it != step.messages.end();) {
      if (it->first.first == worker) {
        Drop(worker, it->second, dropped);
        step.messages.erase(it++);
      } else {
        ++it;
      }
    }
  }
}

void Mailbox::RestoreWorker(const std::string& worker) {
  absl::MutexLock lock(&mutex_);
  gone_.erase(worker);
}

absl::Status Mailbox::Begin(int64_t step, int64_t op, DeviceId rank, std::string signature) {
  std::vector<OwnedBytes> dropped;
  absl::MutexLock lock(&mutex_);
  const auto found = steps_.find(step);
  if (found == steps_.end() || !found->second.open) {
    return absl::FailedPreconditionError(
        StrCat("op ", op, " was begun in step ", step, ", which is not open"));
  }
  Step& opened = found->second;
  if (!opened.failure.ok()) return opened.failure;
  Signatures& signatures = opened.signatures[op];
  if (!signatures.own.empty()) {
    return absl::InvalidArgumentError(
        StrCat("op ", op, " of step ", step, " was begun before, as ", signatures.own));
  }
  signatures.rank = rank;
  signatures.own = std::move(signature);
  for (const auto& [worker, theirs] : TakeEarly(opened, signatures)) {
    absl::Status same = CompareSignatures(opened, step, op, signatures, worker, theirs);
    if (!same.ok()) Fail(opened, std::move(same), dropped);
  }
  return opened.failure;
}

Mailbox::EarlySignatures Mailbox::TakeEarly(Step& step, Signatures& signatures) {
  step.early_signatures -= static_cast<int64_t>(signatures.early.size());
  for (const auto& [worker, theirs] : signatures.early) charged_bytes_[worker] -= ChargeOf(theirs);
  return std::exchange(signatures.early, {});
}

absl::Status Mailbox::CompareSignatures(const Step& step, int64_t step_number, int64_t op,
                                        const Signatures& signatures, const std::string& worker,
                                        std::string_view theirs) {
  if (signatures.own == theirs) return absl::OkStatus();
  const auto rank = std::find(step.members.begin(), step.members.end(), worker);
  return WithReason(
      absl::FailedPreconditionError(StrCat(
          "ranks do not run the same collective as op ", op, " of step ", step_number, ": rank ",
          signatures.rank, " runs ", signatures.own, ", ",
          RankName(static_cast<DeviceId>(rank - step.members.begin()), worker), " runs ", theirs)),
      Reason::kCollectiveMismatch,
      {{fact::kRank, rank - step.members.begin()},
       {fact::kIdentity, worker},
       {fact::kStep, step_number},
       {fact::kOp, op},
       {fact::kHave, theirs},
       {fact::kNeed, signatures.own}});
}

absl::Status Mailbox::Deliver(const std::string& worker, const Tag& tag, Piece piece) {
  const auto size_bytes = static_cast<int64_t>(piece.content.bytes.size());
  const auto refuse = [&](std::string_view why) {
    return absl::InvalidArgumentError(StrCat(
        "a piece of ", size_bytes, " bytes at offset ", piece.offset_bytes, " of a message of ",
        piece.message_bytes, " from ", worker, " (", tag.ToString(), ") ", why));
  };
  if (size_bytes == 0) return refuse("is empty");
  if (piece.offset_bytes < 0 || piece.offset_bytes > piece.message_bytes - size_bytes) {
    return refuse("is out of the message's bounds");
  }

  std::vector<OwnedBytes> dropped;
  absl::MutexLock lock(&mutex_);
  if (gone_.contains(worker)) return absl::OkStatus();
  Step* step = FindOrHold(tag.step());
  if (step == nullptr || !step->failure.ok()) return absl::OkStatus();

  MessageKey key(worker, tag);
  auto found = step->messages.find(key);
  const bool is_new = found == step->messages.end();
  if (is_new && step->open) {
    bool is_member = false;
    for (const std::string& member : step->members) is_member = is_member || member == worker;
    if (!is_member) return refuse("is from a worker that takes no part in the step");
  }
  const int64_t arrived_bytes = is_new ? 0 : found->second.arrived_bytes;
  const int64_t held_under_tag = is_new ? 0 : arrived_bytes - found->second.taken_bytes;
  const int64_t known_bytes = is_new ? 0 : found->second.message_bytes;
  if (known_bytes != 0 && known_bytes != piece.message_bytes) {
    return refuse(StrCat("belongs to a message that was ", known_bytes, " bytes long"));
  }
  if (piece.offset_bytes != arrived_bytes) {
    return refuse(StrCat("is out of order: ", arrived_bytes, " bytes came before it"));
  }
  if (!piece.is_lent && held_under_tag + size_bytes > options_.tag_limit_bytes) {
    return absl::ResourceExhaustedError(
        StrCat("a piece of ", size_bytes, " bytes from ", worker, " (", tag.ToString(),
               ") is beyond its credit: ", held_under_tag, " bytes are held under this tag, ",
               options_.tag_limit_bytes, " are allowed"));
  }
  int64_t& charged_bytes = charged_bytes_[worker];
  Held held{.content = std::move(piece.content), .is_lent = piece.is_lent};
  int64_t early_bytes = 0;
  if (!piece.signature.empty()) {
    const auto signatures = step->signatures.find(tag.op());
    const bool is_early = signatures == step->signatures.end() || signatures->second.own.empty();
    if (is_early) early_bytes = ChargeOf(piece.signature);
  }
  if (charged_bytes + ChargeOf(held) + early_bytes > options_.worker_limit_bytes) {
    return absl::ResourceExhaustedError(
        StrCat("a piece of ", size_bytes, " bytes from ", worker, " (", tag.ToString(),
               ") is too much: ", charged_bytes, " bytes are held from this worker, ",
               options_.worker_limit_bytes, " are allowed"));
  }

  if (!piece.signature.empty()) {
    Signatures& signatures = step->signatures[tag.op()];
    if (signatures.own.empty()) {
      if (step->early_signatures == kMaxEarlySignatures) {
        return refuse(StrCat("comes with one signature more than ", kMaxEarlySignatures,
                             " of ops that have not begun"));
      }
      ++step->early_signatures;
      charged_bytes += early_bytes;
      signatures.early.emplace_back(worker, std::move(piece.signature));
    } else if (absl::Status same = CompareSignatures(*step, tag.step(), tag.op(), signatures,
                                                     worker, piece.signature);
               !same.ok()) {
      Fail(*step, std::move(same), dropped);
      return absl::OkStatus();  // the step fails, but the stream of the peer goes on
    }
  }

  Message& message = is_new ? step->messages[std::move(key)] : found->second;
  charged_bytes += ChargeOf(held);
  held_bytes_ += size_bytes;
  held_pieces_.fetch_add(1, std::memory_order_release);
  message.message_bytes = piece.message_bytes;
  message.arrived_bytes += size_bytes;
  message.pieces.push_back(std::move(held));
  if (message.awaited) {
    message.awaited = false;
    awaited_.fetch_sub(1, std::memory_order_release);
    message.changed.Signal();
  }
  Changed();
  return absl::OkStatus();
}

absl::StatusOr<OwnedBytes> Mailbox::Receive(DeviceId peer, const Tag& tag, int64_t message_bytes,
                                            absl::Time deadline) {
  std::string worker;
  absl::StatusOr<OwnedBytes> taken;
  bool is_credited = false;
  {
    absl::MutexLock lock(&mutex_);
    SHARDMESH_ASSIGN_OR_RETURN(Step* const found, FindToReceive(peer, tag));
    Step& step = *found;
    worker = step.members[static_cast<size_t>(peer)];
    Message& message = step.messages[MessageKey(worker, tag)];
    const auto is_done = [&] { return !step.failure.ok() || !message.pieces.empty(); };
    std::optional<std::list<Waiting>::iterator> waiting;
    if (message.pieces.empty()) {
      message.awaited = true;
      awaited_.fetch_add(1, std::memory_order_release);
      const int64_t left_bytes = message_bytes - message.arrived_bytes;
      waiting = BeginWait(worker, tag, left_bytes);
      // From here on, a thread that sees a stream without credit finds this receiver in waiting_.
      const bool starves =
          options_.exhausted != nullptr && options_.exhausted->load(std::memory_order_seq_cst) > 0;
      if (starves || options_.poll) {
        mutex_.Unlock();
        if (starves) options_.starved(worker, tag, left_bytes);
        if (options_.poll) {
          options_.poll([&] {
            absl::MutexLock poll_lock(&mutex_);
            return is_done();
          });
        }
        mutex_.Lock();
      }
    }
    bool timed_out = false;
    while (!is_done() && !timed_out) {
      timed_out = message.changed.WaitWithDeadline(&mutex_, deadline);
    }
    if (waiting.has_value()) waiting_.erase(*waiting);
    if (message.awaited) {
      message.awaited = false;
      awaited_.fetch_sub(1, std::memory_order_release);
    }
    if (!step.failure.ok()) return Annotate(step.failure, WaitedFor(peer, worker, tag));
    if (message.pieces.empty()) {
      return WithReason(
          absl::DeadlineExceededError(
              StrCat(RankName(peer, worker), " sent nothing in time: ", message.taken_bytes, " of ",
                     message_bytes, " bytes have come; ", WaitedFor(peer, worker, tag))),
          Reason::kDeadline,
          {{fact::kRank, peer},
           {fact::kIdentity, worker},
           {fact::kStep, tag.step()},
           {fact::kOp, tag.op()}});
    }
    taken = TakeFirst(peer, worker, tag, message, message_bytes, &is_credited);
    if (message.is_over()) step.messages.erase(MessageKey(worker, tag));
  }
  if (options_.credit && is_credited) {
    options_.credit(worker, tag, static_cast<int64_t>(taken->bytes.size()));
  }
  return taken;
}

absl::StatusOr<std::optional<OwnedBytes>> Mailbox::TryReceive(DeviceId peer, const Tag& tag,
                                                              int64_t message_bytes) {
  std::string worker;
  absl::StatusOr<OwnedBytes> taken;
  bool is_credited = false;
  {
    absl::MutexLock lock(&mutex_);
    SHARDMESH_ASSIGN_OR_RETURN(Step* const step, FindToReceive(peer, tag));
    worker = step->members[static_cast<size_t>(peer)];
    const auto message = step->messages.find(MessageKey(worker, tag));
    if (message == step->messages.end() || message->second.pieces.empty()) return std::nullopt;
    taken = TakeFirst(peer, worker, tag, message->second, message_bytes, &is_credited);
    if (message->second.is_over()) step->messages.erase(message);
  }
  if (options_.credit && is_credited) {
    options_.credit(worker, tag, static_cast<int64_t>(taken->bytes.size()));
  }
  SHARDMESH_RETURN_IF_ERROR(taken.status());
  return *std::move(taken);
}

absl::StatusOr<Mailbox::Step*> Mailbox::FindToReceive(DeviceId peer, const Tag& tag) {
  const auto found = steps_.find(tag.step());
  if (found == steps_.end() || !found->second.open) {
    return absl::FailedPreconditionError(
        StrCat("a message was asked for (", tag.ToString(), ") in a step that is not open"));
  }
  Step& step = found->second;
  if (peer < 0 || peer >= static_cast<DeviceId>(step.members.size())) {
    return absl::InvalidArgumentError(StrCat("rank ", peer, " (", tag.ToString(),
                                             ") is not of the step's mesh, which has ",
                                             step.members.size(), " ranks"));
  }
  // A failed step has released its messages, and nothing could be delivered to a new message.
  if (!step.failure.ok()) {
    return Annotate(step.failure, WaitedFor(peer, step.members[static_cast<size_t>(peer)], tag));
  }
  return &step;
}

absl::StatusOr<OwnedBytes> Mailbox::TakeFirst(DeviceId peer, const std::string& worker,
                                              const Tag& tag, Message& message,
                                              int64_t message_bytes, bool* is_credited) {
  if (message.message_bytes != message_bytes) {
    return absl::DataLossError(StrCat(
        RankName(peer, worker), " sends ", message.message_bytes, " bytes where ", message_bytes,
        " are expected: the ranks do not run the same operation; ", WaitedFor(peer, worker, tag)));
  }
  Held taken = std::move(message.pieces.front());
  message.pieces.pop_front();
  const auto size_bytes = static_cast<int64_t>(taken.content.bytes.size());
  message.taken_bytes += size_bytes;
  held_bytes_ -= size_bytes;
  held_pieces_.fetch_sub(1, std::memory_order_release);
  charged_bytes_[worker] -= ChargeOf(taken);
  // If the whole message has arrived, its sender needs no more credit.
  *is_credited = !taken.is_lent && message.arrived_bytes != message.message_bytes;
  return std::move(taken.content);
}

std::vector<Mailbox::Wait> Mailbox::WaitsFor(const std::string& worker) const {
  std::vector<Wait> waits;
  absl::MutexLock lock(&mutex_);
  for (const Waiting& waiting : waiting_) {
    if (waiting.worker == worker) waits.push_back(waiting.wait);
  }
  return waits;
}

void Mailbox::Changed() {
  // Accesses to both counters, changes_ and sleepers_, are sequentially consistent. Therefore
  // either a thread about to sleep sees the new number of changes, or this thread sees the sleeper
  // and wakes it.
  changes_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    syscall(SYS_futex, &changes_, FUTEX_WAKE_PRIVATE, std::numeric_limits<int>::max(), nullptr,
            nullptr, 0);
  }
}

void Mailbox::Sleep(absl::FunctionRef<void(const std::atomic<uint32_t>& changes)> sleep) {
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  sleep(changes_);
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

int64_t Mailbox::held_bytes() const {
  absl::MutexLock lock(&mutex_);
  return held_bytes_;
}

Mailbox::Step* Mailbox::FindOrHold(int64_t step) {
  if (step > last_expected_) return &steps_[step];
  auto found = steps_.find(step);
  return found == steps_.end() ? nullptr : &found->second;
}

void Mailbox::Fail(Step& step, absl::Status failure, std::vector<OwnedBytes>& dropped) {
  if (!step.failure.ok()) return;
  step.failure = std::move(failure);
  Changed();
  // Drop empties the Message objects but does not destroy them, because receivers wait on their
  // condition variables.
  for (auto& [key, message] : step.messages) {
    Drop(key.first, message, dropped);
    message.changed.SignalAll();
  }
  for (auto& [op, signatures] : step.signatures) TakeEarly(step, signatures);
}

void Mailbox::Drop(const std::string& worker, Message& message, std::vector<OwnedBytes>& dropped) {
  for (Held& piece : message.pieces) {
    held_bytes_ -= static_cast<int64_t>(piece.content.bytes.size());
    held_pieces_.fetch_sub(1, std::memory_order_release);
    charged_bytes_[worker] -= ChargeOf(piece);
    dropped.push_back(std::move(piece.content));
  }
  message.pieces.clear();
}

void Mailbox::DropAll(Step& step, std::vector<OwnedBytes>& dropped) {
  for (auto& [key, message] : step.messages) Drop(key.first, message, dropped);
  for (auto& [op, signatures] : step.signatures) TakeEarly(step, signatures);
}

}  // namespace shardmesh::worker
