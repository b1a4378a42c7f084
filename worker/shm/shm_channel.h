// Messages between two workers on one host. Each worker maps memory of the other worker.
#ifndef SHARDMESH_WORKER_SHM_SHM_CHANNEL_H_
#define SHARDMESH_WORKER_SHM_SHM_CHANNEL_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "process/steady_deadline.h"
#include "tensor/buffer.h"
#include "worker/collective/link.h"
#include "worker/shm/shm_arena.h"
#include "worker/shm/shm_ring.h"
#include "worker/shm/shm_segment.h"

namespace shardmesh::worker {

// The maximum number of bytes of the signature of an op (see Link::Begin).
inline constexpr size_t kShmSignatureBytes = 512;

// The content of the control segment of one end of a channel (the owner). The other end maps this
// segment; only the owner writes to it.
struct ShmControl {
  // Version of this layout. Each end refuses a control segment with another version.
  static constexpr uint64_t kLayout = 0x73686d'0004;

  uint64_t layout = kLayout;
  // The owner's token. The owner's hello on the Exchange stream has the same token. The token
  // proves that this control segment belongs to the worker at the other end of the stream.
  std::array<char, 16> token = {};
  // Number of notes that the owner has written, modulo 2^32. Readers of the other end that find no
  // note sleep on this word.
  alignas(64) std::atomic<uint32_t> written = 0;
  // Number of the owner's threads that sleep until the other end writes a note.
  alignas(64) std::atomic<uint32_t> sleeps = 0;
  // If not 0, the owner no longer keeps its messages unchanged, so data that the other end reads
  // later may be wrong.
  alignas(64) std::atomic<uint32_t> closed = 0;
  RingReads reads = {};
  RingSlots slots = {};
  // For each slot: the signature of the op, if the slot's note has one.
  std::array<std::array<char, kShmSignatureBytes>, kRingSlots> signatures = {};

  static int64_t SizeBytes();  // rounded up to whole pages
};

// One end of a channel.
//
// A note (shm_ring.h) describes one message. A message of at most kInlineBytes travels inside its
// note. A larger message stays in the sender's arena, and the note says where it lies. The receiver
// reads the message there. The sender keeps the message until the receiver releases it, even if the
// step ends earlier, or until the channel is closed.
//
// No call waits for the other end. The channel refuses a message if the ring has no free slot. It
// also refuses a message of more than kInlineBytes that lies outside the arena. The caller sends a
// refused message over the stream. The channel copies the other end's notes before it checks them,
// because the other end can change its notes at any time. A malformed note is DATA_LOSS.
//
// Thread-safe.
class ShmChannel : public std::enable_shared_from_this<ShmChannel> {
 public:
  static constexpr size_t kInlineBytes = 160;

  // `control` is this end's control segment, `theirs` the other end's control segment. Each has
  // ShmControl::SizeBytes(). The channel sends the descriptors of segments over `socket`, and keeps
  // the socket open. Memory for messages that must be copied is reserved from `budget`, unless
  // `budget` is null. The arena and the budget outlive the channel and its messages.
  ShmChannel(std::unique_ptr<ShmSegment> control, std::unique_ptr<ShmView> theirs,
             std::shared_ptr<const FileDescriptor> socket, const ShmArena* arena,
             MemoryBudget* budget = nullptr);
  ~ShmChannel();

  // Sends a message of at least one byte; `signature` may be empty. Returns false if the channel
  // refuses the message.
  bool TrySend(const Tag& tag, int64_t epoch, std::string_view signature, uint64_t signature_hash,
               const OwnedBytes& message);

  struct Arrived {
    int64_t step = 0;
    int64_t op = 0;
    int64_t round = 0;
    int64_t epoch = 0;
    // Lies in the sender's memory if its segment is mapped. Otherwise, or if the message came
    // inside its note, this is a copy in this process's memory.
    OwnedBytes message = {};
    // The note's signature, as hash and text. The hash is 0 if the note has no signature. The text
    // is empty if the hash equals `expected_hash` of TryReceive.
    uint64_t signature_hash = 0;
    std::string signature = {};
  };
  // Takes the next message. If its segment could not be mapped, copies the message.
  //
  // Returns false if there is no message, if the message's segment has not yet come over the
  // socket, or if the channel is closed. After an error, close the channel and its stream.
  // - DATA_LOSS: the other end violates the protocol, for example if a segment takes more than 2 s
  //   to come.
  // - RESOURCE_EXHAUSTED: there is no memory for a copy. The reason is MEMORY_LIMIT if the budget
  //   lacks the memory.
  absl::StatusOr<bool> TryReceive(uint64_t expected_hash, Arrived* arrived);

