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
// Peers are workers, named by identity. A step records which worker serves which rank. The caller
// expects steps in the order of their numbers (ExpectStep). Steps may overlap, and the caller opens
// and closes them in any order:
//
// clang-format off
//   to come --ExpectStep--> expected --OpenStep--> open --CloseStep--> closed
//     \--a higher step is expected--> closed          \--Abort, FailWorker--> failed
//   failed --CloseStep--> closed
// clang-format on
//
// The mailbox keeps messages of a step that is to come, expected or open. It drops messages of a
// failed or closed step. The mailbox limits the bytes that it holds and refuses messages of a peer
// that exceeds a limit. Credit tells peers how much they may send. One mutex guards all state; no
// callback runs under this mutex.
//
// Thread-safe. Call CloseStep only when no receive of that step is in progress.
class Mailbox {
 public:
  struct Options {
    // The maximum number of bytes of one message that the mailbox holds, apart from lent pieces
    // (Piece::is_lent). The credit with which a sender begins each message has the same size.
    int64_t tag_limit_bytes = int64_t{4} << 20;
    // The maximum number of bytes held from one worker, with an overhead for each piece. Guards
    // against a peer that ignores its credit. The limit is well above the credit of a stream, so a
    // peer that keeps to its credit never reaches it.
    int64_t worker_limit_bytes = int64_t{1} << 30;
    // Called when a receiver has taken `size_bytes` of a message: the worker may now send as many
    // more bytes under this tag. Not called once the whole message has arrived, nor for a lent
    // piece. Runs on the receiver's thread.
    std::function<void(const std::string& worker, const Tag& tag, int64_t size_bytes)> credit;
    // If set: called when a receiver begins to wait. It may deliver messages until `is_done`
    // returns true. If it has no message to deliver, it returns soon. Runs on the receiver's
    // thread.
    std::function<void(absl::FunctionRef<bool()> is_done)> poll = nullptr;
    // If set: the number of streams whose senders have no credit left; the counter outlives the
    // mailbox. While this number is above 0, a receiver that begins to wait calls `starved`,
    // without a lock. `left_bytes` is the number of bytes of the message still to come. The
    // callback may have to ask the sender for these bytes, because a sender without credit may not
    // send them.
    const std::atomic<int64_t>* exhausted = nullptr;
    std::function<void(const std::string& worker, const Tag& tag, int64_t left_bytes)> starved =
        nullptr;
    // If set: the mailbox adds the number of messages that its receivers wait for to this counter.
    // Several mailboxes may share the counter, which outlives them.
    std::atomic<int64_t>* awaited = nullptr;
  };

  // A part of a message, the argument of Deliver.
  struct Piece {
    int64_t offset_bytes = 0;   // where the piece begins in the message
    int64_t message_bytes = 0;  // length of the whole message
    OwnedBytes content;         // not empty
    // The sender's signature of the tag's op. Set only in the first piece that the sender sends to
    // each peer in an op.
    std::string signature = {};
    // If true, the content lies in the sender's memory. Such content takes no memory of this worker
    // and no credit.
    bool is_lent = false;
  };

  explicit Mailbox(Options options)
      : options_(std::move(options)),
        awaited_(options_.awaited == nullptr ? own_awaited_ : *options_.awaited) {}
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // Announces that this worker takes part in a step. The caller must open or close this step later;
  // it may do so before or after it opens steps with higher numbers. Drops the messages held for
  // lower steps that were not expected. FAILED_PRECONDITION unless the number is above those of all
  // steps expected before.
  absl::Status ExpectStep(int64_t step);

  // Begins a step in which members[r] is the identity of the worker that serves rank r. Calls
  // ExpectStep if the step is not expected yet. FAILED_PRECONDITION if the step is open already, or
  // if ExpectStep returns it. UNAVAILABLE if a member is lost: the message names the first lost
  // member, and the step stays unopened.
  absl::Status OpenStep(int64_t step, std::vector<std::string> members);

