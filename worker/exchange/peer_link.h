// The protocol of two workers over one Exchange stream: hellos, data limited by credit, aborts,
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

// One end of one Exchange stream. The object serves this stream only, until the stream is closed.
//
// States: greeting (until the peer's hello) -> up -> closed.
//
// Order of sending: control frames, then urgent frames, then messages of at most
// kShortMessageBytes, then longer messages. Messages of the same class take turns, one frame each.
// Memory is bounded: the link sends messages from where they lie, without a copy, and limits the
// number of waiting control frames.
//
// Back-pressure. Each tag has credit for its message, so a receiver that is slow on one tag does
// not hold up other tags. The stream has credit for all messages together. A sender may use any
// number of tags. Messages for a late receiver therefore hold at most the stream's credit and one
// frame: the peer may send a frame while any credit is left. The receiver's hello gives the
// stream's first credit. A frame's credit is free again when the last byte of the frame is freed.
// The receiver returns free credit in lots of a quarter of the first credit.
//
// A stream without credit does not deadlock. Messages that no thread reads yet may hold all credit
// of the stream. Examples are messages of a step that waits for another step, or of a later round.
// A receiver that waits for a message while the stream has no credit therefore demands this message
// from the peer (Demand). The peer may then send kUrgentBytes of the message in urgent frames,
// which cost no credit of the stream. A sender thus sends every awaited message as soon as it has
// the message, and messages in transit cannot block one another.
//
// A receiving thread waits for one message at a time, and demands more when half of kUrgentBytes
// has come. Urgent frames therefore take at most kUrgentBytes of memory for each receiving thread.
// This end refuses urgent frames that bring more bytes than it has demanded for their message.
//
// Thread-safe.
class PeerLink final : public ExchangeStream::Handler,
                       public std::enable_shared_from_this<PeerLink> {
 public:
  static constexpr int64_t kShortMessageBytes = int64_t{16} << 10;
  // The maximum number of payload bytes of a data frame. A control frame waits at most for one such
  // frame.
  static constexpr int64_t kDataFrameBytes = int64_t{512} << 10;
  // The maximum number of control frames that wait to be written. If a peer causes more control
  // frames and does not read them, this end closes the stream.
  static constexpr size_t kMaxControlFrames = 4096;
  // Credit of the stream that a data frame costs, in addition to its payload and its signature.
  // This cost bounds the number of short messages in transit.
  static constexpr int64_t kFrameOverheadBytes = 256;
  // Bytes of a message that the peer may send after a demand, without credit of the stream.
  static constexpr int64_t kUrgentBytes = kDataFrameBytes;
  // The maximum number of demands of the peer that this end keeps for messages that this end has
  // not begun to send. A peer has far fewer receiving threads.
  static constexpr size_t kMaxEarlyDemands = 1024;
  // The maximum number of demands of ended steps that this end remembers. Far fewer demands can be
  // in transit at once.
  static constexpr size_t kMaxEndedDemands = 4096;

  // Counters about credit, shared by all links of one owner.
  struct CreditState {
    // Number of streams whose peers have no credit left to send to this worker. A receiver
    // registers its wait and then reads this number. If it is 0, the receiver need not call Demand.
    std::atomic<int64_t> exhausted_links = 0;
    // How often this worker had data to send, but no credit left on the stream.
    std::atomic<int64_t> waits = 0;
  };

  // Checks incoming frames and takes their data. The link calls it on the stream's thread, with no
  // lock held. Its methods must not block.
  class Owner {
   public:
    virtual ~Owner() = default;
    // Checks the peer's hello and returns this end's answer. An error closes the stream with that
    // error.
    virtual absl::StatusOr<rpc::FrameHello> CheckHello(PeerLink& link,
                                                       const rpc::FrameHello& hello) = 0;
    // Whether the payloads of the link's data frames need no checksum. Both ends answer the same:
    // the answer depends on both hellos and on how both are connected. Called after CheckHello.
    virtual rpc::PayloadChecksum ChecksumFor(const rpc::FrameHello& hello) const = 0;
    // The peer's hello was accepted: messages may be sent.
    virtual void OnUp(const std::shared_ptr<PeerLink>& link) = 0;
    // Takes a data frame. An error closes the stream with that error. Each piece of the payload
    // must keep a copy of `charge`. When the last copy is released, the peer gets the frame's
    // credit back.
    virtual absl::Status OnData(PeerLink& link, const rpc::Frame& frame,
                                const std::shared_ptr<const void>& charge) = 0;
    // Called when the peer has no credit of the stream left. The owner calls Demand for the
    // messages that receivers wait for.
    virtual void OnExhausted(PeerLink& link) = 0;
    virtual CreditState& credit_state() = 0;
    virtual void OnAbort(PeerLink& link, int64_t sequence, const rpc::FrameAbort& abort) = 0;
    // This end refused a frame, and is about to close the stream with `why`.
    virtual void OnRefused(const absl::Status& why) = 0;
    // The stream has ended; no call follows. `was_up` says whether OnUp was called.
    virtual void OnDown(const std::shared_ptr<PeerLink>& link, bool was_up,
                        const absl::Status& status) = 0;
  };

  // `greeting` is the hello that this end sends first, if it dialled. Without `greeting`, this end
  // accepted the stream, and answers the peer's hello. The time without frames from the peer (see
  // Tick) counts from now. The owner outlives the link.
  PeerLink(Owner* owner, const Clock* clock, std::optional<rpc::FrameHello> greeting);

  // Sets the stream. Call it before the stream's first event.
  void Attach(std::shared_ptr<ExchangeStream> stream);

  // Keeps, for the lifetime of the stream, the memory reserved for the credit that this end's hello
  // gives the peer.
  void KeepReservation(MemoryBudget::Reservation reservation);

  bool dialled() const { return greeting_.has_value(); }
  // Returns the peer's identity. For an accepted stream, the identity comes from the peer's hello,
  // and is empty until that hello.
  std::string peer() const;
  bool is_up() const;
  // Like ExchangeStream::CheckPeer. UNAVAILABLE once the stream is closed.
  absl::Status CheckPeer(const rpc::Credentials& own, const std::string& identity) const;

  // Queues a message of at least one byte for the peer, with `signature` unless `signature` is
  // empty. UNAVAILABLE if the link is not up. INVALID_ARGUMENT if another message with this tag is
  // not completely sent.
  absl::Status Send(const rpc::FrameTag& tag, int64_t epoch, OwnedBytes message,
                    std::string signature = {});
  // Returns whether one frame is being written and another frame waits.
  bool is_behind() const;
  // Records that this worker sent data of a step to the peer, but not over this stream: see
  // recent_steps.
  void RememberStep(int64_t sequence);
  // Tells the peer that a step was aborted, and drops the step's unsent messages.
  void SendAbort(int64_t sequence, const rpc::FrameAbort& abort);
  // Gives the peer `size_bytes` more credit under a tag. Sends the credit to the peer when at least
  // `lot_bytes` of it have accumulated.
  void Grant(const rpc::FrameTag& tag, int64_t size_bytes, int64_t lot_bytes);
  // Called when a receiver waits for a message of which `left_bytes` have not come. If the stream
  // has no credit left, permits the peer to send some of these bytes in urgent frames. Does nothing
  // if earlier demands still cover `left_bytes`, or half of kUrgentBytes.
  void Demand(const rpc::FrameTag& tag, int64_t left_bytes);
  void DropStep(int64_t sequence);
  // Forgets the step's owed credit and its demands, because no thread receives the step's messages
  // any more. Unsent messages of the step are still sent.
  void EndStep(int64_t sequence);
  // For tests. Returns how many entries this end keeps about single messages: owed credit, demanded
  // bytes, and tags in the queue of urgent messages. Each entry must disappear with its message.
  size_t notes() const;
  // Returns the number of remembered demands of ended steps: at most kMaxEndedDemands. Urgent
  // frames that the peer sent for these demands may still be in transit.
  size_t ended_notes() const;

  // Call it regularly. Pings a peer from which no frame came for `ping_interval`. Closes the stream
  // if no frame came for `silence_limit`.
  void Tick(absl::Duration ping_interval, absl::Duration silence_limit);

  // Ends the stream; Owner::OnDown follows. See ExchangeStream::Close for the status that the peer
  // gets.
  void Close(const absl::Status& status);

  // recent_steps() returns the numbers of the steps in which this worker sent data to the peer. If
  // there are more than kRememberedSteps such steps, returns only the highest numbers. If the
  // stream breaks, the peer may miss some of this data.
  static constexpr size_t kRememberedSteps = 64;
  std::vector<int64_t> recent_steps() const;

  // Implement ExchangeStream::Handler.
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
    int64_t credit_bytes = 0;  // bytes that the tag's credit allows to be sent now
    // Bytes that the peer has demanded. They are sent in urgent frames, which cost the tag's credit
    // but no credit of the stream.
    int64_t urgent_bytes = 0;
  };
  // The cost of one received frame, in credit of the stream. The destructor returns this credit to
  // the peer.
  struct Charge;
  // A frame to be written. Control frames have no payload.
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
  // Returns `cost_bytes` of the stream's credit to the peer. Any thread may call it, also while it
  // holds locks of the owner.
  void Return(int64_t cost_bytes);
  void SetAllowedLocked(int64_t allowed_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void RememberStepLocked(int64_t sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Queue(rpc::FrameHeader header) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropStepLocked(int64_t sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes the step's owed credit and demands, because no thread waits for its messages.
  void EndNotesLocked(int64_t sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the counter of the bytes that the peer may still send of a message in urgent frames.
  // Returns null if there is no such counter, or if the counter is below `payload_bytes`.
  int64_t* UrgentBytesLocked(const TagKey& key, int64_t payload_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::deque<TagKey>& QueueOf(const Outgoing& outgoing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the next frame to write; nullopt if a frame is being written, or if no frame may be
  // sent.
  std::optional<NextFrame> Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Cuts the next `size_bytes` of the message into a frame. Requires credit for these bytes.
  NextFrame Cut(Outgoing& outgoing, int64_t size_bytes, bool is_urgent)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteNext() ABSL_LOCKS_EXCLUDED(mutex_);

  Owner* const owner_;
  const Clock* const clock_;
  const std::optional<rpc::FrameHello> greeting_;

  mutable absl::Mutex mutex_;
  std::shared_ptr<ExchangeStream> stream_ ABSL_GUARDED_BY(mutex_);  // null once closed
  State state_ ABSL_GUARDED_BY(mutex_) = State::kGreeting;
  std::string peer_ ABSL_GUARDED_BY(mutex_);
  int64_t initial_credit_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of each tag; from the peer's hello
  absl::Time heard_ ABSL_GUARDED_BY(mutex_);                  // when the last frame came
  absl::Time pinged_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  int64_t pings_ ABSL_GUARDED_BY(mutex_) = 0;

  // True if the stream is open and no frame is being written.
  bool can_write_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<rpc::FrameHeader> control_ ABSL_GUARDED_BY(mutex_);
  std::map<TagKey, Outgoing> outgoing_ ABSL_GUARDED_BY(mutex_);
  // Tags of outgoing messages that have credit: short_ for messages of at most kShortMessageBytes,
  // long_ for longer messages. Next() skips tags whose messages were dropped.
  std::deque<TagKey> short_ ABSL_GUARDED_BY(mutex_);
  std::deque<TagKey> long_ ABSL_GUARDED_BY(mutex_);
  // Tags of outgoing messages with urgent bytes. These tags may also be in short_ or long_.
  std::deque<TagKey> urgent_ ABSL_GUARDED_BY(mutex_);
  // Credit of tags that is free again, but that this end has not returned to the peer yet.
  std::map<TagKey, int64_t> owed_credit_ ABSL_GUARDED_BY(mutex_);

  // Credit of the stream that this end may still use. It may fall below 0, by one frame at most.
  int64_t link_credit_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // True while data waits until link_credit_bytes_ is above 0.
  bool waits_for_credit_ ABSL_GUARDED_BY(mutex_) = false;
  // For messages that this end has not begun to send: the bytes that the peer has demanded.
  std::map<TagKey, int64_t> early_demands_ ABSL_GUARDED_BY(mutex_);

  // Memory reserved for the credit that this end's hello gave the peer.
  MemoryBudget::Reservation reservation_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int64_t> lot_bytes_ = 1;  // freed_bytes_ at which credit is returned
  // Whether data frames, in both directions, have a checksum of their payload. Set by the hello.
  std::atomic<rpc::PayloadChecksum> checksum_ = rpc::PayloadChecksum::kCrc32c;
  // Credit of the stream that the peer has and has not used yet, as far as this end knows.
  int64_t allowed_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Credit of the stream that is free again, but that this end has not returned to the peer yet.
  std::atomic<int64_t> freed_bytes_ = 0;
  // Urgent bytes that the peer may still send, by tag.
  std::map<TagKey, int64_t> demanded_ ABSL_GUARDED_BY(mutex_);
  // Urgent bytes that the peer may still send for steps that ended here. This end drops the frames
  // with these bytes on arrival. If there are more than kMaxEndedDemands entries, this end forgets
  // the entries of the lowest steps first.
  std::map<TagKey, int64_t> ended_demands_ ABSL_GUARDED_BY(mutex_);
  std::set<int64_t> recent_steps_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_EXCHANGE_PEER_LINK_H_
