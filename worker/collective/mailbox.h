// Holds messages from peers until receivers take them.
#ifndef SHARDMESH_WORKER_COLLECTIVE_MAILBOX_H_
#define SHARDMESH_WORKER_COLLECTIVE_MAILBOX_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/node_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "sharding/mesh.h"
#include "worker/collective/link.h"

namespace shardmesh::worker {

// The messages that one worker has received from its peers, over all meshes and steps.
//
// Peers are workers, named by identity. A step records which worker serves which rank. Steps are
// expected in the order of their numbers. They may overlap, and are opened and closed in any order:
//
// clang-format off
//   to come --ExpectStep--> expected --OpenStep--> open --CloseStep--> closed
//     \--a higher step is expected--> closed          \--Abort, FailWorker--> failed
//   failed --CloseStep--> closed
// clang-format on
//
// Messages of a step that is to come or expected are kept for it. Messages of a failed or closed
// step are dropped. The mailbox bounds the bytes that it holds and refuses a peer that exceeds the
// bounds; credit tells peers these bounds. One mutex guards all state; no callback runs under it.
//
// Thread-safe. Call CloseStep only when no receive of that step is in progress.
class Mailbox {
 public:
  struct Options {
    // Most bytes held under one tag from one worker: the initial credit of a tag.
    int64_t tag_limit_bytes = int64_t{4} << 20;
    // Most bytes held from one worker, with an overhead for each piece. Guards against a peer that
    // ignores its credit; the value is well above what the stream's credit allows.
    int64_t worker_limit_bytes = int64_t{1} << 30;
    // Called when a receiver has taken `size_bytes`, which the worker may now send anew under that
    // tag. Not called for the last piece of a message. Runs on the receiver's thread.
    std::function<void(const std::string& worker, const Tag& tag, int64_t size_bytes)> credit;
    // If set: called when a receiver begins to wait. May deliver messages until `is_done` returns
    // true; returns soon if it cannot. Runs on the receiver's thread.
    std::function<void(absl::FunctionRef<bool()> is_done)> poll = nullptr;
    // If set: the number of streams whose senders have no credit left; outlives the mailbox. While
    // it is above 0, a receiver that begins to wait calls `starved`, without a lock. The argument
    // is the number of bytes of the message still to come: the sender may have to be asked for
    // them.
    const std::atomic<int64_t>* exhausted = nullptr;
    std::function<void(const std::string& worker, const Tag& tag, int64_t left_bytes)> starved =
        nullptr;
    // If set: the number of messages that receivers wait for, shared with other mailboxes. Outlives
    // all of them.
    std::atomic<int64_t>* awaited = nullptr;
  };

  // A part of a message, as delivered.
  struct Piece {
    int64_t offset_bytes = 0;    // of the piece in the message
    int64_t message_bytes = 0;   // of the whole message
    OwnedBytes content;          // not empty
    std::string signature = {};  // the sender's signature of the tag's op, if the piece carries it
    // The content lies in the sender's memory: it takes no memory here and no credit.
    bool is_lent = false;
  };

  explicit Mailbox(Options options)
      : options_(std::move(options)),
        awaited_(options_.awaited == nullptr ? own_awaited_ : *options_.awaited) {}
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // Announces that this worker takes part in a step: the caller will open or close it, in any order
  // with later steps. Drops messages held for lower steps that were not expected.
  // FAILED_PRECONDITION unless the number is above those of all steps expected before.
  absl::Status ExpectStep(int64_t step);

  // Begins a step in which members[r] is the identity of the worker that serves rank r. Expects the
  // step first if the caller did not: FAILED_PRECONDITION as of ExpectStep, and for a step already
  // open. UNAVAILABLE names the first member that is gone; the step stays unopened.
  absl::Status OpenStep(int64_t step, std::vector<std::string> members);

  // Ends a step and drops its remaining messages. No effect on a step that is neither expected nor
  // open.
  void CloseStep(int64_t step);

  // Fails every receive of the step, now and later, with `error`, to which each receive adds what
  // it waited for. The first failure of a step stays. A step not yet open fails when opened.
  void Abort(int64_t step, absl::Status error);

  // Returns the failure of a step, also of one not yet open. OK if the step did not fail or is
  // closed.
  absl::Status FailureOf(int64_t step) const;

  // Records that the worker is gone: fails every step that it is a member of with UNAVAILABLE, and
  // drops its messages for steps not yet open. `reason` completes "rank 3 (worker-3) is gone:
  // <reason>".
  void FailWorker(const std::string& worker, std::string_view reason);

  // Records that the worker is back. Failed steps stay failed.
  void RestoreWorker(const std::string& worker);

  // Declares the signature of this worker, which serves `rank`, for an op of an open step. If a
  // peer has declared another one, or does so later, the step fails with FAILED_PRECONDITION
  // (COLLECTIVE_MISMATCH). FAILED_PRECONDITION if the step is not open. INVALID_ARGUMENT for an op
  // already begun. Otherwise the step's failure.
  absl::Status Begin(int64_t step, int64_t op, DeviceId rank, std::string signature);

  // Takes in a piece from a worker. On an error the mailbox keeps nothing, and the caller must not
  // trust the stream any further. INVALID_ARGUMENT: the piece is empty, out of order, out of its
  // message's bounds, or from a worker that is no member of the step. RESOURCE_EXHAUSTED, with have
  // and need: over a limit.
  absl::Status Deliver(const std::string& worker, const Tag& tag, Piece piece);

