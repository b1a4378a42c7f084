// Where messages from peers wait for those who receive them.
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

// The messages that one worker has got from its peers, over all meshes and steps.
//
// Peers are workers here, named by identity; a step says which worker serves which rank. Steps are
// expected in the order of their numbers, may overlap, and are opened and closed in any order:
//
//   to come --ExpectStep--> expected --OpenStep--> open --CloseStep--> closed
//      \--a higher step is expected--> closed         \--Abort, FailWorker--> failed --CloseStep-->
//      closed
//
// Messages of a step that is to come, or expected, are kept for it, those of a failed or closed one
// dropped.
// What is held is bounded: a peer that goes past the bounds, which credit makes known to it, is
// refused. One mutex guards all; no callback runs under it.
//
// Thread-safe. Call CloseStep only when no receive of that step is under way.
class Mailbox {
 public:
  struct Options {
    // Most bytes held under one tag from one worker: the credit that a tag starts with.
    int64_t tag_limit_bytes = int64_t{4} << 20;
    // Most bytes held from one worker, with an overhead for each piece: a guard against a peer that
    // does not keep to its credit, well above what the stream's credit allows.
    int64_t worker_limit_bytes = int64_t{1} << 30;
    // Called when a receiver has taken `size_bytes`, which the worker may now send anew under that
    // tag; not called for the last piece of a message. Runs on the receiver's thread.
    std::function<void(const std::string& worker, const Tag& tag, int64_t size_bytes)> credit;
    // If set: called when a receiver begins to wait. May bring in messages for as long as `is_done`
    // does not hold; returns soon if it cannot. Runs on the receiver's thread.
    std::function<void(absl::FunctionRef<bool()> is_done)> poll = nullptr;
    // If set: how many streams have no credit left for their senders; outlives the mailbox. While
    // it is above 0, `starved` is called when a receiver begins to wait, without a lock, with the
    // bytes of the message that have not come: the sender may need to be asked for them.
    const std::atomic<int64_t>* exhausted = nullptr;
    std::function<void(const std::string& worker, const Tag& tag, int64_t left_bytes)> starved =
        nullptr;
    // If set: where messages that receivers wait for are counted, together with those of other
    // mailboxes. Outlives them all.
    std::atomic<int64_t>* awaited = nullptr;
  };

  // A part of a message as it came in.
  struct Piece {
    int64_t offset_bytes = 0;    // of the piece in the message
    int64_t message_bytes = 0;   // of the whole message
    OwnedBytes content;          // not empty
    std::string signature = {};  // what the sender does as the tag's op, if it came along
    // The content lies in the sender's memory: it takes none here, and there is no credit for it.
    bool is_lent = false;
  };

  explicit Mailbox(Options options)
      : options_(std::move(options)),
        awaited_(options_.awaited == nullptr ? own_awaited_ : *options_.awaited) {}
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // This worker is to take part in a step: it will be opened or closed, whatever is expected since.
  // FAILED_PRECONDITION unless its number is above those of all steps expected before. Drops what
  // is held for steps of lower numbers that were not expected.
  absl::Status ExpectStep(int64_t step);

  // Begins a step in which members[r] is the identity of the worker that serves rank r. One that is
  // not expected is so from then on: FAILED_PRECONDITION as of ExpectStep, and for one that is
  // open. UNAVAILABLE names the first member that is gone, and the step is not opened.
  absl::Status OpenStep(int64_t step, std::vector<std::string> members);

  // Ends a step and drops what is left of it. No effect on a step that is neither expected nor
  // open.
  void CloseStep(int64_t step);

  // Fails every receive of the step, now and later, with this error, to which is added what was
  // waited for. The first failure of a step stays. A step not yet open fails when opened.
  void Abort(int64_t step, absl::Status error);

  // What a step failed with, also one that is not yet open; OK if it did not fail, or is closed.
  absl::Status FailureOf(int64_t step) const;

  // The worker is gone: fails every step that it is a member of with UNAVAILABLE, and drops what is
  // held from it for steps not yet open. `reason` completes "rank 3 (worker-3) is gone: <reason>".
  void FailWorker(const std::string& worker, std::string_view reason);

  // The worker is there again. Steps that failed stay failed.
  void RestoreWorker(const std::string& worker);

  // Says what this worker, which serves `rank`, does as an op of an open step. If a peer has said
  // something else, or does so later, the step fails with FAILED_PRECONDITION
  // (COLLECTIVE_MISMATCH). FAILED_PRECONDITION if the step is not open; INVALID_ARGUMENT for an op
  // that was begun; the step's failure.
  absl::Status Begin(int64_t step, int64_t op, DeviceId rank, std::string signature);

  // Takes in a piece from a worker. On an error nothing is kept, and the stream that it came from
  // is not to be trusted further: INVALID_ARGUMENT for a piece that is empty, out of order, out of
  // its message's bounds, or from a worker that is no member of the step; RESOURCE_EXHAUSTED, with
  // have and need, over a limit.
  absl::Status Deliver(const std::string& worker, const Tag& tag, Piece piece);