  // Ends a step and drops its remaining messages. No effect on a step that is neither expected nor
  // open.
  void CloseStep(int64_t step);

  // Fails every receive of the step, now and later, with `error`. The text of each receive's error
  // also describes the awaited message. A step that has failed keeps its first failure. If the step
  // is not open yet, its receives fail once it is open.
  void Abort(int64_t step, absl::Status error);

  // Returns the failure of a step, whether or not the step is open. OK if the step did not fail or
  // is closed.
  absl::Status FailureOf(int64_t step) const;

  // Records that the worker is lost. Every step in which the worker is a member fails with
  // UNAVAILABLE. Drops the worker's messages for steps that are not open yet. `reason` completes
  // "rank 3 (worker-3) is gone: <reason>".
  void FailWorker(const std::string& worker, std::string_view reason);

  // Records that the worker is connected again. Steps that have failed stay failed.
  void RestoreWorker(const std::string& worker);

  // Declares this worker's signature of an op in an open step, in which this worker serves `rank`.
  // If a peer declares a different signature, before or after this call, the step fails with
  // FAILED_PRECONDITION (COLLECTIVE_MISMATCH).
  //
  // FAILED_PRECONDITION if the step is not open. If the step has failed, returns its failure.
  // INVALID_ARGUMENT if the op has begun already.
  absl::Status Begin(int64_t step, int64_t op, DeviceId rank, std::string signature);

  // Delivers a piece from a worker. Drops the piece and returns OK if the worker is lost, or if the
  // step has failed or is closed. After an error the mailbox keeps nothing of the piece, and the
  // caller must end the worker's stream.
  //
  // INVALID_ARGUMENT: the piece is empty, out of order, out of its message's bounds, or from a
  // worker that is no member of the step. INVALID_ARGUMENT also if an earlier piece stated another
  // length of the message, or if the step already holds too many signatures of ops that this worker
  // has not begun. RESOURCE_EXHAUSTED: the piece exceeds a limit; the error states the bytes held
  // and allowed.
  absl::Status Deliver(const std::string& worker, const Tag& tag, Piece piece);

  // Implements Link::Receive: receives from the worker that serves rank `peer` in the tag's step.
  // In addition, FAILED_PRECONDITION if the step is not open, and INVALID_ARGUMENT if the step's
  // mesh has no such rank.
  absl::StatusOr<OwnedBytes> Receive(DeviceId peer, const Tag& tag, int64_t message_bytes,
                                     absl::Time deadline);

  // Like Receive, but does not wait: returns nullopt if no piece has arrived.
  absl::StatusOr<std::optional<OwnedBytes>> TryReceive(DeviceId peer, const Tag& tag,
                                                       int64_t message_bytes);

  // A message that a receiver waits for. WaitsFor returns those that come from `worker`.
  struct Wait {
    Tag tag;
    int64_t left_bytes = 0;  // bytes of the message still to come
  };
  std::vector<Wait> WaitsFor(const std::string& worker) const;

  // Returns whether a receiver waits for a piece, in this mailbox or in one that shares
  // Options::awaited.
  bool awaited() const { return awaited_.load(std::memory_order_acquire) > 0; }

  // Returns the bytes of all pieces that are held for receivers.
  int64_t held_bytes() const;

  // For receivers that poll other sources as well; both functions take no lock. changes() counts
  // failed steps, and arrivals that a receiver could be waiting for. held_pieces() counts the
  // pieces held. A receiver need not check the mailbox again if changes() is the same as at its
  // last check and held_pieces() is 0.
  uint32_t changes() const { return changes_.load(std::memory_order_acquire); }
  int64_t held_pieces() const { return held_pieces_.load(std::memory_order_acquire); }

  // Calls `sleep` with the counter that changes() reads. `sleep` waits until this counter changes,
  // as on a process-private futex. WakeSleepers changes the counter.
  void Sleep(absl::FunctionRef<void(const std::atomic<uint32_t>& changes)> sleep);
  void WakeSleepers() { Changed(); }