  // Link::Receive from the worker that serves rank `peer` of the tag's step. FAILED_PRECONDITION if
  // the step is not open, INVALID_ARGUMENT if it has no such rank.
  absl::StatusOr<OwnedBytes> Receive(DeviceId peer, const Tag& tag, int64_t message_bytes,
                                     absl::Time deadline);

  // Like Receive, without waiting: nullopt if no piece has come.
  absl::StatusOr<std::optional<OwnedBytes>> TryReceive(DeviceId peer, const Tag& tag,
                                                       int64_t message_bytes);

  // A message that a receiver waits for from a worker.
  struct Wait {
    Tag tag;
    int64_t left_bytes = 0;  // bytes of the message still to come
  };
  std::vector<Wait> WaitsFor(const std::string& worker) const;

  // Returns whether a receiver of any mailbox with this shared count waits for a piece.
  bool awaited() const { return awaited_.load(std::memory_order_acquire) > 0; }

  // Bytes held for receivers.
  int64_t held_bytes() const;

  // For callers that poll other sources as well, without a lock. `changes` counts arrivals that a
  // receiver could be waiting for, and failed steps. `held_pieces` counts the pieces held. A
  // receiver that looked at the same `changes`, with `held_pieces` 0, need not look again.
  uint32_t changes() const { return changes_.load(std::memory_order_acquire); }
  int64_t held_pieces() const { return held_pieces_.load(std::memory_order_acquire); }

  // Calls `sleep`, which waits as a futex of this process on the word that changes() reads. A
  // change of the word wakes it, and so does WakeSleepers.
  void Sleep(absl::FunctionRef<void(const std::atomic<uint32_t>& changes)> sleep);
  void WakeSleepers() { Changed(); }

 private:
  struct Held {
    OwnedBytes content;
    bool is_lent = false;
  };
  struct Message {
    std::deque<Held> pieces;    // arrived, not yet taken
    int64_t message_bytes = 0;  // 0 until the first piece states it
    int64_t arrived_bytes = 0;
    int64_t taken_bytes = 0;
    absl::CondVar changed;
    bool awaited = false;  // a receiver waits, and there is no piece

    // The receiver took the whole message: no further piece may come.
    bool is_over() const { return message_bytes > 0 && taken_bytes == message_bytes; }
  };
  using MessageKey = std::pair<std::string, Tag>;  // worker, tag
  // Signatures of one op: this worker's once it began the op, and those of workers that began it
  // earlier.
  using EarlySignatures = std::vector<std::pair<std::string, std::string>>;  // worker, signature
  struct Signatures {
    DeviceId rank = 0;
    std::string own;
    EarlySignatures early;
  };
  struct Step {
    bool expected = false;
    bool open = false;
    std::vector<std::string> members;
    absl::Status failure;
    // Addresses are stable: a receiver waits on a message's condition variable.
    absl::node_hash_map<MessageKey, Message> messages;
    std::map<int64_t, Signatures> signatures;  // by op
    int64_t early_signatures = 0;              // of all ops
  };
  using Steps = std::map<int64_t, Step>;

  static int64_t ChargeOf(const Held& piece);
  static int64_t ChargeOf(const std::string& early_signature);
  // Takes the signatures that came before the op was begun here; they no longer count as held
  // memory.
  EarlySignatures TakeEarly(Step& step, Signatures& signatures)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the open step in which a message from a rank is to be received; Receive's errors
  // otherwise.
  absl::StatusOr<Step*> FindToReceive(DeviceId peer, const Tag& tag)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the message's first piece, which must be there. Sets `is_credited` if the sender is to
  // get credit for it.
  absl::StatusOr<OwnedBytes> TakeFirst(DeviceId peer, const std::string& worker, const Tag& tag,
                                       Message& message, int64_t message_bytes, bool* is_credited)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns null for a closed step.
  Step* FindOrHold(int64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns OK if the worker's signature of the op is this worker's.
  static absl::Status CompareSignatures(const Step& step, int64_t step_number, int64_t op,
                                        const Signatures& signatures, const std::string& worker,
                                        std::string_view theirs);
  // Sets the failure if there is none, wakes the receivers and moves the held messages to
  // `dropped`.
  void Fail(Step& step, absl::Status failure, std::vector<OwnedBytes>& dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drop(const std::string& worker, Message& message, std::vector<OwnedBytes>& dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropAll(Step& step, std::vector<OwnedBytes>& dropped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Expect(int64_t step, std::vector<OwnedBytes>& dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Counts a waiting receiver for the lifetime of this object.
  struct Waiting {
    std::string worker;
    Wait wait;
  };
  std::list<Waiting>::iterator BeginWait(const std::string& worker, const Tag& tag,
                                         int64_t left_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return waiting_.insert(waiting_.end(), {worker, {tag, left_bytes}});
  }

  const Options options_;
  std::atomic<int64_t> own_awaited_ = 0;
  std::atomic<int64_t>& awaited_;  // messages that receivers wait for; changed with the mutex held
  // Counts a change, and wakes the threads that sleep until one.
  void Changed();

  std::atomic<uint32_t> changes_ = 0;
  std::atomic<int> sleepers_ = 0;
  std::atomic<int64_t> held_pieces_ = 0;

  mutable absl::Mutex mutex_;
  Steps steps_ ABSL_GUARDED_BY(mutex_);  // open, and expected or to come with messages held
  // No step below this number is expected any more.
  int64_t last_expected_ ABSL_GUARDED_BY(mutex_) = -1;
  int64_t held_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::list<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);  // one for each waiting receiver
  // By worker: bytes held, early signatures included, with an overhead for each; and the reason why
  // a worker is gone.
  absl::flat_hash_map<std::string, int64_t> charged_bytes_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::string> gone_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_MAILBOX_H_
