// What two workers say to each other over one Exchange stream: hellos, data within its credit,
// aborts, pings.
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
// States: greeting (until the peer's hello) -> up -> closed. What is sent goes out in this order:
// control frames; messages of at most kShortMessageBytes; longer ones, a frame of each in turn.
// Memory is bounded: messages are sent from where they lie, and the control frames that wait are
// counted.
//
// Back-pressure. A message may send what its tag has credit for: a receiver that is slow on one tag
// holds up no other. All messages together may send what the stream has credit for: a receiver that
// is late for a step, whose sender may use any number of tags, holds no more than that and one
// frame, which may be sent while any credit is left. The receiver's hello gives the stream's first
// credit; a frame's credit comes back when the last of its bytes is freed, in lots of a quarter.
//
// A stream without credit does not deadlock. Its credit may all be held by messages that nobody
// reads yet, of a step that waits for another, or of a later round. So a receiver that waits for a
// message while the stream has no credit asks for it (Demand): the tag gets the right to send
// kUrgentBytes in urgent frames, which cost no credit of the stream. Hence whatever a receiver
// waits for is sent as soon as its sender has it, whatever else is held, and the messages that are
// under way cannot block one another. A receiving thread waits for one message at a time and asks
// again when half has come: urgent frames take at most kUrgentBytes of memory for each such thread.
// What a message may bring in urgent frames is what was demanded for it, and did not come.
//
// Thread-safe.
class PeerLink final : public ExchangeStream::Handler,
                       public std::enable_shared_from_this<PeerLink> {
 public:
  static constexpr int64_t kShortMessageBytes = int64_t{16} << 10;
  // Most payload of a data frame: what a control frame may have to wait for.
  static constexpr int64_t kDataFrameBytes = int64_t{512} << 10;
  // Control frames that wait: a peer that causes more of them and does not read is cut off.
  static constexpr size_t kMaxControlFrames = 4096;
  // What a data frame costs of the stream's credit beyond its payload and its signature, so that
  // many short messages are bounded too.
  static constexpr int64_t kFrameOverheadBytes = 256;
  // What a demand allows to be sent beside the stream's credit.
  static constexpr int64_t kUrgentBytes = kDataFrameBytes;
  // Demands kept for messages that are not there yet: far more than a peer has receiving threads.
  static constexpr size_t kMaxEarlyDemands = 1024;
  // Demands remembered of steps that ended: far more than can be on their way at once.
  static constexpr size_t kMaxEndedDemands = 4096;

  // Shared by the links of one owner.
  struct CreditState {
    // How many streams have no credit left for their peers. A receiver that finds 0 here after it
    // said that it waits need not Demand.
    std::atomic<int64_t> exhausted_links = 0;
    // How often this worker had data to send and no credit of the stream.
    std::atomic<int64_t> waits = 0;
  };

  // Who decides and takes what comes in. Called on the stream's thread, with no lock held; must not
  // block.
  class Owner {
   public:
    virtual ~Owner() = default;
    // Judges the peer's hello; returns the one to answer with. An error closes the stream with it.
    virtual absl::StatusOr<rpc::FrameHello> CheckHello(PeerLink& link,
                                                       const rpc::FrameHello& hello) = 0;
    // The peer is greeted: messages may be sent.
    virtual void OnUp(const std::shared_ptr<PeerLink>& link) = 0;
    // An error closes the stream with it. The frame's credit is given back when nobody keeps
    // `charge` any more, which each piece of its payload is to keep.
    virtual absl::Status OnData(PeerLink& link, const rpc::Frame& frame,
                                const std::shared_ptr<const void>& charge) = 0;
    // The stream has no credit left: Demand what is waited for.
    virtual void OnExhausted(PeerLink& link) = 0;
    virtual CreditState& credit_state() = 0;
    virtual void OnAbort(PeerLink& link, int64_t sequence, const rpc::FrameAbort& abort) = 0;
    // A frame was refused: the stream is about to be closed with the error.
    virtual void OnRefused(const absl::Status& why) = 0;
    // The stream is over; last call. `was_up`: OnUp was called.
    virtual void OnDown(const std::shared_ptr<PeerLink>& link, bool was_up,
                        const absl::Status& status) = 0;
  };

  // `greeting`: the hello to begin with, of the end that dials; the other end answers the hello it
  // gets. `now` starts the watch over silence. The owner outlives the link.
  PeerLink(Owner* owner, const rpc::Clock* clock, std::optional<rpc::FrameHello> greeting);

  // Before the stream's first event.
  void Attach(std::shared_ptr<ExchangeStream> stream);

  // Keeps the memory for the credit that this end's hello gives the peer.
  void KeepReservation(MemoryBudget::Reservation reservation);

  bool dialled() const { return greeting_.has_value(); }
  // The peer's identity: the one that was dialled, or else as its hello says (empty before).
  std::string peer() const;
  bool is_up() const;
  // See ExchangeStream::CheckPeer; while the stream is open.
  absl::Status CheckPeer(const rpc::Credentials& own, const std::string& identity) const;

  // Takes a message for the peer, of at least one byte. UNAVAILABLE if the link is not up;
  // INVALID_ARGUMENT if a message of this tag is under way. `signature`, if not empty, goes with
  // it.
  absl::Status Send(const rpc::FrameTag& tag, int64_t epoch, OwnedBytes message,
                    std::string signature = {});
  // Whether something waits for the frame before it to be written.
  bool is_behind() const;
  // Data of a step was sent to the peer on another way: see recent_steps.
  void RememberStep(int64_t sequence);
  // Tells that a step is over, and drops what is still to be sent of it.
  void SendAbort(int64_t sequence, const rpc::FrameAbort& abort);
  // Allows the peer `size_bytes` more under a tag. Told to it in lots of `lot_bytes`.
  void Grant(const rpc::FrameTag& tag, int64_t size_bytes, int64_t lot_bytes);
  // A receiver waits for a message of which `left_bytes` have not come. If the stream has no credit
  // left, and none was asked for before that is still to come, the peer may send it in urgent
  // frames.
  void Demand(const rpc::FrameTag& tag, int64_t left_bytes);
  void DropStep(int64_t sequence);
  // Nothing of a step is received any more: forgets what was noted of its messages. What is still
  // to be sent of it goes on.
  void EndStep(int64_t sequence);
  // Notes about messages, which live no longer than these: credit that is owed, bytes that were
  // demanded, places in the queue of urgent ones.
  size_t notes() const;
  // Demands of steps that ended, whose urgent frames may be on their way: kMaxEndedDemands at most.
  size_t ended_notes() const;

  // To be called now and then: pings a peer that was silent for `ping_interval`, and closes the
  // stream after `silence_limit`.
  void Tick(absl::Duration ping_interval, absl::Duration silence_limit);

  // Ends the stream; OnDown follows. See ExchangeStream::Close for what the peer hears.
  void Close(const absl::Status& status);

  // The last kRememberedSteps steps of which data was sent: where the stream breaks, the peer may
  // miss some of it.
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

  // A message on its way out.
  struct Outgoing {
    rpc::FrameTag tag;
    int64_t epoch = 0;
    OwnedBytes message;
    std::string signature;  // empty once sent
    int64_t sent_bytes = 0;
    int64_t credit_bytes = 0;  // that may be sent now
    int64_t urgent_bytes = 0;  // of them, that cost the stream no credit
  };
  // What a frame costs of the stream's credit; given back by the destructor.
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
  // Gives credit of the stream back to the peer. Any thread, also with locks of the owner held.
  void Return(int64_t cost_bytes);
  void SetAllowedLocked(int64_t allowed_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void RememberStepLocked(int64_t sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Queue(rpc::FrameHeader header) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropStepLocked(int64_t sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Nothing more is awaited of the step.
  void EndNotesLocked(int64_t sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What the peer may still send of a message in urgent frames; null: nothing.
  int64_t* UrgentBytesLocked(const TagKey& key, int64_t payload_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::deque<TagKey>& QueueOf(const Outgoing& outgoing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What to write now; nullopt if a frame is being written or nothing waits.
  std::optional<NextFrame> Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A frame of the message; what may be sent of it is above 0.
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

  bool can_write_ ABSL_GUARDED_BY(mutex_) = false;  // open, and no frame is being written
  std::deque<rpc::FrameHeader> control_ ABSL_GUARDED_BY(mutex_);
  std::map<TagKey, Outgoing> outgoing_ ABSL_GUARDED_BY(mutex_);
  // Of outgoing messages those with credit; dropped ones are passed over.
  std::deque<TagKey> short_ ABSL_GUARDED_BY(mutex_);
  std::deque<TagKey> long_ ABSL_GUARDED_BY(mutex_);
  // Of those with urgent bytes; they are in the queues above too.
  std::deque<TagKey> urgent_ ABSL_GUARDED_BY(mutex_);
  std::map<TagKey, int64_t> owed_credit_ ABSL_GUARDED_BY(mutex_);  // granted, not told yet

  // What this end may send: credit of the stream, below 0 by one frame at most; and
  // demands for messages that are not there to be sent yet.
  int64_t link_credit_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool waits_for_credit_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<TagKey, int64_t> early_demands_ ABSL_GUARDED_BY(mutex_);

  // What the peer may send, as far as this end knows: credit of the stream that was given and did
  // not come back as frames; what of freed frames it was not told yet; urgent bytes.
  MemoryBudget::Reservation reservation_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int64_t> lot_bytes_ = 1;
  int64_t allowed_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<int64_t> freed_bytes_ = 0;
  std::map<TagKey, int64_t> demanded_ ABSL_GUARDED_BY(mutex_);  // urgent bytes, by tag
  // Those of steps that ended here, of which some may be on their way; whoever gets them drops
  // them. The steps that ended first go first.
  std::map<TagKey, int64_t> ended_demands_ ABSL_GUARDED_BY(mutex_);
  std::set<int64_t> recent_steps_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_PEER_LINK_H_