 private:
  struct Held {
    OwnedBytes content;
    bool is_lent = false;
  };
  struct Message {
    std::deque<Held> pieces;    // arrived, but not taken by a receiver yet
    int64_t message_bytes = 0;  // 0 until the first piece, which states the length, has arrived
    int64_t arrived_bytes = 0;
    int64_t taken_bytes = 0;
    absl::CondVar changed;
    bool awaited = false;  // a receiver waits for the next piece

    // Returns whether the receiver has taken the whole message. If so, no further piece may come.
    bool is_over() const { return message_bytes > 0 && taken_bytes == message_bytes; }
  };
  using MessageKey = std::pair<std::string, Tag>;  // worker, tag
  // The signatures of one op. `own` is this worker's, set once this worker has begun the op.
  // `early` has those that peers sent before this worker began the op.
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
    // A node map keeps the addresses of messages stable, because a receiver waits on a message's
    // condition variable.
    absl::node_hash_map<MessageKey, Message> messages;
    std::map<int64_t, Signatures> signatures;  // by op
    int64_t early_signatures = 0;              // number of early signatures of all ops
  };
  using Steps = std::map<int64_t, Step>;

  static int64_t ChargeOf(const Held& piece);
  static int64_t ChargeOf(const std::string& early_signature);
  // Removes and returns the signatures that peers sent before this worker began the op. They no
  // longer count in the limits on held memory.
  EarlySignatures TakeEarly(Step& step, Signatures& signatures)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the open step in which a thread wants to receive a message from rank `peer`. Errors are
  // those of Receive.
  absl::StatusOr<Step*> FindToReceive(DeviceId peer, const Tag& tag)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the message's first piece; requires that there is one. Sets `is_credited` to whether the
  // sender should get credit for the piece. DATA_LOSS if the message does not have `message_bytes`
  // bytes.
  absl::StatusOr<OwnedBytes> TakeFirst(DeviceId peer, const std::string& worker, const Tag& tag,
                                       Message& message, int64_t message_bytes, bool* is_credited)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the step in which to hold a message. Creates the step if its number is above those of
  // all expected steps. Returns null for a closed step.
  Step* FindOrHold(int64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns OK if `theirs`, the signature of an op from `worker`, equals this worker's signature.
  // FAILED_PRECONDITION (COLLECTIVE_MISMATCH) otherwise.
  static absl::Status CompareSignatures(const Step& step, int64_t step_number, int64_t op,
                                        const Signatures& signatures, const std::string& worker,
                                        std::string_view theirs);
  // If the step has not failed before: sets its failure, wakes its receivers and moves its held
  // messages to `dropped`.
  void Fail(Step& step, absl::Status failure, std::vector<OwnedBytes>& dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drop(const std::string& worker, Message& message, std::vector<OwnedBytes>& dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropAll(Step& step, std::vector<OwnedBytes>& dropped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Expect(int64_t step, std::vector<OwnedBytes>& dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // A receiver that waits for a message from `worker`: an entry of `waiting_`.
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
  // Number of messages that receivers wait for. Changed only with mutex_ held.
  std::atomic<int64_t>& awaited_;
  // Increments changes_ and wakes the threads in Sleep.
  void Changed();

  std::atomic<uint32_t> changes_ = 0;
  std::atomic<int> sleepers_ = 0;
  std::atomic<int64_t> held_pieces_ = 0;

  mutable absl::Mutex mutex_;
  // Steps that are expected, open or failed, and steps to come for which messages are held.
  Steps steps_ ABSL_GUARDED_BY(mutex_);
  // The highest number of a step that was expected. From now on, only steps with higher numbers may
  // be expected.
  int64_t last_expected_ ABSL_GUARDED_BY(mutex_) = -1;
  int64_t held_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::list<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);  // one entry for each waiting receiver
  // By worker. `charged_bytes_` has the bytes held from the worker, including early signatures and
  // an overhead for each piece. `gone_` has the reason why the worker is lost.
  absl::flat_hash_map<std::string, int64_t> charged_bytes_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::string> gone_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_MAILBOX_H_