  // Sleeps until a message comes or `changes` is no longer `seen`, but no longer than `timeout`.
  // May wake up spuriously. Before Linux 5.16, the kernel cannot wait for two memory words, so a
  // Sleep lasts at most 1 ms. The thread that changes `changes` must wake the threads that sleep on
  // it, as Mailbox does. Any number of threads may sleep at once.
  void Sleep(const std::atomic<uint32_t>& changes, uint32_t seen, absl::Duration timeout);

  // Releases the messages that the other end has finished reading. Call it regularly.
  void Reap();

  // Ends sending and receiving. Releases the messages that the other end has not read.
  void Close();
  bool closed() const { return closed_.load(std::memory_order_acquire); }
  // Returns whether the other end has closed the channel. If the result is false, all messages of
  // the other end that this end has read so far were intact.
  bool peer_closed() const {
    std::atomic_thread_fence(std::memory_order_acquire);
    return their().closed.load(std::memory_order_relaxed) != 0;
  }

  // ShmPeers calls AddView when the other end has added a segment, DropView when the other end has
  // freed a segment, and SegmentFreed when this end's arena has freed a segment. AddView returns
  // RESOURCE_EXHAUSTED beyond kMaxViews segments.
  static constexpr size_t kMaxViews = 32'768;
  absl::Status AddView(uint64_t segment_id, std::shared_ptr<const ShmView> view);
  void DropView(uint64_t segment_id);
  void SegmentFreed(uint64_t segment_id);

 private:
  struct Pinned {
    uint64_t number = 0;
    OwnedBytes message;
  };
  struct Pin;
  struct Copy;

  ShmControl& own() const { return *reinterpret_cast<ShmControl*>(control_->bytes().data()); }
  const ShmControl& their() const {
    return *reinterpret_cast<const ShmControl*>(theirs_->bytes().data());
  }
  // Sends the segment's descriptor to the other end, unless the other end has the segment already.
  // Returns whether the other end has the segment.
  bool Introduce(uint64_t segment_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_);
  void ReapLocked(std::deque<Pinned>& done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_);
  void TellFreed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_);
  // Returns the view of the other end's segment; null if the segment has not come yet.
  std::shared_ptr<const ShmView> ViewOf(uint64_t segment_id);

  const std::unique_ptr<ShmSegment> control_;
  const std::unique_ptr<ShmView> theirs_;
  const std::shared_ptr<const FileDescriptor> socket_;
  const ShmArena* const arena_;
  MemoryBudget* const budget_;
  std::atomic<bool> closed_ = false;

  absl::Mutex send_mutex_;
  RingWriter writer_ ABSL_GUARDED_BY(send_mutex_);
  std::deque<Pinned> pinned_ ABSL_GUARDED_BY(send_mutex_);
  std::set<uint64_t> introduced_ ABSL_GUARDED_BY(send_mutex_);
  // Segments that were freed, of which the other end is not yet informed.
  std::deque<uint64_t> untold_ ABSL_GUARDED_BY(send_mutex_);

  absl::Mutex receive_mutex_;
  RingReader reader_ ABSL_GUARDED_BY(receive_mutex_);
  RingReader::Note note_ ABSL_GUARDED_BY(receive_mutex_);
  // The deadline for the segment that note_ refers to. Set while note_ has been read but its
  // segment has not come.
  std::optional<SteadyDeadline> introduction_ ABSL_GUARDED_BY(receive_mutex_);

  absl::Mutex views_mutex_;
  std::map<uint64_t, std::shared_ptr<const ShmView>> views_ ABSL_GUARDED_BY(views_mutex_);
};

// A message over the socket between the two ends (SOCK_SEQPACKET). At most one descriptor comes
// with the message.
struct ShmGreeting {
  enum class Kind : uint32_t {
    kJoin = 1,  // from the end that connects: its control segment, and the other end's token
    kAccept,    // the answer: the accepting end's control segment
    kReady,     // from the end that connects: both ends have both control segments
    kSegment,   // a segment of the sender's arena
    kFreed,     // the sender's segment has returned to the host
  };
  static constexpr size_t kMaxIdentityBytes = 256;

  uint64_t layout = ShmControl::kLayout;
  Kind kind = Kind::kJoin;
  uint32_t identity_bytes = 0;  // kJoin: identity of the end that connects
  uint64_t segment_id = 0;
  int64_t size_bytes = 0;
  std::array<char, 16> token = {};
  std::array<char, kMaxIdentityBytes> identity = {};

  std::string_view text() const {
    return {reinterpret_cast<const char*>(this), sizeof(ShmGreeting)};
  }
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SHM_SHM_CHANNEL_H_
