// The protocol of two workers over one Exchange stream: hellos, data within its credit, aborts,
// pings.
#ifndef SHARDMESH_WORKER_EXCHANGE_PEER_LINK_H_
#define SHARDMESH_WORKER_EXCHANGE_PEER_LINK_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "rpc/stream/frame.h"
#include "tensor/buffer.h"
#include "worker/collective/link.h"
#include "worker/exchange/exchange_stream.h"

namespace shardmesh::worker {

// One end of one stream, for as long as the stream lives.
//
// States: greeting (until the peer's hello) -> up -> closed. Send order: control frames first, then
// messages of at most kShortMessageBytes, then longer ones, a frame of each in turn. Memory is
// bounded: messages are sent in place, and waiting control frames are limited.
//
// Back-pressure. Each tag has credit for its message, so a receiver that is slow on one tag does
// not hold up another. The stream has credit for all messages together. A receiver that is late for
// a step, whose sender may use any number of tags, therefore holds at most that credit and one
// frame, which may be sent while any credit is left. The receiver's hello gives the stream's first
// credit. A frame's credit returns when the last of its bytes is freed, in lots of a quarter.
//
// A stream without credit does not deadlock. Messages that no thread reads yet may hold all its
// credit: those of a step that waits for another, or of a later round. A receiver that waits for a
// message while the stream has no credit therefore asks for it (Demand). The tag may then send
// kUrgentBytes in urgent frames, which cost no credit of the stream. Every awaited message is thus
// sent as soon as its sender has it, and messages in transit cannot block one another.
//
// A receiving thread waits for one message at a time, and asks again when half has come. Urgent
// frames therefore take at most kUrgentBytes of memory for each such thread. The urgent frames of a
// message may bring only bytes that were demanded for it and did not come.
//
// Thread-safe.
class PeerLink final : public ExchangeStream::Handler,
                       public std::enable_shared_from_this<PeerLink> {
 public:
  static constexpr int64_t kShortMessageBytes = int64_t{16} << 10;
  // Most payload of a data frame: a control frame waits at most for this much.
  static constexpr int64_t kDataFrameBytes = int64_t{512} << 10;
  // Most waiting control frames: the link to a peer that causes more and does not read is closed.
  static constexpr size_t kMaxControlFrames = 4096;
  // Cost of a data frame in the stream's credit, in addition to its payload and its signature;
  // bounds many short messages too.
  static constexpr int64_t kFrameOverheadBytes = 256;
  // Bytes that a demand allows beyond the stream's credit.
  static constexpr int64_t kUrgentBytes = kDataFrameBytes;
  // Most demands kept for messages that this end has not sent yet: far more than a peer has
  // receiving threads.
  static constexpr size_t kMaxEarlyDemands = 1024;
  // Most demands remembered for ended steps: far more than can be in transit at once.
  static constexpr size_t kMaxEndedDemands = 4096;

  // Shared by the links of one owner.
  struct CreditState {
    // Number of streams whose peers have no credit left. A receiver that finds 0 here after it
    // registered its wait need not call Demand.
    std::atomic<int64_t> exhausted_links = 0;
    // How often this worker had data to send and no credit of the stream.
    std::atomic<int64_t> waits = 0;
  };

  // Decides about incoming frames and takes their data. Called on the stream's thread, with no lock
  // held; must not block.
  class Owner {
   public:
    virtual ~Owner() = default;
    // Checks the peer's hello; returns the answer. An error closes the stream with that error.
    virtual absl::StatusOr<rpc::FrameHello> CheckHello(PeerLink& link,
                                                       const rpc::FrameHello& hello) = 0;
    // The peer is greeted: messages may be sent.
    virtual void OnUp(const std::shared_ptr<PeerLink>& link) = 0;
    // Takes a data frame. An error closes the stream with that error. Each piece of the payload
    // must keep `charge`; the frame's credit returns when its last copy is released.
    virtual absl::Status OnData(PeerLink& link, const rpc::Frame& frame,
                                const std::shared_ptr<const void>& charge) = 0;
    // The stream has no credit left: Demand the awaited messages.
    virtual void OnExhausted(PeerLink& link) = 0;
    virtual CreditState& credit_state() = 0;
    virtual void OnAbort(PeerLink& link, int64_t sequence, const rpc::FrameAbort& abort) = 0;
    // A frame was refused: the stream is about to be closed with the error.
    virtual void OnRefused(const absl::Status& why) = 0;
    // The stream is over; last call. `was_up`: OnUp was called.
    virtual void OnDown(const std::shared_ptr<PeerLink>& link, bool was_up,
                        const absl::Status& status) = 0;
  };

  // `greeting`: the first hello, for the end that dials; the other end answers the hello that it
  // gets. `now` starts the limit on silence. The owner outlives the link.
  PeerLink(Owner* owner, const rpc::Clock* clock, std::optional<rpc::FrameHello> greeting);

  // Call it before the stream's first event.
  void Attach(std::shared_ptr<ExchangeStream> stream);

  // Keeps the reserved memory for the credit that this end's hello gives the peer.
  void KeepReservation(MemoryBudget::Reservation reservation);

  bool dialled() const { return greeting_.has_value(); }
  // Returns the peer's identity: the dialled one, or else that of its hello (empty before).
  std::string peer() const;
  bool is_up() const;
  // Like ExchangeStream::CheckPeer; valid while the stream is open.
  absl::Status CheckPeer(const rpc::Credentials& own, const std::string& identity) const;

  // Queues a message of at least one byte for the peer. `signature`, if not empty, goes with it.
  // UNAVAILABLE if the link is not up; INVALID_ARGUMENT if a message of this tag is being sent.
  absl::Status Send(const rpc::FrameTag& tag, int64_t epoch, OwnedBytes message,
                    std::string signature = {});
  // Returns whether a frame waits for the one before it to be written.
  bool is_behind() const;
  // Records that data of a step was sent to the peer by another transport: see recent_steps.
  void RememberStep(int64_t sequence);
  // Tells the peer that a step is over, and drops the step's unsent messages.
  void SendAbort(int64_t sequence, const rpc::FrameAbort& abort);
  // Gives the peer `size_bytes` more credit under a tag. The peer gets it in lots of `lot_bytes`.
  void Grant(const rpc::FrameTag& tag, int64_t size_bytes, int64_t lot_bytes);
  // A receiver waits for a message that still lacks `left_bytes`. If the stream has no credit left,
  // and no earlier demand is outstanding, the peer may send it in urgent frames.
  void Demand(const rpc::FrameTag& tag, int64_t left_bytes);
  void DropStep(int64_t sequence);
  // Forgets the notes about a step's messages: no thread receives them any more. Unsent messages of
  // the step are still sent.
  void EndStep(int64_t sequence);
  // Returns the number of notes about messages that exist only while the message does: owed credit,
  // demanded bytes, places in the queue of urgent messages.
  size_t notes() const;
  // Returns the number of remembered demands of ended steps, whose urgent frames may be in transit:
  // at most kMaxEndedDemands.
  size_t ended_notes() const;

  // Call it regularly: pings a peer that was silent for `ping_interval`, and closes the stream
  // after `silence_limit`.
  void Tick(absl::Duration ping_interval, absl::Duration silence_limit);

  // Ends the stream; OnDown follows. See ExchangeStream::Close for the status that the peer gets.
  void Close(const absl::Status& status);

  // The last kRememberedSteps steps with sent data: if the stream breaks, the peer may miss some of
  // this data.
  static constexpr size_t kRememberedSteps = 64;
  std::vector<int64_t> recent_steps() const;

  // Handler of the stream.
  void OnOpen() override;
  void OnFrame(const grpc::ByteBuffer& bytes) override;
  void OnWritten() override;
  void OnClosed(const absl::Status& status) override;

 private:
  enum class State { kGreeting, kUp, kClosed };
  using TagKey = std::tuple<int64_t, uint32_t, uint32_t>;
  static TagKey KeyOf(const rpc::FrameTag& tag) { return {tag.sequence, tag.op, tag.round}; }

  // An outgoing message.
  struct Outgoing {
    rpc::FrameTag tag;
    int64_t epoch = 0;
    OwnedBytes message;
    std::string signature;  // empty once sent
    int64_t sent_bytes = 0;
    int64_t credit_bytes = 0;  // bytes that may be sent now
    int64_t urgent_bytes = 0;  // the part of them that costs the stream no credit
  };
  // Holds a frame's cost in the stream's credit; the destructor returns it.
  struct Charge;
  // A frame to be written; its payload is empty for control frames.
  struct NextFrame {
    rpc::FrameHeader header;
    OwnedBytes payload = {};
  };

  absl::Status Take(const rpc::Frame& frame);
  absl::Status TakeHello(const rpc::FrameHeader& header);
  absl::Status TakeControl(const rpc::FrameHeader& header);
  absl::Status TakeData(const rpc::Frame& frame);
  absl::Status TakeCreditLocked(const rpc::FrameHeader& header)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static int64_t CostOf(int64_t payload_bytes, const std::string& signature) {
    return payload_bytes + static_cast<int64_t>(signature.size()) + kFrameOverheadBytes;
  }
  // Returns credit of the stream to the peer. Any thread, also with locks of the owner held.
  void Return(int64_t cost_bytes);
  void SetAllowedLocked(int64_t allowed_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void RememberStepLocked(int64_t sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Queue(rpc::FrameHeader header) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropStepLocked(int64_t sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes the step's notes, because no thread waits for its messages.
  void EndNotesLocked(int64_t sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the bytes that the peer may still send of a message in urgent frames; null: none.
  int64_t* UrgentBytesLocked(const TagKey& key, int64_t payload_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::deque<TagKey>& QueueOf(const Outgoing& outgoing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the next frame to write; nullopt if a frame is being written or nothing waits.
  std::optional<NextFrame> Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Cuts a frame from the message. Requires that some of it may be sent.
  NextFrame Cut(Outgoing& outgoing, int64_t size_bytes, bool is_urgent)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteNext() ABSL_LOCKS_EXCLUDED(mutex_);

  Owner* const owner_;
  const rpc::Clock* const clock_;
  const std::optional<rpc::FrameHello> greeting_;

  mutable absl::Mutex mutex_;
  std::shared_ptr<ExchangeStream> stream_ ABSL_GUARDED_BY(mutex_);  // null once closed
  State state_ ABSL_GUARDED_BY(mutex_) = State::kGreeting;
  std::string peer_ ABSL_GUARDED_BY(mutex_);
  int64_t initial_credit_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // as the peer's hello says
  absl::Time heard_ ABSL_GUARDED_BY(mutex_);                  // when a frame last came
  absl::Time pinged_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  int64_t pings_ ABSL_GUARDED_BY(mutex_) = 0;

  bool can_write_ ABSL_GUARDED_BY(mutex_) = false;  // the stream is open, and no frame is being
                                                    // written
  std::deque<rpc::FrameHeader> control_ ABSL_GUARDED_BY(mutex_);
  std::map<TagKey, Outgoing> outgoing_ ABSL_GUARDED_BY(mutex_);
  // Outgoing messages with credit; entries of dropped messages are skipped.
  std::deque<TagKey> short_ ABSL_GUARDED_BY(mutex_);
  std::deque<TagKey> long_ ABSL_GUARDED_BY(mutex_);
  // Outgoing messages with urgent bytes; they are in the queues above too.
  std::deque<TagKey> urgent_ ABSL_GUARDED_BY(mutex_);
  std::map<TagKey, int64_t> owed_credit_ ABSL_GUARDED_BY(mutex_);  // granted, the peer not yet told

  // This end's right to send: credit of the stream, below 0 by one frame at most; and demands for
  // messages that this end does not have yet.
  int64_t link_credit_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool waits_for_credit_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<TagKey, int64_t> early_demands_ ABSL_GUARDED_BY(mutex_);

  // The peer's right to send, as known here: credit of the stream given and not yet used by frames;
  // freed credit not yet returned; urgent bytes.
  MemoryBudget::Reservation reservation_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int64_t> lot_bytes_ = 1;
  int64_t allowed_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<int64_t> freed_bytes_ = 0;
  std::map<TagKey, int64_t> demanded_ ABSL_GUARDED_BY(mutex_);  // urgent bytes, by tag
  // Demands of steps that ended here, some of whose urgent frames may be in transit; they are
  // dropped on arrival. The steps that ended first are forgotten first.
  std::map<TagKey, int64_t> ended_demands_ ABSL_GUARDED_BY(mutex_);
  std::set<int64_t> recent_steps_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_PEER_LINK_H_
