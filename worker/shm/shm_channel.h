// Messages between two workers of one host, each of which maps memory of the other.
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

// Most bytes of an op's signature (Link::Begin).
inline constexpr size_t kShmSignatureBytes = 512;

// Control page that one end of a channel shows the other. Only its owner writes it.
struct ShmControl {
  // Version of this layout; other versions are refused.
  static constexpr uint64_t kLayout = 0x73686d'0004;

  uint64_t layout = kLayout;
  // The owner's token, as in its hello on the Exchange stream. The token proves that the memory
  // belongs to the worker behind the stream.
  std::array<char, 16> token = {};
  // Notes written, modulo 2^32. A reader that found no note sleeps on this word.
  alignas(64) std::atomic<uint32_t> written = 0;
  // Number of the owner's threads that sleep until the other end writes a note.
  alignas(64) std::atomic<uint32_t> sleeps = 0;
  // The owner no longer keeps its messages: later reads may see other data.
  alignas(64) std::atomic<uint32_t> closed = 0;
  RingReads reads = {};
  RingSlots slots = {};
  // The signature of the op of each slot's note, if the note has one.
  std::array<std::array<char, kShmSignatureBytes>, kRingSlots> signatures = {};

  static int64_t SizeBytes();  // in whole pages
};

// One end of a channel.
//
// A message of at most kInlineBytes travels inside its note. A larger one stays in the sender's
// arena, and the note says where it lies. The receiver reads it there. The sender keeps it until
// the receiver releases it, even if the step ends, or until the channel is closed.
//
// No call waits for the other end. A message that finds no room, or lies outside the arena, is not
// taken and must go over the stream. The channel copies the other end's notes before it checks
// them; a malformed note is DATA_LOSS.
//
// Thread-safe.
class ShmChannel : public std::enable_shared_from_this<ShmChannel> {
 public:
  static constexpr size_t kInlineBytes = 160;

  // `control` is this end's control segment, `theirs` the other end's; each has
  // ShmControl::SizeBytes(). `socket` hands segments over; the channel keeps it. Messages that have
  // to be copied are reserved from `budget`, unless it is null. Arena and budget outlive the
  // channel and its messages.
  ShmChannel(std::unique_ptr<ShmSegment> control, std::unique_ptr<ShmView> theirs,
             std::shared_ptr<const FileDescriptor> socket, const ShmArena* arena,
             MemoryBudget* budget = nullptr);
  ~ShmChannel();

  // Sends a message of at least one byte; `signature` may be empty. Returns false if the channel
  // does not take it.
  bool TrySend(const Tag& tag, int64_t epoch, std::string_view signature, uint64_t signature_hash,
               const OwnedBytes& message);

  struct Arrived {
    int64_t step = 0;
    int64_t op = 0;
    int64_t round = 0;
    int64_t epoch = 0;
    // Lies in the sender's memory, or is a copy if it came inside the note.
    OwnedBytes message = {};
    // 0 where the note has no signature. The text is empty where the hash equals the expected hash.
    uint64_t signature_hash = 0;
    std::string signature = {};
  };
  // Takes the next message. Copies a message that lies in a segment that could not be mapped.
  //
  // Returns false if there is no message, if its segment has not yet come over the socket, and once
  // the channel is closed. DATA_LOSS if the other end violates the protocol, for example if a
  // segment takes longer than 2 s to come. RESOURCE_EXHAUSTED if there is no memory for a copy
  // (MEMORY_LIMIT: of the budget). After an error, close the channel and its stream.
  absl::StatusOr<bool> TryReceive(uint64_t expected_hash, Arrived* arrived);

  // Sleeps until a message comes, or `changes` is no longer `seen`, at most for `timeout`. May wake
  // up spuriously. Wakes up after at most 1 ms where the kernel cannot wait for both words (before
  // Linux 5.16). The thread that changes `changes` wakes its sleepers, as Mailbox does. Any number
  // of threads may call.
  void Sleep(const std::atomic<uint32_t>& changes, uint32_t seen, absl::Duration timeout);

  // Releases messages that the other end has read. Call it regularly.
  void Reap();

  // Sends and receives nothing from now on. Releases messages that the other end did not read.
  void Close();
  bool closed() const { return closed_.load(std::memory_order_acquire); }
  // Returns whether the other end has closed. While it has not, all its messages read so far were
  // intact.
  bool peer_closed() const {
    std::atomic_thread_fence(std::memory_order_acquire);
    return their().closed.load(std::memory_order_relaxed) != 0;
  }

  // Events of the socket and the arena, for ShmPeers: the other end added a segment; it freed one;
  // this end's arena freed one. RESOURCE_EXHAUSTED beyond kMaxViews segments.
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
  // Returns whether the other end can map the segment.
  bool Introduce(uint64_t segment_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_);
  void ReapLocked(std::deque<Pinned>& done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_);
  void TellFreed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_);
  // Returns the segment's view; null if it has not come.
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
  std::deque<uint64_t> untold_ ABSL_GUARDED_BY(send_mutex_);  // freed, the other end not yet
                                                              // notified

  absl::Mutex receive_mutex_;
  RingReader reader_ ABSL_GUARDED_BY(receive_mutex_);
  RingReader::Note note_ ABSL_GUARDED_BY(receive_mutex_);
  // Set while note_ was read but its segment had not come: the deadline for the segment.
  std::optional<SteadyDeadline> introduction_ ABSL_GUARDED_BY(receive_mutex_);

  absl::Mutex views_mutex_;
  std::map<uint64_t, std::shared_ptr<const ShmView>> views_ ABSL_GUARDED_BY(views_mutex_);
};

// Messages of the two ends over their socket (SOCK_SEQPACKET), each with at most one descriptor.
struct ShmGreeting {
  enum class Kind : uint32_t {
    kJoin = 1,  // from the end that connects: its control segment, the other end's token
    kAccept,    // the answer: the other control segment
    kReady,     // both ends have both control segments
    kSegment,   // a segment of the arena
    kFreed,     // the segment returned to the host
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