  // Link::Receive on the worker that serves rank `peer` of the tag's step. FAILED_PRECONDITION if
  // the step is not open, INVALID_ARGUMENT if it has no such rank.
  absl::StatusOr<OwnedBytes> Receive(DeviceId peer, const Tag& tag, int64_t message_bytes,
                                     absl::Time deadline);

  // The same, without waiting: nullopt if no piece has come.
  absl::StatusOr<std::optional<OwnedBytes>> TryReceive(DeviceId peer, const Tag& tag,
                                                       int64_t message_bytes);

  // What receivers wait for from a worker.
  struct Wait {
    Tag tag;
    int64_t left_bytes = 0;  // of the message, that have not come
  };
  std::vector<Wait> WaitsFor(const std::string& worker) const;

  // Whether a receiver waits for what has not come, here or where the same count is kept.
  bool awaited() const { return awaited_.load(std::memory_order_acquire) > 0; }

  // Bytes that wait for receivers.
  int64_t held_bytes() const;

  // For those who wait for something else as well, without a lock: how often something came that a
  // receiver could be waiting for, or a step failed; and how many pieces wait. A receiver that has
  // looked while the first was the same, and the second 0, need not look again.
  uint32_t changes() const { return changes_.load(std::memory_order_acquire); }
  int64_t held_pieces() const { return held_pieces_.load(std::memory_order_acquire); }

  // Calls `sleep`, which waits on the word that changes() reads, as a futex of this process: it is
  // woken when that changes, or by WakeSleepers.
  void Sleep(absl::FunctionRef<void(const std::atomic<uint32_t>& changes)> sleep);
  void WakeSleepers() { Changed(); }

 private:
  struct Held {
    OwnedBytes content;
    bool is_lent = false;
  };
  struct Message {
    std::deque<Held> pieces;    // arrived, not yet taken
    int64_t message_bytes = 0;  // 0 until the first piece says
    int64_t arrived_bytes = 0;
    int64_t taken_bytes = 0;
    absl::CondVar changed;
    bool awaited = false;  // by a receiver, while there is no piece

    // All of it was taken: nothing comes for it any more.
    bool is_over() const { return message_bytes > 0 && taken_bytes == message_bytes; }
  };
  using MessageKey = std::pair<std::string, Tag>;  // worker, tag
  // What is done as one op: here, once it was begun, and by workers that came to it before.
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
    // Stable addresses: a receiver waits on a message's condition variable.
    absl::node_hash_map<MessageKey, Message> messages;
    std::map<int64_t, Signatures> signatures;  // by op
    int64_t early_signatures = 0;              // of all ops
  };
  using Steps = std::map<int64_t, Step>;

  static int64_t ChargeOf(const Held& piece);
  static int64_t ChargeOf(const std::string& early_signature);
  // What came of an op before it was begun here; it takes no memory any more.
  EarlySignatures TakeEarly(Step& step, Signatures& signatures)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The open step in which something is to be received from a rank; Receive's errors otherwise.
  absl::StatusOr<Step*> FindToReceive(DeviceId peer, const Tag& tag)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the message's first piece, which must be there; `is_credited` if the sender is to get
  // credit for it.
  absl::StatusOr<OwnedBytes> TakeFirst(DeviceId peer, const std::string& worker, const Tag& tag,
                                       Message& message, int64_t message_bytes, bool* is_credited)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null for a step that is closed.
  Step* FindOrHold(int64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // OK if the worker does the same as this one.
  static absl::Status CompareSignatures(const Step& step, int64_t step_number, int64_t op,
                                        const Signatures& signatures, const std::string& worker,
                                        std::string_view theirs);
  // Sets the failure if there is none, wakes the receivers and moves what is held to `dropped`.
  void Fail(Step& step, absl::Status failure, std::vector<OwnedBytes>& dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drop(const std::string& worker, Message& message, std::vector<OwnedBytes>& dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropAll(Step& step, std::vector<OwnedBytes>& dropped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Expect(int64_t step, std::vector<OwnedBytes>& dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Tells that a receiver waits, and no longer does.
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
  std::atomic<int64_t>& awaited_;  // messages that are; changed with the mutex held
  // Counts a change, and wakes who sleeps for one.
  void Changed();

  std::atomic<uint32_t> changes_ = 0;
  std::atomic<int> sleepers_ = 0;
  std::atomic<int64_t> held_pieces_ = 0;

  mutable absl::Mutex mutex_;
  Steps steps_ ABSL_GUARDED_BY(mutex_);  // open, and held for later
  // No lower step is expected any more.
  int64_t last_expected_ ABSL_GUARDED_BY(mutex_) = -1;
  int64_t held_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::list<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);  // one for each receiver that does
  // By worker: bytes held, early signatures too, with an overhead for each; why it is gone.
  absl::flat_hash_map<std::string, int64_t> charged_bytes_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::string> gone_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_MAILBOX_H_
